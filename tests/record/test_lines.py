"""Records as lines, by the compiled loop: what a plain loop over Python objects writes."""

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_kbatch.cli.output import text_of
from spark_kbatch.model import LONG_MAX, TopicPartition
from spark_kbatch.record import lines
from spark_kbatch.record.lines import Kind, Layout, Lines, Style, field_layout, json_layout
from spark_kbatch.terminal import field, iso_time, to_json
from tests.support import builders

TP = TopicPartition("a-topic", 7)
FORMAT = [b"%", *(kind for kind in Kind), b"\x00\n"]

# Where one-, two-, three- and four-byte characters start and end, and what is nearly UTF-8.
_PIECES = st.sampled_from(
    [b'"', b"\\", b",", b"=", b"\x00", b"\x08\x0c", b"\x1b[2J", b"\x7f", "\x80\x9b".encode(),
     "é߿ࠀ中\u202e\u2028\ufeff\ufffd\uffff".encode(), "\U00010000😀\U000e0041\U0010ffff".encode(),
     b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
     b"\xf5", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xff", b"plain text of more than sixteen bytes"]
)  # fmt: skip
texts = st.one_of(st.lists(_PIECES, max_size=4).map(b"".join), st.binary(max_size=40))
times = st.one_of(
    st.sampled_from([-1, 0, -2, 253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_000]),
    st.integers(-62_135_596_800_001, LONG_MAX),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.sampled_from(
    ["=", "a,b", "\x1b"]
)
records = st.fixed_dictionaries(
    {
        "offset": st.integers(0, LONG_MAX),
        "timestamp": times,
        "key": st.none() | texts,
        "value": st.none() | texts,
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": names, "value": st.none() | texts}),
            min_size=1,
            max_size=2,
        ),
    }
)
SCHEMA = pa.schema(
    {"offset": pa.int64(), "timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary(), "headers": builders.HEADERS_TYPE}
)  # fmt: skip
EVERY_BYTE = {
    "offset": 1, "timestamp": 1, "key": bytes(range(128)), "value": bytes(range(256)),
    "headers": [{"key": "".join(map(chr, range(256))), "value": bytes(range(128))}],
}  # fmt: skip


def line_of(record: dict[str, Any]) -> str:
    """Return a record's line of fields, by the functions for single texts."""
    headers = [
        f"{field(one['key'], '=,')}={field(one['value'], ',')}" for one in record["headers"] or []
    ]
    edges = (
        TP.topic,
        str(TP.partition),
        str(record["offset"]),
        text_of(iso_time(record["timestamp"])),
    )
    texts = (field(record["key"]), field(record["value"]), ", ".join(headers) or "-")
    return "\t".join((*edges, *texts)) + "\n"


def object_of(record: dict[str, Any]) -> dict[str, Any]:
    def text(data: bytes | None) -> Any:
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data or b"").decode()}

    return {
        "topic": TP.topic,
        "partition": TP.partition,
        "offset": record["offset"],
        "timestamp": iso_time(record["timestamp"]),
        "key": text(record["key"]),
        "value": text(record["value"]),
        "headers": [[one["key"], text(one["value"])] for one in record["headers"] or []],
    }


def raw_of(record: dict[str, Any]) -> bytes:
    """Return what FORMAT makes of a record."""
    headers = b",".join(
        one["key"].encode() + b"=" + (b"NULL" if one["value"] is None else one["value"])
        for one in record["headers"] or []
    )
    key, value = record["key"], record["value"]
    texts: dict[Kind, object] = {
        Kind.OFFSET: record["offset"],
        Kind.TIME_MS: record["timestamp"],
        Kind.TIME: text_of(iso_time(record["timestamp"])),
        Kind.KEY: key or b"",
        Kind.VALUE: value or b"",
        Kind.HEADERS: headers,
        Kind.KEY_SIZE: -1 if key is None else len(key),
        Kind.VALUE_SIZE: -1 if value is None else len(value),
        Kind.TOPIC: TP.topic,
        Kind.PARTITION: TP.partition,
    }
    written = (texts[part] if isinstance(part, Kind) else part for part in FORMAT)
    return b"".join(one if isinstance(one, bytes) else str(one).encode() for one in written)


def written(layout: Layout, batch: pa.RecordBatch) -> bytes:
    return b"".join(bytes(text) for text in Lines(layout, TP).of(batch.select(layout.columns)))


@given(st.lists(records, max_size=6), st.integers(0, 2))
@example([EVERY_BYTE], 0)
@settings(deadline=None)  # the first example may compile the kernel
def test_lines_are_those_of_single_texts(rows: list[dict[str, Any]], first: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).slice(first)
    rows = rows[first:]

    assert written(field_layout(with_topic=True), batch) == "".join(map(line_of, rows)).encode()
    as_json = "".join(to_json(object_of(row)) + "\n" for row in rows)
    assert written(json_layout(), batch) == as_json.encode()
    assert written(Layout(FORMAT, Style.RAW), batch) == b"".join(map(raw_of, rows))
    for row, line in zip(rows, as_json.splitlines(), strict=True):
        assert json.loads(line) == object_of(row)


def test_lines_that_are_larger_than_the_memory_for_them_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "_OUT_BYTES", 1000)
    sizes = [0, 1, 3000, 2, 100_000, 0, 50]
    rows = [{**EVERY_BYTE, "offset": n, "value": b"\x01" * n} for n in sizes]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)

    shown = written(json_layout(), batch).splitlines()
    assert [len(json.loads(line)["value"]) for line in shown] == sizes


def test_columns_that_a_layout_does_not_name_are_not_needed() -> None:
    layout = Layout([Kind.VALUE, b"\n"], Style.RAW)
    assert layout.columns == ["offset", "value"]
    batch = pa.record_batch({"offset": pa.array([5, 6], pa.int64()), "value": [b"a", b"b"]})
    assert written(layout, batch) == b"a\nb\n"


def test_where_stdout_has_no_unicode_other_characters_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    monkeypatch.setattr(Lines, "_shown", Lines._shown[:0])
    row = {**EVERY_BYTE, "headers": None, "key": "aÛ".encode(), "value": "😀".encode()}
    batch = pa.RecordBatch.from_pylist([row], SCHEMA)
    assert written(field_layout(with_topic=False), batch).split(b"\t")[3:5] == [
        rb"a\u00db", rb"\U0001f600",
    ]  # fmt: skip
