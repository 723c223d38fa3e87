"""Options of Kafka's producer, in writes of Spark tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

import spark_kbatch
from spark_kbatch.record.header import walk
from tests.support import builders

pytestmark = pytest.mark.spark

ROWS = 3000
LOG = "00000000000000000000.log"


def write(spark: SparkSession, path: Path, **options: object) -> dict[int, list[bytes]]:
    """Write rows 0, 1, 2 ... in two tasks; return the values by partition, in order."""
    rows = spark.range(0, ROWS, 1, 2).select(
        F.concat(F.lit("k"), F.col("id") % 7).alias("key"),
        F.col("id").cast("string").alias("value"),
    )
    writer = rows.write.format("kbatch").option("topic", "t").option("num.partitions", 4)
    for key, value in options.items():
        writer = writer.option(key.replace("_", "."), str(value))
    writer.mode("append").save(str(path))
    cluster = spark_kbatch.open(str(path))
    found = {
        tp.partition: [bytes(record.value or b"") for record in records]
        for tp, records in builders.contents(cluster).items()
    }
    assert sorted(int(v) for values in found.values() for v in values) == list(range(ROWS))
    return found


def test_with_linger_all_rows_arrive_in_order(spark: SparkSession, tmp_path: Path) -> None:
    found = write(spark, tmp_path / "c", linger_ms=1, batch_size=2000)
    for values in found.values():
        for task in (range(ROWS // 2), range(ROWS // 2, ROWS)):
            mine = [int(v) for v in values if int(v) in task]
            assert mine == sorted(mine)


def test_a_users_own_partitioner_chooses_partitions(spark: SparkSession, tmp_path: Path) -> None:
    module = tmp_path / "placing.py"
    module.write_text(
        "import numpy as np\ndef last(keys, n):\n    return np.full(len(keys), n - 1)\n"
    )
    spark.sparkContext.addPyFile(str(module))
    found = write(spark, tmp_path / "c", partitioner_class="placing.last")
    assert {partition for partition, values in found.items() if values} == {3}


def test_the_error_for_a_missing_partitioner_names_it(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"option 'partitioner.class' is 'no.such', which cannot"):
        write(spark, tmp_path / "c", partitioner_class="no.such")


def test_keys_can_be_ignored(spark: SparkSession, tmp_path: Path) -> None:
    by_key = write(spark, tmp_path / "keys", batch_size=500)
    spread = write(spark, tmp_path / "spread", batch_size=500, partitioner_ignore_keys="true")
    assert by_key != spread
    keys_of = [{int(v) % 7 for v in values} for values in spread.values()]
    assert sum(len(keys) for keys in keys_of) > 7  # a key is in several partitions


def test_a_higher_compression_level_stores_fewer_bytes(spark: SparkSession, tmp_path: Path) -> None:
    sizes = []
    for level in (-50, 19):
        path = tmp_path / str(level)
        write(spark, path, compression_type="zstd", compression_zstd_level=level)
        sizes.append(sum(p.stat().st_size for p in path.glob("broker-0/t-*/*.log")))
    assert sizes[1] < sizes[0]


def test_batches_of_compressible_rows_are_filled_by_compressed_size(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches hold more uncompressed bytes once the codec's ratio is known."""
    rows = spark.range(0, 20_000, 1, 1).select(F.lit("v" * 100).alias("value"))
    for codec in ("none", "zstd"):
        writer = rows.write.format("kbatch").option("topic", codec).option("batch.size", 16384)
        writer.option("compression.type", codec).mode("append").save(str(tmp_path / "c"))
    plain, packed = (
        [header for _, header in walk((tmp_path / f"c/broker-0/{codec}-0" / LOG).read_bytes())]
        for codec in ("none", "zstd")
    )
    assert max(header.records_count for header in packed) > 1.3 * max(
        header.records_count for header in plain
    )
