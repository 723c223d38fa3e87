"""The upkeep of a cluster in a folder: deleting what is not needed any more, repairing, verifying, exporting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.cluster_repair import ClusterRepair, unreadable, with_followers
from spark_kbatch.commit.history import History
from spark_kbatch.commit.internal_topics import COMMITS, CONSUMER_OFFSETS, INTERNAL_TOPICS
from spark_kbatch.commit.staging import abandoned_jobs, remove_abandoned_jobs, waiting_jobs
from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica import lost_topics
from spark_kbatch.store.listing import damaged_topics, skipping_deleted
from spark_kbatch.store.reports import (
    AbandonedJob,
    ExportedPartition,
    Garbage,
    NotRemoved,
    RepairReport,
    Waiting,
)
from spark_kbatch.store.source import Source

_Result = TypeVar("_Result")


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

    def export(self, topic: str, to: Path) -> list[ExportedPartition]:
        """Copy a topic into a broker's log dir."""
        from spark_kbatch.cluster.export import export_topic  # noqa: PLC0415  few processes export

        return export_topic(self._parts.manager, self._parts.snapshots.replicas, topic, to)

    def collect_garbage(
        self, topics: Sequence[str] | None, *, staging_retention_ms: int, dry_run: bool
    ) -> Garbage:
        """Delete expired segments and other files, or only look."""
        manager, replicas = self._parts.manager, self._parts.snapshots.replicas
        source = self._source
        given = source.topic_names() if topics is None else topics
        damaged = damaged_topics(source.topic, given) if topics is None else {}
        names = [name for name in given if name not in damaged]
        skipped: dict[TopicPartition, str] = {}

        def partitions(names: Iterable[str]) -> list[TopicPartition]:
            return [tp for name in names for tp in manager.partitions(name)]

        def usable(names: Iterable[str]) -> list[TopicPartition]:
            every = partitions(names)
            skipped.update(self._unreadable(every))
            return [tp for tp in every if tp not in skipped]

        def of_each(work: Callable[[list[str]], _Result]) -> _Result:
            return (
                work(names) if topics is not None else skipping_deleted(source.topic, names, work)
            )

        of_each(partitions)  # Before anything is deleted, it fails for a topic that does not exist.
        jobs, not_removed, waiting = _jobs(self._parts, staging_retention_ms, dry_run=dry_run)
        if dry_run:
            deletions = of_each(lambda some: manager.planned_deletions(usable(some), replicas))
            deleted = manager.planned_removals()
        else:
            deleted = manager.remove_deleted_topics()
            commits = self._parts.coordinator(flush=True)
            delete = functools.partial(
                manager.delete_old_segments,
                discard=True,
                skip_deleted=topics is None,
                skipped=skipped,
            )
            deletions = of_each(lambda some: delete(usable(some), commits))
        waiting += of_each(lambda some: manager.waiting(usable(some), replicas))
        why = {name: str(error) for name, error in damaged.items()}
        return Garbage(deletions, jobs, not_removed, deleted, why, waiting, skipped)

    def _unreadable(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return those of the partitions that cannot be read now, with the reasons.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        wanted, found = list(topic_partitions), {}
        try:
            self._parts.snapshots.replicas(wanted)
        except (OSError, KafkaStorageError, CorruptRecordError):
            for topic_partition in wanted:
                try:
                    self._parts.snapshots.replicas([topic_partition])
                except (OSError, KafkaStorageError, CorruptRecordError) as error:
                    found[topic_partition] = str(
                        self._parts.manager.or_offline(topic_partition, error)
                    )
        return found


def _jobs(
    parts: FolderParts, retention_ms: int, *, dry_run: bool
) -> tuple[list[AbandonedJob], list[NotRemoved], list[Waiting]]:
    """Remove, or only find, abandoned jobs; return them, what was not removed, and jobs that may go on."""
    look = abandoned_jobs if dry_run else remove_abandoned_jobs
    found, kept, waiting = list[AbandonedJob](), list[NotRemoved](), list[Waiting]()
    for log_dir in parts.manager.dirs.all:
        if parts.manager.dirs.is_online(log_dir.node_id):  # so it is ours
            where, when = (parts.files, log_dir.staging), expiring_ms(parts.manager.now_ms())
            gone, not_removed = look(*where, retention_ms=retention_ms, now_ms=when)
            found += gone
            kept += not_removed
            waiting += waiting_jobs(*where, retention_ms=retention_ms, now_ms=when)
    return found, kept, waiting
