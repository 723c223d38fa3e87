"""Topics that others grow, alter, delete and recreate while a producer is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import (
    ConfigError,
    InvalidTimestampError,
    KafkaStorageError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.producer import REFRESH_MS, KnownTopics, Producer
from tests.support import builders
from tests.support.partitioners import murmur2, topic

KEYS = [b"%d" % number for number in range(40)]

Send = Callable[[Producer], None]


def one_by_one(producer: Producer) -> None:
    for future in [producer.send("events", key=key, value=key) for key in KEYS]:
        future.result(20)


def as_a_table(producer: Producer) -> None:
    producer.send_arrow("events", {"key": KEYS, "value": KEYS}).result(20)


@pytest.fixture(params=[one_by_one, as_a_table], ids=["send", "send_arrow"])
def send(request: pytest.FixtureRequest) -> Send:
    found: Send = request.param
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 4})


def other(cluster: Cluster) -> Cluster:
    """Open the same cluster again, as another process would."""
    return Cluster(str(cluster.path))


def recreate(cluster: Cluster, partitions: int, config: TopicConfig | None = None) -> None:
    other(cluster).delete_topic("events")
    other(cluster).create_topic("events", partitions=partitions, config=config)


def wait_for_a_look() -> None:
    time.sleep(1.5 * REFRESH_MS / 1000)


def keys(cluster: Cluster) -> dict[int, list[bytes]]:
    """Return the keys in each partition."""
    rows = other(cluster).read("events", columns=["partition", "key"]).read_all()
    found: dict[int, list[bytes]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["partition"], []).append(row["key"])
    return found


def by_hash(partitions: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for key in KEYS:
        found.setdefault((murmur2(key) & 0x7FFFFFFF) % partitions, []).append(key)
    return found


def test_an_open_producer_fills_partitions_that_were_added(cluster: Cluster, send: Send) -> None:
    with cluster.producer() as producer:
        send(producer)
        assert keys(cluster) == by_hash(4)
        other(cluster).create_partitions("events", 9)
        wait_for_a_look()
        send(producer)
        expected = {n: by_hash(4).get(n, []) + by_hash(9).get(n, []) for n in range(9)}
        assert {n: sorted(found) for n, found in keys(cluster).items()} == {
            n: sorted(found) for n, found in expected.items() if found
        }
        assert producer.send("events", b"v", partition=8).result(20).partition == 8


def test_rows_without_a_key_reach_partitions_that_were_added(cluster: Cluster) -> None:
    with cluster.producer(batch_size=1, linger_ms=0) as producer:
        producer.send("events", b"v").result(20)
        other(cluster).create_partitions("events", 12)
        wait_for_a_look()
        futures = [producer.send("events", b"v") for _ in range(300)]
        assert {future.result(20).partition for future in futures} == {*range(12)}


def test_records_for_a_deleted_topic_fail_at_once(cluster: Cluster, send: Send) -> None:
    with cluster.producer() as producer:
        send(producer)
        other(cluster).delete_topic("events")
        wait_for_a_look()
        began = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError, match="'events' does not exist"):
            send(producer)
        assert time.monotonic() - began < 5

        other(cluster).create_topic("events", partitions=2)
        send(producer)
        assert keys(cluster) == by_hash(2)


def test_an_error_of_a_topic_is_followed_by_a_look(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", b"v", partition=0).result(20)
        other(cluster).delete_topic("events")
        # Until the topic is looked up again the append finds out; after that each call does.
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("events", b"v", partition=0).result(20)
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("events", b"v", partition=0)


@pytest.mark.parametrize("partitions", [2, 4, 7], ids=["fewer", "as many", "more"])
def test_keys_go_by_the_partitions_of_a_recreated_topic(
    cluster: Cluster, send: Send, partitions: int
) -> None:
    with cluster.producer() as producer:
        for _ in range(3):
            send(producer)
        recreate(cluster, partitions)
        wait_for_a_look()
        send(producer)
    assert keys(cluster) == by_hash(partitions)


@pytest.mark.parametrize("partitions", [2, 4], ids=["fewer", "as many"])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_what_was_meant_for_a_deleted_topic_is_not_written_to_the_one_with_its_name(
    cluster: Cluster, send: Send, partitions: int, idempotent: bool
) -> None:
    with cluster.producer(linger_ms=60_000, enable_idempotence=idempotent) as producer:
        late = [producer.send("events", key=key, value=b"late") for key in KEYS]
        recreate(cluster, partitions)
        wait_for_a_look()
        rows = pa.table({"key": KEYS, "value": KEYS})
        # They do not share batches with those.
        future = producer.send_arrow("events", rows)
        more = [producer.send("events", key=key, value=key) for key in KEYS]
        producer.flush()
        for one in late:
            with pytest.raises(UnknownTopicOrPartitionError, match="'events'"):
                one.result(20)
        future.result(20)
        for one in more:
            one.result(20)
    assert keys(cluster) == {n: found * 2 for n, found in by_hash(partitions).items()}


def test_altered_settings_count_for_an_open_producer(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", b"v", timestamp=1).result(20)
        other(cluster).alter_topic(
            "events", {"message.timestamp.before.max.ms": 60_000, "max.message.bytes": 1024}
        )
        wait_for_a_look()
        with pytest.raises(InvalidTimestampError):
            producer.send("events", b"v", timestamp=1)
        with pytest.raises(InvalidTimestampError):
            producer.send_arrow("events", {"value": [b"v"], "timestamp": pa.array([1])})
        producer.send_arrow("events", {"value": [b"v" * 100] * 500}).result(20)
        with pytest.raises(RecordTooLargeError):
            producer.send("events", b"v" * 2000).result(20)


def test_a_codec_that_the_recreated_topic_has_not_is_refused(cluster: Cluster, send: Send) -> None:
    with cluster.producer(compression_type="zstd", enable_idempotence=False) as producer:
        send(producer)
        recreate(cluster, 4, TopicConfig(message_format_version="0.10.0"))
        wait_for_a_look()
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"'events' has message.format.version=0.10.0"):
                send(producer)


def test_threads_that_send_while_a_topic_grows_lose_nothing(cluster: Cluster) -> None:
    answers = []
    has_grown = threading.Event()

    def send_both(producer: Producer) -> None:
        answers.append(producer.send_arrow("events", {"value": [b"v"] * 50}))
        answers.append(producer.send_arrow("events", {"key": KEYS, "value": KEYS}))

    def run(producer: Producer) -> None:
        while not has_grown.is_set():
            send_both(producer)
            time.sleep(0.02)
        send_both(producer)

    with cluster.producer(linger_ms=2, batch_size=1000) as producer:
        threads = [threading.Thread(target=run, args=[producer]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for partitions in range(5, 9):
            time.sleep(0.1)
            other(cluster).create_partitions("events", partitions)
        wait_for_a_look()
        has_grown.set()
        for thread in threads:
            thread.join()
        found = [row for one in answers for row in one.result(20).to_pylist()]
    written = {(row["partition"], row["offset"]) for row in found}
    sent = len(answers) // 2 * (50 + len(KEYS))
    assert len(written) == sent == sum(map(len, keys(cluster).values()))
    assert {partition for partition, _ in written} == {*range(8)}


class Topics:
    """A lookup of topics that counts its calls, with a clock set by hand."""

    def __init__(self) -> None:
        self.now_ms, self.looks = 1000, 0
        self.found: Topic | Exception = topic("events", 4)
        self.refused: list[Topic] = []
        self.known = KnownTopics(self.find, self.ensure_accepted, lambda: self.now_ms)

    def find(self, name: str) -> Topic:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def ensure_accepted(self, topic: Topic) -> None:
        if topic in self.refused:
            raise ConfigError("refused")

    def ask(self, *, later_ms: int = 0) -> Any:
        self.now_ms += later_ms
        return self.known("events")


def test_a_topic_is_looked_at_when_that_is_due_and_not_before() -> None:
    topics = Topics()
    before = topics.ask()
    topics.found = topic("events", 9)
    assert [topics.ask(later_ms=REFRESH_MS - 1), topics.looks] == [before, 1]
    assert [topics.ask(later_ms=1), topics.looks] == [topics.found, 2]


def test_a_topic_is_looked_at_at_once_after_an_error() -> None:
    topics = Topics()
    topics.known.look_again("others")
    topics.ask()
    topics.found = topic("events", 9)
    topics.known.look_again("events")
    assert topics.ask() is topics.found


def test_a_topic_that_cannot_be_looked_at_is_taken_as_it_was() -> None:
    topics = Topics()
    topics.found = error = KafkaStorageError("its file is damaged")
    with pytest.raises(KafkaStorageError):
        topics.ask()
    topics.found = before = topic("events", 4)
    topics.ask()
    topics.found = error
    assert topics.ask(later_ms=REFRESH_MS) is before
    topics.found = UnknownTopicOrPartitionError("gone")
    for _ in range(2):
        with pytest.raises(UnknownTopicOrPartitionError):
            topics.ask(later_ms=REFRESH_MS)


def test_a_topic_that_is_refused_is_refused_each_time() -> None:
    topics = Topics()
    topics.ask()
    topics.found = Topic("events", "another", 1, TopicConfig())
    topics.refused.append(topics.found)
    for _ in range(2):
        with pytest.raises(ConfigError):
            topics.ask(later_ms=REFRESH_MS)
