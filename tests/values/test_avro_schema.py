"""Avro schemas are parsed as the specification has it, and errors name the path."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import (
    NO_DEFAULT,
    ArraySchema,
    EnumSchema,
    FixedSchema,
    LogicalType,
    MapSchema,
    PrimitiveSchema,
    RecordSchema,
    UnionSchema,
    described,
    parse,
)
from tests.support.avro import a_record, parsed


def test_every_kind_of_type_is_parsed() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 3}
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "B"}
    record = parsed(
        a_record(
            ("a", {"type": "array", "items": "int"}),
            ("m", {"type": "map", "values": {"type": "string", "avro.java.string": "String"}}),
            ("u", ["null", fixed]),
            {"name": "e", "type": enum, "default": "A", "aliases": ["old"]},
        )
    )

    assert isinstance(record, RecordSchema)
    a, m, u, e = (field.type for field in record.fields)
    assert isinstance(a, ArraySchema)
    assert isinstance(m, MapSchema)
    assert isinstance(u, UnionSchema)
    assert isinstance(e, EnumSchema)
    assert isinstance(a.items, PrimitiveSchema)
    assert a.items.type == "int"
    assert isinstance(m.values, PrimitiveSchema)
    assert m.values.type == "string"
    assert isinstance(u.branches[1], FixedSchema)
    assert u.branches[1].size == 3
    assert (e.symbols, e.default) == (("A", "B"), "B")
    assert record.fields[3].default == "A"
    assert record.fields[3].aliases == ("old",)
    assert record.fields[0].default is NO_DEFAULT


@pytest.mark.parametrize("text", ['"long"', "long", ' "long" ', '{"type": "long"}', '{"type": {"type": "long"}}'])  # fmt: skip
def test_a_primitive_type_is_a_schema_in_each_of_its_forms(text: str) -> None:
    schema = parse(text)

    assert isinstance(schema, PrimitiveSchema)
    assert schema.type == "long"


def test_names_take_the_namespace_that_they_lie_in() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    other = {"type": "fixed", "name": "x.F", "size": 1}
    bare = {"type": "fixed", "name": "G", "size": 1, "namespace": ""}
    record = parsed(
        a_record(("a", inner), ("b", "E"), ("c", "n.s.E"), ("d", other), ("e", bare), ("f", "G"), name="n.s.R")
    )  # fmt: skip

    assert isinstance(record, RecordSchema)
    names = [getattr(field.type, "name", None) for field in record.fields]
    assert names == ["n.s.E", "n.s.E", "n.s.E", "x.F", "G", "G"]
    assert record.fields[0].type is record.fields[1].type is record.fields[2].type


def test_a_record_may_contain_itself() -> None:
    record = parsed(a_record(("next", ["null", "R"])))

    assert isinstance(record, RecordSchema)
    assert isinstance(record.fields[0].type, UnionSchema)
    assert record.fields[0].type.branches[1] is record


def test_references_may_refer_to_each_other_in_any_order() -> None:
    street = {"type": "fixed", "name": "Street", "namespace": "geo", "size": 2}
    address = a_record(("street", "Street"), name="Address", namespace="geo")
    record = parsed(a_record(("home", "geo.Address"), ("work", "geo.Address")), address, street)

    assert isinstance(record, RecordSchema)
    assert record.fields[0].type is record.fields[1].type
    assert isinstance(record.fields[0].type, RecordSchema)
    assert isinstance(record.fields[0].type.fields[0].type, FixedSchema)


def test_references_may_refer_to_each_other_in_a_circle() -> None:
    one = a_record(("other", ["null", "Two"]), name="One")
    two = a_record(("other", ["null", "One"]), name="Two")
    record = parsed(["null", "One"], one, two)

    assert isinstance(record, UnionSchema)
    assert isinstance(record.branches[1], RecordSchema)


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, LogicalType("date")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, LogicalType("decimal", 4, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 4}, LogicalType("decimal", 4, 4)),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 38}, LogicalType("decimal", 38, 0)),
        # These are dropped.
        ({"type": "string", "logicalType": "date"}, None),
        ({"type": "long", "logicalType": "of-our-own"}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, None),
        ({"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1}, None),
    ],
    ids=str,
)  # fmt: skip
def test_a_logical_type_is_kept_only_where_it_fits(
    schema: Any, logical: LogicalType | None
) -> None:
    found = parsed(schema)

    assert isinstance(found, PrimitiveSchema | FixedSchema)
    assert found.logical == logical


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        (a_record(("a", "strin")), "R.a", "'strin' is not defined"),
        (a_record(("a", {"type": "array", "items": "X"})), "R.a[]", "'X' is not defined"),
        (a_record(("a", {"type": "map", "values": ["null", "X"]})), "R.a{}|1", "'X' is not defined"),
        (a_record(("a", ["int", ["null"]])), "R.a|1", "directly in a union"),
        (a_record(("a", ["int", "int"])), "R.a|1", "int twice"),
        (a_record(("a", ["R", "R"])), "R.a|1", "R twice"),
        (a_record(("a", "int"), ("a", "int")), "R.a", "two fields"),
        (a_record(("a b", "int")), "R.0", '"a b"; a name has letters, digits, _, - and $'),
        (a_record(("a", {"type": "array"})), "R.a", "'items' is missing"),
        (a_record({"name": "a"}), "R.a", "'type' is missing"),
        (a_record(("a", 5)), "R.a", "not 5"),
        (a_record(("a", {"type": "fixed", "name": "F", "size": -1})), "R.a", "size of fixed F"),
        (a_record(("a", {"type": "enum", "name": "E", "symbols": ["A", "A"]})), "R.a", "'A' twice"),
        (a_record(("a", {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"})), "R.a", "none of its symbols"),
        (a_record(("a", {"type": "enum", "name": "E", "symbols": "A"})), "R.a", "symbols is a list"),
        (a_record(("a", a_record())), "R.a", "defined twice"),
        ({"type": "record", "name": "R"}, "R", "'fields' is missing"),
        ({"type": "record", "name": "R", "fields": {}}, "R", "are a list"),
        ({"type": "record", "fields": []}, "", "needs a name"),
        ({"type": "record", "name": "int", "fields": []}, "", "primitive type"),
        ({"type": "record", "name": "a b", "fields": []}, "", "is not a name; a name has letters"),
        ({"type": "record", "name": "a.", "fields": []}, "", "is not a name"),
        ({"fields": []}, "", "a schema is a name"),
    ],
    ids=lambda given: json.dumps(given) if isinstance(given, dict) else given,
)  # fmt: skip
def test_an_error_names_the_path_and_what_is_there(schema: Any, path: str, words: str) -> None:
    with pytest.raises(SchemaError) as error:
        parsed(schema)

    assert error.value.path == path
    assert words in str(error.value)


@pytest.mark.parametrize("namespace", ["db-1.public.orders", "com.acme.Outer$", "1.2", ""])
def test_a_namespace_may_be_any_text_and_a_name_has_letters_of_any_language(namespace: str) -> None:
    schema = a_record(("größe", "int"), ("next", ["null", "Maß"]), name="Maß", namespace=namespace)

    record = parsed(schema)

    assert isinstance(record, RecordSchema)
    assert record.name == (f"{namespace}.Maß" if namespace else "Maß")
    assert isinstance(record.fields[1].type, UnionSchema)
    assert record.fields[1].type.branches[1] is record


def test_a_schema_survives_pickling_with_its_circles_and_missing_defaults() -> None:
    record = pickle.loads(pickle.dumps(parsed(a_record(("next", ["null", "R"])))))

    assert isinstance(record, RecordSchema)
    assert record.fields[0].default is NO_DEFAULT
    assert isinstance(record.fields[0].type, UnionSchema)
    assert record.fields[0].type.branches[1] is record


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(SchemaError, match="the schema is not JSON"):
        parse("{")
    with pytest.raises(SchemaError, match="a referenced schema is not JSON"):
        parse('"X"', ["{"])


def test_nesting_without_end_is_refused_before_the_stack_ends() -> None:
    schema: Any = "int"
    for _ in range(300):
        schema = {"type": "array", "items": schema}

    with pytest.raises(SchemaError, match="nested deeper"):
        parsed(schema)
    with pytest.raises(SchemaError):
        parse("[" * 100_000)


def test_names_that_registries_have_and_the_specification_does_not_are_taken() -> None:
    schema = a_record(("bad-field", "int"), ("$id", "int"), ("2nd", "int"), name="my-record")

    found = parsed(schema)
    assert isinstance(found, RecordSchema)
    assert [one.name for one in found.fields] == ["bad-field", "$id", "2nd"]


TEXT = 'see http://example.org/*.html, "there" /* or */ // here \\'
NOTE = {"name": "note", "type": "string", "default": TEXT}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('/*\n * Licensed to "someone" under\n * http://example.org\n */\n', ""),
        ("// an order\n", "\n// its end"),
        ("\ufeff", "\n"),
        ("/**/", "/* * / // */"),
    ],
    ids=["a licence", "lines", "a byte order mark", "odd ones"],
)
def test_comments_are_left_out_and_texts_that_look_like_them_are_not(
    before: str, after: str
) -> None:
    text = json.dumps(a_record(("id", "long"), NOTE))
    text = text.replace('"fields":', '/* fields */ "fields": // here\n')

    found = parse(before + text + after)
    assert isinstance(found, RecordSchema)
    assert [one.name for one in found.fields] == ["id", "note"]
    assert found.fields[1].default == TEXT


def test_an_error_in_json_with_comments_names_its_place() -> None:
    with pytest.raises(SchemaError, match=r"line 3 column 2 \(char 15\)"):
        parse("/* one\ntwo */\n{oh")


@pytest.mark.parametrize("text", ["/*" * 200_000, '"' + '\\"' * 200_000, "//" * 200_000 + "/"])
def test_text_that_never_ends_is_refused_at_once(text: str) -> None:
    started_s = time.monotonic()
    with pytest.raises(SchemaError, match="not JSON"):
        parse(text)
    assert time.monotonic() - started_s < 5


def test_a_union_and_an_enum_are_parsed_in_time_that_grows_with_their_size() -> None:
    union = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(20_000)]
    symbols = [f"S{n}" for n in range(20_000)]

    started_s = time.monotonic()
    assert len(parsed(union).branches) == 20_000  # type: ignore[union-attr]
    with pytest.raises(SchemaError, match="'S19999' twice"):
        parsed({"type": "enum", "name": "E", "symbols": [*symbols, "S19999"]})
    with pytest.raises(SchemaError, match="F19999 twice"):
        parsed([*union, "F19999"])
    assert time.monotonic() - started_s < 5


def test_a_large_union_is_described_by_its_first_branches() -> None:
    union = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(1000)]

    assert described(parsed(union)).endswith("fixed F4 of 1 bytes and 995 more")
    assert described(parsed(["null", "int"])) == "union of null, int"
