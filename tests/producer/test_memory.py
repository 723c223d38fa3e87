"""buffer.memory is never exceeded, served in order, and free in one piece again whatever happens."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_kbatch.errors import BufferExhaustedError, ProducerClosedError, RecordTooLargeError
from spark_kbatch.producer.memory import BufferPool
from tests.support.accumulators import bytes_in_use
from tests.support.waiting import until

BUFFER = 100
LONG_MS = 60_000


def a_pool(buffers: int = 4, on_wait: Callable[[], None] | None = None) -> BufferPool:
    return BufferPool(total_memory=buffers * BUFFER, poolable_size=BUFFER, on_wait=on_wait)


def ensure_whole(pool: BufferPool) -> None:
    """All memory is free, in one piece, and no one waits."""
    assert (bytes_in_use(pool), pool.queued) == (0, 0)
    assert pool.try_allocate(len(pool.memory)) == 0
    pool.deallocate(0, len(pool.memory))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def waiting(
    threads: ThreadPoolExecutor, pool: BufferPool, size: int, max_block_ms: int = LONG_MS
) -> Future[int]:
    """Start an allocation, and return once it waits in the queue."""
    before = pool.queued
    future = threads.submit(pool.allocate, size, max_block_ms)
    until(lambda: pool.queued == before + 1)
    return future


class PoolAgainstModel(RuleBasedStateMachine):
    """The pool against a model: a list of owners and a list of waiting allocations."""

    buffers = 6
    sizes = st.sampled_from([1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER, 6 * BUFFER])

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(32)
        self.pool = a_pool(self.buffers)
        self.owners: list[int | None] = [None] * self.buffers
        self.held: dict[int, int] = {}  # where -> bytes
        self.queue: list[tuple[int, Future[int]]] = []

    def take(self, size: int) -> int | None:
        """Take the lowest free run of buffers in the model; return its start."""
        count = -(-size // BUFFER)
        for first in range(self.buffers - count + 1):
            if self.owners[first : first + count] == [None] * count:
                self.owners[first : first + count] = [first] * count
                self.held[first * BUFFER] = size
                return first * BUFFER
        return None

    def serve(self) -> None:
        while self.queue:
            size, future = self.queue[0]
            start = self.take(size)
            if start is None:
                assert not future.done()
                return
            assert future.result(timeout=30) == start
            del self.queue[0]

    @rule(size=sizes)
    def try_allocate(self, size: int) -> None:
        expected = None if self.queue else self.take(size)
        assert self.pool.try_allocate(size) == expected

    @precondition(lambda self: len(self.queue) < 16)
    @rule(size=sizes)
    def allocate(self, size: int) -> None:
        expected = None if self.queue else self.take(size)
        if expected is None:
            self.queue.append((size, waiting(self.threads, self.pool, size)))
        else:
            assert self.pool.allocate(size, 0) == expected

    @rule(size=sizes)
    def allocate_without_patience(self, size: int) -> None:
        expected = None if self.queue else self.take(size)
        if expected is None:
            with pytest.raises(BufferExhaustedError):
                self.pool.allocate(size, 0)
        else:
            assert self.pool.allocate(size, 0) == expected

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def deallocate(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.held)))
        size = self.held.pop(start)
        self.owners = [None if owner == start // BUFFER else owner for owner in self.owners]
        self.pool.deallocate(start, size)
        self.serve()

    @rule(start=st.integers(-BUFFER, 7 * BUFFER), size=sizes)
    def deallocate_what_is_not_allocated(self, start: int, size: int) -> None:
        held = self.held.get(start)
        if held is not None and -(-held // BUFFER) == -(-size // BUFFER):
            return
        with pytest.raises(ValueError, match=f"no {size} bytes are allocated at position {start}"):
            self.pool.deallocate(start, size)

    @invariant()
    def numbers_agree(self) -> None:
        free = self.owners.count(None) * BUFFER
        assert bytes_in_use(self.pool) == self.buffers * BUFFER - free
        assert self.pool.queued == len(self.queue)

    def teardown(self) -> None:
        self.pool.close()
        for _, future in self.queue:
            assert isinstance(future.exception(timeout=30), ProducerClosedError)
        for start, size in self.held.items():
            self.pool.deallocate(start, size)
        assert (bytes_in_use(self.pool), self.pool.queued) == (0, 0)
        self.threads.shutdown()


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def test_the_pool_takes_no_more_than_its_total_and_leaves_what_is_over_a_buffer() -> None:
    pool = BufferPool(total_memory=350, poolable_size=100)
    assert len(pool.memory) == 300
    with pytest.raises(RecordTooLargeError, match=r"takes 301 bytes, more than buffer\.memory=300"):
        pool.try_allocate(301)
    with pytest.raises(RecordTooLargeError):
        pool.allocate(301, 0)
    ensure_whole(pool)
    small = BufferPool(total_memory=50, poolable_size=100)
    assert small.poolable_size == 50
    ensure_whole(small)
    ensure_whole(BufferPool(total_memory=50, poolable_size=0))


def test_who_waits_is_served_in_order_and_a_large_request_does_not_starve(
    threads: ThreadPoolExecutor,
) -> None:
    pool = a_pool(4)
    for _ in range(4):
        pool.try_allocate(BUFFER)
    large = waiting(threads, pool, 3 * BUFFER)
    small = waiting(threads, pool, BUFFER)

    pool.deallocate(0, BUFFER)
    assert pool.try_allocate(BUFFER) is None
    with pytest.raises(BufferExhaustedError):
        pool.allocate(BUFFER, 0)
    assert bytes_in_use(pool) == 3 * BUFFER
    # Two of three buffers side by side, then the third.
    pool.deallocate(2 * BUFFER, BUFFER)
    assert not large.done()
    assert not small.done()
    pool.deallocate(BUFFER, BUFFER)
    assert large.result(timeout=30) == 0
    assert not small.done()
    pool.deallocate(0, 3 * BUFFER)
    assert small.result(timeout=30) == 0

    pool.deallocate(0, BUFFER)
    pool.deallocate(3 * BUFFER, BUFFER)
    ensure_whole(pool)


def test_threads_that_want_more_than_there_is_all_get_their_turns(
    threads: ThreadPoolExecutor,
) -> None:
    pool = a_pool(10)

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(300):
            size = rng.choice([1, BUFFER, BUFFER, BUFFER, 150, 350, 10 * BUFFER])
            start = pool.allocate(size, LONG_MS)
            mine = np.frombuffer(pool.memory, np.uint8)[start : start + size]
            mine[:] = number
            if rng.random() < 0.3:
                time.sleep(0)
            assert (mine == number).all()
            pool.deallocate(start, size)

    futures = [threads.submit(work, number) for number in range(8)]
    done = wait(futures, timeout=60).done
    assert len(done) == 8
    for future in futures:
        future.result()
    ensure_whole(pool)


def test_a_timeout_takes_nothing_along_and_lets_the_next_one_go_on(
    threads: ThreadPoolExecutor,
) -> None:
    pool = a_pool(4)
    pool.try_allocate(BUFFER)
    large = waiting(threads, pool, 4 * BUFFER, max_block_ms=50)
    small = waiting(threads, pool, 2 * BUFFER)
    with pytest.raises(BufferExhaustedError) as error:
        large.result(timeout=30)
    assert (error.value.size_in_bytes, error.value.max_block_ms) == (4 * BUFFER, 50)
    assert error.value.total_memory == 4 * BUFFER
    assert small.result(timeout=30) == BUFFER
    pool.deallocate(BUFFER, 2 * BUFFER)
    pool.deallocate(0, BUFFER)
    ensure_whole(pool)


def test_waiting_longer_than_any_clock_counts_is_waiting(threads: ThreadPoolExecutor) -> None:
    pool = a_pool(1)
    pool.try_allocate(1)
    future = waiting(threads, pool, 1, max_block_ms=2**63 - 1)
    pool.deallocate(0, 1)
    assert future.result(timeout=30) == 0


def test_close_wakes_all_who_wait_and_refuses_who_comes_later(
    threads: ThreadPoolExecutor,
) -> None:
    pool = a_pool(2)
    pool.try_allocate(BUFFER)
    futures = [waiting(threads, pool, size) for size in (2 * BUFFER, BUFFER, BUFFER)]
    pool.close()
    pool.close()
    for future in futures:
        assert isinstance(future.exception(timeout=30), ProducerClosedError)
    with pytest.raises(ProducerClosedError):
        pool.allocate(BUFFER, LONG_MS)
    with pytest.raises(ProducerClosedError):
        pool.try_allocate(BUFFER)
    pool.deallocate(0, BUFFER)
    assert (bytes_in_use(pool), pool.queued) == (0, 0)


def test_the_next_pool_has_the_memory_of_one_that_ended_once_no_one_uses_it() -> None:
    first = a_pool()
    start = first.try_allocate(BUFFER)
    assert start is not None
    first.close()
    assert a_pool().memory is not first.memory  # somebody may still read it
    first.deallocate(start, BUFFER)
    first.close()  # once more, which is no second block
    assert a_pool(5).memory is not first.memory  # of another size, and then it is gone
    assert a_pool().memory is not first.memory

    second = a_pool()
    second.close()
    third, fourth = a_pool(), a_pool()
    assert third.memory is second.memory
    assert fourth.memory is not second.memory


def test_a_large_block_is_not_kept() -> None:
    large = BufferPool(total_memory=(64 << 20) + 1, poolable_size=(64 << 20) + 1)
    large.close()
    again = BufferPool(total_memory=(64 << 20) + 1, poolable_size=(64 << 20) + 1)
    assert again.memory is not large.memory


def test_an_interrupt_while_waiting_leaves_the_pool_whole() -> None:
    pool = a_pool(2)
    pool.try_allocate(BUFFER)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            pool.allocate(2 * BUFFER, LONG_MS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pool.deallocate(0, BUFFER)
    ensure_whole(pool)


@pytest.mark.parametrize("served", [False, True], ids=["in the queue", "already served"])
def test_an_error_before_memory_is_handed_over_gives_the_turn_to_the_next(
    threads: ThreadPoolExecutor, served: bool
) -> None:
    behind: list[Future[int]] = []
    me = threading.get_ident()

    def fail() -> None:
        if threading.get_ident() != me:
            return
        behind.append(threads.submit(pool.allocate, BUFFER, LONG_MS))
        until(lambda: pool.queued == 2)
        if served:
            pool.deallocate(0, 2 * BUFFER)
            assert bytes_in_use(pool) == 2 * BUFFER
        raise KeyboardInterrupt

    pool = a_pool(2, on_wait=fail)
    pool.try_allocate(2 * BUFFER)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(2 * BUFFER, LONG_MS)

    if not served:
        pool.deallocate(0, 2 * BUFFER)
    assert behind[0].result(timeout=30) == 0
    pool.deallocate(0, BUFFER)
    ensure_whole(pool)


def test_who_is_about_to_wait_says_so_and_one_who_need_not_does_not() -> None:
    queued: list[int] = []

    def free() -> None:
        queued.append(pool.queued)
        pool.deallocate(0, BUFFER)

    pool = a_pool(1, on_wait=free)
    assert pool.allocate(BUFFER, LONG_MS) == 0
    assert queued == []
    assert pool.allocate(BUFFER, LONG_MS) == 0
    assert queued == [1]
