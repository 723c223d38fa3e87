"""Texts of conditions: what is refused, where, and with what to write instead."""

from __future__ import annotations

import contextlib
import pickle
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.condition.binding import Leaf, bind, leaves
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.text import BYTES_MAX, LEVELS_MAX, LITERALS_MAX, parse
from spark_kbatch.condition.tree import Predicate
from spark_kbatch.errors import ConfigError
from tests.condition.interpreted import SCHEMA

# Text, the character that is named, and what is said of it.
REFUSED = [
    ('key = "a"', 7, "double quotes"),
    ("key = 'a' 'b'", 7, "two texts in a row"),
    ("offset = 5L", 10, "suffixes"),
    ("offset = 1.5BD", 10, "suffixes"),
    ("offset = 5 -- five", 12, "comments"),
    ("/* all */ offset = 5", 1, "comments"),
    ("CAST(key AS STRING) = 'a'", 1, "casts"),
    ("key::string = 'a'", 4, "casts"),
    ("lower(key) = 'a'", 1, "functions"),
    ("key <=> 'a'", 5, "IS NULL"),
    ("key RLIKE 'a'", 5, "write LIKE"),
    ("key regexp 'a'", 5, "write LIKE"),
    ("key ILIKE 'a'", 5, "write LIKE"),
    ("offset = partition", 10, "filter by two columns after the read"),
    ("offset = `partition`", 10, "filter by two columns after the read"),
    ("! offset = 5", 1, "write NOT"),
    ("offset = 5;", 11, "without ;"),
    ("offset = NULL", 10, "IS NULL"),
    ("offset BETWEEN NULL AND 5", 16, "IS NULL"),
    ("value.flag IS TRUE", 15, "write = TRUE"),
    ("offset = 5 = 6", 12, "AND, OR or the end"),
    ("(offset = 5", 12, "AND, OR or )"),
    ("offset = 5)", 11, "AND, OR or the end"),
    ("offset IN ()", 12, "a literal"),
    ("offset IN 5", 11, "( and literals"),
    ("offset IN (5", 13, ", or )"),
    ("offset NOT = 5", 12, "IN, BETWEEN or LIKE"),
    ("offset BETWEEN 1 OR 2", 18, "the upper literal"),
    ("offset = .5", 10, "a literal"),
    ("offset + 1 = 5", 8, "a comparison"),
    ("offset = 'a", 10, "not closed"),
    ("`offset = 5", 1, "not closed"),
    ("TRUE", 5, "after a literal"),
    ("5 IN (5)", 3, "after a literal"),
    ("AND", 1, "backticks"),
    ("value. = 5", 8, "a field"),
    ("headers[n] = 'a'", 9, "single quotes"),
    ("headers['n' = 'a'", 13, "expected ]"),
    ("key = X'0'", 7, "two hexadecimal digits"),
    ("key = X'0 0'", 7, "two hexadecimal digits"),
    ("key = X'gg'", 7, "two hexadecimal digits"),
    (r"key = '\uD800'", 7, "surrogates"),
    (f"offset = {'9' * 39}", 10, "more than 38 digits"),
    ("value.date = DATE '2024-02-30'", 14, "of the calendar"),
    ("value.date = DATE '2024-2-1'", 14, "of the calendar"),
    ("timestamp > TIMESTAMP '2024-01-01 00:00:00'", 13, "without one it goes by Spark's session"),
    ("timestamp > TIMESTAMP '2024-01-01 00:00:00+19:00'", 13, "of the calendar"),
    ("value.local > TIMESTAMP_NTZ '2024-01-01 00:00:00Z'", 15, "of the calendar"),
    (r"key LIKE 'a\\'", 10, "is at the end"),
    (r"key LIKE '\\a'", 10, "stands before 'a'"),
    ("key LIKE 'a!b' ESCAPE '!'", 10, "stands before 'b'"),
    ("key LIKE 'a' ESCAPE '!!'", 21, "takes one character"),
    ("key LIKE 5", 10, "a text in single quotes"),
    ("(" * 101 + "value.flag" + ")" * 101, 101, "100 levels"),
    ("offset IN (" + "5," * 10_000 + "5)", 20_012, "10000 literals"),
    # Names and types.
    ("kay = 'a'", 1, "nearest is key"),
    ("value.tex = 'a'", 1, "field of value has the name 'tex'; the nearest is text"),
    ("key.a = 'a'", 1, "key is BINARY, which has no fields"),
    ("value.list.a = 5", 1, "an array, which has no fields"),
    ("headers.n = 'a'", 1, "an array, which has no fields; write headers['name']"),
    ("value['text'] = 'a'", 1, "write a dot before a field"),
    ("headers['n']['m'] = 'a'", 1, "for headers and for maps"),
    ("value = 'a'", 1, "a struct, of which IS NULL"),
    ("headers LIKE 'a'", 1, "an array, of which IS NULL"),
    ("headers IN (NULL)", 1, "an array, of which IS NULL"),
    ("value NOT IN (NULL)", 1, "a struct, of which IS NULL"),
    ("a.b = 1", 1, "no column has the name 'a'; there are: "),
    (r"key = '\U00110000'", 7, "U+10FFFF the last character"),
    ("value.entries = 'a'", 1, "a map, of which IS NULL"),
    ("offset", 1, "BIGINT; write a comparison"),
    ("offset = '5'", 10, "offset is BIGINT; write a number"),
    ("offset = 5e0", 10, "without exponent"),
    ("partition = TRUE", 13, "partition is INT"),
    ("value.tiny = '5'", 14, "value.tiny is TINYINT; write a number"),
    ("value.small = TRUE", 15, "value.small is SMALLINT"),
    ("key = 5", 7, "key is BINARY; write 'text' or X'00ff'"),
    ("topic = X'00'", 9, "topic is STRING; write 'text'"),
    ("value.flag = 1", 14, "write TRUE or FALSE"),
    ("value.price = 1e0", 15, "DECIMAL(9,2)"),
    ("value.float = 1e999", 15, "no double is as large"),
    ("value.float = '1'", 15, "FLOAT; write a number"),
    ("value.date = '2024-01-01'", 14, "write DATE '2024-01-31'"),
    ("value.at = DATE '2024-01-01'", 12, "write TIMESTAMP '"),
    ("timestamp > TIMESTAMP_NTZ '2024-01-01 00:00:00'", 13, "write TIMESTAMP '"),
    ("value.local > TIMESTAMP '2024-01-01 00:00:00Z'", 15, "write TIMESTAMP_NTZ '"),
    ("offset LIKE '5%'", 13, "LIKE is for text and bytes"),
    ("offset IN (5, '5')", 15, "offset is BIGINT"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "character", "why"),
    REFUSED,
    ids=[f"{n} {one[0][:40]}" for n, one in enumerate(REFUSED)],
)
def test_what_is_not_taken_is_refused_with_its_place(text: str, character: int, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)) as error:
        bind(parse(text), SCHEMA)
    assert str(error.value).startswith(f"where: at character {character}, ")


@pytest.mark.parametrize("text", ["", "  ", None, 5, "\ud800", "key = '" + "a" * (64 << 10) + "'"])
def test_what_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="option 'where'"):
        parse(text, "option 'where'")


def test_a_name_that_is_there_in_several_cases_is_taken_as_written() -> None:
    schema = pa.schema([("value", pa.struct([("id", pa.int32()), ("Id", pa.int64())]))])

    def path(text: str) -> object:
        found = bind(parse(text), schema)
        assert isinstance(found, Leaf)
        return found.path

    assert (path("VALUE.id = 1"), path("value.Id = 1")) == ((0,), (1,))
    with pytest.raises(ConfigError, match="write it as one of id, Id"):
        path("value.ID = 1")


def test_escapes_are_those_of_spark() -> None:
    schema = pa.schema([("key", pa.string())])
    found = bind(parse(r"key = '\n\t\\\'\"\0\Z\u00e4\U0001F600\101\q\%\_'''"), schema)
    assert isinstance(found, Leaf)
    assert found.value[0].as_py() == "\n\t\\'\"\0\x1aä😀Aq\\%\\_'"


def test_as_many_levels_as_are_taken_are_parsed() -> None:
    assert isinstance(parse("(" * 100 + "value.flag" + ")" * 100), Predicate)
    for count in (10_000, 9_999):
        found = parse("NOT " * count + "value.flag")
        assert isinstance(found, Predicate)
        assert found.is_negated is bool(count % 2)


def test_the_deepest_condition_is_bound_sent_and_evaluated() -> None:
    level = "value.flag AND NOT offset = 1 OR partition < 5 AND NOT ("
    text = level * LEVELS_MAX + "offset = 1" + ")" * LEVELS_MAX
    bound = pickle.loads(pickle.dumps(bind(parse(text), SCHEMA)))
    assert len(list(leaves(bound))) == 3 * LEVELS_MAX + 1
    partition = pa.scalar(3, pa.int32())
    found = matching(bound, {"offset": pa.array([1, 2]), "partition": partition})
    assert found.to_pylist() == [True, True]


def test_as_many_literals_as_are_taken_are_bound() -> None:
    listed = ",".join(str(n) for n in range(LITERALS_MAX))
    found = bind(parse(f"offset IN ({listed})"), SCHEMA)
    assert isinstance(found, Leaf)
    assert len(found.value) == LITERALS_MAX
    with pytest.raises(ConfigError, match="more than 10000 literals"):
        parse(f"offset IN ({listed}, 5)")


@pytest.mark.parametrize(
    "piece",
    [
        "'",
        "''",
        r"\'",
        "`",
        "' ",
        "'' ",
        "(",
        "NOT ",
        "5.",
        "5e",
        "X'",
        "DATE'",
        "a.",
        "a[",
        "--",
        "%",
    ],
)
@pytest.mark.parametrize("before", ["", "key = '", "key LIKE '%", "`"])
def test_a_long_text_of_one_piece_is_refused(before: str, piece: str) -> None:
    text = before + piece * ((BYTES_MAX - 1 - len(before)) // len(piece)) + ";"
    with pytest.raises(ConfigError, match=r"^where: at character [0-9]+, "):
        bind(parse(text), SCHEMA)


def test_the_longest_text_is_taken() -> None:
    text = "key = '" + "a" * (BYTES_MAX - 8) + "'"
    assert isinstance(bind(parse(text), SCHEMA), Leaf)
    assert isinstance(bind(parse(text.replace("key = '", "key!='")), SCHEMA), Leaf)
    with pytest.raises(ConfigError, match="more than 65536"):
        parse(text + " ")


def test_the_pattern_of_like_takes_each_character_as_itself() -> None:
    schema = pa.schema([("key", pa.string())])
    for number in range(1, 0x180):
        shown = chr(number).replace("\\", "\\" * 4).replace("'", "''")
        found = bind(parse(f"key LIKE '{shown}'"), schema)
        rows = pa.array([chr(number), chr(number) * 2, chr(number + 1)])
        is_all = chr(number) in "%_"
        assert matching(found, {"key": rows}).to_pylist() == [True, chr(number) == "%", is_all]


WORDS = ["key", "offset", "value", ".", "[", "]", "(", ")", "'a'", "'", "`", "5", "-", "=", "<", "IN", "NOT", "AND", "OR", "LIKE", "ESCAPE", "IS", "NULL", "BETWEEN", "TIMESTAMP", "X'00'", "\\", "\0", "ä", ","]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        bind(parse(text), SCHEMA)
