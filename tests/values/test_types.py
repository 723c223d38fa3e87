"""Each Avro type has one Arrow type, as the table in `layout` says."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import layout
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.layout import arrow_type
from tests.support.avro import a_record, parsed

_FIXED = {"type": "fixed", "name": "F", "size": 16}
_ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
_INSTANT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def logical(kind: str, name: str, **more: int) -> Any:
    return {"type": kind, "logicalType": name, **more}


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


# The left column of the table, with schemas that it stands for.
TABLE = {
    "null": [("null", pa.null())],
    "boolean": [("boolean", pa.bool_())],
    "int; time-millis": [("int", pa.int32()), (logical("int", "time-millis"), pa.int32())],
    "long; time-micros; (local-)timestamp-nanos": [
        ("long", pa.int64()),
        (logical("long", "time-micros"), pa.int64()),
        (logical("long", "timestamp-nanos"), pa.int64()),
        (logical("long", "local-timestamp-nanos"), pa.int64()),
    ],
    "float": [("float", pa.float32())],
    "double": [("double", pa.float64())],
    "date": [(logical("int", "date"), pa.date32())],
    "timestamp-millis, timestamp-micros": [
        (logical("long", "timestamp-millis"), _INSTANT),
        (logical("long", "timestamp-micros"), _INSTANT),
    ],
    "local-timestamp-millis, local-timestamp-micros": [
        (logical("long", "local-timestamp-millis"), _LOCAL),
        (logical("long", "local-timestamp-micros"), _LOCAL),
    ],
    "string; uuid; enum": [
        ("string", pa.string()),
        (logical("string", "uuid"), pa.string()),
        (_ENUM, pa.string()),
    ],
    "bytes; fixed, with duration or uuid too": [
        ("bytes", pa.binary()),
        (_FIXED, pa.binary()),
        ({**_FIXED, "size": 12, "logicalType": "duration"}, pa.binary()),
        ({**_FIXED, "logicalType": "uuid"}, pa.binary()),
    ],
    "decimal, of 1 to 38 digits": [
        (logical("bytes", "decimal", precision=38, scale=9), pa.decimal128(38, 9)),
        ({**_FIXED, "logicalType": "decimal", "precision": 1}, pa.decimal128(1, 0)),
    ],
    "record": [
        (a_record(("a", "int"), ("b", "string")), struct(a=pa.int32(), b=pa.string())),
        (a_record(), pa.struct([])),
    ],
    "array": [({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32())))],
    "map": [({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.field("value", pa.int32())))],
    "union of null and one type": [
        (["null", "int"], pa.int32()),
        (["string", "null"], pa.string()),
        (["int"], pa.int32()),
        (["null"], pa.null()),
    ],
    "union of int and long": [
        (["int", "long"], pa.int64()),
        (["long", "null", "int"], pa.int64()),
    ],
    "union of float and double": [(["double", "float"], pa.float64())],
    "other union": [
        (["int", "string"], struct(member0=pa.int32(), member1=pa.string())),
        (["string", "null", "int"], struct(member0=pa.string(), member1=pa.int32())),
        (["int", "long", "string"], struct(member0=pa.int32(), member1=pa.int64(), member2=pa.string())),
        (["int", "float"], struct(member0=pa.int32(), member1=pa.float32())),
    ],
}  # fmt: skip
CASES = [(name, schema, kind) for name, cases in TABLE.items() for schema, kind in cases]


@pytest.mark.parametrize(("name", "schema", "kind"), CASES, ids=[str(schema) for _, schema, _ in CASES])  # fmt: skip
def test_a_type_has_the_arrow_type_of_the_table(name: str, schema: Any, kind: pa.DataType) -> None:
    assert arrow_type(parsed(schema)).equals(kind)
    assert arrow_type(parsed(schema)) == kind


def test_the_table_in_the_docstring_has_the_rows_that_are_tested() -> None:
    lines = (layout.__doc__ or "").split("\n\n")[1].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines]

    assert rows[0] == ["Avro", "Arrow", "Spark"]
    assert [row[0] for row in rows[1:]] == list(TABLE)
    assert all(len(row) == 3 for row in rows)


def test_everything_may_be_null_but_the_keys_of_maps() -> None:
    schema = a_record(("a", {"type": "array", "items": a_record(("m", {"type": "map", "values": "int"}), name="I")}))  # fmt: skip

    kind = arrow_type(parsed(schema))

    element = kind.field("a").type.value_field
    entries = element.type.field("m").type
    assert kind.field("a").nullable
    assert element.nullable
    assert entries.item_field.nullable
    assert not entries.key_field.nullable


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        (a_record(("n", ["null", "R"])), "R.n", "record R contains itself"),
        (a_record(("n", {"type": "array", "items": "R"})), "R.n[]", "record R contains itself"),
        (a_record(("d", logical("bytes", "decimal", precision=39))), "R.d", "39 digits"),
        (a_record(("id", "int"), ("ID", "int")), "R", "'id' and 'ID'"),
        (a_record(("a", a_record(("x", "int"), ("X", "int"), name="I"))), "R.a", "'x' and 'X'"),
    ],
)  # fmt: skip
def test_what_no_column_can_be_is_refused_with_its_path(schema: Any, path: str, words: str) -> None:
    with pytest.raises(SchemaError) as error:
        arrow_type(parsed(schema))

    assert error.value.path == path
    assert words in error.value.reason


def test_a_schema_that_grows_without_end_is_refused() -> None:
    schema: Any = a_record(("x", "int"), name="R0")
    for depth in range(1, 30):
        schema = a_record(("a", schema), ("b", f"R{depth - 1}"), name=f"R{depth}")

    with pytest.raises(SchemaError, match="more than 10000 columns"):
        arrow_type(parsed(schema))


def test_records_that_lie_in_each_other_without_end_are_refused_before_the_stack_ends() -> None:
    chain = [a_record(("x", "int"), name="R0")]
    chain += [a_record(("x", f"R{n - 1}"), name=f"R{n}") for n in range(1, 2000)]
    schema = parsed("R1999", *chain)

    with pytest.raises(SchemaError, match="nested deeper"):
        arrow_type(schema)


def test_what_is_passed_over_may_be_nested_as_deep_and_as_wide_as_it_is() -> None:
    chain = [a_record(("x", "int"), name="R0")]
    chain += [a_record(("x", f"R{n - 1}"), ("y", f"R{n - 1}"), name=f"R{n}") for n in range(1, 90)]
    deep = parsed(a_record(("deep", {"type": "array", "items": "R89"}), ("a", "int")), *chain)

    found = decode(pa.array([b"\0\2"]), parsed(a_record(("a", "int"))), {1: deep}, framing="none")

    assert found.values.to_pylist() == [{"a": 1}]
