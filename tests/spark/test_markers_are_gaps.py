"""Spark over topics in which clients write in transactions: a marker, and aborted records, in each partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kbatch import Cluster
from tests.support import builders
from tests.support.client_transactions import (
    GAPS_END,
    GAPS_OFFSETS,
    GIVEN,
    ClientTransactions,
    leave_gaps,
)

pytestmark = pytest.mark.spark

ROWS = [(partition, offset) for partition in (0, 1) for offset in GAPS_OFFSETS]
OPEN = ("events", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    leave_gaps(cluster, "events")
    return cluster


def read(spark: SparkSession, cluster: Cluster, **options: Any) -> DataFrame:
    return (
        spark.read.format("kbatch").options(subscribe="events", **options).load(str(cluster.path))
    )


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def by_partition(offsets: dict[int, int]) -> str:
    return json.dumps({"events": {str(partition): at for partition, at in offsets.items()}})


def test_rows_are_counted_and_not_offsets(spark: SparkSession, cluster: Cluster) -> None:
    frame = read(spark, cluster)
    split = read(spark, cluster, minPartitions=9, endingOffsets=by_partition(dict.fromkeys((0, 1), GAPS_END)))  # fmt: skip

    assert frame.count() == split.count() == len(ROWS)
    assert places(frame) == places(split) == ROWS
    assert read(spark, cluster, **{"isolation.level": "read_uncommitted"}).count() == 10


@pytest.mark.parametrize("start", [2, 3, 5])
def test_a_read_may_start_at_a_marker_or_an_aborted_record(
    spark: SparkSession, cluster: Cluster, start: int
) -> None:
    frame = read(spark, cluster, startingOffsets=by_partition({0: start, 1: GAPS_END}))

    assert places(frame) == [(0, 6)]


def test_a_job_and_a_stream_beside_an_open_transaction(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The job's rows come where no transaction is open at once, and else when it ends: each once."""
    client = ClientTransactions(cluster, 6000)
    client.send(OPEN, b"of the client")
    rows = spark.createDataFrame([(0, "job 0"), (1, "job 1")], "partition int, value string")
    rows.write.format("kbatch").option("topic", "events").mode("append").save(str(cluster.path))
    found: list[str] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend(row.value for row in frame.selectExpr("CAST(value AS STRING)").collect())

    def run() -> list[str]:
        """Return what a run of the query reads of what is available."""
        found.clear()
        stream = spark.readStream.format("kbatch").options(subscribe="events", startingOffsets="earliest")  # fmt: skip
        query = (
            stream.load(str(cluster.path))
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    given = [value.decode() for value in GIVEN]
    before = read(spark, cluster).selectExpr("CAST(value AS STRING)").collect()
    assert run() == sorted([*given, *given, "job 1"]) == sorted(row.value for row in before)
    assert run() == []
    client.commit()
    assert run() == ["job 0", "of the client"]
    assert run() == []


def test_limits_of_a_trigger_count_offsets_and_lose_no_row(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    stream = spark.readStream.format("kbatch").options(
        subscribe="events", startingOffsets="earliest", maxOffsetsPerTrigger=4
    )
    sizes: list[int] = []
    found: list[tuple[int, int]] = []

    def collect(frame: DataFrame, _: int) -> None:
        found.extend(places(frame))
        sizes.append(len(found))

    query = (
        stream.load(str(cluster.path))
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert sorted(found) == ROWS
