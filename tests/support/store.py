"""The one way of tests into what is below the public class."""

from __future__ import annotations

from spark_kbatch import Cluster
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.consumer.topic_reader import TopicReader


def store_of(cluster: Cluster) -> FolderStore:
    """Return the logs, locks and metadata that a cluster in a folder works on."""
    store = cluster._store
    assert isinstance(store, FolderStore)
    return store


def reader_of(topics: Cluster) -> TopicReader:
    """Return what plans and reads offset ranges, as Spark's tasks do."""
    return topics._reader
