"""Default values of fields: JSON that has to fit a type, and its bytes.

A float or a double may be the text NaN, Infinity or -Infinity, as Avro for Java writes it. Bytes are text of the characters U+0000 to U+00FF, and a union's default is of its first branch that fits.

Source: the Avro specification 1.12, "Complex Types", "Records".
"""

from __future__ import annotations

import itertools
import math
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    PrimitiveSchema,
    RecordSchema,
    Schema,
    UnionSchema,
    described,
    is_utf8,
)
from spark_kbatch.values.times import bounds, default_factor

_FLOAT_MAX = float(np.finfo(np.float32).max)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_VALUES_MAX = 10_000  # of one default: two of each level in 40 levels are 10**12


def why_unfit(schema: Schema, value: Any) -> str:
    """Return why JSON is no default of a type, as the end of a sentence; empty if it is one.

    One that contains itself without an end is none.
    """
    try:
        fits = _Walk().fits(schema, value)
    except RecursionError:
        fits = False
    except SchemaError as error:
        return error.reason
    return "" if fits else f"is no {described(schema)}"


def branch_of(union: UnionSchema, value: Any) -> int:
    """Return the number of the branch that a default, which fits, is of."""
    walk = _Walk()
    return next(number for number, one in enumerate(union.branches) if walk.fits(one, value))


class _Walk:
    """A look at the values of one default. Records that lie in each other have the same ones many times."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}  # by schema and value, which outlive the walk

    def fits(self, schema: Schema, value: Any) -> bool:
        key = id(schema), id(value)
        if key not in self._known:
            _ensure_not_too_many(len(self._known))
            self._known[key] = False  # what contains itself fits nothing
            self._known[key] = self._fits(schema, value)
        return self._known[key]

    def _fits(self, schema: Schema, value: Any) -> bool:
        match schema:
            case UnionSchema():
                return any(self.fits(one, value) for one in schema.branches)
            case RecordSchema():
                return isinstance(value, dict) and all(
                    self.fits(field.type, value.get(field.name, field.default))
                    for field in schema.fields
                )
            case ArraySchema():
                return isinstance(value, list) and all(
                    self.fits(schema.items, one) for one in value
                )
            case MapSchema():
                return isinstance(value, dict) and all(
                    is_utf8(key) and self.fits(schema.values, one) for key, one in value.items()
                )
            case EnumSchema():
                return isinstance(value, str) and value in schema.numbers
            case FixedSchema():
                return (
                    _is_latin(value) and len(value) == schema.size and _fits_decimal(schema, value)
                )
            case _:
                return _fits_primitive(schema, value)


def _ensure_not_too_many(values_count: int) -> None:
    if values_count >= _VALUES_MAX:
        raise SchemaError("", f"has more than {_VALUES_MAX} values")


def number_of(value: Any) -> Any:
    """Return the number that a default of float or double stands for; None if it is none.

    JSON has no words for what is not finite, so that they are texts; older versions of Avro for Java print them bare.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _NOT_FINITE.get(value) if isinstance(value, str) else None


def _fits_primitive(schema: PrimitiveSchema, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match schema.type:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            least, most = bounds(schema.type, schema.type, default_factor(schema.logical))
            return is_number and bool(least <= value <= most and int(value) == value)
        case "float" | "double":
            number = number_of(value)
            most = _FLOAT_MAX if schema.type == "float" else sys.float_info.max
            is_finite = number is not None and bool(abs(number) <= most)
            return is_finite or number in (math.inf, -math.inf) or number != number
        case "bytes":
            return _is_latin(value) and _fits_decimal(schema, value)
        case _:
            return isinstance(value, str) and is_utf8(value)


def _fits_decimal(schema: PrimitiveSchema | FixedSchema, value: str) -> bool:
    logical = schema.logical
    if logical is None or logical.name != "decimal":
        return True
    return bool(abs(unscaled(value)) < 10**logical.precision)


def _is_latin(value: Any) -> bool:
    return isinstance(value, str) and all(ord(one) < 256 for one in value)


def unscaled(value: str) -> int:
    """Return the number that a decimal's default stands for, without its scale."""
    return int.from_bytes(value.encode("latin-1"), "big", signed=True)


def encoded(schema: Schema, value: Any) -> bytes:
    """Return the bytes of a default, which fits the type.

    Raises:
        SchemaError: it has too many values; the reason is the end of a sentence.
    """
    parts = list(itertools.islice(_parts(schema, value), _VALUES_MAX + 1))
    _ensure_not_too_many(len(parts) - 1)
    return b"".join(parts)


def _parts(schema: Schema, value: Any) -> Iterator[bytes]:
    """Yield the bytes of a default, at least one part for each value."""
    match schema:
        case UnionSchema():
            index = branch_of(schema, value)
            yield varint(index)
            yield from _parts(schema.branches[index], value)
        case RecordSchema():
            yield b""
            for field in schema.fields:
                yield from _parts(field.type, value.get(field.name, field.default))
        case ArraySchema():
            yield varint(len(value))
            for one in value:
                yield from _parts(schema.items, one)
            yield b"\0" if value else b""
        case MapSchema():
            yield varint(len(value))
            for key, one in value.items():
                yield _sized(key.encode())
                yield from _parts(schema.values, one)
            yield b"\0" if value else b""
        case EnumSchema():
            yield varint(schema.numbers[value])
        case FixedSchema():
            yield bytes(value.encode("latin-1"))
        case _:
            yield _encoded_primitive(schema.type, value)


def _encoded_primitive(kind: str, value: Any) -> bytes:
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return varint(int(value))
        case "float":
            return struct.pack("<f", number_of(value))
        case "double":
            return struct.pack("<d", number_of(value))
        case _:
            return _sized(value.encode("latin-1" if kind == "bytes" else "utf-8"))


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def varint(number: int) -> bytes:
    """Return an int64 as a zigzag varint."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
