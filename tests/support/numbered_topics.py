"""Topics that consist of offsets only, for tests of planning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.model import LogOffsets, OffsetAndTimestamp, OffsetRange, TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.store.source import FoundTopic


@dataclass
class ALog:
    """A log with offsets [start, end), each with its time."""

    start: int
    end: int
    first_time: int = 0  # of offset 0; each record is 1 ms later than the one before it
    stable: int | None = None  # the last stable offset, if a transaction is open

    @property
    def offsets(self) -> LogOffsets:
        """The log's edges."""
        stable = self.end if self.stable is None else self.stable
        return LogOffsets(self.start, self.end, stable, self.end)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Search by looking at every offset."""
        for offset in range(self.start, end_offset):
            if self.first_time + offset >= timestamp_ms:
                return OffsetAndTimestamp(offset, self.first_time + offset)
        return None

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Split as if each record had a million bytes, and each were a batch in the index."""
        pieces = -(-(end_offset - start_offset) * 1_000_000 // piece_bytes)
        size = end_offset - start_offset
        return [start_offset + size * piece // pieces for piece in range(1, pieces)]

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Count a million bytes for each record."""
        return max(end_offset - start_offset, 0) * 1_000_000


class TopicsInMemory:
    """Topics as planning sees them; counts how often it looks at logs."""

    def __init__(self, logs: dict[TopicPartition, ALog]) -> None:
        self.logs = logs
        self.looks = 0

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return all names; those that start with two underscores are internal."""
        names = {tp.topic for tp in self.logs}
        return sorted(name for name in names if internal or not name.startswith("__"))

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """Return the partitions, in order."""
        found = sorted(tp for tp in self.logs if tp.topic == topic)
        if not found:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
        return found

    def existing_topics(self, names: Iterable[str]) -> dict[str, FoundTopic]:
        """Return the topics that exist; they have no ids."""
        existing = {one.topic for one in self.logs}
        return {name: FoundTopic("", self.partitions(name)) for name in names if name in existing}

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ALog]:
        """Return the logs themselves."""
        self.looks += 1
        return {tp: self.logs[tp] for tp in partitions}

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return nothing: no commit has overwritten anything."""
        return ""

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return no cuts: partitions are apart."""
        return ()


def tp(name: str) -> TopicPartition:
    """Parse a partition's name: `a-0` is partition 0 of topic `a`."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def log(end: int, start: int = 0, *, undecided: int = 0) -> ALog:
    """Return a log whose records have their offsets for times; some at its end may be undecided."""
    return ALog(start, end, stable=end - undecided if undecided else None)


class FakeTopics:
    """Topics by name, with an id and partitions, which tests change as they go."""

    def __init__(self, **topics: Sequence[ALog]) -> None:
        self.logs: dict[str, list[ALog]] = {}
        self.ids: dict[str, str] = {}
        self.created = 0
        for name, logs in topics.items():
            self.create(name, *logs)

    def create(self, topic: str, *logs: ALog) -> None:
        """Create a topic, or recreate one that was deleted."""
        self.created += 1
        self.logs[topic], self.ids[topic] = list(logs), f"id-{self.created}"

    def delete(self, topic: str) -> None:
        del self.logs[topic], self.ids[topic]

    def append(self, partition: str, count: int) -> None:
        topic, number = tp(partition)
        found = self.logs[topic][number]
        self.logs[topic][number] = replace(found, end=found.end + count)

    def topic_names(self, *, internal: bool = False) -> list[str]:
        return sorted(name for name in self.logs if internal or not name.startswith("__"))

    def topic(self, name: str) -> Topic:
        return Topic(name, self.ids[self._known(name)], len(self.logs[name]), TopicConfig())

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for n in range(len(self.logs[self._known(topic)]))]

    def existing_topics(self, names: Iterable[str]) -> dict[str, FoundTopic]:
        return {
            name: FoundTopic(self.ids[name], self.partitions(name))
            for name in names if name in self.logs
        }  # fmt: skip

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, ALog]:
        return {one: self.logs[self._known(one.topic)][one.partition] for one in partitions}

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        return ""

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return no cuts: partitions are apart."""
        return ()

    def _known(self, topic: str) -> str:
        if topic not in self.logs:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
        return topic
