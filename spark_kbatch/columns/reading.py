"""Keys and values as columns: what a read decides about them once, and what its tasks decode with.

A read is loaded once: then the schema that its values are read as is looked up, and pinned. The plan carries it to the
tasks, together with all versions of the subject, so that a task asks the registry for nothing but ids that were
registered since; a stream looks for these itself, at most once a minute.

    pinned(options)        asks the registry; the columns of the read's rows, with their types
    PinnedColumns.typed    the decoders, in a task
    NewSchemas             what a stream's subjects have got since

Each format has a class, of what its columns pin: `PinnedText`, `PinnedAvro`, `PinnedJson`. `_pinned_column`
alone chooses among them. JSON says itself what it is, so that no one asks which schema wrote a value.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from spark_kbatch import clock
from spark_kbatch.consumer.rows import (
    BYTES,
    ROW_SCHEMA,
    TypedColumn,
    TypedColumns,
    row_schema,
)
from spark_kbatch.errors import SchemaError, SchemaRegistryError
from spark_kbatch.options import arguments
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.options.values import (
    COLUMNS,
    NO_VALUE_OPTIONS,
    PERMISSIVE,
    READ_ARGUMENTS,
    ColumnOptions,
    ValueOptions,
    parse_value_keywords,
)

if TYPE_CHECKING:
    from spark_kbatch.condition.binding import Bound
    from spark_kbatch.consumer.matching import Where
    from spark_kbatch.registry.schemas import RegisteredSchema
    from spark_kbatch.values.avro_schema import Schema
    from spark_kbatch.values.decoded import DecodedValues
    from spark_kbatch.values.layout import Wanted

logger = logging.getLogger(__name__)

# What a column is read as, with the name of the column.
NewSchema: TypeAlias = tuple[str, "RegisteredSchema"]

_MINUTE_MS = 60_000

IN_OPTIONS = "with the option mode=PERMISSIVE such a {column} is null, and {column}_error says why"
AS_TEXT = 'read it as bytes, without text=True, or with text="replace"'
IN_ARGUMENTS = 'with mode="PERMISSIVE" such a {column} is null, and {column}_error says why'


@dataclass(frozen=True)
class PinnedText:
    """Keys or values that one read has as text."""

    options: ColumnOptions

    def type(self) -> pa.DataType:
        """Return the type of the column."""
        return pa.string()

    def decoder(
        self, registry: RegistryOptions | None, new: Iterable[NewSchema] = ()
    ) -> TypedColumn:
        """Return what makes the column of bytes."""
        from spark_kbatch.values.decoded import TextDecoder  # noqa: PLC0415  loads the kernels

        return TextDecoder()


@dataclass(frozen=True)
class PinnedAvro:
    """Keys or values of Avro, and the schema that one read has them as."""

    options: ColumnOptions
    reader: RegisteredSchema
    known: tuple[RegisteredSchema, ...]  # that may have written values; the reader too
    wanted: Wanted = field(default_factory=dict)  # part of the reader; all if empty
    renames: bool = False  # whether fields take on the case of the names that are wanted

    def type(self) -> pa.DataType:
        """Return the type of the column; raises SchemaError, which says what chose the schema."""
        from spark_kbatch.values.layout import arrow_type  # noqa: PLC0415  planning without a format

        try:
            return arrow_type(self._reader_schema())
        except SchemaError as error:
            raise replace(
                error, reason=f"{error.reason} ({_said(self.options, self.reader)})"
            ) from None

    def decoder(
        self, registry: RegistryOptions | None, new: Iterable[NewSchema] = ()
    ) -> TypedColumn:
        """Return what makes the column of bytes.

        Args:
            registry: which is asked for schemas that are not known.
            new: schemas that are known since, of any column.
        """
        from spark_kbatch.columns.avro import AvroColumn  # noqa: PLC0415  loads the kernels
        from spark_kbatch.columns.schemas import WritersSchemas  # noqa: PLC0415  likewise

        writers = WritersSchemas(registry, self.options.subject, self.known_with(new))
        only = self.reader.id if self.options.framing == "none" else None
        return AvroColumn(
            self._reader_schema(), writers, _said(self.options, self.reader), only=only
        )

    def known_with(self, new: Iterable[NewSchema]) -> list[RegisteredSchema]:
        """Return the schemas that are known, with those of the column that are new."""
        return [*self.known, *(one for name, one in new if name == self.options.column)]

    def _reader_schema(self) -> Schema:
        from spark_kbatch.columns.schemas import parsed  # noqa: PLC0415  planning without a format
        from spark_kbatch.values.layout import project  # noqa: PLC0415  likewise

        return project(parsed(self.reader), self.wanted, renames=self.renames)


@dataclass(frozen=True)
class PinnedJson:
    """Keys or values of JSON, and the type that one read has them as."""

    options: ColumnOptions
    kind: pa.DataType  # a field's metadata has its name in JSON, where that is another one
    lenient: tuple[str, ...] = ()

    def type(self) -> pa.DataType:
        """Return the type of the column."""
        from spark_kbatch.values.types import project_type  # noqa: PLC0415  as above

        return project_type(self.kind, {})

    def decoder(
        self, registry: RegistryOptions | None, new: Iterable[NewSchema] = ()
    ) -> TypedColumn:
        """Return what makes the column of bytes."""
        from spark_kbatch.values.json_decoder import JsonDecoder  # noqa: PLC0415  loads the kernels

        is_framed = self.options.framing != "none"
        return JsonDecoder(self.kind, is_framed=is_framed, lenient=self.lenient)


PinnedColumn: TypeAlias = PinnedText | PinnedAvro | PinnedJson


def _said(options: ColumnOptions, schema: RegisteredSchema) -> str:
    """Return which schema a column is read as, for errors."""
    key, choice = options.schema_key, options.schema
    if choice.kind == "file":
        return f"{key}=file:{choice.text}"
    if choice.kind == "text":
        return f"the schema in {key}"
    version = f", version {schema.version} of {schema.subject!r}" if schema.version else ""
    return f"schema id {schema.id}{version}"


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
        by_name: dict[str, TypedColumn] = {
            one.options.column: one.decoder(self.options.registry, new)
            for one in self.columns
            if one.options.column in sources
        }
        return _typed(self.options, by_name, self.schema, remedy, {
            one.options.column: one.known_with(new)
            for one in self.columns
            if isinstance(one, PinnedAvro) and one.options.framing == "header"
        })  # fmt: skip


def _unknown(guid: str) -> str:
    """Say why a GUID has no id, as `WritersSchemas.id_of` does."""
    return f"{guid} is not looked up"


def _typed(
    options: ValueOptions,
    by_name: dict[str, TypedColumn],
    schema: pa.Schema,
    remedy: str,
    known: Mapping[str, Iterable[RegisteredSchema]] | None = None,
) -> TypedColumns:
    """Return what decodes keys and values, with the headers of records where these name schemas.

    Args:
        options: of the read.
        by_name: the decoders of bytes in Confluent's framing, or none.
        schema: of all columns of rows.
        remedy: what an error says to do.
        known: the schemas that may have written a column.
    """
    by_headers: dict[str, Callable[..., DecodedValues]] = {}
    for column in options.typed:
        name, is_avro = column.column, column.format == "avro"
        if column.framing == "header" and name in by_name:
            from spark_kbatch.columns.headers import decoded_by_headers  # noqa: PLC0415  loads the kernels
            from spark_kbatch.columns.schemas import WritersSchemas  # noqa: PLC0415  likewise

            schemas = WritersSchemas(options.registry, column.subject, (known or {}).get(name, ()))
            by_headers[name] = functools.partial(
                decoded_by_headers,
                by_name[name],
                name,
                # JSON says itself what it is: its GUIDs are looked up for a column of ids alone.
                schemas.id_of
                if is_avro or (options.include_schema_id and options.registry is not None)
                else _unknown,
                needs_ids=is_avro,
            )
    return TypedColumns(schema, by_name, options.mode == PERMISSIVE, remedy, by_headers)


@dataclass(frozen=True)
class PinnedWhere:
    """The condition of one read, and the columns that it sees: all that the read's formats give."""

    condition: Bound
    columns: PinnedColumns


def pinned_where(text: str | None, columns: PinnedColumns) -> PinnedWhere | None:
    """Bind the option `where` to the columns of a read; None if it is not given.

    Raises:
        ConfigError: it does not fit them; says where, and what to write.
    """
    if text is None:
        return None
    from spark_kbatch.consumer.matching import bound  # noqa: PLC0415  for reads that have one

    return PinnedWhere(bound(text, columns.schema, "option 'where'"), columns)


@dataclass(frozen=True)
class Scan:
    """The columns of one read's rows, and the condition of the rows that it keeps."""

    names: Sequence[str]  # of the columns that are wanted
    columns: PinnedColumns = field(default_factory=PinnedColumns)
    where: PinnedWhere | None = None  # None for all rows

    @property
    def condition(self) -> Bound | None:
        """The condition of the read."""
        return None if self.where is None else self.where.condition

    def decoders(self, new: Iterable[NewSchema] = ()) -> tuple[TypedColumns, Where | None]:
        """Return what keys and values of a task become, and its condition.

        Args:
            new: schemas that are known since.
        """
        if self.where is None:
            return self.columns.typed(new, names=self.names), None
        from spark_kbatch.condition.binding import columns_of  # noqa: PLC0415  as above
        from spark_kbatch.consumer.matching import Where  # noqa: PLC0415  likewise

        tested = columns_of(self.where.condition)
        if self.where.columns is self.columns:  # so that a value is decoded once
            typed = self.columns.typed(new, names={*self.names, *tested})
            return typed, Where(self.where.condition, typed)
        seen = self.where.columns.typed(new, names=tested)
        return self.columns.typed(new, names=self.names), Where(self.where.condition, seen)


def pinned(options: ValueOptions, wanted: Mapping[str, Wanted] | None = None) -> PinnedColumns:
    """Decide what keys and values are read as.

    Args:
        options: of the read.
        wanted: for a column, the fields that a user's schema names, which get the names that they have there.

    Raises:
        ConfigError: a schema is none, lacks a field, or cannot be read as columns; names the field.
        SchemaRegistryError: the registry does not have it, or cannot be asked.
    """
    columns = [
        _pinned_column(one, options, (wanted or {}).get(one.column)) for one in options.typed
    ]
    with_ids = [one.column for one in options.typed if one.has_schema_ids]
    schema = row_schema(
        {one.options.column: one.type() for one in columns},
        with_schema_id=with_ids if options.include_schema_id else (),
        with_bytes=options.include_bytes,
        with_errors=options.mode == PERMISSIVE,
    )
    return PinnedColumns(options, tuple(columns), schema)


def _pinned_column(
    column: ColumnOptions, options: ValueOptions, wanted: Wanted | None = None
) -> PinnedColumn:
    """Look up what the format of a column needs; raises as `pinned`."""
    if column.format not in ("avro", "json"):
        return PinnedText(column)
    from spark_kbatch.values.layout import wanted_fields  # noqa: PLC0415  planning without a format

    fields = wanted or wanted_fields(options.fields if column.column != "key" else ())
    if column.format == "avro":
        return _pinned_avro(column, options, fields, renames=bool(wanted))
    return _pinned_json(column, options, fields, renames=bool(wanted))


def _pinned_avro(
    column: ColumnOptions, options: ValueOptions, wanted: Wanted, *, renames: bool
) -> PinnedAvro:
    from spark_kbatch.columns.schemas import chosen_schema, new_versions  # noqa: PLC0415
    from spark_kbatch.registry.known import registry_of  # noqa: PLC0415  loads the registry's client

    reader = chosen_schema(column, options.registry)
    known: list[RegisteredSchema] = []
    if options.registry is not None and column.has_versions:
        known, _newest = new_versions(registry_of(options.registry), column.subject, [reader])
    return PinnedAvro(column, reader, (*known, reader), wanted, renames=renames)


def _pinned_json(
    column: ColumnOptions, options: ValueOptions, wanted: Wanted, *, renames: bool
) -> PinnedJson:
    from spark_kbatch.values.types import parse_ddl, project_type  # noqa: PLC0415  as above

    said = column.schema_key
    try:
        if column.schema.kind == "ddl":
            kind = parse_ddl(column.schema.text)
        else:
            from spark_kbatch.columns.schemas import chosen_schema  # noqa: PLC0415  the registry's client
            from spark_kbatch.values.json_schema import type_of_json_schema  # noqa: PLC0415

            schema = chosen_schema(column, options.registry)
            said = _said(column, schema)
            referenced = [(one.name, one.text) for one in schema.referenced]
            kind = type_of_json_schema(schema.schema.text, referenced, wanted)
        kind = project_type(kind, wanted, renames=renames)
    except SchemaError as error:
        raise replace(error, reason=f"{error.reason} ({said})") from None
    return PinnedJson(column, kind, options.lenient)


def read_as(
    text: Any,
    registry: Any,
    keywords: Mapping[str, Any],
    topics: Any,
    own: tuple[str, ...] = READ_ARGUMENTS,
    *,
    retries: bool = True,
) -> TypedColumns:
    """Return what the arguments of a read in Python make of keys and values.

    Args:
        text: whether keys and values without a format are text: True, False or "replace".
        registry, keywords: as for `parse_value_keywords`.
        topics: that are read, from which a subject follows; a pattern names none.
        own: the other arguments of the read, for the error about an unknown one.
        retries: whether a registry that is away is asked again for a while.

    Raises:
        ConfigError: an argument is not accepted.
        TypeError: an argument is unknown.
        SchemaRegistryError: as `pinned`.
    """
    if not isinstance(text, bool) and (not isinstance(text, str) or text != "replace"):
        arguments.refuse("text", text, "True, False, 'replace'")
    columns = PinnedColumns()
    if keywords or registry is not None:
        names = [] if isinstance(topics, re.Pattern) else arguments.topic_names("topics", topics)
        options = parse_value_keywords(registry, keywords, names, own=own)
        if options.registry and not retries:
            options = replace(options, registry=replace(options.registry, retries=False))
        columns = pinned(options)
    typed = columns.typed(remedy=IN_ARGUMENTS)
    if not text:
        return typed
    from spark_kbatch.values.decoded import TextDecoder  # noqa: PLC0415  loads the kernels

    decoder = TextDecoder("strict" if text is True else "replace")
    names = [name for name in COLUMNS if name not in typed.by_name]
    schema = pa.schema(
        [pa.field(one.name, pa.string()) if one.name in names else one for one in typed.schema]
    )
    return replace(
        typed,
        schema=schema,
        by_name={**dict.fromkeys(names, decoder), **typed.by_name},
        remedy=typed.remedy if typed.by_name else AS_TEXT,
    )


def shown_as_json(
    registry: Any, keywords: Mapping[str, Any], topic: str, *, remedy: str
) -> TypedColumns:
    """Return what makes JSON of keys and values: of Avro that names its schemas, each value as that one has it.

    JSON whose type is text is each value as it is written.

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
    from spark_kbatch.columns.as_json import ReadAsJson  # noqa: PLC0415  loads the kernels

    by_name: dict[str, TypedColumn] = {}
    for column in options.typed:
        is_chosen = f"{column.column}_schema" in keywords
        if column.format == "avro" and column.framing != "none" and not is_chosen:
            from spark_kbatch.columns.avro import WrittenAsJson  # noqa: PLC0415  loads the kernels

            by_name[column.column] = WrittenAsJson(options.registry)
            continue
        found = _pinned_column(column, options)
        by_name[column.column] = ReadAsJson(
            found.decoder(options.registry),
            is_written=isinstance(found, PinnedJson) and found.type() == pa.string(),
            is_framed=column.framing != "none",
        )
    return _typed(options, by_name, ROW_SCHEMA, remedy)


def seen_by_condition(registry: Any, keywords: Mapping[str, Any], topic: str) -> TypedColumns:
    """Return what a condition sees where `shown_as_json` prints JSON; takes and raises the same."""
    if not keywords:
        return BYTES
    return pinned(parse_value_keywords(registry, keywords, [topic])).typed(remedy=IN_ARGUMENTS)


class NewSchemas:
    """The schemas that the subjects of a stream have got since it was started."""

    def __init__(
        self, columns: PinnedColumns, *, monotonic_ms: Callable[[], int] = clock.monotonic_ms
    ) -> None:
        self._registry, self._monotonic_ms = columns.options.registry, monotonic_ms
        self._columns = [
            one
            for one in columns.columns
            if isinstance(one, PinnedAvro) and one.options.has_versions
        ]
        # By column: a version that is older, and not known, was left out for its size.
        self._newest = {
            one.options.column: max(schema.version for schema in one.known) for one in self._columns
        }
        self._new: list[NewSchema] = []
        self._asked_at_ms = monotonic_ms()

    def found(self) -> tuple[NewSchema, ...]:
        """Return all new schemas so far; the registry is asked at most once a minute.

        That is one request for each subject, and one for each new version. A registry that does not answer stops
        no query, and is not asked again for a minute: tasks ask for ids that they do not know.
        """
        now_ms = self._monotonic_ms()
        if self._registry is not None and now_ms - self._asked_at_ms >= _MINUTE_MS:
            from spark_kbatch.columns.schemas import new_versions  # noqa: PLC0415
            from spark_kbatch.registry.known import registry_of  # noqa: PLC0415  loads the registry's client

            self._asked_at_ms = now_ms
            for column in self._columns:
                name, subject = column.options.column, column.options.subject
                registry, known = (
                    registry_of(replace(self._registry, retries=False)),
                    column.known_with(self._new),
                )
                try:
                    found, newest = new_versions(registry, subject, known, after=self._newest[name])
                except SchemaRegistryError as error:
                    logger.warning("%s; going on without its new schemas", error)
                    continue
                self._newest[name] = newest
                self._new += [(name, one) for one in found]
        return tuple(self._new)
