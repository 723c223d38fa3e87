"""The records that a partition gives up when an operator goes on without its in-sync replicas.

The replica that was written furthest goes on. Records after its end, that only in-sync replicas had, are given up; so
are all records where no replica is left. Where they end is known only if all in-sync replicas can be read, or the end
was kept for them by a commit.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_kbatch.model import TopicPartition
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.store.reports import GivenUp


def given_up(
    manager: ReplicaManager, topic_partition: TopicPartition, lost: Collection[int] = ()
) -> GivenUp:
    """Return what a partition gives up if it goes on without the in-sync replicas that cannot be used.

    Takes no lock and changes nothing.

    Args:
        manager: the cluster's.
        topic_partition: whose in-sync replicas cannot be used.
        lost: nodes that cannot be used, whatever is at their paths.
    """
    view = manager.partition(topic_partition).view
    state = view.state()
    best = view.furthest(lost)
    ends = dict.fromkeys(state.isr, -1)
    for node in ends:
        log_state = None if node in lost else view.log_state(node, to_write=False)
        known = [one for one in (log_state, state.unwritten.get(node)) if one is not None]
        ends[node] = max((one.log_end_offset for one in known), default=-1)
    return GivenUp(
        topic_partition,
        None if best is None else best[1].log_end_offset,
        None if -1 in ends.values() else max(ends.values()),
        tuple(node for node in ends if best is None or node != best[0]),
    )


def given_up_without(manager: ReplicaManager, nodes: Collection[int]) -> list[GivenUp]:
    """Return what all partitions give up together if these nodes are lost; takes no lock."""
    found = []
    for topic in manager.metadata.topics.names(internal=True):
        for tp in manager.partitions(topic):
            rows = manager.partition(tp).view.describe()
            is_there = any(row.in_sync and row.node_id not in nodes for row in rows)
            if not is_there and any(row.node_id in nodes for row in rows):
                found.append(given_up(manager, tp, nodes))
    return found
