"""Decoded rows of any format: values, and the reason where a row has none; text; JSON.

`plain` returns decoded columns as Python objects that JSON has: for people, and not for many
records.

Arrow                          object
struct, map                    dict
list                           list
bytes                          text, or {"base64": ...} if they are not UTF-8
timestamp, date, decimal       text, which loses no digit; of a year that no calendar has, the number that is stored
float that JSON does not have  "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.terminal import text_or_base64
from spark_kbatch.values.flat import Array
from spark_kbatch.values.framing import NO_SCHEMA_ID

OnBadText = Literal["strict", "replace"]  # what to do about bytes that are not UTF-8

DAYS = range((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days + 1)
PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}


class RowError(NamedTuple):
    """The error of one row. Its reader adds the topic and the offset."""

    row: int  # in the array that was given
    reason: str
    path: str = ""  # of the field; empty for the whole value
    position: int | None = None  # in bytes, from the start of the row, with its framing
    schema_id: int | None = None

    def __str__(self) -> str:
        where = [] if self.position is None else [f"byte {self.position}"]
        is_known = self.schema_id is not None and self.schema_id >= 0
        where += [f"schema id {self.schema_id}"] if is_known else []
        field = f"{self.path}: " if self.path else ""
        return f"{field}{self.reason}" + (f" ({', '.join(where)})" if where else "")


@dataclass(frozen=True, eq=False)
class DecodedValues:
    """Values of one call, in the order of the rows that were given."""

    values: (
        pa.Array | pa.ChunkedArray
    )  # chunked as the input, in more chunks where one would be too large
    schema_ids: Array  # int32[n]; NO_SCHEMA_ID for a row that has no framing, and for null
    errors: tuple[RowError, ...]  # in the order of rows

    def error_texts(self) -> pa.Array:
        """Return string[n], null for rows without an error."""
        if not self.errors:
            return pa.nulls(len(self.values), pa.string())
        texts: list[str | None] = [None] * len(self.values)
        for error in self.errors:
            texts[error.row] = str(error)
        return pa.array(texts, pa.string())


class TextDecoder:
    """Decodes byte strings into strings; with "replace", U+FFFD is put for bytes that are not UTF-8."""

    def __init__(self, on_bad_text: OnBadText = "strict") -> None:
        self._on_bad_text = on_bad_text

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode an array of binary, whose bytes are shared, but for what is not UTF-8."""
        schema_ids = np.full(len(array), NO_SCHEMA_ID, np.int32)
        try:
            values = array.cast(pa.string())  # shares the bytes, and checks them
        except pa.ArrowInvalid:
            texts: list[str | None] = []
            errors = []
            for row, data in enumerate(array.to_pylist()):
                try:
                    texts.append(None if data is None else data.decode(errors=self._on_bad_text))
                except UnicodeDecodeError as error:
                    texts.append(None)
                    errors.append(
                        RowError(
                            row, f"{data[error.start]:#04x} is not UTF-8", position=error.start
                        )
                    )
            return DecodedValues(pa.array(texts, pa.string()), schema_ids, tuple(errors))
        return DecodedValues(values, schema_ids, ())


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
        return [text_or_base64(one) for one in array.to_pylist()]
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
    per_day = 1 if pa.types.is_date32(array.type) else PER_DAY[array.type.unit]
    is_in_range = [None if one is None else one // per_day in DAYS for one in numbers]
    texts = array.filter(pa.array(is_in_range, pa.bool_())).cast(pa.string()).to_pylist()
    left = iter(texts)
    return [next(left) if fits else one for one, fits in zip(numbers, is_in_range, strict=True)]


def _number(number: float | None) -> float | str | None:
    if number is None or math.isfinite(number):
        return number
    return _NO_NUMBERS.get(number, "NaN")
