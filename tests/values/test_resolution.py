"""A writer's schema is resolved against the reader's by Avro's rules."""

from __future__ import annotations

import math
import pickle
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import resolution
from spark_kbatch.values.avro_decoder import AvroDecoder, decode
from spark_kbatch.values.avro_encoder import encode
from spark_kbatch.values.decoded import DecodedValues
from tests.support import avro
from tests.support.avro import a_record, framed, parsed, varint

_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}


def resolved(writer: Any, reader: Any, *values: Any) -> DecodedValues:
    """Values that the writer's schema has written, read with the reader's."""
    schema = parsed(writer)
    data = [avro.encode(schema, value) for value in values]
    return decode(pa.array(data, pa.binary()), parsed(reader), {1: schema}, framing="none")


def read(writer: Any, reader: Any, value: Any) -> Any:
    found = resolved(writer, reader, value)
    assert found.errors == ()
    return found.values[0].as_py()


def refused(writer: Any, reader: Any, value: Any) -> str:
    found = resolved(writer, reader, value)
    assert found.values.to_pylist() == [None]
    (error,) = found.errors
    return str(error)


def logical(kind: str, name: str, **more: int) -> Any:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", -5, -5),
        ("int", "float", 3, 3.0),
        ("int", "double", 2**31 - 1, 2.0**31 - 1),
        ("long", "float", 2**24 + 1, 2.0**24),
        ("long", "double", -(2**53), -(2.0**53)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", "é".encode(), "é"),
        # Also inside unions, arrays, maps and records.
        (["null", "int"], ["null", "long"], (1, 5), 5),
        ("int", ["null", "double"], 5, 5.0),
        (["int", "float"], "double", (0, 5), 5.0),
        (["int", "float"], "double", (1, 0.5), 0.5),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "long"]}, [1, 2], [1, 2]),
        ({"type": "map", "values": "float"}, {"type": "map", "values": "double"}, {"a": 0.5}, [("a", 0.5)]),
        (a_record(("a", "int")), a_record(("a", "double")), {"a": 1}, {"a": 1.0}),
        # A union of two numbers is the wider one.
        (["int", "long"], ["int", "long"], (0, 5), 5),
        (["int", "long"], ["long", "null", "int"], (1, 2**40), 2**40),
        ("float", ["float", "double"], 0.5, 0.5),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_is_promoted(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert read(writer, reader, value) == expected


@pytest.mark.parametrize(
    ("writer", "reader", "value"),
    [
        ("long", "int", 1),
        ("double", "float", 1.0),
        ("int", "string", 1),
        ("int", "boolean", 1),
        ("string", {"type": "array", "items": "string"}, "a"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"ab"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "G", "size": 2}, b"ab"),
        ({"type": "fixed", "name": "F", "size": 2}, "bytes", b"ab"),
        (_ENUM, "string", "A"),
        (_ENUM, {**_ENUM, "name": "Other"}, "A"),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_is_another_one_is_refused_by_name(
    writer: Any, reader: Any, value: Any
) -> None:
    assert "cannot be read as" in refused(writer, reader, value)


def test_a_branch_that_the_reader_does_not_have_fails_only_rows_that_have_it() -> None:
    found = resolved(["int", "string"], ["null", "long"], (0, 5), (1, "a"), (0, 6))

    assert found.values.to_pylist() == [5, None, 6]
    (error,) = found.errors
    assert error.row == 1
    assert "string is no branch of the reader's union of null, long" in str(error)


def test_null_is_refused_where_the_reader_has_no_null() -> None:
    assert "null cannot be read as string" in refused(["null", "string"], "string", (0, None))
    assert read(["null", "string"], "string", (1, "a")) == "a"


def test_a_branch_of_the_same_type_comes_before_one_to_promote_to() -> None:
    union = ["long", "string", "int"]

    assert read("int", union, 5) == {"member0": None, "member1": None, "member2": 5}
    assert read("bytes", ["string", "int", "bytes"], b"a") == {"member0": None, "member1": None, "member2": b"a"}  # fmt: skip
    assert read("float", ["string", "null", "double"], 0.5) == {"member0": None, "member1": 0.5}


def test_records_in_a_union_are_told_apart_by_name() -> None:
    one = a_record(("x", "int"), name="n.One")
    two = a_record(("x", "int"), name="n.Two")
    there = [{**two, "name": "other.Two"}, {**one, "name": "other.One"}]

    assert read([one, two], there, (0, {"x": 5})) == {"member0": None, "member1": {"x": 5}}
    assert read([one, two], there, (1, {"x": 6})) == {"member0": {"x": 6}, "member1": None}


def test_a_full_name_comes_before_a_short_one() -> None:
    there = [a_record(("x", "int"), name="a.R"), a_record(("x", "int"), name="b.R")]

    assert read(there[1], there, {"x": 5}) == {"member0": None, "member1": {"x": 5}}


def test_fields_are_matched_by_name_in_any_order() -> None:
    writer = a_record(("a", "int"), ("gone", {"type": "array", "items": "string"}), ("b", "string"))
    reader = a_record(("b", "string"), ("a", "int"))

    assert read(writer, reader, {"a": 1, "gone": ["x", "y"], "b": "z"}) == {"b": "z", "a": 1}


def test_a_field_is_found_by_an_alias_and_a_name_comes_first() -> None:
    reader = a_record(
        {"name": "new", "type": "int", "aliases": ["older", "old"], "default": -1},
        {"name": "old", "type": "int", "default": -2},
    )

    assert read(a_record(("old", "int")), reader, {"old": 5}) == {"new": -1, "old": 5}
    assert read(a_record(("older", "int")), reader, {"older": 5}) == {"new": 5, "old": -2}


@pytest.mark.parametrize(
    "reader",
    [
        a_record(("a", "int"), name="other.space.Written"),
        a_record(("a", "int"), name="Renamed", aliases=["Written"]),
        a_record(("a", "int"), name="Renamed", aliases=["x.Else", "where.Written"]),
    ],
    ids=str,
)
def test_a_record_is_known_by_its_short_name_or_an_alias(reader: Any) -> None:
    writer = a_record(("a", "int"), name="some.Written")

    assert read(writer, reader, {"a": 5}) == {"a": 5}


def test_another_record_is_refused_by_name() -> None:
    writer, reader = a_record(("a", "int"), name="Payment"), a_record(("a", "int"), name="Order")

    error = refused(writer, reader, {"a": 5})
    assert "record Payment" in error
    assert "record Order" in error


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", 5, 5),
        ("long", -(2**63), -(2**63)),
        ("float", 0.1, pytest.approx(0.1)),
        ("float", 2, 2.0),
        ("double", 0.1, 0.1),
        ("string", "é\0", "é\0"),
        ("bytes", "\u00ff\u0000a", b"\xff\x00a"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00e9b", b"\xe9b"),
        (_ENUM, "B", "B"),
        (logical("int", "date"), 1, date(1970, 1, 2)),
        (logical("long", "timestamp-millis"), 1500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (logical("bytes", "decimal", precision=4, scale=2), "\u00ff\u0085", Decimal("-1.23")),
        (["null", "int"], None, None),
        (["int", "null"], 5, 5),
        (["null", "int"], 5, 5),
        (["string", "int"], "a", {"member0": "a", "member1": None}),
        (["long", "int"], 5, 5),
        ({"type": "array", "items": ["null", "int"]}, [], []),
        ({"type": "array", "items": ["null", "int"]}, [None, 5], [None, 5]),
        ({"type": "array", "items": {"type": "array", "items": "string"}}, [["a"], [], ["b", "c"]], [["a"], [], ["b", "c"]]),
        ({"type": "map", "values": "int"}, {"a": 1, "b": 2}, [("a", 1), ("b", 2)]),
        (a_record(("x", "int"), {"name": "y", "type": "int", "default": 3}, name="I"), {"x": 1}, {"x": 1, "y": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_that_was_not_written_has_its_default(
    kind: Any, default: Any, expected: Any
) -> None:
    reader = a_record(("a", "int"), {"name": "d", "type": kind, "default": default}, ("b", "int"))
    writer = a_record(("a", "int"), ("b", "int"))

    found = resolved(writer, reader, {"a": 1, "b": 2}, {"a": 3, "b": 4})

    assert found.errors == ()
    found.values.validate(full=True)
    assert found.values.to_pylist() == [{"a": 1, "d": expected, "b": 2}, {"a": 3, "d": expected, "b": 4}]  # fmt: skip


def test_a_field_without_a_default_that_was_not_written_is_named() -> None:
    reader = a_record(("inner", a_record(("a", "int"), ("b", "int"), name="Inner")))
    writer = a_record(("inner", a_record(("a", "int"), name="Inner")))

    error = refused(writer, reader, {"inner": {"a": 1}})
    assert error.startswith("inner.b: ")
    assert "no field 'b'" in error
    assert "record Inner" in error


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "5"),
        ("int", "NaN"),
        ("double", "nan"),
        ("double", ["NaN"]),
        ("float", 1e39),
        ("double", 10**400),
        ("int", 2**31),
        ("int", 0.5),
        ("int", True),
        ("boolean", 1),
        ("bytes", "€"),
        ("string", None),
        ("string", "\ud800"),
        (["int", "string"], 0.5),
        (_ENUM, "Z"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "map", "values": "int"}, {"a": "b"}),
        (a_record(("x", "int"), name="I"), {}),
        (logical("bytes", "decimal", precision=1), "\u0063"),
        (logical("long", "timestamp-millis"), 2**63 - 1),
    ],
    ids=str,
)
def test_a_default_that_is_not_of_its_type_harms_only_those_who_need_it(kind: Any, default: Any) -> None:  # fmt: skip
    reader = a_record(("a", "int"), {"name": "d", "type": kind, "default": default})
    missing = refused(a_record(("a", "int")), reader, {"a": 1})

    assert missing.startswith("d: the default of the field 'd' in the reader's schema is no ")
    written = parsed(reader)
    assert decode(pa.array([], pa.binary()), written, {1: written}).errors == ()


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("NaN", math.nan),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        (math.nan, math.nan),
        (-math.inf, -math.inf),
    ],
    ids=["NaN", "Infinity", "-Infinity", "bare NaN", "bare -Infinity"],
)
def test_a_default_that_is_no_finite_number_is_read_and_written(
    kind: str, default: Any, expected: float
) -> None:
    inner = a_record({"name": "x", "type": kind, "default": default}, name="I")
    fields = [
        ("plain", kind, default), ("union", [kind, "null"], default), ("record", inner, {}),
        ("array", {"type": "array", "items": kind}, [default]), ("map", {"type": "map", "values": kind}, {"k": default}),
    ]  # fmt: skip
    defaults = [{"name": name, "type": of, "default": one} for name, of, one in fields]
    reader, old = a_record(("a", "int"), *defaults), a_record(("a", "int"))

    (found,) = resolved(old, reader, {"a": 1}).values.to_pylist()
    row = [
        found["plain"],
        found["union"],
        found["record"]["x"],
        found["array"][0],
        found["map"][0][1],
    ]
    assert row == pytest.approx([expected] * 5, nan_ok=True)
    written = encode(pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), parsed(reader))
    again = decode(written.values, parsed(reader), framing="none")
    assert (written.errors, again.errors) == ((), ())
    assert str(again.values[0].as_py()) == str(found)


def test_an_unusable_default_is_told_with_the_schema_that_has_it() -> None:
    schema = parsed(a_record(("a", "int"), {"name": "d", "type": "double", "default": "many"}))
    decoder = AvroDecoder(schema, "schema id 2")
    decoder.add_writer(1, parsed(a_record(("a", "int"))))

    (error,) = decoder.decode(pa.array([framed(1, b"\2")])).errors
    assert (
        error.reason
        == "the default of the field 'd' in the reader's schema, schema id 2, is no double"
    )
    with pytest.raises(SchemaError, match="and its default is no double"):
        encode(pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), schema)


def nested_defaults(levels: int) -> Any:
    """A record in which each record of a level has two of the level below, of 2**levels values by default."""
    inner: Any = "int"
    for level in range(levels):
        again = f"R{level - 1}" if level else "int"
        default: Any = {} if level else 0
        fields = [
            {"name": name, "type": kind, "default": default} for name, kind in (("a", inner), ("b", again))
        ]  # fmt: skip
        inner = a_record(*fields, name=f"R{level}")
    return a_record(("x", "int"), {"name": "y", "type": inner, "default": {}}, name="T")


def test_defaults_that_multiply_are_refused_at_once_and_a_few_thousand_are_written() -> None:
    rows = pa.array([{"x": 1}], pa.struct([("x", pa.int32())]))

    few = encode(rows, parsed(nested_defaults(11))).values[0].as_py()
    assert few == varint(1) + bytes(2**11)
    started_s = time.monotonic()
    for levels in (14, 40, 90):
        with pytest.raises(SchemaError, match="and its default has more than 10000 values"):
            encode(rows, parsed(nested_defaults(levels)))
    lists = {"name": "y", "type": {"type": "array", "items": "long"}, "default": [*range(20_000)]}
    many = parsed(a_record(("x", "int"), lists))
    with pytest.raises(SchemaError, match="and its default has more than 10000 values"):
        encode(rows, many)
    assert "has more than 10000 values" in refused(
        a_record(("x", "int")), a_record(("x", "int"), lists), {"x": 1}
    )
    assert time.monotonic() - started_s < 10


def test_a_default_that_contains_itself_is_none() -> None:
    schema = a_record(("x", "int"), {"name": "r", "type": "T", "default": {"x": 1}}, name="T")

    with pytest.raises(SchemaError, match="and its default is no record T"):
        encode(pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), parsed(schema))
    ends = a_record(("x", "int"), {"name": "r", "type": ["null", "T"], "default": None}, name="T")
    outer = a_record(("a", "int"), {"name": "t", "type": ends, "default": {"x": 1}}, name="O")
    found = encode(pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), parsed(outer))
    assert found.values.to_pylist() == [b"\2\2\0"]


def test_large_unions_and_enums_are_resolved_in_time_that_grows_with_their_size() -> None:
    writer, reader = (
        [{"type": "fixed", "name": f"{letter}{n}", "size": 1} for n in range(3000)]
        for letter in "AB"
    )
    symbols = [f"S{n}" for n in range(20_000)]
    started_s = time.monotonic()

    assert "fixed A7 of 1 bytes is no branch of the reader's union of fixed B0" in refused(
        writer, reader, (7, b"x")
    )
    last = read([*reader[:9], *writer[:-1], writer[-1]], [*writer, "int"], (9 + 2998, b"y"))
    assert last["member2998"] == b"y"
    both = [{"type": "enum", "name": "E", "symbols": one} for one in (symbols, symbols[::-1])]
    assert read(*both, "S5") == "S5"
    assert time.monotonic() - started_s < 20


def test_a_schema_that_is_refused_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = a_record(("a", "string"), {"name": "d", "type": "string", "default": "text"})
    decoder = AvroDecoder(parsed(reader))
    decoder.add_writer(1, parsed(a_record(("a", "string"))))
    held = pickle.dumps(decoder._programs)
    branches = [
        {"type": "enum", "name": f"E{n}", "symbols": ["s" * 1000]} for n in range(50)
    ]  # fmt: skip
    monkeypatch.setattr(resolution, "_OPERATIONS_MAX", 40)

    decoder.add_writer(2, parsed(a_record(("a", ["string", *branches]), ("b", "long"))))

    assert "unions multiply" in decoder._unreadable[2]
    assert len(pickle.dumps(decoder._programs)) <= len(held)
    monkeypatch.undo()
    decoder.add_writer(2, parsed(a_record(("b", "long"), ("a", "string"))))
    found = decoder.decode(pa.array([framed(2, b"\2\2x"), framed(1, b"\2y")]))
    assert found.values.to_pylist() == [{"a": "x", "d": "text"}, {"a": "y", "d": "text"}]


def test_an_enum_is_matched_by_symbol_and_has_a_default() -> None:
    reader = {**_ENUM, "symbols": ["C", "A"]}

    assert read(_ENUM, reader, "C") == "C"
    assert read(_ENUM, {**reader, "default": "A"}, "B") == "A"
    assert "does not have the symbol" in refused(_ENUM, reader, "B")


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("timestamp-millis", "timestamp-micros", 1, 1000),
        ("timestamp-micros", "timestamp-millis", 1500, 1500),
        ("local-timestamp-millis", "local-timestamp-micros", -1, -1000),
        ("time-micros", "time-micros", 5, 5),
    ],
)
def test_a_time_is_converted_from_the_writers_unit(
    writer: str, reader: str, value: int, expected: int
) -> None:
    found = resolved(logical("long", writer), logical("long", reader), value)

    assert found.errors == ()
    assert found.values.cast(pa.int64()).to_pylist() == [expected]


def test_a_number_without_a_unit_has_the_readers() -> None:
    found = resolved("long", logical("long", "timestamp-millis"), 7)

    assert found.values.cast(pa.int64()).to_pylist() == [7000]
    assert read(logical("long", "timestamp-millis"), "long", 7) == 7
    assert read(logical("int", "time-millis"), logical("long", "time-micros"), 7) == 7000


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (logical("long", "timestamp-nanos"), logical("long", "timestamp-micros")),
        (logical("long", "timestamp-micros"), logical("long", "local-timestamp-micros")),
        (logical("int", "date"), logical("long", "timestamp-millis")),
        (logical("int", "date"), logical("int", "time-millis")),
    ],
)
def test_a_time_that_would_become_another_one_is_refused(writer: Any, reader: Any) -> None:
    assert "cannot be read as" in refused(writer, reader, 5)


def test_decimals_of_another_scale_are_refused_and_those_of_other_digits_bounded() -> None:
    def digits(precision: int, scale: int) -> Any:
        return logical("bytes", "decimal", precision=precision, scale=scale)

    assert read(digits(9, 2), digits(4, 2), b"\x7b") == Decimal("1.23")
    assert "outside the range" in refused(digits(9, 2), digits(2, 2), b"\x7b")
    assert "another scale" in refused(digits(9, 2), digits(9, 3), b"\x7b")
    assert read("bytes", digits(9, 3), b"\x7b") == Decimal("0.123")
    assert read(digits(9, 3), "bytes", b"\x7b") == b"\x7b"


def test_a_decimal_is_not_read_from_a_string_and_no_string_from_a_decimal() -> None:
    """By Avro's rules their bytes would be the other one's."""
    decimal = logical("bytes", "decimal", precision=12, scale=2)

    assert "cannot be read as" in refused("string", decimal, "1.50")
    assert "cannot be read as" in refused(decimal, "string", b"A")
    assert "cannot be read as" in refused(["null", "string"], ["null", decimal], (1, "1.50"))


def test_a_schema_whose_unions_multiply_is_unreadable_and_no_other_one_is() -> None:
    depth, width = 6, 10
    defined = [
        a_record(
            ("f", "int" if level == depth - 1 else [f"n{of}.R{level + 1}" for of in range(width)]),
            name=f"n{number}.R{level}",
        )
        for level in reversed(range(depth))
        for number in range(width)
    ]
    writer = a_record(
        ("d", ["null", *defined]), ("f", [f"n{of}.R0" for of in range(width)]), name="T"
    )
    reader: Any = "int"
    for level in reversed(range(depth)):
        reader = a_record(("f", reader), name=f"R{level}")
    reader = a_record(("f", reader), name="T")
    decoder = AvroDecoder(parsed(reader))

    decoder.add_writer(1, parsed(writer))
    decoder.add_writer(2, parsed(reader))

    found = decoder.decode(pa.array([avro.framed(1, b"\0\0\0"), avro.framed(2, avro.varint(5))]))
    (error,) = found.errors
    assert (error.row, "unions multiply" in str(error)) == (0, True)
    assert str(found.values[1].as_py()).count("5") == 1


def test_what_cannot_be_resolved_does_no_harm_in_an_empty_array() -> None:
    writer = {"type": "array", "items": "string"}
    reader = {"type": "array", "items": "int"}
    found = resolved(writer, reader, [], ["a"], [])

    assert found.values.to_pylist() == [[], None, []]
    assert [error.path for error in found.errors] == ["[]"]
