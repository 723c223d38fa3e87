"""The ledger of a cluster for the threads of a process, and what these and the machine remember.

The machine has a cache, so that a new process need not read a checkpoint and the entries after it.
A job opens its cluster in several processes, one after the other. Each of them leaves the objects
that its state was made of in a file; `ledger` says how the next one uses them, and `machine_files`
how files are kept.

    [format, store, cluster id, proved ms, followed ms, [number, root, entry, heads] or null, [entry, ...]]

`store` is what leads to the store, without anything secret: the URL, options, and hashes of
variables of the environment. So what is known of a place in one store is not taken for the same
place in another one. Each object has its own sum too, and each entry the id of the one before it.

A process remembers the ranges that commits have overwritten in the last hour, for reads that were
planned before. An overwrite moves start offsets to the ends. What was there before stays in its
objects for days, and the state before the entry tells where. So of the entries of the last hour
those are looked for that have moved starts, once, and later only newer ones are read. Records that
were deleted, or have expired, after an overwrite are not read any more.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import random
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.bucket.checkpoints import CheckpointObjects
from spark_kbatch.bucket.ledger import COMMIT_TIMEOUT_MS, KnownLedger, Ledger, Propose, real_timing
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.staging import WriterJob
from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.errors import ClosedError, KBatchError, ObjectAccessDeniedError, ObjectStoreError
from spark_kbatch.ledger.entries import (
    NO_ENTRY,
    Entry,
    LedgerCommit,
    StartOffsets,
    StartOffsetsByTopic,
    Tombstone,
)
from spark_kbatch.ledger.extents import Change
from spark_kbatch.ledger.image import DEFAULT_LIMITS
from spark_kbatch.ledger.state import LedgerState, PartitionHead, TopicExtents
from spark_kbatch.machine_files import MachineFiles, digest_of
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options.object_store import StoreOptions

logger = logging.getLogger(__name__)

OVERWRITTEN_KEPT_MS = 3_600_000  # how long reads that were planned before an overwrite go on
_NEVER_MS = -LONG_MAX
_JOB_AGE_MAX_MS = 3_600_000  # of the state that a job may begin at: well below what is collected

# Of the cache.
_FORMAT = 1
_OF_STORES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL|CONNECTION_STRING|SIGNATURE")

# Of what was overwritten.
_WINDOW = 64  # entries that are read at a time
_REMEMBERED = 4  # states before overwrites

_Before: TypeAlias = tuple[LedgerState, dict[int, list[Change]]]


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
        self._overwritten = _OverwrittenRanges(self._ledger)
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

    def unread_parts(self, topic_id: str) -> int:
        """Return how many parts of a checkpoint `changes` reads."""
        with self._lock:
            known = self._changes.get(topic_id)
            is_known = known is not None and known.version == self._version(topic_id)
            return 0 if is_known else self._ledger.unread_parts(topic_id)

    def recorded(self, topic_id: str) -> list[Change]:
        """Return as `Ledger.recorded`."""
        with self._lock:
            return self._ledger.recorded(topic_id)

    def partition(self, topic_id: str, partition: int) -> tuple[PartitionHead, list[Change]]:
        """Return where a partition starts and ends, and what is at each offset then; raises as `changes`."""
        with self._lock:
            changes = self.changes(topic_id).get(partition, [])
            return self._ledger.state.partition(topic_id, partition), changes

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
        ranges = self._overwritten
        try:
            number = ranges.overwritten_by(last, created, topic_id, partition, offset, since_ms)
            if number is None:
                return None
            state, changes = ranges.state_before(number, topic_id)
            head = state.partition(topic_id, partition)
        except (ObjectStoreError, ObjectAccessDeniedError):
            raise
        except KBatchError as error:
            logger.info("what was overwritten of %s cannot be read: %s", topic_id, error)
            return None
        is_held = head.start_offset <= offset < head.next_offset
        return (head, changes.get(partition, [])) if is_held else None

    def windows(self, last: int, count: int, first: int = 0) -> Iterator[list[Entry]]:
        """Yield entries as they are now, the newest first; as `Ledger.windows`, and raises ClosedError."""
        self.ensure_open()
        return self._ledger.windows(last, count, first)

    def first_entry(self, last: int) -> int:
        """Return the first of the entries up to `last` that is no tombstone; as `Ledger.first_entry`."""
        self.ensure_open()
        return self._ledger.first_entry(last)

    def _version(self, topic_id: str) -> object:
        """Return what is equal as long as a topic's changes are."""
        topic = self._ledger.state.ensure_topic(topic_id)
        extents = self._ledger.state.extents.get(topic_id, TopicExtents())
        last = extents.changes[-1].number if extents.changes else NO_ENTRY
        starts = [head.start_offset for head in self._ledger.state.heads[topic_id]]
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


class _Move(NamedTuple):
    """An entry that has moved start offsets."""

    number: int
    time_ms: int
    starts: StartOffsetsByTopic
    is_overwrite: bool


class _Moves(NamedTuple):
    """The entries up to `last` that have moved starts since a time, the newest first."""

    last: int
    since_ms: int
    found: tuple[_Move, ...]


class _OverwrittenRanges:
    """The overwritten ranges of one ledger. Thread-safe: what it remembers is replaced, never changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._moves = _Moves(NO_ENTRY, 0, ())
        self._before: dict[tuple[int, str], _Before] = {}

    def overwritten_by(
        self, last: int, created: int, topic_id: str, partition: int, offset: int, since_ms: int
    ) -> int | None:
        """Return the first entry that moved a start past an offset, if it overwrote, and nothing deleted since."""
        found = None
        for move in self._moves_since(since_ms, last):
            if move.number <= created or move.time_ms < since_ms:
                break
            if move.starts.get(topic_id, {}).get(partition, 0) > offset:
                if not move.is_overwrite:
                    return None
                found = move.number
        return found

    def _moves_since(self, since_ms: int, last: int) -> tuple[_Move, ...]:
        """Return the entries since a time that have moved starts, the newest first."""
        known = self._moves
        if since_ms < known.since_ms:
            known = _Moves(NO_ENTRY, since_ms, ())
        newer = _moves_after(known.last, self._ledger.windows(last, _WINDOW), since_ms)
        older = (one for one in known.found if one.time_ms >= since_ms)
        self._moves = _Moves(max(last, known.last), since_ms, (*newer, *older))
        return self._moves.found

    def state_before(self, number: int, topic_id: str) -> _Before:
        known = self._before
        key = number, topic_id
        if key not in known:
            kept = dict([*known.items()][1 - _REMEMBERED :])
            known = self._before = {**kept, key: self._ledger.before(number, topic_id)}
        return known[key]


def _moves_after(known: int, windows: Iterable[list[Entry]], since_ms: int) -> list[_Move]:
    """Return the entries after a known one, and since a time, that have moved starts, the newest first."""
    found = list[_Move]()
    for entries in windows:
        for entry in reversed(entries):
            content = entry.content
            is_older = entry.number <= known or entry.time_ms < since_ms
            if is_older or isinstance(content, Tombstone):
                return found
            if isinstance(content, LedgerCommit | StartOffsets) and content.starts:
                is_overwrite = isinstance(content, LedgerCommit)
                found.append(_Move(entry.number, entry.time_ms, content.starts, is_overwrite))
    return found


def store_of(url: str, options: StoreOptions, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text that differs where the same URL may lead to another store, without anything secret."""
    variables = {
        name: digest_of(value.encode())  # an address may have a password in it
        for name, value in sorted(environment.items())
        if name.upper().startswith(_OF_STORES) and not _SECRET.search(name.upper())
    }
    return json.dumps([url, options.shown(), variables])


class LedgerCache:
    """The cache of the ledger at one URL. Thread-safe."""

    def __init__(self, store: str, *, folder: Path | None = None) -> None:
        """Remember the ledger of a place.

        Args:
            store: of `store_of`.
            folder: of all stores; None for the one of this machine.
        """
        self._store = store
        self._files = MachineFiles("spark_kbatch-ledgers", store, folder=folder)

    def get(self, cluster_id: str) -> KnownLedger | None:
        """Return what is known of a cluster's ledger; None if nothing is, or it is damaged, or of another cluster."""
        try:
            version, store, known_id, proved_ms, followed_ms, checkpoint, entries = self._files.get("ledger")  # fmt: skip
            if (version, store, known_id) != (_FORMAT, self._store, cluster_id):
                return None
            return KnownLedger(
                cluster_id,
                int(proved_ms),
                int(followed_ms),
                None if checkpoint is None else _checkpoint(*checkpoint),
                tuple(map(_bytes, entries)),
            )
        except (ValueError, TypeError, AttributeError):
            return None

    def put(self, known: KnownLedger) -> None:
        """Remember a ledger, if that is possible."""
        checkpoint: list[Any] | None = None
        if known.checkpoint is not None:
            number, *objects = known.checkpoint
            checkpoint = [number, *map(_text, objects)]
        self._files.put(
            "ledger",
            [
                _FORMAT, self._store, known.cluster_id, known.proved_ms, known.followed_ms, checkpoint,
                [*map(_text, known.entries)],
            ],
        )  # fmt: skip


def _checkpoint(number: Any, *objects: Any) -> CheckpointObjects:
    return CheckpointObjects(int(number), *map(_bytes, objects))


def _text(data: bytes) -> str:
    return data.decode("latin-1")  # any bytes, and nearly all of them are ASCII


def _bytes(text: Any) -> bytes:
    data: bytes = text.encode("latin-1")
    return data
