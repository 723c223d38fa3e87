"""The schemas that a schema refers to, found for all of them.

A reference names a version of a subject, which may have been deleted since, and whose schema may refer to others. A
name that a schema has met once is not looked for again, so that circles end, and the first of two versions under one
name counts, as in Confluent's clients.

Source: schema-registry client/.../schemaregistry/AbstractSchemaProvider.java.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spark_kbatch.errors import SchemaRegistryError
from spark_kbatch.registry.schemas import (
    LATEST_REFERENCE,
    LATEST_VERSION,
    ReferencedSchema,
    RegisteredSchema,
    Version,
    in_context_of,
)

_ALL_MAX = 300  # schemas that one schema refers to; each may be a request, and a level of recursion


def with_referenced(
    schema: RegisteredSchema, registry: str, version_of: Callable[[str, Version], RegisteredSchema]
) -> RegisteredSchema:
    """Return a schema together with all that it refers to.

    Args:
        schema: without them.
        registry: its name, for errors.
        version_of: returns a version of a subject, or the latest, without what that refers to.

    Raises:
        SchemaRegistryError: they are too many, or what `version_of` raises.
    """
    names: set[str] = set()
    found: list[ReferencedSchema] = []

    def add(parent: RegisteredSchema, parent_subject: str) -> None:
        for name, subject, version in parent.schema.references:
            if name in names:
                continue
            if len(names) == _ALL_MAX:
                reason = f"it refers to more than {_ALL_MAX} others"
                raise SchemaRegistryError(registry, f"schema id {schema.id}", reason)
            names.add(name)
            there = in_context_of(parent_subject, subject)
            is_latest = version == LATEST_REFERENCE
            referenced = version_of(there, LATEST_VERSION if is_latest else version)
            add(referenced, there)
            found.append(ReferencedSchema(name, there, version, referenced.schema.text))

    add(schema, schema.subject)
    return replace(schema, referenced=tuple(found))
