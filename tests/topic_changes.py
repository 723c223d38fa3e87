"""Topics that are deleted or get partitions, as the folder looks then: files go and come."""

from __future__ import annotations

import shutil
from dataclasses import replace

from spark_kbatch.cluster import Cluster
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.model import TopicPartition


def delete_topic(cluster: Cluster, name: str) -> None:
    """First what names it, so that nobody finds it half."""
    with cluster.locks.metadata():
        (cluster.path / "topics" / f"{name}.json").unlink()
        for directory in (cluster.path / "broker-0").glob(f"{name}-[0-9]*"):
            if directory.name.rpartition("-")[0] == name:
                shutil.rmtree(directory)


def add_partition(cluster: Cluster, name: str) -> None:
    """One more, and last the file that says so."""
    topic = cluster.topic(name)
    added = TopicPartition(name, topic.partitions)
    directory = cluster.path / "broker-0" / str(added)
    PartitionLog(cluster.files, directory, added, topic.config).create(topic.topic_id)
    with cluster.locks.metadata():
        cluster.metadata.write_topic(replace(topic, partitions=topic.partitions + 1, replicas=()))
