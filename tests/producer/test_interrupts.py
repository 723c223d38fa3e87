"""An interrupt anywhere in an append or a wait leaves no lock taken: others continue, and close works."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import ProducerClosedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer import accumulator as module
from spark_kbatch.producer.accumulator import RecordAccumulator
from spark_kbatch.producer.batch import ProduceResult
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.producer.sender import Sender, SenderConfig
from spark_kbatch.record import columns as arrow
from tests.support.accumulators import (
    PARTITIONS,
    TOPIC,
    TOPIC_PARTITIONS,
    an_accumulator,
    append,
    append_record,
    values,
)
from tests.support.faulty_transport import Silent

SOON = 10
CALLS_MAX = 2_000
CONFIG = SenderConfig(
    acks=1, retries=0, request_timeout_ms=1000, max_request_size=1000, max_in_flight=5
)
PRODUCER = str(Path(module.__file__).parent)


def interrupted(work: Callable[[], object], number: int) -> bool:
    """Do something, with an interrupt after so many calls in the producer's code; whether it came.

    Python looks for signals as a function starts and as one of C's ends, but never between the end of a
    `with` block's body and that of its `__exit__`.
    """
    left = number

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        is_ours = frame.f_code.co_filename.startswith((PRODUCER, threading.__file__))
        if is_ours and event in ("call", "c_return"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def ends(work: Callable[[], object]) -> bool:
    """Return True if another thread can finish `work`."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(SOON)
    return bool(done)


def append_to_all(accumulator: RecordAccumulator) -> None:
    rows = 12
    columns = arrow.columns(
        rows,
        key=None,
        value=pa.array(values(rows), pa.binary()),
        timestamps=arrow.timestamps_ms(None, rows, 0),
        headers=None,
    )
    slots = arrow.frozen(np.arange(rows, dtype=np.int32) % PARTITIONS)
    counts = np.bincount(slots)
    routing = Routing(slots, counts, [(TOPIC, tp) for tp in TOPIC_PARTITIONS], [TOPIC])
    accumulator.append(columns, routing, 0)


APPENDS = {
    "a table": append_to_all,
    "a record": lambda accumulator: append_record(accumulator, 1, values(1)[0]),
}


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("before", [0, 3], ids=["first", "among others"])
def test_an_append_that_is_interrupted_anywhere_keeps_no_one_waiting(
    kind: str, before: int
) -> None:
    def use_and_end(accumulator: RecordAccumulator) -> None:
        for partition in range(PARTITIONS):
            append(accumulator, partition, values(1))
            append_record(accumulator, partition, values(1)[0])
        accumulator.abort_incomplete(ProducerClosedError("closed"))
        assert not accumulator.has_undrained

    number = 0
    while True:
        number += 1
        assert number < CALLS_MAX
        accumulator = an_accumulator()
        for partition in range(PARTITIONS if before else 0):
            append(accumulator, partition, values(before))
        if not interrupted(lambda: APPENDS[kind](accumulator), number):  # noqa: B023
            break
        assert ends(lambda: use_and_end(accumulator)), f"call {number}"  # noqa: B023
    assert number > 10


@pytest.mark.parametrize("position", range(PARTITIONS))
def test_a_lock_that_is_taken_as_the_interrupt_comes_is_released(position: int) -> None:
    """The interrupt comes inside `acquire`, so no statement knows that the lock was taken."""

    class Interrupted:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def acquire(self) -> None:
            self._lock.acquire()
            raise KeyboardInterrupt

        def release(self) -> None:
            self._lock.release()

    accumulator = an_accumulator()
    append_to_all(accumulator)
    queue = accumulator._queue(TOPIC_PARTITIONS[position])
    lock = queue.lock
    queue.lock = Interrupted(lock)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        append_to_all(accumulator)
    queue.lock = lock
    assert ends(lambda: append_to_all(accumulator))


def test_a_wait_that_is_interrupted_anywhere_lets_the_others_go() -> None:
    number = 0
    while True:
        number += 1
        result = ProduceResult(TopicPartition("events", 0))
        waiting = [threading.Thread(target=result.wait, daemon=True) for _ in range(2)]

        def wait_behind_and_release() -> None:
            for other in waiting:  # noqa: B023
                other.start()
            time.sleep(0.005)
            result.release()  # noqa: B023

        ending = threading.Timer(0.005, wait_behind_and_release)  # who waits first continues first
        ending.start()
        is_interrupted = interrupted(result.wait, number)
        for other in (ending, *waiting):
            other.join(SOON)
            assert not other.is_alive()
        if not is_interrupted:
            break
    assert number > 3


def test_a_wait_whose_time_is_up_as_the_batch_ends_is_no_error() -> None:
    class Ending:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def acquire(self, timeout: float) -> bool:
            ending.start()
            while not result._was_released:
                time.sleep(0.001)
            return False

        def release(self) -> None:
            if threading.current_thread() is ending:
                waiter_is_first.wait(SOON)
            self._lock.release()
            waiter_is_first.set()

    waiter_is_first = threading.Event()
    result = ProduceResult(TopicPartition("events", 0))
    released: list[object] = []
    ending = threading.Thread(target=lambda: released.append(result.release()), daemon=True)
    result._pending = Ending(result._pending)  # type: ignore[assignment]
    assert result.wait(0.1)
    ending.join(SOON)
    assert released


def test_who_wakes_the_sender_and_is_interrupted_keeps_no_other_from_it() -> None:
    number = 0
    while True:
        number += 1
        sender = Sender(an_accumulator(), Silent(), CONFIG, monotonic_ms)
        sender.start()
        is_interrupted = interrupted(sender.wake_up, number)
        assert ends(sender.wake_up), f"call {number}"
        assert ends(lambda: sender.close(0)), f"call {number}"  # noqa: B023
        if not is_interrupted:
            break
    assert number > 1


def test_who_waits_for_memory_and_is_interrupted_keeps_no_other_from_it() -> None:
    number = 0
    while True:
        number += 1
        pool = BufferPool(total_memory=100, poolable_size=100)
        start = pool.allocate(100, 0)
        freeing = threading.Timer(0.01, pool.deallocate, (start, 100))
        freeing.daemon = True
        freeing.start()
        is_interrupted = interrupted(lambda: pool.allocate(100, 60_000), number)  # noqa: B023
        freeing.join(SOON)
        assert not freeing.is_alive(), f"call {number}"
        assert ends(pool.close), f"call {number}"
        if not is_interrupted:
            break
    assert number > 3
