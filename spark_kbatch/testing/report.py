"""The last records of topics, as text for the report of a failed test.

An error of a hook ends the whole session of pytest. So whatever cannot be read or shown is a line of the report.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_kbatch import Cluster
from spark_kbatch.terminal import counted, field, visible

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SHOWN_BYTES = 300  # of a key, value or header


def last_records(own: Cluster | None, touched: Iterable[tuple[Cluster, str]], rows: int) -> str:
    """Return the last `rows` records of each topic as text, or why a topic cannot be read.

    Args:
        own: the test's own cluster: any of its topics may have been made by what is tested.
        touched: the topics that the test has named, with their clusters.
        rows: with 0 nothing is shown.
    """
    if rows < 1:
        return ""
    topics, lines = dict.fromkeys(touched), list[str]()
    if own is not None and not own.is_closed:
        try:
            topics |= dict.fromkeys((own, name) for name in own.topic_names())
        except Exception as error:  # noqa: BLE001  it would end the session
            lines.append(visible(f"topics in {own.address}: {error}"))
    for cluster, topic in topics:
        if cluster.is_closed:
            continue
        try:
            lines += _of_topic(cluster, topic, rows)
        except Exception as error:  # noqa: BLE001  it would end the session
            lines.append(visible(f"{topic}, in {cluster.address}: {error}"))
    return "\n".join(lines)


def _of_topic(cluster: Cluster, topic: str, rows: int) -> list[str]:
    edges = [info.offsets for info in cluster.describe([topic])]
    table = cluster.read(topic, last=rows).read_all()
    # As numbers: a datetime ends with the year 9999.
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    total = sum(one.last_stable_offset - one.log_start_offset for one in edges)
    last = heapq.nlargest(
        rows, table.to_pylist(), key=lambda row: (row["timestamp"], row["offset"])
    )
    # All of a topic's records are counted where they are read; offsets are also of markers of transactions.
    told = counted(len(last), "record")
    if total > rows:
        told = f"{counted(total, 'offset')}, the last {told}:"
    head = visible(f"{topic}, in {cluster.address}: {told}")
    return [head, *_aligned([_cells(row) for row in reversed(last)])]


def _cells(row: dict[str, Any]) -> list[str]:
    headers = ", ".join(f"{_shown(h['key'].encode())}={_shown(h['value'])}" for h in row["headers"] or ())  # fmt: skip
    return [
        f"{row['partition']}:{row['offset']}",
        _time(row["timestamp"]),
        _shown(row["key"]),
        _shown(row["value"]),
        headers,
    ]


def _time(time_us: int) -> str:
    """Return a time in ISO 8601; in ms past year 9999, and "-" for no time."""
    if time_us < 0:
        return "-"
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us // 1000}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
