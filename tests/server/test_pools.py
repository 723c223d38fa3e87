"""Threads of a pool are shared among peers, and among large and small requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from spark_kbatch.server.pools import HugeTurn, Pool
from tests.support.waiting import until


class Peer:
    def __init__(self, wait_s: float = 0.0) -> None:
        self._wait_s = wait_s

    def wait_s(self) -> float:
        return self._wait_s


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def pool(over: threading.Event) -> Iterator[Pool]:
    pool = Pool("a-test", 4)
    yield pool
    over.set()
    assert pool.close(5)


def test_a_peer_leaves_a_thread_for_others(pool: Pool, over: threading.Event) -> None:
    busy, done = Peer(), threading.Event()
    for _ in range(20):
        pool.submit(over.wait, busy)

    pool.submit(done.set, Peer())

    assert done.wait(5)
    until(lambda: len(pool._running) == 3, "three tasks run")


def test_a_peer_that_has_used_up_its_share_has_one_thread(
    pool: Pool, over: threading.Event
) -> None:
    busy = Peer(wait_s=1.0)
    for _ in range(5):
        pool.submit(over.wait, busy)
    until(lambda: len(pool._running) == 1, "one task runs")

    done = threading.Event()
    pool.submit(done.set, Peer())
    assert done.wait(5)
    until(lambda: len(pool._running) == 1, "the other task is over")


def test_small_tasks_of_the_same_peer_do_not_wait_for_large_ones(
    pool: Pool, over: threading.Event
) -> None:
    peer, done = Peer(), threading.Event()
    for _ in range(20):
        pool.submit(over.wait, peer, is_large=True)

    pool.submit(done.set, peer)

    assert done.wait(5)


def test_peers_take_turns(over: threading.Event) -> None:
    pool, order = Pool("a-test", 1), list[str]()
    first, second = Peer(), Peer()
    pool.submit(over.wait)
    for number in range(3):
        pool.submit(lambda number=number: order.append(f"first {number}"), first)  # type: ignore[misc]
    pool.submit(lambda: order.append("second"), second)
    over.set()
    assert pool.close(5)

    assert order.index("second") < order.index("first 1")
    assert sorted(order) == ["first 0", "first 1", "first 2", "second"]


def test_the_time_of_the_oldest_task_counts_from_its_submission(
    pool: Pool, over: threading.Event
) -> None:
    assert pool.oldest_s() is None
    for _ in range(6):
        pool.submit(over.wait)
    oldest_s = pool.oldest_s()
    assert oldest_s is not None
    pool.submit(over.wait)
    assert pool.oldest_s() == oldest_s
    over.set()
    until(lambda: pool.oldest_s() is None, "all are done")


def test_huge_tasks_of_several_pools_run_one_at_a_time(over: threading.Event) -> None:
    turn = HugeTurn()
    pools = [Pool(f"pool-{number}", 2, huge_turn=turn) for number in range(3)]
    running, most, done = 0, 0, 0
    mutex = threading.Lock()

    def work() -> None:
        nonlocal running, most, done
        with mutex:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with mutex:
            running, done = running - 1, done + 1

    for number in range(30):
        pools[number % 3].submit(work, Peer(), is_large=True, is_huge=True)
    small = threading.Event()
    pools[0].submit(small.set)
    assert small.wait(5)
    until(lambda: done == 30, "all are done")
    assert most == 1
    assert all(pool.close(5) for pool in pools)


def test_pools_that_end_do_the_huge_tasks_that_wait_for_their_turn() -> None:
    for _ in range(200):  # which of the threads looks first is left to chance
        turn, done, over = HugeTurn(), list[int](), threading.Event()
        first, second = (Pool(name, 2, huge_turn=turn) for name in ("first", "second"))
        first.submit(over.wait, is_large=True, is_huge=True)
        until(partial(bool, first._running), "it has the turn")
        for number in range(3):
            second.submit(partial(done.append, number), is_large=True, is_huge=True)
        assert second.close(5)
        assert done == [0, 1, 2]
        over.set()
        assert first.close(5)
