"""Which rows of Arrow columns a condition is TRUE for, as in Spark: with TRUE, FALSE and null for UNKNOWN.

Arrow's kernels do what Spark does for bytes, text, whole numbers, times, and decimals of one type. Where they do not:
a NaN is greater than every number; a list's NULL, and a null, make a miss unknown; LIKE of bytes is one of
characters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.condition.binding import All, Bound, Leaf

# A column of rows, or the value that all rows have.
Column: TypeAlias = pa.Array | pa.Scalar

_TRUE = pa.scalar(True)
_KERNELS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")  # one broken character, in Java


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
    join = pc.and_kleene if isinstance(condition, All) else pc.or_kleene
    return functools.reduce(join, (matching(one, columns) for one in condition.conditions))


def _tested(leaf: Leaf, column: Column) -> Column:
    for part in leaf.path:
        column = _part(column, part)
    if leaf.operator == "IS NULL":
        found = pc.is_null(column)
    elif leaf.operator == "TRUE":
        found = column
    elif leaf.operator == "CONSTANT":
        found = _where_valid(column, pa.scalar(leaf.value))
    elif leaf.operator == "LIKE":
        texts = _as_text(column) if leaf.kind == "bytes" else column
        found = pc.match_substring_regex(texts, leaf.value)
    else:
        found = _compared(leaf, column)
    return pc.invert(found) if leaf.is_negated else found


def _compared(leaf: Leaf, column: Column) -> Column:
    if column.type != leaf.value.type:
        column = column.cast(leaf.value.type)
    if leaf.operator == "IN":
        # Zeros of both signs are one value, but not for `is_in`.
        known = pc.add(column, 0.0) if leaf.kind == "double" else column
        found = pc.is_in(known, value_set=leaf.value)
        if leaf.has_null:
            found = pc.if_else(found, True, pa.scalar(None, pa.bool_()))
        return _where_valid(column, found)
    if leaf.kind == "double" and leaf.operator[0] == ">":
        is_less = pc.less_equal if leaf.operator == ">" else pc.less
        return pc.invert(is_less(column, leaf.value))
    return _KERNELS[leaf.operator](column, leaf.value)


def _where_valid(column: Column, found: Column) -> Column:
    """Return what was found, null where the column is null."""
    return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))


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
        texts = [
            None if one is None else _SURROGATES.sub(b"\xff", one).decode(errors="replace")
            for one in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
