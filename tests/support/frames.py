"""Rows in and out of topics through Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructType

from tests.support.reference import Record

with warnings.catch_warnings():
    # It reads its schemas with a function of importlib.resources that is to go.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner import murmur2  # type: ignore[import-untyped]


def use_in_this_thread(spark: SparkSession) -> None:
    """Make the session active in this thread, where Spark looks up Python data sources."""
    active = spark._jvm.org.apache.spark.sql.classic.SparkSession
    active.setActiveSession(spark._jsparkSession)


def frame_of(spark: SparkSession, rows: pa.RecordBatch) -> DataFrame:
    """Make a frame of the rows, in order, in two tasks; `timestamp` in ms becomes Spark's timestamp."""
    columns = {
        name: pc.multiply(rows[name], 1000).cast(pa.timestamp("us", tz="UTC"))
        if name == "timestamp"
        else rows[name]
        for name in rows.schema.names
    }
    return spark.createDataFrame(pa.table(columns))


def save(frame: DataFrame, path: Path | str, **options: Any) -> None:
    """Append a frame; dots of options are written as underscores."""
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    frame.write.format("kbatch").options(**dotted).mode("append").save(str(path))


def load(
    spark: SparkSession, path: Path | str, *, schema: StructType | str | None = None, **options: Any
) -> DataFrame:
    """Load in one line, as Spark's users do."""
    reader = spark.read.format("kbatch").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(str(path))


def records(
    spark: SparkSession, path: Path | str, topic: str = "t", **options: Any
) -> dict[int, list[Record]]:
    """Return a topic's records by partition, in offset order; partitions without records are left out."""
    frame = load(spark, path, subscribe=topic, includeHeaders=True, **options)
    found = frame.select(
        "partition", "offset", F.unix_millis("timestamp"), "key", "value", "headers"
    ).collect()
    by_partition: dict[int, list[Record]] = {}
    for partition, offset, timestamp, key, value, headers in sorted(found, key=lambda row: row[:2]):
        pairs = tuple(
            (name, None if header is None else bytes(header)) for name, header in headers or ()
        )
        by_partition.setdefault(partition, []).append(
            Record(
                offset,
                timestamp,
                None if key is None else bytes(key),
                None if value is None else bytes(value),
                pairs,
            )
        )
    return by_partition


def values(spark: SparkSession, path: Path | str, topic: str = "t", **options: Any) -> list[str]:
    """Return the values of a topic as text, sorted."""
    frame = load(spark, path, subscribe=topic, **options)
    return sorted(row[0] for row in frame.select(F.col("value").cast("string")).collect())


def kafkas_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner gives a key, by kafka-python."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)
