"""Which Arrow type an Avro type becomes, and its columns; and a schema for Arrow's types.

    Avro                                             Arrow                   Spark
    null                                             null                    void
    boolean                                          bool                    boolean
    int; time-millis                                 int32                   int
    long; time-micros; (local-)timestamp-nanos       int64                   bigint
    float                                            float                   float
    double                                           double                  double
    date                                             date32                  date
    timestamp-millis, timestamp-micros               timestamp[us, UTC]      timestamp
    local-timestamp-millis, local-timestamp-micros   timestamp[us]           timestamp_ntz
    string; uuid; enum                               string                  string
    bytes; fixed, with duration or uuid too          binary                  binary
    decimal, of 1 to 38 digits                       decimal128(p, s)        decimal(p, s)
    record                                           struct                  struct
    array                                            list<element>           array
    map                                              map<string, value>      map
    union of null and one type                       that type               that type
    union of int and long                            int64                   bigint
    union of float and double                        double                  double
    other union                                      struct<member0, ...>    struct

Everything may be null, because a value that cannot be decoded is. In a union, null is no member: the
others are numbered without it, in the reader's order, and all but one are null. The types are those of
Spark's own Avro source, so that a job can change from one to the other, and the same on every Spark.

Refused, with the path: a record that contains itself, a decimal of more digits, two fields whose names
differ in case alone, since Spark cannot tell them apart.

The unit in which a column of times counts is `column_unit`: microseconds, or finer where Avro's is.

A value lies in slots. Each is a row of numbers: one for each record, or one for each item of all lists
of a level. Level ROWS has the records, level NOWHERE what is decoded only to be passed over, and each
list and map has a level of its own for its items.

`project` takes the part of a reader's schema that is wanted: some fields of its records, in the
order that is asked for. What remains is the schema's own: types, aliases, defaults and the names of
records. A field that is left out is passed over in each record, and may be of a type that no column
can have, as in a recursive record. Its name and aliases count all the same: what a field is read
from does not depend on which others are wanted.

`derived` makes the schema of a column that none is given for: a record for a struct, with a field
for each of its own.

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

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import (
    NESTING_MAX,
    ArraySchema,
    EnumSchema,
    FixedSchema,
    LogicalType,
    MapSchema,
    PrimitiveSchema,
    RecordField,
    RecordSchema,
    Schema,
    UnionSchema,
    described,
    short_name,
)

ROWS, NOWHERE = 0, 1  # levels that every layout has
NO_SLOT = 0  # a slot that nothing is stored in
INT32, INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_PARTS_OF_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
DECIMAL_DIGITS_MAX = 38
COLUMNS_MAX = 10_000

# How the numbers in a column's slots become its Arrow type.
NULL, NUMBER, BOOLEAN, FLOAT, DOUBLE = "null", "number", "boolean", "float", "double"
BYTES, TEXT, DECIMAL = "bytes", "text", "decimal"
STRUCT, LIST, MAP = "struct", "list", "map"

_INSTANT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_TYPES: Mapping[tuple[str, str | None], tuple[pa.DataType, str]] = {
    ("null", None): (pa.null(), NULL),
    ("boolean", None): (pa.bool_(), BOOLEAN),
    ("int", None): (pa.int32(), NUMBER),
    ("int", "date"): (pa.date32(), NUMBER),
    ("int", "time-millis"): (pa.int32(), NUMBER),
    ("long", None): (pa.int64(), NUMBER),
    ("long", "time-micros"): (pa.int64(), NUMBER),
    ("long", "timestamp-millis"): (_INSTANT, NUMBER),
    ("long", "timestamp-micros"): (_INSTANT, NUMBER),
    ("long", "timestamp-nanos"): (pa.int64(), NUMBER),
    ("long", "local-timestamp-millis"): (_LOCAL, NUMBER),
    ("long", "local-timestamp-micros"): (_LOCAL, NUMBER),
    ("long", "local-timestamp-nanos"): (pa.int64(), NUMBER),
    ("float", None): (pa.float32(), FLOAT),
    ("double", None): (pa.float64(), DOUBLE),
    ("bytes", None): (pa.binary(), BYTES),
    ("string", None): (pa.string(), TEXT),
    ("string", "uuid"): (pa.string(), TEXT),
    ("fixed", None): (pa.binary(), BYTES),
    ("fixed", "duration"): (pa.binary(), BYTES),
    ("fixed", "uuid"): (pa.binary(), BYTES),
}

_MEMBER = re.compile(
    r"member[0-9]+", re.IGNORECASE
)  # of a union's column, as `_LayoutBuilder` names it
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TIMES_OF_DAY = {
    "ms": ("int", "time-millis"),
    "us": ("long", "time-micros"),
}
_UNITS = {"ms": "millis", "us": "micros"}

# Names of fields, each with what is wanted of its type: all of it where no names follow.
Wanted = dict[str, "Wanted"]
_Field = TypeVar("_Field", bound=Any)  # a field with a name, of any kind of type


@dataclass(frozen=True, eq=False)
class Column:
    """One column of decoded values: where its numbers lie, and what they become."""

    name: str  # in the struct that it is a child of; empty for the whole value
    type: pa.DataType
    kind: str
    level: int  # what it has a number for: records, or items of a list
    slot: int = NO_SLOT  # a decimal has the next one too, for its upper half
    items_level: int = NOWHERE  # of a list or map: where its items lie
    children: tuple[Column, ...] = ()  # fields or members; a list's element; a map's key and value


@dataclass(frozen=True, eq=False)
class ColumnLayout:
    """The columns of a reader's schema, and the slots and levels that they use."""

    root: Column
    slot_levels: tuple[int, ...]
    levels_count: int


def arrow_type(schema: Schema) -> pa.DataType:
    """Return the Arrow type of the values of a schema.

    Raises:
        SchemaError: a type in it is refused; names the path.
    """
    return layout(schema).root.type


def layout(schema: Schema) -> ColumnLayout:
    """Return the columns that values of a reader's schema are decoded into.

    Raises:
        SchemaError: a type in it is refused; names the path.
    """
    made = _LayoutBuilder()
    name = short_name(schema.name) if isinstance(schema, RecordSchema) else ""
    root = made.column("", schema, ROWS, name, ())
    return ColumnLayout(root, tuple(made.slot_levels), made.levels_count)


def present_branches(union: UnionSchema) -> list[Schema]:
    """Return the branches of a union that are not null."""
    return [one for one in union.branches if not is_primitive(one, "null")]


def merged_number(union: UnionSchema) -> str | None:
    """Return the type that holds both branches of a union of two numbers, None for all other unions."""
    kinds = {one.type for one in present_branches(union) if isinstance(one, PrimitiveSchema)}
    if len(present_branches(union)) == 2:
        for narrow, wide in (("int", "long"), ("float", "double")):
            if kinds == {narrow, wide}:
                return wide
    return None


def is_primitive(schema: Schema, kind: str) -> bool:
    """Return True if a schema is a primitive type of this name."""
    return isinstance(schema, PrimitiveSchema) and schema.type == kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is cast to first: for dictionaries, views and all of a fixed size."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.large_binary()
    if types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return pa.list_(kind.value_field) if types.is_fixed_size_list(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Return True if an Arrow type is one of strings."""
    return kind in (pa.string(), pa.large_string())


class TimeUnit(NamedTuple):
    """The unit of a time: what it counts, and in which parts of a second."""

    family: str  # timestamp, local-timestamp, time or date, which no conversion leads out of
    per_second: int  # 1 for a date, which counts days


def unit_of(logical: LogicalType | None) -> TimeUnit | None:
    """Return the unit of a logical type that is a time, None for any other."""
    if logical is None:
        return None
    family, _, part = logical.name.rpartition("-")
    if part in _PARTS_OF_SECOND:
        return TimeUnit(family, _PARTS_OF_SECOND[part])
    return TimeUnit("date", 1) if logical.name == "date" else None


def column_unit(logical: LogicalType | None) -> TimeUnit | None:
    """Return the unit in which the column of a logical type counts: microseconds in place of milliseconds."""
    unit = unit_of(logical)
    if unit is not None and unit.family.endswith("timestamp") and unit.per_second == 1_000:
        return TimeUnit(unit.family, 1_000_000)
    return unit


def default_factor(logical: LogicalType | None) -> int:
    """Return what a number of a logical type is multiplied by to be its column's."""
    written, stored = unit_of(logical), column_unit(logical)
    return stored.per_second // written.per_second if written and stored else 1


def bounds(writer: str, reader: str, factor: int) -> tuple[int, int]:
    """Return the least and the most number of two types, int or long, that fits both and a column.

    `factor` is what it is multiplied by in the column, which has 64 bits.
    """
    least, most = INT32 if "int" in (writer, reader) else INT64
    if factor == 1:
        return least, most
    return max(least, -(INT64[1] // factor)), min(most, INT64[1] // factor)


class _LayoutBuilder:
    """The slots and levels that are taken so far."""

    def __init__(self) -> None:
        self.slot_levels = [NOWHERE]
        self.levels_count = 2
        self._columns_count = 0

    def column(
        self, name: str, schema: Schema, level: int, path: str, inside: tuple[RecordSchema, ...]
    ) -> Column:
        """Return the column of a schema at `path`, which lies inside some records."""
        self._columns_count += 1
        if self._columns_count > COLUMNS_MAX:
            raise SchemaError(path, f"the schema has more than {COLUMNS_MAX} columns: name the fields that are wanted")  # fmt: skip
        if sum(map(path.count, ".[{")) > NESTING_MAX:
            raise SchemaError(path, f"columns are nested deeper than {NESTING_MAX}")
        match schema:
            case RecordSchema():
                return self._record(name, schema, level, path, inside)
            case ArraySchema() | MapSchema():
                return self._items(name, schema, level, path, inside)
            case UnionSchema():
                return self._union(name, schema, level, path, inside)
            case EnumSchema():
                return Column(name, pa.string(), TEXT, level, self._slot(level))
            case PrimitiveSchema():
                return self._scalar(name, schema.type, schema.logical, level, path)
            case FixedSchema():
                return self._scalar(name, "fixed", schema.logical, level, path)

    def _scalar(
        self, name: str, kind: str, logical: LogicalType | None, level: int, path: str
    ) -> Column:
        if logical is not None and logical.name == "decimal":
            if logical.precision > DECIMAL_DIGITS_MAX:
                raise SchemaError(
                    path,
                    f"a decimal of {logical.precision} digits; Arrow and Spark have at most {DECIMAL_DIGITS_MAX}",
                )
            made = pa.decimal128(logical.precision, logical.scale)
            slot = self._slot(level)
            self._slot(level)
            return Column(name, made, DECIMAL, level, slot)
        made, form = _TYPES[kind, None if logical is None else logical.name]
        return Column(name, made, form, level, NO_SLOT if form == NULL else self._slot(level))

    def _record(
        self,
        name: str,
        record: RecordSchema,
        level: int,
        path: str,
        inside: tuple[RecordSchema, ...],
    ) -> Column:
        if record in inside:
            raise SchemaError(
                path,
                f"record {record.name} contains itself, which no column can: name the fields that are wanted "
                "and leave this one out",
            )
        slot = self._slot(level)
        ensure_distinct([one.name for one in record.fields], path, described(record))
        fields = tuple(
            self.column(
                one.column or one.name, one.type, level, f"{path}.{one.name}", (*inside, record)
            )
            for one in record.fields
        )
        return _struct(name, fields, level, slot)

    def _items(
        self,
        name: str,
        schema: ArraySchema | MapSchema,
        level: int,
        path: str,
        inside: tuple[RecordSchema, ...],
    ) -> Column:
        slot, items_level = self._slot(level), self.levels_count
        self.levels_count += 1
        if isinstance(schema, ArraySchema):
            item = self.column("element", schema.items, items_level, f"{path}[]", inside)
            made = pa.list_(_arrow_field(item))
            return Column(name, made, LIST, level, slot, items_level, (item,))
        key = Column("key", pa.string(), TEXT, items_level, self._slot(items_level))
        value = self.column("value", schema.values, items_level, f"{path}{{}}", inside)
        made = pa.map_(pa.field("key", pa.string(), nullable=False), _arrow_field(value))
        return Column(name, made, MAP, level, slot, items_level, (key, value))

    def _union(
        self,
        name: str,
        union: UnionSchema,
        level: int,
        path: str,
        inside: tuple[RecordSchema, ...],
    ) -> Column:
        branches = present_branches(union)
        if not branches:
            return Column(name, pa.null(), NULL, level)
        if len(branches) == 1:
            return self.column(name, branches[0], level, path, inside)
        wide = merged_number(union)
        if wide is not None:
            return self._scalar(name, wide, None, level, path)
        slot = self._slot(level)
        members = tuple(
            self.column(f"member{index}", one, level, f"{path}.member{index}", inside)
            for index, one in enumerate(branches)
        )
        return _struct(name, members, level, slot)

    def _slot(self, level: int) -> int:
        self.slot_levels.append(level)
        return len(self.slot_levels) - 1


def _struct(name: str, fields: tuple[Column, ...], level: int, slot: int) -> Column:
    made = pa.struct([_arrow_field(one) for one in fields])
    return Column(name, made, STRUCT, level, slot, children=fields)


def _arrow_field(column: Column) -> Any:
    return pa.field(column.name, column.type, nullable=True)


def ensure_distinct(fields: Iterable[str], path: str, owner: str) -> None:
    """Check that no two names of fields are equal, or differ in case alone.

    Raises:
        SchemaError: two are; names the path, the owner and both.
    """
    names: dict[str, str] = {}
    for name in fields:
        other = names.get(name.casefold())
        if other is not None:
            raise SchemaError(
                path,
                f"{owner} has the fields {other!r} and {name!r}, which Spark cannot tell apart: "
                "name the fields that are wanted and leave one out",
            )
        names[name.casefold()] = name


# The part of a schema that is wanted.


def wanted_fields(paths: Iterable[str]) -> Wanted:
    """Return what dotted paths such as `customer.id` ask for, where `customer` asks for all below it."""
    tree: Wanted = {}
    whole: set[tuple[str, ...]] = set()
    for path in paths:
        names = tuple(path.split("."))
        if any(names[:size] in whole for size in range(1, len(names) + 1)):
            continue
        whole.add(names)
        node = tree
        for name in names:
            node = node.setdefault(name, {})
        node.clear()
    return tree


def project(schema: Schema, wanted: Wanted, *, renames: bool = False) -> Schema:
    """Return a schema with the wanted fields only, through arrays, maps and unions with null.

    Args:
        schema: to take them from.
        wanted: the fields, in their new order.
        renames: whether the column of a field that is found by a name of other case has that name.

    Raises:
        SchemaError: a field that a record does not have, or fields of what is no record.
    """
    name = short_name(schema.name) if isinstance(schema, RecordSchema) else ""
    return _projected(schema, wanted, name, renames=renames)


def _projected(schema: Schema, wanted: Wanted, path: str, *, renames: bool) -> Schema:
    if not wanted:
        return schema
    match schema:
        case ArraySchema():
            return ArraySchema(_projected(schema.items, wanted, f"{path}[]", renames=renames))
        case MapSchema():
            return MapSchema(_projected(schema.values, wanted, f"{path}{{}}", renames=renames))
        case UnionSchema() if len(present_branches(schema)) == 1:
            return UnionSchema(
                tuple(
                    one
                    if is_primitive(one, "null")
                    else _projected(one, wanted, path, renames=renames)
                    for one in schema.branches
                )
            )
        case RecordSchema():
            fields = tuple(
                _renamed(
                    replace(
                        found,
                        type=_projected(found.type, below, f"{path}.{found.name}", renames=renames),
                    ),
                    name if renames else found.name,
                )
                for name, found, below in found_fields(
                    schema.fields, wanted, path, described(schema)
                )
            )
            whole = schema.whole or schema.fields
            return RecordSchema(schema.name, schema.aliases, fields, whole)
        case UnionSchema() if all(_MEMBER.fullmatch(name) for name in wanted):
            return schema  # its members are all there
    raise SchemaError(path, f"{described(schema)} has no field {next(iter(wanted))!r}")


def _renamed(one: RecordField, name: str) -> RecordField:
    return one if name == one.name else replace(one, column=name)


def found_fields(
    fields: Sequence[_Field], wanted: Wanted, path: str, owner: str
) -> list[tuple[str, _Field, Wanted]]:
    """Return the wanted fields: by their name, or by the only one that differs in case alone.

    Raises:
        SchemaError: there is none, or one is asked for twice; names the path and the owner.
    """
    by_name = {one.name: one for one in fields}
    found: list[tuple[str, _Field, Wanted]] = []
    for name, below in wanted.items():
        alike = [one for one in fields if one.name.casefold() == name.casefold()]
        match = by_name.get(name) or (alike[0] if len(alike) == 1 else None)
        if match is None:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its fields are: {', '.join(by_name)}"
            raise SchemaError(path, f"{owner} has no field {name!r}; {hint}")
        if any(match is other for _, other, _ in found):
            raise SchemaError(path, f"the field {match.name!r} is asked for twice")
        found.append((name, match, below))
    return found


# The schema of a column that none is given for.


def derived(kind: pa.DataType, name: str) -> str:
    """Return the schema of a column of an Arrow type, as JSON.

    Args:
        kind: the column's type.
        name: the full name of the record, where the column is a struct.

    Raises:
        SchemaError: a type has no form in Avro, or a field's name is none of Avro's; names the path.
    """
    return json.dumps(_derived(kind, name, ""))


def record_name(subject: str) -> str:
    """Return a name for the record that the values of a subject are: its letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", subject, flags=re.ASCII)
    return name if _AVRO_NAME.match(name) else f"_{name}"


def _derived(kind: pa.DataType, name: str, path: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _derived_record(kind, name, path)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = _derived(kind.value_type, name, f"{path}[]")
        return {"type": "array", "items": ["null", items]}
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise SchemaError(path, f"a map with keys of type {kind.key_type}; Avro's are strings")
        return {"type": "map", "values": ["null", _derived(kind.item_type, name, f"{path}{{}}")]}
    if types.is_dictionary(kind):
        return _derived(kind.value_type, name, path)
    if types.is_decimal(kind):
        return {
            "type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale,
        }  # fmt: skip
    if types.is_time(kind) and kind.unit in _TIMES_OF_DAY:
        base, logical = _TIMES_OF_DAY[kind.unit]
        return {"type": base, "logicalType": logical}
    if types.is_timestamp(kind) and kind.unit in _UNITS:
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[kind.unit]}"}
    if kind == pa.date32():
        return {"type": "int", "logicalType": "date"}
    return _derived_primitive(kind, path)


def _derived_primitive(kind: pa.DataType, path: str) -> str:
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) and kind != pa.uint64():
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if types.is_float32(kind) or types.is_float16(kind):
        return "float"
    if types.is_float64(kind):
        return "double"
    if is_text(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):  # fmt: skip
        return "bytes"
    raise SchemaError(
        path, f"a column of type {kind} has no form in Avro: cast it, or give the schema"
    )


def _derived_record(kind: pa.DataType, name: str, path: str) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for one in kind:
        below = f"{path}.{one.name}" if path else one.name
        if not _AVRO_NAME.fullmatch(one.name):
            raise SchemaError(below, "names of Avro have letters, digits and underscores, and begin with no digit: rename the column")  # fmt: skip
        if any(one.name == other["name"] for other in fields):
            raise SchemaError(below, "there are two columns of this name")
        inner = _derived(one.type, f"{name}.{one.name}", below)
        fields.append({"name": one.name, "type": ["null", inner], "default": None})
    return {"type": "record", "name": name, "fields": fields}
