"""A cluster in a folder, as a store of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.agreements import Agreements
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.history import History
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.same_topic import OwnSource
from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import LogOffsets, PartitionInfo, ReadRange, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.view import Replica
from spark_kbatch.store.os_errors import translating

if TYPE_CHECKING:
    from spark_kbatch.cluster.disks import FolderDisks
    from spark_kbatch.cluster.groups import FolderGroups
    from spark_kbatch.cluster.job import Job
    from spark_kbatch.cluster.upkeep import FolderUpkeep
    from spark_kbatch.producer.producer import Producer


class FolderStore(OwnSource):
    """A cluster in a folder; a `store.Store`, and its own source. Thread-safe; keeps no file open."""

    is_remote = False
    why_not = ""  # it has everything

    def __init__(self, parts: FolderParts) -> None:
        """Set up over the parts of the cluster, which is open."""
        self.parts = self.server = parts
        self.address = str(parts.path)
        self.catalog = FolderCatalog(parts)

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        self.parts.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.parts.metadata.cluster_file.cluster_id()

    @property
    def groups(self) -> FolderGroups:
        """The consumer groups."""
        from spark_kbatch.cluster.groups import FolderGroups  # noqa: PLC0415  few processes ask for groups

        return FolderGroups(self.parts, self)

    @property
    def commits(self) -> History:
        """The commits of Spark jobs."""
        return History(self.parts.snapshots.replicas)

    @property
    def disks(self) -> FolderDisks:
        """The log dirs, with what lies there."""
        from spark_kbatch.cluster.disks import FolderDisks  # noqa: PLC0415  as above

        return FolderDisks(self.parts, self)

    @property
    def upkeep(self) -> FolderUpkeep:
        """The check and repair of all that is stored."""
        from spark_kbatch.cluster.upkeep import FolderUpkeep  # noqa: PLC0415  as above

        return FolderUpkeep(self.parts, self)

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, which appends to the logs at once."""
        from spark_kbatch.cluster.transports import LocalLog  # noqa: PLC0415  few processes append
        from spark_kbatch.options.producer import parse_producer_options  # noqa: PLC0415
        from spark_kbatch.producer.producer import Producer  # noqa: PLC0415

        self.parts.metadata.cluster_file.ensure_exists()
        chosen = parse_producer_options(config, options)
        find = self.catalog.finder(create=chosen.auto_create_topics_enable)
        return Producer(
            chosen,
            LocalLog(self.parts, flush=chosen.flush, level=chosen.compression_level),
            translating(find, self.address),
            now_ms,
            new_producer_id=self.parts.new_producer_id,
            takes_runs=True,
        )

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> Job:
        """Begin a job whose rows are visible once it is committed, all of them or none."""
        from spark_kbatch.cluster.job import Job  # noqa: PLC0415  as above

        return Job.begin(self.parts, options, overwrite=overwrite, is_micro_batch=is_micro_batch)

    # Topics.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the sorted names of all topics, with internal ones only if `internal` is true."""
        return self.parts.metadata.topics.names(internal=internal)

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, or raise an error if it does not exist.

        Raises the errors of `TopicFiles.topic`.
        """
        return self.parts.metadata.topics.topic(name)

    def _described(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment."""
        names = list(topics)
        partitions = [tp for topic in names for tp in self.parts.manager.partitions(topic)]
        known = self.parts.manager.all_of(partitions)
        found = self.parts.snapshots.replicas(partitions)
        try:
            rows = [
                PartitionInfo(tp, state.offsets, log.size_in_bytes(state))
                for tp, (_, log, state) in found.items()
            ]
        except KafkaStorageError:
            if self.parts.manager.all_of(partitions) == known:
                raise
            rows = []
        # A topic may have been deleted before its files were looked at, and created again.
        return rows if self.parts.manager.all_of(partitions) == known else self._described(names)

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment.

        If some cannot be read, each is looked at alone, and these have their errors.

        Raises:
            KafkaStorageError, CorruptRecordError: none of them can be read.
        """
        names = list(topics)
        try:
            return self._described(names)
        except (KafkaStorageError, CorruptRecordError):
            every = [tp for name in names for tp in self.parts.manager.partitions(name)]
            rows = [self._described_alone(tp) for tp in every]
            if all(row.error for row in rows):
                raise
            return rows

    def _described_alone(self, topic_partition: TopicPartition) -> PartitionInfo:
        try:
            _, log, state = self.parts.snapshots.replicas([topic_partition])[topic_partition]
            return PartitionInfo(topic_partition, state.offsets, log.size_in_bytes(state))
        except (OSError, KafkaStorageError, CorruptRecordError) as error:
            why = str(self.parts.manager.or_offline(topic_partition, error))
            return PartitionInfo(topic_partition, LogOffsets(-1, -1, -1, -1), -1, why)

    # Reading.

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Replica]:
        """Return a snapshot of each of these partitions' logs, all as of one moment."""
        return self.parts.snapshots.replicas(partitions)

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return which commit has overwritten an offset; empty if none has."""
        return self.parts.manager.why_gone(
            topic_partition, offset, replicas=self.parts.snapshots.replicas
        )

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Read batches from a partition's log, also in a range overwritten since it was resolved.

        Otherwise as `Fetcher.fetch`.
        """
        replicas = self.parts.snapshots.replicas
        try:
            return self.parts.manager.fetch(topic_partition, asked, replicas=replicas)
        except OffsetOutOfRangeError as error:
            if asked.offset >= error.log_start_offset:
                raise
        return self.parts.manager.fetch_overwritten(topic_partition, asked, replicas=replicas)

    def agreed_offsets(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """Return a partition's start and end offset, on which all tasks of a Spark action agree.

        The first caller looks up all partitions, and others take its answer.
        """
        agreements = Agreements(
            self.parts.files, self.parts.metadata.paths.snapshots_dir, self.parts.manager.now_ms
        )
        agreed = agreements.agree(action, lambda: planning.current_offsets(options, self))
        if topic_partition not in agreed:
            raise UnknownTopicOrPartitionError(
                f"partition {topic_partition} does not exist in {self.address} any more: its topic was "
                "deleted after this read was planned; load again"
            )
        return agreed[topic_partition]
