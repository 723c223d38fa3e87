"""A purgatory: operations that wait until they are satisfied or time out; each is completed once.

    try    is it satisfied?             no: no one knows of it yet
    watch  under each of its keys       from here on a thread that changes one tries it
    try    is it satisfied by now?      or a change between the first try and the watching is missed

An operation ends when it is satisfied or when its time is up, whichever comes first, and its
`on_complete` runs once, in the thread that ended it, with no lock held: so it may append, fetch and
wait for others. The awaited change may also come from another process, which notifies no one: while
anything is watched one thread, of all operations together, looks every 50 ms. It ends when nothing is
left.

Source: Kafka server-common/.../purgatory/DelayedOperation.java, DelayedOperationPurgatory.java.
"""

from __future__ import annotations

import abc
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from spark_kbatch.errors import RequestTimedOutError
from spark_kbatch.model import AppendResult, OnAppended, TopicPartition
from spark_kbatch.replica.partition import Appended

logger = logging.getLogger(__name__)

LOOK_INTERVAL_MS = 50
_PAUSES, _PAUSE_MAX_S = 4, 1.0  # after a look that takes long, as many times its CPU time

Key = TypeVar("Key")
T = TypeVar("T")
Waiting = TypeVar("Waiting", bound="DelayedOperation")
IsDecided: TypeAlias = Callable[[TopicPartition, Appended], tuple[bool, Exception | None]]


class DelayedOperation(abc.ABC):
    """An operation that is completed once: when it is satisfied, or when its time is up."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._trying = threading.Lock()  # held while `is_satisfied` runs; nothing is taken after it
        self._ending = threading.Lock()  # guards is_completed; innermost
        self.is_completed = False

    @abc.abstractmethod
    def is_satisfied(self) -> bool:
        """Return True if the operation can be completed now; must not raise.

        Called by one thread at a time.
        """

    @abc.abstractmethod
    def on_complete(self) -> None:
        """Answer the operation; called once, with no lock held."""

    def try_complete(self) -> bool:
        """Complete the operation if it is satisfied; return True if this call completed it."""
        return self.try_complete_if(self.is_satisfied)

    def try_complete_if(self, is_satisfied: Callable[[], bool]) -> bool:
        """Complete the operation if the given check passes; return True if this call completed it.

        Called by one thread at a time, too.
        """
        with self._trying:
            satisfied = not self.is_completed and is_satisfied()
        return satisfied and self.force_complete()

    def force_complete(self) -> bool:
        """Complete the operation unless it is completed; return True if this call completed it."""
        with self._ending:
            if self.is_completed:
                return False
            self.is_completed = True
        self.on_complete()
        return True


class Purgatory(Generic[Key, Waiting]):
    """The operations of one kind that wait in this process. Thread-safe.

    A forked child starts with none: those of its parent are the parent's to answer.
    """

    def __init__(self, monotonic_ms: Callable[[], int], *, has_thread: bool = True) -> None:
        """Without `has_thread` no thread looks at the operations: a caller has to call `look`."""
        self._monotonic_ms, self._has_thread = monotonic_ms, has_thread
        self._forget()

    def _forget(self) -> None:
        self._process_id = os.getpid()
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._waiting: dict[Waiting, tuple[int, list[Key]]] = {}  # deadline in ms, keys
        self._watchers: dict[Key, dict[Waiting, None]] = {}
        self._keys: tuple[Key, ...] | None = None  # those of _watchers, once someone asks
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many operations wait."""
        return len(self._waiting)

    def try_complete_else_watch(self, operation: Waiting, keys: Iterable[Key]) -> bool:
        """Complete an operation, or have it wait until one of its keys changes; return True if it is done."""
        if self._process_id != os.getpid():
            self._forget()
        if operation.try_complete():
            return True
        watched = list(dict.fromkeys(keys))
        with self._mutex:
            self._waiting[operation] = self._monotonic_ms() + operation.timeout_ms, watched
            for key in watched:
                if key not in self._watchers:
                    self._watchers[key], self._keys = {}, None
                self._watchers[key][operation] = None
        # 1. The first try finds nothing. 2. The awaited change happens, and no one watches. 3. We watch.
        operation.try_complete()
        if operation.is_completed:
            self._remove([operation])
            return True
        self._ensure_looked_at()
        return False

    def check_and_complete(self, key: Key) -> int:
        """Try the operations that wait for `key`, which has changed; return how many this call completed.

        The caller holds no lock that an answer might need.
        """
        if not self._watchers or self._process_id != os.getpid():
            return 0
        return self._try(self._watching([key]))

    def look(self) -> None:
        """Try all operations that may be satisfied by now, and complete those whose time is up."""
        _guarded(self._look_for_changes)
        now_ms = self._monotonic_ms()
        with self._mutex:
            waiting = dict(self._waiting)
        late = [operation for operation, (deadline, _) in waiting.items() if now_ms >= deadline]
        for operation in late:
            _guarded(operation.force_complete)
        self._remove(late)

    def _look_for_changes(self) -> object:
        """Try all waiting operations, since another process may have changed what they wait for."""
        with self._mutex:
            waiting = list(self._waiting)
        return self._try(waiting)

    def _watched_keys_locked(self) -> tuple[Key, ...]:
        """Return the keys of all operations; the same object until they change."""
        if self._keys is None:
            self._keys = tuple(self._watchers)
        return self._keys

    def _watching(self, keys: Iterable[Key]) -> list[Waiting]:
        """Return the operations that wait for any of these keys."""
        with self._mutex:
            return list(dict.fromkeys(one for key in keys for one in self._watchers.get(key, ())))

    def _try(self, operations: Sequence[Waiting]) -> int:
        """Complete those of these operations that are satisfied; return how many this call completed."""
        return self._try_each(operations, DelayedOperation.try_complete)

    def _try_each(
        self, operations: Sequence[Waiting], try_complete: Callable[[Waiting], bool]
    ) -> int:
        completed = sum(_guarded(functools.partial(try_complete, one)) for one in operations)
        self._remove(one for one in operations if one.is_completed)
        return completed

    def _remove(self, operations: Iterable[Waiting]) -> None:
        with self._mutex:
            for operation in operations:
                _, keys = self._waiting.pop(operation, (0, []))
                for key in keys:
                    watching = self._watchers[key]
                    del watching[operation]
                    if not watching:
                        del self._watchers[key]
                        self._keys = None

    def _ensure_looked_at(self) -> None:
        with self._mutex:
            if self._thread is None and self._has_thread and self._waiting:
                thread = threading.Thread(
                    target=self._look_until_empty, name="kbatch-purgatory", daemon=True
                )
                thread.start()  # may fail; then the next operation tries again
                self._thread = thread

    def _look_until_empty(self) -> None:
        pause, took_s = threading.Event(), 0.0
        while True:
            # A look at very much takes a share of the time at most.
            pause.wait(max(LOOK_INTERVAL_MS / 1000, min(_PAUSES * took_s, _PAUSE_MAX_S)))
            began_s = time.thread_time()
            self.look()
            took_s = time.thread_time() - began_s
            with self._mutex:
                if not self._waiting:
                    self._thread = None
                    return


class DelayedProduce(DelayedOperation):
    """An append with acks=all to several partitions that waits until their in-sync replicas have the records.

    A partition is done once its high watermark passes the last record, or something is wrong with it: too few
    replicas are in sync by then, another replica leads, no log dir can be used. The answer is given when all
    partitions are done, or when the time is up: then the others are answered as timed out, though their
    records stay in the log.

    Source: Kafka core/.../server/DelayedProduce.scala.
    """

    def __init__(
        self,
        timeout_ms: int,
        appended: Mapping[TopicPartition, Appended],
        is_decided: IsDecided,
        on_complete: OnAppended,
    ) -> None:
        """Set up the wait; `is_decided` returns whether one partition's append is decided, and its error."""
        super().__init__(timeout_ms)
        self._is_decided, self._answer = is_decided, on_complete
        self._results = {tp: one.result for tp, one in appended.items()}
        self._pending = {
            tp: one
            for tp, one in appended.items()
            if one.result.error is None and not one.is_decided
        }

    def is_satisfied(self) -> bool:
        """Return True once the append is decided in all of its partitions."""
        for topic_partition, one in list(self._pending.items()):
            decided, error = self._is_decided(topic_partition, one)
            if decided:
                del self._pending[topic_partition]
            if error is not None:
                self._results[topic_partition] = AppendResult(error=error)
        return not self._pending

    def on_complete(self) -> None:
        """Answer the append for all partitions, as timed out for those that are not decided."""
        for topic_partition in self._pending:
            self._results[topic_partition] = AppendResult(
                error=RequestTimedOutError(
                    f"the in-sync replicas of {topic_partition} did not have the records within "
                    f"{self.timeout_ms} ms; they are in the leader's log, and may still be committed"
                )
            )
        self._answer(self._results)


def _guarded(complete: Callable[[], T]) -> T | bool:
    """Call `complete`, and log an exception that an operation's answer raises instead of passing it on."""
    try:
        return complete()
    except Exception:
        logger.exception("the answer to a delayed operation failed")
        return True
