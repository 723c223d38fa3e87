"""Descriptions of consumer groups: their members, and their offsets beside the ends of what they read.

A member's assignment, in Kafka's consumer format:

    int16 version, int32 count, topics: string name, int32 count, int32 partitions; and more

Source: Kafka clients/.../common/message/ConsumerProtocolAssignment.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.model import ConsumerGroup, GroupMember, GroupOffset, TopicPartition
from spark_kbatch.record.header import NO_LEADER_EPOCH

_START, _SIZE, _COUNT = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")
_NUMBER_BYTES = 4


class OffsetAndMetadata(NamedTuple):
    """An offset that a consumer group has committed, with metadata and the epoch of the record before it."""

    offset: int
    metadata: str
    leader_epoch: int = NO_LEADER_EPOCH


def committed(offset: int | None, metadata: str, commit_timestamp: int) -> GroupOffset:
    """Return an offset that a group has committed, before the partition's end is known.

    Args:
        offset: None without a commit.
        metadata: the client's own text.
        commit_timestamp: in ms; -1 if that is not told.
    """
    return GroupOffset(offset, None, None, metadata, commit_timestamp)


_NOTHING = committed(None, "", -1)


def next_offsets(offsets: Mapping[TopicPartition, GroupOffset]) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed, of partitions that have one."""
    return {
        tp: one.committed_offset for tp, one in offsets.items() if one.committed_offset is not None
    }


def with_ends(
    groups: Sequence[ConsumerGroup],
    ends_of: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
) -> list[ConsumerGroup]:
    """Return groups with end and lag of each partition that they have committed for, or a member is assigned.

    Args:
        groups: with offsets as `committed` returns them.
        ends_of: returns the ends of partitions, which are sorted, without those that are gone or cannot be read.
    """
    read = {
        one.group_id: {*one.offsets, *(tp for member in one.members for tp in member.partitions)}
        for one in groups
    }
    ends = ends_of(sorted(set[TopicPartition]().union(*read.values())))
    return [
        one._replace(
            offsets={
                tp: _with_end(one.offsets.get(tp, _NOTHING), ends.get(tp))
                for tp in sorted(read[one.group_id])
            }
        )
        for one in groups
    ]


def _with_end(at: GroupOffset, end: int | None) -> GroupOffset:
    offset = at.committed_offset
    # An offset above the end is of records that were overwritten.
    lag = None if offset is None or end is None else max(0, end - offset)
    return at._replace(log_end_offset=end, lag=lag)


def described_member(
    member_id: str, instance_id: str | None, client_id: str, client_host: str, assignment: bytes
) -> GroupMember:
    """Return a member as groups are described, of what a broker keeps of it."""
    return GroupMember(
        member_id,
        instance_id,
        client_id,
        client_host.removeprefix("/"),  # which Java writes
        assigned_partitions(assignment),
    )


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions of a group member's assignment; none if it is not in Kafka's consumer format."""
    found = []
    try:
        _, topics = _START.unpack_from(data)
        position = _START.size
        for _ in range(topics):
            (size,) = _SIZE.unpack_from(data, position)
            position += _SIZE.size
            if not 0 <= size <= len(data) - position:
                return ()
            topic = data[position : position + size].decode()
            position += size
            (count,) = _COUNT.unpack_from(data, position)
            position += _COUNT.size
            if not 0 <= count * _NUMBER_BYTES <= len(data) - position:
                return ()
            numbers = struct.unpack_from(f">{count}i", data, position)
            position += count * _NUMBER_BYTES
            found += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
