"""How far a streaming query has read, committed as the offsets of a consumer group.

It is for monitoring alone: what shows the lag of groups shows that of the query. A query starts from its checkpoint.

    commit(offsets)     the caller, once for each trigger, waits at most a second
    _run(offsets)       a thread, which ends with its one commit

A slow commit delays a trigger by a second at most, and a failing one never ends the query. While one goes on, triggers
start no other: the first one after it commits what is newest then. An error is a warning, once; the next try is a
minute later. Offsets that have not changed are committed again each hour, since they expire by the time of their
commit.

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
    """The commits of one run of a query. `commit` is called by one thread at a time.

    No lock is needed: while a thread commits, it alone uses what is below `_thread`, and `commit` only afterwards.
    """

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
        self._thread: threading.Thread | None = None  # of the last commit
        self._committed: Mapping[TopicPartition, int] = {}
        self._tried_ms = 0
        self._failure: type[Exception] | None = None  # how the last try has failed

    def commit(self, offsets: Mapping[TopicPartition, int], is_last: bool = False) -> None:
        """Commit the next offset to be read of each partition, unless that is not due yet; raises nothing.

        Args:
            offsets: by partition; where none is given, nothing is committed.
            is_last: whether the run ends here, so that nothing will be due later. Then a commit that goes on is
                waited for too, at most a second.
        """
        if self._thread is not None:
            self._thread.join(WAIT_S if is_last else 0)
            if self._thread.is_alive():
                return
        if offsets and self._is_due(offsets, is_last):
            self._thread = threading.Thread(
                target=self._run, args=(dict(offsets),), name="kbatch-group-commits", daemon=True
            )
            self._thread.start()
            self._thread.join(WAIT_S)

    def _is_due(self, offsets: Mapping[TopicPartition, int], is_last: bool) -> bool:
        if self._thread is None:
            return True
        waited_ms = self._monotonic_ms() - self._tried_ms
        if self._failure is not None:
            return waited_ms >= RETRY_MS
        if offsets == self._committed:
            return waited_ms >= AGAIN_MS
        return is_last or waited_ms >= self._pause_ms

    def _run(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            self._groups().alter_offsets(self._group_id, offsets)
        except Exception as error:  # noqa: BLE001  monitoring never ends a query
            if type(error) is not self._failure:
                logger.warning(
                    "consumer group %r is not told how far the query has read: %s. The query goes on, and tries again "
                    "each minute",
                    self._group_id,
                    error,
                )
            self._failure = type(error)
        else:
            if self._failure is not None:
                logger.warning(
                    "consumer group %r is told again how far the query has read", self._group_id
                )
            self._committed, self._failure = offsets, None
        self._tried_ms = self._monotonic_ms()
