"""The type of columns that values with a JSON Schema are read as.

    JSON Schema                                   Arrow
    boolean                                       bool
    integer                                       int64
    integer, connect.type int8, int16, int32      int8, int16, int32
    number                                        double
    number, connect.type float32                  float
    number, titled Connect's Decimal              decimal128(p, s)
    string; enum or const of strings              string
    string, format date                           date32
    string, format date-time                      timestamp[us, UTC]
    string, contentEncoding base64                binary
    string, connect.type bytes                    binary
    array with items                              list<element>
    object with properties                        struct
    object with additionalProperties alone        map<string, value>
    oneOf or anyOf of null and another            that of the other
    allOf of one; $ref                            that of the one

Everything may be null, as `types` has it, whether a schema says so or not. Other formats, uuid
among them, are strings. A precision that Connect's Decimal does not name is of 38 digits. An
object with properties may have others, which are passed over.

A `$ref` leads by a JSON pointer into the schema, or into another that is given, by the name of
the reference or by its `$id`.

What only checks or describes a value is not looked at: required, minimum, pattern, title, default
and what JSON Schema does not know. Whatever else says what a value is, is refused, as `_REFUSED`
lists it, and so is a schema that contains itself, one with several types, and one with none. The
path of an error is a JSON pointer, after the name of a reference: `address.json#/properties/zip`.
A field that is refused is an error only if it is wanted.

Source: JSON Schema, drafts 4 to 2020-12; schema-registry
json-schema-converter/.../JsonSchemaData.java.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import NESTING_MAX
from spark_kbatch.values.layout import COLUMNS_MAX, DECIMAL_DIGITS_MAX, Wanted
from spark_kbatch.values.types import (
    REFUSED,
    array_of,
    ensure_columns_of_json,
    map_of,
    parse_ddl,
    project_type,
)

# By a type and a word that says more of it, or none.
_SCALARS: Mapping[tuple[str, str], pa.DataType] = {
    ("boolean", ""): pa.bool_(),
    ("integer", ""): pa.int64(),
    ("integer", "connect.type int8"): pa.int8(),
    ("integer", "connect.type int16"): pa.int16(),
    ("integer", "connect.type int32"): pa.int32(),
    ("number", ""): pa.float64(),
    ("number", "connect.type float32"): pa.float32(),
    ("string", ""): pa.string(),
    ("string", "connect.type bytes"): pa.binary(),
    ("string", "contentEncoding base64"): pa.binary(),
    ("string", "format date"): pa.date32(),
    ("string", "format date-time"): pa.timestamp("us", "UTC"),
}
_TYPES = "boolean, integer, number, string, array and object"
_MORE = ("connect.type", "contentEncoding", "format")
_CHOICES = ("$ref", "oneOf", "anyOf", "allOf")
_REFUSED = (
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "dependencies",
    "dependentSchemas",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
)
_INSTEAD = "name the fields that are wanted without it, or give the columns as a DDL"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def type_of_json_schema(
    text: str,
    referenced: Iterable[tuple[str, str]] = (),
    wanted: Wanted | None = None,
    *,
    renames: bool = False,
) -> pa.DataType:
    """Return the Arrow type of the values of a JSON Schema.

    Args:
        text: the schema, as JSON.
        referenced: schemas that it refers to, directly or not: their names and texts.
        wanted: the fields to take of it, all by default; the others may be of any type.
        renames: as for `types.project_type`.

    Raises:
        SchemaError: it is no JSON Schema, or what is wanted of it has no type; names the place.
    """
    kind = _Schemas({"": text, **dict(referenced)}).type("#", ())
    kind = project_type(kind, wanted or {}, renames=renames)
    ensure_columns_of_json(kind)
    return kind


class _Schemas:
    """The schema and those that it refers to, and how many types were made of them.

    A place is a JSON pointer, after the name of a reference if it is in one:
    `address.json#/properties/zip`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        trees = {name: _loaded(name, text) for name, text in texts.items()}
        self._trees = {**{_id(tree): tree for tree in trees.values()}, **trees}
        self._count = 0

    def type(self, at: str, inside: tuple[str, ...]) -> pa.DataType:
        """Return the type of the schema at a place, which the places `inside` led to."""
        self._count += 1
        if at in inside:
            raise _refused(inside[-1], "the schema contains itself, which no column can")
        if len(inside) > NESTING_MAX or self._count > COLUMNS_MAX:
            raise _refused(
                at, f"there are more than {COLUMNS_MAX} schemas, or {NESTING_MAX} in each other"
            )
        tree = self._found(at, (at, *inside)[-1])
        if not isinstance(tree, dict):
            raise _refused(at, f"a schema with a type is an object, not {json.dumps(tree)[:40]}")
        inside = (*inside, at)
        for key in _REFUSED:
            if not isinstance(tree.get(key, False), bool):
                raise _refused(f"{at}/{key}", f"{key!r} is not supported")
        says = [key for key in (*_CHOICES, "type", "properties", "items") if key in tree]
        if not says or says[0] not in _CHOICES:
            return self._typed(tree, at, inside)
        if len(says) > 1:
            raise _refused(at, f"{says[0]!r} beside {says[1]!r} is not supported")
        return self.type(self._chosen(says[0], tree[says[0]], at), inside)

    def _found(self, at: str, user: str) -> Any:
        """Return the schema at a place, which the one at the place `user` needs."""
        document, _, pointer = at.partition("#")
        try:
            found: Any = {"": self._trees[document]}
            for key in pointer.split("/"):
                found = found[int(key) if isinstance(found, list) else _unescaped(key)]
        except (LookupError, TypeError, ValueError):
            known = f"; given are the references {', '.join(filter(None, self._trees)) or 'none'}"
            hint = "" if document in self._trees else known
            raise _refused(user, f"there is no schema at {at}{hint}") from None
        return found

    def _chosen(self, key: str, given: Any, at: str) -> str:
        """Return the place that a `$ref` names, or that of the only choice that is not null."""
        if key == "$ref":
            document, _, pointer = str(given).partition("#")
            return f"{document or at.partition('#')[0]}#{pointer}"
        choices = enumerate(given) if isinstance(given, list) else ()
        found = [index for index, one in choices if one not in ({"type": "null"}, {"const": None})]
        if len(found) != 1:
            raise _refused(
                f"{at}/{key}", f"{key!r} of {len(found)} schemas beside null is not supported"
            )
        return f"{at}/{key}/{found[0]}"

    def _typed(self, tree: dict[str, Any], at: str, inside: tuple[str, ...]) -> pa.DataType:
        given = tree.get("type", _implied(tree))
        words = [one for one in given if one != "null"] if isinstance(given, list) else [given]
        if words == ["object"]:
            return self._object(tree.get("properties"), at, inside)
        if words == ["array"]:
            return array_of(self.type(f"{at}/items", inside))
        parameters = tree.get("connect.parameters")
        if words == ["number"] and tree.get("title") == _DECIMAL and isinstance(parameters, dict):
            digits = parameters.get("connect.decimal.precision", DECIMAL_DIGITS_MAX)
            try:
                return parse_ddl(f"decimal({digits}, {parameters.get('scale')})")
            except SchemaError as error:
                raise _refused(f"{at}/connect.parameters", error.reason) from error
        more = [*(f"{key} {tree.get(key)}" for key in _MORE), ""]
        keys = [(str(words[0]), one) for one in more] if len(words) == 1 else []
        found = [_SCALARS[key] for key in keys if key in _SCALARS]
        if not found:
            shown = json.dumps(given) if given else "missing"
            raise _refused(at, f"the type is {shown}, not one of {_TYPES}, beside null")
        return found[0]

    def _object(self, properties: Any, at: str, inside: tuple[str, ...]) -> pa.DataType:
        if not properties or not isinstance(properties, dict):
            return map_of(self.type(f"{at}/additionalProperties", inside))
        fields: list[pa.Field] = []
        for name in properties:
            below = f"{at}/properties/{_escaped(name)}"
            try:
                fields.append(pa.field(name, self.type(below, inside)))
            except SchemaError as error:
                why = {REFUSED: f"{error.path}\0{error.reason}"}
                fields.append(pa.field(name, pa.null(), metadata=why))
        return pa.struct(fields)


def _refused(at: str, reason: str) -> SchemaError:
    return SchemaError(at, f"{reason}; {_INSTEAD}")


def _escaped(key: str) -> str:
    return key.replace("%", "%25").replace("~", "~0").replace("/", "~1")


def _unescaped(key: str) -> str:
    return unquote(key).replace("~1", "/").replace("~0", "~")


def _implied(tree: dict[str, Any]) -> str | None:
    """Return the type that a schema has without saying so, None if it has none."""
    if "properties" in tree or isinstance(tree.get("additionalProperties"), dict):
        return "object"
    values = tree.get("enum", [tree["const"]] if "const" in tree else [])
    is_text = values and all(isinstance(one, str | None) for one in values)
    return "string" if is_text else "array" if "items" in tree else None


def _loaded(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"the reference {name!r}" if name else "the schema"
        raise SchemaError("", f"{what} is not JSON: {error}") from error


def _id(tree: Any) -> str:
    """Return the identifier that a whole schema has, or an empty text."""
    found = tree.get("$id", tree.get("id", "")) if isinstance(tree, dict) else ""
    return str(found).rstrip("#")
