"""Spark beside a transaction that a server has left open: what ends it, and what a stream says while it waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kbatch.cluster.transactions import administration
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.spark.source import KBatchDataSource
from tests.support import builders
from tests.support.frames import load, save
from tests.support.open_transactions import TIMEOUT_MS, leave_open
from tests.support.raw_transactions import EVENTS, OTHER, state_of

pytestmark = pytest.mark.spark


def test_a_job_ends_a_transaction_past_its_time_out_and_a_batch_reads_what_was_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Processes look at a folder once a minute, so each of the two is a folder of its own."""
    found: dict[str, tuple[Status, list[bytes]]] = {}
    for name, age_ms in {"young": 0, "old": TIMEOUT_MS}.items():
        cluster = builders.a_cluster(tmp_path / name, topics={"events": 2})
        leave_open(cluster, EVENTS, OTHER, age_ms=age_ms)
        save(spark.createDataFrame([("a",), ("b",)], "value string"), cluster.path, topic="events")
        rows = load(spark, cluster.path, subscribe="events").select("value").collect()
        found[name] = state_of(cluster).status, sorted(bytes(row.value) for row in rows)

    assert found == {"young": (Status.ONGOING, []), "old": (Status.COMPLETE_ABORT, [b"a", b"b"])}


@pytest.mark.slow
def test_a_stream_that_waits_for_nothing_else_goes_on_after_the_time_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    save(spark.createDataFrame([("a",)], "value string"), cluster.path, topic="events")
    leave_open(cluster, EVENTS, OTHER, age_ms=TIMEOUT_MS - 5_000)
    save(spark.createDataFrame([("b",)], "value string"), cluster.path, topic="events")
    stream = spark.readStream.format("kbatch").option("subscribe", "events")
    query = (
        stream.option("startingOffsets", "earliest")
        .load(str(cluster.path))
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        while spark.table("seen").count() < 2:
            assert not query.awaitTermination(1)
    finally:
        query.stop()

    assert sorted(bytes(row.value) for row in spark.table("seen").collect()) == [b"a", b"b"]
    assert state_of(cluster).status is Status.COMPLETE_ABORT


def test_the_reader_of_a_stream_tells_for_what_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    leave_open(cluster, EVENTS, name="billing", age_ms=120_000)
    source = KBatchDataSource(
        {"path": str(cluster.path), "subscribe": "events", "startingOffsets": "latest"}
    )
    reader = source.streamReader(source.schema())

    for _ in range(3):
        assert reader.latestOffset(reader.initialOffset())["events"] == {"0": 0, "1": 0}
        administration._next_look_ms.clear()

    told = [text for text in caplog.messages if "transactional id 'billing', is open for" in text]
    assert len(told) == 1
    assert told[0].startswith("readers of committed records wait in events-0 from offset 0 on")
