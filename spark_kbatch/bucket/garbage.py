"""Deletes what nothing needs any more: a difference, and never a matter of age.

    GC boundary   what began before an entry commits no more; it is moved to the youngest entry that is older than
                  staging.timeout.ms, at most some times within that
    data          named below the GC boundary, and neither in the state at the GC boundary nor in an entry after it
    checkpoints   all but the last ones, the newest at or below the GC boundary, and a few in between
    parts         that no checkpoint names which stays
    agreements    of days that are over for longer than a job may take
    tombstones    in place of the entries up to the checkpoint at or below the GC boundary

Any number of collectors do no harm to each other, whenever one of them stops or sleeps. These are the reasons:

- An entry that names what began before the GC boundary is refused after it. So what entries up to
  now do not name can never be named, and a set of names that may be deleted stays one for good.
- What the state at the GC boundary has may be read by plans that were made up to then, and those
  that are younger than the GC boundary. What was dropped later waits for the next GC boundary.
- The last checkpoints of any list of checkpoints have at least one that stays, or a newer one is there. Roots are
  counted only if all their parts are there.
- An entry's tombstone says that a checkpoint has what it said. The one at or below the GC
  boundary is there first, and whoever deletes it has seen newer ones. Before the first tombstone
  each of its parts is there twice, and another checkpoint after it: see `checkpoints`.

An entry's age goes by the store's clock alone: the time that the store shows for it, against that of an object
put a moment ago.

The state at the GC boundary is folded from the checkpoint at or below it. If that cannot be done,
since another collector is at work or because no checkpoint is as old, nothing is deleted this
time.

Whoever moves the GC boundary collects. Tombstones are put last, from below: where they begin to
be missing tells others that a collection by a checkpoint has ended. What one that was stopped has
left above the checkpoint goes with the next GC boundary. Where nothing happens any more there is
no next one, so each process collects once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from spark_kbatch.bucket.checkpoints import LedgerCheckpoints, LostPartError
from spark_kbatch.bucket.ledger import Ledger, ensure_may_write
from spark_kbatch.bucket.objects import ObjectInfo
from spark_kbatch.errors import CorruptLedgerError, KBatchError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checkpoint_format import Root
from spark_kbatch.ledger.entries import (
    NO_ENTRY,
    STAGING_TIMEOUT_MS,
    GcBoundary,
    LedgerCommit,
    Replacement,
    Tombstone,
    encode,
    tombstone_of,
)
from spark_kbatch.ledger.extents import IndexRange, PartitionAppend
from spark_kbatch.ledger.image import DEFAULT_LIMITS
from spark_kbatch.ledger.state import LedgerState

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 3  # the last ones
_KEPT_EVERY = 1024  # entries: of older checkpoints one is kept for so many
_HORIZONS_MAX = 8  # within staging.timeout.ms
_AGREEMENT_GRACE_MS = 2 * 86_400_000
_FEW = 16  # entries that are looked at, to see whether anything but a moved GC boundary is in them
_DELETED_AT_ONCE = 1000

_END = "~"  # behind all names that begin alike


class Collected(NamedTuple):
    """Counts of a collection: deleted, or to be deleted."""

    horizon: int
    objects: int = 0  # data, indexes and segments
    size_in_bytes: int = 0  # of these
    checkpoints: int = 0
    parts: int = 0
    agreements: int = 0
    tombstones: int = 0  # entries that became tombstones


class References:
    """The objects that some appends refer to.

    An index lists objects of its own job. So all of a job is referred to as long as one of its indexes is.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._jobs: set[str] = set()

    def add(self, append: PartitionAppend) -> None:
        """Add what an append refers to."""
        if isinstance(append.placed, IndexRange):
            self._jobs.add(names.folder_of(append.placed.name))
        else:
            self._names.update(append.objects)

    def __contains__(self, name: str) -> bool:
        return name in self._names or names.folder_of(name) in self._jobs


class GarbageCollector:
    """Collects the garbage of one cluster. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        """Set up.

        Args:
            ledger: of the cluster; it is followed.
        """
        self._ledger = ledger
        self._objects = ledger.objects
        self._checkpoints = LedgerCheckpoints(ledger.objects, ledger.timing.rng)
        self._collected = NO_ENTRY  # the GC boundary for which this process has collected
        self.damaged: dict[str, KBatchError] = {}  # what is lost of checkpoints, by sentence

    # The GC boundary.

    def due_gc_boundary(self, now_ms: int) -> int | None:
        """Return the entry that the GC boundary is to be moved to; None if that is not due.

        Args:
            now_ms: the time by the store's clock.
        """
        state = self._ledger.follow()
        timeout_ms = _timeout_ms(state)
        due, first_ms = NO_ENTRY, now_ms
        for one in self._objects.list(names.LEDGER, names.entry_name(state.gc_boundary)):
            if now_ms - one.modified_ms <= timeout_ms:
                break
            if due == NO_ENTRY:
                first_ms = one.modified_ms
            due = names.number_of(one.name)
        is_late = now_ms - timeout_ms - first_ms >= timeout_ms // _HORIZONS_MAX
        if (
            due == NO_ENTRY
            or not is_late
            or self._moves_gc_boundary_alone(state.gc_boundary + 1, due)
        ):
            return None
        return due

    def _moves_gc_boundary_alone(self, first: int, last: int) -> bool:
        """Return True if nothing has happened in these entries but that the GC boundary was moved."""
        return last - first < _FEW and all(
            isinstance(one.content, GcBoundary) for one in self._ledger.entries(first, last)
        )

    def move_gc_boundary(self, number: int) -> None:
        """Move the GC boundary to an entry, unless it is there or further; raises as `Ledger.commit`."""
        self._ledger.commit(
            lambda state: (
                GcBoundary(number) if state.gc_boundary < number <= state.number else None
            ),
            by="maintain",
        )

    # Collections.

    def collect(
        self, now_ms: int, *, dry_run: bool = False, gc_boundary: int | None = None
    ) -> Collected:
        """Delete what the GC boundary allows to delete, if it was not done; raises as `Objects` and `ensure_may_write`.

        Args:
            now_ms: the time by the store's clock.
            dry_run: whether to delete nothing, and to return what would be deleted.
            gc_boundary: that this process has moved just now, or would move if it were no dry run.
        """
        state = self._ledger.follow()
        if not dry_run:
            # Entries of later kinds may refer to what this version does not see.
            ensure_may_write(state)
        is_moved = gc_boundary is not None
        if gc_boundary is None or not dry_run:
            gc_boundary = state.gc_boundary
        agreements = self._old_agreements(state, now_ms)
        done = Collected(gc_boundary, agreements=len(agreements))
        if not dry_run:
            self._delete(agreements)
        numbers = self._checkpoints.numbers()
        if not is_moved and self._is_done(numbers, gc_boundary, state.number):
            return done
        roots, listed_parts = self._whole_roots(numbers)
        base = max((number for number in roots if number <= gc_boundary), default=NO_ENTRY)
        references = self._references(roots.get(base), gc_boundary, state.number)
        if references is None:
            return done
        garbage = [
            one
            for prefix in (names.DATA, names.SEGMENTS)
            for one in self._named_below(prefix, gc_boundary)
            if one.name not in references
        ]
        first = self._ledger.first_entry(base)
        old_roots, old_parts = self._old_checkpoints(numbers, roots, base, listed_parts)
        if not dry_run:
            if base in roots:
                self._checkpoints.double(base)
                if base == max(roots):
                    self._ledger.make_checkpoint()
            self._delete([one.name for one in garbage])
            self._delete(old_roots)
            self._delete(old_parts)
            if self._checkpoints.newest_number(base) > base:
                self._bury(first, base)
            self._collected = gc_boundary
        return done._replace(
            objects=len(garbage),
            size_in_bytes=sum(one.size_in_bytes for one in garbage),
            checkpoints=len(old_roots),
            parts=len(old_parts),
            tombstones=base - first + 1,
        )

    def _references(self, root: Root | None, gc_boundary: int, last: int) -> References | None:
        """Return what the state at the GC boundary and later entries refer to; None if that cannot be told now."""
        found = References()
        try:
            state = LedgerState() if root is None else self._checkpoints.opened(root)
            for entry in self._ledger.entries(state.number + 1, last):
                if isinstance(entry.content, Tombstone):
                    logger.info(
                        "another collector is at work: entry %d is a tombstone", entry.number
                    )
                    return None
                if entry.number <= gc_boundary:
                    state.apply(entry)
                elif isinstance(entry.content, LedgerCommit | Replacement):
                    for append in chain.from_iterable(entry.content.appends.values()):
                        found.add(append)
            for topic_id in state.topics:
                for changes in self._checkpoints.changes(state, topic_id).values():
                    for change in changes:
                        found.add(change.append)
        except LostPartError as error:
            self._note(root.number if root else NO_ENTRY, error)
            return None
        return found

    def _note(self, number: int, error: CorruptLedgerError) -> None:
        """Note what is lost of a checkpoint, unless another collector has deleted it meanwhile."""
        if number in self._checkpoints.numbers(number):
            self.damaged[f"{error.name}: {error.reason}"] = error
        else:
            logger.info("another collector is at work: %s: %s", error.name, error.reason)

    def _named_below(self, prefix: str, number: int) -> Iterator[ObjectInfo]:
        """Yield the objects that are named below a number; of the others few are listed."""
        after = ""
        while True:
            for one in self._objects.list(prefix, after):
                start_entry = names.start_entry(one.name)
                if start_entry >= number:
                    # Names are sorted by numbers within each folder.
                    after = one.name.partition(f"{start_entry:020d}-")[0] + _END
                    break
                if start_entry >= 0:
                    yield one
            else:
                return

    def _delete(self, found: list[str]) -> None:
        for start in range(0, len(found), _DELETED_AT_ONCE):
            self._objects.delete(found[start : start + _DELETED_AT_ONCE])

    # Checkpoints.

    def _is_done(self, numbers: list[int], gc_boundary: int, last: int) -> bool:
        """Return True if a collection for the GC boundary has ended, or the next one does what is left of it.

        So one may say it before roots are read. The entries up to the checkpoint that a collection goes by become
        tombstones in its end, in their order.

        Args:
            numbers: of all roots.
            gc_boundary: as it is.
            last: entry of the ledger.
        """
        if gc_boundary in (0, self._collected):
            return True
        newest = max((one for one in numbers if one <= gc_boundary), default=NO_ENTRY)
        is_buried = newest == NO_ENTRY or any(
            isinstance(one.content, Tombstone) for one in self._ledger.entries(newest, newest)
        )
        if not is_buried:
            return False
        is_quiet = self._moves_gc_boundary_alone(gc_boundary + 1, last)
        return not is_quiet or self._moves_gc_boundary_alone(newest + 1, gc_boundary)

    def _whole_roots(self, numbers: list[int]) -> tuple[dict[int, Root], list[str]]:
        """Return roots of which all parts are there, or copies, by number, and the names of all."""
        parts, found = [one.name for one in self._objects.list(names.PARTS)], dict[int, Root]()
        # Those of these roots were put before them, and go after them.
        there = {name.removesuffix(names.COPY) for name in parts}
        for number in numbers:
            try:
                root = self._checkpoints.root(number)
                for part in root.parts if root else ():
                    if part.name not in there:
                        raise LostPartError(part.name, "it is missing")
            except CorruptLedgerError as error:
                self._note(number, error)
            else:
                found |= {number: root} if root else {}
        return found, parts

    def _old_checkpoints(
        self, numbers: list[int], roots: dict[int, Root], base: int, parts: list[str]
    ) -> tuple[list[str], list[str]]:
        """Return the names of roots and parts that may be deleted.

        Args:
            numbers: of all roots.
            roots: that are whole, by number.
            base: number of the one at or below the GC boundary; NO_ENTRY if there is none.
            parts: names of all.
        """
        whole = sorted(roots)
        last = whole[-CHECKPOINTS_KEPT:]
        if len(last) < CHECKPOINTS_KEPT:
            return [], []
        kept, seen = {*last, *(one for one in whole if one == base)}, set[int]()
        for number in whole:
            if number > base and number // _KEPT_EVERY not in seen:
                seen.add(number // _KEPT_EVERY)
                kept.add(number)
        named = {part.name for number in kept for part in roots[number].parts}
        # Those of younger checkpoints may have no root yet.
        end_of_parts = f"{names.PARTS}{last[0]:020d}"
        old_roots = [
            names.root_name(number) for number in numbers if number < last[0] and number not in kept
        ]
        old_parts = [
            name
            for name in parts
            if name < end_of_parts and name.removesuffix(names.COPY) not in named
        ]
        return old_roots, old_parts

    # Tombstones.

    def _bury(self, first: int, last: int) -> None:
        """Put tombstones in place of entries, in their order."""
        for entry in self._ledger.entries(first, last):
            if not isinstance(entry.content, Tombstone):
                self._objects.put(names.entry_name(entry.number), encode(tombstone_of(entry)))

    # Agreements.

    def _old_agreements(self, state: LedgerState, now_ms: int) -> list[str]:
        """Return the names of agreements that no job needs any more."""
        timeout_ms = _timeout_ms(state)
        found = []
        for one in self._objects.list(names.AGREEMENTS):
            if now_ms - one.modified_ms <= timeout_ms + _AGREEMENT_GRACE_MS:
                break  # days are in order
            found.append(one.name)
        return found


def _timeout_ms(state: LedgerState) -> int:
    """Return how long after its begin a job may commit."""
    return state.limits.get(STAGING_TIMEOUT_MS, DEFAULT_LIMITS[STAGING_TIMEOUT_MS])
