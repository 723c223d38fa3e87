"""Columns of any origin, decoded and encoded without a topic: by functions of Spark, or as arrays.

decoded_column, encoded_column  what a function of Spark looks up once, on the driver, for its tasks
decode_values, encode_values    Arrow arrays, at once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_kbatch.columns.reading import PinnedColumns, pinned
from spark_kbatch.columns.schemas import encoder_of, schema_to_write
from spark_kbatch.columns.writing import WrittenColumn, WrittenColumns
from spark_kbatch.consumer.rows import DecodedColumn
from spark_kbatch.errors import ConfigError, InvalidValueError
from spark_kbatch.options import arguments
from spark_kbatch.options.values import (
    ANY_COLUMN,
    PERMISSIVE,
    SCHEMA_OF_COLUMNS,
    parse_function_arguments,
    parse_value_keywords,
    parse_written_value_keywords,
)
from spark_kbatch.values.decoded import DecodedValues
from spark_kbatch.values.framing import NO_SCHEMA_ID

_VALUE = "value"  # of the parts of a row, which have the names of `DecodedColumn`
_BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null())
_REMEDY = 'with mode="PERMISSIVE" the value of such a row is null, and the field error says why'
_SMALLER = "lower spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class DecodedColumnOfBytes:
    """A column of bytes that is decoded; a plan carries it to the tasks."""

    columns: PinnedColumns
    has_schema_id: bool

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of decoded rows: of the values, or a struct of the values and what is said of them."""
        value = self.columns.columns[0].type()
        if not self._has_parts:
            return value
        parts = [(_VALUE, value)]
        parts += [("schema_id", pa.int32())] if self.has_schema_id else []
        parts += [("error", pa.string())] if self._is_permissive else []
        return pa.struct(parts)

    @property
    def _has_parts(self) -> bool:
        return self.has_schema_id or self._is_permissive

    @property
    def _is_permissive(self) -> bool:
        return self.columns.options.mode == PERMISSIVE

    def decoded(self, arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Yield an array of `type` for each array of bytes of one task.

        Raises:
            InvalidValueError: a row cannot be decoded, and such are not null; it has its number in the task.
            SchemaRegistryError: the registry does not answer, or refuses to.
        """
        column = self.columns.typed(names=[ANY_COLUMN]).by_name[ANY_COLUMN]
        kind, first = self.type, 0
        for array in arrays:
            if array.type not in _BYTES:
                raise ConfigError(f"from_avro takes a column of type binary, not {array.type}")
            try:
                found = column.decode(array)
            except OverflowError as error:
                raise ConfigError(f"{error}: {_SMALLER}") from None
            if found.errors and not self._is_permissive:
                raise _first_error(found, first, _REMEDY)
            first += len(array)
            yield self._row_parts(found, kind)

    def _row_parts(self, found: DecodedValues, kind: pa.DataType) -> pa.Array:
        if not self._has_parts:
            return found.values
        rows = DecodedColumn(found, {one.row: str(one) for one in found.errors})
        parts = [rows.part("" if one.name == _VALUE else one.name) for one in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))


def _first_error(found: DecodedValues, first_row: int = 0, remedy: str = "") -> InvalidValueError:
    bad = found.errors[0]
    schema_id = NO_SCHEMA_ID if bad.schema_id is None else bad.schema_id
    return InvalidValueError(first_row + bad.row, bad.reason, bad.path, schema_id, remedy=remedy)


@dataclass(frozen=True)
class EncodedColumn:
    """A column of any type that is encoded; a plan carries it to the tasks."""

    column: WrittenColumn

    def encoded(self, arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Yield an array of binary for each array of one task.

        Raises:
            ConfigError: columns do not fit the schema; names the field.
            InvalidValueError: a row does not fit the schema; it has its number in the task.
        """
        rows = (pa.record_batch([array], [self.column.name]) for array in arrays)
        try:
            for batch in WrittenColumns((self.column,)).encoded(rows):
                yield batch.column(0)
        except OverflowError as error:
            raise ConfigError(f"{error}: {_SMALLER}") from None


def decoded_column(
    registry: Any, given: Mapping[str, Any], *, include_schema_id: bool
) -> DecodedColumnOfBytes:
    """Look up what a column of bytes is read as; arguments and errors are those of `functions.from_avro`."""
    arguments.boolean("include_schema_id", include_schema_id)
    return DecodedColumnOfBytes(
        pinned(parse_function_arguments(registry, given)), include_schema_id
    )


def encoded_column(
    registry: Any,
    given: Mapping[str, Any],
    *,
    auto_register: bool,
    kind: pa.DataType | None = None,
) -> EncodedColumn:
    """Look up what a column is written with; arguments and errors are those of `functions.to_avro`.

    Args:
        kind: the column's type, of which a schema is made, in place of a schema in `given`.
    """
    arguments.boolean("auto_register", auto_register)
    options = parse_function_arguments(registry, given)
    column = options.value if kind is None else replace(options.value, schema=SCHEMA_OF_COLUMNS)
    if auto_register and options.registry is None:
        raise ConfigError("auto_register is for a schema of a registry, and registry is not given")
    if auto_register and column.schema.kind not in ("text", "file", "columns"):
        raise ConfigError(
            "auto_register is for a schema that is JSON, a file, or a type of Spark, and schema is none; "
            "a function does not know the type of its column: give it, such as df.schema"
        )
    schema = schema_to_write(column, options.registry, auto_register=auto_register, kind=kind)
    return EncodedColumn(WrittenColumn(column, schema))


def decode_values(array: Any, registry: Any, keywords: Mapping[str, Any]) -> DecodedValues:
    """Decode an array; arguments and errors are those of `spark_kbatch.decode_values`."""
    if not isinstance(array, pa.Array | pa.ChunkedArray) or array.type not in _BYTES:
        kind = str(getattr(array, "type", type(array).__name__))
        arguments.refuse("array", kind, "an Arrow array of binary or string")
    options = parse_value_keywords(
        registry, {"value_format": "avro", **keywords}, [], has_headers=False
    )
    columns = pinned(options)
    if not columns.columns:
        raise ConfigError("value_format is 'binary': such values are what they are")
    found = columns.typed().by_name["value"].decode(array)
    if found.errors and options.mode != PERMISSIVE:
        raise _first_error(found)
    return found


def encode_values(
    array: Any, registry: Any, keywords: Mapping[str, Any], *, auto_register: bool
) -> pa.Array | pa.ChunkedArray:
    """Encode an array; arguments and errors are those of `spark_kbatch.encode_values`."""
    if isinstance(array, pa.RecordBatch):
        array = array.to_struct_array()
    elif isinstance(array, pa.Table):
        array = array.to_struct_array().combine_chunks()
    if not isinstance(array, pa.Array | pa.ChunkedArray):
        arguments.refuse("array", array, "an Arrow array, a record batch or a table")
    arguments.boolean("auto_register", auto_register)
    given = {"value_format": "avro", "auto_register_schemas": auto_register, **keywords}
    if str(given["value_format"]).strip().lower() not in ("avro", "json"):
        raise ConfigError(
            f"value_format is {arguments.shown(given['value_format'])}; accepted: avro, json"
        )
    options = parse_written_value_keywords(registry, given)
    schema = schema_to_write(
        options.value, options.registry, auto_register=options.auto_register, kind=array.type
    )
    # Errors name fields of the array, which is no column of anything.
    column = WrittenColumn(replace(options.value, column=ANY_COLUMN), schema)
    return column.encoded(encoder_of(schema, array.type), array)
