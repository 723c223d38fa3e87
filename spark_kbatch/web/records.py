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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException
from starlette.routing import Route

from spark_kbatch import encode_values
from spark_kbatch.errors import (
    ConfigError,
    KBatchError,
    OffsetOutOfRangeError,
    SchemaRegistryError,
)
from spark_kbatch.options.values import PERMISSIVE, parse_value_keywords
from spark_kbatch.terminal import EPOCH, field, field_bytes, iso_time_ms, json_on_one_line
from spark_kbatch.web.site import site_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spark_kbatch.consumer.peeking import Peek
    from spark_kbatch.model import OffsetRange
    from spark_kbatch.web.site import Site

COUNTS = (20, 50, 100)  # records on a page
PARTITIONS_READ = 50  # for one page
SHOWN_BYTES = 2 << 10  # of a key or a value among others
WHOLE_BYTES = 256 << 10  # on the page of its record
_HEADERS_SHOWN, _HEADERS_WHOLE = 5, 200
_HEADER_BYTES = 256
_FIELDS_SHOWN = 50  # of a value as columns
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
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_OPENING, _CLOSING = ("[", "{"), ("]", "}")
_LOG_APPEND_TIME = 1  # `timestampType` of a read
_TIME_END_MS = 253_402_300_800_000  # the year 10,000
# The field of the form that an error is about, by its first word; the others are named as they are.
_FIELDS = {name: name for name in ("offset", "time", "partitions", "where", "schema")} | {
    "start": "offset", "end": "offset", "before": "offset",
}  # fmt: skip
_BOUND = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,19})")


class _Shown(NamedTuple):
    """A key, a value or a header as a page shows it."""

    text: str | None  # None for null
    size_in_bytes: int = 0
    is_cut: bool = False  # there is more of it
    form: str = "text"  # that it is shown in


class _Record(NamedTuple):
    """A record as a page shows it."""

    partition: int
    offset: int
    time_ms: int
    is_append_time: bool
    key: _Shown
    value: _Shown
    fields: Sequence[_Shown]  # in place of the value, where they are columns
    error: str | None  # why the value has no fields
    headers: Sequence[tuple[_Shown, _Shown]]
    headers_count: int  # with those that are not shown


def records(request: Request) -> Response:
    """Show some records of a topic."""
    site, topic, asked = site_of(request), request.path_params["topic"], _asked(request)
    every = [one.partition for one in site.cluster.partitions(topic)]
    order = asked["order"] or ("oldest" if asked["offset"] or asked["time"] else "newest")
    page: dict[str, Any] = {"forms": FORMS, "counts": COUNTS, "topic": topic, "asked": asked}
    found, errors, status = None, {}, 200
    try:
        chosen = _partitions(asked, every)
        found, shown = _found(site, topic, asked, chosen[:PARTITIONS_READ])
        page |= shown | {"others": ",".join(map(str, chosen[PARTITIONS_READ:][:PARTITIONS_READ]))}
        if order == "newest":
            page["records"].reverse()
    except (ConfigError, OffsetOutOfRangeError, SchemaRegistryError) as error:
        is_gone = isinstance(error, OffsetOutOfRangeError)
        name = _FIELDS.get(re.split(r"\W", str(error))[0], "offset" if is_gone else "schema")
        errors, status = {name: str(error)}, 404 if is_gone else 400
    return site.page(
        request,
        "records.html",
        status,
        every=every,
        order=order,
        found=found,
        errors=errors,
        **page,
    )


def record(request: Request) -> Response:
    """Show one record with all that it has."""
    site, asked = site_of(request), _asked(request)
    topic, partition, offset = (
        request.path_params[name] for name in ("topic", "partition", "offset")
    )
    if not (_NUMBERS.fullmatch(partition) and _BOUND.fullmatch(offset)):
        raise HTTPException(404)
    place, form = (int(partition), int(offset)), _form(asked)
    found = site.cluster.peek(
        topic, partitions=place[:1], start=place[1], end=place[1] + 1, count=1,
        **_formats(site, topic, asked),
    )  # fmt: skip
    names, shown = _records(found.rows, form, WHOLE_BYTES, _HEADERS_WHOLE)
    return site.page(
        request,
        "record.html",
        200 if shown else 404,
        asked=asked,
        topic=topic,
        partition=place[0],
        offset=place[1],
        names=names,
        record=shown[0] if shown else None,
        problems=[*map(str, found.errors.values())],
        forms=FORMS,
        form=form,
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
    site: Site, topic: str, asked: Mapping[str, str], partitions: Sequence[int]
) -> tuple[Peek, dict[str, Any]]:
    """Return the records that a page is asked for, and what it shows of them."""
    start, time, before = _bound("offset", asked), asked["time"], _bound("before", asked)
    if start is not None and time:
        raise ConfigError("time and offset are both given; both say where to start: give one")
    count, form = asked["count"], _form(asked)
    found = site.cluster.peek(
        topic,
        partitions=partitions,
        start=_moment(time) if time else start,
        end="latest" if before is None else before,
        count=int(count) if count in map(str, COUNTS) else COUNTS[0],
        key=field_bytes(asked["key"]) if asked["key"] else None,
        where=asked["where"] or None,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, form, SHOWN_BYTES, _HEADERS_SHOWN)
    elsewhere = {"offset": None, "time": None, "before": None}
    return found, {
        "names": names,
        "records": shown,
        "older": elsewhere | {"before": _listed(found.ranges, 1)} if found.has_older else None,
        "newer": elsewhere | {"offset": _listed(found.ranges, 2)} if found.has_newer else None,
        "problems": [f"{tp}: {why}" for tp, why in found.errors.items()],
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
    """Return the partitions that are asked for: by themselves, or by the offsets of each."""
    text = asked["partitions"].strip()
    found = set[int]()
    for one in text.split(",") if text else ():
        span = _NUMBERS.fullmatch(one.strip())
        if span is None:
            raise ConfigError(f"partitions has {one!r}; accepted: numbers, such as 0, 2-5")
        named = range(int(span[1]), int(span[2] or span[1]) + 1)
        if not {*named[:1], *named[-1:]} <= {*every} or not named:
            raise ConfigError(f"partitions has {one!r}; the topic has {every[0]} to {every[-1]}")
        found.update(number for number in every if number in named)
    for name in () if text else ("offset", "before"):
        bound = _bound(name, asked)
        found.update(bound if isinstance(bound, dict) else ())
    return sorted(found) or [*every]


def _bound(name: str, asked: Mapping[str, str]) -> int | dict[int, int] | None:
    """Return an offset, or one for each of some partitions."""
    text = asked[name].strip()
    if not text:
        return None
    found = [_BOUND.fullmatch(one.strip()) for one in text.split(",")]
    by_partition = {int(one[1]): int(one[2]) for one in found if one and one[1]}
    if len(found) == len(by_partition):
        return by_partition
    if len(found) == 1 and found[0]:
        return int(found[0][2])
    raise ConfigError(
        f"{name} is {text!r}; accepted: an offset, or one for each partition, such as 0:5, 1:7"
    )


def _moment(text: str) -> datetime.datetime:
    time_ms = int(text) if re.fullmatch("[0-9]{1,15}", text) else iso_time_ms(text.strip())
    if time_ms is None or not 0 <= time_ms < _TIME_END_MS:
        raise ConfigError(
            f"time is {text!r}; accepted: 2024-10-25T08:00:00Z, or milliseconds since 1970"
        )
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


def _listed(ranges: Iterable[OffsetRange], edge: int) -> str:
    return ",".join(f"{one.topic_partition.partition}:{one[edge]}" for one in ranges)


# What is shown.


def _records(
    rows: pa.Table, form: str, most: int, headers_most: int
) -> tuple[list[str], list[_Record]]:
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
        rows["timestamp"].cast(pa.int64()).to_pylist(),
        (kind == _LOG_APPEND_TIME for kind in rows["timestampType"].to_pylist()),
        _cut(rows["key"], most),
        values,
        fields,
        errors,
        ([_header(**one) for one in some or ()] for some in headers),
        pc.list_value_length(rows["headers"]).fill_null(0).to_pylist(),
        strict=True,
    )
    return names, [_Record(*one) for one in found]


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
    return _Shown(field(_text(data, is_cut=is_cut)), size, is_cut)


def _text(data: bytes, *, is_cut: bool) -> str:
    """Return bytes as text, without the first bytes of a character that is cut."""
    return codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=not is_cut)


def _hex(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _HEX_WIDTH):
        line = data[start : start + _HEX_WIDTH]
        plain = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in line)
        yield f"{start:06x}  {line.hex(' '):<{3 * _HEX_WIDTH}} {plain}"


def _pretty(data: bytes) -> str | None:
    """Return JSON with each of its parts on a line; None if it is none, or nested too deep to tell."""
    try:
        text = data.decode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
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


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the like, which JSON does not have


def _fields(values: pa.Array, most: int) -> tuple[list[str], list[Sequence[_Shown]]]:
    """Return the names of values' fields, and each value's as JSON."""
    names, columns = ["value"], [values]
    if pa.types.is_struct(values.type):
        names = [field(one.name) for one in values.type][:_FIELDS_SHOWN]
        columns = values.flatten()[:_FIELDS_SHOWN]
    shown = [_as_json(column, most) for column in columns]
    return names, [*zip(*shown, strict=True)] if shown else [()] * len(values)


def _as_json(column: pa.Array, most: int) -> list[_Shown]:
    try:
        texts = encode_values(column, value_format="json")
    except KBatchError as error:  # of a value that JSON has no form for
        return [_Shown(str(error))] * len(column)
    sizes = pc.binary_length(texts).to_pylist()
    start = pc.binary_slice(texts, 0, most).to_pylist()
    return [
        _Shown(None)
        if data is None
        else _Shown(json_on_one_line(_text(data, is_cut=True)), size, size > len(data))
        for data, size in zip(start, sizes, strict=True)
    ]
