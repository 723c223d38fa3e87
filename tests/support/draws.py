"""How much the tests draw by seed: schedules, kills, rounds and seconds of work, all by one factor.

KBATCH_SCHEDULES        the factor, 1 by default; 5 for a night, 0 for one of each
KBATCH_SCHEDULES_FIRST  the first seed, 0 by default; a failure names its seed

KBATCH_SCHEDULES=0 KBATCH_SCHEDULES_FIRST=4711 pytest tests/replica/test_schedules.py -k the_test_that_failed

Each test names what it draws by default. Where faults are put in on purpose, that is at least twice what it takes to
find the last of them; of histories it is half as many, each with ten times the records.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

FIRST = int(os.environ.get("KBATCH_SCHEDULES_FIRST", "0"))
IS_DEFAULT = "KBATCH_SCHEDULES" not in os.environ
_FACTOR = float(os.environ.get("KBATCH_SCHEDULES", "1"))


def many(default: int) -> int:
    """Return how many to draw where `default` is drawn by default; at least one."""
    return max(1, round(default * _FACTOR))


def seeds(default: int, *, after: int = 0) -> range:
    """Return the seeds where `default` are drawn by default, beyond the first `after` ones, which are always drawn."""
    first = max(FIRST, after)
    return range(first, first + many(default))


def at_least(default: int) -> int:
    """Return how many seconds or records where it is `default` by default: with less, too little happens."""
    return round(default * max(1, _FACTOR))


@contextlib.contextmanager
def naming_first() -> Iterator[None]:
    """Let a failure name the first seed, by which all is drawn here; for a block, or before a test."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"KBATCH_SCHEDULES_FIRST={FIRST}")
        raise


def again(seed: int) -> str:
    """Return what draws this seed alone, for the note of a failure."""
    return f"KBATCH_SCHEDULES=0 KBATCH_SCHEDULES_FIRST={seed}"
