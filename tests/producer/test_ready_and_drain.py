"""Which batches may be sent, in which order they are drained, and how unsent batches end."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kbatch.errors import (
    KafkaStorageError,
    ProducerClosedError,
    RequestTimedOutError,
)
from spark_kbatch.producer.accumulator import (
    Ready,
    RecordAccumulator,
)
from spark_kbatch.producer.batch import ProducerBatch, ProduceResult
from spark_kbatch.producer.futures import ArrowFuture, RecordFuture
from spark_kbatch.record.columns import Array
from spark_kbatch.store.transport import NEVER_MS
from tests.support.accumulators import (
    BACKOFF_MAX_MS,
    BATCH,
    DELIVERY_MS,
    EVERYTHING,
    LARGE_VALUE_BYTES,
    LONG_MS,
    PARTITIONS,
    RECORDS,
    TOPIC_PARTITIONS,
    Waiter,
    an_accumulator,
    append,
    append_record,
    append_singly,
    bytes_in_use,
    partitions_of,
    values,
    values_of,
)
from tests.support.reference import HEADER_SIZE
from tests.support.waiting import until

# What makes a batch ready, one condition at a time


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
    # A full batch that was there before changes nothing.
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
        with pytest.raises(RequestTimedOutError, match="records are still being sent"):
            accumulator.await_flush(0)
        accumulator.end_flush()
    assert not accumulator.ready(0).is_ready

    accumulator.begin_flush()
    (batch,) = accumulator.drain(0, EVERYTHING)
    batch.done(0)
    accumulator.complete(batch)
    accumulator.await_flush(0)
    accumulator.end_flush()
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


# What one lap drains


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
    """Each partition that was drained has its next batch ready before the others are drained."""
    accumulator = an_accumulator(linger_ms=linger_ms)
    for partition in range(PARTITIONS):
        append(accumulator, partition, values(RECORDS))
    taken: list[int] = []
    for _ in range(5 * PARTITIONS):
        taken += partitions_of(accumulator.drain(0, 1))
        if len(taken) > 1:
            append(accumulator, taken[-2], values(RECORDS))
    assert taken == 5 * [*range(PARTITIONS)]


def test_an_append_that_fills_or_starts_a_batch_says_so() -> None:
    told: list[int] = []
    accumulator = an_accumulator(linger_ms=None, on_ready=lambda: told.append(len(told)))
    for _ in range(RECORDS - 1):
        append(accumulator, 0, values(1))
        append_record(accumulator, 1, values(1)[0])
    # With single records, `on_ready` is called for a new batch with and without linger.ms.
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


# How undelivered batches end


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
    assert bytes_in_use(accumulator._pool) == BATCH, (
        "what a request may still read is not used again"
    )
    read.readers -= 1
    accumulator.deallocate(read)
    assert bytes_in_use(accumulator._pool) == 0
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
    assert bytes_in_use(accumulator._pool) == 0


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
    assert bytes_in_use(accumulator._pool) == 0


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
            assert bytes_in_use(accumulator._pool) == 0
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
    assert bytes_in_use(accumulator._pool) == 0
