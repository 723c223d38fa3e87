"""Where the replicas are and how they are, for people who look; and what an operator may do about it.

Source: Kafka tools/.../LogDirsCommand.java, TopicCommand.scala.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica.locks import Commits
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import ReplicaInfo


class LogDirInfo(NamedTuple):
    """One log dir, as this process sees it."""

    node_id: int
    path: str
    why_offline: str | None  # None where it is online
    replicas: int  # partitions of which it holds a replica
    leaders: int  # of those it leads
    not_in_sync: int  # of those it lacks something
    only_copies: int  # of those it has the only replica there is


def every_partition(manager: ReplicaManager, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of these topics."""
    return [tp for topic in topics for tp in manager.partitions(topic)]


def replicas_of(
    manager: ReplicaManager, topics: Iterable[str]
) -> dict[TopicPartition, list[ReplicaInfo]]:
    """The replicas of all partitions of these topics, in order of preference."""
    return {tp: manager.partition(tp).describe() for tp in every_partition(manager, topics)}


def log_dirs_of(manager: ReplicaManager) -> list[LogDirInfo]:
    """All log dirs, with what they hold of all topics, the cluster's own too."""
    manager.dirs.look_again()
    by_node: dict[int, list[tuple[ReplicaInfo, bool]]] = {}
    for replicas in replicas_of(manager, manager.metadata.topics.names(internal=True)).values():
        for replica in replicas:
            by_node.setdefault(replica.node_id, []).append((replica, len(replicas) == 1))
    return [
        LogDirInfo(
            one.node_id,
            str(one.path),
            manager.dirs.why_offline(one.node_id),
            len(found := by_node.get(one.node_id, [])),
            sum(replica.is_leader for replica, _ in found),
            sum(not replica.in_sync for replica, _ in found),
            sum(is_only for _, is_only in found),
        )
        for one in manager.dirs.all
    ]


def replicate_all(
    manager: ReplicaManager, topics: Sequence[str], commits: Commits
) -> list[TopicPartition]:
    """Fill up what can be used and lacks something; the partitions that are not in sync all the same.

    What a log dir lacks it gets in pieces, between which others may append.
    """
    manager.dirs.look_again()
    commits.roll_forward()  # which begins with the replicas of the commits
    left = []
    for topic_partition in every_partition(manager, topics):
        partition = manager.partition(topic_partition)
        ends: list[int] | None = None
        while len(partition.state().isr) < len(partition.replicas):
            manager.replicate([topic_partition], commits, flush=True)
            before, ends = ends, _ends(partition.describe())
            if ends == before:  # Nothing has come any further.
                left.append(topic_partition)
                break
    return left


def _ends(replicas: Iterable[ReplicaInfo]) -> list[int]:
    return [replica.log_end_offset for replica in replicas]


def replace_log_dir(manager: ReplicaManager, node_id: int) -> None:
    """Let an empty directory be the log dir of a node from now on; its replicas are made anew there.

    Raises:
        ConfigError: no such node, it is online, or the directory is not empty.
    """
    with manager.locks.metadata():
        if 0 <= node_id < len(manager.dirs.all) and manager.dirs.is_online(node_id):
            raise ConfigError(
                f"the log dir of node {node_id} is online; only one that is lost is replaced"
            )
        manager.metadata.cluster_file.replace_log_dir(node_id)
    manager.dirs.look_again()
