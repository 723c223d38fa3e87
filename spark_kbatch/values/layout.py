"""Which Arrow type an Avro type becomes, and the columns that a value of it is decoded into.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
_COLUMNS_MAX = 10_000

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
        if self._columns_count > _COLUMNS_MAX:
            raise SchemaError(path, f"the schema has more than {_COLUMNS_MAX} columns: name the fields that are wanted")  # fmt: skip
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
        _ensure_distinct(record, path)
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


def _ensure_distinct(record: RecordSchema, path: str) -> None:
    names: dict[str, str] = {}
    for one in record.fields:
        other = names.setdefault(one.name.casefold(), one.name)
        if other != one.name:
            raise SchemaError(
                path,
                f"{described(record)} has the fields {other!r} and {one.name!r}, which Spark cannot tell apart: "
                "name the fields that are wanted and leave one out",
            )
