"""Rows wait here, in a queue of batches per partition, until a sender drains them.

    append   fills the last batch of a queue; where it has no room, new ones in pooled buffers
    ready    whether a batch may go, and if none may, when to look again
    drain    closes the first batch of every queue that may go, up to max.request.size
    reenqueue, split_and_reenqueue                what could not be delivered
    expired, abort_incomplete, flush              how batches end otherwise

A batch may go when one of these holds and it is not backing off after an attempt: it is full, or one
lies behind it; linger.ms has passed since it was made; somebody waits for memory; a flush is under way;
the accumulator is closed. Without linger.ms time alone sends nothing.

Locks, innermost last: a queue's, which knows the thread that has it, guards its batches and the builder of the last one, and who takes
several takes them in the order of the queues' numbers; `_lock` guards which queues and unfinished
batches there are, and the counts. Memory is waited for with none held; so the last batch is tried
again once there is some.

Source: Kafka clients/producer/internals/RecordAccumulator.java.
"""

from __future__ import annotations

import operator
import random
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_kbatch.errors import ProducerClosedError, RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import ProducerBatch, ProduceResult
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.producer.memory import BatchMemory, BufferPool
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.producer.table_append import OnAppended, TableAppend
from spark_kbatch.record.columns import Columns
from spark_kbatch.record.scalar import Header

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


class PartitionQueue:
    """The queue of one partition, with a number of its own in its accumulator."""

    __slots__ = ("batches", "is_muted", "lock", "number", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, number: int) -> None:
        self.topic_partition, self.number = topic_partition, number
        # Guards batches, and the builder of the last one. It knows who has it, so that after an
        # interrupt that is let go which was taken.
        self.lock = threading.RLock()
        self.batches: deque[ProducerBatch] = deque()
        self.is_muted = False

    def has_full(self) -> bool:
        """Whether the first batch takes nothing more."""
        batches = self.batches
        return len(batches) > 1 or (len(batches) == 1 and batches[0].builder.is_full)


_number = operator.attrgetter("number")


class _QueuesOf(NamedTuple):
    """The queues of slots, which are of `partitions`."""

    partitions: Sequence[tuple[Topic, TopicPartition]]
    slots: list[int]
    queues: dict[int, PartitionQueue]


class _Append:
    """An append that is under way."""

    __slots__ = ("thread",)

    def __init__(self, thread: int) -> None:
        self.thread = thread


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
        self._on_ready = on_ready
        self._sequences, self._random = sequences, random.Random(seed)
        self._memory = BatchMemory(
            pool,
            batch_size=config.batch_size,
            codec=config.codec,
            level=config.level,
            capacity_max=config.capacity_max,
            allocate=allocate,
        )
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._order: list[PartitionQueue] = []
        self._last_queues = _QueuesOf((), [], {})  # of the append before; replaced as a whole
        self._full: set[PartitionQueue] = set()  # at least those whose first batch is full
        self._incomplete: set[ProducerBatch] = set()
        self._drain_number = 0
        self._appends: set[_Append] = set()  # each step on it is one of the interpreter's
        self._flushes = 0
        self._is_closed = False

    # Appending.

    def append(
        self,
        columns: Columns,
        routing: Routing,
        now_ms: int,
        on_appended: OnAppended | None = None,
    ) -> None:
        """Add all rows of `columns`, in order, each to the partition of its slot.

        Args:
            on_appended: told each batch that took rows, the index of its first record of these, and
                their numbers (int32), before the batch can be drained.

        Raises:
            ProducerClosedError: closed; some of the rows may have been added.
            BufferExhaustedError, RecordTooLargeError: no memory, or never enough.
        """
        queues = self._queues_of(routing)
        table = TableAppend(columns, routing, queues, self._memory, on_appended)
        append = _Append(threading.get_ident())
        try:
            self._appends.add(append)
            while not table.is_done:
                fresh, full = self._fill(table, queues.values(), now_ms)
                table.release_unused()
                if full or (fresh and self._config.linger_ms is not None):
                    self._on_ready()
                if not table.is_done:
                    table.wait_for_room()
        finally:
            try:
                table.release_unused()
            finally:
                self._appends.discard(append)

    def _fill(
        self, table: TableAppend, queues: Collection[PartitionQueue], now_ms: int
    ) -> tuple[list[ProducerBatch], list[PartitionQueue]]:
        """`TableAppend.fill` with the queues' locks."""
        try:
            for queue in queues:
                queue.lock.acquire()
            self._ensure_open()
            fresh, full = table.fill(now_ms)
            if fresh or full:
                with self._lock:
                    self._incomplete.update(fresh)
                    self._full.update(full)
            for queue in queues:
                queue.lock.release()
        except BaseException:
            # An interrupt comes anywhere, also between a lock's being taken and the next statement: so
            # the locks themselves are asked which of them this thread has.
            for queue in queues:
                with suppress(RuntimeError):
                    queue.lock.release()
            raise
        return fresh, full

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
        fresh, is_new, is_full = None, False, False
        append = _Append(threading.get_ident())
        try:
            self._appends.add(append)
            while True:
                with queue.lock:
                    self._ensure_open()
                    batch = queue.batches[-1] if queue.batches else None
                    if (
                        batch is None
                        or batch.topic.topic_id != topic.topic_id  # which was created again
                        or not batch.builder.append_record(*record)
                    ):
                        batch = None
                        if fresh is not None:
                            fresh.append_record(*record)
                            # From here on its memory is the batch's.
                            builder, fresh, is_new = fresh, None, True
                            batch = ProducerBatch(
                                topic, queue.topic_partition, builder, now_ms, is_pooled=True
                            )
                            queue.batches.append(batch)
                            with self._lock:
                                self._incomplete.add(batch)
                    if batch is not None:
                        on_appended(batch, batch.records_count - 1)
                        is_full = queue.has_full()
                        break
                fresh = self._memory.builder(topic, size_upper_bound)
        finally:
            try:
                if fresh is not None:
                    is_new = True  # Memory came free that others may wait for.
                    self._memory.release(fresh)
            finally:
                self._appends.discard(append)
        if is_full:
            self._mark_full(queue)
        if is_full or is_new:
            self._on_ready()

    def queue_sizes(self, topic: Topic) -> list[int]:
        """Batches that wait, by partition: what the adaptive partitioner avoids."""
        queues = self._queues
        sizes = []
        for partition in range(topic.partitions):
            queue = queues.get(TopicPartition(topic.name, partition))
            sizes.append(len(queue.batches) if queue else 0)
        return sizes

    def deallocate(self, batch: ProducerBatch) -> None:
        """Give a batch's memory back, unless a request may still read it."""
        if batch.is_pooled and batch.readers == 0:
            batch.is_pooled = False
            self._memory.release(batch.builder)

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
        is idempotent; one for which that fails has an `error`. Each call begins where the one before stopped, so that no queue starves; one
        whose sequences must be cleared up first keeps nobody else waiting.
        """
        candidates, taken, size = self._candidates(), list[ProducerBatch](), 0
        first = bisect_left(candidates, self._drain_number, key=_number)
        for index in (*range(first, len(candidates)), *range(first)):
            queue = candidates[index]
            self._drain_number = queue.number
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
            try:
                self._memory.close(batch)
            except Exception as error:  # noqa: BLE001  whatever it is, it is this batch's fate
                batch.error = error
            size += len(batch.builder.data)
            taken.append(batch)
        return taken

    def mute(self, topic_partition: TopicPartition) -> None:
        """Drain nothing of this partition until `unmute`."""
        self._queue(topic_partition).is_muted = True

    def unmute(self, topic_partition: TopicPartition) -> None:
        """Undo `mute`."""
        self._queue(topic_partition).is_muted = False

    def _candidates(self) -> list[PartitionQueue]:
        """Queues of which a batch may go, by their numbers."""
        if self._config.linger_ms is not None or self._everything_goes:
            return self._order
        with self._lock:
            return sorted(self._full, key=_number)

    @property
    def _everything_goes(self) -> bool:
        return self._is_closed or self._flushes > 0 or self._pool.queued > 0

    def _wait_left(self, queue: PartitionQueue, now_ms: int) -> int:
        """How many ms the queue's first batch has yet to wait."""
        batch = queue.batches[0]
        waited = now_ms - batch.last_attempt_ms
        if waited < batch.backoff_ms:
            return max(int(batch.backoff_ms - waited), 1)
        if queue.has_full() or self._everything_goes:
            return 0
        linger_ms = self._config.linger_ms
        return NEVER_MS if linger_ms is None else linger_ms - waited

    # What becomes of batches.

    def reenqueue(self, batch: ProducerBatch, now_ms: int, *, is_attempt: bool = True) -> None:
        """Put a batch back that could not be delivered, to go again after a pause."""
        config = self._config
        power = config.retry_backoff_ms * 2.0 ** min(batch.attempts, 62)
        jitter = self._random.uniform(0.8, 1.2)
        batch.backoff_ms = min(power * jitter, config.retry_backoff_max_ms)
        batch.attempts += is_attempt
        batch.last_attempt_ms = now_ms
        self._put_back(batch)

    def split_and_reenqueue(self, batch: ProducerBatch) -> int:
        """Put smaller batches in a batch's place, which was too large; how many."""
        children = self._memory.split(batch)
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

    def _mark_full(self, queue: PartitionQueue) -> None:
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

    def take_all(self) -> list[ProducerBatch]:
        """Batches that wait; they are taken out."""
        taken: list[ProducerBatch] = []
        for queue in self._order:
            with queue.lock:
                taken += queue.batches
                queue.batches.clear()
        return taken

    def is_expired(self, batch: ProducerBatch, now_ms: int) -> bool:
        """Whether a batch's time is up."""
        return now_ms >= self.expiry_ms(batch)

    def expiry_ms(self, batch: ProducerBatch) -> int:
        """When a batch's time is up."""
        return batch.created_ms + self._config.delivery_timeout_ms

    def next_expiry_ms(self) -> int:
        """When the first of the batches that wait will have expired; NEVER_MS without any."""
        firsts = [queue.batches[0] for queue in self._order if queue.batches]
        return min((self.expiry_ms(batch) for batch in firsts), default=NEVER_MS)

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
                self._memory.close(queue.batches[0])
                self._mark_full(queue)
        return True

    # Ends.

    def begin_flush(self) -> None:
        """Everything may go until `end_flush`."""
        with self._lock:
            self._flushes += 1

    def await_flush(self, timeout: float | None) -> None:
        """Wait until all that was added before has ended, what it was split into as well.

        Raises:
            RequestTimedOutError: not within so many seconds; the rest is still on its way.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
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

    def end_flush(self) -> None:
        """Undo `begin_flush`."""
        with self._lock:
            self._flushes -= 1

    def close(self) -> None:
        """Take nothing more; what is there may go."""
        self._is_closed = True
        self._pool.close()

    def abort_incomplete(self, error: Exception) -> None:
        """End every batch that has not ended. Nobody sends any more."""
        self.close()
        # Another thread that is in the middle of an append may still add a batch.
        me = threading.get_ident()
        while True:
            appends = any(append.thread != me for append in self._appends.copy())
            with self._lock:
                unfinished = {*self._incomplete}
            for queue in self._order:  # of which an interrupt may have kept some from the former
                with queue.lock:
                    unfinished.update(queue.batches)
            for batch in unfinished:
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

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ProducerClosedError("the producer is closed and takes no more records")

    def _queues_of(self, routing: Routing) -> dict[int, PartitionQueue]:
        """Of each slot that rows have, by the queues' numbers."""
        slots = routing.counts.nonzero()[0].tolist()
        known = self._last_queues
        if known.partitions is routing.partitions and known.slots == slots:
            return known.queues
        partitions = routing.partitions
        queues = [(self._queue(partitions[slot][1]), slot) for slot in slots]
        queues.sort(key=lambda pair: pair[0].number)
        found = {slot: queue for queue, slot in queues}
        self._last_queues = _QueuesOf(partitions, slots, found)
        return found

    def _queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(topic_partition)
        if queue is None:
            with self._lock:
                queue = self._queues.get(topic_partition)
                if queue is None:
                    queue = PartitionQueue(topic_partition, len(self._order))
                    # Replaced, because others walk it without the lock.
                    self._order = [*self._order, queue]
                    self._queues[topic_partition] = queue
        return queue
