"""Records that cannot be read, by the command line: what precedes them and all other partitions are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import CorruptRecordError, InvalidTimestampError
from tests.support import builders
from tests.support.broker_dirs import a_batch, a_partition, up_to_damage
from tests.support.bucket_objects import a_url
from tests.support.month_bucket import GROUPED, QUIET, Accidents
from tests.support.reference import Record, encode_batch


def kbatch(*words: Any) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)], prog_name="kbatch")


def counts(path: Any) -> dict[tuple[str, int], int]:
    with spark_kbatch.open(path) as cluster:
        read = cluster.read(cluster.topic_names(), columns=["topic", "partition"]).read_all()
    pairs = [(row["topic"], row["partition"]) for row in read.to_pylist()]
    return {pair: pairs.count(pair) for pair in pairs}


class Lost(NamedTuple):
    """A bucket that has lost an index, with records of both partitions of a topic."""

    url: str
    before: dict[int, int]  # records, by partition
    quiet: int  # records of the other topic
    error: CorruptRecordError  # of the first partition


@pytest.fixture(scope="module")
def lost() -> Lost:
    accidents = Accidents()
    name = max(name for name in accidents.month.content if "/index-" in name)
    url = a_url(accidents.copied(name, None))
    with spark_kbatch.open(url) as cluster:
        before, errors = {}, []
        for number in range(2):
            rows, error = up_to_damage(cluster.read(GROUPED, partitions=[number]))
            assert isinstance(error, CorruptRecordError)
            before[number] = sum(batch.num_rows for batch in rows)
            errors.append(error)
            whole = cluster.read(GROUPED, partitions=[number], end=error.offset).read_all()
            assert whole.num_rows == before[number] > 0, "all before it"
            rest = {number: error.next_offset}
            assert cluster.read(GROUPED, partitions=[number], start=rest).read_all().num_rows > 0
        return Lost(url, before, cluster.read(QUIET).read_all().num_rows, errors[0])


@pytest.mark.parametrize("kind", ["json", "parquet", "csv"])
def test_an_export_has_what_precedes_an_index_that_a_bucket_has_lost_in_each_partition(
    lost: Lost, tmp_path: Path, kind: str
) -> None:
    done = kbatch("export", lost.url, GROUPED, tmp_path / f"x.{kind}")

    then = lost.error.next_offset
    for number, told in enumerate((str(done.exception), done.stderr)):
        how = f"`kbatch consume {lost.url} {GROUPED} --partition {number} --start {then}`"
        assert f"offsets {lost.error.offset} to {then - 1} of {GROUPED}-{number} are" in told
        assert f"go on with {how}" in told
    assert f"{sum(lost.before.values())} records before damage are in" in done.stderr
    assert (tmp_path / f"x.incomplete.{kind}").exists()


def test_consume_prints_what_precedes_an_index_that_a_bucket_has_lost_in_each_partition(
    lost: Lost,
) -> None:
    done = kbatch("consume", lost.url, GROUPED)

    assert len(done.stdout.splitlines()) == sum(lost.before.values())
    then = lost.error.next_offset
    assert f"go on with --start {GROUPED}:0:{then}" in str(done.exception)
    assert f"go on with --start {GROUPED}:1:{then}" in done.stderr


def test_a_mirror_copies_what_precedes_an_index_that_a_bucket_has_lost_and_other_topics(
    lost: Lost, tmp_path: Path
) -> None:
    for _ in range(2):  # and again, from there
        done = kbatch("mirror", lost.url, tmp_path / "copy", GROUPED, QUIET)
        assert isinstance(done.exception, CorruptRecordError)
        assert f"go on with a read from offset {lost.error.next_offset} on" in str(done.exception)

        copied = counts(tmp_path / "copy")
        assert {n: copied[GROUPED, n] for n in range(2)} == lost.before
        assert copied[QUIET, 0] + copied.get((QUIET, 1), 0) == lost.quiet > 0


@pytest.fixture
def without_segment(tmp_path: Path) -> Path:
    """A cluster whose first partition has lost its active segment, with offset 4 on; the second one has 4 records."""
    made = builders.a_cluster(tmp_path, topics={"events": 2})
    with made.producer(linger_ms=0) as producer:
        for number in range(2):
            for at in range(4):
                producer.send("events", f"{at}", partition=number).result()
    made.alter_topic("events", config={"segment.bytes": 1 << 20})
    big = "v" * (1 << 20)
    with made.producer(linger_ms=0, max_request_size=2 << 20) as producer:
        producer.send("events", big[:900_000], partition=0).result()
        producer.send("events", big[:900_000], partition=0).result()
    logs = sorted((made.path / "broker-0/events-0").glob("*.log"))
    assert len(logs) == 2
    logs[-1].unlink()
    return made.path


@pytest.mark.parametrize("command", ["consume", "export", "mirror"])
def test_a_lost_active_segment_takes_no_other_records_with_it(
    without_segment: Path, tmp_path: Path, command: str
) -> None:
    before, end = 5, 6
    target = {"consume": [], "export": [tmp_path / "x.json"], "mirror": [tmp_path / "copy"]}[
        command
    ]
    words = [without_segment, *target, "events"] if command == "mirror" else [without_segment, "events", *target]  # fmt: skip
    done = kbatch(command, *words)
    assert isinstance(done.exception, CorruptRecordError)
    assert f"offsets {before} to {end - 1} of events-0 are damaged; go on with" in str(
        done.exception
    )
    if command == "consume":
        assert len(done.stdout.splitlines()) == before + 4
    elif command == "export":
        lines = (tmp_path / "x.incomplete.json").read_text().splitlines()
        assert [json.loads(line)["partition"] for line in lines] == [0] * before + [1] * 4
    else:
        assert counts(tmp_path / "copy") == {("events", 0): before, ("events", 1): 4}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_export_has_what_precedes_a_time_out_of_range_and_other_partitions(
    tmp_path: Path, kind: str
) -> None:
    late = encode_batch([Record(2, 1 << 60, b"k", b"v")], base_offset=2, leader_epoch=3)
    a_partition(tmp_path / "logs/t-0", {0: [a_batch(0, 1), late]})
    a_partition(tmp_path / "logs/t-1", {0: [a_batch(0, 1, 2)]})

    done = kbatch("export", tmp_path / "logs", "t", tmp_path / f"x.{kind}")

    assert isinstance(done.exception, InvalidTimestampError)
    assert "at offset 2 of t-0, has the time" in str(done.exception)
    assert "5 records before damage are in" in done.stderr
    if kind == "parquet":
        found = pyarrow.parquet.read_table(tmp_path / "x.incomplete.parquet")
        assert found["partition"].to_pylist() == [0, 0, 1, 1, 1]
    else:
        assert len((tmp_path / "x.incomplete.csv").read_text().splitlines()) == 6
