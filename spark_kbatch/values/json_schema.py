"""The type of columns that values with a JSON Schema are read as, and the schema of columns.

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

`json_schema_of` is the same from right to left: of two that become the same column, connect.type
but for base64. What an array or a map has, and each property, may be null, and no other properties
are allowed: so a registry takes a later schema with more of them as compatible.

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
from spark_kbatch.stored_json import loads_commented
from spark_kbatch.values.avro_schema import NESTING_MAX
from spark_kbatch.values.layout import COLUMNS_MAX, DECIMAL_DIGITS_MAX, Wanted
from spark_kbatch.values.types import array_of, decimal_of, map_of, project_type

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
_TREES: Mapping[pa.DataType, dict[str, Any]] = {
    kind: {"type": word, **dict([more.split(" ")] if more else [])}
    for (word, more), kind in _SCALARS.items()
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
_WIDER: Mapping[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
_DRAFT = "http://json-schema.org/draft-07/schema#"  # the newest that all registries know


def type_of_json_schema(
    text: str, referenced: Iterable[tuple[str, str]] = (), wanted: Wanted | None = None
) -> pa.DataType:
    """Return the Arrow type of the values of a JSON Schema.

    Args:
        text: the schema, as JSON.
        referenced: schemas that it refers to, directly or not: their names and texts.
        wanted: the fields that `types.project_type` takes of it, all by default. The others are
            null, whatever their schemas are.

    Raises:
        SchemaError: it is no JSON Schema, or what is wanted of it has no type; names the place.
    """
    return _Schemas({"": text, **dict(referenced)}).type("#", (), wanted or {})


class _Schemas:
    """The schema and those that it refers to, and how many types were made of them.

    A place is a JSON pointer, after the name of a reference if it is in one:
    `address.json#/properties/zip`.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._count, self._trees = 0, dict[str, Any]()
        for name, text in texts.items():
            try:
                tree = loads_commented(text)
            except (ValueError, RecursionError) as error:
                raise SchemaError(f"{name}#", f"the schema is not JSON: {error}") from error
            identity = tree.get("$id", tree.get("id", "")) if isinstance(tree, dict) else ""
            self._trees = {str(identity).rstrip("#"): tree, **self._trees, name: tree}

    def type(self, at: str, inside: tuple[str, ...], wanted: Wanted) -> pa.DataType:
        """Return the type of the schema at a place, which the places `inside` led to."""
        self._count += 1
        if at in inside:
            raise _refused(inside[-1], "the schema contains itself, which no column can")
        if len(inside) > NESTING_MAX or self._count > COLUMNS_MAX:
            raise _refused(
                at, f"there are more than {COLUMNS_MAX} schemas, or {NESTING_MAX} in each other"
            )
        tree = self._found(at, (at, *inside)[-1])
        refused = [key for key in _REFUSED if not isinstance(tree.get(key, False), bool)]
        if refused:
            raise _refused(f"{at}/{refused[0]}", f"{refused[0]!r} is not supported")
        says = [key for key in (*_CHOICES, "type", "properties", "items") if key in tree]
        if says[1:] and says[0] in _CHOICES:
            raise _refused(at, f"{says[0]!r} beside {says[1]!r} is not supported")
        match says[:1]:
            case ["$ref"]:
                document, _, pointer = str(tree["$ref"]).partition("#")
                other = f"{document or at.partition('#')[0]}#{pointer}"
            case ["oneOf" | "anyOf" | "allOf" as key]:
                choices = tree[key] if isinstance(tree[key], list) else []
                found = [index for index, one in enumerate(choices) if not _is_null(one)]
                if len(found) != 1:
                    why = f"{key!r} of {len(found)} schemas beside null is not supported"
                    raise _refused(f"{at}/{key}", why)
                other = f"{at}/{key}/{found[0]}"
            case _:
                return self._typed(tree, at, (*inside, at), wanted)
        return self.type(other, (*inside, at), wanted)

    def _found(self, at: str, user: str) -> dict[str, Any]:
        """Return the schema at a place, which the one at the place `user` needs."""
        document, _, pointer = at.partition("#")
        try:
            found: Any = {"": self._trees[document]}
            for key in pointer.split("/"):
                name = unquote(key).replace("~1", "/").replace("~0", "~")
                found = found[int(key) if isinstance(found, list) else name]
        except (LookupError, TypeError, ValueError):
            known = f"; given are the references {', '.join(filter(None, self._trees)) or 'none'}"
            hint = "" if document in self._trees else known
            raise _refused(user, f"there is no schema at {at}{hint}") from None
        if not isinstance(found, dict):
            raise _refused(at, f"a schema with a type is an object, not {json.dumps(found)[:40]}")
        return found

    def _typed(
        self, tree: dict[str, Any], at: str, inside: tuple[str, ...], wanted: Wanted
    ) -> pa.DataType:
        given = tree.get("type", _implied(tree))
        words = [one for one in given if one != "null"] if isinstance(given, list) else [given]
        parameters = tree.get("connect.parameters")
        match words:
            case ["object"]:
                return self._object(tree.get("properties"), at, inside, wanted)
            case ["array"]:
                return array_of(self.type(f"{at}/items", inside, wanted))
            case ["number"] if tree.get("title") == _DECIMAL and isinstance(parameters, dict):
                digits = parameters.get("connect.decimal.precision", DECIMAL_DIGITS_MAX)
                return decimal_of(digits, parameters.get("scale"), f"{at}/connect.parameters")
            case [str(word)]:
                more = [*(f"{key} {tree.get(key)}" for key in _MORE), ""]
                found = [_SCALARS[word, one] for one in more if (word, one) in _SCALARS]
                if found:
                    return found[0]
        shown = json.dumps(given) if given else "missing"
        raise _refused(at, f"the type is {shown}, not one of {_TYPES}, beside null")

    def _object(
        self, properties: Any, at: str, inside: tuple[str, ...], wanted: Wanted
    ) -> pa.DataType:
        if not properties or not isinstance(properties, dict):
            return map_of(self.type(f"{at}/additionalProperties", inside, wanted))
        # By a name of any case, as fields are found.
        below = {one.casefold(): inner for one, inner in wanted.items()}
        fields: list[pa.Field] = []
        for name in properties:
            key = name.replace("%", "%25").replace("~", "~0").replace("/", "~1")
            is_left_out = wanted and name.casefold() not in below
            inner = below.get(name.casefold(), {})
            kind = pa.null() if is_left_out else self.type(f"{at}/properties/{key}", inside, inner)
            fields.append(pa.field(name, kind))
        return pa.struct(fields)


def _refused(at: str, reason: str) -> SchemaError:
    return SchemaError(at, f"{reason}; {_INSTEAD}")


def _is_null(tree: Any) -> bool:
    """Return True if a schema takes null alone."""
    is_object = isinstance(tree, dict)
    return is_object and (
        tree.get("type") == "null" or [None] in (tree.get("enum"), [tree.get("const", 0)])
    )


def _implied(tree: dict[str, Any]) -> str | None:
    """Return the type that a schema has without saying so, None if it has none."""
    if "properties" in tree or isinstance(tree.get("additionalProperties"), dict):
        return "object"
    values = tree.get("enum", [tree["const"]] if "const" in tree else [])
    is_text = values and all(isinstance(one, str | None) for one in values)
    return "string" if is_text else "array" if "items" in tree else None


# Columns that are written.


def json_schema_of(kind: pa.DataType, title: str = "") -> str:
    """Return a JSON Schema for values of an Arrow type, whose type is what they are read as.

    Args:
        kind: the column's type.
        title: of the schema, by which a subject may be called; none by default.

    Raises:
        SchemaError: a type has no form in JSON, or none in JSON Schema; names the path.
    """
    _, tree = _nullable(project_type(kind, {}), "")["oneOf"]
    named = {"title": title} if title else {}
    return json.dumps({"$schema": _DRAFT, **named, **tree})


def _nullable(kind: pa.DataType, path: str) -> dict[str, Any]:
    """Return the schema of null or a value of a type."""
    below = {place: _nullable(one, place) for place, one in _below(kind, path).items()}
    if pa.types.is_decimal(kind):
        tree = {
            "type": "number",
            "title": _DECIMAL,
            "connect.type": "bytes",
            "connect.version": 1,
            "connect.parameters": {
                "scale": str(kind.scale),
                "connect.decimal.precision": str(kind.precision),
            },
        }
    elif pa.types.is_list(kind):
        tree = {"type": "array", "items": below[f"{path}[]"]}
    elif pa.types.is_map(kind):
        tree = {"type": "object", "additionalProperties": below[f"{path}{{}}"]}
    elif below:
        properties = {one.name: below[f"{path}.{one.name}"] for one in kind}
        tree = {"type": "object", "properties": properties, "additionalProperties": False}
    elif kind in _TREES:
        tree = _TREES[kind]
    else:
        raise SchemaError(
            path, f"JSON Schema has no form for {kind}: cast it, leave it out, or give the schema"
        )
    return {"oneOf": [{"type": "null"}, tree]}


def ensure_fits(kind: pa.DataType, wanted: pa.DataType, path: str = "") -> None:
    """Check that what is read as a type may be written with a schema that is read as another one.

    Numbers may be of a narrower type. A property may have no column.

    Raises:
        SchemaError: it may not; names the path.
    """
    types = pa.types
    is_alike = (
        (types.is_nested(kind) and kind.id == wanted.id)
        or wanted in (kind, *_WIDER.get(kind, ()))
        or (
            (types.is_decimal(kind) and types.is_decimal(wanted))
            and kind.scale <= wanted.scale
            and kind.precision - kind.scale <= wanted.precision - wanted.scale
        )
    )
    if not is_alike:
        raise SchemaError(
            path, f"a column of type {kind} cannot be written as {wanted}, which the schema has"
        )
    there = _below(wanted, path)
    for place, one in _below(kind, path).items():
        if place not in there:
            raise SchemaError(place, "the schema has no property for this column")
        ensure_fits(one, there[place], place)


def _below(kind: pa.DataType, path: str) -> dict[str, pa.DataType]:
    """Return the types that a type has in it, by their paths."""
    if pa.types.is_struct(kind):
        return {f"{path}.{one.name}": one.type for one in kind}
    if pa.types.is_map(kind):
        return {f"{path}{{}}": kind.item_type}
    return {f"{path}[]": kind.value_type} if pa.types.is_list(kind) else {}
