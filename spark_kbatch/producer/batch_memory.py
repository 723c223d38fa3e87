"""Room for new batches: how large they get, in the buffers of a pool.

What lies in a batch is uncompressed until it is closed, so one for a codec has as much room as the
codec is expected to leave batch.size of.

Source: Kafka clients/producer/internals/RecordAccumulator.java, recordsBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spark_kbatch.kernels.records import BATCH_COLUMNS
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.record.builder import (
    SPARE_SLOT,
    CompressionRatioEstimator,
    RecordBatchBuilder,
    capacity_for,
    write,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD


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
