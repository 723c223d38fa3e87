"""Who waits for whom. Order: commit, metadata, partitions by (topic, partition).

    commit       flock on locks/commit        one committer at a time; also the lock of
                                              __transaction_state
    metadata     flock on locks/metadata      cluster.json, topics/*.json
    partition    record lock on byte N of     a partition's log
                 locks/TOPIC.lock

flock and record locks work between processes; a mutex beside each does the same between threads.
The commit and metadata locks open their file anew each time, so a forked child never shares them.

    log dir      shared record lock on        keeps a broker, which takes it exclusively, out of a
                 broker-N/.lock               log dir that this process writes into
    broker's     exclusive record lock on     keeps a broker out of its own log dir while a topic is
    log dir      its .lock                    placed there; one at a time in a process

Record locks belong to a process and are dropped when *any* of its descriptors of the file is
closed: so all `Locks` of one directory share one descriptor per file, which is closed only while no
lock on it is held. A forked child begins with none. A lock counts only while its file is the one at
its path: one that was replaced is left to those who hold locks on it, and opened anew by all others.

The kernel looks for deadlocks between processes, not threads, and so sees some that are none:

    1. A's first thread holds a-0; B's first thread holds a-1 and waits for nothing.
    2. A's first thread waits for a-1: process A waits for process B.
    3. B's second thread wants a-0: B would wait for A, and gets EDEADLK.

Since every thread takes its locks in the one order, no deadlock is real: whoever gets EDEADLK tries
again, until the others have moved on.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from spark_kbatch.errors import LogDirLockedError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition

_DEADLOCK_PAUSE_S = 0.0005, 0.005  # at random, so that two do not step on each other for ever


class _OpenFile:
    """The one descriptor of a file, and how many use it."""

    __slots__ = ("descriptor", "path", "users")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor, self.users = path, descriptor, 0


class _Shared:
    """What all `Locks` of one directory in one process have in common."""

    def __init__(self) -> None:
        self.process = _process
        self.commit = threading.Lock()  # before the file's lock; so are the next two
        self.metadata = threading.Lock()
        self.partitions: dict[TopicPartition, threading.Lock] = {}
        self.mutex = threading.Lock()  # guards `files` and their users; innermost
        self.files: dict[Path, _OpenFile] = {}


_process = object()  # another one in each process
_shared: dict[Path, _Shared] = {}
_broker_log_dirs = threading.Lock()  # held with the lock of a broker's log dir; before it


def _forget() -> None:
    """In a forked child: it holds none of its parent's locks, and its threads are gone."""
    global _broker_log_dirs, _process
    _process = object()
    _shared.clear()
    _broker_log_dirs = threading.Lock()


os.register_at_fork(after_in_child=_forget)


class Locks:
    """The locks of one cluster, for every thread of one process."""

    def __init__(self, files: Files, locks_dir: Path) -> None:
        self._files, self._dir = files, locks_dir
        self._known = _shared.setdefault(locks_dir, _Shared())

    @property
    def _state(self) -> _Shared:
        if self._known.process is not _process:
            self._known = _shared.setdefault(self._dir, _Shared())
        return self._known

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Of whoever publishes; held from placing to the last flip."""
        with self._state.commit, self._files.flock(self._dir / "commit"):
            yield

    @contextlib.contextmanager
    def metadata(self) -> Iterator[None]:
        """Of whoever changes cluster.json or a topic's file."""
        with self._state.metadata, self._files.flock(self._dir / "metadata"):
            yield

    def partitions(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> AbstractContextManager[None]:
        """Of whoever writes to these logs; taken in the one order."""
        return _PartitionLocks(self._files, self._dir, self._state, sorted({*topic_partitions}))

    def log_dir(self, path: Path) -> AbstractContextManager[None]:
        """Of whoever writes into a log dir.

        Entering it raises:
            LogDirLockedError: a broker is in.
        """
        return _SharedLogDir(self._files, self._state, _in(path, ".lock"))

    @contextlib.contextmanager
    def exclusive_log_dir(self, path: Path) -> Iterator[None]:
        """Of whoever writes into a broker's log dir: the lock that the broker itself takes.

        Raises:
            LogDirLockedError: the broker is in, or another process that writes there.
        """
        with _broker_log_dirs:
            descriptor = self._files.open_for_locks(path / ".lock")
            try:
                if not self._files.take_lock(descriptor):
                    raise LogDirLockedError(
                        f"{path / '.lock'} is held by another program, a Kafka broker most likely: "
                        "stop it first"
                    )
                yield
            finally:
                self._files.close(descriptor)


class _RecordLocks:
    """Record locks, held while in the context. Every append takes some: so no generators."""

    __slots__ = ("_files", "_state")

    def __init__(self, files: Files, state: _Shared) -> None:
        self._files, self._state = files, state

    def _open(self, path: Path) -> _OpenFile:
        with self._state.mutex:
            file = self._state.files.get(path)
            # One that was replaced is left to those who hold locks on it.
            if file is None or not self._files.is_at(file.descriptor, path):
                file = _OpenFile(path, self._files.open_for_locks(path))
                self._state.files[path] = file
            file.users += 1
        return file

    def _close(self, file: _OpenFile, locked_byte: int | None = None) -> None:
        with self._state.mutex:
            file.users -= 1
            if file.users == 0:
                if self._state.files.get(file.path) is file:
                    del self._state.files[file.path]
                self._files.close(file.descriptor)  # which lets go of the lock, too
            elif locked_byte is not None:
                self._files.unlock_byte(file.descriptor, locked_byte)


class _SharedLogDir(_RecordLocks):
    """Shared with all that write into it, but a broker."""

    __slots__ = ("_file", "_path")

    def __init__(self, files: Files, state: _Shared, path: Path) -> None:
        super().__init__(files, state)
        self._path = path

    def __enter__(self) -> None:
        self._file = self._open(self._path)
        try:
            if not self._files.share_lock(self._file.descriptor):
                raise LogDirLockedError(
                    f"{self._path} is held by another program, a Kafka broker most likely: stop it, "
                    "or write elsewhere"
                )
        except BaseException:
            self._close(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        self._close(self._file)


class _PartitionLocks(_RecordLocks):
    """Of some partitions, in order."""

    __slots__ = ("_dir", "_held", "_topic_partitions")

    def __init__(
        self, files: Files, directory: Path, state: _Shared, topic_partitions: list[TopicPartition]
    ) -> None:
        super().__init__(files, state)
        self._dir, self._topic_partitions = directory, topic_partitions
        self._held: list[tuple[threading.Lock, _OpenFile, int]] = []

    def __enter__(self) -> None:
        try:
            for topic_partition in self._topic_partitions:
                self._take(topic_partition)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            while self._held:
                thread_lock, file, byte = self._held.pop()
                try:
                    self._close(file, byte)
                finally:
                    thread_lock.release()
        finally:
            if self._held:  # The others, too, where one could not be let go.
                self.__exit__()

    def _take(self, topic_partition: TopicPartition) -> None:
        topic, byte = topic_partition
        known = self._state.partitions
        thread_lock = known.get(topic_partition) or known.setdefault(
            topic_partition, threading.Lock()
        )
        path = _in(self._dir, f"{topic}.lock")
        thread_lock.acquire()
        try:
            while True:
                file = self._open(path)
                try:
                    self._wait_for_byte(file.descriptor, byte)
                    if self._files.is_at(file.descriptor, path):
                        break
                except BaseException:
                    self._close(file, byte)
                    raise
                self._close(file, byte)
        except BaseException:
            thread_lock.release()
            raise
        self._held.append((thread_lock, file, byte))

    def _wait_for_byte(self, descriptor: int, position: int) -> None:
        while True:
            try:
                return self._files.lock_byte(descriptor, position)
            except OSError as error:
                if error.errno != errno.EDEADLK:
                    raise
            time.sleep(random.uniform(*_DEADLOCK_PAUSE_S))


@functools.lru_cache(maxsize=4096)
def _in(directory: Path, name: str) -> Path:
    return directory / name
