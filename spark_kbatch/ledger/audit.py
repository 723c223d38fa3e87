"""The entries of a ledger, newest first, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.ledger.entries import (
    Content,
    Entry,
    Fence,
    Horizon,
    LedgerCommit,
    LedgerStart,
    NewFormat,
    Replacement,
    StartOffsets,
    Tombstone,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
    add_names,
)


class Happening(NamedTuple):
    """An entry, in words."""

    entry: Entry
    what: str
    records: Mapping[str, int]  # that it added, by topic


def told_of(entries: Sequence[Entry], topics: dict[str, str]) -> list[Happening]:
    """Return entries in words, newest first; `topics` gets the names of those that they create."""
    add_names(topics, entries)  # so that most topics that are gone have names
    words = EntryWords(topics)
    return [
        Happening(one, words.of(one.content), words.records(one.content))
        for one in reversed(entries)
    ]


class EntryWords:
    """Entries in words, with the names that topics have."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Set up; `names` are of topics, by id."""
        self._names = names

    def records(self, content: Content) -> dict[str, int]:
        """Return how many records an entry adds, by topic."""
        if not isinstance(content, LedgerCommit):
            return {}
        return {
            self._name(topic_id): sum(one.records_count for one in stretches)
            for topic_id, stretches in content.stretches.items()
        }

    def _name(self, topic_id: str) -> str:
        """Return a topic's name, or its id if it is gone."""
        return self._names.get(topic_id, topic_id)

    def of(self, content: Content) -> str:
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
                return f"settings of {self._name(content.topic_id)}: {_settings(content.changes)}"
            case TopicGrowth():
                more = len(content.first_offsets)
                return (
                    f"topic {self._name(content.topic_id)} gets {more} more "
                    f"partition{'s' * (more != 1)}"
                )
            case TopicDeletion():
                return f"topic {self._name(content.topic_id)} is deleted"
            case LedgerCommit():
                return self._commit(content)
            case StartOffsets():
                return f"starts: {self._starts(content.starts)}"
            case Replacement():
                topics = ", ".join(map(self._name, content.ranges))
                return f"other objects have the records of {topics}"
            case Fence():
                return f"fence {content.name} is at epoch {content.epoch}"
            case Horizon():
                return f"what began before entry {content.number} commits no more"
            case NewFormat():
                return f"writers need format {content.format}"
            case Tombstone():
                return "only checkpoints know what it was"
        return content.kind

    def _commit(self, content: LedgerCommit) -> str:
        found = [
            f"{count} record{'s' * (count != 1)} to {topic}"
            for topic, count in self.records(content).items()
        ]
        if content.starts:
            found.append(f"starts: {self._starts(content.starts)}")
        if content.micro_batch is not None:
            found.append(
                f"micro-batch {content.micro_batch.number} of {content.micro_batch.query_id}"
            )
        if content.mirror is not None:
            found.append(f"progress of mirror {content.mirror.name}")
        for group, offsets in content.groups.items():
            count = f"{(n := len(offsets))} offset{'s' * (n != 1)} of group {group}"
            is_deletion = all(one.offset is None for one in offsets)
            found.append(f"{count} {'is' if n == 1 else 'are'} deleted" if is_deletion else count)
        return "; ".join(found)

    def _starts(self, starts: Mapping[str, Mapping[int, int]]) -> str:
        return ", ".join(
            f"{self._name(topic_id)}-{partition} at {offset}"
            for topic_id, of_topic in starts.items()
            for partition, offset in of_topic.items()
        )


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{key}={'default' if value is None else value}" for key, value in values.items()
    )
