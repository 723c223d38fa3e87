"""A real Kafka broker's logs at a path, as a source of topics for reading.

Partitions are not read as of one moment: each is read to the last valid batch that it had when it was
looked at, and tasks that look for themselves may find different ends. With `foreign_end` set to
"checkpoint" a read ends at the high watermarks in the broker's checkpoint instead, which the broker
rewrites every 5 seconds. With "log" it ends after the last valid batch even where there is evidence
that records are missing; without either that is an error, as `log/foreign/missing.py` says.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.consumer.same_topic import Closed, OwnSource
from spark_kbatch.errors import ConfigError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.log.checkpoints import read_meta_properties
from spark_kbatch.log.foreign.log_dir import ForeignLogDir, ForeignLogView
from spark_kbatch.model import (
    LogOffsets,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions, parse_foreign_end
from spark_kbatch.record.header import LogRead

if TYPE_CHECKING:
    from spark_kbatch.store.reports import RepairReport
    from spark_kbatch.store.store import Groups

_NEAREST = 5
# By name, not by the underscores: a user's topic may start with them too. One of them is our own.
_INTERNAL = {
    "__cluster_metadata", "__commits", "__consumer_offsets", "__share_group_state",
    "__transaction_state",
}  # fmt: skip


class ForeignStore(OwnSource):
    """Read access to the logs in a broker's log dir, in a partition's directory, or in one .log file.

    A `store.Store`, and its own source.
    """

    catalog = commits = disks = server = ledger = None
    is_remote = False
    why_not = (
        "it is a Kafka broker's log directory, which kbatch only reads; write to a cluster of your "
        "own, and export its topics with `kbatch export`; consumer groups are read where the "
        "directory has a partition of __consumer_offsets"
    )

    def __init__(
        self, path: Path, log_dir: ForeignLogDir, *, foreign_end: str | None = None
    ) -> None:
        """Set up to read the broker's log dir that `ForeignLogDir.find` found at `path`.

        Raises:
            ConfigError: `foreign_end` is neither "log" nor "checkpoint".
        """
        parse_foreign_end("foreign.end", foreign_end)
        self.path = path
        self._log_dir = log_dir
        self._end = foreign_end

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        setattr(self, "_log_dir", Closed(self.path))  # noqa: B010  of another type

    @property
    def address(self) -> str:
        """The absolute path that was opened."""
        return str(self.path)

    @property
    def groups(self) -> Groups | None:
        """The broker's consumer groups, if a partition of `__consumer_offsets` is here."""
        if not self._log_dir.partitions(CONSUMER_OFFSETS.topic):
            return None
        from spark_kbatch.cluster.groups import ForeignGroups  # noqa: PLC0415  few reads do

        return ForeignGroups(self.path, self._log_dir, self)

    @property
    def upkeep(self) -> Self:
        """The store itself."""
        return self

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(f"{self.path} is a broker's; write to a cluster of your own")

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        self.producer({}, {})

    @property
    def cluster_id(self) -> str:
        """The cluster id in the log dir's meta.properties; empty if it has none."""
        with contextlib.suppress(OSError, KafkaStorageError):
            return read_meta_properties(self._log_dir.files, self.path).cluster_id or ""
        return ""

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the sorted names of all topics, with internal ones only if `internal` is true."""
        return sorted(name for name in self._by_topic() if internal or name not in _INTERNAL)

    def topic(self, name: str) -> Topic:
        """Return a topic's id, empty if the broker wrote none, and the count of partitions found here."""
        partitions = self.partitions(name)
        return Topic(name, self._log_dir.topic_id(partitions[0]), len(partitions), config=None)

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
        return self._log_dir.views(wanted, end=self._end)

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of the partitions of these topics that are in this log dir.

        Where records are missing, the `error` says which; offsets and size are of what can be read.
        """
        views = self.views(tp for topic in topics for tp in self.partitions(topic))
        return [
            PartitionInfo(
                tp,
                view.readable,
                self._log_dir.log(tp).size_in_bytes(),
                "; ".join(map(str, view.missing)),
            )
            for tp, view in views.items()
        ]

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return batches of a partition's log from an offset on, as `Fetcher.fetch` does."""
        return self._log_dir.read(topic_partition, asked, end=self._end)

    def verify(self, partitions: Sequence[TopicPartition] | None) -> Iterator[RepairReport]:
        """Check the files of partitions, by default all, and yield a report of each."""
        if partitions is None:
            names = self.topic_names(internal=True)
            partitions = [tp for name in names for tp in self.partitions(name)]
        for topic_partition in partitions:
            missing = self.views([topic_partition])[topic_partition].missing
            report = self._log_dir.check(topic_partition)
            yield report._replace(damaged=(*report.damaged, *map(str, missing)))

    def repair(self, partitions: Sequence[TopicPartition] | None, *, dry_run: bool) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(f"nothing can be repaired in {self.path}: {self.why_not}")

    def _by_topic(self) -> dict[str, list[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {}
        for topic_partition in self._log_dir.partitions():
            found.setdefault(topic_partition.topic, []).append(topic_partition)
        return found
