"""The last records of topics, as text for the report of a failed test."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.errors import KBatchError
from spark_kbatch.terminal import field, visible
from spark_kbatch.testing.clusters import AnyCluster

_SHOWN_BYTES = 300  # of a key, value or header


def last_records(own: Cluster | None, touched: Iterable[tuple[AnyCluster, str]], rows: int) -> str:
    """Return the last `rows` records of each topic as text, or why a topic cannot be read.

    Args:
        own: the test's own cluster: any of its topics may have been made by what is tested.
        touched: the topics that the test has named, with their clusters.
        rows: with 0 nothing is shown.
    """
    if rows < 1:
        return ""
    topics = dict.fromkeys(touched)
    if own is not None and not own.is_closed:
        topics |= dict.fromkeys((own, name) for name in own.topic_names())
    lines = (
        line
        for cluster, topic in topics
        if not cluster.is_closed
        for line in _of_topic(cluster, topic, rows)
    )
    return "\n".join(lines)


def _of_topic(cluster: AnyCluster, topic: str, rows: int) -> list[str]:
    where = getattr(cluster, "path", None) or getattr(cluster, "bootstrap_servers", "")
    try:
        offsets = {
            info.topic_partition.partition: info.offsets for info in cluster.describe([topic])
        }
        starts = {
            partition: max(one.log_start_offset, one.last_stable_offset - rows)
            for partition, one in offsets.items()
        }
        found = cluster.read(topic, start=starts).read_all().to_pylist()
    except (KBatchError, OSError) as error:
        return [visible(f"{topic}, in {where}: {error}")]
    total = sum(one.last_stable_offset - one.log_start_offset for one in offsets.values())
    last = heapq.nlargest(rows, found, key=lambda row: (row["timestamp"], row["offset"]))
    told = f"{total} record{'s' * (total != 1)}" + (f", the last {rows}:" if total > rows else "")
    head = visible(f"{topic}, in {where}: {told}")
    return [head, *_aligned([_cells(row) for row in reversed(last)])]


def _cells(row: dict[str, Any]) -> list[str]:
    headers = ", ".join(f"{_shown(h['key'].encode())}={_shown(h['value'])}" for h in row["headers"] or ())  # fmt: skip
    return [
        f"{row['partition']}:{row['offset']}",
        row["timestamp"].isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        _shown(row["key"]),
        _shown(row["value"]),
        headers,
    ]


def _shown(data: bytes | None) -> str:
    if data is None or len(data) <= _SHOWN_BYTES:
        return field(data)
    return f"{field(data[:_SHOWN_BYTES])}... ({len(data)} bytes)"


def _aligned(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    table = [["at", "time", "key", "value", "headers"], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    return [
        "  " + "  ".join([*map(str.ljust, row[:3], widths), *row[3:]]).rstrip() for row in table
    ]
