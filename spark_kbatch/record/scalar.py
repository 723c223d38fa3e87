"""A V2 codec in pure Python for a few records: single sends, control batches, internal topics.

Committing and resolving offsets read and write a handful of records, and a lookup by time opens one
batch, or a few: they must not load numba for them. `record/__init__` describes the format.

Source: Kafka clients/.../record/DefaultRecord.java, LegacyRecord.java, AbstractLegacyRecordBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import compression, legacy
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
    seal,
    walk_messages,
)

_SHIFT_MAX = 63  # of the last byte of a varint, which has at most ten

Header: TypeAlias = tuple[bytes, bytes | None]  # one of a record's headers: UTF-8 key, value


class PlainRecord(NamedTuple):
    """A decoded record: its offset, key and value."""

    offset: int
    key: bytes | None
    value: bytes | None


def encode(records: Iterable[tuple[bytes | None, bytes | None]], timestamp_ms: int) -> bytearray:
    """Encode (key, value) records as one uncompressed V2 batch, all with the same timestamp."""
    out = bytearray(RECORD_BATCH_OVERHEAD)
    count = 0
    for key, value in records:
        out += encode_record(0, count, key, value)
        count += 1
    seal(
        memoryview(out),
        records_count=count,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
    )
    return out


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> bytes:
    """Encode one V2 record, starting with its length."""
    fields = (
        b"\0",
        varint(wrapped(timestamp_delta)),
        varint(offset_delta),
        _NULL if key is None else varint(len(key)),
        key or b"",
        _NULL if value is None else varint(len(value)),
        value or b"",
        _encoded(headers) if headers else b"\0",
    )
    body = b"".join(fields)
    return varint(len(body)) + body


def _encoded(headers: Sequence[Header]) -> bytes:
    parts = [varint(len(headers))]
    for name, content in headers:
        parts += varint(len(name)), name, _NULL if content is None else varint(len(content))
        parts.append(content or b"")
    return b"".join(parts)


def decode(data: Buffer, position: int, header: BatchHeader) -> list[PlainRecord]:
    """Decode the records of the uncompressed V2 batch at `position`.

    Raises:
        CorruptRecordError: the CRC or the lengths do not hold, or the batch is compressed; carries
            the batch's position in `data`.
    """
    ensure_valid(data, position, header)
    if header.codec:
        raise CorruptRecordError(
            "codec of a control batch or of an internal topic's batch",
            position=position, expected=0, found=header.codec,
        )  # fmt: skip
    section = memoryview(data)[position + RECORD_BATCH_OVERHEAD : position + header.size_in_bytes]
    records = []
    for offset, _, at, end in _walk_records(section, position, header):
        try:
            records.append(PlainRecord(offset, *_key_and_value(section[at:end])))
        except IndexError as error:
            raise _wrong_length(position, error) from None
    return records


def _key_and_value(fields: memoryview) -> list[bytes | None]:
    found: list[bytes | None] = []
    position = 0
    for _ in ("key", "value"):
        size, position = read_varint(fields, position)
        if size > len(fields) - position:
            raise IndexError(f"a field of {size} bytes")
        found.append(bytes(fields[position : position + size]) if size >= 0 else None)
        position += max(size, 0)
    return found


def times(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp in ms) of the records of the batch at `position`, in order.

    Raises:
        CorruptRecordError: the CRC does not hold, or lengths and counts do not fit. Carries the
            batch's position in `data`.
    """
    for offset, timestamp in _times_found(data, position, header):
        yield offset, header.max_timestamp if header.attributes & LOG_APPEND_TIME else timestamp


def _times_found(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
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
        for offset, timestamp, _, _ in _walk_records(section, position, header):
            yield offset, timestamp


def _walk_records(
    section: Buffer, position: int, header: BatchHeader
) -> Iterator[tuple[int, int, int, int]]:
    """Yield offset, timestamp, the position of the key's length and the end of each V2 record in a batch.

    Args:
        section: the batch's records, uncompressed; positions count from its start.
        position: the batch's own, for errors.

    Raises:
        CorruptRecordError: a record passes the end of the section, or its fields pass its own end.
    """
    end = 0
    for _ in range(header.records_count):
        try:
            size, start = read_varint(section, end)
            timestamp_delta, at = read_varint(section, start + 1)
            offset_delta, at = read_varint(section, at)
            end = start + size
            if not at <= end <= len(section):
                raise IndexError(f"a record of {size} bytes")
        except IndexError as error:
            raise _wrong_length(position, error) from None
        timestamp = wrapped(header.base_timestamp + timestamp_delta)
        yield header.base_offset + offset_delta, timestamp, at, end


def _wrong_length(position: int, error: IndexError) -> CorruptRecordError:
    return CorruptRecordError(
        "length of a record or of a field in it", position=position,
        expected="no more bytes than are left", found=str(error),
    )  # fmt: skip


def wrapped(number: int) -> int:
    """Wrap a sum or difference of two int64 around, as Java does.

    The difference of two times may not fit into an int64. Writer and reader both wrap, so the reader
    gets the time that was written.
    """
    return (number + 2**63) % 2**64 - 2**63


def varint(number: int) -> bytes:
    """Return the zigzag varint of an int64."""
    if 0 <= number < len(_SMALL):
        return _SMALL[number]
    return unsigned_varint((number << 1) ^ (number >> 63))


def unsigned_varint(number: int) -> bytes:
    """Return the varint of a number that is not negative: groups of 7 bits, low group first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Decode the zigzag varint at `position`; return the number, and the position after it.

    Raises:
        IndexError: as `read_unsigned_varint`.
    """
    number, position = read_unsigned_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Decode the unsigned varint at `position`; return the number, and the position after it.

    Raises:
        IndexError: the varint passes the end of `data`, or has over ten bytes.
    """
    number, shift = 0, 0
    while True:
        if shift > _SHIFT_MAX:
            raise IndexError("a varint of over ten bytes")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


_NULL = unsigned_varint(1)
_SMALL = [unsigned_varint(number << 1) for number in range(1 << 13)]  # of one or two bytes
