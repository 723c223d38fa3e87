"""Schemas in JSON, as registries answer them, and the contexts of subjects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_kbatch.errors import SchemaRegistryError
from spark_kbatch.registry.schemas import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    context_of,
    in_context_of,
    json_of,
    schema_of,
    scope_of,
    with_referenced,
)
from spark_kbatch.stored_json import StoredObject, parse


def damaged(sentence: str) -> SchemaRegistryError:
    return SchemaRegistryError("a registry", "a schema", sentence)


def stored(**fields: Any) -> StoredObject:
    return parse(json.dumps(fields), "the answer", damaged=damaged)


def test_a_schema_without_a_type_is_avro() -> None:
    assert schema_of(stored(schema='"string"'), schema_id=7) == RegisteredSchema(
        7, Schema('"string"', "AVRO")
    )


def test_a_version_has_its_id_number_references_and_type() -> None:
    references = [{"name": "a.proto", "subject": "a", "version": 2}]
    found = schema_of(
        stored(
            subject="orders-value", version=3, id=7, schemaType="PROTOBUF", schema="message A {}",
            references=references,
        ),
        subject="orders-value",
    )  # fmt: skip

    schema = Schema("message A {}", "PROTOBUF", (SchemaReference("a.proto", "a", 2),))
    assert found == RegisteredSchema(7, schema, False, "orders-value", 3)
    assert json_of(found.schema) == {
        "schema": "message A {}", "schemaType": "PROTOBUF", "references": references,
    }  # fmt: skip


def test_what_a_registry_answers_as_null_is_not_there() -> None:
    found = schema_of(
        stored(id=7, schema="{}", schemaType=None, references=None, ruleSet=None, version=None)
    )

    assert found == RegisteredSchema(7, Schema("{}"))


def test_an_avro_schema_without_references_is_sent_as_older_registries_take_it() -> None:
    assert json_of(Schema('"string"')) == {"schema": '"string"'}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        pytest.param({}, "schema", id="no text"),
        pytest.param({"schema": {"type": "record"}}, "schema", id="text that is an object"),
        pytest.param({"schema": "{}", "schemaType": "thrift"}, "schemaType", id="another type"),
        pytest.param({"schema": "{}", "references": {}}, "references", id="references no list"),
        pytest.param(
            {"schema": "{}", "references": [{"name": "A", "subject": "a"}]},
            r"references\[0\].version", id="a reference without a version",
        ),
        pytest.param(
            {"schema": "{}", "references": [{"name": "A", "subject": "a", "version": -2}]},
            r"references\[0\].version", id="a reference to no version",
        ),
    ],
)  # fmt: skip
def test_json_that_is_no_schema_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], names: str
) -> None:
    with pytest.raises(SchemaRegistryError, match=names):
        schema_of(stored(**fields), schema_id=7)


@pytest.mark.parametrize("schema_id", [-1, 2**31, True, "7"])
def test_an_id_that_four_bytes_cannot_hold_is_refused(schema_id: Any) -> None:
    with pytest.raises(SchemaRegistryError, match="id is"):
        schema_of(stored(id=schema_id, schema="{}"))


@pytest.mark.parametrize(
    ("rule_set", "encrypts"),
    [
        ({"domainRules": [{"name": "pii", "kind": "TRANSFORM", "type": "ENCRYPT"}]}, True),
        ({"encodingRules": [{"type": "ENCRYPT_PAYLOAD"}]}, True),
        ({"domainRules": [{"type": "ENCRYPT", "disabled": True}]}, False),
        ({"domainRules": [{"type": "CEL"}], "migrationRules": None}, False),
        ({"domainRules": ["ENCRYPT"]}, False),
        ("ENCRYPT", False),
    ],
)
def test_only_rules_that_encrypt_are_noted(rule_set: Any, encrypts: bool) -> None:
    assert schema_of(stored(schema="{}", ruleSet=rule_set), schema_id=7).encrypts == encrypts


@pytest.mark.parametrize(
    ("subject", "context", "scope"),
    [
        ("orders-value", "", "orders-value"),
        (":.:orders-value", "", ":.:orders-value"),
        (":.staging:orders-value", ".staging", ":.staging:"),
        (":.staging:", ".staging", ":.staging:"),
        (":orders-value", "", ":orders-value"),
        ("a:.staging:b", "", "a:.staging:b"),
    ],
)
def test_an_id_means_the_same_in_a_context_that_a_subject_names(
    subject: str, context: str, scope: str
) -> None:
    assert (context_of(subject), scope_of(subject)) == (context, scope)


@pytest.mark.parametrize(
    ("parent", "subject", "found"),
    [
        ("orders-value", "customer", "customer"),
        (":.staging:orders-value", "customer", ":.staging:customer"),
        (":.staging:orders-value", ":.shared:customer", ":.shared:customer"),
        ("orders-value", ":.shared:customer", ":.shared:customer"),
    ],
)
def test_a_reference_lies_in_the_context_of_what_refers_unless_it_names_one(
    parent: str, subject: str, found: str
) -> None:
    assert in_context_of(parent, subject) == found


class Versions:
    """Versions of subjects by what each refers to; counts what is asked for."""

    def __init__(self, **references: list[str]) -> None:
        self._references = references
        self.asked: list[str] = []

    def __call__(self, subject: str, version: int) -> RegisteredSchema:
        self.asked.append(subject)
        return self.schema(subject, version)

    def schema(self, subject: str, version: int = 1) -> RegisteredSchema:
        names = self._references.get(subject.rpartition(":")[2], [])
        references = tuple(SchemaReference(name, name, 1) for name in names)
        schema = Schema(f"text of {subject}", references=references)
        return RegisteredSchema(1, schema, False, subject, version)


def test_each_schema_comes_after_those_that_it_refers_to_and_once() -> None:
    versions = Versions(order=["customer", "item"], customer=["address"], item=["address"])

    found = with_referenced(versions.schema("order"), "a registry", versions)
    assert [one.name for one in found.referenced] == ["address", "customer", "item"]
    assert found.referenced[0].text == "text of address"
    assert versions.asked == ["customer", "address", "item"]


def test_references_stay_in_the_context_of_their_schema() -> None:
    versions = Versions(order=["customer"], customer=["address"])

    with_referenced(versions.schema(":.staging:order"), "a registry", versions)
    assert versions.asked == [":.staging:customer", ":.staging:address"]


def test_references_in_a_circle_end() -> None:
    versions = Versions(order=["item"], item=["order"])

    found = with_referenced(versions.schema("order"), "a registry", versions)
    assert {one.name for one in found.referenced} == {"order", "item"}


def test_a_schema_that_refers_to_too_many_others_is_refused() -> None:
    chain = {f"s{n}": [f"s{n + 1}"] for n in range(400)}

    with pytest.raises(SchemaRegistryError, match="more than 300"):
        with_referenced(Versions(**chain).schema("s0"), "a registry", Versions(**chain))
