"""Arrow arrays as flat numpy arrays, and back: what kernels read and write.

Only this module of the room opens Arrow buffers: slices, nulls and large types invite silent errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]

PIECE_BYTES_MAX = 2**30  # of the rows that are decoded in one call; positions in them have 31 bits
INT32_MAX = 2**31 - 1  # what bounds of Arrow's count to


class ByteStrings(NamedTuple):
    """n byte strings: span i is data[bounds[i] : bounds[i + 1]], null where `valid` is 0."""

    data: Array  # uint8, read-only
    bounds: Array  # int64[n + 1]
    valid: Array  # uint8[n]

    def start(self, row: int, position: int = 0) -> bytes:
        """Return some bytes of a row, from a position on, for an error."""
        begin = int(self.bounds[row]) + position
        return bytes(self.data[begin : min(int(self.bounds[row + 1]), begin + 32)])


def frozen(array: Array) -> Array:
    """Make an array read-only, as kernels expect their inputs."""
    array.setflags(write=False)
    return array


def strings_of(array: pa.Array) -> ByteStrings:
    """Return a view of an Arrow array of byte strings, whose data begins at the first of them.

    Raises:
        TypeError: it is neither binary nor string, nor a large one of these, nor null.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind, count = array.type, len(array)
    if pa.types.is_null(kind):
        array, kind = pa.array([None] * count, pa.binary()), pa.binary()
    is_large = kind in (pa.large_binary(), pa.large_string())
    if not is_large and kind not in (pa.binary(), pa.string()):
        raise TypeError(f"expected a binary or string array, not {kind}")
    _, bounds_buffer, data_buffer = array.buffers()
    if count == 0 or bounds_buffer is None:
        return ByteStrings(
            frozen(np.empty(0, np.uint8)), np.zeros(count + 1, np.int64), valid_bytes(array)
        )
    number = np.int64 if is_large else np.int32
    size = np.dtype(number).itemsize
    bounds = np.frombuffer(bounds_buffer, number, count + 1, array.offset * size).astype(np.int64)
    data = np.empty(0, np.uint8)
    if data_buffer is not None and data_buffer.size:
        data = np.frombuffer(data_buffer, np.uint8)[bounds[0] : bounds[-1]]
    return ByteStrings(frozen(data), bounds - bounds[0], valid_bytes(array))


def valid_bytes(array: pa.Array) -> Array:
    """Return uint8[n]: 1 for a value, 0 for null."""
    bitmap, count = array.buffers()[0], len(array)
    if pa.types.is_null(array.type):
        return np.zeros(count, np.uint8)
    if bitmap is None or array.null_count == 0:
        return np.ones(count, np.uint8)
    bits = np.unpackbits(
        np.frombuffer(bitmap, np.uint8), count=array.offset + count, bitorder="little"
    )
    return np.ascontiguousarray(bits[array.offset :])


def pieces(array: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield an array in slices, each with at most PIECE_BYTES_MAX bytes if a single row has no more.

    Raises:
        OverflowError: a row whose positions have more than 31 bits.
    """
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        if chunk.nbytes <= PIECE_BYTES_MAX:
            yield chunk
            continue
        bounds, first = strings_of(chunk).bounds, 0
        while first < len(chunk):
            fits = int(np.searchsorted(bounds, bounds[first] + PIECE_BYTES_MAX, "right")) - 1
            end = min(max(fits, first + 1), len(chunk))
            if bounds[end] - bounds[first] >= 2 * PIECE_BYTES_MAX:
                raise OverflowError("a single value has more than 2 GiB")
            yield chunk.slice(first, end - first)
            first = end


def validity(valid: Array) -> tuple[pa.Buffer | None, int]:
    """Return an Arrow bitmap of uint8[n], None if nothing is null, and the number of nulls."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    if nulls == 0:
        return None, 0
    return pa.py_buffer(np.packbits(valid, bitorder="little")), nulls


def bounds_of(lengths: Array) -> Array | None:
    """Return int32[n + 1], the running sums of n lengths, None if they do not fit."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    return None if sums[-1] > INT32_MAX else sums.astype(np.int32)


def assembled(
    kind: pa.DataType,
    count: int,
    valid: Array,
    buffers: list[Array],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    """Return an Arrow array over numpy arrays, which it keeps alive, and children."""
    bitmap, nulls = validity(valid)
    parts = [bitmap, *(pa.py_buffer(one) for one in buffers)]
    return pa.Array.from_buffers(kind, count, parts, nulls, children=children)
