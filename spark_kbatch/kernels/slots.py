"""Constants and helpers of kernels that decode values into slots; and kernels of spans of bytes.

    kernel        one call
    copy_spans    gathers the bytes of a slot of spans into one Arrow data buffer
    schema_ids    reads which schema wrote each row, from Confluent's framing

A slot is a row of numbers, `values`, each with a byte in `valid`, which is 0 for null: one for
each record, at level ROWS, or one for each item of all lists of a level. A slot that nothing is
stored in keeps what it had: 0 in both, which is null. So a bad row ends by clearing what it has
stored, and its neighbours are as if it had not been there.

A span is where bytes lie, start << 32 | length. It lies in the data, or in other bytes, and is
negative then, by 2^63.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit, llvm

ROWS, NOWHERE = 0, 1  # levels: records; what has no slots
NO_ROOM = 99  # in place of an error of a row: a level has too few places
MEMORY_PER_BYTE, MEMORY_FREE = 64, 64 << 10  # what the items of a row may take

_1, _2, _3, _4 = (np.uint64(number) for number in range(1, 5))
_32 = np.uint64(32)
IN_OTHER_BYTES = np.int64(-(2**63))

# By the first byte of a character in UTF-8: how many follow it, and the bounds of the first of them. What no
# character begins with has bounds that nothing is within.
_FOLLOWERS = np.repeat(np.array([0, 1, 2, 3, 1], np.uint64), [0x80, 0x60, 0x10, 5, 0x0B])
_LEAST = np.repeat(
    np.array([0xFF, 0x80, 0xA0, 0x80, 0x90, 0x80, 0xFF], np.uint8),
    [0xC2, 0x1E, 1, 0x0F, 1, 4, 0x0B],
)
_MOST = np.repeat(np.array([0xBF, 0x9F, 0xBF, 0x8F, 0], np.uint8), [0xED, 1, 6, 1, 0x0B])


# Helpers: compiled into the kernels that call them.

_copy = llvm.copy


def _is_utf8(data: Any, position: Any, end: Any) -> Any:
    """Return True if bytes are UTF-8: no overlong forms, no surrogates, at most U+10FFFF."""
    bits = np.uint8(0)
    for k in range(position, end):
        bits = bits | data[np.uint64(k)]
    if bits < np.uint8(0x80):
        return True
    while position < end:
        lead = data[position]
        more, low, high = _FOLLOWERS[lead], _LEAST[lead], _MOST[lead]
        position = position + _1
        if end - position < more:
            return False
        for k in range(more):
            follower = data[position + np.uint64(k)]
            if follower < low or follower > high:
                return False
            low, high = np.uint8(0x80), np.uint8(0xBF)
        position = position + more
    return True


def _forget_row(
    values: Any, valid: Any, bases: Any, slot_levels: Any, saved: Any, counts: Any, row: Any
) -> None:
    """Clear what a row has stored, and give back the places that its items took."""
    for other in range(np.uint64(bases.shape[0])):
        held, base = np.uint64(slot_levels[other]), bases[other]
        if held == ROWS:
            values[base + np.uint64(row)] = 0
            valid[base + np.uint64(row)] = 0
        elif held != NOWHERE:
            for item in range(np.uint64(saved[held]), np.uint64(counts[held])):
                values[base + np.uint64(item)] = 0
                valid[base + np.uint64(item)] = 0
    for each in range(np.uint64(counts.shape[0])):
        counts[each] = saved[each]


# Kernels.


def copy_spans(data: Any, others: Any, spans: Any, bounds: Any, out: Any) -> Any:
    """Copy spans of bytes one after the other.

    inputs:  data, others uint8; spans int64[n]; bounds int32[n + 1], running sums of their sizes, where
             a span that is null has none.
    outputs: out uint8: span i goes to out[bounds[i] : bounds[i + 1]].
    Returns n.
    """
    for i in range(np.uint64(spans.shape[0])):
        to = np.uint64(bounds[i])
        size = np.uint64(bounds[i + _1]) - to
        if spans[i] < 0:
            _copy(others, np.uint64(spans[i] ^ IN_OTHER_BYTES) >> _32, out, to, size)
        else:
            _copy(data, np.uint64(spans[i]) >> _32, out, to, size)
    return np.int64(spans.shape[0])


def schema_ids(data: Any, bounds: Any, valid: Any, ids: Any) -> Any:
    """Read the schema ids in front of rows: a 0, and the id, big-endian.

    inputs:  data uint8; bounds int64[n + 1], of rows; valid uint8[n], 0 for null.
    outputs: ids int32[n], -1 for a row without that framing, of a negative id, or null.
    Returns n.
    """
    for i in range(np.uint64(valid.shape[0])):
        at, found = np.uint64(bounds[i]), np.int32(-1)
        if valid[i] and bounds[i + _1] - bounds[i] >= 5 and data[at] == 0 and data[at + _1] < 128:
            found = np.int32(
                np.uint32(data[at + _1]) << np.uint32(24)
                | np.uint32(data[at + _2]) << np.uint32(16)
                | np.uint32(data[at + _3]) << np.uint32(8)
                | np.uint32(data[at + _4])
            )
        ids[i] = found
    return np.int64(valid.shape[0])


HELPERS = ("_copy",)


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i64 = jit.array("u1"), jit.array("i8")
    return {
        "copy_spans": (u8, u8, i64, jit.array("i4", 1), jit.array("u1", out=True)),
        "schema_ids": (u8, jit.array("i8", 1), u8, jit.array("i4", out=True)),
    }


load = jit.compile_on_first_call(globals(), HELPERS, examples)
