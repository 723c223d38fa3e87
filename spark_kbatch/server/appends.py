"""Appends of clients, and markers of transactions: a queue for each partition, and a few threads for the queues.

A partition's appends are done in the order in which they arrived; those of several producers that have
come meanwhile are written, and flushed, together. Each is answered as if it had come alone. A Spark job that
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

import contextlib
import functools
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError, LockTimeoutError, RequestTimedOutError
from spark_kbatch.files import Buffer
from spark_kbatch.log.validator import Accepted
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.replica.partition import Partition
from spark_kbatch.server.peers import Peer, SlowWarnings
from spark_kbatch.server.pools import CallLater, Pool

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.025  # between two checks of a lock
_CHECKS_PER_S_MAX = 4000  # of all locks: a fifth of a core. A job may lock thousands of partitions
_IN_A_ROW_MAX = 16  # appends to a partition, before others have a turn; but a group is done
_TOGETHER_MAX, _TOGETHER_BYTES_MAX = 64, 1 << 20  # of appends that are done together
_CHECKS_S_MAX = 0.002  # of a processor: then what has been checked waits no longer for more


class Append(NamedTuple):
    """A batch for one partition, of a Produce request or a marker, with its deadline and answer callback."""

    data: Buffer
    required_acks: int
    timeout_ms: int
    deadline_s: float  # of clock.monotonic_s
    answer: Callable[[AppendResult], object]
    peer: Peer | None = None  # that sent it
    origin: AppendOrigin = AppendOrigin.NETWORK
    topic_id: str | None = (
        None  # of the topic that is meant; None for the one that has the name now
    )


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
        self,
        parts: FolderParts,
        pool: Pool,
        call_later: CallLater,
        *,
        flush: bool,
        slow: SlowWarnings,
    ) -> None:
        """Start without queues; `flush` says whether a batch is flushed to disk before it is acknowledged."""
        self._parts, self._pool, self._call_later = parts, pool, call_later
        self._flush, self._slow = flush, slow
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
        done, go_together = 0, True
        while done < _IN_A_ROW_MAX:
            taken, from_s = 0, monotonic_s()
            if go_together and len(queue.appends) > 1 and queue.waiting_since is None:
                taken = self._append_together(queue)
                go_together = taken > 0
            if not taken:
                append, began_s = queue.appends[0], time.thread_time()
                is_done = self._is_done(queue, append)
                _charge(append, time.thread_time() - began_s)
                if not is_done:
                    self._wait(queue)
                    return
                taken = 1
            took_s = monotonic_s() - from_s
            self._slow.took(
                took_s,
                "Produce, %d ms in the append of %d batches to %s",
                1000 * took_s,
                taken,
                queue.topic_partition,
            )
            done += taken
            queue.waiting_since = None
            with self._mutex:
                for _ in range(taken):
                    queue.appends.popleft()
                if not queue.appends:
                    del self._queues[queue.topic_partition]
                    return
        self._make_ready(queue)

    def _append_together(self, queue: _AppendQueue) -> int:
        """Append and answer the first of the queued batches with one lock, state and flush.

        Returns:
            How many; 0 if the first has to be appended alone.
        """
        manager, topic_partition = self._parts.manager, queue.topic_partition
        with self._mutex:
            queued = list(itertools.islice(queue.appends, _TOGETHER_MAX))
        checked: list[tuple[Partition, Accepted]] = []
        size, checks_s = 0, 0.0
        for append in queued:
            if size + len(append.data) > _TOGETHER_BYTES_MAX:
                break
            began_s = time.thread_time()
            one = None
            with contextlib.suppress(Exception):  # Alone it is answered with it; so is a marker.
                one = manager.check(topic_partition, append.data)
            took_s = time.thread_time() - began_s
            _charge(append, took_s)
            checks_s += took_s
            size += len(one[1].data) if one else 0
            if one is None or size > _TOGETHER_BYTES_MAX:
                break
            checked.append(one)
            if checks_s > _CHECKS_S_MAX:
                break
        if len(checked) < 2:
            return 0
        answered = 0

        def answer(results: Sequence[AppendResult]) -> None:
            nonlocal answered
            for append, result in zip(queued, results, strict=False):
                answered += 1
                _answer(append, result)

        began_s = time.thread_time()
        try:
            manager.append_together(
                topic_partition, checked, on_complete=answer, flush=self._flush,
                commits=self._parts.coordinator(flush=self._flush),
            )  # fmt: skip
        except Exception as error:
            logger.exception("appends to %s failed", topic_partition)
            if not answered:  # Any of them may be written.
                answer([AppendResult(error=error)] * len(checked))
        each_s = (time.thread_time() - began_s) / max(answered, 1)
        for append in queued[:answered]:
            _charge(append, each_s)
        return answered

    def _is_done(self, queue: _AppendQueue, append: Append) -> bool:
        """Append and answer a queued batch; return False if it must still wait for the partition's lock."""
        if queue.waiting_since is not None and self._is_locked(queue.topic_partition):
            return self._timed_out(append)
        unknown = self._parts.manager.unknown([queue.topic_partition])
        if unknown:
            _answer(append, AppendResult(error=unknown[queue.topic_partition]))
            return True
        locked = answered = False

        def answer(result: AppendResult) -> None:
            nonlocal locked, answered
            if isinstance(result.error, LockTimeoutError):
                locked = True
            else:
                answered = True
                _answer(append, result)

        try:
            self._parts.manager.append_records(
                timeout_ms=max(int((append.deadline_s - monotonic_s()) * 1000), 0),
                required_acks=append.required_acks,
                entries_per_partition={queue.topic_partition: append.data},
                on_complete=lambda results: answer(results[queue.topic_partition]),
                flush=self._flush,
                commits=self._parts.coordinator(flush=self._flush),
                origin=append.origin,
                lock_timeout_ms=0,
                topic_ids={queue.topic_partition: append.topic_id} if append.topic_id else None,
            )
        except Exception as error:
            logger.exception("an append to %s failed", queue.topic_partition)
            if not answered:
                _answer(append, AppendResult(error=error))
            return True
        return not locked or self._timed_out(append)

    def _is_locked(self, topic_partition: TopicPartition) -> bool:
        """Return True if another process or thread holds the partition's lock.

        That is far cheaper than an append, which checks its batch.
        """
        locks = self._parts.manager.locks
        try:
            with locks.partitions([topic_partition], deadline=monotonic_s()):
                return False
        except LockTimeoutError:
            return True
        except (OSError, KBatchError):
            return False  # The append meets it again, and answers with it.

    def _timed_out(self, append: Append) -> bool:
        if monotonic_s() < append.deadline_s:
            return False
        error = RequestTimedOutError(
            f"the partition was locked by another process or thread, most likely a commit, for more than "
            f"{append.timeout_ms} ms; nothing is written"
        )
        _answer(append, AppendResult(error=error))
        return True

    def _wait(self, queue: _AppendQueue) -> None:
        """Schedule the next check of a locked partition's queue, and answer its timed-out appends."""
        now_s = monotonic_s()
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


def _answer(append: Append, result: AppendResult) -> None:
    """Answer a batch; a failure is logged, and does not stop the batches after it."""
    try:
        append.answer(result)
    except Exception:
        logger.exception("an append cannot be answered")


def _charge(append: Append, took_s: float) -> None:
    """Count processor time to the peer that sent a batch."""
    if append.peer is not None:
        append.peer.charge(took_s)
