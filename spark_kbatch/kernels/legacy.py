"""Compiled loops over the messages of the formats V0 and V1.

    kernel          for n messages, one call
    scan_messages   finds where a run of messages of one kind ends, with its offsets and times
    check_messages  checks CRCs
    read_messages   messages, with their CRCs checked -> offsets, timestamps, keys, values
    write_messages  timestamps, keys, values -> messages with offsets 0, 1, 2 ...
    assign_offsets  sets consecutive offsets in messages that lie back to back
    stamp_messages  sets the append time in messages of V1

The loops follow the format table in `record/legacy`. Arguments have the forms that `records` describes.
These kernels are compiled separately because few logs need them.

CRC-32 is computed eight bytes at a time with eight tables: messages are short, and calling a library for
each of them would take longer than everything else.

Source: Kafka clients/.../record/LegacyRecord.java, AbstractLegacyRecordBatch.java; M. Kounavis, F.
Berry, A Systematic Approach to Building High Performance Software-based CRC Generators (slicing by 8).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit, llvm

# Codes that read_messages returns instead of a count.
TRUNCATED = -1  # a message passes the end of its section
BAD_CRC = -2
BAD_LENGTH = -3  # a message's size does not match the lengths of its key and value
BAD_OFFSET = -4  # an offset that is not larger than the one before

_0, _1, _2, _3, _4, _5, _6, _7 = (np.uint64(number) for number in range(8))
_8, _12, _14, _16, _17, _18 = (np.uint64(number) for number in (8, 12, 14, 16, 17, 18))
_22, _24, _32 = np.uint64(22), np.uint64(24), np.uint64(32)
_TO_INT64 = np.int64(32)
_LOW_8, _LOW_32 = np.uint64(0xFF), np.uint64(0xFFFFFFFF)


def _crc_tables() -> np.ndarray[Any, Any]:
    """Return the CRC-32 tables for eight bytes at a time: a byte's effect when 0 to 7 bytes follow it.

    They are one uint64[2048].
    """
    first = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        first.append(value)
    tables = [first]
    for _ in range(7):
        tables.append([first[crc & 0xFF] ^ crc >> 8 for crc in tables[-1]])
    return np.array(tables, np.uint64).reshape(-1)


_CRC = _crc_tables()
_CRC_1, _CRC_2, _CRC_3, _CRC_4 = (np.uint64(256 * table) for table in range(1, 5))
_CRC_5, _CRC_6, _CRC_7 = (np.uint64(256 * table) for table in range(5, 8))

# Helpers: compiled into the kernels that call them.

_copy = llvm.copy


def _uint32(data: Any, position: Any) -> Any:
    return (
        (np.uint64(data[position]) << _24)
        | (np.uint64(data[position + _1]) << _16)
        | (np.uint64(data[position + _2]) << _8)
        | np.uint64(data[position + _3])
    )


def _int32(data: Any, position: Any) -> Any:
    return np.int64(_uint32(data, position) << _32) >> _TO_INT64


def _int64(data: Any, position: Any) -> Any:
    return np.int64((_uint32(data, position) << _32) | _uint32(data, position + _4))


def _write_uint32(out: Any, position: Any, number: Any) -> Any:
    out[position] = np.uint8((number >> _24) & _LOW_8)
    out[position + _1] = np.uint8((number >> _16) & _LOW_8)
    out[position + _2] = np.uint8((number >> _8) & _LOW_8)
    out[position + _3] = np.uint8(number & _LOW_8)
    return position + _4


def _write_uint64(out: Any, position: Any, number: Any) -> Any:
    position = _write_uint32(out, position, number >> _32)
    return _write_uint32(out, position, number & _LOW_32)


def _crc32(data: Any, position: Any, end: Any) -> Any:
    crc = _LOW_32
    while end - position >= _8:
        low = crc ^ (
            np.uint64(data[position])
            | (np.uint64(data[position + _1]) << _8)
            | (np.uint64(data[position + _2]) << _16)
            | (np.uint64(data[position + _3]) << _24)
        )
        crc = (
            _CRC[_CRC_7 + (low & _LOW_8)]
            ^ _CRC[_CRC_6 + ((low >> _8) & _LOW_8)]
            ^ _CRC[_CRC_5 + ((low >> _16) & _LOW_8)]
            ^ _CRC[_CRC_4 + (low >> _24)]
            ^ _CRC[_CRC_3 + np.uint64(data[position + _4])]
            ^ _CRC[_CRC_2 + np.uint64(data[position + _5])]
            ^ _CRC[_CRC_1 + np.uint64(data[position + _6])]
            ^ _CRC[np.uint64(data[position + _7])]
        )
        position = position + _8
    while position < end:
        crc = _CRC[(crc ^ np.uint64(data[position])) & _LOW_8] ^ (crc >> _8)
        position = position + _1
    return crc ^ _LOW_32


# Kernels.


def scan_messages(data: Any, stop: Any, facts: Any) -> Any:
    """Extend a run of V0 or V1 messages of one kind while they are whole and their offsets grow.

    inputs:  data uint8; stop, a position in it that no message passes.
    outputs: facts int64[8], continued from call to call: position after the last message, count,
             last offset, largest timestamp (V1), offset of the first message that has it; then the
             magic that all have, and the attributes that they have in the bits of a mask.
    Returns the count.
    """
    stop = np.uint64(stop)
    position, count = np.uint64(facts[_0]), facts[_1]
    last_offset, max_timestamp = facts[_2], facts[_3]
    magic, attributes, mask = facts[_5], facts[_6], facts[_7]
    size_min = _14 if magic == 0 else _22
    while stop - position >= _12 + size_min:
        size = _uint32(data, position + _8)
        if size < size_min or size > stop - position - _12:
            break
        offset = _int64(data, position)
        if (
            offset <= last_offset
            or np.int64(data[position + _16]) != magic
            or np.int64(data[position + _17]) & mask != attributes
        ):
            break
        if magic != 0:
            timestamp = _int64(data, position + _18)
            if timestamp > max_timestamp:
                max_timestamp, facts[_4] = timestamp, offset
        last_offset = offset
        count += 1
        position = position + _12 + size
    facts[_0], facts[_1] = np.int64(position), count
    facts[_2], facts[_3] = last_offset, max_timestamp
    return count


def check_messages(data: Any, start: Any, end: Any) -> Any:
    """Check the CRCs of whole V0 or V1 messages that lie back to back in data[start:end].

    inputs:  data uint8.
    Returns the position of the first message with a wrong CRC, or `end`.
    """
    position, end = np.uint64(start), np.uint64(end)
    while position < end:
        message_end = position + _12 + _uint32(data, position + _8)
        if _crc32(data, position + _16, message_end) != _uint32(data, position + _12):
            break
        position = message_end
    return np.int64(position)


def read_messages(
    data: Any,
    sections: Any,
    numbers: Any,
    bounds: Any,
    valid: Any,
    keys: Any,
    values: Any,
    progress: Any,
) -> Any:
    """Decode the uncompressed V0 or V1 messages that fill each of some sections of `data` exactly.

    inputs:  data uint8; sections int64[k, 4]: start and end in data, number of messages, and what is
             added to the offsets in the messages.
    outputs: for the n messages of all sections:
             numbers int64[2, n], offset and timestamp, -1 where the format has none;
             bounds int32[2, n + 1], running sums of key sizes and value sizes, with a first element
             that is 0 on entry; valid uint8[2, n], of key and value;
             keys, values uint8, as large as all sections together, or empty if not wanted;
             progress int64[2]: section and position in it of what a negative code is about.
    Returns n, or a negative code.
    """
    row, keys_size, values_size = _0, _0, _0
    with_keys, with_values = keys.shape[0] > 0, values.shape[0] > 0
    for section in range(np.uint64(sections.shape[0])):
        start = np.uint64(sections[section, _0])
        end = np.uint64(sections[section, _1])
        shift = sections[section, _3]
        previous = np.int64(-1)
        position = start
        progress[_0] = np.int64(section)
        for _ in range(np.uint64(sections[section, _2])):
            progress[_1] = np.int64(position - start)
            if end - position < _12 + _14:
                return TRUNCATED
            size = _uint32(data, position + _8)
            magic = data[position + _16]
            if size > end - position - _12:
                return TRUNCATED
            if size < (_14 if magic == 0 else _22):
                return BAD_LENGTH
            message_end = position + _12 + size
            if _crc32(data, position + _16, message_end) != _uint32(data, position + _12):
                return BAD_CRC
            offset = _int64(data, position)
            if offset <= previous:
                return BAD_OFFSET
            previous = offset
            numbers[_0, row] = offset + shift
            position = position + _18
            timestamp = np.int64(-1)
            if magic != 0:
                timestamp = _int64(data, position)
                position = position + _8
            numbers[_1, row] = timestamp

            number = _int32(data, position)
            size = np.uint64(max(number, np.int64(0)))
            position = position + _4
            if size > message_end - position - _4:
                return BAD_LENGTH
            valid[_0, row] = number >= 0
            if with_keys:
                _copy(data, position, keys, keys_size, size)
            keys_size = keys_size + size
            bounds[_0, row + _1] = np.int64(keys_size)
            position = position + size

            number = _int32(data, position)
            size = np.uint64(max(number, np.int64(0)))
            position = position + _4
            if size != message_end - position:
                return BAD_LENGTH
            valid[_1, row] = number >= 0
            if with_values:
                _copy(data, position, values, values_size, size)
            values_size = values_size + size
            bounds[_1, row + _1] = np.int64(values_size)
            position = message_end
            row = row + _1
        if position != end:
            progress[_1] = np.int64(position - start)
            return TRUNCATED
    return np.int64(row)


def write_messages(
    magic: Any,
    timestamps: Any,
    key_data: Any,
    key_bounds: Any,
    key_valid: Any,
    value_data: Any,
    value_bounds: Any,
    value_valid: Any,
    out: Any,
    largest: Any,
) -> Any:
    """Encode rows as plain messages of format `magic`, V0 or V1, with offsets 0, 1, 2 ...

    inputs:  timestamps int64[n]; key and value spans.
    outputs: out uint8, large enough; largest int64[1], size in bytes of the largest message.
    Returns the number of bytes written.
    """
    has_key, has_value = key_bounds.shape[0] > 0, value_bounds.shape[0] > 0
    keys_valid, values_valid = key_valid.shape[0] == 0, value_valid.shape[0] == 0
    end = _0
    for row in range(np.uint64(timestamps.shape[0])):
        start = end
        position = start + _16
        out[position] = np.uint8(magic)
        out[position + _1] = np.uint8(0)
        position = position + _2
        if magic != 0:
            position = _write_uint64(out, position, np.uint64(timestamps[row]))
        if has_key and (keys_valid or key_valid[row] != 0):
            key_start = np.uint64(key_bounds[row])
            size = np.uint64(key_bounds[row + _1]) - key_start
            position = _write_uint32(out, position, size)
            position = _copy(key_data, key_start, out, position, size)
        else:
            position = _write_uint32(out, position, _LOW_32)
        if has_value and (values_valid or value_valid[row] != 0):
            value_start = np.uint64(value_bounds[row])
            size = np.uint64(value_bounds[row + _1]) - value_start
            position = _write_uint32(out, position, size)
            position = _copy(value_data, value_start, out, position, size)
        else:
            position = _write_uint32(out, position, _LOW_32)
        end = position
        position = _write_uint64(out, start, row)
        position = _write_uint32(out, position, end - start - _12)
        _write_uint32(out, position, _crc32(out, start + _16, end))
        largest[_0] = max(largest[_0], np.int64(end - start))
    return np.int64(end)


def assign_offsets(out: Any, end: Any, offset: Any) -> Any:
    """Set consecutive offsets from `offset` on in the whole V0 or V1 messages in out[:end].

    outputs: out uint8; the CRC of a message does not cover its offset.
    Returns the number of messages.
    """
    position, end, count = _0, np.uint64(end), _0
    while position < end:
        _write_uint64(out, position, np.uint64(offset) + count)
        position = position + _12 + _uint32(out, position + _8)
        count = count + _1
    return np.int64(count)


def stamp_messages(out: Any, end: Any, timestamp: Any) -> Any:
    """Set one log append time in all of the whole V1 messages in out[:end].

    outputs: out uint8: timestamps, their type, and the CRCs, which cover both.
    Returns the number of messages.
    """
    position, end, count = _0, np.uint64(end), _0
    while position < end:
        message_end = position + _12 + _uint32(out, position + _8)
        out[position + _17] = np.uint8(np.uint64(out[position + _17]) | _8)
        _write_uint64(out, position + _18, np.uint64(timestamp))
        _write_uint32(out, position + _12, _crc32(out, position + _16, message_end))
        position = message_end
        count = count + _1
    return np.int64(count)


# For `jit`: in the order in which they call each other.
HELPERS = (
    "_copy",
    "_uint32",
    "_int32",
    "_int64",
    "_write_uint32",
    "_write_uint64",
    "_crc32",
)


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    data, bounds, times = jit.array("u1"), jit.array("i4"), jit.array("i8")
    out8, sections = np.zeros(0, np.uint8), np.zeros((0, 4), np.int64)
    numbers, sums = np.zeros((2, 0), np.int64), np.zeros((2, 1), np.int32)
    valid, facts = np.zeros((2, 0), np.uint8), np.zeros(8, np.int64)
    return {
        "scan_messages": (data, 0, facts),
        "check_messages": (data, 0, 0),
        "read_messages": (data, sections, numbers, sums, valid, out8, out8, facts[:2]),
        "write_messages": (0, times, data, bounds, data, data, bounds, data, out8, facts[:1]),
        "assign_offsets": (out8, 0, 0),
        "stamp_messages": (out8, 0, 0),
    }


load = jit.compile_on_first_call(globals(), HELPERS, examples)
