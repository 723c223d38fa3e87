"""buffer.memory: what a producer holds in open batches never takes more.

Buffers of batch.size bytes are kept for the next batch; one of any other size is made for one batch
and given back to the total.

Source: Kafka clients/producer/internals/BufferPool.java.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_kbatch.errors import RecordTooLargeError

Buffer = np.ndarray[Any, Any]


class BufferPool:
    """Buffers within a total size. Not thread-safe."""

    def __init__(self, *, total_memory: int, poolable_size: int) -> None:
        self.total_memory = total_memory
        self.poolable_size = min(poolable_size, total_memory)
        self.in_use = 0
        self._free: list[Buffer] = []

    def try_allocate(self, size_in_bytes: int) -> Buffer | None:
        """A buffer of that size, uint8; None while too much is in use.

        Raises:
            RecordTooLargeError: more than the pool will ever have.
        """
        if size_in_bytes > self.total_memory:
            raise RecordTooLargeError("a record", size_in_bytes, self.total_memory, "buffer.memory")
        if self.in_use + size_in_bytes > self.total_memory:
            return None
        self.in_use += size_in_bytes
        if size_in_bytes == self.poolable_size and self._free:
            return self._free.pop()
        # Free buffers count as memory that is held, so they go where they would pass the total.
        while self._free and self.in_use + len(self._free) * self.poolable_size > self.total_memory:
            self._free.pop()
        return np.empty(size_in_bytes, np.uint8)

    def deallocate(self, buffer: Buffer) -> None:
        """Give a buffer back. Nobody reads it any more."""
        self.in_use -= len(buffer)
        if len(buffer) == self.poolable_size:
            self._free.append(buffer)
