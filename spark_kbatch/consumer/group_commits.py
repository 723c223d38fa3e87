"""How far a streaming query has read, committed as the offsets of a consumer group.

It is for monitoring alone: what shows the lag of groups shows that of the query. A query starts from its checkpoint.

    commit(offsets)     the caller, once for each trigger, waits at most a second
    _run                a thread, which lives until nothing is left to commit; the newest offsets win

A slow or failing commit never delays or ends the query. So an error is a warning, once; the next try is a minute later.
Offsets that have not changed are committed again each hour, since they expire by the time of their commit.

Source: Kafka group-coordinator/.../OffsetMetadataManager.java, isOffsetExpired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from spark_kbatch.model import TopicPartition
from spark_kbatch.store.store import Groups

logger = logging.getLogger(__name__)

WAIT_S = 1.0
AGAIN_MS = 3_600_000  # though nothing has changed
RETRY_MS = 60_000  # after an error


class GroupCommits:
    """The commits of one run of a query. `commit` is called by one thread at a time."""

    def __init__(
        self,
        group_id: str,
        groups: Callable[[], Groups],
        monotonic_ms: Callable[[], int],
        *,
        pause_ms: int = 0,
    ) -> None:
        """Set up for one consumer group.

        Args:
            group_id: of the group, which need not exist.
            groups: returns the groups of the place; is called by the thread that commits.
            monotonic_ms: the clock.
            pause_ms: the shortest time from one commit to the next, but for the last one of a run.
        """
        self._group_id, self._groups = group_id, groups
        self._monotonic_ms, self._pause_ms = monotonic_ms, pause_ms
        self._idle = threading.Event()  # set while no thread commits
        self._idle.set()
        self._lock = threading.Lock()  # guards all below, and is held for no I/O
        self._wanted: Mapping[TopicPartition, int] | None = None  # what the thread takes next
        self._committed: Mapping[TopicPartition, int] = {}
        self._committed_ms = 0
        self._next_ms: int | None = None  # before that no commit is tried; None at first
        self._failure: type[Exception] | None = None  # how the last try has failed

    def commit(self, offsets: Mapping[TopicPartition, int], is_last: bool = False) -> None:
        """Commit the next offset to be read of each partition, unless that is not due yet; raises nothing.

        Args:
            offsets: by partition; where none is given, nothing is committed.
            is_last: whether the run ends here, so that nothing will be due later.
        """
        with self._lock:
            now_ms = self._monotonic_ms()
            is_early = self._next_ms is not None and now_ms < self._next_ms
            if not offsets or (is_early and (self._failure or not is_last)):
                return
            is_old = now_ms - self._committed_ms >= AGAIN_MS
            if offsets == self._committed and not is_old and self._idle.is_set():
                return
            self._wanted = dict(offsets)
            is_running = not self._idle.is_set()
            self._idle.clear()
        if not is_running:
            threading.Thread(target=self._run, name="kbatch-group-commits", daemon=True).start()
        elif not is_last:
            return  # the thread takes them, and a call has waited for it already
        self._idle.wait(WAIT_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                offsets, self._wanted = self._wanted, None
                if offsets is None:
                    self._idle.set()
                    return
            error: Exception | None = None
            try:
                self._groups().alter_offsets(self._group_id, offsets)
            except Exception as raised:  # noqa: BLE001  monitoring never ends a query
                error = raised
            with self._lock:
                self._note(offsets, error)

    def _note(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        now_ms = self._monotonic_ms()
        if error is None:
            self._committed, self._committed_ms = offsets, now_ms
            self._next_ms = now_ms + self._pause_ms
            if self._failure is not None:
                logger.warning(
                    "consumer group %r is told again how far the query has read", self._group_id
                )
            self._failure = None
            return
        self._wanted = None
        self._next_ms = now_ms + RETRY_MS
        if type(error) is not self._failure:
            logger.warning(
                "consumer group %r is not told how far the query has read: %s. The query goes on, and tries again each "
                "minute",
                self._group_id,
                error,
            )
        self._failure = type(error)
