"""Writing of message sets, Kafka's formats V0 and V1, for topics with an older message format.

Producers build only V2 batches:

    down_convert      V2 batch -> messages with offsets 0, 1, 2 ...    for the transport
    assign_offsets    those -> with their offsets in the log           for the leader

A V0 wrapper is compressed again at the codec's default level, so its size may change by a few bytes.

Source: Kafka clients/.../record/RecordsUtil.java, MemoryRecordsBuilder.java;
storage/.../log/LogValidator.java.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from spark_kbatch.errors import InvalidRecordError
from spark_kbatch.kernels import legacy as legacy_kernels
from spark_kbatch.record import columns as arrow
from spark_kbatch.record import compression
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.codec import decode
from spark_kbatch.record.columns import Columns
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    MESSAGE_OVERHEADS,
    NO_TIMESTAMP,
    BatchHeader,
    seal_message,
    unpack,
)
from spark_kbatch.record.legacy import unwrap

_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_NULL = -1


class MessageSet(NamedTuple):
    """V0 or V1 messages that lie back to back: plain ones, or one compressed wrapper."""

    data: memoryview
    largest: int  # size in bytes of the largest message, which max.message.bytes limits


def down_convert(batch: Buffer, magic: int, *, level: int | None = None) -> MessageSet:
    """Convert a V2 batch to messages of an older format, V0 or V1 as `magic` says, at offsets 0, 1, 2 ...

    Args:
        batch: only read. Its codec stays; its timestamps are dropped for V0.
        level: of the codec.

    Raises:
        InvalidRecordError: a record has headers, which the format does not have.
        ConfigError: the codec is zstd, which the format does not have.
    """
    header = unpack(batch)
    rows = decode(batch)
    if rows.column("headers").null_count < rows.num_rows:
        raise InvalidRecordError(
            f"a record has headers, which its topic's message format V{magic} does not support; leave them "
            "out, or write to a topic whose message.format.version is 0.11.0 or later"
        )
    columns = arrow.columns(
        rows.num_rows,
        key=rows.column("key"),
        value=rows.column("value"),
        timestamps=arrow.timestamps_ms(rows.column("timestamp"), rows.num_rows, NO_TIMESTAMP),
        headers=None,
    )
    return _encode(
        columns, magic, codec=header.codec, level=level, max_timestamp=header.max_timestamp
    )


def assign_offsets(
    data: memoryview, header: BatchHeader, base_offset: int, *, append_time_ms: int | None = None
) -> tuple[memoryview, BatchHeader]:
    """Assign offsets from `base_offset` on to V0 or V1 messages: plain ones, or a wrapper made by `down_convert`.

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


def _encode(
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
