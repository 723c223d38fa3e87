"""The schemas of keys and values: which one is chosen, and which ones wrote what is read.

    chosen_schema      what the options of a column name: of a registry, a file, or the schema itself
    schema_to_write    the same for what is written, with its id in the registry
    encoder_of         what encodes columns as values of a schema, if they fit it
    new_versions       the versions of a subject that may have written values and are not known yet
    WritersSchemas     what wrote values, by the ids in these
    subject_versions   all versions of a subject, for people

Loaded with the client of registries, and so for columns of a format that has schemas alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kbatch.errors import (
    ConfigError,
    SchemaError,
    SchemaNotFoundError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.files import LinkedFiles
from spark_kbatch.options.registry import RegistryOptions, parse_registry_options
from spark_kbatch.options.values import ColumnOptions, SchemaChoice, key_of, registry_keys
from spark_kbatch.registry.known import registry_of
from spark_kbatch.registry.schemas import (
    AVRO,
    JSON,
    LATEST_VERSION,
    ReferencedSchema,
    RegisteredSchema,
    SchemaRegistry,
)
from spark_kbatch.registry.schemas import Schema as SchemaText
from spark_kbatch.values.avro_schema import RecordSchema, Schema, parse

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.values.avro_encoder import AvroEncoder
    from spark_kbatch.values.json_encoder import JsonEncoder

NO_ID = -1  # of a schema that is no registry's
_KNOWN_MAX = 1 << 20  # characters of schemas that a plan carries for a column
_VERSIONS_MAX = 200  # each of which is a request


def parsed(schema: RegisteredSchema) -> Schema:
    """Return a schema of a registry as a graph of types; raises SchemaError."""
    return parse(schema.schema.text, [one.text for one in schema.referenced])


def encoder_of(schema: RegisteredSchema, kind: pa.DataType) -> AvroEncoder | JsonEncoder:
    """Return what encodes columns of an Arrow type as values of a schema; of JSON there may be none.

    Raises:
        SchemaError: they do not fit it; names the path.
    """
    if schema.schema.type != JSON:
        from spark_kbatch.values.avro_encoder import AvroEncoder  # noqa: PLC0415  loads the kernels

        return AvroEncoder(parsed(schema), kind)
    from spark_kbatch.values.json_encoder import JsonEncoder  # noqa: PLC0415  as above

    if schema.schema.text:
        from spark_kbatch.values.json_schema import ensure_fits, type_of_json_schema  # noqa: PLC0415  for this alone
        from spark_kbatch.values.types import project_type  # noqa: PLC0415

        referenced = [(one.name, one.text) for one in schema.referenced]
        wanted = type_of_json_schema(schema.schema.text, referenced)
        ensure_fits(project_type(kind, {}), wanted)
    return JsonEncoder(kind)


def _why_unreadable(schema: RegisteredSchema, kind: str = AVRO) -> str:
    """Return why no value of a schema can be read as one of a kind; empty if that is not known."""
    if schema.schema.type != kind:
        return f"it is a schema of type {schema.schema.type}, and not of {'Avro' if kind == AVRO else kind}"
    if schema.encrypts:
        return "a rule of the schema has clients encrypt its values, which cannot be read here"
    return ""


def _usable(column: ColumnOptions, schema: RegisteredSchema) -> RegisteredSchema:
    """Return the schema that a column's options choose, if values of it can be read and written.

    Raises:
        ConfigError: they cannot.
    """
    why = _why_unreadable(schema, column.format.upper())
    if why:
        raise ConfigError(f"option {column.schema_key!r}: schema id {schema.id}: {why}")
    return schema


def chosen_schema(column: ColumnOptions, registry: RegistryOptions | None) -> RegisteredSchema:
    """Return the schema that a column's options choose; its id is NO_ID if it is no registry's.

    Raises:
        ConfigError: a file cannot be read, or values of the schema cannot be.
        SchemaRegistryError: the registry does not have it, or cannot be asked.
    """
    match column.schema:
        case SchemaChoice("text", text=text):
            return RegisteredSchema(NO_ID, SchemaText(text, column.format.upper()))
        case SchemaChoice("file", text=path, beside=beside):
            types = tuple(
                ReferencedSchema(Path(one).name, "", 0, _content(column, one)) for one in beside
            )
            schema = SchemaText(_content(column, path), column.format.upper())
            return RegisteredSchema(NO_ID, schema, referenced=types)
    assert registry is not None  # the options were checked
    there = registry_of(registry)
    if column.schema.kind == "id":
        return _usable(column, there.by_id(column.schema.number, column.subject))
    version = column.schema.number if column.schema.kind == "version" else LATEST_VERSION
    return _usable(column, there.version(column.subject, version))


def _content(column: ColumnOptions, path: str) -> str:
    try:
        return LinkedFiles().read(Path(path)).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"option {column.schema_key!r} is 'file:{path}', which cannot be read: {reason}"
        ) from None


def schema_to_write(
    column: ColumnOptions,
    registry: RegistryOptions | None,
    *,
    auto_register: bool,
    kind: pa.DataType | None = None,
) -> RegisteredSchema:
    """Return the schema that a column is written with, with its id in the registry if there is one.

    Args:
        column: what its options say.
        registry: where the schema is, or is registered.
        auto_register: whether to register it.
        kind: the column's type, of which a schema is made if the options say so. Nothing is registered that it
            does not fit.

    Raises:
        ConfigError: a schema cannot be written with.
        SchemaError: it is none, or the column does not fit it.
        SchemaRegistryError: the registry does not have it or does not allow it, or cannot be asked.
    """
    if column.schema.kind == "columns":
        assert kind is not None
        schema = _schema_of_columns(column, kind)
    else:
        schema = chosen_schema(column, registry)
    if registry is None or schema.id >= 0 or column.framing == "none":
        return schema
    subject = column.subject or column.subject_of(_record_name(column, schema))
    if not subject:
        raise ConfigError(
            f"{key_of(column.column, 'subject').replace('.', '_')} is not given: the registry has the schema's id under it"
        )
    there = registry_of(registry)
    if not auto_register:
        return _usable(column, there.look_up(subject, schema.schema))
    if kind is not None:
        encoder_of(schema, kind)
    elif column.format == "avro":
        parsed(schema)
    found = there.register(subject, schema.schema)
    # The answer has none of the rules that the registry gave it.
    with contextlib.suppress(SchemaNotFoundError, SchemaRegistryUnavailableError):
        _usable(column, there.by_id(found.id, subject))
    return found


def _schema_of_columns(column: ColumnOptions, kind: pa.DataType) -> RegisteredSchema:
    from spark_kbatch.values.json_schema import json_schema_of  # noqa: PLC0415  for these alone
    from spark_kbatch.values.layout import derived, record_name  # noqa: PLC0415  for these alone

    try:
        if column.format == "json":
            # Without an id in front of values no one would learn of the schema.
            text = "" if column.framing == "none" else json_schema_of(kind, column.record_name)
            return RegisteredSchema(NO_ID, SchemaText(text, JSON))
        name = column.record_name or record_name(column.subject)
        return RegisteredSchema(NO_ID, SchemaText(derived(kind, name)))
    except SchemaError as error:
        at = column.path_of(error.path)
        raise ConfigError(f"no schema can be made of column {at!r}: {error.reason}") from None


def _record_name(column: ColumnOptions, schema: RegisteredSchema) -> str:
    """Return the full name of the record that a schema is, if the column's subject follows from it."""
    if column.strategy == "TopicNameStrategy" or column.format == "json":
        return ""
    found = parsed(schema)
    if not isinstance(found, RecordSchema):
        raise ConfigError(
            f"option '{column.column}.subject.name.strategy' is {column.strategy!r}, and the schema is no record: "
            f"give '{column.column}.subject'"
        )
    return found.name


class WritersSchemas:
    """The schemas that wrote values, by their ids."""

    def __init__(
        self,
        registry: RegistryOptions | None,
        subject: str,
        known: Iterable[RegisteredSchema] = (),
    ) -> None:
        """Ask a registry for ids in the context of a subject, but for schemas that are known."""
        self._registry, self._subject = registry, subject
        self._known = {one.id: one for one in known}
        self._ids = {one.guid: one.id for one in self._known.values() if one.guid}

    def of(self, schema_id: int) -> Schema | str:
        """Return the schema of an id, or why its values cannot be read.

        Raises:
            SchemaRegistryError: the registry does not answer, or refuses to.
        """
        try:
            schema = self._known.get(schema_id) or self._asked(schema_id)
            return _why_unreadable(schema) or parsed(schema)
        except SchemaNotFoundError as error:
            if schema_id == 0:
                return f"{error}; an id of 0 looks like Apicurio's framing, with ids of 8 bytes"
            return str(error)
        except SchemaError as error:
            return f"its schema is none that can be used: {error}"

    def id_of(self, guid: str) -> int | str:
        """Return the id of the schema that has a GUID, or why there is none; raises as `of`."""
        try:
            return self._ids.get(guid) or self._asked(guid).id
        except SchemaNotFoundError as error:
            return str(error)

    def _asked(self, schema_id: int | str) -> RegisteredSchema:
        assert self._registry is not None  # which Confluent's framing needs
        return registry_of(self._registry).by_id(schema_id, self._subject)


def new_versions(
    registry: SchemaRegistry, subject: str, known: Sequence[RegisteredSchema], *, after: int = 0
) -> tuple[list[RegisteredSchema], int]:
    """Ask for versions of a subject, deleted ones too; for the newest of them where they are many.

    Args:
        registry: which is asked for the list, and for each version.
        subject: which may not exist yet.
        known: schemas that are known already, and count for the size of all.
        after: the version that the wanted ones are newer than.

    Returns:
        The versions, and the number of the newest one of the subject, or `after`.

    Raises:
        SchemaRegistryError: the registry does not answer, or refuses to.
    """
    try:
        numbers = registry.versions(subject, deleted=True)
    except SchemaNotFoundError:
        return [], after
    versions = {one.version for one in known}
    size = sum(map(_size, known))
    found: list[RegisteredSchema] = []
    wanted = sorted({one for one in numbers if one > after} - versions, reverse=True)
    for number in wanted[:_VERSIONS_MAX]:
        try:
            schema = registry.version(subject, number)
        except SchemaNotFoundError:  # deleted for good since
            continue
        size += _size(schema)
        if size > _KNOWN_MAX:
            break
        found.append(schema)
    return found, max([after, *numbers])


def _size(schema: RegisteredSchema) -> int:
    return len(schema.schema.text) + sum(len(one.text) for one in schema.referenced)


def subject_versions(registry: Any, subject: str) -> list[tuple[RegisteredSchema, bool]]:
    """Return the versions of a subject, each with whether it was deleted.

    Args:
        registry: as for `parse_value_keywords`.

    Raises:
        SchemaNotFoundError: there is no such subject.
        SchemaRegistryError: the registry does not answer, or refuses to.
    """
    options = parse_registry_options(registry_keys(registry))
    assert options is not None
    there = registry_of(options)
    numbers = there.versions(subject, deleted=True)
    try:
        kept = set(there.versions(subject))
    except SchemaNotFoundError:  # all are deleted
        kept = set()
    return [(there.version(subject, one), one not in kept) for one in numbers]
