"""The accumulator: a queue of batches per partition, in which rows wait until a sender drains them.

    append      fills the last batch of a queue, then new ones in pooled buffers
    put         adds a finished batch, as a mirror has them
    ready       tells whether a batch may be sent, and if none may, when to look again
    ready_nodes tells the same for partitions that are led by several nodes
    drain       closes the first batch of every queue that may be sent, up to max.request.size
    reenqueue, split_and_reenqueue      take back batches that could not be delivered
    expired, abort_incomplete           end batches in other ways

A batch may be sent if it is not backing off after an attempt, and one of these holds: it is full, or
another batch follows it; linger.ms has passed since it was created; a thread waits for memory; a flush
is under way; the accumulator is closed. Without linger.ms no batch is sent because of its age.

Locks, in this order: the queues' locks, several of them in the order of the queues' numbers; then
`_lock`, which guards the sets of queues and of unfinished batches, and the counts. No lock is held while
waiting for memory; so the last batch of the queue is tried again afterwards.

Source: Kafka clients/producer/internals/RecordAccumulator.java.
"""

from __future__ import annotations

import operator
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import ProducerClosedError, RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import PartitionQueue, ProducerBatch, ProduceResult, Run
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.producer.memory import BatchMemory, BufferPool
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.producer.table_append import OnAppended, TableAppend
from spark_kbatch.record.columns import Columns
from spark_kbatch.record.header import MAGIC
from spark_kbatch.record.scalar import Header
from spark_kbatch.store.transport import NEVER_MS, LeaderOf, Node


@dataclass(frozen=True)
class AccumulatorConfig:
    """The producer's options that concern the accumulator."""

    batch_size: int
    linger_ms: int | None  # None: no batch is sent because of its age
    codec: int
    level: int | None
    delivery_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    capacity_max: int  # of a batch in memory, before compression
    attributes: int = 0  # of batches, besides the codec
    run_bytes_max: int = 0  # of several batches of a partition in a request; 0: it takes one


class Ready(NamedTuple):
    """The answer of `ready`: whether batches may be sent, and if none may, when to look again."""

    is_ready: bool
    next_check_delay_ms: int


class ReadyNodes(NamedTuple):
    """The answer of `ready_nodes`: where batches may be sent, and when to look again for the others."""

    nodes: Collection[Node]  # in the order in which their partitions were first appended to
    next_check_delay_ms: int


_number = operator.attrgetter("number")


class _QueuesOf(NamedTuple):
    """The partition queues that the last append used, cached by slot for the next append."""

    partitions: Sequence[tuple[Topic, TopicPartition]]
    slots: list[int]
    queues: dict[int, PartitionQueue]


class _Append:
    """An append that a thread is running, which `abort_incomplete` waits for."""

    __slots__ = ("thread",)

    def __init__(self, thread: int) -> None:
        self.thread = thread


class RecordAccumulator:
    """The batches of one producer that are not yet sent. Thread-safe."""

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
        """Accumulate for one producer.

        Args:
            allocate: takes memory from the pool, waiting for it or freeing it; called without a lock.
            on_ready: called, without a lock, when a batch is full.
            sequences: numbers batches as they are drained, for idempotence.
            seed: of the jitter of retry pauses.
        """
        self._config, self._pool = config, pool
        self._on_ready = on_ready
        self._sequences, self._random = sequences, random.Random(seed)
        self._memory = BatchMemory(
            pool,
            batch_size=config.batch_size,
            codec=config.codec,
            level=config.level,
            attributes=config.attributes,
            capacity_max=config.capacity_max,
            allocate=allocate,
        )
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._order: list[PartitionQueue] = []
        self._last_queues = _QueuesOf((), [], {})  # of the append before; replaced, never changed
        self._full: set[PartitionQueue] = set()  # at least those whose first batch is full
        self._incomplete: set[ProducerBatch] = set()
        self._drain_numbers: dict[Node | None, int] = {}  # by node: where its next drain starts
        self._appends: set[_Append] = set()  # needs no lock: add and discard are atomic
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
        """Append all rows of a table, in order, each to the queue of the partition that it is routed to.

        Args:
            on_appended: called for each batch that took rows, before it can be drained: with the batch,
                the index of the first of these records in it, and their row numbers (int32).

        Raises:
            ProducerClosedError: closed; some of the rows may have been appended.
            BufferExhaustedError, RecordTooLargeError: no memory in time, or the row needs too much.
        """
        queues = self._queues_of(routing)
        run_bytes_max = self._config.run_bytes_max
        table = TableAppend(columns, routing, queues, self._memory, on_appended, run_bytes_max)
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
        """Append rows of a table to their queues, as `TableAppend.fill`, with the queues' locks held."""
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
            # An interrupt can come anywhere, even between taking a lock and the next statement. So try
            # to release every lock: those that this thread does not hold raise.
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
        """Append one record (timestamp, key, value, headers), otherwise as `append`."""
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
                        or batch.topic.topic_id != topic.topic_id  # the topic was recreated
                        or not batch.last_builder.append_record(*record)
                    ):
                        batch = None
                        if fresh is not None:
                            fresh.append_record(*record)
                            # From here on the batch owns its memory.
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
                    is_new = True  # others may wait for the memory that is released now
                    self._memory.release(fresh)
            finally:
                self._appends.discard(append)
        if is_full:
            self._mark_full(queue)
        if is_full or is_new:
            self._on_ready()

    def put(self, batch: ProducerBatch) -> None:
        """Add a finished batch, whose memory is its own, after the others of its partition."""
        queue = self._queue(batch.topic_partition)
        with queue.lock, self._lock:
            queue.batches.append(batch)
            self._incomplete.add(batch)
            self._full.add(queue)

    def queue_sizes(self, topic: Topic) -> list[int]:
        """Return the number of waiting batches by partition, for the adaptive partitioner."""
        queues = self._queues
        sizes = []
        for partition in range(topic.partitions):
            queue = queues.get(TopicPartition(topic.name, partition))
            waiting = list(queue.batches) if queue else ()
            sizes.append(sum(len(batch.builder.parts) for batch in waiting))
        return sizes

    def deallocate(self, batch: ProducerBatch) -> None:
        """Release a batch's memory, unless a request may still read it."""
        with self._lock:  # the sender's thread and one that closes may both find it ended
            is_held = batch.is_pooled and batch.readers == 0
            batch.is_pooled &= not is_held
        if is_held:
            self._memory.release(batch.builder)

    # Sending.

    def ready(self, now_ms: int) -> Ready:
        """Return whether any batch may be sent now, and if none, when to check again."""
        delay = NEVER_MS
        for queue in self._candidates():
            with queue.lock:
                left = self._wait_left(queue, now_ms)
            if left <= 0:
                return Ready(True, 0)
            delay = min(delay, left)
        return Ready(False, delay)

    def ready_nodes(self, now_ms: int, leader_of: LeaderOf) -> ReadyNodes:
        """Return the nodes that batches may be sent to.

        Args:
            now_ms: the time.
            leader_of: asked for every partition that has batches, also before they may be sent, so that
                an unknown leader is known in time.
        """
        nodes: dict[Node, None] = {}
        delay = NEVER_MS
        for queue in self._candidates():
            if not queue.batches:
                continue
            leader = leader_of(queue.topic_partition)
            if leader is None or leader in nodes:
                continue
            with queue.lock:
                left = self._wait_left(queue, now_ms)
            if left <= 0:
                nodes[leader] = None
            else:
                delay = min(delay, left)
        return ReadyNodes(nodes.keys(), delay)

    def drain(
        self,
        now_ms: int,
        max_size: int,
        node: Node | None = None,
        leader_of: LeaderOf | None = None,
    ) -> list[ProducerBatch]:
        """Take the first batch of every queue that may be sent, together at most `max_size` bytes.

        The first batch is taken whatever its size. A transport that takes runs also gets the batches that
        follow it in the queue, as far as they may be sent; batches that were sent as a run before come as
        that run again, and those of a dissolved one alone. The batches are closed, and numbered if the producer
        is idempotent; a batch for which that fails has an `error`. Each call starts where the last one
        for the node stopped, so that no queue starves. A queue whose sequences are unresolved is passed
        over.

        Args:
            now_ms: the time.
            max_size: of all batches.
            node: the node to drain for; with `leader_of`, other nodes' partitions are passed over.
            leader_of: the leader of a partition; None where one node leads all.
        """
        candidates, taken, size = self._candidates(), list[ProducerBatch](), 0
        first = bisect_left(candidates, self._drain_numbers.get(node, 0), key=_number)
        for index in (*range(first, len(candidates)), *range(first)):
            queue = candidates[index]
            if leader_of is not None and leader_of(queue.topic_partition) != node:
                continue
            self._drain_numbers[node] = queue.number
            with queue.lock:
                if self._wait_left(queue, now_ms) > 0:
                    continue
                batch = queue.batches[0]
                if taken and size + batch.builder.estimated_size_in_bytes > max_size:
                    break
                if self._sequences is not None and not self._sequences.may_drain(batch):
                    continue
                run = self._take_run(queue, now_ms, max_size - size)
                if not queue.has_full():
                    with self._lock:
                        self._full.discard(queue)
            for batch in run:
                try:
                    self._memory.close(batch)
                except Exception as error:  # noqa: BLE001  any error fails this batch, not the others
                    batch.error = error
                size += batch.builder.estimated_size_in_bytes
            taken += run
        return taken

    def _take_run(self, queue: PartitionQueue, now_ms: int, room: int) -> list[ProducerBatch]:
        """Take a queue's first batch and those to be sent together with it; assign their sequence numbers.

        Args:
            room: for a new run, in bytes.
        """
        batches, sequences = queue.batches, self._sequences
        first = batches.popleft()
        if sequences is not None:
            sequences.assign(first)
        taken, topic = [first], first.topic
        # Messages of an older format are not numbered through a run.
        if not self._config.run_bytes_max or topic.message_magic < MAGIC:
            return taken
        before = first.run
        if before is not None and before.is_dissolved:
            return taken
        # One that is sent alone is a run, too: it may be written, and is known by that when it is sent again.
        first.run = run = before or Run()
        if sequences is not None and not sequences.is_oldest(first):
            return taken
        room -= first.builder.estimated_size_in_bytes
        while batches:
            batch = batches[0]
            room -= batch.builder.estimated_size_in_bytes
            if batch.run is not before or (
                before is None
                and (room < 0 or batch.topic is not topic or self._wait_left(queue, now_ms) > 0)
            ):
                break
            if sequences is not None:
                if not sequences.follows(taken[-1], batch):
                    break
                sequences.assign(batch)
            last = taken[-1]
            batch.run, batch.index_in_run = run, last.index_in_run + len(last.builder.parts)
            taken.append(batches.popleft())
        return taken

    def mute(self, topic_partition: TopicPartition) -> None:
        """Drain no batch of this partition until `unmute`."""
        self._queue(topic_partition).is_muted = True

    def unmute(self, topic_partition: TopicPartition) -> None:
        """Undo `mute`."""
        self._queue(topic_partition).is_muted = False

    def _candidates(self) -> list[PartitionQueue]:
        """Return the queues that may have a batch to send, in the order in which they were created."""
        if self._config.linger_ms is not None or self._sends_all:
            return self._order
        with self._lock:
            return sorted(self._full, key=_number)

    @property
    def _sends_all(self) -> bool:
        return self._is_closed or self._flushes > 0 or self._pool.queued > 0

    def _wait_left(self, queue: PartitionQueue, now_ms: int) -> int:
        """Return how many ms a queue's first batch still has to wait for its backoff or for linger.ms.

        NEVER_MS if there is none, or the queue is muted. The caller holds the queue's lock.
        """
        if not queue.batches or queue.is_muted:
            return NEVER_MS
        batch = queue.batches[0]
        waited = now_ms - batch.last_attempt_ms
        if waited < batch.backoff_ms:
            return max(int(batch.backoff_ms - waited), 1)
        if queue.has_full() or self._sends_all:
            return 0
        linger_ms = self._config.linger_ms
        return NEVER_MS if linger_ms is None else linger_ms - waited

    # After sending.

    def reenqueue(self, batch: ProducerBatch, now_ms: int, *, is_attempt: bool = True) -> None:
        """Put back a batch that could not be delivered, to be retried after a pause."""
        config = self._config
        power = config.retry_backoff_ms * 2.0 ** min(batch.attempts, 62)
        jitter = self._random.uniform(0.8, 1.2)
        batch.backoff_ms = min(power * jitter, config.retry_backoff_max_ms)
        batch.attempts += is_attempt
        batch.last_attempt_ms = now_ms
        self._put_back(batch)

    def dissolve(self, batch: ProducerBatch) -> None:
        """Put back a batch that was refused together with others, so that each is now sent alone, at once."""
        assert batch.run is not None
        batch.run.is_dissolved = True
        if len(batch.builder.parts) == 1:
            self._put_back(batch)
            return
        if self._sequences is not None:
            self._sequences.remove(batch)
        children = batch.take_apart()
        for index, child in enumerate(children):
            child.run, child.index_in_run = batch.run, batch.index_in_run + index
        self._put_back_instead(batch, children)
        self.complete(batch)

    def split_and_reenqueue(self, batch: ProducerBatch) -> int:
        """Replace a batch that was too large by smaller ones; return how many."""
        children = self._memory.split(batch)
        self._put_back_instead(batch, children)
        return len(children)

    def _put_back_instead(self, batch: ProducerBatch, children: Sequence[ProducerBatch]) -> None:
        with self._lock:
            self._incomplete.update(children)
        if self._sequences is not None:
            self._sequences.add_in_flight(children)
        for child in reversed(children):
            self._put_back(child)

    def _put_back(self, batch: ProducerBatch) -> None:
        """Insert a batch at the front of its queue, or in the order of sequence numbers if it has them.

        Those of a run keep their order.
        """
        queue = self._queue(batch.topic_partition)
        with queue.lock:
            index = 0
            if self._sequences is not None and batch.has_sequence:
                index = self._sequences.position(batch, queue.batches)
            elif batch.run is not None:
                for other in queue.batches:
                    if other.run is not batch.run or other.index_in_run > batch.index_in_run:
                        break
                    index += 1
            queue.batches.insert(index, batch)
            self._mark_full(queue)

    def _mark_full(self, queue: PartitionQueue) -> None:
        with self._lock:
            self._full.add(queue)

    def complete(self, batch: ProducerBatch) -> None:
        """Forget a batch that was written or has failed, and release its memory."""
        with self._lock:
            self._incomplete.discard(batch)
        self.deallocate(batch)

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Remove and return the waiting batches whose delivery.timeout.ms has passed."""
        taken = []
        for queue in self._order:
            # No lock to look: the sender alone takes batches, and callers may hold it for long.
            if not queue.batches or not self.is_expired(queue.batches[0], now_ms):
                continue
            with queue.lock:
                while queue.batches and self.is_expired(queue.batches[0], now_ms):
                    taken.append(queue.batches.popleft())
        return taken

    def take_all(self, leader_of: LeaderOf | None = None) -> list[ProducerBatch]:
        """Remove and return all waiting batches; with `leader_of`, those whose leader is unknown."""
        taken: list[ProducerBatch] = []
        for queue in self._order:
            if leader_of is not None and (
                not queue.batches or leader_of(queue.topic_partition) is not None
            ):
                continue
            with queue.lock:
                taken += queue.batches
                queue.batches.clear()
        return taken

    def is_expired(self, batch: ProducerBatch, now_ms: int) -> bool:
        """Return True if a batch's delivery.timeout.ms has passed."""
        return now_ms >= self.expiry_ms(batch)

    def expiry_ms(self, batch: ProducerBatch) -> int:
        """Return when a batch's delivery.timeout.ms passes."""
        return batch.created_ms + self._config.delivery_timeout_ms

    def next_expiry_ms(self) -> int:
        """Return when the next waiting batch expires; NEVER_MS if none waits."""
        firsts = [queue.batches[0] for queue in self._order if queue.batches]
        return min((self.expiry_ms(batch) for batch in firsts), default=NEVER_MS)

    @property
    def has_undrained(self) -> bool:
        """Whether a batch waits in a queue."""
        return any(queue.batches for queue in self._order)

    def send_fullest(self) -> bool:
        """Close the batch that holds most bytes, so that it may be sent; return False if none waits."""
        waiting = [queue for queue in self._order if queue.batches]
        if not waiting:
            return False
        queue = max(waiting, key=lambda queue: queue.batches[0].builder.uncompressed_size)
        with queue.lock:
            if queue.batches:
                self._memory.close(queue.batches[0])
                self._mark_full(queue)
        return True

    # Flush and close.

    def begin_flush(self) -> None:
        """Let every batch be sent without waiting for linger.ms, until `end_flush`."""
        with self._lock:
            self._flushes += 1

    def await_flush(self, timeout: float | None) -> None:
        """Wait until every batch so far has ended, and so have the batches that it was split into.

        Args:
            timeout: in seconds.

        Raises:
            RequestTimedOutError: the time is up; the rest is still being sent.
        """
        deadline = None if timeout is None else monotonic_s() + timeout
        with self._lock:
            waiting: list[ProduceResult] = [batch.result for batch in self._incomplete]
        while waiting:
            result = waiting.pop()
            left = None if deadline is None else max(deadline - monotonic_s(), 0)
            if not result.wait(left):
                raise RequestTimedOutError(
                    f"flush waited {timeout} s and records are still being sent"
                )
            waiting += [child for _, child in result.children]

    def end_flush(self) -> None:
        """Undo `begin_flush`."""
        with self._lock:
            self._flushes -= 1

    def close(self) -> None:
        """Refuse further rows; every batch may be sent."""
        self._is_closed = True
        self._pool.close()

    def abort_incomplete(self, error: Exception, *, is_sending: bool = False) -> None:
        """Abort every batch that is neither written nor failed; nothing may be drained after this call.

        Args:
            error: of their records.
            is_sending: whether the sender's thread still runs. It may be closing batches that it has drained,
                in the pool's memory: these and their memory are left to it.
        """
        self.close()
        # Another thread in the middle of an append may still add a batch.
        me = threading.get_ident()
        while True:
            appends = any(append.thread != me for append in self._appends.copy())
            with self._lock:
                unfinished = {*self._incomplete}
            for queue in self._order:  # an interrupt may have kept a batch out of _incomplete
                with queue.lock:
                    unfinished.update(queue.batches)
            for batch in unfinished:
                queue = self._queue(batch.topic_partition)
                with queue.lock:
                    is_drained = batch not in queue.batches
                    is_the_senders = is_sending and is_drained
                    if not is_drained:
                        queue.batches.remove(batch)
                    if not is_the_senders:
                        batch.builder.abort()
                # It may have ended: an answer may have come just now.
                with suppress(RuntimeError):
                    batch.abort(error)
                with self._lock:
                    self._incomplete.discard(batch)
                if not is_the_senders:
                    self.deallocate(batch)
            if not appends:
                return
            time.sleep(0.001)

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ProducerClosedError("the producer is closed")

    def _queues_of(self, routing: Routing) -> dict[int, PartitionQueue]:
        """Return the queues of the partitions that rows go to, by slot, in the order of their locks."""
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
                    # Replaced, not changed: others walk it without the lock.
                    self._order = [*self._order, queue]
                    self._queues[topic_partition] = queue
        return queue
