"""Columns that a write encodes as keys and values, with schemas that the driver looks up once.

A row that does not fit its schema is an error before its batch is written. Null stays null: a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kbatch.errors import ConfigError, InvalidValueError, SchemaError
from spark_kbatch.opening.values import schema_of
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.options.values import (
    ColumnOptions,
    WrittenValueOptions,
    ensure_goes_with_streams,
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
        from spark_kbatch.opening.writers_schemas import parsed  # noqa: PLC0415  jobs without a format
        from spark_kbatch.values.avro_encoder import AvroEncoder  # noqa: PLC0415

        try:
            return AvroEncoder(parsed(self.schema), kind)
        except SchemaError as error:
            at = f"{self.name}.{error.path}" if error.path else self.name
            raise ConfigError(
                f"column {at!r} cannot be written with schema id {self.schema.id}: {error.reason}"
                if self.schema.id >= 0
                else f"column {at!r} cannot be written with its schema: {error.reason}"
            ) from None

    def encoded(self, encoder: AvroEncoder, array: pa.Array) -> pa.Array:
        """Return the bytes of rows.

        Raises:
            InvalidValueError: a row does not fit the schema.
        """
        is_framed = self.options.framing == "confluent"
        found = encoder.encode(array, schema_id=self.schema.id if is_framed else None)
        if found.errors:
            first = found.errors[0]
            path = f"{self.name}.{first.path}" if first.path else self.name
            raise InvalidValueError(first.row, first.reason, path, self.schema.id)
        return found.values


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
        for batch in rows:
            for column in self.columns:
                place = batch.schema.get_field_index(column.name)
                if place < 0:
                    continue
                kind = batch.schema.field(place).type
                encoder = encoders.get((column.name, str(kind)))
                if encoder is None:
                    encoder = encoders[column.name, str(kind)] = column.encoder(kind)
                values = column.encoded(encoder, batch.column(place))
                batch = batch.set_column(place, column.name, values)
            yield batch


NOTHING_ENCODED = WrittenColumns()


def written_columns(
    options: WrittenValueOptions, *, is_micro_batch: bool = False
) -> WrittenColumns:
    """Look up the schemas of the columns that a write encodes; register them if that is asked for.

    Raises:
        ConfigError: a schema cannot be written with, or a stream is to take the latest one.
        SchemaRegistryError: the registry does not have it or does not allow it, or cannot be asked.
    """
    if not options.encoded:
        return NOTHING_ENCODED
    if is_micro_batch:
        ensure_goes_with_streams(options)
    return WrittenColumns(
        tuple(
            WrittenColumn(
                one, schema_to_write(one, options.registry, auto_register=options.auto_register)
            )
            for one in options.encoded
        )
    )


def schema_to_write(
    column: ColumnOptions, registry: RegistryOptions | None, *, auto_register: bool
) -> RegisteredSchema:
    """Return the schema that a column is written with, with its id in the registry if there is one.

    Raises as `written_columns`.
    """
    from spark_kbatch.opening.writers_schemas import ensure_usable  # noqa: PLC0415
    from spark_kbatch.registry.known import registry_of  # noqa: PLC0415  imports urllib3

    schema = schema_of(column, registry)
    ensure_usable(column.column, schema)
    if registry is None or schema.id >= 0 or column.framing == "none":
        return schema
    if not column.subject:
        raise ConfigError(
            f"{column.column}_subject is not given: the registry has the schema's id under it"
        )
    there = registry_of(registry)
    return (there.register if auto_register else there.look_up)(column.subject, schema.schema)
