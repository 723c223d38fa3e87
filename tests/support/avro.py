"""Avro for tests: random schemas, values and evolutions; an encoder from the format's text; fastavro as the oracle.

`encode` takes a value of a union as a pair: the branch's number and its value. What fastavro decodes knows no
branches, so random unions have at most one branch of each kind that Python can tell apart.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.values.avro_schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    LogicalType,
    MapSchema,
    PrimitiveSchema,
    RecordSchema,
    Schema,
    UnionSchema,
    parse,
)

Json = Any
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=60)
_DAYS = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days


def parsed(schema: Json, *references: Json) -> Schema:
    return parse(json.dumps(schema), [json.dumps(one) for one in references])


def a_record(*fields: Json, name: str = "R", **more: Json) -> Json:
    """A record's schema; a field is a pair of name and type, or an object."""
    made = [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


# The encoder.


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode(schema: Schema, value: Any) -> bytes:
    match schema:
        case RecordSchema():
            return b"".join(encode(one.type, value[one.name]) for one in schema.fields)
        case UnionSchema():
            index, inner = value
            return varint(index) + encode(schema.branches[index], inner)
        case ArraySchema():
            return _blocks([encode(schema.items, one) for one in value])
        case MapSchema():
            return _blocks(
                [_bytes(k.encode()) + encode(schema.values, v) for k, v in value.items()]
            )
        case EnumSchema():
            return varint(schema.symbols.index(value))
        case FixedSchema():
            return bytes(value)
        case PrimitiveSchema(type="null"):
            return b""
        case PrimitiveSchema(type="boolean"):
            return bytes([value])
        case PrimitiveSchema(type="float"):
            return struct.pack("<f", value)
        case PrimitiveSchema(type="double"):
            return struct.pack("<d", value)
        case PrimitiveSchema(type="int" | "long"):
            return varint(value)
        case _:
            return _bytes(value.encode() if isinstance(value, str) else value)


def _bytes(data: bytes) -> bytes:
    return varint(len(data)) + data


def _blocks(items: list[bytes]) -> bytes:
    """Items in blocks of at most three, every other one with its size in bytes."""
    out = b""
    for at in range(0, len(items), 3):
        block = b"".join(items[at : at + 3])
        count = len(items[at : at + 3])
        out += varint(count) if at % 2 == 0 else varint(-count) + varint(len(block))
        out += block
    return out + varint(0)


# The oracle.


def decoded_by_fastavro(data: bytes, writer: Json, reader: Json) -> Any:
    """What fastavro decodes, without logical types; any kind of error if it refuses, or leaves bytes over."""
    stream = io.BytesIO(data)
    value = fastavro.schemaless_reader(stream, _for_fastavro(writer), _for_fastavro(reader))
    assert stream.tell() == len(data), "bytes are left over"
    return value


def _for_fastavro(schema: Json) -> Json:
    return fastavro.parse_schema(without_logical_types(schema))


def without_logical_types(schema: Json) -> Json:
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return [without_logical_types(one) for one in schema] if isinstance(schema, list) else schema


def in_column(value: Any, schema: Schema) -> Any:
    """A value that fastavro decodes, or a default, as `to_pylist` gives it of the reader's column."""
    match schema:
        case UnionSchema():
            return _in_union(value, schema)
        case RecordSchema():
            return {
                one.name: in_column(value.get(one.name, one.default), one.type)
                for one in schema.fields
            }
        case ArraySchema():
            return [in_column(one, schema.items) for one in value]
        case MapSchema():
            return [(k, in_column(v, schema.values)) for k, v in value.items()]
        case EnumSchema():
            return value
        case FixedSchema():
            return _in_bytes(value, schema.logical)
        case PrimitiveSchema(type="bytes"):
            return _in_bytes(value, schema.logical)
        case PrimitiveSchema(type="int" | "long"):
            return _in_number(value, schema.logical)
        case PrimitiveSchema(type="float"):
            with np.errstate(over="ignore"):
                return pytest.approx(float(np.float32(value)), rel=2e-7, nan_ok=True)
        case PrimitiveSchema(type="double"):
            return pytest.approx(float(value), rel=0, abs=0, nan_ok=True)
        case _:
            return value


def _in_union(value: Any, union: UnionSchema) -> Any:
    present = [one for one in union.branches if _kind(one) != "null"]
    if value is None:
        return None
    if len(present) == 1:
        return in_column(value, present[0])
    kinds = {_kind(one) for one in present}
    if kinds == {"int", "long"}:
        return value
    if kinds == {"float", "double"}:
        return float(value)
    chosen = next(one for one in present if isinstance(value, _PYTHON[_kind(one)]) and _is_right(value, one))  # fmt: skip
    return {
        f"member{index}": in_column(value, one) if one is chosen else None
        for index, one in enumerate(present)
    }


def _is_right(value: Any, schema: Schema) -> bool:
    return isinstance(value, bool) == (_kind(schema) == "boolean")


_PYTHON: dict[str, Any] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "enum": str,
    "bytes": bytes | str, "fixed": bytes | str, "record": dict, "map": dict, "array": list,
}  # fmt: skip


def _kind(schema: Schema) -> str:
    match schema:
        case PrimitiveSchema():
            return schema.type
        case _:
            return type(schema).__name__.removesuffix("Schema").lower()


def _in_bytes(value: bytes | str, logical: LogicalType | None) -> Any:
    data = value.encode("latin-1") if isinstance(value, str) else value
    if logical is None or logical.name != "decimal":
        return data
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return unscaled.scaleb(-logical.scale, _EXACT)


def _in_number(value: int, logical: LogicalType | None) -> Any:
    name = "" if logical is None else logical.name
    if name == "date":
        return date(1970, 1, 1) + timedelta(value)
    if "timestamp" not in name or name.endswith("nanos"):
        return value
    time = _EPOCH + timedelta(microseconds=value * (1000 if name.endswith("millis") else 1))
    return time.replace(tzinfo=None) if name.startswith("local") else time


def deduplicated(value: Any, kind: pa.DataType) -> Any:
    """A value of a column with each key of a map once, as a dict has it: the last value, at the first place."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: deduplicated(value[one.name], one.type) for one in kind}
    if pa.types.is_map(kind):
        return list({k: deduplicated(v, kind.item_type) for k, v in value}.items())
    if pa.types.is_list(kind):
        return [deduplicated(one, kind.value_type) for one in value]
    return value


# Random schemas and values.

_TIMES = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis",
        "local-timestamp-micros",
    ),
}  # fmt: skip
_GROUPS = (("boolean",), ("int", "long"), ("float", "double"), ("string", "bytes", "enum", "fixed"), ("record", "map"), ("array",))  # fmt: skip


class Schemas:
    """Random schemas, whose names do not meet."""

    def __init__(self, rng: random.Random, *, times: bool = True) -> None:
        self._rng, self._times, self._names = rng, times, 0

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def record(self, depth: int = 2) -> Json:
        fields = [(self.name("f"), self.any(depth - 1)) for _ in range(self._rng.randrange(1, 5))]
        return a_record(*fields, name=self.name("R"), namespace=self._rng.choice(("", "a", "a.b")))

    def any(self, depth: int = 2) -> Json:
        rng = self._rng
        if depth > 0 and rng.random() < 0.4:
            kind = rng.choice(("record", "record", "array", "map", "union", "nullable", "nullable"))
            if kind == "union":
                return self._union(depth)
            if kind == "nullable":
                inner = self._item(depth)
                pair = ["null", inner][:: rng.choice((1, -1))]
                return inner if isinstance(inner, list) else pair
            return self._of(kind, depth)
        return self._of(rng.choice(("null", "boolean", "int", "int", "long", "float", "double", "bytes", "string", "string", "enum", "fixed", "decimal")), 0)  # fmt: skip

    def _of(self, kind: str, depth: int) -> Json:
        rng = self._rng
        match kind:
            case "record":
                return self.record(depth)
            case "array":
                return {"type": "array", "items": self._item(depth)}
            case "map":
                return {"type": "map", "values": self._item(depth)}
            case "enum":
                return {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "CC", "D"][: rng.randrange(1, 5)]}  # fmt: skip
            case "fixed":
                return {"type": "fixed", "name": self.name("F"), "size": rng.choice((1, 3, 16))}
            case "decimal":
                precision = rng.choice((1, 9, 18, 19, 38))
                digits = {"logicalType": "decimal", "precision": precision, "scale": rng.randrange(precision + 1)}  # fmt: skip
                if rng.random() < 0.5:
                    return {"type": "bytes", **digits}
                return {"type": "fixed", "name": self.name("D"), "size": rng.choice((16, 17, 20)), **digits}  # fmt: skip
            case "int" | "long" if self._times and rng.random() < 0.3:
                return {"type": kind, "logicalType": rng.choice(_TIMES[kind])}
            case _:
                return kind

    def _item(self, depth: int) -> Json:
        """A type that is not null: a damaged count of these would keep fastavro busy for long."""
        while (found := self.any(depth - 1)) == "null":
            pass
        return found

    def _union(self, depth: int) -> Json:
        """Branches of different groups, numbers in order: fastavro promotes to the first that it can."""
        rng = self._rng
        kinds = [rng.choice(group) for group in _GROUPS if rng.random() < 0.4]
        branches = [self._of(kind, depth - 1) for kind in kinds]
        if rng.random() < 0.5 or not branches:
            branches.insert(rng.randrange(len(branches) + 1), "null")
        return branches


def a_value(rng: random.Random, schema: Schema) -> Any:
    """A random value, in the form that `encode` takes."""
    match schema:
        case RecordSchema():
            return {one.name: a_value(rng, one.type) for one in schema.fields}
        case UnionSchema():
            index = rng.randrange(len(schema.branches))
            return index, a_value(rng, schema.branches[index])
        case ArraySchema():
            return [a_value(rng, schema.items) for _ in range(rng.choice((0, 1, 2, 7)))]
        case MapSchema():
            return {
                _text(rng): a_value(rng, schema.values) for _ in range(rng.choice((0, 1, 2, 7)))
            }
        case EnumSchema():
            return rng.choice(schema.symbols)
        case FixedSchema() if schema.logical is not None:
            return _unscaled(rng, schema.logical).to_bytes(schema.size, "big", signed=True)
        case FixedSchema():
            return rng.randbytes(schema.size)
        case PrimitiveSchema(type="bytes", logical=LogicalType() as logical):
            number = _unscaled(rng, logical)
            return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        case PrimitiveSchema():
            return _primitive(rng, schema)


def _primitive(rng: random.Random, schema: PrimitiveSchema) -> Any:
    name = "" if schema.logical is None else schema.logical.name
    match schema.type:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "int" if name == "date":
            return rng.randint(*_DAYS)
        case "int":
            return rng.choice((0, -1, 1, 63, 64, -65, 2**31 - 1, -(2**31), rng.randrange(10**6)))
        case "long" if "timestamp" in name:
            return rng.choice((0, -1, rng.randrange(-(10**13), 10**14)))
        case "long":
            return rng.choice((0, -1, 8191, 8192, 2**53 + 1, 2**63 - 1, -(2**63), rng.randrange(10**6)))  # fmt: skip
        case "float":
            return struct.unpack("<f", struct.pack("<f", rng.uniform(-100, 100)))[0]
        case "double":
            return rng.choice((0.0, -1.5, 1e300, float("inf"), rng.uniform(-1, 1)))
        case "string":
            return _text(rng)
        case _:
            return rng.choice((b"", b"abc", b"\xff\x00", rng.randbytes(40)))


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("abcé€😀\0") for _ in range(rng.choice((0, 1, 5, 70))))


def _unscaled(rng: random.Random, logical: LogicalType) -> int:
    most = 10**logical.precision - 1
    return rng.choice((0, most, -most, rng.randint(-most, most)))


def a_default(rng: random.Random, schema: Schema) -> Json:
    """A random default, as JSON."""
    match schema:
        case RecordSchema():
            return {one.name: a_default(rng, one.type) for one in schema.fields}
        case UnionSchema():
            return a_default(rng, schema.branches[0])
        case ArraySchema():
            return [a_default(rng, schema.items) for _ in range(rng.choice((0, 0, 2)))]
        case MapSchema():
            return {_text(rng): a_default(rng, schema.values) for _ in range(rng.choice((0, 0, 2)))}
        case PrimitiveSchema(type="float" | "double"):
            return rng.choice((0.5, -2.25, 3.0))
        case _:
            value = a_value(rng, schema)
            return value.decode("latin-1") if isinstance(value, bytes) else value


# Evolution.

_WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",)}  # fmt: skip


def evolved(rng: random.Random, schema: Json, schemas: Schemas, steps: int) -> Json:
    """A reader's schema that some steps have made of a writer's; one step in thirty breaks it."""
    reader = copy.deepcopy(schema)
    for _ in range(steps):
        broken = rng.random() < 1 / 30
        rng.choice(_BREAKS if broken else _STEPS)(rng, reader, schemas)
    return reader


def _all(schema: Json, kind: str) -> Iterator[Json]:
    """All definitions of a kind, but for those in a field whose default they would no longer fit."""
    if isinstance(schema, list):
        for one in schema:
            yield from _all(one, kind)
    elif isinstance(schema, dict):
        if schema.get("type") == kind:
            yield schema
        for key in ("type", "items", "values", "fields"):
            if "default" not in schema:
                yield from _all(schema.get(key), kind)


def _named(schema: Json) -> list[Json]:
    return [one for kind in ("record", "enum", "fixed") for one in _all(schema, kind)]


def _fields(rng: random.Random, schema: Json) -> list[Json]:
    found: list[Json] = rng.choice(list(_all(schema, "record")))["fields"]
    return found


def _add_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    fields, kind = _fields(rng, schema), schemas.any(1)
    default = a_default(rng, parsed(kind))
    fields.insert(rng.randrange(len(fields) + 1), {"name": schemas.name("f"), "type": kind, "default": default})  # fmt: skip


def _remove_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    fields = _fields(rng, schema)
    if len(fields) > 1:
        del fields[rng.randrange(len(fields))]


def _reorder_fields(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    rng.shuffle(_fields(rng, schema))


def _rename_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    field = rng.choice(_fields(rng, schema))
    field["aliases"] = [*field.get("aliases", []), field["name"]]
    field["name"] = schemas.name("f")


def _widen_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    for field in _fields(rng, schema):
        if isinstance(field["type"], str) and field["type"] in _WIDER and "default" not in field:
            field["type"] = rng.choice(_WIDER[field["type"]])


def _widen_branches(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    for field in _fields(rng, schema):
        kinds = {"int": "long", "float": "double"}
        if isinstance(field["type"], list) and "default" not in field:
            field["type"] = [kinds.get(one, one) if isinstance(one, str) else one for one in field["type"]]  # fmt: skip


def _allow_null(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    field = rng.choice(_fields(rng, schema))
    if not isinstance(field["type"], list) and field["type"] != "null" and "default" not in field:
        field["type"] = ["null", field["type"]]


def _rename_type(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    if any(one.get("namespace") == "another.space" for one in _all(schema, "record")):
        return  # to fastavro an alias has the namespace that it stands in
    one = rng.choice(_named(schema))
    one["aliases"] = [*one.get("aliases", []), one["name"]]
    one["name"] = schemas.name("N")


def _move_type(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    if not any("aliases" in one for one in _named(schema)):
        rng.choice(list(_all(schema, "record")))["namespace"] = "another.space"


def _change_symbols(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    for one in _all(schema, "enum"):
        if rng.random() < 0.5 and "default" not in one:
            one["symbols"] = ["NEW", *one["symbols"][:1]]
            one["default"] = "NEW"


def _add_required_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    _fields(rng, schema).append({"name": schemas.name("f"), "type": "int"})


def _replace_field(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    field = rng.choice(_fields(rng, schema))
    field["type"] = {"type": "fixed", "name": schemas.name("F"), "size": 5}
    field.pop("default", None)


def _rename_without_alias(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    schema.pop("aliases", None)
    schema["name"] = schemas.name("N")


def _remove_symbols(rng: random.Random, schema: Json, schemas: Schemas) -> None:
    for one in _all(schema, "enum"):
        one["symbols"] = one["symbols"][:1]
        one.pop("default", None)


_Step = Callable[[random.Random, Json, Schemas], None]
_STEPS: tuple[_Step, ...] = (
    _add_field, _add_field, _remove_field, _reorder_fields, _rename_field, _widen_field, _widen_branches,
    _allow_null, _rename_type, _move_type, _change_symbols,
)  # fmt: skip
_BREAKS: tuple[_Step, ...] = (
    _add_required_field, _replace_field, _rename_without_alias, _remove_symbols,
)  # fmt: skip
