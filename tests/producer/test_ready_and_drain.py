"""Which batches may go, in which order they are taken, and how those end that never went."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
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

from spark_kbatch.config import Topic, TopicConfig
from spark_kbatch.errors import (
    BufferExhaustedError,
    KafkaStorageError,
    ProducerClosedError,
    RequestTimedOutError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.accumulator import (
    NEVER_MS,
    AccumulatorConfig,
    Ready,
    RecordAccumulator,
)
from spark_kbatch.producer.batch import ProducerBatch, ProduceResult
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.producer.futures import ArrowFuture, RecordFuture
from spark_kbatch.producer.partitioner import Placement
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX
from spark_kbatch.record.columns import Array
from tests.reference import HEADER_SIZE, Record, encode_record

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


def an_accumulator(
    *,
    linger_ms: int | None = 50,
    buffers: int = 64,
    allocate: Callable[[int], int] | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> RecordAccumulator:
    """Without patience for memory."""
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
    """No two alike."""
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
    placement = Placement(slots, np.array([len(rows)]), [(TOPIC, TOPIC_PARTITIONS[partition])])
    accumulator.append(columns, placement, now_ms, on_appended)


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


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.0005)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


class Waiter:
    """Somebody who waits for memory, because all that was free is taken."""

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
        """Everything is free again."""
        for start in self._taken:
            self._pool.deallocate(start, BATCH)
        if self.future.exception(timeout=30) is None:
            self._pool.deallocate(self.future.result(), BATCH)


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
        self.next: int | None = None  # where the next lap begins, if the last one was cut short
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
        """How long until the first batch of a partition may go."""
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
        """Partitions whose first batches are taken, and the one that had no room."""
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
        # A lap that was not cut short may be followed by one that begins anywhere.
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
        assert self.pool.in_use == 0
        self.threads.shutdown()


TestAccumulatorAgainstModel = AccumulatorAgainstModel.TestCase
TestAccumulatorAgainstModel.settings = settings(
    deadline=None, max_examples=100, stateful_step_count=40
)


# What lets a batch go, one condition at a time


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_a_full_batch_may_go_at_once(linger_ms: int | None) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    append(accumulator, 0, values(RECORDS - 1))
    assert not accumulator.ready(0).is_ready
    assert accumulator.drain(0, EVERYTHING) == []
    append(accumulator, 0, values(1))
    assert accumulator.ready(0) == Ready(True, 0)
    assert [batch.records_count for batch in accumulator.drain(0, EVERYTHING)] == [RECORDS]


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_a_batch_with_another_behind_it_may_go_and_the_last_one_may_not(
    linger_ms: int | None,
) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    first, second = values(1, 30), values(1, BATCH - HEADER_SIZE - 20)
    append(accumulator, 0, [*first, *second])
    assert accumulator.ready(0) == Ready(True, 0)
    assert [values_of(batch) for batch in accumulator.drain(0, EVERYTHING)] == [first]
    assert not accumulator.ready(0).is_ready
    assert accumulator.drain(0, EVERYTHING) == []


def test_a_batch_may_go_when_linger_ms_has_passed_since_it_was_made() -> None:
    accumulator = an_accumulator(linger_ms=50)
    append(accumulator, 0, values(1), now_ms=1_000)
    append(accumulator, 0, values(1), now_ms=1_030)
    append(accumulator, 1, values(1), now_ms=1_040)
    assert accumulator.ready(1_040) == Ready(False, 10)
    assert accumulator.ready(1_049) == Ready(False, 1)
    assert accumulator.drain(1_049, EVERYTHING) == []
    assert accumulator.ready(1_050) == Ready(True, 0)
    assert partitions_of(accumulator.drain(1_050, EVERYTHING)) == [0]
    assert accumulator.ready(1_050) == Ready(False, 40)


def test_without_linger_ms_time_alone_sends_nothing() -> None:
    accumulator = an_accumulator(linger_ms=None)
    append(accumulator, 0, values(RECORDS - 1))
    assert accumulator.ready(LONG_MS) == Ready(False, NEVER_MS)
    assert accumulator.drain(LONG_MS, EVERYTHING) == []
    # That a full batch was there before changes nothing.
    append(accumulator, 0, values(1))
    assert [batch.records_count for batch in accumulator.expired(LONG_MS)] == [RECORDS]
    append(accumulator, 0, values(1))
    assert accumulator.ready(LONG_MS) == Ready(False, NEVER_MS)


def test_with_a_linger_of_0_every_batch_may_go() -> None:
    accumulator = an_accumulator(linger_ms=0)
    assert accumulator.ready(0) == Ready(False, NEVER_MS)
    append(accumulator, 0, values(1))
    assert accumulator.ready(0) == Ready(True, 0)


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_everything_may_go_while_somebody_waits_for_memory(
    threads: ThreadPoolExecutor, linger_ms: int | None
) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    append(accumulator, 0, values(1))
    append(accumulator, 1, values(1))
    with Waiter(threads, accumulator._pool):
        assert accumulator.ready(0) == Ready(True, 0)
        assert partitions_of(accumulator.drain(0, BATCH // 2)) == [0]
    assert not accumulator.ready(0).is_ready
    assert accumulator.drain(0, EVERYTHING) == []


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_everything_may_go_until_the_last_flush_has_ended(linger_ms: int | None) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    append(accumulator, 0, values(1))
    accumulator.begin_flush()
    accumulator.begin_flush()
    for _ in range(2):
        assert accumulator.ready(0) == Ready(True, 0)
        with pytest.raises(RequestTimedOutError, match="batches are still on their way"):
            accumulator.await_flush(0)
    assert not accumulator.ready(0).is_ready

    accumulator.begin_flush()
    (batch,) = accumulator.drain(0, EVERYTHING)
    batch.done(0)
    accumulator.complete(batch)
    accumulator.await_flush(0)
    append(accumulator, 0, values(1))
    assert not accumulator.ready(0).is_ready


def test_a_flush_waits_for_what_was_added_before_alone(threads: ThreadPoolExecutor) -> None:
    accumulator = an_accumulator()
    append(accumulator, 0, values(1))
    accumulator.begin_flush()
    (batch,) = accumulator.drain(0, EVERYTHING)
    waiting = threads.submit(accumulator.await_flush, 30)
    append(accumulator, 1, values(1))
    assert not waiting.done()
    batch.done(0)
    accumulator.complete(batch)
    waiting.result(timeout=30)
    assert accumulator.has_undrained


@pytest.mark.parametrize("linger_ms", [None, 50])
def test_when_closed_everything_may_go_and_nothing_is_taken(linger_ms: int | None) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    append(accumulator, 0, values(1))
    accumulator.close()
    assert accumulator.ready(0) == Ready(True, 0)
    for partition in (0, 1):
        with pytest.raises(ProducerClosedError):
            append(accumulator, partition, values(1))
        with pytest.raises(ProducerClosedError):
            append_record(accumulator, partition, b"")
    assert [batch.records_count for batch in accumulator.drain(0, EVERYTHING)] == [1]


def test_closing_ends_the_wait_for_memory(threads: ThreadPoolExecutor) -> None:
    accumulator = an_accumulator()
    with Waiter(threads, accumulator._pool) as waiter:
        accumulator.close()
        assert isinstance(waiter.future.exception(timeout=10), ProducerClosedError)


def test_a_batch_that_failed_keeps_its_partition_back_until_its_pause_is_over() -> None:
    accumulator = an_accumulator(linger_ms=0)
    append(accumulator, 0, values(RECORDS))
    (batch,) = accumulator.drain(0, EVERYTHING)
    append(accumulator, 0, values(RECORDS))
    append(accumulator, 1, values(1), now_ms=10)
    accumulator.reenqueue(batch, 10)
    accumulator.begin_flush()
    assert partitions_of(accumulator.drain(10, EVERYTHING)) == [1]
    pause = int(batch.backoff_ms)
    assert pause < batch.backoff_ms
    assert accumulator.ready(10) == Ready(False, pause)
    assert accumulator.ready(10 + pause) == Ready(False, 1)
    assert accumulator.drain(10 + pause, EVERYTHING) == []
    assert accumulator.ready(11 + pause) == Ready(True, 0)
    assert accumulator.drain(11 + pause, EVERYTHING) == [batch]


@pytest.mark.parametrize("linger_ms", [None, 0])
def test_pauses_double_up_to_their_limit_and_differ(linger_ms: int | None) -> None:
    accumulator = an_accumulator(linger_ms=linger_ms)
    pauses: list[list[float]] = [[] for _ in range(5)]
    for _ in range(50):
        append(accumulator, 0, values(RECORDS))
        (batch,) = accumulator.drain(0, EVERYTHING)
        for found in pauses:
            accumulator.reenqueue(batch, 0)
            found.append(batch.backoff_ms)
            assert accumulator.drain(BACKOFF_MAX_MS, EVERYTHING) == [batch]
    for found, wanted in zip(pauses, [100, 200, 400], strict=False):
        assert 0.8 * wanted <= min(found) < 0.9 * wanted
        assert 1.1 * wanted < max(found) <= min(1.2 * wanted, BACKOFF_MAX_MS)
    assert set(pauses[3]) == set(pauses[4]) == {BACKOFF_MAX_MS}


def test_a_muted_partition_waits_whatever_else_holds() -> None:
    accumulator = an_accumulator(linger_ms=0)
    append(accumulator, 0, values(2 * RECORDS))
    append(accumulator, 1, values(1))
    accumulator.mute(TOPIC_PARTITIONS[0])
    accumulator.begin_flush()
    assert partitions_of(accumulator.drain(0, EVERYTHING)) == [1]
    assert accumulator.ready(0) == Ready(False, NEVER_MS)
    accumulator.unmute(TOPIC_PARTITIONS[0])
    assert accumulator.ready(0) == Ready(True, 0)
    assert partitions_of(accumulator.drain(0, EVERYTHING)) == [0]


# What one lap takes


def test_a_lap_takes_one_batch_of_each_partition() -> None:
    accumulator = an_accumulator(linger_ms=None)
    rows = {partition: values(2 * RECORDS) for partition in (2, 0)}
    for partition in rows:
        append(accumulator, partition, rows[partition])
    for half in (slice(RECORDS), slice(RECORDS, None)):
        batches = accumulator.drain(0, EVERYTHING)
        assert sorted(partitions_of(batches)) == [0, 2]
        assert all(
            values_of(batch) == rows[batch.topic_partition.partition][half] for batch in batches
        )
    assert accumulator.drain(0, EVERYTHING) == []


def test_a_lap_ends_before_the_batch_that_passes_the_size() -> None:
    accumulator = an_accumulator(linger_ms=0)
    for partition in range(3):
        append(accumulator, partition, values(RECORDS))
    assert partitions_of(accumulator.drain(0, 2 * BATCH)) == [0, 1]
    append(accumulator, 0, values(RECORDS))
    append(accumulator, 1, values(RECORDS))
    assert partitions_of(accumulator.drain(0, 3 * BATCH - 1)) == [2, 0]


@pytest.mark.parametrize("max_size", [0, BATCH])
def test_the_first_batch_is_taken_whatever_its_size(max_size: int) -> None:
    accumulator = an_accumulator(linger_ms=0)
    for partition in range(2):
        append(accumulator, partition, values(1, LARGE_VALUE_BYTES))
    assert partitions_of(accumulator.drain(0, max_size)) == [0]
    assert partitions_of(accumulator.drain(0, max_size)) == [1]


@pytest.mark.parametrize("linger_ms", [None, 0])
def test_no_partition_starves_where_a_lap_takes_one_batch(linger_ms: int | None) -> None:
    """Whoever was taken has its next batch ready while another one's is taken."""
    accumulator = an_accumulator(linger_ms=linger_ms)
    for partition in range(PARTITIONS):
        append(accumulator, partition, values(RECORDS))
    taken: list[int] = []
    for _ in range(5 * PARTITIONS):
        taken += partitions_of(accumulator.drain(0, 1))
        if len(taken) > 1:
            append(accumulator, taken[-2], values(RECORDS))
    assert taken == 5 * [*range(PARTITIONS)]


def test_whoever_appends_fills_a_batch_or_begins_one_says_so() -> None:
    told: list[int] = []
    accumulator = an_accumulator(linger_ms=None, on_ready=lambda: told.append(len(told)))
    for _ in range(RECORDS - 1):
        append(accumulator, 0, values(1))
        append_record(accumulator, 1, values(1)[0])
    # A record at a time, the beginning of a batch is told whether time passes or not.
    assert len(told) == 1
    append(accumulator, 0, values(1))
    assert len(told) == 2
    append_record(accumulator, 1, values(1)[0])
    assert len(told) == 3

    told.clear()
    accumulator = an_accumulator(linger_ms=50, on_ready=lambda: told.append(len(told)))
    append(accumulator, 0, values(1))
    append_record(accumulator, 1, values(1)[0])
    assert len(told) == 2
    append(accumulator, 0, values(1))
    append_record(accumulator, 1, values(1)[0])
    assert len(told) == 2


def test_the_fullest_batch_is_sent_where_memory_runs_out() -> None:
    accumulator = an_accumulator(linger_ms=None)
    assert not accumulator.send_fullest()
    for partition, count in enumerate([1, 3, 2]):
        append(accumulator, partition, values(count))
    for partition in (1, 2, 0):
        assert accumulator.send_fullest()
        assert partitions_of(accumulator.drain(0, EVERYTHING)) == [partition]
    assert not accumulator.send_fullest()


# How batches end that were not delivered


def test_batches_expire_delivery_timeout_ms_after_they_were_made() -> None:
    accumulator = an_accumulator(linger_ms=0)
    assert accumulator.next_expiry_ms() == NEVER_MS
    append(accumulator, 1, values(1), now_ms=20)
    append(accumulator, 0, values(RECORDS), now_ms=10)
    append(accumulator, 0, values(1), now_ms=30)
    (of_1, of_0) = accumulator.drain(30, EVERYTHING)
    append(accumulator, 1, values(1), now_ms=30)
    accumulator.mute(TOPIC_PARTITIONS[0])
    accumulator.reenqueue(of_0, 40)
    accumulator.reenqueue(of_1, 40)
    assert accumulator.next_expiry_ms() == 10 + DELIVERY_MS
    assert accumulator.expired(9 + DELIVERY_MS) == []
    assert accumulator.expired(10 + DELIVERY_MS) == [of_0]
    assert accumulator.next_expiry_ms() == 20 + DELIVERY_MS
    assert [b.created_ms for b in accumulator.expired(30 + DELIVERY_MS)] == [20, 30, 30]
    assert accumulator.next_expiry_ms() == NEVER_MS
    assert not accumulator.has_undrained
    assert accumulator.ready(30 + DELIVERY_MS) == Ready(False, NEVER_MS)


def test_an_abort_fails_every_future_and_returns_all_memory() -> None:
    accumulator = an_accumulator(linger_ms=0)
    futures: list[RecordFuture] = []
    of_rows = ArrowFuture()

    def on_appended(batch: ProducerBatch, index: int) -> None:
        futures.append(RecordFuture(batch.result, index, 0))

    def on_rows_appended(batch: ProducerBatch, first: int, rows: Array) -> None:
        of_rows.add(batch.result, first, rows)
        batch.add_callback(first, len(rows), of_rows.count_down)

    for partition in range(PARTITIONS):
        append_record(accumulator, partition, b"", on_appended=on_appended)
    append(accumulator, 0, values(3 * RECORDS), on_appended=on_rows_appended)
    of_rows.close(3 * RECORDS)
    delivered, again, drained, read = accumulator.drain(0, EVERYTHING)
    delivered.done(0)
    accumulator.complete(delivered)
    accumulator.reenqueue(again, 0)
    read.readers += 1
    error = ProducerClosedError("closed by force")
    accumulator.abort_incomplete(error)

    assert [future.exception(0) for future in futures] == [None, error, error, error]
    assert of_rows.exception(0) is error
    assert all(batch.is_done for batch in (again, drained, read))
    assert not accumulator.has_undrained
    assert accumulator._pool.in_use == BATCH, "what a request may still read is not used again"
    read.readers -= 1
    accumulator.deallocate(read)
    assert accumulator._pool.in_use == 0
    accumulator.begin_flush()
    accumulator.await_flush(0)
    with pytest.raises(ProducerClosedError):
        append(accumulator, 0, values(1))


def test_an_abort_ends_the_batches_that_an_append_under_way_still_adds(
    threads: ThreadPoolExecutor,
) -> None:
    accumulator = an_accumulator(buffers=2)
    batches: list[ProducerBatch] = []
    appending, aborting = threading.Event(), threading.Event()

    def on_appended(batch: ProducerBatch, _first: int, _rows: Array) -> None:
        batches.append(batch)
        appending.set()
        aborting.wait(30)

    appended = threads.submit(append, accumulator, 0, values(4 * RECORDS), 0, on_appended)
    assert appending.wait(30)
    aborted = threads.submit(accumulator.abort_incomplete, KafkaStorageError("by force"))
    until(lambda: accumulator._is_closed)
    time.sleep(0.01)
    assert len(batches) == 1
    aborting.set()
    assert isinstance(appended.exception(timeout=30), ProducerClosedError)
    aborted.result(timeout=30)
    assert [batch.is_done for batch in batches] == [True, True]
    assert accumulator._pool.in_use == 0


def test_an_answer_that_comes_during_an_abort_keeps_no_other_batch_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    abort = ProducerBatch.abort

    def abort_after_an_answer(batch: ProducerBatch, error: Exception) -> None:
        batch.done(7)
        abort(batch, error)

    accumulator = an_accumulator(linger_ms=0)
    for partition in range(2):
        append(accumulator, partition, values(1))
    batches = accumulator.drain(0, EVERYTHING)
    monkeypatch.setattr(ProducerBatch, "abort", abort_after_an_answer)
    accumulator.abort_incomplete(KafkaStorageError("by force"))
    assert [(b.is_done, b.result.base_offset) for b in batches] == [(True, 7), (True, 7)]
    assert accumulator._pool.in_use == 0


@pytest.mark.parametrize("singly", [False, True])
def test_appends_that_race_an_abort_leave_no_batch_without_end(
    threads: ThreadPoolExecutor, singly: bool
) -> None:
    def append_for_ever(accumulator: RecordAccumulator, results: list[ProduceResult]) -> None:
        def on_appended(batch: ProducerBatch, *_: object) -> None:
            results.append(batch.result)

        rows = values(3 * RECORDS)
        for partition in itertools.cycle(range(PARTITIONS)):
            if singly:
                append_record(accumulator, partition, rows[0], on_appended=on_appended)
            else:
                append(accumulator, partition, rows, on_appended=on_appended)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(30):
            accumulator = an_accumulator(buffers=5_000)
            results: list[ProduceResult] = []
            appends = [threads.submit(append_for_ever, accumulator, results) for _ in range(3)]
            until(lambda results=results: len(results) > 10)  # type: ignore[misc]
            accumulator.abort_incomplete(KafkaStorageError("by force"))
            for future in appends:
                assert isinstance(future.exception(timeout=30), ProducerClosedError)
            assert all(result.is_done for result in results)
            assert accumulator._pool.in_use == 0
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("send", [append, append_singly])
def test_an_append_gives_its_memory_back_when_the_accumulator_is_closed_meanwhile(
    send: Callable[[RecordAccumulator, int, list[bytes]], None],
) -> None:
    def allocate_and_close(size: int) -> int:
        start = accumulator._pool.allocate(size, 0)
        accumulator.close()
        return start

    accumulator = an_accumulator(allocate=allocate_and_close)
    with pytest.raises(ProducerClosedError):
        send(accumulator, 0, [*values(1, LARGE_VALUE_BYTES), *values(3 * RECORDS)])
    assert not accumulator.has_undrained
    assert accumulator._pool.in_use == 0
