"""Columns that a write encodes as keys and values, with schemas that the driver looks up once.

A row that does not fit its schema is an error before its batch is written. Null stays null: a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kbatch.errors import ConfigError, InvalidValueError, SchemaError
from spark_kbatch.options.values import (
    ColumnOptions,
    WrittenValueOptions,
    ensure_goes_with_streams,
)

if TYPE_CHECKING:
    from spark_kbatch.registry.schemas import RegisteredSchema
    from spark_kbatch.values.avro_encoder import AvroEncoder
    from spark_kbatch.values.json_encoder import JsonEncoder


@dataclass(frozen=True)
class WrittenColumn:
    """A column, and the schema that it is written with; a job carries it to the tasks."""

    options: ColumnOptions
    schema: RegisteredSchema

    @property
    def name(self) -> str:
        """The column's name."""
        return self.options.column

    def encoder(self, kind: pa.DataType) -> AvroEncoder | JsonEncoder:
        """Return an encoder of the column.

        Raises:
            ConfigError: columns do not fit the schema; names the field.
        """
        from spark_kbatch.columns.schemas import encoder_of  # noqa: PLC0415  jobs without a format

        try:
            return encoder_of(self.schema, kind)
        except SchemaError as error:
            raise _unfit(self.options, error, self.schema.id) from None

    def encoded(
        self, encoder: AvroEncoder | JsonEncoder, array: pa.Array, first_row: int = 0
    ) -> pa.Array:
        """Return the bytes of rows, of which the first has a number, for errors.

        Raises:
            InvalidValueError: a row does not fit the schema.
        """
        is_framed = self.options.framing == "confluent"
        found = encoder.encode(array, schema_id=self.schema.id if is_framed else None)
        if found.errors:
            first = found.errors[0]
            path = self.options.path_of(first.path)
            raise InvalidValueError(first_row + first.row, first.reason, path, self.schema.id)
        return found.values


def _unfit(column: ColumnOptions, error: SchemaError, schema_id: int = -1) -> ConfigError:
    at = column.path_of(error.path)
    named = f"column {at!r}" if at else "the column"
    which = f" with schema id {schema_id}" if schema_id >= 0 else ""
    return ConfigError(f"{named} cannot be written{which}: {error.reason}")


@dataclass(frozen=True)
class WrittenColumns:
    """The columns that one write encodes."""

    columns: tuple[WrittenColumn, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns, of any type that fits."""
        return frozenset(one.name for one in self.columns)

    def encoded(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns as bytes; raises as `WrittenColumn.encoded`."""
        encoders: dict[tuple[str, str], AvroEncoder | JsonEncoder] = {}
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
        types: of the columns that there are, which have to fit, and of which a schema may be made.
        is_micro_batch: whether a stream writes.

    Raises:
        ConfigError: a schema cannot be written with, a column does not fit it, with the field's name, or a stream is
            to take the latest one.
        SchemaRegistryError: the registry does not have it or does not allow it, or cannot be asked.
    """
    if not options.encoded:
        return NOTHING_ENCODED
    if is_micro_batch:
        ensure_goes_with_streams(options)
    from spark_kbatch.columns.schemas import schema_to_write  # noqa: PLC0415  loads the registry's client

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
            raise _unfit(one, error) from None
        column = WrittenColumn(one, schema)
        if kind is not None:
            column.encoder(kind)
        columns.append(column)
    return WrittenColumns(tuple(columns))
