"""Message sets, Kafka's formats V0 and V1: the predecessors of record batches, big-endian.

    position  bytes  field
           0      8  offset
           8      4  size          int32   bytes after this field
          12      4  crc           uint32  CRC-32 (zlib's polynomial) of position 16 to the end
          16      1  magic         int8    0 or 1
          17      1  attributes    int8    0-2 codec; 3 timestamp type, V1 alone
          18      8  timestamp     int64   ms, -1 for none; V1 alone, the rest of V0 moves up
          26      4  key length    int32   -1 for null
                     key
                  4  value length  int32   -1 for null
                     value

There are no record headers, producer ids, transactions or leader epochs. A message without a codec is a
record, and lies in the log by itself. With a codec it is a wrapper: its value is a compressed run of
whole messages, which are the records. A wrapper's offset is that of its last record.

    in a wrapper    V0             V1
    offsets         absolute       from 0; shifted so that the last one is the wrapper's offset
    timestamps      none           their own; the wrapper's if it has LogAppendTime
    timestamp type  none           the wrapper's

A V1 wrapper with offset 0 was never assigned an offset, whatever it holds: its records count from 0.
Messages in a wrapper have its magic and no codec. If the last one is truncated, it does not count.

Offset and size lie outside the CRC. The size is checked against the lengths of key and value, which the
CRC covers; the offset cannot be checked. Assigning an offset leaves the CRC as it is, but the messages in
a V0 wrapper have to be compressed again.

Producers build only V2 batches. For a topic with an older format:

    codec.down_convert    V2 batch -> messages with offsets 0, 1, 2 ...    for the transport
    assign_offsets        those -> with their offsets in the log           for the leader

A V0 wrapper is compressed again at the codec's default level, so its size may change by a few bytes.

Source: Kafka clients/.../record/LegacyRecord.java, AbstractLegacyRecordBatch.java, RecordsUtil.java,
MemoryRecordsBuilder.java; storage/.../log/LogValidator.java; KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.kernels import legacy as legacy_kernels
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import compression
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.columns import Columns
from spark_kbatch.record.header import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MESSAGE_OVERHEADS,
    NO_TIMESTAMP,
    UNKNOWN_COUNT,
    BatchHeader,
    MessageRun,
    ensure_valid,
    scan_messages,
    seal_message,
    unpack,
    walk_messages,
)

_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_KEY_POSITIONS = (18, 26)
_NULL = -1


class MessageSet(NamedTuple):
    """V0 or V1 messages that lie back to back: plain ones, or one compressed wrapper."""

    data: memoryview
    largest: int  # size in bytes of the largest message, which max.message.bytes limits


def encode(
    columns: Columns, magic: int, *, codec: int, level: int | None, max_timestamp: int
) -> MessageSet:
    """Encode rows without headers as V0 or V1 messages, as `magic` says, with offsets 0, 1, 2 ...

    Args:
        columns: one row or more. Their times are dropped for V0.
        max_timestamp: of the rows, for a V1 wrapper.

    Raises:
        ConfigError: the codec is zstd, which came after these formats.
    Source: RecordsUtil.downConvert.
    """
    size = MESSAGE_OVERHEADS[magic] * columns.rows_count
    out = np.empty(size + len(columns.key.data) + len(columns.value.data), np.uint8)
    largest = np.zeros(1, np.int64)
    size = legacy_kernels.write_messages(
        magic, columns.timestamps, *columns.key, *columns.value, out, largest
    )
    messages = out.data[: int(size)]
    if codec == compression.NONE:
        return MessageSet(messages, int(largest[0]))
    last_offset = columns.rows_count - 1
    wrapper = _wrapper(messages, magic, codec, last_offset, max_timestamp, level)
    return MessageSet(wrapper, len(wrapper))


def assign_offsets(
    data: memoryview, header: BatchHeader, base_offset: int, *, append_time_ms: int | None = None
) -> tuple[memoryview, BatchHeader]:
    """Assign offsets from `base_offset` on to V0 or V1 messages: plain ones, or a wrapper made by `encode`.

    Args:
        data: writable, and written to.
        header: of the first message; a wrapper's last offset is one less than its number of records.
        append_time_ms: for V1, a time for all messages that replaces their own.

    Returns:
        The bytes for the log, and their header.
    """
    if not header.is_wrapper:
        flat = np.frombuffer(data, np.uint8)
        count = legacy_kernels.assign_offsets(flat, len(data), base_offset)
        if append_time_ms is not None:
            legacy_kernels.stamp_messages(flat, len(data), append_time_ms)
        return data, unpack(data)._replace(
            batch_length=header.batch_length,
            last_offset_delta=int(count) - 1,
            max_timestamp=header.max_timestamp if append_time_ms is None else append_time_ms,
            records_count=int(count),
        )
    last_offset = base_offset + header.last_offset
    if header.magic == 0:
        messages = bytearray(unwrap(data, 0, unpack(data)).messages)
        legacy_kernels.assign_offsets(np.frombuffer(messages, np.uint8), len(messages), base_offset)
        data = _wrapper(messages, 0, header.codec, last_offset, NO_TIMESTAMP, None)
    elif append_time_ms is None:
        _OFFSET.pack_into(data, 0, last_offset)
    else:
        attributes = header.attributes | LOG_APPEND_TIME
        seal_message(data, header.magic, last_offset, attributes, append_time_ms)
    return data, unpack(data).opened(base_offset)


def _wrapper(
    messages: Buffer, magic: int, codec: int, offset: int, timestamp: int, level: int | None
) -> memoryview:
    """Return a wrapper: one V0 or V1 message without a key, whose value is `messages`, compressed."""
    value = compression.compress(codec, messages, magic=magic, level=level)
    start = MESSAGE_OVERHEADS[magic]
    out = memoryview(bytearray(start + len(value)))
    out[start:] = value
    _SIZE.pack_into(out, start - 2 * _SIZE.size, _NULL)
    _SIZE.pack_into(out, start - _SIZE.size, len(value))
    seal_message(out, magic, offset, codec, timestamp)
    return out


class Unwrapped(NamedTuple):
    """The decompressed messages of a V0 or V1 wrapper, and how to get their offsets."""

    header: BatchHeader  # the wrapper's, with the offsets and the number of its records
    messages: memoryview  # whole messages only
    shift: int  # to add to the offsets in the messages


def run(messages: memoryview, position: int, run_bytes: int, magic: int) -> tuple[int, int]:
    """Return the end and the number of the V0 or V1 messages from `position` on that fit into `run_bytes`.

    The first one is included even if it does not fit.
    """
    stop = min(position + run_bytes, len(messages))
    found = scan_messages(messages, MessageRun(position), stop, magic)
    if found.records_count:
        return found.end_position, found.records_count
    (size,) = _SIZE.unpack_from(messages, position + _OFFSET.size)
    return position + LOG_OVERHEAD + int(size), 1


def unwrap(
    data: Buffer,
    position: int,
    header: BatchHeader,
    *,
    limit: int = MAX_DECOMPRESSED_BATCH_BYTES,
) -> Unwrapped:
    """Decompress and check the messages in the V0 or V1 wrapper at `position`, whose size was checked.

    Args:
        limit: the most bytes that the messages may have.

    Raises:
        CorruptRecordError: a wrong CRC, length or codec, or messages that a wrapper cannot hold;
            carries the wrapper's position.
    Source: AbstractLegacyRecordBatch.DeepRecordsIterator.
    """
    plain = _decompressed(data, position, header, limit)

    def refuse(what: str, expected: object, found: object) -> CorruptRecordError:
        return CorruptRecordError(what, position=position, expected=expected, found=found)

    found = scan_messages(plain, MessageRun(0), len(plain), header.magic)
    count, end, last_offset = found.records_count, found.end_position, found.last_offset
    wrong = _what_is_wrong(plain, end, header.magic)
    if wrong:
        raise refuse(f"a wrapper's message number {count}", *wrong)
    if count == 0:
        raise refuse("a wrapper", "messages in it", "none")
    shift = _shift(header, last_offset)
    if shift < 0:
        raise refuse("a wrapper's offset", f"{last_offset} or more", header.last_offset)
    (first_offset,) = _OFFSET.unpack_from(plain)
    opened = header._replace(
        base_offset=first_offset + shift,
        last_offset_delta=last_offset - first_offset,
        records_count=count,
    )
    if header.records_count != UNKNOWN_COUNT and opened != header:
        raise refuse(
            "offsets of a wrapper's messages",
            f"{header.records_count} from {header.base_offset} on",
            f"{count} from {opened.base_offset} to {opened.last_offset}",
        )
    return Unwrapped(opened, plain[:end], shift)


def wrapped_times(data: Buffer, position: int, header: BatchHeader) -> list[tuple[int, int]]:
    """Return (offset, timestamp) of each message in the V0 or V1 wrapper at `position`, without numba.

    Raises:
        CorruptRecordError: as `unwrap`, of the CRC, lengths and codec.
    """
    plain = _decompressed(data, position, header, MAX_DECOMPRESSED_BATCH_BYTES)
    try:
        found = [message[2:4] for message in walk_messages(plain, 0, len(plain))]
    except CorruptRecordError as error:
        raise CorruptRecordError(
            f"{error.what}, {error.position} bytes into a wrapper's decompressed messages",
            position=position, expected=error.expected, found=error.found,
        ) from None  # fmt: skip
    shift = _shift(header, found[-1][0]) if found else 0
    return [(offset + shift, timestamp) for offset, timestamp in found]


def _shift(header: BatchHeader, last_offset: int) -> int:
    """Return what to add to the offsets in a V0 or V1 wrapper, the last of which is `last_offset`."""
    return header.last_offset - last_offset if header.magic > 0 and header.last_offset > 0 else 0


def _decompressed(data: Buffer, position: int, header: BatchHeader, limit: int) -> memoryview:
    ensure_valid(data, position, header)
    start, end = _value_position(data, position, header), position + header.size_in_bytes
    return memoryview(
        compression.decompress_at(header.codec, data, start, end, magic=header.magic, limit=limit)
    )


def _value_position(data: Buffer, position: int, header: BatchHeader) -> int:
    """Return the start of a V0 or V1 wrapper's value, which ends where the wrapper ends."""
    at, end = position + _KEY_POSITIONS[header.magic], position + header.size_in_bytes
    (key_size,) = _SIZE.unpack_from(data, at)
    room = end - at - 2 * _SIZE.size
    if key_size > room:
        raise CorruptRecordError(
            "key length of a wrapper", position=at, expected=f"at most {room}", found=key_size
        )
    at += _SIZE.size + max(key_size, 0)
    (value_size,) = _SIZE.unpack_from(data, at)
    start = at + _SIZE.size
    if value_size != end - start:
        raise CorruptRecordError(
            "value length of a wrapper", position=at, expected=end - start, found=value_size
        )
    return int(start)


def _what_is_wrong(messages: memoryview, position: int, magic: int) -> tuple[str, str] | None:
    """Return what was expected and found at the message that ended a scan; None if no whole one is left."""
    room = len(messages) - position
    if room < LOG_OVERHEAD:
        return None
    (offset,) = _OFFSET.unpack_from(messages, position)
    (size,) = _SIZE.unpack_from(messages, position + _OFFSET.size)
    size_min = MESSAGE_OVERHEADS[magic] - LOG_OVERHEAD
    if size < MESSAGE_OVERHEADS[0] - LOG_OVERHEAD:
        return f"a size of {size_min} or more", str(size)
    if size > room - LOG_OVERHEAD:
        return None
    found, attributes = messages[position + MAGIC_POSITION], messages[position + MAGIC_POSITION + 1]
    if found != magic:
        return f"the wrapper's magic {magic}", str(found)
    if attributes & CODEC_MASK:
        return "no codec", str(attributes & CODEC_MASK)
    if size < size_min:
        return f"a size of {size_min} or more", str(size)
    return "an offset of 0 or more, above the one before", str(offset)
