"""buffer.memory: what a producer holds in open batches never takes more.

One block of memory, cut into buffers of batch.size. A record that is larger than one takes several
that lie side by side. The lowest free ones are taken first, and pages that were never written to
are not resident, so a producer with few open batches takes little. The memory of a producer that has
ended is kept for the next one in the process, as tasks of a Spark job follow each other: to have the
system clear new pages takes as long as to fill them.

Whoever finds no memory waits in a queue, and whoever comes later waits behind: memory that comes
free goes to the first in the queue alone, until it has enough. So a large record cannot starve, and
it finds its buffers side by side at last, because all others end up free. Kafka keeps the order
among those who wait too, but lets newcomers go ahead of them.

Waiting ends only while others give back what they have: do not wait with a buffer in hand that
nobody else can send.

Source: Kafka clients/producer/internals/BufferPool.java.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

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
    CompressionRatioEstimator,
    RecordBatchBuilder,
    capacity_for,
    write,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD

# What stands in `_states` for a buffer; one behind the last stands for the end.
_FREE, _FIRST, _FURTHER = 0, 1, 2

_KEPT_MAX = 64 << 20  # a larger block is not kept
_kept: list[memoryview] = []  # at most one; changed in single steps, so no lock


class _Waiter:
    """Who waits for `count` buffers. Settled once `start` is set, or the pool is closed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.start: int | None = None
        self.is_settled = False
        # Held until then. Not an event: an interrupt in `wait` may leave its lock taken for ever.
        self._pending = threading.Lock()
        self._pending.acquire()

    def settle(self) -> None:
        """Let it go on."""
        self.is_settled = True
        self._pending.release()

    def wait(self, timeout: float) -> bool:
        """Whether it was settled within so many seconds."""
        self._pending.acquire(timeout=timeout)
        return self.is_settled


class BufferPool:
    """Buffers in one block of memory, known by where they start. Thread-safe."""

    def __init__(
        self,
        *,
        total_memory: int,
        poolable_size: int,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """Set up.

        Args:
            total_memory: buffer.memory; what is left over beside whole buffers is not used.
            poolable_size: of one buffer.
            on_wait: called by each thread that is about to wait, once it counts in `queued`, with
                no lock held: wakes who can free memory.
        """
        self.total_memory = total_memory
        self.poolable_size = max(min(poolable_size, total_memory), 1)
        self._on_wait = on_wait
        self._count = total_memory // self.poolable_size
        self.memory = _memory(self._count * self.poolable_size)

        # Guards all below; calls nothing of others. Whenever it is free:
        # - _free_count is how many _states are _FREE, and none of them lies below _lowest_free;
        # - a waiter is in _waiters, or settled, or gone; the first in _waiters does not fit.
        self._lock = threading.Lock()
        self._states = bytearray(self._count) + bytes([_FIRST])
        self._free_count = self._count
        self._lowest_free = 0
        self._waiters: deque[_Waiter] = deque()
        self._closed = False

    @property
    def queued(self) -> int:
        """How many wait for memory."""
        return len(self._waiters)

    def try_allocate(self, size_in_bytes: int) -> int | None:
        """Where in `memory` so many bytes are free, which now are taken.

        Returns:
            None where there are none, or where somebody waits already.

        Raises:
            ProducerClosedError: the pool is closed.
            RecordTooLargeError: more than the pool will ever have.
        """
        count = self._buffers(size_in_bytes)
        with self._lock:
            if self._closed:
                raise ProducerClosedError(_CLOSED)
            return None if self._waiters else self._take_locked(count)

    def allocate(self, size_in_bytes: int, max_block_ms: int) -> int:
        """As `try_allocate`, but waits its turn for memory.

        Raises:
            BufferExhaustedError: its turn did not come within `max_block_ms`.
            ProducerClosedError: the pool was closed, before or meanwhile.
            RecordTooLargeError: more than the pool will ever have.
        """
        start = self.try_allocate(size_in_bytes)
        return self._wait(size_in_bytes, max_block_ms) if start is None else start

    def deallocate(self, start: int, size_in_bytes: int) -> None:
        """Give back what was allocated. Nobody reads it any more.

        Raises:
            ValueError: nothing of this size is allocated there; nothing was changed.
        """
        first, count = start // self.poolable_size, self._buffers(size_in_bytes)
        with self._lock:
            if (
                start != first * self.poolable_size
                or not 0 <= first <= self._count - count
                or self._states[first] != _FIRST
                or (count > 1 and self._states[first : first + count] != _pattern(count))
                or self._states[first + count] == _FURTHER
            ):
                raise ValueError(
                    f"no {size_in_bytes} bytes are allocated at position {start} of the buffer pool"
                )
            self._release_locked(first, count)
            if self._waiters:
                self._serve_locked()

    def close(self) -> None:
        """Let nobody allocate any more; who waits gets ProducerClosedError. May be repeated."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._waiters:
                self._waiters.popleft().settle()
            self._keep_if_unused_locked()

    def _keep_if_unused_locked(self) -> None:
        """Leave the memory of a closed pool to the next one: nobody can write to it or read it."""
        if self._free_count == self._count and len(self.memory) <= _KEPT_MAX:
            _kept[:] = [self.memory]

    def _wait(self, size_in_bytes: int, max_block_ms: int) -> int:
        waiter = _Waiter(self._buffers(size_in_bytes))
        try:
            with self._lock:
                if self._closed:
                    raise ProducerClosedError(_CLOSED)
                self._waiters.append(waiter)
                # Memory may have come free since `allocate` looked, and nobody may come after.
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
        """It waits no longer; what it was given between its error and now goes to the next."""
        with self._lock:
            if waiter.start is not None:
                self._release_locked(waiter.start // self.poolable_size, waiter.count)
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            self._serve_locked()

    def _serve_locked(self) -> None:
        """Take memory for those who wait, in their order, as far as there is any."""
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
        # Both ways do the same; nearly all buffers are taken and released alone, in half the time.
        # The count comes first: after an interrupt in between a buffer is lost, none is given twice.
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
        """How many buffers so many bytes take."""
        if size_in_bytes <= self.poolable_size:
            return 1
        if size_in_bytes > len(self.memory):
            raise RecordTooLargeError("a record", size_in_bytes, len(self.memory), "buffer.memory")
        return -(-size_in_bytes // self.poolable_size)


def _memory(size_in_bytes: int) -> memoryview:
    """What a pool before has left, where it is as large; else new."""
    try:
        kept = _kept.pop()
    except IndexError:
        kept = memoryview(b"")
    if len(kept) == size_in_bytes > 0:
        return kept
    try:
        # Not a bytearray: pages that nothing is written to cost nothing.
        return np.empty(size_in_bytes, np.uint8).data
    except (MemoryError, ValueError):
        raise ConfigError(
            f"option 'buffer.memory' asks for {size_in_bytes} bytes, which this process cannot have; give "
            "less"
        ) from None


_CLOSED = "the producer is closed"


def _pattern(count: int) -> bytes:
    """The states of `count` buffers that were allocated together."""
    return bytes([_FIRST]) + bytes([_FURTHER]) * (count - 1)


class BatchMemory:
    """Builders in a pool's memory. Thread-safe."""

    def __init__(
        self,
        pool: BufferPool,
        *,
        batch_size: int,
        codec: int,
        level: int | None,
        capacity_max: int,
        allocate: Callable[[int], int],
    ) -> None:
        """Set up.

        Args:
            capacity_max: of a batch in memory, before compression.
            allocate: memory of the pool, waited for or made free.
        """
        self._pool, self._allocate = pool, allocate
        self._batch_size, self._capacity_max = batch_size, capacity_max
        self._codec, self._level = codec, level
        self._ratios = CompressionRatioEstimator()
        # What the kernel keeps of a batch stands where its first buffer's number says.
        self._states = np.empty(BATCH_COLUMNS * (len(pool.memory) // pool.poolable_size), np.int64)
        self._states_view = self._states.data

    def builder(self, topic: Topic, record_size: int) -> RecordBatchBuilder:
        """An empty one that a record of so many bytes, batch header included, surely fits.

        Raises:
            BufferExhaustedError, RecordTooLargeError, ProducerClosedError: as the pool says.
        """
        # A record over the limit has room, and leaves none: it is alone in its batch.
        capacity, ratio = self._capacity(topic, max(self.write_limit(topic), record_size))
        return self._builder(topic, self._allocate(capacity), capacity, ratio)

    def try_builder(self, topic: Topic, record_size: int = 0) -> RecordBatchBuilder | None:
        """As `builder`; None where there is no memory right now."""
        capacity, ratio = self._capacity(topic, max(self.write_limit(topic), record_size))
        start = self._pool.try_allocate(capacity)
        return None if start is None else self._builder(topic, start, capacity, ratio)

    def number(self, start: int) -> int:
        """Of the builder whose bytes begin there, as `write` counts."""
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
        """kernels.write_records into these builders; returns the first row that had no room."""
        return write(
            self._pool.memory, self._states, columns, first_row, slots, current, spares, batch_of
        )

    def release(self, builder: RecordBatchBuilder) -> None:
        """Give back the memory of one that nobody reads or writes any more."""
        if not builder.is_closed:
            builder.abort()
        self._pool.deallocate(builder.start, builder.capacity)

    def write_limit(self, topic: Topic) -> int:
        """Bytes that a batch of this topic should take when closed."""
        limit = min(topic.config.max_message_bytes, topic.config.segment_bytes)
        return max(min(self._batch_size, limit), RECORD_BATCH_OVERHEAD)

    def close(self, batch: ProducerBatch) -> None:
        """Seal a batch, and learn from what it came to."""
        if not batch.builder.is_closed:
            batch.close()
            if self._codec:
                ratio = batch.builder.actual_compression_ratio()
                self._ratios.update(batch.topic.name, self._codec, ratio)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """What is too large for its topic as smaller batches, in memory of their own."""
        if self._codec:
            ratio = batch.builder.actual_compression_ratio()
            self._ratios.reset(batch.topic.name, self._codec, max(1.0, ratio))
        return batch.split(self.write_limit(batch.topic), codec_id=self._codec, level=self._level)

    def _capacity(self, topic: Topic, write_limit: int) -> tuple[int, float]:
        """Bytes for the records of a batch, and the compression ratio that is expected."""
        if not self._codec:
            return write_limit, 1.0
        ratio = self._ratios.estimation(topic.name, self._codec)
        return capacity_for(write_limit, ratio, self._capacity_max), ratio

    def _builder(self, topic: Topic, start: int, capacity: int, ratio: float) -> RecordBatchBuilder:
        first = BATCH_COLUMNS * self.number(start)
        return RecordBatchBuilder(
            self._pool.memory,
            start,
            capacity,
            write_limit=self.write_limit(topic),
            codec=self._codec,
            level=self._level,
            compression_ratio=ratio,
            slot=SPARE_SLOT,
            state=self._states_view[first : first + BATCH_COLUMNS],
        )
