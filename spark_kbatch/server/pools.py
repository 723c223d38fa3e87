"""Thread pools for the server's request handlers.

Each kind of request has its own pool, so that one kind that waits does not stop another. Threads are
started when they are needed and do not keep the process alive.

Peers take turns, and none has all threads of a pool, if there are several: what others ask for waits for
one task of each peer at most, and has a thread at once if a single peer keeps the pool busy. Large requests,
which take tens of megabytes as objects, have one or two threads: small ones do not wait for them, even those
of the same peer. Huge ones, of more than 128 KiB but for records, are done one at a time by all pools that
share a turn for them (`HugeTurn`): together they take no more memory than one.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from spark_kbatch.clock import monotonic_s

logger = logging.getLogger(__name__)


# Calls a function after a delay in seconds, in a thread that it must not block.
CallLater: TypeAlias = Callable[[float, Callable[[], object]], object]


class Owner(Protocol):
    """A peer that tasks are done for."""

    def wait_s(self) -> float:
        """Return how long it has to wait before more is done for it; such a peer has one thread."""


class _Task:
    """A task, whom it is done for, and when it was submitted."""

    __slots__ = ("has_turn", "is_huge", "is_large", "owner", "run", "submitted_s")

    def __init__(
        self, run: Callable[[], object], owner: Owner | None, *, is_large: bool, is_huge: bool
    ) -> None:
        self.run, self.owner, self.is_large = run, owner, is_large
        self.submitted_s = monotonic_s()
        self.is_huge = is_huge
        self.has_turn = False  # of `HugeTurn`, to be given back


class HugeTurn:
    """A turn that pools share: one of them at a time runs a huge task. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._is_taken = False
        self._pools: list[Pool] = []

    def join(self, pool: Pool) -> None:
        """Wake this pool, too, whenever the turn is free again."""
        self._pools.append(pool)

    def take(self) -> bool:
        """Take the turn; return False if another huge task has it."""
        with self._mutex:
            is_free, self._is_taken = not self._is_taken, True
            return is_free

    def give_back(self) -> None:
        """End the turn; pools whose huge tasks wait try again."""
        with self._mutex:
            self._is_taken = False
        for pool in self._pools:
            pool.look_again()


class Pool:
    """Threads that run tasks: those of one peer in the order in which they are submitted. Thread-safe."""

    def __init__(
        self,
        name: str,
        threads_max: int,
        large_max: int = 1,
        huge_turn: HugeTurn | None = None,
    ) -> None:
        """Start up to `threads_max` threads when needed, `large_max` of them for large requests.

        `name` is in their names. With a `huge_turn` huge requests wait for those of other pools, too.
        """
        self._huge_turn = huge_turn
        if huge_turn is not None:
            huge_turn.join(self)
        self.name, self._threads_max = name, threads_max
        self._of_one_peer_max = max(threads_max - 1, 1)
        self._large_max = large_max
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for a task, False to end
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._threads: list[threading.Thread] = []
        # By owner and whether they are large, in order of their turns.
        self._waiting: dict[tuple[Owner | None, bool], deque[_Task]] = {}
        self._running: set[_Task] = set()
        self._is_closed = False

    def submit(
        self,
        task: Callable[[], object],
        owner: Owner | None = None,
        *,
        is_large: bool = False,
        is_huge: bool = False,
    ) -> None:
        """Run the task in one of the threads; an error is logged. After `close` the task is dropped.

        Args:
            task: what to run.
            owner: the peer that it is done for; None for the server itself.
            is_large: whether it may take long, and much memory.
            is_huge: whether it is large and takes so much that pools take turns.
        """
        with self._mutex:
            if self._is_closed:
                return
            one = _Task(task, owner, is_large=is_large, is_huge=is_huge)
            self._waiting.setdefault((owner, is_large), deque()).append(one)
            count = len(self._running) + sum(map(len, self._waiting.values()))
            if count > len(self._threads) < self._threads_max:
                name = f"kbatch-{self.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._wake.put(True)

    def look_again(self) -> None:
        """Have a thread look for a task that may run by now."""
        self._wake.put(True)

    def oldest_s(self) -> float | None:
        """Return when the oldest task that is not done was submitted, by clock.monotonic_s; None if all are."""
        with self._mutex:
            waiting = [tasks[0].submitted_s for tasks in self._waiting.values()]
            return min([*waiting, *(one.submitted_s for one in self._running)], default=None)

    def close(self, timeout_s: float) -> bool:
        """Finish all submitted tasks and end; return False if that took longer than `timeout_s`."""
        with self._mutex:
            self._is_closed = True
            threads = self._threads
            for _ in threads:
                self._wake.put(False)
        for thread in threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        is_open = True
        while is_open:
            # The last look is one after `close`, when huge tasks no longer wait for their turn.
            is_open = self._wake.get()
            # A thread that ends a task takes the next one itself: that may be one which its peer's share of
            # the threads has kept waiting.
            while (task := self._taken()) is not None:
                try:
                    task.run()
                except Exception:
                    logger.exception("a task of the pool %r failed", self.name)
                with self._mutex:
                    self._running.discard(task)
                if task.has_turn and self._huge_turn is not None:
                    self._huge_turn.give_back()
                del task  # not referenced while the next one is waited for

    def _taken(self) -> _Task | None:
        """Return the task whose turn it is, as one that runs; None if none may run now."""
        with self._mutex:
            for turn, tasks in self._waiting.items():
                if self._may_run(*turn):
                    task = tasks[0]
                    if task.is_huge and self._huge_turn is not None and not self._is_closed:
                        if not self._huge_turn.take():
                            continue
                        task.has_turn = True
                    tasks.popleft()
                    del self._waiting[turn]
                    if tasks:
                        self._waiting[turn] = tasks  # after the others
                    self._running.add(task)
                    return task
        return None

    def _may_run(self, owner: Owner | None, is_large: bool) -> bool:
        if is_large and sum(one.is_large for one in self._running) >= self._large_max:
            return False
        if owner is None:
            return True
        most = 1 if owner.wait_s() else self._of_one_peer_max
        return sum(one.owner is owner for one in self._running) < most
