"""Commands that give something up, beside readers and writers: what each sees, as docs/operations.md has it.

The table of the page is the source. Its cells begin with what is seen: "go on", "stop: ERROR", or "refused: ERROR" where the
command does nothing beside them.
"""

from __future__ import annotations

import json
import threading
import time
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
from spark_kbatch.bucket.merging import RUN_EXTENTS
from spark_kbatch.cli.main import cli
from spark_kbatch.clock import now_ms
from spark_kbatch.errors import KBatchError
from spark_kbatch.log.repair import LogRepair
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import AgingObjects, a_bucket
from tests.support.waiting import until


def table() -> dict[str, list[str]]:
    """The cells of each row of the page's table, by the command."""
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- beside others")[2].splitlines()[3:]
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return {first: cells for first, *cells in rows}


class AtWork:
    """A thread that does one thing again and again, until it fails or is to stop."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.rounds, self.ending = 0, "go on"
        self._act, self._is_over = act, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._is_over.is_set() and self.ending == "go on":
                self.ending = seen(self._act)
                self.rounds += 1
                time.sleep(0.005)  # so that the others have their turn, as where a store is away
        except BaseException as error:
            self.ending = repr(error)  # no case expects that
            raise

    def go_on(self, rounds: int = 2) -> None:
        """Wait until it has begun and ended some rounds more, or has failed."""
        wanted = self.rounds + rounds + 1  # one is under way
        until(lambda: self.rounds >= wanted or not self._thread.is_alive())

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Others:
    """A cluster that is read and written while a command runs, and what is seen then."""

    def __init__(self, cluster: Cluster, path: Path, **config: int) -> None:
        self.cluster, self.path, self.address = cluster, path, cluster.address
        self.cluster.create_topic("events", config=config)
        self.cluster.create_topic("others")
        self.producer = self.cluster.producer(linger_ms=0, retries=0, maintain_ms=0)
        self.topic = "events"  # that is read and written
        self.acknowledged: dict[int, bytes] = {}  # by offset
        for _ in range(3):
            self.write()
        self.producer.send("others", "x").result()
        self.planned = self.cluster.read("events")
        self.others: list[AtWork] = []
        self.objects: Any = None  # of a bucket
        self.knows_more = False  # the writer, while the command runs in the same process
        self.start = (
            0  # that of `events` after the command, at the latest; below it nothing is promised
        )

    def write(self) -> None:
        value = f"{len(self.acknowledged)}"
        written = self.producer.send(self.topic, value).result()
        self.acknowledged[written.offset] = value.encode()

    def read(self) -> None:
        """Read all of the topic that is there; what was acknowledged before is among it."""
        before = {**self.acknowledged}
        columns = self.cluster.read(self.topic, columns=["offset", "value"]).read_all().to_pydict()
        there = dict(zip(columns["offset"], columns["value"], strict=True))
        start = min(there, default=max(before) + 1)
        assert there.items() >= {at: value for at, value in before.items() if at >= start}.items()

    def run(self, *words: str, ends_with: int = 0) -> Any:
        """Run a command while a reader and a writer are at work."""
        self.others = [AtWork(self.read), AtWork(self.write)]
        for one in self.others:
            one.go_on()
        done = CliRunner().invoke(cli, words, prog_name="kbatch")
        for one in self.others:
            one.go_on()
            one.stop()
        assert done.exit_code == ends_with, (done.output, done.exception)
        return done

    def seen(self) -> tuple[str, str]:
        """What a reader sees that has planned before, and a writer, also while the command ran."""
        reader, writer = self.others
        read = seen(lambda: self.planned.read_all())
        written = seen(self.write)
        assert writer.ending in ((written, "go on") if self.knows_more else (written,))
        assert reader.ending in (read, "go on")
        if read == written == "go on":
            self.read_back()
        return read, written

    def read_back(self) -> None:
        """All that was acknowledged is there, once and where it was said to be."""
        found = spark_kbatch.open(self.address).read(self.topic, columns=["offset", "value"])
        columns = found.read_all().to_pydict()
        there = dict(zip(columns["offset"], columns["value"], strict=True))
        assert len(there) == len(columns["offset"])
        kept = {at: value for at, value in self.acknowledged.items() if at >= self.start}
        assert len(kept) > 2
        assert there.items() >= kept.items()


def seen(act: Callable[[], object]) -> str:
    try:
        act()
    except KBatchError as error:
        return f"stop: {type(error).__name__}"
    return "go on"


def in_folder(path: Path) -> Others:
    cluster = spark_kbatch.open(path / "cluster", create=True)
    return Others(cluster, path, **{"segment.ms": 1})


def in_bucket(path: Path) -> Others:
    objects = AgingObjects()
    objects.clock_ms = now_ms()
    others = Others(a_bucket(objects), path)
    others.objects = objects
    return others


def delete_topic(others: Others) -> tuple[str, str]:
    others.run("delete-topic", others.address, "events", "--yes")
    found = others.seen()
    assert seen(lambda: others.cluster.read("events")) == "stop: UnknownTopicOrPartitionError"
    return found


def delete_records(others: Others) -> tuple[str, str]:
    others.run("delete-records", others.address, "events", "0:2", "--yes")
    others.start = 2
    _, written = others.seen()
    others.read_back()
    return seen(lambda: others.cluster.read("events", start=0).read_all()), written


def gc(others: Others) -> tuple[str, str]:
    jobs = [a_staged_job(others, value) for value in ("in time", "too late")]
    others.cluster.create_topic("old", config={"segment.ms": 1, "retention.ms": 3_600_000})
    for age_ms in (7_200_000, 7_100_000, 7_000_000):
        others.producer.send("old", "x", timestamp=now_ms() - age_ms).result()
        time.sleep(0.002)

    done = others.run("gc", others.address, "--json")
    assert '"topic": "old"' in done.output
    assert others.cluster.describe("old")[0].offsets.log_start_offset > 0
    in_time, too_late = jobs
    in_time()
    others.run("gc", others.address, "--staging-retention-ms", "0")
    assert seen(too_late).startswith("stop: ")
    written = others.cluster.read("events", columns=["value"]).read_all()["value"].to_pylist()
    assert (written.count(b"in time"), written.count(b"too late")) == (1, 0)
    return others.seen()


def a_staged_job(others: Others, value: str) -> Callable[[], object]:
    """A job of Spark's that has staged a record; return what commits it."""
    job = begin_job(
        parse_write_options({"path": others.address, "topic": "events"}), overwrite=False
    )
    row = pa.RecordBatch.from_pydict({"value": [value]})
    staged = job.stage(iter([row]), application_id="app", query_id=None)
    return lambda: job.commit_batch([staged])


def maintain(others: Others) -> tuple[str, str]:
    for _ in range(RUN_EXTENTS):
        others.write()
    jobs = [a_staged_job(others, value) for value in ("in time", "too late")]
    done = others.run("gc", others.address, "--json")
    assert json.loads(done.output)["merged"]["segments"] > 0
    in_time, too_late = jobs
    in_time()
    others.objects.clock_ms += 9 * 86_400_000
    done = others.run("gc", others.address, "--json")
    assert json.loads(done.output)["collected"]["horizon"] > 0
    assert seen(too_late) == "stop: RefusedEntryError"
    written = others.cluster.read("events", columns=["value"]).read_all()["value"].to_pylist()
    assert (written.count(b"in time"), written.count(b"too late")) == (1, 0)
    return others.seen()


def erase(others: Others) -> tuple[str, str]:
    others.run("gc", others.address, "--erase", "events", "--yes")
    return others.seen()


def repair(others: Others) -> tuple[str, str]:
    index = others.path / "cluster/broker-0/others-0/00000000000000000000.index"
    index.unlink(missing_ok=True)
    acknowledged = list[int]()  # how many are, before and after the repair of each log of `events`
    real = LogRepair.run

    def run(self: LogRepair, *words: Any) -> Any:
        is_of_events = self._directory.name == "events-0"
        time.sleep(0.2 * is_of_events)  # until what was sent before is answered
        acknowledged.append(len(others.acknowledged))
        report = real(self, *words)
        time.sleep(0.2 * is_of_events)
        acknowledged.append(len(others.acknowledged) if is_of_events else acknowledged[-1])
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogRepair, "run", run)
        others.run("repair", others.address)
    assert acknowledged[::2] == acknowledged[1::2]
    if others.objects is None:
        assert acknowledged
        assert index.exists()
    return others.seen()


def create(others: Others) -> tuple[str, str]:
    others.run("create-topic", others.address, "new")
    written = others.seen()
    others.run("create-partitions", others.address, "others", "3")
    assert others.seen() == written
    file = others.path / "more.txt"
    file.write_text("of the command\n")
    others.run("produce", others.address, "events", str(file))
    read = others.cluster.read("events", columns=["value"]).read_all()["value"].to_pylist()
    assert read.count(b"of the command") == 1
    assert len(others.cluster.describe("others")) == 3
    assert others.seen() == written
    return written


def recover(others: Others) -> tuple[str, str]:
    others.run("recover", others.address, "--yes", "--whole")
    _, written = others.seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "QUIET_MS", 0)  # a minute later
        return seen(lambda: others.cluster.read("events").read_all()), written


def alter_topic(others: Others) -> tuple[str, str]:
    others.run("alter-topic", others.address, "events", "--config", "retention.bytes=1")
    read, written = others.seen()
    if read != "go on":  # retention has deleted something already
        assert others.cluster.describe("events")[0].offsets.log_start_offset > 0
    CliRunner().invoke(cli, ["gc", others.address], prog_name="kbatch", catch_exceptions=False)
    at_start = seen(lambda: others.cluster.read("events", start=0).read_all())
    assert at_start == table()["`delete-records`"][0].partition(" below")[0]
    assert read in ("go on", at_start)
    return "go on", written


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
        before = len(others.acknowledged)
        others.run("export", others.address, "events", str(file), "--overwrite")
        assert reader.read() == "old\n"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert before <= len(lines) < len(others.acknowledged)
    exported = {line["offset"]: line["value"].encode() for line in lines}
    assert exported.items() <= others.acknowledged.items()
    return others.seen()


def mirror(others: Others) -> tuple[str, str]:
    source = spark_kbatch.open(others.path / "source", create=True)
    with source.producer(linger_ms=0) as producer:
        for value in ("first", "second"):
            producer.send("copied", value).result()
            if value == "first":
                others.run("mirror", source.address, others.address, "copied")
                others.topic, others.acknowledged = "copied", {}
                for _ in range(3):
                    others.write()
                others.planned = others.cluster.read("copied")
        others.run("mirror", source.address, others.address, "copied")
    read = others.cluster.read("copied", columns=["value"]).read_all()["value"].to_pylist()
    assert (read.count(b"first"), read.count(b"second")) == (1, 1)
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
    copied = others.cluster.read("copied", columns=["value"]).read_all()["value"].to_pylist()
    assert copied == [b"1", b"of someone else"]
    return others.seen()[0], f"refused: {type(error).__name__}"


def upgrade(others: Others) -> tuple[str, str]:
    others.knows_more = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_kbatch.ledger.entries.FORMAT", 2)  # of the command; others know 1
        patch.setattr(ledger, "FORMAT", 2)
        others.run("upgrade", others.address)
    return others.seen()


def overwrite(others: Others) -> tuple[str, str]:
    options = {"path": others.address, "topic": "events"}
    writer = AtWork(others.write)
    job = begin_job(parse_write_options(options), overwrite=True)
    row = pa.RecordBatch.from_pydict({"value": ["new"]})
    staged = job.stage(iter([row]), application_id="app", query_id=None)
    writer.go_on()
    job.commit_batch([staged])
    writer.go_on()
    writer.stop()
    read = others.cluster.read("events", columns=["offset", "value"]).read_all().to_pydict()
    others.start = read["offset"][0]
    assert b"new" in read["value"]
    others.others = [AtWork(others.read), writer]
    others.others[0].go_on()
    others.others[0].stop()
    return others.seen()


CASES: dict[str, list[tuple[Callable[[Path], Others], Callable[[Others], tuple[str, str]]]]] = {
    "`delete-topic`": [(in_folder, delete_topic), (in_bucket, delete_topic)],
    "`delete-records`": [(in_folder, delete_records), (in_bucket, delete_records)],
    "`alter-topic` with a shorter retention": [(in_folder, alter_topic), (in_bucket, alter_topic)],
    "`create-topic`, `create-partitions`, `produce`": [(in_folder, create), (in_bucket, create)],
    "`gc`": [(in_folder, gc)],
    "`gc` of a bucket": [(in_bucket, maintain)],
    "`gc --erase`": [(in_bucket, erase)],
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
# With several disks, one of which is lost: in tests/replica and tests/cluster.
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
