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

Source: Kafka clients/.../record/LegacyRecord.java, AbstractLegacyRecordBatch.java; KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import compression
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MESSAGE_OVERHEADS,
    UNKNOWN_COUNT,
    BatchHeader,
    MessageRun,
    ensure_valid,
    scan_messages,
    walk_messages,
)

_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_KEY_POSITIONS = (18, 26)


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


def first_offset(data: Buffer, position: int, header: BatchHeader) -> int:
    """Return the first offset in the batch at `position`; raises as `unwrap`.

    The header of a wrapper does not tell it, only what that holds.
    """
    return (unwrap(data, position, header).header if header.is_wrapper else header).base_offset


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
