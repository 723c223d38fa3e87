"""Writes of Spark to a real cluster: a server of ours, over the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import spark_kbatch
from spark_kbatch.server.server import Server
from tests.support import builders

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[spark_kbatch.Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2, "other": 1}) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: spark_kbatch.Cluster) -> Iterator[Server]:
    with cluster.serve() as server:
        yield server


def values(cluster: spark_kbatch.Cluster, topic: str) -> list[bytes]:
    found = builders.contents(cluster)
    return [
        one.value or b"" for tp, records in found.items() if tp.topic == topic for one in records
    ]


def test_batch_write_sends_rows_whole_and_no_mode_deletes(
    spark: SparkSession, cluster: spark_kbatch.Cluster, server: Server
) -> None:
    spark_kbatch.register(spark)
    frame = spark.range(1000, numPartitions=2).select(
        F.col("id").cast("string").alias("key"),
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 2 == 0, "events").otherwise("other").alias("topic"),
        F.expr("array(struct('h' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value))").alias(
            "headers"
        ),
    )
    writer = frame.write.format("kbatch").option(
        "kafka.bootstrap.servers", server.bootstrap_servers
    )
    writer.mode("append").save()
    assert sorted(map(int, values(cluster, "events"))) == list(range(0, 1000, 2))
    assert sorted(map(int, values(cluster, "other"))) == list(range(1, 1000, 2))
    records = [one for of in builders.contents(cluster).values() for one in of]
    assert all(one.key == one.value and one.headers[0][0] == "h" for one in records)
    with pytest.raises(PySparkException, match='"overwrite" is not supported for a real cluster'):
        writer.option("topic", "events").mode("overwrite").save()
    with pytest.raises(PySparkException, match=r"'nope'.*topics: events, other"):
        writer.option("topic", "nope").mode("append").save()
    assert len(values(cluster, "events")) == 500


def test_stream_writes_each_micro_batch_and_its_workers_keep_their_producer_ids(
    spark: SparkSession, cluster: spark_kbatch.Cluster, server: Server, tmp_path: Path
) -> None:
    spark_kbatch.register(spark)
    batches = 8
    with cluster.producer() as producer:
        for number in range(batches):
            producer.send("other", b"%d" % number)
    asked: list[Any] = []
    server.intercept("InitProducerId", asked.append)
    source = (
        spark.readStream.format("kbatch")
        .options(subscribe="other", startingOffsets="earliest", maxOffsetsPerTrigger="1")
        .load(str(cluster.path))
    )
    query = (
        source.select("value")
        .writeStream.format("kbatch")
        .option("kafka.bootstrap.servers", server.bootstrap_servers)
        .option("topic", "events")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(values(cluster, "events")) == [b"%d" % number for number in range(batches)]
    assert len(asked) <= spark.sparkContext.defaultParallelism  # one worker each
