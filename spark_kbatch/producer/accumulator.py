"""Rows wait here, in a queue of batches per partition, until a sender drains them.

    append   fills the last batch of a queue; where it has no room, new ones in pooled buffers
    ready    whether a batch may go, and if none may, when to look again
    drain    closes the first batch of every queue that may go, up to max.request.size
    reenqueue, split_and_reenqueue                what could not be delivered
    expired, abort_incomplete, flush              how batches end otherwise

A batch may go when one of these holds and it is not backing off after an attempt: it is full, or one
lies behind it; linger.ms has passed since it was made; somebody waits for memory; a flush is under way;
the accumulator is closed. Without linger.ms time alone sends nothing.

Locks, innermost last: a queue's guards its batches and the builder of the last one; `_lock` guards
which queues and unfinished batches there are, and the counts. Memory is waited for with none held;
so the last batch is tried again once there is some.

Source: Kafka clients/producer/internals/RecordAccumulator.java.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_kbatch.config import Topic
from spark_kbatch.errors import ProducerClosedError, RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.batch import ProducerBatch, ProduceResult
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.producer.sequences import Sequences
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import (
    CompressionRatioEstimator,
    RecordBatchBuilder,
    capacity_for,
    size_upper_bound,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD
from spark_kbatch.record.plain import Header

# One call fills no more than this, so that batches are still in the cache when they are closed.
_BYTES_AT_ONCE = 512 * 1024

NEVER_MS = 2**62  # a delay: time alone changes nothing


@dataclass(frozen=True)
class AccumulatorConfig:
    """What the accumulator is told of its producer's options."""

    batch_size: int
    linger_ms: int | None  # None: time alone sends nothing
    codec: int
    level: int | None
    delivery_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    capacity_max: int  # of a batch in memory, before compression


class Ready(NamedTuple):
    """Whether batches may go; if none may, after how many ms to look again."""

    is_ready: bool
    next_check_delay_ms: int


class _Queue:
    """The batches of one partition, oldest first."""

    __slots__ = ("batches", "is_muted", "lock", "place", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, place: int) -> None:
        self.topic_partition = topic_partition
        self.place = place  # among all queues, in `_order`
        self.lock = threading.Lock()  # guards batches, and the builder of the last one
        self.batches: deque[ProducerBatch] = deque()
        self.is_muted = False

    def has_full(self) -> bool:
        """Whether the first batch takes nothing more."""
        return len(self.batches) > 1 or (len(self.batches) == 1 and self.batches[0].builder.is_full)


class RecordAccumulator:
    """Batches of one producer that are not yet with a transport. Thread-safe."""

    def __init__(
        self,
        config: AccumulatorConfig,
        pool: BufferPool,
        *,
        allocate: Callable[[int], int],
        on_ready: Callable[[], None],
        sequences: Sequences | None = None,
        seed: int | None = None,
    ) -> None:
        """Set up.

        Args:
            allocate: memory of the pool, waited for or made free; called without a lock.
            on_ready: told when a batch is full; called without a lock.
            sequences: numbers the batches that are drained, for idempotence.
            seed: of the jitter of retries.
        """
        self._config, self._pool = config, pool
        self._allocate, self._on_ready = allocate, on_ready
        self._sequences, self._random = sequences, random.Random(seed)
        self._ratios = CompressionRatioEstimator()
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, _Queue] = {}
        self._order: list[_Queue] = []
        self._full: set[_Queue] = set()  # at least those whose first batch is full
        self._incomplete: set[ProducerBatch] = set()
        self._drain_place = 0
        self._appends = self._flushes = 0
        self._is_closed = False

    # Appending.

    def append(
        self,
        topic: Topic,
        partition: int,
        columns: Columns,
        rows: Array,
        now_ms: int,
        on_appended: Callable[[ProducerBatch, int, Array], None] | None = None,
        *,
        row_size: int | None = None,
    ) -> None:
        """Add the given rows (int32, read-only) of `columns`, in order.

        Args:
            on_appended: told the batch, the index of its first record of these, and their rows,
                before the batch can be drained.
            row_size: mean of all rows of `columns`, where it is known.

        Raises:
            ProducerClosedError: closed; some of the rows may have been added.
            BufferExhaustedError, RecordTooLargeError: no memory, or never enough.
        """
        queue = self._queue(TopicPartition(topic.name, partition))
        size = arrow.mean_row_size(columns) if row_size is None else row_size
        with self._appending():
            has_room = True
            lingers = self._config.linger_ms is not None
            while len(rows):
                fresh: list[ProducerBatch] = []
                try:
                    self._add_fresh(fresh, topic, partition, columns, rows, size, now_ms, has_room)
                    with queue.lock:
                        self._ensure_open()
                        written, is_full = self._fill(queue, fresh, columns, rows, on_appended)
                finally:
                    for batch in fresh:
                        if batch.records_count == 0:
                            self.deallocate(batch)
                rows, has_room = rows[written:], written > 0
                if is_full or (lingers and any(batch.memory for batch in fresh)):
                    self._on_ready()

    def append_record(
        self,
        topic: Topic,
        partition: int,
        record: tuple[int, bytes | None, bytes | None, Sequence[Header]],
        size_upper_bound: int,
        now_ms: int,
        on_appended: Callable[[ProducerBatch, int], None],
    ) -> None:
        """Add one record: timestamp, key, value, headers. As `append` otherwise."""
        queue = self._queue(TopicPartition(topic.name, partition))
        fresh, is_full = None, False
        with self._appending():
            try:
                while True:
                    with queue.lock:
                        self._ensure_open()
                        batch = queue.batches[-1] if queue.batches else None
                        if batch is None or not batch.builder.append_record(*record):
                            batch = fresh
                            if batch is not None:
                                batch.builder.append_record(*record)
                                self._add(queue, batch)
                        if batch is not None:
                            on_appended(batch, batch.records_count - 1)
                            is_full = queue.has_full()
                            break
                    fresh = self._new_batch(topic, partition, size_upper_bound, now_ms)
            finally:
                if fresh is not None and fresh.records_count == 0:
                    self.deallocate(fresh)
        if is_full:
            self._mark_full(queue)
        if is_full or fresh is not None:
            self._on_ready()

    def queue_sizes(self, topic: Topic) -> list[int]:
        """Batches that wait, by partition: what the adaptive partitioner avoids."""
        queues = self._queues
        sizes = []
        for partition in range(topic.partitions):
            queue = queues.get(TopicPartition(topic.name, partition))
            sizes.append(len(queue.batches) if queue else 0)
        return sizes

    def _add_fresh(
        self,
        fresh: list[ProducerBatch],
        topic: Topic,
        partition: int,
        columns: Columns,
        rows: Array,
        row_size: int,
        now_ms: int,
        has_room: bool,
    ) -> None:
        """Add as many batches as the rows are likely to fill, so that one call writes all.

        Those that were made stay in `fresh` when another one cannot be.
        """
        if not has_room:
            size = size_upper_bound(columns, int(rows[0]))
            fresh.append(self._new_batch(topic, partition, size, now_ms))
        limit = self._write_limit(topic)
        wanted = min(row_size * len(rows), _BYTES_AT_ONCE) // limit
        while len(fresh) < wanted:
            batch = self._try_new_batch(topic, partition, limit, now_ms)
            if batch is None:
                break
            fresh.append(batch)

    def _fill(
        self,
        queue: _Queue,
        fresh: list[ProducerBatch],
        columns: Columns,
        rows: Array,
        on_appended: Callable[[ProducerBatch, int, Array], None] | None,
    ) -> tuple[int, bool]:
        """Fill the last batch, then new ones; rows written, whether a batch is full."""
        last = queue.batches[-1] if queue.batches else None
        # What was sent before, or comes from a split, is full; so all that is not lies in the pool.
        batches = fresh if last is None or last.builder.is_full else [last, *fresh]
        if not batches:
            return 0, False
        before = batches[0].records_count
        written = RecordBatchBuilder.fill([batch.builder for batch in batches], columns, rows)
        first_row = 0
        for batch in batches:
            count = batch.records_count - before
            if count == 0 and batch is not last:
                break
            if batch is not last:
                self._add(queue, batch)
            if on_appended is not None and count:
                on_appended(batch, before, rows[first_row : first_row + count])
            first_row, before = first_row + count, 0
        is_full = queue.has_full()
        if is_full:
            self._mark_full(queue)
        return written, is_full

    def _add(self, queue: _Queue, batch: ProducerBatch) -> None:
        queue.batches.append(batch)
        with self._lock:
            self._incomplete.add(batch)

    def _write_limit(self, topic: Topic) -> int:
        return max(
            min(self._config.batch_size, topic.config.max_message_bytes), RECORD_BATCH_OVERHEAD
        )

    def _capacity(self, topic: Topic, write_limit: int) -> tuple[int, float]:
        """Bytes for the records of a batch, and the compression ratio that is expected."""
        codec = self._config.codec
        if not codec:
            return write_limit, 1.0
        ratio = self._ratios.estimation(topic.name, codec)
        return capacity_for(write_limit, ratio, self._config.capacity_max), ratio

    def _new_batch(
        self, topic: Topic, partition: int, record_size: int, now_ms: int
    ) -> ProducerBatch:
        """An empty batch that a record of so many bytes, header included, surely fits."""
        # A record over the limit has room, and leaves none: it is alone in its batch.
        write_limit = self._write_limit(topic)
        capacity, ratio = self._capacity(topic, max(write_limit, record_size))
        start = self._allocate(capacity)
        return self._batch(topic, partition, start, capacity, write_limit, ratio, now_ms)

    def _try_new_batch(
        self, topic: Topic, partition: int, write_limit: int, now_ms: int
    ) -> ProducerBatch | None:
        capacity, ratio = self._capacity(topic, write_limit)
        start = self._pool.try_allocate(capacity)
        if start is None:
            return None
        return self._batch(topic, partition, start, capacity, write_limit, ratio, now_ms)

    def _batch(
        self,
        topic: Topic,
        partition: int,
        start: int,
        capacity: int,
        write_limit: int,
        ratio: float,
        now_ms: int,
    ) -> ProducerBatch:
        builder = RecordBatchBuilder(
            self._pool.memory,
            start,
            capacity,
            write_limit=write_limit,
            codec=self._config.codec,
            level=self._config.level,
            compression_ratio=ratio,
        )
        return ProducerBatch(topic, partition, builder, now_ms, memory=(start, capacity))

    def deallocate(self, batch: ProducerBatch) -> None:
        """Give a batch's memory back, unless a request may still read it."""
        if batch.memory is not None and batch.readers == 0:
            memory, batch.memory = batch.memory, None
            self._pool.deallocate(*memory)

    # Sending.

    def ready(self, now_ms: int) -> Ready:
        """Whether batches may go."""
        delay = NEVER_MS
        for queue in self._candidates():
            with queue.lock:
                if not queue.batches or queue.is_muted:
                    continue
                left = self._wait_left(queue, now_ms)
            if left <= 0:
                return Ready(True, 0)
            delay = min(delay, left)
        return Ready(False, delay)

    def drain(self, now_ms: int, max_size: int) -> list[ProducerBatch]:
        """Take the first batch of every queue that may go; together at most `max_size` bytes.

        The first batch is taken whatever its size. They are closed, and numbered where the producer
        is idempotent. Each call begins where the one before stopped, so that no queue starves; one
        whose sequences must be cleared up first keeps nobody else waiting.
        """
        candidates, taken, size = self._candidates(), list[ProducerBatch](), 0
        first = bisect_left(candidates, self._drain_place, key=lambda queue: queue.place)
        for index in (*range(first, len(candidates)), *range(first)):
            queue = candidates[index]
            self._drain_place = queue.place
            with queue.lock:
                if not queue.batches or queue.is_muted or self._wait_left(queue, now_ms) > 0:
                    continue
                batch = queue.batches[0]
                if taken and size + batch.builder.estimated_size_in_bytes > max_size:
                    break
                if self._sequences is not None and not self._sequences.may_drain(batch):
                    continue
                queue.batches.popleft()
                if self._sequences is not None:
                    self._sequences.assign(batch)
                if not queue.has_full():
                    with self._lock:
                        self._full.discard(queue)
            self._close(batch)
            size += len(batch.builder.data)
            taken.append(batch)
        return taken

    def mute(self, topic_partition: TopicPartition) -> None:
        """Drain nothing of this partition until `unmute`."""
        self._queue(topic_partition).is_muted = True

    def unmute(self, topic_partition: TopicPartition) -> None:
        """Undo `mute`."""
        self._queue(topic_partition).is_muted = False

    def _candidates(self) -> list[_Queue]:
        """Queues of which a batch may go, by their places."""
        if self._config.linger_ms is not None or self._everything_goes:
            return self._order
        with self._lock:
            return sorted(self._full, key=lambda queue: queue.place)

    @property
    def _everything_goes(self) -> bool:
        return self._is_closed or self._flushes > 0 or self._pool.queued > 0

    def _wait_left(self, queue: _Queue, now_ms: int) -> int:
        """How many ms the queue's first batch has yet to wait."""
        batch = queue.batches[0]
        waited = now_ms - batch.last_attempt_ms
        if batch.attempts and waited < batch.backoff_ms:
            return max(int(batch.backoff_ms - waited), 1)
        if queue.has_full() or self._everything_goes:
            return 0
        linger_ms = self._config.linger_ms
        return NEVER_MS if linger_ms is None else linger_ms - waited

    def _close(self, batch: ProducerBatch) -> None:
        if not batch.builder.is_closed:
            batch.close()
            if self._config.codec:
                ratio = batch.builder.actual_compression_ratio()
                self._ratios.update(batch.topic.name, self._config.codec, ratio)

    # What becomes of batches.

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a batch back that could not be delivered, to go again after a pause."""
        config = self._config
        power = config.retry_backoff_ms * 2.0 ** min(batch.attempts, 62)
        jitter = self._random.uniform(0.8, 1.2)
        batch.backoff_ms = min(power * jitter, config.retry_backoff_max_ms)
        batch.attempts += 1
        batch.last_attempt_ms = now_ms
        self._put_back(batch)

    def split_and_reenqueue(self, batch: ProducerBatch) -> int:
        """Put smaller batches in a batch's place, which was too large; how many."""
        config = self._config
        if config.codec:
            ratio = batch.builder.actual_compression_ratio()
            self._ratios.reset(batch.topic.name, config.codec, max(1.0, ratio))
        children = batch.split(
            self._write_limit(batch.topic), codec_id=config.codec, level=config.level
        )
        with self._lock:
            self._incomplete.update(children)
        for child in reversed(children):
            if self._sequences is not None:
                self._sequences.add_in_flight(child)
            self._put_back(child)
        return len(children)

    def _put_back(self, batch: ProducerBatch) -> None:
        """In front, or where its sequence belongs among those that were numbered."""
        queue = self._queue(batch.topic_partition)
        with queue.lock:
            index = 0
            if self._sequences is not None and batch.has_sequence:
                index = self._sequences.position(batch, queue.batches)
            queue.batches.insert(index, batch)
            self._mark_full(queue)

    def _mark_full(self, queue: _Queue) -> None:
        with self._lock:
            self._full.add(queue)

    def complete(self, batch: ProducerBatch) -> None:
        """Forget a batch that has ended."""
        with self._lock:
            self._incomplete.discard(batch)
        self.deallocate(batch)

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Batches that waited for delivery.timeout.ms; they are taken out."""
        taken = []
        for queue in self._order:
            with queue.lock:
                while queue.batches and self.is_expired(queue.batches[0], now_ms):
                    taken.append(queue.batches.popleft())
        return taken

    def is_expired(self, batch: ProducerBatch, now_ms: int) -> bool:
        """Whether a batch's time is up."""
        return now_ms - batch.created_ms >= self._config.delivery_timeout_ms

    def next_expiry_ms(self) -> int:
        """When the first of the batches that wait will have expired; NEVER_MS without any."""
        firsts = [queue.batches[0] for queue in self._order if queue.batches]
        created = min((batch.created_ms for batch in firsts), default=None)
        return NEVER_MS if created is None else created + self._config.delivery_timeout_ms

    @property
    def has_undrained(self) -> bool:
        """Whether a batch waits in a queue."""
        return any(queue.batches for queue in self._order)

    def send_fullest(self) -> bool:
        """Close the batch of which most is written, so that it may go; False without any."""
        waiting = [queue for queue in self._order if queue.batches]
        if not waiting:
            return False
        queue = max(waiting, key=lambda queue: queue.batches[0].builder.uncompressed_size)
        with queue.lock:
            if queue.batches:
                self._close(queue.batches[0])
                self._mark_full(queue)
        return True

    # Ends.

    def begin_flush(self) -> None:
        """Everything may go until `await_flush` returns."""
        with self._lock:
            self._flushes += 1

    def await_flush(self, timeout: float | None) -> None:
        """Wait until all that was added before has ended, what it was split into as well.

        Raises:
            RequestTimedOutError: not within so many seconds; the rest is still on its way.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with self._lock:
                waiting: list[ProduceResult] = [batch.result for batch in self._incomplete]
            while waiting:
                result = waiting.pop()
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not result.wait(left):
                    raise RequestTimedOutError(
                        f"flush waited {timeout} s and batches are still on their way"
                    )
                waiting += [child for _, child in result.children]
        finally:
            with self._lock:
                self._flushes -= 1

    def close(self) -> None:
        """Take nothing more; what is there may go."""
        self._is_closed = True
        self._pool.close()

    def abort_incomplete(self, error: Exception) -> None:
        """End every batch that has not ended. Nobody sends any more."""
        self.close()
        # Who is in the middle of an append may still add a batch.
        while True:
            with self._lock:
                appends, incomplete = self._appends, list(self._incomplete)
            for batch in incomplete:
                queue = self._queue(batch.topic_partition)
                with queue.lock:
                    if batch in queue.batches:
                        queue.batches.remove(batch)
                    batch.builder.abort()
                # It has ended where an answer came, perhaps just now.
                with suppress(RuntimeError):
                    batch.abort(error)
                self.complete(batch)
            if not appends:
                return
            time.sleep(0.001)

    @contextmanager
    def _appending(self) -> Iterator[None]:
        with self._lock:
            self._appends += 1
        try:
            yield
        finally:
            with self._lock:
                self._appends -= 1

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ProducerClosedError("the producer is closed and takes no more records")

    def _queue(self, topic_partition: TopicPartition) -> _Queue:
        queue = self._queues.get(topic_partition)
        if queue is None:
            with self._lock:
                queue = self._queues.get(topic_partition)
                if queue is None:
                    queue = _Queue(topic_partition, len(self._order))
                    self._queues[topic_partition] = queue
                    # Replaced, because others walk it without the lock.
                    self._order = [*self._order, queue]
        return queue
