"""Values of Avro beside Confluent's serializers, through `kbatch serve`, with a schema registry that others wrote."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch import SchemaNotFoundError
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import IncompatibleSchemaError
from spark_kbatch.registry.endpoint import RegistryClient
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistry,
)
from tests.registry.conftest import client_of
from tests.support.apicurio import demand_compatibility
from tests.support.avro import a_record
from tests.support.served import Served

pytestmark = pytest.mark.interop

PARTITIONS, ROWS = 2, 300
TIMEOUT_S = 120


def customer(*fields: Any) -> Any:
    return a_record(*fields, name="Customer", namespace="shop")


STATUS = {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}
AT = ["null", {"type": "long", "logicalType": "timestamp-millis"}]
CITY = ("city", ["null", "string"])
NOTE = {"name": "note", "type": "string", "default": "none"}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
# Each version differs from the one before as schemas do in practice, and all three may be read as the last.
VERSIONS = [
    a_record(
        ("id", "int"), ("customer", customer(("id", "int"), CITY)), ("status", STATUS), ("price", PRICE), NOTE,
        ("at", AT), name="Order", namespace="shop",
    ),
    a_record(
        ("price", PRICE), ("id", "long"), ("customer", customer(("id", "int"), CITY)), ("status", STATUS), NOTE, TAGS,
        ("at", AT), name="Order", namespace="shop",
    ),
    a_record(
        {"name": "order_id", "type": "long", "aliases": ["id"]},
        ("customer", customer({"name": "town", "type": ["null", "string"], "aliases": ["city"]}, ("id", "long"))),
        ("status", {**STATUS, "symbols": ["NEW", "PAID", "LOST"], "default": "NEW"}),
        ("price", PRICE),
        TAGS,
        ("at", AT),
        {"name": "counts", "type": {"type": "map", "values": "double"}, "default": {"none": 0.5}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}, "default": "\x00\xffa"},
        {"name": "either", "type": ["null", "string", "long"], "default": None},
        name="Order", namespace="shop",
    ),
]  # fmt: skip
LAST = len(VERSIONS)  # whose version all values are read as


def a_row(rng: random.Random, version: int) -> dict[str, Any]:
    """A row of a version, as Confluent's serializer takes it."""
    city = rng.choice((None, "Rome", "Málaga", ""))
    moment = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=rng.randrange(10**12))
    row: dict[str, Any] = {
        "id": rng.randrange(-(2**31), 2**31),
        "customer": {"id": rng.randrange(2**31), "city": city},
        "status": rng.choice(("NEW", "PAID", "SENT")),
        "price": Decimal(rng.randrange(-(10**19), 10**19)).scaleb(-4),
        "note": rng.choice(("", "urgent 😀")),
        "at": rng.choice((None, moment)),
    }
    if version >= 2:
        row["id"] = rng.randrange(-(2**63), 2**63)
        row["tags"] = [rng.choice("abc") * 30 for _ in range(rng.randrange(4))]
    if version == 3:
        row = {
            "order_id": row["id"],
            "customer": {"town": city, "id": rng.randrange(2**40)},
            "status": rng.choice(("NEW", "PAID", "LOST")),
            **{name: row[name] for name in ("price", "tags", "at")},
            "counts": {f"k{n}": rng.random() for n in range(rng.randrange(3))},
            "day": date(1970, 1, 1) + timedelta(rng.randrange(-(10**5), 10**5)),
            "hash": rng.randbytes(3),
            "either": rng.choice((None, "text", rng.randrange(2**60))),
        }
    return row


def in_columns(value: Any, kind: pa.DataType) -> Any:
    """A value as Confluent's deserializer returns it, as `to_pylist` gives it of our column."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and kind[0].name == "member0":
        members: list[Any] = [str, int]
        return {f"member{n}": value if type(value) is one else None for n, one in enumerate(members)}  # fmt: skip
    if pa.types.is_struct(kind):
        return {one.name: in_columns(value[one.name], one.type) for one in kind}
    if pa.types.is_map(kind):
        return [*value.items()]
    return value


class Theirs:
    """Confluent's clients: serializers of one topic, its producer and its consumer."""

    def __init__(self, registry: str, served: Served, topic: str) -> None:
        self._registry, self._served, self.topic = registry, served, topic
        self.client = confluent.SchemaRegistryClient({"url": registry})
        self._context = SerializationContext(topic, MessageField.VALUE)

    def serializer(self, schema: Any) -> Callable[[Any], bytes]:
        """A serializer, which registers its schema."""
        made = AvroSerializer(self.client, schema if isinstance(schema, confluent.Schema) else json.dumps(schema))  # fmt: skip
        return lambda row: made(row, self._context)

    def send(self, values: Sequence[bytes | None]) -> None:
        """Send values, to the partitions in turn."""
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": self._served.address, "linger.ms": 20})
        for number, value in enumerate(values):
            producer.produce(
                self.topic, value, str(number), number % PARTITIONS,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )  # fmt: skip
        assert (producer.flush(TIMEOUT_S), errors) == (0, [])

    def stored(self, count: int) -> dict[tuple[int, int], bytes | None]:
        """All values by partition and offset, in the order of each partition."""
        consumer = Consumer(
            {"bootstrap.servers": self._served.address, "group.id": "theirs", "enable.auto.commit": False}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
        found: dict[tuple[int, int], bytes | None] = {}
        try:
            while len(found) < count:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{len(found)} of {count} came within {TIMEOUT_S} s"
                assert message.error() is None
                found[message.partition(), message.offset()] = message.value()
        finally:
            consumer.close()
        return found

    def decoded(self, values: Sequence[bytes | None], reader: Any) -> list[Any]:
        """Values as their deserializer reads them."""
        made = AvroDeserializer(self.client, json.dumps(reader))
        return [_with_defaults(made(value, self._context)) for value in values]


def _with_defaults(row: Any) -> Any:
    """A row with the defaults of two fields as their types have them: fastavro leaves the schema's JSON as it is."""
    if row is None:
        return None
    day, data = row["day"], row["hash"]
    return row | {
        "day": date(1970, 1, 1) + timedelta(day) if isinstance(day, int) else day,
        "hash": data.encode("latin-1") if isinstance(data, str) else data,
    }


@pytest.fixture
def served(tmp_path: Path, topic: str) -> Iterator[Served]:
    """`kbatch serve` with a topic of two partitions, in a process of its own."""
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic(topic, num_partitions=PARTITIONS)
    with Served(tmp_path / "cluster", tmp_path / "served.log") as served:
        yield served


@pytest.fixture
def theirs(registry: str, served: Served, topic: str) -> Iterator[Theirs]:
    found = Theirs(registry, served, topic)
    with found.client:
        yield found


def alternating(theirs: Theirs) -> tuple[list[int], list[Any], list[bytes | None]]:
    """Versions, rows, and what their serializers make of these; some values are tombstones."""
    rng = random.Random(7)
    serializers = [theirs.serializer(one) for one in VERSIONS]
    versions = [n % 3 + 1 if n < ROWS // 2 else rng.randrange(1, 4) for n in range(ROWS)]
    rows = [None if n % 50 == 49 else a_row(rng, version) for n, version in enumerate(versions)]
    values = [None if row is None else serializers[version - 1](row) for version, row in zip(versions, rows, strict=True)]  # fmt: skip
    return versions, rows, values


def test_what_confluents_serializer_writes_is_decoded_as_their_deserializer_does(
    theirs: Theirs, served: Served, registry: str, tmp_path: Path, spark: SparkSession
) -> None:
    _, _, values = alternating(theirs)
    theirs.send(values)
    stored = theirs.stored(ROWS)
    assert [stored[number % PARTITIONS, number // PARTITIONS] for number in range(ROWS)] == values

    places = {"the folder": str(tmp_path / "cluster"), "the server": served.address}
    for place, path in places.items():
        with spark_kbatch.open(path) as cluster:
            table = cluster.read(theirs.topic, value_format="avro", registry=registry).read_all()
        kind = table.schema.field("value").type
        at = [*zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)]
        assert len(at) == len(set(at)) == ROWS, place
        for partition in range(PARTITIONS):
            offsets = [offset for other, offset in at if other == partition]
            assert offsets == sorted(offsets), place
        expected = theirs.decoded([stored[one] for one in at], VERSIONS[-1])
        assert table["value"].to_pylist() == [in_columns(one, kind) for one in expected], place

    options = {
        "subscribe": theirs.topic, "kafka.bootstrap.servers": served.address, "value.format": "avro",
        "schema.registry.url": registry, "includeSchemaId": "true",
    }  # fmt: skip
    frame = spark.read.format("kbatch").options(**options).load()
    rows = frame.orderBy("partition", "offset").collect()
    in_order = [stored[one] for one in sorted(stored)]
    assert [row.value_schema_id for row in rows] == [
        None if one is None else int.from_bytes(one[1:5], "big") for one in in_order
    ]
    decoded = theirs.decoded(in_order, VERSIONS[-1])
    assert [as_theirs(row.value) for row in rows] == decoded


def as_theirs(row: Any) -> Any:
    """A row of Spark, in the session's time zone, as Confluent's deserializer returns it."""
    if row is None:
        return None
    found = row.asDict(recursive=True)
    either = found["either"] or {}
    return {
        **found,
        "at": found["at"] and found["at"].astimezone(UTC),
        "hash": bytes(found["hash"]),
        "either": next((one for one in either.values() if one is not None), None),
    }


def test_confluents_deserializer_reads_what_we_write_and_both_write_the_same_bytes(
    theirs: Theirs, served: Served, registry: str
) -> None:
    versions, rows, values = alternating(theirs)
    ours: list[bytes | None] = [None] * ROWS
    for version, schema in enumerate(VERSIONS, 1):
        numbers = [n for n in range(ROWS) if versions[n] == version and rows[n] is not None]
        table = table_of([rows[n] for n in numbers], schema)
        encoded = spark_kbatch.encode_values(
            table, registry=registry, value_subject=f"{theirs.topic}-value", value_schema=f"version:{version}"
        )  # fmt: skip
        for number, value in zip(numbers, encoded.to_pylist(), strict=True):
            ours[number] = value
    assert ours == values

    with spark_kbatch.open(served.address) as cluster, cluster.producer() as producer:
        columns = {
            "value": ours,
            "partition": pa.array([n % PARTITIONS for n in range(ROWS)], pa.int32()),
        }
        producer.send_arrow(theirs.topic, columns)
    stored = theirs.stored(ROWS)
    in_turn = [stored[number % PARTITIONS, number // PARTITIONS] for number in range(ROWS)]
    assert theirs.decoded(in_turn, VERSIONS[-1]) == theirs.decoded(values, VERSIONS[-1])


def table_of(rows: Sequence[Any], schema: Any) -> pa.Table:
    """Rows as columns of the types that a read of the schema has."""
    kind = spark_kbatch.decode_values(
        pa.array([], pa.binary()), value_schema=schema, value_framing="none"
    ).values.type
    return pa.Table.from_struct_array(pa.array([in_columns(row, kind) for row in rows], kind))


def test_confluents_deserializer_reads_what_spark_writes(
    theirs: Theirs, served: Served, registry: str, spark: SparkSession
) -> None:
    for schema in VERSIONS:
        theirs.serializer(schema)(a_row(random.Random(1), VERSIONS.index(schema) + 1))
    rows = [(n, version) for version in (1, 3, 1, 2) for n in range(20)]
    columns = {
        1: "CAST(id AS INT) AS id, struct(CAST(id AS INT) AS id, 'Rome' AS city) AS customer, 'SENT' AS status, "
        "CAST(id / 4 AS DECIMAL(20, 4)) AS price, 'n' AS note, timestamp_millis(id) AS at",
        2: "id, struct(CAST(id AS INT) AS id, CAST(NULL AS STRING) AS city) AS customer, 'PAID' AS status, "
        "CAST(id / 4 AS DECIMAL(20, 4)) AS price, array('a', 'b') AS tags, timestamp_millis(id) AS at",
        3: "id AS order_id, struct('Rome' AS town, id) AS customer, 'LOST' AS status, "
        "CAST(id / 4 AS DECIMAL(20, 4)) AS price, CAST(NULL AS TIMESTAMP) AS at",
    }  # fmt: skip
    for version in (1, 3, 1, 2):
        frame = spark.sql(f"SELECT struct({columns[version]}) AS value, 0 AS partition FROM range(0, 20, 1, 1)")  # fmt: skip
        frame.write.format("kbatch").mode("append").options(
            **{
                "kafka.bootstrap.servers": served.address, "topic": theirs.topic, "value.format": "avro",
                "schema.registry.url": registry, "value.schema": f"version:{version}",
            }
        ).save()  # fmt: skip

    stored = theirs.stored(len(rows))
    found = theirs.decoded([stored[0, n] for n in range(len(rows))], VERSIONS[-1])
    defaults = {"counts": {"none": 0.5}, "day": date(1970, 1, 2), "hash": b"\x00\xffa", "either": None}  # fmt: skip
    assert found == [
        {
            "order_id": n,
            "customer": {"town": None if version == 2 else "Rome", "id": n},
            "status": {1: "NEW", 2: "PAID", 3: "LOST"}[version],  # SENT is no symbol of the reader
            "price": Decimal(n) / 4,
            "tags": ["a", "b"] if version == 2 else [],
            "at": None if version == 3 else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n),
            **defaults,
        }
        for n, version in rows
    ]  # fmt: skip


def test_a_schema_that_refers_to_others_is_the_same_to_both(
    theirs: Theirs, served: Served, registry: str
) -> None:
    subject = f"{theirs.topic}-customer"
    referenced = customer(("id", "int"), CITY)
    theirs.client.register_schema(subject, confluent.Schema(json.dumps(referenced), "AVRO"))
    order = a_record(("id", "long"), ("customer", "shop.Customer"), ("again", "shop.Customer"), name="Order")  # fmt: skip
    reference = confluent.SchemaReference("shop.Customer", subject, 1)
    serializer = theirs.serializer(confluent.Schema(json.dumps(order), "AVRO", [reference]))
    rows = [
        {"id": n, "customer": {"id": 1, "city": None}, "again": {"id": 2, "city": f"c{n}"}}
        for n in range(10)
    ]
    theirs.send([serializer(row) for row in rows])

    with spark_kbatch.open(served.address) as cluster:
        found = cluster.read(theirs.topic, value_format="avro", registry=registry).read_all()
    assert sorted(found["value"].to_pylist(), key=lambda row: int(row["id"])) == rows


def test_the_command_line_shows_what_the_registry_has(
    theirs: Theirs, served: Served, registry: str
) -> None:
    versions, _, values = alternating(theirs)
    theirs.send(values)

    def lines(*words: str) -> list[Any]:
        done = CliRunner().invoke(cli, [*words, "--registry", registry, "--json"])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    consumed = lines("consume", served.address, theirs.topic, "--value-format", "avro", "-p", "0")
    assert [one["value"] and set(one["value"]) for one in consumed] == [
        None if value is None else {field["name"] for field in VERSIONS[version - 1]["fields"]}
        for version, value in [*zip(versions, values, strict=True)][::PARTITIONS]
    ]
    shown = lines("schemas", theirs.topic)
    assert [one["version"] for one in shown] == [1, 2, 3]


# What a registry answers, beside the one that tests write themselves.


@pytest.fixture
def ours(registry: str) -> RegistryClient:
    return client_of(registry)


KINDS = [
    Schema(json.dumps(a_record(("id", "long"), name="Order"))),
    Schema('syntax = "proto3"; message A { string id = 1; }', "PROTOBUF"),
    Schema('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}', "JSON"),
]


@pytest.mark.parametrize("schema", KINDS, ids=lambda schema: schema.type)
def test_a_registered_schema_is_found_by_its_id_and_as_a_version(
    ours: SchemaRegistry, topic: str, schema: Schema
) -> None:
    schema_id = ours.register(topic, schema).id

    assert ours.register(topic, schema).id == schema_id
    for found in (ours.by_id(schema_id), ours.by_id(schema_id, topic)):
        assert (found.id, found.schema.type) == (schema_id, schema.type)
    for version in (1, LATEST_VERSION):
        one = ours.version(topic, version)
        assert (one.id, one.version, one.schema.type) == (schema_id, 1, schema.type)
    found = ours.look_up(topic, schema)
    assert (found.id, found.version) == (schema_id, 1)
    if schema.type == "AVRO":
        assert json.loads(found.schema.text) == json.loads(schema.text)


def test_a_deleted_version_is_still_there_for_what_it_wrote(
    ours: SchemaRegistry, registry: str, topic: str
) -> None:
    ids = [ours.register(topic, Schema(text)).id for text in ('"string"', '"long"')]
    request = urllib.request.Request(f"{registry}/subjects/{topic}/versions/1", method="DELETE")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass

    assert ours.versions(topic) == [2]
    assert ours.version(topic, LATEST_VERSION).id == ids[1]
    assert ours.by_id(ids[0]).schema == Schema('"string"')


def test_what_the_registry_does_not_have_is_an_error_that_says_what(
    ours: RegistryClient, topic: str
) -> None:
    ours.register(topic, Schema('"string"'))
    asked: dict[str, Callable[[], RegisteredSchema | list[int]]] = {
        "schema id 2000000": lambda: ours.by_id(2_000_000),
        "the versions of subject 'none'": lambda: ours.versions("none"),
        "the latest version of subject 'none'": lambda: ours.version("none", LATEST_VERSION),
        f"version 2 of subject '{topic}'": lambda: ours.version(topic, 2),
        f"the version of subject '{topic}' with a schema": lambda: ours.look_up(topic, Schema('"long"')),
    }  # fmt: skip
    for words, ask in asked.items():
        with pytest.raises(SchemaNotFoundError) as error:
            ask()
        assert f"{ours.name}, asked for {words}: " in str(error.value)


def test_a_schema_that_the_registry_finds_incompatible_is_not_registered(
    ours: SchemaRegistry, registry: str, topic: str
) -> None:
    ours.register(topic, Schema(json.dumps(a_record(("id", "long"), name="Order"))))
    demand_compatibility(registry, topic)

    with pytest.raises(IncompatibleSchemaError):
        ours.register(topic, Schema(json.dumps(a_record(("id", "string"), name="Order"))))
    assert ours.versions(topic) == [1]


def test_a_subject_may_have_any_name_and_schemas_refer_to_others(
    ours: SchemaRegistry, topic: str
) -> None:
    subject = f"{topic} a?b=%2F&é"
    address = Schema(json.dumps(a_record(name="Address")))
    ours.register(subject, address)
    order = Schema(
        json.dumps(a_record(("address", "Address"), name="Order")),
        references=(SchemaReference("Address", subject, 1),),
    )

    found = ours.by_id(ours.register(topic, order).id, topic)
    assert found.schema.references == order.references
    assert [one.name for one in found.referenced] == ["Address"]
    assert ours.versions(subject) == [1]
