"""Pages of a topic's records: some of them, and one with all that it has.

    /topics/TOPIC/records
        start                   from there on, oldest first: an offset, 5, or 0:5,1:7 by partition, or a time; by default
                                the newest
        before                  where older ones end, by partition: what links to older records have
        order                   "newest" or "oldest": which of those that are shown is above
        partitions              0, 2
        key, where              only records with this text as their key; only those that a condition is true for
        show, schema, framing   text, json, hex, avro, json-columns; what the latter two are read as
        count                   how many
    /topics/TOPIC/records/PARTITION/OFFSET
        show, schema, framing

What is read is bounded, as `consumer/peeking.py` says, and so is what is shown of each record. Bytes are shown by
`terminal.field`, in which no two look alike, and JSON as it is written, but for the space between its parts.
"""

from __future__ import annotations

import codecs
import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from spark_kbatch.terminal import field, json_on_one_line
from spark_kbatch.web.site import site_of, whole_number

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spark_kbatch.web.site import Site

COUNTS = (20, 50, 100)  # records on a page
PARTITIONS_READ = 50  # for one page
SHOWN_BYTES = 2 << 10  # of a key or a value among others
WHOLE_BYTES = 256 << 10  # on the page of its record
_HEADERS_SHOWN, _HEADERS_WHOLE = 5, 200
_FIELDS_SHOWN = 50  # of a value as columns
_INDENTS_MAX = 16  # JSON that is nested deeper is indented no further
FORMS = {
    "text": "Text",
    "json": "JSON",
    "hex": "Hex",
    "avro": "Avro as columns",
    "json-columns": "JSON as columns",
}
_FORMATS = {"avro": "avro", "json-columns": "json"}  # what `Cluster.peek` has them as
_DEFAULTS = {
    "start": "", "before": "", "order": "", "partitions": "", "key": "", "where": "", "show": "text", "schema": "",
    "framing": "", "count": "",
}  # fmt: skip
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]\s*[\]}]|[\[\]{},:]|[^\s\[\]{},:"]+')
_SPACE = {"]": ("\n", ""), "}": ("\n", ""), ":": ("", " ")}  # before and after a part of JSON
_SPACE |= dict.fromkeys("[{,", ("", "\n"))
_NUMBERS = re.compile(r"[0-9]{1,9}( *, *[0-9]{1,9})*")
_BOUNDS = re.compile(r"[0-9]{1,9}:[0-9]{1,19}( *, *[0-9]{1,9}:[0-9]{1,19})*")


def records(request: Request) -> Response:
    """Show some records of a topic."""
    site, topic, asked = site_of(request), request.path_params["topic"], _asked(request)
    every = [one.partition for one in site.cluster.partitions(topic)]
    order = asked["order"] or ("oldest" if asked["start"] else "newest")
    page = {"topic": topic, "every": every, "order": order, "counts": COUNTS, "found": None}
    status, page["error"] = 200, ""
    try:
        page |= _found(site, topic, asked, every)
    except (ConfigError, InvalidValueError, OffsetOutOfRangeError, SchemaRegistryError) as error:
        page["error"] = str(error)
        status = 404 if isinstance(error, OffsetOutOfRangeError) else 400
    limits = {"most": SHOWN_BYTES, "headers_most": _HEADERS_SHOWN}
    return site.page(request, "records.html", status, **page, **limits, asked=asked, **_SHOWN)


def record(request: Request) -> Response:
    """Show one record with all that it has."""
    site, topic, asked = site_of(request), request.path_params["topic"], _asked(request)
    partition, offset = (whole_number(request.path_params[at]) for at in ("partition", "offset"))
    if partition is None or offset is None:
        raise HTTPException(404)
    bounds = {"partitions": [partition], "start": offset, "end": offset + 1, "count": 1}
    found = site.cluster.peek(topic, **bounds, **_formats(site, topic, asked))
    names, shown = _records(found.rows, asked["show"])
    page = {"topic": topic, "place": (partition, offset), "names": names, "records": shown}
    page |= {"errors": found.errors, "most": WHOLE_BYTES, "headers_most": _HEADERS_WHOLE}
    status = 200 if shown else 404
    return site.page(request, "record.html", status, **page, asked=asked, **_SHOWN)


ROUTES = [
    Route("/topics/{topic}/records", records),
    Route("/topics/{topic}/records/{partition}/{offset}", record),
]


# What is asked for.


def _asked(request: Request) -> dict[str, str]:
    """Return all parameters, those that are not given as they are by default."""
    given = request.query_params
    return {name: given.get(name) or default for name, default in _DEFAULTS.items()}


def _found(
    site: Site, topic: str, asked: Mapping[str, str], every: Sequence[int]
) -> dict[str, Any]:
    """Return what a page shows of the records that it is asked for."""
    before, where, count = _bound("before", asked), asked["where"], asked["count"]
    if asked["key"]:
        key = f"key = X'{asked['key'].encode().hex()}'"
        where = f"({where}) AND {key}" if where else key
    chosen = _partitions(asked["partitions"]) if asked["partitions"] else every
    found = site.cluster.peek(
        topic,
        partitions=chosen[:PARTITIONS_READ],
        start=_bound("start", asked),
        end="latest" if before is None else before,
        count=int(count) if count in map(str, COUNTS) else COUNTS[0],
        where=where or None,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, asked["show"])
    read = [one.topic_partition.partition for one in found.ranges]
    there = {"start": None, "before": None, "partitions": _listed(read)}
    starts, ends = (
        _listed(f"{n}:{one[at]}" for n, one in zip(read, found.ranges, strict=True))
        for at in (1, 2)
    )
    return {
        "found": found,
        "names": names,
        "records": shown,
        "others": _listed(chosen[PARTITIONS_READ:]),
        "older": found.has_older and there | {"before": starts},
        "newer": found.has_newer and there | {"start": ends},
    }


def _listed(found: Iterable[object]) -> str:
    return ",".join(map(str, found))


def _formats(site: Site, topic: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of values as columns that are asked for; only the operator names a registry."""
    if asked["show"] not in _FORMATS:
        return {}
    given = {f"value_{name}": asked[name] for name in ("schema", "framing") if asked[name]}
    given |= {"value_format": _FORMATS[asked["show"]], "mode": PERMISSIVE}
    if parse_value_keywords(site.registry, given, [topic]).value.schema.kind == "file":
        raise ConfigError(
            "schema names a file, which is not read for a page; accepted: latest, id:7, version:3, "
            "or the schema itself"
        )
    return {"registry": site.registry, **given}


def _partitions(text: str) -> list[int]:
    if not _NUMBERS.fullmatch(text.strip()):
        raise ConfigError(f"partitions is {text!r}; accepted: numbers, such as 0, 2")
    return sorted({*map(int, text.split(","))})


def _bound(name: str, asked: Mapping[str, str]) -> int | datetime.datetime | dict[int, int] | None:
    """Return an offset, a time, or an offset for each of some partitions."""
    text = asked[name].strip()
    if _BOUNDS.fullmatch(text):
        pairs = (one.split(":") for one in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    if not text or whole_number(text) is not None:
        return whole_number(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {text!r}; accepted: an offset, or one for each partition, such as 0:5, 1:7; or a "
            "time, such as 2024-10-25T08:00:00Z"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


# What is shown.


def _records(rows: pa.Table, form: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of values' columns, and the records, each with its values: bytes, of columns JSON."""
    values, names = rows["value"].combine_chunks(), ["Value"]
    columns = [values]
    if form in _FORMATS:
        if pa.types.is_struct(values.type):
            names = [field(one.name) for one in values.type][:_FIELDS_SHOWN]
            columns = values.flatten()[:_FIELDS_SHOWN]
        columns = [encode_values(column, value_format="json") for column in columns]
    # Python has no datetimes after the year 9999.
    times = pc.divide(rows["timestamp"].cast(pa.int64()), 1000)
    rest = rows.drop_columns(["value", "timestamp"]).append_column("time_ms", times)
    found = rest.to_pylist()
    for number, one in enumerate(found):
        one["values"] = [column[number].as_py() for column in columns]
    return names, found


def _text(data: bytes, most: int, form: str = "text") -> str:
    """Return the first bytes of a text or of JSON, on one line."""
    # Without the first bytes of a character that is cut.
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text = decoder.decode(data[:most], final=len(data) <= most)
    return json_on_one_line(text) if form in _FORMATS else field(text)


def _pretty(data: bytes) -> str:
    """Return JSON with each of its parts on a line; nothing if it is none, or nested too deep to tell."""
    try:
        text = data.decode()
        # NaN and the like are no numbers of JSON, nor for `int`.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=int)
    except (ValueError, RecursionError):
        return ""
    parts, depth = [], 0
    for part in _JSON_PART.findall(text):
        depth += (part in ("[", "{")) - (part in ("]", "}"))
        line = "\n" + "  " * min(depth, _INDENTS_MAX)
        before, after = _SPACE.get(part, ("", ""))
        parts += [before and line, json_on_one_line(part), after.replace("\n", line)]
    return "".join(parts)


_SHOWN = {"forms": FORMS, "text": _text, "pretty": _pretty}  # for templates
