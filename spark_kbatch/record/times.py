"""Offsets and timestamps of a batch's records, read in pure Python and without keys and values.

A lookup by time opens one batch, or a few, and must not load numba for it.

Source: Kafka clients/.../record/DefaultRecord.java, LegacyRecord.java, AbstractLegacyRecordBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kbatch.record import compression, legacy
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
    walk_messages,
)
from spark_kbatch.record.scalar import walk_records


def times(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp in ms) of the records of the batch at `position`, in order.

    Raises:
        CorruptRecordError: the CRC does not hold, or lengths and counts do not fit. Carries the
            batch's position in `data`.
    """
    for offset, timestamp in _found(data, position, header):
        yield offset, header.max_timestamp if header.attributes & LOG_APPEND_TIME else timestamp


def _found(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    if header.is_wrapper:
        yield from legacy.wrapped_times(data, position, header)
        return
    ensure_valid(data, position, header)
    end = position + header.size_in_bytes
    if header.magic < MAGIC:
        for _, _, offset, timestamp, _, _ in walk_messages(data, position, end):
            yield offset, timestamp
    else:
        start = position + RECORD_BATCH_OVERHEAD
        section = compression.decompress_at(header.codec, data, start, end)
        for offset, timestamp, _, _ in walk_records(section, position, header):
            yield offset, timestamp
