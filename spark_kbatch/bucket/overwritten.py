"""Ranges that commits have overwritten in the last hour, for reads that were planned before.

An overwrite moves start offsets to the ends. What was there before stays in its objects for days, and the state
before the entry tells where. So of the entries of the last hour those are looked for that have moved starts, once,
and later only newer ones are read. Records that were deleted, or have expired, after an overwrite are not read
any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from spark_kbatch.bucket.entries import (
    NO_ENTRY,
    Entry,
    LedgerCommit,
    StartOffsets,
    StartOffsetsByTopic,
    Tombstone,
)
from spark_kbatch.bucket.extents import Change
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.state import LedgerState, PartitionHead
from spark_kbatch.errors import KBatchError, ObjectAccessDeniedError, ObjectStoreError

logger = logging.getLogger(__name__)

OVERWRITTEN_KEPT_MS = 3_600_000  # how long reads that were planned before an overwrite go on
_WINDOW = 64  # entries that are read at a time
_REMEMBERED = 4  # states before overwrites

_Before: TypeAlias = tuple[LedgerState, dict[int, list[Change]]]


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


class OverwrittenRanges:
    """The overwritten ranges of one ledger. Thread-safe: what it remembers is replaced, never changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._moves = _Moves(NO_ENTRY, 0, ())
        self._before: dict[tuple[int, str], _Before] = {}

    def find(
        self, last: int, created: int, topic_id: str, partition: int, offset: int, since_ms: int
    ) -> tuple[PartitionHead, list[Change]] | None:
        """Return a partition as it was before a commit overwrote an offset; None if that cannot be told.

        Args:
            last: the newest entry.
            created: the entry that has created the topic.
            topic_id, partition: which.
            offset: below its start.
            since_ms: when the commit was made, or later; since 1970.

        Raises:
            ObjectStoreError, ObjectAccessDeniedError: the store fails.
        """
        try:
            number = self._overwritten_by(last, created, topic_id, partition, offset, since_ms)
            if number is None:
                return None
            state, changes = self._state_before(number, topic_id)
            head = state.partition(topic_id, partition)
        except (ObjectStoreError, ObjectAccessDeniedError):
            raise
        except KBatchError as error:
            logger.info("what was overwritten of %s cannot be read: %s", topic_id, error)
            return None
        is_held = head.start_offset <= offset < head.next_offset
        return (head, changes.get(partition, [])) if is_held else None

    def _overwritten_by(
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

    def _state_before(self, number: int, topic_id: str) -> _Before:
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
