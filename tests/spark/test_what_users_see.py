"""What a user sees of Spark's Python processes: the sentences of errors, and the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_kbatch
from tests.conftest import SPARK
from tests.support.frames import save

pytestmark = pytest.mark.spark


def ensure_brief(error: PySparkException, sentence: str) -> None:
    """Ensure that the error has this sentence, and nothing of a traceback in front of it."""
    before, found, _ = str(error).partition(f"spark_kbatch.errors.{sentence}")
    assert found, str(error)
    assert "Traceback" not in before
    assert 'File "' not in str(error)


def test_an_error_of_a_commit_is_its_sentence(spark: SparkSession, tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    with spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        config = {"min.insync.replicas": 2}
        cluster.create_topic("safe", replication_factor=2, config=config)
    shutil.rmtree(disks[1])
    with pytest.raises(PySparkException) as told:
        save(
            spark.sql("SELECT 'v' AS value"),
            tmp_path / "cluster",
            topic="safe",
            request_timeout_ms=0,
        )
    ensure_brief(told.value, "CommitError: commit failed, nothing is visible: ")


def test_an_error_of_a_stream_is_its_sentence(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    with spark_kbatch.open(path, create=True) as cluster:
        cluster.create_topic("events")
    stream = spark.readStream.format("kbatch").option("subscribe", "events")
    stream = stream.option("startingOffsets", '{"events":{"0":99}}')
    query = stream.load(str(path)).writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(PySparkException) as told:
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    ensure_brief(
        told.value, "OffsetOutOfRangeError: option 'startingOffsets': offset 99 of events-0"
    )


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 collects no logs of Python workers")
def test_spark_collects_a_line_for_each_commit_and_each_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        rows = spark.sql("SELECT 'v' AS value, 'k' AS keyy")
        save(rows, tmp_path / "cluster", topic="seen")
        logs = spark.tvf.python_worker_logs().where("logger LIKE 'spark_kbatch%'")
        found = [(row.level, row.msg) for row in logs.select("level", "msg").collect()]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    (line,) = [msg for level, msg in found if level == "INFO" and "seen-0" in msg]
    assert ": 1 records, " in line
    assert "offsets seen-0 0 to 0, in 0." in line
    warnings = {msg.partition(" in ")[0] for level, msg in found if level == "WARNING"}
    assert {"created a cluster", "created topic 'seen' with 1 partition"} < warnings
    assert sum("keyy" in one for one in warnings) == len(warnings) - 2 == 1
