"""Decoding of JSON values into one Arrow array of a type, with an error for each bad row.

The type becomes a table of nodes, which the kernel (`kernels/json`) follows; it says what each
type takes. No Python object is made for a row, except where it is bad. A row that is null, or
bad, is null in the result, and so is the document `null`. A field that a row does not have is
null; one that the type does not have is passed over.

    Arrow                           takes
    bool                            true, false
    int8 to int64                   a number that is whole, however it is written
    float, double                   a number, the nearest one is stored; "NaN", "Infinity", "-Infinity"
    decimal128(p, s)                a number, or a string that is one, without a digit beyond s other than 0
    string                          a string; of any other value its JSON as it is written
    binary                          a string of base64
    date32                          "2024-01-31"
    timestamp[us, UTC]              "2024-01-31T10:00:00.123456Z", or with an offset in place of Z
    timestamp[us]                   the same without a zone
    list                            an array
    map<string, value>              an object
    struct                          an object, whose fields have exactly the names of its fields

A value is one text of JSON, in UTF-8, with nothing around it but spaces. In
Confluent's framing the schema's id is in front of it, which is not asked for: JSON says itself
what it is.

Source: RFC 8259; Spark catalyst/.../json/JacksonParser.scala, for what is not decided here.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kbatch.kernels import json as kernels
from spark_kbatch.kernels import slots as slot_kernels
from spark_kbatch.values import layout as columns
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.flat import Array, ByteStrings, frozen
from spark_kbatch.values.framing import HEADER_SIZE, NO_SCHEMA_ID, described, schema_ids_of
from spark_kbatch.values.layout import NOWHERE, ROWS, Column, ColumnLayout
from spark_kbatch.values.slots import PLACE_BYTES, SlotArrays, decoded_in_pieces, row_errors
from spark_kbatch.values.types import JSON_NAME, array_of, map_of, project_type

DEPTH_MAX = 500  # of objects and arrays, those that are passed over too
LENIENT: Mapping[str, int] = {"zone": kernels.ZONE, "digits": kernels.DIGITS}
_MAP_ITEM_BYTES = 4  # the least that a name and a value take, but for the comma

# Each type's kind of column, kind of node, and what that says of numbers; see `kernels/json`.
_SIMPLE: Mapping[pa.DataType, tuple[str, int, int, int, int]] = {
    pa.bool_(): (columns.BOOLEAN, kernels.BOOLEAN, 0, 0, 0),
    pa.int8(): (columns.NUMBER, kernels.WHOLE, 2**7 - 1, 19, 0),
    pa.int16(): (columns.NUMBER, kernels.WHOLE, 2**15 - 1, 19, 0),
    pa.int32(): (columns.NUMBER, kernels.WHOLE, 2**31 - 1, 19, 0),
    pa.int64(): (columns.NUMBER, kernels.WHOLE, 2**63 - 1, 19, 0),
    pa.float32(): (columns.TEXT, kernels.FLOAT, (2**128 - 2**103) // 10**20 - 1, 19, -20),
    pa.float64(): (columns.TEXT, kernels.FLOAT, (2**1024 - 2**970) // 10**290 - 1, 19, -290),
    pa.string(): (columns.TEXT, kernels.TEXT, 0, 0, 0),
    pa.binary(): (columns.BYTES, kernels.BINARY, 0, 0, 0),
    pa.date32(): (columns.NUMBER, kernels.DATE, 0, 0, 0),
    pa.timestamp("us", "UTC"): (columns.NUMBER, kernels.INSTANT, 0, 0, 0),
    pa.timestamp("us"): (columns.NUMBER, kernels.LOCAL, 0, 0, 0),
}

_EXPECTED = {
    kernels.STRUCT: "an object",
    kernels.LIST: "an array",
    kernels.MAP: "an object",
    kernels.BOOLEAN: "true or false",
    kernels.WHOLE: "a whole number",
    kernels.DECIMAL: "a number",
    kernels.FLOAT: "a number",
    kernels.BINARY: "a string of base64",
    kernels.DATE: 'a date such as "2024-01-31"',
    kernels.INSTANT: 'a time such as "2024-01-31T10:00:00Z"',
    kernels.LOCAL: 'a time such as "2024-01-31T10:00:00"',
}
_FOUND = {
    b"{": "an object",
    b"[": "an array",
    b'"': "a string",
    b"t": "true",
    b"f": "false",
}
_REASONS = {
    kernels.WRONG_TYPE: "{found} in place of {expected}",
    kernels.BAD_FORM: "the string is not {expected}",
    kernels.EMPTY: "the value is empty",
    kernels.TRUNCATED: "the value ends in the middle of its JSON",
    kernels.NO_VALUE: "no value of JSON begins here",
    kernels.NO_NAME: "a name in double quotes is missing here",
    kernels.NO_COLON: "a colon is missing here",
    kernels.NO_COMMA: "a comma is missing here, or the end of the object or array",
    kernels.BAD_NUMBER: "the number is not written as JSON has it",
    kernels.BAD_ESCAPE: "a string has an escape that JSON does not have",
    kernels.LONE_SURROGATE: "an escape is half of a pair of surrogates, which is no character",
    kernels.CONTROL: "a string has a control character, which JSON has as an escape only",
    kernels.BAD_TEXT: "a string is not UTF-8",
    kernels.TRAILING_BYTES: "bytes are left over after the document",
    kernels.TOO_DEEP: f"objects and arrays are nested deeper than {DEPTH_MAX}",
    kernels.TOO_MUCH_MEMORY: (
        f"items of few bytes take more memory than {slot_kernels.MEMORY_PER_BYTE} times the value and "
        f"{slot_kernels.MEMORY_FREE} bytes"
    ),
    kernels.DUPLICATE: "an object has this name twice",
    kernels.FRACTION: "a digit would be lost",
    kernels.OUT_OF_RANGE: "the number is outside the range of its type",
    kernels.NO_ZONE: "the time has no zone",
    kernels.HAS_ZONE: "the time has a zone, and its type has none",
}


class JsonDecoder:
    """Decodes values into the columns of one type. Any number of threads may decode."""

    def __init__(
        self, kind: pa.DataType, *, is_framed: bool = False, lenient: Collection[str] = ()
    ) -> None:
        """Prepare the columns.

        Args:
            kind: what values become; a field with the metadata `json` has that name in JSON.
            is_framed: each value is in Confluent's framing.
            lenient: what is not an error, of LENIENT: `zone`, a time without one is UTC, and one with a zone loses
                it where the type has none; `digits`, those that do not fit are cut off.

        Raises:
            SchemaError: a type has no form in JSON; names the path.
        """
        self._is_framed = is_framed
        self._lenient = sum(LENIENT[one] for one in {*lenient})
        self._nodes = _Nodes(kind)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of decoded values."""
        return self._nodes.layout.root.type

    def decode(
        self, array: pa.Array | pa.ChunkedArray, *, memory_max: int | None = None
    ) -> DecodedValues:
        """Decode values.

        Args:
            array: binary or string, or a large one of these; chunked or not. Only read.
            memory_max: how many bytes the values of several rows may take; by default any number.

        Raises:
            OverflowError: an array whose values do not fit into one array: pass it as a chunked one;
                or into `memory_max`: pass fewer rows.
        """
        return decoded_in_pieces(array, self.type, self._decode_rows, memory_max)

    def _decode_rows(self, rows: ByteStrings, memory_max: int | None) -> DecodedValues:
        no_ids = np.full(len(rows.valid), NO_SCHEMA_ID, np.int32)
        ids = schema_ids_of(rows) if self._is_framed else no_ids
        can_be_read = ids != NO_SCHEMA_ID if self._is_framed else rows.valid != 0
        begins = rows.bounds[:-1] + HEADER_SIZE * self._is_framed
        unframed = [
            RowError(row, f"the value is not in Confluent's framing: {described(rows.start(row))}")
            for row in np.flatnonzero((rows.valid != 0) & ~can_be_read).tolist()
        ]
        slots = SlotArrays(self._nodes.layout, len(rows.valid), memory_max)
        nodes, sizes, taken = self._nodes, np.diff(rows.bounds), len(self._nodes.names)
        scratch = np.empty(taken + int(sizes.sum()), np.uint8)
        scratch[:taken], slots.counts[kernels.SCRATCH] = np.frombuffer(nodes.names, np.uint8), taken
        text, count = frozen(scratch[:]), len(nodes.paths)
        names_max = int(sizes.max(initial=0)) // _MAP_ITEM_BYTES
        keys = np.zeros((2 << (count + names_max).bit_length(), kernels.KEY_COLUMNS), np.int64)
        seen = np.zeros(count, np.int64)
        stack = np.zeros((DEPTH_MAX, kernels.STACK_COLUMNS), np.int64)
        wanted, ends = frozen(np.where(can_be_read, begins, -1)), frozen(rows.bounds[1:])

        def decode(row: int, room: Array, found: Array, needed: Array) -> Any:
            return kernels.decode_rows(
                rows.data, wanted, ends, nodes.table, self._lenient, nodes.seed, *slots.places(),
                row, slots.values, slots.valid, room, slots.counts, slots.saved, text, scratch,
                seen, keys, stack, found, needed,
            )  # fmt: skip

        def reason(row: int, code: int, position: int, node: int) -> str:
            value = rows.start(row, position)
            expected = _EXPECTED.get(int(nodes.table[node, 0]))
            found = _FOUND.get(value[:1], "a number")
            is_framed = position == 0 and value[:1] == b"\0"
            hint = ", and the first byte is 0: it looks like Confluent's framing" * is_framed
            return _REASONS[code].format(expected=expected, found=found) + hint

        errors = row_errors(slots.fill(decode), rows, begins, ids, nodes.paths, reason)
        values = slots.array(self._nodes.layout.root, rows.data, text)
        return DecodedValues(values, ids, tuple(sorted([*unframed, *errors])))


class _Nodes:
    """The table that the kernel follows, made of a type; see `kernels/json`."""

    def __init__(self, kind: pa.DataType) -> None:
        # Odd, and random: who knew it could send names that collide, and slow the decoder down.
        self.seed = np.uint64(secrets.randbits(64) | 1)
        self.paths, self.names = [""], bytearray()
        self._rows = [[kernels.PASS, columns.NO_SLOT, -1, 0, 0, 0, 0]]
        self._slot_levels, self._levels_count = [NOWHERE], 2
        root = self._column("", project_type(kind, {}, renames=True), ROWS, "")
        self.table = frozen(np.array(self._rows, np.int64))
        self.layout = ColumnLayout(root, tuple(self._slot_levels), self._levels_count)

    def _column(
        self, name: str, kind: Any, level: int, path: str, owner: int = -1, written: bytes = b""
    ) -> Column:
        """Return a column, and have nodes for it and all within it; a field is `written` so in JSON."""
        node, slot = len(self._rows), len(self._slot_levels)
        its_span = len(self.names) << 32 | len(written)
        row = [kernels.STRUCT, slot, owner, its_span, 0, 0, 0]
        self._rows.append(row)
        self.paths.append(path)
        self.names += written
        self._slot_levels += [level] * (2 if pa.types.is_decimal128(kind) else 1)
        form, items_level, children = columns.STRUCT, NOWHERE, list[Column]()
        if pa.types.is_struct(kind):
            for one in kind:
                in_json = one.metadata[JSON_NAME]
                below = f"{path}.{in_json.decode()}"
                children.append(self._column(one.name, one.type, level, below, node, in_json))
            kind = pa.struct([(one.name, one.type) for one in children])
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            items_level = self._levels_count
            self._levels_count += 1
            is_list = pa.types.is_list(kind)
            items = (
                [("element", kind.value_type, "[]")]
                if is_list
                else [("key", pa.string(), ""), ("value", kind.item_type, "{}")]
            )
            children = [self._column(one, of, items_level, path + end) for one, of, end in items]
            row[-3:-1] = items_level, self._slot_levels.count(items_level) * PLACE_BYTES
            form, row[0] = (columns.LIST, kernels.LIST) if is_list else (columns.MAP, kernels.MAP)
            kind = array_of(children[0].type) if is_list else map_of(children[1].type)
        else:
            decimal = columns.DECIMAL, kernels.DECIMAL, -1
            form, row[0], *row[-3:] = _SIMPLE.get(kind) or (*decimal, kind.precision, kind.scale)
        return Column(name, kind, form, level, slot, items_level, tuple(children))
