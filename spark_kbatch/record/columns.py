"""Conversion between Arrow arrays and the flat numpy arrays that compiled kernels take.

Only this code opens Arrow buffers. Slices, nulls, large types and headers invite silent errors, so they
are dealt with here and nowhere else:

    Spans      data uint8, bounds int32[n + 1], valid uint8[n] or empty   (string, binary, large_*)
    Columns    rows for the encoder: timestamps int64[n], key, value, and headers as the bytes that end
               a record

A view shares the array's memory if its layout allows that, and keeps the array alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import ConfigError, InvalidTimestampError
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.model import TIMESTAMP_MS_MAX
from spark_kbatch.options.columns import meant_for
from spark_kbatch.record.header import MIN_RECORD_SIZE, NO_TIMESTAMP

Array = np.ndarray[Any, Any]

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def frozen(array: Array) -> Array:
    """Make an array read-only, as kernels expect their inputs."""
    array.setflags(write=False)
    return array


HEADER_OVERHEAD_MAX = 5 + 5  # the most bytes of a header in addition to its key and value


def empty(shape: int | tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Return an uninitialized array in memory of Arrow's pool.

    The pool reuses freed memory. numpy returns large arrays to the system, which clears each page when
    it is next touched: that would take a quarter of the time of decoding.
    """
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size == 0:  # numpy.frombuffer refuses an empty buffer
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(size), dtype).reshape(shape)


EMPTY_U8 = frozen(np.empty(0, np.uint8))
EMPTY_I32 = frozen(np.empty(0, np.int32))


class Spans(NamedTuple):
    """A column of n byte strings as flat arrays: its bytes, their bounds, and which rows are not null.

    With empty `bounds` the column is absent, and all its values are null.
    """

    data: Array
    bounds: Array
    valid: Array


ABSENT = Spans(EMPTY_U8, EMPTY_I32, EMPTY_U8)


class Columns(NamedTuple):
    """The rows of one Arrow batch as flat arrays, the form that the record encoder takes."""

    rows_count: int
    timestamps: Array
    key: Spans
    value: Spans
    headers: Spans  # each row's, as bytes of its record; absent if no row has any

    def head(self, rows_count: int) -> Columns:
        """Return the first `rows_count` rows, or all if there are fewer."""
        timestamps = self.timestamps[:rows_count]
        return self._replace(rows_count=len(timestamps), timestamps=timestamps)


def columns(
    rows_count: int,
    *,
    key: pa.Array | None,
    value: pa.Array | None,
    timestamps: Array,
    headers: pa.Array | None,
) -> Columns:
    """Return `rows_count` rows as the flat arrays that the record encoder takes.

    An absent column is None; `timestamps` is int64[n], ms.
    """
    return Columns(
        rows_count,
        timestamps,
        ABSENT if key is None else spans(key),
        ABSENT if value is None else spans(value),
        ABSENT if headers is None else headers_spans(headers),
    )


def ensure_sendable(schema: pa.Schema, *, has_topic: bool) -> None:
    """Check that rows to be sent have the columns of Spark's Kafka sink, in the right types.

    Other columns are ignored.

    Args:
        has_topic: whether the topic is given separately.

    Raises:
        ConfigError: no value, no topic, or a column of a wrong type.
    """
    if "value" not in schema.names:
        found = ", ".join(schema.names) or "none"
        near = meant_for("value", schema.names)
        hint = "" if near is None else f"; did you mean {near!r}? Name it 'value'"
        raise ConfigError(f"required column 'value' not found; the columns are: {found}{hint}")
    if "topic" not in schema.names and not has_topic:
        raise ConfigError(
            "no topic: pass one for all rows, or add a column 'topic' with the topic of each row"
        )
    for name, (accepted, fits) in _SENDABLE.items():
        if name in schema.names:
            found = schema.field(name).type
            if not (pa.types.is_null(found) or fits(found)):
                remedy = (
                    f"; cast it to what it is stored as, {found.storage_type}"
                    if isinstance(found, pa.BaseExtensionType)
                    else ""
                )
                raise ConfigError(f"column {name!r} is {found}; accepted: {accepted}{remedy}")


def sendable(table: pa.Table | pa.RecordBatch, *, has_topic: bool) -> pa.Table | pa.RecordBatch:
    """Cast the columns of rows to be sent to plain types, from views, dictionaries and run-end encoding.

    Raises:
        ConfigError: as `ensure_sendable`, or two columns with one name.
    """
    if len(set(table.schema.names)) < len(table.schema.names):
        twice = sorted({name for name in table.schema.names if table.schema.names.count(name) > 1})
        raise ConfigError(f"the rows have two columns {twice[0]!r}; column names must be unique")
    for index, field in enumerate(table.schema):
        if field.name in _SENDABLE:
            plain = _plain_type(field.type)
            if plain != field.type:
                table = table.set_column(index, field.name, _cast(table.column(index), plain))
    ensure_sendable(table.schema, has_topic=has_topic)
    return table


def _plain_type(given: pa.DataType) -> pa.DataType:
    """Return the plain Arrow type to cast a column to before it is written.

    It is the column's own if no cast is needed or would help. Dictionaries, views, maps and the like
    become plain lists, strings and binaries.
    """
    types = pa.types
    if types.is_dictionary(given) or types.is_run_end_encoded(given):
        # A chunk of few distinct values may have over 2 GiB once it is decoded.
        return _large(_plain_type(given.value_type))
    if types.is_string_view(given):
        return pa.large_string()
    if types.is_binary_view(given) or types.is_fixed_size_binary(given):
        return pa.large_binary()
    if types.is_map(given):
        entry = pa.struct([("key", given.key_type), ("value", given.item_type)])
        return _plain_type(pa.list_(entry))
    if not (types.is_nested(given) and _is_list(given)):
        return given
    entry = given.value_type
    if not (types.is_struct(entry) and entry.num_fields == 2):
        return given
    plain = [_plain_type(entry[0].type), _plain_type(entry[1].type)]
    if types.is_null(plain[1]):
        plain[1] = pa.binary()
    struct = pa.struct([(entry[0].name, plain[0]), (entry[1].name, plain[1])])
    if struct.equals(entry) and (types.is_list(given) or types.is_large_list(given)):
        return given
    return pa.large_list(struct)


def _large(plain: pa.DataType) -> pa.DataType:
    """Return the type with int64 bounds of strings or binaries; any other type as it is."""
    if pa.types.is_string(plain):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(plain) else plain


def _is_list(given: pa.DataType) -> bool:
    types = pa.types
    return any(
        of_kind(given)
        for of_kind in (
            types.is_list, types.is_large_list, types.is_fixed_size_list,
            types.is_list_view, types.is_large_list_view,
        )
    )  # fmt: skip


def _cast(column: pa.Array | pa.ChunkedArray, plain: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a column to the type that `_plain_type` gives, nested views included.

    Arrow's own cast does not decode views in other types.
    """
    types = pa.types
    given = column.type
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast(chunk, plain) for chunk in column.chunks], plain)
    if given == plain:
        return column
    if types.is_run_end_encoded(given):
        from pyarrow import compute  # noqa: PLC0415  takes long to import

        runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, _cast(column.values, plain))
        return compute.run_end_decode(runs.slice(column.offset, len(column)))
    if types.is_dictionary(given):
        distinct = _cast(column.dictionary, plain)
        return pa.DictionaryArray.from_arrays(column.indices, distinct).cast(plain)
    if types.is_map(given):
        entry = pa.struct([("key", given.key_type), ("value", given.item_type)])
        return _cast(column.cast(pa.list_(entry)), plain)
    if not _is_list(given):
        return column.cast(plain)
    lengths = _without_nulls(column.value_lengths())
    bounds = number_array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    fields = list(plain.value_type)
    parts = (
        column.flatten().flatten()
    )  # the lists, then their structs; a null struct has a null key
    entries = pa.StructArray.from_arrays(
        [_cast(part, field.type) for part, field in zip(parts, fields, strict=True)], fields=fields
    )
    return pa.LargeListArray.from_arrays(bounds, entries, type=plain, mask=column.is_null())


def spans(array: pa.Array) -> Spans:
    """Return a flat view of an Arrow string or binary array, which may be a large one.

    Raises:
        OverflowError: over 2 GiB of bytes in a large array; pass fewer rows at a time.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type.id
    if kind == _NULL:
        return ABSENT
    if kind not in _BYTES:
        raise TypeError(f"expected a string or binary array, not {array.type}")
    large = kind in _LARGE_BYTES
    _, bounds_buffer, data_buffer = array.buffers()
    bounds = _bounds(array, bounds_buffer, large)
    data = EMPTY_U8 if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if large and len(bounds):
        first, last = int(bounds[0]), int(bounds[-1])
        if last - first > np.iinfo(np.int32).max:
            raise OverflowError("over 2 GiB in one array")
        data = data[first:last]
        bounds = (bounds - first).astype(np.int32)
    return Spans(frozen(data), frozen(bounds), _valid(array))


class HeaderColumns(NamedTuple):
    """The record headers of n rows as flat arrays: all keys and values, and which of them are a row's."""

    bounds: Array  # int32[n + 1]; empty if the column is absent
    keys: Spans
    values: Spans


def header_columns(array: pa.Array) -> HeaderColumns:
    """Return a flat view of an Arrow array of record headers, of type HEADERS_TYPE."""
    keys, values = array.values.flatten()  # of the whole array, whatever its offset
    return HeaderColumns(
        frozen(_bounds(array, array.buffers()[1], large=False)), spans(keys), spans(values)
    )


def numbers(array: pa.Array) -> Array:
    """Return a numpy view of an Arrow array of integers; the numbers of null rows are arbitrary.

    pyarrow's `to_numpy` and `pa.array` import pandas, if it is installed, which takes a third of a second.
    """
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None:
        return frozen(np.empty(0, dtype))
    return frozen(np.frombuffer(buffer, dtype, len(array), dtype.itemsize * array.offset))


def headers_spans(array: pa.Array) -> Spans:
    """Encode an Arrow array of record headers as the bytes at the end of each V2 record.

    The array is of list<struct<key, value>>, or large_list.

    Raises:
        ConfigError: a header whose key is null.
        OverflowError: over 2 GiB of headers; pass fewer rows at a time.
    """
    if pa.types.is_null(array.type):
        return ABSENT
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise TypeError(f"expected a list of structs for headers, not {array.type}")
    if len(array) == 0:
        return ABSENT
    bounds = _bounds(array, array.buffers()[1], pa.types.is_large_list(array.type))
    first, last = int(bounds[0]), int(bounds[-1])
    if first == last:
        return ABSENT
    # `values` ignores the list's own offset; `flatten` respects the struct's.
    entries = array.values.slice(first, last - first)
    keys, values = entries.flatten()
    if pa.types.is_null(values.type):
        values = values.cast(pa.binary())
    if keys.null_count:
        raise ConfigError(
            "column 'headers' holds a header whose key is null; header keys must be strings"
        )
    key_spans, value_spans = spans(keys), spans(values)
    size = len(array) * 5 + len(keys) * HEADER_OVERHEAD_MAX + _size(key_spans) + _size(value_spans)
    if size > np.iinfo(np.int32).max:
        raise OverflowError("over 2 GiB of headers in one array")
    data, data_bounds = np.empty(size, np.uint8), np.zeros(len(array) + 1, np.int32)
    record_kernels.write_headers(
        frozen((bounds - first).astype(np.int32)), _valid(array),
        key_spans.data, key_spans.bounds, *value_spans, data, data_bounds,
    )  # fmt: skip
    return Spans(frozen(data), frozen(data_bounds), EMPTY_U8)


def mean_row_size(of: Columns) -> int:
    """Return the approximate number of bytes that a row takes in a record batch, on average."""
    total = _size(of.key) + _size(of.value) + _size(of.headers)
    return total // max(of.rows_count, 1) + MIN_RECORD_SIZE


def _size(of: Spans) -> int:
    return int(of.bounds[-1]) - int(of.bounds[0]) if len(of.bounds) else 0


def timestamps_ms(array: pa.Array | None, rows_count: int, now_ms: int) -> Array:
    """Convert an Arrow time column to int64[n] of ms, with `now_ms` for nulls and an absent column.

    Times are floored.

    Raises:
        InvalidTimestampError: a time before 1970 other than -1 ms, or one that does not fit into a
            timestamp of microseconds.
    """
    if array is None or array.type.id == _NULL:
        return frozen(np.full(rows_count, now_ms, np.int64))
    divisor, factor = _to_ms(array.type)
    if array.type.id not in _EIGHT_BYTES:
        array = array.cast(pa.int64())
    buffer = array.buffers()[1]
    if buffer is None or rows_count == 0:
        return frozen(np.full(rows_count, now_ms, np.int64))
    times = np.frombuffer(buffer, np.int64, rows_count, 8 * array.offset)
    valid = _valid(array)
    if factor > 1:
        times = _multiplied(times if not len(valid) else np.where(valid, times, 0), factor)
    elif divisor > 1:
        times = times // divisor
    if len(valid):
        times = np.where(valid, times, now_ms)
    if np.minimum.reduce(times) < NO_TIMESTAMP:
        raise InvalidTimestampError(int(times.min()))
    if np.maximum.reduce(times) > TIMESTAMP_MS_MAX:
        raise InvalidTimestampError(int(times.max()))
    return frozen(times)


def _multiplied(seconds: Array, factor: int) -> Array:
    for extreme in (int(seconds.max()), int(seconds.min())):
        if abs(extreme * factor) > np.iinfo(np.int64).max:
            raise InvalidTimestampError(extreme * factor)
    times: Array = seconds * factor
    return times


def _to_ms(arrow_type: pa.DataType) -> tuple[int, int]:
    """Return a divisor and a factor that convert an Arrow time column to ms.

    An int64 column holds ms.
    """
    if arrow_type.id == _TIMESTAMP:
        per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[arrow_type.unit]
        return max(per_second // 1_000, 1), 1_000 if per_second == 1 else 1
    return 1, 1


def integers(array: pa.Array) -> tuple[Array, Array]:
    """Return an integer array as (int32[n], valid); the numbers of null rows are 0.

    Raises:
        ConfigError: a number that does not fit into int32.
    """
    if pa.types.is_null(array.type):
        return EMPTY_I32, EMPTY_U8
    try:
        cast = array.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column 'partition' holds a number that is no partition: {error}"
        ) from None
    return frozen(_without_nulls(cast)), _valid(cast)


def _without_nulls(array: pa.Array) -> Array:
    """Return the integers of an array, with 0 for null rows."""
    found, valid = numbers(array), _valid(array)
    return np.where(valid, found, 0) if len(valid) else found


def dictionary(array: pa.Array) -> tuple[list[str], Array]:
    """Return the distinct strings of an array without nulls, and each row's index among them."""
    encoded = array.dictionary_encode()
    return encoded.dictionary.to_pylist(), numbers(encoded.indices)


def number_array(numbers: Array) -> pa.Array:
    """Wrap contiguous integers as an Arrow array without nulls, which takes over their memory."""
    arrow_type = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(arrow_type, len(numbers), [None, pa.py_buffer(numbers)])


def bytes_array(values: Sequence[bytes | None], arrow_type: pa.DataType) -> pa.Array:
    """Return an Arrow binary or string array of single values, which are copied."""
    sizes = [0, *(0 if value is None else len(value) for value in values)]
    buffers = [
        _validity(np.array([value is not None for value in values], np.uint8))[0],
        pa.py_buffer(np.cumsum(sizes, dtype=np.int64)),
        pa.py_buffer(b"".join(value for value in values if value is not None)),
    ]
    large = pa.large_string() if pa.types.is_string(arrow_type) else pa.large_binary()
    return pa.Array.from_buffers(large, len(values), buffers).cast(arrow_type)


def repeated_text(text: str, count: int) -> pa.Array:
    """Return an Arrow string array that holds one text `count` times."""
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    arrays = [pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def binary_array(data: Array, bounds: Array, valid: Array, *, string: bool = False) -> pa.Array:
    """Wrap bytes and their bounds as an Arrow binary or string array, which takes over their memory.

    `valid` is uint8[n].
    """
    arrow_type = pa.string() if string else pa.binary()
    validity, null_count = _validity(valid)
    buffers = [validity, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(arrow_type, len(bounds) - 1, buffers, null_count)


def string_array(data: Array, bounds: Array) -> pa.Array:
    """Return spans of `data` as an Arrow string array; malformed UTF-8 is replaced, as in Java."""
    array = binary_array(data, bounds, np.ones(len(bounds) - 1, np.uint8), string=True)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = (text.decode(errors="replace") for text in array.cast(pa.binary()).to_pylist())
        return pa.array(texts, pa.string())
    return array


def headers_array(bounds: Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return record headers as an Arrow list<struct<key, value>>[n], null for a record without headers."""
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    validity, null_count = _validity((bounds[1:] > bounds[:-1]).view(np.uint8))
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(bounds) - 1,
        [validity, pa.py_buffer(bounds)],
        null_count,
        children=[entries],
    )


def _validity(valid: Array) -> tuple[pa.Buffer | None, int]:
    null_count = len(valid) - int(np.count_nonzero(valid))
    if null_count == 0:
        return None, 0
    return pa.py_buffer(np.packbits(valid, bitorder="little")), null_count


def _bounds(array: pa.Array, buffer: pa.Buffer | None, large: bool) -> Array:
    """Return the n + 1 offsets of an Arrow list, string or binary array; zeros for an empty one."""
    dtype, size = (np.int64, 8) if large else (np.int32, 4)
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * size)


def _valid(array: pa.Array) -> Array:
    """Return which rows of an Arrow array are not null, one byte each; an empty array if nothing is null."""
    if array.null_count == 0:
        return EMPTY_U8
    bitmap = np.frombuffer(array.buffers()[0], np.uint8)
    first_byte, bit = divmod(array.offset, 8)
    bits = np.unpackbits(bitmap[first_byte:], count=bit + len(array), bitorder="little")
    return frozen(np.ascontiguousarray(bits[bit:]))


# By type id, because comparing types is slow and each append does it for its columns.
_NULL = pa.null().id
_TIMESTAMP = pa.timestamp("us").id
_EIGHT_BYTES = {_TIMESTAMP, pa.int64().id}
_LARGE_BYTES = {pa.large_string().id, pa.large_binary().id}
_BYTES = {pa.string().id, pa.binary().id, *_LARGE_BYTES}


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return arrow_type.id in _BYTES


def _is_headers(arrow_type: pa.DataType) -> bool:
    if not (pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)):
        return False
    entry = arrow_type.value_type
    return (
        pa.types.is_struct(entry)
        and entry.num_fields == 2
        and (pa.types.is_string(entry[0].type) or pa.types.is_large_string(entry[0].type))
        and (_is_bytes(entry[1].type) or pa.types.is_null(entry[1].type))
    )


_SENDABLE: Mapping[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "key": ("string or binary", _is_bytes),
    "value": ("string or binary", _is_bytes),
    "topic": (
        "string",
        lambda found: pa.types.is_string(found) or pa.types.is_large_string(found),
    ),
    "partition": ("an integer type", pa.types.is_integer),
    "timestamp": (
        "a timestamp, or int64 of ms since 1970",
        lambda found: pa.types.is_timestamp(found) or pa.types.is_int64(found),
    ),
    "headers": ("list<struct<key: string, value: binary>>", _is_headers),
}
