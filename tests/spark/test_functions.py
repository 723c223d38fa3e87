"""Columns of any source that Spark decodes from Avro and encodes to it, with `spark_kbatch.functions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit, struct

from spark_kbatch.errors import ConfigError
from spark_kbatch.functions import from_avro, to_avro
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import Schema
from tests.conftest import SPARK
from tests.support import avro
from tests.support.avro import framed, parsed
from tests.support.orders import FIRST, SECOND, SECOND_TYPE

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 has no UDFs over Arrow arrays"),
]


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    (tmp_path / "registry").mkdir()
    versions = FolderRegistry(tmp_path / "registry")
    assert [register(versions, one) for one in (FIRST, SECOND)] == [1, 2]
    return tmp_path / "registry"


def register(registry: FolderRegistry, schema: Any) -> int:
    return registry.register("orders-value", Schema(json.dumps(schema))).id


def first(number: int) -> bytes:
    row = {"id": number, "customer": {"id": number, "city": (1, "Rome")}}
    return framed(1, avro.encode(parsed(FIRST), row))


def second(number: int) -> bytes:
    row = {
        "id": number, "customer": {"id": number, "city": (0, None)}, "price": b"\x04\xd2", "tags": ["a", "b"],
        "counts": {"x": 1}, "at": (1, 1_700_000_000_123), "local": (1, 1_700_000_000_123_456), "day": 19_000,
        "either": (2, number),
    }  # fmt: skip
    return framed(2, avro.encode(parsed(SECOND), row))


def a_frame(spark: SparkSession, payloads: Sequence[bytes | None]) -> DataFrame:
    """Return rows with a number and bytes, all in one task."""
    rows = list(enumerate(payloads))
    return spark.createDataFrame(rows, "n int, payload binary").coalesce(1)


def test_each_row_is_decoded_with_the_schema_that_its_id_names(
    spark: SparkSession, registry: Path
) -> None:
    frame = a_frame(spark, [first(0), second(1), None, second(3), first(4)])

    found = frame.select(
        "n", from_avro("payload", registry=registry, subject="orders-value").alias("order")
    )

    assert found.schema["order"].dataType.simpleString() == SECOND_TYPE
    assert [row.n for row in found.collect()] == [0, 1, 2, 3, 4]
    orders = [row.order for row in found.collect()]
    assert orders[2] is None
    assert [order.id for order in orders if order] == [0, 1, 3, 4]
    assert orders[0].asDict(True) | {"either": None} == {
        "id": 0, "customer": {"id": 0, "city": "Rome"}, "price": Decimal("0.00"), "tags": [], "counts": {},
        "at": None, "local": None, "day": date(1970, 1, 1), "either": None,
    }  # fmt: skip
    instant = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert orders[1].asDict(True) | {"at": orders[1].at.astimezone(UTC)} == {
        "id": 1, "customer": {"id": 1, "city": None}, "price": Decimal("12.34"), "tags": ["a", "b"],
        "counts": {"x": 1}, "at": instant, "local": instant.replace(tzinfo=None, microsecond=123456),
        "day": date(2022, 1, 8), "either": {"member0": None, "member1": 1},
    }  # fmt: skip


def test_what_cannot_be_decoded_is_told_beside_the_value(
    spark: SparkSession, registry: Path
) -> None:
    frame = a_frame(spark, [first(0), b"{}", None])
    order = from_avro(
        "payload", registry=registry, subject="orders-value", fields="id", mode="PERMISSIVE", include_schema_id=True
    )  # fmt: skip

    found = frame.select(order.alias("order")).select("order.*")

    assert (
        found.schema.simpleString() == "struct<value:struct<id:bigint>,schema_id:int,error:string>"
    )
    good, bad, null = found.collect()
    assert (good, null) == (Row(value=Row(id=0), schema_id=1, error=None), Row(None, None, None))
    assert (bad.value, bad.schema_id) == (None, None)
    assert bad.error.endswith("it looks like JSON")


def test_what_cannot_be_decoded_fails_the_job_with_an_error_of_one_line(
    spark: SparkSession, registry: Path
) -> None:
    frame = a_frame(spark, [first(0), first(1)[:6]])
    with pytest.raises(PythonException) as told:
        frame.select(from_avro("payload", registry=registry, subject="orders-value")).collect()

    assert "InvalidValueError: row 1: customer.id: the value ends" in str(told.value)
    assert 'mode="PERMISSIVE"' in str(told.value)
    assert "columns/functions.py" not in str(told.value)


def test_columns_of_any_origin_are_encoded_and_come_back(
    spark: SparkSession, registry: Path, tmp_path: Path
) -> None:
    spark.range(3).selectExpr(
        "id", "struct(CAST(id AS INT) AS id, 'Rome' AS city) AS customer"
    ).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows")).coalesce(1).orderBy("id")
    order = struct("id", "customer")

    found = rows.select(
        to_avro(order, registry=registry, subject="orders-value", schema="version:1")
    )
    assert [value for (value,) in found.collect()] == [first(n) for n in range(3)]

    bare = rows.select(to_avro(order, SECOND).alias("bare")).select(
        from_avro("bare", FIRST | {"fields": SECOND["fields"]})
    )
    assert [row.id for (row,) in bare.collect()] == [0, 1, 2]
    more = struct("id", "customer", lit(1).alias("more"))
    found = rows.select(to_avro(more, registry=registry, subject="orders-value"))
    with pytest.raises(PythonException, match=r"column 'more' cannot be written with schema id 2"):
        found.collect()


def test_a_schema_is_made_of_the_type_of_a_column(spark: SparkSession, registry: Path) -> None:
    rows = spark.range(1).selectExpr(
        "id", "DATE'2024-10-25' AS day", "TIMESTAMP'2024-10-25 10:00:00' AS at"
    )
    known: dict[str, Any] = {"registry": registry, "subject": "days"}

    payload = to_avro(struct("*"), rows.schema, auto_register=True, **known)
    again = rows.select(payload.alias("payload")).select(from_avro("payload", **known).alias("row"))

    assert again.select("row.*").collect() == rows.collect()
    made = json.loads(FolderRegistry(registry).version("days", 1).schema.text)
    assert [one["name"] for one in made["fields"]] == ["id", "day", "at"]
    with pytest.raises(ConfigError, match=r"give it, such as df\.schema"):
        to_avro(struct("id"), auto_register=True, **known)


def test_a_stream_decodes_and_encodes(spark: SparkSession, registry: Path, tmp_path: Path) -> None:
    a_frame(spark, [first(0), second(1)]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("n int, payload binary").parquet(str(tmp_path / "in"))
    known: dict[str, Any] = {"registry": registry, "subject": "orders-value"}
    orders = stream.select(from_avro("payload", fields=["id", "customer"], **known).alias("order"))
    query = (
        orders.select(to_avro("order", schema="version:1", **known).alias("payload"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()

    found = spark.read.parquet(str(tmp_path / "out")).collect()
    without_city = framed(
        1, avro.encode(parsed(FIRST), {"id": 1, "customer": {"id": 1, "city": (0, None)}})
    )
    assert sorted(row.payload for row in found) == sorted([first(0), without_city])


def test_no_plan_has_a_secret(spark: SparkSession) -> None:
    registry = {"url": "http://localhost:1", "bearer.auth.token": "secret-of-the-test"}
    order = from_avro("payload", FIRST, registry=registry)

    plan = a_frame(spark, [None]).select(order)._jdf.queryExecution().toString()

    assert "from_avro(payload" in plan
    assert "secret-of-the-test" not in plan + str(order)
