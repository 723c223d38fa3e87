"""Columns that Spark writes as JSON: what `to_json` makes of them is the judge, but for a table in docs/values.md."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import expr, to_json

from spark_kbatch.errors import SchemaError
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.values.json_decoder import JsonDecoder
from spark_kbatch.values.json_encoder import JsonEncoder
from tests.conftest import REPOSITORY
from tests.support import draws
from tests.support.ddls import ddl_of
from tests.support.frames import load, save, use_in_this_thread
from tests.support.json_documents import Documents, a_type
from tests.support.more_in_soak import is_soak

pytestmark = pytest.mark.spark

DOCUMENTS, TYPES = 50, 10  # of each type, and in one job
FRACTION = re.compile(r"(T\d\d:\d\d:\d\d)(\.\d+)?(Z?)")


class Difference(NamedTuple):
    """A row of the table."""

    what: str
    column: str  # in SQL
    here: str  # or "error", or "refused"
    there: str


def table() -> list[Difference]:
    page = (REPOSITORY / "docs/values.md").read_text(encoding="utf-8")
    _, _, section = page.partition("### What differs from Spark's `to_json`\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = ([one.strip().strip("`") for one in row.strip("|").split(" | ")] for row in rows[1:])
    return [Difference(*one) for one in cells]


def test_the_table_is_what_differs(spark: SparkSession) -> None:
    rows = table()
    assert len(rows) > 7
    columns = [expr(f"struct({one.column} AS a)") for one in rows]
    frame = spark.range(1).select(*columns)
    theirs = frame.select(*(to_json(f"`{name}`") for name in frame.columns)).first()
    assert theirs is not None
    for one, column, there in zip(rows, frame.toArrow().columns, theirs, strict=True):
        assert (here_of(column), there) == (in_struct(one.here), in_struct(one.there)), one.what
        assert one.here != one.there


def here_of(column: pa.ChunkedArray) -> str:
    try:
        found = JsonEncoder(column.type).encode(column)
    except SchemaError:
        return "refused"
    (value,) = found.values.to_pylist()
    return "error" if found.errors else value.decode()


def in_struct(text: str) -> str:
    return text if text in ("error", "refused") else f'{{"a":{text}}}' if text else "{}"


@pytest.mark.more_in_soak
def test_all_other_columns_are_written_as_to_json_does(spark: SparkSession) -> None:
    seeds = list(draws.seeds(400 if is_soak() else TYPES))
    for at in range(0, len(seeds), TYPES):
        kinds, columns = [], {}
        for seed in seeds[at : at + TYPES]:
            rng = random.Random(seed)
            kinds.append(a_type(rng))
            documents = Documents(rng, kinds[-1], is_plain=True)
            data = pa.array([documents.fitting() for _ in range(DOCUMENTS)], pa.binary())
            columns[f"c{seed}"] = JsonDecoder(kinds[-1]).decode(data).values

        names = ", ".join(f"{name} {ddl_of(one)}" for name, one in zip(columns, kinds, strict=True))
        frame = spark.createDataFrame(pa.table(columns), names).coalesce(1)
        found = frame.select(*(to_json(one, {"timeZone": "UTC"}).alias(one) for one in columns))
        theirs = found.toArrow()

        for kind, (name, column) in zip(kinds, columns.items(), strict=True):
            found = JsonEncoder(kind).encode(column)
            about = f"{ddl_of(kind)}: {draws.again(int(name[1:]))}"
            assert found.errors == (), about
            pairs = zip(found.values.to_pylist(), theirs[name].to_pylist(), strict=True)
            for here, there in pairs:
                assert alike(json.loads(here), json.loads(there)), (here, there, about)


def alike(here: Any, there: Any) -> bool:
    """Return True if two documents differ in how numbers and fractions of seconds are written alone."""
    if isinstance(here, dict):
        values = zip(here.values(), there.values(), strict=True)
        return list(here) == list(there) and all(alike(*one) for one in values)
    if isinstance(here, list):
        return len(here) == len(there) and all(alike(*one) for one in zip(here, there, strict=True))
    if isinstance(here, float) and isinstance(there, float):
        return here == there or np.float32(here) == np.float32(there)
    if isinstance(here, str) and isinstance(there, str):
        return FRACTION.sub(in_ms, here) == FRACTION.sub(in_ms, there)
    return type(here) is type(there) and here == there


def in_ms(found: re.Match[str]) -> str:
    return f"{found[1]}{(found[2] or '.').ljust(4, '0')[:4]}{found[3]}"


def test_a_frame_is_written_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Also one in whose session times are in another zone."""
    frame = spark.sql(
        "SELECT id AS key, CASE WHEN id < 2 THEN struct(id, TIMESTAMP'2024-10-25 08:00:00.5Z' AS at, "
        "array('a', NULL) AS tags) END AS value FROM range(3)"
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        save(frame, tmp_path / "c", topic="orders", key_format="json", value_format="json")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))

    text = '{"id":%d,"at":"2024-10-25T08:00:00.5Z","tags":["a",null]}'
    rows = load(spark, tmp_path / "c", subscribe="orders").orderBy("offset").collect()
    assert [row.key.decode() for row in rows] == ["0", "1", "2"]
    assert [row.value and row.value.decode() for row in rows] == [text % 0, text % 1, None]
    options = {"value.format": "json", "value.schema": "id bigint, tags array<string>"}
    found = load(spark, tmp_path / "c", subscribe="orders", **options).orderBy("offset").collect()
    assert [row.value for row in found] == [*(Row(id=n, tags=["a", None]) for n in (0, 1)), None]

    bad = spark.sql("SELECT struct(id, DATE'+10000-01-01' AS day) AS value FROM range(1)")
    with pytest.raises(Exception, match=r"row 0: value\.day: the year is none of 1 to 9999"):
        save(bad, tmp_path / "c", topic="orders", value_format="json")
    bad = spark.sql("SELECT struct(map(1, 2) AS m) AS value")
    with pytest.raises(Exception, match=r"'value\.m' cannot be written: JSON has no form for map"):
        save(bad, tmp_path / "c", topic="orders", value_format="json")
    assert load(spark, tmp_path / "c", subscribe="orders").count() == 3


def test_a_stream_is_written_with_a_schema_of_its_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    use_in_this_thread(spark)
    (tmp_path / "registry").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.txt").write_text("a\nb\n")
    registry = {"schema.registry.url": str(tmp_path / "registry"), "value.format": "json"}
    lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("struct(value AS name) AS value")
    writer = lines.writeStream.format("kbatch").option("topic", "names").options(**registry)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="a stream looks up for each micro-batch"):
        writer.trigger(availableNow=True).start(str(tmp_path / "c")).awaitTermination()

    options = {"checkpointLocation": str(tmp_path / "other"), "auto.register.schemas": "true"}
    query = writer.options(**options).trigger(availableNow=True).start(str(tmp_path / "c"))
    query.awaitTermination()
    assert query.exception() is None

    found = load(spark, tmp_path / "c", subscribe="names", includeSchemaId="true", **registry)
    rows = found.select("value.name", "value_schema_id").collect()
    assert sorted(map(tuple, rows)) == [("a", 1), ("b", 1)]
    assert FolderRegistry(tmp_path / "registry").versions("names-value") == [1]
