"""The wall clock and the monotonic clock; code that needs one gets it as an argument.

now_ms         times of records and ages of files, which other machines and processes see too
system_ms      the same, as other machines and processes go by it while a test freezes time in this one
monotonic_ms   durations and deadlines: no one can set it back or forward
monotonic_s    the same in seconds, for what waits on locks and sockets
sleep_ms       a pause

A test that freezes time freezes the wall clock, as it wants to; freezegun puts its own functions in place of
`time.monotonic` too, after which no wait would end. Durations are therefore read from the system's clock by its
number, which no such tool replaces: the one that Python's own `time.monotonic`, and so `threading`, goes by.
"""

from __future__ import annotations

import time

_MONOTONIC: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # the first on macOS


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


def system_ms() -> int:
    """Return the time of day in ms since 1970 by the system's clock, also where a test freezes time."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


def monotonic_ms() -> int:
    """Return the monotonic clock's time in ms, which counts from an arbitrary moment."""
    return time.clock_gettime_ns(_MONOTONIC) // 1_000_000


def monotonic_s() -> float:
    """Return the monotonic clock's time in seconds, which counts from an arbitrary moment."""
    return time.clock_gettime(_MONOTONIC)


def sleep_ms(ms: float) -> None:
    """Wait for a time in ms."""
    time.sleep(ms / 1000)
