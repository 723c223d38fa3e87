"""The questions that a reader asks of the topics at one PATH, a cluster or a broker's logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from spark_kbatch.consumer.planning import LogView
from spark_kbatch.errors import ClosedError
from spark_kbatch.model import LogOffsets, PartitionInfo, ReadRange, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.header import LogRead


class Source(Protocol):
    """The topics at one PATH, whatever wrote them. Thread-safe; keeps no file open."""

    @property
    def path(self) -> Path:
        """PATH, absolute."""

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; of internal ones only if asked."""

    def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
        """

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order; raises as `topic`."""

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        """Return these logs as they stand now; all as of one moment, if PATH knows one.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics."""

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Do as `reading.Fetcher.fetch`."""

    def agreed_offsets(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """Return where a partition starts and ends for all tasks of one action.

        Args:
            options: of the read; all partitions that they select are looked up together.
            action: the same for all callers that are to agree, if PATH lets them.
        """

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""


class Closed:
    """Stands in for a part of a closed source: any use raises ClosedError."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError(self._path)
