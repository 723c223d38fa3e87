"""The records of the cluster's own topics: there are few, and who reads them has no numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import ReadRange
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord

_FETCH_BYTES = 1 << 20

_Value = TypeVar("_Value")


def read_records(
    log: PartitionLog,
    state: LogState,
    first_offset: int,
    unpack: Callable[[PlainRecord], _Value | None],
) -> Iterator[_Value]:
    """What `unpack` makes of them, one after the other; None is left out.

    Args:
        first_offset: where to begin, or the log's start where that is higher. The end is the high
            watermark of `state`.

    Raises:
        CorruptRecordError: of the log or of `unpack`; with file and position.
    """
    offset = max(first_offset, state.log_start_offset)
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, _FETCH_BYTES))
        for position, header in read.batches:
            try:
                values = [
                    unpack(record)
                    for record in scalar.decode(read.data, position, header)
                    if offset <= record.offset < state.high_watermark
                ]
            except CorruptRecordError as error:
                raise error.at(read.path, read.position) from None
            yield from (value for value in values if value is not None)
            offset = header.next_offset
