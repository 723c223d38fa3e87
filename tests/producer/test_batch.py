"""Final states of batches, their callbacks and waiting threads, and splits."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import KafkaStorageError, ProducerClosedError, RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.accumulator import AccumulatorConfig, RecordAccumulator
from spark_kbatch.producer.batch import NO_OFFSET, ProducerBatch, ProduceResult
from spark_kbatch.producer.futures import ArrowFuture, RecordFuture, RecordMetadata
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RecordBatchBuilder
from spark_kbatch.record.columns import Columns
from tests.support import builders, reference, strategies
from tests.support.accumulators import bytes_in_use
from tests.support.reference import CODECS, HEADER_SIZE, Record

TOPIC = Topic("events", "id", 3, TopicConfig())
PARTITION = 2
SEQUENCE_MAX = 2**31 - 1
LOST = KafkaStorageError("lost")
CLOSED = ProducerClosedError("closed by force")
codecs = st.sampled_from(list(CODECS.values()))


def columns_of(rows: pa.RecordBatch) -> Columns:
    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    return arrow.columns(
        rows.num_rows,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(column("timestamp"), rows.num_rows, -1),
        headers=column("headers"),
    )


def a_batch(rows: pa.RecordBatch | None = None, *, codec: int = 0) -> ProducerBatch:
    """Make an open batch, of three records by default."""
    rows = builders.rows() if rows is None else rows
    size = 1_000 + 2 * rows.nbytes + 100 * rows.num_rows
    builder = RecordBatchBuilder(memoryview(bytearray(size)), 0, size, codec=codec)
    assert builder.append(columns_of(rows)) == rows.num_rows
    return ProducerBatch(TOPIC, TopicPartition(TOPIC.name, PARTITION), builder, 5)


def split(batch: ProducerBatch, size: int = 1, *, codec: int = 0) -> list[ProducerBatch]:
    """Split a batch; by default into one batch per record."""
    batch.close()
    return batch.split(size, codec_id=codec, level=None)


def records_of(batch: ProducerBatch) -> list[Record]:
    batch.close()
    return reference.decode_batches(bytes(batch.builder.data))


def told(result: ProduceResult) -> tuple[int, int, Exception | None]:
    return result.base_offset, result.log_append_time, result.error


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


# Final states

Move = Callable[[ProducerBatch], object]

MOVES: dict[str, Move] = {
    "succeeds": lambda batch: batch.done(7, 9),
    "fails": lambda batch: batch.done(NO_OFFSET, error=LOST),
    "is aborted": lambda batch: batch.abort(CLOSED),
    "is split": split,
}
ENDS = {
    "succeeds": (7, 9, None),
    "fails": (NO_OFFSET, -1, LOST),
    "is aborted": (NO_OFFSET, -1, CLOSED),
    "is split": (NO_OFFSET, -1, None),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_batch_that_has_not_ended_may_end_in_every_way(move: str) -> None:
    batch = a_batch()
    calls: list[tuple[int, int]] = []
    batch.add_callback(0, 3, lambda _, first, count: calls.append((first, count)))
    assert not batch.result.wait(0)
    assert [batch.is_done, batch.result.is_done] == [False, False]
    assert MOVES[move](batch) is not False
    assert batch.is_done
    assert batch.result.wait(0)
    assert told(batch.result) == ENDS[move]
    # A split batch is done once its children are.
    assert batch.result.is_done == (move != "is split")
    assert calls == ([] if move == "is split" else [(0, 3)])


@pytest.mark.parametrize(
    ("before", "after", "is_error"),
    [
        *itertools.product(["fails", "is split", "is aborted"], ["succeeds", "fails"], [False]),
        *itertools.product(["succeeds"], ["succeeds", "fails"], [True]),
        *itertools.product(MOVES, ["is aborted", "is split"], [True]),
    ],
)
def test_a_batch_ends_once(before: str, after: str, is_error: bool) -> None:
    batch = a_batch()
    calls: list[tuple[int, int]] = []
    MOVES[before](batch)
    batch.add_callback(0, 3, lambda _, first, count: calls.append((first, count)))
    children = list(batch.result.children)
    if is_error:
        with pytest.raises(RuntimeError, match="a batch of events-2"):
            MOVES[after](batch)
    else:
        # However many late answers there are.
        assert [MOVES[after](batch), MOVES[after](batch)] == [False, False]
    assert told(batch.result) == ENDS[before]
    assert batch.result.children == children
    assert calls == []


@pytest.mark.parametrize("error", [None, LOST])
def test_of_many_who_end_a_batch_at_once_one_does(
    threads: ThreadPoolExecutor, error: Exception | None
) -> None:
    calls: list[int] = []

    def end(batch: ProducerBatch, start: threading.Barrier, by_force: bool) -> bool:
        start.wait(30)
        try:
            if not by_force:
                return batch.done(0, error=error)
            batch.abort(CLOSED)
        except RuntimeError:
            return False
        return True

    for number in range(50):
        batch, start = a_batch(), threading.Barrier(4)
        batch.add_callback(0, 1, lambda *_: calls.append(1))
        # The thread that reaches the barrier last continues first.
        by_force = [number % 2 == 0, True, False, number % 2 == 1]
        ends = [threads.submit(end, batch, start, force) for force in by_force]
        assert [future.result(timeout=30) for future in ends].count(True) == 1
    assert len(calls) == 50


# Callbacks and waiting threads


@pytest.mark.parametrize("move", ["succeeds", "fails", "is aborted"])
def test_callbacks_run_in_order_and_know_the_end_before_those_who_wait(
    threads: ThreadPoolExecutor, move: str
) -> None:
    batch = a_batch()
    seen: list[object] = []

    def callback(result: ProduceResult, first: int, count: int) -> None:
        assert told(result) == ENDS[move]
        # Long enough for a thread that would continue too early.
        seen.append((first, count, result.wait(0.01), [future.done() for future in waiting]))

    for first, count in ((0, 1), (1, 2)):
        batch.add_callback(first, count, callback)
    waiting: list[Future[bool]] = [threads.submit(batch.result.wait) for _ in range(2)]
    MOVES[move](batch)
    assert [future.result(timeout=30) for future in waiting] == [True, True]
    assert seen == [(0, 1, False, [False, False]), (1, 2, False, [False, False])]


def test_a_callback_that_fails_is_logged_and_the_others_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = a_batch()
    seen: list[int] = []

    def callback(_result: ProduceResult, first: int, _count: int) -> None:
        seen.append(first)
        if first < 2:
            raise ValueError(f"of record {first}")

    for first in range(3):
        batch.add_callback(first, 1, callback)
    with caplog.at_level(logging.ERROR):
        assert batch.done(7)
    assert seen == [0, 1, 2]
    assert batch.result.is_done
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in errors] == ["of record 0", "of record 1"]
    assert "events-2" in caplog.text


def test_who_waits_may_give_up_and_it_changes_nothing(threads: ThreadPoolExecutor) -> None:
    batch = a_batch()
    waiting = threads.submit(batch.result.wait, 30)
    assert not batch.result.wait(0.001)
    with pytest.raises(TimeoutError, match="a record for events-2 is still being sent"):
        RecordFuture(batch.result, 0, 0).result(0)
    assert not waiting.done()
    batch.done(7)
    assert waiting.result(timeout=30)
    assert batch.result.wait(0)
    assert batch.result.wait()


def test_once_a_batch_has_ended_everybody_sees_it_however_many_look(
    threads: ThreadPoolExecutor,
) -> None:
    batch = a_batch()
    batch.done(7)
    start = threading.Barrier(4)

    def look() -> bool:
        start.wait(30)
        return all(batch.result.is_done for _ in range(5_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        looks = [threads.submit(look) for _ in range(4)]
        assert [future.result(timeout=30) for future in looks] == [True] * 4
    finally:
        sys.setswitchinterval(before)


def test_offsets_and_times_are_those_of_the_answer() -> None:
    batch = a_batch()
    future = RecordFuture(batch.result, 2, 1_000)
    assert not future.done()
    batch.done(40)
    assert future.done()
    assert future.result(0) == RecordMetadata("events", PARTITION, 42, 1_000)
    batch = a_batch()
    batch.done(40, 5_000)
    assert RecordFuture(batch.result, 0, 1_000).result(0).timestamp == 5_000
    batch = a_batch()
    batch.done(NO_OFFSET)
    assert RecordFuture(batch.result, 2, 1_000).result(0).offset == NO_OFFSET


# Numbers


def test_numbers_are_in_the_bytes_whether_given_before_they_are_closed_or_after() -> None:
    for closes_first in (False, True):
        batch = a_batch()
        if closes_first:
            batch.close()
        batch.set_producer_state(2**40, 3, 17)
        batch.close()
        header = reference.read_header(bytes(batch.builder.data))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 17)
        assert records_of(batch) == builders.to_records(builders.rows())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_batch_may_be_closed_again(codec: int) -> None:
    batch = a_batch(codec=codec)
    assert records_of(batch) == records_of(batch) == builders.to_records(builders.rows())


def test_a_batch_that_is_numbered_again_says_so() -> None:
    batch = a_batch()
    assert not batch.has_sequence
    batch.set_producer_state(2**40, 4, 17)
    assert [batch.has_sequence, batch.sequence_was_reset] == [True, False]
    batch.set_producer_state(2**40, 5, 0)
    assert [batch.has_sequence, batch.sequence_was_reset] == [True, True]


@pytest.mark.parametrize("readers", [0, 1])
def test_bytes_that_a_request_may_read_are_left_alone(readers: int) -> None:
    batch = a_batch()
    batch.close()
    sent, before = batch.builder.data, bytes(batch.builder.data)
    batch.readers = readers
    batch.set_producer_state(7, 0, 0)
    assert (bytes(sent) == before) == (readers > 0)
    assert reference.read_header(bytes(batch.builder.data)).producer_id == 7
    assert len(records_of(batch)) == 3


# Splits


@given(
    rows=strategies.arrow_rows(rows_max=12).filter(lambda rows: rows.num_rows > 0),
    size=st.integers(1, 400),
    codec=codecs,
    base_sequence=st.none() | st.sampled_from([0, 5, SEQUENCE_MAX - 2, SEQUENCE_MAX]),
    cuts=st.sets(st.integers(1, 11)),
)
def test_children_have_all_that_their_parent_had(
    rows: pa.RecordBatch, size: int, codec: int, base_sequence: int | None, cuts: set[int]
) -> None:
    batch, count = a_batch(rows, codec=codec), rows.num_rows
    batch.attempts, batch.last_attempt_ms = 2, 30
    if base_sequence is not None:
        batch.set_producer_state(7, 1, base_sequence)
    bounds = [0, *sorted(cut for cut in cuts if cut < count), count]
    calls: list[tuple[int, list[int]]] = []  # which callback, of which records
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):

        def callback(result: ProduceResult, first: int, size: int, number: int = number) -> None:
            assert result.base_offset >= 0
            calls.append((number, [result.offset(first + at) for at in range(size)]))

        batch.add_callback(start, end - start, callback)
    children = split(batch, size, codec=codec)

    found: list[Record] = []
    for child in children:
        assert child.topic_partition == TopicPartition(TOPIC.name, PARTITION)
        assert (child.created_ms, child.attempts, child.last_attempt_ms) == (5, 2, 30)
        assert not child.is_done
        assert child.builder.is_full
        assert not child.is_pooled
        records = records_of(child)
        header = reference.read_header(bytes(child.builder.data))
        assert len(records) == child.records_count >= 1
        if base_sequence is not None:
            assert (header.producer_id, header.producer_epoch) == (7, 1)
            assert header.base_sequence == (base_sequence + len(found)) % 2**31
        assert child.has_sequence == (base_sequence is not None)
        assert child.base_sequence == header.base_sequence
        assert codec or len(records) == 1 or len(child.builder.data) <= size
        found += [record._replace(offset=len(found) + record.offset) for record in records]
    assert found == builders.to_records(rows)

    assert calls == []
    offset = 0
    for child in children:
        child.done(offset)
        offset += child.records_count
    offsets = {number: list[int]() for number in range(len(bounds) - 1)}
    for number, some in calls:
        offsets[number] += some
    assert [number for number, _ in calls] == sorted(number for number, _ in calls)
    assert list(offsets.values()) == [
        list(range(start, end)) for start, end in itertools.pairwise(bounds)
    ]


def test_a_record_larger_than_the_size_is_alone() -> None:
    rows = builders.rows(n=5, value_bytes=300)
    assert [child.records_count for child in split(a_batch(rows), 350)] == [1] * 5
    assert [child.records_count for child in split(a_batch(rows), HEADER_SIZE + 2 * 340)] == [
        2,
        2,
        1,
    ]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_no_child_has_more_than_half_so_that_splitting_ends(codec: int) -> None:
    """This holds for any size that a log refuses, and any result of a codec."""
    waiting, counts = [a_batch(builders.rows(n=5), codec=codec)], list[int]()
    while waiting and len(counts) < 20:
        batch = waiting.pop()
        counts.append(batch.records_count)
        if batch.records_count > 1:
            waiting += reversed(split(batch, 100_000, codec=codec))
    assert counts == [5, 2, 1, 1, 2, 1, 1, 1]


def test_futures_of_records_are_led_to_the_children_and_theirs() -> None:
    batch = a_batch(builders.rows(n=6))
    futures = [RecordFuture(batch.result, index, 0) for index in range(6)]
    first, second, third = split(batch, HEADER_SIZE + 2 * 130)
    assert [child.records_count for child in (first, second, third)] == [2, 2, 2]
    assert not any(future.done() for future in futures)
    third.done(500)
    assert [future.done() for future in futures] == [False] * 4 + [True] * 2
    of_two, of_three = split(second)
    of_three.done(300)
    of_two.done(200)
    first.done(NO_OFFSET, error=LOST)
    assert batch.result.is_done
    assert [future.exception(0) for future in futures[:2]] == [LOST, LOST]
    with pytest.raises(KafkaStorageError, match="lost"):
        futures[1].result(0)
    assert [future.result(0).offset for future in futures[2:]] == [200, 300, 500, 501]


def test_a_thread_that_waits_for_a_record_waits_for_its_child_alone(
    threads: ThreadPoolExecutor,
) -> None:
    batch = a_batch()
    waiting = [threads.submit(RecordFuture(batch.result, at, 0).result, 30) for at in range(3)]
    children = split(batch)
    for at in (2, 0, 1):
        assert not waiting[at].done()
        children[at].done(10 * at)
        assert waiting[at].result(timeout=30).offset == 10 * at


def an_arrow_future(
    batches: Sequence[ProducerBatch], callback: Callable[[object, object], None] | None = None
) -> ArrowFuture:
    """Make the future of rows that went to these batches in turn."""
    future = ArrowFuture(callback)
    for at, batch in enumerate(batches):
        count = batch.records_count
        rows = arrow.frozen(np.arange(at, at + count * len(batches), len(batches), dtype=np.int32))
        future.add(batch.result, 0, rows)
        batch.add_callback(0, count, future.count_down)
    future.close(sum(batch.records_count for batch in batches))
    return future


def test_a_future_of_rows_finds_each_row_in_its_child(threads: ThreadPoolExecutor) -> None:
    told: list[object] = []
    batches = [a_batch(), a_batch()]
    future = an_arrow_future(batches, lambda *answer: told.append(answer))
    waiting = threads.submit(future.result, 30)
    batches[0].done(100)
    time.sleep(0.01)
    children = split(batches[1])
    for number, child in enumerate(children):
        time.sleep(0.01)
        with pytest.raises(TimeoutError):
            future.result(0)
        assert [future.done(), waiting.done(), told] == [False, False, []]
        child.done(200 + 10 * number)
    assert future.done()
    found = waiting.result(timeout=30)
    assert found.column("offset").to_pylist() == [100, 200, 101, 210, 102, 220]
    assert set(found.column("topic").to_pylist()) == {"events"}
    assert set(found.column("partition").to_pylist()) == {PARTITION}
    assert told == [(found, None)]


def test_a_future_of_rows_has_the_error_of_the_first_row_that_failed() -> None:
    told: list[object] = []
    batches = [a_batch(), a_batch()]
    future = an_arrow_future(batches, lambda *answer: told.append(answer))
    # Rows 0, 2, 4 and 1, 3, 5.
    for batch, lost, aborted in zip(batches, (2, 1), (None, 0), strict=True):
        for at, child in enumerate(split(batch)):
            if at == aborted:
                child.abort(CLOSED)
            else:
                child.done(NO_OFFSET if at == lost else 10, error=LOST if at == lost else None)
    assert future.exception(0) is CLOSED
    with pytest.raises(ProducerClosedError):
        future.result(0)
    assert told == [(None, CLOSED)]


def test_a_future_of_rows_does_not_wait_for_rows_of_others_in_the_same_batch() -> None:
    batch = a_batch()
    futures = [ArrowFuture() for _ in range(3)]
    for at, future in enumerate(futures):
        future.add(batch.result, at, arrow.frozen(np.zeros(1, np.int32)))
        future.close(1)
    children = split(batch)
    children[1].done(40)
    assert [future.done() for future in futures] == [False, True, False]
    assert futures[1].result(0).column("offset").to_pylist() == [40]
    (grandchild,) = split(children[0])
    grandchild.done(NO_OFFSET, error=LOST)
    assert futures[0].exception(0) is LOST
    with pytest.raises(TimeoutError):
        futures[2].result(0)


# A flush


def an_accumulator() -> RecordAccumulator:
    pool = BufferPool(total_memory=10_000, poolable_size=1_000)
    config = AccumulatorConfig(
        batch_size=1_000,
        linger_ms=0,
        codec=0,
        level=None,
        delivery_timeout_ms=60_000,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
        capacity_max=1_000,
    )
    return RecordAccumulator(
        config, pool, allocate=lambda size: pool.allocate(size, 0), on_ready=lambda: None
    )


def append(accumulator: RecordAccumulator, rows: pa.RecordBatch) -> None:
    slots = arrow.frozen(np.zeros(rows.num_rows, np.int32))
    places = [(TOPIC, TopicPartition(TOPIC.name, PARTITION))]
    accumulator.append(
        columns_of(rows), Routing(slots, np.array([rows.num_rows]), places, [places[0][0]]), 0
    )


def a_split_batch(accumulator: RecordAccumulator, rows: pa.RecordBatch) -> ProducerBatch:
    """Split a batch into one batch per record, because the topic's limit was lowered."""
    append(accumulator, rows)
    (batch,) = accumulator.drain(0, 10_000)
    batch.topic = Topic("events", "id", 3, TopicConfig(max_message_bytes=1))
    return batch


def test_a_flush_waits_for_the_children_of_what_it_waits_for(threads: ThreadPoolExecutor) -> None:
    accumulator = an_accumulator()
    batch = a_split_batch(accumulator, builders.rows(n=3))
    accumulator.begin_flush()
    waiting = threads.submit(accumulator.await_flush, 30)
    time.sleep(0.01)
    assert accumulator.split_and_reenqueue(batch) == 3
    accumulator.complete(batch)
    children = [accumulator.drain(0, 10_000)[0] for _ in range(3)]
    assert accumulator.split_and_reenqueue(children[0]) == 1
    accumulator.complete(children[0])
    for child in [*children[1:], *accumulator.drain(0, 10_000)]:
        time.sleep(0.01)
        assert not waiting.done()
        child.done(0)
        accumulator.complete(child)
    waiting.result(timeout=30)
    assert bytes_in_use(accumulator._pool) == 0


def test_a_flush_that_begins_after_a_split_waits_for_the_children() -> None:
    accumulator = an_accumulator()
    batch = a_split_batch(accumulator, builders.rows(n=2))
    accumulator.split_and_reenqueue(batch)
    accumulator.complete(batch)
    for _ in range(2):
        accumulator.begin_flush()
        with pytest.raises(RequestTimedOutError):
            accumulator.await_flush(0)
        (child,) = accumulator.drain(0, 10_000)
        child.done(0)
        accumulator.complete(child)
    accumulator.begin_flush()
    accumulator.await_flush(0)


def test_children_go_at_once_and_before_what_came_later() -> None:
    accumulator = an_accumulator()
    old, young = builders.rows(n=3), builders.rows(n=1, seed=1)
    batch = a_split_batch(accumulator, old)
    append(accumulator, young)
    accumulator.split_and_reenqueue(batch)
    found = [records_of(accumulator.drain(0, 10_000)[0])[0] for _ in range(4)]
    values = [record.value for record in found]
    assert values == old.column("value").to_pylist() + young.column("value").to_pylist()


def test_an_abort_ends_children_too() -> None:
    accumulator = an_accumulator()
    batch = a_split_batch(accumulator, builders.rows(n=3))
    futures = [RecordFuture(batch.result, index, 0) for index in range(3)]
    accumulator.split_and_reenqueue(batch)
    accumulator.complete(batch)
    accumulator.drain(0, 10_000)
    accumulator.abort_incomplete(CLOSED)
    assert [future.exception(0) for future in futures] == [CLOSED] * 3
    assert bytes_in_use(accumulator._pool) == 0
