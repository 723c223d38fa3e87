"""Conversion of test data (rows, JSON lines or CSV) to a table of records to send."""

from __future__ import annotations

import base64
import csv as csv_files
import datetime
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import arguments
from spark_kbatch.options.option import nearest
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.record.columns import HEADERS_TYPE, bytes_array
from spark_kbatch.testing.formats import NO_FORMATS, Formats

_SENT = ("key", "value", "partition", "timestamp", "headers")
_READ = ("topic", "offset", "timestampType")  # those of a record that was read; not sent
_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")

Row = Mapping[str, Any]


def from_one_of(
    rows: Any,
    json_lines: StrPath | None,
    csv: StrPath | None,
    key: str | None,
    formats: Formats = NO_FORMATS,
) -> pa.Table | None:
    """Return the records to send as a table, from rows, JSON lines or CSV; None if none is given.

    Keys and values that have a format are encoded.

    Raises:
        ConfigError: several are given, or one cannot be sent; says which row or line.
    """
    given = {"rows": rows, "json_lines": json_lines, "csv": csv}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(
            f"{' and '.join(named)} are given; accepted: one of rows, json_lines and csv"
        )
    if not named and key is None:
        return None
    if key is not None and named not in (["json_lines"], ["csv"]):
        raise ConfigError(
            "key names a field of json_lines or csv; rows have a field 'key' of their own"
        )
    if json_lines is not None:
        return _from_json_lines(absolute_path(json_lines, "json_lines"), key, formats)
    if csv is not None:
        return _from_csv(absolute_path(csv, "csv"), key, formats)
    if isinstance(rows, str | bytes | int | float):
        raise ConfigError(
            f"rows is {arguments.shown(rows)}; accepted: a list of rows, such as [{arguments.shown(rows)}], "
            "or a table"
        )
    if isinstance(rows, Sequence | Iterator) and not _is_of_arrow(rows):
        return _table(((f"row {number}", row) for number, row in enumerate(rows)), formats)
    to_arrow = getattr(rows, "toArrow", None)  # of a Spark DataFrame
    table = _arrow_table(rows if to_arrow is None else to_arrow())
    for name in filter(formats.has, ("key", "value")):
        place = table.schema.get_field_index(name)
        if place >= 0:
            table = table.set_column(place, name, formats.encoded_column(name, table[name]))
    return table


def _is_of_arrow(rows: Any) -> bool:
    """Return True if rows are Arrow's, of which a stream is an iterator too."""
    return isinstance(rows, pa.Array | pa.RecordBatchReader) or hasattr(rows, "__arrow_c_stream__")


def _arrow_table(rows: Any) -> pa.Table:
    """Return a table of any kind as one of Arrow.

    Raises:
        ConfigError: pyarrow cannot make one of it.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    try:
        return pa.table(rows)
    except (TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"rows are a {type(rows).__name__}, which pyarrow.table does not accept ({error}); accepted: a list "
            "of rows, a dict of columns, a DataFrame, or anything of Arrow"
        ) from error


def partitions_count(seed: pa.Table) -> int:
    """Return how many partitions a topic needs for these records; 0 if they name none."""
    at = seed.schema.get_field_index("partition")
    if at >= 0 and pa.types.is_integer(seed.schema.field(at).type):
        import pyarrow.compute as pc  # noqa: PLC0415  takes a tenth of a second

        largest = pc.max(seed.column(at)).as_py()
        return 0 if largest is None else int(largest) + 1
    return 0


# Files.


def _from_json_lines(path: Path, key: str | None, formats: Formats) -> pa.Table:
    every = enumerate(_text_of(path).split("\n"), 1)
    lines = [(f"{path}, line {n}", line) for n, line in every if line.strip()]
    parsed = [_parsed(where, line) for where, line in lines]
    if key is None and _are_records(parsed):
        return _table(
            (
                (where, {name: _unprinted(name, value) for name, value in row.items()})
                for (where, _), row in zip(lines, parsed, strict=True)
            ),
            formats,
        )
    return _table(
        (
            (
                where,
                {
                    "key": _key_of(where, row, key, formats),
                    "value": row if formats.has("value") else line,
                },
            )
            for (where, line), row in zip(lines, parsed, strict=True)
        ),
        formats,
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _parsed(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None


def _unprinted(name: str, value: Any) -> Any:
    """Decode a key, value or header that `kbatch consume --json` printed as base64, into bytes."""
    if name == "headers" and isinstance(value, list):
        return [[key, _unprinted("value", data)] for key, data in value]
    if name in ("key", "value") and isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return value


def _from_csv(path: Path, key: str | None, formats: Formats) -> pa.Table:
    reader = csv_files.DictReader(io.StringIO(_text_of(path), newline=""), strict=True)
    try:
        rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except csv_files.Error as error:
        raise ConfigError(f"{path}, line {reader.reader.line_num}: {error}") from None
    for where, row in rows:
        if None in row or None in row.values():
            _refuse(where, f"has not the {len(reader.fieldnames or ())} fields of the header line")
    named = [{name: text or None for name, text in row.items()} for _, row in rows]
    if key is None and _are_records(named):
        return _table(
            ((where, _record_of(where, row)) for (where, _), row in zip(rows, named, strict=True)),
            formats,
        )
    numeric = {
        name
        for name in reader.fieldnames or ()
        if all(_JSON_NUMBER.fullmatch(row[name] or "0") for row in named)
    }

    def value(row: Mapping[str, str | None]) -> dict[str, Any]:
        return {n: json.loads(text) if text and n in numeric else text for n, text in row.items()}

    return _table(
        (
            (where, {"key": _key_of(where, row, key, formats), "value": value(row)})
            for (where, _), row in zip(rows, named, strict=True)
        ),
        formats,
    )


def _record_of(where: str, row: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a record from the cells of a CSV row, by column."""
    found: dict[str, Any] = dict(row)
    if found.get("headers"):
        found["headers"] = _parsed(f"headers of {where}", found["headers"])
    for name in ("partition", "timestamp"):
        text = found.get(name)
        if text is not None and text.isascii() and text.isdigit():
            found[name] = int(text)
    return found


def _are_records(rows: Sequence[Any]) -> bool:
    """Return True if every row is a dict with a value and no other keys than a record's fields."""
    return all(
        isinstance(row, dict) and "value" in row and row.keys() <= {*_SENT, *_READ} for row in rows
    )


def _key_of(where: str, row: Any, key: str | None, formats: Formats) -> Any:
    if key is None:
        return None
    if not isinstance(row, Mapping) or key not in row:
        _refuse(where, f"has no field {key!r}, which key names")
    found = row[key]
    if formats.has("key"):
        return found
    return found if found is None or isinstance(found, str) else _json(where, "key", found)


# Rows.


def _table(rows: Iterator[tuple[str, Any]], formats: Formats) -> pa.Table:
    """Return rows as an Arrow table of records to send.

    Each row comes with words that say where it stands, for errors.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _SENT}
    places = []
    for where, row in rows:
        fields = _fields(where, row)
        places.append(where)
        for name, convert in _CONVERT.items():
            found = fields.get(name)
            is_left = found is None or formats.has(name)
            columns[name].append(found if is_left else convert(where, name, found))
    arrays = {
        name: formats.encoded(name, list(zip(places, columns[name], strict=True)))
        if formats.has(name)
        else _array(columns[name], _TYPES[name])
        for name in _SENT
        if name == "value" or any(one is not None for one in columns[name])
    }
    return pa.table(arrays)


def _array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Return values as an Arrow array; bytes without `pa.array`, which imports pandas."""
    if pa.types.is_binary(arrow_type):
        return bytes_array(values, arrow_type)
    return pa.array(values, arrow_type)


def _fields(where: str, row: Any) -> Row:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in (*_SENT, *_READ)]
        if unknown:
            near = nearest(str(unknown[0]), _SENT)
            hint = "" if near is None else f"did you mean {near!r}? "
            _refuse(
                where,
                f"has a field {unknown[0]!r}, which a record has not; {hint}Accepted: "
                f"{', '.join(_SENT)}. To send the whole row as JSON, give {{'value': row}}",
            )
        return row
    if isinstance(row, tuple):
        if len(row) != 2:
            _refuse(where, f"is a tuple of {len(row)}; accepted: a key and a value")
        return {"key": row[0], "value": row[1]}
    return {"value": row}


def _data(where: str, name: str, value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return (value if isinstance(value, str) else _json(where, name, value)).encode()


def _json(where: str, name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        _refuse(where, f"has a {name} that cannot be written as JSON: {error}")


def _partition(where: str, name: str, value: Any) -> int:
    return arguments.whole_number(f"{name} of {where}", value, 0, 2**31 - 1)


def _timestamp(where: str, name: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            _refuse(
                where, f"has the {name} {value!r}; accepted: ISO 8601, a datetime, or milliseconds"
            )
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return arguments.whole_number(f"{name} of {where}", value, 0)


def _headers(where: str, name: str, value: Any) -> list[dict[str, Any]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    try:
        return [
            {"key": key, "value": None if data is None else _data(where, name, data)}
            for key, data in pairs
        ]
    except (TypeError, ValueError):
        _refuse(where, f"has {name} {arguments.shown(value)}; accepted: pairs of a name and bytes or text, or a dict")  # fmt: skip


def _refuse(where: str, why: str) -> NoReturn:
    raise ConfigError(f"{where} {why}") from None


_CONVERT: dict[str, Callable[[str, str, Any], Any]] = {
    "key": _data,
    "value": _data,
    "partition": _partition,
    "timestamp": _timestamp,
    "headers": _headers,
}
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "timestamp": _TIMESTAMP,
    "headers": HEADERS_TYPE,
}
