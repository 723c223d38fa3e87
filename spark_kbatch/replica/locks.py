"""The file locks of a cluster, taken in this order: commit, metadata, partitions by (topic, partition).

    commit       flock on locks/commit        one committer at a time; also the lock of
                                              __transaction_state
    metadata     flock on locks/metadata      cluster.json, topics/*.json
    partition    byte N of locks/TOPIC.lock   a partition's log; `files.LockFile` says what macOS does

    log dir      shared lock on               keeps a broker, which takes it exclusively, out of a
                 broker-N/.lock               log dir that this process writes into
    broker's     exclusive lock on its        keeps a broker out of its own log dir while a topic is
    log dir      .lock                        exported to it; one at a time in a process

Each taker of a lock opens its file for that. So threads exclude each other as processes do, whatever
path to the cluster they use, and nothing is shared in a process. A lock counts only while its file is
the one at its path: a file that was replaced is left to those that hold locks on it, and all others open
the new one.

Deadlocks are not detected; since everyone takes locks in the same order, there are none. A taker without
a deadline waits in the kernel, whose queue is first come, first served, and logs that after a while:
any user that may read the folder can hold a lock. A taker with a deadline polls.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import LockTimeoutError, LogDirLockedError
from spark_kbatch.files import Files, LockFile, open_descriptors, raise_descriptors_limit
from spark_kbatch.model import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_S = 0.0001, 0.005  # between polls: the first, and the longest
_OTHERS_PATIENCE_S = 10.0
_LOGGED_AFTER_S, _LOGGED_AGAIN_AFTER_S = 5.0, 300.0
_FEW_FILES = 32  # for which there is room as a rule
_DESCRIPTORS_BESIDE = 128  # for what is done while the locks are held

_broker_log_dirs = threading.Lock()  # held with the lock of a broker's log dir; before it


def _forget() -> None:
    """Replace this module's mutex in a forked child, where the parent's threads are gone."""
    global _broker_log_dirs
    _broker_log_dirs = threading.Lock()


os.register_at_fork(after_in_child=_forget)


class Commits(Protocol):
    """The interface to a cluster's unfinished commits, for other writers."""

    def is_pending(self, topic_partitions: Collection[TopicPartition], /) -> bool:
        """Return True if an incomplete commit has written, or may have, to one of these partitions."""

    def roll_forward(self, *, deadline: float | None = None) -> None:
        """Finish the pending commit of a dead committer.

        Takes the commit lock, by the deadline, then partition locks.
        """

    def settled(self, *, deadline: float | None = None) -> AbstractContextManager[None]:
        """Hold the commit lock, with no unfinished commit left.

        Brokers are kept out, and the lock is taken by the deadline.
        """


class Locks:
    """The file locks of one cluster: commit, metadata, partitions and log dirs.

    A deadline is a time of `clock.monotonic_s`. It limits the wait for others; a free lock is taken even
    after it has passed.
    """

    def __init__(self, files: Files, locks_dir: Path) -> None:
        self._files, self._dir = files, locks_dir

    def commit(self, *, deadline: float | None = None) -> AbstractContextManager[object]:
        """Hold the commit lock, so that one commit runs at a time.

        A committer holds it from placing its batches to the last flip.

        Raises:
            LockTimeoutError: it was not free by the deadline.
        """
        return self._flocked("commit", deadline)

    def metadata(self, *, deadline: float | None = None) -> AbstractContextManager[object]:
        """Hold the lock that guards changes to cluster.json and to topics' files.

        Raises:
            LockTimeoutError: it was not free by the deadline.
        """
        return self._flocked("metadata", deadline)

    @contextlib.contextmanager
    def _flocked(self, name: str, deadline: float | None) -> Iterator[None]:
        path = self._dir / name
        self._files.ensure_no_link(self._dir, self._dir.parent)

        def take(wait: bool) -> LockFile | None:
            return self._files.flock(path, wait=wait)

        with _waited_for(take, name, path, deadline):
            yield

    def partitions(
        self,
        topic_partitions: Iterable[TopicPartition],
        commits: Commits | None = None,
        *,
        deadline: float | None = None,
    ) -> AbstractContextManager[None]:
        """Hold the locks that guard writes to these partitions' logs, taken in order.

        Args:
            topic_partitions: whose locks.
            commits: if given, a commit that was decided but not flipped in one of the partitions is
                finished first. All writers but committers need that.
            deadline: until when to wait; forever by default.

        Entering it raises:
            LockTimeoutError: one of them was not free by the deadline; none is held then.
        """
        return _PartitionLocks(
            self._files, self._dir, sorted({*topic_partitions}), commits, deadline
        )

    def log_dir(
        self, path: Path, before_made: Callable[[], object] = bool
    ) -> AbstractContextManager[None]:
        """Hold a shared lock on a log dir while writing into it, which keeps a Kafka broker out.

        Args:
            path: the log dir.
            before_made: is called before a file for the lock is made there, and may raise.

        Entering it raises:
            LogDirLockedError: a broker is in.
        """
        return _SharedLogDir(self._files, path, before_made)

    @contextlib.contextmanager
    def exclusive_log_dir(self, path: Path) -> Iterator[None]:
        """Hold a Kafka broker's own exclusive lock on its log dir, which keeps the broker out.

        Raises:
            LogDirLockedError: the broker is in, or another process writes there.
        """
        with _broker_log_dirs, self._files.open_for_locks(path / ".lock") as file:
            if not self._files.take_lock(file):
                raise LogDirLockedError(
                    f"{file.path} is held by another program, a Kafka broker most likely: "
                    "stop it first"
                )
            yield

    @contextlib.contextmanager
    def exclusive_log_dirs(self, paths: Iterable[Path]) -> Iterator[None]:
        """Hold the exclusive locks of log dirs, so that no process of any PATH writes there meanwhile.

        Raises:
            LogDirLockedError: another program has not let one go for a while.
        """
        with contextlib.ExitStack() as held:
            for path in paths:
                file = held.enter_context(self._files.open_for_locks(path / ".lock"))
                pauses = itertools.repeat(_PAUSE_S[1], round(_OTHERS_PATIENCE_S / _PAUSE_S[1]))
                while not self._files.take_lock(file):
                    if next(pauses, None) is None:
                        raise LogDirLockedError(
                            f"{file.path} is held by another program: a process that writes to this "
                            "cluster, or a Kafka broker; stop it first"
                        )
                    time.sleep(_PAUSE_S[1])
            yield


# Every append takes these locks, so the next two classes are faster than generators.


class _SharedLogDir:
    """A context manager that holds a shared lock on a log dir, which keeps a Kafka broker out."""

    __slots__ = ("_before_made", "_file", "_files", "_log_dir")

    def __init__(self, files: Files, log_dir: Path, before_made: Callable[[], object]) -> None:
        self._files, self._log_dir, self._before_made = files, log_dir, before_made

    def __enter__(self) -> None:
        # It is opened now and nothing is waited for: so it is the file at its path.
        path = self._log_dir / ".lock"
        self._file = file = self._files.open_for_locks(path, self._before_made)
        try:
            is_shared = self._files.share_lock(file)
        except BaseException:
            file.release()
            raise
        if not is_shared:
            file.release()
            raise LogDirLockedError(
                f"{file.path} is held by another program, a Kafka broker most likely: stop it, or "
                "write elsewhere"
            )

    def __exit__(self, *_: object) -> None:
        self._file.release()


class _PartitionLocks:
    """A context manager that holds the locks of some partitions, taken in order."""

    __slots__ = ("_commits", "_deadline", "_dir", "_files", "_held", "_topic_partitions")

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partitions: list[TopicPartition],
        commits: Commits | None,
        deadline: float | None,
    ) -> None:
        self._files, self._dir = files, directory
        self._topic_partitions, self._commits = topic_partitions, commits
        self._deadline = deadline
        self._held: list[LockFile] = []

    def __enter__(self) -> None:
        commits = self._commits
        while True:
            try:
                self._take_all()
                if commits is None or not commits.is_pending(self._topic_partitions):
                    return
            except BaseException:
                self.__exit__()
                raise
            self.__exit__()
            commits.roll_forward(deadline=self._deadline)

    def __exit__(self, *_: object) -> None:
        try:
            while self._held:
                self._held.pop().release()
        finally:
            if self._held:  # Release the others, too, if one could not be released.
                self.__exit__()

    def _take_all(self) -> None:
        lock_location = self._files.lock_location
        locations = {(tp.topic, *lock_location(*tp)): tp for tp in self._topic_partitions}
        by_file: dict[str, dict[int, TopicPartition]] = {}
        for (_, name, byte), topic_partition in sorted(locations.items()):
            by_file.setdefault(name, {})[byte] = topic_partition
        if len(by_file) > _FEW_FILES:  # each stays open
            raise_descriptors_limit(open_descriptors() + len(by_file) + _DESCRIPTORS_BESIDE)
        for name, of_bytes in by_file.items():
            self._take(self._dir / name, of_bytes)

    def _take(self, path: Path, of_bytes: dict[int, TopicPartition]) -> None:
        """Lock the bytes of a topic's lock file that stand for partitions, in the file now at that path."""
        files = self._files
        ensure_no_link = partial(files.ensure_no_link, self._dir, self._dir.parent)
        while True:
            file = files.open_for_locks(path, ensure_no_link)
            self._held.append(file)
            for byte, topic_partition in of_bytes.items():
                if not files.lock_byte(file, byte, wait=False):
                    self._wait_for(file, byte, topic_partition)
            if files.is_at(file):
                return
            self._held.pop().release()

    def _wait_for(self, file: LockFile, byte: int, topic_partition: TopicPartition) -> None:
        def take(wait: bool) -> bool | None:
            return self._files.lock_byte(file, byte, wait=wait) or None

        _waited_for(take, str(topic_partition), file.path, self._deadline)


def _waited_for(
    take: Callable[[bool], T | None], lock: str, path: Path, deadline: float | None
) -> T:
    """Take a lock by calling `take` until it returns a result or the deadline passes; return the result.

    Raises:
        LockTimeoutError: it was None until the deadline.
    """
    found = take(False)
    if found is not None:
        return found
    started = monotonic_s()
    if deadline is None:
        with _logged_while_waiting(lock, path):
            found = take(True)
        assert found is not None
        return found
    pause_s, longest_s = _PAUSE_S
    while True:
        left_s = deadline - monotonic_s()
        if left_s <= 0:
            raise LockTimeoutError(lock, str(path), monotonic_s() - started)
        time.sleep(min(pause_s, left_s))
        found = take(False)
        if found is not None:
            return found
        pause_s = min(2 * pause_s, longest_s)


@contextlib.contextmanager
def _logged_while_waiting(lock: str, path: Path) -> Iterator[None]:
    """Log after a while which lock is waited for, and again from time to time."""
    is_over = threading.Event()
    started = monotonic_s()

    def say() -> None:
        pause_s = _LOGGED_AFTER_S
        while not is_over.wait(pause_s):
            logger.warning(
                "the lock of %s has not been free for %.0f s: another process or thread holds it; "
                "`lsof %s` shows which processes on this machine have its file open",
                lock, monotonic_s() - started, path,
            )  # fmt: skip
            pause_s = _LOGGED_AGAIN_AFTER_S

    threading.Thread(target=say, name="kbatch-lock-wait", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
