"""Columns that Spark writes as values of Avro: what comes back, and what is refused before anything is written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

import spark_kbatch
from spark_kbatch import ConfigError, InvalidValueError, SchemaNotFoundError
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import Schema
from spark_kbatch.spark.source import KBatchDataSource
from tests.support.avro import a_record
from tests.support.frames import load

pytestmark = pytest.mark.spark

ORDER = a_record(
    ("id", "long"),
    ("tags", {"type": "array", "items": "string"}),
    {"name": "note", "type": ["null", "string"], "default": None},
    name="Order",
)
ROWS = [
    {"key": "a", "value": {"id": 1, "tags": ["x"]}},
    {"key": "b", "value": None},
    {"key": "c", "value": {"id": 3, "tags": []}},
]
KIND = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
DECODED = [{"id": 1, "tags": ["x"], "note": None}, None, {"id": 3, "tags": [], "note": None}]


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    (tmp_path / "registry").mkdir()
    FolderRegistry(tmp_path / "registry").register("orders-value", Schema(json.dumps(ORDER)))
    return tmp_path / "registry"


@pytest.fixture(params=["folder", "bucket", "served"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options of a read or a write that name a place."""
    if request.param == "bucket":
        yield {"path": f"file+bucket://{tmp_path}/bucket"}
    elif request.param == "folder":
        yield {"path": str(tmp_path / "c")}
    else:
        with spark_kbatch.open(tmp_path / "c", create=True) as cluster, cluster.serve() as server:
            cluster.create_topic("orders")
            yield {"kafka.bootstrap.servers": server.bootstrap_servers}


def sent(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(cloudpickle.dumps(value))


def write(options: dict[str, str], rows: list[dict[str, Any]], kind: pa.DataType = KIND) -> None:
    """Write rows as Spark does, each step in a process of its own."""
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("key", pa.string()), ("value", kind)]))
    schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in batch.schema])
    source = sent(KBatchDataSource({"topic": "orders", "value.format": "avro", **options}))
    writer = sent(source.writer(schema, overwrite=False))
    message = sent(sent(writer).write(iter([batch])))
    sent(writer).commit([message])


def values(options: dict[str, str], registry: Path) -> list[Any]:
    where = options.get("path") or options["kafka.bootstrap.servers"]
    with spark_kbatch.open(where) as cluster:
        rows = cluster.read("orders", columns=["value"], value_format="avro", registry=registry)
        return list(rows.read_all()["value"].to_pylist())


def test_columns_are_written_to_any_place(place: dict[str, str], registry: Path) -> None:
    write({**place, "schema.registry.url": str(registry)}, ROWS)

    assert values(place, registry) == DECODED


@pytest.mark.parametrize(
    ("kind", "value", "error", "said"),
    [
        (
            pa.struct([("id", pa.int64())]),
            {"id": 1},
            ConfigError,
            r"'value\.tags' .* with schema id 1: there is no column",
        ),
        (
            pa.struct([*KIND, ("more", pa.int64())]),
            None,
            ConfigError,
            r"'value\.more' .* no field for this column",
        ),
        (
            pa.struct([("id", pa.string()), KIND[1]]),
            None,
            ConfigError,
            r"'value\.id' cannot be written",
        ),
        (
            KIND,
            {"id": None, "tags": []},
            InvalidValueError,
            r"row 0: value\.id: the value is null.*schema id 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, registry: Path, kind: pa.DataType, value: Any, error: type[Exception], said: str
) -> None:
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        options = {"path": str(tmp_path / "c"), "schema.registry.url": str(registry)}
        with pytest.raises(error, match=said):
            write(options, [{"key": "a", "value": value}], kind)
        assert cluster.read("orders").read_all().num_rows == 0


def test_a_schema_is_registered_only_if_that_is_asked_for(tmp_path: Path, registry: Path) -> None:
    schema = a_record(("id", "long"), ("tags", {"type": "array", "items": "string"}), name="Order")
    options = {
        "path": str(tmp_path / "c"), "schema.registry.url": str(registry), "value.schema": json.dumps(schema),
    }  # fmt: skip
    with pytest.raises(
        SchemaNotFoundError, match="the version of subject 'orders-value' with a schema"
    ):
        write(options, ROWS)

    write({**options, "auto.register.schemas": "true"}, ROWS)
    assert FolderRegistry(registry).versions("orders-value") == [1, 2]
    assert values(options, registry)[0] == {"id": 1, "tags": ["x"]}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("RecordNameStrategy", "Order"), ("TopicRecordNameStrategy", "orders-Order")],
)
def test_a_subject_follows_from_the_record(
    tmp_path: Path, registry: Path, strategy: str, subject: str
) -> None:
    options = {
        "path": str(tmp_path / "c"), "schema.registry.url": str(registry), "value.schema": json.dumps(ORDER),
        "value.subject.name.strategy": strategy,
    }  # fmt: skip
    with pytest.raises(SchemaNotFoundError, match=f"subject '{subject}' with a schema"):
        write(options, ROWS)

    write({**options, "auto.register.schemas": "true"}, ROWS)
    assert FolderRegistry(registry).versions(subject) == [1]
    assert values(options, registry) == DECODED
    with pytest.raises(ConfigError, match=r"the schema is no record: give 'value\.subject'"):
        write({**options, "value.schema": '"string"'}, ROWS)


def test_a_schema_is_made_of_the_columns(tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    options = {
        "path": str(tmp_path / "c"), "schema.registry.url": str(registry), "auto.register.schemas": "true",
    }  # fmt: skip
    write(options, ROWS)
    write(options, ROWS)  # with the same schema
    more = pa.struct([*KIND, ("note", pa.string())])
    write(options, [{"key": "d", "value": {"id": 4, "tags": None, "note": "n"}}], more)

    versions = FolderRegistry(registry)
    assert versions.versions("orders-value") == [1, 2]
    assert json.loads(versions.version("orders-value", 1).schema.text) == {
        "type": "record", "name": "orders_value", "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}], "default": None},
        ],
    }  # fmt: skip
    assert values(options, registry) == [*DECODED, *DECODED, {"id": 4, "tags": None, "note": "n"}]

    named = {
        **options,
        "value.record.name": "shop.Order",
        "value.subject.name.strategy": "RecordNameStrategy",
    }
    write(named, ROWS)
    assert json.loads(versions.version("shop.Order", 1).schema.text)["name"] == "shop.Order"
    for bad, said in [
        (pa.struct([("order id", pa.int64())]), r"made of column 'value\.order id': names of Avro"),
        (pa.struct([("span", pa.duration("us"))]), r"'value\.span': a column of type duration"),
    ]:
        with pytest.raises(ConfigError, match=said):
            write(options, [], bad)
    assert versions.versions("orders-value") == [1, 2]


def test_a_stream_names_its_schema(tmp_path: Path, registry: Path) -> None:
    options = {
        "path": str(tmp_path / "c"), "topic": "orders", "value.format": "avro", "schema.registry.url": str(registry),
    }  # fmt: skip
    schema = StructType([StructField("value", from_arrow_type(KIND))])
    with pytest.raises(ConfigError, match="a stream looks up for each micro-batch"):
        KBatchDataSource(options).streamWriter(schema, overwrite=False)
    for given in ({"value.schema": "version:1"}, {"auto.register.schemas": "true"}):
        KBatchDataSource({**options, **given}).streamWriter(schema, overwrite=False)


def test_a_frame_is_written_and_read_by_spark(
    spark: SparkSession, tmp_path: Path, registry: Path
) -> None:
    options = {"value.format": "avro", "schema.registry.url": str(registry)}
    frame = spark.sql(
        "SELECT CAST(id AS STRING) AS key, struct(id, array('a') AS tags, 'n' AS note) AS value FROM range(3)"
    )
    frame.write.format("kbatch").options(topic="orders", **options).mode("append").save(
        str(tmp_path / "c")
    )

    found = load(spark, tmp_path / "c", subscribe="orders", **options).orderBy("offset").collect()
    assert [row.value for row in found] == [Row(id=n, tags=["a"], note="n") for n in range(3)]
