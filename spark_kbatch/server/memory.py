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
        """Go on receiving, as far as `RequestMemory.may_receive` allows."""


class RequestMemory:
    """The memory for large requests."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self.used_bytes = limit_bytes, 0
        self._held: dict[Receiver, int] = {}
        self._waiting: dict[Receiver, None] = {}  # in order
        self._favoured: Receiver | None = None  # may receive even if all memory is used

    def may_receive(self, receiver: Receiver) -> bool:
        """Return True if the receiver may read on; otherwise it is resumed once it may."""
        if self.used_bytes < self._limit_bytes or self._favoured is receiver:
            return True
        if self._favoured is None:
            self._favoured = receiver
            return True
        self._waiting[receiver] = None
        return False

    def take(self, receiver: Receiver, size_in_bytes: int) -> None:
        """Count bytes that the receiver has received."""
        self.used_bytes += size_in_bytes
        self._held[receiver] = self._held.get(receiver, 0) + size_in_bytes

    def release(self, receiver: Receiver) -> None:
        """Stop counting the receiver's bytes, because its request is answered or it is closed."""
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
    """The memory for answers that are being read, or not yet taken by their clients."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._mutex = threading.Lock()  # guards used_bytes; innermost
        self.used_bytes = 0

    def count(self, size_in_bytes: int) -> None:
        """Count the bytes of an answer; a negative number once they are sent."""
        with self._mutex:
            self.used_bytes += size_in_bytes

    def room(self) -> int:
        """Return how many bytes there is room for."""
        return max(self._limit_bytes - self.used_bytes, 0)

    @contextlib.contextmanager
    def reserved(self, size_in_bytes: int) -> Iterator[int]:
        """Reserve as many of the bytes as there is room for; yield how many."""
        with self._mutex:
            size_in_bytes = min(size_in_bytes, self.room())
            self.used_bytes += size_in_bytes
        try:
            yield size_in_bytes
        finally:
            self.count(-size_in_bytes)
