"""Which batches may be sent, and in which order: the accumulator against a model of lists and a clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from spark_kbatch.errors import (
    BufferExhaustedError,
    ProducerClosedError,
    RequestTimedOutError,
)
from spark_kbatch.producer.accumulator import (
    Ready,
)
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.store.transport import NEVER_MS
from tests.support.accumulators import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    BATCH,
    DELIVERY_MS,
    EVERYTHING,
    LARGE_VALUE_BYTES,
    PARTITIONS,
    TOPIC,
    TOPIC_PARTITIONS,
    VALUE_BYTES,
    Waiter,
    an_accumulator,
    append,
    append_singly,
    bytes_in_use,
    partitions_of,
    values,
    values_of,
)
from tests.support.reference import HEADER_SIZE, Record, encode_record


@dataclass
class Expected:
    """A batch of the model."""

    created_ms: int
    last_attempt_ms: int
    values: list[bytes] = field(default_factory=list)
    size: int = HEADER_SIZE
    attempts: int = 0
    backoff_ms: float = 0

    @property
    def is_full(self) -> bool:
        return self.attempts > 0 or self.size >= BATCH

    def add(self, value: bytes) -> bool:
        record = Record(len(self.values), 0, None, value)
        size = len(encode_record(record, base_offset=0, base_timestamp=0))
        if self.is_full or (self.values and self.size + size > BATCH):
            return False
        self.values.append(value)
        self.size += size
        return True


partitions = st.integers(0, PARTITIONS - 1)
sizes = st.sampled_from([VALUE_BYTES, VALUE_BYTES, VALUE_BYTES, 10, 100, LARGE_VALUE_BYTES])


class AccumulatorAgainstModel(RuleBasedStateMachine):
    """The accumulator against a list of batches for each partition, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(1)
        self.now_ms = 0
        self.queues: list[list[Expected]] = [[] for _ in range(PARTITIONS)]
        self.order: list[int] = []  # of partitions, as they occurred first
        self.next: int | None = None  # where the next lap starts, if the last one ended early
        self.muted: set[int] = set()
        self.drained: list[tuple[ProducerBatch, Expected]] = []
        self.flushes = 0
        self.waiter: Waiter | None = None
        self.is_closed = False

    @initialize(linger_ms=st.sampled_from([None, 0, 1, 50]))
    def begin(self, linger_ms: int | None) -> None:
        self.linger_ms = linger_ms
        self.accumulator = an_accumulator(linger_ms=linger_ms, buffers=2_000)
        self.pool = self.accumulator._pool

    def meet(self, partition: int) -> None:
        if partition not in self.order:
            self.order.append(partition)

    def delay(self, partition: int) -> int:
        """Return how long it takes until the first batch of a partition may be sent."""
        if not self.queues[partition] or partition in self.muted:
            return NEVER_MS
        first = self.queues[partition][0]
        waited = self.now_ms - first.last_attempt_ms
        if first.attempts and waited < first.backoff_ms:
            return max(int(first.backoff_ms - waited), 1)
        if first.is_full or len(self.queues[partition]) > 1:
            return 0
        if self.flushes or self.is_closed or self.waiter is not None:
            return 0
        return NEVER_MS if self.linger_ms is None else max(self.linger_ms - waited, 0)

    def lap(self, start: int, max_size: int) -> tuple[list[int], int | None]:
        """Return the partitions whose first batch is taken, and the one without room."""
        taken, size = list[int](), 0
        for partition in self.order[start:] + self.order[:start]:
            if self.delay(partition) == 0:
                first = self.queues[partition][0]
                if taken and size + first.size > max_size:
                    return taken, partition
                taken.append(partition)
                size += first.size
        return taken, None

    @rule(partition=partitions, sizes=st.lists(sizes, min_size=1, max_size=9), singly=st.booleans())
    def append(self, partition: int, sizes: list[int], singly: bool) -> None:
        rows = [values(1, size)[0] for size in sizes]
        error: type[Exception] | None = None
        queue = self.queues[partition]
        self.meet(partition)
        for value in rows:
            if self.is_closed:
                error = ProducerClosedError
                break
            if not (queue and queue[-1].add(value)):
                if self.waiter is not None:
                    error = BufferExhaustedError
                    break
                queue.append(Expected(self.now_ms, self.now_ms))
                assert queue[-1].add(value)
        send = append_singly if singly else append
        with nullcontext() if error is None else pytest.raises(error):
            send(self.accumulator, partition, rows, self.now_ms)

    @rule(ms=st.sampled_from([1, 10, 49, 50, 100, 300]))
    def turn_clock(self, ms: int) -> None:
        self.now_ms += ms

    @rule(max_size=st.sampled_from([1, BATCH, 2 * BATCH, 3 * BATCH + 7, EVERYTHING]))
    def drain(self, max_size: int) -> None:
        # After a complete lap, the next one may start anywhere.
        start = None if self.next is None else self.order.index(self.next)
        starts = range(max(len(self.order), 1)) if start is None else [start]
        ends = [self.lap(start, max_size) for start in starts]
        batches = self.accumulator.drain(self.now_ms, max_size)
        assert partitions_of(batches) in [taken for taken, _ in ends]
        self.next = next(end for taken, end in ends if taken == partitions_of(batches))
        for batch in batches:
            expected = self.queues[batch.topic_partition.partition].pop(0)
            assert values_of(batch) == expected.values
            assert len(batch.builder.data) == expected.size
            self.drained.append((batch, expected))

    @rule(partition=partitions)
    def mute(self, partition: int) -> None:
        self.meet(partition)
        self.muted.add(partition)
        self.accumulator.mute(TOPIC_PARTITIONS[partition])

    @rule(partition=partitions)
    def unmute(self, partition: int) -> None:
        self.meet(partition)
        self.muted.discard(partition)
        self.accumulator.unmute(TOPIC_PARTITIONS[partition])

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def reenqueue(self, data: st.DataObject) -> None:
        batch, expected = self.drained.pop(data.draw(st.integers(0, len(self.drained) - 1)))
        self.accumulator.reenqueue(batch, self.now_ms)
        pause = BACKOFF_MS * 2**expected.attempts
        least, most = (min(pause * jitter, BACKOFF_MAX_MS) for jitter in (0.8, 1.2))
        assert least <= batch.backoff_ms <= most
        expected.backoff_ms = batch.backoff_ms
        expected.attempts += 1
        expected.last_attempt_ms = self.now_ms
        self.queues[batch.topic_partition.partition].insert(0, expected)

    @precondition(lambda self: self.drained and self.waiter is None)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        batch, _ = self.drained.pop(data.draw(st.integers(0, len(self.drained) - 1)))
        assert batch.done(0)
        self.accumulator.complete(batch)

    @precondition(lambda self: self.waiter is None)
    @rule()
    def expire(self) -> None:
        late: list[list[bytes]] = []
        for partition in self.order:
            queue = self.queues[partition]
            while queue and queue[0].created_ms + DELIVERY_MS <= self.now_ms:
                late.append(queue.pop(0).values)
        batches = self.accumulator.expired(self.now_ms)
        for batch in batches:
            batch.close()
            assert batch.done(-1, error=RequestTimedOutError("late"))
        assert [values_of(batch) for batch in batches] == late
        for batch in batches:
            self.accumulator.complete(batch)

    @rule()
    def begin_flush(self) -> None:
        self.accumulator.begin_flush()
        self.flushes += 1

    @precondition(lambda self: self.flushes)
    @rule()
    def end_flush(self) -> None:
        if self.drained or any(self.queues):
            with pytest.raises(RequestTimedOutError):
                self.accumulator.await_flush(0)
        else:
            self.accumulator.await_flush(0)
        self.accumulator.end_flush()
        self.flushes -= 1

    @precondition(lambda self: self.waiter is None and not self.is_closed)
    @rule()
    def wait_for_memory(self) -> None:
        self.waiter = Waiter(self.threads, self.pool)

    @precondition(lambda self: self.waiter is not None)
    @rule()
    def stop_waiting(self) -> None:
        assert self.waiter is not None
        self.waiter.stop()
        self.waiter = None

    @precondition(lambda self: self.now_ms > 300)
    @rule()
    def close(self) -> None:
        self.accumulator.close()
        self.is_closed = True
        if self.waiter is not None:
            assert isinstance(self.waiter.future.exception(timeout=30), ProducerClosedError)
            self.stop_waiting()

    @invariant()
    def ready_agrees(self) -> None:
        delay = min(self.delay(partition) for partition in range(PARTITIONS))
        assert self.accumulator.ready(self.now_ms) == Ready(delay == 0, delay)

    @invariant()
    def numbers_agree(self) -> None:
        created = [queue[0].created_ms for queue in self.queues if queue]
        expiry = min(created) + DELIVERY_MS if created else NEVER_MS
        assert self.accumulator.next_expiry_ms() == expiry
        assert self.accumulator.queue_sizes(TOPIC) == [len(queue) for queue in self.queues]
        assert self.accumulator.has_undrained == any(self.queues)

    def teardown(self) -> None:
        if self.waiter is not None:
            self.stop_waiting()
        self.accumulator.abort_incomplete(ProducerClosedError("the end"))
        assert all(batch.is_done for batch, _ in self.drained)
        assert bytes_in_use(self.pool) == 0
        self.threads.shutdown()


TestAccumulatorAgainstModel = AccumulatorAgainstModel.TestCase
TestAccumulatorAgainstModel.settings = settings(
    deadline=None, max_examples=100, stateful_step_count=40
)
