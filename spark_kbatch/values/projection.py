"""The part of a reader's schema that is wanted: some fields of its records, in the order that is asked for.

What remains is the schema's own: types, aliases, defaults and the names of records. A field that is left
out is passed over in each record, and may be of a type that no column can have, as in a recursive record. Its name
and aliases count all the same: what a field is read from does not depend on which others are wanted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import (
    ArraySchema,
    MapSchema,
    RecordField,
    RecordSchema,
    Schema,
    UnionSchema,
    described,
    short_name,
)
from spark_kbatch.values.layout import is_primitive, present_branches

_MEMBER = re.compile(r"member[0-9]+", re.IGNORECASE)  # of a union's column, as `layout` names it

# Names of fields, each with what is wanted of its type: all of it where no names follow.
Wanted = dict[str, "Wanted"]


def wanted_fields(paths: Iterable[str]) -> Wanted:
    """Return what dotted paths such as `customer.id` ask for, where `customer` asks for all below it."""
    tree: Wanted = {}
    whole: set[tuple[str, ...]] = set()
    for path in paths:
        names = tuple(path.split("."))
        if any(names[:size] in whole for size in range(1, len(names) + 1)):
            continue
        whole.add(names)
        node = tree
        for name in names:
            node = node.setdefault(name, {})
        node.clear()
    return tree


def project(schema: Schema, wanted: Wanted, *, renames: bool = False) -> Schema:
    """Return a schema with the wanted fields only, through arrays, maps and unions with null.

    Args:
        schema: to take them from.
        wanted: the fields, in their new order.
        renames: whether the column of a field that is found by a name of other case has that name.

    Raises:
        SchemaError: a field that a record does not have, or fields of what is no record.
    """
    name = short_name(schema.name) if isinstance(schema, RecordSchema) else ""
    return _projected(schema, wanted, name, renames=renames)


def _projected(schema: Schema, wanted: Wanted, path: str, *, renames: bool) -> Schema:
    if not wanted:
        return schema
    match schema:
        case ArraySchema():
            return ArraySchema(_projected(schema.items, wanted, f"{path}[]", renames=renames))
        case MapSchema():
            return MapSchema(_projected(schema.values, wanted, f"{path}{{}}", renames=renames))
        case UnionSchema() if len(present_branches(schema)) == 1:
            return UnionSchema(
                tuple(
                    one
                    if is_primitive(one, "null")
                    else _projected(one, wanted, path, renames=renames)
                    for one in schema.branches
                )
            )
        case RecordSchema():
            fields = tuple(
                _renamed(
                    replace(
                        found,
                        type=_projected(found.type, below, f"{path}.{found.name}", renames=renames),
                    ),
                    name if renames else found.name,
                )
                for name, found, below in _found(schema, wanted, path)
            )
            whole = schema.whole or schema.fields
            return RecordSchema(schema.name, schema.aliases, fields, whole)
        case UnionSchema() if all(_MEMBER.fullmatch(name) for name in wanted):
            return schema  # its members are all there
    raise SchemaError(path, f"{described(schema)} has no field {next(iter(wanted))!r}")


def _renamed(one: RecordField, name: str) -> RecordField:
    return one if name == one.name else replace(one, column=name)


def _found(
    record: RecordSchema, wanted: Wanted, path: str
) -> list[tuple[str, RecordField, Wanted]]:
    """Return the wanted fields of a record: by their name, or by the only one that differs in case alone."""
    by_name = {one.name: one for one in record.fields}
    found: list[tuple[str, RecordField, Wanted]] = []
    for name, below in wanted.items():
        alike = [one for one in record.fields if one.name.casefold() == name.casefold()]
        match = by_name.get(name) or (alike[0] if len(alike) == 1 else None)
        if match is None:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its fields are: {', '.join(by_name)}"
            raise SchemaError(path, f"{described(record)} has no field {name!r}; {hint}")
        if any(match is other for _, other, _ in found):
            raise SchemaError(path, f"the field {match.name!r} is asked for twice")
        found.append((name, match, below))
    return found
