"""Encoding of an Arrow array as Avro values of one schema, with an error for each row that does not fit.

Which Arrow types a type takes:

    Avro                                        Arrow
    boolean                                     bool
    int, long, with or without a logical type   integers but uint64, as they are
    float, double                               floating-point numbers
    date                                        date32
    time-..., (local-)timestamp-...             times; timestamps with a time zone, or without one if local
    decimal                                     decimals of any width and scale
    string, enum                                string, large_string
    bytes, fixed                                binary, large_binary, fixed_size_binary; for bytes strings too
    record                                      struct
    array                                       list, large_list, fixed_size_list
    map                                         map with strings as keys
    union of null and one type                  what the type takes
    union of int and long, of float and double  what the wider type takes
    other union                                 struct<member0, ...>, as `layout` has it

and dictionaries and views of these. A value that its type cannot hold, or not without a loss, is an error of
its row. Fields are matched by name: one without a column needs a default, and a column without a field is
refused. A row that is null has no bytes: that is a tombstone, not a value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.kernels import avro_encoding as kernels
from spark_kbatch.values import framing, sources
from spark_kbatch.values.avro_schema import (
    NO_DEFAULT,
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    PrimitiveSchema,
    RecordField,
    RecordSchema,
    Schema,
    UnionSchema,
    below,
    described,
    is_plain_bytes,
)
from spark_kbatch.values.decoded import RowError
from spark_kbatch.values.defaults import encoded, why_unfit
from spark_kbatch.values.encoded import EncodedValues, encoded_in_pieces
from spark_kbatch.values.flat import Array, assembled, bounds_of, frozen, valid_bytes
from spark_kbatch.values.layout import (
    INT32,
    INT64,
    TimeUnit,
    is_primitive,
    is_text,
    merged_number,
    plain_type,
    present_branches,
    unit_of,
)
from spark_kbatch.values.sources import SlotValues, Source

_REASONS = {
    kernels.LOSES_DIGITS: "the value would lose digits in the schema's type",
    kernels.OUT_OF_RANGE: "the value is outside the range of the schema's type",
    kernels.NOT_A_SYMBOL: "the value is no symbol of the schema's enum",
    kernels.WRONG_SIZE: "the value has not the size of the schema's fixed type",
    kernels.NULL_VALUE: "the value is null, which the schema does not allow",
    kernels.NO_ONE_MEMBER: "not exactly one member of the union is set",
}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class AvroEncoder:
    """Encodes arrays of one Arrow type as values of one schema. Any number of threads may encode."""

    def __init__(self, writer: Schema, kind: pa.DataType) -> None:
        """Prepare the program.

        Raises:
            SchemaError: a column does not fit its field, or has none, or is missing; names the path.
        """
        if isinstance(writer, UnionSchema):
            raise SchemaError("", f"{described(writer)} is not written: null would be no tombstone")
        self._program = _Program()
        self._root = self._program.value(writer, kind, "", 0)
        self._program.emit(kernels.END, "")
        self._operations = np.array(self._program.operations, np.int64)
        self._framed_operations = self._operations.copy()
        if is_plain_bytes(writer):
            is_data = self._operations[:, 0] == kernels.DATA
            self._framed_operations[is_data, 0] = kernels.FIXED
        self._table = np.array(self._program.table, np.int64)
        self._constants = np.frombuffer(bytes(self._program.constants), np.uint8)

    def encode(
        self, array: pa.Array | pa.ChunkedArray, *, schema_id: int | None = None
    ) -> EncodedValues:
        """Encode rows.

        Args:
            array: of the Arrow type; chunked or not. Only read.
            schema_id: of the schema: goes in front of each value, in Confluent's framing. By default there
                is no framing.

        Raises:
            OverflowError: an array whose values do not fit into one array: pass it as a chunked one.
        """
        header = b"" if schema_id is None else framing.header(schema_id)
        return encoded_in_pieces(array, lambda rows: self._run(rows, header))

    def _run(self, array: pa.Array, header: bytes) -> tuple[pa.Array, list[RowError]] | None:
        """Return the values of rows and their errors, None if their bytes are too many."""
        count, program = len(array), self._program
        slots = SlotValues(program.slots_count)
        self._root(array, slots)
        data, values, states, bases = slots.data, slots.values, slots.states, slots.bases
        if data is None:
            return None
        is_row = valid_bytes(array)
        out = np.empty(len(data) + 4 * len(values) + count * (len(header) + 8) + 64, np.uint8)
        bounds, errors = np.zeros(count + 1, np.int64), np.zeros((2, count), np.int64)
        stack = np.zeros((program.depth + 1, kernels.STACK_COLUMNS), np.int64)
        operations = self._framed_operations if header else self._operations
        row = 0
        while True:
            row = kernels.encode_rows(
                frozen(operations), frozen(self._table), bases, values, states, data,
                frozen(self._constants), frozen(np.frombuffer(header, np.uint8)), frozen(is_row), row, out,
                bounds, stack, errors,
            )  # fmt: skip
            if row == count:
                return self._values(out, bounds, errors, is_row)
            more = np.empty(2 * len(out), np.uint8)
            more[: bounds[row]] = out[: bounds[row]]
            out = more

    def _values(
        self, out: Array, bounds: Array, errors: Array, is_row: Array
    ) -> tuple[pa.Array, list[RowError]] | None:
        arrow_bounds = bounds_of(np.diff(bounds))
        if arrow_bounds is None:
            return None
        valid = ((is_row != 0) & (errors[0] == 0)).astype(np.uint8)
        buffers = [arrow_bounds, out[: bounds[-1]].copy()]
        found = [
            RowError(row, _REASONS[int(errors[0, row])], self._program.paths[int(errors[1, row])])
            for row in np.flatnonzero(errors[0]).tolist()
        ]
        return assembled(pa.binary(), len(valid), valid, buffers), found


class _Program:
    """The operations that write an Arrow type as a schema, and sources for their slots."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, int, int, int, int]] = []
        self.paths: list[str] = []
        self.table: list[int] = []
        self.constants = bytearray()
        self.slots_count = 1  # slot 0 is of operations that need none
        self.depth = 0  # lists in each other, at most

    def emit(
        self, code: int, path: str, slot: int = 0, first: int = 0, second: int = 0, third: int = 0
    ) -> int:
        """Add an operation; return where it is."""
        self.operations.append((code, slot, first, second, third))
        self.paths.append(path)
        return len(self.operations) - 1

    def value(self, schema: Schema, kind: pa.DataType, path: str, depth: int) -> Source:
        """Emit what writes a value of an Arrow type, which may be null; return its source."""
        plain = plain_type(kind)
        if plain != kind:
            return _cast(self.value(schema, plain, path, depth), plain)
        if isinstance(schema, UnionSchema):
            return self._union(schema, kind, path, depth)
        slot, is_null = self._new_slot(), pa.types.is_null(kind)
        if not is_primitive(schema, "null"):
            self.emit(kernels.REQUIRE, path, slot)
        elif not is_null:
            raise _mismatch(schema, kind, path)
        if is_null:
            return sources.nulls(slot)
        return self._present(schema, kind, path, slot, depth)

    def _new_slot(self) -> int:
        self.slots_count += 2  # a decimal needs two
        return self.slots_count - 2

    def _patch(self, pc: int, *, first: int | None = None, third: int | None = None) -> None:
        """Set an argument of an operation that was emitted before its value was known."""
        code, slot, was_first, second, was_third = self.operations[pc]
        first = was_first if first is None else first
        self.operations[pc] = code, slot, first, second, was_third if third is None else third

    def _union(self, union: UnionSchema, kind: pa.DataType, path: str, depth: int) -> Source:
        slot, present = self._new_slot(), present_branches(union)
        null = next((n for n, one in enumerate(union.branches) if is_primitive(one, "null")), None)
        wide = merged_number(union)
        if pa.types.is_null(kind):
            if null is None:
                self.emit(kernels.REQUIRE, path, slot)
            else:
                here = self.emit(kernels.NULLABLE, path, slot, null)
                self._patch(here, third=here + 1)
            return sources.nulls(slot)
        if len(present) > 1 and wide is None:
            return self._members(union, null, kind, path, slot, depth)
        if not present:
            raise _mismatch(union, kind, path)
        branch = next(
            one for one in present
            if wide is None or is_primitive(one, wide)
        )  # fmt: skip
        if null is None:
            self.emit(kernels.REQUIRE, path, slot)
        here = self.emit(kernels.NULLABLE, path, slot, null or 0, union.branches.index(branch))
        source = self._present(branch, kind, path, slot, depth)
        self._patch(here, third=len(self.operations))
        return source

    def _members(
        self,
        union: UnionSchema,
        null: int | None,
        kind: pa.DataType,
        path: str,
        slot: int,
        depth: int,
    ) -> Source:
        present = present_branches(union)
        names = [f"member{index}" for index in range(len(present))]
        if not pa.types.is_struct(kind) or [one.name for one in kind] != names:
            raise _mismatch(union, kind, path, f"a struct of {', '.join(names)}")
        at = len(self.table)
        self.table += [0] * (kernels.MEMBER_COLUMNS * len(present) + 1)
        self.emit(kernels.MEMBER, path, slot, at, len(present), -1 if null is None else null)
        jumps, children = [], []
        for index, branch in enumerate(present):
            member = at + kernels.MEMBER_COLUMNS * index
            inner = self.slots_count  # the one that `value` takes first
            self.table[member : member + 3] = (
                inner,
                union.branches.index(branch),
                len(self.operations),
            )
            children.append(
                (index, self.value(branch, kind[index].type, f"{path}.{names[index]}", depth))
            )
            jumps.append(self.emit(kernels.JUMP, path))
        for pc in jumps:
            self._patch(pc, first=len(self.operations))
        self.table[at + kernels.MEMBER_COLUMNS * len(present)] = len(self.operations)
        return sources.structs(slot, tuple(children))

    def _present(
        self, schema: Schema, kind: pa.DataType, path: str, slot: int, depth: int
    ) -> Source:
        """Emit what writes a value that is not null; return its source."""
        match schema:
            case RecordSchema():
                return self._record(schema, kind, path, slot, depth)
            case ArraySchema():
                if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
                    raise _mismatch(schema, kind, path)
                return self._list(
                    path, slot, depth,
                    lambda: (self.value(schema.items, kind.value_type, f"{path}[]", depth + 1),),
                )  # fmt: skip
            case MapSchema():
                if not pa.types.is_map(kind) or not is_text(plain_type(kind.key_type)):
                    raise _mismatch(schema, kind, path)
                return self._list(
                    path, slot, depth,
                    lambda: (
                        self.value(PrimitiveSchema("string"), kind.key_type, f"{path}{{key}}", depth + 1),
                        self.value(schema.values, kind.item_type, f"{path}{{}}", depth + 1),
                    ),
                )  # fmt: skip
            case EnumSchema():
                if not is_text(kind):
                    raise _mismatch(schema, kind, path)
                self.emit(kernels.NUMBER, path, slot)
                return sources.symbols(slot, schema.numbers)
            case FixedSchema():
                return self._bytes(schema, kind, path, slot, schema.size)
            case PrimitiveSchema(type="bytes"):
                return self._bytes(schema, kind, path, slot, None)
            case PrimitiveSchema():
                return self._primitive(schema, kind, path, slot)
        raise _mismatch(schema, kind, path)

    def _record(
        self, record: RecordSchema, kind: pa.DataType, path: str, slot: int, depth: int
    ) -> Source:
        if not pa.types.is_struct(kind):
            raise _mismatch(record, kind, path)
        columns: dict[str, int] = {}
        fields = {one.name for one in record.fields}
        for index, column in enumerate(kind):
            if column.name in columns:
                raise SchemaError(below(path, column.name), "there are two columns of this name")
            if column.name not in fields:
                why = f"{described(record)} has no field for this column"
                raise SchemaError(below(path, column.name), why)
            columns[column.name] = index
        children = []
        for one in record.fields:
            inner = below(path, one.name)
            if one.name in columns:
                index = columns[one.name]
                children.append((index, self.value(one.type, kind[index].type, inner, depth)))
            else:
                self._default(record, one, inner)
        return sources.structs(slot, tuple(children))

    def _default(self, record: RecordSchema, one: RecordField, path: str) -> None:
        why = "which has no default"
        if one.default is not NO_DEFAULT:
            why = why_unfit(one.type, one.default) and (
                f"and its default {why_unfit(one.type, one.default)}"
            )
        if why:
            raise SchemaError(path, f"there is no column for this field of {described(record)}, {why}")  # fmt: skip
        data = encoded(one.type, one.default)
        self.emit(kernels.CONSTANT, path, 0, len(self.constants), len(data))
        self.constants += data

    def _list(
        self, path: str, slot: int, depth: int, emit_items: Callable[[], tuple[Source, ...]]
    ) -> Source:
        self.depth = max(self.depth, depth + 1)
        begin = self.emit(kernels.BEGIN, path, slot)
        children = emit_items()
        self.emit(kernels.NEXT, path, 0, begin + 1)
        self._patch(begin, first=len(self.operations))
        return sources.lists(slot, children)

    def _bytes(
        self,
        schema: PrimitiveSchema | FixedSchema,
        kind: pa.DataType,
        path: str,
        slot: int,
        size: int | None,
    ) -> Source:
        logical = schema.logical
        if pa.types.is_decimal(kind) and logical is not None and logical.name == "decimal":
            self.emit(kernels.BIG, path, slot, size or 0)
            return sources.decimals(slot, min(logical.precision, 38), logical.scale)
        is_bytes = _is_bytes(kind) or (size is None and is_text(kind))
        if not is_bytes or (logical is not None and logical.name == "decimal"):
            raise _mismatch(schema, kind, path)
        self.emit(kernels.DATA if size is None else kernels.FIXED, path, slot)
        return sources.spans(slot, size)

    def _primitive(
        self, schema: PrimitiveSchema, kind: pa.DataType, path: str, slot: int
    ) -> Source:
        types = pa.types
        match schema.type:
            case "boolean" if types.is_boolean(kind):
                self.emit(kernels.BOOLEAN, path, slot)
                return sources.booleans(slot)
            case "float" if types.is_floating(kind):
                self.emit(kernels.SINGLE, path, slot)
                return sources.singles(slot)
            case "double" if types.is_floating(kind):
                self.emit(kernels.DOUBLE, path, slot)
                return sources.doubles(slot)
            case "string" if is_text(kind):
                self.emit(kernels.DATA, path, slot)
                return sources.spans(slot)
            case "int" | "long":
                self.emit(kernels.NUMBER, path, slot)
                factor, divisor = _conversion(schema, kind, path)
                bounds = INT32 if schema.type == "int" else INT64
                return sources.integers(slot, bounds, factor, divisor)
        raise _mismatch(schema, kind, path)


def _conversion(schema: PrimitiveSchema, kind: pa.DataType, path: str) -> tuple[int, int]:
    """Return by what integers, or times, are multiplied and divided to be a schema's."""
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return 1, 1
    wanted, given = unit_of(schema.logical), _arrow_unit(kind)
    if wanted is None or given is None or wanted.family != given.family:
        raise _mismatch(schema, kind, path)
    return max(wanted.per_second // given.per_second, 1), max(
        given.per_second // wanted.per_second, 1
    )


def _arrow_unit(kind: pa.DataType) -> TimeUnit | None:
    if kind == pa.date32():
        return TimeUnit("date", 1)
    if pa.types.is_time(kind):
        return TimeUnit("time", _PER_SECOND[kind.unit])
    if pa.types.is_timestamp(kind):
        return TimeUnit("timestamp" if kind.tz else "local-timestamp", _PER_SECOND[kind.unit])
    return None


def _cast(source: Source, kind: pa.DataType) -> Source:
    return lambda array, slots: source(array.cast(kind), slots)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary())


def _mismatch(schema: Schema, kind: pa.DataType, path: str, wanted: str = "") -> SchemaError:
    hint = f", which takes {wanted}" if wanted else ""
    return SchemaError(
        path, f"a column of type {kind} cannot be written as {described(schema)}{hint}"
    )


def encode(
    array: pa.Array | pa.ChunkedArray, writer: Schema, *, schema_id: int | None = None
) -> EncodedValues:
    """Encode an Arrow array as Avro values.

    Args:
        array: see the table of this module; chunked or not. Only read.
        writer: the schema that the values are written with; no union.
        schema_id: goes in front of each value, in Confluent's framing; by default there is no framing.

    Returns:
        The values, null where a row is null or bad, and the errors of bad rows.

    Raises:
        SchemaError: a column does not fit its field, or has none, or is missing; names the path.
    """
    return AvroEncoder(writer, array.type).encode(array, schema_id=schema_id)
