"""What work leaves for Python's garbage collector: objects that refer to each other."""

from __future__ import annotations

import gc
from collections.abc import Callable


def garbage_of(work: Callable[[], object], *, times: int = 5) -> int:
    """Return how many objects `work` leaves, the least of several times.

    What it leaves it leaves each time. What other threads leave meanwhile comes now and then. What was there
    before is neither counted nor looked through, which takes long in a process that has run many tests.
    """
    found = []
    gc.disable()
    gc.freeze()
    try:
        for _ in range(times):
            work()
            found.append(gc.collect())
    finally:
        gc.unfreeze()
        gc.enable()
    return min(found)
