"""What decoding makes of rows, of any format: values, and why a row has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from spark_kbatch.values.flat import Array


class RowError(NamedTuple):
    """The error of one row. Its reader adds the topic and the offset."""

    row: int  # in the array that was given
    reason: str
    path: str = ""  # of the field; empty for the whole value
    position: int | None = None  # in bytes, from the start of the row, with its framing
    schema_id: int | None = None

    def __str__(self) -> str:
        where = [] if self.position is None else [f"byte {self.position}"]
        is_known = self.schema_id is not None and self.schema_id >= 0
        where += [f"schema id {self.schema_id}"] if is_known else []
        field = f"{self.path}: " if self.path else ""
        return f"{field}{self.reason}" + (f" ({', '.join(where)})" if where else "")


@dataclass(frozen=True, eq=False)
class DecodedValues:
    """Values of one call, in the order of the rows that were given."""

    values: (
        pa.Array | pa.ChunkedArray
    )  # chunked as the input, in more chunks where one would be too large
    schema_ids: Array  # int32[n]; NO_SCHEMA_ID for a row that has no framing, and for null
    errors: tuple[RowError, ...]  # in the order of rows

    def error_texts(self) -> pa.Array:
        """Return string[n], null for rows without an error."""
        if not self.errors:
            return pa.nulls(len(self.values), pa.string())
        texts: list[str | None] = [None] * len(self.values)
        for error in self.errors:
            texts[error.row] = str(error)
        return pa.array(texts, pa.string())
