"""The log dirs of a cluster in a folder and the replicas on them, with the state of all by a broker's metrics.

    ReplicaManager, LogManager, Log         as of the call, whichever process wrote
    KafkaController                         of all topics, internal ones too, as in Kafka
    BrokerTopicMetrics                      what this process has appended and read since the cluster was opened

Source: Kafka docs/operations/monitoring.md; core/.../server/ReplicaManager.scala, storage/.../log/UnifiedLog.java.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.staging import staged_size
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.replica import administration
from spark_kbatch.store.listing import skipping_deleted
from spark_kbatch.store.reports import GivenUp, LogDirInfo, ReplicaInfo

_Result = TypeVar("_Result")


class FolderDisks:
    """The log dirs of one cluster in a folder; a `store.Disks`."""

    def __init__(self, parts: FolderParts) -> None:
        self._parts = parts

    def log_dirs(self) -> list[LogDirInfo]:
        """Return the log dirs, with counts of all replicas, internal topics included."""
        staged = functools.partial(staged_size, self._parts.files)
        manager = self._parts.manager
        return self._of_all(lambda names: administration.log_dirs_of(manager, names, staged))

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
            self._parts.coordinator(flush=True),
            skip_deleted=topics is None,
        )

    def replace_log_dir(self, node_id: int, *, unclean: bool, dry_run: bool) -> list[GivenUp]:
        """Replace the lost log dir of a node."""
        commits = self._parts.coordinator(flush=True)
        return administration.replace_log_dir(
            self._parts.manager, node_id, commits, unclean=unclean, dry_run=dry_run
        )

    def elect_unclean(self, topic: str, *, dry_run: bool) -> list[GivenUp]:
        """Let replicas lead that are not in sync."""
        commits = self._parts.coordinator(flush=True)
        if topic == TRANSACTION_STATE_TOPIC:
            return commits.elect_unclean(dry_run=dry_run)
        return administration.elect_unclean(self._parts.manager, commits, topic, dry_run=dry_run)

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
