"""Documents of all kinds, damaged ones too, decode as the rules say, which plain Python reads."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.values.json_decoder import JsonDecoder
from tests.support import draws
from tests.support.avro import framed
from tests.support.ddls import ddl_of
from tests.support.json_documents import Documents, a_type
from tests.support.json_rules import JsonRules, Judged, comparable
from tests.support.more_in_soak import is_soak

DOCUMENTS = 10  # of each type
LENIENT = ("zone", "digits")


@pytest.mark.more_in_soak
def test_values_and_errors_are_those_of_the_rules() -> None:
    outcomes = Counter[str]()
    for seed in draws.seeds(2000 if is_soak() else 50):
        try:
            decode_as_the_rules_say(random.Random(seed), outcomes)
        except BaseException as error:
            error.add_note(draws.again(seed))
            raise
    if draws.IS_DEFAULT:
        assert 0.2 < outcomes["refused"] / outcomes.total() < 0.5, outcomes


def decode_as_the_rules_say(rng: random.Random, outcomes: Counter[str]) -> None:
    kind = a_type(rng)
    is_framed = rng.random() < 0.2
    lenient = [one for one in LENIENT if rng.random() < 0.4] if rng.random() < 0.4 else []
    rows = some_rows(rng, kind, is_framed=is_framed)
    rules = JsonRules(kind, is_framed=is_framed, lenient=lenient)
    judged = [rules.decode(row) for row in rows]

    array = pa.array(rows, rng.choice((pa.binary(), pa.large_binary())))
    found = JsonDecoder(kind, is_framed=is_framed, lenient=lenient).decode(array)

    found.values.validate(full=True)
    assert found.values.type == kind
    errors = {error.row: error for error in found.errors}
    assert len(errors) == len(found.errors)
    values = found.values.to_pylist()
    for row, (data, right) in enumerate(zip(rows, judged, strict=True)):
        outcomes["refused" if right.is_bad else "read"] += 1
        about = f"{ddl_of(kind)}, {lenient}: {data!r}"
        assert (row in errors) == right.is_bad, (about, right, errors.get(row))
        assert comparable(values[row]) == comparable(right.value), about
        assert found.schema_ids[row] == right.schema_id, about
        if right.is_bad:
            assert_its_place(errors[row], right, data or b"", about)


def some_rows(rng: random.Random, kind: pa.DataType, *, is_framed: bool) -> list[bytes | None]:
    documents = Documents(rng, kind)
    rows: list[bytes | None] = [documents.any() for _ in range(DOCUMENTS)]
    if is_framed:
        rows = [framed(rng.choice((0, 7, 2**31 - 1)), row) for row in rows if row is not None]
        rows += rng.sample(
            (b"", b"\0", b"\0\0\0\0", b"\xff\0\0\0\7{}", b"\0\xff\0\0\7{}", b"{}"), 2
        )
    rows += [None, b""]
    rng.shuffle(rows)
    return rows


def assert_its_place(error: Any, right: Judged, data: bytes, about: str) -> None:
    """An error has the path of the first that does not fit, and a place within the value."""
    assert error.reason, about
    assert error.position is None or 0 <= error.position <= len(data), (about, error)
    if right.is_json:
        assert error.path == right.paths[0], (about, error, right)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_empty_value_and_a_double_one_do_not_cancel_out(count: int) -> None:
    whole = [f'{{"a": {number}}}'.encode() for number in range(count)]
    rows = [whole[0], b"", *whole, b'{"a": 8}{"a": 9}', whole[0]]

    found = JsonDecoder(pa.struct([("a", pa.int64())])).decode(pa.array(rows))

    right = [0, None, *range(count), None, 0]
    assert found.values.field("a").to_pylist() == right
    assert [error.row for error in found.errors] == [1, count + 2]
    assert found.errors[0].reason == "the value is empty"
    assert "left over" in found.errors[1].reason


@pytest.mark.parametrize("left_over", [b"{}", b"x", b"\0", b",", b"]", b"}", b" null", b"\n\n[]"])
def test_bytes_after_the_document_are_an_error_at_their_place(left_over: bytes) -> None:
    data = b' {"a": 1} '

    found = JsonDecoder(pa.struct([("a", pa.int64())])).decode(pa.array([data + left_over, data]))

    assert found.values.to_pylist() == [None, {"a": 1}]
    (error,) = found.errors
    assert (error.row, error.path) == (0, "")
    assert error.position == len(data) + len(left_over) - len(left_over.lstrip())


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ('{"customer": {"id": "x"}}', ".customer.id"),
        ('{"tags": ["a", null, {}], "n": [1, 2, true]}', ".n[]"),
        ('{"props": {"k": [1]}}', ".props{}"),
        ('{"props": {"k": 1, "k": 2}}', ".props"),
        ('{"customer": []}', ".customer"),
        ('{"customer": {"id": 1, "id": 2}}', ".customer.id"),
        ("[]", ""),
        ('"text"', ""),
    ],
)
def test_an_error_names_the_field(document: str, path: str) -> None:
    fields = {
        "customer": pa.struct([("id", pa.int64())]),
        "tags": pa.list_(pa.string()),
        "n": pa.list_(pa.int32()),
        "props": pa.map_(pa.string(), pa.int64()),
    }
    kind = pa.struct(list(fields.items()))

    (error,) = JsonDecoder(kind).decode(pa.array([document])).errors

    assert error.path == path
    assert JsonRules(kind).decode(document.encode()).paths == (path,)
