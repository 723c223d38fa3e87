"""Which columns a write takes, by name and type; Spark is only needed for its types."""

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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kbatch.config import parse_write_options
from spark_kbatch.errors import ConfigError
from spark_kbatch.spark.writer import ensure_writable

HEADERS = "headers array<struct<key:string,value:binary>>"


def pairs(key: str, value: DataType, *, null: bool = True) -> ArrayType:
    """An array of structs with two fields."""
    fields = [StructField(key, StringType(), null), StructField("value", value, null)]
    return ArrayType(StructType(fields), null)


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
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
    """Of a frame with these columns, as `name type` each."""
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
        pytest.param(
            "key binary, value binary, topic string, partition int, offset bigint, "
            f"timestamp timestamp, timestampType int, {HEADERS}",
            id="as it was read",
        ),
        pytest.param("value binary, topic string, KEY int, Partition string", id="other case"),
        pytest.param("value binary, topic string, x map<string,binary>, y void", id="others"),
        pytest.param("value binary, topic string, id int, id string", id="others twice"),
    ],
)
def test_columns_are_taken_or_ignored(columns: str) -> None:
    ensure(columns)


def test_with_the_option_topic_the_column_is_not_looked_at() -> None:
    ensure("value binary, topic int", topic="t")
    ensure("value binary", topic="t")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        pytest.param("topic string", "required attribute 'value' not found", id="no value"),
        pytest.param("Value string, topic string", "required attribute 'value' not found", id="case"),
        pytest.param("value string", "topic option required when no 'topic' attribute", id="no topic"),
        pytest.param("value string, Topic string", "topic option required", id="topic in capitals"),
        pytest.param("id int", "topic option required", id="neither, and the topic is first"),
        pytest.param("key int, value int, topic int", "topic attribute", id="topic before key"),
        pytest.param("partition string, value int, key int, topic string", "key attribute", id="key before value"),
        pytest.param("partition string, value int, topic string", "value attribute", id="value before partition"),
        pytest.param("value int, topic string", "value attribute unsupported type int. value must be a", id="value"),
        pytest.param("value void, topic string", "value attribute unsupported type void", id="null as value"),
        pytest.param("value binary, topic int", "topic must be a(n) string", id="topic"),
        pytest.param("value binary, topic binary", "topic must be a(n) string", id="topic binary"),
        pytest.param("value binary, topic string, key int", "key must be a(n) string or binary", id="key"),
        pytest.param("value binary, topic string, partition bigint", "partition must be a(n) int", id="partition"),
        pytest.param("value binary, topic string, timestamp bigint", "timestamp must be a(n) timestamp", id="time"),
        pytest.param("value binary, topic string, timestamp timestamp_ntz", "timestamp must be a(n) timestamp", id="time without zone"),
        pytest.param("value binary, topic string, headers map<string,binary>", "headers must be a(n) array<struct<key:string,value:binary>>", id="headers"),
        pytest.param("value binary, topic string, headers array<struct<k:string,value:binary>>", "headers must be", id="names in headers"),
        pytest.param("value binary, topic string, headers array<struct<key:string,value:string>>", "headers must be", id="types in headers"),
        pytest.param("value binary, value binary, topic string", "column 'value' is there 2 times", id="twice"),
    ],
)  # fmt: skip
def test_columns_are_refused(columns: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        ensure(columns)

    assert said in str(error.value)
