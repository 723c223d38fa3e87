"""What work leaves for Python's garbage collector: objects that refer to each other."""

from __future__ import annotations

import gc
from collections.abc import Callable

_TRIES = 5


def garbage_of(work: Callable[[], object]) -> int:
    """Return how many objects `work` leaves, each time it is done; those of other threads do not count."""
    found = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(_TRIES):
            work()
            found.append(gc.collect())
    finally:
        gc.enable()
    return min(found)
