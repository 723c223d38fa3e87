"""Parts of sources of topics: what follows from the rest, topics that stay the same, placeholders once closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Self

from spark_kbatch.consumer import planning
from spark_kbatch.errors import ClosedError, UnknownTopicOrPartitionError
from spark_kbatch.model import (
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import partitions_of
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead
from spark_kbatch.store.source import Fetcher, FoundTopic, Source


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


class PartitionsApart:
    """The part of a source that is the same where partitions are stored one by one.

    And where nothing is stored for readers beside them: neither why offsets are gone, nor what tasks agree on.
    """

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return nothing: the place does not tell why an offset is gone."""
        return ""

    def polled(self: Source) -> Callable[[], Source]:
        """Return what returns the source itself."""
        return lambda: self

    def partitions(self: Source, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order."""
        return partitions_of(self.topic(topic))

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return no cuts."""
        del wanted, piece_bytes
        return ()

    def gathered(
        self: Source, wanted: Mapping[OffsetRange, str]
    ) -> Iterator[tuple[OffsetRange, AbstractContextManager[Fetcher]]]:
        """Yield the ranges as they are, with a fetcher for each."""
        for one, topic_id in wanted.items():
            yield one, self.fetcher(one, topic_id)

    def agreed_offsets(
        self: Source, partitions: Collection[TopicPartition], options: ReadOptions, action: str
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return partitions' start and end offsets, which each Spark task looks up for itself.

        Nothing is kept for the other tasks of an action.
        """
        del action
        return {
            tp: (view.offsets.log_start_offset, view.offsets.end_offset(options.isolation_level))
            for tp, view in self.views(partitions).items()
        }


class OwnSource(PartitionsApart):
    """The part of a source that follows from the rest, where topics need no request over a network.

    For a store that is its own source.
    """

    @property
    def source(self) -> Self:
        """The store itself."""
        return self

    def existing_topics(self: Source, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        """Return those of the named topics that exist, looked up one by one."""
        found = {}
        for name in names:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                found[name] = FoundTopic(self.topic(name).topic_id, self.partitions(name))
        return found

    def list_offsets(
        self: Source, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up offsets by time, in views that are taken together."""
        return planning.list_offsets(self.views(times), times, isolation)

    def fetcher(
        self: Source, wanted: OffsetRange, topic_id: str, last_epoch: int = NO_LEADER_EPOCH
    ) -> AbstractContextManager[Fetcher]:
        """Return a fetcher that fails if the topic's id is no longer `topic_id`."""
        del wanted, last_epoch
        return OneTopic.of(self, topic_id)


def ensure_same(topic: str, topic_id: str, source: Source) -> None:
    """Check that a topic that is being read was not recreated; skipped if it has no id."""
    if topic_id and source.topic(topic).topic_id != topic_id:
        raise recreated(topic)


def of_agreed(
    agreed: Mapping[TopicPartition, tuple[int, int]],
    partitions: Collection[TopicPartition],
    address: Path | str,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return what was agreed on for some partitions.

    Raises:
        UnknownTopicOrPartitionError: one of them is not among what was agreed on.
    """
    for one in partitions:
        if one not in agreed:
            raise UnknownTopicOrPartitionError(
                f"partition {one} does not exist in {address} any more: its topic was "
                "deleted after this read was planned; load again"
            )
    return {one: agreed[one] for one in partitions}


def recreated(topic: str, cluster: str = "") -> UnknownTopicOrPartitionError:
    """Return the error that a topic which is being read is another one by now."""
    where = f" of {cluster}" if cluster else ""
    return UnknownTopicOrPartitionError(
        f"topic {topic!r}{where} was deleted and created again while it was read: read it again"
    )


class Closed:
    """A placeholder for a part of a closed source: any use raises ClosedError."""

    def __init__(self, address: Path | str) -> None:
        self._address = str(address)

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError(self._address)
