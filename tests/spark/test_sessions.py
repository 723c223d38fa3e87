"""SQL, several sessions and threads, and a session's settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import spark_kbatch
from tests.conftest import SPARK, few
from tests.support.frames import load, save, values

pytestmark = pytest.mark.spark


@pytest.fixture
def view(spark: SparkSession) -> Iterator[str]:
    yield "topic_of_the_test"
    spark.catalog.dropTempView("topic_of_the_test")


# SQL


def test_select_reads_a_view_with_its_options(
    spark: SparkSession, tmp_path: Path, view: str
) -> None:
    save(spark.sql("SELECT explode(array('a', 'b', 'c')) AS value"), tmp_path, topic="t")
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} USING kbatch OPTIONS ("
        f"""path '{tmp_path}', subscribe 't', startingOffsets '{{"t":{{"0":1}}}}')"""
    )

    found = spark.sql(f"SELECT offset, CAST(value AS STRING) FROM {view} ORDER BY offset")
    assert found.collect() == [(1, "b"), (2, "c")]


def test_insert_writes_the_columns_that_a_view_declares(
    spark: SparkSession, tmp_path: Path, view: str
) -> None:
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} (value STRING, key STRING) USING kbatch"
        f" OPTIONS (path '{tmp_path}', topic 't', compression.type 'zstd')"
    )
    spark.sql(f"INSERT INTO {view} VALUES ('a', 'k'), ('b', NULL)")
    if SPARK >= (4, 1):
        spark.sql(f"INSERT INTO {view} (value) SELECT 'c'")
    else:  # which wants a value for each column
        with pytest.raises(AnalysisException, match="Cannot find data for the output column `key`"):
            spark.sql(f"INSERT INTO {view} (value) SELECT 'c'")
        spark.sql(f"INSERT INTO {view} VALUES ('c', NULL)")

    assert values(spark, tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        pytest.param(
            "CREATE TABLE refused (value BINARY) USING kbatch {options}", "SELECT * FROM refused",
            id="read",
        ),
        pytest.param(
            "CREATE TABLE refused (value BINARY) USING kbatch {options}",
            "INSERT INTO refused VALUES (X'61')", id="written",
        ),
        pytest.param(
            "DROP TABLE IF EXISTS refused", "CREATE TABLE refused USING kbatch {options}",
            id="made-of-a-topic",
        ),
        pytest.param(
            "DROP TABLE IF EXISTS refused",
            "CREATE TABLE refused USING kbatch {options} AS SELECT 'b' AS value",
            id="made-of-a-query",
        ),
    ],
)  # fmt: skip
def test_the_error_for_a_table_shows_the_view_to_create(
    spark: SparkSession, tmp_path: Path, made: str, refused: str
) -> None:
    """If its columns are declared, Spark does not call the source until the table is used."""
    save(spark.sql("SELECT 'a' AS value"), tmp_path, topic="t")
    options = f"OPTIONS (path '{tmp_path}', subscribe 't')"
    spark.sql(made.format(options=options))
    try:
        with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
            spark.sql(refused.format(options=options)).collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS refused")
    assert values(spark, tmp_path) == ["a"]


def test_joins_and_unions_of_one_frame_read_it_once_per_occurrence(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(6).selectExpr("CAST(id AS STRING) AS value", "id % 2 AS partition")
    save(frame, tmp_path, topic="t", num_partitions=2)
    log = load(spark, tmp_path, subscribe="t")

    assert log.union(log).count() == 12
    joined = log.alias("a").join(log.alias("b"), ["partition", "offset"])
    assert joined.where("a.value = b.value").count() == 6
    # Spark neither prunes columns of a Python source nor pushes filters down to it.
    assert log.where("offset = 2").union(log.where("value = '0'")).count() == 3


# Settings


@pytest.mark.parametrize(
    ("key", "value"),
    few(
    [
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "7"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.python.filterPushdown.enabled", "true"),
        ("spark.sql.execution.arrow.maxBytesPerBatch", "200"),
        ("spark.sql.execution.arrow.pyspark.enabled", "true"),
        ("spark.sql.execution.arrow.compression.codec", "zstd"),
        ("spark.sql.session.timeZone", "Asia/Kathmandu"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.adaptive.enabled", "false"),
    ], 3),
    ids=lambda text: text.removeprefix("spark.sql.") if "spark" in text else "",
)  # fmt: skip
def test_rows_come_back_as_written_under_every_setting(
    spark: SparkSession, tmp_path: Path, key: str, value: str
) -> None:
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        frame = spark.range(100).selectExpr(
            "CONCAT('k', id) AS key",
            "CAST(REPEAT('x', CAST(id AS int)) AS BINARY) AS value",
            "timestamp_millis(id * 86400000) AS timestamp",
            "IF(id % 3 = 0, NULL, array(named_struct('key', 'h', 'value', X'01'))) AS headers",
        )
        save(frame, tmp_path, topic="t")
        log = load(spark, tmp_path, subscribe="t", includeHeaders=True)
        expressions = [
            "string(key)", "length(value)", "unix_millis(timestamp)", "headers IS NULL",
        ]  # fmt: skip
        found = sorted(tuple(row) for row in log.selectExpr(*expressions).collect())
        filtered = log.where("partition = 0 AND offset >= 90").count()
    finally:
        spark.conf.set(key, before) if before is not None else spark.conf.unset(key)

    assert found == sorted((f"k{n}", n, n * 86_400_000, n % 3 == 0) for n in range(100))
    assert filtered == 10


# Sessions and threads


def test_a_new_session_finds_the_format(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    save(other.sql("SELECT 'a' AS value"), tmp_path, topic="t")
    assert values(other, tmp_path) == ["a"]


@pytest.mark.slow
def test_a_thread_can_write_once_it_has_registered_the_format(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT 'a' AS value")
    failures: list[Exception] = []

    def write(*, registers: bool) -> None:
        try:
            if registers:
                spark_kbatch.register(spark)
            save(frame, tmp_path / "cluster", topic="t")
        except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
            failures.append(error)

    for registers in (False, True):
        thread = threading.Thread(target=write, kwargs={"registers": registers})
        thread.start()
        thread.join()

    (failed,) = failures
    assert "DATA_SOURCE_NOT_FOUND" in str(failed)
    read: list[list[str]] = []
    thread = threading.Thread(target=lambda: read.append(values(spark, tmp_path / "cluster")))
    thread.start()
    thread.join()
    assert read == [["a"]]
