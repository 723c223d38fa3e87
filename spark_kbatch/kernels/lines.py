r"""The compiled loop that writes records as lines of text or JSON, with base64 for what is not UTF-8.

    kernel          for n records, one call
    write_lines     offsets, timestamps, keys, values, headers -> bytes, record by record

What a record becomes is a list of parts: a literal, a number, a time, a key, a value, headers. Each has a style:

    style    text                                                       null     headers
    RAW      as it is                                                            k=v,k=v
    FIELD    printable: \t \n \r \\ \x1b \xff \u202e \U000e0001             \N       k=v, k=v; - for none
    JSON     a string, or {"base64": "..."} for what is not UTF-8       null     [["k", "v"], ...]

`terminal.field` and `terminal.to_json` do the same for one text. Arguments have the forms that `records`
describes. This kernel is compiled separately because only the command line needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit, llvm

# Kinds of parts: the first column of `parts`. The second and third are a literal's start and end, or the style.
LITERAL, OFFSET, TIME_MS, TIME, KEY, VALUE, HEADERS, KEY_SIZE, VALUE_SIZE = range(9)
RAW, FIELD, JSON = range(3)

# Times that have a date with a year of four digits.
_TIME_MIN, _TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
_NO_TIME = -1
_DAY_MS = 86_400_000

# The most bytes that a byte of text becomes, and that a part takes beside its text.
_BYTES_PER_BYTE, _BYTES_PER_PART = np.uint64(6), np.uint64(64)

_0, _1, _2, _3, _4 = (np.uint64(number) for number in range(5))
_6, _8, _10, _12, _16 = (np.uint64(number) for number in (6, 8, 10, 12, 16))
_LOW_4, _LOW_6 = np.uint64(0xF), np.uint64(0x3F)


def _letters(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8)


_DIGITS = _letters(b"0123456789abcdef")
_BASE64 = _letters(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_JSON_NULL, _FIELD_NULL, _RAW_NULL = _letters(b"null"), _letters(rb"\N"), _letters(b"NULL")
_NO_WORD, _JSON_BASE64 = _letters(b"-"), _letters(b'{"base64": "')
_SPACE, _QUOTE, _COMMA, _MINUS, _DOT, _COLON, _EQUALS = map(np.uint8, b' ",-.:=')
_BACKSLASH, _OPENING, _CLOSING, _CLOSING_BRACE = map(np.uint8, b"\\[]}")
_LETTER_T, _LETTER_U, _LETTER_X, _LETTER_Z, _LONG_U = map(np.uint8, b"TuxZU")
_b, _f, _n, _r, _t = map(np.uint8, b"bfnrt")


# Helpers: compiled into the kernel.

_copy = llvm.copy


def _write_number(out: Any, position: Any, number: Any) -> Any:
    rest = np.uint64(number)
    if number < 0:
        out[position] = _MINUS
        position = position + _1
        rest = np.uint64(-number)
    size, larger = _1, rest
    while larger >= _10:
        larger = larger // _10
        size = size + _1
    for back in range(_1, size + _1):
        out[position + size - np.uint64(back)] = _DIGITS[rest % _10]
        rest = rest // _10
    return position + size


def _write_word(out: Any, position: Any, word: Any) -> Any:
    size = np.uint64(word.shape[0])
    for i in range(size):
        out[position + np.uint64(i)] = word[np.uint64(i)]
    return position + size


def _write_digits(out: Any, position: Any, number: Any, size: Any) -> Any:
    """Write a number with leading zeros, `size` digits in all."""
    rest = np.uint64(number)
    for back in range(_1, size + _1):
        out[position + size - np.uint64(back)] = _DIGITS[rest % _10]
        rest = rest // _10
    return position + size


def _write_hex(out: Any, position: Any, number: Any, size: Any) -> Any:
    for digit in range(size):
        shift = (size - _1 - np.uint64(digit)) * _4
        out[position + np.uint64(digit)] = _DIGITS[(number >> shift) & _LOW_4]
    return position + size


def _write_time(out: Any, position: Any, timestamp: Any) -> Any:
    """Write a time as ISO 8601 in UTC with milliseconds."""
    days = timestamp // np.int64(_DAY_MS)
    left = timestamp - days * np.int64(_DAY_MS)
    # Years start in March, in eras of 400 years: a leap day is the last day of its year.
    days = days + np.int64(719_468)
    era = days // np.int64(146_097)
    day = days - era * np.int64(146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day = day - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    year = year + era * 400
    if month < 10:
        month = month + 3
    else:
        month = month - 9
        year = year + 1
    position = _write_digits(out, position, year, _4)
    out[position] = _MINUS
    position = _write_digits(out, position + _1, month, _2)
    out[position] = _MINUS
    position = _write_digits(out, position + _1, day, _2)
    out[position] = _LETTER_T
    position = _write_digits(out, position + _1, left // 3_600_000, _2)
    out[position] = _COLON
    position = _write_digits(out, position + _1, left // 60_000 % 60, _2)
    out[position] = _COLON
    position = _write_digits(out, position + _1, left // 1_000 % 60, _2)
    out[position] = _DOT
    position = _write_digits(out, position + _1, left % 1_000, _3)
    out[position] = _LETTER_Z
    return position + _1


def _write_base64(data: Any, start: Any, end: Any, out: Any, position: Any) -> Any:
    while start < end:
        size = end - start
        bits = np.uint64(data[start]) << _16
        if size > _1:
            bits = bits | (np.uint64(data[start + _1]) << _8)
        if size > _2:
            bits = bits | np.uint64(data[start + _2])
        out[position] = _BASE64[bits >> np.uint64(18)]
        out[position + _1] = _BASE64[(bits >> _12) & _LOW_6]
        out[position + _2] = _BASE64[(bits >> _6) & _LOW_6] if size > _1 else _EQUALS
        out[position + _3] = _BASE64[bits & _LOW_6] if size > _2 else _EQUALS
        start = start + _3
        position = position + _4
    return position


def _is_plain(data: Any, start: Any, end: Any, one: Any, other: Any) -> Any:
    """Return True if all bytes are printable ASCII, and none is a backslash, `one` or `other`."""
    special = np.uint8(0)
    for i in range(start, end):
        byte = data[i]
        special = special | np.uint8(
            (byte < 32) | (byte > 126) | (byte == _BACKSLASH) | (byte == one) | (byte == other)
        )
    return special == 0


def _plain_end(data: Any, start: Any, end: Any, one: Any, other: Any) -> Any:
    """Return the position of the first byte that has to be escaped, or `end`."""
    at = start
    while at < end:
        byte = data[at]
        if (byte < 32) | (byte > 126) | (byte == _BACKSLASH) | (byte == one) | (byte == other):
            break
        at = at + _1
    return at


def _character(data: Any, position: Any, end: Any) -> Any:
    """Decode the UTF-8 character of two to four bytes at `position`; return its code point and size.

    The size is 0 if it is not UTF-8.
    """
    first = np.uint64(data[position])
    if first < np.uint64(0xC2) or first > np.uint64(0xF4):
        return _0, _0
    size, number = _2, first & np.uint64(0x1F)
    if first >= np.uint64(0xF0):
        size, number = _4, first & np.uint64(0x07)
    elif first >= np.uint64(0xE0):
        size, number = _3, first & np.uint64(0x0F)
    if end - position < size:
        return _0, _0
    for i in range(_1, size):
        byte = np.uint64(data[position + np.uint64(i)])
        if byte & np.uint64(0xC0) != np.uint64(0x80):
            return _0, _0
        number = (number << _6) | (byte & _LOW_6)
    if size == _3 and (number < np.uint64(0x800) or number >> np.uint64(11) == np.uint64(0x1B)):
        return _0, _0
    if size == _4 and (number < np.uint64(0x10000) or number > np.uint64(0x10FFFF)):
        return _0, _0
    return number, size


def _write_short(out: Any, position: Any, byte: Any, is_json: Any) -> Any:
    """Write the escape of an ASCII character that is not written as it is."""
    letter = np.uint8(0)
    if byte == _BACKSLASH or (is_json and byte == _QUOTE):
        letter = byte
    elif byte == 9:
        letter = _t
    elif byte == 10:
        letter = _n
    elif byte == 13:
        letter = _r
    elif is_json and byte == 8:
        letter = _b
    elif is_json and byte == 12:
        letter = _f
    out[position] = _BACKSLASH
    if letter != 0:
        out[position + _1] = letter
        return position + _2
    if is_json:
        out[position + _1] = _LETTER_U
        return _write_hex(out, position + _2, np.uint64(byte), _4)
    out[position + _1] = _LETTER_X
    return _write_hex(out, position + _2, np.uint64(byte), _2)


def _write_long(out: Any, position: Any, number: Any, is_json: Any) -> Any:
    """Write the hexadecimal escape of a character beyond ASCII."""
    out[position] = _BACKSLASH
    if number < np.uint64(0x10000):
        out[position + _1] = _LETTER_U
        return _write_hex(out, position + _2, number, _4)
    if not is_json:
        out[position + _1] = _LONG_U
        return _write_hex(out, position + _2, number, _8)
    number = number - np.uint64(0x10000)
    out[position + _1] = _LETTER_U
    high = np.uint64(0xD800) | (number >> _10)
    position = _write_hex(out, position + _2, high, _4)
    out[position] = _BACKSLASH
    out[position + _1] = _LETTER_U
    low = np.uint64(0xDC00) | (number & np.uint64(0x3FF))
    return _write_hex(out, position + _2, low, _4)


# Kernels.


def write_lines(
    parts: Any,
    literals: Any,
    offsets: Any,
    timestamps: Any,
    key_data: Any,
    key_bounds: Any,
    key_valid: Any,
    value_data: Any,
    value_bounds: Any,
    value_valid: Any,
    headers_bounds: Any,
    name_data: Any,
    name_bounds: Any,
    header_data: Any,
    header_bounds: Any,
    header_valid: Any,
    shown: Any,
    first_row: Any,
    out: Any,
    facts: Any,
) -> Any:
    """Write records as lines of text, made of `parts`, as many as fit into `out`.

    inputs:  parts int64[k, 3] and literals uint8, see above; offsets and timestamps int64[n]; key and
             value spans; headers_bounds int32[n + 1], and the spans of all headers' keys (name, never
             null) and values (header); shown uint8[0x110000], for each character whether it is
             written as it is, or empty; first_row, to start at.
    outputs: out uint8; facts int64[3]: bytes written; 1 if `shown` is needed to go on; bytes that the
             next record may need.
    Returns the row to go on with: n once all is written.
    """
    rows_count, parts_count = np.uint64(offsets.shape[0]), np.uint64(parts.shape[0])
    capacity, least = np.uint64(out.shape[0]), parts_count * _BYTES_PER_PART
    for part in range(parts_count):
        if parts[part, _0] == LITERAL:
            least = least + np.uint64(parts[part, _2] - parts[part, _1])
    has_keys, has_values = key_bounds.shape[0] > 0, value_bounds.shape[0] > 0
    has_headers, has_shown = headers_bounds.shape[0] > 0, shown.shape[0] > 0
    keys_valid, values_valid = key_valid.shape[0] == 0, value_valid.shape[0] == 0
    position, row = _0, np.uint64(first_row)
    facts[_1] = 0
    while row < rows_count:
        size = _0
        if has_keys:
            size = size + np.uint64(key_bounds[row + _1] - key_bounds[row])
        if has_values:
            size = size + np.uint64(value_bounds[row + _1] - value_bounds[row])
        most = least
        if has_headers:
            first, last = np.uint64(headers_bounds[row]), np.uint64(headers_bounds[row + _1])
            most = most + (last - first) * _BYTES_PER_PART
            size = size + np.uint64(name_bounds[last] - name_bounds[first])
            size = size + np.uint64(header_bounds[last] - header_bounds[first])
        # A part may be there more than once.
        most = most + size * _BYTES_PER_BYTE * parts_count
        if position + most > capacity:
            facts[_2] = np.int64(most)
            break
        row_position = position
        for part in range(parts_count):
            kind, style = parts[part, _0], parts[part, _1]
            if kind == LITERAL:
                size = np.uint64(parts[part, _2] - style)
                position = _copy(literals, np.uint64(style), out, position, size)
                continue
            is_json = style == JSON
            is_key_null = not has_keys or not (keys_valid or key_valid[row] != 0)
            is_value_null = not has_values or not (values_valid or value_valid[row] != 0)
            if kind != KEY and kind != VALUE and kind != HEADERS:
                number = np.int64(-1)
                if kind == OFFSET:
                    number = offsets[row]
                elif kind == TIME or kind == TIME_MS:
                    number = timestamps[row]
                elif kind == KEY_SIZE and not is_key_null:
                    number = np.int64(key_bounds[row + _1] - key_bounds[row])
                elif kind == VALUE_SIZE and not is_value_null:
                    number = np.int64(value_bounds[row + _1] - value_bounds[row])
                if kind == TIME and number == _NO_TIME:
                    position = _write_word(out, position, _JSON_NULL if is_json else _NO_WORD)
                    continue
                is_quoted = kind == TIME and is_json
                if is_quoted:
                    out[position] = _QUOTE
                    position = position + _1
                if kind == TIME and _TIME_MIN <= number <= _TIME_MAX:
                    position = _write_time(out, position, number)
                else:
                    position = _write_number(out, position, number)
                if is_quoted:
                    out[position] = _QUOTE
                    position = position + _1
                continue
            # Texts: a key, a value, or in turn the keys and values of all headers.
            item, end_item = _0, _1
            if kind == HEADERS:
                end_item = _0
                if has_headers:
                    item = np.uint64(headers_bounds[row]) * _2
                    end_item = np.uint64(headers_bounds[row + _1]) * _2
                if is_json:
                    out[position] = _OPENING
                    position = position + _1
                elif item == end_item and style == FIELD:
                    position = _write_word(out, position, _NO_WORD)
            first_item = item
            while item < end_item:
                # Characters that are escaped in addition, so that what separates fields stands out.
                one = other = _QUOTE if is_json else _BACKSLASH
                if kind == KEY:
                    data, is_null = key_data, is_key_null
                    start, end = _0, _0
                    if not is_null:
                        start, end = np.uint64(key_bounds[row]), np.uint64(key_bounds[row + _1])
                elif kind == VALUE:
                    data, is_null = value_data, is_value_null
                    start, end = _0, _0
                    if not is_null:
                        start = np.uint64(value_bounds[row])
                        end = np.uint64(value_bounds[row + _1])
                elif item & _1 == _0:
                    data, is_null, header = name_data, False, item >> _1
                    start, end = np.uint64(name_bounds[header]), np.uint64(name_bounds[header + _1])
                    if item > first_item:
                        out[position] = _COMMA
                        position = position + _1
                        if style != RAW:
                            out[position] = _SPACE
                            position = position + _1
                    if is_json:
                        out[position] = _OPENING
                        position = position + _1
                    else:
                        one, other = _EQUALS, _COMMA
                else:
                    data, header = header_data, item >> _1
                    is_null = header_valid.shape[0] > 0 and header_valid[header] == 0
                    start = np.uint64(header_bounds[header])
                    end = np.uint64(header_bounds[header + _1])
                    if is_json:
                        out[position] = _COMMA
                        out[position + _1] = _SPACE
                        position = position + _2
                    else:
                        out[position] = _EQUALS
                        position = position + _1
                        one = other = _COMMA
                if is_null:
                    if style != RAW:
                        position = _write_word(
                            out, position, _JSON_NULL if is_json else _FIELD_NULL
                        )
                    elif kind == HEADERS:
                        position = _write_word(out, position, _RAW_NULL)
                else:
                    text_position = position
                    if is_json:
                        out[position] = _QUOTE
                        position = position + _1
                    is_text, at, stop = True, start, end
                    if style != RAW and not _is_plain(data, start, end, one, other):
                        stop = _plain_end(data, start, end, one, other)
                    while True:
                        position = _copy(data, at, out, position, stop - at)
                        at = stop
                        if at == end:
                            break
                        byte, character, size = data[at], _0, _1
                        if byte >= 0x80:
                            character, size = _character(data, at, end)
                        if size == _0 and is_json:
                            is_text = False
                            break
                        if size <= _1:
                            position = _write_short(out, position, byte, is_json)
                            at = at + _1
                        elif not has_shown:
                            facts[_0], facts[_1] = np.int64(row_position), 1
                            return np.int64(row)
                        elif shown[character] != 0:
                            for i in range(size):
                                out[position + np.uint64(i)] = data[at + np.uint64(i)]
                            position = position + size
                            at = at + size
                        else:
                            position = _write_long(out, position, character, is_json)
                            at = at + size
                        stop = _plain_end(data, at, end, one, other)
                    if not is_text:
                        position = _write_word(out, text_position, _JSON_BASE64)
                        position = _write_base64(data, start, end, out, position)
                    if is_json:
                        out[position] = _QUOTE
                        position = position + _1
                    if not is_text:
                        out[position] = _CLOSING_BRACE
                        position = position + _1
                if is_json and kind == HEADERS and item & _1 == _1:
                    out[position] = _CLOSING
                    position = position + _1
                item = item + _1
            if is_json and kind == HEADERS:
                out[position] = _CLOSING
                position = position + _1
        row = row + _1
    facts[_0] = np.int64(position)
    return np.int64(row)


HELPERS = (
    "_copy",
    "_write_number",
    "_write_word",
    "_write_digits",
    "_write_hex",
    "_write_time",
    "_write_base64",
    "_is_plain",
    "_plain_end",
    "_character",
    "_write_short",
    "_write_long",
)


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i32, i64 = jit.array("u1"), jit.array("i4"), jit.array("i8")
    parts, out, facts = np.zeros((0, 3), np.int64), np.zeros(0, np.uint8), np.zeros(3, np.int64)
    spans = (u8, i32, u8)
    return {
        "write_lines": (
            parts,
            u8,
            i64,
            i64,
            *spans,
            *spans,
            i32,
            u8,
            i32,
            *spans,
            u8,
            0,
            out,
            facts,
        ),
    }


def _lines_us(*given: Any) -> int:
    parts, offsets, first_row = given[0], given[2], given[17]
    texts = (given[4], given[7], given[11], given[13])
    size_in_bytes = sum(text.shape[0] for text in texts)
    return int(12 * parts.shape[0] * (offsets.shape[0] - first_row) + 3 * size_in_bytes)


load = jit.compile_on_first_call(globals(), HELPERS, examples, {"write_lines": _lines_us})
