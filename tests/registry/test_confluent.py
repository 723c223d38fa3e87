"""Confluent's own client as the judge of the registry that tests use, and of what ours makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import spark_kbatch
from spark_kbatch.registry.endpoint import RegistryClient
from spark_kbatch.registry.schemas import LATEST_VERSION, Schema, SchemaReference
from spark_kbatch.values.types import parse_ddl
from tests.registry.conftest import client_of
from tests.support.fake_registry import FakeRegistry

ADDRESS = '{"type": "record", "name": "Address", "fields": []}'
CUSTOMER = '{"type": "record", "name": "Customer", "fields": [{"name": "a", "type": "Address"}]}'
SCHEMAS = {
    "AVRO": Schema('"string"'),
    "PROTOBUF": Schema('syntax = "proto3"; message A {}', "PROTOBUF"),
    "JSON": Schema('{"type": "object"}', "JSON"),
    "references": Schema(CUSTOMER, references=(SchemaReference("Address", "address", 1),)),
}


@pytest.fixture
def ours(fake: FakeRegistry) -> RegistryClient:
    fake.register("address", ADDRESS)
    return client_of(fake.url)


@pytest.fixture
def theirs(fake: FakeRegistry) -> Iterator[confluent.SchemaRegistryClient]:
    with confluent.SchemaRegistryClient({"url": fake.url, "max.retries": 0}) as client:
        yield client


def as_ours(schema: confluent.Schema) -> Schema:
    references = [SchemaReference(one.name, one.subject, one.version) for one in schema.references]
    return Schema(schema.schema_str, schema.schema_type or "AVRO", tuple(references))


def as_theirs(schema: Schema) -> confluent.Schema:
    references = [confluent.SchemaReference(*one) for one in schema.references]
    return confluent.Schema(schema.text, schema.type, references)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_what_they_register_we_find(
    ours: RegistryClient, theirs: confluent.SchemaRegistryClient, schema: Schema
) -> None:
    schema_id = theirs.register_schema("orders-value", as_theirs(schema))

    assert ours.by_id(schema_id).schema == schema
    assert ours.version("orders-value", LATEST_VERSION).id == schema_id
    assert ours.look_up("orders-value", schema).id == schema_id
    assert ours.register("orders-value", schema).id == schema_id


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_what_we_register_they_find(
    ours: RegistryClient, theirs: confluent.SchemaRegistryClient, schema: Schema
) -> None:
    schema_id = ours.register(":.staging:orders", Schema('"long"')).id
    assert as_ours(theirs.get_schema(schema_id, ":.staging:orders")) == Schema('"long"')

    schema_id = ours.register("orders-value", schema).id
    assert as_ours(theirs.get_schema(schema_id)) == schema
    latest = theirs.get_latest_version("orders-value")
    assert (latest.schema_id, latest.version, as_ours(latest.schema)) == (schema_id, 1, schema)
    assert theirs.lookup_schema("orders-value", as_theirs(schema)).schema_id == schema_id
    assert theirs.get_version("orders-value", 1, deleted=True).schema_id == schema_id


def test_versions_are_the_same_to_both(
    fake: FakeRegistry, ours: RegistryClient, theirs: confluent.SchemaRegistryClient
) -> None:
    for text in ('"string"', '"long"', '"int"'):
        ours.register("orders-value", Schema(text))
    fake.delete("orders-value", 2)

    for deleted in (False, True):
        assert theirs.get_versions("orders-value", deleted=deleted) == ours.versions(
            "orders-value", deleted=deleted
        )


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        pytest.param(lambda client: client.get_schema(77), 40403, id="an id"),
        pytest.param(lambda client: client.get_versions("none"), 40401, id="a subject"),
        pytest.param(lambda client: client.get_version("address", 9), 40402, id="a version"),
        pytest.param(
            lambda client: client.lookup_schema("address", as_theirs(Schema('"long"'))),
            40403, id="a schema",
        ),
    ],
)  # fmt: skip
def test_what_is_not_there_has_confluents_codes(
    ours: RegistryClient, theirs: confluent.SchemaRegistryClient, ask: object, code: int
) -> None:
    with pytest.raises(confluent.SchemaRegistryError) as error:
        ask(theirs)  # type: ignore[operator]
    assert error.value.error_code == code


def test_json_that_either_writes_is_read_by_the_other(
    fake: FakeRegistry, theirs: confluent.SchemaRegistryClient
) -> None:
    """Theirs checks each value by the schema in the registry, which is made of our columns."""
    rows: list[dict[str, Any]] = [
        {"id": 1, "price": Decimal("1.50"), "day": date(2024, 1, 31), "tags": ["a", None], "raw": b"\xff"},
        {"id": 2, "price": None, "day": None, "tags": [], "raw": None},
    ]  # fmt: skip
    kind = parse_ddl("id int, price decimal(9,2), day date, tags array<string>, raw binary")
    array = pa.array([*rows, None], kind)
    ours = {"registry": fake.url, "value_format": "json", "value_subject": "orders-value"}
    context = SerializationContext("orders", MessageField.VALUE)

    values = spark_kbatch.encode_values(array, auto_register=True, **ours)
    text = theirs.get_latest_version("orders-value").schema.schema_str
    read = JSONDeserializer(text, schema_registry_client=theirs)
    found = [read(value, context) for value in values.to_pylist()]
    assert found == [
        {"id": 1, "price": 1.5, "day": "2024-01-31", "tags": ["a", None], "raw": "/w=="},
        {"id": 2, "tags": []},
        None,
    ]

    write = JSONSerializer(text, theirs)
    again = pa.array([None if row is None else write(row, context) for row in found])
    decoded = spark_kbatch.decode_values(again, **ours)
    assert decoded.values.to_pylist() == array.to_pylist()
    assert decoded.schema_ids.tolist() == [1, 1, -1]
