"""The two clocks; whatever needs one is given it as an argument.

now_ms         times of records and ages of files: what other machines and processes see, too
monotonic_ms   how long something takes or waits: nobody can set it back or forward
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the ms since some moment that stays the same while the process lives."""
    return time.monotonic_ns() // 1_000_000
