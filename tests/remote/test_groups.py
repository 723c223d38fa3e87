"""Consumer groups of a real cluster whose brokers and topics go while they are looked at."""

from __future__ import annotations

import contextlib
from typing import Any

from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.remote.client import Client
from spark_kbatch.remote.groups import RemoteGroups
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ApiKey,
    DescribeGroupsResponse,
    ListGroupsResponse,
    ListOffsetsResponse,
    OffsetFetchResponse,
    Request,
)
from tests.support.wire_servers import LoopbackServer, metadata_answer

KEPT_0, GONE_0 = TopicPartition("kept", 0), TopicPartition("gone", 0)


class Broker:
    """Node 1, the coordinator of one group, which has offsets in two topics; node 2 is dead."""

    def __init__(self) -> None:
        self.topics = ["gone", "kept"]
        self.dead_is_known = 0  # by so many answers
        self.loses_a_topic = False  # before it tells where topics end
        self.node = Node(-1, "", 0)

    def __call__(self, request: Request) -> Any:
        return getattr(self, ApiKey(request.api_key).name.lower())(request)

    def metadata(self, request: Request) -> Any:
        nodes = [Node(1, self.node.host, self.node.port)]
        if self.dead_is_known:
            self.dead_is_known -= 1
            nodes.append(Node(2, "127.0.0.1", 1))
        wanted = {one.name for one in request.body.topics or ()}
        found = metadata_answer(nodes, {name: [1] for name in self.topics if name in wanted})
        topic = type(found).MetadataResponseTopic
        found.topics += [
            topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[])
            for name in sorted(wanted.difference(self.topics))
        ]
        return found

    def list_groups(self, _request: Request) -> Any:
        group = ListGroupsResponse.ListedGroup
        one = group(group_id="app", protocol_type="consumer", group_state="Empty")
        return ListGroupsResponse(error_code=0, groups=[one])

    def describe_groups(self, _request: Request) -> Any:
        one = DescribeGroupsResponse.DescribedGroup(
            error_code=0, group_id="app", group_state="Empty",
            protocol_type="consumer", protocol_data="", members=[],
        )  # fmt: skip
        return DescribeGroupsResponse(groups=[one])

    def offset_fetch(self, _request: Request) -> Any:
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        one = topic.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=3, committed_leader_epoch=-1, metadata="",
            error_code=0,
        )  # fmt: skip
        topics = [topic(name=name, partitions=[one]) for name in ("gone", "kept")]
        return OffsetFetchResponse(error_code=0, topics=topics)

    def list_offsets(self, request: Request) -> Any:
        if self.loses_a_topic:
            self.topics = ["kept"]
        topic = ListOffsetsResponse.ListOffsetsTopicResponse

        def one(name: str) -> Any:
            code = ErrorCode.NONE if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return topic.ListOffsetsPartitionResponse(
                partition_index=0, error_code=code, offset=10, timestamp=-1, leader_epoch=0
            )

        asked = [each.name for each in request.body.topics]
        return ListOffsetsResponse(topics=[topic(name=n, partitions=[one(n)]) for n in asked])


def lags(broker: Broker) -> dict[TopicPartition, int | None]:
    """Return how far the one group is behind, by partition."""
    with LoopbackServer(broker) as server:
        broker.node = server.node
        given = {"bootstrap_servers": str(server.node), "retry_backoff_ms": 1}
        with Client(parse_cluster_options(given, alone=True)) as client:
            (group,) = RemoteGroups(lambda: contextlib.nullcontext(client)).groups()
    return {tp: one.lag for tp, one in group.offsets.items()}


def test_a_broker_that_has_left_the_cluster_is_not_waited_for() -> None:
    broker = Broker()
    broker.dead_is_known = 3

    assert lags(broker) == {KEPT_0: 7, GONE_0: 7}


def test_a_topic_that_is_deleted_meanwhile_has_no_end() -> None:
    broker = Broker()
    broker.loses_a_topic = True

    assert lags(broker) == {KEPT_0: 7, GONE_0: None}
