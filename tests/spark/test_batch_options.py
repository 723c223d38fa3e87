"""Options of a batch read through Spark: few tests, because each runs a job; planning has its own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import spark_kbatch
from tests.conftest import SPARK
from tests.support.frames import load, save
from tests.support.log_histories import History

pytestmark = pytest.mark.spark

COUNTS = {0: 20, 1: 6, 2: 4}


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Path:
    """A cluster with topic `orders-eu`: three partitions with 20, 6 and 4 records, 1 s apart."""
    rows = [
        (f"{partition}-{number}", partition, number)
        for partition, count in COUNTS.items()
        for number in range(count)
    ]
    frame = spark.createDataFrame(rows, "value string, partition int, second long").selectExpr(
        "value", "partition", "timestamp_seconds(second) AS timestamp"
    )
    save(frame.coalesce(1), tmp_path, topic="orders-eu", num_partitions=3)
    return tmp_path


def test_pieces_of_ranges_are_tasks_and_a_reused_frame_sees_new_rows(
    spark: SparkSession, orders: Path
) -> None:
    frame = load(spark, orders, subscribePattern="orders", minPartitions=6)
    assert frame.rdd.getNumPartitions() == 6
    assert frame.count() == 30
    more = spark.sql("SELECT 'more' AS value, 2 AS partition FROM range(3)")
    save(more, orders, topic="orders-eu")
    assert frame.count() == 33
    assert frame.union(frame).count() == 66
    ((start, end, n),) = (
        frame.where("partition = 2").agg(F.min("offset"), F.max("offset"), F.count("*")).collect()
    )
    assert (start, end, n) == (0, 6, 7)


def test_times_bound_a_read(spark: SparkSession, orders: Path) -> None:
    frame = load(
        spark, orders, assign='{"orders-eu":[0,1]}', startingTimestamp=4000, endingTimestamp=6000
    )
    found = frame.select("partition", F.unix_seconds("timestamp")).collect()
    assert sorted(map(tuple, found)) == [(0, 4), (0, 5), (1, 4), (1, 5)]


def test_deleted_records_fail_the_task_or_are_skipped(spark: SparkSession, orders: Path) -> None:
    options = {
        "subscribe": "orders-eu",
        "startingOffsets": '{"orders-eu":{"0":2,"1":0,"2":0}}',
        "maxRecordsPerPartition": 5,
    }
    strict = load(spark, orders, **options)
    assert strict.count() == 18 + 6 + 4  # the first action makes the plan
    lenient = load(spark, orders, failOnDataLoss="false", **options)
    spark_kbatch.open(str(orders)).delete_records({("orders-eu", 0): 15})
    gone = (
        "OffsetOutOfRangeError: option 'startingOffsets': offset 2 of orders-eu-0"
        if SPARK < (4, 1)  # it plans each scan
        else "DataLossError: orders-eu-0 from offset 2 to 15"
    )
    with pytest.raises(PySparkException, match=gone):
        strict.count()
    assert lenient.count() == 5 + 6 + 4


@pytest.mark.slow
def test_rows_of_a_transaction_are_read_once_it_is_committed_or_at_once_if_uncommitted_reads_are_requested(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A broker's three transactions, of five records and a marker each; the second is aborted."""
    history = History()
    (tmp_path / "t-0").mkdir()
    log = tmp_path / "t-0" / f"{0:020d}.log"

    def write() -> None:
        log.write_bytes(b"".join(batch.data for batch in history.written))

    def offsets(**options: Any) -> list[int]:
        frame = load(spark, tmp_path, subscribe="t", **options)
        return sorted(row.offset for row in frame.select("offset").collect())

    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    history.append(1, transactional=True, n=5)
    write()
    committed = load(spark, tmp_path, subscribe="t")
    assert (committed.count(), offsets(**uncommitted)) == (0, [0, 1, 2, 3, 4])
    history.end(1, abort=False)
    write()
    assert (committed.count(), offsets(**uncommitted)) == (5, [0, 1, 2, 3, 4])
    for abort in (True, False):
        history.append(1, transactional=True, n=5)
        history.end(1, abort=abort)
    write()
    first, aborted, last = list(range(5)), list(range(6, 11)), list(range(12, 17))
    assert offsets() == first + last
    assert offsets(**uncommitted) == first + aborted + last
    assert offsets(startingOffsets='{"t":{"0":7}}', minPartitions=4) == last


def test_500_partitions_of_4_records_share_16_tasks_unless_that_is_turned_off(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(2000).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 500 AS INT) AS partition"
    )
    save(rows.coalesce(1), tmp_path, topic="many", num_partitions=500, flush=False)

    frame = load(spark, tmp_path, subscribe="many")
    assert frame.rdd.getNumPartitions() == 16
    found = frame.select("partition", "offset").collect()
    assert [*map(tuple, found)] == [(n // 4, n % 4) for n in range(2000)]
    alone = load(spark, tmp_path, subscribe="many", shareTasks="false")
    assert alone.rdd.getNumPartitions() == 500
