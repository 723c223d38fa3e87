"""Timers by key for consumer groups: each runs one action at its deadline."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

Key: TypeAlias = tuple[str, ...]

_OUTDATED_MAX = 1000


class _Due(NamedTuple):
    """A key's entry in the heap of deadlines, outdated if the key's deadline has changed since."""

    deadline_ms: int
    number: int  # orders equal deadlines by the time at which they were set
    key: Key


class Timers:
    """Timers by key, each with a deadline and an action, on a clock that the caller reads; not thread-safe.

    Every heartbeat puts off the end of a member's session. So putting off adds no entry to the heap: an entry
    that comes up too early is put back with the current deadline.
    """

    def __init__(self) -> None:
        self._actions: dict[Key, tuple[int, Callable[[], None]]] = {}  # by key, with its deadline
        self._queued: dict[Key, int] = {}  # the earliest deadline of each key in the heap
        self._heap: list[_Due] = []
        self._numbers = itertools.count()

    def set(self, key: Key, deadline_ms: int, action: Callable[[], None]) -> None:
        """Set a key's timer, which runs the action at the deadline, in place of the key's earlier timer."""
        self._actions[key] = deadline_ms, action
        queued = self._queued.get(key)
        if queued is None or queued > deadline_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Cancel a key's timer, if there is one."""
        if self._actions.pop(key, None) is None:
            return
        # Its entry stays in the heap. When most are such, they are dropped.
        if len(self._heap) > 2 * len(self._actions) + _OUTDATED_MAX:
            self._queued = {one: deadline_ms for one, (deadline_ms, _) in self._actions.items()}
            self._heap = [
                _Due(deadline_ms, next(self._numbers), one)
                for one, deadline_ms in self._queued.items()
            ]
            heapq.heapify(self._heap)

    def run_due(self, now_ms: int) -> None:
        """Run the actions that are due, in the order of their deadlines. They may set timers."""
        while self._heap and self._heap[0].deadline_ms <= now_ms:
            due = heapq.heappop(self._heap)
            key = due.key
            if self._queued.get(key) != due.deadline_ms:
                continue  # An earlier entry of the same key has come up.
            del self._queued[key]
            found = self._actions.get(key)
            if found is None:
                continue
            deadline_ms, action = found
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._actions[key]
            action()

    def next_deadline_ms(self) -> int | None:
        """Return when `run_due` should be called next; None if there is nothing to do."""
        return self._heap[0].deadline_ms if self._heap else None

    def __len__(self) -> int:
        return len(self._actions)

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, _Due(deadline_ms, next(self._numbers), key))
