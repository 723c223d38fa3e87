"""Read-only access to the logs of a real Kafka broker at a path, with the interface of a cluster.

Its partitions are not read as of one moment: each is read to the last valid batch that it had when it
was looked at, and tasks that look for themselves may find different ends. With `foreign_end` set to
"checkpoint" a read ends at the high watermarks in the broker's checkpoint instead, which the broker
rewrites every 5 seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spark_kbatch.cluster.readable import TopicsAtPath
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.source import Closed, OneTopic, found_singly
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.log.foreign.log_dir import ForeignLogDir, ForeignLogView
from spark_kbatch.model import (
    LogOffsets,
    OffsetRange,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.options.write import parse_foreign_end
from spark_kbatch.record.header import LogRead

if TYPE_CHECKING:
    from spark_kbatch.log.repair import RepairReport

_NEAREST = 5
# By name, not by the underscores: a user's topic may start with them too.
_INTERNAL = {
    "__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state",
}  # fmt: skip


def _refused(what: str) -> Callable[..., NoReturn]:
    """Return a method for writing to a broker's logs that raises ConfigError, with the reason `what`."""

    def refuse_to_write(self: BrokerLogs, *_given: Any, **_named: Any) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(
            f"{what} in {self.path}: it is a Kafka broker's log directory, which kbatch only reads; "
            "write to a cluster of your own, and export its topics with `kbatch export`"
        )

    return refuse_to_write


class ForeignSource:
    """Read access to the logs in a broker's log dir, in a partition's directory, or in one .log file.

    A `consumer.source.Source`.
    """

    def __init__(self, path: Path, log_dir: ForeignLogDir, *, foreign_end: str = "log") -> None:
        """Set up to read the broker's log dir that `ForeignLogDir.find` found at `path`.

        Raises:
            ConfigError: `foreign_end` is neither "log" nor "checkpoint".
        """
        parse_foreign_end("foreign.end", foreign_end)
        self.path = path
        self._log_dir = log_dir
        self._to_high_watermark = foreign_end == "checkpoint"

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        setattr(self, "_log_dir", Closed(self.path))  # noqa: B010  of another type

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the sorted names of all topics, with internal ones only if `internal` is true."""
        return sorted(name for name in self._by_topic() if internal or name not in _INTERNAL)

    def topic(self, name: str) -> Topic:
        """Return a topic's id, empty if the broker wrote none, and the count of partitions found here."""
        partitions = self.partitions(name)
        return Topic(name, self._log_dir.topic_id(partitions[0]), len(partitions), TopicConfig())

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions in this log dir; the cluster's other brokers may have more.

        Raises:
            UnknownTopicOrPartitionError: no such topic; names the nearest.
        """
        found = self._log_dir.partitions(topic)
        if not found:
            topics = self._by_topic()
            near = difflib.get_close_matches(topic, sorted(topics), n=_NEAREST, cutoff=0.0)
            known = f"of its {len(topics)} topics the nearest are: {', '.join(near)}"
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} does not exist in {self.path}; {known if near else 'it has none'}"
            )
        return found

    def found(self, names: Iterable[str]) -> dict[str, planning.FoundTopic]:
        """Return the ids and partitions of those named topics that exist."""
        return found_singly(self, names)

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ForeignLogView]:
        """Return a view of each partition's log, as of the moment when that partition is looked at."""
        wanted = list(partitions)
        for topic in {tp.topic for tp in wanted}:
            held = self.partitions(topic)
            for missing in {tp for tp in wanted if tp.topic == topic}.difference(held):
                numbers = ", ".join(str(tp.partition) for tp in held)
                raise UnknownTopicOrPartitionError(
                    f"partition {missing} does not exist in {self.path}, which has these partitions "
                    f"of topic {topic!r}: {numbers}"
                )
        return self._log_dir.views(wanted, with_high_watermark=self._to_high_watermark)

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of the partitions of these topics that are in this log dir."""
        views = self.views(tp for topic in topics for tp in self.partitions(topic))
        return [
            PartitionInfo(tp, view.offsets, self._log_dir.log(tp).size_in_bytes())
            for tp, view in views.items()
        ]

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return batches of a partition's log from an offset on, as `reading.Fetcher.fetch` does."""
        return self._log_dir.read(
            topic_partition, asked, with_high_watermark=self._to_high_watermark
        )

    def fetcher(self, wanted: OffsetRange, topic_id: str) -> AbstractContextManager[OneTopic]:
        """Return a fetcher that fails if the topic's id is no longer `topic_id`."""
        del wanted
        return OneTopic.of(self, topic_id)

    def check(self, topic_partition: TopicPartition) -> RepairReport:
        """Check the files of one partition, and return a report of what is wrong."""
        self.views([topic_partition])
        return self._log_dir.check(topic_partition)

    def agreed_offsets(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """Return a partition's start and end offset, which each Spark task looks up for itself.

        Nothing may be written here for the other tasks of an action.
        """
        del action
        offsets = self.views([topic_partition])[topic_partition].offsets
        return offsets.log_start_offset, offsets.end_offset(options.isolation_level)

    def _by_topic(self) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {}
        for topic_partition in self._log_dir.partitions():
            found.setdefault(topic_partition.topic, []).append(topic_partition)
        return found


class BrokerLogs(TopicsAtPath):
    """Read-only topics of a Kafka broker's log dir, a partition's directory, or one .log file.

    They are only read; methods that would write raise ConfigError.
    """

    def __init__(self, source: ForeignSource) -> None:
        super().__init__(source)
        self._source = source

    def verify(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[RepairReport]:
        """Check the files of these partitions, by default all, and yield each report once it is done.

        See `log/foreign/check.py`.
        """
        if partitions is None:
            chosen = [
                tp for name in self.topic_names(internal=True) for tp in self.partitions(name)
            ]
        else:
            chosen = arguments.topic_partitions("partitions", partitions)
        return map(self._source.check, chosen)

    # Here so that what `open` returns can be used without asking what it is.

    create_topic = _refused("topics cannot be created")
    alter_topic = _refused("topics cannot be altered")
    create_partitions = _refused("partitions cannot be created")
    delete_topic = _refused("topics cannot be deleted")
    producer = _refused("there is no producer")
    delete_records = _refused("records cannot be deleted")
    collect_garbage = _refused("nothing can be deleted")
    repair = _refused("nothing can be repaired")
    export = _refused("topics cannot be exported, they are a broker's already")
    serve = _refused("they cannot be served; `kbatch serve` serves a cluster")
    running_server = _refused("they cannot be served")
    groups = _refused("groups of consumers are not read from them")
    history = _refused("there are no commits of Spark jobs")
    find_commit = _refused("there are no commits of Spark jobs")
    first_commit = _refused("there are no commits of Spark jobs")
    replicas = _refused("there is one replica of each partition")
    replicate = _refused("there is one replica of each partition")
    log_dirs = _refused("there is one log dir")
    metrics = _refused("there are no metrics")
    replace_log_dir = _refused("there is one log dir")
