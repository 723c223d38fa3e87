"""JSONTestSuite by Nicolas Seriot: JSON is taken, and what is none refused; a table has the rest.

Its cases are in json_test_suite.txt, with their licence.
"""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kbatch.values.json_decoder import JsonDecoder
from tests.support.json_rules import JsonRules

SUITE = Path(__file__).with_name("json_test_suite.txt")
# Of what the suite leaves to parsers, what is taken. A string takes any number, as it is written;
# all others are text that is not Unicode: lone surrogates, bytes that are not UTF-8, a BOM.
TAKEN = {
    "i_number_double_huge_neg_exp",
    "i_number_huge_exp",
    "i_number_neg_int_huge_exp",
    "i_number_pos_double_huge_exp",
    "i_number_real_neg_overflow",
    "i_number_real_pos_overflow",
    "i_number_real_underflow",
    "i_number_too_big_neg_int",
    "i_number_too_big_pos_int",
    "i_number_very_big_negative_int",
    "i_structure_500_nested_arrays",
}
# Items of `array<double>`; the others that are taken are beyond what a double holds.
AS_DOUBLES = {
    "i_number_double_huge_neg_exp": [0.0],
    "i_number_real_underflow": [0.0],
    "i_number_too_big_neg_int": [-123123123123123123123123123123.0],
    "i_number_too_big_pos_int": [1e20],
    "i_number_very_big_negative_int": [-2.374623746732769e47],
}


def cases() -> dict[str, bytes]:
    """Return the bytes of each case, by name; some are written as a product."""
    found = {}
    for line in SUITE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("y_", "n_", "i_")):
            name, _, text = line.partition(" ")
            repeated, _, count = text.partition(" * ")
            count, _, rest = count.partition(" + ")
            found[name] = literal_eval(repeated) * int(count or 1) + literal_eval(rest or "b''")
    return found


CASES = cases()


def is_taken(name: str) -> bool:
    return name.startswith("y_") or name in TAKEN


def test_the_suite_is_whole() -> None:
    assert len(CASES) == 318
    assert {name for name in CASES if name in TAKEN} == TAKEN


def test_each_case_is_taken_or_refused_as_its_name_says() -> None:
    names = list(CASES)

    found = JsonDecoder(pa.string()).decode(pa.array(CASES.values(), pa.binary()))

    refused = {names[error.row] for error in found.errors}
    assert refused == {name for name in names if not is_taken(name)}
    rules = JsonRules(pa.string())
    assert found.values.to_pylist() == [rules.decode(data).value for data in CASES.values()]


@pytest.mark.parametrize(
    ("head", "tail"),
    [(b'{"unknown": ', b"}"), (b'{"a": ', b"}"), (b'{"unknown": [0, ', b', {"b": 1}], "a": "x"}')],
)
def test_a_case_within_a_document_is_taken_or_refused_too(head: bytes, tail: bytes) -> None:
    names = list(CASES)
    rows = [head + data + tail for data in CASES.values()]

    found = JsonDecoder(pa.struct([("a", pa.string())])).decode(pa.array(rows, pa.binary()))

    refused = {names[error.row] for error in found.errors}
    one_deeper = {"i_structure_500_nested_arrays"}
    assert refused == {name for name in names if not is_taken(name)} | one_deeper


def test_numbers_at_the_limits_are_the_nearest_doubles_or_refused() -> None:
    rows = {name: data for name, data in CASES.items() if name.startswith("i_number")}

    found = JsonDecoder(pa.list_(pa.float64())).decode(pa.array(rows.values(), pa.binary()))

    values = zip(rows, found.values.to_pylist(), strict=True)
    assert {name: value for name, value in values if value is not None} == AS_DOUBLES


def test_the_rules_in_plain_python_say_the_same() -> None:
    rules = JsonRules(pa.string())
    assert {name for name, data in CASES.items() if not rules.decode(data).is_bad} == {
        name for name in CASES if is_taken(name)
    }
