"""Memory for requests and answers, counted for all connections together.

Requests are counted as their bytes arrive, not as they are announced. When the memory is used up, only one
request in progress is read further, so that it can always be finished. Small requests are not counted: a
heartbeat never has to wait, and there is at most one per connection.

No peer keeps the memory from others by being slow. Once a second the event loop looks: if others wait for
memory, or answers take more than half of theirs, connections that are slow with what they hold are closed,
the slowest first, until that is over. Their clients connect again.

    RequestMemory    used by the loop alone
    AnswerMemory     thread-safe

Source: Kafka clients/.../common/memory/SimpleMemoryPool.java, not strict.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

SMALL_REQUEST_BYTES = 16_384
_SLOW_RATE = 1 << 20  # bytes/s, below which a connection is slow
_PATIENCE_S = (
    2.0  # time for which others wait, and for which a connection holds memory, before it is closed
)


class Receiver(Protocol):
    """A connection that receives a large request."""

    def resume(self) -> None:
        """Read more of the request, for which there may be memory again."""


class Holder(Protocol):
    """A connection that holds memory while its client sends a request or reads an answer."""

    def rate(self, now_s: float) -> float | None:
        """Return the bytes per second that it passed on since the last look.

        None if it does not wait for its client, or has not held memory for long.
        """

    def close(self) -> None:
        """Close the connection, which frees its memory."""


class RequestMemory:
    """The limit on the memory of large requests, counted over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self.used_bytes = limit_bytes, 0
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, None] = {}  # in order
        self._wait_since_s: float | None = None  # of the first look at which anyone waited
        self._favoured: Receiver | None = None  # may receive even if all memory is used
        self._favoured_has_received = True  # since the last look

    def may_receive(self, receiver: Receiver) -> bool:
        """Return True if a connection may read more of its request; otherwise it is resumed once it may."""
        if self.used_bytes < self._limit_bytes or self._favoured is receiver:
            return True
        if self._favoured is None:
            self._favoured, self._favoured_has_received = receiver, True
            return True
        self._waiting[receiver] = None
        return False

    def take(self, receiver: Receiver, size_in_bytes: int) -> None:
        """Count bytes of a large request that a connection has received."""
        self.used_bytes += size_in_bytes
        self._held[receiver] = self._held.get(receiver, 0) + size_in_bytes
        if receiver is self._favoured:
            self._favoured_has_received = True

    def release(self, receiver: Receiver) -> None:
        """Stop counting the bytes of a connection's request, and resume connections that wait for memory.

        The request is answered, or the connection is closed.
        """
        self._waiting.pop(receiver, None)
        held = self._held.pop(receiver, 0)
        self.used_bytes -= held
        if self._favoured is receiver:
            self._favoured = None
        elif not held:
            return
        self._resume_all()

    def _resume_all(self) -> None:
        waiting, self._waiting = list(self._waiting), {}
        for one in waiting:
            one.resume()

    def look(self, now_s: float, holders: Iterable[Holder]) -> None:
        """Take the favour from a connection that has received nothing since the last look, about a second ago.

        If others have waited for some time, close slow `holders` until there is memory again.
        """
        if not self._waiting:
            self._wait_since_s = None
            return
        if self._wait_since_s is None:
            self._wait_since_s = now_s
        if self._favoured is not None and not self._favoured_has_received:
            self._favoured = None
            self._resume_all()
        self._favoured_has_received = False
        if now_s - self._wait_since_s >= _PATIENCE_S:
            for one in _slow(holders, now_s):
                if self.used_bytes < self._limit_bytes:
                    return
                one.close()


class AnswerMemory:
    """The limit on the memory of answers that are being read from logs, or are not yet sent completely."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._mutex = threading.Lock()  # guards used_bytes; innermost
        self.used_bytes = 0

    def count(self, size_in_bytes: int) -> None:
        """Count the bytes of an answer; a negative number once they are sent."""
        with self._mutex:
            self.used_bytes += size_in_bytes

    def room(self) -> int:
        """Return how many more bytes of answers the limit allows."""
        return max(self._limit_bytes - self.used_bytes, 0)

    def look(self, now_s: float, holders: Iterable[Holder]) -> None:
        """Close slow `holders` of answers until these take at most half of the memory; for the loop."""
        for one in _slow(holders, now_s) if self.used_bytes > self._limit_bytes // 2 else ():
            if self.used_bytes <= self._limit_bytes // 2:
                return
            one.close()

    @contextlib.contextmanager
    def reserved(self, size_in_bytes: int) -> Iterator[int]:
        """Reserve memory for an answer during a `with`, as much of the size as is free; yield how much."""
        with self._mutex:
            size_in_bytes = min(size_in_bytes, self.room())
            self.used_bytes += size_in_bytes
        try:
            yield size_in_bytes
        finally:
            self.count(-size_in_bytes)


def _slow(holders: Iterable[Holder], now_s: float) -> Collection[Holder]:
    """Return the connections that are slow, the slowest first."""
    rates = [(rate, one) for one in holders if (rate := one.rate(now_s)) is not None]
    slow = [(rate, one) for rate, one in rates if rate < _SLOW_RATE]
    return [one for _, one in sorted(slow, key=lambda pair: pair[0])]
