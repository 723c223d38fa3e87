"""Rows for benchmarks of conditions: many keys, each with as many rows, and times that grow.

KBATCH_BENCH_WHERE_ROWS says how many rows there are; 20 million with 100,000 keys by default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

from spark_kbatch import Cluster
from tests.support.bytes_fetched import bytes_fetched
from tests.support.targets import Targets

WHERE_ROWS = int(os.environ.get("KBATCH_BENCH_WHERE_ROWS", "20000000"))
ROWS_OF_A_KEY, PARTITIONS = 200, 4
_FIRST = datetime(
    2026, 1, 1, tzinfo=UTC
)  # of the first row; each is 1 ms later than the one before


def keyed_rows(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Return rows with keys of 16 bytes and values of 100."""
    key = F.lpad(F.hex(F.col("id") % (WHERE_ROWS // ROWS_OF_A_KEY)), 16, "k")
    value = F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "v")
    return spark.range(start, end, 1, PARTITIONS).select(
        key.cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.timestamp_millis(F.col("id") + int(_FIRST.timestamp() * 1000)).alias("timestamp"),
    )


def one_key(number: int) -> str:
    return f"{number:X}".rjust(16, "k")


def time_of_row(number: int) -> str:
    return f"{_FIRST + timedelta(milliseconds=number):%Y-%m-%d %H:%M:%S.%f}"


def say_bytes(cluster: Cluster, topic: str, conditions: Sequence[str], targets: Targets) -> None:
    """Print how many rows and bytes of log a read in this process fetches for each condition."""
    for where in (None, *conditions):
        with bytes_fetched() as sizes:
            rows = sum(one.num_rows for one in cluster.read(topic, columns=["offset"], where=where))
        fetched = f"{sum(sizes):,} bytes of log fetched in {len(sizes)} answers"
        targets.say(f"{where or 'no condition'}: {rows:,} rows, {fetched}")
