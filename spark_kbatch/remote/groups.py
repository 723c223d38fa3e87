"""The consumer groups of a real cluster: their members, committed offsets and lag; set by hand, or deleted.

Each broker coordinates some of the groups: it lists them, describes them, and knows their offsets. If a group's
coordinator moves meanwhile, or a broker leaves the cluster, all are looked at again.

A cluster does not tell everything that an embedded one has: a group's generation, and when an offset was
committed, are -1. Members of groups of the newer protocol (`group.protocol=consumer`) are not shown.

Source: Kafka clients/.../admin/KafkaAdminClient.java; ListGroupsRequest.json, DescribeGroupsRequest.json,
OffsetFetchRequest.json, OffsetCommitRequest.json, DeleteGroupsRequest.json;
AlterConsumerGroupOffsetsHandler.java, DeleteConsumerGroupsHandler.java.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from spark_kbatch.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    LATEST,
    ConsumerGroup,
    GroupOffset,
    TopicPartition,
    numbers_by_topic,
)
from spark_kbatch.remote import offsets
from spark_kbatch.remote.client import Client
from spark_kbatch.store.groups import committed, described_member, next_offsets, with_ends
from spark_kbatch.store.store import NO_IDS, CheckOffsets, Groups
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    ApiKey,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

_Result = TypeVar("_Result")

_NOT_TOLD = -1
_ONE_GROUP_UNTIL = 7  # version of OffsetFetch
_ONE_KEY_UNTIL = 3  # version of FindCoordinator
_TOPIC_NAMES_UNTIL = 9  # version of OffsetCommit
_NONE_COMMITTED = -1
_NO_GENERATION, _NO_MEMBER = -1, ""
# What a coordinator answers to a commit that is no member's, while the group has members.
_HAS_MEMBERS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}


class RemoteGroups(Groups):
    """The consumer groups of one real cluster; a `store.Groups`.

    Each call raises RequestTimedOutError if coordinators went on moving for default.api.timeout.ms.
    """

    def __init__(self, client: Callable[[], AbstractContextManager[Client]]) -> None:
        """Set up for the cluster of which `client` leases a client."""
        self._client = client

    def groups(self) -> list[ConsumerGroup]:
        """Return the groups that this client may see; generations and times of commits are -1."""
        with self._client() as client:
            return _until_answered(client, lambda: _groups(client))

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, of which its coordinator alone is asked."""
        with self._client() as client:
            found = _until_answered(
                client, lambda: _committed(client, group_id, _coordinator(client, group_id))
            )
        return next_offsets(found)

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        check: CheckOffsets | None = None,
    ) -> None:
        """Set the offsets at which a group without members continues."""
        if check is not None:
            check(self.committed(group_id))
        with self._client() as client:
            if topic_ids and offsets:
                there = client.existing_topics({tp.topic for tp in offsets}).topics
                ids = {name: topic_ids.get(name, one.topic_id) for name, one in there.items()}
                same = {name for name, one in there.items() if ids[name] in ("", one.topic_id)}
                offsets = {tp: at for tp, at in offsets.items() if tp.topic in same}
            if offsets:
                _until_answered(client, lambda: _commit(client, group_id, offsets))

    def delete(self, group_id: str) -> None:
        """Delete a group without members."""
        with self._client() as client:
            _until_answered(client, lambda: _delete(client, group_id))


def _until_answered(client: Client, ask: Callable[[], _Result]) -> _Result:
    """Ask again while coordinators move, for default.api.timeout.ms at most."""
    end_ms = client.monotonic_ms() + client.options.default_api_timeout_ms
    attempts = 0
    while True:
        try:
            return ask()
        except RetriableError as error:
            if isinstance(error, RequestTimedOutError) or client.monotonic_ms() >= end_ms:
                raise
        client.wait(client.backoff.pause_ms(attempts))
        client.invalidate()
        attempts += 1


def _groups(client: Client) -> list[ConsumerGroup]:
    nodes = client.metadata([]).nodes.values()
    listed = {one.group_id: (one, node) for node in nodes for one in _listed(client, node)}
    described = [(_described(client, *listed[name]), listed[name][1]) for name in sorted(listed)]
    found = [
        one._replace(offsets=_committed(client, one.group_id, node)) for one, node in described
    ]
    return with_ends(found, functools.partial(_ends, client))


def _listed(client: Client, node: Node) -> list[ConsumerGroup]:
    """Return the groups that a broker coordinates, without what only a description of them has."""
    answer = client.request(ApiKey.LIST_GROUPS, ListGroupsRequest(states_filter=[]), node=node)
    _ensure_none(answer.error_code, f"asked {node} for its consumer groups")
    return [
        ConsumerGroup(
            one.group_id,
            getattr(one, "group_state", None) or "",  # which old brokers do not tell
            one.protocol_type,
            "",
            _NOT_TOLD,
            (),
            {},
        )
        for one in answer.groups
    ]


def _described(client: Client, group: ConsumerGroup, coordinator: Node) -> ConsumerGroup:
    """Return a group as its coordinator describes it, without its offsets."""
    body = DescribeGroupsRequest(groups=[group.group_id], include_authorized_operations=False)
    answer = client.request(ApiKey.DESCRIBE_GROUPS, body, node=coordinator)
    (found,) = answer.groups
    # A group of the newer protocol is described by another request, and not to be found by this one.
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == "Dead":
        return group
    _ensure_none(found.error_code, f"asked {coordinator} for group {group.group_id!r}")
    members = tuple(
        described_member(
            one.member_id,
            getattr(one, "group_instance_id", None),
            one.client_id,
            one.client_host,
            bytes(one.member_assignment),
        )
        for one in found.members
    )
    return group._replace(state=found.group_state, protocol=found.protocol_data, members=members)


def _committed(
    client: Client, group_id: str, coordinator: Node
) -> dict[TopicPartition, GroupOffset]:
    body = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=False)
    answer = client.request(
        ApiKey.OFFSET_FETCH, body, node=coordinator, last_version=_ONE_GROUP_UNTIL
    )
    what = f"asked {coordinator} for offsets of group {group_id!r}"
    _ensure_none(answer.error_code, what)
    found = {}
    for topic in answer.topics:
        for one in topic.partitions:
            _ensure_none(one.error_code, what)
            if one.committed_offset != _NONE_COMMITTED:
                tp = TopicPartition(topic.name, one.partition_index)
                found[tp] = committed(one.committed_offset, one.metadata or "", _NOT_TOLD)
    return found


def _commit(client: Client, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    node = _coordinator(client, group_id)
    topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
    body = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id=_NO_MEMBER,
        group_instance_id=None,
        topics=[
            topic_of(
                name=topic,
                partitions=[
                    topic_of.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(topic, number)],
                        committed_metadata="",
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in numbers_by_topic(sorted(offsets)).items()
        ],
    )
    answer = client.request(ApiKey.OFFSET_COMMIT, body, node=node, last_version=_TOPIC_NAMES_UNTIL)
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code in _HAS_MEMBERS:
                raise GroupNotEmptyError(group_id, str(client.options))
            what = f"set the offset of {topic.name}-{one.partition_index} for group {group_id!r}"
            _ensure_none(one.error_code, what)


def _delete(client: Client, group_id: str) -> None:
    node = _coordinator(client, group_id)
    body = DeleteGroupsRequest(groups_names=[group_id])
    (answer,) = client.request(ApiKey.DELETE_GROUPS, body, node=node).results
    if answer.error_code == ErrorCode.NON_EMPTY_GROUP:
        raise GroupNotEmptyError(group_id, str(client.options))
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise GroupIdNotFoundError(group_id, str(client.options))
    _ensure_none(answer.error_code, f"deleted group {group_id!r}")


def _coordinator(client: Client, group_id: str) -> Node:
    body = FindCoordinatorRequest(key=group_id, key_type=0)
    answer = client.request(ApiKey.FIND_COORDINATOR, body, last_version=_ONE_KEY_UNTIL)
    _ensure_none(answer.error_code, f"looked for the coordinator of group {group_id!r}")
    return Node(answer.node_id, answer.host, answer.port)


def _ends(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offsets of these partitions, without those that are gone or have no leader."""
    wanted = sorted(partitions)
    if not wanted:
        return {}
    metadata = client.metadata({tp.topic for tp in wanted}, fresh=True)
    there = [tp for tp in wanted if metadata.leader_of(*tp) is not None]
    try:
        found = offsets.list_offsets(client, dict.fromkeys(there, LATEST))
    except UnknownTopicOrPartitionError:
        by_now = client.metadata({tp.topic for tp in wanted}, fresh=True).topics
        left = [tp for tp in there if tp.topic in by_now]
        if len(left) == len(there):
            raise
        return _ends(client, left)  # a topic was deleted meanwhile
    return {tp: one.offset for tp, one in found.items() if one is not None}


def _ensure_none(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise error_of(code, what)
