"""Keys and values as JSON text on one line, all of one type: what people look at."""

from __future__ import annotations

import pyarrow as pa

from spark_kbatch.consumer.rows import TypedColumn
from spark_kbatch.terminal import json_on_one_line, to_json
from spark_kbatch.values.decoded import DecodedValues, plain
from spark_kbatch.values.framing import HEADER_SIZE

LARGER = 16  # times than in a column is a value as a Python object


class ReadAsJson:
    """Decodes keys or values into JSON text: of the type of a column, or JSON as it is written."""

    def __init__(
        self, column: TypedColumn, *, is_written: bool = False, is_framed: bool = False
    ) -> None:
        """Show what a column's decoder takes.

        Args:
            column: the decoder.
            is_written: whether values are JSON, and shown as they are.
            is_framed: whether those have Confluent's bytes in front, which are left out.
        """
        self._column, self._is_written = column, is_written
        self._start = HEADER_SIZE if is_framed else 0

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode values; raises as the column's decoder."""
        found = self._column.decode(array, memory_max=memory_max and memory_max // LARGER)
        if self._is_written:
            bad = {one.row for one in found.errors}
            texts = [
                None
                if data is None or row in bad
                else json_on_one_line(data[self._start :].decode()).strip(" ")
                for row, data in enumerate(array.to_pylist())
            ]
        else:
            texts = [None if one is None else to_json(one) for one in plain(found.values)]
        return DecodedValues(pa.array(texts, pa.string()), found.schema_ids, found.errors)
