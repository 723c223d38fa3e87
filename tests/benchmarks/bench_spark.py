"""The cost of kbatch on top of what Spark takes for any Python source.

Unit: million rows a second through a whole Spark job, local[2]; 4 M rows, 16-byte keys, 100-byte
values, 4 partitions, uncompressed, flush off, on a file system in memory if there is one, to leave out
the disk's own time. Ceiling of writing: a writer that drops the same Arrow batches.
Ceiling of reading: a source that yields as many ready-made batches. Peer: Parquet, without
compression. Before and after a change: `make bench`, then read the ratios.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from tests.support.interleaved import Candidate, interleave
from tests.support.spark_sources import BareSource

ROWS = 4_000_000
PARTITIONS = 4
TARGETS = {("kbatch write", "drop"): 0.75, ("kbatch read", "ready made"): 0.75}


def file_system(path: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype


def write(rows: DataFrame, source: str, path: Path) -> None:
    writer = rows.write.format(source).mode("append")
    if source == "kbatch":
        writer = (
            writer.option("topic", "t").option("num.partitions", PARTITIONS).option("flush", False)
        )
    elif source == "parquet":
        writer = writer.option("compression", "none")
    writer.save(str(path))


def consume(frame: DataFrame) -> None:
    frame.select("key", "value").write.format("noop").mode("overwrite").save()


def bench_write_and_read(spark: SparkSession, memory_path: Path) -> None:
    record_kernels.load()
    routing.load()
    spark.dataSource.register(BareSource)
    rows = (
        spark.range(0, ROWS, 1, PARTITIONS)
        .select(
            F.lpad(F.hex("id"), 16, "k").cast("binary").alias("key"),
            F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "v").cast("binary").alias("value"),
        )
        .persist()
    )
    assert rows.count() == ROWS
    write(rows, "kbatch", memory_path / "read")
    write(rows, "parquet", memory_path / "read.parquet")
    reader = spark.read.format("kbatch").option("subscribe", "t")
    # Spark asks a Python source for every column of its schema, so a reader of two names two.
    log = reader.schema("key binary, value binary").load(str(memory_path / "read"))
    assert log.count() == ROWS
    # As many rows a batch as a piece of the log has.
    ready = (
        spark.read.format("bare")
        .options(rows=ROWS, partitions=PARTITIONS, batchrows=30_000, valuebytes=100)
        .load()
    )
    new = memory_path / "new"

    def tidy() -> None:
        shutil.rmtree(new, ignore_errors=True)

    million = ROWS / 1e6
    rates = interleave(
        {
            "drop": Candidate(lambda: write(rows, "bare", memory_path / "nothing"), million),
            "kbatch write": Candidate(lambda: write(rows, "kbatch", new), million, tidy),
            "Parquet write": Candidate(lambda: write(rows, "parquet", new), million, tidy),
            "ready made": Candidate(lambda: consume(ready), million),
            "kbatch read": Candidate(lambda: consume(log), million),
            "Parquet read": Candidate(
                lambda: consume(spark.read.parquet(str(memory_path / "read.parquet"))), million
            ),
        },
        rounds=5,
    )
    rows.unpersist()
    title = f"Through Spark, local[2], 16-byte keys, 100-byte values, on {file_system(memory_path)}"
    rates.show(title, "M rows/s", TARGETS)
    rates.ensure(TARGETS)
