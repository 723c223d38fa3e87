"""After a refused batch of an idempotent producer, no later one is appended before it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import KafkaStorageError, NotEnoughReplicasError
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import SEQUENCE_MAX
from spark_kbatch.replica.partition import Partition
from spark_kbatch.server.intercepts import InterceptedRequest
from spark_kbatch.server.server import Server
from spark_kbatch.server.unwritten_batches import IdempotentBatch, UnwrittenBatches
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import produce_request
from tests.server.test_waiting import locked
from tests.support import builders
from tests.support.raw_clients import RawClient, produce, produced, request

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 1}) as cluster:
        yield cluster


class Fault:
    """Something that refuses the first batch that comes, and only that."""

    def __init__(self, cluster: Cluster, server: Server, patch: pytest.MonkeyPatch) -> None:
        self._cluster, self._server, self._patch = cluster, server, patch

    def error_of_a_test(self) -> AbstractContextManager[object]:
        asked = iter([True])

        def refuse(received: InterceptedRequest) -> None:
            if next(asked, False):
                received.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        self._server.intercept("Produce", refuse)
        return contextlib.nullcontext()

    def storage_error(self) -> AbstractContextManager[object]:
        return self._failing(KafkaStorageError("a disk that fails once"))

    def too_few_replicas(self) -> AbstractContextManager[object]:
        return self._failing(NotEnoughReplicasError("events-0", [0], 2))

    def _failing(self, error: Exception) -> AbstractContextManager[object]:
        append, errors = Partition.append_locked, iter([error])

        def failing(*args: Any, **named: Any) -> Any:
            for one in errors:
                raise one
            return append(*args, **named)

        self._patch.setattr(Partition, "append_locked", failing)
        return contextlib.nullcontext()

    def missing_topic(self) -> AbstractContextManager[object]:
        self._cluster.delete_topic("events")
        return contextlib.nullcontext()

    def locked_partition(self) -> AbstractContextManager[object]:
        return locked(self._cluster, range(1), 60)


FAULTS: dict[ErrorCode, Callable[[Fault], AbstractContextManager[object]]] = {
    ErrorCode.REQUEST_TIMED_OUT: Fault.locked_partition,
    ErrorCode.KAFKA_STORAGE_ERROR: Fault.storage_error,
    ErrorCode.NOT_ENOUGH_REPLICAS: Fault.too_few_replicas,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Fault.error_of_a_test,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Fault.missing_topic,
}


@pytest.mark.parametrize("code", FAULTS, ids=lambda code: code.name)
def test_what_follows_a_refused_batch_gets_its_error_until_that_one_is_written(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    batches = [builders.idempotent_batch(base_sequence=number) for number in range(3)]

    def send(client: RawClient, number: int, timeout_ms: int = 10_000) -> Any:
        sent = produce(batches[number], timeout_ms=timeout_ms)
        return produced(client.ask(ApiKey.PRODUCE, 9, sent))

    with RawClient(server) as client, RawClient(server) as other:
        with FAULTS[code](Fault(cluster, server, monkeypatch)):
            assert send(client, 0, timeout_ms=100).error_code == code
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            cluster.create_topic("events")

        plain = produced(other.ask(ApiKey.PRODUCE, 9, produce(builders.batch(n=1))))
        assert plain.base_offset == 0
        refused = send(client, 1)
        assert refused.error_code == code
        assert "sequence 0, which comes first" in refused.error_message
        assert send(client, 2).error_code == code

        assert [send(client, number).base_offset for number in range(3)] == [1, 2, 3]


def test_batches_sent_at_once_are_not_appended_after_one_that_is_refused(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [builders.idempotent_batch(base_sequence=number) for number in range(4)]
    with RawClient(server) as client:
        with Fault(cluster, server, monkeypatch).locked_partition():
            for number, batch in enumerate(batches):
                sent = produce(batch, timeout_ms=100 if number == 0 else 10_000)
                client.send(request(ApiKey.PRODUCE, 9, sent, number))
            first = produced(client.receive(ApiKey.PRODUCE, 9, 0))
        others = [produced(client.receive(ApiKey.PRODUCE, 9, number)) for number in (1, 2, 3)]
    assert {one.error_code for one in (first, *others)} == {ErrorCode.REQUEST_TIMED_OUT}
    assert cluster.describe("events")[0].offsets.high_watermark == 0


def test_a_request_with_two_batches_of_a_partition_does_not_skip_the_first(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [produce(builders.idempotent_batch(base_sequence=number)) for number in range(2)]
    both[0].topic_data[0].partition_data += both[1].topic_data[0].partition_data
    with RawClient(server) as client, Fault(cluster, server, monkeypatch).storage_error():
        answer = client.ask(ApiKey.PRODUCE, 9, both[0])
        codes = [one.error_code for one in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_REQUEST]
    assert cluster.describe("events")[0].offsets.high_watermark == 0


def test_another_connection_may_begin_anywhere(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fault(cluster, server, monkeypatch).storage_error(), RawClient(server) as client:
        sent = produce(builders.idempotent_batch(base_sequence=4))
        assert produced(client.ask(ApiKey.PRODUCE, 9, sent)).error_code
    with RawClient(server) as client:
        sent = produce(builders.idempotent_batch(base_sequence=5))
        assert produced(client.ask(ApiKey.PRODUCE, 9, sent)).base_offset == 0


def test_a_record_that_is_refused_for_good_does_not_stop_its_producer(
    cluster: Cluster, server: Server
) -> None:
    cluster.alter_topic("events", {"max.message.bytes": 2000})
    large = builders.idempotent_batch(base_sequence=0, value=b"x" * 3000)
    with RawClient(server) as client:
        answer = produced(client.ask(ApiKey.PRODUCE, 9, produce(large)))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        next_one = produce(builders.idempotent_batch(base_sequence=1))
        assert produced(client.ask(ApiKey.PRODUCE, 9, next_one)).base_offset == 0


def test_a_connection_that_is_refused_too_much_to_remember_ends(server: Server) -> None:
    batch = builders.idempotent_batch(base_sequence=0)
    many = {TopicPartition("missing", number): batch for number in range(1000)}
    with RawClient(server) as client:
        answer = client.ask(ApiKey.PRODUCE, 9, produce_request(-1, 1000, many))
        assert len(answer.responses[0].partition_responses) == 1000
        client.send(request(ApiKey.PRODUCE, 9, produce(batch, "missing", 1000)))
        assert client.is_closed_by_server()


def batch(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> IdempotentBatch:
    return IdempotentBatch(EVENTS, producer_id, epoch, sequence)


def test_only_later_sequences_of_the_same_producer_and_epoch_wait() -> None:
    unwritten = UnwrittenBatches()
    unwritten.answered(batch(5), ErrorCode.REQUEST_TIMED_OUT)
    for free in (batch(4), batch(5), batch(0, epoch=1), batch(6, producer_id=8)):
        assert unwritten.error(free) is None
    assert unwritten.error(batch(6)) is not None


def test_sequences_wrap() -> None:
    unwritten = UnwrittenBatches()
    unwritten.answered(batch(SEQUENCE_MAX), ErrorCode.REQUEST_TIMED_OUT)
    assert unwritten.error(batch(0)) is not None
    assert unwritten.error(batch(SEQUENCE_MAX - 1)) is None


def test_the_first_of_several_refused_batches_is_waited_for() -> None:
    unwritten = UnwrittenBatches()
    for sequence in (3, 4, 2):
        unwritten.answered(batch(sequence), ErrorCode.REQUEST_TIMED_OUT)
    assert unwritten.error(batch(3)) is not None
    unwritten.answered(batch(2), ErrorCode.NONE)
    assert unwritten.error(batch(3)) is None
