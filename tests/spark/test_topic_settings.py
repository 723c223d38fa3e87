"""Settings of topics that a write creates, from Spark's options."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

from spark_kbatch import Cluster
from tests.support import builders
from tests.support.frames import frame_of, load, save

pytestmark = pytest.mark.spark


def test_a_created_topic_follows_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    """The topic has log append time, and size retention deletes all but its last segment."""
    path, rows = tmp_path / "cluster", builders.rows(n=20_000)
    settings = {
        "topic": "t",
        "message_timestamp_type": "LogAppendTime",
        "retention_bytes": 0,
        "segment_bytes": 1 << 20,
        "batch_size": 16384,
    }
    before = int(time.time() * 1000)
    save(frame_of(spark, rows), path, **settings)
    assert load(spark, path, subscribe="t").count() == 0
    keeping = settings | {"topic": "kept", "retention_bytes": 1 << 20}
    save(frame_of(spark, rows), path, **keeping)
    found = load(spark, path, subscribe="kept").select(
        F.count("*"),
        F.min("offset"),
        F.max("offset"),
        F.min(F.unix_millis("timestamp")),
        F.min("timestampType"),
    )
    count, first, last, earliest, timestamp_type = found.collect()[0]
    assert (count, last, timestamp_type) == (last - first + 1, 19_999, 1)
    assert 0 < first < last
    assert earliest >= before

    gone = '{"kept":{"0":0}}'
    with pytest.raises(Exception, match="offset 0 of kept-0 is out of range"):
        load(spark, path, subscribe="kept", startingOffsets=gone).count()
    with pytest.raises(Exception, match=r"'retention.bytes' is 5, but topic 'kept' exists with"):
        save(frame_of(spark, rows), path, **(keeping | {"retention_bytes": 5}))
    with pytest.raises(Exception, match=r"'cleanup.policy' is 'compact'; accepted: delete; comp"):
        save(frame_of(spark, rows), path, topic="new", cleanup_policy="compact")


def test_a_task_refuses_times_past_the_topics_limits(spark: SparkSession, tmp_path: Path) -> None:
    limit = {"topic": "t", "message_timestamp_before_max_ms": 1000}
    said = r"more than message\.timestamp\.before\.max\.ms=1000; topic 't' does not exist yet: give the write"
    with pytest.raises(Exception, match=said):
        save(frame_of(spark, builders.rows(n=10)), tmp_path / "c", **limit)
    assert Cluster(tmp_path / "c").topic_names() == []
