"""The upkeep of a cluster in a folder: deleting what is not needed any more, repairing, verifying."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.commit.cluster_repair import ClusterRepair, unreadable, with_followers
from spark_kbatch.commit.internal_topics import COMMITS, CONSUMER_OFFSETS, INTERNAL_TOPICS
from spark_kbatch.commit.staging import (
    abandoned_jobs,
    remove_abandoned_jobs,
    staged_size,
    waiting_jobs,
)
from spark_kbatch.errors import KafkaStorageError, KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.listing import damaged_topics, skipping_deleted
from spark_kbatch.replica import lost_topics
from spark_kbatch.replica.administration import log_dirs_of
from spark_kbatch.store.reports import (
    AbandonedJob,
    Garbage,
    LogDirInfo,
    NotRemoved,
    RepairReport,
    Waiting,
)

_Result = TypeVar("_Result")


def log_dirs(folder: FolderStore, topics: Iterable[str]) -> list[LogDirInfo]:
    """Return all log dirs, each with counts of the replicas of these topics that it holds."""
    return log_dirs_of(folder.manager, topics, functools.partial(staged_size, folder.files))


def collect_garbage(
    folder: FolderStore, topics: Sequence[str] | None, *, staging_retention_ms: int, dry_run: bool
) -> Garbage:
    """Delete what `Cluster.collect_garbage` says, or only look; the arguments are its own."""
    manager, replicas = folder.manager, folder.snapshots.replicas
    given = folder.topic_names() if topics is None else topics
    damaged = damaged_topics(folder.topic, given) if topics is None else {}
    names = [name for name in given if name not in damaged]
    skipped: dict[TopicPartition, str] = {}

    def partitions(names: Iterable[str]) -> list[TopicPartition]:
        return [tp for name in names for tp in manager.partitions(name)]

    def usable(names: Iterable[str]) -> list[TopicPartition]:
        every = partitions(names)
        skipped.update(folder.unreadable(every))
        return [tp for tp in every if tp not in skipped]

    def of_each(work: Callable[[list[str]], _Result]) -> _Result:
        return work(names) if topics is not None else skipping_deleted(folder.topic, names, work)

    of_each(partitions)  # Before anything is deleted, it fails for a topic that does not exist.
    jobs, not_removed, waiting = _jobs(folder, staging_retention_ms, dry_run=dry_run)
    if dry_run:
        deletions = of_each(lambda some: manager.planned_deletions(usable(some), replicas))
        deleted = manager.planned_removals()
    else:
        deleted = manager.remove_deleted_topics()
        commits = folder.coordinator(flush=True)
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


def _jobs(
    folder: FolderStore, retention_ms: int, *, dry_run: bool
) -> tuple[list[AbandonedJob], list[NotRemoved], list[Waiting]]:
    """Remove, or only find, abandoned jobs; return them, what was not removed, and jobs that may go on."""
    look = abandoned_jobs if dry_run else remove_abandoned_jobs
    found, kept, waiting = list[AbandonedJob](), list[NotRemoved](), list[Waiting]()
    for log_dir in folder.manager.dirs.all:
        if folder.manager.dirs.is_online(log_dir.node_id):  # so it is ours
            where, when = (folder.files, log_dir.staging), expiring_ms(folder.manager.now_ms())
            gone, not_removed = look(*where, retention_ms=retention_ms, now_ms=when)
            found += gone
            kept += not_removed
            waiting += waiting_jobs(*where, retention_ms=retention_ms, now_ms=when)
    return found, kept, waiting


def repair(
    folder: FolderStore, partitions: Sequence[TopicPartition], *, dry_run: bool
) -> Iterator[RepairReport]:
    """Repair these partitions, as `Cluster.repair` does."""
    return _repair(folder, dry_run=dry_run).run(partitions)


def repair_all(folder: FolderStore, *, dry_run: bool) -> Iterator[RepairReport]:
    """Repair all partitions, those of lost topics too, as `Cluster.repair` does."""
    repair = _repair(folder, dry_run=dry_run)
    restored = lost_topics.restore(folder.manager, INTERNAL_TOPICS, dry_run=dry_run)
    every: list[TopicPartition] = []
    for name in folder.topic_names(internal=True):
        try:
            every += folder.manager.partitions(name)
        except UnknownTopicOrPartitionError:
            continue  # deleted since the names were listed
        except KafkaStorageError as error:  # the others are repaired all the same
            restored.setdefault(name, lost_topics.LostTopic(None, str(error)))
    return repair.run(every, restored, skip_deleted=True)


def _repair(folder: FolderStore, *, dry_run: bool) -> ClusterRepair:
    return ClusterRepair(folder.manager, folder.coordinator(flush=True), dry_run=dry_run)


def verify(folder: FolderStore, partitions: Sequence[TopicPartition]) -> Iterator[RepairReport]:
    """Check these partitions, as `Cluster.verify` does."""
    for report in repair(folder, partitions, dry_run=True):
        yield with_followers(folder.manager, report, folder.coordinator(flush=True))


def verify_all(folder: FolderStore) -> Iterator[RepairReport]:
    """Check all partitions, and the records of commits and groups, as `Cluster.verify` does."""
    for report in repair_all(folder, dry_run=True):
        yield with_followers(folder.manager, report, folder.coordinator(flush=True))
    records: tuple[tuple[TopicPartition, str, Callable[[], object]], ...] = (
        (COMMITS, "commits", lambda: list(folder.commits.read())),
        (CONSUMER_OFFSETS, "consumer groups", folder.groups.groups),
    )
    for topic_partition, what, read in records:
        try:
            read()
        except (OSError, KBatchError) as error:
            yield from unreadable(folder.manager, topic_partition, what, error)
