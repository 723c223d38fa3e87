"""Encoding of an Arrow array as JSON, with an error for each row that no one could read.

    Arrow                                   JSON
    bool                                    true, false
    integers                                5
    floating-point numbers                  0.1, 5.0, 1e+22; "NaN", "Infinity", "-Infinity"
    decimals of up to 38 digits             1.50
    string, of any form                     "text"
    binary, of any form                     a string of base64
    date32                                  "2024-01-31"
    timestamp with a time zone              "2024-01-31T10:00:00.5Z"
    timestamp                               "2024-01-31T10:00:00.5"
    list, of any form                       an array, in which null is null
    map with strings as keys                an object, in which null is null
    struct                                  an object, without the fields that are null

and dictionaries of these, with halves and unsigned numbers. It is what Spark's `to_json` writes,
but that a fraction of a second has as many digits as it needs, up to six, and not three. What is
written is decoded as the same value by `json_decoder`, as the type that `types.project_type`
makes of the column's. A row that is null has no bytes: that is a tombstone, not a value.

Each column becomes an array of texts by Arrow's functions, and those of its children are joined.

Source: Spark catalyst/.../json/JacksonGenerator.scala.
"""

from __future__ import annotations

import binascii
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.values import flat, framing
from spark_kbatch.values.decoded import DAYS, PER_DAY, RowError, TextDecoder
from spark_kbatch.values.encoded import EncodedValues, encoded_in_pieces
from spark_kbatch.values.flat import Array, assembled, strings_of
from spark_kbatch.values.layout import is_text, plain_type
from spark_kbatch.values.types import project_type

_TEXT = pa.large_string()
_NULL = pa.scalar(None, _TEXT)
_BACKSLASH = ord("\\")
# The most rows of one call, and bytes of them: texts are longer, and there several times.
_PIECE_ROWS, _PIECE_BYTES = 2**16, 2**24
_NO_NUMBERS = {"-inf": '"-Infinity"', "inf": '"Infinity"', "nan": '"NaN"'}


class JsonEncoder:
    """Encodes arrays of one Arrow type. Any number of threads may encode."""

    def __init__(self, kind: pa.DataType) -> None:
        """Check the type.

        Raises:
            SchemaError: it has no form in JSON; names the path.
        """
        project_type(kind, {})

    def encode(
        self, array: pa.Array | pa.ChunkedArray, *, schema_id: int | None = None
    ) -> EncodedValues:
        """Encode rows; arguments and errors are those of `AvroEncoder.encode`."""
        header = b"" if schema_id is None else framing.header(schema_id)
        return encoded_in_pieces(array, lambda rows: _encoded(rows, header))


def _encoded(array: pa.Array, header: bytes) -> tuple[pa.Array, list[RowError]] | None:
    """Return the values of rows and their errors, None if their bytes are too many."""
    if len(array) > 1 and (len(array) > _PIECE_ROWS or _size(array) > _PIECE_BYTES):
        return None
    texts = _Texts()
    data = texts.of(array, "", np.arange(len(array))).cast(pa.large_binary())
    start, end, null = (pa.scalar(one, data.type) for one in (header, b"", None))
    is_bad = np.isin(np.arange(len(array)), list(texts.errors))
    data = pc.if_else(is_bad, null, pc.binary_join_element_wise(start, data, end))
    if data.nbytes > flat.INT32_MAX:
        return None
    return data.cast(pa.binary()), sorted(texts.errors.values())


def _size(array: pa.Array) -> int:
    try:
        return int(array.nbytes)
    except pa.ArrowTypeError:  # before pyarrow 19, of strings as views: rows bound a piece alone
        return 0


class _Texts:
    """The texts of the rows of one call, and the first error of each row that is bad."""

    def __init__(self) -> None:
        self.errors: dict[int, RowError] = {}

    def of(self, array: pa.Array, path: str, rows: Array) -> pa.Array:
        """Return the JSON of each value of a column: large_string, null where it is null.

        Args:
            array: of the column, or of what is in its lists and maps.
            path: of the column, for errors.
            rows: int64[n], the row that each value is in.
        """
        types, kind = pa.types, plain_type(array.type)
        kind = pa.float32() if types.is_float16(kind) else kind
        # A cast to the same type fails where a field that is never null is of a struct that is.
        array = array if kind == array.type else array.cast(kind)
        if types.is_struct(kind):
            return self._objects(array, path, rows)
        if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
            return self._lists(array, path, rows)
        if types.is_floating(kind):
            return _numbers(array)
        if kind == pa.date32() or types.is_timestamp(kind):
            texts = self._times(array, path, rows)
        elif is_text(kind):
            found = TextDecoder().decode(array.cast(pa.large_binary()))
            places = [error.row for error in found.errors]
            self._refuse(places, "the text is not UTF-8", path, rows)
            texts = _escaped(found.values.cast(_TEXT))
        elif types.is_binary(kind) or types.is_large_binary(kind):
            texts = _base64(array)
        else:
            return array.cast(_TEXT)
        return _joined('"', texts, '"')

    def _objects(self, array: pa.Array, path: str, rows: Array) -> pa.Array:
        fields = [
            _joined(
                f",{json.dumps(one.name, ensure_ascii=False)}:",
                self.of(values, f"{path}.{one.name}", rows),
            )
            for one, values in zip(array.type, array.flatten(), strict=True)
        ]
        empty = pa.array([""]).take(np.zeros(len(array), np.int64)).cast(_TEXT)
        texts = pc.binary_join_element_wise(
            empty, *fields, pa.scalar("", _TEXT), null_handling="replace"
        )
        # Only the comma in front goes: a quote is next.
        texts = _joined("{", pc.ascii_ltrim(texts, ","), "}")
        return pc.if_else(array.is_valid(), texts, _NULL)

    def _lists(self, array: pa.Array, path: str, rows: Array) -> pa.Array:
        kind, lists, names = array.type, array, []
        is_map = pa.types.is_map(kind)
        start, end = "{}" if is_map else "[]"
        if is_map:
            lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
        owners = np.repeat(np.arange(len(array)), lengths)
        items, rows = pc.list_flatten(lists), rows[owners]
        if is_map:
            keys, items = items.flatten()
            names = [self.of(keys, path, rows), ":"]
            codes = names[0].dictionary_encode("encode").indices.to_numpy() + owners * len(keys)
            twice = np.setdiff1d(np.arange(len(keys)), np.unique(codes, return_index=True)[1])
            self._refuse(twice, "the map has a key twice", path, rows)
        items = self.of(items, path + start + end, rows).fill_null("null")
        bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        lists = pa.LargeListArray.from_arrays(bounds, _joined(*names, items))
        texts = _joined(start, pc.binary_join(lists, pa.scalar(",", _TEXT)), end)
        return pc.if_else(array.is_valid(), texts, _NULL)

    def _times(self, array: pa.Array, path: str, rows: Array) -> pa.Array:
        kind, is_day = array.type, array.type == pa.date32()
        numbers = array.view(pa.int32() if is_day else pa.int64()).fill_null(0).to_numpy()
        days = numbers // (1 if is_day else PER_DAY[kind.unit])
        is_bad = (days < DAYS.start) | (days >= DAYS.stop)
        self._refuse(is_bad, "the year is none of 1 to 9999", path, rows)
        is_lost = (not is_day and kind.unit == "ns") & (numbers % 1000 != 0)
        self._refuse(is_lost, "a digit beyond microseconds would be lost", path, rows)
        array = pc.if_else(is_bad | is_lost, pa.scalar(None, kind), array)
        if is_day:
            return array.cast(_TEXT)
        # With a fraction, so that a zero at the end is one of it.
        local = array.view(pa.timestamp(kind.unit))
        texts = local.cast(pa.timestamp("us")).cast(_TEXT)
        texts = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
        return _joined(pc.replace_substring(texts, " ", "T"), "Z" if kind.tz else "")

    def _refuse(self, places: Array | list[int], reason: str, path: str, rows: Array) -> None:
        for row in rows[places].tolist():
            self.errors.setdefault(row, RowError(row, reason, path))


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Return texts one after the other: arrays, and what is the same for all rows."""
    given = [pa.scalar(one, _TEXT) if isinstance(one, str) else one for one in (*parts, "")]
    return pc.binary_join_element_wise(*given)


def _escaped(texts: pa.Array) -> pa.Array:
    """Return texts with escapes for characters that a string of JSON does not have as they are."""
    data = strings_of(texts).data
    there = np.unique(data[(data < 0x20) | (data == ord('"')) | (data == _BACKSLASH)])
    for code in sorted(there.tolist(), key=lambda code: code != _BACKSLASH):
        texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return texts


def _numbers(array: pa.Array) -> pa.Array:
    """Return floating-point numbers, each with the fewest digits that are read as it."""
    # With a point or an exponent, as readers that guess a type take others for whole.
    texts = pc.replace_substring_regex(array.cast(_TEXT), "^(-?[0-9]+)$", r"\1.0")
    for found, text in _NO_NUMBERS.items():
        texts = pc.replace_substring(texts, found, text)
    return texts


def _base64(array: pa.Array) -> pa.Array:
    """Return bytes as base64: large_string."""
    data, bounds, valid = strings_of(array)
    sizes = np.diff(bounds)
    ends = np.cumsum(-(-sizes // 3))  # counted in threes of bytes, the last of a row with zeros
    places = np.concatenate([3 * ends[-sizes % 3 >= count] - count for count in (1, 2)])
    threes = np.zeros(3 * int(ends[-1]) if len(ends) else 0, np.uint8)
    is_byte = np.ones(len(threes), np.bool_)
    is_byte[places] = False
    threes[is_byte] = data
    fours = np.frombuffer(bytearray(binascii.b2a_base64(threes.data, newline=False)), np.uint8)
    fours[places + places // 3 + 1] = ord("=")
    return assembled(_TEXT, len(array), valid, [np.concatenate([[0], 4 * ends]), fours])
