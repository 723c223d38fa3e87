"""All file I/O of logs, metadata and staging, and all file locks.

One object, given at construction, is the only door to the disk: tests pass one that fails, tears or
kills at the n-th call. Paths go in and nothing stays open between calls, except for `AppendFile` and
locks: so a file that was renamed or replaced is seen at once.

Reads and writes loop until every byte is there. No method retries, and OSError passes through, with
the file's name: who calls knows what a failure means. What is no file, a FIFO above all, is refused
and never waited for.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias, overload

from spark_kbatch.lock_files import LOCKS_OF_PARTITIONS, LockFile, WholeFile

Buffer: TypeAlias = bytes | bytearray | memoryview

# Linux moves 4 KiB less than this at most in one call, macOS refuses more.
_CALL_BYTES_MAX = 2**31 - 1
# Of a file that is read whole: none of ours or of a broker's comes near, and a sparse one costs nobody.
_WHOLE_BYTES_MAX = 2**30


_MODE = 0o666  # the umask decides, as for any file


def flushing(platform: str) -> Callable[[int], object]:
    """What brings an open file's bytes to the disk itself, on a platform as `sys.platform` names it."""
    if platform != "darwin":
        return os.fsync
    import fcntl  # noqa: PLC0415  where there is none, `lock_files` comes first and says so

    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        return os.fsync

    def flush(descriptor: int) -> None:
        # There fsync leaves them in the disk's own cache.
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(descriptor)  # as a network's file system has it

    return flush


_to_disk = flushing(sys.platform)


class AppendFile:
    """A new file that is written from front to back. Not thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self.size_in_bytes = 0
        self._files = files
        self._descriptor = files.create(path)
        self._is_closed = False

    def append(self, data: Buffer) -> int:
        """Write `data` at the end; returns the position at which it begins."""
        if self._descriptor < 0:
            self._descriptor = self._files.opened(self.path, write=True).__enter__()
        position = self.size_in_bytes
        self._files.write_at(self._descriptor, position, data)
        self.size_in_bytes += len(data)
        return position

    def let_go(self) -> None:
        """Use no descriptor until the next append."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    def close(self, *, flush: bool) -> None:
        """No appends after this; closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if flush and self._descriptor < 0:
                self._files.flush([self.path])  # what went through any descriptor of the file
            elif flush:
                self._files.flush_descriptor(self._descriptor)
        finally:
            self.let_go()


class _Opened:
    """An open file, while in the context. An append opens ten: so no generator."""

    __slots__ = ("_descriptor", "_files", "_flags", "_path")

    def __init__(self, files: Files, path: Path, flags: int) -> None:
        self._files, self._path, self._flags = files, path, flags

    def __enter__(self) -> int:
        # As text: os.open would take the longer way to the same. Without O_NONBLOCK opening a FIFO
        # waits for its other end.
        path = str(self._path)
        self._descriptor = os.open(path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
        try:
            # Costs a quarter of fstat, and fails just where there are no positions to read at.
            os.lseek(self._descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            self._files.close(self._descriptor)
            what = "not a regular file, but a FIFO, a socket or a terminal"
            raise OSError(error.errno, what, path) from None
        return self._descriptor

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._files.close(self._descriptor)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self._path)


class Files:
    """The disk. Every method that changes something is one step that a crash may cut off."""

    _lock_file = LOCKS_OF_PARTITIONS

    # Reading.

    def exists(self, path: Path) -> bool:
        """Whether something is at `path`."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Whether a directory is at `path`."""
        return path.is_dir()

    def is_link(self, path: Path) -> bool:
        """Whether a symbolic link is at `path`."""
        return path.is_symlink()

    def list(self, directory: Path) -> list[str]:
        """Names in `directory`, sorted."""
        return sorted(os.listdir(directory))  # noqa: PTH208  of 30,000 names this is the fast way

    def first_names(self, directory: Path, count: int) -> Sequence[str]:
        """Return up to `count` names in `directory`, any of them; none where it does not exist."""
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in itertools.islice(entries, count)]
        except FileNotFoundError:
            return []

    def version(self, directory: Path) -> tuple[int, int]:
        """Another one once a name was added or removed, as far as the clock's grain tells."""
        found = directory.stat()
        return found.st_ino, found.st_mtime_ns

    def size(self, path: Path) -> int:
        """In bytes."""
        return path.stat().st_size

    def sizes(self, directory: Path, names: Iterable[str]) -> Sequence[int]:
        """Return the sizes of files in `directory`; -1 for one that is not there."""
        return [_size(f"{directory}/{name}") for name in names]

    def holds(self, directory: Path, name: str) -> bool:
        """Return True if `directory` has something of that name: `exists` in half the time."""
        return os.path.exists(f"{directory}/{name}")  # noqa: PTH110  every append asks

    def descriptor_size(self, descriptor: int) -> int:
        """Of an open file, in bytes."""
        return os.fstat(descriptor).st_size

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Of the open file: another file has another one, also under the same name."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def identity_at(self, path: Path) -> tuple[int, int]:
        """As `identity`, of what is at `path` now."""
        status = path.stat()
        return status.st_dev, status.st_ino

    def fingerprint(self, path: Path) -> tuple[int, ...] | None:
        """Of the file at `path`: another one after each `replace`; None where there is none."""
        try:
            found = os.stat(str(path))  # noqa: PTH116  as in `is_at`
        except FileNotFoundError:
            return None
        return (
            found.st_dev,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )

    def modified_ms(self, path: Path) -> int:
        """When the file was last written."""
        return path.stat().st_mtime_ns // 1_000_000

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        """Up to `size` bytes from `position`; fewer at the end of the file.

        Without `size` all of them; a file of over 1 GiB is refused then.
        """
        with self.opened(path) as descriptor:
            if size is None:
                size = max(os.fstat(descriptor).st_size - position, 0)
                if size > _WHOLE_BYTES_MAX:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            data = os.pread(descriptor, min(size, _CALL_BYTES_MAX), position)
            if len(data) == size or not data:
                return data
            pieces, found = [data], len(data)
            while found < size:
                left = min(size - found, _CALL_BYTES_MAX)
                data = os.pread(descriptor, left, position + found)
                if not data:
                    break
                pieces.append(data)
                found += len(data)
            return b"".join(pieces)

    def read_each(self, paths: Iterable[str], size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of each of many small files; nothing of one that cannot be read.

        As text, and no more calls than it takes: of thousands the commit lock waits for each. Who wants
        to know what is wrong with one reads it with `read`.
        """
        for path in paths:
            try:
                # O_NONBLOCK as in `opened`: a FIFO is not waited for.
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                yield b""
                continue
            try:
                data = os.pread(descriptor, size, 0)
            except OSError:
                data = b""
            finally:
                os.close(descriptor)
            yield data

    def read_into(self, path: Path, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from `position`; returns how many bytes there were."""
        with self.opened(path) as descriptor:
            return self.pread_into(descriptor, position, buffer)

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        """As `read_into`, on an open descriptor."""
        filled = 0
        while filled < len(buffer):
            rest = buffer[filled : filled + _CALL_BYTES_MAX]
            count = os.preadv(descriptor, [rest], position + filled)
            if count == 0:
                break
            filled += count
        return filled

    def opened(self, path: Path, *, write: bool = False) -> AbstractContextManager[int]:
        """A descriptor for many small reads and writes."""
        return _Opened(self, path, os.O_RDWR if write else os.O_RDONLY)

    def close(self, descriptor: int) -> None:
        """Nothing is done with the descriptor after this."""
        os.close(descriptor)

    # Writing.

    def create(self, path: Path) -> int:
        """Make a new file, which must not exist; returns its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`."""
        view = memoryview(data)
        while len(view):
            count = os.pwrite(descriptor, view[:_CALL_BYTES_MAX], position)
            view, position = view[count:], position + count

    def write(self, path: Path, position: int, data: Buffer) -> None:
        """Write all of `data` at `position` of a file, which is made where it does not exist."""
        with self.made(path) as descriptor:
            self.write_at(descriptor, position, data)

    def made(self, path: Path) -> AbstractContextManager[int]:
        """As `opened` for writing, of a file that is made where it does not exist."""
        return _Opened(self, path, os.O_RDWR | os.O_CREAT)

    def truncate(self, path: Path, size: int) -> None:
        """Cut the file at `size` bytes."""
        os.truncate(path, size)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces `target`."""
        source.replace(target)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Make `modified_ms` return this; of another user's file, the system's time now."""
        try:
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))
        except PermissionError:
            os.utime(path)  # Only its owner may choose the time. Who may write may set it to now.

    def set_descriptor_modified_ns(self, descriptor: int, time_ns: int) -> None:
        """Give an open file this time of its last write."""
        os.utime(descriptor, ns=(time_ns, time_ns))

    def link(self, source: Path, target: Path) -> bool:
        """Give the file a second name; False where `target` exists."""
        try:
            target.hardlink_to(source)
        except FileExistsError:
            return False
        return True

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def make_dir_on_disk(self, path: Path) -> None:
        """Make a directory and its parents; on return those that were made are on disk."""
        made = [path, *path.parents]
        made = made[: next(at for at, one in enumerate(made) if self.exists(one))]
        self.make_dir(path)
        self.flush([*made, *(one.parent for one in made[-1:])])

    def make_dir(self, path: Path, *, exclusive: bool = False) -> None:
        """Make a directory and its parents; with `exclusive` it must not exist."""
        path.mkdir(parents=True, exist_ok=not exclusive)

    def remove_dir(self, path: Path) -> None:
        """Remove a directory and all it holds, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    # Flushing.

    def flush_descriptor(self, descriptor: int) -> None:
        """On return the file's bytes are on disk."""
        _to_disk(descriptor)

    def flush(self, paths: Iterable[Path]) -> None:
        """On return these files and directories are on disk."""
        for path in paths:
            with self.opened(path) as descriptor:
                self.flush_descriptor(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        """Atomically give `path` new content, on disk on return."""
        # Not a longer name: a topic's may already be as long as names can be.
        aside = path.with_suffix(".tmp")
        self.remove(aside)
        descriptor = self.create(aside)
        try:
            self.write_at(descriptor, 0, data)
            # The file system's own clock ticks so slowly that a file could look like the one before
            # the last, whose inode it may have: see `fingerprint`.
            now_ns = time.time_ns()
            self.set_descriptor_modified_ns(descriptor, now_ns)
            self.flush_descriptor(descriptor)
        finally:
            self.close(descriptor)
        self.rename(aside, path)
        self.flush([path.parent])

    # Locks.

    def place_of_lock(self, topic: str, partition: int) -> tuple[str, int]:
        """Where a partition's lock is: the name of a file, and a byte of it."""
        return self._lock_file.place(topic, partition)

    @overload
    def flock(self, path: Path) -> LockFile: ...
    @overload
    def flock(self, path: Path, *, wait: bool) -> LockFile | None: ...
    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        """Take the exclusive flock on `path`; None where another has it and `wait` is false.

        The lock counts only while its file is the one at its path: one that was replaced while we
        waited is taken again.
        """
        while True:
            file = WholeFile(path)
            try:
                if not file.take(wait=wait):
                    file.release()
                    return None
                counts = self.is_at(file)
            except BaseException:
                file.release()
                raise
            if counts:
                return file
            file.release()

    def open_for_locks(self, path: Path) -> LockFile:
        """For the next three, which another opening of the same file excludes, in any thread."""
        return self._lock_file(path)

    def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
        """Take the exclusive lock on one byte; False where another has it and `wait` is false."""
        return file.take(position, wait=wait)

    def share_lock(self, file: LockFile) -> bool:
        """Take the shared lock of a log dir's `.lock`; False where a broker holds it."""
        return file.take(shared=True, wait=False)

    def take_lock(self, file: LockFile) -> bool:
        """Take the exclusive lock of a log dir's `.lock`; False where anyone else has one."""
        return file.take(wait=False)

    def is_at(self, file: LockFile) -> bool:
        """Whether it is the file that is now at its path."""
        try:
            there = os.stat(str(file.path))  # noqa: PTH116  half the time of Path.stat, in every append
        except FileNotFoundError:
            return False
        here = os.fstat(file.descriptor)
        return here.st_ino == there.st_ino and here.st_dev == there.st_dev


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  of 10,000 files this takes a tenth of the time
    except FileNotFoundError:
        return -1
