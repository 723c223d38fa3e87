"""The ledger of a cluster for the threads of one process."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import threading
from collections.abc import Iterator
from typing import NamedTuple

from spark_kbatch.bucket.entries import NO_ENTRY, Entry
from spark_kbatch.bucket.extents import Change
from spark_kbatch.bucket.ledger import COMMIT_TIMEOUT_MS, KnownLedger, Ledger, Propose, real_timing
from spark_kbatch.bucket.ledger_cache import LedgerCache
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.overwritten import OverwrittenRanges
from spark_kbatch.bucket.staging import WriterJob
from spark_kbatch.bucket.state import DEFAULT_LIMITS, LedgerState, PartitionHead, TopicExtents
from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.errors import ClosedError
from spark_kbatch.model import LONG_MAX

_NEVER_MS = -LONG_MAX
_JOB_AGE_MAX_MS = 3_600_000  # of the state that a job may begin at: well below what is collected


class _TopicChanges(NamedTuple):
    """The changes that a topic's offsets are read from, and until when that is known to hold."""

    number: int  # of the last entry for which it was compared
    version: object  # equal as long as nothing of the topic's extents changes
    found: dict[int, list[Change]]


class SharedLedger:
    """One ledger, which one thread at a time uses. Thread-safe."""

    def __init__(
        self,
        address: str,
        place: Objects,
        cluster_id: str,
        cache: LedgerCache | None = None,
        known: KnownLedger | None = None,
        *,
        is_followed: bool = False,
    ) -> None:
        """Open the ledger; raises as `Ledger`.

        Args:
            address: of the place, for errors.
            place: the objects at it.
            cluster_id: of the cluster there.
            cache: where this machine remembers what the state is made of; None for nowhere.
            known: what it has there.
            is_followed: whether that was the newest state a moment ago, by another process of the same job.
        """
        self.address, self._asks = address, True
        self._closed = threading.Event()  # that of copies too
        self.rng = random.Random()
        self._lock = threading.RLock()  # guards all that follows; none is taken while it is held
        self._ledger = Ledger(place, cluster_id, real_timing(self.rng), known)
        is_old = known is not None and not is_followed
        self._followed_ms = _NEVER_MS if is_old else monotonic_ms()
        self._cache = cache
        self._remembered: int | None = None  # the number of the state that is there by this process
        self._changes: dict[str, _TopicChanges] = {}  # by topic id
        self._overwritten = OverwrittenRanges(self._ledger)
        self.objects, self.cluster_id = self._ledger.objects, cluster_id

    @contextlib.contextmanager
    def state(self, *, max_age_ms: int = 0) -> Iterator[LedgerState]:
        """Return the state, which does not change inside the block.

        Args:
            max_age_ms: how long ago the store may have been asked for it.

        Raises as `Ledger.follow`, and ClosedError.
        """
        with self._lock:
            self.ensure_open()
            is_old = max_age_ms <= 0 or monotonic_ms() - self._followed_ms >= max_age_ms
            if self._asks and is_old:
                self._ledger.follow()
                self._followed_ms = monotonic_ms()
                self._remember()
            yield self._ledger.state

    def followed(self) -> SharedLedger:
        """Return the same ledger, but with the state as it was followed last, for which no store is asked."""
        found = copy.copy(self)
        found._asks = False  # noqa: SLF001  of the same class
        return found

    def changes(self, topic_id: str) -> dict[int, list[Change]]:
        """Return what is at each offset of a topic, by partition, which the caller does not change.

        It is as of the state, or a later one.

        Raises as `Ledger.changes`, and ClosedError.
        """
        with self._lock:
            self.ensure_open()
            known = self._changes.get(topic_id)
            if known is None or known.number != self._ledger.state.number:
                version = self._version(topic_id)
                if known is None or known.version != version:
                    found = self._ledger.changes(topic_id)  # may follow
                    known = _TopicChanges(0, self._version(topic_id), found)
                known = known._replace(number=self._ledger.state.number)
                self._changes[topic_id] = known
            return known.found

    def partition(self, topic_id: str, partition: int) -> tuple[PartitionHead, list[Change]]:
        """Return where a partition starts and ends, and what is at each offset then; raises as `changes`."""
        with self._lock:
            changes = self.changes(topic_id).get(partition, [])
            head = self._ledger.state.partition(topic_id, partition)
            return dataclasses.replace(head), changes

    def overwritten(
        self, topic_id: str, partition: int, offset: int, time_ms: int, kept_ms: int
    ) -> tuple[PartitionHead, list[Change]] | None:
        """Return a partition as it was before a commit overwrote an offset; None if that cannot be told.

        Args:
            topic_id, partition: the partition.
            offset: below its start.
            time_ms: the time of day; that of the last entry counts if it is before that, as this
                machine's clock may be ahead.
            kept_ms: how long before that the commit was made at most.

        Raises ObjectStoreError, ObjectAccessDeniedError, ClosedError, and as `LedgerState.ensure_topic`.
        """
        self.ensure_open()
        with self._lock:
            last = self._ledger.state.number
            created = self._ledger.state.ensure_topic(topic_id).created
            since_ms = min(time_ms, self._ledger.state.time_ms) - kept_ms
        return self._overwritten.find(last, created, topic_id, partition, offset, since_ms)

    def windows(self, last: int, count: int) -> Iterator[list[Entry]]:
        """Yield entries as they are now, the newest first; as `Ledger.windows`, and raises ClosedError."""
        self.ensure_open()
        return self._ledger.windows(last, count)

    def first_entry(self, last: int) -> int:
        """Return the first of the entries up to `last` that is no tombstone; as `Ledger.first_entry`."""
        self.ensure_open()
        return self._ledger.first_entry(last)

    def _version(self, topic_id: str) -> object:
        """Return what is equal as long as a topic's changes are."""
        topic = self._ledger.state.ensure_topic(topic_id)
        extents = self._ledger.state.extents.get(topic_id, TopicExtents())
        last = extents.changes[-1].number if extents.changes else NO_ENTRY
        starts = [head.start_offset for head in topic.partitions]
        return topic.created, extents.parts, len(extents.changes), last, starts

    def commit(
        self,
        propose: Propose,
        *,
        by: str = "",
        timeout_ms: int = COMMIT_TIMEOUT_MS,
        max_age_ms: int = 0,
    ) -> Entry | None:
        """Write an entry, the first one of the ledger too if there is none; as `Ledger.commit`.

        Args:
            propose, by, timeout_ms: see there.
            max_age_ms: how long ago the store may have been asked for the state, before it is written to.
        """
        with self._lock:
            self.ensure_open()
            self._ensure_started()
            entry = self._ledger.commit(
                propose,
                by=by,
                timeout_ms=timeout_ms,
                is_followed=monotonic_ms() - self._followed_ms < max_age_ms,
            )
            self._followed_ms = monotonic_ms()
            self._remember()
            return entry

    def begin_job(self) -> WriterJob:
        """Return a new job that writes, which begins now."""
        with self._lock:
            self.ensure_open()
            self._ensure_started()
            with self.state(max_age_ms=_JOB_AGE_MAX_MS) as state:
                return WriterJob.at(state.number, self.rng)

    def close(self) -> None:
        """Make every later call raise ClosedError."""
        self._closed.set()

    def ensure_open(self) -> None:
        """Raise ClosedError if it is closed."""
        if self._closed.is_set():
            raise ClosedError(self.address)

    def _remember(self) -> None:
        """Leave the state to the next process, if it has changed since that was done here."""
        if self._cache is None or self._ledger.state.number == self._remembered:
            return
        self._remembered = self._ledger.state.number
        known = self._ledger.known(now_ms())
        if known is not None:
            self._cache.put(known)

    def _ensure_started(self) -> None:
        # Whoever created the cluster may have ended before it wrote the first entry.
        if self._ledger.state.number == NO_ENTRY:
            self._ledger.start(DEFAULT_LIMITS)
