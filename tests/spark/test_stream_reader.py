"""Streaming queries read topics as they do Kafka's: what Spark itself has to show, on few queries.

The rules of planning are in tests/test_stream_planner.py, with what does not apply.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

import spark_kbatch
from spark_kbatch import Cluster

pytestmark = pytest.mark.spark


class Reading:
    """A query over topics of one cluster, whose micro-batches are collected."""

    def __init__(self, spark: SparkSession, tmp_path: Path, **topics: int) -> None:
        self.spark, self.path = spark, tmp_path / "cluster"
        self.checkpoint = tmp_path / "checkpoint"
        self.cluster: Cluster = spark_kbatch.open(str(self.path), create=True)
        for name, partitions in topics.items():
            self.cluster.create_topic(name, partitions=partitions)
        self.batches: list[list[Row]] = []

    def send(self, topic: str, *values: str | None, partition: int = 0, **record: Any) -> None:
        with self.cluster.producer() as producer:
            for value in values:
                producer.send(topic, value=value, partition=partition, **record)

    def load(self, **options: Any) -> DataFrame:
        defaults = {"subscribe": "t", "startingOffsets": "earliest"}
        given = {key: one for key, one in (defaults | options).items() if one is not None}
        return self.spark.readStream.format("kbatch").options(**given).load(str(self.path))

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        def collect(rows: DataFrame, _: int) -> None:
            self.batches.append(rows.collect())

        return (
            frame.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, frame: DataFrame | None = None, **options: Any) -> list[list[str]]:
        """The values of the batches that a run to what is available now makes."""
        self.batches = []
        self.start(self.load(**options) if frame is None else frame).awaitTermination()
        return self.values()

    def values(self) -> list[list[str]]:
        return [
            sorted(bytes(row.value).decode() for row in batch if row.value is not None)
            for batch in self.batches
        ]


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path, t=2)


def test_every_record_is_read_once_over_restarts(reading: Reading) -> None:
    reading.send("t", "a", "b")
    reading.send("t", "c", partition=1)
    assert reading.run() == [["a", "b", "c"]]
    assert reading.run() == []
    reading.send("t", "d")
    assert reading.run() == [["d"]]


def test_rows_have_the_columns_of_sparks_kafka_source(reading: Reading) -> None:
    headers = [("h", b"1"), ("h", None)]
    with reading.cluster.producer() as producer:
        producer.send("t", key=b"k", value=None, partition=1, timestamp_ms=1234, headers=headers)
        producer.send("t", key=None, value=b"v", partition=1, timestamp_ms=-1)
    frame = reading.load(includeHeaders=True)
    reading.run(frame.withColumn("timestamp", F.unix_millis("timestamp")))

    assert [row.asDict(recursive=True) for row in sorted(reading.batches[0], key=lambda r: r.offset)] == [
        {
            "key": bytearray(b"k"), "value": None, "topic": "t", "partition": 1, "offset": 0,
            "timestamp": 1234, "timestampType": 0,
            "headers": [{"key": "h", "value": bytearray(b"1")}, {"key": "h", "value": None}],
        },
        {
            "key": None, "value": bytearray(b"v"), "topic": "t", "partition": 1, "offset": 1,
            "timestamp": -1, "timestampType": 0, "headers": None,
        },
    ]  # fmt: skip
