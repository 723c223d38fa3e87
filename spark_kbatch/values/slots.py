"""Slots that kernels store decoded numbers in: they make room, and become Arrow arrays, column by column.

The layout says which slots there are; `kernels/slots` says what lies in them. A kernel decodes
rows in their order, and returns where a level has too few places. All slots are then copied to
larger ones, and it goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kbatch.kernels import slots as kernels
from spark_kbatch.values import layout as columns
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
from spark_kbatch.values.layout import NOWHERE, ROWS, Column, ColumnLayout

PLACE_BYTES = 9  # of a slot: a number, and whether it is one
_LENGTH_BITS = np.int64(2**32 - 1)
_NO_LIMIT = 2**62

# Decodes rows from a number on: (row, places of each level, errors, needed) -> the row that found no room, or n.
DecodeRows = Callable[[int, Array, Array, Array], Any]


class _TooLargeError(Exception):
    """A column whose bytes or items an int32 does not count, or too much memory of all columns."""


def decoded_in_pieces(
    array: pa.Array | pa.ChunkedArray,
    kind: pa.DataType,
    decode: Callable[[ByteStrings, int | None], DecodedValues],
    memory_max: int | None,
) -> DecodedValues:
    """Decode an array in as few calls as there can be.

    Args:
        array: binary or string, or a large one of these; chunked or not. Only read.
        kind: the type of decoded values.
        decode: decodes some rows, whose values may take so many bytes.
        memory_max: how many bytes the values of several rows may take; by default any number.

    Raises:
        OverflowError: an array whose values do not fit into one array: pass it as a chunked one;
            or into `memory_max`: pass fewer rows.
    """

    def parts_of(rows: ByteStrings) -> list[DecodedValues]:
        """Decode rows in one call, or in two where a column would be too large."""
        count = len(rows.valid)
        try:
            return [decode(rows, memory_max if count > 1 else None)]
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
            for part in parts_of(ByteStrings(rows.data, bounds, valid))
        ]

    parts = [part for piece in pieces(array) for part in parts_of(strings_of(piece))]
    chunks = [one.values for one in parts]
    firsts = itertools.accumulate((len(one) for one in chunks), initial=0)
    errors = [
        one._replace(row=one.row + first)
        for part, first in zip(parts, firsts, strict=False)
        for one in part.errors
    ]
    is_chunked = isinstance(array, pa.ChunkedArray)
    values = pa.chunked_array(chunks, kind) if is_chunked else _joined(chunks, kind)
    schema_ids = np.concatenate([np.empty(0, np.int32), *(one.schema_ids for one in parts)])
    return DecodedValues(values, schema_ids, tuple(errors))


def row_errors(
    found: Array,
    rows: ByteStrings,
    begins: Array,
    ids: Array,
    paths: Sequence[str],
    reason: Callable[[int, int, int, int], str],
) -> list[RowError]:
    """Return the errors of bad rows.

    Args:
        found: what `SlotArrays.fill` returns.
        rows: that were decoded.
        begins: where the value of each row starts in the data.
        ids: of the schema of each row.
        paths: of what the kernel names as the place in the type.
        reason: what to say of a row, the kernel's error, its position in the row, and its place in the type.
    """
    found[1] += begins - rows.bounds[:-1]
    return [
        RowError(row, reason(row, code, position, at), paths[at], position, int(ids[row]))
        for row in np.flatnonzero(found[0]).tolist()
        for code, position, at in [found[:, row].tolist()]
    ]


class SlotArrays:
    """The slots that the rows of one call are decoded into.

    `values` and `valid` are all slots, each with as many places as its level has, from its base
    on. `counts` are the places that are taken of each level, and `saved` what they were before
    the row.
    """

    def __init__(self, its_layout: ColumnLayout, count: int, memory_max: int | None) -> None:
        self._count = count
        self._memory_left = _NO_LIMIT if memory_max is None else memory_max
        self._levels = np.array(its_layout.slot_levels, np.int64)
        self.counts = np.zeros(its_layout.levels_count, np.int64)
        self.saved = np.zeros_like(self.counts)
        self.valid = np.empty(0, np.uint8)
        self.values, self._sizes = np.empty(0, np.int64), np.zeros_like(self._levels)
        self.bases = np.zeros(len(self._levels), np.uint64)

    def places(self) -> tuple[Array, Array]:
        """Return where each slot starts, and its level, for a kernel to read."""
        return frozen(self.bases), frozen(self._levels)

    def fill(self, decode: DecodeRows) -> Array:
        """Have all rows decoded, and make room where a kernel finds too little.

        Returns:
            int64[3, n], what the kernel found wrong with each row: error, position, and where in the type.
        """
        capacity = np.full(len(self.counts), self._count + 16, np.int64)
        capacity[ROWS], capacity[NOWHERE] = self._count, _NO_LIMIT
        found, needed = np.zeros((3, self._count), np.int64), np.zeros(2, np.int64)
        row = 0
        while True:
            self._make_room(capacity)
            row = decode(row, capacity, found, needed)
            if row == self._count:
                self.counts[ROWS] = self._count
                return found
            level, places = needed.tolist()
            # All slots are copied, so levels that would soon be next grow too.
            capacity[self.counts > capacity // 2] *= 2
            capacity[level] = max(2 * capacity[level], places)

    def _make_room(self, capacity: Array) -> None:
        """Give each slot as many places as its level has, and keep what is there."""
        sizes = np.where(self._levels == NOWHERE, 0, capacity[self._levels])
        if int(sizes.sum()) * PLACE_BYTES > self._memory_left:
            raise _TooLargeError
        bases = (np.cumsum(sizes) - sizes).astype(np.uint64)
        values = np.zeros(int(sizes.sum()), np.int64)
        valid = np.zeros(len(values), np.uint8)
        for slot, old, new in zip(
            range(len(bases)), self.bases.tolist(), bases.tolist(), strict=True
        ):
            size = int(min(sizes[slot], self._sizes[slot]))
            values[new : new + size] = self.values[old : old + size]
            valid[new : new + size] = self.valid[old : old + size]
        self.bases, self._sizes, self.values, self.valid = bases, sizes, values, valid

    def array(self, column: Column, data: Array, others: Array) -> pa.Array:
        """Return a column as an Arrow array, with all its children, once.

        Args:
            column: of the layout.
            data: uint8, the bytes of rows, where spans lie.
            others: uint8, where negative spans lie.
        """
        count = int(self.counts[column.level])
        if column.kind == columns.NULL:
            return pa.nulls(count)
        base = int(self.bases[column.slot])
        values, valid = self.values[base : base + count], self.valid[base : base + count]
        children = [self.array(child, data, others) for child in column.children]
        match column.kind:
            case columns.STRUCT:
                return assembled(column.type, count, valid, [], children)
            case columns.LIST | columns.MAP:
                return _lists(column, values, valid, children)
            case columns.BYTES | columns.TEXT:
                return self._strings(column, values, valid, data, others)
            case columns.DECIMAL:
                upper = int(self.bases[column.slot + 1])
                halves = np.stack([values, self.values[upper : upper + count]], axis=1)
                return assembled(column.type, count, valid, [halves])
        return assembled(column.type, count, valid, [_numbers(column, values)])

    def _strings(
        self, column: Column, spans: Array, valid: Array, data: Array, others: Array
    ) -> pa.Array:
        """Return spans as an Arrow array of strings or bytes, or of the floats that strings are nearest to."""
        bounds = _bounds(spans & _LENGTH_BITS)
        # One symbol or default of a schema may be as long as many values.
        self._memory_left -= int(bounds[-1])
        if self._memory_left < 0:
            raise _TooLargeError
        copied = np.empty(int(bounds[-1]), np.uint8)
        kernels.copy_spans(data, others, frozen(spans), frozen(bounds), copied)
        kind = pa.string() if column.kind == columns.TEXT else column.type
        return assembled(kind, len(spans), valid, [bounds, copied]).cast(column.type)


def _lists(column: Column, lengths: Array, valid: Array, children: list[pa.Array]) -> pa.Array:
    if column.kind == columns.MAP:
        entries = column.type.key_field, column.type.item_field
        items = len(children[0])
        children = [pa.Array.from_buffers(pa.struct(entries), items, [None], 0, children=children)]
    return assembled(column.type, len(lengths), valid, [_bounds(lengths)], children)


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
    form = "f" if column.kind == columns.DOUBLE else "i"
    return values.view(f"{form}8").astype(f"{form}{column.type.bit_width // 8}")


def _joined(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(chunks) == 1:
        return chunks[0]
    try:
        return pa.concat_arrays(chunks) if chunks else pa.array([], kind)
    except pa.ArrowInvalid as error:
        raise OverflowError(
            "the values do not fit into one Arrow array: pass them as a chunked one"
        ) from error
