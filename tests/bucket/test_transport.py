"""A plain producer's batches in a bucket: one object and one entry, and each batch once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.compute as pc
import pytest

from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.bucket.objects import CreateAnswer
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.bucket.transport import BucketTransport
from spark_kbatch.errors import (
    InvalidProducerEpochError,
    ObjectStoreError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RefusedEntryError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger.entries import GcBoundary
from spark_kbatch.model import AppendResult
from spark_kbatch.record.header import SEQUENCE_MAX
from spark_kbatch.store.transport import Answer, ProduceBatch, SendRequest
from tests.support import builders
from tests.support.bucket_objects import CountingObjects, a_bucket, kind_of, opened_again, values

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


@pytest.fixture
def cluster(objects: CountingObjects) -> Iterator[Cluster]:
    with a_bucket(objects, "events", partitions=3) as cluster:
        yield cluster


def test_after_a_refusal_the_next_request_begins_anew(cluster: Cluster) -> None:
    """A producer was held for longer than the horizon, between its object and its entry."""
    store = cluster._store
    assert isinstance(store, BucketStore)
    with cluster.producer(linger_ms=0, retries=0) as producer:
        producer.send("events", "first", partition=0).result()
        before = store.ledger.commit

        def held(*given: Any, **named: Any) -> Any:
            store.ledger.commit = before  # type: ignore[method-assign]
            for number in range(3):
                cluster.create_topic(f"topic-{number}")
            with store.ledger.state() as state:
                last = state.number
            before(lambda _: GcBoundary(last))
            return before(*given, **named)

        store.ledger.commit = held  # type: ignore[method-assign]
        with pytest.raises(RefusedEntryError, match="was begun before entry"):
            producer.send("events", "held", partition=0).result()
        producer.send("events", "next", partition=1).result()

    assert sorted(values(opened_again(cluster))) == ["first", "next"]


def a_request(
    cluster: Cluster, *batches: tuple[int, bytes], timeout_ms: int = 30_000
) -> SendRequest:
    topic = cluster.topic("events")
    return SendRequest(
        -1,
        timeout_ms,
        [
            ProduceBatch(topic, TopicPartition("events", partition), memoryview(data), 1)
            for partition, data in batches
        ],
    )


def a_transport(cluster: Cluster, *, at_once: int = 1) -> BucketTransport:
    store = cluster._store
    assert isinstance(store, BucketStore)
    return BucketTransport(store.ledger, at_once=at_once)


def sent(cluster: Cluster, *batches: tuple[int, bytes], timeout_ms: int = 30_000) -> Answer:
    """Send batches of partitions of the topic in one request, and return the answer."""
    answers = list[Answer]()
    a_transport(cluster).send(a_request(cluster, *batches, timeout_ms=timeout_ms), answers.append)
    (answer,) = answers
    return answer


def numbered(sequence: int, *, n: int = 1, epoch: int = 0, value: bytes = b"value") -> bytes:
    return builders.idempotent_batch(base_sequence=sequence, n=n, epoch=epoch, value=value)


def offsets(answer: Mapping[TopicPartition, AppendResult]) -> dict[int, int]:
    assert [one.error for one in answer.values() if one.error] == []
    return {tp.partition: one.base_offset for tp, one in answer.items()}


def ends(cluster: Cluster) -> list[int]:
    return [one.offsets.high_watermark for one in cluster.describe("events")]


def test_a_request_is_one_object_and_one_entry(cluster: Cluster, objects: CountingObjects) -> None:
    rows = {"value": [f"{at}" for at in range(300)], "partition": [at % 3 for at in range(300)]}
    with cluster.producer() as producer:
        producer.send_arrow("events", {"value": ["first"] * 3, "partition": [0, 1, 2]}).result()
        objects.taken()
        producer.send_arrow("events", rows).result()
    asked = objects.taken()
    assert (asked["put data"], asked["create ledger"]) == (1, 1)
    assert ends(cluster) == [101, 101, 101]


def test_offsets_follow_each_other_whoever_writes(cluster: Cluster) -> None:
    other = opened_again(cluster)
    assert offsets(sent(cluster, (0, numbered(0, n=2)), (1, numbered(0)))) == {0: 0, 1: 0}
    assert offsets(sent(other, (0, numbered(2)))) == {0: 2}
    assert offsets(sent(cluster, (0, numbered(3)))) == {0: 3}


# Idempotence.


def test_a_batch_that_is_sent_again_keeps_its_offset_and_is_written_once(cluster: Cluster) -> None:
    other = opened_again(cluster)
    first = sent(cluster, (0, numbered(0, n=2)), (1, numbered(0)))
    again = sent(other, (0, numbered(0, n=2)), (1, numbered(0)))

    assert offsets(again) == offsets(first)
    assert ends(cluster) == [2, 1, 0]


def test_a_batch_of_a_run_that_was_written_is_known_again_by_itself(cluster: Cluster) -> None:
    run = [(0, numbered(0, n=2)), (0, numbered(2, n=3)), (0, numbered(5))]
    assert offsets(sent(cluster, *run)) == {0: 0}

    assert offsets(sent(cluster, run[1])) == {0: 2}
    assert offsets(sent(cluster, run[2])) == {0: 5}
    assert ends(cluster) == [6, 0, 0]


def test_sequences_wrap_around(cluster: Cluster) -> None:
    assert offsets(sent(cluster, (0, numbered(SEQUENCE_MAX - 1, n=4)))) == {0: 0}
    assert offsets(sent(cluster, (0, numbered(SEQUENCE_MAX - 1, n=4)))) == {0: 0}
    assert offsets(sent(cluster, (0, numbered(2)))) == {0: 4}


def test_what_a_partition_refuses_keeps_no_other_from_being_written(cluster: Cluster) -> None:
    sent(cluster, (0, numbered(0)), (1, numbered(0, epoch=1)))

    answer = sent(cluster, (0, numbered(2)), (1, numbered(1)), (2, numbered(0)))

    errors = {tp.partition: type(one.error) for tp, one in answer.items() if one.error}
    assert errors == {0: OutOfOrderSequenceError, 1: InvalidProducerEpochError}
    assert answer[TopicPartition("events", 2)].base_offset == 0
    assert ends(cluster) == [1, 1, 1]


def test_a_new_epoch_counts_from_0(cluster: Cluster) -> None:
    sent(cluster, (0, numbered(0)))
    answer = sent(cluster, (0, numbered(1, epoch=1)))
    assert isinstance(answer[EVENTS].error, OutOfOrderSequenceError)
    assert offsets(sent(cluster, (0, numbered(0, epoch=1)))) == {0: 1}


def test_a_request_of_which_all_is_refused_writes_no_entry(
    cluster: Cluster, objects: CountingObjects
) -> None:
    sent(cluster, (0, numbered(0)))
    objects.taken()
    sent(cluster, (0, numbered(5)))
    assert "create ledger" not in objects.taken()


def test_a_batch_that_is_too_large_is_not_put(cluster: Cluster, objects: CountingObjects) -> None:
    cluster.alter_topic("events", {"max.message.bytes": 200})
    objects.taken()
    answer = sent(cluster, (0, numbered(0, value=b"v" * 200)))
    assert isinstance(answer[EVENTS].error, RecordTooLargeError)
    assert "put data" not in objects.taken()


def test_a_topic_that_was_deleted_refuses_its_batches(cluster: Cluster) -> None:
    other = opened_again(cluster)
    with cluster.producer(linger_ms=0) as producer:
        producer.send("events", "a", partition=0).result()
        other.delete_topic("events")
        other.create_topic("events")
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic with the id"):
            producer.send("events", "b", partition=0).result()
    assert [*values(cluster)] == []


# Answers that are lost.


class LosesAnswers(CountingObjects):
    """Objects that answer nothing to some creates of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.lost, self.lands = 0, True

    def create(self, name: str, data: bytes) -> CreateAnswer:
        if "/ledger/" not in name or self.lost == 0:
            return super().create(name, data)
        self.lost -= 1
        if self.lands:
            super().create(name, data)
        return CreateAnswer.UNKNOWN


@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_changes_nothing(lands: bool) -> None:
    objects = LosesAnswers()
    with a_bucket(objects, "events") as cluster, cluster.producer(linger_ms=0) as producer:
        objects.lands = lands
        for value in "abc":
            objects.lost = 2
            assert producer.send("events", value).result().offset == "abc".index(value)
        assert [*values(cluster)] == ["a", "b", "c"]


def test_an_unknown_outcome_may_be_retried_where_sequences_tell(cluster: Cluster) -> None:
    objects = LosesAnswers()
    with a_bucket(objects, "events", partitions=2) as cluster:
        objects.lost, objects.lands = 10**9, False
        with pytest.raises(ObjectStoreError):
            sent(cluster, (0, numbered(0)), timeout_ms=0)
        with pytest.raises(OutcomeUnknownError):
            sent(cluster, (1, builders.batch()), timeout_ms=0)
        objects.lost = 0
        assert offsets(sent(cluster, (0, numbered(0)))) == {0: 0}
        assert ends(cluster) == [1, 0]


def test_a_request_is_written_even_if_all_is_closed_before_it_is_answered() -> None:
    class Closes(CountingObjects):
        on_entry: Callable[[], object] = staticmethod(lambda: None)

        def create(self, name: str, data: bytes) -> CreateAnswer:
            answer = super().create(name, data)
            self.on_entry()
            return answer

    objects = Closes()
    with a_bucket(objects, "events") as cluster:
        store = cluster._store
        assert isinstance(store, BucketStore)
        objects.on_entry = store.ledger.close
        assert offsets(sent(cluster, (0, numbered(0)))) == {0: 0}


# Several requests at once.


class SlowObjects(CountingObjects):
    """Objects whose puts of data meet, and end in another order than they began; every other one may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.rng, self.puts, self.most, self.count, self.failures = random.Random(1), 0, 0, 0, 0

    def put(self, name: str, data: bytes) -> None:
        if kind_of(name) == "data":
            with self._counted:
                self.puts += 1
                self.most = max(self.most, self.puts)
                pause_s = self.rng.uniform(0.001, 0.03)
                self.count += 1
                is_failing = self.failures > 0 and self.count % 2 == 0
                self.failures -= is_failing
            time.sleep(pause_s)
            with self._counted:
                self.puts -= 1
            if is_failing:
                raise ObjectStoreError("put", name, "for a test")
        super().put(name, data)


@pytest.mark.parametrize("failures", [0, 10])
@pytest.mark.parametrize("at_once", [1, 5])
def test_requests_are_put_at_once_and_their_entries_are_in_the_order_of_records(
    at_once: int, failures: int
) -> None:
    objects = SlowObjects()
    options = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 10}
    with a_bucket(objects, "events", partitions=3) as cluster:
        objects.failures = failures
        with cluster.producer(**options, max_in_flight_requests_per_connection=at_once) as producer:
            for at in range(200):
                producer.send("events", f"{at}", partition=at % 3)
                time.sleep(0.001)
        assert objects.failures < max(
            failures, 1
        )  # some at least: a slow machine has fewer requests
        assert objects.most <= at_once
        assert at_once == 1 or objects.most > 1
        found = opened_again(cluster).read("events", columns=["partition", "value"]).read_all()
    for partition in range(3):
        held = found.filter(pc.field("partition") == partition)["value"].to_pylist()
        assert [int(one) for one in held] == [*range(partition, 200, 3)]


def test_requests_that_were_sent_before_a_failure_was_told_fail_with_it() -> None:
    """The sender sends all of them again in their order, and a producer that no one knows may begin anywhere."""
    is_told = threading.Event()

    class FailsTheFirst(CountingObjects):
        def put(self, name: str, data: bytes) -> None:
            if kind_of(name) == "data" and not is_told.is_set():
                if b"first" in data:
                    raise ObjectStoreError("put", name, "for a test")
                assert is_told.wait(10)
            super().put(name, data)

    with a_bucket(FailsTheFirst(), "events") as cluster:
        transport, answers = a_transport(cluster, at_once=3), list[Answer]()

        def send() -> None:
            for sequence, value in enumerate((b"first", b"second", b"third")):
                batch = numbered(sequence, value=value)
                transport.send(a_request(cluster, (0, batch)), answers.append)

        def poll(count: int) -> list[type[Exception] | None]:
            until_s = time.monotonic() + 10
            while len(answers) < count and time.monotonic() < until_s:
                transport.poll(100)
            return [one.error and type(one.error) for answer in answers for one in answer.values()]

        send()
        assert poll(1) == [ObjectStoreError]
        is_told.set()
        assert poll(3) == [ObjectStoreError] * 3
        answers.clear()
        send()
        assert poll(3) == [None] * 3
        transport.close()
        assert [*values(opened_again(cluster))] == ["first", "second", "third"]


@pytest.mark.parametrize("at_once", [1, 5])
def test_a_request_to_very_many_partitions_is_divided_into_entries(at_once: int) -> None:
    count = 2500
    with a_bucket(CountingObjects(), "events", partitions=count) as cluster:
        options = {"max_in_flight_requests_per_connection": at_once, "linger_ms": 1000}
        with cluster.producer(maintain_ms=0, batch_size=1024, **options) as producer:
            rows = {"value": ["v"] * count, "partition": [*range(count)]}
            producer.send_arrow("events", rows)
        assert ends(cluster) == [1] * count


def test_what_cannot_be_put_is_the_error_of_its_records_alone() -> None:
    slow = SlowObjects()
    options = {"linger_ms": 0, "retries": 0, "enable_idempotence": False}
    with a_bucket(slow, "events") as cluster, cluster.producer(**options) as producer:
        slow.failures = 1
        futures = [producer.send("events", f"{at}") for at in range(20) if not time.sleep(0.005)]
        producer.flush()
        errors = [one.exception() for one in futures]
        written = [f"{at}" for at, error in enumerate(errors) if error is None]
        assert 0 < len(written) < 20
        assert {type(one) for one in errors if one is not None} == {ObjectStoreError}
        assert [*values(cluster)] == written
