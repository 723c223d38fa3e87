"""Descriptions of consumer groups: their members, and their offsets beside the ends of what they read.

A member's assignment, in Kafka's consumer format:

    int16 version, int32 count, topics: string name, int32 count, int32 partitions; and more

Source: Kafka clients/.../common/message/ConsumerProtocolAssignment.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_kbatch.model import GroupMember, GroupOffset, TopicPartition
from spark_kbatch.record.header import NO_LEADER_EPOCH

_START, _SIZE, _COUNT = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")
_NUMBER_BYTES = 4


class CommittedByGroup(NamedTuple):
    """An offset that a group has committed for a partition."""

    offset: int
    metadata: str
    commit_timestamp: int  # ms; -1 if that is not told


class OffsetAndMetadata(NamedTuple):
    """An offset that a consumer group has committed, with metadata and the epoch of the record before it."""

    offset: int
    metadata: str
    leader_epoch: int = NO_LEADER_EPOCH


def offsets_and_lag(
    committed: Mapping[TopicPartition, CommittedByGroup],
    members: Iterable[GroupMember],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, GroupOffset]:
    """Return a group's offset and lag in each partition that it has committed for, or that a member is assigned.

    Args:
        committed: its offsets.
        members: of the group.
        ends: of partitions, without those that are gone or cannot be read.
    """
    assigned = {tp for one in members for tp in one.partitions}
    found = {}
    for tp in sorted({*committed, *assigned}):
        at, end = committed.get(tp), ends.get(tp)
        if at is None:
            found[tp] = GroupOffset(None, end, None, "", -1)
        else:
            # An offset above the end is of records that were overwritten.
            lag = None if end is None else max(0, end - at.offset)
            found[tp] = GroupOffset(at.offset, end, lag, at.metadata, at.commit_timestamp)
    return found


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
