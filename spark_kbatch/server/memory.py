"""Memory for requests and answers, counted for all connections together.

Requests are counted as their bytes arrive, not as they are announced. When the memory is used up, only one
request in progress is read further, so that it can always be finished. Small requests are not counted: a
heartbeat never has to wait, and there is at most one per connection.

    RequestMemory    used by the loop alone
    AnswerMemory     thread-safe

Source: Kafka clients/.../common/memory/SimpleMemoryPool.java, not strict.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

SMALL_REQUEST_BYTES = 16_384


class Receiver(Protocol):
    """A connection that receives a large request."""

    def resume(self) -> None:
        """Read more of the request, for which there may be memory again."""


class RequestMemory:
    """The limit on the memory of large requests, counted over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self.used_bytes = limit_bytes, 0
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, None] = {}  # in order
        self._favoured: Receiver | None = None  # may receive even if all memory is used

    def may_receive(self, receiver: Receiver) -> bool:
        """Return True if a connection may read more of its request; otherwise it is resumed once it may."""
        if self.used_bytes < self._limit_bytes or self._favoured is receiver:
            return True
        if self._favoured is None:
            self._favoured = receiver
            return True
        self._waiting[receiver] = None
        return False

    def take(self, receiver: Receiver, size_in_bytes: int) -> None:
        """Count bytes of a large request that a connection has received."""
        self.used_bytes += size_in_bytes
        self._held[receiver] = self._held.get(receiver, 0) + size_in_bytes

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
        waiting, self._waiting = list(self._waiting), {}
        for one in waiting:
            one.resume()


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
