"""Keys and values as columns: what a read decides about them once, and what its tasks decode with.

A read is loaded once: then the schema that its values are read as is looked up, and pinned. The plan carries it to the
tasks, together with all versions of the subject, so that a task asks the registry for nothing but ids that were
registered since; a stream looks for these itself, at most once a minute.

    pinned(options)              asks the registry; the columns of the read's rows, with their types
    PinnedColumns.typed          the decoders, in a task
    NewSchemas                   what a stream's subjects have got since
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from spark_kbatch import clock
from spark_kbatch.consumer.rows import BYTES, ROW_SCHEMA, TypedColumn, TypedColumns, row_schema
from spark_kbatch.errors import (
    ConfigError,
    SchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.registry import RegistryOptions, parse_registry_options
from spark_kbatch.options.values import (
    COLUMNS,
    NO_VALUE_OPTIONS,
    PERMISSIVE,
    ColumnOptions,
    SchemaChoice,
    ValueOptions,
    parse_value_keywords,
    registry_keys,
)

if TYPE_CHECKING:
    from spark_kbatch.registry.schemas import RegisteredSchema, SchemaRegistry
    from spark_kbatch.values.avro_schema import Schema
    from spark_kbatch.values.projection import Wanted

logger = logging.getLogger(__name__)

# What a column is read as, with the name of the column.
NewSchema: TypeAlias = tuple[str, "RegisteredSchema"]

NO_ID = -1  # of a schema that is no registry's
_KNOWN_MAX = 1 << 20  # characters of schemas that a plan carries for a column
_VERSIONS_MAX = 200  # each of which is a request
_MINUTE_MS = 60_000

IN_OPTIONS = "with the option mode=PERMISSIVE such a {column} is null, and {column}_error says why"
AS_TEXT = 'read it as bytes, without text=True, or with text="replace"'
IN_ARGUMENTS = 'with mode="PERMISSIVE" such a {column} is null, and {column}_error says why'


@dataclass(frozen=True)
class PinnedColumn:
    """The schema that the keys or the values of one read are read as."""

    options: ColumnOptions
    reader: RegisteredSchema | None = None  # of Avro
    wanted: Wanted = field(default_factory=dict)  # part of it; all if empty
    renames: bool = False  # whether fields take on the case of the names that are wanted
    known: tuple[RegisteredSchema, ...] = ()  # that may have written values

    @property
    def name(self) -> str:
        """The column's name."""
        return self.options.column

    def reader_schema(self) -> Schema:
        """Return the schema that values are read as; raises SchemaError."""
        from spark_kbatch.columns.schemas import parsed  # noqa: PLC0415  planning without a format
        from spark_kbatch.values.projection import project  # noqa: PLC0415

        assert self.reader is not None
        return project(parsed(self.reader), self.wanted, renames=self.renames)

    def type(self) -> pa.DataType:
        """Return the type of the column; raises SchemaError."""
        if self.reader is None:
            return pa.string()
        from spark_kbatch.values.layout import arrow_type  # noqa: PLC0415

        return arrow_type(self.reader_schema())


@dataclass(frozen=True)
class PinnedColumns:
    """The decisions of one read about keys and values; a plan carries them to the tasks."""

    options: ValueOptions = NO_VALUE_OPTIONS
    columns: tuple[PinnedColumn, ...] = ()
    schema: pa.Schema = ROW_SCHEMA  # of all columns of rows

    def typed(
        self,
        new: Iterable[NewSchema] = (),
        *,
        names: Iterable[str] = COLUMNS,
        remedy: str = IN_OPTIONS,
    ) -> TypedColumns:
        """Return what keys and values become.

        Args:
            new: schemas that are known since.
            names: of columns that are wanted, which may be made of keys and values.
            remedy: what an error says to do.
        """
        sources = {name.partition("_")[0] for name in names}
        wanted = [one for one in self.columns if one.name in sources]
        if not wanted:
            return BYTES
        from spark_kbatch.values.text_decoder import TextDecoder  # noqa: PLC0415  loads the kernels

        by_name: dict[str, TypedColumn] = {}
        for column in wanted:
            if column.reader is None:
                by_name[column.name] = TextDecoder()
            else:
                known = [*column.known, *(schema for name, schema in new if name == column.name)]
                by_name[column.name] = _avro_column(column, known, self.options.registry)
        is_permissive = self.options.mode == PERMISSIVE
        return TypedColumns(self.schema, by_name, is_permissive, remedy)


def _avro_column(
    column: PinnedColumn, known: Iterable[RegisteredSchema], registry: RegistryOptions | None
) -> TypedColumn:
    from spark_kbatch.columns.avro import AvroColumn, OnlyWriter  # noqa: PLC0415
    from spark_kbatch.columns.schemas import WritersSchemas, parsed  # noqa: PLC0415

    assert column.reader is not None
    if column.options.framing == "none":
        only = OnlyWriter(column.reader.id, parsed(column.reader))
        return AvroColumn(column.reader_schema(), only, _said(column))
    writers = WritersSchemas(registry, column.options.subject, known)
    return AvroColumn(column.reader_schema(), writers, _said(column))


def read_as(text: Any, registry: Any, keywords: Mapping[str, Any], topics: Any) -> TypedColumns:
    """Return what the arguments of a read in Python make of keys and values.

    Args:
        text: whether keys and values without a format are text: True, False or "replace".
        registry, keywords: as for `parse_value_keywords`.
        topics: that are read, from which a subject follows; a pattern names none.

    Raises:
        ConfigError: an argument is not accepted.
        SchemaRegistryError: as `pinned`.
    """
    if not isinstance(text, bool) and (not isinstance(text, str) or text != "replace"):
        arguments.refuse("text", text, "True, False, 'replace'")
    columns = PinnedColumns()
    if keywords or registry is not None:
        names = [] if isinstance(topics, re.Pattern) else arguments.topic_names("topics", topics)
        columns = pinned(parse_value_keywords(registry, keywords, names))
    typed = columns.typed(remedy=IN_ARGUMENTS)
    if not text:
        return typed
    return _with_text(typed, "strict" if text is True else "replace")


def shown_as_json(
    registry: Any, keywords: Mapping[str, Any], topic: str, *, remedy: str
) -> TypedColumns:
    """Return what makes JSON of keys and values: of Avro that names its schemas, each value as that one has it.

    Args:
        registry, keywords: as for `parse_value_keywords`, with the registry's own options.
        topic: from which a subject follows.
        remedy: what an error says to do; with the mode PERMISSIVE it is in the place of the value.

    Raises:
        ConfigError: an argument is not accepted.
        SchemaRegistryError: as `pinned`.
    """
    options = parse_value_keywords(registry, keywords, [topic])
    if not options.typed:
        return BYTES
    from spark_kbatch.columns.avro import ReadAsJson, WrittenAsJson  # noqa: PLC0415

    by_name: dict[str, TypedColumn] = {}
    for column in options.typed:
        is_chosen = f"{column.column}_schema" in keywords
        if options.registry is not None and column.framing == "confluent" and not is_chosen:
            by_name[column.column] = WrittenAsJson(options.registry)
        else:
            one = PinnedColumns(options, (_pinned_column(column, options),)).typed()
            by_name[column.column] = ReadAsJson(one.by_name[column.column])
    return TypedColumns(by_name=by_name, is_permissive=options.mode == PERMISSIVE, remedy=remedy)


class SubjectVersion(NamedTuple):
    """A version of a subject, for people."""

    subject: str
    version: int
    schema_id: int
    type: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    is_deleted: bool


def subject_versions(registry: Any, subject: str) -> list[SubjectVersion]:
    """Return the versions of a subject, deleted ones too.

    Args:
        registry: as for `parse_value_keywords`.

    Raises:
        SchemaNotFoundError: there is no such subject.
        SchemaRegistryError: the registry does not answer, or refuses to.
    """
    there = _registry(parse_registry_options(registry_keys(registry)))
    if there is None:
        raise ConfigError("no registry is given")
    numbers = there.versions(subject, deleted=True)
    try:
        kept = set(there.versions(subject))
    except SchemaNotFoundError:  # all are deleted
        kept = set()
    found = []
    for number in numbers:
        one = there.version(subject, number)
        references = tuple((name, of, version) for name, of, version in one.schema.references)
        found.append(
            SubjectVersion(
                subject,
                number,
                one.id,
                one.schema.type,
                one.schema.text,
                references,
                number not in kept,
            )
        )
    return found


def _with_text(typed: TypedColumns, on_bad_text: Literal["strict", "replace"]) -> TypedColumns:
    """Return the same with the columns that are bytes as text."""
    from spark_kbatch.values.text_decoder import TextDecoder  # noqa: PLC0415

    decoder = TextDecoder(on_bad_text)
    names = [name for name in ("key", "value") if name not in typed.by_name]
    schema = pa.schema(
        [pa.field(one.name, pa.string()) if one.name in names else one for one in typed.schema]
    )
    remedy = typed.remedy if typed.by_name else AS_TEXT
    return replace(
        typed,
        schema=schema,
        by_name={**dict.fromkeys(names, decoder), **typed.by_name},
        remedy=remedy,
    )


def pinned(options: ValueOptions, wanted: Mapping[str, Wanted] | None = None) -> PinnedColumns:
    """Decide what keys and values are read as.

    Args:
        options: of the read.
        wanted: for a column, the fields that a user's schema names, which get the names that they have there.

    Raises:
        ConfigError: a schema is none, lacks a field, or cannot be read as columns; names the field.
        SchemaRegistryError: the registry does not have it, or cannot be asked.
    """
    if not options.typed:
        return PinnedColumns()
    columns = [_pinned_column(one, options) for one in options.typed]
    return _pinned(
        options,
        tuple(
            replace(one, wanted=wanted[one.name], renames=True)
            if wanted and one.reader is not None and wanted.get(one.name)
            else one
            for one in columns
        ),
    )


def _pinned(options: ValueOptions, columns: tuple[PinnedColumn, ...]) -> PinnedColumns:
    types = {}
    for column in columns:
        try:
            types[column.name] = column.type()
        except SchemaError as error:
            raise replace(error, reason=f"{error.reason} ({_said(column)})") from None
    avro = [one.name for one in columns if one.reader is not None]
    schema = row_schema(
        types,
        with_schema_id=avro if options.include_schema_id else [],
        with_bytes=options.include_bytes,
        with_errors=options.mode == PERMISSIVE,
    )
    return PinnedColumns(options, columns, schema)


def _said(column: PinnedColumn) -> str:
    """Return which schema a column is read as, for errors."""
    choice = column.options.schema
    if choice.kind == "file":
        return f"{column.options.schema_key}=file:{choice.text}"
    if choice.kind == "text":
        return f"the schema in {column.options.schema_key}"
    assert column.reader is not None
    version = f", version {column.reader.version} of {column.reader.subject!r}"
    return f"schema id {column.reader.id}{version if column.reader.version else ''}"


def _registry(options: RegistryOptions | None) -> SchemaRegistry | None:
    if options is None:
        return None
    from spark_kbatch.registry.known import registry_of  # noqa: PLC0415  imports urllib3

    return registry_of(options)


def schema_of(column: ColumnOptions, registry: RegistryOptions | None) -> RegisteredSchema:
    """Return the schema that the options of a column choose; its id is below 0 if it is no registry's.

    Raises:
        ConfigError: a file cannot be read.
        SchemaRegistryError: the registry does not have it, or cannot be asked.
    """
    return _reader(column, _registry(registry))


def _pinned_column(column: ColumnOptions, options: ValueOptions) -> PinnedColumn:
    if column.format == "string":
        return PinnedColumn(column)
    from spark_kbatch.columns.schemas import ensure_usable  # noqa: PLC0415
    from spark_kbatch.values.projection import wanted_fields  # noqa: PLC0415

    registry = _registry(options.registry)
    reader = _reader(column, registry)
    ensure_usable(column.schema_key, reader)
    known: tuple[RegisteredSchema, ...] = ()
    if registry is not None and column.framing == "confluent":
        numbers = _numbers(registry, column.subject) if column.subject else []
        known = _versions(registry, column.subject, numbers, but=[reader])
        known += (reader,) if reader.id != NO_ID else ()
    fields = wanted_fields(options.fields) if column.column != "key" else {}
    return PinnedColumn(column, reader, fields, known=known)


def _reader(column: ColumnOptions, registry: SchemaRegistry | None) -> RegisteredSchema:
    """Return the schema that a column is read as."""
    from spark_kbatch.registry import schemas  # noqa: PLC0415

    choice = column.schema
    match choice:
        case SchemaChoice("text", text=text):
            return schemas.RegisteredSchema(NO_ID, schemas.Schema(text))
        case SchemaChoice("file", text=path, beside=beside):
            types = tuple(
                schemas.ReferencedSchema(one, "", 0, _content(column, one)) for one in beside
            )
            own = schemas.Schema(_content(column, path))
            return schemas.RegisteredSchema(NO_ID, own, referenced=types)
    assert registry is not None  # the options were checked
    if choice.kind == "id":
        return registry.by_id(choice.number, column.subject)
    return registry.version(
        column.subject, choice.number if choice.kind == "version" else schemas.LATEST_VERSION
    )


def _content(column: ColumnOptions, path: str) -> str:
    from spark_kbatch.files import LinkedFiles  # noqa: PLC0415

    try:
        return LinkedFiles().read(Path(path)).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"option {column.schema_key!r} is 'file:{path}', which cannot be read: {reason}"
        ) from None


def _numbers(registry: SchemaRegistry, subject: str) -> list[int]:
    """Return the numbers of a subject's versions, deleted ones too; none if there is no such subject."""
    try:
        return registry.versions(subject, deleted=True)
    except SchemaNotFoundError:
        return []


def _versions(
    registry: SchemaRegistry,
    subject: str,
    numbers: Iterable[int],
    *,
    but: Iterable[RegisteredSchema],
) -> tuple[RegisteredSchema, ...]:
    """Return versions of a subject, the newest of them where they are many.

    Args:
        numbers: of the versions.
        but: schemas that are known already.
    """
    versions = {one.version for one in but}
    size = sum(map(_size, but))
    found: list[RegisteredSchema] = []
    for number in sorted(set(numbers) - versions, reverse=True)[:_VERSIONS_MAX]:
        try:
            schema = registry.version(subject, number)
        except SchemaNotFoundError:  # deleted for good since
            continue
        size += _size(schema)
        if size > _KNOWN_MAX:
            break
        found.append(schema)
    return tuple(found)


def _size(schema: RegisteredSchema) -> int:
    return len(schema.schema.text) + sum(len(one.text) for one in schema.referenced)


class NewSchemas:
    """The schemas that the subjects of a stream have got since it was started."""

    def __init__(
        self, columns: PinnedColumns, *, monotonic_ms: Callable[[], int] = clock.monotonic_ms
    ) -> None:
        self._columns, self._monotonic_ms = columns, monotonic_ms
        self._known = {one.name: list(one.known) for one in columns.columns}
        # By column: a version that is older, and not known, was left out for its size.
        self._newest = {
            one.name: max((known.version for known in one.known), default=0)
            for one in columns.columns
        }
        self._new: list[NewSchema] = []
        self._asked_at_ms = monotonic_ms()

    def found(self) -> tuple[NewSchema, ...]:
        """Return all new schemas so far; the registry is asked at most once a minute.

        That is one request for each subject, and one for each new version. A registry that does not answer stops
        no query, and is not asked again for a minute: tasks ask for ids that they do not know.
        """
        now_ms, registry = self._monotonic_ms(), self._columns.options.registry
        if registry is not None and now_ms - self._asked_at_ms >= _MINUTE_MS:
            from spark_kbatch.registry.known import hasty_registry_of  # noqa: PLC0415  imports urllib3

            self._asked_at_ms = now_ms
            for column in self._columns.columns:
                if column.options.framing == "confluent" and column.options.subject:
                    try:
                        self._look(hasty_registry_of(registry), column)
                    except SchemaRegistryError as error:
                        logger.warning("%s; going on without its new schemas", error)
        return tuple(self._new)

    def _look(self, registry: SchemaRegistry, column: PinnedColumn) -> None:
        """Ask for the new versions of a column's subject."""
        subject, known = column.options.subject, self._known[column.name]
        newest = self._newest[column.name]
        numbers = [one for one in _numbers(registry, subject) if one > newest]
        found = _versions(registry, subject, numbers, but=known)
        self._newest[column.name] = max(numbers, default=newest)
        known += found
        self._new += [(column.name, one) for one in found]
