"""The offsets of a consumer group, beside the ends of the partitions that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.model import ConsumerGroup, GroupOffset, TopicPartition


class OffsetAndMetadata(NamedTuple):
    """An offset that a group commits, with the epoch of the record before it, and text of the client's."""

    offset: int
    leader_epoch: int  #: -1 if that is not known
    metadata: str


def committed(offset: int | None, metadata: str, commit_timestamp: int) -> GroupOffset:
    """Return an offset that a group has committed, before the partition's end is known.

    Args:
        offset: None without a commit.
        metadata: the client's own text.
        commit_timestamp: in ms; -1 if that is not told.
    """
    return GroupOffset(offset, None, None, metadata, commit_timestamp)


_NOTHING = committed(None, "", -1)


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
