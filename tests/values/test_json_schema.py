"""JSON Schema becomes an Arrow type by the table in `json_schema`; all else is refused with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import json_schema
from spark_kbatch.values.json_schema import type_of_json_schema
from spark_kbatch.values.layout import wanted_fields
from spark_kbatch.values.types import project_type
from tests.conftest import REPOSITORY
from tests.support.ddls import ddl_of

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
NULL = {"type": "null"}
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def ddl(schema: Any, *wanted: str, **references: Any) -> str:
    texts = [(name, json.dumps(one)) for name, one in references.items()]
    fields = wanted_fields(wanted)
    return ddl_of(project_type(type_of_json_schema(json.dumps(schema), texts, fields), fields))


# The left column of the table, with schemas that it stands for.
TABLE: Mapping[str, list[tuple[Any, str]]] = {
    "boolean": [({"type": "boolean"}, "boolean")],
    "integer": [(WHOLE, "bigint"), ({**WHOLE, "connect.type": "int64"}, "bigint"), ({**WHOLE, "minimum": 0, "format": "int32", "default": 5}, "bigint")],
    "integer, connect.type int8, int16, int32": [
        ({**WHOLE, "connect.type": "int8"}, "tinyint"),
        ({**WHOLE, "connect.type": "int16"}, "smallint"),
        ({**WHOLE, "connect.type": "int32", "title": "org.apache.kafka.connect.data.Date"}, "int"),
    ],
    "number": [(NUMBER, "double"), ({**NUMBER, "connect.type": "float64"}, "double"), ({**NUMBER, "title": DECIMAL}, "double")],
    "number, connect.type float32": [({**NUMBER, "connect.type": "float32"}, "float")],
    "number, titled Connect's Decimal": [
        ({**NUMBER, "title": DECIMAL, "connect.type": "bytes", "connect.parameters": {"scale": "2"}}, "decimal(38, 2)"),
        ({**NUMBER, "title": DECIMAL, "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"}}, "decimal(9, 2)"),
    ],
    "string; enum or const of strings": [
        (TEXT, "string"),
        ({**TEXT, "format": "uuid"}, "string"),
        ({**TEXT, "enum": ["A", "B"]}, "string"),
        ({"enum": ["A", None]}, "string"),
        ({"const": "A"}, "string"),
        ({**TEXT, "format": "time", "contentEncoding": "quoted-printable"}, "string"),
        ({**TEXT, "format": "bytes", "contentEncoding": "date"}, "string"),
    ],
    "string, format date": [({**TEXT, "format": "date"}, "date")],
    "string, format date-time": [({**TEXT, "format": "date-time"}, "timestamp")],
    "string, contentEncoding base64": [({**TEXT, "contentEncoding": "base64"}, "binary")],
    "string, connect.type bytes": [({**TEXT, "connect.type": "bytes"}, "binary")],
    "array with items": [
        ({"type": "array", "items": NUMBER}, "array<double>"),
        ({"items": {"items": TEXT}}, "array<array<string>>"),
    ],
    "object with properties": [
        (an_object(b=TEXT, a=WHOLE), "struct<b string, a bigint>"),
        ({"properties": {"a": {"type": ["string", "null"]}}, "additionalProperties": NUMBER}, "struct<a string>"),
    ],
    "object with additionalProperties alone": [
        ({"type": "object", "additionalProperties": WHOLE}, "map<string, bigint>"),
        ({"additionalProperties": an_object(a=TEXT), "connect.type": "map", "properties": {}}, "map<string, struct<a string>>"),
    ],
    "oneOf or anyOf of null and another": [
        ({"oneOf": [NULL, WHOLE]}, "bigint"),
        ({"anyOf": [{**TEXT, "format": "date"}, NULL], "title": "Day", "default": None}, "date"),
        ({"oneOf": [WHOLE]}, "bigint"),
        ({"oneOf": [{**NULL, "title": "none"}, WHOLE]}, "bigint"),
        ({"anyOf": [{"enum": [None]}, WHOLE, {"const": None}]}, "bigint"),
    ],
    "allOf of one; $ref": [
        ({"allOf": [{"$ref": "#/$defs/a"}], "description": "...", "$defs": {"a": TEXT}}, "string"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"oneOf": [{"$ref": "#/definitions/b"}, NULL]}, "b": WHOLE}}, "bigint"),
    ],
}  # fmt: skip
CASES = [(schema, kind) for cases in TABLE.values() for schema, kind in cases]


@pytest.mark.parametrize(("schema", "kind"), CASES, ids=[json.dumps(one) for one, _ in CASES])
def test_a_schema_has_the_type_of_the_table(schema: Any, kind: str) -> None:
    assert ddl(schema) == kind


def test_the_table_in_the_docstring_has_the_rows_that_are_tested() -> None:
    lines = (json_schema.__doc__ or "").split("\n\n")[1].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines]

    assert rows[0] == ["JSON Schema", "Arrow"]
    assert [row[0] for row in rows[1:]] == list(TABLE)


ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://shop.example/order.json",
    "title": "Order",
    "description": "An order as the shop sends it.",
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "placed"],
    "properties": {
        "id": {"type": "integer", "minimum": 1, "connect.index": 0},
        "reference": {"type": "string", "format": "uuid"},
        "placed": {"type": "string", "format": "date-time"},
        "delivery": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        "status": {"enum": ["new", "paid", "sent"], "default": "new"},
        "customer": {"$ref": "#/definitions/Customer"},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/Line"}},
        "labels": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "weight": {"type": "number", "exclusiveMinimum": 0, "connect.type": "float32"},
        "photo": {"type": "string", "contentEncoding": "base64"},
    },
    "definitions": {
        "Customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 100, "pattern": "^[A-Z]"},
                "member": {"type": "boolean"},
                "address": {"$ref": "address.json"},
            },
        },
        "Line": {
            "type": "object",
            "properties": {
                "sku": {"type": "string"},
                "count": {"type": "integer", "connect.type": "int32"},
                "price": {"type": "number"},
            },
        },
    },
}
ADDRESS = {"type": "object", "properties": {"city": TEXT, "zip": {"type": ["string", "null"]}}}
ORDER_DDL = (
    "struct<id bigint, reference string, placed timestamp, delivery date, status string, "
    "customer struct<name string, member boolean, address struct<city string, zip string>>, "
    "lines array<struct<sku string, count int, price double>>, labels map<string, string>, weight float, "
    "photo binary>"
)


def test_an_order_is_the_columns_that_a_reader_expects() -> None:
    assert ddl(ORDER, **{"address.json": ADDRESS}) == ORDER_DDL


DOCUMENTS = [
    {"id": 1, "placed": "2024-01-31T10:00:00Z"},
    {
        "id": 2, "reference": "7f3d0f0e-9d53-4f06-9a0b-0c2f4d3c8f11", "placed": "2024-01-31T10:00:00+02:00",
        "delivery": None, "status": "paid", "customer": {"name": "Ada", "member": True, "address": {"city": "Rome", "zip": None}},
        "lines": [{"sku": "a-1", "count": 3, "price": 1.5}, {"count": 1}], "labels": {"colour": "red"}, "weight": 0.5,
        "photo": "AAEC",
    },
    {"id": 3, "placed": "2024-01-31T10:00:00Z", "delivery": "2024-02-01", "labels": None, "lines": [{}], "customer": {}},
]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=["few", "all", "nulls"])
def test_documents_that_are_valid_have_the_type(document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    whole = json.loads(json.dumps(ORDER))
    whole["definitions"]["Customer"]["properties"]["address"] = ADDRESS
    jsonschema.Draft7Validator(whole).validate(document)
    kind = type_of_json_schema(json.dumps(ORDER), [("address.json", json.dumps(ADDRESS))])
    times = {
        "placed": datetime.fromisoformat(document["placed"]),
        "delivery": datetime.fromisoformat(document.get("delivery") or "1970-01-01").date(),
    }

    column = pa.array([{**document, **times, "photo": b""}], kind)

    found = column[0].as_py()
    found["labels"] = found["labels"] and dict(found["labels"])
    assert found["lines"] == [{"sku": None, "count": None, "price": None} | one for one in document.get("lines", ())] or found["lines"] is None  # fmt: skip
    assert {key: found[key] for key in ("id", "status", "labels", "weight")} == {key: document.get(key) for key in ("id", "status", "labels", "weight")}  # fmt: skip


def test_references_are_found_by_name_and_by_id_and_refer_to_each_other() -> None:
    customer = {
        "$id": "https://shop.example/customer.json#",
        "definitions": {"a/b%": an_object(street={"$ref": "common#/$defs/text"})},
    }
    common = {"$defs": {"text": TEXT, "home": {"$ref": "https://shop.example/customer.json#/definitions/a~1b%25"}}}  # fmt: skip
    schema = an_object(
        home={"$ref": "https://shop.example/customer.json#/definitions/a~1b%25"},
        work={"$ref": "common#/$defs/home"},
        note={"$ref": "common#/$defs/text"},
    )

    assert ddl(schema, customer=customer, common=common) == (
        "struct<home struct<street string>, work struct<street string>, note string>"
    )


TREE = {"$ref": "#/$defs/Node", "$defs": {"Node": an_object(id=WHOLE, next={"$ref": "#/$defs/Node"})}}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        (an_object(a={"allOf": [TEXT, {"minLength": 1}]}), "#/properties/a/allOf", "'allOf' of 2 schemas"),
        (an_object(a={"oneOf": [TEXT, {"enum": [1, None]}]}), "#/properties/a/oneOf", "'oneOf' of 2 schemas beside null"),
        (an_object(a={"oneOf": [TEXT, WHOLE]}), "#/properties/a/oneOf", "'oneOf' of 2 schemas beside null"),
        (an_object(a={"anyOf": [TEXT, WHOLE, NULL]}), "#/properties/a/anyOf", "'anyOf' of 2 schemas beside null"),
        (an_object(a={"oneOf": 5}), "#/properties/a/oneOf", "of 0 schemas"),
        (an_object(a={**an_object(b=TEXT), "oneOf": [{"required": ["b"]}]}), "#/properties/a", "'oneOf' beside 'type'"),
        (an_object(a={"$ref": "#/b", "type": "string"}), "#/properties/a", "'$ref' beside 'type'"),
        (an_object(a={"type": "object", "patternProperties": {"^x": TEXT}}), "#/properties/a/patternProperties", "not supported"),
        (an_object(a={**TEXT, "if": {"minLength": 1}}), "#/properties/a/if", "'if' is not supported"),
        (an_object(a={**TEXT, "not": {"const": "x"}}), "#/properties/a/not", "'not' is not supported"),
        (an_object(a={"type": "array", "prefixItems": [TEXT]}), "#/properties/a/prefixItems", "not supported"),
        (an_object(a={"type": "array", "items": [TEXT, WHOLE]}), "#/properties/a/items", 'an object, not [{"type"'),
        (an_object(a={"type": "array"}), "#/properties/a", "there is no schema at #/properties/a/items"),
        (an_object(a={"type": "object"}), "#/properties/a", "there is no schema at #/properties/a/additionalProperties"),
        (an_object(a={"type": "object", "additionalProperties": True}), "#/properties/a/additionalProperties", "not true"),
        (an_object(a={"type": ["string", "integer"]}), "#/properties/a", 'the type is ["string", "integer"]'),
        (an_object(a={"type": "strin"}), "#/properties/a", 'the type is "strin", not one of boolean, integer'),
        (an_object(a={"type": {"a": 1}}), "#/properties/a", "the type is {"),
        (an_object(a=NULL), "#/properties/a", 'the type is "null"'),
        (an_object(a={}), "#/properties/a", "the type is missing"),
        (an_object(a={"enum": [1, "a"]}), "#/properties/a", "the type is missing"),
        (an_object(a=True), "#/properties/a", "an object, not true"),
        (an_object(**{"a/b~c%": True}), "#/properties/a~1b~0c%25", "an object, not true"),
        (an_object(a={"$ref": "other.json#/x"}), "#/properties/a", "at other.json#/x; given are the references none"),
        (an_object(a={"$ref": "#/definitions/b"}), "#/properties/a", "there is no schema at #/definitions/b;"),
        (an_object(a={"$ref": "#anchor"}), "#/properties/a", "there is no schema at #anchor"),
        (an_object(a={"$ref": 5}), "#/properties/a", "there is no schema at 5#"),
        (an_object(a={**NUMBER, "title": DECIMAL, "connect.parameters": {}}), "#/properties/a/connect.parameters", "decimal(38, None)"),
        (an_object(a={**NUMBER, "title": DECIMAL, "connect.parameters": {"scale": "40"}}), "#/properties/a/connect.parameters", "1 to 38 digits"),
        (TREE, "#/$defs/Node/properties/next", "contains itself"),
        ({"items": {"$ref": "#"}}, "#/items", "contains itself"),
        ([], "#", "an object, not []"),
        ({}, "#", "the type is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_column_is_refused_with_its_place(schema: Any, path: str, words: str) -> None:
    with pytest.raises(SchemaError) as error:
        ddl(schema)

    assert error.value.path == path
    assert words in error.value.reason
    assert ("give the columns as a DDL" in error.value.reason) != path.endswith("parameters")


def test_the_page_says_which_keywords_are_refused_and_which_are_not_looked_at() -> None:
    page = (REPOSITORY / "docs" / "values.md").read_text(encoding="utf-8")
    (checks,) = re.findall(r"^- \*\*Only checks, and not looked at:\*\* (.*?);", page, re.MULTILINE)
    (refused,) = re.findall(
        r"^- \*\*Refused, with the path,\*\* .*?: (.*?), unless", page, re.MULTILINE
    )

    assert re.findall("`(.*?)`", refused) == [*json_schema._REFUSED]
    for name in re.findall("`(.*?)`", checks):
        assert ddl({**TEXT, name: {"type": "integer"}}) == "string", name
    for name in json_schema._REFUSED:
        assert ddl({**TEXT, name: False}) == "string"
        with pytest.raises(SchemaError, match=re.escape(f"#/{name}: '{name}' is not supported")):
            ddl({**TEXT, name: {}})


def test_a_place_in_a_reference_is_named_with_it() -> None:
    with pytest.raises(SchemaError) as error:
        ddl(an_object(a={"$ref": "b.json"}), **{"b.json": an_object(c={"allOf": []})})

    assert error.value.path == "b.json#/properties/c/allOf"


@pytest.mark.parametrize(
    ("text", "references", "words"),
    [
        ("{", [], "#: the schema is not JSON"),
        ("[" * 100_000, [], "#: the schema is not JSON"),
        ("{}", [("a.json", "nope")], "a.json#: the schema is not JSON"),
    ],
)
def test_what_is_not_json_is_refused(
    text: str, references: list[tuple[str, str]], words: str
) -> None:
    with pytest.raises(SchemaError, match=re.escape(words)):
        type_of_json_schema(text, references)


def test_what_is_refused_may_be_left_out_of_the_fields_that_are_wanted() -> None:
    schema = an_object(id=WHOLE, any={}, s=an_object(x=TEXT, y={"allOf": []}), ID=TEXT)

    assert ddl(schema, "s.x", "id") == "struct<s struct<x string>, id bigint>"
    assert ddl(TREE, "id") == "struct<id bigint>"
    with pytest.raises(SchemaError) as error:
        ddl(schema, "s")
    assert error.value.path == "#/properties/s/properties/y/allOf"
    with pytest.raises(SchemaError, match="'id' and 'ID', which Spark cannot tell apart"):
        ddl(an_object(id=WHOLE, ID=TEXT))


def test_a_schema_that_grows_without_end_is_refused() -> None:
    twice = {f"R{n}": an_object(a={"$ref": f"#/$defs/R{n - 1}"}, b={"$ref": f"#/$defs/R{n - 1}"}) for n in range(1, 40)}  # fmt: skip
    deep = {f"R{n}": {"items": {"$ref": f"#/$defs/R{n - 1}"}} for n in range(1, 3000)}

    for schemas in (twice, deep):
        top = f"#/$defs/R{len(schemas)}"
        with pytest.raises(SchemaError, match="more than 10000 schemas, or 100 in each other"):
            ddl({"$ref": top, "$defs": {"R0": TEXT, **schemas}})
