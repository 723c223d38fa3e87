"""A DDL for a sample of JSON has the types that were seen, and says what leaves them in doubt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.inference import infer
from spark_kbatch.values.types import parse_ddl


def of(*documents: Any) -> tuple[str, list[str]]:
    found = infer(json.dumps(one).encode() for one in documents)
    return found.ddl, found.doubts


@pytest.mark.parametrize(
    ("values", "ddl", "doubt"),
    [
        ([True, None, False], "boolean", ""),
        ([1, -(2**63)], "bigint", "all numbers were whole"),
        ([1, 2**63], "decimal(38, 0)", "1 bigint, 1 decimal(38, 0); read as decimal(38, 0)"),
        ([2**63], "decimal(38, 0)", "all numbers were whole"),
        ([1, 10**38], "double", "read as double"),
        ([1, 1.0, None], "double", "1 bigint, 1 double, 1 null; read as double"),
        ([0.5], "double", ""),
        (["a", ""], "string", ""),
        (["2024-02-29", None], "date", "all texts were days"),
        (["2024-02-29", "2023-02-29"], "string", "1 date, 1 string; read as string"),
        (["2024-02-29T10:00:00Z", "2024-02-29 10:00+0200"], "timestamp", "times with a zone"),
        (["2024-02-29t10:00:00.123456000z"], "timestamp", "times with a zone"),
        (["2024-02-29T10:00:00.1234567Z"], "string", ""),
        (["2024-02-29T24:00:00Z", "0000-01-01", "2024-02-29T10Z", "2024-1-1"], "string", ""),
        (["2024-02-29T10:00:00.1"], "timestamp_ntz", "times without a zone"),
        (["2024-02-29T10:00:00", "2024-02-29T10:00:00Z"], "string", "1 timestamp_ntz, 1 timestamp; read as string"),
        (["a", 1, {}, []], "string", "1 string, 1 bigint, 1 struct, 1 array; read as string"),
        ([None, None], "string", "2 null; read as string"),
        ([[]], "array<string>", "[]: no values; read as string"),
        ([[1.5], [], None, [None]], "array<double>", ""),
        ([{}, None], "map<string, string>", "all objects were empty"),
        ([{"b": True}, {"a": "x"}], "struct<b boolean, a string>", ""),
        ([[{"a": "x"}], [{"a b": "y"}]], "array<struct<a string, `a b` string>>", ""),
        ([{"a": "x", "A": "y"}], "struct<A string>", "left out is 'a': names differ in case alone"),
        ([{"b": "", "a": "x"}, {"A": "y", "a": "z"}], "struct<b string, a string>", "left out is 'A'"),
        ([{"b": "", "a\n": "x"}], "struct<b string>", r"left out is 'a\n': "),
    ],
)  # fmt: skip
def test_a_field_has_the_type_of_what_was_seen(values: list[Any], ddl: str, doubt: str) -> None:
    found, doubts = of(*({"f": one} for one in values))

    assert found == f"f {ddl}"
    parse_ddl(found)
    if doubt:
        assert len(doubts) == 1
        assert doubts[0].startswith(".f[]" if doubt.startswith("[]") else ".f: ")
        assert doubt in doubts[0]
    else:
        assert doubts == []


def test_a_doubt_names_the_place() -> None:
    assert of({"a": [{"b": {"c": 1}}]}) == (
        "a array<struct<b struct<c bigint>>>",
        [".a[].b.c: 1 bigint; all numbers were whole"],
    )
    assert of(1, "x") == ("string", ["the whole: 1 bigint, 1 string; read as string"])
    assert of([1], None) == ("array<bigint>", ["[]: 1 bigint; all numbers were whole"])


def test_values_that_cannot_be_read_as_the_type_are_told() -> None:
    found, doubts = infer([b'{"a": "x", "a": "y"}', b'{"a": "\\ud800"}', b'{"a": "z"}'])[::2]
    assert found == "a string"
    assert doubts == [".a: an object has this name twice; 2 values cannot be read as this"]


def test_rows_are_counted_by_what_they_are() -> None:
    deep = b"[" * 100_000
    values = [
        None, b"null", b'{"a": "x"}', b"\0\0\0\0\7" + b'{"a": "y"}', b"\0\0\0\0\7", b"", b"{", b'"\xff"', b"NaN",
        "{}".encode("utf-16"), deep, b"{}{}",
    ]  # fmt: skip

    found = infer(values)

    assert found.ddl == "a string"
    assert found.counts == {"records": 12, "null": 1, "framed": 2, "unreadable": 8}


@pytest.mark.parametrize("values", [[], [None], [b"null"], [b"\xff", b"{"]])
def test_where_nothing_was_seen_there_is_no_ddl(values: list[bytes | None]) -> None:
    assert infer(values).ddl == ""


def test_what_no_column_can_be_is_an_error() -> None:
    with pytest.raises(SchemaError, match="or 100 in each other"):
        infer([b"[" * 101 + b"]" * 101])
    with pytest.raises(SchemaError, match="more than 10000 columns"):
        infer([json.dumps({f"f{n}": True for n in range(10_001)}).encode()])
