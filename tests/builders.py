"""Rows to test with: valid by default, keyword-only, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tests.reference import Record

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS_TYPE),
    ]
)
FIRST_TIMESTAMP_MS = 1_700_000_000_000


def rows(
    *,
    n: int = 3,
    key_bytes: int = 16,
    value_bytes: int = 100,
    nulls: float = 0.0,
    headers: int = 0,
    seed: int = 0,
) -> pa.RecordBatch:
    """`n` rows of ROWS_SCHEMA, a millisecond or so apart.

    Args:
        n: how many.
        key_bytes: size of every key.
        value_bytes: size of every value; its second half repeats the first, for codecs to find.
        nulls: share of null keys, and of null values, and of null header values.
        headers: headers per row; with none the column is null.
        seed: other seeds give other bytes, times and nulls, of the same sizes.
    """
    rng = random.Random(seed)

    def maybe_null(value: bytes) -> bytes | None:
        return None if rng.random() < nulls else value

    timestamps = [FIRST_TIMESTAMP_MS]
    while len(timestamps) < n:
        timestamps.append(timestamps[-1] + rng.randint(0, 2))
    columns: dict[str, list[Any]] = {
        "key": [maybe_null(_digits(rng, key_bytes)) for _ in range(n)],
        "value": [
            maybe_null((2 * _digits(rng, (value_bytes + 1) // 2))[:value_bytes]) for _ in range(n)
        ],
        "timestamp": timestamps[:n],
        "headers": [
            [{"key": f"h{i}", "value": maybe_null(_digits(rng, 4))} for i in range(headers)] or None
            for _ in range(n)
        ],
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROWS_SCHEMA)


def _digits(rng: random.Random, size: int) -> bytes:
    return rng.randbytes((size + 1) // 2).hex().encode()[:size]


def to_records(rows: pa.RecordBatch, base_offset: int = 0) -> list[Record]:
    """The records that these rows are in a log, the first at `base_offset`.

    Columns may be absent and of Arrow's other string, binary and list types. A null or absent
    timestamp is -1.
    """

    def column(name: str) -> Iterator[Any]:
        if name in rows.schema.names:
            return iter(rows.column(name).to_pylist())
        return iter([None] * rows.num_rows)

    return [
        Record(
            offset,
            -1 if timestamp is None else timestamp,
            _as_bytes(key),
            _as_bytes(value),
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, timestamp, key, value, headers in zip(
            range(base_offset, base_offset + rows.num_rows),
            column("timestamp"),
            column("key"),
            column("value"),
            column("headers"),
            strict=True,
        )
    ]


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
