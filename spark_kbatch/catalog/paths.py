"""The paths of a cluster's files and folders, computed without access to a disk.

`__init__` draws the tree.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import ensure_valid_topic

_NAME_MAX = 200  # characters of a directory's name that are kept in another one


class ClusterPaths:
    """The paths of the files and folders of one cluster, below its folder PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster_file = path / "cluster.json"
        self.topics_dir = path / "topics"
        self.partitions_dir = path / "partitions"
        self.deleted_dir = path / "deleted"
        self.locks_dir = path / "locks"
        self.server_file = path / "server.json"
        self.server_lock = self.locks_dir / "server"
        self.snapshots_dir = path / "snapshots"
        self.transactions_dir = path / "transactions"

    def topic_file(self, topic: str) -> Path:
        """Return the path of a topic's file.

        Raises:
            InvalidTopicError: Kafka would refuse the name.
        """
        return self.topics_dir / f"{ensure_valid_topic(topic)}.json"

    def partition_file(self, topic_partition: TopicPartition) -> Path:
        """Return the path of the file with a partition's leader and ISR, which may not exist."""
        topic, partition = topic_partition
        return self.partitions_dir / ensure_valid_topic(topic) / f"{partition}.json"

    def deleted_file(self, topic_id: str) -> Path:
        """Return the path of the file that says that a topic was deleted."""
        return self.deleted_dir / f"{topic_id}.json"


def node_dir(folder: Path, node_id: int) -> Path:
    """Return the path of a node's log dir in a folder."""
    return folder / f"broker-{node_id}"


def staging_of(log_dir: Path) -> Path:
    """Return the path of staging-N, the folder that Spark tasks write to, beside the log dir broker-N."""
    return log_dir.with_name(log_dir.name.replace("broker", "staging"))


def mirror_of(log_dir: Path) -> Path:
    """Return the path of mirror-N, the folder with copies of JSON files, beside the log dir broker-N."""
    return log_dir.with_name(log_dir.name.replace("broker", "mirror"))


def stray_of(directory: Path) -> Path:
    """Return where a partition's directory is moved that is another topic's: a broker leaves such names alone."""
    return directory.with_name(f"{directory.name[:_NAME_MAX]}.{uuid.uuid4().hex}-stray")
