"""The wall clock and the monotonic clock; code that needs one gets it as an argument.

now_ms         times of records and ages of files, which other machines and processes see too
latest_ms      the later of that and the system's own, which others have while a test freezes time
expiring_ms    what expires: the wall clock, but for a step that it has just made
monotonic_ms   durations and deadlines: no one can set it back or forward
monotonic_s    the same in seconds, for what waits on locks and sockets
sleep_ms       a pause

A test that freezes time freezes the wall clock, as it wants to; freezegun puts its own functions in place of
`time.monotonic` too, after which no wait would end. Durations are therefore read from the system's clock by its
number, which no such tool replaces: the one that Python's own `time.monotonic`, and so `threading`, goes by.
"""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

_MONOTONIC: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # the first on macOS

_BACK_MS, _FORWARD_MS, _HELD_MS = 60_000, 3_600_000, 600_000  # of steps


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


def latest_ms(than_ms: int = 0) -> int:
    """Return the system's time of day, which no test freezes, or a later time."""
    return max(time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000, than_ms)


def monotonic_ms() -> int:
    """Return the monotonic clock's time in ms, which counts from an arbitrary moment."""
    return time.clock_gettime_ns(_MONOTONIC) // 1_000_000


def monotonic_s() -> float:
    """Return the monotonic clock's time in seconds, which counts from an arbitrary moment."""
    return time.clock_gettime(_MONOTONIC)


def sleep_ms(ms: float) -> None:
    """Wait for a time in ms."""
    time.sleep(ms / 1000)


class _Steps:
    """Steps of the wall clock, beside the one that no one sets."""

    def __init__(self) -> None:
        self._ahead_ms = now_ms() - monotonic_ms()
        self._held_ms = self._until_ms = 0  # a race of two threads only holds more back

    def expiring_ms(self, now_ms: int) -> int:
        """Return the time by which things may expire, given the time of day.

        A step forward of over an hour does not count for ten minutes, and is logged, as is a step
        back: nothing expires by it, and there is time to set the clock right. A machine that has
        slept looks like one whose clock was set.
        """
        elapsed_ms = monotonic_ms()
        ahead_ms = time.time_ns() // 1_000_000 - elapsed_ms
        step_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if not -_BACK_MS < step_ms < _FORWARD_MS:
            logger.warning(
                "the clock was set by %d s: for now nothing expires by it", step_ms // 1000
            )
            self._held_ms = max(self._held_ms + step_ms, 0)
            self._until_ms = elapsed_ms + _HELD_MS
        return now_ms - (self._held_ms if elapsed_ms < self._until_ms else 0)


expiring_ms = _Steps().expiring_ms
