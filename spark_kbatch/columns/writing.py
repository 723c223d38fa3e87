"""Columns that a write encodes as keys and values, with schemas that the driver looks up once.

A row that does not fit its schema is an error before its batch is written. Null stays null: a tombstone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kbatch.columns.reading import NO_ID, schema_of
from spark_kbatch.errors import (
    ConfigError,
    InvalidValueError,
    SchemaError,
    SchemaNotFoundError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.options.values import (
    ColumnOptions,
    WrittenValueOptions,
    ensure_goes_with_streams,
    key_of,
)

if TYPE_CHECKING:
    from spark_kbatch.registry.schemas import RegisteredSchema
    from spark_kbatch.values.avro_encoder import AvroEncoder


@dataclass(frozen=True)
class WrittenColumn:
    """A column, and the schema that it is written with; a job carries it to the tasks."""

    options: ColumnOptions
    schema: RegisteredSchema

    @property
    def name(self) -> str:
        """The column's name."""
        return self.options.column

    def encoder(self, kind: pa.DataType) -> AvroEncoder:
        """Return an encoder of the column.

        Raises:
            ConfigError: columns do not fit the schema; names the field.
        """
        from spark_kbatch.columns.schemas import parsed  # noqa: PLC0415  jobs without a format
        from spark_kbatch.values.avro_encoder import AvroEncoder  # noqa: PLC0415

        try:
            return AvroEncoder(parsed(self.schema), kind)
        except SchemaError as error:
            raise _unfit(self.options, error, self.schema.id) from None

    def encoded(self, encoder: AvroEncoder, array: pa.Array, first_row: int = 0) -> pa.Array:
        """Return the bytes of rows, of which the first has a number, for errors.

        Raises:
            InvalidValueError: a row does not fit the schema.
        """
        is_framed = self.options.framing == "confluent"
        found = encoder.encode(array, schema_id=self.schema.id if is_framed else None)
        if found.errors:
            first = found.errors[0]
            path = _path(self.options, first.path)
            raise InvalidValueError(first_row + first.row, first.reason, path, self.schema.id)
        return found.values


def _path(column: ColumnOptions, path: str) -> str:
    """Return the path of a field with the column's name, if it has one."""
    return ".".join(filter(None, (column.column, path)))


def _unfit(column: ColumnOptions, error: SchemaError, schema_id: int) -> ConfigError:
    at = _path(column, error.path)
    named = f"column {at!r}" if at else "the column"
    which = f"schema id {schema_id}" if schema_id >= 0 else "its schema"
    return ConfigError(f"{named} cannot be written with {which}: {error.reason}")


@dataclass(frozen=True)
class WrittenColumns:
    """The columns that one write encodes."""

    columns: tuple[WrittenColumn, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns, of any type that fits."""
        return frozenset(one.name for one in self.columns)

    def ensure_fit(self, types: Mapping[str, pa.DataType]) -> None:
        """Check the types of columns against the schemas.

        Raises:
            ConfigError: they do not fit; names the field.
        """
        for column in self.columns:
            if column.name in types:
                column.encoder(types[column.name])

    def encoded(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns as bytes; raises as `WrittenColumn.encoded`."""
        encoders: dict[tuple[str, str], AvroEncoder] = {}
        first_row = 0
        for batch in rows:
            for column in self.columns:
                place = batch.schema.get_field_index(column.name)
                if place < 0:
                    continue
                kind = batch.schema.field(place).type
                encoder = encoders.get((column.name, str(kind)))
                if encoder is None:
                    encoder = encoders[column.name, str(kind)] = column.encoder(kind)
                values = column.encoded(encoder, batch.column(place), first_row)
                batch = batch.set_column(place, column.name, values)
            first_row += batch.num_rows
            yield batch


NOTHING_ENCODED = WrittenColumns()


def written_columns(
    options: WrittenValueOptions,
    types: Mapping[str, pa.DataType],
    *,
    is_micro_batch: bool = False,
) -> WrittenColumns:
    """Look up the schemas of the columns that a write encodes; register them if that is asked for.

    Args:
        options: of the write.
        types: of the columns that there are, of which a schema may be made.
        is_micro_batch: whether a stream writes.

    Raises:
        ConfigError: a schema cannot be written with, or a stream is to take the latest one.
        SchemaRegistryError: the registry does not have it or does not allow it, or cannot be asked.
    """
    if not options.encoded:
        return NOTHING_ENCODED
    if is_micro_batch:
        ensure_goes_with_streams(options)
    columns = []
    for one in options.encoded:
        kind = types.get(one.column)
        if one.schema.kind == "columns" and kind is None:
            continue
        try:
            schema = schema_to_write(
                one, options.registry, auto_register=options.auto_register, kind=kind
            )
        except SchemaError as error:
            raise _unfit(one, error, NO_ID) from None
        columns.append(WrittenColumn(one, schema))
    return WrittenColumns(tuple(columns))


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

    Raises as `written_columns`.
    """
    from spark_kbatch.columns.schemas import ensure_usable, parsed  # noqa: PLC0415
    from spark_kbatch.registry.known import registry_of  # noqa: PLC0415  imports urllib3
    from spark_kbatch.values.avro_encoder import AvroEncoder  # noqa: PLC0415

    if column.schema.kind == "columns":
        assert kind is not None
        schema = _schema_of_columns(column, kind)
    else:
        schema = schema_of(column, registry)
    ensure_usable(column.schema_key, schema)
    if registry is None or schema.id >= 0 or column.framing == "none":
        return schema
    if not column.subject:
        column = replace(column, subject=column.subject_of(_record_name(column, schema)))
    if not column.subject:
        raise ConfigError(
            f"{key_of(column.column, 'subject').replace('.', '_')} is not given: the registry has the schema's id under it"
        )
    there = registry_of(registry)
    if not auto_register:
        found = there.look_up(column.subject, schema.schema)
        ensure_usable(column.schema_key, found)
        return found
    if kind is not None:
        AvroEncoder(parsed(schema), kind)
    else:
        parsed(schema)
    found = there.register(column.subject, schema.schema)
    # The answer has none of the rules that the registry gave it.
    with contextlib.suppress(SchemaNotFoundError, SchemaRegistryUnavailableError):
        ensure_usable(column.schema_key, there.by_id(found.id, column.subject))
    return found


def _schema_of_columns(column: ColumnOptions, kind: pa.DataType) -> RegisteredSchema:
    from spark_kbatch.registry.schemas import RegisteredSchema, Schema  # noqa: PLC0415
    from spark_kbatch.values.derivation import derived, record_name  # noqa: PLC0415

    name = column.record_name or record_name(column.subject)
    try:
        return RegisteredSchema(NO_ID, Schema(derived(kind, name)))
    except SchemaError as error:
        at = _path(column, error.path)
        raise ConfigError(f"no schema can be made of column {at!r}: {error.reason}") from None


def _record_name(column: ColumnOptions, schema: RegisteredSchema) -> str:
    """Return the full name of the record that a schema is, if the column's subject follows from it."""
    from spark_kbatch.columns.schemas import parsed  # noqa: PLC0415
    from spark_kbatch.values.avro_schema import RecordSchema  # noqa: PLC0415

    if column.strategy == "TopicNameStrategy":
        return ""
    found = parsed(schema)
    if not isinstance(found, RecordSchema):
        raise ConfigError(
            f"option '{column.column}.subject.name.strategy' is {column.strategy!r}, and the schema is no record: "
            f"give '{column.column}.subject'"
        )
    return found.name
