"""Thread pools for the server's request handlers.

Each kind of request has its own pool, so that one kind that waits does not stop another. Threads are
started when they are needed and do not keep the process alive.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class CallLater(Protocol):
    """The interface of a timer function, which calls another function after a delay."""

    def __call__(self, delay_s: float, function: Callable[[], object], /) -> object:
        """Call the function after some time, in a thread that it must not block."""


class Pool:
    """Threads that run tasks in the order in which they are submitted. Thread-safe."""

    def __init__(self, name: str, threads_max: int) -> None:
        """Start up to `threads_max` threads when needed; `name` is in their names."""
        self.name, self._threads_max = name, threads_max
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._threads: list[threading.Thread] = []
        self._busy = 0  # tasks that run or wait
        self._is_closed = False

    def submit(self, task: Callable[[], object]) -> None:
        """Run the task in one of the threads; an error is logged. After `close` the task is dropped."""
        with self._mutex:
            if self._is_closed:
                return
            self._busy += 1
            if self._busy > len(self._threads) < self._threads_max:
                name = f"kbatch-{self.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._tasks.put(task)

    def close(self, timeout_s: float) -> bool:
        """Finish all submitted tasks and end; return False if that took longer than `timeout_s`."""
        with self._mutex:
            self._is_closed = True
            threads = self._threads
            for _ in threads:
                self._tasks.put(None)
        for thread in threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a task of the pool %r failed", self.name)
            task = None  # not referenced while the next one is waited for
            with self._mutex:
                self._busy -= 1
