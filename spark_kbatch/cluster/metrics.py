"""The state of a cluster's topics, logs and disks, by the names of a Kafka broker's metrics.

    ReplicaManager, LogManager, Log         as of the call, whichever process wrote
    KafkaController                         of all topics, internal ones too, as in Kafka
    BrokerTopicMetrics                      what this process has appended and read since the cluster was opened

Source: Kafka docs/operations/monitoring.md; core/.../server/ReplicaManager.scala, storage/.../log/UnifiedLog.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError
from spark_kbatch.replica import administration


def metrics_of(parts: FolderParts, topics: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of these topics by the names of a Kafka broker's metrics.

    Raises the errors of `administration.replicas_of`.
    """
    manager = parts.manager
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
        "Log": {str(tp): _log(parts, tp) for tp in replicas},
    }


def _log(parts: FolderParts, topic_partition: Any) -> dict[str, int | None]:
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
