"""Sources of the encoder's kernel: the values of Arrow columns, as numbers and states in slots.

A source is made once, for a column, and reads an array of the column's type into the slots of a call. What a
schema cannot hold becomes a state, an error of the row if the row gets there. So a value that hides below a
null does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kbatch.kernels.avro_encoding import (
    LOSES_DIGITS,
    NOT_A_SYMBOL,
    OUT_OF_RANGE,
    PRESENT,
    WRONG_SIZE,
)
from spark_kbatch.values.flat import Array, frozen, strings_of, valid_bytes
from spark_kbatch.values.times import INT64

_WORD = 2**64


class SlotValues:
    """The slots that the rows of one call are read into."""

    def __init__(self, slots_count: int) -> None:
        self._values: list[Array] = [np.empty(0, np.int64)] * slots_count
        self._states: list[Array] = [np.empty(0, np.uint8)] * slots_count
        self._data: list[Array] = []
        self._data_size = 0

    def put(self, slot: int, values: Array, states: Array) -> None:
        """Set the values and states of a slot."""
        self._values[slot] = values.astype(np.int64, copy=False)
        self._states[slot] = states

    def put_data(self, data: Array) -> int:
        """Add bytes that spans lie in; return where they start."""
        self._data.append(data)
        self._data_size += len(data)
        return self._data_size - len(data)

    @property
    def bases(self) -> Array:
        """The start of each slot in `values` and `states`: uint64[slots]."""
        sizes = np.array([len(one) for one in self._values], np.int64)
        return frozen((np.cumsum(sizes) - sizes).astype(np.uint64))

    @property
    def values(self) -> Array:
        """The numbers of all slots: int64."""
        return frozen(np.concatenate(self._values))

    @property
    def states(self) -> Array:
        """The states of all slots: uint8, as many as there are numbers."""
        return frozen(np.concatenate(self._states))

    @property
    def data(self) -> Array | None:
        """The bytes of all spans: uint8; None if their positions have more than 31 bits."""
        if self._data_size >= 2**31:
            return None
        return frozen(np.concatenate([np.empty(0, np.uint8), *self._data]))


Source = Callable[[pa.Array, SlotValues], None]


def nulls(slot: int) -> Source:
    """Return the source of a column that has only nulls."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        slots.put(slot, np.zeros(len(array), np.int64), np.zeros(len(array), np.uint8))

    return read


def integers(slot: int, bounds: tuple[int, int], factor: int = 1, divisor: int = 1) -> Source:
    """Return the source of integers, dates and times, multiplied or divided to be the schema's."""
    least, most = max(bounds[0], -(INT64[1] // factor)), min(bounds[1], INT64[1] // factor)
    if factor == 1:
        least, most = bounds

    def read(array: pa.Array, slots: SlotValues) -> None:
        values, states = _numbers(array).astype(np.int64), valid_bytes(array)
        if divisor > 1:
            states = _marked(states, values % divisor != 0, LOSES_DIGITS)
            values = values // divisor
        states = _marked(states, (values < least) | (values > most), OUT_OF_RANGE)
        if factor > 1:
            values = np.where(states == PRESENT, values, 0) * factor
        slots.put(slot, values, states)

    return read


def booleans(slot: int) -> Source:
    """Return the source of booleans."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        slots.put(slot, _bits(array), valid_bytes(array))

    return read


def singles(slot: int) -> Source:
    """Return the source of floating-point numbers for a float, as its bits."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        values = _numbers(array)
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        is_lossy = (narrow.astype(values.dtype) != values) & ~np.isnan(values)
        states = _marked(valid_bytes(array), is_lossy, LOSES_DIGITS)
        slots.put(slot, narrow.view(np.uint32), states)

    return read


def doubles(slot: int) -> Source:
    """Return the source of floating-point numbers for a double, as its bits."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        slots.put(slot, _numbers(array).astype(np.float64).view(np.int64), valid_bytes(array))

    return read


def spans(slot: int, size: int | None = None) -> Source:
    """Return the source of byte strings, all of the same size if there is one."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        found = strings_of(array)
        lengths, states = np.diff(found.bounds), found.valid
        if size is not None:
            states = _marked(states, lengths != size, WRONG_SIZE)
        base = slots.put_data(found.data)
        slots.put(slot, (found.bounds[:-1] + base) << 32 | lengths, states)

    return read


def symbols(slot: int, numbers: Mapping[str, int]) -> Source:
    """Return the source of an enum's symbols, as their numbers."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        distinct = array.dictionary_encode()
        of_distinct = [numbers.get(one, -1) for one in distinct.dictionary.to_pylist()]
        indices = distinct.indices.fill_null(0).to_numpy(zero_copy_only=False)
        values = np.array([*of_distinct, 0], np.int64)[indices]
        slots.put(slot, values, _marked(valid_bytes(array), values < 0, NOT_A_SYMBOL))

    return read


def decimals(slot: int, precision: int, scale: int) -> Source:
    """Return the source of decimals, whose 128 bits take two slots."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        states, scaled = valid_bytes(array), array
        if array.type.scale != scale:
            scaled, is_lossy = _rescaled(array, scale)
            states = _marked(states, is_lossy, LOSES_DIGITS)
        lower, upper, is_wide = _words(scaled)
        states = _marked(states, is_wide | _is_beyond(lower, upper, precision), OUT_OF_RANGE)
        slots.put(slot, lower, states)
        slots.put(slot + 1, upper, states)

    return read


def structs(slot: int, children: tuple[tuple[int, Source], ...]) -> Source:
    """Return the source of structs; a child has the number of its field."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        slots.put(slot, np.zeros(len(array), np.int64), valid_bytes(array))
        for index, child in children:
            child(array.field(index), slots)

    return read


def lists(slot: int, children: tuple[Source, ...]) -> Source:
    """Return the source of lists, with one child, or of maps, with one for keys and one for values."""

    def read(array: pa.Array, slots: SlotValues) -> None:
        bounds = np.zeros(1, np.int64)
        if len(array):
            bounds = array.offsets.to_numpy().astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        is_map = pa.types.is_map(array.type)
        parts = (array.keys, array.items) if is_map else (array.values,)
        slots.put(slot, (bounds[:-1] - first) << 32 | np.diff(bounds), valid_bytes(array))
        for part, child in zip(parts, children, strict=True):
            child(part.slice(first, last - first), slots)

    return read


def _marked(states: Array, is_bad: Array, state: int) -> Array:
    """Return states with another one for values that are present and bad."""
    if not is_bad.any():
        return states
    return np.where((states == PRESENT) & is_bad, np.uint8(state), states)


def _numbers(array: pa.Array) -> Array:
    """Return a view of an Arrow array of numbers, dates or times."""
    kind = array.type
    prefix = (
        "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    )
    dtype = np.dtype(f"{prefix}{kind.bit_width // 8}")
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _bits(array: pa.Array) -> Array:
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), np.uint8)
    end = array.offset + len(array)
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=end, bitorder="little")[
        array.offset :
    ]


def _rescaled(array: pa.Array, scale: int) -> tuple[pa.Array, Array]:
    """Return decimals with another scale, and which of them lose digits by that."""
    wide = array.cast(pa.decimal256(76, array.type.scale))
    scaled = wide.cast(pa.decimal256(76, scale), safe=False)
    back = scaled.cast(wide.type, safe=False)
    return scaled, _differ(wide, back)


def _differ(one: pa.Array, other: pa.Array) -> Array:
    is_other: Array = (_words_of(one) != _words_of(other)).any(axis=1)
    return is_other


def _words_of(array: pa.Array) -> Array:
    """Return the words of each decimal, the lowest first: int64[n, words]."""
    words = array.type.bit_width // 64
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros((len(array), words), np.int64)
    numbers = np.frombuffer(buffer, np.int64, len(array) * words, array.offset * words * 8)
    return numbers.reshape(len(array), words)


def _words(array: pa.Array) -> tuple[Array, Array, Array]:
    """Return the lower and the upper word of decimals, and which need more."""
    words = _words_of(array)
    is_wide = np.zeros(len(array), np.bool_)
    for index in range(2, words.shape[1]):
        is_wide |= words[:, index] != words[:, 1] >> 63
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]), is_wide


def _is_beyond(lower: Array, upper: Array, precision: int) -> Array:
    """Return which numbers of two words have more digits."""
    is_negative = upper < 0
    # The complement of a negative number is its size less one.
    sizes = [np.where(is_negative, ~word, word).view(np.uint64) for word in (lower, upper)]
    is_beyond: Any = np.zeros(len(lower), np.bool_)
    for is_this, most in ((~is_negative, 10**precision - 1), (is_negative, 10**precision - 2)):
        low, high = np.uint64(most % _WORD), np.uint64(most // _WORD)
        larger = (sizes[1] > high) | ((sizes[1] == high) & (sizes[0] > low))
        is_beyond |= is_this & larger
    found: Array = is_beyond
    return found
