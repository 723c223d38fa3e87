"""Spark writes to and reads from a cluster in a bucket, here a folder that is used as a store of objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_kbatch
from spark_kbatch.bucket.maintenance import Maintenance
from tests.support.frames import load, values

pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file+bucket://{tmp_path}/bucket"


def write(spark: SparkSession, url: str, *sent: str, mode: str = "append") -> None:
    """Write values to a topic with two partitions, in two tasks."""
    frame = spark.createDataFrame([(value, value) for value in sent], "key string, value string")
    writer = frame.repartition(2).write.format("kbatch").option("topic", "events")
    writer.option("num.partitions", 2).mode(mode).save(url)


def test_what_spark_writes_in_batches_is_read_by_spark_and_python(
    spark: SparkSession, url: str
) -> None:
    sent = [f"{at:02d}" for at in range(20)]
    write(spark, url, *sent)
    loaded = load(spark, url, subscribe="events")
    assert loaded.count() == 20
    assert values(spark, url, "events") == sent

    write(spark, url, "more")
    assert loaded.count() == 21  # `latest` is looked up by each action
    with spark_kbatch.open(url) as cluster:
        assert cluster.read("events").read_all().num_rows == 21

    write(spark, url, "only", mode="overwrite")
    assert values(spark, url, "events") == ["only"]


def test_a_stream_reads_from_a_bucket_and_writes_to_it_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    def run() -> StreamingQuery:
        query = (
            spark.readStream.format("kbatch")
            .option("subscribe", "events")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 3)
            .load(url)
            .selectExpr("key", "value")
            .writeStream.format("kbatch")
            .option("topic", "copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(url)
        )
        query.awaitTermination()
        return query

    write(spark, url, *"abcde")
    assert run().exception() is None
    write(spark, url, "f")
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(one.name) for one in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):  # as if Spark had ended before it noted the commit
        (commits / name).unlink()
    for _ in range(2):  # Before Spark 4.2 a run ends after the repeated micro-batch
        assert run().exception() is None
    assert values(spark, url, "copies") == [*"abcdef"]


@pytest.mark.slow
def test_spark_reads_the_same_rows_before_during_and_after_a_merge(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", partitions=2)
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for at in range(12):
                producer.send("events", f"{at:02d}", partition=at % 2).result()
    columns = ("partition", "offset", "value", "timestamp")
    loaded = load(spark, url, subscribe="events").select(*columns)
    before = sorted(loaded.collect())
    streamed = []

    def take(rows: DataFrame, number: int) -> None:
        streamed.extend(rows.select(*columns).collect())
        if number == 0:
            maintenance = Maintenance(url)
            assert maintenance.merge(maintenance.runs(run_extents=6)).segments == 2

    source = spark.readStream.format("kbatch").option("subscribe", "events")
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 8)
    query = source.load(url).writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", str(tmp_path / "merged")).trigger(availableNow=True)
    query.start().awaitTermination()

    assert sorted(streamed) == sorted(loaded.collect()) == before
    assert len(before) == 12


@pytest.mark.slow
def test_maintenance_by_spark_merges_what_many_small_commits_wrote(
    spark: SparkSession, url: str
) -> None:
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", partitions=2)
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for at in range(220):
                producer.send("events", f"{at:03d}", partition=at % 2).result()
    sent = [f"{at:03d}" for at in range(220)]

    assert spark_kbatch.maintain(spark, url, dry_run=True).merged[:2] == (2, 220)
    done = spark_kbatch.maintain(spark, url)

    assert done.merged[:2] == (2, 220)
    assert values(spark, url, "events") == sent
    assert spark_kbatch.maintain(spark, url).merged.segments == 0
