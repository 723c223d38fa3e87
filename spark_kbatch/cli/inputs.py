"""Records that `kbatch produce` reads: lines, JSON lines, CSV or Parquet, turned into Arrow batches.

    lines      a line is a value, or a key, a separator and a value; or a JSON object that has the key in a field
    json       an object a line, as `kbatch consume --json` prints it
    csv        the first row names the columns; in `headers` is JSON, as in an object's `headers`
    parquet    columns as `send_arrow` takes them

Arrow takes apart one block at a time, so memory does not grow with the input. It does not say which line it refuses,
and does not know bytes written as {"base64": "..."}. So what it refuses is looked at again, a line at a time. The rows
before a line that cannot be used come out before the error.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import io
import json
import os
import re
import select
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.columns import warn_of_misspelt
from spark_kbatch.record.columns import HEADERS_TYPE
from spark_kbatch.terminal import iso_time_ms

FORMATS = ("lines", "json", "csv", "parquet")
COLUMNS = ("key", "value", "headers", "partition", "timestamp", "topic")

FORMAT_OF_SUFFIX = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
_BLOCK = 4 << 20
_ROWS = 65_536
_LINE_FEED, _CARRIAGE_RETURN = b"\n\r"
_PAIRS = pa.list_(pa.list_(pa.string()))
_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS_TYPE,
        "partition": pa.int32(),
        "timestamp": pa.int64(),  # ms
        "topic": pa.string(),
    }
)
_IN_JSON = {"partition": pa.int32(), "headers": _PAIRS}  # all others are text
# What reads of a topic add, and a write chooses itself.
_NOT_WRITTEN = {"offset": pa.int64(), "timestampType": pa.int32()}
_TIMES = "milliseconds since 1970 or an ISO 8601 time, such as 2024-10-25T08:00:00Z"


class Reading(NamedTuple):
    """The form of an input of `kbatch produce`: its format, where keys are, null marker and columns."""

    format: str
    key_separator: bytes | None = None  # in lines
    null_marker: str | None = None
    columns: Mapping[str, str] | None = (
        None  # where each column comes from; by their own names if None
    )
    key_field: str | None = None  # of the JSON objects in lines


@dataclass
class Input:
    """An input file of `kbatch produce`, or stdin, and how much of it has been read.

    That is counted in bytes or, of Parquet, in rows.
    """

    name: str
    stream: BinaryIO
    rows_read: int | None = None
    rows_count: int | None = None
    left_out: Sequence[str] = ()  # columns

    @property
    def size(self) -> int | None:
        """The input's size in bytes, or in rows of Parquet; None if it is not known."""
        if self.rows_count is not None:
            return self.rows_count
        with contextlib.suppress(OSError):  # it is no file of the system
            found = os.fstat(self.stream.fileno())
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        return None

    @property
    def position(self) -> int:
        """The number of bytes, or rows of Parquet, read from the input so far."""
        return self.stream.tell() if self.rows_read is None else self.rows_read


class Block(NamedTuple):
    """Records of an input as an Arrow batch, with the columns that `send_arrow` takes.

    `place_of` says where one of these rows stands: the input's name, and the number of the line or row there.
    """

    rows: pa.RecordBatch
    place_of: Callable[[int], str]


def _block(source: Input, rows: pa.RecordBatch, what: str, first: int) -> Block:
    """Return rows that stand one after another in an input, the first of them in line or row `first`."""
    return Block(rows, lambda row: f"{source.name}, {what} {first + row}")


def format_of(name: str) -> str:
    """Return the input format that a file name's suffix stands for, by default "lines"."""
    return FORMAT_OF_SUFFIX.get(PurePath(name).suffix.lower(), "lines")


def read_records(source: Input, reading: Reading) -> Iterator[Block]:
    """Yield the records of an input, in blocks.

    Raises:
        ConfigError: a line or a column cannot be used; names it. The rows before it were yielded.
    """
    read: Callable[[Input, Reading], Iterator[Block]] = {
        "lines": _read_lines, "json": _read_json, "csv": _read_csv, "parquet": _read_parquet,
    }[reading.format]  # fmt: skip
    return read(source, reading)


# Lines


def _read_lines(source: Input, reading: Reading) -> Iterator[Block]:
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    separator = reading.key_separator
    for first_line, block in _blocks(source):
        shown = (separator or b"").decode(errors="backslashreplace")
        lines, bad, why = _split(block), None, f"it has no key separator {shown!r}"
        if reading.key_field is not None:
            keys, why = _keys_in(lines, block, reading.key_field)
            bad = len(keys) if why else None
            columns = {"key": keys, "value": lines.slice(0, len(keys))}
        elif separator is None:
            columns = {"value": lines}
        else:
            parts = compute.split_pattern(lines, separator, max_splits=1)
            is_bad = compute.equal(compute.list_value_length(parts), 1)
            if compute.any(is_bad).as_py():
                bad = compute.index(is_bad, True).as_py()
                parts = parts.slice(0, bad)
            columns = {
                "key": compute.list_element(parts, 0),
                "value": compute.list_element(parts, 1),
            }
        if reading.null_marker is not None:
            marker = reading.null_marker.encode(errors="surrogateescape")
            columns = {n: _without(marker, one) for n, one in columns.items()}
        yield _block(source, pa.RecordBatch.from_pydict(columns), "line", first_line)
        if bad is not None:
            raise ConfigError(f"{source.name}, line {first_line + bad}: {why}")


def _keys_in(lines: pa.Array, block: bytes, field: str) -> tuple[pa.Array, str]:
    """Return the keys that lines of JSON objects have in a field, up to the first bad line; its error too.

    Text is the key as it is, and any other value as JSON; null is null.
    """
    for kind in (pa.string(), pa.int64()):  # nearly always one of these
        found = _fields_by_arrow(block, field, kind)
        if found is not None and len(found) == len(lines) and not found.null_count:
            return found.cast(pa.string()).cast(pa.binary()), ""
    keys: list[bytes | None] = []
    for line in lines.to_pylist():
        try:
            keys.append(_key_in(line, field))
        except ValueError as error:
            return pa.array(keys, pa.binary()), str(error)
    return pa.array(keys, pa.binary()), ""


def _fields_by_arrow(block: bytes, field: str, kind: pa.DataType) -> pa.Array | None:
    """Return a field of each JSON object in a block of lines; None if it is not of this type everywhere."""
    try:
        return _objects_in(block, pa.schema({field: kind}), others="ignore")[field].combine_chunks()
    except pa.ArrowInvalid:
        return None


def _objects_in(block: bytes, schema: pa.Schema, *, others: str) -> pa.Table:
    """Parse JSON objects in lines; other fields are an "error", or to "ignore".

    Raises ArrowInvalid if a field is not of its type, or the block not UTF-8.
    """
    from pyarrow import json as arrow_json  # noqa: PLC0415  takes long to import

    pa.array([block], pa.large_binary()).cast(pa.large_string())  # fails if it is not UTF-8
    return arrow_json.read_json(
        pa.BufferReader(block),
        arrow_json.ReadOptions(block_size=_BLOCK),
        arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _key_in(line: bytes, field: str) -> bytes | None:
    found = _object_in(line)
    if field not in found:
        raise ValueError(f"it has no field {field!r}; its fields: {', '.join(found) or 'none'}")
    value = found[field]
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _text_of(field, text).encode()


def _without(marker: bytes, column: pa.Array) -> pa.Array:
    """Return a column with null in place of the text that stands for null (--null-marker)."""
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    is_null = compute.equal(column, pa.scalar(marker, column.type))
    return compute.if_else(is_null, pa.scalar(None, column.type), column)


def _blocks(source: Input) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines from an input, each with the number of its first line.

    Lines of a pipe come as soon as they are there.
    """
    first_line, parts = 1, list[bytes]()
    while data := _read_some(source.stream):
        end = data.rfind(b"\n") + 1
        if not end:
            parts.append(data)
            continue
        block = b"".join((*parts, memoryview(data)[:end]))
        yield first_line, block
        first_line += block.count(b"\n")
        parts = [data[end:]]
    if rest := b"".join(parts):
        yield first_line, rest + b"\n"


def _read_some(stream: BinaryIO) -> bytes:
    """Read up to a block of bytes from a stream, waiting only for the first; empty at the end."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    parts = [read(_BLOCK)]
    size = len(parts[0])
    while parts[-1] and size < _BLOCK and _has_more(stream):
        parts.append(read(_BLOCK - size))
        size += len(parts[-1])
    return b"".join(parts)


def _has_more(stream: BinaryIO) -> bool:
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (OSError, ValueError):  # it is no file of the system
        return False


def _split(block: bytes) -> pa.Array:
    r"""Return the lines in a block of bytes as an Arrow array, without their \n or \r\n."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _LINE_FEED)
    is_kept = data != _LINE_FEED
    bounds = np.zeros(len(ends) + 1, np.int32)
    bounds[1:] = ends - np.arange(len(ends))
    has_return = data[ends - 1] == _CARRIAGE_RETURN
    if has_return.any():
        is_kept[ends[has_return] - 1] = False
        bounds[1:] -= np.cumsum(has_return, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data[is_kept])]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


# JSON lines


def _read_json(source: Input, reading: Reading) -> Iterator[Block]:
    names = reading.columns or {name: name for name in COLUMNS}
    for first_line, block in _blocks(source):
        place_of = functools.partial(_place_in_json, source, first_line, block)
        rows = _parsed(block, names, is_strict=reading.columns is None)
        if rows is not None:
            yield Block(rows, place_of)
            continue
        found: list[dict[str, Any]] = []
        for number, line in enumerate(_split(block).to_pylist(), first_line):
            if not line.strip():
                continue
            try:
                found.append(_record(line, names, is_strict=reading.columns is None))
            except ValueError as error:
                yield Block(_rows(found, names), place_of)
                raise ConfigError(f"{source.name}, line {number}: {error}") from None
        yield Block(_rows(found, names), place_of)


def _place_in_json(source: Input, first_line: int, block: bytes, row: int) -> str:
    """Return where a row of a block of JSON lines stands; blank lines are no rows."""
    lines = enumerate(_split(block).to_pylist(), first_line)
    numbers = [number for number, line in lines if line.strip()]
    return f"{source.name}, line {numbers[row]}"


def _rows(records: list[dict[str, Any]], names: Mapping[str, str]) -> pa.RecordBatch:
    schema = pa.schema([_SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_pylist(records, schema)


def _parsed(block: bytes, names: Mapping[str, str], *, is_strict: bool) -> pa.RecordBatch | None:
    """Parse a block of JSON lines into records; return None if Arrow cannot parse one of the lines."""
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    if b'"base64"' not in block:
        return _parsed_by_arrow(block, names, is_strict=is_strict)
    # Only lines with such bytes are taken apart one by one.
    lines = _split(block)
    is_own = compute.match_substring(lines, '"base64"')
    rest = lines.filter(compute.invert(is_own))
    own = lines.filter(is_own)
    try:
        ours = _rows([_record(one, names, is_strict=is_strict) for one in own.to_pylist()], names)
    except ValueError:
        return None
    if not len(rest):
        return ours
    joined = pa.ListArray.from_arrays([0, len(rest)], rest)
    block = compute.binary_join(joined, b"\n")[0].as_py() + b"\n"
    theirs = _parsed_by_arrow(block, names, is_strict=is_strict)
    if theirs is None or len(theirs) != len(rest):  # there is an empty line
        return None
    order = np.argsort(np.argsort(is_own.to_numpy(zero_copy_only=False), kind="stable"))
    both = pa.Table.from_batches([theirs.cast(ours.schema), ours]).combine_chunks()
    return both.take(pa.array(order)).to_batches()[0]


def _parsed_by_arrow(
    block: bytes, names: Mapping[str, str], *, is_strict: bool
) -> pa.RecordBatch | None:
    schema = {source: _IN_JSON.get(name, pa.string()) for name, source in names.items()}
    known = pa.schema({**schema, **(_NOT_WRITTEN if is_strict else {})})
    try:
        table = _objects_in(block, known, others="error" if is_strict else "ignore")
        if not _is_one_a_line(block, table.num_rows):
            return None
        arrays = {
            name: _usable(name, table[source].combine_chunks()) for name, source in names.items()
        }
        return pa.RecordBatch.from_pydict(arrays)
    except pa.ArrowInvalid:
        return None


def _is_one_a_line(block: bytes, objects: int) -> bool:
    """Return True if so many objects lie in lines of their own, beside lines that are blank.

    Arrow also takes an object over several lines, and several in a line.
    """
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _LINE_FEED)
    is_plain = data[ends - 1] == ord("}")
    is_plain[0] &= data[0] == ord("{")
    is_plain[1:] &= data[ends[:-1] + 1] == ord("{")
    if is_plain.all():
        return len(ends) == objects
    lines = _split(block)  # blank ones, white space and returns
    is_object = compute.match_substring_regex(lines, r"^\s*\{(?s:.*)\}\s*$")
    is_blank = compute.match_substring_regex(lines, r"^\s*$")
    is_known = compute.all(compute.or_(is_object, is_blank)).as_py()
    return bool(is_known and compute.sum(is_object).as_py() == objects)


def _usable(name: str, column: pa.Array) -> pa.Array:
    """Convert a parsed column, of JSON or of texts, to the type that `send_arrow` takes.

    Raises ArrowInvalid where that needs a closer look.
    """
    if name == "headers":
        return _headers_of_pairs(column)
    if name == "partition":
        return _partitions(column)
    return _milliseconds(column) if name == "timestamp" else column


def _partitions(column: pa.Array) -> pa.Array:
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    numbers = column.cast(pa.int32())
    if compute.any(compute.less(numbers, 0)).as_py():
        raise pa.ArrowInvalid("a partition is negative")
    return numbers


def _headers_of_pairs(column: pa.ListArray) -> pa.Array:
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    pairs = column.flatten()
    lengths = compute.list_value_length(pairs)
    if not compute.all(compute.equal(lengths.fill_null(0), 2)).as_py():
        if len(pairs):
            raise pa.ArrowInvalid("a header is no pair")
        return pa.nulls(len(column), HEADERS_TYPE)
    keys, values = compute.list_element(pairs, 0), compute.list_element(pairs, 1)
    if keys.null_count:
        raise pa.ArrowInvalid("a header has no name")
    entries = pa.StructArray.from_arrays([keys, values.cast(pa.binary())], ["key", "value"])
    bounds = np.zeros(len(column) + 1, np.int32)
    np.cumsum(column.value_lengths().fill_null(0).to_numpy(), out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), entries)


def _milliseconds(column: pa.Array) -> pa.Array:
    """Convert a column of times as text to ms; raise ArrowInvalid if one is not a time."""
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    def of_zone(texts: pa.Array) -> pa.Array:
        found = texts.cast(pa.timestamp("us", "UTC"))
        return found.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())

    with contextlib.suppress(pa.ArrowInvalid):
        return of_zone(column)
    none = pa.scalar(None, column.type)
    is_number = compute.match_substring_regex(column, r"^[0-9]{1,18}$")
    has_zone = compute.match_substring_regex(column, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    has_none = compute.invert(compute.or_(is_number, has_zone))
    numbers = compute.if_else(is_number, column, none).cast(pa.int64())
    zoned = of_zone(compute.if_else(has_zone, column, none))
    naive = compute.if_else(has_none, column, none).cast(pa.timestamp("us"))
    naive = naive.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return compute.coalesce(numbers, zoned, naive)


def _record(line: bytes, names: Mapping[str, str], *, is_strict: bool) -> dict[str, Any]:
    """Parse a JSON line into a record's columns; raise ValueError that says what is wrong with it."""
    found = _object_in(line)
    unknown = sorted(found.keys() - names.values() - _NOT_WRITTEN.keys())
    if is_strict and unknown:
        raise ValueError(
            f"unknown field {unknown[0]!r}; accepted: {', '.join(COLUMNS)}, or choose fields with --columns; "
            "objects that are values as they are: --format lines, and --key-field NAME for their keys"
        )
    return {name: _VALUE_OF[name](name, found.get(source)) for name, source in names.items()}


def _object_in(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; raise ValueError that says what is wrong with it."""
    try:
        found = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('it is no JSON object; accepted: such as {"key": "k", "value": "v"}')
    return found


def _bytes_of(name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _text_of(name, value).encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(value["base64"], validate=True)
        raise ValueError(f"{name!r} is {_short(value)}, which is not base64")
    raise ValueError(f'{name!r} is {_short(value)}; accepted: text, null or {{"base64": "..."}}')


def _text_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {_short(value)}; accepted: text")
    with contextlib.suppress(UnicodeEncodeError):
        value.encode()
        return value
    raise ValueError(f"{name!r} has a lone surrogate, which UTF-8 cannot encode")


def _headers_of(name: str, value: Any) -> list[dict[str, Any]] | None:
    pairs = value.items() if isinstance(value, dict) else value
    if pairs is None:
        return None
    if not isinstance(value, dict) and not (
        isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    ):
        raise ValueError(
            f'{name!r} are {_short(value)}; accepted: pairs of a name and a value, such as [["h", "x"]]'
        )
    return [
        {"key": _text_of("a header's name", key), "value": _bytes_of("a header's value", one)}
        for key, one in pairs
    ]


def _partition_of(name: str, value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**31):
        return value
    raise ValueError(f"{name!r} is {_short(value)}; accepted: the number of a partition, or null")


def _topic_of(name: str, value: Any) -> str | None:
    return None if value is None else _text_of(name, value)


def _time_of(name: str, value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**63):
        return value
    if isinstance(value, str):
        if re.fullmatch("[0-9]{1,18}", value):
            return int(value)
        found = iso_time_ms(value)
        if found is not None:
            return found
    raise ValueError(f"{name!r} is {_short(value)}; accepted: {_TIMES}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_VALUE_OF: Mapping[str, Callable[[str, Any], Any]] = {
    "key": _bytes_of, "value": _bytes_of, "headers": _headers_of, "partition": _partition_of,
    "timestamp": _time_of, "topic": _topic_of,
}  # fmt: skip


# CSV


def _read_csv(source: Input, reading: Reading) -> Iterator[Block]:
    from pyarrow import csv as arrow_csv  # noqa: PLC0415  takes long to import

    start = _first_row(source)
    header = next(csv.reader(io.StringIO(start.decode("utf-8-sig", "replace"), newline="")), [])
    names = _columns_of(source, header, reading, "the first row has")
    refused: list[tuple[int, str]] = []  # rows, by their numbers; why

    def on_refused(row: Any) -> str:
        has, wanted = row.actual_columns, row.expected_columns
        refused.append((row.number, f"it has {has} columns, and the first row has {wanted}"))
        return "skip"

    def batches() -> Iterator[pa.RecordBatch]:
        # Arrow reads the first block, and may refuse it, as it opens the input.
        yield from arrow_csv.open_csv(
            _Resumed(start, source.stream),
            # Without threads Arrow numbers the rows that it refuses.
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            parse_options=arrow_csv.ParseOptions(
                newlines_in_values=True,
                invalid_row_handler=on_refused,
                # Of a row of one column that is empty nothing else is seen.
                ignore_empty_lines=len(header) > 1,
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[*names.values()],
                column_types={
                    one: pa.binary() if name in ("key", "value") else pa.string()
                    for name, one in names.items()
                },
                null_values=[reading.null_marker or ""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    first_row, left = 2, batches()
    while True:
        try:
            batch = next(left)
        except StopIteration:
            break
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{source.name}, after row {first_row - 1}: {error}") from None
        good, why = _converted(names, batch)
        if refused and refused[0][0] <= first_row + len(good):
            number, why = refused[0]
            good = good.slice(0, number - first_row)
        yield _block(source, good, "row", first_row)
        first_row += len(good)
        if why:
            raise ConfigError(f"{source.name}, row {first_row}: {why}")
    for number, why in refused:  # after all others
        raise ConfigError(f"{source.name}, row {number}: {why}")


def _first_row(source: Input) -> bytes:
    """Read the start of a CSV file, at least the first line, which names the columns."""
    parts = []
    while data := _read_some(source.stream):
        parts.append(data)
        if b"\n" in data:
            break
    if not parts:
        raise ConfigError(
            f"{source.name} is empty; a CSV file starts with the names of its columns"
        )
    return b"".join(parts)


class _Resumed(io.RawIOBase):
    """A stream that returns bytes already read from another stream, and then the rest of that one."""

    def __init__(self, start: bytes, stream: BinaryIO) -> None:
        self._start, self._stream = start, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._start:
            return self._stream.read(size)
        found, self._start = self._start[:size], self._start[size:]
        return found


def _columns_of(
    source: Input, header: Sequence[str], reading: Reading, what_has: str
) -> dict[str, str]:
    """Return the input's column for each field of a record, and note the columns left out.

    Raises:
        ConfigError: one is not there, or there twice.
    """
    names = dict(reading.columns or {name: name for name in COLUMNS if name in header})
    has = f"{what_has} {', '.join(header) or 'none'}"
    if "value" not in names:
        raise ConfigError(
            f"{source.name} has no column 'value': {has}; choose columns with --columns, such as "
            f"--columns value={header[0] if header else 'NAME'}"
        )
    for one in names.values():
        if header.count(one) != 1:
            how_often = "two columns" if one in header else "no column"
            raise ConfigError(f"{source.name} has {how_often} {one!r}: {has}")
    taken = {*names.values(), *_NOT_WRITTEN}
    source.left_out = [one for one in header if one not in taken]
    if reading.columns is None:
        warn_of_misspelt(header)
    return names


def _converted(names: Mapping[str, str], batch: pa.RecordBatch) -> tuple[pa.RecordBatch, str]:
    """Convert CSV columns to the types of records, up to the first bad row; return its error too."""
    arrays, count, why = {}, len(batch), ""
    for name, source in names.items():
        texts = batch.column(source)
        try:
            arrays[name] = _of_texts(name, texts)
        except pa.ArrowInvalid:
            found: list[Any] = []
            for text in texts.to_pylist():
                try:
                    found.append(_VALUE_OF[name](name, _from_text(name, text)))
                except ValueError as error:
                    if len(found) < count:
                        count, why = len(found), str(error)
                    break
            arrays[name] = pa.array(found, _SCHEMA.field(name).type)
    return pa.RecordBatch.from_pydict({n: one.slice(0, count) for n, one in arrays.items()}), why


def _of_texts(name: str, texts: pa.Array) -> pa.Array:
    from pyarrow import compute  # noqa: PLC0415  takes long to import

    if name != "headers":
        return _usable(name, texts)
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), HEADERS_TYPE)
    objects = compute.binary_join_element_wise('{"h":', texts.fill_null("null"), "}", "")
    lines = compute.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), "\n")
    block = lines[0].as_py().encode() + b"\n"
    found = _parsed_by_arrow(block, {"headers": "h"}, is_strict=True)
    if found is None or len(found) != len(texts):
        raise pa.ArrowInvalid("a text is not JSON of headers")
    return found.column("headers")


def _from_text(name: str, text: Any) -> Any:
    """Return the value of a CSV cell, parsed as JSON in the columns `headers` and `partition`."""
    if text is None or name not in ("headers", "partition"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # which is refused


# Parquet


def _read_parquet(source: Input, reading: Reading) -> Iterator[Block]:
    from pyarrow import parquet  # noqa: PLC0415  takes long to import

    if not source.stream.seekable():
        raise ConfigError(f"{source.name} is a pipe, and Parquet is read from a file only; name it")
    try:
        file = parquet.ParquetFile(source.stream)
        header = file.schema_arrow.names
        names = _columns_of(source, header, reading, "its columns are")
        source.rows_read, source.rows_count = 0, file.metadata.num_rows
        for batch in file.iter_batches(_ROWS, columns=[*names.values()]):
            rows = pa.RecordBatch.from_pydict({n: batch.column(one) for n, one in names.items()})
            yield _block(source, rows, "row", source.rows_read + 1)
            source.rows_read += len(batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ConfigError(f"{source.name} cannot be read as Parquet: {error}") from None
