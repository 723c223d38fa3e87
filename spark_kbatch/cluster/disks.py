"""The log dirs of a cluster in a folder: replicas, garbage, export, and the state of all as a broker's metrics.

    ReplicaManager, LogManager, Log         as of the call, whichever process wrote
    KafkaController                         of all topics, internal ones too, as in Kafka
    BrokerTopicMetrics                      what this process has appended and read since the cluster was opened

Source: Kafka docs/operations/monitoring.md; core/.../server/ReplicaManager.scala, storage/.../log/UnifiedLog.java.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions.administration import look_after
from spark_kbatch.commit.staging import (
    abandoned_jobs,
    remove_abandoned_jobs,
    staged_size,
    waiting_jobs,
)
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, KBatchError
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.replica import administration
from spark_kbatch.store.catalog import damaged_topics, skipping_deleted
from spark_kbatch.store.reports import (
    AbandonedJob,
    ExportedPartition,
    Garbage,
    GivenUp,
    LogDirInfo,
    NotRemoved,
    ReplicaInfo,
    Waiting,
)
from spark_kbatch.store.source import Source

_Result = TypeVar("_Result")


class FolderDisks:
    """The log dirs of one cluster in a folder; a `store.Disks`."""

    def __init__(self, parts: FolderParts, source: Source) -> None:
        self._parts, self._source = parts, source

    def log_dirs(self, *, writes: bool = True) -> list[LogDirInfo]:
        """Return the log dirs, with counts of all replicas, internal topics included."""
        staged = functools.partial(staged_size, self._parts.files)
        manager = self._parts.manager
        return self._of_all(
            lambda names: administration.log_dirs_of(manager, names, staged, writes=writes)
        )

    def replicas(self, topics: Sequence[str]) -> dict[TopicPartition, list[ReplicaInfo]]:
        """Return the replicas of all partitions of these topics."""
        return administration.replicas_of(self._parts.manager, topics)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of all topics."""
        return self._of_all(self._metrics)

    def _of_all(self, work: Callable[[list[str]], _Result]) -> _Result:
        topics = self._parts.metadata.topics
        return skipping_deleted(topics.topic, topics.names(internal=True), work)

    def replicate(self, topics: Sequence[str] | None) -> list[TopicPartition]:
        """Let replicas catch up; without topics, those of a topic that is deleted meanwhile are no error."""
        every = self._parts.metadata.topics.names(internal=True) if topics is None else topics
        return administration.replicate_all(
            self._parts.manager,
            every,
            self._parts.commits,
            skip_deleted=topics is None,
        )

    def replace_log_dir(self, node_id: int, *, unclean: bool, dry_run: bool) -> list[GivenUp]:
        """Replace the lost log dir of a node."""
        return administration.replace_log_dir(
            self._parts.manager, node_id, self._parts.commits, unclean=unclean, dry_run=dry_run
        )

    def elect_unclean(self, topic: str, *, dry_run: bool) -> list[GivenUp]:
        """Let replicas lead that are not in sync."""
        commits = self._parts.commits
        if topic == TRANSACTION_STATE_TOPIC:
            return commits.elect_unclean(dry_run=dry_run)
        return administration.elect_unclean(self._parts.manager, commits, topic, dry_run=dry_run)

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
            delete = functools.partial(
                manager.delete_old_segments,
                discard=True,
                skip_deleted=topics is None,
                skipped=skipped,
            )
            deletions = of_each(lambda some: delete(usable(some), self._parts.commits))
            look_after(self._parts, of_each(usable))
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

    def _metrics(self, topics: Sequence[str]) -> dict[str, Any]:
        manager = self._parts.manager
        manager.dirs.look_again()
        replicas = administration.replicas_of(manager, topics)
        in_sync = {tp: sum(one.in_sync for one in found) for tp, found in replicas.items()}
        every = [one for found in replicas.values() for one in found]
        return {
            "ReplicaManager": {
                "PartitionCount": len(replicas),
                "UnderReplicatedPartitions": sum(
                    in_sync[tp] < len(found) for tp, found in replicas.items()
                ),
                "UnderMinIsrPartitionCount": sum(
                    in_sync[tp] < manager.partition(tp).min_isr for tp in replicas
                ),
                "OfflineReplicaCount": sum(one.why_offline is not None for one in every),
            },
            "KafkaController": {
                "GlobalTopicCount": len(topics),
                "GlobalPartitionCount": len(replicas),
                "OfflinePartitionsCount": sum(
                    all(one.why_offline is not None for one in found) for found in replicas.values()
                ),
            },
            "LogManager": {
                "OfflineLogDirectoryCount": sum(
                    manager.dirs.why_offline(one.node_id) is not None for one in manager.dirs.all
                ),
            },
            "BrokerTopicMetrics": manager.topic_metrics.as_dict(),
            "Log": {str(tp): _log(self._parts, tp) for tp in replicas},
        }


def _log(parts: FolderParts, topic_partition: TopicPartition) -> dict[str, int | None]:
    """Return a partition log's offsets, segment count and size by Kafka's metric names.

    None where no replica can be read.
    """
    names = ("LogStartOffset", "LogEndOffset", "NumLogSegments", "Size")
    try:
        _, log, state = parts.snapshots.replicas([topic_partition])[topic_partition]
        segments = len(log.segments.bases(state))
        found = (state.log_start_offset, state.log_end_offset, segments, log.size_in_bytes(state))
    except (OSError, KBatchError):
        return dict.fromkeys(names)
    return dict(zip(names, found, strict=True))


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
