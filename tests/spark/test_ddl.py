"""Types are read from a DDL as Spark reads them, apart from what is refused on purpose."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pytest
from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.types import parse_ddl
from tests.conftest import SPARK
from tests.support import draws
from tests.support.ddls import Ddls, ddl_of

pytestmark = pytest.mark.spark

# What Spark takes and we refuse, by words of the error.
OURS = re.compile(
    r"leave NOT NULL out|cannot tell apart|keys of a map are names|1 to 38 digits"
    r"|there is '(?:interval|variant|void|time|collate)'"
    r"|there is (?:\"'|'\")",  # a text that goes on in another
    re.IGNORECASE,
)
_SCALARS = {
    spark_types.BooleanType: pa.bool_(),
    spark_types.ByteType: pa.int8(),
    spark_types.ShortType: pa.int16(),
    spark_types.IntegerType: pa.int32(),
    spark_types.LongType: pa.int64(),
    spark_types.FloatType: pa.float32(),
    spark_types.DoubleType: pa.float64(),
    spark_types.StringType: pa.string(),
    spark_types.CharType: pa.string(),
    spark_types.VarcharType: pa.string(),
    spark_types.BinaryType: pa.binary(),
    spark_types.DateType: pa.date32(),
    spark_types.TimestampType: pa.timestamp("us", "UTC"),
    spark_types.TimestampNTZType: pa.timestamp("us"),
}


def in_arrow(kind: DataType) -> pa.DataType:
    if isinstance(kind, spark_types.StructType):
        return pa.struct([pa.field(one.name, in_arrow(one.dataType)) for one in kind.fields])
    if isinstance(kind, spark_types.ArrayType):
        return pa.list_(pa.field("element", in_arrow(kind.elementType)))
    if isinstance(kind, spark_types.MapType):
        key = pa.field("key", in_arrow(kind.keyType), nullable=False)
        return pa.map_(key, pa.field("value", in_arrow(kind.valueType)))
    if isinstance(kind, spark_types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _SCALARS[type(kind)]


def as_spark(text: str) -> DataType | None:
    if SPARK < (4, 3):  # which has these under older names alone
        text = re.sub(r"(?i)timestamp\s+with\s+local\s+time\s+zone\b", "timestamp_ltz", text)
        text = re.sub(r"(?i)timestamp\s+without\s+time\s+zone\b", "timestamp_ntz", text)
    if SPARK < (4, 1):  # where a quote in a text is no two quotes
        text = re.sub(r"(?<=\w)''(?=\w)", "", text)
    try:
        return DataType.fromDDL(text)
    except ParseException:
        return None


@draws.naming_first()
def test_a_ddl_is_what_it_is_for_spark(spark: SparkSession) -> None:
    for seed in draws.seeds(300):
        text, _ = Ddls(random.Random(seed)).whole()
        theirs = as_spark(text)

        assert theirs is not None, text
        assert parse_ddl(text) == in_arrow(theirs), text


@draws.naming_first()
def test_what_we_write_is_the_same_for_spark(spark: SparkSession) -> None:
    for seed in draws.seeds(100):
        kind = parse_ddl(Ddls(random.Random(seed)).whole()[0])
        theirs = as_spark(ddl_of(kind))

        assert theirs is not None, ddl_of(kind)
        assert in_arrow(theirs) == kind


@draws.naming_first()
def test_a_damaged_ddl_is_refused_where_spark_refuses_it(spark: SparkSession) -> None:
    refused, accepted = 0, 0
    for seed in draws.seeds(300):
        text = Ddls(random.Random(seed)).damaged()
        theirs = as_spark(text)
        try:
            ours = parse_ddl(text)
        except SchemaError as error:
            refused += 1
            is_ours = OURS.search(error.reason) or not text.strip()
            assert theirs is None or is_ours, (text, theirs)
            continue
        accepted += 1
        assert theirs is not None, text
        assert ours == in_arrow(theirs), text
    assert min(refused, accepted) > draws.many(300) / 8


@pytest.mark.parametrize(
    "text",
    [
        "a int not null",
        "a int, A int",
        "a int, a int",
        "map<int, int>",
        "map<varchar(3), int>",
        "decimal(0, 0)",
        "a interval",
        "a variant",
        "a void",
        "a string collate unicode",
    ],
)
def test_what_spark_takes_and_we_refuse_is_known(spark: SparkSession, text: str) -> None:
    assert as_spark(text) is not None
    with pytest.raises(SchemaError, match=OURS):
        parse_ddl(text)
