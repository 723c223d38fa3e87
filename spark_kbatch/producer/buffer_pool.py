"""buffer.memory: what a producer holds in open batches never takes more.

One block of memory, cut into buffers of batch.size. A record that is larger than one takes several
that lie side by side. Pages that were never written to are not resident, so a producer with few
open batches takes little.

Source: Kafka clients/producer/internals/BufferPool.java.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.errors import RecordTooLargeError


class BufferPool:
    """Buffers in one block of memory, known by where they start. Not thread-safe."""

    def __init__(self, *, total_memory: int, poolable_size: int) -> None:
        self.total_memory = total_memory
        self.poolable_size = min(poolable_size, total_memory)
        self._taken = bytearray(total_memory // self.poolable_size)
        self.memory: np.ndarray[Any, Any] = np.empty(
            len(self._taken) * self.poolable_size, np.uint8
        )

    @property
    def in_use(self) -> int:
        """Bytes in buffers that are allocated."""
        return self._taken.count(1) * self.poolable_size

    def try_allocate(self, size_in_bytes: int) -> int | None:
        """Where in `memory` so many bytes are free, which now are taken; None while there are none.

        Raises:
            RecordTooLargeError: more than the pool will ever have.
        """
        if size_in_bytes > len(self.memory):
            raise RecordTooLargeError("a record", size_in_bytes, len(self.memory), "buffer.memory")
        count = self._count(size_in_bytes)
        first = self._taken.find(bytes(count))
        if first < 0:
            return None
        self._taken[first : first + count] = b"\1" * count
        return first * self.poolable_size

    def deallocate(self, start: int, size_in_bytes: int) -> None:
        """Give back what `try_allocate` took. Nobody reads it any more."""
        first, count = start // self.poolable_size, self._count(size_in_bytes)
        self._taken[first : first + count] = bytes(count)

    def _count(self, size_in_bytes: int) -> int:
        return -(-size_in_bytes // self.poolable_size)
