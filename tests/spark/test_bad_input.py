"""Bad input is refused at the earliest moment that Spark allows, with a sentence that says what to do.

Options are refused by `load()` and `save()` themselves, before a task runs or a file is created; if the
user gives a schema, Spark first calls us in the action. Mistakes that only the rows show fail the task.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession

import spark_kbatch
from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.source import KBatchDataSource
from tests.conftest import few
from tests.support import builders
from tests.support.frames import frame_of, load, save, values
from tests.support.mounts import read_only

pytestmark = pytest.mark.spark

Moment: TypeAlias = Literal["load", "action", "save", "task"]
MOMENTS: dict[Moment, tuple[type[PySparkException], str]] = {
    "load": (AnalysisException, "Failed to create Python data source instance"),
    "action": (AnalysisException, "Failed to initialize Python data source reader"),
    "save": (AnalysisException, "Failed to initialize Python data source writer"),
    "task": (PythonException, "An exception was thrown from the Python worker"),
}
_OUR_ERROR = re.compile(r"[:\n]\s*spark_kbatch\.errors\.(\w+): (.*?)(?:\n? SQLSTATE|\Z)", re.DOTALL)


@contextlib.contextmanager
def refused(moment: Moment, kind: str, *said: str) -> Iterator[None]:
    """Check that the block raises this error of ours, with all of `said` in its sentence."""
    exception, happened = MOMENTS[moment]
    with pytest.raises(exception) as caught:
        yield
    text = str(caught.value)
    assert happened in text
    # Nothing stands in front of the sentence but what Spark says itself.
    assert "Traceback" not in text
    assert 'File "' not in text
    (error,) = _OUR_ERROR.findall(text)
    assert error[0] == kind
    for part in said:
        assert part in error[1]


@pytest.fixture(scope="module")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster with a topic `flights` of two partitions, each with 5 rows; no test appends to it."""
    path = tmp_path_factory.mktemp("cluster")
    frame = spark.range(10).selectExpr("'v' AS value", "CAST(id % 2 AS int) AS partition")
    save(frame, path, topic="flights", num_partitions=2)
    return path


@pytest.fixture
def row(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT 'v' AS value")


# Reading: options

BOTH = '{"flights":{"0":%s,"1":%s}}'

READS = [
    pytest.param(
        {}, "ConfigError",
        ["'subscribe'", "'assign'", "exactly one", "none was given"], id="no-strategy",
    ),
    pytest.param(
        {"subscribe": "flights", "assign": '{"flights":[0]}'}, "ConfigError",
        ["exactly one", "'subscribe' and 'assign' were given"], id="two-strategies",
    ),
    pytest.param(
        {"subscribe": "flights,flihgts"}, "UnknownTopicOrPartitionError",
        ["'subscribe'", "'flihgts'", "its topics: flights"], id="unknown-topic",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffset": "earliest"}, "ConfigError",
        ["'startingoffset'", "nearest known one is 'startingOffsets'"], id="unknown-option",
    ),
    pytest.param(
        {"subscribe": "flights", "kafka.auto.offset.reset": "earliest"}, "ConfigError",
        ["'kafka.auto.offset.reset'", "startingOffsets"], id="forbidden-kafka-option",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": '{"flights":{"0":1'}, "ConfigError",
        ["'startingOffsets'", '{"flights":{"0":1', "'earliest'", '{"events":{"0":23,"1":-2},'],
        id="malformed-json",
    ),
    pytest.param(
        {"subscribe": "flights", "endingOffsets": BOTH % (6, 5)}, "OffsetOutOfRangeError",
        ["'endingOffsets'", "offset 6", "flights-0", "0 to 5"], id="end-past-the-end",
    ),
    pytest.param(
        {
            "subscribe": "flights",
            "startingOffsets": BOTH % (4, 0),
            "endingOffsets": BOTH % (3, -1),
        },
        "ConfigError",
        ["'startingOffsets'", "'endingOffsets'", "flights-0", "4", "3"], id="start-past-its-end",
    ),
]  # fmt: skip

# More of the same kinds, tested below `load()`: each load() that fails costs Spark a process.
MORE_READS = [
    pytest.param(
        {"subscribe": " , "}, "ConfigError",
        ["'subscribe'", "' , '", "one or more topics"], id="no-topic",
    ),
    pytest.param(
        {"assign": '{"flihgts":[0]}'}, "UnknownTopicOrPartitionError",
        ["'assign'", "'flihgts'", "its topics: flights"], id="unknown-assigned-topic",
    ),
    pytest.param(
        {"subscribe": "../flights"}, "InvalidTopicError",
        ["'../flights'", "1 to 249 characters of [a-zA-Z0-9._-]"], id="illegal-topic",
    ),
    pytest.param(
        {"assign": "flights"}, "ConfigError",
        ["'assign'", "'flights'", '{"events":[0,1]}'], id="assign-is-not-json",
    ),
    pytest.param(
        {"assign": '{"flights":0}'}, "ConfigError",
        ["'assign'", '{"flights":0}', '{"events":[0,1]}'], id="assign-without-a-list",
    ),
    pytest.param(
        {"assign": '{"flights":[-1]}'}, "ConfigError",
        ["'assign'", "[-1]", '{"events":[0,1]}'], id="assign-of-a-negative-partition",
    ),
    pytest.param(
        {"subscribe": "flights", "compression.type": "zstd"}, "ConfigError",
        ["'compression.type'", "it is an option of a write"], id="option-of-writes",
    ),
    pytest.param(
        {"subscribe": "flights", "includeHeaders": "maybe"}, "ConfigError",
        ["'includeHeaders'", "'maybe'", "true or false"], id="not-a-boolean",
    ),
    pytest.param(
        {"subscribe": "flights", "endingOffsets": "earliest"}, "ConfigError",
        ["'endingOffsets'", "'earliest'", "'latest'", "-1"], id="end-at-earliest",
    ),
    pytest.param(
        {"subscribe": "flights", "endingOffsets": BOTH % (5, -2)}, "ConfigError",
        ["'endingOffsets'", BOTH % (5, -2), "-1 is latest"], id="end-at-minus-2",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": BOTH % ('"3"', 3)}, "ConfigError",
        ["'startingOffsets'", '"3"', "offsets by topic and partition"], id="offset-is-text",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": '{"flights":[0,0]}'}, "ConfigError",
        ["'startingOffsets'", '{"flights":[0,0]}', "offsets by topic and partition"],
        id="offsets-in-a-list",
    ),
    pytest.param(
        {"assign": '{"flights":[0]}', "endingOffsets": BOTH % (1, 1)}, "ConfigError",
        ["'endingOffsets'", "flights-0, flights-1", "exactly"], id="offsets-of-other-partitions",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": BOTH % (2**63, 0)}, "ConfigError",
        ["'startingOffsets'", str(2**63), "offsets by topic and partition"], id="offset-over-64-bits",
    ),
]  # fmt: skip


# These are valid for a stream, and in `load()` a source cannot know what it is loaded for.
READS_THAT_COULD_BE_STREAMS = [
    pytest.param(
        {"subscribe": "flights", "startingOffsets": "latest"}, "ConfigError",
        ["'startingOffsets'", "'latest'", "'earliest'", "-2"], id="start-at-latest",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": BOTH % (0, -1)}, "ConfigError",
        ["'startingOffsets'", BOTH % (0, -1), "-2 is earliest"], id="start-at-minus-1",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": '{"flights":{"0":1}}'}, "ConfigError",
        ["'startingOffsets'", "flights-0", "flights-0, flights-1", "exactly"],
        id="offsets-of-some-partitions",
    ),
    pytest.param(
        {"subscribe": "flights", "startingOffsets": BOTH % (0, 6)}, "OffsetOutOfRangeError",
        ["'startingOffsets'", "offset 6", "flights-1", "0 to 5"], id="start-past-the-end",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "said"), few(READS, 2))
def test_load_refuses(
    spark: SparkSession, flights: Path, options: dict[str, str], kind: str, said: list[str]
) -> None:
    with refused("load", kind, *said):
        load(spark, flights, **options)


@pytest.mark.parametrize(("options", "kind", "said"), MORE_READS)
def test_the_schema_method_refuses_the_same_options_as_load(
    flights: Path, options: dict[str, str], kind: str, said: list[str]
) -> None:
    given = {key.lower(): value for key, value in options.items()}
    with pytest.raises(KBatchError) as caught:
        KBatchDataSource({"path": str(flights), **given}).schema()
    assert type(caught.value).__name__ == kind
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(("options", "kind", "said"), READS_THAT_COULD_BE_STREAMS)
def test_the_first_action_refuses_options_that_are_valid_only_for_a_stream(
    flights: Path, options: dict[str, str], kind: str, said: list[str]
) -> None:
    given = {key.lower(): value for key, value in options.items()}
    source = KBatchDataSource({"path": str(flights), **given})
    schema = source.schema()
    with pytest.raises(KBatchError) as caught:
        source.reader(schema).partitions()
    assert type(caught.value).__name__ == kind
    for part in said:
        assert part in str(caught.value)


# Reading: paths


def test_load_refuses_a_path_without_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.parquet").write_text("")
    for path, said in (
        (tmp_path / "absent", "there is no such folder"),
        (tmp_path / "file", "it is a file, not a folder"),
        (tmp_path / "other", "the folder holds something else (part-0.parquet)"),
    ):
        with refused("load", "ConfigError", "no kbatch cluster at", str(path), said):
            load(spark, path, subscribe="t")


def test_load_refuses_a_path_that_is_not_a_folder(spark: SparkSession) -> None:
    reader = spark.read.format("kbatch").option("subscribe", "t")
    with refused("load", "ConfigError", "'hdfs://host/topics'", "scheme 'hdfs'", "file:/"):
        reader.load("hdfs://host/topics")
    with refused("load", "ConfigError", "no path is given", "load(PATH)"):
        reader.load()
    with refused("load", "ConfigError", "'kafka.bootstrap.servers' is 'broker'", "folder"):
        reader.option("kafka.bootstrap.servers", "broker").load()
    with refused("load", "ConfigError", "load takes one path, and several are given"):
        reader.load(["/a", "/b"])


# Reading: with the user's schema, Spark does not call us before the action


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    few(
    [
        pytest.param(
            "value binary, ofset long", {}, ["'ofset'", "offset", "timestampType"], id="unknown-column"
        ),
        pytest.param(
            "value string", {}, ["'value'", "type string", "is binary"], id="other-type"
        ),
        pytest.param("offset long NOT NULL", {}, ["'offset'", "NOT NULL"], id="never-null"),
        pytest.param(
            "headers array<struct<key:string NOT NULL,value:binary>>", {}, ["'headers'", "NOT NULL"],
            id="never-null-within",
        ),
        pytest.param(
            "value binary", {"startingOffset": "earliest"}, ["nearest known one is 'startingOffsets'"],
            id="unknown-option",
        ),
    ], 1),
)  # fmt: skip
def test_the_first_action_refuses_a_schema_and_options_given_with_one(
    spark: SparkSession, flights: Path, schema: str, options: dict[str, str], said: list[str]
) -> None:
    frame = load(spark, flights, schema=schema, subscribe="flights", **options)
    with refused("action", "ConfigError", *said):
        frame.collect()


# Writing: options and columns


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    few(
    [
        pytest.param(
            {"topc": "t"}, "ConfigError", ["'topc'", "nearest known one is 'topic'"],
            id="unknown-option",
        ),
        pytest.param(
            {"topic": "t", "compression.type": "brotli"}, "ConfigError",
            ["'compression.type'", "'brotli'", "none, gzip, snappy, lz4, zstd"], id="unknown-codec",
        ),
        pytest.param(
            {"topic": "t", "batch.size": "64k"}, "ConfigError",
            ["'batch.size'", "'64k'", "a whole number from 0 to"], id="not-a-number",
        ),
        pytest.param(
            {"topic": "t", "num.partitions": "0"}, "ConfigError",
            ["'num.partitions'", "'0'", "from 1 to"], id="number-out-of-range",
        ),
        pytest.param(
            {"topic": "../x"}, "InvalidTopicError", ["'../x'", "[a-zA-Z0-9._-]"], id="topic-is-a-path"
        ),
        pytest.param(
            {"topic": ".."}, "InvalidTopicError", ["'..'", "[a-zA-Z0-9._-]"], id="topic-is-dots"
        ),
        pytest.param({"topic": " "}, "InvalidTopicError", ["empty", "1 to 249"], id="empty-topic"),
        pytest.param(
            {"topic": "x" * 250}, "InvalidTopicError", ["250 characters", "1 to 249"],
            id="long-topic",
        ),
        pytest.param(
            {"topic": "t", "kafka.value.serializer": "x"}, "ConfigError",
            ["'kafka.value.serializer'", "string or binary"], id="forbidden-kafka-option",
        ),
    ], 2),
)  # fmt: skip
def test_save_refuses_bad_options_and_creates_nothing(
    row: DataFrame, tmp_path: Path, options: dict[str, str], kind: str, said: list[str]
) -> None:
    with refused("save", kind, *said):
        row.write.format("kbatch").options(**options).mode("append").save(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("columns", "said"),
    few(
    [
        pytest.param("'k' AS key, 't' AS topic", ["'value' not found", "key, topic"], id="no-value"),
        pytest.param("'v' AS VALUE, 't' AS topic", ["'value' not found"], id="value-in-capitals"),
        pytest.param("'v' AS value", ["'topic'", "option", "column"], id="no-topic"),
        pytest.param("1 AS value", ["value", "type int", "string or binary"], id="value"),
        pytest.param("'v' AS value, 1L AS key", ["key", "type bigint", "string or binary"], id="key"),
        pytest.param("'v' AS value, 1 AS topic", ["topic", "type int", "a string"], id="topic"),
        pytest.param(
            "'v' AS value, '1' AS partition", ["partition", "type string", "an int"], id="partition"
        ),
        pytest.param(
            "'v' AS value, 1L AS timestamp", ["timestamp", "type bigint", "a timestamp"],
            id="timestamp",
        ),
        pytest.param(
            "'v' AS value, timestamp_ntz'2020-01-01' AS timestamp",
            ["timestamp", "type timestamp_ntz", "write CAST(timestamp AS TIMESTAMP_LTZ)"],
            id="timestamp-without-zone",
        ),
        pytest.param(
            "'v' AS value, map('a', 'b') AS headers",
            ["headers", "type map<string,string>", "array<struct<key:string,value:binary>>"],
            id="headers",
        ),
        pytest.param(
            "'v' AS value, array(struct('a' AS key, 'b' AS value)) AS headers",
            ["headers", "value:string", "array<struct<key:string,value:binary>>"],
            id="header-values",
        ),
    ], 2),
)  # fmt: skip
def test_save_refuses_bad_columns_and_creates_nothing(
    spark: SparkSession, tmp_path: Path, columns: str, said: list[str]
) -> None:
    frame = spark.sql(f"SELECT {columns}")
    topic = {} if "topic" in said[0] else {"topic": "t"}  # with the option the column is ignored
    with refused("save", "ConfigError", *said):
        save(frame, tmp_path / "new", **topic)
    assert not (tmp_path / "new").exists()


def test_the_error_for_a_table_names_the_alternatives(row: DataFrame) -> None:
    writer = row.write.format("kbatch").option("topic", "t").mode("append")
    with refused("save", "ConfigError", "saveAsTable, toTable", "use save(PATH)", "TEMPORARY VIEW"):
        writer.saveAsTable("refused")


def test_save_refuses_settings_that_an_existing_topic_does_not_have(
    row: DataFrame, flights: Path
) -> None:
    with refused("save", "ConfigError", "'num.partitions' is 3", "'flights' exists with 2"):
        save(row, flights, topic="flights", num_partitions=3)


def test_save_refuses_internal_topics(row: DataFrame, flights: Path) -> None:
    with refused("save", "ConfigError", "'__transaction_state'", "the cluster's own"):
        save(row, flights, topic="__transaction_state")


def test_overwrite_needs_the_option_topic(row: DataFrame, flights: Path) -> None:
    rows = row.selectExpr("value", "'flights' AS topic").write.format("kbatch")
    with refused("save", "ConfigError", "'topic'", "replaces all that the topic holds"):
        rows.mode("overwrite").save(str(flights))


def test_spark_refuses_other_save_modes_for_sources_in_python(
    row: DataFrame, flights: Path
) -> None:
    writer = row.write.format("kbatch").option("topic", "flights")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer.mode(mode).save(str(flights))


# Writing: paths


def test_save_refuses_a_path_where_no_cluster_can_be_created(
    row: DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.parquet").write_text("")
    for path, said in (
        (tmp_path / "file", "it is a file, not a folder"),
        (tmp_path / "file" / "below", "Not a directory"),
        (tmp_path / "other", "the folder holds something else (part-0.parquet)"),
    ):
        with refused("save", "ConfigError", "no kbatch cluster can be made at", str(path), said):
            save(row, path, topic="t")
    with refused("save", "ConfigError", "'hdfs://host/x'", "scheme 'hdfs'", "POSIX"):
        save(row, "hdfs://host/x", topic="t")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["part-0.parquet"]


def test_save_refuses_a_path_that_cannot_be_written(row: DataFrame, tmp_path: Path) -> None:
    new, existing = tmp_path / "new", tmp_path / "existing"
    new.mkdir()
    save(row, existing, topic="t")
    with (
        read_only(new),
        refused("save", "ConfigError", "can be made at", str(new), "must be", "writable"),
    ):
        save(row, new, topic="t")
    with (
        read_only(existing),
        refused("save", "KafkaStorageError", str(existing), "cannot be written"),
    ):
        save(row, existing, topic="t")
    save(row, existing, topic="t")
    assert values(row.sparkSession, existing) == ["v", "v"]


def test_a_task_that_does_not_see_the_drivers_folder_fails(tmp_path: Path) -> None:
    """An executor may have another folder at the same path."""
    for options in ({"topic": "t"}, {}):
        job = begin_job(parse_write_options({"path": str(tmp_path), **options}))
        (probe,) = (tmp_path / "staging-0").glob("*/driver")
        probe.unlink()
        with pytest.raises(KafkaStorageError, match=f"does not see {probe}.*not shared"):
            job.stage(iter([]))
        probe.parent.rmdir()


# Writing: rows


@pytest.mark.parametrize(
    ("columns", "options", "kind", "said"),
    few(
    [
        pytest.param(
            "CAST(IF(id = 7, NULL, 't') AS string) AS topic, 'v' AS value", {}, "ConfigError",
            ["column 'topic'", "a null", "option 'topic'"], id="null-topic",
        ),
        pytest.param(
            "IF(id = 7, '../x', 't') AS topic, 'v' AS value", {}, "InvalidTopicError",
            ["'../x'", "[a-zA-Z0-9._-]"], id="illegal-topic",
        ),
        pytest.param(
            "'v' AS value, CAST(IF(id = 7, -1, 0) AS int) AS partition", {"topic": "t"}, "ConfigError",
            ["column 'partition' holds -1", "'t'", "0 to 0"], id="negative-partition",
        ),
        pytest.param(
            "'v' AS value, CAST(IF(id = 7, 3, 2) AS int) AS partition",
            {"topic": "t", "num_partitions": 3}, "ConfigError",
            ["column 'partition' holds 3", "'t'", "0 to 2"], id="too-large-partition",
        ),
        pytest.param(
            "'v' AS value, IF(id = 7, 4294967296L, 0L) AS partition", {"topic": "t"}, "ConfigError",
            ["column 'partition' holds a number that is no partition", "4294967296"],
            id="partition-over-32-bits",
        ),
        pytest.param(
            "'v' AS value, timestamp_millis(IF(id = 7, -2, -1)) AS timestamp", {"topic": "t"},
            "InvalidTimestampError",
            ["column 'timestamp' holds -2 ms", "before 1970", "-1 ms for no time"],
            id="time-before-1970",
        ),
        pytest.param(
            "repeat('v', IF(id = 7, 1048577, 1)) AS value", {"topic": "t"}, "RecordTooLargeError",
            ["'t'", "takes 1048651 bytes", "max.message.bytes=1048588"], id="too-large-record",
        ),
        pytest.param(
            "'v' AS value, array(struct(CAST(IF(id = 7, NULL, 'a') AS string) AS key, "
            "CAST('b' AS binary) AS value)) AS headers", {"topic": "t"}, "ConfigError",
            ["column 'headers'", "key is null"], id="header-without-a-key",
        ),
        pytest.param(
            "'v' AS value, array(IF(id = 7, NULL, struct('a' AS key, CAST('b' AS binary) AS value))) AS headers",
            {"topic": "t"}, "ConfigError", ["column 'headers'", "a null in place of a header"],
            id="null-in-place-of-a-header",
        ),
    ], 2),
)  # fmt: skip
def test_bad_rows_fail_the_task_and_leave_nothing_of_the_job(
    spark: SparkSession,
    tmp_path: Path,
    columns: str,
    options: dict[str, Any],
    kind: str,
    said: list[str],
) -> None:
    frame = spark.sql(f"SELECT {columns} FROM range(0, 8, 1, 1)")
    with refused("task", kind, *said):
        save(frame, tmp_path, **options)
    assert list((tmp_path / "staging-0").iterdir()) == []
    assert spark_kbatch.open(str(tmp_path)).topics() == []


def test_a_record_that_fits_when_compressed_is_not_too_large(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT repeat('v', 3000000) AS value")
    save(frame, tmp_path, topic="t", compression_type="zstd")
    assert values(spark, tmp_path) == ["v" * 3_000_000]


# Reading: damage


@pytest.mark.parametrize(
    ("position_in_batch", "said"),
    [
        pytest.param(7, "base offset: expected 7, found 3", id="base-offset"),
        pytest.param(11, "CRC-32C", id="length", marks=pytest.mark.slow),
        pytest.param(15, "leader epoch: expected 0, found 4", id="epoch", marks=pytest.mark.slow),
        pytest.param(26, "CRC-32C", id="last-offset-delta", marks=pytest.mark.slow),
        pytest.param(200, "CRC-32C", id="records"),
    ],
)
def test_a_flipped_bit_is_reported_with_file_and_position_and_never_returned(
    spark: SparkSession, tmp_path: Path, position_in_batch: int, said: str
) -> None:
    save(frame_of(spark, builders.rows(n=40)), tmp_path, topic="t", batch_size=1000)
    log = tmp_path / "broker-0" / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    second_batch = 12 + int.from_bytes(data[8:12])
    data[second_batch + position_in_batch] ^= 0x04
    log.write_bytes(data)

    with pytest.raises(PythonException) as caught:
        load(spark, tmp_path, subscribe="t").collect()
    (error,) = _OUR_ERROR.findall(str(caught.value))
    found = re.match(r"corrupt record batch at position (\d+) of (.*?): (.*)", error[1])
    assert error[0] == "CorruptRecordError"
    assert found is not None
    assert found[2] == str(log)
    assert second_batch <= int(found[1]) <= second_batch + position_in_batch
    assert found[3].startswith((said, f"partition {said}"))
    assert re.search(
        r'offsets \d+ to \d+ of t-0 are damaged; go on with the option startingOffsets={"t": {"0": \d+}}',
        found[3],
    )

    # A read of offsets alone skips most of a batch: it gives the right offsets, or it is refused.
    offsets = load(spark, tmp_path, schema="offset long", subscribe="t")
    if position_in_batch == 200:
        assert [row.offset for row in offsets.collect()] == list(range(40))
    if position_in_batch == 26:
        with refused("task", "CorruptRecordError", str(log)):
            offsets.collect()
