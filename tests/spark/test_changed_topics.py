"""A Spark job whose topic is deleted, recreated or grown while its tasks run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_kbatch

pytestmark = pytest.mark.spark


def rows_that_change(spark: SparkSession, path: Path, change: str) -> DataFrame:
    """Return ten rows; the topic changes once the task that writes them has received some."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 5)
            with spark_kbatch.open(str(path)) as cluster:
                if change == "grow":
                    cluster.create_partitions("t", 3)
                else:
                    cluster.delete_topic("t")
                if change == "recreate":
                    cluster.create_topic("t", partitions=2)
            yield batch.slice(5)

    rows = spark.range(0, 10, 1, 1).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 2 AS INT) AS partition"
    )
    return rows.mapInArrow(pass_on, "value string, partition int")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # The first to notice reports it: a task that starts to write, or the commit.
        ("delete", "topic 't' was deleted while the job ran; create it again"),
        ("recreate", "topic 't' was (recreated|deleted) while the job ran.*run the job again"),
        ("grow", None),
    ],
    ids=["deleted", "recreated", "grown"],
)
def test_a_job_whose_topic_changes_is_visible_as_a_whole_or_not_at_all(
    spark: SparkSession, tmp_path: Path, change: str, words: str | None
) -> None:
    path = tmp_path / "cluster"
    cluster = spark_kbatch.open(str(path), create=True)
    cluster.create_topic("t", partitions=2)
    rows = rows_that_change(spark, path, change)
    writer = rows.write.format("kbatch").option("topic", "t").mode("append")
    if words is None:
        writer.save(str(path))
        log = spark.read.format("kbatch").option("subscribe", "t").load(str(path))
        found = log.selectExpr("partition", "CAST(value AS STRING)").collect()
        assert sorted(map(tuple, found)) == sorted((n % 2, str(n)) for n in range(10))
        assert cluster.topic("t").partitions == 3
    else:
        with pytest.raises(Exception, match=f"(?s){words}"):
            writer.save(str(path))
        expected = [] if change == "delete" else ["t"]
        assert cluster.topic_names() == expected
        assert all(cluster.read(name).read_all().num_rows == 0 for name in expected)
    assert list((path / "staging-0").iterdir()) == []
