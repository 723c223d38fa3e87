"""Compiled loops over the rows and records of V2 batches: flat arrays in, flat arrays out.

    kernel          for n rows or records, one call
    write_headers   headers of each row -> the bytes that end its record
    write_records   rows -> records in the batches of their slots, as many rows as fit
    read_records    records -> offsets, timestamps, keys, values; positions of headers
    divide_records  finds where a large batch can be divided
    check_records   checks records that are not to be read now, and finds their times
    scan_headers    finds the keys and values of the headers that read_records found
    copy_spans      gathers spans of bytes into one Arrow data buffer

The loops follow the format table in `record/__init__`. A kernel knows no Arrow, objects or exceptions: it
returns a count, or a negative code that the caller turns into an error.

Every caller keeps to this: `data` arrays are uint8, `bounds` int32 (Arrow's n + 1 offsets), `valid`
uint8 with one byte per row, timestamps and record offsets int64; inputs are read-only, outputs
writable, all contiguous. Any other form would compile every kernel once more. An absent column is an
empty array; so is `valid` if nothing is null. "Key spans" are three arguments: data, bounds, valid.

Positions are uint64, because signed ones cost a test for negative indices at each access. numba turns
a uint64 and a signed number into a float, so constants are named and typed. Passing an array costs
0.2 us per call, so outputs of one type share a two-dimensional array.

The first call of a kernel compiles it; see `jit`.

Source: Kafka clients/.../common/utils/ByteUtils.java, record/DefaultRecord.java.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit, llvm

# Codes that kernels return instead of a count.
TRUNCATED = -1  # a field passes the end of its record or of the batch
BAD_VARINT = -2  # a varint with more bytes than its type allows
BAD_LENGTH = -3  # a record's length does not match the sizes of its fields
BAD_HEADER_COUNT = -4  # negative, more than the record can hold, or more than HEADERS_MAX
BAD_HEADER_KEY = -5  # a header with a null key
TRAILING_BYTES = -6  # bytes after the last record
BAD_OFFSET = -7  # an offset delta that does not grow, or passes the batch's last
RECORD_TOO_LARGE = -8

# Columns of `batches` in write_records.
POSITION, STOP, BASE_TIMESTAMP, MAX_TIMESTAMP, RECORDS_COUNT, END, SLOT, INDEX = range(8)
BATCH_COLUMNS = 8

_0, _1, _2, _3 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_4, _5, _6, _28 = np.uint64(4), np.uint64(5), np.uint64(6), np.uint64(28)
_PAST_END, _TOO_LONG = np.uint64(2**63), np.uint64(2**63 + 1)
_7, _13, _14, _15, _24 = np.uint64(7), np.uint64(13), np.uint64(14), np.uint64(15), np.uint64(24)
_8, _16, _21, _63 = np.uint64(8), np.uint64(16), np.uint64(21), np.uint64(63)
_MORE = np.uint64(0x80)
_TWO_BYTES = np.uint64(1 << 14)
_LOW_32 = np.uint64(0xFFFFFFFF)
# Least and most bytes of a record's attributes, timestamp delta, offset delta, and the lengths of key and
# value: what it takes in addition to its own length, key, value and headers.
_LEAST, _MOST = np.uint64(1 + 1 + 1 + 1 + 1), np.uint64(1 + 10 + 5 + 5 + 5)
_SAMPLED_ROWS = 64
_AHEAD = np.uint64(3072)  # how far ahead _prefetch loads; under 2 KiB or over a page is slower

# Limit per record when headers are read: each takes memory, and 200 million empty ones fit into 37 KB
# of zstd.
HEADERS_MAX = 2**24
_HEADERS_MAX = np.int64(HEADERS_MAX)


# Helpers: compiled into the kernels that call them.

_copy, _prefetch = llvm.copy, llvm.prefetch


def _zigzag(value: Any) -> Any:
    return np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))


def _unzigzag(value: Any) -> Any:
    return np.int64(value >> _1) ^ -np.int64(value & _1)


def _varint_size(value: Any) -> Any:
    if value < _MORE:
        return _1
    if value < _TWO_BYTES:
        return _2
    size = _3
    value = value >> _21
    while value > _0:
        value = value >> _7
        size = size + _1
    return size


def _write_varint(out: Any, position: Any, value: Any) -> Any:
    if value < _MORE:
        out[position] = np.uint8(value)
        return position + _1
    if value < _TWO_BYTES:
        out[position] = np.uint8((value & np.uint64(0x7F)) | _MORE)
        out[position + _1] = np.uint8(value >> _7)
        return position + _2
    while value >= _MORE:
        out[position] = np.uint8((value & np.uint64(0x7F)) | _MORE)
        value = value >> _7
        position = position + _1
    out[position] = np.uint8(value)
    return position + _1


def _read_varint(data: Any, position: Any, end: Any) -> Any:
    """Decode the zigzag varint, an int32, at `position`; return it, and the position after it.

    The position is _PAST_END if the varint passes `end`, and _TOO_LONG if it has more than five bytes; both
    are larger than any end.
    """
    shift, number = _0, _0
    while position < end and shift <= _28:
        byte = np.uint64(data[position])
        number = number | ((byte & np.uint64(0x7F)) << shift)
        position = position + _1
        if byte < _MORE:
            return _unzigzag(number), position
        shift = shift + _7
    return np.int64(0), (_TOO_LONG if shift > _28 else _PAST_END)


def _code(position: Any, otherwise: Any) -> Any:
    """Return the error code for a varint that `_read_varint` could not read.

    `otherwise` is the code unless the varint is too long.
    """
    return BAD_VARINT if position == _TOO_LONG else otherwise


# Kernels.


def write_headers(
    headers_bounds: Any,
    headers_valid: Any,
    key_data: Any,
    key_bounds: Any,
    value_data: Any,
    value_bounds: Any,
    value_valid: Any,
    out: Any,
    out_bounds: Any,
) -> Any:
    """Encode each row's header count and headers, the bytes at the end of its V2 record.

    inputs:  headers_bounds int32[n + 1], headers_valid: which headers a row has; key and value
             spans of all headers.
    outputs: out uint8, large enough; out_bounds int32[n + 1], with a first element that is 0 on
             entry.
    Returns n.
    """
    position = _0
    for row in range(np.uint64(out_bounds.shape[0]) - _1):
        first, end = _0, _0
        if headers_valid.shape[0] == 0 or headers_valid[row] != 0:
            first = np.uint64(headers_bounds[row])
            end = np.uint64(headers_bounds[row + _1])
        position = _write_varint(out, position, (end - first) << _1)
        for header in range(first, end):
            start = np.uint64(key_bounds[header])
            size = np.uint64(key_bounds[header + _1]) - start
            position = _write_varint(out, position, size << _1)
            position = _copy(key_data, start, out, position, size)
            if value_valid.shape[0] == 0 or value_valid[header] != 0:
                start = np.uint64(value_bounds[header])
                size = np.uint64(value_bounds[header + _1]) - start
                position = _write_varint(out, position, size << _1)
                position = _copy(value_data, start, out, position, size)
            else:
                position = _write_varint(out, position, _1)
        out_bounds[row + _1] = np.int64(position)
    return np.int64(out_bounds.shape[0] - 1)


def _row_writer(*, is_plain: bool, is_scattered: bool = False) -> Any:
    """Return a kernel that writes rows as write_records says.

    Plain rows have no nulls and no headers, and their `batch_of` is left alone. Scattered ones have a key
    and a value, and seldom the slot of the row before: testing for that costs more than it saves.
    """

    def write_rows(
        slots: Any,
        first_row: Any,
        timestamps: Any,
        key_data: Any,
        key_bounds: Any,
        key_valid: Any,
        value_data: Any,
        value_bounds: Any,
        value_valid: Any,
        headers_data: Any,
        headers_bounds: Any,
        memory: Any,
        batches: Any,
        current: Any,
        spares: Any,
        batch_of: Any,
    ) -> Any:
        has_slots = slots.shape[0] > 0
        has_key = is_scattered or key_bounds.shape[0] > 0
        has_value = is_scattered or value_bounds.shape[0] > 0
        keys_valid = is_plain or key_valid.shape[0] == 0
        values_valid = is_plain or value_valid.shape[0] == 0
        has_headers = not is_plain and headers_bounds.shape[0] > 0
        with_batch_of = not is_plain and batch_of.shape[0] > 0
        rows_count, spares_count = np.uint64(timestamps.shape[0]), np.uint64(spares.shape[0])
        row, slot, spare = np.uint64(first_row), _0, _0
        while row < rows_count:
            if has_slots:
                slot = np.uint64(slots[row])
            if current[slot] < 0:
                if spare == spares_count:
                    break
                current[slot] = spares[spare]
                batches[np.uint64(current[slot]) * _8 + _6] = np.int64(slot)
                spare = spare + _1
            batch = np.uint64(current[slot]) * _8
            position, stop = np.uint64(batches[batch]), np.uint64(batches[batch + _1])
            base_timestamp, max_timestamp = batches[batch + _2], batches[batch + _3]
            offset_delta = np.uint64(batches[batch + _4])
            is_full = False
            while True:
                timestamp = timestamps[row]
                if offset_delta == _0:
                    base_timestamp = timestamp
                timestamp_delta = _zigzag(timestamp - base_timestamp)
                # A length of 1 is zigzag for -1: null.
                key_start, key_size, key_length = _0, _0, _1
                if has_key and (keys_valid or key_valid[row] != 0):
                    key_start = np.uint64(key_bounds[row])
                    key_size = np.uint64(key_bounds[row + _1]) - key_start
                    key_length = key_size << _1
                value_start, value_size, value_length = _0, _0, _1
                if has_value and (values_valid or value_valid[row] != 0):
                    value_start = np.uint64(value_bounds[row])
                    value_size = np.uint64(value_bounds[row + _1]) - value_start
                    value_length = value_size << _1
                headers_start, headers_size = _0, _1
                if has_headers:
                    headers_start = np.uint64(headers_bounds[row])
                    headers_size = np.uint64(headers_bounds[row + _1]) - headers_start

                # The exact size is needed only if the largest possible one might not fit, or if its
                # own varint would be longer than that of the smallest possible one.
                data_size = key_size + value_size + headers_size
                length_size = _varint_size((data_size + _LEAST) << _1)
                most = data_size + _MOST
                if position + length_size + most > stop or _varint_size(most << _1) != length_size:
                    size = (
                        data_size
                        + _1
                        + _varint_size(timestamp_delta)
                        + _varint_size(offset_delta << _1)
                        + _varint_size(key_length)
                        + _varint_size(value_length)
                    )
                    length_size = _varint_size(size << _1)
                    # A first record may be larger than later ones.
                    end = np.uint64(batches[batch + _5]) if offset_delta == _0 else stop
                    if position + length_size + size > end:
                        is_full = True
                        break

                start = position + length_size
                memory[start] = np.uint8(0)
                end = _write_varint(memory, start + _1, timestamp_delta)
                end = _write_varint(memory, end, offset_delta << _1)
                end = _write_varint(memory, end, key_length)
                end = _copy(key_data, key_start, memory, end, key_size)
                end = _write_varint(memory, end, value_length)
                _prefetch(value_data, value_start + _AHEAD)
                end = _copy(value_data, value_start, memory, end, value_size)
                if has_headers:
                    end = _copy(headers_data, headers_start, memory, end, headers_size)
                else:
                    memory[end] = np.uint8(0)
                    end = end + _1
                _write_varint(memory, position, (end - start) << _1)

                if with_batch_of:
                    batch_of[row] = batches[batch + _7]
                position = end
                max_timestamp = max(max_timestamp, timestamp)
                offset_delta = offset_delta + _1
                row = row + _1
                if is_scattered or row == rows_count or position >= stop:
                    break
                if has_slots and np.uint64(slots[row]) != slot:
                    break
            batches[batch] = np.int64(position)
            batches[batch + _2], batches[batch + _3] = base_timestamp, max_timestamp
            batches[batch + _4] = np.int64(offset_delta)
            if is_full and offset_delta == _0:
                break
            if is_full or position >= stop:
                current[slot] = -1
        return np.int64(row)

    return write_rows


write_any_rows = _row_writer(is_plain=False)
write_plain_rows = _row_writer(is_plain=True)
write_scattered_rows = _row_writer(is_plain=True, is_scattered=True)


def read_records(
    data: Any,
    sections: Any,
    numbers: Any,
    headers: Any,
    bounds: Any,
    valid: Any,
    keys: Any,
    values: Any,
    progress: Any,
) -> Any:
    """Decode the V2 records that fill each of some sections of `data` exactly, into flat arrays.

    inputs:  data uint8; sections int64[k, 6]: for each batch the start and end of its uncompressed
             records in data, records count, base offset, last offset delta, base timestamp.
    outputs: for the n records of all sections:
             numbers int64[2, n], offset and timestamp;
             headers int32[2, n], positions in data of the first header and of the record's end, or
             int32[2, 0] if not wanted; bounds int32[3, n + 1], running sums of key sizes, value
             sizes, and header counts if wanted, with a first element that is 0 on entry;
             valid uint8[2, n], of key and value;
             keys, values uint8, as large as all sections together, or empty if not wanted;
             progress int64[5], zero before the first call, continued from call to call: records,
             bytes of keys and bytes of values so far; section and position in it of what a
             negative code is about.
    Returns the number of records read so far, or a negative code.
    """
    row, keys_size = np.uint64(progress[_0]), np.uint64(progress[_1])
    values_size = np.uint64(progress[_2])
    with_keys, with_values = keys.shape[0] > 0, values.shape[0] > 0
    with_headers = headers.shape[1] > 0
    for section in range(np.uint64(sections.shape[0])):
        start = np.uint64(sections[section, _0])
        end = np.uint64(sections[section, _1])
        base_offset = sections[section, _3]
        last_offset_delta = sections[section, _4]
        base_timestamp = sections[section, _5]
        previous = np.int64(-1)
        position = start
        progress[_3] = np.int64(section)
        for _ in range(np.uint64(sections[section, _2])):
            progress[_4] = np.int64(position - start)
            number, position = _read_varint(data, position, end)
            if position > end or number < 0 or np.uint64(number) > end - position:
                return _code(position, TRUNCATED)
            record_end = position + np.uint64(number)
            _prefetch(data, position + _AHEAD)
            # Inlined by hand: around a call with a loop of ten turns numba counts references.
            position = position + _1
            shift, delta, byte = _0, _0, _MORE
            while byte >= _MORE:
                if position >= record_end:
                    return TRUNCATED
                if shift > _63:
                    return BAD_VARINT
                byte = np.uint64(data[position])
                delta = delta | ((byte & np.uint64(0x7F)) << shift)
                shift = shift + _7
                position = position + _1
            numbers[_1, row] = base_timestamp + _unzigzag(delta)
            number, position = _read_varint(data, position, record_end)
            if position > record_end:
                return _code(position, TRUNCATED)
            if number <= previous or number > last_offset_delta:
                return BAD_OFFSET
            previous = number
            numbers[_0, row] = base_offset + number

            number, position = _read_varint(data, position, record_end)
            size = np.uint64(max(number, np.int64(0)))
            if position > record_end or size > record_end - position:
                return _code(position, TRUNCATED)
            valid[_0, row] = number >= 0
            if with_keys:
                _copy(data, position, keys, keys_size, size)
            keys_size = keys_size + size
            bounds[_0, row + _1] = np.int64(keys_size)

            number, position = _read_varint(data, position + size, record_end)
            size = np.uint64(max(number, np.int64(0)))
            if position > record_end or size > record_end - position:
                return _code(position, TRUNCATED)
            valid[_1, row] = number >= 0
            if with_values:
                _copy(data, position, values, values_size, size)
            values_size = values_size + size
            bounds[_1, row + _1] = np.int64(values_size)

            # A header takes two bytes or more here, and 17 bytes of memory once it is found.
            number, position = _read_varint(data, position + size, record_end)
            if position > record_end:
                return _code(position, TRUNCATED)
            if number < 0 or np.uint64(number) > (record_end - position) >> _1:
                return BAD_HEADER_COUNT
            if number == 0 and position != record_end:
                return BAD_LENGTH
            if with_headers:
                if number > _HEADERS_MAX:
                    return BAD_HEADER_COUNT
                headers[_0, row] = np.int64(position)
                headers[_1, row] = np.int64(record_end)
                bounds[_2, row + _1] = bounds[_2, row] + number
            position = record_end
            row = row + _1
        if position != end:
            progress[_4] = np.int64(position - start)
            return TRAILING_BYTES
    progress[_0], progress[_1] = np.int64(row), np.int64(keys_size)
    progress[_2] = np.int64(values_size)
    return np.int64(row)


def divide_records(data: Any, count: Any, run_bytes: Any, runs: Any, fault: Any) -> Any:
    """Divide the V2 records that fill `data` into runs of about `run_bytes`, reading only their lengths.

    inputs:  data uint8; count, of the records; run_bytes: a run ends with the record that brings it
             to this many bytes or more.
    outputs: runs int64[2, k], with room for one run per run_bytes and one more: position after the
             run's last record, number of records; fault int64[1]: position of what a negative code
             is about.
    Returns the number of runs, or a negative code.
    """
    position, end, start, run = _0, np.uint64(data.shape[0]), _0, _0
    run_bytes, first, count = np.uint64(run_bytes), _0, np.uint64(count)
    for row in range(count):
        fault[_0] = np.int64(position)
        number, position = _read_varint(data, position, end)
        if position > end or number < 0 or np.uint64(number) > end - position:
            return _code(position, TRUNCATED)
        position = position + np.uint64(number)
        if position - start >= run_bytes or row + _1 == count:
            runs[_0, run], runs[_1, run] = np.int64(position), np.int64(row + _1 - first)
            start, first, run = position, row + _1, run + _1
    if position != end:
        fault[_0] = np.int64(position)
        return TRAILING_BYTES
    return np.int64(run)


def check_records(data: Any, count: Any, record_bytes_max: Any, facts: Any) -> Any:
    """Check V2 records as read_records and scan_headers do, but keep nothing.

    Offset deltas are 0, 1, 2 ... The records may come in pieces: a piece starts with the record that was
    not whole in the one before.

    inputs:  data uint8, a piece; count, of the batch's records; record_bytes_max, of one record.
    outputs: facts int64[5], continued from call to call: number of records so far; base timestamp;
             largest timestamp, and the smallest one that is not -1, so far; position after the last
             whole record, or of the record that a negative code is about.
    Returns the number of records so far, or a negative code.
    """
    position, end, row = _0, np.uint64(data.shape[0]), facts[_0]
    base_timestamp, largest, smallest = facts[_1], facts[_2], facts[_3]
    facts[_4] = 0
    while row < count:
        number, at = _read_varint(data, position, end)
        if at == _TOO_LONG:
            return BAD_VARINT
        if at > end:
            break
        if number < 0:
            return TRUNCATED
        if number > record_bytes_max:
            return RECORD_TOO_LARGE
        if np.uint64(number) > end - at:
            break
        record_end = at + np.uint64(number)
        at = at + _1
        shift, delta, byte = _0, _0, _MORE
        while byte >= _MORE:
            if at >= record_end:
                return TRUNCATED
            if shift > _63:
                return BAD_VARINT
            byte = np.uint64(data[at])
            delta = delta | ((byte & np.uint64(0x7F)) << shift)
            shift = shift + _7
            at = at + _1
        timestamp = base_timestamp + _unzigzag(delta)
        number, at = _read_varint(data, at, record_end)
        if at > record_end:
            return _code(at, TRUNCATED)
        if number != row:
            return BAD_OFFSET
        for _ in range(2):
            number, at = _read_varint(data, at, record_end)
            size = np.uint64(max(number, np.int64(0)))
            if at > record_end or size > record_end - at:
                return _code(at, TRUNCATED)
            at = at + size
        number, at = _read_varint(data, at, record_end)
        if at > record_end:
            return _code(at, TRUNCATED)
        if number < 0 or np.uint64(number) > (record_end - at) >> _1 or number > _HEADERS_MAX:
            return BAD_HEADER_COUNT
        for _ in range(np.uint64(number)):
            number, at = _read_varint(data, at, record_end)
            if at > record_end:
                return _code(at, TRUNCATED)
            if number < 0:
                return BAD_HEADER_KEY
            if np.uint64(number) > record_end - at:
                return TRUNCATED
            number, at = _read_varint(data, at + np.uint64(number), record_end)
            size = np.uint64(max(number, np.int64(0)))
            if at > record_end or size > record_end - at:
                return _code(at, TRUNCATED)
            at = at + size
        if at != record_end:
            return BAD_LENGTH
        largest = max(largest, timestamp)
        if timestamp != -1:
            smallest = min(smallest, timestamp)
        position, row = record_end, row + np.int64(1)
        facts[_0], facts[_4] = row, np.int64(position)
    facts[_2], facts[_3] = largest, smallest
    return row


def scan_headers(
    data: Any,
    headers: Any,
    headers_bounds: Any,
    positions: Any,
    bounds: Any,
    valid: Any,
    fault: Any,
) -> Any:
    """Find the header keys and values of the V2 records that `read_records` has read.

    inputs:  headers and bounds[2] of read_records.
    outputs: for all m headers: positions int32[2, m], of header key and header value;
             bounds int32[2, m + 1], with a first element that is 0 on entry; valid uint8[m], of the
             value; fault int64[1]: the record that a negative code is about.
    Returns m, or a negative code.
    """
    rows = np.uint64(headers.shape[1])
    for row in range(rows):
        fault[0] = np.int64(row)
        position = np.uint64(headers[_0, row])
        record_end = np.uint64(headers[_1, row])
        for header in range(np.uint64(headers_bounds[row]), np.uint64(headers_bounds[row + _1])):
            number, position = _read_varint(data, position, record_end)
            if position > record_end:
                return _code(position, TRUNCATED)
            if number < 0:
                return BAD_HEADER_KEY
            size = np.uint64(number)
            if size > record_end - position:
                return TRUNCATED
            positions[_0, header] = np.int64(position)
            bounds[_0, header + _1] = bounds[_0, header] + number
            number, position = _read_varint(data, position + size, record_end)
            size = np.uint64(max(number, np.int64(0)))
            if position > record_end or size > record_end - position:
                return _code(position, TRUNCATED)
            positions[_1, header] = np.int64(position)
            valid[header] = number >= 0
            bounds[_1, header + _1] = bounds[_1, header] + np.int64(size)
            position = position + size
        if headers_bounds[row + _1] > headers_bounds[row] and position != record_end:
            return BAD_LENGTH
    return np.int64(headers_bounds[rows])


def copy_spans(data: Any, positions: Any, bounds: Any, out: Any) -> Any:
    """Copy spans of bytes one after the other.

    inputs:  data uint8; positions int32[n]; bounds int32[n + 1], running sums of their sizes.
    outputs: out uint8: span i of data goes to out[bounds[i] : bounds[i + 1]].
    Returns n.
    """
    for i in range(np.uint64(positions.shape[0])):
        start = np.uint64(bounds[i])
        size = np.uint64(bounds[i + _1]) - start
        _copy(data, np.uint64(positions[i]), out, start, size)
    return np.int64(positions.shape[0])


def write_records(
    slots: Any,
    first_row: int,
    timestamps: Any,
    key_data: Any,
    key_bounds: Any,
    key_valid: Any,
    value_data: Any,
    value_bounds: Any,
    value_valid: Any,
    headers_data: Any,
    headers_bounds: Any,
    memory: Any,
    batches: Any,
    current: Any,
    spares: Any,
    batch_of: Any,
) -> int:
    """Append rows in order as V2 records, each to the batch of its slot, while they fit.

    Runs the kernel for rows of this kind, so that others need not be compiled.

    inputs:  slots int32[n], or empty if all rows have slot 0; first_row, where to start;
             timestamps int64[n]; key and value spans; headers as written by write_headers, or
             empty if no row has any.
    outputs: memory uint8, which holds all batches; batches int64[8 k], eight numbers for each:
             POSITION of the next record, STOP that no record but the first may pass,
             BASE_TIMESTAMP (set by the first record), MAX_TIMESTAMP, RECORDS_COUNT, END that no
             record may pass, SLOT, INDEX; current int64[slots], the batch that takes a slot's
             rows, negative if there is none or it is full; batch_of int32[n] or empty, the INDEX
             of the batch that each row went to.
    A slot without a batch that has room takes the first of `spares`, int64[m] numbers of empty
    batches, and sets its SLOT.
    Returns the first row that was not written: n, or a row whose slot found no spare batch, or one
    that passes the END of an empty batch.
    """
    if key_valid.shape[0] or value_valid.shape[0] or headers_bounds.shape[0] or batch_of.shape[0]:
        kernel = write_any_rows
    elif key_bounds.shape[0] and value_bounds.shape[0] and _are_scattered(slots, first_row):
        kernel = write_scattered_rows
    else:
        kernel = write_plain_rows
    row: int = kernel(
        slots, first_row, timestamps, key_data, key_bounds, key_valid,
        value_data, value_bounds, value_valid, headers_data, headers_bounds, memory, batches,
        current, spares, batch_of,
    )  # fmt: skip
    return row


def _are_scattered(slots: Any, first_row: int) -> bool:
    """Return True if, in a sample, more than one in four rows has another slot than the row before."""
    sample = slots[first_row : first_row + _SAMPLED_ROWS]
    changes = np.count_nonzero(sample[1:] != sample[:-1])
    return bool(changes * 4 > _SAMPLED_ROWS)


# For `jit`: in the order in which they call each other.
HELPERS = (
    "_copy",
    "_prefetch",
    "_zigzag",
    "_unzigzag",
    "_varint_size",
    "_write_varint",
    "_read_varint",
    "_code",
)


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i32, i64 = jit.array("u1"), jit.array("i4"), jit.array("i8")
    out8, out32 = jit.array("u1", 1, out=True), jit.array("i4", 1, out=True)
    out64 = jit.array("i8", 2, out=True)
    found8, found32, found64 = (np.zeros((2, 0), t) for t in (np.uint8, np.int32, np.int64))
    bounds, facts = np.zeros((3, 1), np.int32), np.zeros(5, np.int64)
    sections = np.zeros((0, 6), np.int64)
    spans = (u8, i32, u8)
    rows = (i32, 0, i64, *spans, *spans, u8, i32, out8, out64, out64, out64, out32[:0])
    return {
        "write_headers": (i32, u8, u8, i32, *spans, out8, out32),
        "write_any_rows": rows,
        "write_plain_rows": rows,
        "write_scattered_rows": rows,
        "read_records": (u8, sections, found64, found32, bounds, found8, out8, out8, facts),
        "divide_records": (u8, 0, 1, found64, out64),
        "check_records": (u8, 0, 1, facts),
        "scan_headers": (u8, found32, out32, found32, bounds, out8, out64),
        "copy_spans": (u8, out32[:0], out32, out8),
    }


def _rows_us(_slots: Any, first_row: int, timestamps: Any, *_others: Any) -> int:
    return 20 * int(timestamps.shape[0] - first_row)


# For `jit`. A record that is checked may have any number of headers, of two bytes each: hence its bytes count.
PLAIN_US: jit.Estimates = {
    "write_headers": lambda *given: 5 * given[-1].shape[0] + 10 * given[3].shape[0],
    "write_any_rows": _rows_us,
    "write_plain_rows": _rows_us,
    "write_scattered_rows": _rows_us,
    "read_records": lambda _data, sections, *_: 35 * int(sections[:, 2].sum()),
    "check_records": lambda data, count, *_: 25 * max(0, count) + data.shape[0] // 2,
    "scan_headers": lambda _data, headers, bounds, *_: 5 * headers.shape[1] + 15 * int(bounds[-1]),
    "copy_spans": lambda _data, positions, *_: positions.shape[0],
}

load = jit.compile_on_first_call(globals(), HELPERS, examples, PLAIN_US)
