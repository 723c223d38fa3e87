"""An accumulator without a sender, and rows for it: records of 50 bytes, 4 to a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.accumulator import (
    AccumulatorConfig,
    RecordAccumulator,
)
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX
from spark_kbatch.record.columns import Array
from tests.support.reference import HEADER_SIZE
from tests.support.waiting import until

PARTITIONS = 4
VALUE_BYTES = 43  # a record of 50 bytes
RECORDS = 4  # of a full batch
BATCH = HEADER_SIZE + RECORDS * 50
LARGE_VALUE_BYTES = 2 * BATCH
EVERYTHING = 1 << 20
BACKOFF_MS, BACKOFF_MAX_MS = 100, 500
DELIVERY_MS = 1_000
LONG_MS = 60_000
TOPIC = Topic("events", "id", PARTITIONS, TopicConfig())
TOPIC_PARTITIONS = [TopicPartition(TOPIC.name, partition) for partition in range(PARTITIONS)]


def bytes_in_use(pool: BufferPool) -> int:
    """Count the bytes of the pool's buffers that are allocated, after checking its own count."""
    buffers_count = len(pool.memory) // pool.poolable_size
    with pool._lock:
        free_count = pool._states[:buffers_count].count(0)
        assert pool._free_count == free_count
    return (buffers_count - free_count) * pool.poolable_size


def an_accumulator(
    *,
    linger_ms: int | None = 50,
    buffers: int = 64,
    allocate: Callable[[int], int] | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> RecordAccumulator:
    """Make an accumulator that does not wait for memory."""
    pool = BufferPool(total_memory=buffers * BATCH, poolable_size=BATCH)
    config = AccumulatorConfig(
        batch_size=BATCH,
        linger_ms=linger_ms,
        codec=0,
        level=None,
        delivery_timeout_ms=DELIVERY_MS,
        retry_backoff_ms=BACKOFF_MS,
        retry_backoff_max_ms=BACKOFF_MAX_MS,
        capacity_max=BATCH,
    )
    return RecordAccumulator(
        config,
        pool,
        allocate=allocate or (lambda size: pool.allocate(size, 0)),
        on_ready=on_ready,
        seed=1,
    )


_numbers = itertools.count()


def values(count: int, size: int = VALUE_BYTES) -> list[bytes]:
    """Make values that all differ."""
    return [str(next(_numbers)).encode().rjust(size) for _ in range(count)]


def append(
    accumulator: RecordAccumulator,
    partition: int,
    rows: Sequence[bytes],
    now_ms: int = 0,
    on_appended: Callable[[ProducerBatch, int, Array], None] | None = None,
) -> None:
    columns = arrow.columns(
        len(rows),
        key=None,
        value=pa.array(rows, pa.binary()),
        timestamps=arrow.timestamps_ms(None, len(rows), 0),
        headers=None,
    )
    slots = arrow.frozen(np.zeros(len(rows), np.int32))
    routing = Routing(slots, np.array([len(rows)]), [(TOPIC, TOPIC_PARTITIONS[partition])], [TOPIC])
    accumulator.append(columns, routing, now_ms, on_appended)


def append_record(
    accumulator: RecordAccumulator,
    partition: int,
    value: bytes,
    now_ms: int = 0,
    on_appended: Callable[[ProducerBatch, int], None] = lambda batch, index: None,
) -> None:
    size = HEADER_SIZE + RECORD_OVERHEAD_MAX + len(value)
    accumulator.append_record(TOPIC, partition, (0, None, value, ()), size, now_ms, on_appended)


def append_singly(
    accumulator: RecordAccumulator, partition: int, rows: Sequence[bytes], now_ms: int = 0
) -> None:
    for value in rows:
        append_record(accumulator, partition, value, now_ms)


def values_of(batch: ProducerBatch) -> list[bytes]:
    found: list[bytes] = codec.decode(bytes(batch.builder.data)).column("value").to_pylist()
    return found


def partitions_of(batches: Sequence[ProducerBatch]) -> list[int]:
    return [batch.topic_partition.partition for batch in batches]


class Waiter:
    """A thread that waits for memory, because all of it is in use."""

    def __init__(self, threads: ThreadPoolExecutor, pool: BufferPool) -> None:
        self._pool, self._taken = pool, list[int]()
        while (start := pool.try_allocate(BATCH)) is not None:
            self._taken.append(start)
        self.future: Future[int] = threads.submit(pool.allocate, BATCH, LONG_MS)
        until(lambda: pool.queued == 1)

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Free all memory, and end the thread."""
        for start in self._taken:
            self._pool.deallocate(start, BATCH)
        if self.future.exception(timeout=30) is None:
            self._pool.deallocate(self.future.result(), BATCH)
