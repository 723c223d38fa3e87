"""The wall clock and the monotonic clock; code that needs one gets it as an argument.

now_ms         times of records and ages of files, which other machines and processes see too
monotonic_ms   durations and deadlines: no one can set it back or forward
sleep_ms       a pause
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the monotonic clock's time in ms, which counts from an arbitrary moment."""
    return time.monotonic_ns() // 1_000_000


def sleep_ms(ms: float) -> None:
    """Wait for a time in ms."""
    time.sleep(ms / 1000)
