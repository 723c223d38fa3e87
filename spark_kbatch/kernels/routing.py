"""Compiled loops that choose each row's partition, and group rows by it.

    kernel          for n rows, one call
    hash_keys       murmur2 of every key, or the slot that follows from it
    assign_slots    each row's partition, as Kafka's default partitioner picks it, as a slot number
    group_rows      row numbers sorted by slot, in order within a slot

A slot is a partition of one of the topics of a call. Arguments have the forms that `records` describes.
These kernels are compiled separately because only producers need them.

Source: Kafka clients/.../common/utils/Utils.murmur2, clients/producer/internals/BuiltInPartitioner.java.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.kernels import jit
from spark_kbatch.kernels.llvm import LANES

# For keys that are hashed one by one, without a kernel.
from spark_kbatch.kernels.llvm import MURMUR_M as MURMUR_M
from spark_kbatch.kernels.llvm import MURMUR_SEED as MURMUR_SEED

# For assign_slots: about what a record takes in addition to key, value and headers; and the random
# sequence of Park and Miller.
STICKY_OVERHEAD = 10
RANDOM_FACTOR, RANDOM_MODULUS = 48_271, 2**31 - 1

_0, _1, _2, _3, _4 = (np.uint64(number) for number in range(5))
_8, _13, _15, _16, _24 = (np.uint64(number) for number in (8, 13, 15, 16, 24))
_LOW_32 = np.uint64(0xFFFFFFFF)
_SEED, _M, _LANES = np.uint64(MURMUR_SEED), np.uint64(MURMUR_M), np.uint64(LANES)


# Helpers: compiled into the kernels that call them.


def _murmur2(data: Any, bounds: Any, row: Any) -> Any:
    """Return Kafka's 32-bit murmur2 of one key, made positive as Kafka does, which is not abs()."""
    start = np.uint64(bounds[row])
    size = np.uint64(bounds[row + _1]) - start
    h = _SEED ^ size
    tail = start + (size & ~_3)
    for p in range(start, tail, _4):
        k = (
            np.uint64(data[p])
            | (np.uint64(data[p + _1]) << _8)
            | (np.uint64(data[p + _2]) << _16)
            | (np.uint64(data[p + _3]) << _24)
        )
        k = (k * _M) & _LOW_32
        k = ((k ^ (k >> _24)) * _M) & _LOW_32
        h = ((h * _M) & _LOW_32) ^ k
    left = size & _3
    if left == _3:
        h = h ^ (np.uint64(data[tail + _2]) << _16)
    if left >= _2:
        h = h ^ (np.uint64(data[tail + _1]) << _8)
    if left >= _1:
        h = ((h ^ np.uint64(data[tail])) * _M) & _LOW_32
    h = ((h ^ (h >> _13)) * _M) & _LOW_32
    return (h ^ (h >> _15)) & np.uint64(0x7FFFFFFF)


def _murmur2_lanes(data: Any, bounds: Any, row: Any, hashes: Any) -> None:
    """Hash LANES keys of equal length from `row` on with murmur2, at once when compiled."""
    for lane in range(_LANES):
        hashes[row + lane] = np.int64(_murmur2(data, bounds, row + lane))


def _remainder_lanes(numbers: Any, first: Any, divisor: Any) -> None:
    """Replace LANES non-negative numbers from `first` on by their remainders, at once when compiled."""
    for lane in range(_LANES):
        numbers[first + lane] = np.int64(np.uint32(numbers[first + lane]) % np.uint32(divisor))


def _have_one_size(bounds: Any, row: Any) -> Any:
    """Return True if the LANES keys from `row` on have equal length."""
    size, is_same = bounds[row + _1] - bounds[row], True
    for lane in range(_LANES):
        is_same = is_same & (bounds[row + lane + _1] - bounds[row + lane] == size)
    return is_same


# Kernels.


def hash_keys(data: Any, bounds: Any, first_slot: Any, hashes: Any, counts: Any) -> Any:
    """Hash every key with Kafka's 32-bit murmur2, made positive as Kafka does, which is not abs().

    If all rows have a key and the same topic, it computes in the same pass the slots that assign_slots
    would.

    inputs:  data uint8; bounds int32[n + 1]; first_slot, of that topic's partition 0.
    outputs: hashes int32[n], or slots if counts is not empty; counts int64[partitions], to which
             the rows of each partition are added.
    Returns n.
    """
    rows_count, partitions = np.uint64(hashes.shape[0]), np.uint64(counts.shape[0])
    row = _0
    while row < rows_count:
        end = min(row + _LANES, rows_count)
        if row + _LANES == end and _have_one_size(bounds, row):
            _murmur2_lanes(data, bounds, row, hashes)
            if partitions > _0:
                _remainder_lanes(hashes, row, partitions)
        else:
            for other in range(row, end):
                h = _murmur2(data, bounds, other)
                hashes[other] = np.int64(h % partitions if partitions > _0 else h)
        if partitions > _0:
            for other in range(row, end):
                counts[np.uint64(hashes[other])] += 1
                hashes[other] += first_slot
        row = end
    return np.int64(hashes.shape[0])


def assign_slots(
    topics: Any,
    first_slots: Any,
    partitions: Any,
    partitions_valid: Any,
    hashes: Any,
    key_bounds: Any,
    key_valid: Any,
    value_bounds: Any,
    value_valid: Any,
    headers_bounds: Any,
    weights: Any,
    sticky: Any,
    switch_bytes: Any,
    slots: Any,
    counts: Any,
) -> Any:
    """Choose each row's partition like Kafka's default partitioner, and return it as a slot number.

    inputs:  topics int32[n], index of the row's topic; first_slots int32[topics + 1], slot of the
             topic's partition 0; partitions int32[n] or empty, the row's own choice; hashes int32[n]
             of the keys, or empty if keys are ignored; key, value and headers spans, for their
             sizes; weights int64[slots], running sums within a topic of each partition's weight,
             all zero if all weights are equal.
    outputs: slots int32[n]; counts int64[slots], to which the rows of each slot are added; sticky
             int64[topics, 3], continued from call to call: the partition for rows without one, the
             bytes it got so far, the state of the random sequence that picks the next one.
    Returns n, or -(row + 1) of a row that names a partition that its topic does not have.
    """
    has_own, all_own = partitions.shape[0] > 0, partitions_valid.shape[0] == 0
    has_hash, has_key, all_keys = (
        hashes.shape[0] > 0,
        key_bounds.shape[0] > 0,
        key_valid.shape[0] == 0,
    )
    has_value, all_values = value_bounds.shape[0] > 0, value_valid.shape[0] == 0
    has_headers = headers_bounds.shape[0] > 0
    for row in range(np.uint64(topics.shape[0])):
        topic = np.uint64(topics[row])
        first = np.uint64(first_slots[topic])
        count = np.int64(np.uint64(first_slots[topic + _1]) - first)
        if has_own and (all_own or partitions_valid[row] != 0):
            partition = np.int64(partitions[row])
            if partition < 0 or partition >= count:
                return -np.int64(row) - 1
        elif has_hash and (all_keys or key_valid[row] != 0):
            partition = np.int64(hashes[row]) % count
        else:
            if sticky[topic, _1] >= switch_bytes:
                state = sticky[topic, _2] * RANDOM_FACTOR % RANDOM_MODULUS
                sticky[topic, _2] = state
                sticky[topic, _1] = 0
                total = weights[first + np.uint64(count) - _1]
                if total == 0:
                    sticky[topic, _0] = state % count
                else:
                    # The first running sum above a random number below the last.
                    drawn = state % total
                    low, high = first, first + np.uint64(count) - _1
                    while low < high:
                        middle = (low + high) >> _1
                        if weights[middle] > drawn:
                            high = middle
                        else:
                            low = middle + _1
                    sticky[topic, _0] = np.int64(low - first)
            partition = sticky[topic, _0]
            size = np.int64(STICKY_OVERHEAD)
            if has_key and (all_keys or key_valid[row] != 0):
                size += key_bounds[row + _1] - key_bounds[row]
            if has_value and (all_values or value_valid[row] != 0):
                size += value_bounds[row + _1] - value_bounds[row]
            if has_headers:
                size += headers_bounds[row + _1] - headers_bounds[row] - 1
            sticky[topic, _1] += size
        slots[row] = np.int64(first) + partition
        counts[first + np.uint64(partition)] += 1
    return np.int64(topics.shape[0])


def group_rows(slots: Any, bounds: Any, rows: Any) -> Any:
    """Sort row numbers by slot, one per topic and partition, keeping their order within a slot.

    inputs:  slots int32[n].
    outputs: bounds int64[slot count + 1], zero on entry; rows int32[n]: the rows of slot s are
             rows[bounds[s] : bounds[s + 1]].
    Returns n.
    """
    for i in range(np.uint64(slots.shape[0])):
        bounds[np.uint64(slots[i]) + _1] += 1
    for s in range(_1, np.uint64(bounds.shape[0])):
        bounds[s] += bounds[s - _1]
    for i in range(np.uint64(slots.shape[0])):
        slot = np.uint64(slots[i])
        rows[np.uint64(bounds[slot])] = i
        bounds[slot] += 1
    # Each bound has moved to the next slot's start; shift them back.
    for s in range(np.uint64(bounds.shape[0]) - _1, _0, -1):
        bounds[np.uint64(s)] = bounds[np.uint64(s) - _1]
    bounds[_0] = 0
    return np.int64(slots.shape[0])


HELPERS = ("_murmur2", "_murmur2_lanes", "_remainder_lanes", "_have_one_size")


def examples() -> dict[str, tuple[Any, ...]]:
    """Return each kernel's arguments, with empty input, in the one form in which it is ever called."""
    u8, i32 = jit.array("u1"), jit.array("i4")
    out32, counts, bounds = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(2, np.int64)
    sticky = np.zeros((1, 3), np.int64)
    return {
        "hash_keys": (u8, i32, 0, out32, counts),
        "assign_slots": (
            i32,
            i32,
            i32,
            u8,
            i32,
            i32,
            u8,
            i32,
            u8,
            i32,
            counts,
            sticky,
            1,
            out32,
            counts,
        ),
        "group_rows": (i32, bounds, out32),
    }


PLAIN_US: jit.Estimates = {
    "hash_keys": lambda data, bounds, *_: 5 * bounds.shape[0] + data.shape[0],
    "assign_slots": lambda topics, *_: 4 * topics.shape[0],
    "group_rows": lambda slots, bounds, _: 2 * slots.shape[0] + bounds.shape[0],
}

load = jit.compile_on_first_call(globals(), HELPERS, examples, PLAIN_US)
