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
from collections.abc import Iterable, Iterator
from pathlib import Path

from spark_kbatch.errors import LogDirLockedError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition

_DEADLOCK_PAUSE_S = 0.0005, 0.005  # at random, so that two do not step on each other for ever


class _OpenFile:
    """A descriptor, and how many use it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.users = descriptor, 0


class _Shared:
    """What all `Locks` of one directory in one process have in common."""

    def __init__(self) -> None:
        self.commit = threading.Lock()  # before the file's lock; so are the next two
        self.metadata = threading.Lock()
        self.partitions: dict[TopicPartition, threading.Lock] = {}
        self.mutex = threading.Lock()  # guards partitions and files; innermost
        self.files: dict[Path, _OpenFile] = {}


_shared: dict[Path, _Shared] = {}
_shared_mutex = threading.Lock()  # guards _shared
_broker_log_dirs = threading.Lock()  # held with the lock of a broker's log dir; before it


def _forget() -> None:
    """In a forked child: it holds none of its parent's locks, and its threads are gone."""
    global _shared_mutex, _broker_log_dirs
    _shared.clear()
    _shared_mutex, _broker_log_dirs = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_forget)


class Locks:
    """The locks of one cluster, for every thread of one process."""

    def __init__(self, files: Files, locks_dir: Path) -> None:
        self._files, self._dir = files, locks_dir

    @property
    def _state(self) -> _Shared:
        with _shared_mutex:
            return _shared.setdefault(self._dir, _Shared())

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

    @contextlib.contextmanager
    def partitions(self, topic_partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Of whoever writes to these logs; taken in the one order."""
        with contextlib.ExitStack() as held:
            for topic_partition in sorted(set(topic_partitions)):
                held.enter_context(self._partition(topic_partition))
            yield

    @contextlib.contextmanager
    def log_dir(self, path: Path) -> Iterator[None]:
        """Of whoever writes into a log dir.

        Raises:
            LogDirLockedError: a broker is in.
        """
        with self._descriptor(path / ".lock") as descriptor:
            if not self._files.share_lock(descriptor):
                raise LogDirLockedError(
                    f"{path / '.lock'} is held by another program, a Kafka broker most likely: stop "
                    "it, or write elsewhere"
                )
            yield

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

    @contextlib.contextmanager
    def _partition(self, topic_partition: TopicPartition) -> Iterator[None]:
        state = self._state
        with state.mutex:
            thread_lock = state.partitions.setdefault(topic_partition, threading.Lock())
        path = self._dir / f"{topic_partition.topic}.lock"
        with thread_lock:
            held = False
            while not held:
                with self._descriptor(path) as descriptor:
                    self._wait_for_byte(descriptor, topic_partition.partition)
                    try:
                        held = self._files.is_at(descriptor, path)
                        if held:
                            yield
                    finally:
                        self._files.unlock_byte(descriptor, topic_partition.partition)

    def _wait_for_byte(self, descriptor: int, position: int) -> None:
        while True:
            try:
                return self._files.lock_byte(descriptor, position)
            except OSError as error:
                if error.errno != errno.EDEADLK:
                    raise
            time.sleep(random.uniform(*_DEADLOCK_PAUSE_S))

    @contextlib.contextmanager
    def _descriptor(self, path: Path) -> Iterator[int]:
        """The one descriptor in this process of the file at `path`."""
        state = self._state
        with state.mutex:
            file = state.files.get(path)
            if file is None or not self._files.is_at(file.descriptor, path):
                file = state.files[path] = _OpenFile(self._files.open_for_locks(path))
            file.users += 1
        try:
            yield file.descriptor
        finally:
            with state.mutex:
                file.users -= 1
                if file.users == 0:
                    self._files.close(file.descriptor)
                    if state.files.get(path) is file:
                        del state.files[path]
