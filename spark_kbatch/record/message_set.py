"""Message sets of V0 and V1 out of finished batches, and their offsets when a log takes them.

    down_convert    a batch of V2 -> messages with offsets from 0    when it is handed to a transport
    place           those -> with the offsets that they have in the log

So producers know one format, and whoever wants another one pays for it. `legacy` tells the formats.
A V0 wrapper is compressed again when it is placed, at the codec's default level, and may then have
some bytes more or less.

Source: Kafka clients/.../record/RecordsUtil.downConvert, MemoryRecordsBuilder.java; storage/.../log/
LogValidator.java.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from spark_kbatch.errors import InvalidRecordError
from spark_kbatch.kernels import legacy as legacy_kernels
from spark_kbatch.record import codec, compression, legacy
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    MESSAGE_OVERHEADS,
    NO_TIMESTAMP,
    BatchHeader,
    seal_message,
    unpack,
)

_OFFSET, _LENGTH = struct.Struct(">q"), struct.Struct(">i")
_NULL = -1


class MessageSet(NamedTuple):
    """Messages back to back: plain ones, or one wrapper."""

    data: memoryview
    largest: int  # bytes of the largest message: what max.message.bytes limits


def down_convert(batch: Buffer, magic: int, *, level: int | None = None) -> MessageSet:
    """The records of one batch of V2 as messages of format `magic`, with offsets 0, 1, 2 ...

    Args:
        batch: only read. Its codec stays; its timestamps are dropped for V0.
        level: of the codec.

    Raises:
        InvalidRecordError: a record has headers, which the format has not.
        ConfigError: the codec is zstd, which the format has not.
    """
    header = unpack(batch)
    rows = codec.decode(batch)
    if rows.column("headers").null_count < rows.num_rows:
        raise InvalidRecordError(
            f"a record has headers, and its topic's format V{magic} has none; leave them out, or write "
            "to a topic whose message.format.version is 0.11.0 or later"
        )
    columns = arrow.columns(
        rows.num_rows,
        key=rows.column("key"),
        value=rows.column("value"),
        timestamps=arrow.timestamps_ms(rows.column("timestamp"), rows.num_rows, NO_TIMESTAMP),
        headers=None,
    )
    overhead = MESSAGE_OVERHEADS[magic] * rows.num_rows
    out = np.empty(overhead + len(columns.key.data) + len(columns.value.data), np.uint8)
    largest = np.zeros(1, np.int64)
    size = legacy_kernels.write_messages(
        magic, columns.timestamps, *columns.key, *columns.value, out, largest
    )
    messages = out.data[: int(size)]
    if not header.codec:
        return MessageSet(messages, int(largest[0]))
    times = header.max_timestamp
    wrapper = _wrapper(messages, magic, header.codec, rows.num_rows - 1, times, level)
    return MessageSet(wrapper, len(wrapper))


def place(
    data: memoryview, header: BatchHeader, base_offset: int, *, append_time_ms: int | None = None
) -> tuple[memoryview, BatchHeader]:
    """Plain messages, or a wrapper as `down_convert` makes it, with offsets from `base_offset` on.

    Args:
        data: writable, and written to.
        header: of the first message; of a wrapper its last offset says how many it holds.
        append_time_ms: of V1, the time of all messages in place of their own.

    Returns:
        The bytes for the log, and their header.
    """
    if not header.is_wrapper:
        flat = np.frombuffer(data, np.uint8)
        count = legacy_kernels.assign_offsets(flat, len(data), base_offset)
        if append_time_ms is not None:
            legacy_kernels.stamp_messages(flat, len(data), append_time_ms)
        placed = unpack(data)._replace(
            batch_length=header.batch_length,
            last_offset_delta=int(count) - 1,
            max_timestamp=header.max_timestamp if append_time_ms is None else append_time_ms,
            records_count=int(count),
        )
        return data, placed
    last_offset = base_offset + header.last_offset
    if header.magic == 0:
        messages = bytearray(legacy.unwrap(data, 0, unpack(data)).messages)
        legacy_kernels.assign_offsets(np.frombuffer(messages, np.uint8), len(messages), base_offset)
        data = _wrapper(messages, 0, header.codec, last_offset, NO_TIMESTAMP, None)
    elif append_time_ms is None:
        _OFFSET.pack_into(data, 0, last_offset)
    else:
        attributes = header.attributes | LOG_APPEND_TIME
        seal_message(data, header.magic, last_offset, attributes, append_time_ms)
    return data, unpack(data).opened(base_offset)


def _wrapper(
    messages: Buffer, magic: int, codec_id: int, offset: int, timestamp: int, level: int | None
) -> memoryview:
    """One message without a key, whose value is `messages`, compressed."""
    value = compression.compress(codec_id, messages, magic=magic, level=level)
    start = MESSAGE_OVERHEADS[magic]
    out = memoryview(bytearray(start + len(value)))
    out[start:] = value
    _LENGTH.pack_into(out, start - 2 * _LENGTH.size, _NULL)
    _LENGTH.pack_into(out, start - _LENGTH.size, len(value))
    seal_message(out, magic, offset, codec_id, timestamp)
    return out
