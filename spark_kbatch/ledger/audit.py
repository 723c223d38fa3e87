"""The entries of a ledger, newest first, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.ledger.entries import (
    Content,
    Entry,
    Fence,
    GcBoundary,
    LedgerCommit,
    LedgerStart,
    NamesById,
    NewFormat,
    Replacement,
    StartOffsets,
    Tombstone,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)


class AuditEntry(NamedTuple):
    """An entry, in words."""

    entry: Entry
    what: str
    records: Mapping[str, int]  # that it added, by topic


def audited(entries: Sequence[Entry], names: NamesById) -> list[AuditEntry]:
    """Return entries in words, newest first; `names` of topics get those that they create."""
    names.add(entries)  # so that most topics that are gone have names
    return [
        AuditEntry(one, words_of(one.content, names), _records(one.content, names))
        for one in reversed(entries)
    ]


def _records(content: Content, names: NamesById) -> dict[str, int]:
    if not isinstance(content, LedgerCommit):
        return {}
    return {
        names[topic_id]: sum(one.records_count for one in appends)
        for topic_id, appends in content.appends.items()
    }


def words_of(content: Content, names: NamesById) -> str:
    """Return what an entry says."""
    match content:
        case LedgerStart():
            return "the cluster begins"
        case TopicCreation():
            return (
                f"topic {content.name} is created with {(n := len(content.first_offsets))} "
                f"partition{'s' * (n != 1)}"
            )
        case TopicAlteration():
            return f"settings of {names[content.topic_id]}: {_settings(content.changes)}"
        case TopicGrowth():
            more = len(content.first_offsets)
            return f"topic {names[content.topic_id]} gets {more} more partition{'s' * (more != 1)}"
        case TopicDeletion():
            return f"topic {names[content.topic_id]} is deleted"
        case LedgerCommit():
            return _commit(content, names)
        case StartOffsets():
            return f"starts: {_starts(content.starts, names)}"
        case Replacement():
            topics = ", ".join(names[topic_id] for topic_id in content.ranges)
            return f"other objects have the records of {topics}"
        case Fence():
            return f"fence {content.name} is at epoch {content.epoch}"
        case GcBoundary():
            return f"what began before entry {content.number} commits no more"
        case NewFormat():
            return f"writers need format {content.format}"
        case Tombstone():
            return "only checkpoints know what it was"
    return content.kind


def _commit(content: LedgerCommit, names: NamesById) -> str:
    found = [
        f"{count} record{'s' * (count != 1)} to {topic}"
        for topic, count in _records(content, names).items()
    ]
    if content.starts:
        found.append(f"starts: {_starts(content.starts, names)}")
    if content.micro_batch is not None:
        found.append(f"micro-batch {content.micro_batch.number} of {content.micro_batch.query_id}")
    if content.mirror is not None:
        found.append(f"progress of mirror {content.mirror.name}")
    for group, offsets in content.groups.items():
        count = f"{(n := len(offsets))} offset{'s' * (n != 1)} of group {group}"
        is_deletion = all(one.offset is None for one in offsets)
        found.append(f"{count} {'is' if n == 1 else 'are'} deleted" if is_deletion else count)
    return "; ".join(found)


def _starts(starts: Mapping[str, Mapping[int, int]], names: NamesById) -> str:
    return ", ".join(
        f"{names[topic_id]}-{partition} at {offset}"
        for topic_id, of_topic in starts.items()
        for partition, offset in of_topic.items()
    )


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{key}={'default' if value is None else value}" for key, value in values.items()
    )
