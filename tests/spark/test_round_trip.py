"""Rows round trip through Spark and a topic unchanged, however they are stored."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import spark_kbatch
from spark_kbatch.model import LONG_MAX
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.source import ROW_SCHEMA
from spark_kbatch.spark.writer import IN_UTC, KBatchWriter
from tests.conftest import few
from tests.support import builders, frames
from tests.support.frames import frame_of, kafkas_partition, load, records, values
from tests.support.reference import Record
from tests.support.store import store_of

pytestmark = pytest.mark.spark

PARTITIONS = 3

KAFKA_ROW = StructType(
    [
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), True),
        StructField("topic", StringType(), True),
        StructField("partition", IntegerType(), True),
        StructField("offset", LongType(), True),
        StructField("timestamp", TimestampType(), True),
        StructField("timestampType", IntegerType(), True),
    ]
)
HEADERS = StructField(
    "headers",
    ArrayType(
        StructType(
            [StructField("key", StringType(), True), StructField("value", BinaryType(), True)]
        ),
        True,
    ),
    True,
)

ODD_ROWS = pa.RecordBatch.from_pylist(
    [
        {"key": None, "value": None, "timestamp": 0, "headers": None},
        {"key": b"tombstone", "value": None, "timestamp": -1, "headers": None},
        {"key": b"", "value": b"", "timestamp": -1, "headers": [{"key": "", "value": b""}]},
        {"key": b"\xff\x00", "value": b"\x80" * 70_000, "timestamp": 253_402_300_799_999},
        {
            "key": b"twice",
            "value": b"v",
            "timestamp": 1,
            "headers": [
                {"key": "a", "value": b"1"},
                {"key": "höhe", "value": None},
                {"key": "a", "value": b"2"},
                {"key": "a", "value": None},
            ],
        },
    ],
    schema=builders.ROWS_SCHEMA,
)


def sample() -> pa.RecordBatch:
    """Make 500 rows of every kind, each with its partition."""
    rows = pa.concat_batches(
        [
            builders.rows(n=200, nulls=0.2, headers=2),
            ODD_ROWS,
            builders.rows(n=295, nulls=0.2, value_bytes=2000, seed=1),
        ]
    )
    numbers = pa.array([(7 * row) % PARTITIONS for row in range(rows.num_rows)], pa.int32())
    return rows.append_column("partition", numbers)


def save(frame: DataFrame, path: Path, **options: Any) -> None:
    """Append a frame to a topic that takes any time, also those of the sample that are far ahead."""
    frames.save(frame, path, message_timestamp_after_max_ms=LONG_MAX, **options)


def expected_records(rows: pa.RecordBatch) -> dict[int, list[Record]]:
    """Return the expected records of each partition, in order, with offsets from 0."""
    numbers = rows["partition"].to_pylist()
    picked = {
        number: [row for row, found in enumerate(numbers) if found == number]
        for number in sorted(set(numbers))
    }
    return {number: builders.to_records(rows.take(picked[number])) for number in picked}


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster whose topic `t` holds the sample in small batches; no test appends to it."""
    path = tmp_path_factory.mktemp("written")
    save(frame_of(spark, sample()), path, topic="t", num_partitions=PARTITIONS, batch_size=3000)
    return path


@pytest.mark.parametrize(
    "options",
    few(
        [
            pytest.param({}, id="defaults"),
            pytest.param({"compression_type": "gzip"}, id="gzip"),
            pytest.param({"compression_type": "snappy"}, id="snappy"),
            pytest.param({"compression_type": "lz4"}, id="lz4"),
            pytest.param({"compression_type": "ZSTD"}, id="zstd"),
            pytest.param(
                {"batch_size": 1, "compression_type": "lz4"},
                marks=pytest.mark.slow,
                id="a-batch-per-row",
            ),
            pytest.param({"batch_size": 1500}, id="some-rows-larger-than-a-batch"),
            pytest.param({"buffer_memory": 1 << 20, "flush": False}, id="least-memory-no-flush"),
            pytest.param(
                {"adopt_min_bytes": 0, "batch_size": 5000}, id="staged-files-become-segments"
            ),
        ],
        2,
    ),
)
def test_all_columns_and_their_order_come_back_whatever_the_layout(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = sample()
    frame = frame_of(spark, rows)
    save(frame, tmp_path, topic="t", num_partitions=PARTITIONS, **options)

    assert records(spark, tmp_path) == expected_records(rows)
    found = load(spark, tmp_path, subscribe="t", includeHeaders=True)
    assert_df_equality(frame, found.select(frame.columns), ignore_row_order=True)


@pytest.mark.parametrize("include_headers", [True, False])
def test_rows_have_the_schema_of_sparks_kafka_source(
    spark: SparkSession, written: Path, include_headers: bool
) -> None:
    frame = load(spark, written, subscribe="t", includeHeaders=include_headers)
    assert frame.schema == StructType([*KAFKA_ROW, *([HEADERS] if include_headers else [])])
    assert frame.select("topic", "timestampType").distinct().collect() == [("t", 0)]


@pytest.mark.parametrize("large", [False, True])
def test_text_is_written_as_utf8_and_binary_as_it_is(
    spark: SparkSession, tmp_path: Path, large: bool
) -> None:
    texts = ["", "plain", "höhe", "日本語", "a\x00b", None]
    schema = "key string, value string, headers array<struct<key:string,value:binary>>"
    rows = [(text, text, [("é", (text or "").encode())]) for text in texts]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        save(frame, tmp_path, topic="text")
        as_binary = frame.withColumns(
            {"key": F.encode("key", "utf-8"), "value": F.encode("value", "utf-8")}
        )
        save(as_binary, tmp_path, topic="binary")
        for topic in ("text", "binary"):
            (found,) = records(spark, tmp_path, topic).values()
            assert [r[2:] for r in found] == [
                (text, text, (("é", text or b""),))
                for text in (None if text is None else text.encode() for text in texts)
            ]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_a_null_and_an_absent_timestamp_take_the_time_of_writing(
    spark: SparkSession, tmp_path: Path
) -> None:
    null = spark.sql("SELECT 'null' AS value, CAST(NULL AS timestamp) AS timestamp")
    absent = spark.sql("SELECT 'absent' AS value")
    before = time.time_ns() // 1_000_000
    save(null, tmp_path, topic="t")
    save(absent, tmp_path, topic="t")
    after = time.time_ns() // 1_000_000
    (found,) = records(spark, tmp_path).values()
    assert [r.value for r in found] == [b"null", b"absent"]
    assert before <= found[0].timestamp <= found[1].timestamp <= after


def test_no_headers_and_an_empty_list_of_headers_both_come_back_as_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    headers = "array<struct<key:string,value:binary>>"
    save(
        spark.sql(
            f"SELECT 'a' AS value, CAST(array() AS {headers}) AS headers UNION ALL SELECT 'b', NULL"
        ),
        tmp_path,
        topic="t",
    )
    found = load(spark, tmp_path, subscribe="t", includeHeaders=True)
    assert [row.headers for row in found.collect()] == [None, None]


def test_timestamps_are_the_same_instants_in_every_session_time_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    instants = [0, 1, 1_700_000_000_123, 1_711_846_799_999, 1_711_846_800_000]
    try:
        for zone in ("Asia/Tokyo", "Europe/Berlin", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            frame = spark.createDataFrame([(i,) for i in instants], "ms long").coalesce(1)
            frame = frame.select(
                F.lit(zone).alias("value"), F.timestamp_millis("ms").alias("timestamp")
            )
            save(frame, tmp_path, topic="t")
        for zone in ("Asia/Tokyo", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            (found,) = records(spark, tmp_path).values()
            assert [r.timestamp for r in found] == 3 * instants
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_timestamps_are_floored_to_milliseconds(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT '' AS value, timestamp_micros(1999) AS timestamp UNION ALL SELECT '', timestamp_micros(-1)"
    )
    save(frame, tmp_path, topic="t")
    (found,) = records(spark, tmp_path).values()
    assert [r.timestamp for r in found] == [1, -1]


# Topic and partition


def test_topic_option_beats_the_topic_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'v' AS value, 'column' AS topic")
    save(frame, tmp_path, topic="option")
    assert values(spark, tmp_path, "option") == ["v"]
    assert [topic.name for topic in spark_kbatch.open(str(tmp_path)).topics()] == ["option"]


def test_one_write_fills_the_topics_of_its_topic_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(300).selectExpr(
        "concat('t', id % 3) AS topic", "CAST(id AS string) AS value"
    )
    save(frame, tmp_path, num_partitions=2)
    for topic in range(3):
        assert values(spark, tmp_path, f"t{topic}") == sorted(map(str, range(topic, 300, 3)))
    everything = load(spark, tmp_path, subscribe="t0, t1,t2")
    assert_df_equality(
        frame, everything.selectExpr("topic", "CAST(value AS string) AS value"),
        ignore_row_order=True, ignore_nullable=True,
    )  # fmt: skip


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_keys_go_to_the_partitions_that_kafkas_partitioner_chooses(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    keys = [bytes([n]) * (n % 9) for n in range(1, 250)]
    keys += [b"", "höhe".encode(), b"k" * 1000]
    frame = spark.createDataFrame(
        [(bytearray(key), b"v") for key in keys], "key binary, value binary"
    )
    save(frame, tmp_path, topic="t", num_partitions=partitions)
    found = {r.key: number for number, held in records(spark, tmp_path).items() for r in held}
    assert found == {key: kafkas_partition(key, partitions) for key in keys}


def test_partition_column_beats_the_key_and_its_nulls_leave_the_choice_to_the_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(100).selectExpr(
        "CAST(id AS string) AS key",
        "CAST(id AS string) AS value",
        "CAST(IF(id % 2 = 0, (id / 2) % 5, NULL) AS int) AS partition",
    )
    save(frame, tmp_path, topic="t", num_partitions=5)
    found = {int(r.key): number for number, held in records(spark, tmp_path).items() for r in held}
    assert found == {
        n: kafkas_partition(str(n).encode(), 5) if n % 2 else n // 2 % 5 for n in range(100)
    }


def test_rows_without_a_key_are_spread_over_all_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(0, 8000, 1, 2).selectExpr("CAST(id AS string) AS value")
    save(frame, tmp_path, topic="t", num_partitions=4, batch_size=1000)
    sizes = {number: len(held) for number, held in records(spark, tmp_path).items()}
    assert sum(sizes.values()) == 8000
    assert len(sizes) == 4
    assert min(sizes.values()) > 8000 / 4 / 3


# Numbers of rows and tasks


@pytest.mark.parametrize("tasks", [1, 0], ids=["empty-frame", "frame-without-partitions"])
def test_writing_no_rows_creates_the_topic_and_nothing_else(
    spark: SparkSession, tmp_path: Path, tasks: int
) -> None:
    frame = spark.createDataFrame(spark.sparkContext.emptyRDD(), "key binary, value binary")
    assert frame.rdd.getNumPartitions() == 0
    save(frame.repartition(2) if tasks else frame, tmp_path, topic="t", num_partitions=2)
    found = load(spark, tmp_path, subscribe="t")
    assert found.collect() == []
    assert found.count() == 0
    assert found.schema == KAFKA_ROW
    assert store_of(spark_kbatch.open(str(tmp_path))).metadata.topics.topic("t").partitions == 2
    assert list((tmp_path / "staging-0").iterdir()) == []


def test_rows_of_many_small_tasks_are_stored_in_the_order_of_the_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(0, 1000, 1, numPartitions=50).selectExpr(
        "CAST(id AS string) AS value", "CAST(id % 3 AS int) AS partition"
    )
    save(frame, tmp_path, topic="t", num_partitions=3)
    for number, held in records(spark, tmp_path).items():
        assert [int(r.value) for r in held] == list(range(number, 1000, 3))
        assert [r.offset for r in held] == list(range(len(held)))
    assert list((tmp_path / "staging-0").iterdir()) == []


# Reads


@pytest.mark.parametrize(
    "schema",
    few(
        [
            pytest.param("offset long", id="offsets-alone"),
            pytest.param("value binary, offset bigint", id="two"),
            pytest.param("timestampType int, timestamp timestamp", id="times"),
            pytest.param("topic string, partition int", id="none-of-the-record"),
            pytest.param(
                "headers array<struct<key:string,value:binary>>, timestampType int, timestamp timestamp, "
                "offset long, partition int, topic string, value binary, key binary",
                id="all-backwards",
            ),
        ],
        2,
    ),
)
def test_a_schema_with_fewer_columns_in_any_order_reads_only_those(
    spark: SparkSession, written: Path, schema: StructType | str
) -> None:
    whole = load(spark, written, subscribe="t", includeHeaders=True)
    found = load(spark, written, schema=schema, subscribe="t")
    assert_df_equality(
        whole.select(found.columns), found, ignore_row_order=True, ignore_nullable=True
    )
    assert found.count() == 500


def test_adjacent_offset_ranges_cover_each_row_once(spark: SparkSession, written: Path) -> None:
    whole = records(spark, written)
    cuts = [
        [-2, -2, -2],
        [0, 1, 50],
        [83, 1, 51],
        [100, 120, 52],
        [len(whole[p]) for p in range(3)],
    ]
    cuts.append([-1, -1, -1])
    pieces: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    for start, end in itertools.pairwise(cuts):
        bounds = {
            "startingOffsets": json.dumps({"t": dict(zip("012", start, strict=True))}),
            "endingOffsets": json.dumps({"t": dict(zip("012", end, strict=True))}),
        }
        if start[0] == -2:
            bounds["startingOffsets"] = "Earliest"
        if end[0] == -1:
            bounds["endingOffsets"] = " latest "
        for number, held in records(spark, written, **bounds).items():
            pieces[number] += held
    assert pieces == whole


def test_assign_reads_the_partitions_it_names_that_exist(
    spark: SparkSession, written: Path
) -> None:
    whole = load(spark, written, subscribe="t")
    found = load(spark, written, assign='{"t":[2,0,99]}')
    assert_df_equality(whole.where("partition <> 1"), found, ignore_row_order=True)
    assert load(spark, written, assign='{"t":[]}').count() == 0


def test_a_reused_frame_sees_later_appends_up_to_bounds_that_are_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    def append(text: str) -> None:
        save(spark.sql(f"SELECT '{text}' AS value"), tmp_path, topic="t")

    def found(frame: DataFrame) -> list[str]:
        return [bytes(row.value).decode() for row in frame.collect()]

    append("a")
    late = load(spark, tmp_path, subscribe="t")
    fixed_end = load(spark, tmp_path, subscribe="t", endingOffsets='{"t":{"0":1}}')
    fixed_start = load(spark, tmp_path, subscribe="t", startingOffsets='{"t":{"0":1}}')
    assert (found(late), found(fixed_end), found(fixed_start)) == (["a"], ["a"], [])
    append("b")
    assert (found(late), found(fixed_end), found(fixed_start)) == (["a", "b"], ["a"], ["b"])
    assert late.count() == 2
    append("c")
    assert sorted(found(late.union(late))) == ["a", "a", "b", "b", "c", "c"]
    assert late.alias("x").join(late.alias("y"), F.expr("x.offset = y.offset - 1")).count() == 2


def test_all_tasks_of_an_action_read_up_to_the_same_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The last task starts after more rows were appended, while the first two are still running."""
    path = tmp_path / "cluster"
    frame = spark.range(3).selectExpr("'old' AS value", "CAST(id AS int) AS partition")
    save(frame, path, topic="t", num_partitions=3)
    waiting, go_on = str(tmp_path / "waiting"), str(tmp_path / "go_on")
    Path(waiting).mkdir()

    @F.udf("string")
    def hold(value, partition):  # type: ignore[no-untyped-def]  # Spark would take hints for Arrow's
        Path(waiting, str(partition)).touch()
        while not Path(go_on).exists():
            time.sleep(0.01)
        return bytes(value).decode()

    late = load(spark, path, subscribe="t")
    found: list[tuple[str, int]] = []
    action = threading.Thread(
        target=lambda: found.extend(late.select(hold("value", "partition"), "partition").collect())
    )
    action.start()
    try:
        deadline = time.monotonic() + 60
        while len(list(Path(waiting).iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        append_without_spark(path, partitions=3)
    finally:
        Path(go_on).touch()
        action.join()
    assert sorted(found) == [("old", 0), ("old", 1), ("old", 2)]
    assert late.count() == 6


def append_without_spark(path: Path, *, partitions: int) -> None:
    """Append one row to each partition while both of Spark's tasks are busy."""
    writer = KBatchWriter(begin_job(parse_write_options({"path": str(path), "topic": "t"})))
    rows = pa.RecordBatch.from_pydict(
        {"value": ["new"] * partitions, "partition": pa.array(range(partitions), pa.int32())}
    )
    writer.commit([writer.write(iter([rows]))])


def test_a_cluster_that_cannot_be_written_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = sample()
    save(frame_of(spark, rows), tmp_path, topic="t", num_partitions=PARTITIONS)
    for name in ("snapshots", "staging-0", "locks"):
        (tmp_path / name).rename(tmp_path / uuid.uuid4().hex)
        (tmp_path / name).write_text(
            "A file in place of the folder, so that nothing can be written."
        )
    assert records(spark, tmp_path) == expected_records(rows)


def test_a_frame_that_was_read_can_be_written_back(
    spark: SparkSession, tmp_path: Path, written: Path
) -> None:
    """Its columns offset and timestampType are ignored; partition and timestamp are used."""
    read = load(spark, written, subscribe="t", includeHeaders=True)
    save(read, tmp_path, num_partitions=PARTITIONS)
    assert records(spark, tmp_path) == records(spark, written)


# Paths


def test_a_path_may_be_relative_or_a_uri_or_replace_kafka_bootstrap_servers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a b%20ü"
    relative = Path(*[".."] * (len(Path.cwd().parts) - 1), *path.parts[1:])
    spelled = [str(path), str(relative), f"file:{tmp_path}/a%20b%2520%C3%BC", path.as_uri()]
    for number, text in enumerate(spelled):
        save(spark.sql(f"SELECT '{number}' AS value"), text, topic="t")
    for text in (str(path), path.as_uri()):
        servers = {"kafka.bootstrap.servers": text, "kafka.security.protocol": "SSL"}
        frame = spark.sql("SELECT 'by servers' AS value")
        frame.write.format("kbatch").options(topic="t", **servers).mode("append").save()
        spark.read.format("kbatch").options(subscribe="t", **servers).load().count()
    expected = ["0", "1", "2", "3", "by servers", "by servers"]
    for text in spelled:
        assert values(spark, text) == expected
    servers = {"kafka.bootstrap.servers": str(path)}
    assert spark.read.format("kbatch").options(subscribe="t", **servers).load().count() == 6


def test_sql_reads_and_writes_through_a_temporary_view(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT 'a' AS value"), tmp_path, topic="t")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW topic_t USING kbatch OPTIONS (path '{tmp_path}', subscribe 't')"
    )
    try:
        assert spark.sql("SELECT CAST(value AS string) FROM topic_t").collect() == [("a",)]
    finally:
        spark.catalog.dropTempView("topic_t")


def test_rows_and_offsets_equal_those_of_the_plain_python_reader(
    spark: SparkSession, written: Path
) -> None:
    with spark_kbatch.open(str(written)) as cluster:
        found = cluster.read("t").read_all()
    assert found.schema == to_arrow_schema(ROW_SCHEMA, **IN_UTC)
    assert found.column("partition").to_pylist() == sorted(found.column("partition").to_pylist())
    times_ms = found.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    assert [
        (r["partition"], r["offset"], time_ms, r["value"])
        for r, time_ms in zip(found.to_pylist(), times_ms, strict=True)
    ] == [
        (number, r.offset, r.timestamp, r.value)
        for number, held in expected_records(sample()).items()
        for r in held
    ]
