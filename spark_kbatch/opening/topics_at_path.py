"""Python API to read the topics at a path, whether a cluster or a real broker's logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from spark_kbatch.consumer.topic_reader import ReadableTopics
from spark_kbatch.errors import KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.opening.os_errors import translated_each
from spark_kbatch.options import arguments
from spark_kbatch.options.topic import Topic
from spark_kbatch.store.source import SourceAtPath

_Result = TypeVar("_Result")


class TopicsAtPath(ReadableTopics):
    """The topics of the cluster or the real broker's logs at one path, for reading.

    Thread-safe; keeps no file open.
    """

    def __init__(self, source: SourceAtPath) -> None:
        super().__init__(source, str(source.path))
        self.path: Path = source.path

    def _taken(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return translated_each(batches, self.path)

    def topics(self, *, internal: bool = False) -> list[Topic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        return existing(self, self.topic_names(internal=internal))

    def topic(self, name: str) -> Topic:
        """Return a topic: its id, partition count and settings.

        In a broker's log dir, as far as it says them: the count is of the partitions that are there,
        the id is empty if the broker wrote none, and settings are unknown.

        Raises:
            UnknownTopicOrPartitionError: no such topic; names the nearest.
        """
        return self._reader.source.topic(arguments.text("topic", name))


def existing(topics: TopicsAtPath, names: Iterable[str]) -> list[Topic]:
    """Return the topics with these names, without those deleted since the names were listed."""
    found = []
    for name in names:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            found.append(topics.topic(name))
    return found


def damaged_topics(topics: TopicsAtPath, names: Iterable[str]) -> dict[str, KafkaStorageError]:
    """Return those of the named topics whose files are damaged, with the errors."""
    found = {}
    for name in names:
        try:
            topics.topic(name)
        except UnknownTopicOrPartitionError:
            continue
        except KafkaStorageError as error:
            found[name] = error
    return found


def skipping_deleted(
    topics: TopicsAtPath, names: Sequence[str], work: Callable[[list[str]], _Result]
) -> _Result:
    """Call `work` with the named topics that exist, again if one is deleted meanwhile; return its result.

    If a topic is deleted while it runs, it is called again without that topic.
    """
    while True:
        found = existing(topics, names)
        try:
            return work([topic.name for topic in found])
        except UnknownTopicOrPartitionError:
            if existing(topics, names) == found:
                raise
