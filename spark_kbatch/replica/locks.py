"""Who waits for whom. Order: commit, metadata, partitions by (topic, partition).

    commit       flock on locks/commit        one committer at a time; also the lock of
                                              __transaction_state
    metadata     flock on locks/metadata      cluster.json, topics/*.json
    partition    record lock on byte N of     a partition's log
                 locks/TOPIC.partitions

flock and record locks work between processes; a mutex beside each does the same between threads.
The commit and metadata locks open their file anew each time, so a forked child never shares them.

Record locks belong to a process and are dropped when *any* of its descriptors of the file is
closed: one descriptor per topic is opened once and closed only while no lock of that topic is held.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition


class Locks:
    """The locks of one cluster, for every thread of one process."""

    def __init__(self, files: Files, locks_dir: Path) -> None:
        self._files, self._dir = files, locks_dir
        self._commit = threading.Lock()  # before the file's lock; so is the next
        self._metadata = threading.Lock()
        self._mutex = threading.Lock()  # guards _partitions and _descriptors; innermost
        self._partitions: dict[TopicPartition, threading.Lock] = {}
        self._descriptors: dict[str, tuple[int, int]] = {}  # topic -> descriptor, locks held

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Of whoever publishes; held from placing to the last flip."""
        with self._commit, self._files.flock(self._dir / "commit"):
            yield

    @contextlib.contextmanager
    def metadata(self) -> Iterator[None]:
        """Of whoever changes cluster.json or a topic's file."""
        with self._metadata, self._files.flock(self._dir / "metadata"):
            yield

    @contextlib.contextmanager
    def partitions(self, topic_partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Of whoever writes to these logs; taken in the one order."""
        with contextlib.ExitStack() as held:
            for topic_partition in sorted(set(topic_partitions)):
                held.enter_context(self._partition(topic_partition))
            yield

    @contextlib.contextmanager
    def _partition(self, topic_partition: TopicPartition) -> Iterator[None]:
        with self._mutex:
            thread_lock = self._partitions.setdefault(topic_partition, threading.Lock())
        with thread_lock:
            descriptor = self._descriptor(topic_partition.topic)
            try:
                self._files.lock_byte(descriptor, topic_partition.partition)
                try:
                    yield
                finally:
                    self._files.unlock_byte(descriptor, topic_partition.partition)
            finally:
                self._leave(topic_partition.topic)

    def _descriptor(self, topic: str) -> int:
        with self._mutex:
            descriptor, users = self._descriptors.get(topic, (-1, 0))
            if users == 0:
                descriptor = self._files.open_for_locks(self._dir / f"{topic}.partitions")
            self._descriptors[topic] = (descriptor, users + 1)
            return descriptor

    def _leave(self, topic: str) -> None:
        with self._mutex:
            descriptor, users = self._descriptors.pop(topic)
            if users > 1:
                self._descriptors[topic] = (descriptor, users - 1)
            else:
                os.close(descriptor)
