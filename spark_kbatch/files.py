"""All file I/O of logs, metadata and staging, and all file locks.

A `Files` object, given at construction, is the only way to the disk: tests pass one that fails, tears
writes or kills the process at the n-th call. It takes paths and keeps nothing open between calls, except
in an `AppendFile` or a `LockFile`: so a file that was renamed or replaced is noticed at once.

Reads and writes loop until every byte is transferred. No method retries. OSError is passed on with the
file's name: the caller knows what a failure means. Anything but a regular file, above all a FIFO, is
refused and never waited for. So is a symbolic link in place of a file: whoever may write to a
shared folder could lead others by it to files of theirs, to change these or to show them.
`LinkedFiles` alone reads through links.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, overload

try:
    import fcntl
    import resource
except ImportError as error:
    raise ImportError(
        "spark_kbatch runs on Linux and macOS: this Python has no module 'fcntl', which locks files "
        "there. On Windows run Python and Spark in WSL (the Windows Subsystem for Linux)"
    ) from error

Buffer: TypeAlias = bytes | bytearray | memoryview

# Linux transfers at most 4 KiB less than this in one call; macOS refuses more.
_CALL_BYTES_MAX = 2**31 - 1
# The largest file that is read as a whole. None of ours or of a broker's comes near it, and a sparse
# file must not exhaust the memory.
_WHOLE_BYTES_MAX = 2**30


_MODE = 0o666  # the umask decides, as for any file
_LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

NO_ROOM = frozenset(
    {errno.ENOSPC, errno.EDQUOT}
)  # of an OSError: the disk, or the user's share of it, is full
_LITTLE_ROOM_BYTES = 2**24  # a disk that has less left counts as full


def _of_link(error: OSError, path: Path | str) -> OSError:
    """Return the error for a path that is a link and may be none; any other error as it is."""
    if error.errno == errno.ELOOP and os.path.islink(path):  # noqa: PTH114  a str on hot paths
        return OSError(errno.ELOOP, "a symbolic link, which is not followed here", str(path))
    return error


def raise_descriptors_limit(needed: int) -> int:
    """Raise this process's limit of open files to `needed`, or as far as it may; return the limit then."""
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    if limit < needed:
        raised = needed if highest == resource.RLIM_INFINITY else min(needed, highest)
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, highest))
            return raised
    return limit


def address_space_mib() -> int | None:
    """Return this process's limit of address space in MiB; None if it has none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit >> 20


def open_descriptors() -> int:
    """Return how many descriptors this process has open; 0 where the system does not list them."""
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208  as in `list`
    except OSError:
        return 0


def flushing(platform: str) -> Callable[[int], object]:
    """Return the function that forces an open file's bytes to disk on a platform (a `sys.platform`)."""
    if platform != "darwin":
        return os.fsync
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        return os.fsync

    def flush(descriptor: int) -> None:
        # On macOS fsync leaves the bytes in the disk's own cache.
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(descriptor)  # a network file system may know no other way

    return flush


_to_disk = flushing(sys.platform)


# Locks.

_RECORD = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, process id
_WHOLE_FILE_LOCKS_PER_TOPIC = 16  # each takes a descriptor while it is held

_HELD_BY_ANOTHER = {errno.EACCES, errno.EAGAIN}

_open_lock_files: set[LockFile] = set()
_opening = threading.RLock()  # guards _open_lock_files; also held while a child is forked


class LockFile:
    """An open lock file and the locks on it, until `release` or the end of the process.

        RecordLocks   on Linux: record locks of the open file description (F_OFD_SETLK)
        WholeFile     elsewhere, such as macOS, whose Python has no such locks: flock

    Either lock belongs to the open file that `open` returned. So two threads that each open the file
    exclude each other, by whatever names they reached it, and nothing else in the process can drop a
    lock. POSIX record locks belong to the process, which loses them as soon as it closes any descriptor
    of the file, as a backup that reads it does.

    A broker takes a POSIX lock. Record locks of either kind conflict with it; flock does on macOS, by
    its kernel's source, and not on Linux.

    A forked child inherits the open file, and a lock is held until all copies are closed. So a child
    closes its copies at once, and a parent unlocks before it closes. A child that was forked inside a
    `with` has nothing left to release at the end of it.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, before_made: Callable[[], object] = bool) -> None:
        """Open the file; create one that does not exist, after `before_made`, which may raise."""
        self.path = path
        with _opening:
            try:
                self.descriptor = os.open(str(path), _LOCK_FLAGS)
            except FileNotFoundError:
                before_made()
                self.descriptor = os.open(str(path), _LOCK_FLAGS | os.O_CREAT, _MODE)
            except OSError as error:
                raise _of_link(error, path) from None
            _open_lock_files.add(self)

    @staticmethod
    def location(topic: str, partition: int) -> tuple[str, int]:
        """Return the name of the file that holds a partition's lock, and the byte of it to lock."""
        raise NotImplementedError

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock a byte, or the whole file; return False if it is held elsewhere and `wait` is false."""
        raise NotImplementedError

    def release(self) -> None:
        """Release all locks; releasing again does nothing."""
        with _opening:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                _open_lock_files.discard(self)
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
    """Lock file with a lock for each partition on a byte of its own: byte P of TOPIC.lock."""

    __slots__ = ()

    @staticmethod
    def location(topic: str, partition: int) -> tuple[str, int]:
        """Return the name of a partition's lock file, and the partition's byte in it."""
        return f"{topic}.lock", partition

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock a byte, or the whole file; see `LockFile.take`."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        record = _whole_file(kind) if byte is None else _RECORD.pack(kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.descriptor, command, record)
        except OSError as error:
            if wait or error.errno not in _HELD_BY_ANOTHER:
                raise
            return False
        return True

    def _unlock(self, descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def _whole_file(kind: int) -> bytes:
    return _RECORD.pack(kind, os.SEEK_SET, 0, 0, 0)


class WholeFile(LockFile):
    """Lock file that is locked as a whole; a topic has 16, each for a sixteenth of its partitions.

    Their names are TOPIC.lock0 to TOPIC.lockf.

    A file for each partition would take as many descriptors, of which macOS gives a process 256.
    """

    __slots__ = ()

    @staticmethod
    def location(topic: str, partition: int) -> tuple[str, int]:
        """Return the name of a partition's lock file, and a byte that has no meaning here."""
        # Not a longer name: a topic's may already be as long as names can be.
        return f"{topic}.lock{partition % _WHOLE_FILE_LOCKS_PER_TOPIC:x}", 0

    def take(self, byte: int | None = None, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock the whole file, whatever `byte` is; see `LockFile.take`."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if wait or error.errno not in _HELD_BY_ANOTHER:
                raise
            return False
        return True

    def _unlock(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _drop_parents_locks() -> None:
    """Close the lock files that a forked child inherited: it holds none of its parent's locks."""
    global _opening
    for file in _open_lock_files:
        os.close(file.descriptor)
        file.descriptor = -1
    _open_lock_files.clear()
    _opening = threading.RLock()


def _before_fork() -> None:
    _opening.acquire()


def _after_fork() -> None:
    _opening.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_drop_parents_locks
)


# Files.


class AppendFile:
    """A new file that is written sequentially. Not thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self.size_in_bytes = 0
        self._files = files
        self._descriptor = files.create(path)
        self._is_closed = False

    def append(self, data: Buffer) -> int:
        """Write `data` at the end; return the position where it starts."""
        if self._descriptor < 0:
            self._descriptor = self._files.opened(self.path, write=True).__enter__()
        position = self.size_in_bytes
        self._files.write_at(self._descriptor, position, data)
        self.size_in_bytes += len(data)
        return position

    def release_descriptor(self) -> None:
        """Close the descriptor; the next append opens the file again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    def close(self, *, flush: bool) -> None:
        """Close the file for good; closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if flush and self._descriptor < 0:
                self._files.flush([self.path])  # covers writes through any descriptor
            elif flush:
                self._files.flush_descriptor(self._descriptor)
        finally:
            self.release_descriptor()


class _Opened:
    """Context manager that opens a file, and yields its descriptor.

    An append opens ten, so this is no generator.
    """

    __slots__ = ("_descriptor", "_files", "_flags", "_path")

    def __init__(self, files: Files, path: Path, flags: int) -> None:
        self._files, self._path, self._flags = files, path, flags

    def __enter__(self) -> int:
        # As str: os.open converts a Path more slowly. Without O_NONBLOCK, opening a FIFO waits for its
        # other end.
        path = str(self._path)
        try:
            self._descriptor = os.open(path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
        except OSError as error:
            if self._flags & os.O_RDWR or not os.path.isdir(path):  # noqa: PTH112  a str, as above
                raise _of_link(error, path) from None
            # The folder of a cluster, or a log dir, may be a link, and is flushed.
            self._descriptor = os.open(path, os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A quarter of the cost of fstat, and fails exactly where reads by position would.
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
    """The file system: all operations on files and directories that the package uses.

    A crash may come between any two of its changes, or within one.
    """

    # The kind of partition locks.
    _lock_file: type[LockFile] = RecordLocks if sys.platform == "linux" else WholeFile
    _links = os.O_NOFOLLOW  # what is done about a link in place of a file that is read

    # Reading.

    def exists(self, path: Path) -> bool:
        """Return True if something is at `path`."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Return True if a directory is at `path`."""
        return path.is_dir()

    def is_link(self, path: Path | str) -> bool:
        """Return True if a symbolic link is at `path`."""
        return os.path.islink(path)  # noqa: PTH114  in every append, and faster than Path's

    def ensure_no_link(self, folder: Path, root: Path) -> None:
        """Check that no folder from below `root`, which may be a link, down to `folder` is one.

        This is a look: a folder that is swapped for a link right after it is not noticed.

        Raises:
            OSError: one is a link.
            ValueError: `folder` is not below `root`.
        """
        one, top = os.fspath(folder), os.fspath(root)  # text, as each append looks
        while len(one) > len(top):
            if self.is_link(one):
                raise _of_link(OSError(errno.ELOOP, ""), one)
            one = os.path.dirname(one)  # noqa: PTH120  a fifth of a path's time
        if one != top:
            raise ValueError(f"{folder} is not below {root}")

    def list(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""
        return sorted(os.listdir(directory))  # noqa: PTH208  faster for 30,000 names

    def first_names(self, directory: Path, count: int) -> Sequence[str]:
        """Return up to `count` names in `directory`, any of them; none where it does not exist."""
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in itertools.islice(entries, count)]
        except FileNotFoundError:
            return []

    def version(self, directory: Path) -> tuple[int, int]:
        """Return a value that changes when an entry is added to `directory` or removed.

        It is as precise as the file system's clock.

        Raises:
            OSError: the directory is gone, or a link is in its place.
        """
        found = directory.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise _of_link(OSError(errno.ELOOP, ""), directory)
        return found.st_ino, found.st_mtime_ns

    def size(self, path: Path) -> int:
        """Return the file's size in bytes."""
        return path.stat().st_size

    def opened_size(self, path: Path) -> int:
        """Return the file's size in bytes, for decisions about loss.

        On a network file system `size` may be some seconds old, but opening a file asks the server.
        """
        with self.opened(path) as descriptor:
            return self.descriptor_size(descriptor)

    def sizes(self, directory: Path, names: Iterable[str]) -> Sequence[int]:
        """Return the sizes in bytes of files in `directory`; -1 for one that does not exist."""
        return [_size(f"{directory}/{name}") for name in names]

    def holds(self, directory: Path, name: str) -> bool:
        """Return True if `directory` has an entry of that name, in half the time of `exists`."""
        return os.path.exists(f"{directory}/{name}")  # noqa: PTH110  called in every append

    def descriptor_size(self, descriptor: int) -> int:
        """Return an open file's size in bytes."""
        return os.fstat(descriptor).st_size

    def links(self, descriptor: int) -> int:
        """Return how many names an open file has."""
        return os.fstat(descriptor).st_nlink

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return what identifies an open file: another file under the same name has another identity."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def identity_at(self, path: Path) -> tuple[int, int]:
        """Return the `identity` of the file that is at `path` now."""
        status = path.stat()
        return status.st_dev, status.st_ino

    def fingerprint(self, path: Path) -> tuple[int, ...] | None:
        """Return a value that changes with each `replace` of the file; None if it does not exist."""
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

    def is_full(self, path: Path) -> bool:
        """Return True if the disk of `path` has less than 16 MiB of room left, so what is deleted goes at once.

        A quota of one user does not show here.
        """
        total, usable = self.disk_space(path)
        return total > 0 and usable < _LITTLE_ROOM_BYTES

    def disk_space(self, path: Path) -> tuple[int, int]:
        """Return the size of the disk of `path`, and how much of it this user can still fill, in bytes.

        Some network file systems tell no sizes: both are 0 then.
        """
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def may_write(self, path: Path) -> bool:
        """Return True if this process may write to a file or directory, by permissions and how its disk is mounted."""
        return os.access(path, os.W_OK)

    def modified_ms(self, path: Path) -> int:
        """Return when the file was last written."""
        return path.stat().st_mtime_ns // 1_000_000

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        """Return up to `size` bytes from `position`; fewer at the end of the file.

        Without `size` return all bytes from there on, but refuse to read more than 1 GiB.
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
        """Yield the first `size` bytes of each of many small files; b"" for one that cannot be read.

        Paths are str and there are as few calls as possible, because thousands of these reads happen
        under the commit lock. Use `read` to find out what is wrong with a file.
        """
        for path in paths:
            try:
                # O_NONBLOCK as in `opened`, so that a FIFO is not waited for.
                descriptor = os.open(path, self._links | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
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
        """Fill `buffer` with the bytes from `position` on; return how many there were."""
        with self.opened(path) as descriptor:
            return self.pread_into(descriptor, position, buffer)

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        """Fill `buffer` with bytes of an open file from a position on; return how many there were."""
        filled = 0
        while filled < len(buffer):
            rest = buffer[filled : filled + _CALL_BYTES_MAX]
            count = os.preadv(descriptor, [rest], position + filled)
            if count == 0:
                break
            filled += count
        return filled

    def opened(self, path: Path, *, write: bool = False) -> AbstractContextManager[int]:
        """Open a file for several reads and writes, in a `with` statement that yields its descriptor."""
        return _Opened(self, path, os.O_RDWR | os.O_NOFOLLOW if write else self._links)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    # Writing.

    def create(self, path: Path) -> int:
        """Create a file, which must not exist; return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`."""
        view = memoryview(data)
        while len(view):
            count = os.pwrite(descriptor, view[:_CALL_BYTES_MAX], position)
            view, position = view[count:], position + count

    def write(self, path: Path, position: int, data: Buffer) -> None:
        """Write all of `data` at `position` of a file; create the file if it does not exist."""
        with self.made(path) as descriptor:
            self.write_at(descriptor, position, data)

    def made(self, path: Path) -> AbstractContextManager[int]:
        """Open a file for writing as `opened` does; create it if it does not exist."""
        return _Opened(self, path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def truncate(self, path: Path, size: int) -> None:
        """Truncate the file to `size` bytes."""
        with self.opened(path, write=True) as descriptor:
            os.ftruncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically; it replaces `target`."""
        source.replace(target)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Set a file's time of last modification; to now if it belongs to another user."""
        try:
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000), follow_symlinks=False)
        except PermissionError:
            # Only the owner may choose the time; a user that may write may set it to now.
            os.utime(path, follow_symlinks=False)

    def set_descriptor_modified_ns(self, descriptor: int, time_ns: int) -> None:
        """Set the time of an open file's last write."""
        os.utime(descriptor, ns=(time_ns, time_ns))

    def link(self, source: Path, target: Path) -> bool:
        """Create a hard link to a file; return False if `target` exists."""
        try:
            target.hardlink_to(source)
        except FileExistsError:
            return False
        return True

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def make_dir_on_disk(self, path: Path) -> None:
        """Create a directory and its parents and flush those that were created."""
        made = [path, *path.parents]
        made = made[: next(at for at, one in enumerate(made) if self.exists(one))]
        self.make_dir(path)
        self.flush([*made, *(one.parent for one in made[-1:])])

    def make_dir(self, path: Path, *, exclusive: bool = False) -> None:
        """Create a directory and its parents; with `exclusive` it must not exist."""
        path.mkdir(parents=True, exist_ok=not exclusive)

    def remove_dir(self, path: Path) -> None:
        """Remove a directory and all it holds, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    # Flushing.

    def flush_descriptor(self, descriptor: int) -> None:
        """Flush an open file: on return its bytes are on disk."""
        _to_disk(descriptor)

    def flush(self, paths: Iterable[Path]) -> None:
        """Flush files and directories: on return they are on disk."""
        for path in paths:
            with self.opened(path) as descriptor:
                self.flush_descriptor(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the content of `path` atomically; on return it is on disk."""
        aside = _aside_of(path)
        self.remove(aside)
        descriptor = self.create(aside)
        try:
            self._write_whole(descriptor, data)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        finally:
            self.close(descriptor)
        self.rename(aside, path)
        self.flush([path.parent])

    def replace_with(self, spare: Path, path: Path, data: bytes) -> bool:
        """Replace the content of `path` as `replace` does, in the blocks of a spare file.

        So it takes no room on the disk if `data` fits. The file that `path` was is the next spare.

        Returns:
            False if there is no spare, or it is a link or too small; nothing has changed then.
        """
        aside = _aside_of(path)
        try:
            self.rename(spare, aside)  # One of several processes gets it.
        except FileNotFoundError:
            return False
        try:
            with self.opened(aside, write=True) as descriptor:
                # 1. The old file is linked as the spare. 2. A crash: it has not been replaced, and
                # is both. So a spare with two names is still in use; it may also be planted, and be
                # a file elsewhere.
                is_spare = self.links(descriptor) == 1
                if is_spare:
                    self._write_whole(descriptor, data)
            if is_spare:
                self.truncate(aside, len(data))
                self.flush([aside])
        except OSError as error:
            self.rename(aside, spare)
            if error.errno in NO_ROOM or self.is_link(spare):
                return False
            raise
        if not is_spare:
            self.remove(aside)
            return False
        with contextlib.suppress(OSError):  # a new file, or a file system without hard links
            self.link(path, spare)
        self.rename(aside, path)
        self.flush({path.parent, spare.parent})
        return True

    def _write_whole(self, descriptor: int, data: bytes) -> None:
        self.write_at(descriptor, 0, data)
        # The file system's own clock ticks so slowly that the new file could look like the one
        # before the last, whose inode it may have: see `fingerprint`.
        now_ns = time.time_ns()
        self.set_descriptor_modified_ns(descriptor, now_ns)
        self.flush_descriptor(descriptor)

    # Locks.

    def lock_location(self, topic: str, partition: int) -> tuple[str, int]:
        """Return the name of the file that holds a partition's lock, and the byte of it to lock."""
        return self._lock_file.location(topic, partition)

    @overload
    def flock(self, path: Path) -> LockFile: ...
    @overload
    def flock(self, path: Path, *, wait: bool) -> LockFile | None: ...
    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        """Take the exclusive flock on `path`; return None if it is held and `wait` is false.

        The lock counts only while its file is the one at its path: if the file was replaced while we
        waited, the lock is taken again on the new one.
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

    def open_for_locks(self, path: Path, before_made: Callable[[], object] = bool) -> LockFile:
        """Open a lock file, as `LockFile` does, for `lock_byte`, `share_lock` or `take_lock`.

        Two openings exclude each other in any threads.
        """
        return self._lock_file(path, before_made)

    def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
        """Lock one byte of a lock file; return False if it is held elsewhere and `wait` is false."""
        return file.take(position, wait=wait)

    def share_lock(self, file: LockFile) -> bool:
        """Take a shared lock on a log dir's `.lock`; return False if a broker holds it."""
        return file.take(shared=True, wait=False)

    def take_lock(self, file: LockFile) -> bool:
        """Take the exclusive lock on a log dir's `.lock`; return False if anyone else holds one."""
        return file.take(wait=False)

    def is_at(self, file: LockFile) -> bool:
        """Return True if the open lock file is still the one at its path."""
        try:
            there = os.stat(str(file.path))  # noqa: PTH116  in every append: half the time of Path.stat
        except FileNotFoundError:
            return False
        here = os.fstat(file.descriptor)
        return here.st_ino == there.st_ino and here.st_dev == there.st_dev


class LinkedFiles(Files):
    """Files that are read through links too: whoever asks for them has chosen them one by one."""

    _links = 0


def _aside_of(path: Path) -> Path:
    """Return where the new content of a file is written before it takes the file's place."""
    # Not a longer name: a topic's may already be as long as names can be.
    return path.with_suffix(".tmp")


def private_temporary_dir(name: str) -> Path | None:
    """Return a directory for temporary files that all of this user's processes share, and no one else can use.

    Returns:
        `name`, a hyphen and the user's number, in the system's directory for such files; None if it cannot be
        made, or if what is there belongs to another user or lets others in.
    """
    shared = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with contextlib.suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        # A folder whose files belong to its group, as a volume's in a container, hands that bit on.
        mode = stat.S_IMODE(found.st_mode) & ~stat.S_ISGID
        is_private = found.st_uid == os.getuid() and mode == 0o700
        if stat.S_ISDIR(found.st_mode) and is_private:
            return shared
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  a tenth of the time, for 10,000 files
    except FileNotFoundError:
        return -1
