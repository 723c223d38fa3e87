"""Consumer groups in `__consumer_offsets`, as a server leaves them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from spark_kbatch import Cluster
from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.offsets_store import Change, OffsetsStore
from tests.support.store import store_of

COMMITTED_MS = 1_700_000_000_000


def assignment(partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Return a consumer's assignment, as Java's consumer writes it."""
    topics = b""
    for topic, numbers in partitions.items():
        found = list(numbers)
        topics += struct.pack(">h", len(topic)) + topic.encode()
        topics += struct.pack(f">i{len(found)}i", len(found), *found)
    return struct.pack(">hi", 3, len(partitions)) + topics + struct.pack(">i", -1)


def member(name: str, partitions: Mapping[str, Iterable[int]]) -> MemberMetadata:
    """Return a member with its assignment."""
    assigned = assignment(partitions)
    return MemberMetadata(f"{name}-1", None, name, "/127.0.0.1", 60_000, 10_000, b"", assigned)


def store(
    cluster: Cluster,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    members: Iterable[MemberMetadata] = (),
) -> None:
    """Store a group with these offsets, by partition, and members."""
    found = tuple(members)
    leader = found[0].member_id if found else None
    metadata = GroupMetadata("consumer", 3, "range" if found else None, leader, 0, found)
    changes: list[Change] = [(GroupKey(group), metadata)]
    for (topic, number), offset in offsets.items():
        topic_id = cluster.topic(topic).topic_id
        value = CommittedOffset(offset, -1, "a note", COMMITTED_MS, topic_id=topic_id)
        changes.append((OffsetKey(group, topic, number), value))
    OffsetsStore(store_of(cluster)).append(changes)
