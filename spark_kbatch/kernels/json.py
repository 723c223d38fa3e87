"""Compiled loops that decode JSON into slots of numbers, by a table of nodes that is made of a type.

`decode_rows`, the one kernel, makes of rows of bytes numbers in the slots of a type's columns, and
an error for each bad row. The table is interpreted, never compiled: code for a type would cost
seconds for each type and process. A row is read once, from its first byte to its last, without
recursion.

A node is a row of `nodes`. What the type does not have is read as node 0, PASS; node ROOT is the
type itself, and all other nodes follow in the order of the type, each before those within it: a
struct before its fields, a list before its element, a map before its key, which its value follows.

    column       of a node
    KIND
    SLOT         where its numbers lie; a decimal has the next slot too
    OWNER        the struct whose field it is, -1 for none
    NAME         the span of its name in `text`, in UTF-8

    kind             FIRST, SECOND, THIRD               what it takes, and stores
    PASS                                                anything
    TEXT                                                a string; of any other value its JSON: a span
    STRUCT                                              an object; fields by their names
    LIST             level of items, memory of one      an array; how many items it has
    MAP              the same                           an object; how many items it has
    BOOLEAN                                             true, false: 1, 0
    WHOLE            most, digits, 0                    a number that is whole
    DECIMAL          any, digits, scale                 a number as 128 bits, in two slots
    FLOAT            most, digits, below 0              a number, or a string that names one: a span. Of the largest
                                                        the first digits, and how many others are before the point
    BINARY                                              a string of base64: a span
    DATE, INSTANT, LOCAL                                a string: days, microseconds

All others are 0.

The text of strings, and what base64 says, lies in `scratch` after the names, and its bytes are
taken as those of the level SCRATCH. There are never more than the row has read.

Names are found in `keys`, a hash table with an entry for each field of a struct, and for each name
that a map of the row has: whose it is (below 0 a struct, else the number of an object), its span,
and the node of the field or map. Entries of objects of other rows are older than the row, and count
as empty. The hash has a random seed.

What a hostile row can cost is bounded by its size: an item has a byte at least, and the memory of
all items is held to MEMORY_PER_BYTE for each byte of the row and MEMORY_FREE; depth by the size of
the stack.

Arguments have the forms that `records` describes; `errors` and `stack` are int64.

Source: RFC 8259; RFC 4648, section 4; Clinger, "How to Read Floating Point Numbers Accurately", for
exact operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit
from spark_kbatch.kernels.slots import (
    IN_OTHER_BYTES,
    MEMORY_FREE,
    MEMORY_PER_BYTE,
    NO_ROOM,
    NOWHERE,
    _forget_row,
    _is_utf8,
)

NODE_COLUMNS = 7
KIND, SLOT, OWNER, NAME, FIRST, SECOND, THIRD = (np.uint64(n) for n in range(NODE_COLUMNS))
(
    PASS, TEXT, STRUCT, LIST, MAP, BOOLEAN, WHOLE, DECIMAL, FLOAT, BINARY, DATE, INSTANT, LOCAL,
) = range(13)  # fmt: skip

ROOT = 1
SCRATCH = NOWHERE  # level
ZONE, DIGITS = 1, 2  # what is not an error

# Errors of a row. Where one of the first four is at the end, it is EMPTY or TRUNCATED.
(
    NO_VALUE, NO_NAME, NO_COLON, NO_COMMA, EMPTY, TRUNCATED, BAD_NUMBER, BAD_ESCAPE, LONE_SURROGATE, CONTROL, BAD_TEXT,
    TRAILING_BYTES, TOO_DEEP, TOO_MUCH_MEMORY, DUPLICATE, WRONG_TYPE, BAD_FORM, FRACTION, OUT_OF_RANGE, NO_ZONE,
    HAS_ZONE,
) = range(1, 22)  # fmt: skip

STACK_COLUMNS = 6
# _BEGIN: where the JSON of the object or array begins. _ITEMS: how many there were before its own.
_NODE, _INDEX, _CLOSER, _INSTANCE, _BEGIN, _ITEMS = (np.uint64(n) for n in range(STACK_COLUMNS))
KEY_COLUMNS = 3
_WHOSE, _SPAN, _FIELD = (np.uint64(n) for n in range(KEY_COLUMNS))

(
    _0, _1, _2, _3, _4, _6, _7, _8, _9, _10, _16, _19,
) = (np.uint64(number) for number in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 16, 19))  # fmt: skip
_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_ZERO = np.uint64(ord("0"))
_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _DOT, _EQUALS = (
    np.uint8(ord(character)) for character in ' "\\,:-+.='
)
_DIGIT_0, _T, _F, _E, _U = (np.uint8(ord(one)) for one in "0tfeu")
_BRACKET, _NOT_ASCII, _LOWER = (np.uint8(number) for number in (0x5B, 0x80, 0x20))
_TO_CLOSER = np.uint8(2)  # from an opening bracket or brace

# What a byte begins, and what a kind takes.
_STRING, _OBJECT, _ARRAY, _NUMBER, _TRUTH, _NULL, _BLANK = (1 << bit for bit in range(7))
_ANY = _BLANK - 1
_FORMS = np.zeros(256, np.uint8)
_FORMS[[*b'"{[tfn-0123456789 \t\n\r']] = [
    _STRING, _OBJECT, _ARRAY, _TRUTH, _TRUTH, _NULL, *[_NUMBER] * 11, *[_BLANK] * 4,
]  # fmt: skip
_TAKES = np.array(
    [
        _ANY, _ANY, _OBJECT, _ARRAY, _OBJECT, _TRUTH, _NUMBER, _NUMBER | _STRING, _NUMBER | _STRING,
        *[_STRING] * 4,
    ],
    np.uint8,
) | np.uint8(_NULL)  # fmt: skip

_DIGITS_MAX = 19  # as a number of 64 bits
_POWER_MAX = 10**15  # more than any row has digits
_POWERS = np.array([10**power for power in range(_DIGITS_MAX + 1)], np.uint64)
_NANOS = np.uint64(1_000)  # of a microsecond
_DAY_S = 86_400
_ZONE_MAX = 18_00  # hours and minutes
_LEAST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999

# Dates and times, fractions, zones, and words. Of the bytes that no text has, \xff is the end, and
# \xc0 what is between a date and a time: T, t or a space.
_PATTERNS = np.frombuffer(
    b"0000-00-00\xc000:00:00\xff.000000000\xff+0000\xffz\xff+00:00\xff"
    b"true\xfffalse\xffnull\xffNaN\xff-Infinity\xff",
    np.uint8,
)
_END = np.uint8(0xFF)
_FRACTION, _IS_TRUE, _IS_FALSE, _IS_NULL, _NAN, _INFINITY = (
    np.uint64(at) for at in (20, 46, 51, 57, 62, 66)
)
# Where the pattern of a zone begins, by its size, which is at most 7: at its end where there is none.
_ZONES = np.array([36, 37, 36, 31, 36, 31, 39, 36], np.uint64)
_SHAPES = np.arange(256, dtype=np.uint8)  # what a byte is as well in a pattern
_SHAPES[[*b"123456789Tt Z-"]] = [*b"000000000\xc0\xc0\xc0z+"]

_ESCAPED = np.zeros(256, np.int64)
_ESCAPED[[*b'"\\/bfnrt']] = [*b'"\\/\b\f\n\r\t']
_NO_HEX = 1 << 16
_HEX = np.full(256, _NO_HEX, np.int64)
_HEX[[*b"0123456789abcdefABCDEF"]] = [*range(16), *range(10, 16)]
_LEADS = np.array([0, 0xC0, 0xE0, 0xF0])  # of the first byte of a character, by how many follow it
_BASE64 = np.full(256, 64, np.uint8)
_BASE64[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"]] = range(64)


# Helpers: compiled into the kernels that call them.


def _next_byte(data: Any, position: Any, end: Any) -> Any:
    """Return the position of the next byte that is no space, and the byte: 0 at the end."""
    while position < end and _FORMS[data[position]] == _BLANK:
        position = position + _1
    return position, data[position] if position < end else np.uint8(0)


def _equals(data: Any, position: Any, others: Any, at: Any, size: Any) -> Any:
    """Return True if `size` bytes are the same in two arrays."""
    for k in range(size):
        if data[position + k] != others[at + k]:
            return False
    return True


def _span(begin: Any, stop: Any) -> Any:
    """Return the span of bytes."""
    return np.int64(begin << _32 | (stop - begin))


# Strings.


def _read_unicode(data: Any, position: Any, end: Any) -> Any:
    """Return the number of an escape of four hexadecimal digits, _NO_HEX or more for others."""
    if end - position < _6 or data[position] != _BACKSLASH or data[position + _1] != _U:
        return np.int64(_NO_HEX)
    number = np.int64(0)
    for k in range(_2, _6):
        number = number << 4 | _HEX[data[position + k]]
    return number


def _read_escape(data: Any, position: Any, end: Any, scratch: Any, to: Any) -> Any:
    """Write the character of an escape in UTF-8; return where the escape and it end, an error."""
    character, size = _read_unicode(data, position, end), _6
    if character >= _NO_HEX:
        # At the end there is the backslash once more, and then no quote.
        character, size = _ESCAPED[data[min(position + _1, end - _1)]], _2
        if character == 0:
            return position, to, BAD_ESCAPE
    elif character >= 0xD800 and character <= 0xDFFF:
        high, low = character ^ 0xD800, _read_unicode(data, position + _6, end) ^ 0xDC00
        if high >= 0x400 or low >= 0x400:
            return position, to, LONE_SURROGATE
        character, size = 0x10000 + (high << 10 | low), _6 + _6
    more = (
        np.uint64(character > 0x7F) + np.uint64(character > 0x7FF) + np.uint64(character > 0xFFFF)
    )
    for k in range(more):
        scratch[to + more - k] = np.uint8(0x80 | character & 0x3F)
        character = character >> 6
    scratch[to] = np.uint8(_LEADS[more] | character)
    return position + size, to + _1 + more, 0


def _read_string(data: Any, position: Any, end: Any, scratch: Any, to: Any) -> Any:
    """Write the text of the string whose first byte is at `position`.

    Returns where to go on, or the place of an error; where the text ends; an error.
    """
    begin, start, bits = position, to, np.uint8(0)
    while position < end:
        byte = data[position]
        if byte == _QUOTE:
            is_text = bits < _NOT_ASCII or _is_utf8(scratch, start, to)
            return position + _1 if is_text else begin, to, 0 if is_text else BAD_TEXT
        if byte < _SPACE:
            return position, to, CONTROL
        if byte == _BACKSLASH:
            position, to, error = _read_escape(data, position, end, scratch, to)
            if error != 0:
                return position, to, error
        else:
            scratch[to], bits = byte, bits | byte
            position, to = position + _1, to + _1
    return end, to, TRUNCATED


def _find(keys: Any, whose: Any, text: Any, name: Any, oldest: Any, seed: Any) -> Any:
    """Return where the entry of a name, a span, is in `keys`, or belongs; `seed` is odd."""
    begin, size = np.uint64(name) >> _32, np.uint64(name) & _LOW_32
    mask, number = np.uint64(keys.shape[0]) - _1, np.uint64(whose) * seed
    for k in range(size):
        number = (number + np.uint64(text[begin + k])) * seed
    at = number >> _32 & mask
    while keys[at, _WHOSE] < 0 or keys[at, _WHOSE] > oldest:
        other = np.uint64(keys[at, _SPAN])
        is_alike = keys[at, _WHOSE] == whose and other & _LOW_32 == size
        if is_alike and _equals(text, begin, text, other >> _32, size):
            break
        at = (at + _1) & mask
    return at


def _read_base64(source: Any, position: Any, stop: Any, scratch: Any, to: Any) -> Any:
    """Write what base64 says, maybe over itself; return where that ends, and an error."""
    size, number, all_bits = stop - position, _0, _0
    if size % _4 != _0:
        return to, BAD_FORM
    if size > _0:
        size = size - np.uint64(source[stop - _1] == _EQUALS)
        size = size - np.uint64(source[stop - _2] == _EQUALS)
    for k in range(size):
        six = np.uint64(_BASE64[source[position + k]])
        number, all_bits = number << _6 | six, all_bits | six
        if k & _3 != _0:
            scratch[to] = np.uint8(number >> (_6 - _2 * (k & _3)) & np.uint64(255))
            to = to + _1
    return to, BAD_FORM if all_bits > np.uint64(63) else 0


# Numbers.


def _read_digits(source: Any, position: Any, end: Any, number: Any, count: Any) -> Any:
    """Read digits; return where they end, the number with them, its digits but leading zeros."""
    while position < end and np.uint64(source[position]) - _ZERO <= _9:
        digit = np.uint64(source[position]) - _ZERO
        number = number * _10 + digit  # wraps around where it is not used
        count = count + np.int64(count > 0 or digit > _0)
        position = position + _1
    return position, number, count


def _first_digits(source: Any, position: Any, stop: Any, keep: Any) -> Any:
    """Return the first `keep` digits as 128 bits, and whether a digit but 0 follows.

    Zeros in front are digits too; all after the end are 0.
    """
    lower, upper, is_cut = _0, _0, False
    while position < stop or keep > 0:
        digit = np.uint64(source[position]) - _ZERO if position < stop else _0
        position = position + _1
        if digit > _9:
            continue
        if keep > 0:
            low = (lower & _LOW_32) * _10 + digit
            high = (lower >> _32) * _10 + (low >> _32)
            upper = upper * _10 + (high >> _32)
            lower = (high << _32) | (low & _LOW_32)
        else:
            is_cut = is_cut or bool(digit > _0)
        keep = keep - 1
    return lower, upper, is_cut


def _read_number(
    source: Any,
    position: Any,
    end: Any,
    nodes: Any,
    node: Any,
    to: Any,
    upper_to: Any,
    lenient: Any,
    values: Any,
) -> Any:
    """Read a number, and store it if its node takes one; return where it ends, and an error."""
    is_negative = position < end and source[position] == _MINUS
    start = position + np.uint64(is_negative)
    at, number, digits = _read_digits(source, start, end, _0, np.int64(0))
    is_formed = at == start + _1 or (at > start and source[start] != _DIGIT_0)
    size, places, power = np.int64(at - start), np.int64(0), np.int64(0)
    if at < end and source[at] == _DOT:
        at, number, digits = _read_digits(source, at + _1, end, number, digits)
        places = np.int64(at - start) - size - 1
        is_formed = is_formed and places > 0
    stop = at
    if at < end and (source[at] | _LOWER) == _E:
        sign = source[at + _1] if at + _1 < end else _E
        begin = at + (_2 if sign == _MINUS or sign == _PLUS else _1)
        at, exponent, count = _read_digits(source, begin, end, _0, np.int64(0))
        power = np.int64(exponent) if count <= 15 else np.int64(_POWER_MAX)
        is_formed, power = is_formed and at > begin, -power if sign == _MINUS else power
    if not is_formed:
        return at, BAD_NUMBER
    kind = nodes[node, KIND]
    if kind < WHOLE:
        return at, 0
    power = power * np.int64(digits > 0) - places
    shift, most_digits = power + nodes[node, THIRD], nodes[node, SECOND]
    keep = digits + shift
    if keep > most_digits:
        return at, OUT_OF_RANGE
    lower, upper, is_cut = _0 if kind == FLOAT else number, _0, False
    if keep == most_digits if kind == FLOAT else shift != 0 or digits > _DIGITS_MAX:
        lower, upper, is_cut = _first_digits(source, start, stop, size + places + shift)
    if lower > np.uint64(nodes[node, FIRST]) + np.uint64(is_negative and kind == WHOLE):
        return at, OUT_OF_RANGE
    if kind == FLOAT:
        values[to] = _span(position, at)
        return at, 0
    if is_cut and lenient & DIGITS == 0:
        return at, FRACTION
    if is_negative:
        lower, upper = ~lower + _1, ~upper + np.uint64(lower == _0)
    values[upper_to], values[to] = np.int64(upper), np.int64(lower)  # one place, but of a decimal
    return at, 0


# Dates and times.


def _read_pattern(source: Any, position: Any, stop: Any, pattern: Any) -> Any:
    """Read what is as in _PATTERNS from a place on; return where that ends, and its digits."""
    number = np.int64(0)
    while position < stop:
        byte, wanted = source[position], _PATTERNS[pattern]
        if byte != wanted and _SHAPES[byte] != wanted:
            break
        if wanted == _DIGIT_0:
            number = number * 10 + np.int64(byte - _DIGIT_0)
        position, pattern = position + _1, pattern + _1
    return position, number


def _days_before(year: Any, month: Any) -> Any:
    """Return the days from 1970 to a month."""
    # Years that begin in March end with the day that only some have.
    is_late = np.int64(month < 3)
    year, month = year - is_late, month + 12 * is_late
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 - 719_468


def _read_time(source: Any, position: Any, stop: Any, kind: Any, lenient: Any) -> Any:
    """Return the days since 1970 of a date, or the microseconds of a time, and an error."""
    dot, number = _read_pattern(source, position, stop, _0)
    size, is_day = dot - position, kind == DATE
    at, parts = _read_pattern(source, dot, stop, _FRACTION)
    places, sign, zone_size = at - dot, source[at], min(stop - at, _7)
    at, zone = _read_pattern(source, at, stop, _ZONES[zone_size])
    zone = zone * 100 if zone_size == _3 else zone
    number = number * (1 if size == _19 else 100 if size == _16 else 1_000_000)
    year, month, day = number // 10**10, number // 10**8 % 100, number // 10**6 % 100
    hour, minute, second = number // 10_000 % 100, number // 100 % 100, number % 100
    first = _days_before(year, month)
    has_clock = (size == _19 and places != _1) or (size == _16 and places == _0)
    is_formed = dot == stop and size == _10 if is_day else has_clock
    is_date = year > 0 and 0 < month < 13 and 0 < day <= _days_before(year, month + 1) - first
    is_time = hour < 24 and minute < 60 and second < 60 and zone % 100 < 60 and zone <= _ZONE_MAX
    if at != stop or not is_formed or not is_date or not is_time:
        return np.int64(0), BAD_FORM
    days = first + day - 1
    if is_day:
        return days, 0
    offset = zone // 100 * 3_600 + zone % 100 * 60 if kind == INSTANT else np.int64(0)
    seconds = days * _DAY_S + hour * 3_600 + minute * 60 + second
    seconds = seconds + offset if sign == _MINUS else seconds - offset
    nanos = np.uint64(parts) * _POWERS[_10 - places]
    micros = seconds * 1_000_000 + np.int64(nanos // _NANOS)
    if micros < _LEAST_TIME or micros > _LAST_TIME:
        return micros, OUT_OF_RANGE
    if (kind == INSTANT) == (zone_size == _0) and lenient & ZONE == 0:
        return micros, NO_ZONE if zone_size == _0 else HAS_ZONE
    return micros, FRACTION if nanos % _NANOS != _0 and lenient & DIGITS == 0 else 0


# Values.


def _read_scalar(
    data: Any,
    position: Any,
    end: Any,
    form: Any,
    nodes: Any,
    node: Any,
    to: Any,
    upper_to: Any,
    lenient: Any,
    values: Any,
    counts: Any,
    text: Any,
    scratch: Any,
) -> Any:
    """Read and store what is no object or array; return its end, or an error and its place."""
    at, kind, byte, error = position, nodes[node, KIND], data[position], 0
    if form == _STRING:
        begin = np.uint64(counts[SCRATCH])
        position, stop, error = _read_string(data, at + _1, end, scratch, begin)
        if error != 0:
            return position, error
        if kind >= DATE:
            values[to], error = _read_time(text, begin, stop, kind, lenient)
        elif kind == DECIMAL:
            after, error = _read_number(
                text, begin, stop, nodes, node, to, upper_to, lenient, values
            )
            error = BAD_FORM if after != stop or error == BAD_NUMBER else error
        elif kind != PASS:
            if kind == BINARY:
                stop, error = _read_base64(text, begin, stop, scratch, begin)
            elif kind == FLOAT:
                word = _NAN if stop - begin == _3 else _INFINITY + np.uint64(stop - begin == _8)
                after, _ = _read_pattern(text, begin, stop, word)
                is_name = after == stop and _PATTERNS[word + (stop - begin)] == _END
                error = 0 if is_name else WRONG_TYPE
            values[to], counts[SCRATCH] = _span(begin, stop) | IN_OTHER_BYTES, np.int64(stop)
        return position if error == 0 else at, error
    if form == _NUMBER:
        position, error = _read_number(data, at, end, nodes, node, to, upper_to, lenient, values)
    else:
        word = _IS_TRUE if byte == _T else _IS_FALSE if byte == _F else _IS_NULL
        position, _ = _read_pattern(data, at, end, word)
        if _PATTERNS[word + (position - at)] != _END:
            return at, NO_VALUE
    if kind == TEXT and form != _NULL:
        values[to] = _span(at, position)
    elif kind == BOOLEAN:
        values[to] = np.int64(byte == _T)
    return position if error == 0 else at, error


def _read_name(
    data: Any,
    position: Any,
    end: Any,
    instance: Any,
    nodes: Any,
    node: Any,
    index: Any,
    seed: Any,
    bases: Any,
    values: Any,
    valid: Any,
    counts: Any,
    text: Any,
    scratch: Any,
    seen: Any,
    keys: Any,
    oldest: Any,
) -> Any:
    """Read a name and the colon; return where its value begins, or an error is; its node; the error."""
    at, kind, begin, field = position, nodes[node, KIND], np.uint64(counts[SCRATCH]), _0
    position, stop, error = _read_string(data, at + _1, end, scratch, begin)
    if error != 0:
        return position, node, error
    if kind == STRUCT or kind == MAP:
        whose, span = ~np.int64(node) if kind == STRUCT else instance, _span(begin, stop)
        found = _find(keys, whose, text, span, oldest, seed)
        is_known = keys[found, _WHOSE] == whose
        field = np.uint64(keys[found, _FIELD]) if is_known else _0
        if is_known and (kind == MAP or seen[field] == instance):
            return at, field, DUPLICATE
        seen[field] = instance
        if kind == MAP:
            keys[found, _WHOSE], keys[found, _SPAN] = instance, span
            keys[found, _FIELD], field = np.int64(node), node + _2
            to = bases[np.uint64(nodes[node + _1, SLOT])] + index
            values[to], valid[to], counts[SCRATCH] = span | IN_OTHER_BYTES, 1, np.int64(stop)
    position, byte = _next_byte(data, position, end)
    return (position + _1, field, 0) if byte == _COLON else (position, node, NO_COLON)


def _decode_row(
    data: Any,
    position: Any,
    end: Any,
    row: Any,
    nodes: Any,
    lenient: Any,
    seed: Any,
    bases: Any,
    values: Any,
    valid: Any,
    capacity: Any,
    counts: Any,
    text: Any,
    scratch: Any,
    seen: Any,
    keys: Any,
    stack: Any,
    needed: Any,
) -> Any:
    """Decode a row; return an error, its place, its node, and how many objects and arrays are open."""
    node, index, top, oldest = np.uint64(ROOT), row, _0, seen[np.uint64(ROOT)]
    budget = np.int64(end - position) * MEMORY_PER_BYTE + MEMORY_FREE
    while True:
        position, byte = _next_byte(data, position, end)
        kind, form, is_opened = nodes[node, KIND], _FORMS[byte], False
        slot = np.uint64(nodes[node, SLOT])
        to = bases[slot] + index
        if _TAKES[kind] & form == 0:
            return WRONG_TYPE if form & _ANY else NO_VALUE, position, node, top
        if kind != PASS and form != _NULL:
            valid[to] = 1
        if form == _OBJECT or form == _ARRAY:
            if top == np.uint64(stack.shape[0]):
                return TOO_DEEP, position, node, top
            seen[np.uint64(ROOT)] += 1
            stack[top, _NODE], stack[top, _INDEX] = np.int64(node), np.int64(index)
            stack[top, _CLOSER] = np.int64(byte + _TO_CLOSER)
            stack[top, _INSTANCE], stack[top, _BEGIN] = seen[np.uint64(ROOT)], np.int64(position)
            stack[top, _ITEMS] = counts[np.uint64(nodes[node, FIRST])]
            top, position, is_opened = top + _1, position + _1, True
        else:
            position, error = _read_scalar(
                data,
                position,
                end,
                form,
                nodes,
                node,
                to,
                bases[slot + _1] + index if kind == DECIMAL else to,
                lenient,
                values,
                counts,
                text,
                scratch,
            )
            if error != 0:
                return error, position, node, top
        # What follows: the end of what holds it, or the next item or field.
        while True:
            position, byte = _next_byte(data, position, end)
            if top == _0:
                return 0 if position == end else TRAILING_BYTES, position, node, top
            frame = top - _1
            node, index = np.uint64(stack[frame, _NODE]), np.uint64(stack[frame, _INDEX])
            kind = nodes[node, KIND]
            if byte != stack[frame, _CLOSER]:
                break
            position, top, is_opened = position + _1, frame, False
            to = bases[np.uint64(nodes[node, SLOT])] + index
            if kind == LIST or kind == MAP:
                values[to] = counts[np.uint64(nodes[node, FIRST])] - stack[frame, _ITEMS]
            elif kind == TEXT:
                values[to] = _span(np.uint64(stack[frame, _BEGIN]), position)
        if not is_opened:
            if byte != _COMMA:
                return NO_COMMA, position, node, top
            position, byte = _next_byte(data, position + _1, end)
        if kind == LIST or kind == MAP:
            level = np.uint64(nodes[node, FIRST])
            budget = budget - nodes[node, SECOND]
            if budget < 0:
                return TOO_MUCH_MEMORY, position, node, top
            if counts[level] == capacity[level]:
                needed[_0], needed[_1] = np.int64(level), counts[level] + 1
                return NO_ROOM, position, node, top
            index = np.uint64(counts[level])
            counts[level] += 1
        if stack[frame, _CLOSER] == _BRACKET + _TO_CLOSER:
            node = node + _1 if kind == LIST else _0
            continue
        if byte != _QUOTE:
            return NO_NAME, position, node, top
        position, node, error = _read_name(
            data,
            position,
            end,
            stack[frame, _INSTANCE],
            nodes,
            node,
            index,
            seed,
            bases,
            values,
            valid,
            counts,
            text,
            scratch,
            seen,
            keys,
            oldest,
        )
        if error != 0:
            return error, position, node, top


# Kernels.


def decode_rows(
    data: Any,
    begins: Any,
    ends: Any,
    nodes: Any,
    lenient: Any,
    seed: Any,
    bases: Any,
    slot_levels: Any,
    first_row: Any,
    values: Any,
    valid: Any,
    capacity: Any,
    counts: Any,
    saved: Any,
    text: Any,
    scratch: Any,
    seen: Any,
    keys: Any,
    stack: Any,
    errors: Any,
    needed: Any,
) -> Any:
    """Decode rows into slots, from `first_row` on, until a level has no room.

    inputs:  data uint8; begins, ends int64[n], where each row's bytes lie, and -1 in begins for a
             row that is left alone; nodes int64[nodes, 7]; lenient, a sum of what is not an error;
             seed uint64; bases uint64[slots], where each slot starts in values; slot_levels
             int64[slots]; capacity int64[levels], places of each slot of a level; text uint8, the
             same memory as scratch.
    outputs: values int64 and valid uint8, zero on entry; counts int64[levels], places taken by
             items, continued from call to call; saved int64[levels]; scratch uint8, the names, and
             room for as many bytes as all rows have; seen int64[nodes], zero on entry: in which
             object a field was last seen, by a number, of which ROOT has the last; keys int64[m, 3],
             zero on entry, m a power of two above the number of nodes and of names that a row has;
             stack int64[depth, 6]: for the kernel's own use;
             errors int64[3, n]: error, 0 for none; where in the row; the node;
             needed int64[2], a level that has no room for the row, and the places it needs.
    Returns n, or the row that found no room. Nothing of that row is stored.
    """
    for each in range(np.uint64(nodes.shape[0])):
        whose, span = ~nodes[each, OWNER], nodes[each, NAME]
        at = _find(keys, whose, text, span, seen[np.uint64(ROOT)], seed)
        keys[at, _WHOSE], keys[at, _SPAN], keys[at, _FIELD] = whose, span, np.int64(each)
    for row in range(np.uint64(first_row), np.uint64(begins.shape[0])):
        if begins[row] < 0:
            continue
        for each in range(np.uint64(counts.shape[0])):
            saved[each] = counts[each]
        end = np.uint64(ends[row])
        error, at, node, top = _decode_row(
            data,
            np.uint64(begins[row]),
            end,
            row,
            nodes,
            lenient,
            seed,
            bases,
            values,
            valid,
            capacity,
            counts,
            text,
            scratch,
            seen,
            keys,
            stack,
            needed,
        )
        if error == 0:
            continue
        _forget_row(values, valid, bases, slot_levels, saved, counts, row)
        if error == NO_ROOM:
            return np.int64(row)
        if error <= NO_COMMA and at == end:
            error = TRUNCATED if top > _0 else EMPTY
        while node == _0 and top > _0:
            top = top - _1
            node = np.uint64(stack[top, _NODE])
        errors[_0, row], errors[_1, row] = error, np.int64(at) - begins[row]
        errors[_2, row] = np.int64(node)
    return np.int64(begins.shape[0])


HELPERS = (
    "_next_byte", "_equals", "_span", "_read_unicode", "_read_escape", "_is_utf8", "_read_string", "_find",
    "_read_base64", "_read_digits", "_first_digits", "_read_number", "_read_pattern", "_days_before", "_read_time",
    "_read_scalar", "_read_name", "_decode_row", "_forget_row",
)  # fmt: skip


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i64, u64 = jit.array("u1"), jit.array("i8"), jit.array("u8")
    values, levels = jit.array("i8", out=True), jit.array("i8", 2, out=True)
    return {
        "decode_rows": (
            u8, i64, i64, jit.array("i8", (0, NODE_COLUMNS)), 0, np.uint64(1), u64, i64, 0, values,
            jit.array("u1", out=True), levels, levels, levels, u8, jit.array("u1", out=True), levels,
            jit.array("i8", (1, KEY_COLUMNS), out=True), jit.array("i8", (1, STACK_COLUMNS), out=True),
            jit.array("i8", (3, 0), out=True), levels,
        ),
    }  # fmt: skip


# A row's share, and its bytes.
PLAIN_US = {
    "decode_rows": lambda _data, begins, ends, *_: int(
        20 * begins.shape[0] + 5 * (ends - begins).sum()
    )
}

load = jit.compile_on_first_call(globals(), HELPERS, examples, PLAIN_US)
