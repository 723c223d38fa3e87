"""Reads of a broker's topics with this package, over the network."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.model import IsolationLevel, TopicPartition
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.remote.source import RemoteSource
from tests.support import builders
from tests.support.reference import Record


def source_of(servers: str, **options: str) -> RemoteSource:
    """Return the topics of the cluster at these servers; dots of options are written as underscores."""
    return RemoteSource(parse_cluster_options({"bootstrap_servers": servers} | options, alone=True))


def read(
    servers: str, topic: str, *, isolation_level: str = "read_committed", **options: str
) -> dict[int, list[Record]]:
    """Read a topic, by partition."""
    reader = TopicReader(source_of(servers, **options))
    isolation = IsolationLevel(isolation_level)
    found: dict[int, list[Record]] = {}
    for wanted in reader.offset_ranges(topic, isolation_level=isolation_level):
        found[wanted.topic_partition.partition] = [
            record
            for rows in reader.read_range(wanted, RECORD_SCHEMA.names, isolation)
            for record in builders.as_read(rows)
        ]
    return found


def offsets_by_time(
    servers: str, topic: str, partitions: int, times_ms: Iterable[int], *, isolation_level: str
) -> list[dict[int, int]]:
    """Return the first offset with each time or a later one, by partition; -1 where there is none."""
    isolation = IsolationLevel(isolation_level)
    views = source_of(servers).views(TopicPartition(topic, p) for p in range(partitions))
    found = []
    for time_ms in times_ms:
        at = {
            tp.partition: view.offset_for_timestamp(
                time_ms, end_offset=view.offsets.end_offset(isolation)
            )
            for tp, view in views.items()
        }
        found.append(
            {partition: -1 if one is None else one.offset for partition, one in at.items()}
        )
    return found
