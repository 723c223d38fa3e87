"""Why a row cannot be decoded or encoded."""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.kernels import avro as kernels


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


REASONS = {
    kernels.TRUNCATED: "the value ends in the middle of the field, or a length passes its end",
    kernels.BAD_VARINT: "a number has more than 64 bits",
    kernels.BAD_LENGTH: "a length is negative",
    kernels.BAD_COUNT: "the number of items in a block is not one",
    kernels.BAD_BRANCH: "a union has no branch of this number",
    kernels.BAD_SYMBOL: "the writer's enum has no symbol of this number",
    kernels.BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    kernels.BAD_TEXT: "a string is not UTF-8",
    kernels.TRAILING_BYTES: "bytes are left over after the value: another schema wrote it, or it is damaged",
    kernels.OUT_OF_RANGE: "a number is outside the range of its type",
    kernels.UNKNOWN_SYMBOL: "the reader's enum does not have the symbol, and no default",
    kernels.TOO_MUCH_MEMORY: (
        f"items of few bytes and defaults within items take more memory than {kernels.MEMORY_PER_BYTE} times the "
        f"value and {kernels.MEMORY_FREE} bytes"
    ),
    kernels.TOO_DEEP: "records or lists are nested too deep",
}
