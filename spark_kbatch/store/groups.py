"""The offsets of a consumer group, beside the ends of the partitions that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_kbatch.model import GroupMember, GroupOffset, TopicPartition


class CommittedByGroup(NamedTuple):
    """An offset that a group has committed for a partition."""

    offset: int
    metadata: str
    commit_timestamp: int  # ms; -1 if that is not told


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
