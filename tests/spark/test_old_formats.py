"""Topics of the formats V0 and V1, written and read through Spark like any other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

from spark_kbatch.record.header import walk
from tests.support import reference
from tests.support.frames import load, save

pytestmark = pytest.mark.spark

ROWS = 3_000
NO_TIME = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
TIME = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("magic", "version", "codec", "time", "timestamp_type"),
    [
        pytest.param(0, "0.9.0", "lz4", NO_TIME, -1, id="v0"),
        pytest.param(1, "0.10.2", "snappy", TIME, 0, id="v1", marks=pytest.mark.slow),
    ],
)
def test_rows_come_back_from_a_topic_of_an_old_format(
    spark: SparkSession,
    tmp_path: Path,
    magic: int,
    version: str,
    codec: str,
    time: datetime,
    timestamp_type: int,
) -> None:
    rows = spark.range(0, ROWS, 1, 2).select(
        F.lit("key").alias("key"), F.col("id").cast("string").alias("value"),
        F.lit(TIME).alias("timestamp"),
    )  # fmt: skip
    path, options = tmp_path / "c", {"topic": "t", "compression_type": codec, "batch_size": 5_000}
    save(rows, path, message_format_version=version, **options)
    save(rows, path, **options)

    read = load(spark, path, subscribe="t").orderBy("offset").collect()
    assert [row.offset for row in read] == list(range(2 * ROWS))
    assert [int(row.value) for row in read] == [*range(ROWS), *range(ROWS)]
    assert {bytes(row.key) for row in read} == {b"key"}
    assert {row.timestamp.astimezone(UTC) for row in read} == {time}
    assert {row.timestampType for row in read} == {timestamp_type}

    (log,) = (path / "broker-0" / "t-0").glob("*.log")
    headers = [header for _, header in walk(log.read_bytes())]
    assert {(header.magic, header.codec) for header in headers} == {
        (magic, reference.CODECS[codec])
    }
