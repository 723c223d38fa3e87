"""The readable rest of a damaged ledger: entries, checkpoints, and the states that these give.

    entry        is there, and has its sum; what is wrong with another is remembered
    checkpoint   its root and all of its parts, or their copies, are there and have their sums, and
                 the root's entry, where that can be read, has the id that the root tells
    state        from a whole checkpoint, or from nothing, by the entries after it, one after the other
    holes        from a checkpoint of which the heads can be read, where no whole one leads as far:
                 the offsets that its lost parts told of are placed in an object that is not there

A whole checkpoint says all that the entries up to its own said. So an entry that is missing below
it takes nothing away. Nor does the first entry, which says what its folder's name says and what is
the same in all clusters: it is made again, with the id that the next one tells.

What a state refers to is checked, partition by partition: what is wrong is reported, and what comes
after it is checked all the same.

    ledger     what is at each offset, without holes, from the start offset to the end
    index      it is there, and whole
    extent     its object is there, with as many records as the ledger says
    batch      its CRC, its offsets

Nothing is changed here, and nothing may write to the cluster meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from spark_kbatch.bucket.batch_stream import BatchStream, MissingObjectError
from spark_kbatch.bucket.checkpoints import LedgerCheckpoints
from spark_kbatch.bucket.objects import Folder, Objects
from spark_kbatch.bucket.place import cluster_id_at
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.bucket.urls import checked, objects_at
from spark_kbatch.errors import (
    ConfigError,
    CorruptLedgerError,
    CorruptRecordError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checkpoint_format import Root, ensure_of, unpack_root
from spark_kbatch.ledger.entries import (
    CLOSED,
    NO_ENTRY,
    NO_ENTRY_ID,
    Entry,
    LedgerCommit,
    LedgerStart,
    NewFormat,
    Replacement,
    Tombstone,
    decode,
    tombstone_of,
)
from spark_kbatch.ledger.extents import Change, PartitionAppend
from spark_kbatch.ledger.image import DEFAULT_LIMITS
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions

_WINDOW = 16  # entries asked for at once
_ENTRIES_KEPT = 4096  # in memory
MISSING = "it is missing"
_NOTHING = "nothing is there"


class Reached(NamedTuple):
    """The state after the last entry that can be told, and why the next one cannot."""

    state: LedgerState
    why: str  # empty where nothing was wanted after it


class Fault(NamedTuple):
    """Offsets that cannot be read."""

    start_offset: int
    next_offset: int
    why: str
    name: str = ""  # of the object that is wrong, if there is to be one
    records_count: int = 0  # as far as that is known

    def __str__(self) -> str:
        return f"offsets {self.start_offset} to {self.next_offset - 1}: {self.why}"


class MissingData(NamedTuple):
    """Batches that are not there."""

    topic_id: str
    change: Change  # says where they should be, since an entry, or by a checkpoint
    fault: Fault


class LedgerRemains:
    """All that can be read of the ledger of a cluster, damaged or not. Not thread-safe."""

    def __init__(self, url: str, options: StoreOptions = NO_STORE_OPTIONS) -> None:
        """Look for the cluster, and list its ledger.

        Args:
            url: of the bucket.
            options: of the store that it is in.

        Raises:
            ConfigError: no cluster is there.
            ObjectStoreError, ObjectAccessDeniedError: the store cannot be used.
            UnsupportedLedgerError: another version has written it.
        """
        self.address = checked(url)
        self.place = objects_at(self.address, options)
        cluster_id = cluster_id_at(self.address, self.place)
        if cluster_id is None:
            raise ConfigError(f"no cluster is at {self.address}, and nothing that is left of one")
        self.cluster_id = cluster_id
        self.objects: Objects = Folder(self.place, f"{cluster_id}/")  # of the cluster
        self._rng = random.Random()
        self.reader = LedgerCheckpoints(self.objects, self._rng)
        self._random_ids: dict[int, str] = {}
        self._placements = Placements(self.objects)
        # None where there is none that can be read; those that were read last.
        self._entries: dict[int, Entry | None] = {}
        self._roots: dict[int, Root | None] = {}  # likewise, of whole checkpoints
        self._readable: dict[int, Root | None] = {}  # likewise, of those whose heads can be read
        self.faults: dict[str, str] = {}  # of objects that were read, by name
        self.numbers = self._listed(names.LEDGER)  # of entries, but for one that closes the ledger
        last = self.entry(self.numbers[-1]) if self.numbers else None
        self.is_closed = last is not None and last.content == NewFormat(CLOSED)
        if self.is_closed:
            self.numbers.pop()
        self.checkpoints = self._listed(names.CHECKPOINTS)  # of roots, whole or not

    def _listed(self, folder: str) -> list[int]:
        found = (names.number_of(one.name) for one in self.objects.list(folder))
        return sorted(number for number in found if number >= 0)

    @property
    def last(self) -> int:
        """The greatest number of an entry or a checkpoint; -1 if there is none."""
        return max((*self.numbers[-1:], *self.checkpoints[-1:]), default=NO_ENTRY)

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of all data, indexes and segments, by name."""
        return {
            one.name: one.size_in_bytes
            for folder in (names.DATA, names.SEGMENTS)
            for one in self.objects.list(folder)
        }

    def entry(self, number: int) -> Entry | None:
        """Return an entry; None if it is missing or damaged.

        Raises:
            UnsupportedLedgerError: another version has written it.
        """
        if number not in self._entries:
            first = number - number % _WINDOW
            numbers = range(first, first + _WINDOW)
            wanted = [names.entry_name(one) for one in numbers]
            found = self.objects.get_many(wanted)
            for at, name, data in zip(numbers, wanted, found, strict=True):
                self._entries[at] = self._decoded(name, data)
            while len(self._entries) > _ENTRIES_KEPT:
                del self._entries[next(iter(self._entries))]
        return self._entries[number]

    def _decoded(self, name: str, data: bytes | None) -> Entry | None:
        if data is None:
            self.faults[name] = MISSING
            return None
        try:
            return decode(data, name)
        except CorruptLedgerError as error:
            self.faults[name] = error.reason
            return None

    def root(self, number: int) -> Root | None:
        """Return the root of a checkpoint that is whole; None if it is not, and `faults` says why."""
        return self._root(number, self._roots, self.reader.ensure_whole)

    def readable_root(self, number: int) -> Root | None:
        """Return the root of a checkpoint whose heads can be read, as `root`."""
        return self._root(number, self._readable, self.reader.opened)

    def _root(
        self, number: int, known: dict[int, Root | None], check: Callable[[Root], object]
    ) -> Root | None:
        if number not in known:
            name, known[number] = names.root_name(number), None
            try:
                root = self._found_root(name, number)
                check(root)
                known[number] = root
            except CorruptLedgerError as error:
                self.faults[name] = f"{error.name}: {error.reason}"
        return known[number]

    def _found_root(self, name: str, number: int) -> Root:
        data = self.objects.get(name)
        if data is None:
            raise CorruptLedgerError(name, MISSING)
        root, entry = unpack_root(data, name, number), self.entry(number)
        if entry is not None:
            ensure_of(root, entry)
        return root

    def state(self, last: int) -> Reached:
        """Return the state after the last entry up to `last` that can be told, maybe with holes."""
        whole = self._reached(self.root, last)
        if not whole.why:
            return whole
        # Of two that lead as far the first one counts.
        return max(whole, self._reached(self.readable_root, last), key=lambda one: one.state.number)

    def _reached(self, root_of: Callable[[int], Root | None], last: int) -> Reached:
        found = (root_of(one) for one in reversed(self.checkpoints) if one <= last)
        root = next(filter(None, found), None)
        state = LedgerState() if root is None else self.reader.opened(root)
        while state.number < last:
            why = self._why_not_next(state)
            if why:
                return Reached(state, why)
        return Reached(state, "")

    def _why_not_next(self, state: LedgerState) -> str:
        """Let a state become the next one; return why that cannot be, empty if it is."""
        number = state.number + 1
        name, entry = names.entry_name(number), self.entry(number)
        if entry is None and number == 0:
            entry = self.first_again()
        if entry is None:
            return f"{name}: {self.faults[name]}"
        try:
            state.follow(entry)
        except CorruptLedgerError as error:
            return f"{name}: {error.reason}"
        return ""

    def first_again(self) -> Entry:
        """Return the first entry as it was, where it is lost."""
        after = self.entry(1)
        entry_id = self._random_id(0) if after is None else after.before
        start = LedgerStart(self.cluster_id, DEFAULT_LIMITS)
        return Entry(0, entry_id, NO_ENTRY_ID, after.time_ms if after else 0, start)

    def tombstone(self, number: int, state: LedgerState) -> Entry:
        """Return the tombstone of an entry up to a state, with its id as far as anything tells of it."""
        found, after = self.entry(number), self.entry(number + 1)
        before = self.entry(number - 1) if number else None
        if found is not None:
            return tombstone_of(found)
        if number == state.number:
            entry_id = state.entry_id
        else:
            root = self.root(number) if number in self.checkpoints else None
            told = [one for one in (after and after.before, root and root.entry_id) if one]
            entry_id = told[0] if told else self._random_id(number)
        first_id = names.ID_DIGITS * "0"
        id_before = first_id if not number else before and before.entry_id
        return Entry(
            number, entry_id, id_before or self._random_id(number - 1), state.time_ms, Tombstone()
        )

    def _random_id(self, number: int) -> str:
        """Return the id that stands for that of an entry of which nothing is known."""
        return self._random_ids.setdefault(number, names.random_id(self._rng))

    def changes(self, state: LedgerState) -> Iterator[tuple[str, list[Change]]]:
        """Yield what is at each offset of a state, by topic id and partition."""
        for topic_id in sorted(state.topics):
            for _, changes in sorted(self.changes_of(state, topic_id).items()):
                yield topic_id, changes

    def changes_of(self, state: LedgerState, topic_id: str) -> dict[int, list[Change]]:
        """Return what is at each offset of one topic, by partition, with holes for lost parts."""
        return self.reader.changes(state, topic_id, with_holes=True)

    def appends(self, state: LedgerState, topic_id: str) -> list[PartitionAppend]:
        """Return whatever a topic was ever read from, as far as entries and checkpoints tell, newest first."""
        created = state.topics[topic_id].created
        found: dict[PartitionAppend, None] = {}
        for number in reversed(self.numbers):
            entry = self.entry(number) if number > created else None
            if entry is not None and isinstance(entry.content, LedgerCommit | Replacement):
                found.update(dict.fromkeys(entry.content.appends.get(topic_id, ())))
        for number in reversed(self.checkpoints):
            root = self.root(number) if number >= created else None
            if root is not None:
                for changes in self.reader.changes(self.reader.opened(root), topic_id).values():
                    found.update(dict.fromkeys(one.append for one in changes))
        return [*found]

    def missing(
        self, state: LedgerState, why_else: Callable[[PlacedExtent], str] = lambda _: ""
    ) -> Iterator[MissingData]:
        """Yield what a state refers to and is not there; what is there is not read.

        Args:
            state: of the ledger.
            why_else: returns what is wrong with data that is there; empty if nothing is.
        """

        def why_not(placed: PlacedExtent) -> str:
            return self._why_missing(placed) or why_else(placed)

        for topic_id, changes in self.changes(state):
            for change in changes:
                for fault in faults(self._placements, [change], change[1:3], why_not):
                    yield MissingData(topic_id, change, fault)

    def _why_missing(self, placed: PlacedExtent) -> str:
        name, position, size_in_bytes, *_ = placed.extent
        size, end = self.sizes.get(name), position + size_in_bytes
        if size is None:
            return f"{name} is missing"
        return f"{name} has {size} bytes, and at least {end} are expected" if size < end else ""

    def objects_of(self, state: LedgerState) -> set[str]:
        """Return the names of all objects that a state refers to, by indexes too, and are there."""
        found = set[str]()
        for _, changes in self.changes(state):
            for change in changes:
                found.update(change.append.objects)
                with contextlib.suppress(CorruptLedgerError):  # an index that is lost
                    found.update(one.extent.name for one in self._placements.whole(change))
        return found & self.sizes.keys()


def faults(
    placements: Placements,
    changes: Iterable[Change],
    edges: tuple[int, int],
    why_not: Callable[[PlacedExtent], str],
) -> Iterator[Fault]:
    """Yield what cannot be read of a range of a partition, in order.

    Args:
        placements: of the cluster.
        changes: what is at each offset of the range.
        edges: start and end of the range.
        why_not: returns what is wrong with one extent; empty if nothing is.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store fails.
        Other errors, as `why_not`.
    """
    expected, end = edges
    for change in changes:
        if change.start_offset > expected:
            yield Fault(expected, change.start_offset, _NOTHING)
        expected = change.next_offset
        try:
            placed = [*placements.whole(change)]
        except CorruptLedgerError as error:
            why, count = f"{error.name}: {error.reason}", change.append.records_count
            yield Fault(change.start_offset, expected, why, error.name, count)
            continue
        for one in placed:
            why, extent = why_not(one), one.extent
            if why:
                yield Fault(
                    one.start_offset, one.next_offset, why, extent.name, extent.records_count
                )
    if expected < end:
        yield Fault(expected, end, _NOTHING)


def why_damaged(objects: Objects, placed: PlacedExtent) -> str:
    """Return what is wrong with one extent, which is read from its start; empty if nothing is."""
    whole, count = placed.whole, 0
    try:
        for read in BatchStream(objects, [whole], whole.start_offset).checked():
            count += sum(header.records_count for _, header in read.batches)
    except CorruptRecordError as error:
        return str(error)
    except MissingObjectError as error:
        return f"{error} is missing"
    extent = placed.extent
    if count == extent.records_count:
        return ""
    return (
        f"{extent.name} has {count} records from byte {extent.position} on, and the ledger says "
        f"{extent.records_count}"
    )
