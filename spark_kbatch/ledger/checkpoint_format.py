"""The formats of a checkpoint's objects: its root, and the parts that this names.

    root    number, id and time of the entry; the part with the heads; by topic id, parts with extents
    heads   topics with their partitions, producers, queries with their evidence, mirrors, fences, groups, limits
    extents the changes of one topic's extents by some entries, in the order of entries

All are lines of JSON with their sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from spark_kbatch.errors import CorruptLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.codec import form_of, pack, sequence, unpack
from spark_kbatch.ledger.entries import Entry, KeptEvidence, RandomId, TopicName
from spark_kbatch.ledger.extents import Change, PartitionAppend, Positive, TopicId
from spark_kbatch.ledger.image import GroupHead, QueryHead, TopicHead
from spark_kbatch.ledger.state import (
    LedgerState,
    PartitionHead,
    PartRef,
    ProducerHead,
    RememberedBatches,
)
from spark_kbatch.options.topic import PARTITIONS_MAX

_VERSION = 2  # of roots and parts


@dataclass(frozen=True)
class Root:
    """A checkpoint: its entry, and the parts of the state after it."""

    number: int
    entry_id: Annotated[RandomId, "id"]
    time_ms: Annotated[int, "time"]
    heads: PartRef
    extents: Mapping[TopicId, tuple[PartRef, ...]]  # a topic without changes has none

    @property
    def parts(self) -> Iterator[PartRef]:
        """All parts."""
        return itertools.chain((self.heads,), *self.extents.values())


class StoredChange(NamedTuple):
    """A range of offsets, and the append that it is read from."""

    start_offset: int
    next_offset: int
    append: PartitionAppend

    @property
    def fault(self) -> str:
        """What it should be and is not; empty if nothing is wrong with it."""
        edges = (
            self.append.base_offset,
            self.start_offset,
            self.next_offset - 1,
            self.append.next_offset - 1,
        )
        return "" if [*edges] == sorted(edges) else "offsets of the append that they are read from"


@dataclass(frozen=True)
class StoredChanges:
    """A part with changes of a topic's extents."""

    changes: tuple[StoredChange, ...]

    has_objects: ClassVar = True


@dataclass(frozen=True)
class StoredTopic:
    """A topic and its partitions."""

    topic_id: Annotated[TopicId, "id"]
    name: TopicName
    created: int
    config: Mapping[str, str]
    partitions: Annotated[
        list[PartitionHead], sequence(form_of(PartitionHead), list, least=1, most=PARTITIONS_MAX)
    ]


@dataclass(frozen=True)
class StoredHeads:
    """The part with all that a state has but its number and extents."""

    cluster_id: Annotated[RandomId, "cluster"]
    format: Positive
    gc_boundary: Annotated[int, "horizon"]
    limits: dict[str, int]
    topics: tuple[StoredTopic, ...]  # by id
    producers: tuple[tuple[int, str, int, int, int, RememberedBatches], ...]  # key, head
    queries: tuple[tuple[str, int, int], ...]
    evidence: Mapping[str, KeptEvidence]  # of queries
    mirrors: dict[str, str]
    fences: dict[str, int]
    groups: Mapping[str, tuple[tuple[str, int, int, str, int], ...]]  # by group: key, head


def pack_root(root: Root) -> bytes:
    """Return the bytes of a root."""
    return pack(root, version=_VERSION)


def unpack_root(data: bytes, name: str, number: int) -> Root:
    """Return the root in the object with this name; raises CorruptLedgerError, UnsupportedLedgerError."""
    root = unpack(Root, data, name, version=_VERSION)
    if root.number != number:
        raise CorruptLedgerError(
            name, f"its number is {root.number}; expected the number in its name, {number}"
        )
    return root


def ensure_of(root: Root, entry: Entry) -> None:
    """Check that a root belongs to the entry that has its number; raises CorruptLedgerError."""
    if entry.entry_id != root.entry_id:
        raise CorruptLedgerError(
            names.root_name(root.number),
            f"it is of the entry with the id {root.entry_id}, and that has {entry.entry_id}",
        )


def pack_changes(changes: Mapping[int, Iterable[Change]]) -> bytes:
    """Return changes by partition as the bytes of a part."""
    rows = [StoredChange(*one[1:]) for _, found in sorted(changes.items()) for one in found]
    return pack(StoredChanges(tuple(rows)))


def unpack_changes(data: bytes, name: str, checkpoint: int, partitions: int) -> list[Change]:
    """Return the changes that a part has; raises CorruptLedgerError.

    Args:
        data, name: the part.
        checkpoint: the number of the one that it is read for.
        partitions: how many the topic has.
    """
    found = unpack(StoredChanges, data, name).changes
    if any(one.append.partition >= partitions for one in found):
        raise CorruptLedgerError(
            name, f"it has changes of other partitions than 0 to {partitions - 1}"
        )
    return [Change(checkpoint, *one) for one in found]


def pack_heads(state: LedgerState) -> bytes:
    """Return a state as bytes, without its number and extents: equal states give equal bytes."""
    return pack(
        StoredHeads(
            state.cluster_id,
            state.format,
            state.gc_boundary,
            state.limits,
            tuple(
                StoredTopic(*topic[:4], state.heads[topic_id])
                for topic_id, topic in sorted(state.topics.items())
            ),
            tuple((*key, *head) for key, head in sorted(state.producers.items())),
            tuple((key, *head[:2]) for key, head in sorted(state.queries.items())),
            {key: head.evidence for key, head in state.queries.items() if head.evidence},
            state.mirrors,
            state.fences,
            {
                group: tuple((*key, *head) for key, head in sorted(offsets.items()))
                for group, offsets in state.groups.items()
            },
        )
    )


def unpack_heads(data: bytes, name: str) -> LedgerState:
    """Return the state that a part has, without what the root tells; raises CorruptLedgerError."""
    heads = unpack(StoredHeads, data, name)
    state = LedgerState(
        cluster_id=heads.cluster_id,
        format=heads.format,
        gc_boundary=heads.gc_boundary,
        limits=heads.limits,
        topics={
            one.topic_id: TopicHead(
                one.topic_id, one.name, one.created, one.config, len(one.partitions)
            )
            for one in heads.topics
        },
        heads={one.topic_id: one.partitions for one in heads.topics},
        producers={row[:3]: ProducerHead(*row[3:]) for row in heads.producers},
        queries={row[0]: QueryHead(*row[1:], heads.evidence.get(row[0])) for row in heads.queries},
        mirrors=heads.mirrors,
        fences=heads.fences,
        groups={
            group: {row[:2]: GroupHead(*row[2:]) for row in rows}
            for group, rows in heads.groups.items()
        },
    )
    if len(state.topic_ids) < len(heads.topics):
        raise CorruptLedgerError(name, "two of its topics have the same name or id")
    there = {(topic_id, number) for topic_id in state.heads for number in state.ends(topic_id)}
    named = {key[1:] for key in state.producers}.union(*state.groups.values())
    if not named <= there:
        raise CorruptLedgerError(
            name, "it has a producer or a group at a partition that is not there"
        )
    return state
