"""Spark's save modes, and the commits that the history lists for them."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from tests.support.frames import load, save, values

pytestmark = pytest.mark.spark


def frame(spark: SparkSession, *rows: str) -> DataFrame:
    """Make a row for each value, in the partition of its number."""
    return spark.createDataFrame(
        [(row, int(row[-1]) % 2) for row in rows], "value string, partition int"
    )


def overwrite(rows: DataFrame, path: Path, **options: str) -> None:
    writer = rows.write.format("kbatch").option("topic", "t").options(**options)
    writer.mode("overwrite").save(str(path))


def test_overwrite_replaces_a_topic_and_the_history_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(frame(spark, "a1", "a2", "a3"), tmp_path, topic="t", num_partitions=2)
    loaded = load(spark, tmp_path, subscribe="t")
    overwrite(frame(spark, "b1", "b2"), tmp_path)
    assert values(spark, tmp_path) == ["b1", "b2"]
    assert sorted(bytes(row.value) for row in loaded.collect()) == [b"b1", b"b2"]
    overwrite(frame(spark, "c1").where("value = 'none'"), tmp_path)
    assert values(spark, tmp_path) == []
    save(frame(spark, "d1", "d2"), tmp_path, topic="t")
    assert values(spark, tmp_path) == ["d1", "d2"]

    commits = list(Cluster(str(tmp_path)).history("t"))
    assert [c.mode for c in commits] == ["append", "overwrite", "overwrite", "append"]
    assert [c.records_count for c in commits] == [2, 0, 2, 3]
    assert {c.author.user for c in commits} == {getpass.getuser()}
    assert {c.author.application_id for c in commits} == {spark.sparkContext.applicationId}
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert commits[0].ends == {first: 3, second: 4}
    assert commits[0].offsets == {first: (2, 3), second: (3, 4)}


def test_an_overwrite_with_a_version_runs_once(spark: SparkSession, tmp_path: Path) -> None:
    for row in ("a2", "b2"):
        overwrite(frame(spark, row), tmp_path, txnAppId="nightly", txnVersion="7")
    assert values(spark, tmp_path) == ["a2"]


def test_the_ends_of_a_commit_read_the_topic_as_it_was_after_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    for rows in (("a1", "a2"), ("b1",), ("c1", "c2")):
        save(frame(spark, *rows), tmp_path, topic="t", num_partitions=2)
    cluster = Cluster(str(tmp_path))
    as_of = [
        values(spark, tmp_path, endingOffsets=commit.ending_offsets())
        for commit in cluster.history("t")
    ]
    assert as_of == [["a1", "a2", "b1", "c1", "c2"], ["a1", "a2", "b1"], ["a1", "a2"]]


def test_the_ends_of_a_commit_that_was_overwritten_are_refused_by_the_overwriting_commits_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(frame(spark, "a1", "a2"), tmp_path, topic="t", num_partitions=2)
    overwrite(frame(spark, "b1"), tmp_path)
    second, first = Cluster(str(tmp_path)).history("t")
    with pytest.raises(Exception, match=r"'endingOffsets': offset 0 of t-0 .* commit 1 has overwr"):
        values(spark, tmp_path, endingOffsets=first.ending_offsets())
    assert values(spark, tmp_path, endingOffsets=second.ending_offsets()) == ["b1"]


def test_a_write_that_fails_in_its_tasks_leaves_no_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = frame(spark, "a1", "a2").selectExpr("CAST(raise_error(value) AS STRING) AS value")
    with pytest.raises(Exception, match=r"a1|a2"):
        save(rows, tmp_path, topic="t")
    with pytest.raises(Exception, match=r"a1|a2"):
        save(rows.selectExpr("value", "'t' AS topic"), tmp_path)
    assert Cluster(tmp_path).topic_names() == []
    save(frame(spark, "a1").where("false"), tmp_path, topic="t", num_partitions=3)
    assert Cluster(tmp_path).topic("t").partitions == 3
