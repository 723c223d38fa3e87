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
import os
import random
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from spark_kbatch.errors import LogDirLockedError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition

_DEADLOCK_PAUSE_S = 0.0005, 0.005  # at random, so that two do not step on each other for ever


class _LockFile:
    """A file to lock bytes of, and the one descriptor of it, while some thread uses it.

    Where another file is at its path by now, this one is left to those who hold locks on it.
    """

    __slots__ = ("_mutex", "_users", "descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._users, self.descriptor = 0, -1

    def open(self, files: Files) -> bool:
        """Use it, until `close`; whether nobody else does."""
        with self._mutex:
            is_first = self._users == 0
            if is_first:
                self.descriptor = files.open_for_locks(self.path)
            self._users += 1
        return is_first

    def close(self, files: Files, locked_byte: int | None = None) -> None:
        """Let go of it, and of the lock on a byte of it."""
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                files.close(self.descriptor)  # which lets go of the lock, too
            elif locked_byte is not None:
                files.unlock_byte(self.descriptor, locked_byte)

    def replace_in(self, known: dict[str, _LockFile], name: str) -> None:
        """Have others use the file that is at the path now."""
        with self._mutex:  # all who find it replaced hold this one, so that one new file is made
            if known.get(name) is self:
                known[name] = _LockFile(self.path)


class _Shared:
    """What all `Locks` of one directory in one process have in common."""

    def __init__(self) -> None:
        self.process = _process
        self.commit = threading.Lock()  # before the file's lock; so are the next two
        self.metadata = threading.Lock()
        self.partitions: dict[TopicPartition, threading.Lock] = {}
        self.topics: dict[str, _LockFile] = {}
        self.log_dirs: dict[str, _LockFile] = {}  # by path


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


class Commits(Protocol):
    """What a writer has to know of commits."""

    def is_pending(self, topic_partitions: Collection[TopicPartition], /) -> bool:
        """Whether a commit that is not complete has written to one of these, or may have."""

    def roll_forward(self) -> None:
        """Finish it. Takes the commit lock, then partition locks."""


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
        self, topic_partitions: Iterable[TopicPartition], commits: Commits | None = None
    ) -> AbstractContextManager[None]:
        """Of whoever writes to these logs; taken in the one order.

        Args:
            commits: with these, a commit that was decided and not flipped in one of the partitions
                is finished before. All writers but committers have to.
        """
        return _PartitionLocks(
            self._files, self._dir, self._state, sorted({*topic_partitions}), commits
        )

    def log_dir(self, path: Path) -> AbstractContextManager[None]:
        """Of whoever writes into a log dir.

        Entering it raises:
            LogDirLockedError: a broker is in.
        """
        return _SharedLogDir(self._files, self._state, path)

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


# Every append takes some of the next two: so they are no generators.


class _SharedLogDir:
    """A log dir's lock, shared with all that write into it, but a broker."""

    __slots__ = ("_at", "_files", "_known", "_log_dir")

    def __init__(self, files: Files, state: _Shared, log_dir: Path) -> None:
        self._files, self._known, self._log_dir = files, state.log_dirs, log_dir

    def __enter__(self) -> None:
        name = str(self._log_dir)
        self._at = _locked(self._files, self._known, name, self._log_dir, ".lock", None)

    def __exit__(self, *_: object) -> None:
        self._at.close(self._files)


class _PartitionLocks:
    """The locks of some partitions, taken in order."""

    __slots__ = ("_commits", "_dir", "_files", "_held", "_state", "_topic_partitions")

    def __init__(
        self,
        files: Files,
        directory: Path,
        state: _Shared,
        topic_partitions: list[TopicPartition],
        commits: Commits | None,
    ) -> None:
        self._files, self._dir, self._state = files, directory, state
        self._topic_partitions, self._commits = topic_partitions, commits
        self._held: list[tuple[threading.Lock, _LockFile, int]] = []

    def __enter__(self) -> None:
        commits = self._commits
        while True:
            try:
                for topic_partition in self._topic_partitions:
                    self._take(topic_partition)
                if commits is None or not commits.is_pending(self._topic_partitions):
                    return
            except BaseException:
                self.__exit__()
                raise
            self.__exit__()
            commits.roll_forward()

    def __exit__(self, *_: object) -> None:
        try:
            while self._held:
                thread_lock, at, byte = self._held.pop()
                try:
                    at.close(self._files, byte)
                finally:
                    thread_lock.release()
        finally:
            if self._held:  # The others, too, where one could not be let go.
                self.__exit__()

    def _take(self, topic_partition: TopicPartition) -> None:
        (topic, byte), known = topic_partition, self._state.partitions
        thread_lock = known.get(topic_partition) or known.setdefault(
            topic_partition, threading.Lock()
        )
        thread_lock.acquire()
        try:
            at = _locked(self._files, self._state.topics, topic, self._dir, f"{topic}.lock", byte)
        except BaseException:
            thread_lock.release()
            raise
        self._held.append((thread_lock, at, byte))


def _locked(
    files: Files,
    known: dict[str, _LockFile],
    name: str,
    directory: Path,
    file_name: str,
    byte: int | None,
) -> _LockFile:
    """The file that is at its path, with a byte of it locked, or shared with others where that is None.

    Raises:
        LogDirLockedError: it cannot be shared.
    """
    while True:
        at = known.get(name) or known.setdefault(name, _LockFile(directory / file_name))
        is_first = at.open(files)
        try:
            if byte is not None:
                _wait_for_byte(files, at.descriptor, byte)
            elif not files.share_lock(at.descriptor):
                raise LogDirLockedError(
                    f"{at.path} is held by another program, a Kafka broker most likely: stop it, or "
                    "write elsewhere"
                )
            # Sharing waits for nobody, so what was opened just now is the one at its path.
            if (is_first and byte is None) or files.is_at(at.descriptor, at.path):
                return at
            at.replace_in(known, name)
        except BaseException:
            at.close(files, byte)
            raise
        at.close(files, byte)


def _wait_for_byte(files: Files, descriptor: int, position: int) -> None:
    while True:
        try:
            return files.lock_byte(descriptor, position)
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
        time.sleep(random.uniform(*_DEADLOCK_PAUSE_S))
