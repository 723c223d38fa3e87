"""Waiting operations are answered once: when satisfied, when their time is up, or at the second try."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import pytest

from spark_kbatch.replica.purgatory import LOOK_INTERVAL_MS, DelayedOperation, Purgatory
from tests.support.faults import run_child


class Waiting(DelayedOperation):
    """An operation that is satisfied once `is_due`; counts its answers."""

    def __init__(self, is_due: Callable[[], bool] = lambda: False, timeout_ms: int = 1000) -> None:
        super().__init__(timeout_ms)
        self.is_due, self.answers, self.tries = is_due, 0, 0
        self.answered = threading.Event()

    def is_satisfied(self) -> bool:
        self.tries += 1
        return self.is_due()

    def on_complete(self) -> None:
        self.answers += 1
        self.answered.set()


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def purgatory(clock: Clock) -> Purgatory[str]:
    return Purgatory(clock, has_thread=False)


def test_what_is_satisfied_is_answered_at_once_and_not_watched(purgatory: Purgatory[str]) -> None:
    operation = Waiting(lambda: True)
    assert purgatory.try_complete_else_watch(operation, ["a"])

    assert (operation.answers, operation.tries, len(purgatory)) == (1, 1, 0)


def test_only_the_first_completion_says_that_it_was_the_one() -> None:
    operation = Waiting(lambda: True)
    assert operation.force_complete()
    assert not operation.force_complete()
    assert not operation.try_complete()

    assert operation.answers == 1


def test_what_happens_between_the_first_try_and_the_watching_is_seen(
    purgatory: Purgatory[str],
) -> None:
    operation = Waiting()
    operation.is_due = lambda: operation.tries == 2

    assert purgatory.try_complete_else_watch(operation, ["a"])
    assert (operation.answers, len(purgatory)) == (1, 0)


def test_only_what_watches_a_key_is_tried(purgatory: Purgatory[str]) -> None:
    due: set[str] = set()
    first, second = Waiting(lambda: "a" in due), Waiting(lambda: "b" in due)
    assert not purgatory.try_complete_else_watch(first, ["a", "b", "b"])
    assert not purgatory.try_complete_else_watch(second, ["b"])
    due.update("ab")

    assert purgatory.check_and_complete("c") == 0
    assert purgatory.check_and_complete("a") == 1
    assert (first.answers, second.answers, len(purgatory)) == (1, 0, 1)
    assert purgatory.check_and_complete("b") == 1
    assert purgatory.check_and_complete("b") == 0
    assert (first.answers, second.answers, len(purgatory)) == (1, 1, 0)


def test_what_is_late_is_answered_and_no_sooner(purgatory: Purgatory[str], clock: Clock) -> None:
    operation = Waiting(timeout_ms=10)
    purgatory.try_complete_else_watch(operation, ["a"])
    clock.now_ms = 9
    purgatory.look()
    assert (operation.answers, len(purgatory)) == (0, 1)
    clock.now_ms = 10
    purgatory.look()
    purgatory.look()

    assert (operation.answers, len(purgatory)) == (1, 0)


def test_a_look_finds_what_no_one_announced(purgatory: Purgatory[str]) -> None:
    due: list[int] = []
    operation = Waiting(lambda: bool(due))
    purgatory.try_complete_else_watch(operation, [])
    due.append(1)
    purgatory.look()

    assert (operation.answers, len(purgatory)) == (1, 0)


def test_an_answer_may_wait_for_others_and_have_them_answered(purgatory: Purgatory[str]) -> None:
    due: list[int] = []
    inner = Waiting(lambda: bool(due))

    class Outer(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            purgatory.check_and_complete("a")

    outer = Outer(lambda: bool(due))
    purgatory.try_complete_else_watch(inner, ["a"])
    purgatory.try_complete_else_watch(outer, ["a"])
    due.append(1)
    purgatory.check_and_complete("a")

    assert (inner.answers, outer.answers, len(purgatory)) == (1, 1, 0)


def test_an_answer_that_raises_stops_no_other(purgatory: Purgatory[str], clock: Clock) -> None:
    class Raises(Waiting):
        def on_complete(self) -> None:
            raise ZeroDivisionError

    second = Waiting()
    purgatory.try_complete_else_watch(Raises(), ["a"])
    purgatory.try_complete_else_watch(second, ["a"])
    clock.now_ms = 1000
    purgatory.look()

    assert (second.answers, len(purgatory)) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_however_threads_race_each_is_answered_once(seed: int) -> None:
    rng = random.Random(seed)
    due: set[int] = set()
    clock = Clock()
    purgatory: Purgatory[str] = Purgatory(clock, has_thread=False)
    operations = [
        Waiting(lambda n=n: n in due, timeout_ms=rng.choice([0, 5, 10**6])) for n in range(60)
    ]
    start = threading.Barrier(5)

    def watch(half: int) -> None:
        start.wait()
        for number in range(half, 60, 2):
            purgatory.try_complete_else_watch(operations[number], [f"key {number % 3}"])

    def satisfy() -> None:
        start.wait()
        for number in rng.sample(range(60), 60):
            due.add(number)
            purgatory.check_and_complete(f"key {number % 3}")

    def look() -> None:
        start.wait()
        for _ in range(20):
            clock.now_ms += 1
            purgatory.look()

    works = [lambda: watch(0), lambda: watch(1), satisfy, look, look]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert [operation.answers for operation in operations] == [1] * 60
    assert len(purgatory) == 0


def test_a_thread_looks_while_something_waits_and_ends_with_it() -> None:
    purgatory: Purgatory[str] = Purgatory(lambda: 0)
    due: list[int] = []
    operation = Waiting(lambda: bool(due))
    purgatory.try_complete_else_watch(operation, ["a"])
    (thread,) = [t for t in threading.enumerate() if t.name == "kbatch-purgatory"]
    due.append(1)

    assert operation.answered.wait(100 * LOOK_INTERVAL_MS / 1000)
    thread.join(10)
    assert not thread.is_alive()


def test_a_forked_child_answers_only_what_is_its_own() -> None:
    purgatory: Purgatory[str] = Purgatory(lambda: 0)
    of_parent = Waiting()
    purgatory.try_complete_else_watch(of_parent, ["a"])

    def work() -> None:
        assert purgatory.check_and_complete("a") == 0
        due: list[int] = []
        mine = Waiting(lambda: bool(due))
        purgatory.try_complete_else_watch(mine, ["a"])
        due.append(1)
        assert mine.answered.wait(10)
        assert of_parent.tries == 2

    child = run_child(work)
    assert os.waitpid(child, 0)[1] == 0
    of_parent.is_due = lambda: True
    assert of_parent.answered.wait(10)
