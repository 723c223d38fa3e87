"""Offset and time of every record of one batch, in pure Python and without its keys and values.

Who looks for a time opens one batch, or few, and must not load numba for it.

Source: Kafka clients/.../record/DefaultRecord.java, LegacyRecord.java, AbstractLegacyRecordBatch.java.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import compression
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
)
from spark_kbatch.record.scalar import read_varint, wrapped

_MESSAGE = struct.Struct(">qiIbb")  # offset, size, CRC, magic, attributes
_TIMESTAMP, _TIMESTAMP_POSITION = struct.Struct(">q"), 18
_KEY_SIZE, _KEY_SIZE_POSITIONS = struct.Struct(">i"), (18, 26)  # by magic


def times(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """(offset, timestamp in ms) of the records of the batch at `position`, in their order.

    Raises:
        CorruptRecordError: the CRC does not hold, or lengths and counts do not fit. Carries the
            batch's position in `data`.
    """
    ensure_valid(data, position, header)
    batch = memoryview(data)[position : position + header.size_in_bytes]
    stamped = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    if header.magic == MAGIC:
        found = _of_records(_decompressed(batch, RECORD_BATCH_OVERHEAD, position, header), header)
    else:
        found = _of_messages(batch, position, header)
    try:
        for offset, timestamp in found:
            yield offset, timestamp if stamped is None else stamped
    except (IndexError, struct.error, ValueError) as error:
        raise CorruptRecordError(
            "lengths of the records", position=position, expected="as many bytes as there are",
            found=str(error),
        ) from None  # fmt: skip


def _of_records(section: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    at = 0
    for _ in range(header.records_count):
        size, at = read_varint(section, at)
        delta, behind = read_varint(section, at + 1)
        offset_delta, behind = read_varint(section, behind)
        at += size
        if not behind <= at <= len(section):
            raise ValueError(f"a record of {size} bytes")
        yield header.base_offset + offset_delta, wrapped(header.base_timestamp + delta)


def _of_messages(batch: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    if not header.codec:
        return _walked(batch)
    (key_size,) = _KEY_SIZE.unpack_from(batch, _KEY_SIZE_POSITIONS[header.magic])
    value = _KEY_SIZE_POSITIONS[header.magic] + 2 * _KEY_SIZE.size + max(key_size, 0)
    messages = _decompressed(batch, value, position, header)
    # Relative in V1: the last one's is the wrapper's. A wrapper at 0 was never given an offset.
    shift = 0
    if header.magic and header.last_offset:
        for last_offset, _ in deque(_walked(messages), maxlen=1):
            shift = header.last_offset - last_offset
    return ((offset + shift, timestamp) for offset, timestamp in _walked(messages))


def _walked(data: Buffer) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _MESSAGE.size <= len(data):
        offset, size, _, magic, _ = _MESSAGE.unpack_from(data, at)
        if size < _MESSAGE.size - LOG_OVERHEAD:
            raise ValueError(f"a message of {size} bytes")
        if at + LOG_OVERHEAD + size > len(data):
            return  # Cut off: it was not written.
        if magic:
            yield offset, _TIMESTAMP.unpack_from(data, at + _TIMESTAMP_POSITION)[0]
        else:
            yield offset, NO_TIMESTAMP
        at += LOG_OVERHEAD + size


def _decompressed(batch: Buffer, start: int, position: int, header: BatchHeader) -> Buffer:
    try:
        return compression.decompress(header.codec, memoryview(batch)[start:], magic=header.magic)
    except CorruptRecordError as error:
        raise error.at("", position + start) from None
