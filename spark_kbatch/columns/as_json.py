"""Keys and values as JSON text on one line: what people look at.

ReadAsJson      values of one type, as JSON
JsonAsWritten   values that are JSON, as they are written
"""

from __future__ import annotations

import pyarrow as pa

from spark_kbatch.consumer.rows import TypedColumn
from spark_kbatch.terminal import json_on_one_line, to_json
from spark_kbatch.values.decoded import DecodedValues, plain
from spark_kbatch.values.framing import HEADER_SIZE

LARGER = 16  # times than in a column is a value as a Python object


class ReadAsJson:
    """Decodes keys or values into JSON text, all of the type that a column has them as."""

    def __init__(self, column: TypedColumn) -> None:
        self._column = column

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode values; raises as the column's decoder."""
        found = self._column.decode(array, memory_max=memory_max and memory_max // LARGER)
        texts = [None if one is None else to_json(one) for one in plain(found.values)]
        return DecodedValues(pa.array(texts, pa.string()), found.schema_ids, found.errors)


class JsonAsWritten:
    """Returns the text of keys or values that are JSON, whose decoder finds those that are not."""

    def __init__(self, column: TypedColumn, *, is_framed: bool) -> None:
        """Show what a decoder of JSON takes, without Confluent's bytes in front if there are any."""
        self._column, self._start = column, HEADER_SIZE if is_framed else 0

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Return values as text; raises as the column's decoder."""
        found = self._column.decode(array, memory_max=memory_max and memory_max // LARGER)
        bad = {one.row for one in found.errors}
        texts = [
            None
            if data is None or row in bad
            else json_on_one_line(data[self._start :].decode()).strip(" ")
            for row, data in enumerate(array.to_pylist())
        ]
        return DecodedValues(pa.array(texts, pa.string()), found.schema_ids, found.errors)
