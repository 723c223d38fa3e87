"""Log directories of real brokers, read through Spark; their data is in the shared data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_kbatch.opening.stores import open_for_reading
from tests.support import builders
from tests.support.broker_dirs import a_batch, a_partition, batches, checkpoint, listing, records_in
from tests.support.frames import frame_of, load, records, save

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_every_topic_of_every_real_log_dir_is_read_as_plain_python_reads_it(
    spark: SparkSession, shared_data: Path
) -> None:
    folder = shared_data / "kafka-segments"
    manifest = json.loads((folder / "manifest.json").read_text())
    topics: dict[Path, set[str]] = {}
    for entry in manifest:
        partition = (folder / entry["file"]).parent
        topics.setdefault(partition.parent, set()).add(partition.name.rpartition("-")[0])
    assert len(topics) == 14
    before = listing(folder)

    for log_dir, names in topics.items():
        # In one of them a broker has lost what its high watermarks say.
        logs = open_for_reading(str(log_dir), foreign_end="log")
        frame = load(
            spark,
            log_dir,
            subscribe=",".join(names),
            includeHeaders=True,
            **{"foreign.end": "log"},
        )
        found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
        for row in frame.drop("timestamp", "timestampType").toArrow().to_pylist():
            place = row["topic"], row["partition"]
            headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
            found.setdefault(place, []).append((row["offset"], row["key"], row["value"], headers))
        for name in names:
            for tp in logs.partitions(name):
                expected = [
                    (record.offset, record.key, record.value, record.headers)
                    for rows in logs.read(name, partitions=[tp.partition])
                    for record in builders.as_read(rows)
                ]
                assert found.pop(tuple(tp), []) == expected, (log_dir, tp)
        assert found == {}
    assert listing(folder) == before


@pytest.mark.slow
def test_a_copy_of_a_running_brokers_logs_is_read_with_every_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    log_dir = tmp_path / "kafka-logs"
    held = {5: batches(5, 20), 30: [a_batch(30, 34), a_batch(40)]}
    directory = a_partition(log_dir / "t-0", held)
    a_partition(log_dir / "t-3", {0: batches(0, 6)}, index=False)
    with (directory / f"{30:020d}.log").open("ab") as file:
        file.write(a_batch(41, 42)[:-5])
    with (directory / f"{30:020d}.index").open("ab") as file:
        file.write(bytes(4096))
    checkpoint(log_dir, "log-start", {"t 0": 7})
    checkpoint(log_dir, "replication", {"t 0": 32, "t 3": 6})
    before = listing(log_dir)
    first, second = records_in([*held[5], *held[30]])[2:], records_in(batches(0, 6))

    assert records(spark, log_dir) == {0: first, 3: second}
    assert records(spark, log_dir, **{"foreign.end": "checkpoint"}) == {
        0: [record for record in first if record.offset < 32],
        3: second,
    }
    ranges = {
        "startingOffsets": json.dumps({"t": {"0": 18, "3": -2}}),
        "endingOffsets": json.dumps({"t": {"0": 40, "3": 2}}),
    }
    assert records(spark, log_dir, **ranges) == {
        0: [record for record in first if 18 <= record.offset < 40],
        3: second[:2],
    }
    assert records(spark, log_dir / "t-3") == {3: second}
    offsets = load(spark, log_dir, subscribe="t", schema="offset long, partition int")
    assert offsets.where("partition = 0").count() == len(first)

    with pytest.raises(PySparkException, match="of its 1 topics the nearest are: t"):
        load(spark, log_dir, subscribe="tt")
    with pytest.raises(
        PySparkException, match=r"'foreign\.end' is 'end'; accepted: log, checkpoint"
    ):
        load(spark, log_dir, subscribe="t", **{"foreign.end": "end"})
    with pytest.raises(PySparkException, match="a Kafka broker's, which kbatch only reads"):
        save(frame_of(spark, builders.rows()), log_dir, topic="t")
    assert listing(log_dir) == before


def test_records_that_the_broker_appends_are_in_the_next_action(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = a_partition(tmp_path / "logs" / "t-0", {0: batches(0, 4)})
    frame = load(spark, tmp_path / "logs", subscribe="t")
    assert frame.count() == 4

    with (directory / f"{0:020d}.log").open("ab") as file:
        file.write(a_batch(4, 5, 6))
    assert frame.count() == 7
    a_partition(directory, {7: batches(7, 9)})
    assert frame.count() == 9


def test_records_that_are_missing_fail_a_query_that_reads_them_and_the_error_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    a_partition(tmp_path / "t-0", {0: batches(0, 4)})
    checkpoint(tmp_path, "replication", {"t 0": 9})

    with pytest.raises(PySparkException) as caught:
        load(spark, tmp_path, subscribe="t").count()

    assert "replication-offset-checkpoint has offset 9, and the log ends at 4" in str(caught.value)
    assert 'startingOffsets={"t": {"0": 9}}' in str(caught.value)
    before = {"endingOffsets": '{"t": {"0": 4}}'}
    assert load(spark, tmp_path, subscribe="t", **before).count() == 4
