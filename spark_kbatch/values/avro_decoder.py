"""Decoding of Avro values into one Arrow array of the reader's type, with an error for each bad row.

The kernel stores numbers in slots, which then become Arrow arrays, column by column. No Python object is
made for a row, except where it is bad. A row that is null, or bad, is null in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.kernels import avro as kernels
from spark_kbatch.values import layout as columns
from spark_kbatch.values.avro_schema import Schema, is_plain_bytes
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.flat import (
    Array,
    ByteStrings,
    assembled,
    bounds_of,
    frozen,
    pieces,
    strings_of,
)
from spark_kbatch.values.framing import (
    FRAMED_OTHERWISE,
    HEADER_SIZE,
    NO_SCHEMA_ID,
    described,
    schema_ids_of,
    unknown,
)
from spark_kbatch.values.layout import NOWHERE, ROWS, Column, ColumnLayout, layout
from spark_kbatch.values.resolution import Programs

CONFLUENT, NONE = "confluent", "none"
DEPTH_MAX = 500  # of records and lists that are passed over and contain themselves; Java's stack ends about there

_LENGTH_BITS = np.int64(2**32 - 1)
_NO_LIMIT = 2**62
_PLACE_BYTES = 9  # of a slot: a number, and whether it is one
_LEFT_ALONE = -1
_UNREADABLE_MAX = 1000  # schemas: bytes of another origin look as if they had any number of ids

_REASONS = {
    kernels.TRUNCATED: "the value ends in the middle of the field, or a length passes its end",
    kernels.BAD_VARINT: "a number has more than 64 bits",
    kernels.BAD_LENGTH: "a length is negative",
    kernels.BAD_COUNT: "the number of items in a block is not one",
    kernels.BAD_BRANCH: "a union has no branch of this number",
    kernels.BAD_SYMBOL: "the writer's enum has no symbol of this number",
    kernels.BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    kernels.BAD_TEXT: "a string is not UTF-8",
    kernels.TRAILING_BYTES: "bytes are left over after the value: another schema wrote it, or it is damaged",
    kernels.OUT_OF_RANGE: "a number is outside the range of its type",
    kernels.UNKNOWN_SYMBOL: "the reader's enum does not have the symbol, and no default",
    kernels.TOO_MUCH_MEMORY: (
        f"items of few bytes and defaults within items take more memory than {kernels.MEMORY_PER_BYTE} times the "
        f"value and {kernels.MEMORY_FREE} bytes"
    ),
    kernels.TOO_DEEP: "records or lists are nested too deep",
}


class AvroDecoder:
    """Decodes values of any writers' schemas into the columns of one reader's schema.

    Not thread-safe while a writer is added; any number of threads may decode.
    """

    def __init__(self, reader: Schema, reader_name: str = "") -> None:
        """Prepare the columns.

        Args:
            reader: the schema that values are read as.
            reader_name: of the schema, for errors about it.

        Raises:
            SchemaError: a type of the reader's has no form in columns; names the path.
        """
        self._layout: ColumnLayout = layout(reader)
        self._programs = Programs(reader, self._layout, reader_name)
        # By the writer's schema id; of values without framing, and with it.
        self._bare_starts: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._unreadable: dict[int, str] = {}

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of decoded values."""
        return self._layout.root.type

    def add_writer(self, schema_id: int, writer: Schema) -> None:
        """Make the values of a writer's schema readable. What of it cannot be resolved fails the rows that have it."""
        try:
            bare = framed = self._programs.add(writer)
            if is_plain_bytes(writer):
                framed = self._programs.add(writer, is_framed=True)
            self._bare_starts[schema_id], self._starts[schema_id] = bare, framed
        except SchemaError as error:
            self.add_unreadable(schema_id, str(error))
        else:
            self._unreadable.pop(schema_id, None)

    def add_unreadable(self, schema_id: int, reason: str) -> None:
        """Have rows of a schema fail with a reason: it is not known, or not Avro."""
        if schema_id not in self._starts:
            if len(self._unreadable) >= _UNREADABLE_MAX:
                del self._unreadable[next(iter(self._unreadable))]
            self._unreadable[schema_id] = reason

    def forget_unreadable(self) -> None:
        """Have the schemas that rows failed for be `missing` again."""
        self._unreadable.clear()

    def missing(self, array: pa.Array | pa.ChunkedArray) -> list[int]:
        """Return the schema ids of framed values that no writer was added for, in ascending order."""
        found = {NO_SCHEMA_ID}
        for piece in pieces(array):
            ids = schema_ids_of(strings_of(piece))
            if len(ids) and (ids == ids[0]).all():  # as nearly always
                ids = ids[:1]
            found.update(np.unique(ids).tolist())
        found.remove(NO_SCHEMA_ID)
        return sorted(
            one for one in found if one not in self._starts and one not in self._unreadable
        )

    def decode(
        self,
        array: pa.Array | pa.ChunkedArray,
        *,
        schema_id: int | None = None,
        memory_max: int | None = None,
    ) -> DecodedValues:
        """Decode values.

        Args:
            array: binary or string, or a large one of these; chunked or not. Only read.
            schema_id: the writer's schema of all values, which then have no framing; by default each
                has Confluent's, and says its own.
            memory_max: how many bytes the values of several rows may take; by default any number.

        Raises:
            OverflowError: an array whose values do not fit into one array: pass it as a chunked one;
                or into `memory_max`: pass fewer rows.
        """
        whole = [
            self._decode_piece(strings_of(piece), schema_id, memory_max) for piece in pieces(array)
        ]
        chunks, ids, errors, first = [], [], [], 0
        for decoded in (part for parts in whole for part in parts):
            chunks.append(decoded.values)
            ids.append(decoded.schema_ids)
            errors += [one._replace(row=one.row + first) for one in decoded.errors]
            first += len(decoded.values)
        if isinstance(array, pa.ChunkedArray):
            values = pa.chunked_array(chunks, self.type)
        else:
            values = _joined(chunks, self.type)
        schema_ids = np.concatenate(ids) if ids else np.empty(0, np.int32)
        return DecodedValues(values, schema_ids, tuple(errors))

    def _decode_piece(
        self, rows: ByteStrings, schema_id: int | None, memory_max: int | None
    ) -> list[DecodedValues]:
        """Decode rows in one call, or in two where a column would be too large."""
        count = len(rows.valid)
        slots = _SlotArrays(self._layout, self._programs, memory_max if count > 1 else None)
        try:
            return [slots.decoded(rows, self._routes(rows, schema_id))]
        except _TooLargeError:
            if count == 1:
                raise OverflowError("a single value decodes into more than 2 GiB") from None
            if memory_max is not None:
                raise OverflowError("the values take too much memory: pass fewer rows") from None
            middle = count // 2
            halves = (
                (rows.bounds[: middle + 1], rows.valid[:middle]),
                (rows.bounds[middle:], rows.valid[middle:]),
            )
            return [
                part
                for bounds, valid in halves
                for part in self._decode_piece(
                    ByteStrings(rows.data, bounds, valid), schema_id, memory_max
                )
            ]

    def _routes(self, rows: ByteStrings, schema_id: int | None) -> _Routes:
        """Return where the program of each row starts, and what is wrong with rows that have none."""
        if schema_id is not None:
            ids = np.where(rows.valid != 0, schema_id, NO_SCHEMA_ID).astype(np.int32)
            starts = np.where(rows.valid != 0, self._bare_starts[schema_id], _LEFT_ALONE)
            return _Routes(ids, starts.astype(np.int64), rows.bounds[:-1], [])
        ids = schema_ids_of(rows)
        starts = self._starts_of(ids)
        starts[ids == NO_SCHEMA_ID] = _LEFT_ALONE
        errors = []
        for row in np.flatnonzero((rows.valid != 0) & (starts == _LEFT_ALONE)).tolist():
            begin, end = int(rows.bounds[row]), int(rows.bounds[row + 1])
            value = rows.data[begin : min(end, begin + 32)].tobytes()
            errors.append(self._without_program(row, value, int(ids[row])))
        return _Routes(ids, starts, rows.bounds[:-1] + HEADER_SIZE, errors)

    def _starts_of(self, schema_ids: Array) -> Array:
        """Return where the program of each schema id starts, _LEFT_ALONE for one that has none."""
        known = np.array(sorted(self._starts), np.int32)
        if not len(known):
            return np.full(len(schema_ids), _LEFT_ALONE, np.int64)
        places = np.array([self._starts[one] for one in known.tolist()], np.int64)
        if len(known) == 1:
            return np.where(schema_ids == known, places, _LEFT_ALONE)
        at = np.minimum(np.searchsorted(known, schema_ids), len(known) - 1)
        return np.where(known[at] == schema_ids, places[at], _LEFT_ALONE)

    def _without_program(self, row: int, value: bytes, schema_id: int) -> RowError:
        if schema_id == NO_SCHEMA_ID:
            return RowError(row, f"the value is not in Confluent's framing: {described(value)}")
        reason = self._unreadable.get(schema_id) or unknown(schema_id, value)
        return RowError(row, reason, schema_id=schema_id)


@dataclass(frozen=True, eq=False)
class _Routes:
    """Each row's program, and where its value starts."""

    schema_ids: Array  # int32[n], NO_SCHEMA_ID for null, and a row without framing
    starts: Array  # int64[n], of programs
    begins: Array  # int64[n], where the value starts in the data
    errors: list[RowError]


class _TooLargeError(Exception):
    """A column whose bytes or items an int32 does not count, or too much memory of all columns."""


class _SlotArrays:
    """The slots that the rows of one call are decoded into."""

    def __init__(
        self, its_layout: ColumnLayout, programs: Programs, memory_max: int | None
    ) -> None:
        self._layout, self._programs = its_layout, programs
        self._memory_left = _NO_LIMIT if memory_max is None else memory_max
        self._levels = np.array(its_layout.slot_levels, np.int64)
        self._counts = np.zeros(its_layout.levels_count, np.int64)
        self._data = self._constants = self._valid = np.empty(0, np.uint8)
        self._values, self._sizes = np.empty(0, np.int64), np.zeros_like(self._levels)
        self._bases = np.zeros(len(self._levels), np.uint64)

    def decoded(self, rows: ByteStrings, routes: _Routes) -> DecodedValues:
        """Decode rows, and return them as one Arrow array."""
        self._data, count = rows.data, len(rows.valid)
        self._constants = self._programs.compiled().constants
        found = self._run(rows, routes)
        self._counts[ROWS] = count
        values = self._array(self._layout.root)
        errors = sorted([*routes.errors, *self._errors(found, rows, routes)])
        return DecodedValues(values, routes.schema_ids, tuple(errors))

    def _run(self, rows: ByteStrings, routes: _Routes) -> Array:
        """Have the kernel decode all rows, and make room where it finds too little; return its errors."""
        count, compiled = len(rows.valid), self._programs.compiled()
        capacity = np.full(len(self._counts), count + 16, np.int64)
        capacity[ROWS], capacity[NOWHERE] = count, 0
        self._make_room(capacity)
        found = np.zeros((3, count), np.int64)
        stack = np.zeros((DEPTH_MAX, kernels.STACK_COLUMNS), np.int64)
        saved, needed = np.zeros_like(self._counts), np.zeros(2, np.int64)
        row = 0
        while True:
            room = capacity.copy()
            room[NOWHERE] = _NO_LIMIT
            row = kernels.decode_rows(
                rows.data, frozen(routes.begins[:]), frozen(rows.bounds[1:]),
                frozen(routes.starts), compiled.operations, compiled.table, frozen(self._bases),
                frozen(self._levels), row, self._values, self._values.view(np.float32),
                self._values.view(np.float64), self._valid, room, self._counts, saved, stack, found,
                needed,
            )  # fmt: skip
            if row == count:
                return found
            level, places = needed.tolist()
            # All slots are copied, so levels that would soon be next grow too.
            capacity[self._counts > capacity // 2] *= 2
            capacity[level] = max(2 * capacity[level], places)
            self._make_room(capacity)

    def _make_room(self, capacity: Array) -> None:
        """Give each slot as many places as its level has, and keep what is there."""
        sizes = capacity[self._levels]
        if int(sizes.sum()) * _PLACE_BYTES > self._memory_left:
            raise _TooLargeError
        bases = (np.cumsum(sizes) - sizes).astype(np.uint64)
        values = np.zeros(int(sizes.sum()), np.int64)
        valid = np.zeros(len(values), np.uint8)
        for slot, old, new in zip(
            range(len(bases)), self._bases.tolist(), bases.tolist(), strict=True
        ):
            size = int(min(sizes[slot], self._sizes[slot]))
            values[new : new + size] = self._values[old : old + size]
            valid[new : new + size] = self._valid[old : old + size]
        self._bases, self._sizes, self._values, self._valid = bases, sizes, values, valid

    def _errors(self, found: Array, rows: ByteStrings, routes: _Routes) -> list[RowError]:
        errors = []
        for row in np.flatnonzero(found[0]).tolist():
            code, position, pc = found[:, row].tolist()
            reason = self._programs.reason(pc) if code == kernels.UNRESOLVED else _REASONS[code]
            begin = int(rows.bounds[row])
            value = rows.data[begin : min(int(rows.bounds[row + 1]), begin + 4)].tobytes()
            if routes.begins[row] == begin and value.startswith(FRAMED_OTHERWISE):
                reason += f"; {described(value)}"
            position += int(routes.begins[row]) - begin
            schema_id = int(routes.schema_ids[row])
            errors.append(RowError(row, reason, self._programs.paths[pc], position, schema_id))
        return errors

    # Slots become Arrow arrays.

    def _array(self, column: Column) -> pa.Array:
        """Return a column as an Arrow array, with all its children."""
        count = int(self._counts[column.level])
        if column.kind == columns.NULL:
            return pa.nulls(count)
        base = int(self._bases[column.slot])
        values, valid = self._values[base : base + count], self._valid[base : base + count]
        match column.kind:
            case columns.STRUCT:
                children = [self._array(child) for child in column.children]
                return assembled(column.type, count, valid, [], children)
            case columns.LIST | columns.MAP:
                return self._lists(column, values, valid)
            case columns.BYTES | columns.TEXT:
                return self._strings(column, values, valid)
            case columns.DECIMAL:
                upper = int(self._bases[column.slot + 1])
                halves = np.stack([values, self._values[upper : upper + count]], axis=1)
                return assembled(column.type, count, valid, [halves])
        return assembled(column.type, count, valid, [_numbers(column, values)])

    def _lists(self, column: Column, lengths: Array, valid: Array) -> pa.Array:
        bounds = _bounds(lengths)
        children = [self._array(child) for child in column.children]
        if column.kind == columns.MAP:
            entries = column.type.key_field, column.type.item_field
            items = len(children[0])
            children = [
                pa.Array.from_buffers(pa.struct(entries), items, [None], 0, children=children)
            ]
        return assembled(column.type, len(lengths), valid, [bounds], children)

    def _strings(self, column: Column, found: Array, valid: Array) -> pa.Array:
        bounds = _bounds(found & _LENGTH_BITS)
        # One symbol or default of the schema's may be as long as many values.
        self._memory_left -= int(bounds[-1])
        if self._memory_left < 0:
            raise _TooLargeError
        data = np.empty(int(bounds[-1]), np.uint8)
        kernels.copy_spans(self._data, self._constants, frozen(found), frozen(bounds), data)
        return assembled(column.type, len(found), valid, [bounds, data])


def _bounds(lengths: Array) -> Array:
    bounds = bounds_of(lengths)
    if bounds is None:
        raise _TooLargeError
    return bounds


def _numbers(column: Column, values: Array) -> Array:
    """Return int64[n] as what the buffer of an Arrow type has."""
    if column.kind == columns.BOOLEAN:
        return np.packbits(values != 0, bitorder="little")
    if column.kind == columns.FLOAT:
        return np.ascontiguousarray(values.view(np.float32)[::2])
    return values.astype(np.int32) if column.type.bit_width == 32 else values.copy()


def _joined(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(chunks) == 1:
        return chunks[0]
    try:
        return pa.concat_arrays(chunks) if chunks else pa.array([], kind)
    except pa.ArrowInvalid as error:
        raise OverflowError(
            "the values do not fit into one Arrow array: pass them as a chunked one"
        ) from error


def decode(
    array: pa.Array | pa.ChunkedArray,
    reader: Schema,
    writers: Mapping[int, Schema] | None = None,
    *,
    framing: str = CONFLUENT,
) -> DecodedValues:
    """Decode Avro values into an Arrow array of the reader's type.

    Args:
        array: binary or string, or a large one of these; chunked or not. Only read.
        reader: what the result has: see `layout.project` for a part of a schema.
        writers: the schemas that wrote the values, by id. By default the reader's schema wrote all, which
            goes with a framing of "none".
        framing: "confluent", each value says the id of its schema; "none", one schema wrote all.

    Returns:
        The values, null where a row is null or bad, and the errors of bad rows.

    Raises:
        SchemaError: a type of the reader's has no form in columns; names the path.
    """
    decoder = AvroDecoder(reader)
    writers = {0: reader} if writers is None else writers
    for schema_id, writer in writers.items():
        decoder.add_writer(schema_id, writer)
    if framing == CONFLUENT:
        return decoder.decode(array)
    if framing != NONE or len(writers) != 1:
        raise ValueError(
            "a framing is confluent, or none with the one schema that wrote all values"
        )
    return decoder.decode(array, schema_id=next(iter(writers)))
