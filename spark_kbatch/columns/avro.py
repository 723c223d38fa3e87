"""A column of Avro: its decoder, and the registry that knows what the decoder does not.

AvroColumn      values as one type, that of the reader's schema
WrittenAsJson   values as JSON, each as the schema has it that wrote it: what people look at
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kbatch import clock
from spark_kbatch.columns.as_json import LARGER
from spark_kbatch.columns.schemas import WritersSchemas
from spark_kbatch.errors import SchemaError
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.terminal import to_json
from spark_kbatch.values.avro_decoder import AvroDecoder
from spark_kbatch.values.avro_schema import PrimitiveSchema, Schema
from spark_kbatch.values.decoded import DecodedValues, plain
from spark_kbatch.values.flat import strings_of
from spark_kbatch.values.framing import NO_SCHEMA_ID, schema_ids_of

_MINUTE_MS = 60_000
_ANY = PrimitiveSchema("null")  # stands in for the schema of values that cannot be read


def _add(decoder: AvroDecoder, schema_id: int, found: Schema | str) -> None:
    """Have a decoder read values of a schema, or fail them with the reason why there is none."""
    if isinstance(found, str):
        decoder.add_unreadable(schema_id, found)
    else:
        decoder.add_writer(schema_id, found)


class AvroColumn:
    """Decodes keys or values of Avro, each with the schema that wrote it. Not thread-safe."""

    def __init__(
        self,
        reader: Schema,
        writers: WritersSchemas,
        reader_name: str = "",
        *,
        only: int | None = None,
    ) -> None:
        """Prepare the columns; the schemas that wrote values are prepared when a value names them.

        Args:
            reader: what values are read as.
            writers: which schemas wrote them.
            reader_name: of the schema that they are read as, for errors about it.
            only: the id of the schema that wrote all values, which then have no framing.

        Raises:
            SchemaError: a type of the reader's schema has no form in columns.
        """
        self._decoder, self._writers, self._only = AvroDecoder(reader, reader_name), writers, only
        self._ask_again_ms = clock.monotonic_ms() + _MINUTE_MS
        if only is not None:
            _add(self._decoder, only, writers.of(only))

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode values.

        Args:
            array: to decode.
            memory_max: how many bytes the values of several rows may take; None for any number.

        Raises:
            SchemaRegistryError: the registry does not answer, or refuses to.
            OverflowError: the values do not fit into one array, or into that memory.
        """
        if self._only is not None:
            return self._decoder.decode(array, schema_id=self._only, memory_max=memory_max)
        now_ms = clock.monotonic_ms()
        if now_ms >= self._ask_again_ms:  # for a schema that was registered since
            self._ask_again_ms = now_ms + _MINUTE_MS
            self._decoder.forget_unreadable()
        for schema_id in self._decoder.missing(array):
            _add(self._decoder, schema_id, self._writers.of(schema_id))
        return self._decoder.decode(array, memory_max=memory_max)


class WrittenAsJson:
    """Decodes keys or values into JSON text, each as its own writer's schema has it."""

    def __init__(self, registry: RegistryOptions | None) -> None:
        self._schemas = WritersSchemas(registry, "")
        self._decoders: dict[int, AvroDecoder] = {}

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode values; raises as `AvroColumn.decode`."""
        ids = schema_ids_of(strings_of(array))
        texts: list[str | None] = [None] * len(array)
        errors = []
        for schema_id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == schema_id)
            decoder = self._decoder(schema_id)
            decoded = decoder.decode(
                array.take(pa.array(rows)), memory_max=memory_max and memory_max // LARGER
            )
            errors += [one._replace(row=int(rows[one.row])) for one in decoded.errors]
            for row, value in zip(rows.tolist(), plain(decoded.values), strict=True):
                texts[row] = None if array[row].as_py() is None else to_json(value)
        return DecodedValues(pa.array(texts, pa.string()), ids, tuple(sorted(errors)))

    def _decoder(self, schema_id: int) -> AvroDecoder:
        """Return the decoder of values that a schema wrote; of all others, one whose rows are errors."""
        if schema_id not in self._decoders:
            found = _ANY if schema_id == NO_SCHEMA_ID else self._schemas.of(schema_id)
            try:
                decoder = AvroDecoder(_ANY if isinstance(found, str) else found)
            except SchemaError as error:
                decoder = AvroDecoder(_ANY)
                found = f"its schema is none that can be shown: {error}"
            _add(decoder, schema_id, found)
            self._decoders[schema_id] = decoder
        return self._decoders[schema_id]
