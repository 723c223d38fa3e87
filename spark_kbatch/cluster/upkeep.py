"""The check and repair of all that a cluster in a folder stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.cluster_repair import ClusterRepair, unreadable, with_followers
from spark_kbatch.commit.history import History
from spark_kbatch.commit.internal_topics import COMMITS, CONSUMER_OFFSETS, INTERNAL_TOPICS
from spark_kbatch.errors import KafkaStorageError, KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica import lost_topics
from spark_kbatch.store.reports import RepairReport
from spark_kbatch.store.source import Source


class FolderUpkeep:
    """The upkeep of one cluster in a folder; a `store.Upkeep`."""

    def __init__(self, parts: FolderParts, source: Source) -> None:
        self._parts, self._source = parts, source

    def verify(self, partitions: Sequence[TopicPartition] | None) -> Iterator[RepairReport]:
        """Check partitions; by default all, and the records of commits and groups."""
        for report in self.repair(partitions, dry_run=True):
            commits = self._parts.coordinator(flush=True)
            yield with_followers(self._parts.manager, report, commits)
        if partitions is not None:
            return
        from spark_kbatch.cluster.groups import FolderGroups  # noqa: PLC0415  loads Kafka's protocol

        history = History(self._parts.snapshots.replicas)
        groups = FolderGroups(self._parts, self._source)
        records: tuple[tuple[TopicPartition, str, Callable[[], object]], ...] = (
            (COMMITS, "commits", lambda: list(history.read())),
            (CONSUMER_OFFSETS, "consumer groups", groups.groups),
        )
        for topic_partition, what, read in records:
            try:
                read()
            except (OSError, KBatchError) as error:
                yield from unreadable(self._parts.manager, topic_partition, what, error)

    def repair(
        self, partitions: Sequence[TopicPartition] | None, *, dry_run: bool
    ) -> Iterator[RepairReport]:
        """Repair partitions; by default all, those of lost topics too."""
        manager = self._parts.manager
        repair = ClusterRepair(manager, self._parts.coordinator(flush=True), dry_run=dry_run)
        if partitions is not None:
            return repair.run(partitions)
        restored = lost_topics.restore(manager, INTERNAL_TOPICS, dry_run=dry_run)
        every: list[TopicPartition] = []
        for name in self._source.topic_names(internal=True):
            try:
                every += manager.partitions(name)
            except UnknownTopicOrPartitionError:
                continue  # deleted since the names were listed
            except KafkaStorageError as error:  # the others are repaired all the same
                restored.setdefault(name, lost_topics.LostTopic(None, str(error)))
        return repair.run(every, restored, skip_deleted=True)
