"""What sources of topics share: reads that fail once their topic is another one, and what is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from spark_kbatch.errors import ClosedError, UnknownTopicOrPartitionError
from spark_kbatch.model import LogOffsets, ReadRange, TopicPartition
from spark_kbatch.record.header import LogRead
from spark_kbatch.store.source import FoundTopic, Source


class OneTopic:
    """A fetcher for one topic that fails once the topic was deleted or recreated."""

    def __init__(self, source: Source, topic_id: str) -> None:
        self._source, self._topic_id = source, topic_id

    @classmethod
    def of(cls, source: Source, topic_id: str) -> AbstractContextManager[OneTopic]:
        """Return a fetcher for one topic as a context manager that opens and closes nothing."""
        return contextlib.nullcontext(cls(source, topic_id))

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Fetch whole batches; raises if the topic was deleted or recreated."""
        try:
            return self._source.fetch(topic_partition, asked)
        finally:
            # Checked after the read: if the id still matches, the batches are of this topic.
            ensure_same(topic_partition.topic, self._topic_id, self._source)


def found_singly(source: Source, names: Iterable[str]) -> dict[str, FoundTopic]:
    """Return the named topics that exist, looked up one by one, as `Source.existing_topics` does."""
    found = {}
    for name in names:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            found[name] = FoundTopic(source.topic(name).topic_id, source.partitions(name))
    return found


def ensure_same(topic: str, topic_id: str, source: Source) -> None:
    """Check that a topic that is being read was not recreated; skipped if it has no id."""
    if topic_id and source.topic(topic).topic_id != topic_id:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} was deleted and created again while it was read: read it again"
        )


class Closed:
    """A placeholder for a part of a closed source: any use raises ClosedError."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError(self._path)
