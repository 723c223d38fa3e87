"""Exactly once from Spark into a real cluster: a broker in memory that knows transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_kbatch
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.conftest import SPARK
from tests.support import builders
from tests.support.transactional_cluster import TransactionalCluster

pytestmark = pytest.mark.spark

PREFIX = "orders-to-shipped"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[spark_kbatch.Cluster]:
    with builders.a_cluster(tmp_path / "source", topics={"orders": 2}) as cluster:
        yield cluster


@pytest.fixture
def brokers() -> Iterator[TransactionalCluster]:
    with TransactionalCluster() as cluster:
        cluster.create_topic("shipped", 2)
        yield cluster


def options_of(brokers: TransactionalCluster, **options: Any) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": brokers.address, "topic": "shipped",
        "delivery.guarantee": "exactly-once", "transactional.id.prefix": PREFIX,
    } | options  # fmt: skip
    return {key: str(value) for key, value in given.items()}


def add(cluster: spark_kbatch.Cluster, numbers: range) -> None:
    with cluster.producer() as producer:
        for number in numbers:
            producer.send("orders", b"%d" % number)


def ran(
    spark: SparkSession, source: spark_kbatch.Cluster, sink: dict[str, str], checkpoint: Path
) -> StreamingQuery:
    """Run a query that copies what is new, ten records at a time."""
    spark_kbatch.register(spark)
    read = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    rows = spark.readStream.format("kbatch").options(**read).load(str(source.path))
    writer = rows.select("value").writeStream.format("kbatch").options(**sink)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(180)
    return query


def shipped(brokers: TransactionalCluster) -> list[int]:
    found = [record.value for of in brokers.committed("shipped") for record in of]
    return sorted(int(value or b"") for value in found)


def test_stream_writes_each_micro_batch_in_a_transaction_and_skips_a_repetition(
    spark: SparkSession,
    source: spark_kbatch.Cluster,
    brokers: TransactionalCluster,
    tmp_path: Path,
) -> None:
    asked: list[int] = []
    brokers.on_request = lambda request: asked.append(request.api_key)
    checkpoint = tmp_path / "checkpoint"
    add(source, range(15))
    query = ran(spark, source, options_of(brokers), checkpoint)
    assert query.exception() is None
    assert shipped(brokers) == [*range(15)]
    count = sum(1 for one in query.recentProgress if one["numInputRows"])
    assert [*brokers.ended.values()] == [True] * count
    assert asked.count(ApiKey.INIT_PRODUCER_ID) == count

    # The driver died before it noted the last one.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    add(source, range(15, 20))
    # Before Spark 4.2 such a trigger ends with the micro-batch that it repeats.
    for _ in range(1 if SPARK >= (4, 2) else 2):
        assert ran(spark, source, options_of(brokers), checkpoint).exception() is None
    assert shipped(brokers) == [*range(20)]

    with pytest.raises(PySparkException, match="A prefix belongs to one query"):
        ran(spark, source, options_of(brokers), tmp_path / "other")
    assert shipped(brokers) == [*range(20)]


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("string(id) AS value")


def test_batch_job_is_one_transaction_and_is_skipped_if_it_is_repeated(
    spark: SparkSession, brokers: TransactionalCluster
) -> None:
    spark_kbatch.register(spark)
    options = options_of(brokers, txnAppId="job", txnVersion=3)
    for _ in range(2):
        numbers(spark, 100).write.format("kbatch").options(**options).mode("append").save()
    assert shipped(brokers) == [*range(100)]
    assert [*brokers.ended.values()] == [True]


def test_rows_above_the_drivers_bytes_fail_and_leave_nothing(
    spark: SparkSession, brokers: TransactionalCluster
) -> None:
    spark_kbatch.register(spark)
    options = options_of(brokers) | {"exactly.once.driver.bytes": "1000"}
    with pytest.raises(PySparkException, match=r"raise 'exactly\.once.driver\.bytes'"):
        numbers(spark, 1000).write.format("kbatch").options(**options).mode("append").save()
    assert shipped(brokers) == []
    assert not brokers.has_open_transaction


def test_missing_right_is_told_by_name(spark: SparkSession, brokers: TransactionalCluster) -> None:
    spark_kbatch.register(spark)
    brokers.refusals[ApiKey.INIT_PRODUCER_ID] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    writer = numbers(spark, 3).write.format("kbatch").options(**options_of(brokers))
    with pytest.raises(PySparkException, match=f"write and describe .*{PREFIX}"):
        writer.mode("append").save()
