"""Conversion of records to the rows of Spark's Kafka source, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.columns.reading import read_as
from spark_kbatch.consumer.rows import Rows
from spark_kbatch.errors import (
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from spark_kbatch.model import OffsetRange, TopicPartition

MAX_MS = (2**63 - 1) // 1000


def timestamps(*times_ms: int) -> pa.Array:
    rows = Rows(["timestamp"])
    records = pa.record_batch({"timestamp": pa.array(times_ms, pa.int64())})
    (batch,) = rows.of([records], TopicPartition("t", 0))
    return batch.column("timestamp")


def test_times_are_microseconds_in_utc() -> None:
    found = timestamps(0, -1, 1_700_000_000_123, MAX_MS, -MAX_MS)
    assert found.type == pa.timestamp("us", tz="UTC")
    assert found.cast(pa.int64()).to_pylist() == [
        0, -1000, 1_700_000_000_123_000, MAX_MS * 1000, -MAX_MS * 1000,
    ]  # fmt: skip


@pytest.mark.parametrize("time_ms", [MAX_MS + 1, 2**63 - 1, -MAX_MS - 1, -(2**63)])
def test_a_time_that_spark_cannot_hold_is_an_error_that_names_it_and_its_topic(
    time_ms: int,
) -> None:
    """It may be in nanoseconds, written by mistake for milliseconds."""
    with pytest.raises(InvalidTimestampError, match=rf"topic 't' has the time {time_ms} ms"):
        timestamps(5, time_ms, -5)


def rows_before_an_error(rows: Rows, records: pa.RecordBatch, error: type[Exception]) -> list[Any]:
    found = []

    def take() -> None:
        for batch in rows.of([records], TopicPartition("t", 0)):
            assert batch.schema == rows.schema
            found.extend(batch.to_pylist())

    with pytest.raises(error):
        take()
    return found


def test_what_is_before_a_fault_comes_first_whatever_the_fault() -> None:
    times = pa.array([5, 6, 7, MAX_MS + 1, 8], pa.int64())
    texts = pa.array([b"a", b"b", b"\xff", b"d", b"\xff"])
    records = pa.record_batch(
        {
            "key": pa.array([b"k"] * 4 + [b"\xff"]),
            "value": texts,
            "offset": pa.array(range(10, 15)),
            "timestamp": times,
        }
    )
    strict = read_as(True, None, {}, "t")

    both = Rows(["offset", "timestamp", "key", "value"], strict)
    before = rows_before_an_error(both, records, RecordDeserializationError)
    assert [one["value"] for one in before] == ["a", "b"]
    of_times = Rows(["offset", "timestamp"], strict)
    before = rows_before_an_error(of_times, records, InvalidTimestampError)
    assert [one["offset"] for one in before] == [10, 11, 12]
    both_bad = records.slice(2).set_column(1, "value", pa.array([b"c", b"d", b"\xff"]))
    before = rows_before_an_error(both, both_bad, InvalidTimestampError)
    assert [one["value"] for one in before] == ["c"]
    of_keys = Rows(["key"], strict)
    assert len(rows_before_an_error(of_keys, records, RecordDeserializationError)) == 4
    assert rows_before_an_error(of_keys, records.slice(4), RecordDeserializationError) == []


def test_text_is_checked_and_the_error_names_its_record() -> None:
    data = pa.array([b"no", b"", None, "é".encode(), b"ab\xc3", b"\xff"])[1:]
    records = pa.record_batch({"value": data, "offset": pa.array([7, 8, 12, 13, 14])})
    place = TopicPartition("t", 3)

    def texts(rows: Rows, records: pa.RecordBatch) -> list[str | None]:
        (batch,) = rows.of([records.select(rows.decoded)], place)
        assert batch.schema == rows.schema == pa.schema([("value", pa.string())])
        found: list[str | None] = batch.column("value").to_pylist()
        return found

    strict, replacing = (read_as(text, None, {}, "t") for text in (True, "replace"))
    assert texts(Rows(["value"], strict), records[:3]) == ["", None, "é"]
    assert texts(Rows(["value"], replacing), records) == ["", None, "é", "ab\ufffd", "\ufffd"]
    with pytest.raises(RecordDeserializationError) as told:
        texts(Rows(["value"], strict), records)
    error = told.value
    assert (error.topic, error.partition, error.offset, error.column, error.position) == (
        "t", 3, 13, "value", 2,
    )  # fmt: skip
    assert str(error).startswith(
        "the value of t-3 at offset 13 cannot be decoded: 0xc3 is not UTF-8 (byte 2); read it as bytes"
    )
    assert Rows(["offset"], strict).decoded == ["offset"]


def test_headers_that_cannot_be_read_any_more_leave_an_error_as_it_is() -> None:
    data = pa.array([b"1", b"\0\0\0\0\x012", b"3"])
    records = pa.record_batch({"value": data, "offset": pa.array([7, 8, 9])})
    framed = {"value_format": "json", "value_schema": "bigint", "value_framing": "confluent"}
    asked = []

    def headers_of(offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        asked.append((offsets.start, offsets.end))
        raise OffsetOutOfRangeError("t-0", 7, 8, 9)

    columns = replace(read_as(False, None, framed, "t"), is_permissive=True)
    ((_, decoded),) = columns.decoded(records, ["value"], TopicPartition("t", 0), headers_of)
    assert decoded["value"].part("error").is_valid().to_pylist() == [True, False, True]
    assert asked == [(7, 8)]
