"""A producer's memory: a pool of buffers of buffer.memory in all, and new batches in them.

The pool is one block of memory, divided into buffers of batch.size. A larger record takes several
adjacent buffers. The lowest free ones are taken first, and pages that were never written are not
resident, so a producer with few open batches takes little. When a producer is closed its memory is kept
for the next one in the process, because tasks of a Spark job follow each other, and the system needs as
long to clear new pages as we need to fill them.

A thread that finds no memory waits in a queue, and later ones wait after it: freed memory goes to the
first in the queue alone, until it has enough. So a large record cannot starve, and it finds adjacent
buffers at last, because all others end up free. Kafka also serves waiting threads in order, but lets
newcomers go ahead of them.

Waiting ends only if other threads release buffers: do not wait while holding a buffer that no other
thread can send.

Rows are uncompressed until their batch is closed. So with a codec, a batch gets as much room as is
expected to be compressed to batch.size.

Source: Kafka clients/producer/internals/BufferPool.java, RecordAccumulator.java (recordsBuilder).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from spark_kbatch.errors import (
    BufferExhaustedError,
    ConfigError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kbatch.kernels.records import BATCH_COLUMNS
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.record.builder import (
    SPARE_SLOT,
    BuilderRun,
    CompressionRatioEstimator,
    RecordBatchBuilder,
    capacity_for,
    write,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD

# The states of buffers in `_states`, which has one more entry than there are buffers, for the end.
_FREE, _FIRST, _FURTHER = 0, 1, 2

_REUSED_BYTES_MAX = 64 << 20  # a larger block is given back to the system
_reusable: list[memoryview] = []  # at most one; needs no lock: each change is one atomic step


class _Waiter:
    """A thread that waits for `count` buffers.

    It is settled once `start` is set, or the pool is closed.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.start: int | None = None
        self.is_settled = False
        # Held until settled. Not an Event: an interrupt in `wait` could leave its lock taken for ever.
        self._pending = threading.Lock()
        self._pending.acquire()

    def settle(self) -> None:
        """Let the waiting thread continue."""
        self.is_settled = True
        self._pending.release()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the buffers; return whether the wait has ended."""
        self._pending.acquire(timeout=timeout)
        return self.is_settled


class BufferPool:
    """The pool of equal buffers that make up a producer's buffer.memory.

    It is thread-safe.
    """

    def __init__(
        self,
        *,
        total_memory: int,
        poolable_size: int,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """Set up the pool in one block of memory, of buffer.memory bytes.

        Args:
            total_memory: buffer.memory; a remainder smaller than a buffer is not used.
            poolable_size: of one buffer.
            on_wait: called, without a lock, by each thread that is about to wait, once `queued` counts
                it; wakes the thread that can free memory.
        """
        self.total_memory = total_memory
        self.poolable_size = max(min(poolable_size, total_memory), 1)
        self._on_wait = on_wait
        self._count = total_memory // self.poolable_size
        self.memory = _memory(self._count * self.poolable_size)

        # Guards all below; nothing else is called while it is held. Whenever it is free:
        # - _free_count is the number of _FREE in _states, none of them below _lowest_free;
        # - a waiter is in _waiters, or settled, or withdrawn; there is no room for the first in _waiters.
        self._lock = threading.Lock()
        self._states = bytearray(self._count) + bytes([_FIRST])
        self._free_count = self._count
        self._lowest_free = 0
        self._waiters: deque[_Waiter] = deque()
        self._closed = False

    @property
    def queued(self) -> int:
        """The number of threads that wait for memory."""
        return len(self._waiters)

    @property
    def available(self) -> int:
        """The bytes in buffers that are free."""
        return self._free_count * self.poolable_size

    def try_allocate_several(self, size_in_bytes: int, count: int, starts: list[int]) -> None:
        """Allocate memory up to `count` times, as `try_allocate`; add the start positions to `starts`."""
        buffers = self._buffers(size_in_bytes)
        with self._lock:
            if self._closed:
                raise ProducerClosedError(_CLOSED)
            while len(starts) < count and not self._waiters:
                start = self._take_locked(buffers)
                if start is None:
                    return
                starts.append(start)

    def try_allocate(self, size_in_bytes: int) -> int | None:
        """Allocate adjacent free buffers for a size in bytes, without waiting; return their start position.

        Returns:
            None if there is no memory, or if other threads wait for it.

        Raises:
            ProducerClosedError: the pool is closed.
            RecordTooLargeError: the pool is smaller.
        """
        count = self._buffers(size_in_bytes)
        with self._lock:
            if self._closed:
                raise ProducerClosedError(_CLOSED)
            return None if self._waiters else self._take_locked(count)

    def allocate(self, size_in_bytes: int, max_block_ms: int) -> int:
        """Allocate buffers as `try_allocate` does, but wait up to `max_block_ms` for free memory.

        Raises:
            BufferExhaustedError: no memory within `max_block_ms`.
            ProducerClosedError: the pool was closed, before or meanwhile.
            RecordTooLargeError: the pool is smaller.
        """
        start = self.try_allocate(size_in_bytes)
        return self._wait(size_in_bytes, max_block_ms) if start is None else start

    def deallocate(self, start: int, size_in_bytes: int) -> None:
        """Release allocated buffers, which nothing may read any more.

        Raises:
            ValueError: nothing of this size is allocated there; nothing is changed.
        """
        self.deallocate_several([(start, size_in_bytes)])

    def deallocate_several(self, allocated: Iterable[tuple[int, int]]) -> None:
        """Release several allocations, each given by its start and size, as `deallocate`."""
        states, poolable_size = self._states, self.poolable_size
        with self._lock:
            for start, size_in_bytes in allocated:
                first, count = start // poolable_size, self._buffers(size_in_bytes)
                if (
                    start != first * poolable_size
                    or not 0 <= first <= self._count - count
                    or states[first] != _FIRST
                    or (count > 1 and states[first : first + count] != _pattern(count))
                    or states[first + count] == _FURTHER
                ):
                    raise ValueError(
                        f"no {size_in_bytes} bytes are allocated at position {start} of the buffer pool"
                    )
                self._release_locked(first, count)
            if self._waiters:
                self._serve_locked()

    def close(self) -> None:
        """Refuse further allocations; waiting ones get ProducerClosedError. Safe to call again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._waiters:
                self._waiters.popleft().settle()
            self._keep_if_unused_locked()

    def _keep_if_unused_locked(self) -> None:
        """Leave a closed pool's memory to the next pool once all of its buffers are free."""
        if self._free_count == self._count and len(self.memory) <= _REUSED_BYTES_MAX:
            _reusable[:] = [self.memory]

    def _wait(self, size_in_bytes: int, max_block_ms: int) -> int:
        waiter = _Waiter(self._buffers(size_in_bytes))
        try:
            with self._lock:
                if self._closed:
                    raise ProducerClosedError(_CLOSED)
                self._waiters.append(waiter)
                # Memory may have come free since `allocate` looked, and no later release may follow.
                self._serve_locked()
            if self._on_wait is not None and not waiter.is_settled:
                self._on_wait()
            if not waiter.wait(min(max_block_ms / 1000, threading.TIMEOUT_MAX)):
                raise BufferExhaustedError(size_in_bytes, max_block_ms, self.total_memory)
            if waiter.start is None:
                raise ProducerClosedError(_CLOSED)
            return waiter.start
        except BaseException:
            self._withdraw(waiter)
            raise

    def _withdraw(self, waiter: _Waiter) -> None:
        """Remove a waiter after an error; memory that it was given meanwhile goes to the next one."""
        with self._lock:
            if waiter.start is not None:
                self._release_locked(waiter.start // self.poolable_size, waiter.count)
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            self._serve_locked()

    def _serve_locked(self) -> None:
        """Give free memory to the waiting threads, in their order."""
        while self._waiters:
            waiter = self._waiters[0]
            waiter.start = self._take_locked(waiter.count)
            if waiter.start is None:
                return
            self._waiters.popleft()
            waiter.settle()

    def _take_locked(self, count: int) -> int | None:
        if count > self._free_count:
            return None
        # Both branches do the same; the first takes half the time, and nearly all allocations are of one
        # buffer. The count changes first: an interrupt in between loses a buffer, but gives none twice.
        if count == 1:
            first = self._states.find(_FREE, self._lowest_free)
            self._free_count -= 1
            self._states[first] = _FIRST
            self._lowest_free = first + 1
        else:
            first = self._states.find(bytes(count), self._lowest_free)
            if first < 0:
                return None
            self._free_count -= count
            self._states[first : first + count] = _pattern(count)
            if first == self._lowest_free:
                self._lowest_free = first + count
        return first * self.poolable_size

    def _release_locked(self, first: int, count: int) -> None:
        if count == 1:
            self._states[first] = _FREE
        else:
            self._states[first : first + count] = bytes(count)
        self._free_count += count
        if first < self._lowest_free:
            self._lowest_free = first
        if self._closed:
            self._keep_if_unused_locked()

    def _buffers(self, size_in_bytes: int) -> int:
        """Return how many buffers an allocation of a size in bytes takes."""
        if size_in_bytes <= self.poolable_size:
            return 1
        if size_in_bytes > len(self.memory):
            raise RecordTooLargeError("a record", size_in_bytes, len(self.memory), "buffer.memory")
        return -(-size_in_bytes // self.poolable_size)


def _memory(size_in_bytes: int) -> memoryview:
    """Return a block of memory for a pool: one that an earlier pool left, if it fits, or a new one."""
    try:
        reused = _reusable.pop()
    except IndexError:
        reused = memoryview(b"")
    if len(reused) == size_in_bytes > 0:
        return reused
    try:
        # Not a bytearray, which would write to every page: pages that are never written cost nothing.
        return np.empty(size_in_bytes, np.uint8).data
    except (MemoryError, ValueError):
        raise ConfigError(
            f"option 'buffer.memory' asks for {size_in_bytes} bytes, which this process cannot allocate; "
            "give less"
        ) from None


_CLOSED = "the producer is closed"


def _pattern(count: int) -> bytes:
    """Return the state bytes that mark `count` buffers as allocated together."""
    return bytes([_FIRST]) + bytes([_FURTHER]) * (count - 1)


class BatchMemory:
    """The source of batch builders, whose memory comes from a producer's buffer pool.

    It is thread-safe.
    """

    def __init__(
        self,
        pool: BufferPool,
        *,
        batch_size: int,
        codec: int,
        level: int | None,
        attributes: int,
        capacity_max: int,
        allocate: Callable[[int], int],
    ) -> None:
        """Set up the source of batch builders for one buffer pool.

        Args:
            attributes: of the batches, besides the codec.
            capacity_max: of a batch in memory, before compression.
            allocate: takes memory from the pool, waiting for it or freeing it.
        """
        self._pool, self._allocate = pool, allocate
        self._batch_size, self._capacity_max = batch_size, capacity_max
        self._codec, self._level, self._attributes = codec, level, attributes
        self._ratios = CompressionRatioEstimator()
        # The kernels' state of each batch, indexed by the number of its first buffer.
        self._states = np.empty(BATCH_COLUMNS * (len(pool.memory) // pool.poolable_size), np.int64)
        self._states_view = self._states.data

    def builder(self, topic: Topic, record_size: int) -> RecordBatchBuilder:
        """Return an empty batch builder with room for a record of `record_size` bytes; may wait for memory.

        The size includes the batch header.

        Raises:
            BufferExhaustedError, RecordTooLargeError, ProducerClosedError: as `allocate`.
        """
        # A record over the limit gets a batch of its own, without room for another.
        capacity, ratio = self._capacity(topic, max(self.write_limit(topic), record_size))
        return self._builders(topic, [self._allocate(capacity)], capacity, ratio)[0]

    def try_builders(self, topic: Topic, record_size: int, count: int) -> list[RecordBatchBuilder]:
        """Return up to `count` empty batch builders without waiting, fewer if free memory runs out."""
        capacity, ratio = self._capacity(topic, max(self.write_limit(topic), record_size))
        starts: list[int] = []
        try:
            self._pool.try_allocate_several(capacity, count, starts)
            return self._builders(topic, starts, capacity, ratio)
        except BaseException:  # an interrupt can come anywhere
            for start in starts:
                self._pool.deallocate(start, capacity)
            raise

    def number(self, start: int) -> int:
        """Return the number that stands for a builder in `write`, given where its memory starts."""
        return start // self._pool.poolable_size

    def write(
        self,
        columns: Columns,
        first_row: int,
        slots: Array,
        current: Array,
        spares: Sequence[int],
        batch_of: Array,
    ) -> int:
        """Write rows of a table into batch builders; return the first row that had no room.

        Arguments as those of kernels.write_records.
        """
        return write(
            self._pool.memory, self._states, columns, first_row, slots, current, spares, batch_of
        )

    def release(self, builder: RecordBatchBuilder | BuilderRun) -> None:
        """Release the memory of a builder that is no longer read or written."""
        if not builder.is_closed:
            builder.abort()
        self._pool.deallocate_several([(part.start, part.capacity) for part in builder.parts])

    def write_limit(self, topic: Topic) -> int:
        """Return the largest size in bytes that a batch of this topic should have when closed."""
        limit = topic.batch_bytes_max
        return max(min(self._batch_size, limit), RECORD_BATCH_OVERHEAD)

    def close(self, batch: ProducerBatch) -> None:
        """Close a batch, and update the expected compression ratio."""
        if not batch.builder.is_closed:
            batch.close()
            codec, _ = self._codec_of(batch.topic)
            for part in batch.builder.parts if codec else ():
                ratio = part.actual_compression_ratio()
                self._ratios.update(batch.topic.name, codec, ratio)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Split a batch that is too large for its topic into smaller ones, outside the pool."""
        codec, level = self._codec_of(batch.topic)
        if codec:
            (whole,) = batch.builder.parts
            ratio = whole.actual_compression_ratio()
            self._ratios.reset(batch.topic.name, codec, max(1.0, ratio))
        return batch.split(self.write_limit(batch.topic), codec_id=codec, level=level)

    def _codec_of(self, topic: Topic) -> tuple[int, int | None]:
        """Return the compression codec of a topic's batches, and its level if it is the producer's codec."""
        codec = topic.stored_codec(self._codec)
        return codec, self._level if codec == self._codec else None

    def _capacity(self, topic: Topic, write_limit: int) -> tuple[int, float]:
        """Return the bytes to allocate for a batch, and the expected compression ratio."""
        codec, _ = self._codec_of(topic)
        if not codec:
            return write_limit, 1.0
        ratio = self._ratios.estimation(topic.name, codec)
        return capacity_for(write_limit, ratio, self._capacity_max), ratio

    def _builders(
        self, topic: Topic, starts: Sequence[int], capacity: int, ratio: float
    ) -> list[RecordBatchBuilder]:
        memory, states = self._pool.memory, self._states_view
        codec, level = self._codec_of(topic)
        write_limit = self.write_limit(topic)
        builders = []
        for start in starts:
            first = BATCH_COLUMNS * self.number(start)
            builders.append(
                RecordBatchBuilder(
                    memory,
                    start,
                    capacity,
                    write_limit=write_limit,
                    codec=codec,
                    level=level,
                    compression_ratio=ratio,
                    attributes=self._attributes,
                    slot=SPARE_SLOT,
                    state=states[first : first + BATCH_COLUMNS],
                )
            )
        return builders
