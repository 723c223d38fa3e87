"""Default values of fields: JSON that has to fit a type, and its bytes.

A float or a double may be the text NaN, Infinity or -Infinity, as Avro for Java writes it. Bytes
are text of the characters U+0000 to U+00FF, and a union's default is of its first branch that fits.

Source: the Avro specification 1.12, "Complex Types", "Records".
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

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
from spark_kbatch.values.layout import bounds, default_factor

_FLOAT_MAX = float(np.finfo(np.float32).max)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_VALUES_MAX = 10_000  # of one default: two of each level in 40 levels are 10**12


def why_unfit(schema: Schema, value: Any) -> str:
    """Return why JSON is no default of a type, as the end of a sentence; empty if it is one.

    One that contains itself without an end is none.
    """
    try:
        count = _DefaultWalk().count(schema, value)
    except RecursionError:
        count = 0
    if count > _VALUES_MAX:
        return f"has more than {_VALUES_MAX} values"
    return "" if count else f"is no {described(schema)}"


def branch_of(union: UnionSchema, value: Any) -> int:
    """Return the number of the branch that a default, which fits, is of."""
    walk = _DefaultWalk()
    return next(number for number, one in enumerate(union.branches) if walk.count(one, value))


class _DefaultWalk:
    """A look at a default, once at each value: nested records have the same ones many times."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}  # by schema and value, which outlive the walk

    def count(self, schema: Schema, value: Any) -> int:
        """Return how many values a default has, with those in it; 0 if it is none of the type."""
        key = id(schema), id(value)
        if key not in self._known:
            if len(self._known) >= _VALUES_MAX:
                return _VALUES_MAX + 1
            self._known[key] = 0  # what contains itself fits nothing
            self._known[key] = self._count(schema, value)
        return self._known[key]

    def _count(self, schema: Schema, value: Any) -> int:
        match schema:
            case UnionSchema():
                return next(filter(None, (self.count(one, value) for one in schema.branches)), 0)
            case RecordSchema() if isinstance(value, dict):
                return self._count_with(
                    (one.type, value.get(one.name, one.default)) for one in schema.fields
                )
            case ArraySchema() if isinstance(value, list):
                return self._count_with((schema.items, one) for one in value)
            case MapSchema() if isinstance(value, dict) and all(map(is_utf8, value)):
                return self._count_with((schema.values, one) for one in value.values())
            case EnumSchema():
                return int(isinstance(value, str) and value in schema.numbers)
            case FixedSchema() if _is_latin(value) and len(value) == schema.size:
                return int(_fits_decimal(schema, value))
            case PrimitiveSchema():
                return int(_fits_primitive(schema, value))
        return 0

    def _count_with(self, inner: Iterable[tuple[Schema, Any]]) -> int:
        counts = [self.count(schema, value) for schema, value in inner]
        return 1 + sum(counts) if all(counts) else 0


def number_of(value: Any) -> Any:
    """Return the number that a default of float or double stands for; None if it is none.

    JSON has no words for what is not finite, so they are texts; older Avro for Java prints them bare.
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
            largest = _FLOAT_MAX if schema.type == "float" else sys.float_info.max
            return number is not None and not largest < abs(number) < math.inf
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
    """Return the bytes of a default, which fits the type."""
    match schema:
        case UnionSchema():
            index = branch_of(schema, value)
            return varint(index) + encoded(schema.branches[index], value)
        case RecordSchema():
            return b"".join(
                encoded(field.type, value.get(field.name, field.default)) for field in schema.fields
            )
        case ArraySchema():
            return _block([encoded(schema.items, one) for one in value])
        case MapSchema():
            return _block(
                [_sized(key.encode()) + encoded(schema.values, one) for key, one in value.items()]
            )
        case EnumSchema():
            return varint(schema.numbers[value])
        case FixedSchema():
            return bytes(value.encode("latin-1"))
        case _:
            return _encoded_primitive(schema.type, value)


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


def _block(items: list[bytes]) -> bytes:
    return (varint(len(items)) + b"".join(items) if items else b"") + varint(0)


def varint(number: int) -> bytes:
    """Return an int64 as a zigzag varint."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
