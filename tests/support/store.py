"""The one way of tests into what is below the public classes."""

from __future__ import annotations

from spark_kbatch import BrokerLogs, Cluster
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.consumer.topic_reader import TopicReader


def store_of(cluster: Cluster) -> FolderStore:
    """Return the logs, locks and metadata that a cluster works on."""
    return cluster._parts


def reader_of(topics: Cluster | BrokerLogs) -> TopicReader:
    """Return what plans and reads offset ranges, as Spark's tasks do."""
    return topics._reader
