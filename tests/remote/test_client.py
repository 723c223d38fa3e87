"""A client of a cluster: metadata, retries, leaders that move, and the pool that it is leased from."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch.errors import (
    ConfigError,
    DisconnectedError,
    InvalidReplicationFactorError,
    ProtocolError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import ClusterOptions, parse_cluster_options
from spark_kbatch.remote.client import Client, _idle, leased
from spark_kbatch.wire.connections import Node, State
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    ApiKey,
    CreateTopicsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    Request,
)
from tests.support import builders
from tests.support.sasl_servers import SaslAnswers
from tests.support.wire_servers import LoopbackServer, metadata_answer


def options_of(*servers: LoopbackServer | str, **more: Any) -> ClusterOptions:
    addresses = [one if isinstance(one, str) else str(one.node) for one in servers]
    return parse_cluster_options({"bootstrap_servers": ",".join(addresses), **more}, alone=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ClusterOptions]:
    with (
        builders.a_cluster(tmp_path, topics={"events": 3, "other": 1}) as cluster,
        cluster.serve(port=0) as server,
    ):
        yield options_of(server.bootstrap_servers)


def test_metadata_of_a_cluster(served: ClusterOptions) -> None:
    with Client(served) as client:
        found = client.metadata()

    events = found.topics["events"]
    assert [one.name for one in found.topics.values() if not one.is_internal] == ["events", "other"]
    assert [one.leader for one in events.partitions] == [1, 1, 1]
    assert len(events.topic_id) == 22
    assert str(found.nodes[1]) == str(served)
    assert found.controller == 1


def test_unknown_topic_is_refused_naming_those_that_exist_and_is_not_created(
    served: ClusterOptions,
) -> None:
    with Client(served) as client:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'nope'.*topics: events, other"):
            client.topic("nope")
        with pytest.raises(
            UnknownTopicOrPartitionError, match=r"partition 3 of topic 'events'.*has 3"
        ):
            client.leader(TopicPartition("events", 3))

        assert "nope" not in client.metadata(fresh=True).topics


def test_created_topic_has_leaders_and_settings(served: ClusterOptions) -> None:
    with Client(served) as client:
        client.create_topic("new", 2, 1, {"max.message.bytes": 4096})

        assert client.leader(TopicPartition("new", 1))[0].id == 1
        with pytest.raises(TopicAlreadyExistsError):
            client.create_topic("new", 2)


def test_pool_gives_back_the_same_client_with_its_connections(served: ClusterOptions) -> None:
    with leased(served) as client:
        client.metadata()
        with leased(served) as other:
            assert other is not client
    with leased(served) as again:
        assert again in (client, other)


def test_forked_child_starts_with_an_empty_pool(served: ClusterOptions) -> None:
    with leased(served) as client:
        client.metadata()
    child = os.fork()
    if not child:
        ok = False
        try:
            with leased(served) as own:
                ok = own is not client and "events" in own.metadata().topics
        finally:
            os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    with leased(served) as again:
        assert again is client


def test_servers_tried_are_named_with_why_each_failed() -> None:
    with Client(options_of("127.0.0.1:1", "127.0.0.1:2", default_api_timeout_ms=300)) as client:
        with pytest.raises(RequestTimedOutError) as raised:
            client.metadata()

    for part in (
        "within 300 ms",
        "127.0.0.1:1: Connection refused",
        "127.0.0.1:2: Connection refused",
    ):
        assert part in str(raised.value)


def test_next_server_is_asked_if_the_first_is_down() -> None:
    with LoopbackServer() as server:
        server_node = Node(1, server.node.host, server.node.port)
        server._answer = lambda _: metadata_answer([server_node], {})
        with Client(options_of("127.0.0.1:1", server)) as client:
            assert client.metadata().cluster_id == "a-cluster"


@pytest.mark.parametrize("random", [0.0, 0.4, 0.9])
def test_the_server_that_failed_last_is_asked_last(random: float) -> None:
    def known(_request: Request) -> Any:
        return metadata_answer([own_node(one, n) for n, one in enumerate(servers)], {})

    with (
        LoopbackServer(known) as first,
        LoopbackServer(known) as second,
        LoopbackServer(known) as silent,
    ):
        servers = [first, second, silent]
        options = options_of(first, reconnect_backoff_ms=1, retry_backoff_ms=1)
        with Client(options, random=lambda: random) as client:
            client.metadata()
            node = client.metadata().nodes[2]
            assert client.request(ApiKey.METADATA, MetadataRequest(topics=[]), node=node)
            client.connections.disconnect(node)  # as a request that was not answered does
            client.wait(20)
            silent.requests.clear()
            client.metadata(fresh=True)

    assert not silent.requests


def test_bootstrap_servers_are_asked_again_if_all_known_ones_are_gone() -> None:
    gone = LoopbackServer()
    with LoopbackServer() as bootstrap:
        nodes = [Node(1, gone.node.host, gone.node.port)]

        def answer(_: Request) -> Any:
            return metadata_answer(nodes, {})

        bootstrap._answer = answer
        with Client(options_of(bootstrap)) as client:
            assert client.metadata().nodes == {1: nodes[0]}
            gone.close()
            bootstrap.hang_up()
            nodes[:] = [Node(2, bootstrap.node.host, bootstrap.node.port)]

            assert client.metadata(fresh=True).nodes == {2: nodes[0]}


class TestLeaders:
    """Requests to leaders, of two brokers that tell what a test says."""

    def test_partition_whose_leader_moved_is_asked_of_the_new_one(self) -> None:
        leader = [1]
        asked: list[int] = []

        def answer(node_id: int) -> Any:
            def to(request: Request) -> Any:
                if request.api_key == ApiKey.METADATA:
                    return metadata_answer(nodes, {"t": [leader[0], 1]}, epoch=leader[0])
                asked.append(node_id)
                code = 0 if node_id == leader[0] else ErrorCode.NOT_LEADER_OR_FOLLOWER
                return offsets_answer(request, {0: code} if node_id != leader[0] else {})

            return to

        with LoopbackServer() as one, LoopbackServer() as two:
            nodes = [Node(n, s.node.host, s.node.port) for n, s in ((1, one), (2, two))]
            one._answer, two._answer = answer(1), answer(2)
            with Client(options_of(one)) as client:
                wanted = [TopicPartition("t", 0), TopicPartition("t", 1)]
                assert ends(client, wanted) == dict.fromkeys(wanted, 7)
                leader[0] = 2
                assert ends(client, wanted) == dict.fromkeys(wanted, 7)

        assert asked == [1, 1, 2]

    def test_lost_connections_are_retried_until_time_is_over(self) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([Node(1, server.node.host, server.node.port)], {"t": [1]})
            return "hang up"

        with LoopbackServer(answer) as server:
            with Client(options_of(server, default_api_timeout_ms=500)) as client:
                with pytest.raises(
                    RequestTimedOutError, match=r"t-0 at 127.*closed the connection"
                ):
                    ends(client, [TopicPartition("t", 0)])

        assert sum(one.api_key == ApiKey.LIST_OFFSETS for one in server.requests) > 1

    def test_error_that_is_not_retriable_is_raised_at_once(self) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([Node(1, server.node.host, server.node.port)], {"t": [1]})
            return offsets_answer(request, {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            with pytest.raises(spark_kbatch.KBatchError, match=r"TOPIC_AUTHORIZATION_FAILED"):
                ends(client, [TopicPartition("t", 0)])

        assert sum(one.api_key == ApiKey.LIST_OFFSETS for one in server.requests) == 1

    def test_partition_that_gets_a_leader_is_waited_for(self) -> None:
        leaders = [-1, -1, 1]

        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                leader = leaders.pop(0) if len(leaders) > 1 else leaders[0]
                return metadata_answer([own_node(server)], {"t": [leader]})
            return offsets_answer(request, {})

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            assert ends(client, [TopicPartition("t", 0)]) == {TopicPartition("t", 0): 7}
            assert client.leader(TopicPartition("t", 0)) == (own_node(server), 0)

    def test_pause_that_a_broker_asks_for_is_kept(self) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([own_node(server)], {"t": [1]})
            return offsets_answer(request, {}, throttle_time_ms=300)

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            ends(client, [TopicPartition("t", 0)])
            started = time.monotonic()
            ends(client, [TopicPartition("t", 0)])

            assert 0.25 < time.monotonic() - started < 5

    def test_broker_that_throttles_for_longer_than_a_call_may_take_is_named_with_the_time(
        self,
    ) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([own_node(server)], {"t": [1]})
            return offsets_answer(request, {}, throttle_time_ms=2**31 - 1)

        with LoopbackServer(answer) as server:
            with Client(options_of(server, default_api_timeout_ms="400")) as client:
                ends(client, [TopicPartition("t", 0)])
                with pytest.raises(
                    RequestTimedOutError,
                    match=r"could not be sent the request: it has throttled this client, for 2,147,48\d s",
                ):
                    ends(client, [TopicPartition("t", 0)])

    def test_answer_that_leaves_out_a_partition_is_an_error(self) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([own_node(server)], {"t": [1, 1]})
            del request.body.topics[0].partitions[1]
            return offsets_answer(request, {})

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            with pytest.raises(ProtocolError, match="t-1"):
                ends(client, [TopicPartition("t", 0), TopicPartition("t", 1)])


class TestTopicCreation:
    """A controller that moves, loses connections, or refuses."""

    def test_new_controller_is_asked_after_the_old_one(self) -> None:
        asked: list[int] = []

        def answer(node_id: int) -> Any:
            def to(request: Request) -> Any:
                if request.api_key == ApiKey.METADATA:
                    first = nodes if not asked else nodes[::-1]
                    return metadata_answer(first, {"t": [1]} if len(asked) > 1 else {})
                asked.append(node_id)
                return created_answer(ErrorCode.NOT_CONTROLLER if node_id == 1 else 0)

            return to

        with LoopbackServer() as one, LoopbackServer() as two:
            nodes = [own_node(one), own_node(two, 2)]
            one._answer, two._answer = answer(1), answer(2)
            with Client(options_of(one)) as client:
                client.create_topic("t", 1)
        assert asked == [1, 2]

    def test_topic_that_a_lost_request_created_is_no_error(self) -> None:
        asked: list[Request] = []

        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([own_node(server)], {"t": [1]} if asked else {})
            asked.append(request)
            return "hang up" if len(asked) == 1 else created_answer(ErrorCode.TOPIC_ALREADY_EXISTS)

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            client.create_topic("t", 1)
            with pytest.raises(TopicAlreadyExistsError):
                client.create_topic("t", 1)

    def test_refusal_says_why(self) -> None:
        def answer(request: Request) -> Any:
            if request.api_key == ApiKey.METADATA:
                return metadata_answer([own_node(server)], {})
            return created_answer(ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker")

        with LoopbackServer(answer) as server, Client(options_of(server)) as client:
            with pytest.raises(InvalidReplicationFactorError, match=r"'t' cannot.*only 1 broker"):
                client.create_topic("t", 1, 3)


def test_metadata_is_asked_for_again_when_it_is_too_old_or_was_invalidated() -> None:
    clock = Clock()
    with LoopbackServer() as server:
        server._answer = lambda _: metadata_answer([own_node(server)], {"t": [1]})
        options = options_of(server, metadata_max_age_ms=60_000)
        with Client(options, monotonic_ms=clock) as client:
            counts = []
            for step in (lambda: None, lambda: None, clock.skip, client.invalidate):
                step()
                client.topic("t")
                counts.append(sum(one.api_key == ApiKey.METADATA for one in server.requests))

    assert counts == [1, 1, 2, 3]


def test_names_that_cannot_be_looked_up_are_refused_at_once() -> None:
    options = options_of("no-such-host.invalid:9092", "neither.invalid:9092")
    started = time.monotonic()
    with Client(options) as client, pytest.raises(ConfigError, match=r"no-such-host\.invalid:9092"):
        client.metadata()

    assert time.monotonic() - started < 30


def test_refused_password_is_an_error_at_once_and_has_no_secret() -> None:
    with LoopbackServer(SaslAnswers()) as server:
        options = options_of(
            server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_jaas_config='P required username="a" password="s3cret";',
        )
        with Client(options) as client, pytest.raises(SaslAuthenticationError) as raised:
            client.request_leaders(
                ApiKey.LIST_OFFSETS, [TopicPartition("t", 0)], lambda *_: None, lambda _: {}
            )
        assert server.accepted == 1
    assert "s3cret" not in f"{raised.value!r} {raised.value} {client.options!r}"
    assert pickle.loads(pickle.dumps(raised.value)).reason == raised.value.reason


class TestPool:
    """Clients that are used one after another."""

    def test_threads_never_share_a_client(self) -> None:
        options = options_of("127.0.0.1:1")
        in_use: set[int] = set()
        shared: list[int] = []

        def use() -> None:
            for _ in range(30):
                with leased(options) as client:
                    if id(client) in in_use:
                        shared.append(id(client))
                    in_use.add(id(client))
                    time.sleep(0.0005)
                    in_use.discard(id(client))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert shared == []
        assert len(_idle[options]) <= 4

    def test_connections_that_were_idle_for_long_are_closed_when_the_pool_is_used(self) -> None:
        with LoopbackServer() as server:
            server._answer = lambda _: metadata_answer([own_node(server)], {})
            with leased(options_of(server, connections_max_idle_ms=100)) as client:
                client.metadata()
            time.sleep(0.15)
            with leased(options_of("127.0.0.1:1")):
                pass

            assert client.connections.is_closed

    def test_connection_whose_answer_no_one_waits_for_is_closed(self) -> None:
        with LoopbackServer() as server:
            server._answer = lambda one: (
                metadata_answer([own_node(server)], {}) if one.api_key == ApiKey.METADATA else None
            )
            options = options_of(server)
            ended: list[Any] = []
            with leased(options) as client:
                (node,) = client.metadata().nodes.values()
                client.request(ApiKey.METADATA, MetadataRequest(topics=[]), node=node)
                body = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[])
                client.connections.send(
                    node, ApiKey.LIST_OFFSETS, body, lambda *end: ended.append(end)
                )

            assert isinstance(ended[0][1], DisconnectedError)
            with leased(options) as again:
                assert again is client
                assert again.connections.state(node) is State.DISCONNECTED
                assert again.request(ApiKey.METADATA, MetadataRequest(topics=[]), node=node)

    def test_client_that_its_user_closed_does_not_come_back(self) -> None:
        options = options_of("127.0.0.1:1")
        with leased(options) as client:
            client.close()

        assert options not in _idle

    def test_client_is_closed_after_an_error_that_is_not_of_this_package(self) -> None:
        options = options_of("127.0.0.1:1")
        with pytest.raises(ZeroDivisionError), leased(options) as client:
            raise ZeroDivisionError

        assert client.connections.is_closed
        assert options not in _idle


class Clock:
    """The real clock, which a test may advance."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def __call__(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._ahead_ms

    def skip(self) -> None:
        self._ahead_ms += 60_000


def own_node(server: LoopbackServer, node_id: int = 1) -> Node:
    return Node(node_id, server.node.host, server.node.port)


def created_answer(code: int, message: str | None = None) -> Any:
    topic = CreateTopicsResponse.CreatableTopicResult
    return CreateTopicsResponse(
        topics=[topic(name="t", error_code=int(code), error_message=message, configs=[])]
    )


def offsets_answer(request: Request, errors: dict[int, int], **fields: Any) -> Any:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    (asked,) = request.body.topics
    return ListOffsetsResponse(
        **fields,
        topics=[
            topic(
                name=asked.name,
                partitions=[
                    topic.ListOffsetsPartitionResponse(
                        partition_index=one.partition_index,
                        error_code=errors.get(one.partition_index, 0),
                        offset=7,
                        timestamp=-1,
                        leader_epoch=0,
                    )
                    for one in asked.partitions
                ],
            )
        ],
    )


def ends(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    topic = ListOffsetsRequest.ListOffsetsTopic

    def build(_: Node, asked: list[TopicPartition]) -> Any:
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[
                topic(
                    name=asked[0].topic,
                    partitions=[
                        topic.ListOffsetsPartition(
                            partition_index=one.partition, current_leader_epoch=-1, timestamp=-1
                        )
                        for one in asked
                    ],
                )
            ],
        )

    def results(answer: Any) -> dict[TopicPartition, Any]:
        return {
            TopicPartition(one.name, part.partition_index): error_of(part.error_code)
            if part.error_code
            else part.offset
            for one in answer.topics
            for part in one.partitions
        }

    return client.request_leaders(ApiKey.LIST_OFFSETS, partitions, build, results)
