"""Resolution of a writer's schema against the reader's, into a program for `kernels/avro`.

The rules are Avro's:

    records     fields by name, or by an alias of the reader's; what only the writer has is passed over; what
                only the reader has gets its default. Names are compared without their namespaces, and the
                reader's record, enum or fixed may have the writer's name as an alias
    numbers     int -> long -> float -> double, each to all that follow
    bytes       to string and back; the bytes of a string must be UTF-8
    enums       by symbol; one that the reader does not have becomes the reader's default
    unions      each branch of the writer's by itself; of the reader's, the branch of the same type or name,
                else the first that the type can be promoted to

and two of ours, where the bytes alone would give another number with no error:

    times       a unit is converted to the reader's, so milliseconds become microseconds; what would lose
                digits, or mistake a local time for an instant, is refused
    decimals    the scales must be equal; the reader's precision bounds each value; a string is none

What cannot be resolved fails only rows that reach it, as in Java: a branch of a union that no row has, or
the items of an empty array, do no harm.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from spark_kbatch.errors import SchemaError
from spark_kbatch.kernels import avro as kernels
from spark_kbatch.kernels.slots import MEMORY_PER_BYTE
from spark_kbatch.values import layout as columns
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
    fixed_size,
    is_plain_bytes,
    least_size,
    short_name,
)
from spark_kbatch.values.defaults import branch_of, number_of, unscaled, why_unfit
from spark_kbatch.values.flat import Array, frozen
from spark_kbatch.values.layout import (
    INT32,
    INT64,
    NO_SLOT,
    NOWHERE,
    Column,
    ColumnLayout,
    bounds,
    column_unit,
    default_factor,
    unit_of,
)

_PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NO_READING = "the writer's {} cannot be read as {}"
_WORD = 2**64
_ITEM_MEMORY_MAX = 2**31 - 1
_OPERATIONS_MAX = 100_000  # of one writer's schema: unions of unions of records multiply
_SLOT_MEMORY = 32  # bytes: a number and its validity, while slots grow and become Arrow arrays


class CompiledPrograms(NamedTuple):
    """Programs as the kernel takes them: read-only arrays."""

    operations: Array  # int64[operations, 5]
    table: Array  # int64
    constants: Array  # uint8


class Programs:
    """The programs that decode what several writers wrote into the columns of one reader's schema.

    Not thread-safe while a writer is added.
    """

    def __init__(self, reader: Schema, reader_layout: ColumnLayout, reader_name: str = "") -> None:
        self._reader, self._layout = reader, reader_layout
        self._reader_name = f"the reader's schema{f', {reader_name},' if reader_name else ''}"
        self._slots_counts = Counter(reader_layout.slot_levels)
        self._branches_of: dict[UnionSchema, _Branches] = {}  # the reader's
        self.paths: list[str] = []  # of the field that an operation is for
        # Why an operation that fails does: a template, and what it names. Few are ever shown.
        self._reasons: dict[int, tuple[str, tuple[Schema | str, ...]]] = {}
        self._operations: list[tuple[int, int, int, int, int]] = []
        self._table: list[int] = []
        self._constants = bytearray()
        self._compiled: CompiledPrograms | None = None
        self._spans: dict[bytes, int] = {}
        self._calls: list[tuple[int, RecordSchema]] = []  # operations that pass over a record
        self._passed: dict[RecordSchema, int] = {}  # where that starts
        self._is_in_item = False  # what is emitted
        self._start = 0  # of the program that is emitted
        self._rest: Schema | None = None  # whose bytes have no length

    def add(self, writer: Schema, *, is_framed: bool = False) -> int:
        """Add the program of a writer's schema; return where it starts.

        Args:
            writer: the schema.
            is_framed: whether values have Confluent's framing: bytes that are a whole value have no length then.

        Raises:
            SchemaError: it would be too long.
        """
        self._start = start = len(self._operations)
        table_size, constants_size = len(self._table), len(self._constants)
        self._rest = writer if is_framed and is_plain_bytes(writer) else None
        try:
            self._add(writer)
        except SchemaError:
            # What is refused holds nothing.
            del self._operations[start:], self.paths[start:]
            del self._table[table_size:], self._constants[constants_size:]
            self._reasons = {pc: one for pc, one in self._reasons.items() if pc < start}
            self._spans = {
                data: one for data, one in self._spans.items() if one + 2**63 < constants_size << 32
            }
            self._calls.clear()
            self._passed = {one: pc for one, pc in self._passed.items() if pc < start}
            self._is_in_item = False
            raise
        finally:
            self._compiled = None
        return start

    def _add(self, writer: Schema) -> None:
        self._resolve(writer, self._reader, self._layout.root, "")
        self._emit(kernels.END, "")
        while self._calls:
            pc, record = self._calls.pop()
            if record not in self._passed:
                self._passed[record] = len(self._operations)
                for field in record.fields:
                    self._pass_over(field.type, f"{short_name(record.name)}.{field.name}")
                self._emit(kernels.RETURN, short_name(record.name))
            self._patch(pc, self._passed[record])

    def compiled(self) -> CompiledPrograms:
        """Return the programs of all writers that were added."""
        if self._compiled is None:
            shape = (-1, kernels.OPERATION_COLUMNS)
            self._compiled = CompiledPrograms(
                frozen(np.array(self._operations, np.int64).reshape(shape)),
                frozen(np.array(self._table, np.int64)),
                frozen(np.frombuffer(bytes(self._constants), np.uint8)),
            )
        return self._compiled

    def _emit(
        self,
        code: int,
        path: str,
        column: Column | None = None,
        first: int = 0,
        second: int = 0,
        third: int = 0,
    ) -> int:
        """Add an operation; return where it is."""
        slot = NO_SLOT if column is None else column.slot
        return self._emit_at(code, path, slot, first, second, third)

    def _emit_at(
        self, code: int, path: str, slot: int, first: int = 0, second: int = 0, third: int = 0
    ) -> int:
        if len(self._operations) - self._start >= _OPERATIONS_MAX:
            raise SchemaError(
                path, f"reading it takes more than {_OPERATIONS_MAX} steps: its unions multiply"
            )
        self._operations.append((code, slot, first, second, third))
        self.paths.append(path)
        return len(self._operations) - 1

    def _patch(self, pc: int, first: int) -> None:
        """Set the first argument of an operation that was emitted before its value was known."""
        code, slot, _, second, third = self._operations[pc]
        self._operations[pc] = code, slot, first, second, third

    def reason(self, pc: int) -> str:
        """Return why an operation that fails does."""
        template, named = self._reasons[pc]
        return template.format(*(one if isinstance(one, str) else described(one) for one in named))

    def _fail(self, path: str, template: str, *named: Schema | str) -> None:
        self._reasons[self._emit(kernels.FAIL, path, None, kernels.UNRESOLVED)] = template, named

    def _span(self, data: bytes) -> int:
        """Return the span of a constant."""
        if data not in self._spans:
            self._spans[data] = (len(self._constants) << 32 | len(data)) - 2**63
            self._constants += data
        return self._spans[data]

    # Resolution.

    def _resolve(self, writer: Schema, reader: Schema, column: Column, path: str) -> None:
        """Emit what reads a value of the writer's type into a column of the reader's."""
        if isinstance(writer, UnionSchema):
            self._branches(
                writer,
                path,
                lambda branch: self._resolve(branch, reader, column, path),
            )
        elif isinstance(reader, UnionSchema):
            self._into_union(writer, reader, column, path)
        else:
            self._into_one(writer, reader, column, path)

    def _branches(
        self, writer: UnionSchema, path: str, emit_branch: Callable[[Schema], None]
    ) -> None:
        """Emit what reads the number of a branch, and each branch."""
        count, at = len(writer.branches), len(self._table)
        self._table += [0] * count
        self._emit(kernels.BRANCH, path, None, at, count)
        jumps = []
        for index, branch in enumerate(writer.branches):
            self._table[at + index] = len(self._operations)
            emit_branch(branch)
            if index + 1 < count:
                jumps.append(self._emit(kernels.JUMP, path))
        for pc in jumps:
            self._patch(pc, len(self._operations))

    def _into_union(self, writer: Schema, reader: UnionSchema, column: Column, path: str) -> None:
        branches = self._branches_of.get(reader) or _Branches(reader)
        self._branches_of[reader] = branches
        branch = branches.for_writer(writer)
        if branch is None:
            self._fail(path, "{} is no branch of the reader's {}", writer, reader)
            return
        if isinstance(branch, PrimitiveSchema) and branch.type == "null":
            return
        if branches.wide is not None:
            self._into_one(_without_logical(writer), PrimitiveSchema(branches.wide), column, path)
            return
        if len(branches.members) > 1:
            self._emit(kernels.STRUCT, path, column)
            member = branches.members[branch]
            column, path = column.children[member], below(path, f"member{member}")
        self._into_one(writer, branch, column, path)

    def _into_one(self, writer: Schema, reader: Schema, column: Column, path: str) -> None:
        """Emit what reads a type that is no union into another one."""
        if not _are_alike(writer, reader):
            self._fail(path, _NO_READING, writer, reader)
            return
        match writer, reader:
            case RecordSchema(), RecordSchema():
                self._record(writer, reader, column, path)
            case EnumSchema(), EnumSchema():
                self._enum(writer, reader, column, path)
            case ArraySchema(), ArraySchema():
                self._list(
                    column, path, least_size(writer.items),
                    lambda: self._resolve(writer.items, reader.items, column.children[0], f"{path}[]"),
                )  # fmt: skip
            case MapSchema(), MapSchema():
                self._map(writer, reader, column, path)
            case FixedSchema(), FixedSchema():
                self._bytes(writer, reader, column, path)
            case PrimitiveSchema(), PrimitiveSchema():
                self._primitive(writer, reader, column, path)

    def _record(
        self, writer: RecordSchema, reader: RecordSchema, column: Column, path: str
    ) -> None:
        self._emit(kernels.STRUCT, path, column)
        pairs = matched_fields(writer, reader)
        read = {written: index for index, written in enumerate(pairs) if written is not None}
        for field, written, child in zip(reader.fields, pairs, column.children, strict=True):
            if written is None:
                self._default(reader, field, child, below(path, field.name))
        for one in writer.fields:
            if one in read:
                field, child = reader.fields[read[one]], column.children[read[one]]
                self._resolve(one.type, field.type, child, below(path, field.name))
            else:
                self._pass_over(one.type, below(path, one.name))

    def _enum(self, writer: EnumSchema, reader: EnumSchema, column: Column, path: str) -> None:
        at = len(self._table)
        for symbol in writer.symbols:
            known = symbol if symbol in reader.numbers else reader.default
            self._table.append(kernels.NO_SYMBOL if known is None else self._span(known.encode()))
        self._emit(kernels.SYMBOL, path, column, at, len(writer.symbols))

    def _list(
        self, column: Column | None, path: str, least: int, emit_item: Callable[[], None]
    ) -> None:
        level = NOWHERE if column is None else column.items_level
        self._emit(kernels.BEGIN, path, column, level)
        block = self._emit(kernels.BLOCK, path, column, level)
        was_in_item, self._is_in_item = self._is_in_item, True
        emit_item()
        self._is_in_item = was_in_item
        self._emit(kernels.NEXT, path, None, block)
        code, slot, first, _, _ = self._operations[block]
        paid = MEMORY_PER_BYTE * least
        memory = min(max(self._item_memory(level) - paid, 0 if least else 1), _ITEM_MEMORY_MAX)
        item = memory << 32 | min(least, _ITEM_MEMORY_MAX)
        self._operations[block] = code, slot, first, len(self._operations), item

    def _item_memory(self, level: int) -> int:
        """Return the memory of one item of a level, in bytes, but for data of any length."""
        return _SLOT_MEMORY * self._slots_counts[level] if level != NOWHERE else 0

    def _map(self, writer: MapSchema, reader: MapSchema, column: Column, path: str) -> None:
        key, value = column.children

        def emit_entry() -> None:
            self._emit(kernels.TEXT, f"{path}{{key}}", key)
            self._resolve(writer.values, reader.values, value, f"{path}{{}}")

        self._list(column, path, 1 + least_size(writer.values), emit_entry)

    def _primitive(
        self, writer: PrimitiveSchema, reader: PrimitiveSchema, column: Column, path: str
    ) -> None:
        match writer.type, reader.type:
            case "null", _:
                pass
            case "boolean", _:
                self._emit(kernels.BOOLEAN, path, column)
            case (("int" | "long"), ("int" | "long")):
                self._number(writer, reader, column, path)
            case ("int" | "long") as kind, target:
                code = kernels.TO_FLOAT if target == "float" else kernels.TO_DOUBLE
                self._emit(code, path, column, *(INT32 if kind == "int" else INT64))
            case "float", target:
                self._emit(kernels.FLOAT if target == "float" else kernels.WIDEN, path, column)
            case "double", _:
                self._emit(kernels.DOUBLE, path, column)
            case _:
                self._bytes(writer, reader, column, path)

    def _number(
        self, writer: PrimitiveSchema, reader: PrimitiveSchema, column: Column, path: str
    ) -> None:
        written, wanted = unit_of(writer.logical), column_unit(reader.logical)
        if written is None and wanted is not None:
            written = unit_of(reader.logical)  # the number is what the reader says that it is
        factor = 1
        if written is not None and wanted is not None:
            factor = wanted.per_second // written.per_second
            if written.family != wanted.family or factor == 0:
                self._fail(path, _NO_READING, writer, reader)
                return
        least, most = bounds(writer.type, reader.type, factor)
        self._emit(kernels.NUMBER, path, column, least, most, factor)

    def _bytes(
        self,
        writer: PrimitiveSchema | FixedSchema,
        reader: PrimitiveSchema | FixedSchema,
        column: Column,
        path: str,
    ) -> None:
        size = writer.size if isinstance(writer, FixedSchema) else None
        is_rest = writer is self._rest
        is_text = any(columns.is_primitive(one, "string") for one in (writer, reader))
        if is_text and _is_decimal(writer) != _is_decimal(reader):
            self._fail(path, _NO_READING, writer, reader)
            return
        if column.kind == columns.DECIMAL:
            assert reader.logical is not None
            written = writer.logical
            if (
                written is not None
                and written.name == "decimal"
                and written.scale != reader.logical.scale
            ):
                differ = "the writer's {} has another scale than the reader's {}"
                self._fail(path, differ, writer, reader)
                return
            if is_rest:
                self._fail(path, _NO_READING, writer, reader)
                return
            limits = self._limits(reader.logical.precision)
            if size is None:
                self._emit(kernels.BIG_NUMBER, path, column, limits)
            else:
                self._emit(kernels.BIG_FIXED, path, column, limits, size)
        elif size is not None:
            self._emit(kernels.FIXED, path, column, size)
        elif is_rest:
            self._emit(kernels.FIXED, path, column, -1, int(column.kind == columns.TEXT))
        else:
            is_text = column.kind == columns.TEXT
            self._emit(kernels.TEXT if is_text else kernels.DATA, path, column)

    def _limits(self, precision: int) -> int:
        """Return where the table has the largest number of so many digits, and one less, as two words each."""
        at = len(self._table)
        for number in (10**precision - 1, 10**precision - 2):
            self._table += [_signed(number % _WORD), number // _WORD]
        return at

    # What is passed over.

    def _pass_over(self, writer: Schema, path: str) -> None:
        """Emit what reads a value of the writer's type and stores nothing."""
        size = fixed_size(writer)
        if size is not None:
            if size > 0:
                self._emit(kernels.PASS, path, None, size)
            return
        match writer:
            case RecordSchema():
                self._calls.append((self._emit(kernels.CALL, path), writer))
            case UnionSchema():
                self._branches(writer, path, lambda branch: self._pass_over(branch, path))
            case ArraySchema():
                self._list(
                    None, path, least_size(writer.items),
                    lambda: self._pass_over(writer.items, f"{path}[]"),
                )  # fmt: skip
            case MapSchema():
                self._list(
                    None, path, 1 + least_size(writer.values),
                    lambda: self._pass_over_entry(writer, path),
                )  # fmt: skip
            case EnumSchema():
                self._emit(kernels.PASS_NUMBER, path, None, 0, len(writer.symbols) - 1)
            case PrimitiveSchema(type="int"):
                self._emit(kernels.PASS_NUMBER, path, None, *INT32)
            case PrimitiveSchema(type="long"):
                self._emit(kernels.PASS_NUMBER, path, None, *INT64)
            case _:
                self._emit(kernels.PASS_DATA, path)

    def _pass_over_entry(self, writer: MapSchema, path: str) -> None:
        self._emit(kernels.PASS_DATA, f"{path}{{key}}")
        self._pass_over(writer.values, f"{path}{{}}")

    # Defaults.

    def _default(self, record: RecordSchema, field: RecordField, column: Column, path: str) -> None:
        if field.default is NO_DEFAULT:
            self._fail(
                path,
                "the writer's schema has no field {}, and the reader's {} has no default for it",
                repr(field.name), record,
            )  # fmt: skip
        elif why := why_unfit(field.type, field.default):
            default = "the default of the field {} in {} {}"
            self._fail(path, default, repr(field.name), self._reader_name, why)
        else:
            self._constant(field.type, field.default, column, path)

    def _constant(self, schema: Schema, value: Any, column: Column, path: str) -> None:
        """Emit what stores a default, which fits the schema."""
        match schema:
            case UnionSchema():
                self._constant_of_union(schema, value, column, path)
            case RecordSchema():
                self._emit(kernels.STRUCT, path, column)
                for field, child in zip(schema.fields, column.children, strict=True):
                    inner = value.get(field.name, field.default)
                    self._constant(field.type, inner, child, below(path, field.name))
            case ArraySchema():
                (element,) = column.children
                self._emit(kernels.BEGIN, path, column, column.items_level)
                memory = self._charged(self._item_memory(column.items_level))
                for item in value:
                    self._emit(kernels.ITEM, path, None, column.items_level, memory)
                    self._constant(schema.items, item, element, f"{path}[]")
                self._emit(kernels.FINISH, path, column, column.items_level)
            case MapSchema():
                key, child = column.children
                self._emit(kernels.BEGIN, path, column, column.items_level)
                memory = self._charged(self._item_memory(column.items_level))
                for name, item in value.items():
                    self._emit(kernels.ITEM, path, None, column.items_level, memory)
                    self._emit_span(name.encode(), key, path)
                    self._constant(schema.values, item, child, f"{path}{{}}")
                self._emit(kernels.FINISH, path, column, column.items_level)
            case EnumSchema():
                self._emit_span(value.encode(), column, path)
            case _:
                self._constant_scalar(schema, value, column, path)

    def _constant_of_union(self, union: UnionSchema, value: Any, column: Column, path: str) -> None:
        branch = union.branches[branch_of(union, value)]
        wide = columns.merged_number(union)
        present = columns.present_branches(union)
        if branch not in present:
            return
        if wide is not None:
            branch = PrimitiveSchema(wide)
        elif len(present) > 1:
            self._emit(kernels.STRUCT, path, column)
            column = column.children[present.index(branch)]
        self._constant(branch, value, column, path)

    def _constant_scalar(
        self, schema: PrimitiveSchema | FixedSchema, value: Any, column: Column, path: str
    ) -> None:
        if column.kind == columns.NULL:
            return
        if column.kind in (columns.BYTES, columns.TEXT):
            encoding = "latin-1" if column.kind == columns.BYTES else "utf-8"
            self._emit_span(value.encode(encoding), column, path)
            return
        if column.kind == columns.DECIMAL:
            number = unscaled(value)
            lower, upper = number % _WORD, number // _WORD
            self._emit_at(kernels.CONSTANT, path, column.slot + 1, upper)
            stored = _signed(lower)
        elif column.kind == columns.FLOAT:
            stored = struct.unpack("<I", struct.pack("<f", number_of(value)))[0]
        elif column.kind == columns.DOUBLE:
            stored = struct.unpack("<q", struct.pack("<d", number_of(value)))[0]
        else:
            stored = int(value) * default_factor(schema.logical)
        self._emit(kernels.CONSTANT, path, column, stored)

    def _emit_span(self, data: bytes, column: Column, path: str) -> None:
        """Emit what stores the bytes of a default."""
        self._emit(kernels.CONSTANT, path, column, self._span(data), self._charged(len(data)))

    def _charged(self, memory: int) -> int:
        """Return how much of the memory of a default a row pays for: what each of its items has again."""
        return memory if self._is_in_item else 0


def matched_fields(writer: RecordSchema, reader: RecordSchema) -> list[RecordField | None]:
    """Return the writer's field for each of the reader's, None where it has none.

    Each of the writer's fields is read once: a name of the reader's comes before an alias.
    """
    by_name = {one.name: one for one in writer.fields}
    fields = reader.whole or reader.fields
    pairs = {field.name: by_name.pop(field.name, None) for field in fields}
    for field in fields:
        for alias in field.aliases:
            if pairs[field.name] is None:
                pairs[field.name] = by_name.pop(alias, None)
    return [pairs[field.name] for field in reader.fields]


class _Branches:
    """The branches of a reader's union, by what is read into them."""

    def __init__(self, union: UnionSchema) -> None:
        self.wide = columns.merged_number(union)
        self.members = {one: at for at, one in enumerate(columns.present_branches(union))}
        self._same = {_key(one, getattr(one, "name", "")): one for one in union.branches}
        self._alike: dict[Hashable, tuple[int, Schema]] = {}
        for found in enumerate(union.branches):
            for key in _taken_by(found[1]):
                self._alike.setdefault(key, found)

    def for_writer(self, writer: Schema) -> Schema | None:
        """Return the branch of the same type or name, else the first that it can be read as."""
        same = self._same.get(_key(writer, getattr(writer, "name", "")))
        alike = [self._alike[key] for key in _read_as(writer) if key in self._alike]
        return same or (min(alike, key=lambda one: one[0])[1] if alike else None)


def _are_alike(writer: Schema, reader: Schema) -> bool:
    """Return True if a type that is no union can be read as another one, whatever lies in them."""
    return not _taken_by(reader).isdisjoint(_read_as(writer))


def _read_as(writer: Schema) -> set[Hashable]:
    """Return keys of what a type of the writer's, which is no union, can be read as."""
    own = _key(writer, short_name(getattr(writer, "name", "")))
    return {own, *_PROMOTIONS.get(getattr(writer, "type", ""), ())}


def _taken_by(reader: Schema) -> set[Hashable]:
    """Return keys of what is read as a type of the reader's without a promotion."""
    names = (getattr(reader, "name", ""), *getattr(reader, "aliases", ()))
    return {_key(reader, short_name(one)) for one in names}


def _key(schema: Schema, name: str) -> Hashable:
    """Return what two types share that are read as each other, under this name and unchanged."""
    size = schema.size if isinstance(schema, FixedSchema) else 0
    return schema.type if isinstance(schema, PrimitiveSchema) else (type(schema), name, size)


def _is_decimal(schema: PrimitiveSchema | FixedSchema) -> bool:
    return schema.logical is not None and schema.logical.name == "decimal"


def _without_logical(schema: Schema) -> Schema:
    return PrimitiveSchema(schema.type) if isinstance(schema, PrimitiveSchema) else schema


def _signed(word: int) -> int:
    """Return the int64 with the bits of a word."""
    return word - _WORD if word >= _WORD // 2 else word
