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

# Errors of a row.
(
    EMPTY, TRUNCATED, NO_VALUE, NO_NAME, NO_COLON, NO_COMMA, BAD_NUMBER, BAD_ESCAPE, LONE_SURROGATE, CONTROL, BAD_TEXT,
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
_TRUE, _FALSE, _NULL, _NAN, _MINUS_INFINITY, _INFINITY = (
    np.uint64(at) for at in (0, 4, 9, 13, 16, 17)
)

_DIGITS_MAX = 19  # as a number of 64 bits
_EXPONENT_MAX = 10**15  # more than any row has digits
_POWERS = np.array([10**power for power in range(_DIGITS_MAX + 1)], np.uint64)
_FLOAT_POWERS = np.array([float(10**power) for power in range(23)])
_NO_NUMBER = 10_000
_NO_DATE = np.int64(-(2**62))
_DAY_S, _ZONE_MAX_S = 86_400, 18 * 3_600
_LEAST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999

_ESCAPED = np.zeros(256, np.uint8)
_ESCAPED[[*b'"\\/bfnrt']] = [*b'"\\/\b\f\n\r\t']
_HEX = np.full(256, 16, np.uint8)
_HEX[[*b"0123456789abcdefABCDEF"]] = [*range(16), *range(10, 16)]
_BASE64 = np.full(256, 64, np.uint8)
_BASE64[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"]] = range(64)


# Helpers: compiled into the kernels that call them.


def _past_spaces(data: Any, position: Any, end: Any) -> Any:
    """Return the position of the next byte that is no space."""
    while position < end:
        byte = data[position]
        if byte > _SPACE or not (byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09):
            break
        position = position + _1
    return position


def _equals(data: Any, position: Any, others: Any, at: Any, size: Any) -> Any:
    """Return True if `size` bytes are the same in two arrays."""
    for k in range(size):
        if data[position + k] != others[at + k]:
            return False
    return True


def _is_word(data: Any, position: Any, end: Any, word: Any, size: Any) -> Any:
    """Return True if bytes begin with a word of _WORDS."""
    return end - position >= size and _equals(data, position, _WORDS, word, size)


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


def _unescape(data: Any, position: Any, stop: Any, scratch: Any, to: Any) -> Any:
    """Write a string that has been scanned without its escapes, in UTF-8; return where that ends."""
    while position < stop:
        byte = data[position]
        if byte != _BACKSLASH:
            scratch[to] = byte
            position, to = position + _1, to + _1
            continue
        character, size, _ = _read_escape(data, position, stop)
        position = position + size
        more = int(character > 0x7F) + int(character > 0x7FF) + int(character > 0xFFFF)
        lead = 0 if more == 0 else (0xFF00 >> (more + 1)) & 0xFF
        scratch[to] = np.uint8(lead | character >> 6 * more)
        to = to + _1
        for _k in range(more):
            more = more - 1
            scratch[to] = np.uint8(0x80 | character >> 6 * more & 0x3F)
            to = to + _1
    return to


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
    source: Any, position: Any, size: Any, data: Any, text: Any, values: Any, first: Any, index: Any,
    keys: Any, instance: Any, oldest: Any, seed: Any,
) -> Any:  # fmt: skip
    """Return True if a map has no name of these bytes yet, and note that item `index` has it.

    `keys` has the instance and the item of each name; those of other rows are older than `oldest`.
    """
    mask = np.uint64(keys.shape[0]) - _1
    at = _hash(source, position, size, seed) & mask
    while keys[at, _0] > oldest:
        if keys[at, _0] == instance:
            span = values[first + np.uint64(keys[at, _1])]
            other = np.uint64(span & ~IN_OTHER_BYTES)
            other_at, other_size = other >> _32, other & _LOW_32
            if other_size == size:
                if span < 0 and _equals(source, position, text, other_at, size):
                    return False
                if span >= 0 and _equals(source, position, data, other_at, size):
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
        level, kind = nodes[each, LEVEL], nodes[each, KIND]
        low, high = np.uint64(lows[level]), np.uint64(counts[level])
        if level == own:
            low, high = index, index + _1
        base, items = bases[np.uint64(nodes[each, SLOT])], np.int64(0)
        for item in range(low, high):
            items = items + values[base + item]
            values[base + item] = 0
            valid[base + item] = 0
        if kind == DECIMAL:
            upper = bases[np.uint64(nodes[each, SLOT]) + _1]
            for item in range(low, high):
                values[upper + item] = 0
        if kind == LIST or kind == MAP:
            below = nodes[each, FIRST]
            lows[below] = counts[below] - items
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

    The digits are a number where there are at most _DIGITS_MAX. The end is 0 for what is not a number of JSON.
    """
    is_negative = position < end and source[position] == _MINUS
    start = position + _1 if is_negative else position
    position, number, count = _read_digits(source, start, end, _0, np.int64(0))
    exponent, bad = np.int64(0), (_0, _0, np.int64(0), np.int64(0), False)
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
    return position, number, count, exponent, is_negative


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


def _read_days(source: Any, position: Any) -> Any:
    """Return the days since 1970 of ten bytes, year-month-day, or _NO_DATE."""
    year = _two(source, position) * 100 + _two(source, position + _2)
    month, day = _two(source, position + _5), _two(source, position + _8)
    is_formed = source[position + _4] == _MINUS and source[position + _7] == _MINUS
    if not is_formed or year < 1 or year > 9999 or month < 1 or month > 12 or day < 1:
        return _NO_DATE
    days = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        days = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if day > days:
        return _NO_DATE
    if month < 3:  # years that begin in March end with the day that only some have
        year, month = year - 1, month + 12
    return (
        365 * year
        + year // 4
        - year // 100
        + year // 400
        + (153 * month - 457) // 5
        + day
        - 719_469
    )


def _read_time(source: Any, position: Any, stop: Any, is_instant: Any, lenient: Any) -> Any:
    """Return the microseconds since 1970 of a date and time, and an error."""
    bad = np.int64(0), BAD_FORM
    if stop - position < _16:
        return bad
    days = _read_days(source, position)
    between = source[position + _10]
    hour, minute, second = (
        _two(source, position + np.uint64(11)),
        _two(source, position + np.uint64(14)),
        np.int64(0),
    )
    if days == _NO_DATE or source[position + np.uint64(13)] != _COLON or hour > 23 or minute > 59:
        return bad
    if (between | _LOWER) != _T and between != _SPACE:
        return bad
    at, micros, error = position + _16, np.int64(0), 0
    if at < stop and source[at] == _COLON:
        second = _two(source, at + _1) if stop - at >= _3 else np.int64(_NO_NUMBER)
        if second > 59:
            return bad
        at = at + _3
        if at < stop and source[at] == _DOT:
            start = at + _1
            at, parts, _ = _read_digits(source, start, stop, _0, np.int64(0))
            size = at - start
            if size == _0 or size > _9:
                return bad
            parts = parts * _POWERS[_9 - size]
            if parts % np.uint64(1000) != _0 and lenient & DIGITS == 0:
                error = FRACTION
            micros = np.int64(parts // np.uint64(1000))
    left, offset = stop - at, np.int64(0)
    if left > _0:
        sign = source[at]
        if (sign | _LOWER) == _Z:
            if left != _1:
                return bad
        elif sign == _PLUS or sign == _MINUS:
            if left != _3 and left != _5 and not (left == _6 and source[at + _3] == _COLON):
                return bad
            minutes = np.int64(0) if left == _3 else _two(source, stop - _2)
            offset = _two(source, at + _1) * 3_600 + minutes * 60
            if minutes > 59 or offset > _ZONE_MAX_S:
                return bad
            if sign == _MINUS:
                offset = -offset
        else:
            return bad
    if is_instant != (left > _0) and lenient & ZONE == 0:
        error = NO_ZONE if is_instant else HAS_ZONE
    seconds = days * _DAY_S + hour * 3_600 + minute * 60 + second
    if is_instant:
        seconds = seconds - offset
    micros = seconds * 1_000_000 + micros
    if micros < _LEAST_TIME or micros > _LAST_TIME:
        error = OUT_OF_RANGE
    return micros, error


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
            position = _past_spaces(data, position, end)
            at, kind = position, nodes[node, KIND]
            to = bases[np.uint64(nodes[node, SLOT])] + index
            if position == end:
                error = EMPTY if top == _0 else TRUNCATED
                break
            byte = data[position]
            is_opened, is_number, has_escapes = False, False, False
            begin, stop = position, position
            number, digits, exponent, is_negative = _0, np.int64(0), np.int64(0), False
            if byte == _QUOTE:
                begin = position + _1
                stop, has_escapes, error = _scan_string(data, begin, end)
                if error != 0:
                    at = stop
                    break
                position = stop + _1
                taken = np.uint64(counts[SCRATCH])
                if has_escapes and kind != PASS:
                    stop = _unescape(data, begin, stop, scratch, taken)
                    begin = taken
                if kind == TEXT:
                    values[to] = np.int64(begin << _32 | (stop - begin))
                    valid[to] = 1
                    if has_escapes:
                        values[to] = values[to] | IN_OTHER_BYTES
                        counts[SCRATCH] = np.int64(stop)
                elif kind != PASS:
                    source = text if has_escapes else data
                    if kind == INSTANT or kind == LOCAL:
                        values[to], error = _read_time(
                            source, begin, stop, kind == INSTANT, lenient
                        )
                    elif kind == DATE:
                        days = _read_days(source, begin) if stop - begin == _10 else _NO_DATE
                        values[to] = days
                        error = BAD_FORM if days == _NO_DATE else 0
                    elif kind == BINARY:
                        stop, error = _read_base64(source, begin, stop, scratch, taken)
                        values[to] = np.int64(taken << _32 | (stop - taken)) | IN_OTHER_BYTES
                        counts[SCRATCH] = np.int64(stop)
                    elif kind == BOOLEAN and lenient & STRINGS:
                        size = stop - begin
                        is_true = size == _4 and _is_word(source, begin, stop, _TRUE, _4)
                        if not is_true and not (
                            size == _5 and _is_word(source, begin, stop, _FALSE, _5)
                        ):
                            error = BAD_FORM
                        values[to] = 1 if is_true else 0
                    elif kind == FLOAT or kind == DOUBLE:
                        size, special = stop - begin, 0.0
                        if size == _3 and _is_word(source, begin, stop, _NAN, _3):
                            special = np.nan
                        elif size == _8 and _is_word(source, begin, stop, _INFINITY, _8):
                            special = np.inf
                        elif size == _9 and _is_word(source, begin, stop, _MINUS_INFINITY, _9):
                            special = -np.inf
                        elif lenient & STRINGS:
                            is_number = True
                        else:
                            error = BAD_FORM
                        if kind == DOUBLE:
                            doubles[to] = special
                        else:
                            singles[to << _1] = np.float32(special)
                    elif kind == DECIMAL or (kind == WHOLE and lenient & STRINGS):
                        is_number = True
                    else:
                        error = WRONG_TYPE
                    if is_number:
                        end_of_number, number, digits, exponent, is_negative = _read_number(
                            source, begin, stop
                        )
                        if end_of_number != stop or stop == begin:
                            error = BAD_FORM
                    if error != 0:
                        break
                    valid[to] = 1
            elif byte == _BRACE or byte == _BRACKET:
                if (
                    kind > MAP
                    or (kind == LIST and byte == _BRACE)
                    or ((kind == STRUCT or kind == MAP) and byte == _BRACKET)
                ):
                    error = WRONG_TYPE
                    break
                if top == depth:
                    error = TOO_DEEP
                    break
                seen[_0] += 1
                stack[top, _NODE], stack[top, _INDEX] = np.int64(node), np.int64(index)
                stack[top, _CLOSER], stack[top, _START] = (
                    np.int64(byte + _TO_CLOSER),
                    np.int64(position),
                )
                stack[top, _INSTANCE], stack[top, _EXPECTED] = seen[_0], 0
                if kind != PASS:
                    valid[to] = 1
                if kind == STRUCT and np.uint64(nodes[node, END]) > node + _1:
                    stack[top, _EXPECTED] = np.int64(node + _1)
                elif kind == LIST or kind == MAP:
                    stack[top, _START] = counts[np.uint64(nodes[node, FIRST])]
                top, position, is_opened = top + _1, position + _1, True
            elif byte == _MINUS or (byte >= _DIGIT_0 and byte <= _DIGIT_9):
                position, number, digits, exponent, is_negative = _read_number(data, begin, end)
                if position == _0:
                    error = BAD_NUMBER
                    break
                stop = position
                is_number = kind >= WHOLE and kind <= DOUBLE
            elif byte == _T or byte == _F or byte == _N:
                word, size = _TRUE, _4
                if byte == _F:
                    word, size = _FALSE, _5
                elif byte == _N:
                    word = _NULL
                if not _is_word(data, position, end, word, size):
                    error = NO_VALUE
                    break
                position = position + size
                stop = position
                if kind == BOOLEAN and byte != _N:
                    values[to] = 1 if byte == _T else 0
                    valid[to] = 1
            else:
                error = NO_VALUE
                break
            if is_number:
                if kind == FLOAT or kind == DOUBLE:
                    most, power = np.uint64(1) << np.uint64(53), nodes[node, THIRD]
                    if kind == FLOAT:
                        most = np.uint64(1) << np.uint64(24)
                    if digits == 0 or (
                        digits <= _DIGITS_MAX
                        and number <= most
                        and exponent <= power
                        and -exponent <= power
                    ):
                        exact = np.float64(number)
                        if digits > 0 and exponent < 0:
                            exact = exact / _FLOAT_POWERS[np.uint64(-exponent)]
                        elif digits > 0:
                            exact = exact * _FLOAT_POWERS[np.uint64(exponent)]
                        if is_negative:
                            exact = -exact
                        if kind == DOUBLE:
                            doubles[to] = exact
                        else:
                            singles[to << _1] = np.float32(exact)
                        valid[to] = 1
                    else:
                        source = text if has_escapes else data
                        limit, places = np.uint64(nodes[node, FIRST]), nodes[node, SECOND]
                        if digits + exponent > places or (
                            digits + exponent == places
                            and not _is_below(source, begin, stop, names, limit, np.uint64(places))
                        ):
                            error = OUT_OF_RANGE
                            break
                        if counts[NOTED] == capacity[NOTED]:
                            needed[_0], needed[_1] = NOTED, counts[NOTED] + 1
                            error = NO_ROOM
                            break
                        place = np.uint64(counts[NOTED])
                        values[bases[NOTED_PLACES] + place] = nodes[node, SLOT] << 32 | np.int64(
                            index
                        )
                        span = np.int64(begin << _32 | (stop - begin))
                        if has_escapes:
                            span = span | IN_OTHER_BYTES
                            counts[SCRATCH] = np.int64(stop)
                        values[bases[NOTED_SPANS] + place] = span
                        valid[bases[NOTED_SPANS] + place] = 1
                        counts[NOTED] += 1
                        valid[to] = NOTED_NUMBER
                else:
                    most_digits, shift = nodes[node, SECOND], exponent + nodes[node, THIRD]
                    lower, upper = number, _0
                    if shift != 0 or digits > most_digits or digits > _DIGITS_MAX:
                        if digits > 0 and digits + shift > most_digits:
                            error = OUT_OF_RANGE
                            break
                        if shift > 0 and digits > 0 and digits + shift <= _DIGITS_MAX:
                            lower = number * _POWERS[np.uint64(shift)]
                        else:
                            source = text if has_escapes else data
                            keep = (
                                digits + shift if digits > 0 and digits + shift > 0 else np.int64(0)
                            )
                            lower, upper, is_cut = _first_digits(source, begin, stop, keep)
                            if is_cut and lenient & DIGITS == 0:
                                error = FRACTION
                                break
                    if kind == WHOLE and lower > np.uint64(nodes[node, FIRST]) + np.uint64(
                        is_negative
                    ):
                        error = OUT_OF_RANGE
                        break
                    if is_negative:
                        upper = ~upper + np.uint64(lower == _0)
                        lower = ~lower + _1
                    values[to] = np.int64(lower)
                    if kind == DECIMAL:
                        values[bases[np.uint64(nodes[node, SLOT]) + _1] + index] = np.int64(upper)
                    valid[to] = 1
            elif not is_opened and byte != _QUOTE and byte != _N:
                if kind == TEXT:
                    values[to] = np.int64(begin << _32 | (stop - begin))
                    valid[to] = 1
                elif kind != PASS and not (kind == BOOLEAN and (byte == _T or byte == _F)):
                    error = WRONG_TYPE
                    break
            # What follows: the next item or field, or the end of what holds it.
            while top > _0:
                frame = top - _1
                node, index = np.uint64(stack[frame, _NODE]), np.uint64(stack[frame, _INDEX])
                kind = nodes[node, KIND]
                position = _past_spaces(data, position, end)
                at = position
                if position == end:
                    error = TRUNCATED
                    break
                byte = data[position]
                closer = np.uint8(stack[frame, _CLOSER])
                if byte == closer:
                    position, top, is_opened = position + _1, frame, False
                    to = bases[np.uint64(nodes[node, SLOT])] + index
                    if kind == LIST or kind == MAP:
                        values[to] = counts[np.uint64(nodes[node, FIRST])] - stack[frame, _START]
                    elif kind == TEXT:
                        begin = np.uint64(stack[frame, _START])
                        values[to] = np.int64(begin << _32 | (position - begin))
                    continue
                if not is_opened:
                    if byte != _COMMA:
                        error = NO_COMMA
                        break
                    position = _past_spaces(data, position + _1, end)
                    at = position
                if kind == LIST or kind == MAP:
                    level = np.uint64(nodes[node, FIRST])
                    budget = budget - nodes[node, SECOND]
                    if budget < 0:
                        error = TOO_MUCH_MEMORY
                        break
                    if counts[level] == capacity[level]:
                        needed[_0], needed[_1] = np.int64(level), counts[level] + 1
                        error = NO_ROOM
                        break
                    index = np.uint64(counts[level])
                    counts[level] += 1
                if closer == _BRACKET + _TO_CLOSER:
                    node = node + _1 if kind == LIST else _0
                    break
                if position == end or data[position] != _QUOTE:
                    error = TRUNCATED if position == end else NO_NAME
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
                    if has_escapes and (kind == STRUCT or kind == MAP):
                        taken = np.uint64(counts[SCRATCH])
                        stop = _unescape(data, begin, stop, scratch, taken)
                        begin = taken
                    size = stop - begin
                    if kind == STRUCT:
                        source = text if has_escapes else data
                        field = _find_field(source, begin, size, nodes, names, hashes, node, seed)
                    elif kind == MAP:
                        source = text if has_escapes else data
                        first = bases[np.uint64(nodes[node + _1, SLOT])]
                        if lenient & DUPLICATES == 0 and not _is_new(
                            source, begin, size, data, text, values, first, index, keys,
                            stack[frame, _INSTANCE], oldest, seed,
                        ):  # fmt: skip
                            error = DUPLICATE
                            break
                        values[first + index] = np.int64(begin << _32 | size)
                        valid[first + index] = 1
                        if has_escapes:
                            values[first + index] = values[first + index] | IN_OTHER_BYTES
                            counts[SCRATCH] = np.int64(stop)
                        field = node + _2
                if kind == STRUCT and field != _0:
                    if seen[field] == stack[frame, _INSTANCE]:
                        if lenient & DUPLICATES == 0:
                            error, node = DUPLICATE, field
                            break
                        _forget_value(nodes, field, index, values, valid, bases, counts, lows)
                    seen[field] = stack[frame, _INSTANCE]
                    stack[frame, _EXPECTED] = nodes[field, NEXT]
                position = _past_spaces(data, position, end)
                if position == end or data[position] != _COLON:
                    error, at = TRUNCATED if position == end else NO_COLON, position
                    break
                node, position = field, position + _1
                break
            if error != 0 or top == _0:
                break
        if error == 0:
            position = _past_spaces(data, position, end)
            if position != end:
                error, at = TRAILING_BYTES, position
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
    "_past_spaces", "_equals", "_is_word", "_read_hex", "_read_escape", "_is_utf8", "_scan_string", "_unescape", "_hash",
    "_find_field", "_is_new", "_forget_value", "_read_digits", "_read_number", "_first_digits", "_is_below", "_two",
    "_read_days", "_read_time", "_read_base64", "_forget_row",
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
