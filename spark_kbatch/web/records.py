"""Pages of a topic's records: some of them, and one with all that it has.

    /topics/TOPIC/records
        start                   from there on, oldest first: an offset, 5, or 0:5,1:7 by partition, or a time; by default
                                the newest
        before                  where older ones end, by partition: what links to older records have
        order                   "newest" or "oldest": which of those that are shown is above
        partitions              some numbers, 0, 2
        key, where              only records with this text as their key; only those that a condition is true for
        show, schema, framing   text, json, hex, avro, json-columns; what the latter two are read as
        count                   how many
    /topics/TOPIC/records/PARTITION/OFFSET
        show, schema, framing

What is read is bounded, as `consumer/peeking.py` says, and so is what is shown of each record. Bytes are shown by
`terminal.field`, in which no two look alike, and JSON as it is written, but for the space between its parts.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
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
from spark_kbatch.terminal import field, iso_moment, json_on_one_line
from spark_kbatch.web.site import site_of, whole_number

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spark_kbatch.web.site import Site

COUNTS = (20, 50, 100)  # records on a page
PARTITIONS_READ = 50  # for one page
HEADERS_SHOWN, HEADERS_OF_ONE = 5, 200  # of each record, and on the page of one
_FIELDS_SHOWN = 50  # of a value as columns
_INDENTS_MAX = 16  # JSON that is nested deeper is indented no further
_FORMATS = {"avro": "avro", "json-columns": "json"}  # what `Cluster.peek` has them as
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]\s*[\]}]|[\[\]{},:]|[^\s\[\]{},:"]+')
_SPACE = {
    **dict.fromkeys("[{,", ("", "\n")),
    **dict.fromkeys("]}", ("\n", "")),
    ":": ("", " "),
}  # before and after a part of JSON
_BOUNDS = re.compile(r"[0-9]{1,9}:[0-9]{1,19}( *, *[0-9]{1,9}:[0-9]{1,19})*")


def records(request: Request) -> Response:
    """Show some records of a topic."""
    site, topic, asked = site_of(request), request.path_params["topic"], request.query_params
    every = [one.partition for one in site.cluster.partitions(topic)]
    page = {"topic": topic, "every": every, "counts": COUNTS, "found": None, "error": ""}
    try:
        page |= _found(site, topic, asked, every)
    except (ConfigError, InvalidValueError, OffsetOutOfRangeError, SchemaRegistryError) as error:
        page["error"] = str(error)
    return site.page(request, "records.html", 400 if page["error"] else 200, **page, **_SHOWN)


def record(request: Request) -> Response:
    """Show one record with all that it has."""
    site, topic, asked = site_of(request), request.path_params["topic"], request.query_params
    partition, offset = (whole_number(request.path_params[at]) for at in ("partition", "offset"))
    if partition is None or offset is None:
        raise HTTPException(404)
    found = site.cluster.peek(
        topic,
        partitions=[partition],
        start=offset,
        end=offset + 1,
        count=1,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, asked.get("show"), HEADERS_OF_ONE)
    return site.page(
        request,
        "record.html",
        200 if shown else 500 if found.errors else 404,
        topic=topic,
        place=(partition, offset),
        names=names,
        records=shown,
        errors=found.errors,
        **_SHOWN,
    )


ROUTES = [
    Route("/topics/{topic}/records", records),
    Route("/topics/{topic}/records/{partition}/{offset}", record),
]


# What is asked for.


def _found(
    site: Site, topic: str, asked: Mapping[str, str], every: Sequence[int]
) -> dict[str, Any]:
    """Return what a page shows of the records that it is asked for."""
    before, where, key = _bound("before", asked), asked.get("where"), asked.get("key")
    if key:
        is_key = f"key = X'{key.encode().hex()}'"
        where = f"({where}) AND {is_key}" if where else is_key
    named = [one.strip() for one in asked.get("partitions", "").split(",") if one.strip()]
    # The cluster refuses what is no number.
    numbers: list[Any] = [one if whole_number(one) is None else int(one) for one in named]
    found = site.cluster.peek(
        topic,
        partitions=(numbers or every)[:PARTITIONS_READ],
        start=_bound("start", asked),
        end="latest" if before is None else before,
        count=int(asked["count"]) if asked.get("count", "") in map(str, COUNTS) else COUNTS[0],
        where=where or None,
        **_formats(site, topic, asked),
    )
    names, shown = _records(found.rows, asked.get("show"), HEADERS_SHOWN)
    return {
        "found": found,
        "names": names,
        "records": shown,
        "others": (numbers or every)[PARTITIONS_READ:],
    }


def _formats(site: Site, topic: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of values as columns that are asked for; only the operator names a registry."""
    if asked.get("show") not in _FORMATS:
        return {}
    given = {
        "value_format": _FORMATS[asked["show"]],
        "mode": PERMISSIVE,
        **{f"value_{name}": asked[name] for name in ("schema", "framing") if asked.get(name)},
    }
    if parse_value_keywords(site.registry, given, [topic]).value.schema.kind == "file":
        raise ConfigError(
            "schema names a file, which is not read for a page; accepted: latest, id:7, version:3, "
            "or the schema itself"
        )
    return {"registry": site.registry, **given}


def _bound(name: str, asked: Mapping[str, str]) -> int | datetime.datetime | dict[int, int] | None:
    """Return an offset, a time, or an offset for each of some partitions."""
    text = asked.get(name, "").strip()
    if _BOUNDS.fullmatch(text):
        return {int(n): int(at) for n, at in (one.split(":") for one in text.split(","))}
    if not text or whole_number(text) is not None:
        return whole_number(text)
    moment = iso_moment(text)
    if moment is None:
        raise ConfigError(
            f"{name} is {text!r}; accepted: an offset, or one for each partition, such as 0:5, 1:7; or a "
            "time, such as 2024-10-25T08:00:00Z"
        )
    return moment


# What is shown.


def _records(
    rows: pa.Table, form: str | None, headers_max: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of values' columns, and the records, each with its values: bytes, of columns JSON.

    A record may have millions of headers: each has as many as may be shown, and their count.
    """
    values, names = rows["value"].combine_chunks(), ["Value"]
    columns = [values]
    if form in _FORMATS:
        if pa.types.is_struct(values.type):
            names = [field(one.name) for one in values.type][:_FIELDS_SHOWN]
            columns = values.flatten()[:_FIELDS_SHOWN]
        columns = [encode_values(column, value_format="json") for column in columns]
    # Python has no datetimes after the year 9999.
    times = pc.divide(rows["timestamp"].cast(pa.int64()), 1000)
    rest = (
        rows.drop_columns(["value", "timestamp", "headers"])
        .append_column("time_ms", times)
        .append_column("headers_count", pc.list_value_length(rows["headers"]))
        .append_column("headers", pc.list_slice(rows["headers"], 0, headers_max))
    )
    return names, [
        one | {"values": [column[number].as_py() for column in columns]}
        for number, one in enumerate(rest.to_pylist())
    ]


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


_SHOWN = {
    "field": field,
    "one_line": json_on_one_line,
    "pretty": _pretty,
}  # for templates
