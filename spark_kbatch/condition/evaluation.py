"""Which rows of Arrow columns a condition is TRUE for, as in Spark: with TRUE, FALSE and null for UNKNOWN.

Arrow's kernels do what Spark does for bytes, text, whole numbers, times, and decimals of one type. Where they do not:
a list's NULL, and a null, make a miss unknown; LIKE of bytes is one of characters. A NaN is less than no number, and as
`>` is NOT `<=` here, that makes it greater than all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.condition.binding import Bound, Leaf
from spark_kbatch.condition.tree import AllOf

# A column of rows, or the value that all rows have.
Column: TypeAlias = pa.Array | pa.Scalar

_TRUE, _UNKNOWN = pa.scalar(True), pa.scalar(None, pa.bool_())
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # one broken character, in Java


def matching(condition: Bound, columns: Mapping[str, Column]) -> Column:
    """Return boolean[n], null for UNKNOWN, or one such value for all rows.

    Tests of columns that are not there are taken for TRUE, so a row that is not TRUE cannot become so.

    Args:
        condition: bound to columns of these types.
        columns: by name; `timestamp` in ms since 1970, as records have it.
    """
    if isinstance(condition, Leaf):
        column = columns.get(condition.column)
        return _TRUE if column is None else _tested(condition, column)
    join = pc.and_kleene if isinstance(condition, AllOf) else pc.or_kleene
    parts = map(functools.partial(matching, columns=columns), condition.parts)
    return functools.reduce(join, parts)


def _tested(leaf: Leaf, column: Column) -> Column:
    for part in leaf.path:
        column = _part(column, part)
    match leaf.operator:
        case "IS NULL":
            found = pc.is_null(column)
        case "LIKE":
            texts = _as_text(column) if pa.types.is_binary(column.type) else column
            found = pc.match_substring_regex(texts, leaf.value)
        case "IN":
            found = _is_one_of(column.cast(leaf.value.type), leaf)
        case "<":
            found = pc.less(column.cast(leaf.value.type), leaf.value)
        case _:
            found = pc.less_equal(column.cast(leaf.value.type), leaf.value)
    return pc.invert(found) if leaf.is_negated else found


def _is_one_of(column: Column, leaf: Leaf) -> Column:
    if len(leaf.value) == 1 and not leaf.has_null:
        return pc.equal(column, leaf.value[0])
    if pa.types.is_floating(column.type):
        column = pc.add(column, 0.0)  # zeros of both signs are one value, but not for `is_in`
    found = pc.is_in(column, value_set=leaf.value)
    is_known = pc.is_valid(column)
    return pc.if_else(pc.and_(is_known, found) if leaf.has_null else is_known, found, _UNKNOWN)


def _part(column: Any, part: int | str) -> pa.Array:
    if isinstance(part, int):
        return pc.struct_field(column, [part])
    if pa.types.is_map(column.type):
        return pc.map_lookup(column, pa.scalar(part, column.type.key_type), "first")
    # Of headers: the value of the last one of that name.
    parents, flat = pc.list_parent_indices(column), pc.list_flatten(column)
    places = np.flatnonzero(pc.equal(flat.field("key"), part))
    last = np.full(len(column), -1, np.int64)
    last[np.asarray(parents)[places]] = places
    return flat.field("value").take(pa.array(last, mask=last < 0))


def _as_text(column: pa.Array) -> pa.Array:
    """Return bytes as text, with U+FFFD for what is not UTF-8, as Java has it."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    # All are decoded at once, each with a NUL at its end: no broken character reaches over that, and the n-th NUL of
    # the bytes is the n-th of the text.
    ended = pc.binary_join_element_wise(column, b"\0", b"", null_handling="replace")
    _, offsets, data = ended.buffers()
    ends = np.frombuffer(offsets, np.int32)[1 : len(ended) + 1]
    given = data.slice(0, ends[-1])
    nuls = np.cumsum(np.frombuffer(given, np.uint8) == 0)[ends - 1]
    decoded = _SURROGATES.sub(b"\xff", given).decode(errors="replace").encode()
    text = np.frombuffer(decoded, np.uint8)
    places = np.flatnonzero(text == 0)[nuls - 1]
    buffers = [np.append(0, places - np.arange(len(places))), np.delete(text, places)]
    texts = pa.Array.from_buffers(
        pa.large_string(), len(ended), [None, *(pa.py_buffer(one) for one in buffers)]
    )
    return pc.if_else(pc.is_valid(column), texts, None)
