"""Rows wait here, one open batch per partition, each in a pooled buffer that kernels write into.

A batch is cut when the next row does not fit, when the pool is exhausted (the fullest goes), and at
the end. The first row of a batch always fits: one that is larger than batch.size gets a buffer of
its own.

Source: Kafka clients/producer/internals/RecordAccumulator.java, ProducerBatch.java.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.config import Topic
from spark_kbatch.kernels import POSITION
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.producer.sender import Sender
from spark_kbatch.record import codec
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD


class _OpenBatch(NamedTuple):
    buffer: Array
    progress: Array

    @property
    def is_empty(self) -> bool:
        return int(self.progress[POSITION]) == RECORD_BATCH_OVERHEAD


class RecordAccumulator:
    """Open batches of one producer. Not thread-safe."""

    def __init__(self, sender: Sender, *, batch_size: int, buffer_memory: int) -> None:
        self._sender = sender
        # A buffer for each of two partitions at least, whatever batch.size says.
        self._batch_size = max(min(batch_size, buffer_memory // 2), RECORD_BATCH_OVERHEAD)
        self._pool = BufferPool(total_memory=buffer_memory, poolable_size=self._batch_size)
        self._open: dict[tuple[str, int], tuple[Topic, _OpenBatch]] = {}

    def append(self, topic: Topic, partition: int, columns: Columns, rows: Array) -> None:
        """Add the given rows (int32, read-only) of `columns`, in order.

        Raises:
            RecordTooLargeError: a record larger than the topic takes or than buffer.memory.
        """
        key = (topic.name, partition)
        limit = min(self._batch_size, topic.config.max_message_bytes)
        while len(rows):
            if key in self._open:
                batch = self._open[key][1]
            else:
                buffer = self._allocate(self._batch_size)
                first_timestamp = int(columns.timestamps[rows[0]])
                batch = _OpenBatch(buffer, codec.new_progress(limit, first_timestamp))
                self._open[key] = (topic, batch)
            written = codec.write_records(columns, rows, batch.buffer, batch.progress)
            if written == len(rows):
                return
            if written == 0 and batch.is_empty:
                self._send_alone(topic, partition, columns, rows[:1])
                written = 1
            else:
                self._cut(key)
            rows = rows[written:]

    def flush(self) -> None:
        """Send every open batch."""
        for key in list(self._open):
            self._cut(key)

    def _send_alone(self, topic: Topic, partition: int, columns: Columns, row: Array) -> None:
        """One row that is larger than a batch; the partition's open batch is empty."""
        size = codec.size_upper_bound(columns, int(row[0]))
        self._pool.deallocate(self._open.pop((topic.name, partition))[1].buffer)
        buffer = self._allocate(size)
        progress = codec.new_progress(size, int(columns.timestamps[row[0]]))
        try:
            codec.write_records(columns, row, buffer, progress)
            self._sender.send(topic, partition, buffer, progress)
        finally:
            self._pool.deallocate(buffer)

    def _allocate(self, size: int) -> Array:
        buffer = self._pool.try_allocate(size)
        while buffer is None:
            fullest = max(self._open, key=lambda key: int(self._open[key][1].progress[POSITION]))
            self._cut(fullest)
            buffer = self._pool.try_allocate(size)
        return buffer

    def _cut(self, key: tuple[str, int]) -> None:
        topic, batch = self._open.pop(key)
        try:
            if not batch.is_empty:
                self._sender.send(topic, key[1], batch.buffer, batch.progress)
        finally:
            self._pool.deallocate(batch.buffer)
