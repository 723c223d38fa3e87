"""Conditions on Arrow columns against an interpreter of single rows in plain Python."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from hypothesis import given, settings

from spark_kbatch.condition.binding import bind, columns_of
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.text import parse
from tests.condition import interpreted
from tests.condition.interpreted import SCHEMA, Condition, Row


def _found(text: str, columns: dict[str, Any], count: int) -> list[bool | None]:
    found = matching(pickle.loads(pickle.dumps(bind(parse(text), SCHEMA))), columns)
    return [found.as_py()] * count if isinstance(found, pa.Scalar) else found.to_pylist()


@given(interpreted.conditions(), interpreted.rows())
@settings(max_examples=400, deadline=None)
def test_a_condition_means_what_it_means_row_by_row(condition: Condition, rows: list[Row]) -> None:
    text, meaning = condition

    found = _found(text, interpreted.columns(rows), len(rows))

    assert found == [meaning(row) for row in rows], text


@given(interpreted.conditions(), interpreted.rows())
@settings(max_examples=100, deadline=None)
def test_slices_and_missing_columns_lose_no_row(condition: Condition, rows: list[Row]) -> None:
    text, meaning = condition
    wanted = [meaning(row) for row in rows]
    columns = interpreted.columns([*rows, *rows])
    halves = {
        name: one if isinstance(one, pa.Scalar) else one[len(rows) :]
        for name, one in columns.items()
    }
    lacking = {name: one for name, one in halves.items() if name != "value"}

    assert _found(text, halves, len(rows)) == wanted
    may_be = _found(text, lacking, len(rows))
    assert all(one or not is_true for one, is_true in zip(may_be, wanted, strict=True))
    if "value" not in columns_of(bind(parse(text), SCHEMA)):
        assert may_be == wanted
