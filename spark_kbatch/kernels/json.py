"""Compiled loops that decode JSON into slots of numbers, as a table of nodes says that is made of a type.

`decode_rows`, the one kernel, makes of rows of bytes numbers in the slots of a type's columns, and an error for each
bad row. The table is interpreted, never compiled: code for a type would cost seconds for each type and process. A
row is read once, from its first byte to its last, without recursion.

A node is a row of `nodes`. What the type does not have is read as node 0, PASS. Node 1 is the type itself, and all
other nodes follow in the order of the type, each before those within it: a struct before its fields, a list before
its element, a map before its key, which its value follows.

    column       of a node
    KIND
    SLOT, LEVEL  where its numbers lie; a decimal has the next slot too
    END          the first node that does not lie within it
    NEXT         the next field of the same struct, 0 for none
    NAME, NAME_SIZE, PLAIN_SIZE
                 its name in `names`, in UTF-8; how many bytes to compare with JSON as it is written, or more than a
                 row has where a name is never written as it is

    kind             FIRST, SECOND, THIRD               what it takes, and stores
    TEXT                                                a string; of any other value its JSON: a span
    STRUCT           hash table in `hashes`, its mask   an object; fields by their names
    LIST             level of items, memory of one      an array; how many items it has
    MAP              the same                           an object; how many items it has
    BOOLEAN                                             true, false: 1, 0
    WHOLE            most, digits, 0                    a number that is whole
    DECIMAL          0, digits, scale                   a number as 128 bits, in two slots
    FLOAT, DOUBLE    digits in `names`, how many, power a number; those that are not below the digits are infinite.
                                                        Up to so many digits and powers of ten are exact
    BINARY                                              a string of base64: a span
    DATE, INSTANT, LOCAL                                a string: days, microseconds

A float that takes more than one exact operation is noted: its slot and index, and its span, become an item of the
level NOTED, and `valid` is NOTED_NUMBER where it belongs, until somebody stores it.

Text with escapes, and what base64 says, lies in `scratch`, whose bytes are taken as those of the level SCRATCH.
There are never more than the row has read.

What a hostile row can cost is bounded by its size: an item has a byte at least, and the memory of all items is held
to MEMORY_PER_BYTE for each byte of the row and MEMORY_FREE; depth by the size of the stack. Names of a map are found
by a hash that nobody outside knows.

Arguments have the forms that `records` describes; `errors` and `stack` are int64.

Source: RFC 8259; RFC 4648, section 4; Clinger, "How to Read Floating Point Numbers Accurately", for exact operations.
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

NODE_COLUMNS = 11
(
    KIND, SLOT, LEVEL, END, NEXT, NAME, NAME_SIZE, PLAIN_SIZE, FIRST, SECOND, THIRD,
) = (np.uint64(number) for number in range(NODE_COLUMNS))  # fmt: skip
(
    PASS, TEXT, STRUCT, LIST, MAP, BOOLEAN, WHOLE, DECIMAL, FLOAT, DOUBLE, BINARY, DATE, INSTANT, LOCAL,
) = range(14)  # fmt: skip

SCRATCH, NOTED = NOWHERE, 2  # levels
NOTED_PLACES, NOTED_SPANS = 1, 2  # slots
NOTED_NUMBER = 2  # in `valid`
DUPLICATES, ZONE, DIGITS, STRINGS = 1, 2, 4, 8  # what is not an error

# Errors of a row. Where one of the first four is at the end, it is EMPTY or TRUNCATED.
(
    NO_VALUE, NO_NAME, NO_COLON, NO_COMMA, EMPTY, TRUNCATED, BAD_NUMBER, BAD_ESCAPE, LONE_SURROGATE, CONTROL, BAD_TEXT,
    TRAILING_BYTES, TOO_DEEP, TOO_MUCH_MEMORY, DUPLICATE, WRONG_TYPE, BAD_FORM, FRACTION, OUT_OF_RANGE, NO_ZONE,
    HAS_ZONE,
) = range(1, 22)  # fmt: skip

STACK_COLUMNS = 6
_NODE, _INDEX, _CLOSER, _START, _INSTANCE, _EXPECTED = (np.uint64(n) for n in range(STACK_COLUMNS))

_0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10 = (np.uint64(number) for number in range(11))
_12, _16, _32 = np.uint64(12), np.uint64(16), np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_ZERO = np.uint64(ord("0"))
_SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _DOT, _EQUALS = (
    np.uint8(ord(character)) for character in ' "\\,:-+.='
)
_DIGIT_0, _DIGIT_9, _T, _F, _N, _E, _U, _Z = (np.uint8(ord(one)) for one in "09tfneuz")
_BRACKET, _BRACE, _NOT_ASCII, _LOWER = (np.uint8(number) for number in (0x5B, 0x7B, 0x80, 0x20))
_TO_CLOSER = np.uint8(2)  # from an opening bracket or brace

_WORDS = np.frombuffer(b"truefalsenullNaN-Infinity", np.uint8)
_TRUE, _FALSE, _NULL, _NAN, _MINUS_INFINITY = (np.uint64(at) for at in (0, 4, 9, 13, 16))
_WORD_OF, _WORD_SIZES = np.zeros(256, np.uint64), np.zeros(256, np.uint64)  # by their first byte
_WORD_OF[[*b"tfn"]], _WORD_SIZES[[*b"tfn"]] = [_TRUE, _FALSE, _NULL], [4, 5, 4]

_DIGITS_MAX = 19  # as a number of 64 bits
_EXPONENT_MAX = 10**15  # more than any row has digits
_POWERS = np.array([10**power for power in range(_DIGITS_MAX + 1)], np.uint64)
_FLOAT_POWERS = np.array([float(10**power) for power in range(23)])
_NOWHERE = np.uint64(2**63)  # beyond any end
_NO_NUMBER = 100_000  # more than any two digits or offset
_EXACT_FLOAT, _EXACT_DOUBLE = np.uint64(2**24), np.uint64(2**53)
_NANOS = np.uint64(1_000)  # of a microsecond
_DAY_S, _ZONE_MAX_S = 86_400, 18 * 3_600
_LEAST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999

_ESCAPED = np.zeros(256, np.uint8)
_ESCAPED[[*b'"\\/bfnrt']] = [*b'"\\/\b\f\n\r\t']
_HEX = np.full(256, 16, np.uint8)
_HEX[[*b"0123456789abcdefABCDEF"]] = [*range(16), *range(10, 16)]
_BASE64 = np.full(256, 64, np.uint8)
_BASE64[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"]] = range(64)


# Helpers: compiled into the kernels that call them.


def _next_byte(data: Any, position: Any, end: Any) -> Any:
    """Return the position of the next byte that is no space, and the byte: 0 at the end."""
    while position < end:
        byte = data[position]
        if byte > _SPACE or not (byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09):
            return position, byte
        position = position + _1
    return position, np.uint8(0)


def _equals(data: Any, position: Any, others: Any, at: Any, size: Any) -> Any:
    """Return True if `size` bytes are the same in two arrays."""
    for k in range(size):
        if data[position + k] != others[at + k]:
            return False
    return True


def _is_word(data: Any, position: Any, stop: Any, word: Any, size: Any) -> Any:
    """Return True if bytes are a word of _WORDS."""
    return stop - position == size and _equals(data, position, _WORDS, word, size)


def _span(begin: Any, stop: Any, is_in_scratch: Any) -> Any:
    """Return the span of bytes."""
    span = np.int64(begin << _32 | (stop - begin))
    return span | IN_OTHER_BYTES if is_in_scratch else span


def _read_hex(data: Any, position: Any, end: Any) -> Any:
    """Return the number of four hexadecimal digits, or -1."""
    number = np.int64(0)
    if end - position < _4:
        return np.int64(-1)
    for k in range(_4):
        digit = np.int64(_HEX[data[position + k]])
        if digit > 15:
            return np.int64(-1)
        number = number << 4 | digit
    return number


def _read_escape(data: Any, position: Any, end: Any) -> Any:
    """Return the character of the escape behind a backslash, its size with the backslash, and an error."""
    if end - position < _2:
        return np.int64(0), _0, TRUNCATED
    byte = data[position + _1]
    if byte != _U:
        character = np.int64(_ESCAPED[byte])
        return character, _2, BAD_ESCAPE if character == 0 else 0
    character = _read_hex(data, position + _2, end)
    if character < 0:
        return character, _0, BAD_ESCAPE
    if character < 0xD800 or character > 0xDFFF:
        return character, _6, 0
    if character < 0xDC00 and end - position >= _12:
        if data[position + _6] == _BACKSLASH and data[position + _7] == _U:
            low = _read_hex(data, position + _8, end)
            if low >= 0xDC00 and low <= 0xDFFF:
                return 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00), _12, 0
    return character, _0, LONE_SURROGATE


def _scan_string(data: Any, position: Any, end: Any) -> Any:
    """Find the end of the string whose first byte is at `position`; return it, whether it has escapes, an error."""
    start, bits, has_escapes = position, np.uint8(0), False
    while position < end:
        byte = data[position]
        if byte == _QUOTE:
            if bits >= _NOT_ASCII and not _is_utf8(data, start, position):
                return start, has_escapes, BAD_TEXT
            return position, has_escapes, 0
        if byte < _SPACE:
            return position, has_escapes, CONTROL
        bits = bits | byte
        if byte == _BACKSLASH:
            has_escapes = True
            _, size, error = _read_escape(data, position, end)
            if error != 0:
                return position, has_escapes, error
            position = position + size
        else:
            position = position + _1
    return position, has_escapes, TRUNCATED


def _unescape(data: Any, position: Any, stop: Any, scratch: Any, counts: Any) -> Any:
    """Write a string that has been scanned without its escapes, in UTF-8; return where that begins and ends."""
    begin = to = np.uint64(counts[SCRATCH])
    while position < stop:
        character, size = np.int64(data[position]), _1
        if character == _BACKSLASH:
            character, size, _ = _read_escape(data, position, stop)
        position = position + size
        more = 0
        if size > _1:
            more = int(character > 0x7F) + int(character > 0x7FF) + int(character > 0xFFFF)
        lead = 0 if more == 0 else (0xFF00 >> (more + 1)) & 0xFF
        scratch[to] = np.uint8(lead | character >> 6 * more)
        for k in range(more):
            scratch[to + _1 + np.uint64(k)] = np.uint8(
                0x80 | character >> 6 * (more - k - 1) & 0x3F
            )
        to = to + _1 + np.uint64(more)
    counts[SCRATCH] = np.int64(to)
    return begin, to


def _hash(data: Any, position: Any, size: Any, seed: Any) -> Any:
    """Return a hash of bytes; `seed` is odd."""
    number = size
    for k in range(size):
        number = (number ^ np.uint64(data[position + k])) * seed
        number = number ^ (number >> _32)
    return number


def _find_field(
    source: Any,
    position: Any,
    size: Any,
    nodes: Any,
    names: Any,
    hashes: Any,
    struct: Any,
    seed: Any,
) -> Any:
    """Return the node of the field that has a name, 0 for none."""
    table, mask = np.uint64(nodes[struct, FIRST]), np.uint64(nodes[struct, SECOND])
    at = _hash(source, position, size, seed) & mask
    while hashes[table + at] != 0:
        node = np.uint64(hashes[table + at])
        if np.uint64(nodes[node, NAME_SIZE]) == size and _equals(
            source, position, names, np.uint64(nodes[node, NAME]), size
        ):
            return node
        at = (at + _1) & mask
    return _0


def _is_new(
    source: Any, position: Any, size: Any, data: Any, text: Any, spans: Any, index: Any, keys: Any, instance: Any,
    oldest: Any, seed: Any,
) -> Any:  # fmt: skip
    """Return True if a map has no name of these bytes yet, and note that item `index` has it.

    `keys` has the instance and the item of each name; those of other rows are older than `oldest`.
    """
    mask = np.uint64(keys.shape[0]) - _1
    at = _hash(source, position, size, seed) & mask
    while keys[at, _0] > oldest:
        span = spans[np.uint64(keys[at, _1])]
        other = text if span < 0 else data
        begin = np.uint64(span & ~IN_OTHER_BYTES) >> _32
        if (
            keys[at, _0] == instance
            and np.uint64(span) & _LOW_32 == size
            and _equals(source, position, other, begin, size)
        ):
            return False
        at = (at + _1) & mask
    keys[at, _0], keys[at, _1] = instance, np.int64(index)
    return True


def _forget_value(
    nodes: Any, node: Any, index: Any, values: Any, valid: Any, bases: Any, counts: Any, lows: Any
) -> None:
    """Clear a field at `index`, with all its items, which are the last of their levels."""
    own, end = nodes[node, LEVEL], np.uint64(nodes[node, END])
    for each in range(node, end):
        level, slot = nodes[each, LEVEL], np.uint64(nodes[each, SLOT])
        low, high = np.uint64(lows[level]), np.uint64(counts[level])
        if level == own:
            low, high = index, index + _1
        items = np.int64(0)
        for item in range(low, high):
            items = items + values[bases[slot] + item]
            values[bases[slot] + item] = 0
            valid[bases[slot] + item] = 0
            if nodes[each, KIND] == DECIMAL:
                values[bases[slot + _1] + item] = 0
        if nodes[each, KIND] == LIST or nodes[each, KIND] == MAP:
            lows[nodes[each, FIRST]] = counts[nodes[each, FIRST]] - items
    for each in range(node, end):
        if nodes[each, KIND] == LIST or nodes[each, KIND] == MAP:
            counts[nodes[each, FIRST]] = lows[nodes[each, FIRST]]


def _read_digits(source: Any, position: Any, end: Any, number: Any, count: Any) -> Any:
    """Read digits; return where they end, the number with them, and how many it has without leading zeros."""
    while position < end:
        digit = np.uint64(source[position]) - _ZERO
        if digit > _9:
            break
        number = number * _10 + digit  # wraps around where nobody asks for it
        if count > 0 or digit > _0:
            count = count + 1
        position = position + _1
    return position, number, count


def _read_number(source: Any, position: Any, end: Any) -> Any:
    """Read a number: where it ends, its digits as a number, how many these are, the exponent of ten, and the sign.

    The digits are a number where there are at most _DIGITS_MAX. Of zero the exponent is 0. What is not a number of
    JSON ends at _NOWHERE.
    """
    is_negative = position < end and source[position] == _MINUS
    start = position + _1 if is_negative else position
    position, number, count = _read_digits(source, start, end, _0, np.int64(0))
    exponent, bad = np.int64(0), (_NOWHERE, _0, np.int64(0), np.int64(0), False)
    if position == start or (position - start > _1 and np.uint64(source[start]) == _ZERO):
        return bad
    if position < end and source[position] == _DOT:
        start = position + _1
        position, number, count = _read_digits(source, start, end, number, count)
        if position == start:
            return bad
        exponent = -np.int64(position - start)
    if position < end and (source[position] | _LOWER) == _E:
        start = position + _1
        is_below = start < end and source[start] == _MINUS
        if start < end and (is_below or source[start] == _PLUS):
            start = start + _1
        position, size, digits = _read_digits(source, start, end, _0, np.int64(0))
        if position == start:
            return bad
        power = np.int64(_EXPONENT_MAX) if digits > 15 else np.int64(size)
        exponent = exponent - power if is_below else exponent + power
    return position, number, count, exponent if count > 0 else np.int64(0), is_negative


def _first_digits(source: Any, position: Any, end: Any, keep: Any) -> Any:
    """Return a number's first `keep` digits as 128 bits, and whether another digit than 0 follows them."""
    lower, upper, count, is_cut = _0, _0, np.int64(0), False
    while position < end or count < keep:
        digit = _0
        if position < end:
            digit = np.uint64(source[position]) - _ZERO
            if (source[position] | _LOWER) == _E:
                position = end
                continue
            position = position + _1
            if digit > _9 or (digit == _0 and count == 0):
                continue
        elif count == 0:
            break
        if count < keep:
            low = (lower & _LOW_32) * _10 + digit
            high = (lower >> _32) * _10 + (low >> _32)
            upper = upper * _10 + (high >> _32)
            lower = (high << _32) | (low & _LOW_32)
        elif digit > _0:
            is_cut = True
        count = count + 1
    return lower, upper, is_cut


def _is_below(source: Any, position: Any, end: Any, digits: Any, at: Any, size: Any) -> Any:
    """Return True if a number's digits are below others, both as fractions; the last of the others is not 0."""
    k = _0
    while position < end and k < size:
        byte = source[position]
        position = position + _1
        if (byte | _LOWER) == _E:
            break
        if np.uint64(byte) - _ZERO > _9 or (k == _0 and byte == _DIGIT_0):
            continue
        if byte != digits[at + k]:
            return byte < digits[at + k]
        k = k + _1
    return k < size


def _two(source: Any, position: Any) -> Any:
    """Return the number of two digits, or _NO_NUMBER."""
    first, second = np.uint64(source[position]) - _ZERO, np.uint64(source[position + _1]) - _ZERO
    if first > _9 or second > _9:
        return np.int64(_NO_NUMBER)
    return np.int64(first * _10 + second)


def _read_date(source: Any, position: Any, stop: Any) -> Any:
    """Return the days since 1970 of year-month-day, and an error."""
    if stop - position != _10:
        return np.int64(0), BAD_FORM
    year = _two(source, position) * 100 + _two(source, position + _2)
    month, day = _two(source, position + _5), _two(source, position + _8)
    days = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        days = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    is_formed = source[position + _4] == _MINUS and source[position + _7] == _MINUS
    if not is_formed or year < 1 or year > 9999 or month < 1 or month > 12 or day < 1 or day > days:
        return np.int64(0), BAD_FORM
    if month < 3:  # years that begin in March end with the day that only some have
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5
    return days + day - 719_469, 0


def _read_zone(source: Any, position: Any, stop: Any) -> Any:
    """Return the seconds of a zone's offset, _NO_NUMBER for what is no zone."""
    size, sign = stop - position, source[position]
    if size == _1:
        return np.int64(0 if (sign | _LOWER) == _Z else _NO_NUMBER)
    is_formed = size == _3 or size == _5 or (size == _6 and source[position + _3] == _COLON)
    if not is_formed or (sign != _PLUS and sign != _MINUS):
        return np.int64(_NO_NUMBER)
    minutes = np.int64(0) if size == _3 else _two(source, stop - _2)
    offset = _two(source, position + _1) * 3_600 + minutes * 60
    if minutes > 59 or offset > _ZONE_MAX_S:
        return np.int64(_NO_NUMBER)
    return -offset if sign == _MINUS else offset


def _read_time(source: Any, position: Any, stop: Any, is_instant: Any, lenient: Any) -> Any:
    """Return the microseconds since 1970 of a date and time, and an error."""
    if stop - position < _16:
        return np.int64(0), BAD_FORM
    days, error = _read_date(source, position, position + _10)
    between, colon = source[position + _10], source[position + np.uint64(13)]
    hour, minute = _two(source, position + np.uint64(11)), _two(source, position + np.uint64(14))
    at, second, parts, size, offset = position + _16, np.int64(0), _0, _1, np.int64(0)
    if at < stop and source[at] == _COLON:
        second = _two(source, at + _1) if stop - at >= _3 else np.int64(_NO_NUMBER)
        at = at + _3
        if at < stop and source[at] == _DOT:
            start = at + _1
            at, parts, _ = _read_digits(source, start, stop, _0, np.int64(0))
            size = at - start
    has_zone = at < stop
    if has_zone:
        offset = _read_zone(source, at, stop)
    is_formed = colon == _COLON and ((between | _LOWER) == _T or between == _SPACE)
    is_right = hour < 24 and minute < 60 and second < 60 and offset != _NO_NUMBER
    if error != 0 or not is_formed or not is_right or size == _0 or size > _9:
        return days, BAD_FORM
    parts = parts * _POWERS[_9 - size]
    if is_instant != has_zone and lenient & ZONE == 0:
        error = NO_ZONE if is_instant else HAS_ZONE
    elif parts % _NANOS != _0 and lenient & DIGITS == 0:
        error = FRACTION
    seconds = days * _DAY_S + hour * 3_600 + minute * 60 + second - (offset if is_instant else 0)
    micros = seconds * 1_000_000 + np.int64(parts // _NANOS)
    is_in_range = micros >= _LEAST_TIME and micros <= _LAST_TIME
    return micros, error if is_in_range else OUT_OF_RANGE


def _read_special(source: Any, position: Any, stop: Any) -> Any:
    """Return the float that a string names which JSON has no number for, 0 for any other string."""
    if _is_word(source, position, stop, _NAN, _3):
        return np.nan
    if _is_word(source, position, stop, _MINUS_INFINITY, _9):
        return -np.inf
    return np.inf if _is_word(source, position, stop, _MINUS_INFINITY + _1, _8) else 0.0


def _store_float(kind: Any, number: Any, to: Any, singles: Any, doubles: Any) -> None:
    """Store a float or a double."""
    if kind == DOUBLE:
        doubles[to] = number
    else:
        singles[to << _1] = np.float32(number)


def _read_base64(source: Any, position: Any, stop: Any, scratch: Any, to: Any) -> Any:
    """Write what base64 says; return where that ends, and an error. It may be written over its own base64."""
    if (stop - position) % _4 != _0:
        return to, BAD_FORM
    while position < stop:
        size = _3
        if stop - position == _4 and source[position + _3] == _EQUALS:
            size = _1 if source[position + _2] == _EQUALS else _2
        number = _0
        for k in range(_4):
            six = np.uint64(_BASE64[source[position + k]]) if k <= size else _0
            if six > np.uint64(63):
                return to, BAD_FORM
            number = number << _6 | six
        for k in range(size):
            scratch[to + k] = np.uint8(number >> (_16 - _8 * k) & np.uint64(255))
        position, to = position + _4, to + size
    return to, 0


# Kernels.


def decode_rows(
    data: Any,
    begins: Any,
    ends: Any,
    nodes: Any,
    names: Any,
    hashes: Any,
    lenient: Any,
    seed: Any,
    bases: Any,
    slot_levels: Any,
    first_row: Any,
    values: Any,
    singles: Any,
    doubles: Any,
    valid: Any,
    capacity: Any,
    counts: Any,
    saved: Any,
    lows: Any,
    text: Any,
    scratch: Any,
    seen: Any,
    keys: Any,
    stack: Any,
    errors: Any,
    needed: Any,
) -> Any:
    """Decode rows into slots, from `first_row` on, until a level has no room.

    inputs:  data uint8; begins, ends int64[n], where each row's bytes lie, and -1 in begins for a row that is left
             alone; nodes int64[nodes, 11]; names uint8; hashes int64: for each struct open addressing, 0 for
             nothing; lenient, a sum of what is not an error; seed uint64; bases uint64[slots], where each slot starts
             in values; slot_levels int64[slots]; capacity int64[levels], places of each slot of a level; text uint8,
             the same memory as scratch.
    outputs: values int64, zero on entry, and the same memory as singles float32 and doubles float64;
             valid uint8, zero on entry;
             counts int64[levels], places taken by items, continued from call to call; saved and
             lows int64[levels]; scratch uint8, as long as all rows; seen int64[nodes], zero on entry: in which object a field was last
             seen, by a number that the first has the last of; keys int64[m, 2], zero on entry, m a power of two
             above the number of names that a row has; stack int64[depth, 6]: for the kernel's own use;
             errors int64[3, n]: error, 0 for none; where in the row; the node;
             needed int64[2], a level that has no room for the row, and the places it needs.
    Returns n, or the row that found no room. Nothing of that row is stored.
    """
    rows_count, levels_count = np.uint64(begins.shape[0]), np.uint64(counts.shape[0])
    depth = np.uint64(stack.shape[0])
    for row in range(np.uint64(first_row), rows_count):
        if begins[row] < 0:
            continue
        position, end = np.uint64(begins[row]), np.uint64(ends[row])
        budget = np.int64(end - position) * MEMORY_PER_BYTE + MEMORY_FREE
        for each in range(levels_count):
            saved[each] = counts[each]
        oldest = seen[_0]
        node, index, top, error = _1, np.uint64(row), _0, 0
        while True:
            # A value.
            position, byte = _next_byte(data, position, end)
            at, kind = position, nodes[node, KIND]
            to = bases[np.uint64(nodes[node, SLOT])] + index
            begin, stop, has_escapes, is_opened, is_number = position, position, False, False, False
            number, digits, exponent, is_negative = _0, np.int64(0), np.int64(0), False
            if byte == _QUOTE:
                begin = position + _1
                stop, has_escapes, error = _scan_string(data, begin, end)
                if error != 0:
                    at = stop
                    break
                position = stop + _1
                if has_escapes and kind != PASS:
                    begin, stop = _unescape(data, begin, stop, scratch, counts)
                source = text if has_escapes else data
                if kind == TEXT:
                    values[to] = _span(begin, stop, has_escapes)
                elif kind == INSTANT or kind == LOCAL:
                    values[to], error = _read_time(source, begin, stop, kind == INSTANT, lenient)
                elif kind == DATE:
                    values[to], error = _read_date(source, begin, stop)
                elif kind == BINARY:
                    taken = begin if has_escapes else np.uint64(counts[SCRATCH])
                    stop, error = _read_base64(source, begin, stop, scratch, taken)
                    values[to], counts[SCRATCH] = _span(taken, stop, True), np.int64(stop)
                elif kind >= FLOAT and kind <= DOUBLE and _read_special(source, begin, stop) != 0.0:
                    _store_float(kind, _read_special(source, begin, stop), to, singles, doubles)
                elif kind == DECIMAL or (kind >= WHOLE and kind <= DOUBLE and lenient & STRINGS):
                    after, number, digits, exponent, is_negative = _read_number(source, begin, stop)
                    is_number, error = True, 0 if after == stop else BAD_FORM
                elif kind == BOOLEAN and lenient & STRINGS:
                    values[to] = np.int64(_is_word(source, begin, stop, _TRUE, _4))
                    error = (
                        0
                        if values[to] == 1 or _is_word(source, begin, stop, _FALSE, _5)
                        else BAD_FORM
                    )
                elif kind != PASS:
                    error = WRONG_TYPE
            elif byte == _BRACE or byte == _BRACKET:
                is_array = byte == _BRACKET
                if (
                    kind > MAP
                    or (kind == LIST and not is_array)
                    or ((kind == STRUCT or kind == MAP) and is_array)
                ):
                    error = WRONG_TYPE
                elif top == depth:
                    error = TOO_DEEP
                else:
                    is_opened = True
                    seen[_0] += 1
                    stack[top, _NODE], stack[top, _INDEX] = np.int64(node), np.int64(index)
                    stack[top, _CLOSER], stack[top, _START] = (
                        np.int64(byte + _TO_CLOSER),
                        np.int64(position),
                    )
                    stack[top, _INSTANCE], stack[top, _EXPECTED] = seen[_0], 0
                    if kind == STRUCT and np.uint64(nodes[node, END]) > node + _1:
                        stack[top, _EXPECTED] = np.int64(node + _1)
                    elif kind == LIST or kind == MAP:
                        stack[top, _START] = counts[np.uint64(nodes[node, FIRST])]
                    top, position = top + _1, position + _1
            else:
                is_digit = byte == _MINUS or (byte >= _DIGIT_0 and byte <= _DIGIT_9)
                if is_digit:
                    stop, number, digits, exponent, is_negative = _read_number(data, begin, end)
                    is_number, error = (
                        kind >= WHOLE and kind <= DOUBLE,
                        0 if stop <= end else BAD_NUMBER,
                    )
                else:
                    stop = min(end, begin + _WORD_SIZES[byte])
                    is_word = stop > begin and _is_word(
                        data, begin, stop, _WORD_OF[byte], _WORD_SIZES[byte]
                    )
                    error = 0 if is_word else NO_VALUE
                position = stop
                if kind == TEXT:
                    values[to] = _span(begin, stop, False) if byte != _N else 0
                elif kind == BOOLEAN and not is_digit:
                    values[to] = np.int64(byte == _T)
                elif error == 0 and kind != PASS and byte != _N and not is_number:
                    error = WRONG_TYPE
            if error != 0:
                break
            if kind != PASS and byte != _N:
                valid[to] = 1
            source = text if has_escapes else data
            if is_number and kind >= FLOAT:
                power, most = nodes[node, THIRD], _EXACT_DOUBLE if kind == DOUBLE else _EXACT_FLOAT
                if (
                    digits <= _DIGITS_MAX
                    and number <= most
                    and exponent <= power
                    and -exponent <= power
                ):
                    # One operation, whose result is the nearest float even where it is a double before.
                    exact = np.float64(number)
                    if exponent < 0:
                        exact = exact / _FLOAT_POWERS[np.uint64(-exponent)]
                    else:
                        exact = exact * _FLOAT_POWERS[np.uint64(exponent)]
                    _store_float(kind, -exact if is_negative else exact, to, singles, doubles)
                else:
                    limit, places = np.uint64(nodes[node, FIRST]), nodes[node, SECOND]
                    if digits + exponent > places or (
                        digits + exponent == places
                        and not _is_below(source, begin, stop, names, limit, np.uint64(places))
                    ):
                        error = OUT_OF_RANGE
                        break
                    if counts[NOTED] == capacity[NOTED]:
                        needed[_0], needed[_1], error = NOTED, counts[NOTED] + 1, NO_ROOM
                        break
                    place = np.uint64(counts[NOTED])
                    values[bases[NOTED_PLACES] + place] = nodes[node, SLOT] << 32 | np.int64(index)
                    values[bases[NOTED_SPANS] + place] = _span(begin, stop, has_escapes)
                    valid[to], valid[bases[NOTED_SPANS] + place] = NOTED_NUMBER, 1
                    counts[NOTED] += 1
            elif is_number:
                shift = exponent + nodes[node, THIRD]
                keep, lower, upper, is_cut = digits + shift, number, _0, False
                if keep > nodes[node, SECOND]:
                    error = OUT_OF_RANGE
                elif shift > 0 and keep <= _DIGITS_MAX:
                    lower = number * _POWERS[np.uint64(shift)]
                elif shift != 0 or digits > _DIGITS_MAX:
                    lower, upper, is_cut = _first_digits(source, begin, stop, keep)
                if kind == WHOLE and lower > np.uint64(nodes[node, FIRST]) + np.uint64(is_negative):
                    error = OUT_OF_RANGE
                elif is_cut and lenient & DIGITS == 0:
                    error = FRACTION
                if error != 0:
                    break
                if is_negative:
                    lower, upper = ~lower + _1, ~upper + np.uint64(lower == _0)
                values[to] = np.int64(lower)
                if kind == DECIMAL:
                    values[bases[np.uint64(nodes[node, SLOT]) + _1] + index] = np.int64(upper)
            # What follows: the next item or field, or the end of what holds it.
            while top > _0:
                frame = top - _1
                node, index = np.uint64(stack[frame, _NODE]), np.uint64(stack[frame, _INDEX])
                position, byte = _next_byte(data, position, end)
                at, kind, closer = position, nodes[node, KIND], np.uint8(stack[frame, _CLOSER])
                if byte == closer:
                    position, top, is_opened = position + _1, frame, False
                    to = bases[np.uint64(nodes[node, SLOT])] + index
                    if kind == LIST or kind == MAP:
                        values[to] = counts[np.uint64(nodes[node, FIRST])] - stack[frame, _START]
                    elif kind == TEXT:
                        values[to] = _span(np.uint64(stack[frame, _START]), position, False)
                    continue
                if not is_opened:
                    if byte != _COMMA:
                        error = NO_COMMA
                        break
                    position, byte = _next_byte(data, position + _1, end)
                    at = position
                if kind == LIST or kind == MAP:
                    level = np.uint64(nodes[node, FIRST])
                    budget = budget - nodes[node, SECOND]
                    if budget < 0:
                        error = TOO_MUCH_MEMORY
                        break
                    if counts[level] == capacity[level]:
                        needed[_0], needed[_1], error = np.int64(level), counts[level] + 1, NO_ROOM
                        break
                    index = np.uint64(counts[level])
                    counts[level] += 1
                if closer == _BRACKET + _TO_CLOSER:
                    node = node + _1 if kind == LIST else _0
                    break
                if byte != _QUOTE:
                    error = NO_NAME
                    break
                begin, field = position + _1, np.uint64(stack[frame, _EXPECTED])
                size = np.uint64(nodes[field, PLAIN_SIZE])
                if (
                    end - begin > size
                    and data[begin + size] == _QUOTE
                    and _equals(data, begin, names, np.uint64(nodes[field, NAME]), size)
                ):
                    position = begin + size + _1
                else:
                    stop, has_escapes, error = _scan_string(data, begin, end)
                    if error != 0:
                        at = stop
                        break
                    position, field = stop + _1, _0
                    if has_escapes:
                        begin, stop = _unescape(data, begin, stop, scratch, counts)
                    source, size = text if has_escapes else data, stop - begin
                    if kind == STRUCT:
                        field = _find_field(source, begin, size, nodes, names, hashes, node, seed)
                    elif kind == MAP:
                        field, first = node + _2, bases[np.uint64(nodes[node + _1, SLOT])]
                        if lenient & DUPLICATES == 0 and not _is_new(
                            source, begin, size, data, text, values[first:], index, keys, stack[frame, _INSTANCE],
                            oldest, seed,
                        ):  # fmt: skip
                            error = DUPLICATE
                            break
                        values[first + index], valid[first + index] = (
                            _span(begin, stop, has_escapes),
                            1,
                        )
                if kind == STRUCT and field != _0:
                    if seen[field] == stack[frame, _INSTANCE]:
                        if lenient & DUPLICATES == 0:
                            error, node = DUPLICATE, field
                            break
                        _forget_value(nodes, field, index, values, valid, bases, counts, lows)
                    seen[field], stack[frame, _EXPECTED] = (
                        stack[frame, _INSTANCE],
                        nodes[field, NEXT],
                    )
                position, byte = _next_byte(data, position, end)
                if byte != _COLON:
                    error, at = NO_COLON, position
                    break
                node, position = field, position + _1
                break
            if error != 0 or top == _0:
                break
        if error == 0:
            at, byte = _next_byte(data, position, end)
            error = 0 if at == end else TRAILING_BYTES
        elif error <= NO_COMMA and at == end:
            error = TRUNCATED if top > _0 else EMPTY
        if error != 0:
            _forget_row(values, valid, bases, slot_levels, saved, counts, row)
            if error == NO_ROOM:
                return np.int64(row)
            while node == _0 and top > _0:
                top = top - _1
                node = np.uint64(stack[top, _NODE])
            errors[_0, row] = error
            errors[_1, row] = np.int64(at) - begins[row]
            errors[_2, row] = np.int64(node)
    return np.int64(rows_count)


HELPERS = (
    "_next_byte", "_equals", "_is_word", "_span", "_read_hex", "_read_escape", "_is_utf8", "_scan_string", "_unescape", "_hash",
    "_find_field", "_is_new", "_forget_value", "_read_digits", "_read_number", "_first_digits", "_is_below", "_two",
    "_read_date", "_read_zone", "_read_time", "_read_special", "_store_float", "_read_base64", "_forget_row",
)  # fmt: skip


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i64, u64 = jit.array("u1"), jit.array("i8"), jit.array("u8")
    values, levels = jit.array("i8", out=True), jit.array("i8", 2, out=True)
    grids = [jit.array("i8", shape, out=True) for shape in ((1, 2), (1, STACK_COLUMNS), (3, 0))]
    return {
        "decode_rows": (
            u8, i64, i64, jit.array("i8", (0, NODE_COLUMNS)), u8, i64, 0, np.uint64(1), u64, i64, 0,
            values, values.view(np.float32), values.view(np.float64), jit.array("u1", out=True),
            levels, levels, levels, levels, u8, jit.array("u1", out=True), levels, *grids, levels,
        ),
    }  # fmt: skip


# A row's share, and its bytes.
PLAIN_US = {
    "decode_rows": lambda _data, begins, ends, *_: int(
        20 * begins.shape[0] + 5 * (ends - begins).sum()
    )
}

load = jit.compile_on_first_call(globals(), HELPERS, examples, PLAIN_US)
