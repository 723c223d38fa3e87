"""A column of Avro: its decoder, and the registry that knows what the decoder does not."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_kbatch.errors import SchemaError, SchemaNotFoundError
from spark_kbatch.opening.values import PinnedColumn, parsed, why_unreadable
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.registry.known import registry_of
from spark_kbatch.registry.schemas import RegisteredSchema
from spark_kbatch.values.avro_decoder import AvroDecoder, DecodedValues


class AvroColumn:
    """Decodes keys or values of Avro, each with the schema that wrote it. Not thread-safe."""

    def __init__(
        self,
        column: PinnedColumn,
        known: Iterable[RegisteredSchema],
        registry: RegistryOptions | None,
    ) -> None:
        """Prepare the columns; the schemas that wrote values are prepared when a value names them.

        Args:
            column: what values are read as.
            known: schemas that the registry need not be asked for.
            registry: the registry.

        Raises:
            SchemaError: a type of the reader's schema has no form in columns.
        """
        assert column.reader is not None
        self._decoder = AvroDecoder(column.reader_schema())
        self._known = {one.id: one for one in known}
        self._registry, self._subject = registry, column.options.subject
        self._only_writer: int | None = None
        if column.options.framing == "none":
            self._only_writer = column.reader.id
            self._decoder.add_writer(column.reader.id, parsed(column.reader))

    def decode(self, array: pa.Array) -> DecodedValues:
        """Decode values.

        Raises:
            SchemaRegistryError: the registry does not answer, or refuses to.
            OverflowError: the values do not fit into one array.
        """
        if self._only_writer is None:
            for schema_id in self._decoder.missing(array):
                self._add(schema_id)
        return self._decoder.decode(array, schema_id=self._only_writer)

    def _add(self, schema_id: int) -> None:
        """Make the values of a schema readable, or have the decoder say why they are not."""
        try:
            schema = self._known.get(schema_id) or self._asked(schema_id)
            unreadable = why_unreadable(schema)
            if not unreadable:
                self._decoder.add_writer(schema_id, parsed(schema))
                return
        except SchemaNotFoundError as error:
            unreadable = str(error)
            if schema_id == 0:
                unreadable += "; an id of 0 looks like Apicurio's framing, with ids of 8 bytes"
        except SchemaError as error:
            unreadable = f"its schema is none that can be used: {error}"
        self._decoder.add_unreadable(schema_id, unreadable)

    def _asked(self, schema_id: int) -> RegisteredSchema:
        assert self._registry is not None  # which Confluent's framing needs
        registry = registry_of(self._registry)
        if schema_id < 0:
            raise SchemaNotFoundError(registry.name, f"schema id {schema_id}", "no id is negative")
        return registry.by_id(schema_id, self._subject)
