"""Arrow arrays of keys or values, decoded and encoded without a topic: for `spark_kbatch.decode_values` and `encode_values`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_kbatch.columns.reading import pinned
from spark_kbatch.columns.schemas import parsed
from spark_kbatch.columns.writing import schema_to_write
from spark_kbatch.errors import ConfigError, InvalidValueError
from spark_kbatch.options import arguments
from spark_kbatch.options.values import PERMISSIVE, parse_value_keywords
from spark_kbatch.values.avro_decoder import DecodedValues
from spark_kbatch.values.avro_encoder import AvroEncoder
from spark_kbatch.values.row_errors import RowError

_BINARY = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def decode_values(array: Any, registry: Any, keywords: Mapping[str, Any]) -> DecodedValues:
    """Decode an array; arguments and errors are those of `spark_kbatch.decode_values`."""
    if not isinstance(array, pa.Array | pa.ChunkedArray) or array.type not in (*_BINARY, pa.null()):
        kind = str(getattr(array, "type", type(array).__name__))
        arguments.refuse("array", kind, "an Arrow array of binary or string")
    options = parse_value_keywords(registry, {"value_format": "avro", **keywords}, [])
    columns = pinned(options)
    if not columns.columns:
        raise ConfigError("value_format is 'binary': such values are what they are")
    found = columns.typed().by_name["value"].decode(array)
    assert isinstance(found, DecodedValues)
    if found.errors and options.mode != PERMISSIVE:
        raise _of(found.errors[0])
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
    options = parse_value_keywords(registry, {"value_format": "avro", **keywords}, [])
    if options.value.format != "avro":
        raise ConfigError(f"value_format is {options.value.format!r}; accepted: avro")
    schema = schema_to_write(
        options.value, options.registry, auto_register=auto_register, kind=array.type
    )
    encoder = AvroEncoder(parsed(schema), array.type)
    framed_with = schema.id if options.value.framing == "confluent" else None
    found = encoder.encode(array, schema_id=framed_with)
    if found.errors:
        raise _of(found.errors[0])
    return found.values


def _of(error: RowError) -> InvalidValueError:
    schema_id = -1 if error.schema_id is None else error.schema_id
    return InvalidValueError(error.row, error.reason, error.path, schema_id)
