"""The single node of a transport without a network."""

from __future__ import annotations

import threading
from contextlib import suppress

from spark_kbatch.store.transport import LeaderOf, Node


class OneNode:
    """The single node of a transport without a network: it leads all partitions and is always ready."""

    leader_of: LeaderOf | None = None
    why_unreachable: Exception | None = None

    def __init__(self) -> None:
        # Free once woken, until the sleeper has seen it. Neither an Event, whose own lock an interrupt in
        # `set` could leave taken for ever, nor a SimpleQueue: in Python 3.11, its `get` may wait for ever
        # if the thread loses the processor just after it has read the clock.
        self._wake = threading.Lock()
        self._wake.acquire()

    def take_refusal(self) -> Exception | None:
        """Return None."""

    def is_ready(self, node: Node) -> bool:
        """Return True."""
        return True

    def delay_ms(self, node: Node) -> int:
        """Return 0."""
        return 0

    def poll(self, timeout_ms: int) -> None:
        """Sleep until woken; return at once if that happened before."""
        if timeout_ms <= 0:
            self._wake.acquire(blocking=False)
        else:
            self._wake.acquire(timeout=min(timeout_ms / 1000, threading.TIMEOUT_MAX))

    def wake_up(self) -> None:
        """End the sleep."""
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    def close(self) -> None:
        """Do nothing."""
