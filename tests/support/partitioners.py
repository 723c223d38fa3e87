"""Partitioners for tests, and the hash that they should compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.partitioner import Partitioner
from spark_kbatch.record import columns as arrow


def murmur2(data: bytes) -> int:
    """Return the hash of Kafka's Utils.murmur2, a signed 32-bit number."""

    def times_m(number: int) -> int:
        return number * 0x5BD1E995 & 0xFFFFFFFF

    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = times_m(int.from_bytes(data[at : at + 4], "little"))
        h = times_m(h) ^ times_m(k ^ k >> 24)
    if whole < len(data):
        h = times_m(h ^ int.from_bytes(data[whole:], "little"))
    h = times_m(h ^ h >> 13)
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def topic(name: str, partitions: int) -> Topic:
    return Topic(name, "id", partitions, TopicConfig())


def partition(
    partitioner: Partitioner,
    rows: pa.RecordBatch,
    *,
    topics: pa.Array | str = "events",
    partitions: pa.Array | None = None,
    keys: pa.Array | None = None,
) -> list[tuple[str, int]]:
    """Return each row's topic and partition, after checking that every row has one."""

    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    columns = arrow.columns(
        rows.num_rows,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(None, rows.num_rows, 0),
        headers=column("headers"),
    )
    slots, counts, places, topics_found = partitioner.partition(columns, topics, partitions, keys)
    assert len(slots) == rows.num_rows
    assert np.bincount(slots, minlength=len(counts)).tolist() == counts.tolist()
    assert all(0 <= place.partition < found.partitions for found, place in places)
    assert {found.name for found in topics_found} == {places[slot][1].topic for slot in slots}
    return [tuple(places[slot][1]) for slot in slots.tolist()]


def a_partitioner(
    counts: Mapping[str, int], *, switch_bytes: int = 1000, seed: int = 0, **options: Any
) -> Partitioner:
    def find(name: str) -> Topic:
        return topic(name, counts[name])

    return Partitioner(find, switch_bytes=switch_bytes, seed=seed, **options)
