"""Arrow arrays become Avro values; a row that does not fit is an error of its own."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import flat
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.avro_encoder import encode
from spark_kbatch.values.avro_schema import parse
from tests.support import avro
from tests.support.avro import a_record, decoded_by_fastavro, in_column, parsed
from tests.values.test_against_fastavro import EXAMPLES, randoms

_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_FIXED = {"type": "fixed", "name": "F", "size": 2}


def logical(kind: str, name: str, **more: int) -> Any:
    return {"type": kind, "logicalType": name, **more}


def written(array: pa.Array, schema: Any) -> list[bytes | None]:
    """The values of rows of which none is bad."""
    found = encode(array, parsed(schema))
    assert found.errors == ()
    found.values.validate(full=True)
    values: list[bytes | None] = found.values.to_pylist()
    return values


def error_of(array: pa.Array, schema: Any) -> str:
    """The error of the second of three rows."""
    found = encode(array, parsed(schema))
    values = found.values.to_pylist()
    assert [value is None for value in values] == [False, True, False]
    (error,) = found.errors
    assert error.row == 1
    return str(error)


def in_record(array: pa.Array, name: str = "u") -> pa.Array:
    return pa.StructArray.from_arrays([array], [name])


@settings(max_examples=EXAMPLES)
@given(randoms)
def test_what_is_decoded_is_encoded_as_fastavro_reads_it(rng: random.Random) -> None:
    schema = avro.Schemas(rng).record(3)
    its_schema = parse(json.dumps(schema))
    data = [avro.encode(its_schema, avro.a_value(rng, its_schema)) for _ in range(3)]
    rows = decode(pa.array([*data, None]), its_schema, framing="none").values.slice(1)

    found = encode(rows, its_schema)

    assert found.errors == ()
    *values, last = found.values.to_pylist()
    assert last is None
    for ours, theirs in zip(values, data[1:], strict=True):
        read = [decoded_by_fastavro(one, schema, schema) for one in (ours, theirs)]
        assert (
            in_column(read[0], its_schema) == in_column(read[1], its_schema) or read[0] == read[1]
        )
    assert decode(found.values, its_schema, framing="none").values.equals(rows)


def test_bytes_are_those_of_fastavro() -> None:
    schema = a_record(
        ("number", "long"),
        ("text", ["null", "string"]),
        ("parts", {"type": "array", "items": a_record(("x", "double"), ("y", "float"), name="P")}),
        ("by_name", {"type": "map", "values": ["int", "null"]}),
        ("kind", _ENUM),
        ("price", logical("bytes", "decimal", precision=9, scale=2)),
        ("two", _FIXED),
        ("flag", "boolean"),
        ("raw", "bytes"),
        ("when", logical("long", "timestamp-millis")),
        ("day", logical("int", "date")),
    )
    row = {
        "number": -(2**40), "text": "é", "parts": [{"x": 0.1, "y": 0.5}] * 3, "by_name": {"a": 1, "b": None},
        "kind": "B", "price": Decimal("-1234.56"), "two": b"ab", "flag": True, "raw": b"\0",
        "when": datetime(2024, 5, 6, 7, 8, 9, 123_000, UTC), "day": date(2024, 5, 6),
    }  # fmt: skip
    kind = decode(pa.array([], pa.binary()), parsed(schema), framing="none").values.type
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)

    values = written(pa.array([row, None, {**row, "by_name": {}, "text": None}], kind), schema)

    assert values[:2] == [stream.getvalue(), None]


def test_bytes_that_are_a_whole_value_have_no_length_in_confluents_framing() -> None:
    """As its serializers write and read them; in a union, or as a decimal, they have one."""
    rows, schema = pa.array([b"\x04ab", b"", None]), parsed("bytes")

    framed = encode(rows, schema, schema_id=7).values
    assert framed.to_pylist() == [b"\0\0\0\0\x07\x04ab", b"\0\0\0\0\x07", None]
    assert decode(framed, schema, {7: schema}).values.to_pylist() == rows.to_pylist()
    into_union = decode(framed, parsed(["null", "bytes"]), {7: schema})
    assert into_union.values.to_pylist() == rows.to_pylist()
    bare = encode(rows, schema).values
    assert bare.to_pylist() == [b"\x06\x04ab", b"\0", None]
    assert decode(bare, schema, framing="none").values.to_pylist() == rows.to_pylist()

    union = parsed(["null", "bytes"])
    data = pa.array([b"\0\0\0\0\x07\x02\x04ab"])
    assert decode(data, schema, {7: union}).values.to_pylist() == [b"ab"]
    price = parsed(logical("bytes", "decimal", precision=9, scale=2))
    prices = pa.array([Decimal("1.50")], pa.decimal128(9, 2))
    assert encode(prices, price, schema_id=7).values.to_pylist() == [b"\0\0\0\0\x07\x04\0\x96"]


def test_bytes_that_are_a_whole_value_are_read_as_text_if_they_are_utf8() -> None:
    data = pa.array([b"\0\0\0\0\x07\x04\xc3\xa9", b"\0\0\0\0\x07\xff"])

    found = decode(data, parsed("string"), {7: parsed("bytes")})

    assert found.values.to_pylist() == ["\x04é", None]
    assert [(one.row, one.reason) for one in found.errors] == [(1, "a string is not UTF-8")]


def test_an_id_is_framed_in_front_of_each_value_and_not_of_null() -> None:
    found = encode(pa.array([1, None, 2]), parsed("long"), schema_id=258)

    assert found.values.to_pylist() == [b"\0\0\0\1\2\2", None, b"\0\0\0\1\2\4"]


@pytest.mark.parametrize(
    ("array", "schema", "expected"),
    [
        (pa.array([1], pa.int8()), "int", 1),
        (pa.array([255], pa.uint8()), "long", 255),
        (pa.array([2**32 - 1], pa.uint32()), "long", 2**32 - 1),
        (pa.array([5], pa.int64()), "int", 5),
        (pa.array([5], pa.int64()), ["null", "int"], 5),
        (pa.array([5], pa.int32()), ["int", "long"], 5),
        (pa.array([5], pa.int32()), ["int"], 5),
        (pa.array([0.5], pa.float64()), "float", 0.5),
        (pa.array([0.5], pa.float32()), "double", 0.5),
        (pa.array([np.float16(0.5)], pa.float16()), "float", 0.5),
        (pa.array([float("-inf")], pa.float64()), "float", float("-inf")),
        (pa.array([1500], pa.timestamp("ms", "UTC")), logical("long", "timestamp-micros"), 1_500_000),
        (pa.array([1_500_000], pa.timestamp("us", "Asia/Tokyo")), logical("long", "timestamp-millis"), 1500),
        (pa.array([-2], pa.timestamp("s")), logical("long", "local-timestamp-nanos"), -2_000_000_000),
        (pa.array([time(1, 2, 3)], pa.time32("ms")), logical("int", "time-millis"), 3_723_000),
        (pa.array([7_000], pa.time64("ns")), logical("long", "time-micros"), 7),
        (pa.array([7], pa.int64()), logical("long", "timestamp-millis"), 7),
        (pa.array([-1], pa.date32()), logical("int", "date"), -1),
        (pa.array(["a"], pa.large_string()), "string", "a"),
        (pa.array(["a"], pa.string_view()), "string", "a"),
        (pa.array(["b", "a"]).dictionary_encode().slice(1), "string", "a"),
        (pa.array(["B"]).dictionary_encode(), _ENUM, "B"),
        (pa.array(["é"]), "bytes", "é".encode()),
        (pa.array([b"ab"], pa.large_binary()), _FIXED, b"ab"),
        (pa.array([b"ab"], pa.binary(2)), _FIXED, b"ab"),
        (pa.array([b"ab"], pa.binary(2)), "bytes", b"ab"),
        (pa.array([[1, 2]], pa.large_list(pa.int32())), {"type": "array", "items": "int"}, [1, 2]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), {"type": "array", "items": "long"}, [1, 2]),
    ],
)  # fmt: skip
def test_a_type_is_written_from_each_arrow_type_that_it_takes(
    array: pa.Array, schema: Any, expected: Any
) -> None:
    record = a_record(("u", schema))

    (value,) = written(in_record(array), record)

    assert value is not None
    assert decoded_by_fastavro(value, record, record) == {"u": expected}


def test_a_float_that_is_no_number_is_written() -> None:
    nan = float("nan")

    assert written(pa.array([nan, nan]), "float") == [np.float32(nan).tobytes()] * 2


@pytest.mark.parametrize("unscaled", [0, 1, -1, 127, 128, -128, -129, 255, 256, 2**63, -(2**63) - 1, 10**38 - 1, 1 - 10**38])  # fmt: skip
def test_a_decimal_takes_as_few_bytes_as_it_needs(unscaled: int) -> None:
    array = pa.array([Decimal(unscaled)], pa.decimal128(38, 0))
    digits = {"logicalType": "decimal", "precision": 38}
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    data = unscaled.to_bytes(size, "big", signed=True)
    padded = unscaled.to_bytes(20, "big", signed=True)

    assert written(array, {"type": "bytes", **digits}) == [avro.varint(size) + data]
    assert written(array, {"type": "fixed", "name": "D", "size": 20, **digits}) == [padded]


def test_a_decimal_of_another_scale_or_width_is_converted_where_nothing_is_lost() -> None:
    schema = logical("bytes", "decimal", precision=6, scale=2)
    good = [Decimal("1.5"), Decimal("-1.5"), None]

    for kind in (pa.decimal128(5, 1), pa.decimal256(60, 1), pa.decimal128(20, 4)):
        assert written(pa.array(good, kind), schema) == [b"\x04\x00\x96", b"\x04\xff\x6a", None]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (pa.decimal128(20, 3), "1.50", "1.505", "lose digits"),
        (pa.decimal128(20, 2), "9999.99", "10000", "outside the range"),
        (pa.decimal128(20, 2), "-9999.99", "-10000", "outside the range"),
        (pa.decimal128(20, 0), "9999", "10000", "outside the range"),
        (pa.decimal256(60, 2), "1", "1E50", "outside the range"),
        (pa.decimal256(60, 2), "-1", "-1E50", "outside the range"),
    ],
)
def test_a_decimal_that_does_not_fit_is_an_error_of_its_row(
    kind: pa.DataType, good: str, bad: str, words: str
) -> None:
    array = pa.array([Decimal(good), Decimal(bad), Decimal(0)], kind)

    assert words in error_of(array, logical("bytes", "decimal", precision=6, scale=2))


@pytest.mark.parametrize(
    ("array", "schema", "words"),
    [
        (pa.array([1, 2**31, 2]), "int", "outside the range"),
        (in_record(pa.array([1, None, 2], pa.int32())), a_record(("u", "int")), "u: the value is null"),
        (pa.array([0.5, 0.1, 0.0]), "float", "lose digits"),
        (pa.array([0.5, 1e300, 0.0]), "float", "lose digits"),
        (pa.array([0, 1, 1000], pa.timestamp("us", "UTC")), logical("long", "timestamp-millis"), "lose digits"),
        (pa.array([0, 2**62, 1], pa.timestamp("s", "UTC")), logical("long", "timestamp-millis"), "outside the range"),
        (pa.array([0, -(2**62), 1], pa.timestamp("s", "UTC")), logical("long", "timestamp-millis"), "outside the range"),
        (pa.array(["A", "Z", "B"]), _ENUM, "no symbol"),
        (pa.array([b"ab", b"abc", b"cd"]), _FIXED, "not the size"),
        (pa.array([[1], [None], []], pa.list_(pa.int64())), {"type": "array", "items": "long"}, "[]: the value is null"),
        (pa.array([[1], [2, 2**40], []]), {"type": "array", "items": "int"}, "[]: the value is outside"),
        (pa.array([[("a", 1)], [("b", None)], []], pa.map_(pa.string(), pa.int64())), {"type": "map", "values": "long"}, "{}: the value is null"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_an_error_and_its_neighbours_are_written(
    array: pa.Array, schema: Any, words: str
) -> None:
    assert words in error_of(array, schema)


def test_what_hides_below_a_null_does_no_harm() -> None:
    values = pa.array([1, 2**40, None])
    structs = pa.StructArray.from_arrays([values], ["a"], mask=pa.array([False, True, True]))
    schema = a_record(("u", ["null", a_record(("a", "int"), name="I")]))

    assert written(in_record(structs), schema) == [b"\2\2", b"\0", b"\0"]


def test_a_union_is_written_from_the_only_member_that_is_set() -> None:
    members = pa.struct([("member0", pa.int64()), ("member1", pa.string())])
    rows = [{"member0": 5}, {"member1": "a"}, None, {"member0": 5, "member1": "a"}, {}]
    array = in_record(pa.array(rows, members))

    found = encode(array, parsed(a_record(("u", ["long", "null", "string"]))))

    assert found.values.to_pylist() == [b"\0\x0a", b"\4\2a", b"\2", None, None]
    assert [(error.row, error.path) for error in found.errors] == [(3, "u"), (4, "u")]
    assert "not exactly one member" in str(found.errors[0])
    found = encode(array.slice(2, 1), parsed(a_record(("u", ["long", "string"]))))
    assert "the value is null" in str(found.errors[0])


def test_columns_are_matched_by_name_and_a_missing_one_has_its_default() -> None:
    inner = a_record(("x", _ENUM), ("y", "float"), ("z", _FIXED), ("w", "boolean"), ("v", "null"), ("u", "string"), name="I")  # fmt: skip
    schema = a_record(
        {"name": "a", "type": ["null", {"type": "array", "items": "int"}], "default": None},
        {"name": "b", "type": {"type": "array", "items": ["int", "string"]}, "default": [5, "x"]},
        ("c", "string"),
        {"name": "d", "type": "bytes", "default": "\u00ff"},
        {"name": "e", "type": {"type": "map", "values": "double"}, "default": {"k": 1}},
        {"name": "f", "type": inner, "default": {"x": "B", "y": 2.5, "z": "ab", "w": True, "v": None, "u": "é"}},
        ("g", "long"),
    )  # fmt: skip
    array = pa.StructArray.from_arrays([pa.array([7]), pa.array(["text"])], ["g", "c"])

    (value,) = written(array, schema)

    assert value is not None
    assert decoded_by_fastavro(value, schema, schema) == {
        "a": None, "b": [5, "x"], "c": "text", "d": b"\xff", "e": {"k": 1.0},
        "f": {"x": "B", "y": 2.5, "z": b"ab", "w": True, "v": None, "u": "é"}, "g": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "schema", "words"),
    [
        (pa.struct([("a", pa.int32())]), a_record(("a", "int"), ("b", "int")), "b: there is no column for this field of record R"),
        (pa.struct([("a", pa.int32())]), a_record(("a", "int"), {"name": "b", "type": "int", "default": "x"}), "b: there is no column"),
        (pa.struct([("a", pa.int32()), ("z", pa.int32())]), a_record(("a", "int")), "z: record R has no field for this column"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), a_record(("a", "int")), "a: there are two columns"),
        (pa.struct([("a", pa.struct([("b", pa.string())]))]), a_record(("a", a_record(("b", "int"), name="I"))), "a.b: a column of type string cannot be written as int"),
        (pa.int64(), ["null", "long"], "union of null, long is not written"),
        (pa.int64(), "string", "cannot be written as string"),
        (pa.int64(), "double", "cannot be written as double"),
        (pa.uint64(), "long", "cannot be written as long"),
        (pa.binary(), "string", "cannot be written as string"),
        (pa.string(), _FIXED, "cannot be written as fixed F"),
        (pa.binary(), logical("bytes", "decimal", precision=3), "cannot be written as bytes (decimal(3, 0))"),
        (pa.timestamp("us"), logical("long", "timestamp-micros"), "cannot be written as long (timestamp-micros)"),
        (pa.timestamp("us", "UTC"), "long", "cannot be written as long"),
        (pa.date32(), "int", "cannot be written as int"),
        (pa.int64(), a_record(), "cannot be written as record R"),
        (pa.int64(), {"type": "array", "items": "int"}, "cannot be written as array"),
        (pa.map_(pa.int64(), pa.int64()), {"type": "map", "values": "long"}, "cannot be written as map"),
        (pa.string(), "null", "cannot be written as null"),
        (pa.struct([("u", pa.int64())]), a_record(("u", ["long", "string"])), "a struct of member0, member1"),
        (pa.struct([("u", pa.int64())]), a_record(("u", ["null"])), "cannot be written as union of null"),
    ],
    ids=str,
)  # fmt: skip
def test_a_column_that_does_not_fit_its_field_is_refused_before_any_row(
    kind: pa.DataType, schema: Any, words: str
) -> None:
    with pytest.raises(SchemaError) as error:
        encode(pa.nulls(0, kind), parsed(schema))

    assert words in str(error.value)


def test_columns_of_nulls_are_written_where_a_union_has_null() -> None:
    kind = pa.struct([("a", pa.null()), ("b", pa.null()), ("c", pa.null())])
    schema = a_record(("a", ["int", "null"]), ("b", "null"), ("c", ["null", "int", "string"]))

    assert written(pa.array([{}, None], kind), schema) == [b"\2\0", None]
    found = encode(pa.array([{}], pa.struct([("a", pa.null())])), parsed(a_record(("a", "int"))))
    assert "a: the value is null" in str(found.errors[0])


def a_table(count: int) -> tuple[Any, pa.Array]:
    """A schema with something of each kind, and rows of which every fifth is null."""
    schema = a_record(
        ("n", "long"),
        ("t", ["null", "string"]),
        ("l", {"type": "array", "items": ["null", "string"]}),
        ("m", {"type": "map", "values": "boolean"}),
        ("b", ["null", "boolean"]),
        ("d", ["null", logical("bytes", "decimal", precision=5, scale=2)]),
    )
    kind = decode(pa.array([], pa.binary()), parsed(schema), framing="none").values.type
    rows = [
        {
            "n": n, "t": f"t{n}" if n % 2 else None, "l": ["x", None, f"{n}"][: n % 4],
            "m": {f"k{n}": n % 3 == 0}, "b": n % 2 == 0, "d": Decimal(n),
        }
        for n in range(count)
    ]  # fmt: skip
    return schema, pa.array([None if row["n"] % 5 == 4 else row for row in rows], kind)


def test_slices_chunks_and_no_rows_are_written_as_copies() -> None:
    schema, array = a_table(20)
    expected = written(array, schema)

    assert written(array.slice(3, 11), schema) == expected[3:14]
    assert written(array.slice(7).slice(2), schema) == expected[9:]
    assert written(array.slice(20), schema) == []
    chunks = pa.chunked_array([array.slice(0, 7), array.slice(7, 0), array.slice(7)])
    found = encode(chunks, parsed(schema))
    assert isinstance(found.values, pa.ChunkedArray)
    assert found.values.to_pylist() == expected
    assert encode(pa.chunked_array([], array.type), parsed(schema)).values.to_pylist() == []


def test_what_is_written_is_read_again() -> None:
    schema, array = a_table(20)

    found = decode(encode(array, parsed(schema), schema_id=5).values, parsed(schema), {5: parsed(schema)})  # fmt: skip

    assert found.errors == ()
    assert found.values.equals(array)


def test_errors_count_the_rows_of_all_chunks() -> None:
    chunks = [[1, 2**31], [], [2**31, 3]]

    found = encode(pa.chunked_array([pa.array(one, pa.int64()) for one in chunks]), parsed("int"))

    assert [error.row for error in found.errors] == [1, 2]


def test_rows_whose_bytes_are_too_many_for_one_array_are_written_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array, schema = pa.array([f"text {n}" for n in range(9)]), parsed("string")
    expected = written(array, "string")
    monkeypatch.setattr(flat, "INT32_MAX", 30)

    found = encode(pa.chunked_array([array]), schema)
    assert found.values.num_chunks > 2
    assert found.values.to_pylist() == expected
    with pytest.raises(OverflowError, match="pass a chunked one"):
        encode(array, schema)
    monkeypatch.setattr(flat, "INT32_MAX", 3)
    with pytest.raises(OverflowError, match="a single value"):
        encode(pa.chunked_array([array]), schema)


def test_the_output_grows_as_far_as_lists_and_defaults_need_it() -> None:
    schema = a_record(
        ("u", {"type": "array", "items": "long"}),
        {"name": "d", "type": "string", "default": "x" * 1000},
    )
    lists = [[2**60] * size for size in (0, 500, 1, 3000)]

    values = written(in_record(pa.array(lists, pa.list_(pa.int64()))), schema)

    assert [decoded_by_fastavro(one or b"", schema, schema)["u"] for one in values] == lists
