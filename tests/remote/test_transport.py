"""The transport to brokers: who is asked for leaders, who is sent what, and what their answers mean."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import (
    KBatchError,
    ProducerClosedError,
    RequestTimedOutError,
    SaslAuthenticationError,
    UnsupportedVersionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.producer.futures import RecordFuture
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.sender import Sender
from spark_kbatch.remote.job import RemoteJob
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.remote.transport import BrokerTransport
from spark_kbatch.wire.connections import Node, State
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    InitProducerIdResponse,
    MetadataResponse,
    ProduceResponse,
    Request,
    Versions,
)
from tests.support.waiting import until
from tests.support.wire_servers import LoopbackServer

Topic = ProduceResponse.TopicProduceResponse


class TwoBrokers:
    """Two brokers that accept every batch of the partitions of topic "events" that they lead."""

    def __init__(self, *leaders: int, offered: Any = SUPPORTED) -> None:
        """Start; `leaders` are 0 or 1, for each partition."""
        self.leaders: list[int | None] = [*leaders]
        self.epoch = 1
        self.told: list[int | None] | None = None  # what metadata says instead
        self.produce: Callable[[int, Request], Any] | None = None
        self.servers = [
            LoopbackServer(lambda request: self._answer(0, request), offered=offered),
            LoopbackServer(lambda request: self._answer(1, request), offered=offered),
        ]
        self.nodes = [
            Node(id_, server.node.host, server.node.port) for id_, server in enumerate(self.servers)
        ]
        self.written: list[tuple[int, int]] = []  # (node, partition)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def move(self, partition: int, node: int) -> None:
        self.leaders[partition] = node
        self.epoch += 1

    def requests(self, api_key: ApiKey) -> int:
        return sum(one.api_key == api_key for of in self.servers for one in of.requests)

    def _answer(self, node: int, request: Request) -> Any:
        match request.api_key:
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=0)
            case ApiKey.PRODUCE:
                special = self.produce(node, request) if self.produce else None
                return special or self.accept(node, request)
        raise AssertionError(request)

    def accept(
        self, node: int, request: Request, throttle_ms: int = 0, *, hint: bool = False
    ) -> Any:
        """Write what the broker leads."""
        part = Topic.PartitionProduceResponse
        partitions, endpoints = [], []
        for one in request.body.topic_data[0].partition_data:
            leader = self.leaders[one.index]
            answer = part(index=one.index, base_offset=0)
            if leader == node:
                self.written.append((node, one.index))
            else:
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                if hint and leader is not None:
                    answer.current_leader = part.LeaderIdAndEpoch(
                        leader_id=leader, leader_epoch=self.epoch
                    )
                    node_id, host, port = self.nodes[leader]
                    endpoints = [
                        ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                    ]
            partitions.append(answer)
        return ProduceResponse(
            responses=[Topic(name="events", partition_responses=partitions)],
            throttle_time_ms=throttle_ms,
            node_endpoints=endpoints,
        )

    def _metadata(self) -> Any:
        topic, broker = (
            MetadataResponse.MetadataResponseTopic,
            MetadataResponse.MetadataResponseBroker,
        )
        leaders = self.leaders if self.told is None else self.told
        return MetadataResponse(
            brokers=[broker(node_id=one.id, host=one.host, port=one.port) for one in self.nodes],
            cluster_id="a-cluster",
            controller_id=0,
            topics=[
                topic(
                    error_code=0,
                    name="events",
                    partitions=[
                        topic.MetadataResponsePartition(
                            error_code=0 if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
                            partition_index=number,
                            leader_id=-1 if leader is None else leader,
                            leader_epoch=self.epoch,
                            replica_nodes=[0, 1],
                            isr_nodes=[0, 1],
                        )
                        for number, leader in enumerate(leaders)
                    ],
                )
            ],
        )


@contextmanager
def producing(brokers: TwoBrokers, **options: Any) -> Iterator[Producer]:
    cluster = parse_cluster_options(
        {
            "bootstrap_servers": f"{brokers.nodes[0]}",
            "retry_backoff_ms": 5,
            "reconnect_backoff_ms": 5,
        },
        alone=True,
    )
    defaults = {"batch_size": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    try:
        with open_producer(cluster, parse_producer_options(defaults | options)) as producer:
            yield producer
    finally:
        brokers.close()


def send(producer: Producer, *partitions: int) -> list[Any]:
    return [producer.send("events", b"v", partition=partition) for partition in partitions]


def results(futures: list[Any]) -> list[BaseException | None]:
    return [future.exception(20) for future in futures]


def test_each_broker_is_sent_what_it_leads() -> None:
    brokers = TwoBrokers(0, 1, 0)
    with producing(brokers) as producer:
        assert results(send(producer, 0, 1, 2)) == [None] * 3
    assert sorted(brokers.written) == [(0, 0), (0, 2), (1, 1)]
    assert brokers.requests(ApiKey.METADATA) == 1


@pytest.mark.parametrize("hint", [False, True], ids=["metadata", "hint"])
def test_leader_that_moved_is_found(hint: bool) -> None:
    brokers = TwoBrokers(0)
    brokers.produce = lambda node, request: brokers.accept(node, request, hint=hint)
    with producing(brokers) as producer:
        assert results(send(producer, 0)) == [None]
        brokers.move(0, 1)
        assert results(send(producer, 0)) == [None]
    assert brokers.written == [(0, 0), (1, 0)]
    assert (brokers.requests(ApiKey.METADATA) == 1) is hint


def test_old_metadata_of_a_broker_that_lags_behind_does_not_bring_the_old_leader_back() -> None:
    brokers = TwoBrokers(0)
    with producing(brokers) as producer:
        assert results(send(producer, 0)) == [None]
        brokers.move(0, 1)
        assert results(send(producer, 0)) == [None]
        sent = brokers.requests(ApiKey.PRODUCE)
        brokers.told, brokers.epoch = [0], brokers.epoch - 1
        producer._sender._nodes._asked_for.append("events")  # type: ignore[attr-defined]
        asked = brokers.requests(ApiKey.METADATA)
        while brokers.requests(ApiKey.METADATA) == asked:
            producer._wake_up()
            time.sleep(0.005)
        assert results(send(producer, 0)) == [None]
        assert brokers.requests(ApiKey.PRODUCE) == sent + 1


def test_partition_without_a_leader_waits_until_it_has_one() -> None:
    brokers = TwoBrokers(0, 1)
    with producing(brokers) as producer:
        assert results(send(producer, 0, 1)) == [None, None]
        brokers.told = [None, 1]
        brokers.move(0, 1)
        (waiting,) = send(producer, 0)
        assert results(send(producer, 1)) == [None]
        time.sleep(0.05)
        assert not waiting.done()
        brokers.told = None
        assert waiting.exception(20) is None
    assert brokers.written[-1] == (1, 0)


def test_broker_that_is_gone_is_asked_for_nothing_and_the_other_knows_who_leads() -> None:
    brokers = TwoBrokers(0, 1)
    with producing(brokers) as producer:
        # One after the other: brokers answer in no order between them.
        assert results(send(producer, 0)) == [None]
        assert results(send(producer, 1)) == [None]
        brokers.servers.pop(0).close()
        brokers.move(0, 1)
        assert results(send(producer, 0)) == [None]
    assert brokers.written == [(0, 0), (1, 1), (1, 0)]


def test_broker_that_asks_for_a_pause_gets_it_and_others_go_on() -> None:
    brokers = TwoBrokers(0, 1)
    times: dict[int, list[float]] = {0: [], 1: []}

    def throttle(node: int, request: Request) -> Any:
        times[node].append(time.monotonic())
        return brokers.accept(node, request, throttle_ms=300 * (node == 0))

    brokers.produce = throttle
    with producing(brokers) as producer:
        for _ in range(2):
            futures = send(producer, 0, 1)
            assert futures[0].exception(20) is None
            assert futures[1].exception(20) is None
    first, second = times[0]
    assert second - first >= 0.29
    assert times[1][1] - first < second - first


def test_silent_broker_holds_back_its_own_partitions_alone() -> None:
    brokers = TwoBrokers(0, 1)
    held = threading.Event()

    def hold(node: int, request: Request) -> None:
        if node == 0:
            held.wait(20)

    with producing(brokers) as producer:
        assert results(send(producer, 0, 1)) == [None, None]
        brokers.produce = hold
        (waiting,) = send(producer, 0)
        assert results(send(producer, *[1] * 20)) == [None] * 20
        assert not waiting.done()
        held.set()
        assert waiting.exception(20) is None


def test_as_many_requests_are_in_flight_as_the_option_says_and_no_more() -> None:
    brokers = TwoBrokers(0)
    held = threading.Event()
    brokers.produce = lambda _node, _request: held.wait(20) and None
    in_flight = {"max_in_flight_requests_per_connection": 8, "enable_idempotence": False}
    with producing(brokers, **in_flight) as producer:
        futures = send(producer, *[0] * 12)
        transport: Any = producer._sender._transport
        until(lambda: transport._connections.in_flight_count() == 8)
        time.sleep(0.05)
        assert transport._connections.in_flight_count() == 8
        held.set()
        assert results(futures) == [None] * 12


@pytest.mark.parametrize(
    ("last", "codec"), [(2, "none"), (6, "zstd")], ids=["no-batches", "no-zstd"]
)
def test_broker_that_is_too_old_for_a_batch_fails_it(last: int, codec: str) -> None:
    offered = {**SUPPORTED, ApiKey.PRODUCE: Versions(0, last)}
    with producing(TwoBrokers(0, offered=offered), compression_type=codec) as producer:
        (error,) = results(send(producer, 0))
    assert isinstance(error, UnsupportedVersionError)
    assert f"version {last} of PRODUCE is not supported" in str(error)


def test_records_are_the_producers_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = TwoBrokers(0)
    with producing(brokers, buffer_memory=100_000, batch_size=10_000, linger_ms=1000) as producer:
        sent: list[Any] = []
        transport: Any = producer._sender._transport
        original = transport._connections.send

        def spy(node: Node, api_key: int, body: Any, *args: Any, **more: Any) -> None:
            if api_key == ApiKey.PRODUCE:
                sent.append(body(12).topic_data[0].partition_data[0].records)
            original(node, api_key, body, *args, **more)

        monkeypatch.setattr(transport._connections, "send", spy)
        futures = send(producer, 0)
        producer.flush(20)
        assert results(futures) == [None]
        assert sent[0].obj is producer._pool.memory.obj


def test_partitions_that_were_added_are_found_after_metadata_max_age() -> None:
    brokers = TwoBrokers(0)
    cluster = parse_cluster_options(
        {"bootstrap_servers": str(brokers.nodes[0]), "metadata_max_age_ms": 50}, alone=True
    )
    with open_producer(cluster, parse_producer_options({"batch_size": 1}), seed=1) as producer:
        producer.send("events", b"v").result(20)
        brokers.leaders.append(1)
        deadline = time.monotonic() + 20
        while (1, 1) not in brokers.written:
            assert time.monotonic() < deadline
            producer.send("events", b"v" * 100).result(20)
            time.sleep(0.02)
    brokers.close()


def test_topic_partition_of_another_topic_in_an_answer_is_ignored() -> None:
    brokers = TwoBrokers(0)

    def answer(node: int, request: Request) -> Any:
        found = brokers.accept(node, request)
        part = Topic.PartitionProduceResponse(index=0, error_code=3)
        found.responses.append(Topic(name="other", partition_responses=[part]))
        return found

    brokers.produce = answer
    with producing(brokers) as producer:
        (future,) = send(producer, 0)
        assert future.result(20).offset == 0
        assert TopicPartition("other", 0) not in producer._accumulator._queues


class AsksForAPause(TwoBrokers):
    """Brokers whose first producer id comes with a pause."""

    throttle_ms = 300

    def _answer(self, node: int, request: Request) -> Any:
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(
                error_code=0, producer_id=7, producer_epoch=0, throttle_time_ms=self.throttle_ms
            )
        return super()._answer(node, request)


def test_a_pause_that_comes_with_the_producer_id_delays_records_and_fails_none() -> None:
    brokers = AsksForAPause(0, 0)
    with spark_kbatch.connect(str(brokers.nodes[0])).producer() as producer:
        assert producer.send("events", b"v", partition=0).result(20).offset == 0
    brokers.close()


class HangsUpOnce(TwoBrokers):
    """Brokers of which one hangs up when it is asked for a producer id first."""

    asked = 0

    def _answer(self, node: int, request: Request) -> Any:
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            self.asked += 1
            if self.asked == 1:
                return "hang up"
        return super()._answer(node, request)


def test_a_connection_that_breaks_while_a_producer_id_is_asked_for_fails_no_record() -> None:
    brokers = HangsUpOnce(1)
    with producing(brokers) as producer:
        assert producer.send("events", b"v", partition=0).result(20).offset == 0


@contextmanager
def refused_by_broker_1(
    slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Producer]:
    """A producer whom broker 1 refuses, and broker 0 answers once `slow` is set."""
    brokers = TwoBrokers(0, 1)

    def wait(node: int, _request: Request) -> None:
        if node == 0:
            slow.wait(10)

    brokers.produce = wait
    options = {"batch_size": 1, "max_in_flight_requests_per_connection": 1}
    with producing(brokers, **options) as producer:
        connections = transport_of(producer)._connections
        ready, refusal = connections.ready, connections.refusal
        refused = SaslAuthenticationError("broker 1", "no")
        monkeypatch.setattr(connections, "ready", lambda one: one.id != 1 and ready(one))
        monkeypatch.setattr(
            connections, "refusal", lambda one: refused if one.id == 1 else refusal(one)
        )
        yield producer


def test_a_broker_that_refuses_the_client_fails_what_it_leads_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = threading.Event()
    with refused_by_broker_1(slow, monkeypatch) as producer:
        of_broker_0 = [producer.send("events", b"v", partition=0) for _ in range(3)]
        of_broker_1 = producer.send("events", b"v", partition=1)
        assert isinstance(of_broker_1.exception(20), SaslAuthenticationError)
        slow.set()
        assert [one.exception(20) for one in of_broker_0] == [None] * 3


def test_a_refusal_between_two_looks_fails_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()
    with refused_by_broker_1(slow, monkeypatch) as producer:
        send_ready, later, are_sent = Sender.send_ready, list[RecordFuture](), threading.Event()

        def and_another(sender: Sender) -> None:
            send_ready(sender)
            if are_sent.is_set() and not later:
                later.append(producer.send("events", b"v", partition=1))

        monkeypatch.setattr(Sender, "send_ready", and_another)
        of_broker_0 = [producer.send("events", b"v", partition=0) for _ in range(3)]
        are_sent.set()
        producer._sender.wake_up()
        until(lambda: bool(later))
        assert isinstance(later[0].exception(20), SaslAuthenticationError)
        slow.set()
        assert [one.exception(20) for one in of_broker_0] == [None] * 3


def transport_of(producer: Producer) -> BrokerTransport:
    transport = producer._sender._nodes
    assert isinstance(transport, BrokerTransport)
    return transport


def test_that_no_broker_tells_leaders_fails_only_what_awaits_one() -> None:
    """The queue of an unknown leader comes after one that is drained; it has no batch at first."""
    brokers = TwoBrokers(0, 1)
    with producing(brokers) as producer:
        assert results(send(producer, 0, 1)) == [None] * 2
        transport = transport_of(producer)
        brokers.told = [0, None]
        transport._leaders.pop(TopicPartition("events", 1))
        refused = transport._refused = SaslAuthenticationError("broker 1", "no")
        assert results(send(producer, 0)) == [None]
        transport._refused = refused
        assert results(send(producer, 1)) == [refused]
        assert results(send(producer, 0)) == [None]


def test_a_refusal_that_is_over_fails_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = TwoBrokers(0, 1)
    with producing(brokers) as producer:
        assert results(send(producer, 0, 1)) == [None] * 2
        transport = transport_of(producer)
        connections = transport._connections
        with monkeypatch.context() as away:
            away.setattr(connections, "can_send", lambda _: False)
            away.setattr(connections, "state", lambda _: State.DISCONNECTED)
            away.setattr(connections, "ready", lambda _: False)
            refused = SaslAuthenticationError("broker 1", "no")
            away.setattr(connections, "refusal", lambda node: refused if node.id == 1 else None)
            transport._node_to_ask()
            assert transport._refused is None, "another broker may answer"
            away.setattr(connections, "refusal", lambda _: refused)
            transport._node_to_ask()
            assert transport._refused is refused
        transport._node_to_ask()
        transport._leaders.pop(TopicPartition("events", 1))
        assert results(send(producer, 1, 0)) == [None] * 2


def test_a_producer_that_is_closed_by_force_says_so_of_what_is_on_its_way() -> None:
    brokers, came, held = TwoBrokers(0), threading.Event(), threading.Event()

    def hold(_node: int, _request: Request) -> None:
        came.set()
        held.wait(20)

    brokers.produce = hold
    with producing(brokers, batch_size=1) as producer:
        future = producer.send("events", b"v", partition=0)
        assert came.wait(20)
        producer.close(timeout=0)
        assert isinstance(future.exception(20), ProducerClosedError)
        held.set()  # before the brokers end, which waits for it


def test_records_that_no_broker_could_be_reached_for_name_the_cause() -> None:
    brokers = TwoBrokers(0)
    options = {"request_timeout_ms": 100, "delivery_timeout_ms": 300}
    with spark_kbatch.connect(str(brokers.nodes[0])).producer(**options) as producer:
        producer.send("events", b"v", partition=0).result(20)
        brokers.close()
        error = producer.send("events", b"v", partition=0).exception(20)
        assert isinstance(error, RequestTimedOutError)
        assert error.__cause__ is not None


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_anything_ends_no_sender(kind: type[BaseException]) -> None:
    brokers = TwoBrokers(0)

    def fail(*_: object) -> None:
        raise kind

    with producing(brokers) as producer:
        producer.send("events", b"v", partition=0, callback=fail).result(20)
        assert producer.send("events", b"v", partition=0).result(20).offset == 0
        producer.flush(20)


def test_flush_in_a_callback_is_refused() -> None:
    brokers, raised = TwoBrokers(0), list[Exception]()

    def flush(*_: object) -> None:
        try:
            producer.flush()
        except KBatchError as error:
            raised.append(error)

    with producing(brokers) as producer:
        producer.send("events", b"v", partition=0, callback=flush).result(20)
        producer.flush(20)
        assert "callback" in str(raised[0])


class KnowsLate(TwoBrokers):
    """Brokers that say a few times that they have no such topic."""

    unknown = 0

    def _answer(self, node: int, request: Request) -> Any:
        if request.api_key == ApiKey.METADATA and self.unknown > 0 and request.body.topics:
            self.unknown -= 1
            answer = self._metadata()
            answer.topics[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.topics[0].partitions = []
            return answer
        return super()._answer(node, request)


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_not_gone() -> None:
    brokers = KnowsLate(0)
    source = RemoteSource(parse_cluster_options({"bootstrap.servers": str(brokers.nodes[0])}))
    brokers.unknown = 2
    assert [*source.existing_topics(["events"])] == ["events"]
    brokers.unknown = 100
    assert source.existing_topics(["events"]) == {}
    brokers.close()


def test_a_task_that_fills_no_batch_in_time_is_written_all_the_same() -> None:
    brokers = TwoBrokers(0)
    options = {
        "kafka.bootstrap.servers": str(brokers.nodes[0]), "topic": "events",
        "kafka.delivery.timeout.ms": "1500", "kafka.request.timeout.ms": "1000",
    }  # fmt: skip
    job = RemoteJob.begin(parse_write_options(options))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"a"]})
        time.sleep(2)
        yield pa.RecordBatch.from_pydict({"value": [b"b"]})

    job.stage(rows())
    assert len(brokers.written) == 2
    brokers.close()
