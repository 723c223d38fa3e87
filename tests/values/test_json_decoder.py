"""Rows of JSON decode into one Arrow array, in order; a bad row is an error of its own, and harms no neighbour."""

from __future__ import annotations

import base64
import datetime
import json
import math
import tracemalloc
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.kernels.slots import MEMORY_FREE, MEMORY_PER_BYTE
from spark_kbatch.values import flat
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.json_decoder import DEPTH_MAX, JsonDecoder

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
TEXTS = pa.map_(pa.string(), pa.string())
UTC = datetime.UTC
LOCAL_TIME = datetime.datetime(2024, 1, 31, 10, tzinfo=UTC).replace(tzinfo=None)
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
ORDER = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("points", pa.list_(POINT)),
        ("props", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("at", INSTANT),
        ("price", pa.decimal128(10, 2)),
    ]
)


def an_order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"näme {number}",
        "points": [{"x": number, "y": "y"}, None, {"x": None, "y": '"'}][: number % 4],
        "props": {"a": [number / 8, None], "b": []},
        "at": f"2024-01-31T10:00:{number % 60:02}Z",
        "price": number / 4,
    }


def in_column(order: dict[str, Any]) -> dict[str, Any]:
    return {
        **order,
        "props": list(order["props"].items()),
        "at": datetime.datetime.fromisoformat(order["at"]),
        "price": Decimal(str(order["price"])).quantize(Decimal("0.01")),
    }


def written(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def decoded(kind: pa.DataType, *rows: Any, **how: Any) -> DecodedValues:
    array = pa.array([one.encode() if isinstance(one, str) else one for one in rows], pa.binary())
    found = JsonDecoder(kind, **how).decode(array)
    found.values.validate(full=True)
    return found


def value_of(kind: pa.DataType, text: str | bytes, **how: Any) -> Any:
    """The value of a row, which is the same in a column and in an array."""
    text = text.encode() if isinstance(text, str) else text
    columns = pa.struct([("a", kind), ("b", pa.list_(kind))])
    row = b'{"a": %b, "b": [null, %b ]}' % (text, text)
    found = decoded(columns, row, b"{}", row, **how)
    assert found.errors == ()
    first, none, again = found.values.to_pylist()
    assert none == {"a": None, "b": None}
    assert str(first) == str(again)
    assert str(first["b"]) == str([None, first["a"]])
    return first["a"]


def error_of(kind: pa.DataType, text: str | bytes, **how: Any) -> RowError:
    """The error of a row, whose neighbours have none and what they had."""
    neighbour = value = None
    for candidate in (
        "5",
        '"2024-01-31"',
        '"2024-01-31T10:00:00Z"',
        '"2024-01-31T10:00:00"',
        '"aGk="',
        "true",
        "{}",
        "[]",
    ):
        found = decoded(kind, candidate, **how)
        if not found.errors:
            neighbour, value = candidate, found.values.to_pylist()[0]
    found = decoded(kind, neighbour, text, None, neighbour, **how)
    assert found.values.to_pylist() == [value, None, None, value]
    (error,) = found.errors
    assert error.row == 1
    assert error.schema_id == -1
    return error


# What each type takes.


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.bool_(), "true", True),
        (pa.bool_(), "false", False),
        (pa.int8(), "-128", -128),
        (pa.int8(), "127", 127),
        (pa.int16(), "-32768", -(2**15)),
        (pa.int32(), "2147483647", 2**31 - 1),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int64(), "-9223372036854775808", -(2**63)),
        (pa.int64(), "-0", 0),
        (pa.int64(), "5.0", 5),
        (pa.int64(), "1e3", 1000),
        (pa.int64(), "1E+3", 1000),
        (pa.int64(), "-120e-1", -12),
        (pa.int64(), "0.00000000000000000000000000000000000001e38", 1),
        (pa.int64(), "5.00000000000000000000000000000000000000000", 5),
        (pa.int64(), "9223372036854775807000000000000000000000e-21", 2**63 - 1),
        (pa.int64(), "0e999999999999999999999", 0),
        (pa.int64(), "0.0e-999999999999999999999", 0),
        (pa.float64(), "5", 5.0),
        (pa.float64(), "-0.1", -0.1),
        (pa.float64(), "-0", -0.0),
        (pa.float64(), "-0e5", -0.0),
        (pa.float64(), "0.1234567890123456789012345678901234567890", 0.12345678901234568),
        (pa.float64(), "9007199254740993", 9007199254740992.0),
        (pa.float64(), "9007199254740993.000000000000000000000001", 9007199254740994.0),
        (pa.float64(), "1.7976931348623157e308", 1.7976931348623157e308),
        (pa.float64(), "17976931348623158069999999999999999999e271", 1.7976931348623157e308),
        (pa.float64(), "4.9e-324", 5e-324),
        (pa.float64(), "-1e-400", -0.0),
        (pa.float64(), "1e23", 1e23),
        (pa.float64(), "0" + "." + "0" * 500 + "1e500", 0.1),
        (pa.float64(), '"-Infinity"', -math.inf),
        (pa.float64(), '"Infinity"', math.inf),
        (pa.float64(), '"\\u004eaN"', math.nan),
        (pa.float32(), '"NaN"', math.nan),
        (pa.float32(), '"Infinity"', math.inf),
        (pa.float32(), "0.1", float(np.float32(0.1))),
        (pa.float32(), "16777217", 16777216.0),
        (pa.float32(), "1.000000059604644775390625000000000000001", float(np.nextafter(np.float32(1), np.float32(2)))),
        (pa.float32(), "3.4028235677973366e38", 3.4028234663852886e38),
        (pa.decimal128(3, 1), "1.50", Decimal("1.5")),
        (pa.decimal128(3, 1), "-99.9", Decimal("-99.9")),
        (pa.decimal128(3, 1), '"1.50"', Decimal("1.5")),
        (pa.decimal128(3, 1), '"\\u0031.50"', Decimal("1.5")),
        (pa.decimal128(3, 1), "0.00000000000", Decimal("0.0")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal128(38, 38), "-0." + "9" * 38, Decimal("-0." + "9" * 38)),
        (pa.decimal128(38, 10), "18446744073709551616", Decimal(2**64)),
        (pa.decimal128(38, 2), "-18446744073709551616.00", Decimal(-(2**64))),
        (pa.decimal128(20, 5), "1e14", Decimal(10**14)),
        (pa.string(), '""', ""),
        (pa.string(), '"é\U0001f600\\u00e9\\ud83d\\ude00\\n\\"\\\\\\/\\b\\f\\r\\t\\u0000"', 'é\U0001f600é\U0001f600\n"\\/\b\f\r\t\0'),
        (pa.string(), '"\\u007f\\u0080\\u07ff\\u0800\\uffff\\uD800\\uDC00"', "\x7f\x80\u07ff\u0800\uffff\U00010000"),
        (pa.string(), "-1.50e+3", "-1.50e+3"),
        (pa.string(), "true", "true"),
        (pa.string(), '{ "a": [1, {"b" :null}] }', '{ "a": [1, {"b" :null}] }'),
        (pa.string(), '[\n"x\\u0041" ]', '[\n"x\\u0041" ]'),
        (pa.binary(), '""', b""),
        (pa.binary(), '"AA=="', b"\0"),
        (pa.binary(), '"\\/+8="', b"\xff\xef"),
        (pa.binary(), json.dumps(base64.b64encode(bytes(range(256))).decode()), bytes(range(256))),
        (pa.date32(), '"2024-02-29"', datetime.date(2024, 2, 29)),
        (pa.date32(), '"0001-01-01"', datetime.date.min),
        (pa.date32(), '"9999-12-31"', datetime.date.max),
        (pa.date32(), '"2000-0\\u0032-29"', datetime.date(2000, 2, 29)),
        (INSTANT, '"2024-01-31T10:00:00Z"', datetime.datetime(2024, 1, 31, 10, tzinfo=UTC)),
        (INSTANT, '"2024-01-31t10:00z"', datetime.datetime(2024, 1, 31, 10, tzinfo=UTC)),
        (INSTANT, '"2024-01-31 10:00:59.5+02:30"', datetime.datetime(2024, 1, 31, 7, 30, 59, 500_000, tzinfo=UTC)),
        (INSTANT, '"2024-01-31 10:00:59.123456000-0200"', datetime.datetime(2024, 1, 31, 12, 0, 59, 123_456, tzinfo=UTC)),
        (INSTANT, '"2024-01-31T10:00+02"', datetime.datetime(2024, 1, 31, 8, tzinfo=UTC)),
        (INSTANT, '"0001-01-01T00:00:00Z"', datetime.datetime(1, 1, 1, tzinfo=UTC)),
        (INSTANT, '"9999-12-31T23:59:59.999999Z"', datetime.datetime.max.replace(tzinfo=UTC)),
        (LOCAL, '"2024-01-31T10:00:00.1"', LOCAL_TIME.replace(microsecond=100_000)),
        (LOCAL, '"1969-12-31 23:59"', LOCAL_TIME.replace(year=1969, month=12, hour=23, minute=59)),
        (pa.list_(pa.int64()), " [ 1 , null,\t3 ] ", [1, None, 3]),
        (pa.list_(pa.list_(pa.int64())), "[[],[1],null,[[2][0]]]".replace("[[2][0]]", "[2]"), [[], [1], None, [2]]),
        (TEXTS, '{"a":"b","":null,"\\u0061b":1}', [("a", "b"), ("", None), ("ab", "1")]),
        (POINT, '{"y":"t","z":{"x":[{"x":7}]},"x":1}', {"x": 1, "y": "t"}),
        (pa.struct([]), '{"a":1}', {}),
        (pa.int64(), "null", None),
        (pa.string(), " null ", None),
    ],
)  # fmt: skip
def test_a_type_takes(kind: pa.DataType, text: str, value: Any) -> None:
    found = value_of(kind, text)
    assert found == value or (found != found and value != value)
    if isinstance(value, float):
        assert math.copysign(1, found) == math.copysign(1, value) or value != value


def test_each_day_is_the_one_of_the_calendar() -> None:
    days = [datetime.date(1899, 12, 1) + datetime.timedelta(one) for one in range(0, 120_000, 7)]
    found = decoded(pa.date32(), *(f'"{day}"' for day in days))
    assert found.values.to_pylist() == days
    wrong = [f'"{year}-{month:02}-{day}"' for year in (2000, 2100, 2023) for month, day in ((2, 30), (4, 31), (13, 10), (12, 32))]  # fmt: skip
    assert len(decoded(pa.date32(), *wrong).errors) == len(wrong)


def test_each_base64_of_few_bytes_is_what_python_reads() -> None:
    data = [bytes([n % 256, n % 7, 255 - n % 256][: n % 4]) for n in range(600)]
    texts = [json.dumps(base64.b64encode(one).decode()) for one in data]
    assert decoded(pa.binary(), *texts).values.to_pylist() == data


# What is an error.


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("", "the value is empty", 0),
        (" \n\t\r", "the value is empty", 4),
        ("\ufeff1", "no value of JSON begins here", 0),
        ("nul", "no value of JSON begins here", 0),
        ("NaN", "no value of JSON begins here", 0),
        ("-Infinity", "the number is not written", 0),
        ("'a'", "no value of JSON begins here", 0),
        ("/* */ 1", "no value of JSON begins here", 0),
        ("1 2", "bytes are left over after the document", 2),
        ("{}{}", "bytes are left over after the document", 2),
        ("{} //", "bytes are left over after the document", 3),
        ("nullx", "bytes are left over after the document", 4),
        ("[1", "ends in the middle", 2),
        ('{"a"', "ends in the middle", 4),
        ('{"a":', "ends in the middle", 5),
        ('"a', "ends in the middle", 2),
        ('"a\\', "ends in the middle", 3),
        ("[1,]", "no value of JSON begins here", 3),
        ("[,1]", "no value of JSON begins here", 1),
        ("[1 2]", "a comma is missing here", 3),
        ("[1}", "a comma is missing here", 2),
        ('{"a":1,}', "a name in double quotes is missing here", 7),
        ("{a:1}", "a name in double quotes is missing here", 1),
        ('{"a" 1}', "a colon is missing here", 5),
        ('{"a":1]', "a comma is missing here", 6),
        ("]", "no value of JSON begins here", 0),
        ("01", "the number is not written", 0),
        ("-", "the number is not written", 0),
        ("1.", "the number is not written", 0),
        (".5", "no value of JSON begins here", 0),
        ("+1", "no value of JSON begins here", 0),
        ("1e", "the number is not written", 0),
        ("1e+", "the number is not written", 0),
        ("-01.5", "the number is not written", 0),
        ('"\\x"', "a string has an escape", 1),
        ('"\\u12g4"', "a string has an escape", 1),
        ('"\\ud83d"', "half of a pair of surrogates", 1),
        ('"\\ude00\\ud83d"', "half of a pair of surrogates", 1),
        ('"\\ud83d\\u0041"', "half of a pair of surrogates", 1),
        ('"a\tb"', "a control character", 2),
        ('"a\0b"', "a control character", 2),
        (b'"\xff"', "a string is not UTF-8", 1),
        (b'"\xed\xa0\x80"', "a string is not UTF-8", 1),
        (b'"\xc0\xaf"', "a string is not UTF-8", 1),
        (b"\xff", "no value of JSON begins here", 0),
    ],
)  # fmt: skip
def test_what_is_no_json_is_an_error_wherever_it_stands(
    text: str | bytes, reason: str, position: int
) -> None:
    error = error_of(pa.string(), text)
    assert reason in error.reason
    assert (error.path, error.position) == ("", position)

    text = text.encode() if isinstance(text, str) else text
    for before, after in ((b'{"other":[0,', b"]}"), (b'{"y":', b"}"), (b'{"y":{"x":', b"}}")):
        if "left over" in reason or "empty" in reason or "ends" in reason or text[:1] in b"],":
            continue
        inside = error_of(POINT, before + text + after)
        assert reason in inside.reason
        assert inside.path == ("" if b"other" in before else ".y")
        assert inside.position == position + len(before)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.bool_(), "1", "a number in place of true or false"),
        (pa.bool_(), '"true"', "a string in place of true or false"),
        (pa.int64(), '"5"', "a string in place of a whole number"),
        (pa.int64(), "true", "true in place of a whole number"),
        (pa.int64(), "{}", "an object in place of a whole number"),
        (pa.int64(), "5.5", "a digit would be lost"),
        (pa.int64(), "1e-400", "a digit would be lost"),
        (pa.int64(), "1.00000000000000000000000000000000001", "a digit would be lost"),
        (pa.int8(), "128", "outside the range"),
        (pa.int8(), "-129", "outside the range"),
        (pa.int16(), "32768", "outside the range"),
        (pa.int32(), "-2147483649", "outside the range"),
        (pa.int64(), "9223372036854775808", "outside the range"),
        (pa.int64(), "-9223372036854775809", "outside the range"),
        (pa.int64(), "18446744073709551616", "outside the range"),
        (pa.int64(), "1e999999999999999999999999", "outside the range"),
        (pa.int64(), "123456789012345678901.5", "outside the range"),
        (pa.float64(), "1e309", "outside the range"),
        (pa.float64(), str(2**1024 - 2**970), "outside the range"),
        (pa.float64(), "17976931348623158070000000000000000000e271", "outside the range"),
        (pa.float64(), f"-{2**1024 - 2**970}.0e0", "outside the range"),
        (pa.float64(), '"nan"', "a string in place of a number"),
        (pa.float64(), '"5"', "a string in place of a number"),
        (pa.float64(), "[]", "an array in place of a number"),
        (pa.float32(), "3.40282356779733661637539395458142568448e38", "outside the range"),
        (pa.float32(), "-1e39", "outside the range"),
        (pa.decimal128(3, 1), "1.55", "a digit would be lost"),
        (pa.decimal128(3, 1), "100", "outside the range"),
        (pa.decimal128(3, 1), '"1.5 "', "the string is not a number"),
        (pa.decimal128(3, 1), '""', "the string is not a number"),
        (pa.decimal128(38, 0), "1" + "0" * 38, "outside the range"),
        (pa.decimal128(3, 1), "false", "false in place of a number"),
        (pa.binary(), '"aGk"', "the string is not a string of base64"),
        (pa.binary(), '"aGk==="', "the string is not"),
        (pa.binary(), '"a=k="', "the string is not"),
        (pa.binary(), '"===="', "the string is not"),
        (pa.binary(), '"aG k"', "the string is not"),
        (pa.binary(), '"_-8="', "the string is not"),
        (pa.binary(), "[1]", "an array in place of a string of base64"),
        (pa.date32(), '"2024-02-30"', "the string is not a date"),
        (pa.date32(), '"2023-02-29"', "the string is not a date"),
        (pa.date32(), '"2024-1-01"', "the string is not a date"),
        (pa.date32(), '"0000-01-01"', "the string is not a date"),
        (pa.date32(), '"2024-01-31T10:00:00"', "the string is not a date"),
        (pa.date32(), "19753", "a number in place of a date"),
        (INSTANT, '"2024-01-31T10:00:00"', "the time has no zone"),
        (INSTANT, '"2024-01-31"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:60Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31T24:00:00Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31  10:00:00Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00.Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00.1234567890Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00.1234567Z"', "a digit would be lost"),
        (INSTANT, '"2024-01-31T10:00:00+19:00"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00+02:60"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00 Z"', "the string is not a time"),
        (INSTANT, '"2024-01-31T10:00:00ZZ"', "the string is not a time"),
        (INSTANT, '"0001-01-01T00:00:00+02:00"', "outside the range"),
        (INSTANT, "1706695200", "a number in place of a time"),
        (LOCAL, '"2024-01-31T10:00:00Z"', "the time has a zone"),
        (LOCAL, '"2024-01-31T10:00:00+00:00"', "the time has a zone"),
        (pa.list_(pa.int64()), "{}", "an object in place of an array"),
        (pa.list_(pa.int64()), "1", "a number in place of an array"),
        (TEXTS, "[]", "an array in place of an object"),
        (POINT, "[]", "an array in place of an object"),
        (POINT, '"{}"', "a string in place of an object"),
    ],
)  # fmt: skip
def test_what_a_type_does_not_take_is_an_error(kind: pa.DataType, text: str, reason: str) -> None:
    error = error_of(kind, text)
    assert reason in error.reason
    assert (error.path, error.position) == ("", 0)
    within = error_of(pa.struct([("a", pa.list_(kind))]), b'{"a": [null, %b]}' % text.encode())
    assert reason in within.reason
    assert (within.path, within.position) == (".a[]", 13)


@pytest.mark.parametrize(
    ("kind", "text", "path"),
    [
        (POINT, '{"x":1,"y":"","x":2}', ".x"),
        (POINT, '{"x":null,"\\u0078":null}', ".x"),
        (POINT, '{"y":null,"y":null}', ".y"),
        (TEXTS, '{"a":1,"b":2,"a":3}', ""),
        (TEXTS, '{"a\\u0000":1,"b":2,"\\u0061\\u0000":3}', ""),
        (pa.struct([("p", pa.map_(pa.string(), POINT))]), '{"p":{"k":{"x":1,"x":1}}}', ".p{}.x"),
        (pa.struct([("p", pa.map_(pa.string(), TEXTS))]), '{"p":{"k":{"k":1},"l":{"l":1,"k":2,"l":3}}}', ".p{}"),
    ],
)  # fmt: skip
def test_a_name_twice_is_an_error(kind: pa.DataType, text: str, path: str) -> None:
    error = error_of(kind, text)
    assert (error.reason, error.path) == ("an object has this name twice", path)


def test_the_same_name_in_other_objects_or_rows_or_passed_over_is_no_error() -> None:
    kind = pa.struct(
        [("maps", pa.list_(TEXTS)), ("points", pa.list_(POINT)), ("name", pa.string())]
    )
    row = '{"maps":[{"a":1},{"a":1}],"other":{"q":1,"q":2},"points":[{"x":1},{"x":1}],"z":1,"z":2,"name":{"a":1,"a":2}}'
    found = decoded(kind, row, row)
    assert found.errors == ()
    assert found.values.to_pylist() == [{
        "maps": [[("a", "1")], [("a", "1")]],
        "points": [{"x": 1, "y": None}] * 2,
        "name": '{"a":1,"a":2}',
    }] * 2  # fmt: skip


def test_a_map_has_many_names_and_finds_the_one_that_is_there_twice() -> None:
    names = ",".join(f'"name {n}":{n}' for n in range(20_000))
    found = decoded(
        TEXTS,
        f"{{{names}}}",
        f'{{{names},"name 19999":1}}',
        f'{{"name 0":1,{names}}}',
        f"{{{names}}}",
    )
    assert [error.row for error in found.errors] == [1, 2]
    assert len(found.values[0]) == len(found.values[3]) == 20_000


# What is lenient, by name.


@pytest.mark.parametrize(
    ("lenient", "kind", "text", "value"),
    [
        ("zone", INSTANT, '"2024-01-31T10:00:00"', datetime.datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ("zone", LOCAL, '"2024-01-31T10:00:00+02:00"', LOCAL_TIME),
        ("digits", pa.int64(), "-5.9", -5),
        ("digits", pa.int64(), "-0.9", 0),
        ("digits", pa.int8(), "127.9", 127),
        ("digits", pa.decimal128(3, 1), '"-1.59"', Decimal("-1.5")),
        ("digits", pa.decimal128(38, 1), "1" * 37 + ".19", Decimal("1" * 37 + ".1")),
        ("digits", INSTANT, '"2024-01-31T10:00:00.123456789Z"', datetime.datetime(2024, 1, 31, 10, 0, 0, 123_456, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_leniency_is_named(lenient: str, kind: pa.DataType, text: str, value: Any) -> None:
    assert value_of(kind, text, lenient=[lenient]) == value
    assert error_of(kind, text, lenient={"zone", "digits"} - {lenient})


@pytest.mark.parametrize(
    ("lenient", "kind", "text"),
    [
        ("digits", pa.int8(), "128.5"),
        ("digits", pa.decimal128(3, 1), "100.55"),
        ("digits", pa.date32(), '"2024-01-31T10:00:00"'),
        ("zone", INSTANT, '"2024-01-31T10:00:00+25:00"'),
    ],
)  # fmt: skip
def test_leniency_has_an_end(lenient: str, kind: pa.DataType, text: str) -> None:
    assert error_of(kind, text, lenient=[lenient]).position == 0


# Rows among others.


def test_rows_are_in_order_and_null_is_no_error() -> None:
    rows = [written(an_order(n)) for n in range(40)]
    found = decoded(ORDER, None, *rows, "null", "{}", None)
    assert found.errors == ()
    empty = dict.fromkeys(an_order(0))
    assert found.values.to_pylist() == [
        None,
        *(in_column(an_order(n)) for n in range(40)),
        None,
        empty,
        None,
    ]
    assert found.schema_ids.tolist() == [-1] * 44


def test_every_truncation_is_an_error_of_its_row() -> None:
    whole = written(an_order(3))
    found = decoded(ORDER, *(part for size in range(len(whole)) for part in (whole[:size], whole)))
    assert [error.row for error in found.errors] == list(range(0, 2 * len(whole), 2))
    assert found.values.to_pylist()[1::2] == [in_column(an_order(3))] * len(whole)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_slices_of_any_form_decode(kind: pa.DataType) -> None:
    rows = [written(an_order(n)) for n in range(9)]
    array = pa.array([*rows[:2], None, *rows[2:]], pa.binary()).cast(kind)
    decoder = JsonDecoder(ORDER)
    whole = decoder.decode(array).values
    for part in (array.slice(1, 5), array.slice(3), array.slice(4, 0)):
        at = array.offset + part.offset
        assert decoder.decode(part).values.equals(whole.slice(at, len(part)))
    chunks = pa.chunked_array([array.slice(0, 4), array.slice(4, 0), array.slice(4)], kind)
    found = decoder.decode(chunks)
    assert found.values.equals(
        pa.chunked_array([whole.slice(0, 4), whole.slice(4, 0), whole.slice(4)])
    )
    bad = decoder.decode(pa.chunked_array([[b"{}"], [None, b"{"]], pa.binary()))
    assert [error.row for error in bad.errors] == [2]


def test_an_array_of_many_bytes_is_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "PIECE_BYTES_MAX", 500)
    found = decoded(ORDER, *(written(an_order(n)) for n in range(30)), "x", written(an_order(1)))
    assert found.values.to_pylist() == [
        *(in_column(an_order(n)) for n in range(30)),
        None,
        in_column(an_order(1)),
    ]
    assert [error.row for error in found.errors] == [30]


def test_nothing_decodes_to_nothing() -> None:
    for empty in (pa.array([], pa.binary()), pa.nulls(2), pa.chunked_array([], pa.binary())):
        found = JsonDecoder(ORDER).decode(empty)
        assert len(found.values) == len(empty)
        assert found.values.type == JsonDecoder(ORDER).type


# Confluent's framing.


def test_values_in_confluents_framing_have_an_id() -> None:
    rows = [b"\0\0\0\0\x07" + written(an_order(1)), None, b"\0\0\0\x01\0 null", b"\0\0\0\0\x09{]", b"\0\0\0\0\x09", b"{}", b"\0\0\0", b"\0\xff\0\0\0{}", b""]  # fmt: skip
    found = decoded(ORDER, *rows, is_framed=True)
    assert found.values.to_pylist() == [in_column(an_order(1)), *[None] * 8]
    assert found.schema_ids.tolist() == [7, -1, 256, 9, 9, -1, -1, -1, -1]
    assert [str(error) for error in found.errors] == [
        "a name in double quotes is missing here (byte 6, schema id 9)",
        "the value is empty (byte 5, schema id 9)",
        "the value is not in Confluent's framing: it looks like JSON",
        "the value is not in Confluent's framing: it has only 3 of the 5 bytes",
        "the value is not in Confluent's framing: its schema id is negative",
        "the value is not in Confluent's framing: it is empty",
    ]


def test_a_framed_value_that_is_read_without_is_told() -> None:
    assert "looks like Confluent's framing" in error_of(POINT, b"\0\0\0\0\x01{}").reason


# Types and names.


def test_the_type_has_the_names_of_columns_and_json_has_its_own() -> None:
    renamed = pa.struct(
        [
            pa.field("Total", pa.int64(), metadata={b"json": b'to"tal\xc3\xa9'}),
            pa.field("b", pa.list_(pa.int8())),
        ]
    )
    decoder = JsonDecoder(renamed)
    assert decoder.type == pa.struct(
        [("Total", pa.int64()), ("b", pa.list_(pa.field("element", pa.int8())))]
    )
    assert all(field.metadata is None for field in decoder.type)
    found = decoded(renamed, '{"to\\"talé":5,"b":[1]}', '{"Total":5}', '{"to\\"talé":"x"}')
    assert found.values.to_pylist() == [{"Total": 5, "b": [1]}, {"Total": None, "b": None}, None]
    assert found.errors[0].path == '.to"talé'


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.time64("us"), pa.decimal256(40), pa.map_(pa.int8(), pa.int8())]
)
def test_a_type_without_a_form_in_json_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"\.a\[\]: JSON has no form for"):
        JsonDecoder(pa.struct([("a", pa.list_(kind))]))


def test_fields_are_found_in_any_order_among_many() -> None:
    names = [f"field {n}" for n in range(3000)]
    kind = pa.struct([(name, pa.int32()) for name in names])
    rows = [
        {name: n for n, name in enumerate(names)},
        {name: n for n, name in reversed([*enumerate(names)])},
        {names[7]: 7, "x": 0, names[2999]: 1},
    ]
    found = decoded(kind, *map(written, rows)).values.to_pylist()
    assert found == [rows[0], rows[0], dict.fromkeys(names) | {names[7]: 7, names[2999]: 1}]


# What a row may cost.


def test_nesting_has_an_end() -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        deep, deeper = (opened * n + "1" + closed * n for n in (DEPTH_MAX, DEPTH_MAX + 1))
        assert value_of(pa.string(), deep[len(opened) * 2 : -2]) is not None
        assert decoded(pa.string(), deep).errors == ()
        error = error_of(pa.string(), deeper)
        assert f"nested deeper than {DEPTH_MAX}" in error.reason
        assert error.position == DEPTH_MAX * len(opened)
        assert "nested deeper" in error_of(POINT, f'{{"z":{deep}}}').reason


def test_items_of_few_bytes_that_are_wide_are_bounded() -> None:
    wide = pa.struct([(f"c{n}", pa.float64()) for n in range(1000)])
    error = error_of(
        pa.struct([("a", pa.list_(wide))]), '{"a":[' + ",".join(["{}"] * 300_000) + "]}"
    )
    assert (
        f"more memory than {MEMORY_PER_BYTE} times the value and {MEMORY_FREE} bytes"
        in error.reason
    )
    assert error.path == ".a"
    full = "{" + ",".join(f'"c{n}":{n}' for n in range(1000)) + "}"
    assert decoded(pa.list_(wide), f"[{','.join([full] * 50)}]").errors == ()


def test_memory_is_held_to_what_is_given() -> None:
    array = pa.array([b'{"x":1,"y":"text"}'] * 10_000)
    with pytest.raises(OverflowError, match="pass fewer rows"):
        JsonDecoder(POINT).decode(array, memory_max=100_000)
    assert JsonDecoder(POINT).decode(array, memory_max=10_000_000).errors == ()


def test_hostile_rows_take_little_memory() -> None:
    rows = [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"[" + b"1," * 300_000,
        b'"' + b"\\u0000" * 100_000,
        b"1" * 500_000,
        b'{"":1,' * 10_000,
    ]
    kind = pa.struct([("a", pa.list_(TEXTS)), ("b", pa.float64())])
    decoder = JsonDecoder(kind)
    array = pa.array(
        [*rows, *(b'{"b":' + one for one in rows), *(b'{"a":[{"":' + one for one in rows)],
        pa.binary(),
    )
    decoder.decode(array)
    tracemalloc.start()
    found = decoder.decode(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.errors) == len(array)
    assert peak < 100 << 20
