"""Rows wait here, one open batch per partition, each in a pooled buffer that kernels write into.

A batch is cut when the next row does not fit, when the pool is exhausted (the fullest goes), and at
the end. The first row of a batch always fits: one that is larger than batch.size gets a buffer of
its own.

Source: Kafka clients/producer/internals/RecordAccumulator.java, ProducerBatch.java.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_kbatch.config import Topic
from spark_kbatch.kernels import POSITION, RECORDS_COUNT, START
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.producer.sender import Sender
from spark_kbatch.record import codec
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import MIN_RECORD_SIZE, RECORD_BATCH_OVERHEAD

# One call fills no more than this, so that batches are still in the cache when they are sealed.
_BYTES_AT_ONCE = 512 * 1024


class _OpenBatch(NamedTuple):
    topic: Topic
    partition: int
    batch: list[int]  # a row of `write_records`

    @property
    def size_in_bytes(self) -> int:
        return self.batch[POSITION] - self.batch[START]


class RecordAccumulator:
    """Open batches of one producer. Not thread-safe."""

    def __init__(self, sender: Sender, *, batch_size: int, buffer_memory: int) -> None:
        self._sender = sender
        # A buffer for each of two partitions at least, whatever batch.size says.
        self._batch_size = max(min(batch_size, buffer_memory // 2), RECORD_BATCH_OVERHEAD)
        self._pool = BufferPool(total_memory=buffer_memory, poolable_size=self._batch_size)
        self._open: dict[tuple[str, int], _OpenBatch] = {}

    def append(self, topic: Topic, partition: int, columns: Columns, rows: Array) -> None:
        """Add the given rows (int32, read-only) of `columns`, in order.

        Raises:
            RecordTooLargeError: a record larger than the topic takes or than buffer.memory.
        """
        key = (topic.name, partition)
        limit = min(self._batch_size, topic.config.max_message_bytes)
        while len(rows):
            # The open batch and as many new ones as the rows may fill, so that one call writes all.
            opened = self._open.pop(key, None)
            first = (
                opened.batch if opened else codec.new_batch(self._allocate(self._batch_size), limit)
            )
            offered = [first]
            wanted = min(_size_estimate(columns, len(rows)), _BYTES_AT_ONCE) // limit
            for _ in range(wanted):
                start = self._pool.try_allocate(self._batch_size)
                if start is None:
                    break
                offered.append(codec.new_batch(start, limit))
            batches = np.array(offered)
            written = codec.write_records(columns, rows, self._pool.memory, batches)

            filled = [batch for batch in batches.tolist() if batch[RECORDS_COUNT]]
            for batch in offered[len(filled) :]:
                self._pool.deallocate(batch[START], self._batch_size)
            if written == len(rows):
                self._open[key] = _OpenBatch(topic, partition, filled.pop())
            for batch in filled:
                self._send(_OpenBatch(topic, partition, batch))
            # A record that an empty batch does not take is larger than any batch.
            if written < len(rows) and len(filled) < len(offered):
                self._send_alone(topic, partition, columns, rows[written : written + 1])
                written += 1
            rows = rows[written:]

    def flush(self) -> None:
        """Send every open batch."""
        while self._open:
            self._send(self._open.pop(next(iter(self._open))))

    def _send_alone(self, topic: Topic, partition: int, columns: Columns, row: Array) -> None:
        """One row that is larger than a batch; the partition has no open batch."""
        size = codec.size_upper_bound(columns, int(row[0]))
        start = self._allocate(size)
        batches = np.array([codec.new_batch(start, size)])
        codec.write_records(columns, row, self._pool.memory, batches)
        try:
            self._sender.send(topic, partition, self._pool.memory.data, batches[0].tolist())
        finally:
            self._pool.deallocate(start, size)

    def _allocate(self, size: int) -> int:
        """Memory for a batch; where there is none, the fullest open batches are sent."""
        start = self._pool.try_allocate(size)
        while start is None:
            fullest = max(self._open, key=lambda key: self._open[key].size_in_bytes)
            self._send(self._open.pop(fullest))
            start = self._pool.try_allocate(size)
        return start

    def _send(self, full: _OpenBatch) -> None:
        try:
            self._sender.send(full.topic, full.partition, self._pool.memory.data, full.batch)
        finally:
            self._pool.deallocate(full.batch[START], self._batch_size)


def _size_estimate(columns: Columns, rows_count: int) -> int:
    """Roughly what so many of the rows take: the mean of all."""
    spans = (columns.key, columns.value, columns.headers)
    total = sum(int(s.bounds[-1]) - int(s.bounds[0]) for s in spans if len(s.bounds))
    return total * rows_count // columns.rows_count + rows_count * MIN_RECORD_SIZE
