"""Message sets: Kafka's formats V0 and V1, from before record batches. Big-endian.

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

There are no headers of records, producer ids, transactions or leader epochs. A message without a codec
is a record, and stands in the log by itself. With one it is a wrapper: its value is a compressed run
of whole messages, which are the records. A wrapper's offset is that of the last record in it.

    in a wrapper    V0             V1
    offsets         as they are    from 0; added to what makes the last one the wrapper's offset
    timestamps      none           their own; the wrapper's, where that has LogAppendTime
    timestamp type  none           the wrapper's

A V1 wrapper with offset 0 was never given one, whatever it holds: its records count from 0. Messages in
a wrapper have its magic and no codec. Where the last of them is cut off it was not written.

Offset and size lie outside the CRC. The size is checked against the lengths of key and value, which lie
inside; the offset cannot be. Whoever gives a message its offset need not take the CRC again, but for a
V0 wrapper has to compress again.

What is written is made in `message_set`.

Source: Kafka clients/.../record/LegacyRecord.java, AbstractLegacyRecordBatch.java; KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.kernels import legacy as legacy_kernels
from spark_kbatch.kernels.legacy import (
    SCAN_COUNT,
    SCAN_FACTS,
    SCAN_LAST_OFFSET,
    SCAN_MAGIC,
    SCAN_MASK,
    SCAN_MAX_TIMESTAMP,
    SCAN_MAX_TIMESTAMP_OFFSET,
    SCAN_POSITION,
)
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import compression
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MESSAGE_OVERHEADS,
    NO_TIMESTAMP,
    UNKNOWN_COUNT,
    BatchHeader,
    ensure_valid,
)

_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_KEY_POSITIONS = (18, 26)
_SCANNED = [
    SCAN_POSITION,
    SCAN_COUNT,
    SCAN_LAST_OFFSET,
    SCAN_MAX_TIMESTAMP,
    SCAN_MAX_TIMESTAMP_OFFSET,
]


class Scan(NamedTuple):
    """Plain messages of one format that lie back to back."""

    end_position: int
    records_count: int
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int  # of the first that has it; -1 for none


def scan(data: Buffer, position: int, stop: int, magic: int) -> Scan:
    """Those from `position` on, as long as each is whole before `stop` and offsets grow."""
    flat = np.frombuffer(data, np.uint8)
    flat.setflags(write=False)
    facts = np.zeros(SCAN_FACTS, np.int64)
    facts[SCAN_POSITION], facts[SCAN_MAGIC], facts[SCAN_MASK] = position, magic, CODEC_MASK
    facts[SCAN_LAST_OFFSET] = facts[SCAN_MAX_TIMESTAMP_OFFSET] = -1
    facts[SCAN_MAX_TIMESTAMP] = NO_TIMESTAMP
    legacy_kernels.scan_messages(flat, stop, facts)
    return Scan(*facts[_SCANNED].tolist())


class Unwrapped(NamedTuple):
    """What a wrapper holds."""

    header: BatchHeader  # its own, with the offsets and the count of the records in it
    messages: memoryview  # those, whole
    shift: int  # what is added to the offsets that stand in them


def run(messages: memoryview, position: int, run_bytes: int, magic: int) -> tuple[int, int]:
    """How far and how many of a wrapper's messages lie in `run_bytes` from `position` on: one or more."""
    found = scan(messages, position, min(position + run_bytes, len(messages)), magic)
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
    """Open the wrapper at `position`, whose size was checked; its messages take up to `limit` bytes.

    Raises:
        CorruptRecordError: its CRC, its lengths or its codec do not hold, or what it holds is not as
            the module's docstring says; carries the wrapper's position.
    Source: AbstractLegacyRecordBatch.DeepRecordsIterator.
    """
    ensure_valid(data, position, header)
    start = _value_position(data, position, header)
    try:
        plain = memoryview(
            compression.decompress(
                header.codec,
                memoryview(data)[start : position + header.size_in_bytes],
                magic=header.magic,
                limit=limit,
            )
        )
    except CorruptRecordError as error:
        raise error.at("", start) from None

    def refuse(what: str, expected: object, found: object) -> CorruptRecordError:
        return CorruptRecordError(what, position=position, expected=expected, found=found)

    found = scan(plain, 0, len(plain), header.magic)
    count, end, last_offset = found.records_count, found.end_position, found.last_offset
    wrong = _what_is_wrong(plain, end, header.magic)
    if wrong:
        raise refuse(f"a wrapper's message number {count}", *wrong)
    if count == 0:
        raise refuse("a wrapper", "messages in it", "none")
    shift = 0
    if header.magic > 0 and header.last_offset > 0:
        shift = header.last_offset - last_offset
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


def _value_position(data: Buffer, position: int, header: BatchHeader) -> int:
    """Where the wrapper's value begins; it ends where the wrapper does."""
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
    """What is expected and found where a scan has ended; None where no whole message is left."""
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
