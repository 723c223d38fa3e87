"""TopicLookup for readers: names, partitions, views of logs as of one moment, and whole batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from spark_kbatch.model import (
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead


class LogView(Protocol):
    """A view of one partition's log, as of a moment that all views requested together share."""

    @property
    def offsets(self) -> LogOffsets:
        """The log's start and end."""

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with that time or a later one, or None."""

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return an offset before which no record has that time or a later one.

        It is `end_offset` at most, 0 where it is not known. No record is read for it that an index leads past.
        """

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that split [start_offset, end_offset) into pieces of about that size."""

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """Return about how many bytes of log [start_offset, end_offset) has; None if nothing tells."""


class FoundTopic(NamedTuple):
    """A topic that exists: its id, empty if it has none, and its partitions, in order."""

    topic_id: str
    partitions: Sequence[TopicPartition]


class Fetcher(Protocol):
    """A source that whole batches are fetched from: logs, or a real cluster."""

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches from the first at or after an offset, and the log's offsets.

        No batches only if that is certain: the log ends at or before the offset for this isolation level, or
        compaction left none up to that end. For READ_COMMITTED, with the aborted transactions among the
        batches.
        """


class TopicLookup(Protocol):
    """The interface to topics that planning needs: names, partitions and views of logs."""

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; of internal ones only if asked."""

    def existing_topics(self, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        """Return those of the named topics that exist."""

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
        """

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        """Return views of these partitions' logs as they are now; all as of one moment, if possible.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return why a log does not show an offset below its start; empty if that is not known."""

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return where to cut ranges whose batches are stored together, so that one task reads them all.

        Args:
            wanted: ranges of different partitions, within their logs.
            piece_bytes: about what one task reads at most.

        Returns:
            The offsets at which each task begins, of all or some of the partitions; it ends where the next one
            begins. What is before the first is divided partition by partition. Empty where partitions are
            stored apart.
        """


class Source(TopicLookup, Fetcher, Protocol):
    """A place that topics are read from, and whole batches fetched.

    It is thread-safe, and keeps no file open.
    """

    def topic(self, name: str) -> Topic:
        """Return a topic's metadata by its name; raises as `partitions`."""

    def polled(self) -> Callable[[], Source]:
        """Return what gives the source for each of many looks for what is new."""

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics."""

    def list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record at or after a time in each partition; None where there is none.

        Args:
            times: in ms; or EARLIEST, LATEST or MAX_TIMESTAMP.
            isolation: decides where logs end.
        """

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

    def gathered(
        self, wanted: Mapping[OffsetRange, str]
    ) -> Iterator[tuple[OffsetRange, AbstractContextManager[Fetcher]]]:
        """Yield parts of several ranges and what fetches each, in the order of offsets within each range.

        Args:
            wanted: ranges of different partitions, and the ids of their topics.

        Raises as the fetches of `fetcher`.
        """

    def agreed_offsets(
        self, partitions: Collection[TopicPartition], options: ReadOptions, action: str
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return partitions' start and end offsets, the same for all tasks of one Spark action.

        Args:
            partitions: that are asked about, at once.
            options: of the read; all partitions that they select are looked up together.
            action: the same for all callers that are to agree, if the source supports that.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
