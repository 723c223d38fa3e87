"""Child processes that work until they are killed, and the notes that they wrote before.

`tests.support.draws` has how often they are killed, and by which seed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from tests.support import draws
from tests.support.faults import run_child

PATIENCE_S = 60

Work: TypeAlias = Callable[[Path, Path], object]  # of the cluster's path and the notes


class Children:
    """Processes that work on one cluster; each writes notes, line by line, to its own file."""

    def __init__(self, folder: Path, path: Path) -> None:
        """The notes go to `folder`; the cluster is at `path`."""
        self.rng = random.Random(draws.FIRST)
        self._folder, self._path = folder, path
        self._numbers = itertools.count()
        self.running: dict[int, tuple[Work, Path]] = {}

    def start(self, work: Work) -> None:
        notes = self._folder / f"{work.__name__}-{next(self._numbers)}"  # type: ignore[attr-defined]
        self.running[run_child(lambda: work(self._path, notes))] = work, notes

    def kill_and_restart(self, victim: int, meanwhile: Callable[[], object]) -> None:
        """Kill a child once it has written a few lines, calling `meanwhile` until then; start another one."""
        work, notes = self.running.pop(victim)
        wanted, deadline = self.rng.randrange(1, 12), time.monotonic() + PATIENCE_S
        while len(lines(notes)) < wanted:
            assert time.monotonic() < deadline, f"{notes.name} makes no progress"
            meanwhile()
            time.sleep(self.rng.random() * 0.01)
        os.kill(victim, signal.SIGKILL)
        assert os.waitpid(victim, 0)[1] == signal.SIGKILL, "it ended by itself"
        self.start(work)

    def kill_all(self) -> None:
        for child in self.running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def lines(notes: Path) -> list[str]:
    """Return the complete lines."""
    return notes.read_text().split("\n")[:-1] if notes.exists() else []


@contextlib.contextmanager
def kills(default: int) -> Iterator[int]:
    """Yield the number of kills to do; a failure names the seed."""
    with draws.naming_first():
        yield draws.many(default)
