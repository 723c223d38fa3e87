"""The one way of tests into what is below the public class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.producer.producer import Producer
from spark_kbatch.store.transport import Transport


def store_of(cluster: Cluster) -> FolderParts:
    """Return the logs, locks and metadata that a cluster in a folder works on."""
    store = cluster._store
    assert isinstance(store, FolderStore)
    return store.parts


def append_records(parts: FolderParts, *, flush: bool, **how: Any) -> None:
    """Append batches to a cluster's logs, as `ReplicaManager.append_records` does."""
    parts.manager.append_records(flush=flush, commits=parts.coordinator(flush=flush), **how)


def producer_to(
    cluster: Cluster, transport: Transport, options: Mapping[str, Any], **how: Any
) -> Producer:
    """Return a producer into a cluster in a folder by a transport of the test's.

    Args:
        cluster: whose topics and producer ids it has.
        transport: of its batches.
        options: of the producer.
        how: what else `Producer` is to have.
    """
    store = store_of(cluster)
    return Producer(
        parse_producer_options(options),
        transport,
        FolderCatalog(store).finder(create=False),
        now_ms,
        **{"new_producer_id": store.new_producer_id, **how},
    )


def reader_of(topics: Cluster) -> TopicReader:
    """Return what plans and reads offset ranges, as Spark's tasks do."""
    return topics._reader
