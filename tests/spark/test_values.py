"""Values as columns through Spark: few tests run a job; most do what Spark's processes do, without a session.

What each kind of record becomes is in `tests/columns/test_values.py`: rows are made in one place.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType, _parse_datatype_string

import spark_kbatch
from spark_kbatch import Cluster, ConfigError, RecordDeserializationError
from spark_kbatch.errors import SchemaError
from spark_kbatch.spark.source import ROW_SCHEMA, KBatchDataSource
from spark_kbatch.spark.writer import IN_UTC
from spark_kbatch.values.avro_schema import parse
from spark_kbatch.values.layout import arrow_type
from tests.conftest import REPOSITORY
from tests.support import avro
from tests.support.avro import a_record, framed, parsed
from tests.support.frames import load
from tests.support.orders import FIRST, SECOND, SECOND_TYPE

pytestmark = pytest.mark.spark

AVRO = {"subscribe": "orders", "value.format": "avro"}
DDL = "id bigint, tags array<string>, at timestamp, counts map<string, tinyint>, customer struct<City: string>"
JSON = {"subscribe": "orders", "value.format": "json", "value.schema": DDL}


def first(number: int) -> bytes:
    row = {"id": number, "customer": {"id": number, "city": (1, "Rome")}}
    return framed(7, avro.encode(parsed(FIRST), row))


def second(number: int) -> bytes:
    row = {
        "id": number, "customer": {"id": number, "city": (0, None)}, "price": b"\x05\x00", "tags": ["a", "b"],
        "counts": {"k": 1}, "at": (1, 1000), "local": (1, 5), "day": 1, "either": (2, 8),
    }  # fmt: skip
    return framed(9, avro.encode(parsed(SECOND), row))


def registered(folder: Path, **versions: Any) -> None:
    """Have a folder be a registry with these schemas of the subject `orders-value`: `id_7`."""
    (folder / "ids").mkdir(parents=True, exist_ok=True)
    subjects = {"orders-value": {}}
    for version, (name, schema) in enumerate(versions.items(), 1):
        number = int(name.removeprefix("id_"))
        (folder / f"ids/{number}.json").write_text(json.dumps({"schema": schema}))
        subjects["orders-value"][str(version)] = number
    (folder / "subjects.json").write_text(json.dumps(subjects))


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    registered(tmp_path / "registry", id_7=FIRST, id_9=SECOND)
    return tmp_path / "registry"


def fill(cluster: Cluster, *values: bytes | None) -> None:
    with cluster.producer(flush=False) as producer:
        for value in values:
            producer.send("orders", value, partition=0)


@pytest.fixture(params=["folder", "bucket", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return str(tmp_path / "c") if request.param == "folder" else f"file+bucket://{tmp_path}/bucket"


def sent(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(cloudpickle.dumps(value))


class Source:
    """The data source as Spark uses it: each step in a process of its own."""

    def __init__(self, path: object, registry: Path | None, **options: str) -> None:
        """Read values of Avro with a registry, of JSON without one."""
        of = JSON if registry is None else {**AVRO, "schema.registry.url": str(registry)}
        dotted = {key.replace("__", "."): value for key, value in options.items()}
        self._options = {"path": str(path), **of, **dotted}

    def schema(self) -> StructType:
        source = sent(KBatchDataSource(self._options))
        found = source.schema()
        self._planned = sent(source)
        return found

    def read(self, schema: StructType | None = None) -> list[dict[str, Any]]:
        """Read in batch; a schema is a user's."""
        if schema is None:
            schema = self.schema()
            source = self._planned
        else:
            source = sent(KBatchDataSource(self._options))
        reader = sent(source.reader(schema))
        return [
            row
            for part in sent(reader.partitions())
            for row in self._rows(sent(reader).read(part), schema)
        ]

    def _rows(self, batches: Iterator[Any], schema: StructType) -> Iterator[dict[str, Any]]:
        for batch in batches:
            assert to_arrow_schema(schema, **IN_UTC).equals(batch.schema)  # as Spark demands
            yield from batch.to_pylist()


def test_values_have_the_types_of_the_schema_in_a_folder_and_a_bucket(
    place: str, registry: Path
) -> None:
    with spark_kbatch.open(place, create=True) as cluster:
        cluster.create_topic("orders")
        fill(cluster, first(1), None, second(2))
        source = Source(place, registry, includeSchemaId="true", mode="PERMISSIVE")
        schema = source.schema()
        rows = source.read()

    assert schema["value"].dataType.simpleString() == SECOND_TYPE
    assert schema.fieldNames() == [*ROW_SCHEMA.fieldNames()[:-1], "value_schema_id", "value_error"]
    assert [row["value_schema_id"] for row in rows] == [7, None, 9]
    one, none, two = (row["value"] for row in rows)
    assert (none, one["id"], one["tags"], str(one["price"])) == (None, 1, [], "0.00")
    assert (two["id"], two["tags"], str(two["price"])) == (2, ["a", "b"], "12.80")
    assert (two["counts"], two["either"]) == ([("k", 1)], {"member0": None, "member1": 8})


def test_the_schema_of_the_load_is_that_of_its_reader(tmp_path: Path, registry: Path) -> None:
    """Although a newer version was registered in between."""
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        fill(cluster, first(1))
    registered(registry, id_7=FIRST)
    source = Source(tmp_path / "c", registry)
    schema = source.schema()
    registered(registry, id_7=FIRST, id_9=SECOND)

    (row,) = sent(sent(source._planned).reader(schema)).read(
        sent(source._planned).reader(schema).partitions()[0]
    )
    assert row.column("value").to_pylist() == [{"id": 1, "customer": {"id": 1, "city": "Rome"}}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        fill(cluster, first(1))
    return tmp_path / "c"


@pytest.mark.usefixtures("spark")  # which parses types
def test_a_users_schema_chooses_fields_and_their_case(folder: Path, registry: Path) -> None:
    schema = _parse_datatype_string(
        "offset bigint, value struct<Customer: struct<City: string>, id: bigint, counts: map<string, int>, "
        "either: struct<member0: string, member1: bigint>>"
    )
    assert isinstance(schema, StructType)

    (row,) = Source(folder, registry).read(schema)
    assert row["value"] == {"Customer": {"City": "Rome"}, "id": 1, "counts": [], "either": None}


def test_a_users_schema_cuts_off_what_contains_itself(folder: Path, tmp_path: Path) -> None:
    node = a_record(("id", "long"), ("next", ["null", "Order"]), name="Order")
    registered(tmp_path / "nodes", id_7=node)
    with spark_kbatch.open(folder) as cluster:
        cluster.delete_records({("orders", 0): 1})
        row = {"id": 5, "next": (1, {"id": 6, "next": (0, None)})}
        fill(cluster, framed(7, avro.encode(parsed(node), row)))
    source = Source(folder, tmp_path / "nodes")
    with pytest.raises(
        SchemaError, match=r"Order\.next: record Order contains itself.*version 1 of 'orders-value'"
    ):
        source.schema()

    schema = StructType([StructField("value", StructType([StructField("ID", LongType())]))])
    assert source.read(schema) == [{"value": {"ID": 5}}]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("value struct<idd: bigint>", {}, "record Order has no field 'idd'; did you mean 'id'"),
        ("value struct<id: int>", {}, "the type struct<id:int>; it is struct<id:bigint>"),
        ("value binary", {}, "the type binary; it is struct<id:bigint,"),
        ("timestamp timestamp_ntz", {}, "the type timestamp_ntz; it is timestamp_ltz"),
        ("value struct<id: bigint>, value_error string", {}, "unknown column 'value_error'"),
        ("value struct<id: bigint>", {"mode": "PERMISSIVE"}, "without value_error STRING"),
        ("value struct<id: bigint NOT NULL>", {}, "NOT NULL"),
    ],
)
def test_a_users_schema_that_does_not_fit_is_refused(
    folder: Path, registry: Path, ddl: str, options: dict[str, str], said: str
) -> None:
    schema = _parse_datatype_string(ddl)
    assert isinstance(schema, StructType)
    with pytest.raises((ConfigError, SchemaError), match=said):
        Source(folder, registry, **options).read(schema)


def test_a_stream_carries_new_versions_to_its_tasks(
    folder: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(registry, id_7=FIRST)
    options = {
        "path": str(folder),
        "schema.registry.url": str(registry),
        "startingOffsets": "earliest",
    }
    source = sent(KBatchDataSource({**options, **AVRO}))
    schema = source.schema()
    planner, task = sent(source).streamReader(schema), sent(sent(source).streamReader(schema))
    start = planner.initialOffset()
    planner.partitions(start, planner.latestOffset(start))
    with spark_kbatch.open(folder) as cluster:
        fill(cluster, second(2))
    registered(registry, id_7=FIRST, id_9=SECOND)
    monkeypatch.setattr(planner._new_schemas, "_asked_at_ms", -60_000)  # a minute passes

    (part,) = planner.partitions(start, planner.latestOffset(start))
    (registry / "ids/9.json").unlink()  # the task does not ask for it
    rows = [
        row for batch in sent(task).read(sent(part)) for row in batch.column("value").to_pylist()
    ]
    assert rows == [
        {"id": 1, "customer": {"id": 1, "city": "Rome"}}, {"id": 2, "customer": {"id": 2, "city": None}},
    ]  # fmt: skip


def test_a_bad_value_in_a_task_names_its_record(folder: Path, registry: Path) -> None:
    with spark_kbatch.open(folder) as cluster:
        fill(cluster, b'{"id": 2}')
    with pytest.raises(
        RecordDeserializationError, match="it looks like JSON; with the option mode=PERMISSIVE"
    ):
        Source(folder, registry).read()


def test_the_page_names_the_type_of_each_schema() -> None:
    page = (REPOSITORY / "docs/values.md").read_text(encoding="utf-8")
    table = page.partition("| Avro | Spark |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)`.* \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 1  # all but the line below the headings

    for schema, shown in rows:
        kind = from_arrow_type(arrow_type(parse(schema)), prefer_timestamp_ntz=True)
        assert kind.simpleString() == shown


# Of JSON.

DOCUMENT = b'{"id": %d, "tags": ["a"], "at": "2024-01-31T10:00:00Z", "counts": {"k": 1}, "customer": {"City": "Rome"}}'


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    with spark_kbatch.open(tmp_path / "documents", create=True) as cluster:
        cluster.create_topic("orders")
        fill(cluster, DOCUMENT % 1, None, b'{"id": "x"}', DOCUMENT % 2)
    return tmp_path / "documents"


def test_values_of_json_have_the_types_of_the_ddl(documents: Path) -> None:
    source = Source(documents, None, mode="PERMISSIVE", includeBytes="true")
    schema = source.schema()
    rows = source.read()

    assert schema["value"].dataType.simpleString() == (
        "struct<id:bigint,tags:array<string>,at:timestamp,counts:map<string,tinyint>,"
        "customer:struct<City:string>>"
    )
    assert schema.fieldNames()[-2:] == ["value_bytes", "value_error"]
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, 2]
    assert [row["value_error"] is None for row in rows] == [True, True, False, True]
    assert rows[0]["value"]["counts"] == [("k", 1)]


@pytest.mark.usefixtures("spark")  # which parses types
def test_a_users_schema_chooses_fields_of_json_and_their_case(documents: Path) -> None:
    schema = _parse_datatype_string(
        "value struct<customer: struct<city: string>, ID: bigint>, value_error string"
    )
    assert isinstance(schema, StructType)

    rows = Source(documents, None, mode="PERMISSIVE", where="value.tags IS NOT NULL").read(schema)
    assert [row["value"] for row in rows] == [
        {"customer": {"city": "Rome"}, "ID": 1}, {"customer": {"city": "Rome"}, "ID": 2},
    ]  # fmt: skip
    for ddl, said in (
        ("value struct<idd: bigint>, value_error string", "no field 'idd'; did you mean 'id'"),
        ("value struct<id: int>, value_error string", "the type struct<id:int>; it is struct<id:bigint>"),
    ):  # fmt: skip
        wrong = _parse_datatype_string(ddl)
        assert isinstance(wrong, StructType)
        with pytest.raises(ConfigError, match=said):
            Source(documents, None, mode="PERMISSIVE").read(wrong)


# With a session.


def test_json_is_decoded_by_spark_in_batches_and_streams(
    spark: SparkSession, documents: Path, tmp_path: Path
) -> None:
    options = {**JSON, "mode": "PERMISSIVE", "where": "value.id >= 1 OR value_error IS NOT NULL"}
    expected = [
        (0, 1, ["a"], {"k": 1}, True),
        (2, None, None, None, False),
        (3, 2, ["a"], {"k": 1}, True),
    ]

    def shown(frame: Any) -> list[Any]:
        columns = "offset", "value.id", "value.tags", "value.counts", "value_error IS NULL"
        return [tuple(row) for row in frame.selectExpr(*columns).orderBy("offset").collect()]

    batch = load(spark, documents, **options)
    assert shown(batch) == expected
    assert str(batch.first()["value"].at.astimezone(UTC)) == "2024-01-31 10:00:00+00:00"
    with pytest.raises(
        PythonException,
        match=r"RecordDeserializationError: the value of orders-0 at offset 2 cannot be decoded: \.id: a string in "
        r"place of a whole number \(byte 7\)",
    ):
        load(spark, documents, **JSON).count()

    stream = spark.readStream.format("kbatch").options(**options, startingOffsets="earliest")
    query = (
        stream.load(str(documents)).writeStream.format("memory").queryName("of_json")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(300)
    assert shown(spark.table("of_json")) == expected


def test_a_batch_is_decoded_by_spark(spark: SparkSession, folder: Path, registry: Path) -> None:
    with spark_kbatch.open(folder) as cluster:
        fill(cluster, None, second(2))
    options = {**AVRO, "schema.registry.url": str(registry), "key.format": "string"}

    frame = load(spark, folder, **options)
    assert frame.schema["value"].dataType.simpleString() == SECOND_TYPE
    found = frame.where("value.id > 0").select("value.*", "offset").orderBy("offset").collect()
    assert [(row.id, row.customer, row.tags, row.counts, row.offset) for row in found] == [
        (1, Row(id=1, city="Rome"), [], {}, 0),
        (2, Row(id=2, city=None), ["a", "b"], {"k": 1}, 2),
    ]
    assert (str(found[1].price), str(found[1].local), str(found[1].day), found[1].either) == (
        "12.80", "1970-01-01 00:00:00.000005", "1970-01-02", Row(member0=None, member1=8),
    )  # fmt: skip

    with spark_kbatch.open(folder) as cluster:
        fill(cluster, first(3)[:-1])
    with pytest.raises(
        PythonException,
        match=r"RecordDeserializationError: the value of orders-0 at offset 3 cannot be decoded: customer\.city: "
        r"the value ends in the middle of the field.*schema id 7",
    ):
        frame.count()


@pytest.mark.slow
def test_a_stream_of_a_real_cluster_is_decoded_by_spark(
    spark: SparkSession, folder: Path, registry: Path, tmp_path: Path
) -> None:
    with spark_kbatch.open(folder) as cluster, cluster.serve() as server:
        fill(cluster, b"{}")
        options = {
            **AVRO, "schema.registry.url": str(registry), "kafka.bootstrap.servers": server.bootstrap_servers,
            "startingOffsets": "earliest", "mode": "PERMISSIVE", "value.fields": "customer.id,id",
        }  # fmt: skip
        query = (
            spark.readStream.format("kbatch").options(**options).load()
            .select("value", "value_error", "offset")
            .writeStream.format("memory").queryName("decoded")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(300)

    good, bad = spark.table("decoded").orderBy("offset").collect()
    assert good == Row(value=Row(customer=Row(id=1), id=1), value_error=None, offset=0)
    assert (bad.value, bad.offset) == (None, 1)
    assert bad.value_error.startswith("the value of orders-0 at offset 1 cannot be decoded: ")


def test_schemas_that_headers_name_are_known_to_the_tasks_of_a_job(
    tmp_path: Path, registry: Path, spark: SparkSession
) -> None:
    """Whatever columns Spark takes."""
    guid = "00000000-0000-0001-0000-000000000005"
    (registry / "ids/7.json").write_text(json.dumps({"schema": FIRST, "guid": guid}))
    headers = {"__value_schema_id": b"\x01" + bytes.fromhex(guid.replace("-", ""))}
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("orders")
        with cluster.producer(flush=False) as producer:
            producer.send("orders", first(1)[5:], headers=headers)
            producer.send("orders", second(2))
            producer.send("orders", None, headers=headers)
    options = {**AVRO, "schema.registry.url": str(registry), "value.framing": "header"}
    rows = (
        spark.read.format("kbatch")
        .options(**options, includeSchemaId="true")
        .load(str(tmp_path / "c"))
    )
    (registry / "ids/7.json").unlink()  # the plan has it

    found = [tuple(row) for row in rows.select("value.id", "value_schema_id").collect()]
    assert found == [(1, 7), (2, 9), (None, None)]
    assert rows.where("value.id = 1").select("offset").collect() == [Row(offset=0)]
    assert rows.select("partition").count() == 3
