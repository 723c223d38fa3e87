"""Who waits for whom. Order: commit, metadata, partitions by (topic, partition).

    commit       flock on locks/commit        one committer at a time; also the lock of
                                              __transaction_state
    metadata     flock on locks/metadata      cluster.json, topics/*.json
    partition    record lock on byte N of     a partition's log
                 locks/TOPIC.partitions

flock and record locks work between processes; a mutex beside each does the same between threads.
The commit and metadata locks open their file anew each time, so a forked child never shares them.

    log dir      shared record lock on        keeps a broker, which takes it exclusively, out of a
                 broker-N/.lock               log dir that this process writes into

Record locks belong to a process and are dropped when *any* of its descriptors of the file is
closed: so all `Locks` of one directory share one descriptor per file, which is closed only while no
lock on it is held. A forked child begins with none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from spark_kbatch.errors import LogDirLockedError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition


class _Shared:
    """What all `Locks` of one directory in one process have in common."""

    def __init__(self) -> None:
        self.commit = threading.Lock()  # before the file's lock; so are the next two
        self.metadata = threading.Lock()
        self.partitions: dict[TopicPartition, threading.Lock] = {}
        self.mutex = threading.Lock()  # guards partitions and descriptors; innermost
        self.descriptors: dict[Path, tuple[int, int]] = {}  # file -> descriptor, users


_shared: dict[tuple[int, Path], _Shared] = {}
_shared_mutex = threading.Lock()  # guards _shared


class Locks:
    """The locks of one cluster, for every thread of one process."""

    def __init__(self, files: Files, locks_dir: Path) -> None:
        self._files, self._dir = files, locks_dir

    @property
    def _state(self) -> _Shared:
        with _shared_mutex:
            return _shared.setdefault((os.getpid(), self._dir), _Shared())

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
    def _partition(self, topic_partition: TopicPartition) -> Iterator[None]:
        state = self._state
        with state.mutex:
            thread_lock = state.partitions.setdefault(topic_partition, threading.Lock())
        file = self._dir / f"{topic_partition.topic}.partitions"
        with thread_lock, self._descriptor(file) as descriptor:
            self._files.lock_byte(descriptor, topic_partition.partition)
            try:
                yield
            finally:
                self._files.unlock_byte(descriptor, topic_partition.partition)

    @contextlib.contextmanager
    def _descriptor(self, path: Path) -> Iterator[int]:
        """The one descriptor of a file in this process."""
        state = self._state
        with state.mutex:
            descriptor, users = state.descriptors.get(path, (-1, 0))
            if users == 0:
                descriptor = self._files.open_for_locks(path)
            state.descriptors[path] = (descriptor, users + 1)
        try:
            yield descriptor
        finally:
            with state.mutex:
                descriptor, users = state.descriptors.pop(path)
                if users > 1:
                    state.descriptors[path] = (descriptor, users - 1)
                else:
                    os.close(descriptor)
