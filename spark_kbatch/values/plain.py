"""Decoded columns as Python objects that JSON has: for people, and not for many records.

Arrow                          object
struct, map                    dict
list                           list
bytes                          text, or {"base64": ...} if they are not UTF-8
timestamp, date, decimal       text, which loses no digit; of a year that no calendar has, the number that is stored
float that JSON does not have  "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import base64
import itertools
import math
from datetime import date
from typing import Any

import pyarrow as pa

_DAYS = range((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days + 1)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
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
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _times(array)
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


def _times(array: pa.Array) -> list[Any]:
    numbers = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64()).to_pylist()
    per_day = 1 if pa.types.is_date32(array.type) else _PER_DAY[array.type.unit]
    is_in_range = [None if one is None else one // per_day in _DAYS for one in numbers]
    texts = array.filter(pa.array(is_in_range, pa.bool_())).cast(pa.string()).to_pylist()
    left = iter(texts)
    return [next(left) if fits else one for one, fits in zip(numbers, is_in_range, strict=True)]


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _number(number: float | None) -> float | str | None:
    if number is None or math.isfinite(number):
        return number
    return _NO_NUMBERS.get(number, "NaN")
