"""Default values of fields: JSON that has to fit a type, and its bytes.

Bytes are text of the characters U+0000 to U+00FF, and a union's default is of its first branch that fits.

Source: the Avro specification 1.12, "Complex Types", "Records".
"""

from __future__ import annotations

import struct
import sys
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
    is_utf8,
)
from spark_kbatch.values.times import bounds, default_factor

_FLOAT_MAX = float(np.finfo(np.float32).max)


def fits(schema: Schema, value: Any) -> bool:
    """Return True if JSON is a default of a type. One that contains itself without an end is none."""
    try:
        return _fits(schema, value)
    except RecursionError:
        return False


def _fits(schema: Schema, value: Any) -> bool:
    match schema:
        case UnionSchema():
            return any(_fits(one, value) for one in schema.branches)
        case RecordSchema():
            return isinstance(value, dict) and all(
                _fits(field.type, value.get(field.name, field.default)) for field in schema.fields
            )
        case ArraySchema():
            return isinstance(value, list) and all(_fits(schema.items, one) for one in value)
        case MapSchema():
            return isinstance(value, dict) and all(
                is_utf8(key) and _fits(schema.values, one) for key, one in value.items()
            )
        case EnumSchema():
            return isinstance(value, str) and value in schema.symbols
        case FixedSchema():
            return _is_latin(value) and len(value) == schema.size and _fits_decimal(schema, value)
        case _:
            return _fits_primitive(schema, value)


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
        case "float":
            return is_number and bool(abs(value) <= _FLOAT_MAX)
        case "double":
            return is_number and bool(abs(value) <= sys.float_info.max)
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
            index = next(index for index, one in enumerate(schema.branches) if fits(one, value))
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
            return varint(schema.symbols.index(value))
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
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
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
