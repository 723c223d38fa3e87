"""Hypothesis strategies: rows in every layout that Arrow allows, and damaged bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

END_OF_YEAR_9999_MS = 253_402_300_799_999

# Sizes around the point where a zigzag varint grows to two bytes, 63 and 64, and empty.
_sizes = st.sampled_from([0, 1, 2, 5, 63, 64, 200])
_bytes = st.binary(max_size=8) | _sizes.map(lambda size: b"x" * size)
# Surrogates have no UTF-8.
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# Few names, so that headers of one record often share theirs.
_header_keys = st.sampled_from(["", "a", "b", "trace-id", "höhe"])
_headers = st.lists(
    st.fixed_dictionaries({"key": _header_keys, "value": st.none() | _bytes}), max_size=3
)
_timestamps = st.one_of(
    st.integers(0, END_OF_YEAR_9999_MS),
    st.integers(1_700_000_000_000, 1_700_000_000_100),
    st.sampled_from([-1, 0, END_OF_YEAR_9999_MS]),
)
_byte_types = st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])


@st.composite
def arrow_rows(draw: st.DrawFn, *, rows_max: int = 8) -> pa.RecordBatch:
    """Draw rows with columns key, value, timestamp (ms) and headers; all but value may be absent.

    Columns are binary, string or list, normal or large; nulls may hide bytes; batches may be slices, and
    so may the children of lists.
    """
    rows_count = draw(st.integers(0, rows_max))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    total = before + rows_count + after
    columns = {
        "key": _byte_column(draw, total),
        "value": _byte_column(draw, total),
        "timestamp": pa.array(
            draw(st.lists(_timestamps, min_size=total, max_size=total)), pa.int64()
        ),
        "headers": _headers_column(draw, total),
    }
    for name in draw(st.sets(st.sampled_from(["key", "timestamp", "headers"]))):
        del columns[name]
    return pa.RecordBatch.from_pydict(columns).slice(before, rows_count)


def _byte_column(draw: st.DrawFn, rows_count: int) -> pa.Array:
    arrow_type = draw(_byte_types)
    is_text = arrow_type in (pa.string(), pa.large_string())
    present: st.SearchStrategy[str | bytes] = _texts if is_text else _bytes
    values = draw(st.lists(st.none() | present, min_size=rows_count, max_size=rows_count))
    ghost = draw(st.sampled_from(["", "ghost"]))
    return _array(values, arrow_type, ghost if is_text else ghost.encode())


def _headers_column(draw: st.DrawFn, rows_count: int) -> pa.Array:
    header_type = pa.struct(
        [
            ("key", draw(st.sampled_from([pa.string(), pa.large_string()]))),
            ("value", draw(st.sampled_from([pa.binary(), pa.large_binary()]))),
        ]
    )
    list_of = draw(st.sampled_from([pa.list_, pa.large_list]))
    values = draw(st.lists(st.none() | _headers, min_size=rows_count, max_size=rows_count))
    ghost = draw(st.sampled_from([[], [{"key": "ghost", "value": b"boo"}]]))
    array = _array(values, list_of(header_type), ghost)
    skipped = draw(st.integers(0, 2))
    junk = pa.array([{"key": "junk", "value": None}] * skipped, header_type)
    children = pa.concat_arrays([junk, array.values]).slice(skipped)
    return pa.Array.from_buffers(array.type, len(array), array.buffers()[:2], children=[children])


def _array(values: Sequence[Any], arrow_type: pa.DataType, ghost: Any) -> pa.Array:
    """Return an array whose nulls hide `ghost`, which Arrow ignores."""
    filled = pa.array([ghost if value is None else value for value in values], arrow_type)
    if None not in values:
        return filled
    validity = pa.array([value is not None for value in values]).buffers()[1]
    is_list = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
    buffers = filled.buffers()[: 2 if is_list else 3]
    return pa.Array.from_buffers(
        arrow_type,
        len(values),
        [validity, *buffers[1:]],
        children=[filled.values] if is_list else None,
    )


def corruptions(data: bytes) -> st.SearchStrategy[bytes]:
    """Draw damaged forms of `data`, never `data` itself: a flipped byte, a truncated end, a spliced range."""
    positions = st.integers(0, len(data) - 1)

    def flip(position: int, mask: int) -> bytes:
        return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]

    def splice(position: int, removed: int, inserted: bytes) -> bytes:
        return data[:position] + inserted + data[position + removed :]

    damaged = st.one_of(
        st.builds(flip, positions, st.integers(1, 255)),
        positions.map(lambda position: data[:position]),
        st.builds(splice, positions, st.integers(0, 8), st.binary(max_size=8)),
    )
    return damaged.filter(lambda other: other != data)
