"""Locks between processes, and between threads, on open files.

    RecordLocks   on Linux: record locks of the open file description (F_OFD_SETLK)
    WholeFile     elsewhere, such as on macOS, whose Python has no such locks: flock

Either belongs to what `open` returned. So two threads that opened the file themselves exclude each
other, by whatever names they reached it, and nobody else in the process can drop a lock. POSIX record
locks belong to the process, and are gone as soon as it closes any descriptor of the file, as a backup
does that reads it.

A broker's lock is a POSIX one. Record locks of either kind meet it; flock does on macOS, by its
kernel's source, and not on Linux.

What `open` returned is inherited by a forked child, and a lock is held until all copies are closed. So
a child closes its copies at once, and a parent unlocks before it closes. A child that was forked
inside a `with` has nothing left to release at its end.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError as error:
    raise ImportError(
        "spark_kbatch runs on Linux and macOS: this Python has no module 'fcntl', with which files "
        "are locked there. On Windows run Python and Spark in WSL (the Windows Subsystem for Linux)"
    ) from error

_RECORD = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process id
_FILES_PER_TOPIC = 16  # of whole-file locks; a descriptor each, while they are held

_IN_THE_WAY = {errno.EACCES, errno.EAGAIN}

_open: set[LockFile] = set()
_opening = threading.RLock()  # guards _open; held while a child is forked, too


class LockFile:
    """An open lock file, and the locks on it, until `release` or the end of the process."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path) -> None:
        """Open it, made where it does not exist."""
        self.path = path
        with _opening:
            self.descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open.add(self)

    @staticmethod
    def place(topic: str, partition: int) -> tuple[str, int]:
        """Where a partition's lock is: the name of a file, and a byte of it."""
        raise NotImplementedError

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock a byte, or the whole file; False where others are in the way and `wait` is false."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of all locks; doing so again does nothing."""
        with _opening:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                _open.discard(self)
                try:
                    self._unlock(descriptor)
                finally:
                    os.close(descriptor)

    def _unlock(self, descriptor: int) -> None:
        raise NotImplementedError

    def __enter__(self) -> LockFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class RecordLocks(LockFile):
    """Byte P of TOPIC.lock is partition P's."""

    __slots__ = ()

    @staticmethod
    def place(topic: str, partition: int) -> tuple[str, int]:
        """As `LockFile.place`."""
        return f"{topic}.lock", partition

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """As `LockFile.take`."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        record = _whole_file(kind) if byte is None else _RECORD.pack(kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.descriptor, command, record)
        except OSError as error:
            if wait or error.errno not in _IN_THE_WAY:
                raise
            return False
        return True

    def _unlock(self, descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def _whole_file(kind: int) -> bytes:
    return _RECORD.pack(kind, os.SEEK_SET, 0, 0, 0)


class WholeFile(LockFile):
    """TOPIC.lock0 to TOPIC.lockf are each for a sixteenth of the partitions.

    A file for each partition would take as many descriptors, of which macOS gives 256.
    """

    __slots__ = ()

    @staticmethod
    def place(topic: str, partition: int) -> tuple[str, int]:
        """As `LockFile.place`."""
        # Not a longer name: a topic's may already be as long as names can be.
        return f"{topic}.lock{partition % _FILES_PER_TOPIC:x}", 0

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """As `LockFile.take`, of the whole file always."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if wait or error.errno not in _IN_THE_WAY:
                raise
            return False
        return True

    def _unlock(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


LOCKS_OF_PARTITIONS: type[LockFile] = RecordLocks if sys.platform == "linux" else WholeFile


def _forget() -> None:
    """In a forked child: it holds none of its parent's locks."""
    global _opening
    for file in _open:
        os.close(file.descriptor)
        file.descriptor = -1
    _open.clear()
    _opening = threading.RLock()


def _before_fork() -> None:
    _opening.acquire()


def _after_fork() -> None:
    _opening.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget)
