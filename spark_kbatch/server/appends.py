"""Appends of clients: a queue for each partition, and a few threads that serve the queues.

A partition's appends are done one after the other, in the order in which they arrived. A Spark job that
commits may lock a partition for seconds: then its queue waits, and a timer checks the lock from time to
time. So the queue holds no thread, and other partitions go on. An append that waits longer than its client
allows is answered with a RequestTimedOutError.

    idle      nothing is queued
    ready     a thread serves it, or will
    locked    another process or thread holds the partition's lock; a timer makes the queue ready again

Source: Kafka answers an append at once or puts it into a purgatory; it has no counterpart to a lock that
other processes hold.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError, LockTimeoutError, RequestTimedOutError
from spark_kbatch.files import Buffer
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.server.peers import Peer
from spark_kbatch.server.pools import CallLater, Pool

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.025  # between two checks of a lock
_CHECKS_PER_S_MAX = 4000  # of all locks: a fifth of a core. A job may lock thousands of partitions
_IN_A_ROW_MAX = 16  # appends to a partition, before others have a turn


class Append(NamedTuple):
    """A batch that a Produce request appends to one partition, with its deadline and answer callback."""

    data: Buffer
    required_acks: int
    timeout_ms: int
    deadline_s: float  # of time.monotonic
    answer: Callable[[AppendResult], object]
    peer: Peer | None = None  # that sent it


class _AppendQueue:
    """The appends that wait for one partition, in the order in which they arrived."""

    __slots__ = ("appends", "topic_partition", "waiting_since")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.appends: deque[Append] = deque()
        self.waiting_since: float | None = None  # while the partition is locked


class Appends:
    """The append queues of all partitions, served by a thread pool; thread-safe."""

    def __init__(
        self, parts: FolderParts, pool: Pool, call_later: CallLater, *, flush: bool
    ) -> None:
        """Start without queues; `flush` says whether a batch is flushed to disk before it is acknowledged."""
        self._parts, self._pool, self._call_later = parts, pool, call_later
        self._flush = flush
        self._mutex = threading.Lock()  # guards _queues and their contents; innermost
        self._queues: dict[TopicPartition, _AppendQueue] = {}  # only those that are not idle

    def append(self, topic_partition: TopicPartition, append: Append) -> None:
        """Queue a batch for its partition; any thread may call its `answer` later, with no lock held."""
        with self._mutex:
            queue = self._queues.get(topic_partition)
            if queue is not None:
                queue.appends.append(append)
                return
            queue = self._queues[topic_partition] = _AppendQueue(topic_partition)
            queue.appends.append(append)
        self._make_ready(queue)

    def _make_ready(self, queue: _AppendQueue) -> None:
        self._pool.submit(functools.partial(self._serve, queue), queue.appends[0].peer)

    def _serve(self, queue: _AppendQueue) -> None:
        for _ in range(_IN_A_ROW_MAX):
            append = queue.appends[0]
            began_s = time.thread_time()
            is_done = self._is_done(queue, append)
            if append.peer is not None:
                append.peer.charge(time.thread_time() - began_s)
            if not is_done:
                self._wait(queue)
                return
            queue.waiting_since = None
            with self._mutex:
                queue.appends.popleft()
                if not queue.appends:
                    del self._queues[queue.topic_partition]
                    return
        self._make_ready(queue)

    def _is_done(self, queue: _AppendQueue, append: Append) -> bool:
        """Append and answer a queued batch; return False if it must still wait for the partition's lock."""
        if queue.waiting_since is not None and self._is_locked(queue.topic_partition):
            return self._timed_out(append)
        unknown = self._parts.manager.unknown([queue.topic_partition])
        if unknown:
            append.answer(AppendResult(error=unknown[queue.topic_partition]))
            return True
        locked = answered = False

        def answer(result: AppendResult) -> None:
            nonlocal locked, answered
            if isinstance(result.error, LockTimeoutError):
                locked = True
            else:
                answered = True
                append.answer(result)

        try:
            self._parts.append_records(
                timeout_ms=max(int((append.deadline_s - time.monotonic()) * 1000), 0),
                required_acks=append.required_acks,
                entries_per_partition={queue.topic_partition: append.data},
                on_complete=lambda results: answer(results[queue.topic_partition]),
                flush=self._flush,
                origin=AppendOrigin.NETWORK,
                lock_timeout_ms=0,
            )
        except Exception as error:
            logger.exception("an append to %s failed", queue.topic_partition)
            if not answered:
                append.answer(AppendResult(error=error))
            return True
        return not locked or self._timed_out(append)

    def _is_locked(self, topic_partition: TopicPartition) -> bool:
        """Return True if another process or thread holds the partition's lock.

        That is far cheaper than an append, which checks its batch.
        """
        locks = self._parts.manager.locks
        try:
            with locks.partitions([topic_partition], deadline=time.monotonic()):
                return False
        except LockTimeoutError:
            return True
        except (OSError, KBatchError):
            return False  # The append meets it again, and answers with it.

    def _timed_out(self, append: Append) -> bool:
        if time.monotonic() < append.deadline_s:
            return False
        error = RequestTimedOutError(
            f"the partition was locked by another process or thread, most likely a commit, for more than "
            f"{append.timeout_ms} ms; nothing is written"
        )
        append.answer(AppendResult(error=error))
        return True

    def _wait(self, queue: _AppendQueue) -> None:
        """Schedule the next check of a locked partition's queue, and answer its timed-out appends."""
        now_s = time.monotonic()
        if queue.waiting_since is None:
            queue.waiting_since = now_s
        waited_s = now_s - queue.waiting_since
        pause_s = min(max(_FIRST_PAUSE_S, waited_s), _LONGEST_PAUSE_S)
        pause_s = max(pause_s, len(self._queues) / _CHECKS_PER_S_MAX)
        with self._mutex:
            over = [one for one in queue.appends if one.deadline_s <= now_s]
            queue.appends = deque(one for one in queue.appends if one.deadline_s > now_s)
            is_idle = not queue.appends
            if is_idle:
                del self._queues[queue.topic_partition]
        for one in over:
            self._timed_out(one)
        if not is_idle:
            self._call_later(pause_s, functools.partial(self._make_ready, queue))
