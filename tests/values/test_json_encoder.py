"""Arrow arrays become JSON, which is read back as the same; a row that no one could read is an error of its own."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import flat, json_encoder
from spark_kbatch.values.json_decoder import JsonDecoder
from spark_kbatch.values.json_encoder import JsonEncoder
from spark_kbatch.values.json_schema import ensure_fits, json_schema_of, type_of_json_schema
from spark_kbatch.values.types import parse_ddl, project_type
from tests.support import draws
from tests.support.ddls import ddl_of
from tests.support.json_documents import Documents, a_type
from tests.support.json_rules import comparable
from tests.support.more_in_soak import is_soak

NAN, INFINITY = float("nan"), float("inf")
DAY_2024, MINUS_1_US = 19_753, -1


def written(array: pa.Array) -> list[str | None]:
    """The texts of rows of which none is bad."""
    found = JsonEncoder(array.type).encode(array)
    assert found.errors == ()
    found.values.validate(full=True)
    return [None if one is None else one.decode() for one in found.values.to_pylist()]


@pytest.mark.more_in_soak
def test_what_is_written_is_read_back_as_the_same() -> None:
    for seed in draws.seeds(1000 if is_soak() else 40):
        rng = random.Random(seed)
        kind = a_type(rng)
        documents = Documents(rng, kind)
        data = [*(documents.fitting() for _ in range(20)), None]
        rng.shuffle(data)
        decoder = JsonDecoder(kind)
        rows = decoder.decode(pa.array(data, pa.binary())).values
        rows = rows.slice(rng.randrange(5), 15)

        values = pa.array(written(rows))

        again = decoder.decode(values)
        about = f"{ddl_of(kind)}; {draws.again(seed)}"
        assert again.errors == (), about
        pairs = zip(rows.to_pylist(), again.values.to_pylist(), strict=True)
        assert all(comparable(one) == comparable(other) for one, other in pairs), about
        for text in values.to_pylist():
            assert text is None or isinstance(json.loads(text), object)


KINDS: list[tuple[pa.Array, list[str]]] = [
    (pa.array([True, False]), ["true", "false"]),
    (pa.array([-128, 127], pa.int8()), ["-128", "127"]),
    (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
    (pa.array([5.0, -0.0, 0.1, 1e22, 5e-324], pa.float64()), ["5.0", "-0.0", "0.1", "1e+22", "5e-324"]),
    (pa.array([NAN, INFINITY, -INFINITY]), ['"NaN"', '"Infinity"', '"-Infinity"']),
    (pa.array([0.1, 16777216.0], pa.float32()), ["0.1", "16777216.0"]),
    (pa.array([np.float16(0.5)], pa.float16()), ["0.5"]),
    (pa.array([Decimal("1.50"), Decimal("-0.05")], pa.decimal128(9, 2)), ["1.50", "-0.05"]),
    (pa.array([Decimal("1.5")], pa.decimal128(38, 1)).slice(0), ["1.5"]),
    (pa.array(["", 'a"\\/b', "\0\x1f\x7f\b\f\n\r\t", "é😀\u2028"]), ['""', '"a\\"\\\\/b"', '"\\u0000\\u001f\x7f\\b\\f\\n\\r\\t"', '"é😀\u2028"']),
    (pa.array(["a"], pa.large_string()), ['"a"']),
    (pa.array(["a"], pa.string_view()), ['"a"']),
    (pa.array(["b", "a"]).dictionary_encode().slice(1), ['"a"']),
    (pa.array([b"", b"a", b"ab", b"abc", b"\xff\0\xfe\1"]), ['""', '"YQ=="', '"YWI="', '"YWJj"', '"/wD+AQ=="']),
    (pa.array([b"ab"], pa.binary(2)), ['"YWI="']),
    (pa.array([DAY_2024, -719_162, 2_932_896], pa.date32()), ['"2024-01-31"', '"0001-01-01"', '"9999-12-31"']),
    (pa.array([0, 100, MINUS_1_US], pa.timestamp("us", "UTC")), ['"1970-01-01T00:00:00Z"', '"1970-01-01T00:00:00.0001Z"', '"1969-12-31T23:59:59.999999Z"']),
    (pa.array([10], pa.timestamp("s", "Asia/Tokyo")), ['"1970-01-01T00:00:10Z"']),
    (pa.array([1500], pa.timestamp("ms")), ['"1970-01-01T00:00:01.5"']),
    (pa.array([1_500], pa.timestamp("us")), ['"1970-01-01T00:00:00.0015"']),
    (pa.array([1_500_000], pa.timestamp("ns")), ['"1970-01-01T00:00:00.0015"']),
    (pa.array([[1, None], []], pa.list_(pa.int64())), ["[1,null]", "[]"]),
    (pa.array([[1, 2]], pa.large_list(pa.int32())), ["[1,2]"]),
    (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), ["[1,2]"]),
    (pa.array([[('"', 1), ("b", None)], []], pa.map_(pa.string(), pa.int8())), ['{"\\"":1,"b":null}', "{}"]),
    (pa.array([{"a": 1, "b": None}, {"a": None, "b": None}], pa.struct([("a", pa.int8()), ("b", pa.string())])), ['{"a":1}', "{}"]),
    (pa.array([{}], pa.struct([])), ["{}"]),
    (pa.array([{'é"': [{"x": [None]}]}], pa.struct([('é"', pa.list_(pa.struct([("x", pa.list_(pa.int8()))])))])), ['{"é\\"":[{"x":[null]}]}']),
]  # fmt: skip


@pytest.mark.parametrize(("array", "texts"), KINDS)
def test_each_type_has_its_text_and_null_has_none(array: pa.Array, texts: list[str]) -> None:
    assert written(array) == texts
    null = pa.nulls(1, array.type)
    assert written(pa.concat_arrays([null, array, null]).slice(1)) == [*texts, None]
    assert written(array.slice(len(array))) == []
    field = pa.StructArray.from_arrays([pa.concat_arrays([array, null])], ["f"])
    assert written(field) == [*(f'{{"f":{text}}}' for text in texts), "{}"]


def test_what_hides_below_null_is_not_written() -> None:
    """In Arrow there may be items below a list that is null, and fields of a struct that is."""
    items = pa.array([10**6, 1, 2], pa.int32()).cast(pa.date32()).cast(pa.int32())
    bad = items.view(pa.date32()).take(pa.array([0, 0, 1]))
    mask = pa.array([True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), bad, mask=mask)
    structs = pa.StructArray.from_arrays([bad.slice(1)], ["day"], mask=mask)

    assert written(lists) == [None, '["1970-01-02"]']
    assert written(structs) == [None, '{"day":"1970-01-02"}']


def test_what_is_never_null_may_be_part_of_what_is_null() -> None:
    """So Spark has columns of what it has computed."""
    number = pa.field("n", pa.int64(), nullable=False)
    lists = pa.field("l", pa.list_(pa.field("element", pa.int8(), nullable=False)), nullable=False)
    maps = pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)), nullable=False)  # fmt: skip
    inner = pa.field("s", pa.struct([number]), nullable=False)
    kind = pa.struct([number, lists, maps, inner])
    row = {"n": 1, "l": [2], "m": [("k", 3)], "s": {"n": 4}}
    nullable = pa.struct(
        [("n", pa.int64()), ("l", lists.type), ("m", maps.type), ("s", inner.type)]
    )
    rows = pa.array([row, None, row], nullable)
    children = [rows.field(place) for place in range(4)]
    mask = pa.array([False, True, False])
    array = pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)

    text = '{"n":1,"l":[2],"m":{"k":3},"s":{"n":4}}'
    assert written(array) == [text, None, text]
    assert written(array.slice(1)) == [None, text]


DAYS = pa.array([10**7, DAY_2024, -(10**6)], pa.int32()).view(pa.date32())
ERRORS: list[tuple[pa.Array, str, str]] = [
    (DAYS, "", "the year is none of 1 to 9999"),
    (pa.array([253_402_300_800, 0, -62_135_596_801], pa.timestamp("s", "UTC")), "", "the year is none"),
    (pa.StructArray.from_arrays([DAYS], ["day"]), ".day", "the year is none"),
    (pa.array([1, 1000, 2], pa.timestamp("ns", "UTC")), "", "a digit beyond microseconds would be lost"),
    (pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), DAYS), "[]", "the year is none"),
    (pa.array([b"a\xff", b"a", b"\xed\xa0\x80"]).view(pa.string()), "", "the text is not UTF-8"),
    (pa.array([[("a", 1), ("a", 1)], [("a", 1)], [("b", 1), ("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int8())), "", "the map has a key twice"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "path", "reason"), ERRORS)
def test_a_row_that_no_one_could_read_is_an_error_and_null(
    array: pa.Array, path: str, reason: str
) -> None:
    in_props = pa.MapArray.from_arrays(
        pa.array([0, 0, 1, 3], pa.int32()), pa.array(["x", "y", "z"]), array
    )
    found = JsonEncoder(array.type).encode(array)
    below = JsonEncoder(in_props.type).encode(in_props)

    assert [one is None for one in found.values.to_pylist()] == [True, False, True]
    assert [(one.row, one.path) for one in found.errors] == [(0, path), (2, path)]
    assert all(reason in one.reason for one in found.errors)
    assert below.values.to_pylist()[0] == b"{}"
    assert [(one.row, one.path) for one in below.errors] == [(1, f"{{}}{path}"), (2, f"{{}}{path}")]


def test_an_id_is_framed_in_front_of_each_value_and_not_of_null() -> None:
    found = JsonEncoder(pa.int64()).encode(pa.array([1, None, 2]), schema_id=258)

    assert found.values.to_pylist() == [b"\0\0\0\1\x021", None, b"\0\0\0\1\x022"]


def test_rows_are_written_in_pieces_and_are_too_many_only_for_one_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = pa.array([f"text {n}" for n in range(9)])
    expected = JsonEncoder(array.type).encode(array).values
    for limit in ("_PIECE_ROWS", "_PIECE_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(json_encoder, limit, 2)
            assert JsonEncoder(array.type).encode(array).values.equals(expected)
    monkeypatch.setattr(json_encoder, "_PIECE_BYTES", 30)
    found = JsonEncoder(array.type).encode(pa.chunked_array([array, array.slice(7)]))
    assert found.values.num_chunks > 2
    assert found.values.to_pylist() == [*expected.to_pylist(), *expected.to_pylist()[7:]]

    monkeypatch.setattr(flat, "INT32_MAX", 60)
    with pytest.raises(OverflowError, match="pass a chunked one"):
        JsonEncoder(array.type).encode(array)
    monkeypatch.setattr(flat, "INT32_MAX", 3)
    with pytest.raises(OverflowError, match="a single value"):
        JsonEncoder(array.type).encode(array)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.duration("us"), r"^JSON has no form for duration"),
        (pa.struct([("a", pa.list_(pa.time64("us")))]), r"^\.a\[\]: JSON has no form for time64"),
        (pa.map_(pa.int64(), pa.int64()), r"^JSON has no form for map"),
        (pa.struct([("m", pa.map_(pa.string(), pa.null()))]), r"^\.m\{\}: JSON has no form for null"),
        (pa.struct([("a", pa.int8()), ("A", pa.int8())]), "the fields 'a' and 'A'"),
    ],
)  # fmt: skip
def test_a_type_without_a_form_is_refused_with_its_path(kind: pa.DataType, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        JsonEncoder(kind)


# Schemas of columns.


@pytest.mark.more_in_soak
def test_the_schema_of_a_type_is_read_as_that_type() -> None:
    for seed in draws.seeds(1000 if is_soak() else 60):
        kind = a_type(random.Random(seed))
        if "timestamp[us]" in str(kind).replace("timestamp[us, tz", ""):
            with pytest.raises(SchemaError, match=r"JSON Schema has no form for timestamp\[us\]"):
                json_schema_of(kind)
            continue
        text = json_schema_of(kind, "shop.Order")
        assert type_of_json_schema(text) == kind, draws.again(seed)
        ensure_fits(kind, kind)


def test_a_schema_has_what_a_registry_and_other_readers_look_at() -> None:
    kind = parse_ddl("id int, price decimal(9,2), tags array<string>, raw binary")
    null = {"type": "null"}
    found = json.loads(json_schema_of(kind, "Order"))
    assert found == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"oneOf": [null, {"type": "integer", "connect.type": "int32"}]},
            "price": {"oneOf": [null, {
                "type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes",
                "connect.version": 1, "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
            }]},
            "tags": {"oneOf": [null, {"type": "array", "items": {"oneOf": [null, {"type": "string"}]}}]},
            "raw": {"oneOf": [null, {"type": "string", "contentEncoding": "base64"}]},
        },
        "additionalProperties": False,
    }  # fmt: skip
    with pytest.raises(SchemaError, match=r"^\.at\[\]: JSON Schema has no form for timestamp"):
        json_schema_of(parse_ddl("at array<timestamp_ntz>"))
    with pytest.raises(SchemaError, match=r"^\.e: JSON Schema has no form for struct<>"):
        json_schema_of(parse_ddl("e struct<>"))


SCHEMA_TYPE = parse_ddl(
    "id bigint, n int, x double, f float, price decimal(9,2), at timestamp, tags array<string>, "
    "props map<string, bigint>, c struct<city: string>"
)


@pytest.mark.parametrize(
    "columns",
    [
        "id int, x float",
        "id tinyint, n smallint, props map<string, tinyint>",
        "price decimal(8,1), c struct<city: string>",
        "c struct<>, tags array<string>, at timestamp",
    ],
)
def test_columns_fit_a_schema_that_has_them_and_whose_numbers_are_as_wide(columns: str) -> None:
    ensure_fits(parse_ddl(columns), SCHEMA_TYPE)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("more int", r"^\.more: the schema has no property for this column"),
        ("c struct<zip: int>", r"^\.c\.zip: the schema has no property"),
        ("n bigint", r"^\.n: a column of type int64 cannot be written as int32"),
        ("f double", r"^\.f: a column of type double cannot be written as float"),
        ("x int", r"^\.x: a column of type int32 cannot be written as double"),
        ("price decimal(9,3)", r"^\.price: a column of type decimal128\(9, 3\)"),
        ("price decimal(9,1)", r"^\.price: "),
        ("tags array<int>", r"^\.tags\[\]: a column of type int32 cannot be written as string"),
        ("props map<string, string>", r"^\.props\{\}: "),
        ("at timestamp_ntz", r"^\.at: a column of type timestamp\[us\]"),
        ("c map<string, string>", r"^\.c: a column of type map.* cannot be written as struct"),
        ("array<int>", r"^a column of type list.* cannot be written as struct"),
    ],
)
def test_columns_that_do_not_fit_a_schema_are_told_by_their_path(columns: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        ensure_fits(parse_ddl(columns), SCHEMA_TYPE)


def test_columns_of_other_types_are_read_as_the_nearest_one() -> None:
    others: dict[pa.DataType, Any] = {
        pa.uint8(): pa.int16(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.timestamp("ns", "Asia/Tokyo"): pa.timestamp("us", "UTC"),
        pa.timestamp("s"): pa.timestamp("us"),
        pa.large_list(pa.large_string()): parse_ddl("array<string>"),
        pa.list_(pa.dictionary(pa.int8(), pa.string()), 3): parse_ddl("array<string>"),
        pa.map_(pa.large_string(), pa.binary(3)): parse_ddl("map<string, binary>"),
    }
    assert {kind: project_type(kind, {}) for kind in others} == others
    row = {"at": datetime(2024, 1, 31, 10, tzinfo=UTC), "day": date(2024, 1, 31)}
    kind = pa.struct([("at", pa.timestamp("ms", "Asia/Tokyo")), ("day", pa.date32())])
    values = JsonEncoder(kind).encode(pa.array([row], kind)).values
    assert JsonDecoder(project_type(kind, {})).decode(values).values.to_pylist() == [row]
