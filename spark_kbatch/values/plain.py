"""Decoded columns as Python objects that JSON has: for people, and not for many records.

Arrow                          object
struct, map                    dict
list                           list
bytes                          text, or {"base64": ...} if they are not UTF-8
timestamp, date, decimal       text, which loses no digit
float that JSON does not have  "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import base64
import itertools
import math
from typing import Any

import pyarrow as pa

_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}


def plain(array: pa.Array) -> list[Any]:
    """Return the values of an array; None for null."""
    kind = array.type
    if pa.types.is_struct(kind):
        columns = [plain(one) for one in array.flatten()]
        names = [one.name for one in kind]
        rows: list[Any] = [
            {name: column[row] for name, column in zip(names, columns, strict=True)}
            for row in range(len(array))
        ]
    elif pa.types.is_map(kind):
        keys, items = plain(array.keys), plain(array.items)
        rows = [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in _spans(array)]
    elif pa.types.is_list(kind):
        items = plain(array.values)
        rows = [items[a:b] for a, b in _spans(array)]
    elif pa.types.is_binary(kind):
        return [None if one is None else _text(one) for one in array.to_pylist()]
    elif pa.types.is_floating(kind):
        return [_number(one) for one in array.to_pylist()]
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return list(array.cast(pa.string()).to_pylist())
    else:
        return list(array.to_pylist())
    return [
        row if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _spans(array: pa.Array) -> list[tuple[int, int]]:
    bounds = array.offsets.to_pylist()
    return list(itertools.pairwise(bounds))


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _number(number: float | None) -> float | str | None:
    if number is None or math.isfinite(number):
        return number
    return _NO_NUMBERS.get(number, "NaN")
