"""The formats of a checkpoint's objects: its root, and the parts that this names.

    root    number, id and time of the entry; the part with the heads; by topic id, parts with extents
    heads   topics with their partitions, producers, queries with their evidence, mirrors, fences, groups, limits
    extents the changes of one topic's extents by some entries, in the order of entries

All are sealed lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from spark_kbatch.errors import CorruptLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checksummed_json import checked_rows, ensure_version, seal, unseal
from spark_kbatch.ledger.entries import Entry
from spark_kbatch.ledger.extents import Change, NameTable, StretchReader, packed
from spark_kbatch.ledger.state import (
    GroupHead,
    LedgerState,
    PartitionHead,
    PartRef,
    ProducerHead,
    QueryHead,
    RememberedBatch,
    TopicHead,
)
from spark_kbatch.model import BATCHES_REMEMBERED, INT_MAX
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.store.repetitions import Evidence
from spark_kbatch.stored_json import StoredObject

_ROWS_MAX = 100_000_000
_VERSION = 2  # of roots and parts


class Root(NamedTuple):
    """A checkpoint: its entry, and the parts of the state after it."""

    number: int
    entry_id: str
    time_ms: int
    heads: PartRef
    extents: Mapping[str, tuple[PartRef, ...]]  # by topic id; a topic without changes has none

    @property
    def parts(self) -> Iterator[PartRef]:
        """All parts."""
        return itertools.chain((self.heads,), *self.extents.values())


def ensure_of(root: Root, entry: Entry) -> None:
    """Check that a root belongs to the entry that has its number; raises CorruptLedgerError."""
    if entry.entry_id != root.entry_id:
        raise CorruptLedgerError(
            names.root_name(root.number),
            f"it is of the entry with the id {root.entry_id}, and that has {entry.entry_id}",
        )


def pack_root(root: Root) -> bytes:
    """Return the bytes of a root."""
    return seal(
        {
            "number": root.number,
            "id": root.entry_id,
            "time": root.time_ms,
            "heads": root.heads,
            "extents": {topic_id: parts for topic_id, parts in root.extents.items() if parts},
            "v": _VERSION,
        }
    )


def unpack_root(data: bytes, name: str, number: int) -> Root:
    """Return the root in the object with this name; raises CorruptLedgerError, UnsupportedLedgerError."""
    found = unseal(data, name)
    ensure_version(found, _VERSION)
    if found.integer("number") != number:
        raise found.damaged("number", found.integer("number"), f"the number in its name, {number}")
    extents = found.object("extents")
    (heads,) = _part_refs(found, "heads", [found.values.get("heads")])
    return Root(
        number,
        found.text("id", names.RANDOM_ID),
        found.integer("time"),
        heads,
        {
            topic_id: _part_refs(extents, topic_id, rows)
            for topic_id, rows in extents.values.items()
        },
    )


def _part_refs(found: StoredObject, key: str, rows: Any) -> tuple[PartRef, ...]:
    refs = tuple(PartRef(*row) for row in checked_rows(found, key, rows, str, int, str))
    for one in refs:
        if not names.PART.fullmatch(one.name):
            raise found.damaged(key, one.name, f"text as {names.PART.pattern}")
    return refs


def pack_changes(changes: Mapping[int, Iterable[Change]]) -> bytes:
    """Return changes by partition as the bytes of a part."""
    table = NameTable()
    rows = [
        [one.start_offset, one.next_offset, packed(one.stretch, table)]
        for _, found in sorted(changes.items())
        for one in found
    ]
    return seal({"changes": rows, "objects": table.names})


def unpack_changes(data: bytes, name: str, checkpoint: int, partitions: int) -> list[Change]:
    """Return the changes that a part has; raises CorruptLedgerError.

    Args:
        data, name: the part.
        checkpoint: the number of the one that it is read for.
        partitions: how many the topic has.
    """
    found = unseal(data, name)
    reader = StretchReader(found, "changes")
    changes = list[Change]()
    rows = checked_rows(found, "changes", found.values.get("changes"), int, int, list)
    for start, end, value in rows:
        stretch = reader.stretch(value)
        is_within = stretch.base_offset <= start < end <= stretch.next_offset
        if not is_within or stretch.partition >= partitions:
            raise found.damaged("changes", value, "offsets of a partition that is there")
        changes.append(Change(checkpoint, start, end, stretch))
    return changes


def pack_heads(state: LedgerState) -> bytes:
    """Return a state as bytes, without its number and extents: equal states give equal bytes."""
    return seal(
        {
            "cluster": state.cluster_id,
            "format": state.format,
            "horizon": state.horizon,
            "limits": state.limits,
            "topics": [
                {
                    "config": topic.config,
                    "created": topic.created,
                    "id": topic.topic_id,
                    "name": topic.name,
                    "partitions": [
                        [head.start_offset, head.next_offset, head.leader_epoch]
                        for head in topic.partitions
                    ],
                }
                for _, topic in sorted(state.topics.items())
            ],
            "producers": [[*key, *head] for key, head in sorted(state.producers.items())],
            "queries": [[key, *head[:2]] for key, head in sorted(state.queries.items())],
            "evidence": {
                key: head.evidence._asdict()
                for key, head in state.queries.items()
                if head.evidence is not None
            },
            "mirrors": state.mirrors,
            "fences": state.fences,
            "groups": {
                group: [[*key, *head] for key, head in sorted(offsets.items())]
                for group, offsets in state.groups.items()
            },
        }
    )


def unpack_heads(found: StoredObject) -> LedgerState:
    """Return the state that a part has, without what the root tells; raises CorruptLedgerError."""
    limits, evidence, mirrors, fences, groups = map(
        found.object, ("limits", "evidence", "mirrors", "fences", "groups")
    )
    heads = [*map(_topic, found.objects("topics", count_max=_ROWS_MAX))]
    topics = {topic.topic_id: topic for topic in heads}
    if len({topic.name for topic in topics.values()}) < len(heads):
        raise found.damaged("topics", heads, "topics of different names and ids")
    return LedgerState(
        cluster_id=found.text("cluster", names.RANDOM_ID),
        format=found.integer("format", 1),
        horizon=found.integer("horizon"),
        limits={key: limits.integer(key) for key in limits.keys()},
        topics=topics,
        producers={
            (row[0], row[1], row[2]): ProducerHead(row[3], row[4], _batches(found, row[5]))
            for row in checked_rows(
                found, "producers", found.values.get("producers"), int, str, int, int, int, list
            )
            if _ensure_there(found, "producers", topics, *row[1:3])
        },
        queries={
            key: QueryHead(
                number, entry, Evidence.of(evidence.object(key)) if key in evidence else None
            )
            for key, number, entry in checked_rows(
                found, "queries", found.values.get("queries"), str, int, int
            )
        },
        mirrors={key: mirrors.text(key) for key in mirrors.keys()},
        fences={key: fences.integer(key) for key in fences.keys()},
        groups={
            group: {
                (row[0], row[1]): GroupHead(*row[2:])
                for row in checked_rows(
                    groups, group, groups.values.get(group), str, int, int, str, int
                )
                if _ensure_there(groups, group, topics, *row[:2])
            }
            for group in groups.keys()
        },
    )


def _ensure_there(
    found: StoredObject, key: str, topics: Mapping[str, TopicHead], topic_id: str, partition: int
) -> bool:
    """Return True if a topic has a partition; raise CorruptLedgerError if not."""
    if topic_id not in topics or partition >= len(topics[topic_id].partitions):
        raise found.damaged(key, f"{topic_id}, {partition}", "a partition of a topic that is there")
    return True


def _batches(found: StoredObject, rows: Any) -> tuple[RememberedBatch, ...]:
    if not 0 < len(rows) <= BATCHES_REMEMBERED:
        raise found.damaged("producers", rows, f"1 to {BATCHES_REMEMBERED} batches")
    return tuple(
        RememberedBatch(*one) for one in checked_rows(found, "producers", rows, int, int, int)
    )


def _topic(found: StoredObject) -> TopicHead:
    config = found.object("config")
    rows = checked_rows(found, "partitions", found.values.get("partitions"), int, int, int)
    is_sound = all(start <= end and epoch <= INT_MAX for start, end, epoch in rows)
    if not (is_sound and 0 < len(rows) <= PARTITIONS_MAX):
        raise found.damaged("partitions", rows, f"1 to {PARTITIONS_MAX} partitions")
    return TopicHead(
        found.text("id", names.TOPIC_ID),
        found.text("name", names.TOPIC_NAME),
        found.integer("created"),
        {key: config.text(key) for key in config.keys()},
        [PartitionHead(*row) for row in rows],
    )
