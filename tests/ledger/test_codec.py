"""The codec: each annotation is read and written as its table says, and what is wrong is named by its path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest

from spark_kbatch.errors import CorruptLedgerError, UnsupportedLedgerError
from spark_kbatch.ledger import checksummed_json
from spark_kbatch.ledger.codec import STORED_NAME, form_of, pack, sequence, text, unpack, whole
from spark_kbatch.model import LONG_MAX
from tests.support.bucket_contents import data_at

NAME = "an/object"
LETTERS = Annotated[str, text(re.compile("[a-z]+"))]


class Span(NamedTuple):
    start: int
    end: int

    @property
    def fault(self) -> str:
        return "" if self.start <= self.end else "an end after the start"


@dataclass(frozen=True)
class Inner:
    spans: tuple[Span, ...]
    some: Annotated[list[int], sequence(whole(), list, least=1, most=2)]


@dataclass(frozen=True)
class Outer:
    number: Annotated[int, whole(-1, 5), "n"]
    word: LETTERS
    pair: tuple[str, int]
    perhaps: int | None
    by_name: Mapping[LETTERS, Inner]


@dataclass(frozen=True)
class Sparse:
    first: int = 0
    second: tuple[int, ...] = ()

    leaves_out: ClassVar = True


@dataclass(frozen=True)
class Referring:
    at: tuple[Annotated[str, STORED_NAME], ...]
    number: int = 7

    has_objects: ClassVar = True


OUTER = Outer(5, "word", ("any text", 0), None, {"a": Inner((Span(1, 1),), [LONG_MAX, 2])})
AS_JSON = {
    "by_name": {"a": {"some": [LONG_MAX, 2], "spans": [[1, 1]]}},
    "n": 5,
    "pair": ["any text", 0],
    "perhaps": None,
    "word": "word",
}


def json_of(value: object, **more: int) -> Any:
    return json.loads(pack(value, **more).partition(b"\n")[0])


def test_each_annotation_is_stored_as_the_table_says() -> None:
    assert json_of(OUTER) == AS_JSON
    assert unpack(Outer, pack(OUTER), NAME) == OUTER
    found = unpack(Outer, checksummed_json.encode({**AS_JSON, "n": -1, "perhaps": 3}), NAME)
    assert (found.number, found.perhaps) == (-1, 3)


INNER = {"some": [1], "spans": []}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"n": 6}, "n is 6; expected a whole number from -1 to 5"),
        ({"n": -2}, "n is -2; expected a whole number from -1 to 5"),
        ({"n": True}, "n is True; expected a whole number"),
        ({"n": None}, "n is None; expected a whole number"),
        ({"word": ""}, "word is ''; expected text as [a-z]+"),
        ({"word": "two words"}, "word is 'two words'; expected text as [a-z]+"),
        ({"word": 1}, "word is 1; expected text"),
        ({"pair": ["a"]}, "pair is a list of 1; expected a list of 2"),
        ({"pair": {}}, "pair is an object of 0; expected a list of 2"),
        ({"pair": ["a", -1]}, f"pair is -1; expected a whole number from 0 to {LONG_MAX}"),
        ({"perhaps": "1"}, "perhaps is '1'; expected a whole number"),
        ({"by_name": []}, "by_name is a list of 0; expected a JSON object"),
        ({"by_name": {"A": INNER}}, "by_name is 'A'; expected text as [a-z]+"),
        ({"by_name": {"a": 1}}, "by_name.a is 1; expected a JSON object"),
        ({"by_name": {"a": {"some": [1]}}}, "by_name.a is an object of 1; expected an object with the key 'spans'"),
        ({"by_name": {"a": {**INNER, "spans": [[2, 1]]}}}, "by_name.a.spans is a list of 2; expected an end after the start"),
        ({"by_name": {"a": {**INNER, "spans": [[2]]}}}, "by_name.a.spans is a list of 1; expected a list of 2"),
        ({"by_name": {"a": {**INNER, "some": []}}}, "by_name.a.some is a list of 0; expected a list of 1 to 2"),
        ({"by_name": {"a": {**INNER, "some": [1, 2, 3]}}}, "by_name.a.some is a list of 3; expected a list of 1 to 2"),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_by_its_path(values: Mapping[str, Any], told: str) -> None:
    with pytest.raises(CorruptLedgerError, match=re.escape(f"{NAME} is damaged: {told}")):
        unpack(Outer, checksummed_json.encode({**AS_JSON, **values}), NAME)


def test_a_key_that_is_missing_is_named() -> None:
    values = {key: value for key, value in AS_JSON.items() if key != "n"}

    with pytest.raises(CorruptLedgerError, match="it is an object of 4; expected an object with the key 'n'"):  # fmt: skip
        unpack(Outer, checksummed_json.encode(values), NAME)


@pytest.mark.parametrize(
    "values",
    [{**AS_JSON, "number": 5}, {**AS_JSON, "by_name": {"a": {**INNER, "number": 1}}}],
    ids=["outer", "inner"],
)
def test_a_key_that_is_not_known_stops_a_reader(values: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedLedgerError, match=f"{NAME}.*it has the key 'number'"):
        unpack(Outer, checksummed_json.encode(values), NAME)


def test_where_keys_are_left_out_they_may_be_missing() -> None:
    assert json_of(Sparse(second=(1,))) == {"second": [1]}
    assert unpack(Sparse, checksummed_json.encode({"first": 2}), NAME) == Sparse(2)


def test_elsewhere_a_key_with_a_default_is_written_and_has_to_be_there() -> None:
    assert json_of(Referring(())) == {"at": [], "number": 7, "objects": []}
    with pytest.raises(CorruptLedgerError, match="the key 'number'"):
        unpack(Referring, checksummed_json.encode({"at": [], "objects": []}), NAME)


def test_names_of_objects_are_places_in_a_list_each_once() -> None:
    first, second = data_at(0), data_at(2)
    one = Referring((second, first, second))

    assert json_of(one) == {"at": [0, 1, 0], "number": 7, "objects": [second, first]}
    assert unpack(Referring, pack(one), NAME) == one


@pytest.mark.parametrize("place", [-1, 2, True, "0"], ids=repr)
def test_a_place_that_no_name_has_is_corrupt(place: object) -> None:
    values = {"at": [place], "number": 7, "objects": [data_at(1), data_at(2)]}

    with pytest.raises(CorruptLedgerError, match=r"at is .*expected the place of a name"):
        unpack(Referring, checksummed_json.encode(values), NAME)


@pytest.mark.parametrize("name", ["../../secret", 1], ids=repr)
def test_a_name_of_no_data_is_corrupt(name: object) -> None:
    with pytest.raises(CorruptLedgerError, match=r"objects is .*expected names of data"):
        unpack(Referring, checksummed_json.encode({"at": [], "number": 7, "objects": [name]}), NAME)


def test_an_object_may_have_a_version_and_then_has_to_have_it() -> None:
    assert json_of(Sparse(1), version=2) == {"first": 1, "v": 2}
    assert unpack(Sparse, pack(Sparse(1), version=2), NAME, version=2) == Sparse(1)
    with pytest.raises(UnsupportedLedgerError, match="its 'v' is 3"):
        unpack(Sparse, pack(Sparse(1), version=3), NAME, version=2)


def test_keys_are_sorted_whatever_order_they_came_in() -> None:
    assert checksummed_json.encode({"b": 1, "a": [1]}).startswith(b'{"a":[1],"b":1}\n')


def test_an_annotation_has_one_form() -> None:
    assert form_of(Outer) is form_of(Outer)
