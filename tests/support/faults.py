"""A disk that fails at a chosen step, and processes that die there.

    files = FaultyFiles()                                   # counts: files.steps
    files = FaultyFiles(Fault(at=7, error=errno.ENOSPC))    # step 7 raises, later ones work
    files = FaultyFiles(Fault(at=7, error=errno.EROFS, lasting=True))
    files = FaultyFiles(Fault(at=7, torn=True))             # does part of step 7, then SIGKILL
    died(lambda: work(files))                               # in a child process

A step is one call that changes the disk, or could: create, write, truncate, rename, touch, link, remove,
make_dir, remove_dir, flush, and opening a lock file. Methods of `Files` that call others count as those.
The fault comes before its step is done, so a kill at every step and one after the last is a kill
everywhere; `torn` does part of the step: some bytes of a write, some files of a directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.files import Buffer, Files, LockFile
from tests.support.disk import Disk, DiskFiles

CAN_BE_TORN = frozenset({"write", "truncate", "make_dir", "remove_dir"})


@dataclass(frozen=True)
class Fault:
    """The fault at step `at`, counted from 0."""

    at: int
    error: int | None = None  # the errno to raise; None kills the process
    torn: bool = False
    lasting: bool = False  # every later step fails as well
    seed: int = 0  # decides where a torn step is torn


# Of one step each; which one, the test says.
DISK_FAULTS = (
    pytest.param(Fault(at=0, error=errno.ENOSPC, torn=True, lasting=True), id="full disk"),
    pytest.param(Fault(at=0, error=errno.EIO, torn=True), id="one bad write"),
    pytest.param(Fault(at=0, error=errno.EROFS, lasting=True), id="remounted read-only"),
    pytest.param(Fault(at=0, error=errno.EACCES), id="one refusal"),
)


class Faults(Files):
    """A mixin that counts changes of a disk, and fails at one; the disk is the next base class."""

    def __init__(self, fault: Fault | None = None, *disk: Any) -> None:
        super().__init__(*disk)
        self.fault = fault
        self.steps: list[str] = []  # "write /path/of/file"

    def path_of(self, descriptor: int) -> Path:
        """Return the path of an open file."""
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    def die(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def _step(
        self, name: str, where: Path | int, partly: Callable[[float], object] | None = None
    ) -> None:
        number = len(self.steps)
        path = where if isinstance(where, Path) else self.path_of(where)
        self.steps.append(f"{name} {path}")
        fault = self.fault
        if fault is None or number < fault.at or (number > fault.at and not fault.lasting):
            return
        if fault.torn and number == fault.at and partly is not None:
            with contextlib.suppress(OSError):  # The disk may be full.
                partly(random.Random(f"{fault.seed} {number}").random())
        if fault.error is None:
            self.die()
        raise OSError(fault.error, os.strerror(fault.error or 0), str(path))

    def create(self, path: Path) -> int:
        self._step("create", path)
        return super().create(path)

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        def partly(share: float) -> None:
            part = memoryview(data)[: int(share * len(data))]
            super(Faults, self).write_at(descriptor, position, part)

        self._step("write", descriptor, partly)
        super().write_at(descriptor, position, data)

    def made(self, path: Path):  # type: ignore[no-untyped-def]
        if not self.exists(path):
            self._step("create", path)
        return super().made(path)

    def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
        # On a read-only disk, opening for writing fails; it changes nothing.
        fault = self.fault
        if write and fault and fault.lasting and fault.error and len(self.steps) > fault.at:
            raise OSError(fault.error, os.strerror(fault.error), str(path))
        return super().opened(path, write=write)

    def truncate(self, path: Path, size: int) -> None:
        def partly(share: float) -> None:
            before = self.size(path)
            super(Faults, self).truncate(path, size + int(share * (before - size)))

        self._step("truncate", path, partly)
        super().truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self._step("touch", path)
        super().set_modified_ms(path, time_ms)

    def link(self, source: Path, target: Path) -> bool:
        self._step("link", target)
        return super().link(source, target)

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        super().remove(path)

    def make_dir(self, path: Path, *, exclusive: bool = False) -> None:
        self._step("make_dir", path, lambda _: super(Faults, self).make_dir(path.parent))
        super().make_dir(path, exclusive=exclusive)

    def remove_dir(self, path: Path) -> None:
        def partly(share: float) -> None:
            entries = self.list(path) if self.exists(path) else []
            for name in entries[: int(share * len(entries)) + 1]:
                if self.is_dir(path / name):
                    super(Faults, self).remove_dir(path / name)
                else:
                    super(Faults, self).remove(path / name)

        self._step("remove_dir", path, partly)
        super().remove_dir(path)

    def flush_descriptor(self, descriptor: int) -> None:
        self._step("flush", descriptor)
        super().flush_descriptor(descriptor)

    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        self._step("lock", path)
        return super().flock(path, wait=wait)

    def open_for_locks(self, path: Path, before_made: Callable[[], object] = bool) -> LockFile:
        self._step("lock", path)
        return super().open_for_locks(path, before_made)


class Unflushed(Files):
    """The disk without flushes: no test looks past the page cache here, so none needs to wait."""

    def flush_descriptor(self, descriptor: int) -> None:
        pass


class FaultyFiles(Faults, Unflushed):
    """The disk with one fault, or none. `steps` lists what changed it."""


class Killed(BaseException):
    """The end of a simulated process."""


class SimulatedProcess(Faults, DiskFiles):
    """A process on a disk in memory, with one fault; a kill raises Killed in it.

    Handlers that run after that change nothing on the disk: a dead process does nothing more.
    """

    def __init__(
        self, disk: Disk, fault: Fault | None = None, *, mount: str = "/simulated"
    ) -> None:
        super().__init__(fault, disk, mount)
        self._is_dead = False

    def path_of(self, descriptor: int) -> Path:
        return DiskFiles.path_of(self, descriptor)

    def die(self) -> None:
        self._is_dead = True
        raise Killed

    def _step(
        self, name: str, where: Path | int, partly: Callable[[float], object] | None = None
    ) -> None:
        if self._is_dead:
            raise Killed
        super()._step(name, where, partly)


_COMMIT_POINT = "__transaction_state-0/kbatch.state"


def is_commit_point(descriptor: int) -> bool:
    """Return True if a write to this open file decides a commit."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(_COMMIT_POINT)


class DiesAtTheCommitPoint(FaultyFiles):
    """A process that is killed after its commit is placed and before it is decided."""

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        if is_commit_point(descriptor):
            self.fault = Fault(len(self.steps))
        super().write_at(descriptor, position, data)


class StopsInTheFlip(FaultyFiles):
    """A disk that fails for good once a commit is decided and this many states are flipped."""

    def __init__(self, flips: int) -> None:
        super().__init__()
        self._flips, self._decided = flips, False

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        super().write_at(descriptor, position, data)
        if self.steps[-1].endswith(_COMMIT_POINT):
            self._decided = True
        elif self._decided:
            self._flips -= 1
        if self._decided and self._flips == 0:
            self.fault = Fault(len(self.steps), errno.EIO, lasting=True)


class ReadOnlyFiles(Files):
    """A read-only mount, where not even lock files can be opened."""

    def _refuse(self, *arguments: object, **named: object) -> None:
        raise OSError(30, "Read-only file system", str(arguments[0]))

    create = write_at = write = made = truncate = rename = remove = set_modified_ms = _refuse  # type: ignore[assignment]
    make_dir = remove_dir = flush_descriptor = _refuse  # type: ignore[assignment]
    flock = open_for_locks = link = _refuse  # type: ignore[assignment]

    def flush(self, paths: Iterable[Path]) -> None:
        self._refuse(paths)


def run_child(work: Callable[[], object]) -> int:
    """Fork a process that does `work`; return its id."""
    with warnings.catch_warnings():
        # Other tests leave threads; the child uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  the child must not go on as a second pytest
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def open_files(folder: Path) -> list[str]:
    """Return the files that this process has open in `folder`, including removed ones."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            found.append(str(descriptor.readlink()))
    return sorted(path for path in found if path.startswith(f"{folder.resolve()}/"))


def died(work: Callable[[], object]) -> bool:
    """Return True if a process that does `work` is killed, False if it succeeds; anything else fails."""
    _, status = os.waitpid(run_child(work), 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed; its traceback is on stderr"
    return False
