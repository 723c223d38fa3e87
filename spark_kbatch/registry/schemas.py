"""Schemas as a registry has them: their values, their form in JSON, and what a registry is asked for.

In JSON a schema is what a registry answers to `GET /schemas/ids/7`:

    schema       text: the schema
    schemaType   AVRO, JSON, PROTOBUF or what a registry has besides; AVRO if it is missing
    references   a list of {"name": ..., "subject": ..., "version": ...}; none if it is missing.
                 A version of -1 is the latest of that subject, whenever the schema is asked for
    ruleSet      rules of data contracts; only those that encrypt matter to who decodes
    guid         text: the same for a schema in all contexts and registries; Confluent's have it from 8.0 on
    id, subject, version   where the registry was asked for a version of a subject

A subject may name a context, as `:.CONTEXT:SUBJECT`. An id has one meaning in a context, and may have another one in
the next. A subject without a context lies in the default one, or in that of the registry's URL; but a registry that
does not have an id there looks for a subject of this name in all other contexts. So what an id means is known for a
context, or for a subject that names none (`scope_of`).

A reference may be to a version that has been deleted since, whose schema may refer to others. A name
that a schema has met once is not looked for again, so that circles end, and the first of two versions
under one name counts, as in Confluent's clients.

Source: schema-registry client/.../rest/entities/SchemaString.java, Schema.java, utils/QualifiedSubject.java;
AbstractSchemaProvider.java; core/.../storage/AbstractSchemaRegistry.java (getSchemaKeyUsingContexts).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from spark_kbatch.errors import SchemaRegistryError
from spark_kbatch.model import INT_MAX
from spark_kbatch.stored_json import StoredObject

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LATEST_VERSION: Literal["latest"] = "latest"
LATEST_REFERENCE = -1  # a reference's version that registries keep as it was sent
Version: TypeAlias = int | Literal["latest"]

_TYPES = re.compile("[A-Z_]+")
_REFERENCES_MAX = 1000  # of one schema
# Schemas that one schema refers to, directly or not: each may be a request, and a level of recursion.
_REFERENCED_MAX = 300
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


class SchemaReference(NamedTuple):
    """A schema's reference to a version of a subject, or the latest, under the name in its text."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as it is registered."""

    text: str
    type: str = AVRO  # or JSON, PROTOBUF, or another one that no one here reads
    references: tuple[SchemaReference, ...] = ()


class ReferencedSchema(NamedTuple):
    """A schema that another one refers to, directly or through others."""

    name: str
    subject: str
    version: int
    text: str


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema with the id that a registry gave it."""

    id: int
    schema: Schema
    encrypts: bool = False  # a rule says that clients encrypt fields or whole records
    subject: str = ""  # that it was asked for under; empty if it was asked for by id alone
    version: int = 0  # 0 where it was asked for by id
    referenced: tuple[ReferencedSchema, ...] = ()  # all of them; each after those it refers to
    guid: str = ""  # empty if it is not known

    @property
    def may_change(self) -> bool:
        """Whether what it refers to may be another version by now."""
        return any(one.version == LATEST_REFERENCE for one in self.referenced)


class SchemaRegistry(Protocol):
    """The interface of a schema registry. Thread-safe.

    Each method raises SchemaNotFoundError where the registry has no such thing, SchemaRegistryUnavailableError if it
    cannot be reached until all retries have failed, and SchemaRegistryError if it refuses or answers with nonsense.
    """

    @property
    def name(self) -> str:
        """The registry's URLs or folder, without secrets."""

    def by_id(self, schema_id: int | str, subject: str = "") -> RegisteredSchema:
        """Return the schema of an id, or of a GUID, with its id in the context of `subject`."""

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions, in order; with `deleted` also those that were deleted."""

    def version(self, subject: str, version: Version) -> RegisteredSchema:
        """Return a version of a subject: one that may have been deleted, or the latest that was not."""

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema under a subject, unless it is registered there, and return it, as given, with its id.

        Raises:
            IncompatibleSchemaError: the subject's other versions do not allow it; nothing is registered.
        """

    def look_up(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the version of a subject that has this schema."""


def schema_of(
    found: StoredObject, *, schema_id: int | None = None, subject: str = ""
) -> RegisteredSchema:
    """Return the schema that JSON describes, without the schemas that it refers to.

    Args:
        found: the JSON object.
        schema_id: the id that was asked for; None if it is in the JSON.
        subject: that was asked for.

    Raises:
        KBatchError: the JSON is no such schema; the error that `found` makes.
    """
    found = found.without_nulls()  # which registries answer for what is not there
    schema = Schema(
        found.text("schema"),
        found.text("schemaType", _TYPES) if "schemaType" in found else AVRO,
        tuple(
            SchemaReference(
                one.text("name"),
                one.text("subject"),
                one.integer("version", LATEST_REFERENCE, INT_MAX),
            )
            for one in found.objects("references", count_max=_REFERENCES_MAX)
        )
        if "references" in found
        else (),
    )
    return RegisteredSchema(
        found.integer("id", 0, INT_MAX) if schema_id is None else schema_id,
        schema,
        _encrypts(found.values.get("ruleSet")),
        subject,
        found.integer("version", 1, INT_MAX, default=0),
        guid=found.text("guid").lower() if "guid" in found else "",
    )


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
            if len(names) == _REFERENCED_MAX:
                reason = f"it refers to more than {_REFERENCED_MAX} others"
                raise SchemaRegistryError(registry, f"schema id {schema.id}", reason)
            names.add(name)
            there = in_context_of(parent_subject, subject)
            is_latest = version == LATEST_REFERENCE
            referenced = version_of(there, LATEST_VERSION if is_latest else version)
            add(referenced, there)
            found.append(ReferencedSchema(name, there, version, referenced.schema.text))

    add(schema, schema.subject)
    return replace(schema, referenced=tuple(found))


def json_of(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON, as a registry is given it; older registries know no types, so AVRO is left out."""
    found: dict[str, Any] = {"schema": schema.text}
    if schema.type != AVRO:
        found["schemaType"] = schema.type
    if schema.references:
        found["references"] = [one._asdict() for one in schema.references]
    return found


def context_of(subject: str) -> str:
    """Return the context that a subject names, such as `.staging`; empty if it names none."""
    found = _QUALIFIED.fullmatch(subject)
    return found[1] if found and found[1] != "." else ""


def name_of(subject: str) -> str:
    """Return a subject's name without its context."""
    found = _QUALIFIED.fullmatch(subject)
    return found[2] if found else subject


def version_in_words(subject: str, version: Version) -> str:
    """Return what is asked for, for errors."""
    which = f"version {version}" if isinstance(version, int) else "the latest version"
    return f"{which} of subject {subject!r}"


def scope_of(subject: str) -> str:
    """Return what has one schema for each id: the context that a subject names, or the subject itself."""
    context = context_of(subject)
    return f":{context}:" if context else subject


def in_context_of(parent: str, subject: str) -> str:
    """Return a subject that a schema refers to, which lies in the context of that schema's subject unless it names one."""
    context = context_of(parent)
    return f":{context}:{subject}" if context and not context_of(subject) else subject


def _encrypts(rule_set: Any) -> bool:
    """Return True if a rule set has a rule that encrypts, and is not disabled."""
    if not isinstance(rule_set, dict):
        return False
    lists = [value for value in rule_set.values() if isinstance(value, list)]
    rules = [rule for rules in lists for rule in rules if isinstance(rule, dict)]
    return any(
        str(rule.get("type")).startswith("ENCRYPT") and rule.get("disabled") is not True
        for rule in rules
    )
