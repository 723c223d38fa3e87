"""Spark's own `from_json` as the judge of JSON: docs/values.md has a table of all that differs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, lit

from spark_kbatch.values.json_decoder import JsonDecoder
from spark_kbatch.values.types import parse_ddl
from tests.conftest import REPOSITORY, SPARK
from tests.support import draws
from tests.support.ddls import ddl_of
from tests.support.json_documents import Documents, a_type
from tests.support.json_rules import comparable
from tests.support.more_in_soak import is_soak

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(SPARK < (4, 3), reason="the table is about Spark 4.3"),
]

FAILS = "the query fails"
DOCUMENTS, TYPES = 50, 10  # of each type, and in one job


class Difference(NamedTuple):
    """A row of the table; values as Spark shows them."""

    what: str
    ddl: str
    value: bytes
    here: str  # or "error"
    there: str  # or FAILS


def table() -> list[Difference]:
    page = (REPOSITORY / "docs/values.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## What differs from Spark's `from_json`\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = ([one.strip() for one in row.strip("|").split(" | ")] for row in rows[1:])
    return [
        Difference(
            what, kind.strip("`"), as_bytes(value.strip("`")), here.strip("`"), there.strip("`")
        )
        for what, kind, value, here, there in cells
    ]


def as_bytes(text: str) -> bytes:
    """Return the bytes that a cell stands for."""
    found = b""
    for at, part in enumerate(re.split("⟨(.*?)⟩", text)):
        if at % 2 == 0:
            found += part.encode()
        elif " of " in part:
            count, what = part.split(" of ")
            found += what.encode() * int(count)
        else:
            found += bytes.fromhex(part)
    return found


DIFFERENCES = table()


def in_one_row(spark: SparkSession, columns: Iterable[pa.Array]) -> DataFrame:
    """Return arrays of the same length as columns c0, c1, ..."""
    made = {f"c{number}": one for number, one in enumerate(columns)}
    return spark.createDataFrame(pa.table(made)).coalesce(1)


def by_spark(number: int, its_ddl: str) -> Column:
    return from_json(col(f"c{number}").cast("string"), its_ddl)


@pytest.fixture(scope="module")
def shown(spark: SparkSession) -> list[tuple[str, str]]:
    """What each row of the table is, here and there, as Spark shows it."""
    today = datetime.now(UTC).date().isoformat()
    values = [pa.array([one.value], pa.binary()) for one in DIFFERENCES]
    theirs = [
        lit(FAILS) if one.there == FAILS else by_spark(number, one.ddl).cast("string")
        for number, one in enumerate(DIFFERENCES)
    ]
    there = only_row(in_one_row(spark, values).select(*theirs))
    kinds = [parse_ddl(one.ddl) for one in DIFFERENCES]
    found = [JsonDecoder(kind).decode(one) for kind, one in zip(kinds, values, strict=True)]
    frame = in_one_row(spark, (one.values for one in found))
    here = only_row(frame.select(*(col(name).cast("string") for name in frame.columns)))
    return [
        ("error" if one.errors else ours or "null", (other or "null").replace(today, "TODAY"))
        for one, ours, other in zip(found, here, there, strict=True)
    ]


def only_row(frame: DataFrame) -> Sequence[str | None]:
    (row,) = frame.collect()
    return row


def test_the_table_is_there() -> None:
    assert len(DIFFERENCES) > 50


@pytest.mark.parametrize("number", range(len(DIFFERENCES)), ids=[one.what for one in DIFFERENCES])
def test_a_row_of_the_table(shown: list[tuple[str, str]], number: int) -> None:
    one = DIFFERENCES[number]
    assert shown[number] == (one.here, one.there)
    assert one.here != one.there


@pytest.mark.parametrize("one", [one for one in DIFFERENCES if one.there == FAILS])
def test_a_query_fails(spark: SparkSession, one: Difference) -> None:
    frame = in_one_row(spark, [pa.array([one.value], pa.binary())])
    with pytest.raises(Exception, match="INTERNAL_ERROR"):
        frame.select(by_spark(0, one.ddl)).collect()


@pytest.mark.more_in_soak
def test_all_other_values_are_those_of_from_json(spark: SparkSession) -> None:
    seeds = list(draws.seeds(400 if is_soak() else TYPES))
    for at in range(0, len(seeds), TYPES):
        kinds, columns = [], []
        for seed in seeds[at : at + TYPES]:
            rng = random.Random(seed)
            kinds.append(a_type(rng))
            documents = Documents(rng, kinds[-1], is_plain=True)
            columns.append(pa.array([documents.fitting() for _ in range(DOCUMENTS)], pa.binary()))

        theirs = [by_spark(number, ddl_of(one)) for number, one in enumerate(kinds)]
        table = in_one_row(spark, columns).select(*theirs).toArrow()

        for seed, kind, column, there in zip(
            seeds[at:], kinds, columns, table.columns, strict=False
        ):
            here = JsonDecoder(kind).decode(column)
            about = f"{ddl_of(kind)}: {draws.again(seed)}"
            assert here.errors == (), about
            assert comparable(here.values.to_pylist()) == comparable(there.to_pylist()), about
