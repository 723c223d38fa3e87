"""The interface to topics for readers: in a cluster's folder, a broker's log dir, or a real cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol

from spark_kbatch.consumer.planning import FoundTopic, LogView
from spark_kbatch.consumer.reading import Fetcher
from spark_kbatch.errors import ClosedError, UnknownTopicOrPartitionError
from spark_kbatch.model import LogOffsets, OffsetRange, PartitionInfo, ReadRange, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead


class Source(Protocol):
    """A folder or a real cluster that topics are read from.

    It is thread-safe, and keeps no file open.
    """

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; of internal ones only if asked."""

    def topic(self, name: str) -> Topic:
        """Return a topic's metadata by its name.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
        """

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order; raises as `topic`."""

    def found(self, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        """Return those of the named topics that exist."""

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        """Return views of these partitions' logs as they are now; all as of one moment, if possible.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return why a log does not show an offset below its start; empty if that is not known."""

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics."""

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Fetch whole batches of a partition, as `reading.Fetcher.fetch` does."""

    def fetcher(
        self, wanted: OffsetRange, topic_id: str, last_epoch: int = NO_LEADER_EPOCH
    ) -> AbstractContextManager[Fetcher]:
        """Return a fetcher for one offset range that fetches only from the topic with this id.

        Fetches raise UnknownTopicOrPartitionError, the last one of a range at the latest, if the topic was
        deleted or recreated.

        Args:
            wanted: the range.
            topic_id: empty for a topic that has none.
            last_epoch: leader epoch of the batch before the range, if it was read. Where leaders move,
                the first fetch raises OffsetOutOfRangeError if that batch is in the log no more.
        """

    def agreed_offsets(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """Return a partition's start and end offsets, the same for all tasks of one Spark action.

        Args:
            options: of the read; all partitions that they select are looked up together.
            action: the same for all callers that are to agree, if the source supports that.
        """

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""


class SourceAtPath(Source, Protocol):
    """A source of topics in a folder, PATH."""

    @property
    def path(self) -> Path:
        """The absolute path of the folder."""


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
    """Return the named topics that exist, looked up one by one, as `Source.found` does."""
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
