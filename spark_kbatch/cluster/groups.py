"""The consumer groups of a cluster: their members, committed offsets and lag.

They are read from `__consumer_offsets`, so it does not matter whether a server runs. What only a server
knows is missing: a rebalance that goes on, and members that have gone without a word since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.errors import KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.model import ConsumerGroup, GroupMember, GroupOffset, TopicPartition
from spark_kbatch.server.groups.store import StoredGroup, read_groups
from spark_kbatch.wire import assignment


def groups_of(parts: FolderStore) -> list[ConsumerGroup]:
    """Return all consumer groups of the cluster, sorted by id.

    Raises the errors of `read_groups`.
    """
    stored = read_groups(parts)
    members = {one.group_id: _members(one) for one in stored}
    wanted = {tp for one in stored for tp in one.offsets}
    wanted |= {tp for found in members.values() for one in found for tp in one.partitions}
    ends = _ends(parts, sorted(wanted))
    return [
        ConsumerGroup(
            one.group_id,
            one.state,
            one.protocol_type,
            one.protocol,
            one.generation,
            members[one.group_id],
            _offsets(one, members[one.group_id], ends),
        )
        for one in stored
    ]


def _members(group: StoredGroup) -> tuple[GroupMember, ...]:
    return tuple(
        GroupMember(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host.removeprefix("/"),  # which Java writes
            assignment.partitions(one.assignment),
        )
        for one in group.members
    )


def _ends(
    parts: FolderStore, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the high watermarks of these partitions, without those that are gone or cannot be read."""
    try:
        return {
            tp: view.offsets.high_watermark for tp, view in parts.views(topic_partitions).items()
        }
    except (UnknownTopicOrPartitionError, KafkaStorageError):
        if len(topic_partitions) == 1:
            return {}
    found: dict[TopicPartition, int] = {}
    for one in topic_partitions:
        found |= _ends(parts, [one])
    return found


def _offsets(
    group: StoredGroup, members: Sequence[GroupMember], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, GroupOffset]:
    assigned = {tp for one in members for tp in one.partitions}
    found = {}
    for tp in sorted({*group.offsets, *assigned}):
        committed, end = group.offsets.get(tp), ends.get(tp)
        if committed is None:
            found[tp] = GroupOffset(None, end, None, "", -1)
        else:
            # An offset above the end is of records that were overwritten.
            lag = None if end is None else max(0, end - committed.offset)
            found[tp] = GroupOffset(
                committed.offset, end, lag, committed.metadata, committed.commit_timestamp
            )
    return found
