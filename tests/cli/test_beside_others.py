"""Commands that give something up, beside readers and writers: what each sees, as docs/operations.md has it.

The table of the page is the source. Its cells begin with what is seen: "go on", "stop: ERROR", or "refused: ERROR" where the
command does nothing beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket import ledger
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import KBatchError
from spark_kbatch.opening.writes import begin_job
from spark_kbatch.options.write import parse_write_options
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import a_bucket


def table() -> dict[str, list[str]]:
    """The cells of each row of the page's table, by the command."""
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- beside others")[2].splitlines()[3:]
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return {first: cells for first, *cells in rows}


@dataclasses.dataclass
class Others:
    """A cluster that is read and written while a command runs, and what is seen then."""

    cluster: Cluster
    path: Path

    def __post_init__(self) -> None:
        self.address = self.cluster.address
        self.cluster.create_topic("events")
        self.cluster.create_topic("others")
        self.producer = self.cluster.producer(linger_ms=0, retries=0)
        for topic in ("events", "events", "events", "others"):
            self.producer.send(topic, "x").result()
        self.planned = self.cluster.read("events")

    def run(self, *words: str, ends_with: int = 0) -> Any:
        done = CliRunner().invoke(cli, words, prog_name="kbatch")
        assert done.exit_code == ends_with, (done.output, done.exception)
        return done

    def seen(self) -> tuple[str, str]:
        """What a reader that has planned sees, and a writer."""
        read = seen(lambda: self.planned.read_all())
        return read, seen(lambda: self.producer.send("events", "after").result())


def seen(act: Callable[[], object]) -> str:
    try:
        act()
    except KBatchError as error:
        return f"stop: {type(error).__name__}"
    return "go on"


def in_folder(path: Path) -> Others:
    return Others(spark_kbatch.open(path / "cluster", create=True), path)


def in_bucket(path: Path) -> Others:
    return Others(a_bucket(), path)


def delete_topic(others: Others) -> tuple[str, str]:
    others.run("delete-topic", others.address, "events", "--yes")
    found = others.seen()
    assert seen(lambda: others.cluster.read("events")) == "stop: UnknownTopicOrPartitionError"
    return found


def delete_records(others: Others) -> tuple[str, str]:
    others.run("delete-records", others.address, "events", "0:2", "--yes")
    _, written = others.seen()
    return seen(lambda: others.cluster.read("events", start=0).read_all()), written


def gc(others: Others) -> tuple[str, str]:
    others.run("gc", others.address)
    return others.seen()


def maintain(others: Others) -> tuple[str, str]:
    others.run("maintain", others.address)
    return others.seen()


def erase(others: Others) -> tuple[str, str]:
    others.run("maintain", others.address, "--erase", "events", "--yes")
    return others.seen()


def repair(others: Others) -> tuple[str, str]:
    others.run("repair", others.address)
    return others.seen()


def recover(others: Others) -> tuple[str, str]:
    others.run("recover", others.address, "--yes", "--whole")
    _, written = others.seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "QUIET_MS", 0)  # a minute later
        return seen(lambda: others.cluster.read("events").read_all()), written


def alter_topic(others: Others) -> tuple[str, str]:
    others.run("alter-topic", others.address, "events", "--config", "retention.bytes=1")
    return others.seen()


def reset(others: Others) -> tuple[str, str]:
    return beside_members(others, "groups", "reset", others.address, "group", "--to-latest")


def delete_group(others: Others) -> tuple[str, str]:
    return beside_members(others, "groups", "delete", others.address, "group", "--yes")


def beside_members(others: Others, *words: str) -> tuple[str, str]:
    with others.cluster.serve() as server:
        consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "group.id": "group",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["events"])
        while consumer.poll(1) is None:
            pass
        consumer.commit(asynchronous=False)
        error = others.run(*words, ends_with=1).exception
        consumer.close()
        _, written = others.seen()
    return f"refused: {type(error).__name__}", written


def export(others: Others) -> tuple[str, str]:
    file = others.path / "events.jsonl"
    file.write_text("old\n")
    with file.open() as reader:
        others.run("export", others.address, "events", str(file), "--overwrite")
        assert reader.read() == "old\n"
    assert len(file.read_text().splitlines()) == 3
    return others.seen()


def mirror(others: Others) -> tuple[str, str]:
    source = spark_kbatch.open(others.path / "source", create=True)
    with source.producer() as producer:
        producer.send("copied", "1")
    others.run("mirror", source.address, others.address, "copied")
    return others.seen()


def mirror_keeping_offsets(others: Others) -> tuple[str, str]:
    source = spark_kbatch.open(others.path / "source", create=True)
    with source.producer(linger_ms=0) as producer:
        producer.send("copied", "1").result()
        words = ("mirror", source.address, others.address, "copied", "--keep-offsets")
        others.run(*words)
        others.producer.send("copied", "of someone else").result()
        producer.send("copied", "2").result()
    error = others.run(*words, ends_with=1).exception
    return others.seen()[0], f"refused: {type(error).__name__}"


def upgrade(others: Others) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_kbatch.bucket.entries.FORMAT", 2)  # of the command; others know 1
        patch.setattr(ledger, "FORMAT", 2)
        others.run("upgrade", others.address)
    return others.seen()


def overwrite(others: Others) -> tuple[str, str]:
    options = {"path": others.address, "topic": "events"}
    job = begin_job(parse_write_options(options), overwrite=True)
    row = pa.RecordBatch.from_pydict({"value": ["new"]})
    job.commit_batch([job.stage(iter([row]), application_id="app", query_id=None)])
    assert others.cluster.read("events").read_all().num_rows == 1
    return others.seen()


CASES: dict[str, list[tuple[Callable[[Path], Others], Callable[[Others], tuple[str, str]]]]] = {
    "`delete-topic`": [(in_folder, delete_topic), (in_bucket, delete_topic)],
    "`delete-records`": [(in_folder, delete_records), (in_bucket, delete_records)],
    "`alter-topic` with a shorter retention": [(in_folder, alter_topic), (in_bucket, alter_topic)],
    "`create-topic`, `create-partitions`, `produce`": [(in_folder, lambda others: others.seen())],
    "`gc`": [(in_folder, gc)],
    "`maintain`": [(in_bucket, maintain)],
    "`maintain --erase`": [(in_bucket, erase)],
    "`repair`": [(in_folder, repair), (in_bucket, repair)],
    "`recover`": [(in_bucket, recover)],
    "`upgrade`": [(in_bucket, upgrade)],
    "`groups reset`": [(in_folder, reset)],
    "`groups delete`": [(in_folder, delete_group)],
    "`export --overwrite`": [(in_folder, export), (in_bucket, export)],
    "`mirror`, in TARGET": [(in_folder, mirror), (in_bucket, mirror)],
    "`mirror --keep-offsets`, in TARGET": [
        (in_folder, mirror_keeping_offsets),
        (in_bucket, mirror_keeping_offsets),
    ],
    "a write in Spark's mode `overwrite`": [(in_folder, overwrite), (in_bucket, overwrite)],
}
# With several disks, one of which is lost: in tests/replica and tests/cluster/test_kept_disks.py.
TESTED_ELSEWHERE = {"`log-dirs --elect-unclean`, `--replace --unclean`, `--restore --without-node`"}


def test_each_row_has_a_case() -> None:
    assert {*CASES} | TESTED_ELSEWHERE == {*table()}


@pytest.mark.parametrize(
    ("command", "place", "case"),
    [(command, *case) for command, cases in CASES.items() for case in cases],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_others_see_what_the_table_says(
    command: str,
    place: Callable[[Path], Others],
    case: Callable[[Others], tuple[str, str]],
    tmp_path: Path,
) -> None:
    read, written = case(place(tmp_path))

    readers, writers = table()[command]
    assert readers.startswith(read)
    assert writers.startswith(written)
