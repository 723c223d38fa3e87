"""Decoding of Avro values into one Arrow array of the reader's type, with an error for each bad row.

The kernel stores numbers in slots, which then become Arrow arrays, column by column. No Python object is
made for a row, except where it is bad. A row that is null, or bad, is null in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.kernels import avro as kernels
from spark_kbatch.kernels.slots import MEMORY_FREE, MEMORY_PER_BYTE
from spark_kbatch.values.avro_schema import Schema, is_plain_bytes
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.flat import Array, ByteStrings, frozen, pieces, strings_of
from spark_kbatch.values.framing import (
    FRAMED_OTHERWISE,
    HEADER_SIZE,
    NO_SCHEMA_ID,
    described,
    schema_ids_of,
    unknown,
)
from spark_kbatch.values.layout import ColumnLayout, layout
from spark_kbatch.values.resolution import Programs
from spark_kbatch.values.slots import SlotArrays, decoded_in_pieces, row_errors

CONFLUENT, NONE = "confluent", "none"
DEPTH_MAX = 500  # of records and lists that are passed over and contain themselves; Java's stack ends about there

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
        f"items of few bytes and defaults within items take more memory than {MEMORY_PER_BYTE} times the "
        f"value and {MEMORY_FREE} bytes"
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
        return decoded_in_pieces(
            array,
            self.type,
            lambda rows, limit: self._decode_rows(rows, schema_id, limit),
            memory_max,
        )

    def _decode_rows(
        self, rows: ByteStrings, schema_id: int | None, memory_max: int | None
    ) -> DecodedValues:
        routes, compiled = self._routes(rows, schema_id), self._programs.compiled()
        slots = SlotArrays(self._layout, len(rows.valid), memory_max)
        stack = np.zeros((DEPTH_MAX, kernels.STACK_COLUMNS), np.int64)

        def decode(row: int, room: Array, found: Array, needed: Array) -> Any:
            return kernels.decode_rows(
                rows.data, frozen(routes.begins[:]), frozen(rows.bounds[1:]),
                frozen(routes.starts), compiled.operations, compiled.table, *slots.places(), row,
                slots.values, slots.values.view(np.float32), slots.values.view(np.float64),
                slots.valid, room, slots.counts, slots.saved, stack, found, needed,
            )  # fmt: skip

        def reason(row: int, code: int, position: int, pc: int) -> str:
            text = self._programs.reason(pc) if code == kernels.UNRESOLVED else _REASONS[code]
            is_framed = routes.begins[row] != rows.bounds[row]
            looks = not is_framed and rows.start(row).startswith(FRAMED_OTHERWISE)
            return f"{text}; {described(rows.start(row))}" if looks else text

        found, paths = slots.fill(decode), self._programs.paths
        errors = row_errors(found, rows, routes.begins, routes.schema_ids, paths, reason)
        values = slots.array(self._layout.root, rows.data, compiled.constants)
        return DecodedValues(values, routes.schema_ids, tuple(sorted([*routes.errors, *errors])))

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
            errors.append(self._without_program(row, rows.start(row), int(ids[row])))
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
