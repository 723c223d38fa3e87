"""Spark jobs that last until a test has done what it wants to do during them.

pace = Pace(folder)
frame.mapInArrow(pace.slowly, frame.schema)     # a few rows at a time
pace.started(2)                                 # two tasks have had rows
...
pace.hurry()                                    # the rest at once
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.support.waiting import until

_ROWS = 100
_PAUSE_S = 0.1
_LAST_S = 300
_START_S = 180  # a first job compiles


class Pace:
    """The pace of the tasks of one job; they look at files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.hurry()

    def slowly(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on slowly, and keep some back until the job may hurry."""
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        deadline = time.monotonic() + _LAST_S
        held: pa.RecordBatch | None = None
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                if held is not None:
                    yield held
                held = batch.slice(start, _ROWS)
                self._folder.joinpath(f"{name}.started").touch()
                if not self._hurries:
                    time.sleep(_PAUSE_S)
        while not self._hurries:
            assert time.monotonic() < deadline, "the test did not end what it does during the job"
            time.sleep(_PAUSE_S)
        if held is not None:
            yield held
        self._folder.joinpath(f"{name}.ended").touch()

    @property
    def _hurries(self) -> bool:
        return self._folder.joinpath("hurry").exists()

    def hurry(self) -> None:
        """Have the tasks pass on the rest at once."""
        self._folder.joinpath("hurry").touch()

    def started(self, tasks: int, job: Future[Any]) -> None:
        """Wait until so many tasks of a job have had rows; raise what the job raises."""
        self._wait(tasks, "started", job)

    def ended(self, tasks: int, job: Future[Any]) -> None:
        """Wait until so many tasks of a job have passed on all their rows; raise what the job raises."""
        self._wait(tasks, "ended", job)

    def _wait(self, tasks: int, what: str, job: Future[Any]) -> None:
        def seen() -> bool:
            return len(list(self._folder.glob(f"*.{what}"))) >= tasks

        until(lambda: job.done() or seen(), f"{tasks} tasks {what}", timeout_s=_START_S)
        if job.done():
            job.result()
        assert seen(), "the job ended too early"
