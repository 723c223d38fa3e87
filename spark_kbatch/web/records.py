"""Pages of a topic's records: some of them, and one with all that it has.

    /topics/TOPIC/records
        offset, time            from there on, oldest first: 5, or 0:5,1:7 by partition; by default the newest
        before                  where older ones end, by partition: what links to older records have
        order                   "newest" or "oldest": which of those that are shown is above
        partitions              0, 2-5
        key, where              only records with this key, as it is shown; only those that a condition is true for
        show, schema, count     text, json, hex, avro, json-columns; what the latter two are read as
    /topics/TOPIC/records/PARTITION/OFFSET
        show, schema

What is read is bounded, as `consumer/peeking.py` says, and so is what is shown of each record. Bytes are shown by
`terminal.field`, in which no two look alike, and JSON as it is written, but for the space between its parts.
"""

from __future__ import annotations

import codecs
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException
from starlette.routing import Route

from spark_kbatch import encode_values
from spark_kbatch.errors import (
    ConfigError,
    InvalidValueError,
    OffsetOutOfRangeError,
    SchemaRegistryError,
)
from spark_kbatch.options.values import PERMISSIVE, parse_value_keywords
from spark_kbatch.terminal import EPOCH, field, field_bytes, iso_time, iso_time_ms, json_on_one_line
from spark_kbatch.web.site import site_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spark_kbatch import Peek
    from spark_kbatch.web.site import Site

COUNTS = (20, 50, 100)  # records on a page
PARTITIONS_READ = 50  # for one page
SHOWN_BYTES = 2 << 10  # of a key or a value among others
WHOLE_BYTES = 256 << 10  # on the page of its record
_HEADERS_SHOWN, _HEADERS_WHOLE = 5, 200
_HEADER_BYTES = 256
_FIELDS_SHOWN = 50  # of a value as columns
_LINE = "line"  # a form of its own: JSON on one line
_HEX_WIDTH = 16
_INDENTS_MAX = 16  # JSON that is nested deeper is indented no further
FORMS = {
    "text": "Text",
    "json": "JSON",
    "hex": "Hex",
    "avro": "Avro as columns",
    "json-columns": "JSON as columns",
}
_PARAMETERS = (
    "offset", "time", "before", "order", "partitions", "key", "where", "show", "schema", "framing", "count",
)  # fmt: skip
_FORMATS = {"avro": "avro", "json-columns": "json"}  # what `Cluster.peek` has them as
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_OFFSET = re.compile("[0-9]{1,19}")
_NUMBERS = re.compile(r"[0-9]{1,9}( *, *[0-9]{1,9})*")
_BOUNDS = re.compile(r"[0-9]{1,9}:[0-9]{1,19}( *, *[0-9]{1,9}:[0-9]{1,19})*")
# Of a record: `fields` are in place of the value where it is columns, `error` says why there are none.
_OF_RECORD = (
    "partition", "offset", "time", "is_append_time", "key", "value", "fields", "error", "headers",
    "headers_count",
)  # fmt: skip
_OPENING, _CLOSING = ("[", "{"), ("]", "}")
_LOG_APPEND_TIME = 1  # `timestampType` of a read
_TIME_END_MS = 253_402_300_800_000  # the year 10,000
# The field of the form that an error is about, by its first word; the others are named as they are.
_FIELDS = {name: name for name in ("offset", "time", "partitions", "where", "schema")} | {
    "start": "offset", "end": "offset", "before": "offset",
}  # fmt: skip


class _Shown(NamedTuple):
    """A key, a value or a header as a page shows it."""

    text: str | None  # None for null
    size_in_bytes: int = 0
    is_cut: bool = False  # there is more of it
    form: str = "text"  # that it is shown in


def records(request: Request) -> Response:
    """Show some records of a topic."""
    site, topic, asked = site_of(request), request.path_params["topic"], _asked(request)
    every = [one.partition for one in site.cluster.partitions(topic)]
    order = asked["order"] or ("oldest" if asked["offset"] or asked["time"] else "newest")
    page = {"topic": topic, "every": every, "order": order, "errors": {}, "found": None}
    status = 200
    try:
        page |= _found(site, topic, asked, every)
    except (ConfigError, InvalidValueError, OffsetOutOfRangeError, SchemaRegistryError) as error:
        is_gone = isinstance(error, OffsetOutOfRangeError)
        name = _FIELDS.get(re.split(r"\W", str(error))[0], "offset" if is_gone else "schema")
        page["errors"], status = {name: str(error)}, 404 if is_gone else 400
    return site.page(
        request, "records.html", status, **page, asked=asked, forms=FORMS, counts=COUNTS
    )


def record(request: Request) -> Response:
    """Show one record with all that it has."""
    site, asked = site_of(request), _asked(request)
    topic, partition, offset = (
        request.path_params[name] for name in ("topic", "partition", "offset")
    )
    if not (_OFFSET.fullmatch(partition) and _OFFSET.fullmatch(offset)):
        raise HTTPException(404)
    start = int(offset)
    found = site.cluster.peek(
        topic,
        partitions=[int(partition)],
        start=start,
        end=start + 1,
        count=1,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, _form(asked), WHOLE_BYTES, _HEADERS_WHOLE)
    page = {"topic": topic, "place": (int(partition), start), "names": names, "records": shown}
    status = 200 if shown else 404
    return site.page(
        request, "record.html", status, **page, errors=found.errors, asked=asked, forms=FORMS
    )


ROUTES = [
    Route("/topics/{topic}/records", records),
    Route("/topics/{topic}/records/{partition}/{offset}", record),
]


# What is asked for.


def _asked(request: Request) -> dict[str, str]:
    """Return all parameters, those that are not given as empty."""
    return {name: request.query_params.get(name, "") for name in _PARAMETERS}


def _found(
    site: Site, topic: str, asked: Mapping[str, str], every: Sequence[int]
) -> dict[str, Any]:
    """Return what a page shows of the records that it is asked for."""
    start, time, before = _bound("offset", asked), asked["time"], _bound("before", asked)
    if start is not None and time:
        raise ConfigError("time and offset are both given; both say where to start: give one")
    chosen, count = _partitions(asked, every), asked["count"]
    looked_at = chosen[:PARTITIONS_READ]
    rest = [n for n in (chosen if len(chosen) > PARTITIONS_READ else every) if n > looked_at[-1]]
    found = site.cluster.peek(
        topic,
        partitions=looked_at,
        start=_moment(time) if time else start,
        end="latest" if before is None else before,
        count=int(count) if count in map(str, COUNTS) else COUNTS[0],
        key=field_bytes(asked["key"]) if asked["key"] else None,
        where=asked["where"] or None,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, _form(asked), SHOWN_BYTES, _HEADERS_SHOWN)
    read = [one.topic_partition.partition for one in found.ranges]
    there = {"offset": None, "time": None, "before": None, "partitions": ",".join(map(str, read))}
    if read == [*every]:
        there["partitions"] = asked["partitions"]
    return {
        "found": found,
        "names": names,
        "records": shown,
        "others": ",".join(map(str, rest[:PARTITIONS_READ]))
        if len(looked_at) == PARTITIONS_READ
        else "",
        "older": found.has_older and there | {"before": _bounds(found, "start")},
        "newer": found.has_newer and there | {"offset": _bounds(found, "end")},
    }


def _form(asked: Mapping[str, str]) -> str:
    return asked["show"] if asked["show"] in FORMS else "text"


def _formats(site: Site, topic: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of values as columns that are asked for; only the operator names a registry."""
    form = _form(asked)
    if form not in _FORMATS:
        return {}
    given = {"value_format": _FORMATS[form], "mode": PERMISSIVE}
    for name in ("schema", "framing"):
        if asked[name]:
            given[f"value_{name}"] = asked[name]
    if parse_value_keywords(site.registry, given, [topic]).value.schema.kind == "file":
        raise ConfigError(
            "schema names a file, which is not read for a page; accepted: latest, id:7, version:3, "
            "or the schema itself"
        )
    return {"registry": site.registry, **given}


def _partitions(asked: Mapping[str, str], every: Sequence[int]) -> list[int]:
    text = asked["partitions"].strip()
    if not _NUMBERS.fullmatch(text or "0"):
        raise ConfigError(f"partitions is {text!r}; accepted: numbers, such as 0, 2")
    return sorted({*map(int, text.split(","))}) if text else [*every]


def _bound(name: str, asked: Mapping[str, str]) -> int | dict[int, int] | None:
    """Return an offset, or one for each of some partitions."""
    text = asked[name].strip()
    if _BOUNDS.fullmatch(text):
        pairs = (one.split(":") for one in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    if text and not _OFFSET.fullmatch(text):
        raise ConfigError(
            f"{name} is {text!r}; accepted: an offset, or one for each partition, such as 0:5, 1:7"
        )
    return int(text) if text else None


def _moment(text: str) -> datetime.datetime:
    time_ms = int(text) if re.fullmatch("[0-9]{1,15}", text) else iso_time_ms(text.strip())
    if time_ms is None or not 0 <= time_ms < _TIME_END_MS:
        raise ConfigError(
            f"time is {text!r}; accepted: 2024-10-25T08:00:00Z, or milliseconds since 1970"
        )
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


def _bounds(found: Peek, edge: str) -> str:
    return ",".join(f"{one.topic_partition.partition}:{getattr(one, edge)}" for one in found.ranges)


# What is shown.


def _records(
    rows: pa.Table, form: str, most: int, headers_most: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of values' fields, if these are columns, and the records."""
    names: list[str] = []
    fields: list[Sequence[_Shown]] = [()] * len(rows)
    errors: list[str | None] = [None] * len(rows)
    if form in _FORMATS:
        names, fields = _fields(rows["value"].combine_chunks(), most)
        errors = rows["value_error"].to_pylist()
        values = [_Shown(None)] * len(rows)
    else:
        values = _cut(rows["value"], most, form)
    headers = pc.list_slice(rows["headers"], 0, headers_most).to_pylist()
    found = zip(
        rows["partition"].to_pylist(),
        rows["offset"].to_pylist(),
        (iso_time(us // 1000) for us in rows["timestamp"].cast(pa.int64()).to_pylist()),
        (kind == _LOG_APPEND_TIME for kind in rows["timestampType"].to_pylist()),
        _cut(rows["key"], most),
        values,
        fields,
        errors,
        ([_header(**one) for one in some or ()] for some in headers),
        pc.list_value_length(rows["headers"]).fill_null(0).to_pylist(),
        strict=True,
    )
    return names, [dict(zip(_OF_RECORD, one, strict=True)) for one in found]


def _header(key: str, value: bytes | None) -> tuple[_Shown, _Shown]:
    name = key.encode(errors="surrogatepass")
    return (
        _shown(name[:_HEADER_BYTES], len(name)),
        _shown(value and value[:_HEADER_BYTES], len(value or b"")),
    )


def _cut(column: pa.ChunkedArray, most: int, form: str = "text") -> list[_Shown]:
    """Return the first bytes of each value in a form."""
    start, sizes = pc.binary_slice(column, 0, most), pc.binary_length(column)
    values = zip(start.to_pylist(), sizes.to_pylist(), strict=True)
    return [_shown(data, size, form) for data, size in values]


def _shown(data: bytes | None, size: int, form: str = "text") -> _Shown:
    if data is None:
        return _Shown(None)
    is_cut = size > len(data)
    if form == "hex":
        return _Shown("\n".join(_hex(data)), size, is_cut, form)
    if form == "json" and not is_cut and (pretty := _pretty(data)) is not None:
        return _Shown(pretty, size, is_cut, form)
    # Without the first bytes of a character that is cut.
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=not is_cut)
    return _Shown(json_on_one_line(text) if form == _LINE else field(text), size, is_cut)


def _hex(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _HEX_WIDTH):
        line = data[start : start + _HEX_WIDTH]
        plain = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in line)
        yield f"{start:06x}  {line.hex(' '):<{3 * _HEX_WIDTH}} {plain}"


def _pretty(data: bytes) -> str | None:
    """Return JSON with each of its parts on a line; None if it is none, or nested too deep to tell."""
    try:
        text = data.decode()
        # NaN and the like are no numbers of JSON, nor for `int`.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=int)
    except (ValueError, RecursionError):
        return None
    parts, depth, before = [], 0, ""
    for part in _JSON_PART.findall(text):
        depth -= part in _CLOSING
        is_empty = before in _OPENING and part in _CLOSING
        if (before in _OPENING or before == "," or part in _CLOSING) and not is_empty:
            parts.append("\n" + "  " * min(depth, _INDENTS_MAX))
        parts.append(": " if part == ":" else json_on_one_line(part))
        depth += part in _OPENING
        before = part
    return "".join(parts)


def _fields(values: pa.Array, most: int) -> tuple[list[str], list[Sequence[_Shown]]]:
    """Return the names of values' fields, and each value's as JSON."""
    names, columns = ["value"], [values]
    if pa.types.is_struct(values.type):
        names = [field(one.name) for one in values.type][:_FIELDS_SHOWN]
        columns = values.flatten()[:_FIELDS_SHOWN]
    texts = [encode_values(column, value_format="json") for column in columns]
    shown = [_cut(pa.chunked_array([one]), most, _LINE) for one in texts]
    return names, [*zip(*shown, strict=True)] if shown else [()] * len(values)
