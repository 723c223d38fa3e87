"""Processes that are killed at random moments, with all or some of the processes that they started.

A Spark driver is a tree of processes: Python, its JVM, and Python daemons whose children plan, run tasks
and commit. After its root is gone the others end at some later time, or never.

    victims               killed                             may go on
    DRIVER                Python and its JVM                 workers, until their daemon notices
    ALL                   the whole tree                     nothing
    ALL_BUT_LATE_WORKERS  the whole tree but the workers,    the workers, stopped now and resumed beside
                          which are stopped                  the next driver: a late task, a late commit
    SOME_WORKERS          some of the workers                the driver: Spark repeats tasks, jobs fail
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from spark_kbatch.commit.staging import Probe
from tests.conftest import REPOSITORY
from tests.support.waiting import until


class Victims(enum.Enum):
    DRIVER = "driver"
    ALL = "all"
    ALL_BUT_LATE_WORKERS = "all but late workers"
    SOME_WORKERS = "some workers"


class Program:
    """A process of `python -m tests.support.killed_jobs`, whose output goes to a file."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.killed_jobs", *arguments],
                cwd=output.parent,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONUNBUFFERED": "1",
                },
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )

    def give(self, line: Path) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{line}\n".encode())
        self._popen.stdin.flush()

    def ensure_alive(self) -> None:
        assert self._popen.poll() is None, f"ended by itself: {self.tail()}"

    def tail(self) -> str:
        return self._output.read_text(errors="replace")[-20_000:]

    def kill(self, victims: Victims, rng: random.Random) -> list[psutil.Process]:
        """Kill the victims; return the processes that are stopped or may still be running."""
        tree = tree_of(self._popen.pid)
        workers = _workers(tree)
        match victims:
            case Victims.SOME_WORKERS:
                _kill(worker for worker in workers if rng.random() < 0.7)
                return []
            case Victims.ALL_BUT_LATE_WORKERS:
                for worker in workers:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        worker.suspend()
                left = workers
            case Victims.DRIVER:
                left = [one for one in tree if "java" not in _name(one) and one.pid != self.pid]
            case Victims.ALL:
                left = []
        _kill(one for one in tree if one not in left)
        self._wait()
        return left

    def end(self) -> None:
        """Kill everything."""
        kill_tree(self._popen.pid)
        self._wait()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def _wait(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.wait(timeout=60)


def resume_later(left: Iterable[psutil.Process], delay_s: float) -> threading.Timer:
    """Let stopped processes go on."""

    def resume() -> None:
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()

    timer = threading.Timer(delay_s, resume)
    timer.start()
    return timer


def end_of(left: list[psutil.Process]) -> None:
    """Wait for processes to end by themselves; kill those that hang for reasons outside this package."""
    deadline = time.monotonic() + 5
    while any(map(_is_alive, left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _kill(left)
    until(lambda: not any(map(_is_alive, left)), "killed processes are gone")


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    _kill(tree_of(pid))


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def tree_of(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; nothing if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _workers(tree: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the children of Spark's daemons, whose parent is neither a JVM nor a driver."""
    by_pid = {one.pid: one for one in tree}
    found = []
    for one in by_pid.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = by_pid.get(one.ppid())
            if parent is not None and "daemon" in " ".join(parent.cmdline()):
                found.append(one)
    return found


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _kill(processes: Iterable[psutil.Process]) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


class Moment:
    """A moment for a kill: by time, or by what the cluster's files show."""

    KINDS = ("at a time", "while tasks stage", "during a commit", "after a commit")

    def __init__(self, rng: random.Random, cluster: Path, *, commits: int) -> None:
        """Draw a moment within this many commits of the cluster, or seconds."""
        self.kind = rng.choice(self.KINDS)
        self._number = rng.randint(1, commits)  # of the transaction or commit, from now on
        self._delay_s = {
            "at a time": rng.uniform(0, commits),
            "while tasks stage": rng.uniform(0, 0.5),
            "during a commit": rng.choice((0.0, rng.uniform(0, 0.02))),
            "after a commit": rng.uniform(0, 0.1),
        }[self.kind]
        self._cluster = cluster

    def __str__(self) -> str:
        return f"{self.kind} number {self._number} + {self._delay_s:.3f} s"

    def wait(self, over: Callable[[], bool]) -> bool:
        """Wait for the moment; return False if the work is over before it."""
        look = {
            "at a time": lambda: self._number,
            "while tasks stage": self._staged,
            "during a commit": self._committing,
            "after a commit": self._committed,
        }[self.kind]
        seen: object = look()
        count = self._number if self.kind == "at a time" else 0
        while count < self._number:
            if over():
                return False
            time.sleep(0.001)
            now = look()
            count += bool(now) and now != seen
            seen = now
        end = time.monotonic() + self._delay_s
        while time.monotonic() < end:
            if over():
                return False
            time.sleep(min(0.01, max(0.0, end - time.monotonic())))
        return not over()

    def end(self) -> None:
        """Let go what waits for the moment to pass: nothing."""

    def _staged(self) -> str:
        """Return the newest transaction in which a task has made an attempt.

        Those that were killed stay; names are drawn by chance and say nothing of which is newer.
        """
        while True:
            attempts = (self._cluster / "staging-0").glob("*/*/")
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                begun = {
                    path.parent: (path.parent / Probe.NAME).stat().st_mtime_ns for path in attempts
                }
                return str(max(begun, key=begun.__getitem__, default=""))

    def _committed(self) -> int:
        state = self._cluster / "broker-0" / "__transaction_state-0" / "kbatch.state"
        return state.stat().st_mtime_ns

    def _committing(self) -> bool:
        """Return True if a process holds the commit lock."""
        with (self._cluster / "locks" / "commit").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False
