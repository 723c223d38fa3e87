"""The Avro schema of a column that none is given for: a record for a struct, with a field for each of its own.

    Arrow                              Avro
    bool                               boolean
    integers to 32 bits, uint32, int64 int, long
    float, double                      float, double
    string, large_string               string
    binary, of any form                bytes
    decimal                            bytes with the logical type decimal
    date32                             int, date
    time, timestamp                    milliseconds or microseconds; local without a time zone
    struct                             record, whose namespace is the full name of the record around it
    list                               array
    map with strings as keys           map

All may be null, with null as the default of a field: whether Spark takes a column for nullable depends on how it was
made, so two jobs with the same columns would write two schemas. And a later version may leave out any field.

Source: for names of records, Spark connector/avro/.../SchemaConverters.scala.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from spark_kbatch.errors import SchemaError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TIMES = {
    "ms": ("int", "time-millis"),
    "us": ("long", "time-micros"),
}
_UNITS = {"ms": "millis", "us": "micros"}


def derived(kind: pa.DataType, name: str) -> str:
    """Return the schema of a column of an Arrow type, as JSON.

    Args:
        kind: the column's type.
        name: the full name of the record, where the column is a struct.

    Raises:
        SchemaError: a type has no form in Avro, or a field's name is none of Avro's; names the path.
    """
    return json.dumps(_schema(kind, name, ""))


def record_name(subject: str) -> str:
    """Return a name for the record that the values of a subject are: its letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", subject, flags=re.ASCII)
    return name if _NAME.match(name) else f"_{name}"


def _schema(kind: pa.DataType, name: str, path: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _record(kind, name, path)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = _schema(kind.value_type, name, f"{path}[]")
        return {"type": "array", "items": ["null", items]}
    if types.is_map(kind):
        if not _is_text(kind.key_type):
            raise SchemaError(path, f"a map with keys of type {kind.key_type}; Avro's are strings")
        return {"type": "map", "values": ["null", _schema(kind.item_type, name, f"{path}{{}}")]}
    if types.is_dictionary(kind):
        return _schema(kind.value_type, name, path)
    if types.is_decimal(kind):
        return {
            "type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale,
        }  # fmt: skip
    if types.is_time(kind) and kind.unit in _TIMES:
        base, logical = _TIMES[kind.unit]
        return {"type": base, "logicalType": logical}
    if types.is_timestamp(kind) and kind.unit in _UNITS:
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[kind.unit]}"}
    if kind == pa.date32():
        return {"type": "int", "logicalType": "date"}
    return _primitive(kind, path)


def _primitive(kind: pa.DataType, path: str) -> str:
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) and kind != pa.uint64():
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if types.is_float32(kind) or types.is_float16(kind):
        return "float"
    if types.is_float64(kind):
        return "double"
    if _is_text(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):  # fmt: skip
        return "bytes"
    raise SchemaError(
        path, f"a column of type {kind} has no form in Avro: cast it, or give the schema"
    )


def _record(kind: pa.DataType, name: str, path: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for one in kind:
        below = f"{path}.{one.name}" if path else one.name
        if not _NAME.fullmatch(one.name):
            raise SchemaError(below, "names of Avro have letters, digits and underscores, and begin with no digit: rename the column")  # fmt: skip
        if any(one.name == other["name"] for other in fields):
            raise SchemaError(below, "there are two columns of this name")
        inner = _schema(one.type, f"{name}.{one.name}", below)
        fields.append({"name": one.name, "type": ["null", inner], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())
