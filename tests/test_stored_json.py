"""Untrusted JSON: each value is as expected, or an error names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.stored_json import StoredObject, parse, parse_rows

INSIDE = (
    '{"n": 7, "t": "text", "o": {"p": [1, 2]}, "l": [{"a": 1}, {"a": "x"}], "ll": [[0, 1], [1, 0]]}'
)


def test_values_that_are_as_expected_are_given() -> None:
    found = parse(INSIDE, "FILE")

    assert found.integer("n", 7, 7) == 7
    assert found.integer("none", default=3) == 3
    assert found.text("t", re.compile("[a-z]+")) == "text"
    assert found.object("o").integers("p", count_max=2) == (1, 2)
    assert found.object("o").pair("p") == (1, 2)
    assert found.objects("l", count_max=2)[0].integer("a") == 1
    assert found.lists_of_integers("ll", 0, 1, counts_max=(2, 2)) == [(0, 1), (1, 0)]
    assert found.object("none", default={}).keys() == []
    assert dict(parse('{"0": 5, "12": 6}', "").by_number(StoredObject.integer, 12)) == {0: 5, 12: 6}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[" * 100_000, "it is not JSON: nested too deeply", id="brackets"),
        pytest.param('{"a":' * 100_000, "it is not JSON: nested too deeply", id="objects"),
        pytest.param("", "it is not JSON: ", id="empty"),
        pytest.param(b'{"a": "\xff"}', "it is not JSON: ", id="not UTF-8"),
        pytest.param(
            '{"a": ' + "1" * 5000 + "}", "it is not JSON: ", id="a number of 5,000 digits"
        ),
        pytest.param("[1, 2]", "it is a list of 2; expected a JSON object", id="a list"),
        pytest.param("null", "it is None; expected a JSON object", id="null"),
    ],
)
def test_what_is_no_object_is_damaged(text: str | bytes, words: str) -> None:
    with pytest.raises(KafkaStorageError) as error:
        parse(text, "FILE")

    assert str(error.value).startswith(f"FILE is damaged: {words}")


@pytest.mark.parametrize(
    ("take", "words"),
    [
        pytest.param(lambda f: f.integer("x"), "it has no x", id="missing"),
        pytest.param(
            lambda f: f.integer("n", 8, 9),
            "n is 7; expected a whole number from 8 to 9",
            id="range",
        ),
        pytest.param(lambda f: f.integer("t"), "t is 'text'; expected a whole number", id="type"),
        pytest.param(
            lambda f: f.text("t", re.compile("x")), "t is 'text'; expected text as x", id="pattern"
        ),
        pytest.param(lambda f: f.text("n"), "n is 7; expected text", id="no text"),
        pytest.param(
            lambda f: f.object("o").integer("p"), "o.p is a list of 2; expected", id="within"
        ),
        pytest.param(lambda f: f.object("n"), "n is 7; expected a JSON object", id="no object"),
        pytest.param(
            lambda f: f.objects("l", count_max=2)[1].integer("a"), "l[1].a is 'x'", id="in a list"
        ),
        pytest.param(lambda f: f.objects("l", count_max=1), "l is a list of 2; ", id="too many"),
        pytest.param(
            lambda f: f.lists_of_integers("ll", 1, 2, counts_max=(2, 2)), "ll[0] is", id="lists"
        ),
        pytest.param(
            lambda f: list(f.by_number(StoredObject.integer, 9)),
            "n is 7; expected a number up",
            id="key",
        ),
    ],
)
def test_the_key_is_named_with_what_was_found_and_expected(
    take: Callable[[StoredObject], Any], words: str
) -> None:
    with pytest.raises(KafkaStorageError) as error:
        take(parse(INSIDE, "FILE"))

    assert str(error.value).startswith(f"FILE is damaged: {words}")


@pytest.mark.parametrize("value", [True, 1.0, 1e400, "1", None, [], {}, -1, 2**63])
def test_only_whole_numbers_are_numbers(value: Any) -> None:
    for take in (
        lambda: StoredObject({"a": value}, "FILE").integer("a"),
        lambda: StoredObject({"a": [value]}, "FILE").integers("a", count_max=1),
        lambda: StoredObject({"a": [0, value]}, "FILE").pair("a"),
    ):
        with pytest.raises(KafkaStorageError):
            take()


@pytest.mark.parametrize("value", [[], [1, 1], [1, 2, 3], 1, {}], ids=str)
def test_lists_have_so_many_different_numbers(value: Any) -> None:
    with pytest.raises(KafkaStorageError):
        StoredObject({"a": value}, "FILE").integers("a", count_max=2)


def test_rows_have_the_types_that_are_asked_for() -> None:
    assert parse_rows('[["a", 1], ["b", 2]]', "FILE", str, int) == [("a", 1), ("b", 2)]
    for text in ("{}", "[1]", '[["a"]]', '[["a", true]]', '[[1, "a"]]', "[" * 10**5):
        with pytest.raises(KafkaStorageError, match="FILE is damaged: "):
            parse_rows(text, "FILE", str, int)


def test_a_record_has_an_error_of_its_own() -> None:
    with pytest.raises(CorruptRecordError, match="record 7 is damaged: it has no a"):
        parse("{}", "record 7", damaged=CorruptRecordError).integer("a")
