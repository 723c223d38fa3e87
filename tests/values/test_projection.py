"""A part of a schema has the wanted fields, as the schema has them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.avro_schema import RecordSchema, Schema
from spark_kbatch.values.layout import arrow_type, project, wanted_fields
from tests.support import avro
from tests.support.avro import a_record, parsed

_PERSON = a_record(("id", "long"), ("name", ["null", "string"]), name="Person")
_ORDER = a_record(
    {"name": "number", "type": "int", "aliases": ["no"], "default": 7},
    ("customer", ["null", _PERSON]),
    ("lines", {"type": "array", "items": a_record(("sku", "string"), ("count", "int"), name="Line")}),
    ("tags", {"type": "map", "values": "Person"}),
    ("parent", ["null", "Order"]),
    name="Order",
)  # fmt: skip


def projected(*paths: str) -> Schema:
    return project(parsed(_ORDER), wanted_fields(paths))


def test_wanted_fields_come_in_the_order_that_is_asked_for() -> None:
    kind = arrow_type(projected("lines.count", "number", "customer.name", "tags.id", "lines.sku"))

    assert str(kind) == (
        "struct<lines: list<element: struct<count: int32, sku: string>>, number: int32, "
        "customer: struct<name: string>, tags: map<string, struct<id: int64>>>"
    )


def test_a_field_that_is_wanted_whole_stays_whole() -> None:
    whole = arrow_type(projected("customer"))

    assert str(whole) == "struct<customer: struct<id: int64, name: string>>"
    assert arrow_type(projected("customer", "customer.id")) == whole
    assert arrow_type(projected("customer.id", "customer")) == whole


def test_names_aliases_and_defaults_stay_the_schemas_own() -> None:
    record = projected("NUMBER")

    assert isinstance(record, RecordSchema)
    assert record.name == "Order"
    (field,) = record.fields
    assert (field.name, field.aliases, field.default) == ("number", ("no",), 7)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("numbr", "Order: record Order has no field 'numbr'; did you mean 'number'?"),
        ("zzz", "its fields are: number, customer"),
        ("customer.nam", "Order.customer: record Person has no field 'nam'; did you mean 'name'?"),
        ("lines.sku.x", "Order.lines[].sku: string has no field 'x'"),
    ],
)
def test_a_field_that_is_not_there_is_an_error_that_names_the_nearest(
    path: str, words: str
) -> None:
    with pytest.raises(SchemaError) as error:
        projected(path)

    assert words in str(error.value)


def test_a_name_in_another_case_means_the_only_field_that_has_it() -> None:
    schema = parsed(a_record(("id", "int"), ("ID", "int"), ("Name", "int")))

    assert str(arrow_type(project(schema, wanted_fields(["name"])))) == "struct<Name: int32>"
    assert str(arrow_type(project(schema, wanted_fields(["ID"])))) == "struct<ID: int32>"
    with pytest.raises(SchemaError, match="no field 'Id'"):
        project(schema, wanted_fields(["Id"]))
    with pytest.raises(SchemaError, match="'Name' is asked for twice"):
        project(schema, wanted_fields(["Name", "name"]))


def test_a_column_in_another_case_has_the_fields_own_values_and_defaults() -> None:
    ours = {"name": "ID", "type": "int", "default": 0}
    inner = {"name": "c", "type": a_record(ours, name="C"), "default": {"ID": 5}}
    reader = parsed(a_record(ours, inner))
    writer = parsed(a_record(("id", "int"), ("ID", "int")))
    wanted = wanted_fields(["id", "C.id"])

    data = avro.encode(writer, {"id": 1, "ID": 2})
    named = project(reader, wanted, renames=True)
    found = decode(pa.array([data]), named, {1: writer}, framing="none")

    assert found.values.to_pylist() == [{"id": 2, "C": {"id": 5}}]


def test_fields_that_are_left_out_are_passed_over_even_where_they_contain_themselves() -> None:
    writer = parsed(_ORDER)
    parent = {"number": 1, "customer": (0, None), "lines": [], "tags": {}, "parent": (0, None)}
    order = {
        "number": 5,
        "customer": (1, {"id": 3, "name": (1, "Ann")}),
        "lines": [{"sku": "a", "count": n} for n in range(5)],
        "tags": {"x": {"id": 4, "name": (0, None)}},
        "parent": (1, {**parent, "parent": (1, parent)}),
    }
    data = avro.framed(9, avro.encode(writer, order))

    found = decode(pa.array([data, data]), projected("customer.name", "number"), {9: writer})

    assert found.errors == ()
    assert found.values.to_pylist() == [{"customer": {"name": "Ann"}, "number": 5}] * 2


def test_what_a_field_is_read_from_does_not_depend_on_which_others_are_wanted() -> None:
    writer = parsed(a_record(("b", "string"), ("z", "string")))
    reader = parsed(
        a_record(
            {"name": "a", "type": "string", "aliases": ["b"], "default": "none"},
            {"name": "b", "type": "string"},
            {"name": "c", "type": "string", "aliases": ["z"], "default": "none"},
            {"name": "d", "type": "string", "aliases": ["z"], "default": "none"},
        )
    )
    data = pa.array([avro.framed(9, b"\x02x\x02y")])
    whole = {"a": "none", "b": "x", "c": "y", "d": "none"}

    for names in (["a", "b", "c", "d"], ["a"], ["b"], ["c"], ["d"], ["d", "a"]):
        part = project(project(reader, wanted_fields(names)), wanted_fields(names[:1]))
        for schema, wanted in ((project(reader, wanted_fields(names)), names), (part, names[:1])):
            found = decode(data, schema, {9: writer})
            assert found.values.to_pylist() == [{name: whole[name] for name in wanted}]


def test_what_is_passed_over_is_checked_as_far_as_it_must_be() -> None:
    writer = parsed(_ORDER)
    only_number = projected("number")
    deep = avro.varint(1) + avro.varint(0) + avro.varint(0) + avro.varint(0) + avro.varint(1)

    found = decode(pa.array([deep * 1000, deep[:-1] + avro.varint(2)]), only_number, {1: writer}, framing="none")  # fmt: skip

    assert [error.row for error in found.errors] == [0, 1]
    assert "nested too deep" in str(found.errors[0])
    assert str(found.errors[1]).startswith("parent: a union has no branch")
