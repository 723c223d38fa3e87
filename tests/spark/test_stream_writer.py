"""A streaming query's micro-batches are in the log once, even if Spark repeats them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


class Stream:
    """A query that writes lines of files to the topic `events`; each file is a micro-batch."""

    def __init__(self, spark: SparkSession, tmp_path: Path, **options: Any) -> None:
        self.spark, self.options = spark, options
        self.path, self.checkpoint = tmp_path / "cluster", tmp_path / "checkpoint"
        self.input = tmp_path / "input"
        self.input.mkdir()
        self._files = 0

    def add(self, *lines: str) -> None:
        aside = self.input.parent / f"{self._files}.txt"
        aside.write_text("".join(f"{line}\n" for line in lines))
        aside.rename(self.input / aside.name)
        self._files += 1

    def start(self, **more: Any) -> StreamingQuery:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.input))
        return (
            lines.writeStream.format("kbatch")
            .option("topic", "events")
            .option("checkpointLocation", str(self.checkpoint))
            .options(**self.options, **more)
            .trigger(availableNow=True)
            .start(str(self.path))
        )

    def run(self) -> None:
        query = self.start()
        query.awaitTermination()
        assert query.exception() is None

    def forget_commit(self, batch_id: int) -> None:
        """Undo Spark's commit, as if the driver had died between our commit and Spark's."""
        for path in (self.checkpoint / "commits").iterdir():
            if path.name in (str(batch_id), f".{batch_id}.crc"):
                path.unlink()

    def values(self) -> list[str]:
        rows = self.spark.read.format("kbatch").option("subscribe", "events").load(str(self.path))
        return sorted(
            row[0] for row in rows.select(functions.col("value").cast("string")).collect()
        )


def test_each_micro_batch_is_written(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, **{"num.partitions": "2"})
    stream.add("a", "b")
    stream.add("c")
    stream.run()
    stream.add("d")
    stream.run()
    assert stream.values() == ["a", "b", "c", "d"]
    staging = stream.path / "staging-0"
    assert list(staging.iterdir()) == [], "neither tasks nor commits leave files"


def test_a_repeated_micro_batch_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add("a", "b")
    stream.run()
    stream.forget_commit(0)
    stream.add("c")
    stream.run()
    assert stream.values() == ["a", "b", "c"]


def test_a_micro_batch_that_failed_is_written_by_the_restarted_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add("a")
    stream.run()
    stream.add("b")
    # The committing process finds a directory in place of a file that it must write.
    locks = stream.path / "locks"
    locks.rename(tmp_path / "aside")
    locks.write_bytes(b"")
    failed = stream.start()
    with pytest.raises(Exception, match=r"locks"):
        failed.awaitTermination()
    assert stream.values() == ["a"]
    locks.unlink()
    (tmp_path / "aside").rename(locks)
    stream.run()
    assert stream.values() == ["a", "b"]


def test_a_restored_checkpoint_is_refused_and_the_error_says_where_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add("a")
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    stream.add("b")
    stream.run()
    shutil.rmtree(stream.checkpoint)
    (tmp_path / "copy").rename(stream.checkpoint)
    stream.add("c")

    with pytest.raises(Exception, match="is no repetition") as raised:
        stream.start().awaitTermination()
    assert "Spark has planned it again, as offsets/1 in its checkpoint shows" in str(raised.value)
    assert 'from where 1 ended: {"logOffset":1}' in str(raised.value)
    assert stream.values() == ["a", "b"]

    (query,) = re.findall(r"'write (\S+) 1'", str(raised.value))
    query = stream.start(**{"resolve.micro.batch": f"skip {query} 1"})
    query.awaitTermination()
    stream.add("d")
    stream.run()
    assert stream.values() == ["a", "b", "c", "d"]


def test_two_queries_write_the_same_batch_ids(spark: SparkSession, tmp_path: Path) -> None:
    first = Stream(spark, tmp_path)
    first.add("a")
    first.run()
    other = tmp_path / "other"
    other.mkdir()
    second = Stream(spark, other)
    second.path = first.path
    second.add("b")
    second.run()
    assert first.values() == ["a", "b"]


def test_complete_mode_appends_every_result(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    for lines in (["x"], ["x"]):
        stream.add(*lines)
        counts = spark.readStream.option("maxFilesPerTrigger", 1).text(str(stream.input))
        query = (
            counts.groupBy("value").count()
            .select(functions.concat_ws("=", "value", "count").alias("value"))
            .writeStream.format("kbatch").outputMode("complete").option("topic", "events")
            .option("checkpointLocation", str(stream.checkpoint))
            .trigger(availableNow=True).start(str(stream.path))
        )  # fmt: skip
        query.awaitTermination()
    assert stream.values() == ["x=1", "x=2"]


def test_rows_of_output_mode_update_which_spark_refuses_are_written_in_foreach_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """docs/from-kafka.md and docs/streams.md show this."""
    stream = Stream(spark, tmp_path)

    def write(rows: DataFrame, batch_id: int) -> None:
        writer = rows.write.format("kbatch").option("topic", "events").mode("append")
        writer.options(txnAppId="counts", txnVersion=batch_id).save(str(stream.path))

    for lines in (["x", "z"], ["x", "y"]):
        stream.add(*lines)
        counts = (
            spark.readStream.text(str(stream.input)).groupBy("value").count()
            .select(functions.concat_ws("=", "value", "count").alias("value"))
            .writeStream.outputMode("update").trigger(availableNow=True)
            .option("checkpointLocation", str(stream.checkpoint))
        )  # fmt: skip
        counts.foreachBatch(write).start().awaitTermination()
    assert stream.values() == ["x=1", "x=2", "y=1", "z=1"]

    sink = counts.format("kbatch").option("topic", "events")
    sink = sink.option("checkpointLocation", str(tmp_path / "other"))
    with pytest.raises(Exception, match="does not support Update mode"):
        sink.start(str(stream.path)).awaitTermination()


def test_spark_refuses_asynchronous_progress_tracking(spark: SparkSession, tmp_path: Path) -> None:
    """docs/from-kafka.md says so."""
    stream = Stream(spark, tmp_path)
    stream.add("a")
    with pytest.raises(Exception, match="does not support async progress tracking"):
        stream.start(asyncProgressTrackingEnabled="true").awaitTermination()


def test_a_name_and_version_belong_to_batch_writes(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add("a")
    query = stream.start(txnAppId="app", txnVersion="1")
    with pytest.raises(Exception, match=r"txnAppId.*leave it out"):
        query.awaitTermination()


def test_a_batch_write_of_a_written_version_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    def write(value: str, version: int) -> None:
        options = {"topic": "events", "txnAppId": "app", "txnVersion": str(version)}
        frame = spark.createDataFrame([(value,)], "value string")
        frame.write.format("kbatch").options(**options).mode("append").save(str(stream.path))

    stream = Stream(spark, tmp_path)
    for value, version in (("a", 1), ("a", 1), ("older", 0), ("b", 7)):
        write(value, version)
    assert stream.values() == ["a", "b"]


def test_each_write_of_a_foreach_batch_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)

    def twice(rows: Any, batch_id: int) -> None:
        for name in ("lines", "lengths"):
            value = (
                "value"
                if name == "lines"
                else functions.length("value").cast("string").alias("value")
            )
            options = {"topic": "events", "txnAppId": f"q-{name}", "txnVersion": str(batch_id)}
            write = rows.select(value).write.format("kbatch").options(**options)
            write.mode("append").save(str(stream.path))

    stream.add("abc")
    for _ in range(2):
        query = (
            spark.readStream.text(str(stream.input))
            .writeStream.foreachBatch(twice)
            .option("checkpointLocation", str(stream.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        stream.forget_commit(0)
    assert stream.values() == ["3", "abc"]
