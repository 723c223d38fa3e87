"""What holds for each registry: over HTTP, with a memory or without one, and as a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kbatch.errors import SchemaNotFoundError
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.known import KnownSchemas, SchemaCache
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    ReferencedSchema,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistry,
)
from tests.registry.conftest import client_of
from tests.support.fake_registry import FakeRegistry

TEXT, LONG = Schema('"string"'), Schema('"long"')
MESSAGE = Schema('syntax = "proto3"; message A {}', "PROTOBUF")
OBJECT = Schema('{"type": "object"}', "JSON")


@pytest.fixture(params=["client", "known", "folder"])
def registry(request: pytest.FixtureRequest, fake: FakeRegistry, tmp_path: Path) -> SchemaRegistry:
    if request.param == "folder":
        return FolderRegistry(tmp_path / "registry")
    client = client_of(fake.url)
    if request.param == "client":
        return client
    return KnownSchemas(client, client, SchemaCache(fake.url, folder=tmp_path))


@pytest.mark.parametrize("schema", [TEXT, MESSAGE, OBJECT], ids=lambda schema: schema.type)
def test_a_registered_schema_is_found_by_its_id_and_as_a_version(
    registry: SchemaRegistry, schema: Schema
) -> None:
    schema_id = registry.register("orders-value", schema).id

    again = registry.register("orders-value", schema)
    assert again == RegisteredSchema(schema_id, schema, subject="orders-value")
    assert registry.by_id(schema_id) == RegisteredSchema(schema_id, schema)
    assert registry.by_id(schema_id, "orders-value").schema == schema
    found = RegisteredSchema(schema_id, schema, subject="orders-value", version=1)
    assert registry.version("orders-value", 1) == found
    assert registry.version("orders-value", LATEST_VERSION) == found
    assert registry.look_up("orders-value", schema) == found


def test_the_latest_version_is_the_last_that_was_registered(registry: SchemaRegistry) -> None:
    ids = [registry.register("orders-value", schema).id for schema in (TEXT, LONG, MESSAGE)]

    assert len(set(ids)) == 3
    assert registry.versions("orders-value") == [1, 2, 3]
    assert registry.versions("orders-value", deleted=True) == [1, 2, 3]
    assert registry.version("orders-value", LATEST_VERSION).id == ids[-1]


def test_a_schema_that_is_registered_again_keeps_its_id_and_version(
    registry: SchemaRegistry,
) -> None:
    first = registry.register("orders-value", Schema('{"type": "map", "values": "long"}'))
    registry.register("orders-value", TEXT)

    again = registry.register("orders-value", Schema('{"type":"map","values":"long"}'))
    assert again.id == first.id
    assert registry.by_id(first.id).schema == first.schema
    assert registry.versions("orders-value") == [1, 2]


def test_a_schema_of_two_subjects_has_one_id(registry: SchemaRegistry) -> None:
    ids = {registry.register(subject, TEXT).id for subject in ("orders-value", "items-value")}

    assert len(ids) == 1


def test_the_same_text_as_another_type_is_another_schema(registry: SchemaRegistry) -> None:
    ids = {registry.register("orders-value", Schema("{}", kind)).id for kind in ("AVRO", "JSON")}

    assert len(ids) == 2


def test_a_subject_may_have_any_name(registry: SchemaRegistry) -> None:
    subject = "a/b c?d=%2F&é"
    registry.register(subject, TEXT)

    assert registry.versions(subject) == [1]


def test_a_schema_comes_with_all_that_it_refers_to(registry: SchemaRegistry) -> None:
    address = Schema('{"type": "record", "name": "Address", "fields": []}')
    registry.register("address", address)
    customer = Schema(
        '{"type": "record", "name": "Customer", "fields": [{"name": "a", "type": "Address"}]}',
        references=(SchemaReference("Address", "address", 1),),
    )
    registry.register("customer", customer)
    order = Schema(
        '{"type": "record", "name": "Order", "fields": [{"name": "c", "type": "Customer"}]}',
        references=(SchemaReference("Customer", "customer", 1),),
    )

    found = registry.register("orders-value", order)
    assert found.schema == order
    assert found.referenced == (
        ReferencedSchema("Address", "address", 1, address.text),
        ReferencedSchema("Customer", "customer", 1, customer.text),
    )
    assert registry.by_id(found.id).referenced == found.referenced
    assert registry.version("orders-value", 1).referenced == found.referenced


def test_each_context_has_ids_subjects_and_references_of_its_own(registry: SchemaRegistry) -> None:
    registry.register("item", TEXT)
    registry.register(":.staging:item", LONG)
    order = Schema('["item"]', references=(SchemaReference("item", "item", 1),))
    found = registry.register(":.staging:orders-value", order)

    assert registry.by_id(1, "item").schema == TEXT
    assert registry.by_id(1, ":.staging:item").schema == LONG
    assert registry.by_id(1, ":.staging:").schema == LONG
    assert registry.versions(":.staging:item") == [1]
    assert found.referenced == (ReferencedSchema("item", ":.staging:item", 1, LONG.text),)
    with pytest.raises(SchemaNotFoundError):
        registry.versions("orders-value")


def test_what_a_registry_does_not_have_is_an_error_that_says_what(registry: SchemaRegistry) -> None:
    registry.register("orders-value", TEXT)

    asked = {
        "schema id 7": lambda: registry.by_id(7),
        "schema id 7 of subject 'orders-value'": lambda: registry.by_id(7, "orders-value"),
        "the versions of subject 'items'": lambda: registry.versions("items"),
        "the latest version of subject 'items'": lambda: registry.version("items", LATEST_VERSION),
        "version 2 of subject 'orders-value'": lambda: registry.version("orders-value", 2),
        "the version of subject 'orders-value' with a schema": lambda: registry.look_up(
            "orders-value", LONG
        ),
    }
    for words, ask in asked.items():
        with pytest.raises(SchemaNotFoundError) as error:
            ask()
        assert f"{registry.name}, asked for {words}: " in str(error.value)


def test_the_json_of_a_schema_is_kept_as_it_was_written(registry: SchemaRegistry) -> None:
    text = json.dumps({"type": "record", "name": "É", "doc": "line\nend", "fields": []}, indent=3)

    schema_id = registry.register("orders-value", Schema(text)).id
    assert registry.by_id(schema_id).schema.text == text
