"""Spark's own Avro, from its jar, as the judge of types and values; docs/values.md names each difference."""

from __future__ import annotations

import json
import random
import re
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.types import from_arrow_type

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.layout import arrow_type
from tests.conftest import REPOSITORY
from tests.support import avro
from tests.support.avro import a_record, parsed

pytestmark = pytest.mark.interop

VALUES = 20  # of each schema
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}
INNER = a_record(("a", "int"), ("b", ["null", "string"]), name="Inner")


def logical(base: Any, name: str, **more: Any) -> Any:
    return {**(base if isinstance(base, dict) else {"type": base}), "logicalType": name, **more}


def an_array(items: Any) -> Any:
    return {"type": "array", "items": items}


def a_map(values: Any) -> Any:
    return {"type": "map", "values": values}


SCHEMAS: dict[str, Any] = {
    **{name: name for name in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")},
    "enum": ENUM,
    "fixed": FIXED,
    "decimal in bytes": logical("bytes", "decimal", precision=9, scale=2),
    "decimal of 38 digits": logical("bytes", "decimal", precision=38, scale=38),
    "decimal without a scale": logical("bytes", "decimal", precision=18),
    "decimal in fixed": logical({"type": "fixed", "name": "D", "size": 16}, "decimal", precision=20, scale=5),
    "date": logical("int", "date"),
    "timestamp-millis": logical("long", "timestamp-millis"),
    "timestamp-micros": logical("long", "timestamp-micros"),
    "timestamp-nanos": logical("long", "timestamp-nanos"),
    "local-timestamp-millis": logical("long", "local-timestamp-millis"),
    "local-timestamp-micros": logical("long", "local-timestamp-micros"),
    "local-timestamp-nanos": logical("long", "local-timestamp-nanos"),
    "time-millis": logical("int", "time-millis"),
    "time-micros": logical("long", "time-micros"),
    "uuid": logical("string", "uuid"),
    "duration": logical({"type": "fixed", "name": "Duration", "size": 12}, "duration"),
    "unknown logical type": logical("long", "heartbeats"),
    "array": an_array("long"),
    "array of optional strings": an_array(["null", "string"]),
    "array of records": an_array(INNER),
    "array of arrays": an_array(an_array("int")),
    "map": a_map("long"),
    "map of optional decimals": a_map(["null", logical("bytes", "decimal", precision=9, scale=2)]),
    "map of arrays": a_map(an_array("string")),
    "record": a_record(("a", "long"), ("b", INNER), ("c", ["null", "Inner"])),
    "record without fields": a_record(("a", a_record(name="Empty"))),
    "record in a namespace": a_record(("a", ENUM), ("b", "other.space.E"), namespace="other.space"),
    "optional": ["null", "long"],
    "optional, null last": ["long", "null"],
    "optional record": a_record(("a", ["null", INNER])),
    "optional array and map": a_record(("a", ["null", an_array("int")]), ("b", ["null", a_map(["int", "null"])])),
    "union of one": ["string"],
    "union of null": ["null"],
    "int or long": ["int", "long"],
    "int, long or null": ["null", "int", "long"],
    "float or double": ["float", "double"],
    "int or float": ["int", "float"],
    "int, long or string": ["int", "long", "string"],
    "string or long": ["null", "string", "long"],
    "string, record or enum": ["string", "null", INNER, ENUM],
    "array or map": ["null", an_array("int"), a_map("int"), "bytes"],
}  # fmt: skip
# What is written, and what it is read as.
EVOLVED: dict[str, tuple[Any, Any]] = {
    "field with a default": (
        a_record(("a", "int")),
        a_record(("a", "int"), {"name": "b", "type": "string", "default": "x"}, {"name": "c", "type": ["null", "int"], "default": None}),
    ),
    "default of a record and an array": (
        a_record(("a", "int")),
        a_record({"name": "b", "type": INNER, "default": {"a": 3, "b": None}}, {"name": "c", "type": an_array("int"), "default": [1, 2]}),
    ),
    "promoted": (
        a_record(("a", "int"), ("b", "int"), ("c", "long"), ("d", "float"), ("e", "string"), ("f", "bytes")),
        a_record(("a", "long"), ("b", "double"), ("c", "float"), ("d", "double"), ("e", "bytes"), ("f", "string")),
    ),
    "renamed with aliases": (
        a_record(("a", "int"), ("b", INNER)),
        a_record({"name": "x", "type": "int", "aliases": ["a"]}, ("b", INNER), name="New", aliases=["R"]),
    ),
    "fields in another order": (
        a_record(("a", "int"), ("b", "string"), ("c", an_array("int"))),
        a_record(("c", an_array("int")), ("a", "int")),
    ),
    "symbols with a default": (
        a_record(("a", ENUM)),
        a_record(("a", {**ENUM, "symbols": ["A", "Z"], "default": "Z"})),
    ),
    "now optional": (a_record(("a", "int"), ("b", INNER)), a_record(("a", ["null", "long"]), ("b", ["null", INNER]))),
    "branches added": (a_record(("a", ["int", "string"])), a_record(("a", ["null", "string", "long"]))),
}  # fmt: skip

# Types that differ: ours, and Spark's.
OTHER_TYPES = {
    "timestamp-nanos": ("bigint", "timestamp_ltz(9)"),
    "local-timestamp-nanos": ("bigint", "timestamp_ntz(9)"),
    "time-micros": ("bigint", "time(6)"),
    "union of null": ("void", "struct<>"),
}


class Case(NamedTuple):
    writer: Any
    reader: Any
    values: list[bytes]


def cases() -> dict[str, Case]:
    """Each schema with random values, as a record's field; bytes that are to be read as strings are UTF-8."""
    rng = random.Random(11)
    pairs = {name: (a_record(("v", one), name="W"),) * 2 for name, one in SCHEMAS.items()} | EVOLVED
    found = {}
    for name, (writer, reader) in pairs.items():
        graph = parsed(writer)
        rows = [avro.a_value(rng, graph) for _ in range(VALUES)]
        if name == "promoted":
            rows = [{**row, "f": b"text"} for row in rows]
        found[name] = Case(writer, reader, [avro.encode(graph, row) for row in rows])
    return found


CASES = cases()


class Theirs(NamedTuple):
    """What Spark makes of a case."""

    type: str  # all null
    values: pa.ChunkedArray | None  # None if PySpark does not know the type


@pytest.fixture(scope="module")
def theirs(spark: SparkSession) -> dict[str, Theirs]:
    names = [*CASES]
    data = pa.table({f"c{n}": pa.array(CASES[name].values, pa.binary()) for n, name in enumerate(names)})  # fmt: skip
    frame = spark.createDataFrame(data).coalesce(1)
    types, columns = {}, {}
    for number, name in enumerate(names):
        case = CASES[name]
        options = {"mode": "FAILFAST", "avroSchema": json.dumps(case.reader)}
        column = from_avro(f"c{number}", json.dumps(case.writer), options).alias(name)
        # In Java: PySpark does not know all types.
        types[name] = frame.select(column)._jdf.schema().apply(0).dataType().catalogString()
        if name not in OTHER_TYPES:
            # To a type that allows nulls everywhere: PyArrow finds faults with the others.
            columns[name] = column.cast(types[name])
    table = frame.select(*columns.values()).toArrow()
    values = dict(zip(columns, table.columns, strict=True))
    return {name: Theirs(kind, values.get(name)) for name, kind in types.items()}


def test_there_are_schemas_enough() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_types_and_values_are_those_of_spark(theirs: dict[str, Theirs], name: str) -> None:
    case, found = CASES[name], theirs[name]
    kind = from_arrow_type(arrow_type(parsed(case.reader)), prefer_timestamp_ntz=True)
    if name in OTHER_TYPES:
        of_field = tuple(f"struct<v:{one}>" for one in OTHER_TYPES[name])
        assert (kind.simpleString(), found.type) == of_field
        return
    assert kind.simpleString() == found.type
    assert found.values is not None
    assert by_key(ours_as(case).to_pylist()) == by_key(found.values.to_pylist())


def by_key(value: Any) -> Any:
    """A value with its maps as dictionaries: in Spark they have no order."""
    if isinstance(value, dict):
        return {key: by_key(one) for key, one in value.items()}
    if isinstance(value, list) and all(isinstance(one, tuple) for one in value):
        return {key: by_key(one) for key, one in value}
    return [by_key(one) for one in value] if isinstance(value, list) else value


def ours_as(case: Case) -> pa.Array:
    """Our decoding of a case, resolved to its reader."""
    writer, reader = parsed(case.writer), parsed(case.reader)
    rows = [avro.framed(1, one) for one in case.values]
    found = decode(pa.array(rows, pa.binary()), reader, {1: writer})
    assert found.errors == ()
    return found.values


# What differs beyond types: what each makes of bytes that are no value of the schema, and of some schemas.

ORDER = a_record(("id", "long"), ("city", ["null", "string"]))
GOOD = avro.encode(parsed(ORDER), {"id": 5, "city": (1, "Rome")})


@pytest.mark.parametrize(
    ("value", "spark_reads", "said"),
    [
        pytest.param(GOOD, (5, "Rome"), "", id="a value"),
        pytest.param(GOOD + b"\0", (5, "Rome"), "bytes are left over", id="bytes left over"),
        pytest.param(GOOD[:-2], (None, None), "ends in the middle", id="too short"),
        pytest.param(GOOD[:-1] + b"\xff", (5, "Rom\ufffd"), "not UTF-8", id="not UTF-8"),
        pytest.param(avro.framed(7, GOOD), (0, None), "bytes are left over", id="framed"),
    ],
)
def test_bytes_that_are_no_value_are_errors_where_spark_reads_something(
    spark: SparkSession, value: bytes, spark_reads: tuple[Any, Any], said: str
) -> None:
    (row,) = read_by_spark(spark, value, ORDER, mode="PERMISSIVE")
    assert tuple(row.value) == spark_reads

    found = decode(pa.array([value]), parsed(ORDER), framing="none")
    assert [said in error.reason for error in found.errors] == [True] * bool(said)


def read_by_spark(spark: SparkSession, value: bytes, schema: Any, mode: str) -> list[Any]:
    frame = spark.createDataFrame([(bytearray(value),)], "value binary")
    column = from_avro("value", json.dumps(schema), {"mode": mode})
    return frame.select(column.alias("value")).collect()


def test_a_value_whose_schema_is_a_union_is_read_which_spark_fails_to(spark: SparkSession) -> None:
    optional, either = ["null", "long"], ["null", "string", "long"]
    assert read_by_spark(spark, b"\0", optional, "FAILFAST")[0].value == 0  # in place of null
    assert decode(pa.array([b"\0"]), parsed(optional), framing="none").values.to_pylist() == [None]

    with pytest.raises(Py4JJavaError, match="Malformed records"):
        read_by_spark(spark, b"\4\6", either, "FAILFAST")
    found = decode(pa.array([b"\4\6"]), parsed(either), framing="none")
    assert found.values.to_pylist() == [{"member0": None, "member1": 3}]


def test_fields_that_differ_in_case_alone_are_refused_by_name_and_fail_in_spark(
    spark: SparkSession,
) -> None:
    schema = a_record(("id", "int"), ("ID", "int"))
    with pytest.raises(Py4JJavaError, match="Malformed records"):
        read_by_spark(spark, b"\2\4", schema, "FAILFAST")
    with pytest.raises(SchemaError, match="cannot tell apart"):
        arrow_type(parsed(schema))


def test_the_page_names_what_differs() -> None:
    page = (REPOSITORY / "docs/values.md").read_text(encoding="utf-8")
    section = page.partition("## What differs from Spark's own Avro\n")[2].partition("\n## ")[0]

    rows = re.findall(r"^\| `?([^`|]+)`? \| `([^`]+)` \| `([^`]+)` \|$", section, re.MULTILINE)
    assert {name: (ours, theirs) for name, ours, theirs in rows} == OTHER_TYPES
