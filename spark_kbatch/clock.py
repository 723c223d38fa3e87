"""The wall clock and the monotonic clock; code that needs one gets it as an argument.

now_ms         times of records and ages of files, which other machines and processes see too
latest_ms      the later of that and the system's own, which others have while a test freezes time
monotonic_ms   durations and deadlines: no one can set it back or forward
monotonic_s    the same in seconds, for what waits on locks and sockets
since_boot_ms  what has passed since the machine's start, sleep too: the same in all its processes
sleep_ms       a pause

A test that freezes time freezes the wall clock, as it wants to; freezegun puts its own functions in place of
`time.monotonic` too, after which no wait would end. Durations are therefore read from the system's clock by its
number, which no such tool replaces: the one that Python's own `time.monotonic`, and so `threading`, goes by.
time-machine leaves that clock alone, but not `CLOCK_REALTIME`. So the system's time of day is
Linux's coarse one, which is at most 10 ms late; on macOS, which has none, it is frozen too.
"""

from __future__ import annotations

import sys
import time

_MONOTONIC: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # the first on macOS
_REALTIME = 5 if sys.platform == "linux" else time.CLOCK_REALTIME  # CLOCK_REALTIME_COARSE
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)  # macOS


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


def latest_ms(than_ms: int = 0) -> int:
    """Return the system's time of day, which no test freezes, or a later time."""
    return max(time.clock_gettime_ns(_REALTIME) // 1_000_000, than_ms)


def monotonic_ms() -> int:
    """Return the monotonic clock's time in ms, which counts from an arbitrary moment."""
    return time.clock_gettime_ns(_MONOTONIC) // 1_000_000


def monotonic_s() -> float:
    """Return the monotonic clock's time in seconds, which counts from an arbitrary moment."""
    return time.clock_gettime(_MONOTONIC)


def since_boot_ms() -> int:
    """Return the time in ms since the machine was started, or since a moment near that."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def sleep_ms(ms: float) -> None:
    """Wait for a time in ms."""
    time.sleep(ms / 1000)
