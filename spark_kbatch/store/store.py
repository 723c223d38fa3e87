"""A place of topics, and what it can do besides being read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from spark_kbatch.model import ConsumerGroup, TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.store.commits import CommitHistory
from spark_kbatch.store.groups import next_offsets
from spark_kbatch.store.job import WriteJob
from spark_kbatch.store.reports import (
    ExportedPartition,
    Garbage,
    GivenUp,
    LogDirInfo,
    RepairReport,
    ReplicaInfo,
)
from spark_kbatch.store.source import Source


class Catalog(Protocol):
    """The topics of a place, to look up with their settings and to change.

    A method raises UnknownTopicOrPartitionError if there is no such topic, and ConfigError if the topic is
    internal, or what is asked for is not accepted.
    """

    def topics(self, *, internal: bool) -> Sequence[Topic]:
        """Return all topics, sorted by name; internal ones only if asked."""

    def topic(self, name: str) -> Topic:
        """Return a topic as it is now, with its settings."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        config: TopicConfig | Mapping[str, object],
        exist_ok: bool,
    ) -> Topic:
        """Create a topic, and return it once it can be used.

        Args:
            name: its name.
            partitions: how many; None for the place's default.
            replication_factor: copies of each record; None for the place's default.
            config: settings by Kafka's keys.
            exist_ok: whether to return a topic that exists with all that is given.

        Raises:
            TopicAlreadyExistsError: it exists; with `exist_ok`, it differs; says how.
        """

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records, and return it as it was before."""

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic, up to `total_count` in all, and return the topic."""

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic, by Kafka's keys, reset those given as None, and return the topic."""

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition, -1 for all; return the new log start offsets.

        Raises:
            OffsetOutOfRangeError: an offset is above the high watermark; nothing is deleted.
        """


NO_IDS: Mapping[str, str] = MappingProxyType({})
CheckOffsets = Callable[[Mapping[TopicPartition, int]], object]


class Groups(Protocol):
    """The consumer groups of a place."""

    commit_pause_ms: int = 0  # the shortest time between two commits that a loop makes as it goes

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups, sorted by id, with members, offsets and lag."""

    def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        """Return the offsets at which a group goes on, of topics that are still those.

        Places that tell one group by itself do so: there may be thousands.
        """
        (found,) = [one.offsets for one in self.groups() if one.group_id == group_id] or [{}]
        return next_offsets(found)

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        check: CheckOffsets | None = None,
    ) -> None:
        """Set the offsets at which a group without members continues; it need not exist.

        Args:
            group_id: of the group.
            offsets: by partition.
            topic_ids: of the topics, by name, where the offsets are known to be of these: nothing
                is set for one that is gone, or was created again. A real cluster knows topics by
                name alone when offsets are committed, so there it may be created again at that
                moment.
            check: is given the offsets at which the group stands, before others are set, and
                raises where they are not to be. Between the two nothing comes, but in a real
                cluster, or beside a server.

        Raises:
            GroupNotEmptyError: it has members.
            UnknownTopicOrPartitionError: a partition does not exist.
        """

    def delete(self, group_id: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotEmptyError: it has members.
            GroupIdNotFoundError: there is no such group.
        """


class Disks(Protocol):
    """The log dirs of a place, the replicas on them, and their files.

    Arguments, results and errors are those of `Cluster`.
    """

    def log_dirs(self, *, writes: bool = True) -> list[LogDirInfo]:
        """Return the log dirs: what each holds, and why it is offline if it is.

        With `writes` false nothing is written to them, which alone tells whether that is possible.
        """

    def has_readable(self) -> bool:
        """Return True if there is a log dir that can be read."""

    def replicas(self, topics: Sequence[str]) -> dict[TopicPartition, list[ReplicaInfo]]:
        """Return the replicas of all partitions of these topics."""

    def metrics(self) -> dict[str, Any]:
        """Return the state of topics, replicas, logs and log dirs, by the names of a Kafka broker's metrics."""

    def replicate(self, topics: Sequence[str] | None) -> list[TopicPartition]:
        """Bring lagging replicas of these topics, None for all, up to date; return what is still not in sync."""

    def replace_log_dir(self, node_id: int, *, unclean: bool, dry_run: bool) -> list[GivenUp]:
        """Replace the lost log dir of a node by the empty directory at its path."""

    def elect_unclean(self, topic: str, *, dry_run: bool) -> list[GivenUp]:
        """Let replicas that are not in sync lead, where a topic has no in-sync one that can be used."""

    def collect_garbage(
        self, topics: Sequence[str] | None, *, staging_retention_ms: int, dry_run: bool
    ) -> Garbage:
        """Delete what is not needed any more."""

    def export(self, topic: str, to: Path) -> list[ExportedPartition]:
        """Copy a topic's committed records into the log dir of a stopped Kafka broker."""


class Upkeep(Protocol):
    """The check and repair of all that a place stores.

    Arguments, results and errors are those of `Cluster`; None stands for all partitions.
    """

    def verify(self, partitions: Sequence[TopicPartition] | None) -> Iterator[RepairReport]:
        """Check what is stored, and write nothing."""

    def repair(
        self, partitions: Sequence[TopicPartition] | None, *, dry_run: bool
    ) -> Iterator[RepairReport]:
        """Repair what cannot be read or written, keeping every valid batch.

        Raises:
            ConfigError: the place is only read.
        """


class Store(Protocol):
    """A place of topics. Thread-safe.

    A place that is only read has no catalog and no producers. A part that it has not is None, and is refused by
    whoever asks.
    """

    @property
    def address(self) -> str:
        """The address: the absolute path of a folder, bootstrap servers, "memory://NAME"."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty if that is not known, or there is none.

        Raises:
            RequestTimedOutError: it is asked for, and no broker answered.
        """

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over the network."""

    @property
    def why_not(self) -> str:
        """The reason that an error gives where the place has not what is asked for."""

    @property
    def source(self) -> Source:
        """The place's topics, for readers."""

    @property
    def catalog(self) -> Catalog | None:
        """The place's topics, to change; None if they are only read."""

    @property
    def groups(self) -> Groups | None:
        """The place's consumer groups."""

    @property
    def commits(self) -> CommitHistory | None:
        """The commits of Spark jobs to the place; None if it keeps no history of them."""

    @property
    def disks(self) -> Disks | None:
        """The place's log dirs."""

    @property
    def upkeep(self) -> Upkeep | None:
        """The check and repair of what the place stores."""

    @property
    def server(self) -> Any:
        """What `server.Server` serves, which also tells the `running_server`; None if the place is not served."""

    @property
    def ledger(self) -> Any:
        """The ledger of a bucket, `bucket.shared_ledger.SharedLedger`; None for all other places."""

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Any:
        """Return a producer, `producer.Producer`, for any topics of the place, or a transactional one.

        Args:
            config: options of Kafka's producer by Kafka's keys.
            options: the same, with underscores.

        Raises:
            ConfigError: an option is not accepted; or nothing can be written here.
        """

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> WriteJob:
        """Begin a Spark job that writes, on the driver.

        A micro-batch leaves a topic that does not exist to its first rows.

        Args:
            options: of the write, which name this place.
            overwrite: whether what the topic holds is replaced.
            is_micro_batch: whether it is a micro-batch of a stream.

        Raises:
            ConfigError: the options do not go together, or do not fit the topic; or jobs cannot write here.
            UnknownTopicOrPartitionError: the topic does not exist, and may not be created.
        """

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
