"""Real log lines, real edits and odd values round trip through Spark unchanged.

The data is in the shared data folder, which a clone does not have: KBATCH_TEST_DATA names it.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch.model import LONG_MAX
from tests.support.frames import frame_of, kafkas_partition, load, records, save

pytestmark = pytest.mark.spark

PARTITIONS = 4
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64())])


def lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        for line in file:
            yield line.rstrip(b"\n")


def rows_of(found: Iterator[tuple[bytes | None, bytes | None, int | None]]) -> pa.RecordBatch:
    keys, values, timestamps = zip(*found, strict=True)
    columns = dict(zip(SCHEMA.names, (keys, values, timestamps), strict=True))
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def log_lines(folder: Path) -> pa.RecordBatch:
    parsed = map(json.loads, lines(folder / "loglines" / "loglines.jsonl.gz"))
    return rows_of((row["host"].encode(), row["message"].encode(), row["ts_ms"]) for row in parsed)


def edits(folder: Path) -> pa.RecordBatch:
    def found() -> Iterator[tuple[bytes, bytes, int]]:
        for line in lines(folder / "events" / "wikiticker-2015-09-12-sampled.json.gz"):
            edit = json.loads(line)
            moment = datetime.fromisoformat(edit["time"])
            yield edit["page"].encode(), line, round(moment.timestamp() * 1000)

    return rows_of(found())


def odd_values(folder: Path) -> pa.RecordBatch:
    def decoded(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    parsed = map(json.loads, lines(folder / "odd" / "odd_values.jsonl.gz"))
    return rows_of(
        (decoded(row["key_b64"]), decoded(row["value_b64"]), row["ts_ms"]) for row in parsed
    )


def by_partition(rows: pa.RecordBatch) -> dict[int, list[tuple[Any, ...]]]:
    """Return the expected (key, value, timestamp) of each partition, in order. Every key is set."""
    place = functools.cache(lambda key: kafkas_partition(key, PARTITIONS))
    expected = defaultdict(list)
    for key, value, timestamp in zip(
        *(rows[name].to_pylist() for name in SCHEMA.names), strict=True
    ):
        expected[place(key)].append((key, value, timestamp))
    return dict(expected)


@pytest.mark.parametrize(
    ("read_rows", "compression", "count"),
    [
        pytest.param(log_lines, "zstd", 124_776, id="log-lines", marks=pytest.mark.slow),
        pytest.param(edits, "lz4", 39_244, id="edits"),
    ],
)
def test_real_data_comes_back_equal_and_in_order(
    spark: SparkSession, shared_data: Path, tmp_path: Path,
    read_rows: Any, compression: str, count: int,
) -> None:  # fmt: skip
    rows = read_rows(shared_data)
    assert rows.num_rows == count
    frame = frame_of(spark, rows)
    before = time.time_ns() // 1_000_000
    save(frame, tmp_path, topic="t", num_partitions=PARTITIONS, compression_type=compression)
    after = time.time_ns() // 1_000_000

    # Rows without a time got the time of the write.
    found = {
        number: [
            (r.key, r.value, None if before <= r.timestamp <= after else r.timestamp) for r in held
        ]
        for number, held in records(spark, tmp_path).items()
    }
    assert found == by_partition(rows)


@pytest.mark.slow
def test_edits_read_from_the_topic_equal_those_read_from_the_file(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "events" / "wikiticker-2015-09-12-sampled.json.gz"
    edits = spark.read.text(str(file)).selectExpr(
        "encode(get_json_object(value, '$.channel'), 'utf-8') AS key",
        "encode(value, 'utf-8') AS value",
        "to_timestamp(get_json_object(value, '$.time')) AS timestamp",
    )
    save(edits, tmp_path, topic="edits", num_partitions=PARTITIONS, compression_type="gzip")
    found = load(spark, tmp_path, subscribe="edits")
    assert found.count() == 39_244
    assert_df_equality(
        edits,
        found.select("key", "value", "timestamp"),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_odd_values_come_back_equal_and_values_that_the_format_cannot_hold_are_refused(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    rows = odd_values(shared_data)
    with pytest.raises(PythonException, match=r"'timestamp' holds -62135596800000 ms.*before 1970"):
        save(frame_of(spark, rows), tmp_path, topic="refused", max_message_bytes=4 << 20)

    times = rows["timestamp"].to_pylist()
    holdable = rows.filter(pa.array(time >= -1 for time in times))
    assert rows.num_rows - holdable.num_rows == 1
    with pytest.raises(
        PythonException, match=r"253402300799999 ms.*more than message\.timestamp\.after\.max\.ms"
    ):
        save(frame_of(spark, holdable), tmp_path, topic="far-ahead", max_message_bytes=4 << 20)
    any_time = {"message_timestamp_after_max_ms": LONG_MAX}
    with pytest.raises(
        PythonException, match=r"takes 17\d{5} bytes, more than max\.message\.bytes=1048588"
    ):
        save(frame_of(spark, holdable), tmp_path, topic="too-large", **any_time)
    with spark_kbatch.open(tmp_path) as cluster:
        assert cluster.topic_names() == []

    room = {"num_partitions": 3, "max_message_bytes": 4 << 20, **any_time}
    save(frame_of(spark, holdable), tmp_path, topic="t", **room)
    found = [
        (r.key, r.value, r.timestamp) for part in records(spark, tmp_path).values() for r in part
    ]
    columns = [holdable[name].to_pylist() for name in SCHEMA.names]
    assert Counter(found) == Counter(zip(*columns, strict=True))
    assert {None, b""} < {key for key, _, _ in found}
    assert {None, b""} < {value for _, value, _ in found}
    assert max(len(value or b"") for _, value, _ in found) > 1_700_000
