"""A compiled loop that encodes rows of columns as Avro, as a program says that is made of a schema.

    kernel        one call
    encode_rows   numbers in slots -> the bytes of each row; an error for each bad row

As in `avro`, a program is interpreted, and an operation is a row of numbers: its code, a slot, and three
arguments. A slot has a number and a state for each row, or for each item of all lists of a level.

    operation   arguments              what it writes, of the current index of the slot
    REQUIRE                            nothing, but a value that is null fails the row
    NULLABLE    null, present, target  the number of the branch `null`, and goes on at `target`; or `present`
    MEMBER      table, count, null     the branch of the only one of `count` members that is not null, and goes
                                       on where its value is written; or of null, unless that is negative
    NUMBER                             a varint
    BOOLEAN, SINGLE, DOUBLE            the bits, in 1, 4 or 8 bytes
    DATA                               the bytes of the span, after their number
    FIXED                              the bytes of the span
    BIG         size                   128 bits of two slots: in as few bytes as they need, after their number,
                                       if size is 0
    BEGIN       target                 the number of items of the span; goes on with the first, or at `target`
    NEXT        item                   ends an item; goes on at `item` with the next, or ends the list
    CONSTANT    start, size            bytes of the constants
    JUMP        target
    END                                ends the row

The table has three numbers for each member: its slot, its branch, and where its value is written; then where
to go on after null. A span is start << 32 | size, of the data, or of the items of a list.

Arguments have the forms that `records` describes; `errors`, `stack` and `bounds` are int64.

Source: the Avro specification 1.12, "Data Serialization and Deserialization".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit, llvm

OPERATION_COLUMNS = 5
(
    REQUIRE, NULLABLE, MEMBER, NUMBER, BOOLEAN, SINGLE, DOUBLE, DATA, FIXED, BIG, BEGIN, NEXT, CONSTANT, JUMP,
    END,
) = range(15)  # fmt: skip

# States of a value; all but the first two are errors of its row.
NULL, PRESENT, LOSES_DIGITS, OUT_OF_RANGE, NOT_A_SYMBOL, WRONG_SIZE = range(6)
NULL_VALUE, NO_ONE_MEMBER = 6, 7  # more errors of a row

STACK_COLUMNS = 2  # index, end of the items
MEMBER_COLUMNS = 3
# The most bytes that an operation writes in addition to those of a span.
_MOST_BYTES = np.uint64(32)

_0, _1, _2, _3, _4, _8 = (np.uint64(number) for number in (0, 1, 2, 3, 4, 8))
_7, _16, _32, _63 = (np.uint64(number) for number in (7, 16, 32, 63))
_LOW_32, _LOW_7, _MORE = np.uint64(0xFFFFFFFF), np.uint64(0x7F), np.uint64(0x80)
_ONES, _BYTE = np.uint64(2**64 - 1), np.uint64(0xFF)


# Helpers: compiled into the kernel.

_copy = llvm.copy


def _write_varint(out: Any, position: Any, value: Any) -> Any:
    """Write an int64 as a zigzag varint; return the position after it."""
    number = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while number >= _MORE:
        out[position] = np.uint8((number & _LOW_7) | _MORE)
        number = number >> _7
        position = position + _1
    out[position] = np.uint8(number)
    return position + _1


def _write_bytes(out: Any, position: Any, number: Any, size: Any) -> Any:
    """Write the lowest bytes of a number, the lowest first; return the position after them."""
    for k in range(size):
        out[position + np.uint64(k)] = np.uint8((number >> (np.uint64(k) << _3)) & _BYTE)
    return position + size


def _write_big(out: Any, position: Any, lower: Any, upper: Any, size: Any) -> Any:
    """Write 128 bits, the highest byte first; return the position after them.

    They take `size` bytes, or as few as they need, after their number, if that is 0.
    """
    fill = _ONES if upper >> _63 == _1 else _0
    count = size
    if size == _0:
        # The highest byte is left out as long as it is a sign that the one below it has too.
        count = _16
        while count > _1:
            high, low = count - _1, count - _2
            byte = ((lower if high < _8 else upper) >> ((high & _7) << _3)) & _BYTE
            below = ((lower if low < _8 else upper) >> ((low & _7) << _3)) & _BYTE
            if byte != fill & _BYTE or below >> _7 != fill & _1:
                break
            count = count - _1
        position = _write_varint(out, position, np.int64(count))
    for k in range(count):
        at = count - _1 - np.uint64(k)
        word = fill
        if at < _8:
            word = lower
        elif at < _16:
            word = upper
        out[position + np.uint64(k)] = np.uint8((word >> ((at & _7) << _3)) & _BYTE)
    return position + count


# The kernel.


def encode_rows(
    program: Any,
    table: Any,
    bases: Any,
    values: Any,
    states: Any,
    data: Any,
    constants: Any,
    header: Any,
    is_row: Any,
    first_row: Any,
    out: Any,
    bounds: Any,
    stack: Any,
    errors: Any,
) -> Any:
    """Encode rows from `first_row` on, until the output has no room.

    inputs:  program int64[operations, 5]; table int64; bases uint64[slots], where each slot starts in
             values; values int64; states uint8, of each value; data, constants uint8; header uint8, in front
             of each row; is_row uint8[n], 0 for a row that is left out.
    outputs: out uint8; bounds int64[n + 1], with a first element that is 0 on entry: row i is
             out[bounds[i] : bounds[i + 1]]; a row that is bad or left out has no bytes;
             stack int64[depth, 2], for the kernel's own use, with room for all lists in each other;
             errors int64[2, n]: error, 0 for none; the operation.
    Returns n, or the row that found no room.
    """
    rows_count, room = np.uint64(is_row.shape[0]), np.uint64(out.shape[0])
    header_size = np.uint64(header.shape[0])
    for row in range(np.uint64(first_row), rows_count):
        position, after = np.uint64(bounds[row]), np.uint64(row) + _1
        bounds[after] = bounds[row]
        if is_row[row] == 0:
            continue
        if position + header_size > room:
            return np.int64(row)
        position = _copy(header, _0, out, position, header_size)
        pc, index, top = _0, np.uint64(row), _0
        error: Any = 0
        while True:
            if position + _MOST_BYTES > room:
                return np.int64(row)
            code, slot = program[pc, _0], np.uint64(program[pc, _1])
            first, second = program[pc, _2], program[pc, _3]
            at = bases[slot] + index
            if code == REQUIRE or code == NULLABLE:
                if states[at] > PRESENT:
                    error = np.int64(states[at])
                    break
                if code == REQUIRE:
                    if states[at] == NULL:
                        error = NULL_VALUE
                        break
                elif states[at] == NULL:
                    position = _write_varint(out, position, first)
                    pc = np.uint64(program[pc, _4])
                    continue
                else:
                    position = _write_varint(out, position, second)
            elif code == NUMBER:
                position = _write_varint(out, position, values[at])
            elif code == DATA or code == FIXED or code == CONSTANT:
                begin, size = np.uint64(first), np.uint64(second)
                if code != CONSTANT:
                    begin, size = np.uint64(values[at]) >> _32, np.uint64(values[at]) & _LOW_32
                if position + size + _MOST_BYTES > room:
                    return np.int64(row)
                if code == DATA:
                    position = _write_varint(out, position, np.int64(size))
                if code == CONSTANT:
                    position = _copy(constants, begin, out, position, size)
                else:
                    position = _copy(data, begin, out, position, size)
            elif code == DOUBLE or code == SINGLE or code == BOOLEAN:
                size = _1
                if code == DOUBLE:
                    size = _8
                elif code == SINGLE:
                    size = _4
                position = _write_bytes(out, position, np.uint64(values[at]), size)
            elif code == MEMBER:
                null = program[pc, _4]
                end = np.uint64(first) + np.uint64(second) * _3
                if states[at] == NULL:
                    if null < 0:
                        error = NULL_VALUE
                        break
                    position = _write_varint(out, position, null)
                    pc = np.uint64(table[end])
                    continue
                chosen, count = _0, 0
                for k in range(np.uint64(second)):
                    member = np.uint64(first) + np.uint64(k) * _3
                    if states[bases[np.uint64(table[member])] + index] != NULL:
                        chosen, count = member, count + 1
                if count != 1:
                    error = NO_ONE_MEMBER
                    break
                position = _write_varint(out, position, table[chosen + _1])
                pc = np.uint64(table[chosen + _2])
                continue
            elif code == BIG:
                size = np.uint64(first)
                if position + size + _MOST_BYTES > room:
                    return np.int64(row)
                lower, upper = values[at], values[bases[slot + _1] + index]
                position = _write_big(out, position, np.uint64(lower), np.uint64(upper), size)
            elif code == BEGIN:
                span = np.uint64(values[at])
                begin, size = span >> _32, span & _LOW_32
                position = _write_varint(out, position, np.int64(size))
                if size == _0:
                    pc = np.uint64(first)
                    continue
                stack[top, _0] = np.int64(index)
                stack[top, _1] = np.int64(begin + size)
                top = top + _1
                index = begin
            elif code == NEXT:
                index = index + _1
                if np.int64(index) < stack[top - _1, _1]:
                    pc = np.uint64(first)
                    continue
                top = top - _1
                index = np.uint64(stack[top, _0])
                out[position] = np.uint8(0)
                position = position + _1
            elif code == JUMP:
                pc = np.uint64(first)
                continue
            else:
                break
            pc = pc + _1
        if error != 0:
            errors[_0, row], errors[_1, row] = error, np.int64(pc)
        else:
            bounds[after] = np.int64(position)
    return np.int64(rows_count)


HELPERS = ("_copy", "_write_varint", "_write_bytes", "_write_big")


def examples() -> dict[str, tuple[Any, ...]]:
    """Return the kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i64, u64 = jit.array("u1"), jit.array("i8"), jit.array("u8")
    return {
        "encode_rows": (
            jit.array("i8", (0, OPERATION_COLUMNS)), i64, u64, i64, u8, u8, u8, u8, u8, 0,
            jit.array("u1", out=True), jit.array("i8", 1, out=True),
            jit.array("i8", (1, STACK_COLUMNS), out=True), jit.array("i8", (2, 0), out=True),
        ),
    }  # fmt: skip


load = jit.compile_on_first_call(globals(), HELPERS, examples)
