"""Record times follow a topic's settings, from the producer or the commit to the reader."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.errors import InvalidTimestampError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.reference import Record, split_batches
from tests.support.store import store_of
from tests.support.topics_of_writes import task_producer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # by kafka-python, about itself
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

STAMPED = TopicPartition("stamped", 0)
HOUR = 3_600_000


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path)
    cluster.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    cluster.create_topic(
        "limited",
        config={"message.timestamp.before.max.ms": HOUR, "message.timestamp.after.max.ms": HOUR},
    )
    return cluster


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def job(cluster: Cluster, rows: pa.RecordBatch, **options: str) -> None:
    """Do what a task of a Spark job does, and then the driver."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    parsed = parse_write_options({"path": str(cluster.path), "flush": "false"} | given)
    producer = task_producer(store_of(cluster), "job", parsed)
    producer.append(rows)
    coordinator_for(store_of(cluster), parsed).commit(producer.finish(), transactional_id="job")


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_kafka_python_reads_the_time_of_the_append(cluster: Cluster, codec: str) -> None:
    """Its decoder checks the CRC, which covers the new time."""
    rows = builders.rows(n=40)
    before = now_ms()
    for adopt_min_bytes in ("1", "8388608"):
        job(cluster, rows, topic="stamped", compression_type=codec, adopt_min_bytes=adopt_min_bytes)
    with cluster.producer(compression_type=codec) as producer:
        producer.send_arrow("stamped", rows)
        sent = producer.send("stamped", value="last", timestamp=5)
    after = now_ms()

    stored = b"".join(
        path.read_bytes()
        for path in sorted(store_of(cluster).manager.log(STAMPED).directory.glob("*.log"))
    )
    found, times = [], []
    batches = kafka_python.MemoryRecords(stored)
    while batches.has_next():
        one = batches.next_batch()
        assert one.validate_crc()
        assert one.timestamp_type == 1
        found += [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in one]
    assert found == builders.contents(cluster)[STAMPED]
    times = [record.timestamp for record in found]
    assert before <= min(times) <= max(times) <= after
    assert sent.result().timestamp == times[-1]
    assert len(found) == 121
    assert times[:40] == [times[0]] * 40, "a job has one time"


def test_readers_see_who_set_the_time(cluster: Cluster) -> None:
    builders.write(cluster, {STAMPED: [builders.batch()], ("events", 0): [builders.batch()]})
    for topic, expected in (("stamped", 1), ("events", 0)):
        (found,) = cluster.read(topic, columns=["timestampType"])
        assert found.column("timestampType").to_pylist() == [expected] * 3


@pytest.mark.parametrize(
    ("distance", "side"), [(-HOUR - 60_000, "before"), (HOUR + 60_000, "after")]
)
def test_a_time_past_the_topics_limits_is_refused(
    cluster: Cluster, distance: int, side: str
) -> None:
    now = now_ms()
    words = rf"topic 'limited' has the time {now + distance} ms, .* {side} now .* more than message\.timestamp\.{side}\.max\.ms={HOUR};"
    rows = pa.record_batch({"value": ["a", "b", "c"], "timestamp": [now, now + distance, now]})
    with cluster.producer() as producer:
        with pytest.raises(InvalidTimestampError, match=words):
            producer.send("limited", value="v", timestamp=now + distance)
        with pytest.raises(InvalidTimestampError, match=words):
            producer.send_arrow("limited", rows)
    with pytest.raises(InvalidTimestampError, match=words):
        job(cluster, rows, topic="limited")
    assert builders.contents(cluster)[TopicPartition("limited", 0)] == []


def test_a_new_topic_takes_times_up_to_an_hour_ahead(cluster: Cluster) -> None:
    """As in Kafka: most often a later one is in microseconds by mistake."""
    now = now_ms()
    soon = pa.record_batch({"value": ["a"], "timestamp": [now + HOUR - 60_000]})
    micros = pa.record_batch({"value": ["a"], "timestamp": [now * 1000]})
    words = "more than message.timestamp.after.max.ms=3600000; raise that with"
    for topic in ("events", "new"):
        job(cluster, soon, topic=topic)
        with pytest.raises(InvalidTimestampError, match=words):
            job(cluster, micros, topic=topic)
    job(cluster, micros, topic="far", message_timestamp_after_max_ms=str(2**62))
    with cluster.producer() as producer:
        producer.send_arrow("events", soon)
        producer.send_arrow("far", micros)
        with pytest.raises(InvalidTimestampError, match=words):
            producer.send_arrow("events", micros)
        with pytest.raises(InvalidTimestampError, match=words):
            producer.send("events", "v", timestamp=now * 1000)
        cluster.alter_topic("events", {"message.timestamp.after.max.ms": 2**62})
    with cluster.producer() as producer:
        producer.send_arrow("events", micros)


def test_times_within_the_limits_and_no_time_are_accepted(cluster: Cluster) -> None:
    now = now_ms()
    times = pa.array([now - HOUR + 60_000, -1, None, now + HOUR - 60_000], pa.int64())
    rows = pa.record_batch({"value": ["a", "b", "c", "d"], "timestamp": times})
    job(cluster, rows, topic="limited")
    with cluster.producer() as producer:
        producer.send_arrow("limited", rows)
        producer.send("limited", value="e", timestamp=-1)
    assert len(builders.contents(cluster)[TopicPartition("limited", 0)]) == 9


def test_a_topics_limits_apply_to_its_own_rows_only(cluster: Cluster) -> None:
    topics = ["events", "limited", "stamped"]
    times = [5, now_ms(), 5]
    rows = pa.record_batch({"topic": topics, "value": topics, "timestamp": times})
    with cluster.producer() as producer:
        producer.send_arrow(None, rows)
        with pytest.raises(InvalidTimestampError, match="topic 'limited' has the time 5 ms"):
            producer.send_arrow(None, rows.set_column(2, "timestamp", pa.array([5, 5, 5])))
    assert [len(records) for records in builders.contents(cluster).values()] == [1, 1, 1]


def test_no_batch_of_a_job_is_larger_than_a_segment(tmp_path: Path) -> None:
    cluster = spark_kbatch.open(str(tmp_path / "cluster"), create=True)
    config = {"segment.bytes": 1 << 20, "max.message.bytes": 8 << 20}
    cluster.create_topic("events", config=config)
    rows = builders.rows(n=30, value_bytes=100_000)
    job(cluster, rows, topic="events", batch_size=str(4 << 20), buffer_memory=str(64 << 20))
    paths = list((tmp_path / "cluster" / "broker-0" / "events-0").glob("*.log"))
    sizes = [len(data) for path in paths for data in split_batches(path.read_bytes())]
    assert max(path.stat().st_size for path in paths) <= 1 << 20
    assert max(sizes) > 500_000
    assert len(builders.contents(cluster)[TopicPartition("events", 0)]) == 30
