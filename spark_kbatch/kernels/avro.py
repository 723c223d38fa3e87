"""Compiled loops that decode Avro into slots of numbers, as programs say that are made of schemas.

`decode_rows`, the one kernel, makes of rows of bytes numbers in the slots of a reader's columns, and an error for
each bad row.

A program is interpreted, never compiled: code for a schema would cost seconds for each schema and process.
One program reads what one writer's schema has written into the columns of the reader's schema, so rows of
many writers are decoded in one call, in their order.

An operation is a row of `program`: its code, a slot, and three arguments. Operations below FIXED_FIRST
begin with a varint, so the code that reads one is compiled once.

    operation    arguments           what it does with the next bytes, at the current index of the slot's level
    NUMBER       least, most, factor stores the varint times factor
    TO_FLOAT     least, most         stores the varint as a float
    TO_DOUBLE    least, most         stores the varint as a double
    DATA                             stores the span of the bytes
    TEXT                             the same, of UTF-8
    BIG_NUMBER   table               stores the bytes as 128 bits in two slots; the table has what bounds them
    SYMBOL       table, count        stores the span that the table has for the varint
    BRANCH       table, count        goes on where the table says
    BLOCK        level, end, item    starts a block of items, or ends the list, after which `end` follows; `item` has
                                     what an item takes more memory than its least bytes allow << 32 | these
    PASS_NUMBER, PASS_DATA           nothing
    BOOLEAN, FLOAT, DOUBLE           stores the value
    WIDEN                            stores the float as a double
    FIXED        size, text          stores the span; of all that is left where the size is below 0; with text it is UTF-8
    BIG_FIXED    table, size         stores the bytes as BIG_NUMBER does
    PASS         size                nothing
    STRUCT                           stores that the struct is not null
    CONSTANT     number, size        stores the number; within an item, of a constant of so many bytes
    BEGIN        level               starts a list; BLOCK or ITEM follows
    NEXT         block               ends an item of a list, goes on at BLOCK or with the next item
    ITEM         level, size         starts an item of a list whose length the program knows; within another item,
                                     one that takes so much memory
    FINISH       level               ends such a list
    JUMP         target              goes on there
    CALL         target              the same, until RETURN: what is passed over may contain itself
    RETURN
    FAIL         error               ends the row with this error
    END                              ends the row

What slots and spans are is in `slots`.

What a hostile row can cost is bounded by its size: items of at least one byte each by that; what items take more
memory than MEMORY_PER_BYTE for each of their bytes, and defaults within items, by as much for each byte of the
row and MEMORY_FREE, as are calls; and depth by the size of the stack.

Arguments have the forms that `records` describes; `errors` and `stack` are int64.

Source: the Avro specification 1.12, "Data Serialization and Deserialization".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit
from spark_kbatch.kernels.slots import (
    MEMORY_FREE,
    MEMORY_PER_BYTE,
    NO_ROOM,
    NOWHERE,
    _forget_row,
    _is_utf8,
)

OPERATION_COLUMNS = 5
(
    NUMBER, TO_FLOAT, TO_DOUBLE, DATA, TEXT, BIG_NUMBER, SYMBOL, BRANCH, BLOCK, PASS_NUMBER, PASS_DATA,
    BOOLEAN, FLOAT, DOUBLE, WIDEN, FIXED, BIG_FIXED, PASS, STRUCT, CONSTANT, BEGIN, NEXT, ITEM, FINISH,
    JUMP, CALL, RETURN, FAIL, END,
) = range(29)  # fmt: skip
FIXED_FIRST = BOOLEAN

# Errors of a row.
(
    TRUNCATED, BAD_VARINT, BAD_LENGTH, BAD_COUNT, BAD_BRANCH, BAD_SYMBOL, BAD_BOOLEAN, BAD_TEXT, TRAILING_BYTES,
    OUT_OF_RANGE, UNKNOWN_SYMBOL, TOO_MUCH_MEMORY, TOO_DEEP, UNRESOLVED,
) = range(1, 15)  # fmt: skip

NO_SYMBOL = 1  # in the table of SYMBOL: a symbol that the reader does not have. No constant's span is positive
STACK_COLUMNS = 4  # index, items left, first item, where a call returns to

_0, _1, _2, _3, _4, _8 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 8))
_7, _63, _56 = np.uint64(7), np.uint64(63), np.uint64(56)
_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_LOW_7, _MORE = np.uint64(0x7F), np.uint64(0x80)
_ONES = np.uint64(2**64 - 1)
_PAST_END, _TOO_LONG = np.uint64(2**63), np.uint64(2**63 + 1)
_LEAST_INT64 = np.int64(-(2**63))


# Helpers: compiled into the kernels that call them.


def _read_varint(data: Any, position: Any, end: Any) -> Any:
    """Decode the zigzag varint, an int64, at `position`; return it, and the position after it.

    The position is _PAST_END if the varint passes `end`, and _TOO_LONG if it has more than 64 bits; both
    are larger than any end.
    """
    shift, number = _0, _0
    while position < end:
        byte = np.uint64(data[position])
        position = position + _1
        if shift == _63 and byte > _1:
            return np.int64(0), _TOO_LONG
        number = number | ((byte & _LOW_7) << shift)
        if byte < _MORE:
            return np.int64(number >> _1) ^ -np.int64(number & _1), position
        shift = shift + _7
    return np.int64(0), _PAST_END


def _read_bytes(data: Any, position: Any, size: Any) -> Any:
    """Return up to eight bytes, the lowest first, as a number."""
    number = _0
    for k in range(size):
        number = number | (np.uint64(data[position + np.uint64(k)]) << (np.uint64(k) << _3))
    return number


def _read_big(data: Any, position: Any, size: Any, table: Any, limits: Any, values: Any, low: Any, high: Any) -> Any:  # fmt: skip
    """Store a big-endian number of any size as 128 bits at `low` and `high`; return False if out of bounds.

    The table has four words at `limits`: low and high of the largest number, and of one less, which bounds
    the complement of a negative number.
    """
    is_negative = size > _0 and data[position] >= np.uint8(0x80)
    fill = _ONES if is_negative else _0
    lower, upper = fill, fill
    for k in range(size):
        if upper >> _56 != fill >> _56:
            return False  # the byte that would be shifted out says more than the sign
        upper = (upper << _8) | (lower >> _56)
        lower = (lower << _8) | np.uint64(data[position + np.uint64(k)])
    values[low], values[high] = np.int64(lower), np.int64(upper)
    at = limits
    if is_negative:
        lower, upper, at = lower ^ _ONES, upper ^ _ONES, limits + _2
    most_lower, most_upper = np.uint64(table[at]), np.uint64(table[at + _1])
    return upper < most_upper or (upper == most_upper and lower <= most_lower)


# Kernels.


def decode_rows(
    data: Any,
    begins: Any,
    ends: Any,
    starts: Any,
    program: Any,
    table: Any,
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
    stack: Any,
    errors: Any,
    needed: Any,
) -> Any:
    """Decode rows into slots, from `first_row` on, until a level has no room.

    inputs:  data uint8; begins, ends int64[n], where each row's bytes lie; starts int64[n], where its
             program starts, or -1 for a row that is left alone; program int64[operations, 5]; table
             int64; bases uint64[slots], where each slot starts in values; slot_levels int64[slots];
             capacity int64[levels], places of each slot of a level.
    outputs: values int64, zero on entry, and the same memory as singles float32 and doubles float64;
             valid uint8, zero on entry, 1 for a value that is not null;
             counts int64[levels], places taken by items, continued from call to call; saved
             int64[levels] and stack int64[depth, 4], for the kernel's own use;
             errors int64[3, n]: error, 0 for none; where in the row; the operation;
             needed int64[2], a level that has no room for the row, and the places it needs.
    Returns n, or the row that found no room. Nothing of that row is stored.
    """
    rows_count, levels_count = np.uint64(begins.shape[0]), np.uint64(counts.shape[0])
    depth = np.uint64(stack.shape[0])
    for row in range(np.uint64(first_row), rows_count):
        if starts[row] < 0:
            continue
        pc, index, top = np.uint64(starts[row]), np.uint64(row), _0
        position, end = np.uint64(begins[row]), np.uint64(ends[row])
        budget = np.int64(end - position) * MEMORY_PER_BYTE + MEMORY_FREE
        for each in range(levels_count):
            saved[each] = counts[each]
        error, at = 0, position
        while True:
            code, slot = program[pc, _0], np.uint64(program[pc, _1])
            first, second = program[pc, _2], program[pc, _3]
            to, at, number = bases[slot] + index, position, np.int64(0)
            if code < FIXED_FIRST:
                number, position = _read_varint(data, position, end)
                if position > end:
                    error = BAD_VARINT if position == _TOO_LONG else TRUNCATED
                    break
            if code == NUMBER:
                if number < first or number > second:
                    error = OUT_OF_RANGE
                    break
                values[to] = number * program[pc, _4]
                valid[to] = 1
            elif code == DATA or code == TEXT or code == BIG_NUMBER or code == PASS_DATA:
                if number < 0:
                    error = BAD_LENGTH
                    break
                size = np.uint64(number)
                if size > end - position:
                    error = TRUNCATED
                    break
                if code == BIG_NUMBER:
                    if not _read_big(
                        data, position, size, table, np.uint64(first), values,
                        to, bases[slot + _1] + index,
                    ):  # fmt: skip
                        error = OUT_OF_RANGE
                        break
                    valid[to] = 1
                elif code != PASS_DATA:
                    if code == TEXT and not _is_utf8(data, position, position + size):
                        error = BAD_TEXT
                        break
                    values[to] = np.int64((position << _32) | size)
                    valid[to] = 1
                position = position + size
            elif code == BRANCH:
                if number < 0 or number >= second:
                    error = BAD_BRANCH
                    break
                pc = np.uint64(table[np.uint64(first + number)])
                continue
            elif code == STRUCT:
                valid[to] = 1
            elif code == END:
                break
            elif code == DOUBLE or code == FLOAT or code == WIDEN:
                size = _8 if code == DOUBLE else _4
                if end - position < size:
                    error = TRUNCATED
                    break
                values[to] = np.int64(_read_bytes(data, position, size))
                if code == WIDEN:
                    doubles[to] = np.float64(singles[to << _1])
                valid[to] = 1
                position = position + size
            elif code == SYMBOL:
                if number < 0 or number >= second:
                    error = BAD_SYMBOL
                    break
                span = table[np.uint64(first + number)]
                if span == NO_SYMBOL:
                    error = UNKNOWN_SYMBOL
                    break
                values[to] = span
                valid[to] = 1
            elif code == BOOLEAN:
                if position >= end:
                    error = TRUNCATED
                    break
                if data[position] > np.uint8(1):
                    error = BAD_BOOLEAN
                    break
                values[to] = np.int64(data[position])
                valid[to] = 1
                position = position + _1
            elif code == FIXED or code == BIG_FIXED or code == PASS:
                size = np.uint64(second if code == BIG_FIXED else first)
                if code == FIXED and first < 0:
                    size = end - position
                if size > end - position:
                    error = TRUNCATED
                    break
                if code == FIXED:
                    if second > 0 and not _is_utf8(data, position, end):
                        error = BAD_TEXT
                        break
                    values[to] = np.int64((position << _32) | size)
                    valid[to] = 1
                elif code == BIG_FIXED:
                    if not _read_big(
                        data, position, size, table, np.uint64(first), values,
                        to, bases[slot + _1] + index,
                    ):  # fmt: skip
                        error = OUT_OF_RANGE
                        break
                    valid[to] = 1
                position = position + size
            elif code == BEGIN or code == CALL:
                if top == depth:
                    error = TOO_DEEP
                    break
                stack[top, _0] = np.int64(index)
                if code == BEGIN:
                    stack[top, _2] = counts[np.uint64(first)]
                else:
                    stack[top, _3] = np.int64(pc)
                top = top + _1
                if code == CALL:
                    # What is passed over may take no bytes, and yet no end.
                    budget = budget - 1
                    if budget < 0:
                        error = TOO_DEEP
                        break
                    pc = np.uint64(first)
                    continue
            elif code == BLOCK:
                level = np.uint64(first)
                if number < 0:
                    # The size of the block follows, for readers that pass over it whole.
                    if number == _LEAST_INT64:
                        error = BAD_COUNT
                        break
                    number = -number
                    _, position = _read_varint(data, position, end)
                    if position > end:
                        error = BAD_VARINT if position == _TOO_LONG else TRUNCATED
                        break
                if number == 0:
                    top = top - _1
                    index = np.uint64(stack[top, _0])
                    if first != NOWHERE:
                        to = bases[slot] + index
                        values[to] = counts[level] - stack[top, _2]
                        valid[to] = 1
                    pc = np.uint64(second)
                    continue
                least = np.uint64(program[pc, _4]) & _LOW_32
                memory = program[pc, _4] >> np.int64(32)
                if least > _0 and np.uint64(number) > (end - position) // least:
                    error = TRUNCATED
                    break
                if memory > 0:
                    if number > budget // memory:
                        error = TOO_MUCH_MEMORY
                        break
                    budget = budget - number * memory
                if number > capacity[level] - counts[level]:
                    needed[_0], needed[_1] = first, counts[level] + number
                    error = NO_ROOM
                    break
                stack[top - _1, _1] = number
                index = np.uint64(counts[level])
                counts[level] += 1
            elif code == NEXT:
                pc = np.uint64(first)
                left = stack[top - _1, _1] - 1
                stack[top - _1, _1] = left
                if left == 0:
                    continue
                level = np.uint64(program[pc, _2])
                index = np.uint64(counts[level])
                counts[level] += 1
            elif code == ITEM:
                level = np.uint64(first)
                budget = budget - second
                if budget < 0:
                    error = TOO_MUCH_MEMORY
                    break
                if counts[level] == capacity[level]:
                    needed[_0], needed[_1] = first, counts[level] + 1
                    error = NO_ROOM
                    break
                index = np.uint64(counts[level])
                counts[level] += 1
            elif code == FINISH:
                top = top - _1
                index = np.uint64(stack[top, _0])
                to = bases[slot] + index
                values[to] = counts[np.uint64(first)] - stack[top, _2]
                valid[to] = 1
            elif code == CONSTANT:
                budget = budget - second
                if budget < 0:
                    error = TOO_MUCH_MEMORY
                    break
                values[to] = first
                valid[to] = 1
            elif code == JUMP:
                pc = np.uint64(first)
                continue
            elif code == RETURN:
                top = top - _1
                pc = np.uint64(stack[top, _3])
            elif code == TO_FLOAT or code == TO_DOUBLE:
                if number < first or number > second:
                    error = OUT_OF_RANGE
                    break
                if code == TO_DOUBLE:
                    doubles[to] = np.float64(number)
                else:
                    singles[to << _1] = np.float32(number)
                valid[to] = 1
            elif code == FAIL:
                error = first
                break
            elif code == PASS_NUMBER and (number < first or number > second):
                error = OUT_OF_RANGE
                break
            pc = pc + _1
        if error == 0 and position != end:
            error, at = TRAILING_BYTES, position
        if error != 0:
            _forget_row(values, valid, bases, slot_levels, saved, counts, row)
            if error == NO_ROOM:
                return np.int64(row)
            errors[_0, row] = error
            errors[_1, row] = np.int64(at) - begins[row]
            errors[_2, row] = np.int64(pc)
    return np.int64(rows_count)


HELPERS = ("_read_varint", "_read_bytes", "_is_utf8", "_read_big", "_forget_row")


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i64, u64 = jit.array("u1"), jit.array("i8"), jit.array("u8")
    values, levels = jit.array("i8", out=True), jit.array("i8", 2, out=True)
    grids = [jit.array("i8", shape, out=True) for shape in ((1, STACK_COLUMNS), (3, 0))]
    return {
        "decode_rows": (
            u8, i64, i64, i64, jit.array("i8", (0, OPERATION_COLUMNS)), i64, u64, i64, 0,
            values, values.view(np.float32), values.view(np.float64), jit.array("u1", out=True),
            levels, levels, levels, *grids, levels,
        ),
    }  # fmt: skip


load = jit.compile_on_first_call(globals(), HELPERS, examples)
