"""Spark reads a cluster over the network, in batches and streams; the cluster is a server of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit

from spark_kbatch import Cluster
from spark_kbatch.server.intercepts import InterceptedRequest
from tests.support import builders

pytestmark = pytest.mark.spark


class Served:
    """A cluster with its server, and what clients asked of it."""

    def __init__(self, cluster: Cluster, servers: str) -> None:
        self.cluster = cluster
        self.options = {
            "kafka.bootstrap.servers": servers,
            "kafka.client.id": "reader",
            "subscribe": "t",
            "startingOffsets": "earliest",
        }
        self.asked: Counter[str] = Counter()

    def send(self, *values: str, partition: int = 0) -> None:
        with self.cluster.producer() as producer:
            for value in values:
                producer.send("t", value=value, partition=partition)

    def note(self, request: InterceptedRequest) -> None:
        if request.client_id == "reader":
            self.asked[request.api] += 1


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with builders.a_cluster(tmp_path, topics={"t": 2}) as cluster, cluster.serve() as server:
        served = Served(cluster, server.bootstrap_servers)
        for api in ("ApiVersions", "Fetch"):
            server.intercept(api, served.note)
        yield served


def found(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)


def test_batch_read_has_the_rows_of_a_folder(spark: SparkSession, served: Served) -> None:
    served.send("a", "b", "c")
    served.send("d", partition=1)
    reader = spark.read.format("kbatch").options(**served.options, includeHeaders=True)

    frame = reader.load()

    folder = spark.read.format("kbatch").options(subscribe="t", includeHeaders=True)
    expected = folder.load(str(served.cluster.path))
    assert frame.schema == expected.schema
    assert sorted(frame.collect()) == sorted(expected.collect())
    assert frame.rdd.getNumPartitions() == 2
    served.send("e", partition=1)
    assert frame.count() == 5
    # Tasks of the same worker share connections.
    connections = served.asked["ApiVersions"]
    for _ in range(5):
        frame.count()
    assert served.asked["ApiVersions"] <= connections + 2


@pytest.mark.slow
def test_stream_goes_on_from_its_checkpoint_and_keeps_ids_of_topics(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    batches: list[list[tuple[Any, ...]]] = []

    def collect(rows: DataFrame, _number: int) -> None:
        batches.append(found(rows.collect()))

    def run(**options: str) -> None:
        frame = spark.readStream.format("kbatch").options(**served.options | options).load()
        writer = frame.writeStream.foreachBatch(collect)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    served.send("a", "b")
    run()
    served.send("c")
    served.send("d", "e", partition=1)
    run()
    run()

    assert [row for batch in batches for row in batch] == [
        (0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, "d"), (1, 1, "e"),
    ]  # fmt: skip
    offsets = sorted((tmp_path / "checkpoint/offsets").glob("[0-9]*"))
    assert served.cluster.topic("t").topic_id in offsets[-1].read_text()


def test_an_address_in_the_place_of_a_folder_is_that_cluster(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    servers = str(served.options["kafka.bootstrap.servers"])
    rows = spark.createDataFrame([("a",), ("b",)], "value string")
    rows.write.format("kbatch").option("topic", "t").mode("append").save(servers)
    read = spark.read.format("kbatch").option("subscribe", "t").load(servers)
    assert sorted(bytes(row.value) for row in read.collect()) == [b"a", b"b"]

    served.cluster.create_topic("copy", partitions=1)
    stream = spark.readStream.format("kbatch").option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest")
    sink = stream.load(servers).select("key", "value").writeStream.format("kbatch")
    sink = sink.option("topic", "copy").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start(servers)
    query.awaitTermination()

    copied = served.cluster.read("copy", columns=["value"], text=True).read_all()
    assert sorted(copied["value"].to_pylist()) == ["a", "b"]

    copy = read.withColumn("partition", lit(1)).select("value", "partition")
    writer = copy.write.format("kbatch").option("topic", "copy").mode("append")
    with pytest.raises(PySparkException, match=r'drop\("partition"\).*num\.partitions'):
        writer.save(servers)
