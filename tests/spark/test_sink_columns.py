"""The columns that a write accepts, by name and type; Spark is needed only for its types."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.writer import ensure_writable

HEADERS = "headers array<struct<key:string,value:binary>>"


def pairs(key: str, value: DataType, *, null: bool = True) -> ArrayType:
    """Make the type of an array of structs with two fields."""
    fields = [StructField(key, StringType(), null), StructField("value", value, null)]
    return ArrayType(StructType(fields), null)


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "smallint": ShortType(),
    "struct<a:int>": StructType([StructField("a", IntegerType())]),
    "void": NullType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "array<struct<key:string,value:binary>>": pairs("key", BinaryType()),
    "array<struct<key:string,value:string>>": pairs("key", StringType()),
    "array<struct<k:string,value:binary>>": pairs("k", BinaryType()),
    "pairs that are never null": pairs("key", BinaryType(), null=False),
}


def ensure(columns: str, **options: str) -> None:
    """Check a frame with these columns, each as `name type`."""
    named = [column.split(" ", 1) for column in columns.split(", ")]
    schema = StructType([StructField(name, TYPES[of]) for name, of in named])
    ensure_writable(schema, parse_write_options({"path": "/data", **options}))


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param("value binary, topic string", id="least"),
        pytest.param("value string, key string, topic string", id="text"),
        pytest.param(f"key binary, value binary, {HEADERS}, topic string, partition int", id="all"),
        pytest.param(
            "value binary, topic string, headers pairs that are never null", id="no nulls"
        ),
        pytest.param("value binary, topic string, timestamp timestamp", id="time"),
        pytest.param("value binary, topic string, partition bigint", id="long partition"),
        pytest.param("value binary, topic string, partition smallint", id="short partition"),
        pytest.param(
            "key binary, value binary, topic string, partition int, offset bigint, "
            f"timestamp timestamp, timestampType int, {HEADERS}",
            id="as read",
        ),
        pytest.param("value binary, topic string, KEY int, Partition string", id="other case"),
        pytest.param("value binary, topic string, x map<string,binary>, y void", id="others"),
        pytest.param("value binary, topic string, id int, id string", id="others twice"),
    ],
)
def test_columns_are_written_or_ignored(columns: str) -> None:
    ensure(columns)


def test_with_the_option_topic_the_column_is_ignored() -> None:
    ensure("value binary, topic int", topic="t")
    ensure("value binary", topic="t")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        pytest.param("topic string", "required attribute 'value' not found", id="no value"),
        pytest.param(
            "Key string, Value string, topic string",
            "required attribute 'value' not found; the columns are: Key, Value, topic; did you mean "
            "'Value'? Write Value AS value",
            id="case",
        ),
        pytest.param(
            "value string, Topic string",
            "give each row one in a column 'topic'; did you mean 'Topic'? Write Topic AS topic",
            id="topic in capitals",
        ),
        pytest.param("value string", "topic option required when no 'topic' attribute", id="no topic"),
        pytest.param("id int", "topic option required", id="neither, and the topic is first"),
        pytest.param("key int, value int, topic int", "topic attribute", id="topic before key"),
        pytest.param("partition string, value int, key int, topic string", "key attribute", id="key before value"),
        pytest.param("partition string, value int, topic string", "value attribute", id="value before partition"),
        pytest.param("value int, topic string", "value attribute unsupported type int. value must be a", id="value"),
        pytest.param("value void, topic string", "value attribute unsupported type void", id="null as value"),
        pytest.param("value binary, topic int", "topic must be a string", id="topic"),
        pytest.param("value binary, topic binary", "topic must be a string", id="topic binary"),
        pytest.param("value binary, topic string, key int", "key must be a string or binary", id="key"),
        pytest.param("value bigint, topic string", "a string or binary: write CAST(value AS STRING)", id="value as number"),
        pytest.param("value struct<a:int>, topic string", "give the option value.format=json", id="value as struct"),
        pytest.param("value binary, topic string, key bigint", "write CAST(key AS STRING), or leave the column out", id="key as number"),
        pytest.param("value binary, topic bigint", "write CAST(topic AS STRING), or name the topic in the option 'topic'", id="topic as number"),
        pytest.param("value binary, topic string, partition string", "partition must be an int or bigint: write CAST(partition AS INT)", id="partition"),
        pytest.param("value binary, topic string, timestamp bigint", "timestamp must be a timestamp: write timestamp_millis(timestamp)", id="time"),
        pytest.param("value binary, topic string, timestamp timestamp_ntz", "timestamp must be a timestamp: write CAST(timestamp AS TIMESTAMP_LTZ), which uses the session's time zone", id="time without zone"),
        pytest.param("value binary, topic string, timestamp string", "write CAST(timestamp AS TIMESTAMP_LTZ), or leave", id="time as text"),
        pytest.param("value binary, topic string, headers map<string,binary>", "headers must be an array<struct<key:string,value:binary>>", id="headers"),
        pytest.param("value binary, topic string, headers array<struct<k:string,value:binary>>", "headers must be", id="names in headers"),
        pytest.param("value binary, topic string, headers array<struct<key:string,value:string>>", "headers must be", id="types in headers"),
        pytest.param("value binary, value binary, topic string", "column 'value' occurs 2 times", id="twice"),
    ],
)  # fmt: skip
def test_missing_columns_and_wrong_types_are_refused(columns: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        ensure(columns)

    assert said in str(error.value)
    if "value attribute" in str(error.value):
        assert "leave" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "warned"),
    [
        pytest.param("value binary, partiton int", {"partiton": "partition"}, id="misspelt"),
        pytest.param("value binary, Key binary", {"Key": "key"}, id="other case"),
        pytest.param("value binary, header int, time int", {"header": "headers", "time": "timestamp"}, id="two"),
        pytest.param("value binary, partition int, partiton int", {}, id="beside the right one"),
        pytest.param("value binary, offset bigint, timestampType int", {}, id="as read"),
        pytest.param("value binary, id bigint, carrier string", {}, id="others"),
    ],
)  # fmt: skip
def test_an_ignored_column_with_a_name_close_to_a_known_one_is_warned_about(
    caplog: pytest.LogCaptureFixture, columns: str, warned: dict[str, str]
) -> None:
    ensure(columns, topic="t")
    assert [record.getMessage() for record in caplog.records] == [
        f"column {name!r} is ignored; did you mean {meant!r}? The columns of a write are: topic, key, "
        "value, headers, partition, timestamp"
        for name, meant in warned.items()
    ]
