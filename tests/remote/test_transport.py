"""The transport to brokers: who is asked for leaders, who is sent what, and what their answers mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_kbatch.errors import UnsupportedVersionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.wire.connections import Node
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
