"""Pauses that double with each attempt, with jitter, so that clients do not all reconnect at the same time.

Source: Kafka clients/.../common/utils/ExponentialBackoff.java.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_JITTER = 0.2


@dataclass(frozen=True)
class ExponentialBackoff:
    """Pauses between attempts that double up to a maximum, with jitter."""

    initial_ms: int
    max_ms: int
    random: Callable[[], float]  # evenly from [0, 1)

    def pause_ms(self, attempts: int) -> int:
        """Return the pause in ms, doubled for each of the `attempts` so far, with 20 % jitter."""
        doublings = min(attempts, 62)
        middle = min(self.initial_ms << doublings, self.max_ms)
        spread = 1 - _JITTER + 2 * _JITTER * self.random()
        return min(round(middle * spread), self.max_ms)
