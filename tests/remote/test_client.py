"""A client of a cluster: metadata, retries, leaders that move, and the pool that it is leased from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch.errors import (
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import ClusterOptions, parse_cluster_options
from spark_kbatch.remote.client import Client, close_idle_clients, leased
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    ApiKey,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataResponse,
    Request,
)
from tests.support import builders
from tests.support.wire_servers import LoopbackServer


def options_of(*servers: LoopbackServer | str, **more: Any) -> ClusterOptions:
    addresses = [one if isinstance(one, str) else str(one.node) for one in servers]
    return parse_cluster_options({"bootstrap_servers": ",".join(addresses), **more}, alone=True)


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ClusterOptions]:
    with (
        builders.a_cluster(tmp_path, topics={"events": 3, "other": 1}) as cluster,
        cluster.serve(port=0) as server,
    ):
        yield options_of(server.bootstrap_servers)


def metadata_answer(
    nodes: list[Node], leaders: dict[str, list[int]], epoch: int = 0, **fields: Any
) -> Any:
    topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[broker(node_id=one.id, host=one.host, port=one.port) for one in nodes],
        cluster_id="a-cluster",
        controller_id=nodes[0].id,
        topics=[
            topic(
                error_code=0,
                name=name,
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=[1, 2],
                        isr_nodes=[1, 2],
                    )
                    for number, leader in enumerate(of)
                ],
            )
            for name, of in leaders.items()
        ],
        **fields,
    )


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


def offsets_answer(request: Request, errors: dict[int, int]) -> Any:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    (asked,) = request.body.topics
    return ListOffsetsResponse(
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
        ]
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
