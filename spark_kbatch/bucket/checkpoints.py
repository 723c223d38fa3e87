"""Checkpoints: the state after an entry, so that a process that opens a ledger need not read all of it.

A checkpoint is a root and the parts that it names, each with its size and sum. Parts are put first, under names
that no one else uses, and then the root is created, under a name that tells the entry's number. So what a root
names is whole. Nothing is read that no root names.

    root    number, id and time of the entry; the part with the heads; by topic id, parts with extents
    heads   all that the state has but extents
    extents the changes of one topic's extents by some entries, in the order of entries

`ledger.checkpoint_format` has their formats. A root names the parts of the newest root before it
again, and adds one part for each topic that has changed since; a part that has grown as large as
half of the one before is merged with that, so that a topic has few parts and each change is
rewritten seldom. The newest root is looked up for that when the checkpoint is made: parts that
only an older one names may be on their way to be deleted.

Roots and parts are deleted some day. So a root that was listed may be gone: then a newer one is
there. A root that is damaged, or a part that is missing or damaged, makes its checkpoint worthless,
not the ledger: a process that was stopped for days between its parts and its root may have created
the root when its parts were gone. Readers take the next checkpoint before that one and more
entries; but they list once more before, since root and parts may have been deleted after the root
was read, and newer ones be there.

Entries become tombstones some day. From then on checkpoints alone have what they said, and all
checkpoints name the same parts. So that no single object is all that tells of them, there are two
of each, before the tombstones:

    part     a copy of each part of the checkpoint at whose entry the tombstones end, which readers
             take where the part is not sound
    root     another checkpoint after that one
    heads    that of another checkpoint; the entries between the two are whole

A part that is lost all the same, in all checkpoints, takes the extents that it had: its topic
cannot be read as a whole, and all others can, and checkpoints are made as before, which name it
again.

The root's entry must be there, and have the id that the root tells. If not, the ledger is corrupt.
That entry is not alone: if it is lost, a tombstone with the id that the root tells is put in its
place by a repair.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spark_kbatch.bucket.objects import CreateAnswer, Objects, read_twice
from spark_kbatch.errors import CorruptLedgerError, ObjectStoreError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checkpoint_format import (
    Root,
    ensure_of,
    pack_changes,
    pack_heads,
    pack_root,
    unpack_changes,
    unpack_heads,
    unpack_root,
)
from spark_kbatch.ledger.checksummed_json import sum_of
from spark_kbatch.ledger.entries import decode
from spark_kbatch.ledger.extents import Change, DataExtent, PartitionAppend, overlaid
from spark_kbatch.ledger.state import NO_CHECKPOINT, LedgerState, PartRef, TopicExtents

logger = logging.getLogger(__name__)

_LISTINGS_MAX = 100  # each after the newest root was deleted
_MERGED_FROM = 2  # a part is merged with one before it that has up to so many times its size


class CheckpointObjects(NamedTuple):
    """The objects of a checkpoint, as the store has them."""

    number: int
    root: bytes
    entry: bytes  # that it is of
    heads: bytes


class LostPartError(CorruptLedgerError):
    """A root is damaged, or a part and its copy are missing or damaged."""


class LedgerCheckpoints:
    """The checkpoints of one ledger. Not thread-safe."""

    def __init__(self, objects: Objects, rng: random.Random) -> None:
        """Read and build checkpoints.

        Args:
            objects: of the cluster, without its prefix.
            rng: for the names of parts.
        """
        self._objects, self._rng = objects, rng
        self.objects: CheckpointObjects | None = None  # of the one that was opened or built last
        self.worthless: set[int] = set()  # checkpoints of which something is lost
        self._loaded: dict[PartRef, list[Change]] = {}  # parts of one checkpoint
        self._loaded_for = NO_CHECKPOINT

    def numbers(self, hinted: int = NO_CHECKPOINT) -> list[int]:
        """Return the numbers of all checkpoints from the hinted one on; of all if there are none from there."""
        after = names.root_name(hinted - 1) if hinted > 0 else ""
        listed = self._objects.list(names.CHECKPOINTS, after)
        found = sorted(number for one in listed if (number := names.number_of(one.name)) >= 0)
        return self.numbers() if after and not found else found

    def newest_number(self, hinted: int = NO_CHECKPOINT, last: int = names.NUMBER_MAX) -> int:
        """Return the number of the newest checkpoint up to `last` that was not given up; NO_CHECKPOINT if none.

        Args:
            hinted: as of `numbers`.
            last: an entry's number.
        """
        found = (one for one in self.numbers(hinted) if one <= last and one not in self.worthless)
        return max(found, default=NO_CHECKPOINT)

    def newest(self, hinted: int = NO_CHECKPOINT) -> LedgerState | None:
        """Return the state of the newest checkpoint that can be read; None if there is none.

        Args:
            hinted: the number of a checkpoint from which on to look first; it need not exist.

        Raises:
            CorruptLedgerError: a checkpoint is none of this ledger, or its entry is lost.
        """
        for _ in range(_LISTINGS_MAX):
            numbers, is_old = self.numbers(hinted), False
            for number in reversed(numbers):
                if number in self.worthless:
                    continue
                try:
                    found = self._root_and_objects(number)
                    heads = self.part(found[0].heads) if found else b""
                except LostPartError as error:
                    self.give_up(number, error)
                    is_old = True  # The list may be: it was deleted after its root was read.
                    continue
                if found is None:
                    break  # deleted since it was listed, so there are newer ones
                if is_old:
                    break
                self.objects = CheckpointObjects(number, *found[1:], heads)
                return self._state_of(found[0], heads)
            else:
                if hinted <= 0 and not is_old:
                    return None
                hinted = NO_CHECKPOINT
        raise ObjectStoreError("list", names.CHECKPOINTS, "it shows what is not there")

    def give_up(self, number: int, error: LostPartError) -> None:
        """Read a checkpoint no more, because something of it is lost."""
        logger.warning("reading without checkpoint %d: %s: %s", number, error.name, error.reason)
        self.worthless.add(number)

    def root(self, number: int) -> Root | None:
        """Return the root of the checkpoint after an entry; None if there is none.

        Raises:
            LostPartError: it is damaged.
            CorruptLedgerError: it does not belong to the entry with its number, or that is lost.
        """
        found = self._root_and_objects(number)
        return None if found is None else found[0]

    def _root_and_objects(self, number: int) -> tuple[Root, bytes, bytes] | None:
        """Return a root, and the bytes of it and of its entry; raises as `root`."""
        name, entry_name = names.root_name(number), names.entry_name(number)
        data, entry_data = self._objects.get_many([name, entry_name])
        if data is None:
            return None
        if entry_data is None:
            # Both were asked for at once: the entry may have been created in between, but before the root.
            entry_data = self._objects.get(entry_name)
        if entry_data is None:
            raise CorruptLedgerError(entry_name, f"it is missing, and {name} is of it")
        try:
            data, root = read_twice(
                data,
                lambda data: unpack_root(data, name, number),
                lambda: self._objects.get(name),
            )
        except CorruptLedgerError as error:
            raise LostPartError(name, error.reason) from None
        entry_data, entry = read_twice(
            entry_data,
            lambda data: decode(data, entry_name),
            lambda: self._objects.get(entry_name),
        )
        ensure_of(root, entry)
        return root, data, entry_data

    def changes(
        self, state: LedgerState, topic_id: str, *, with_holes: bool = False
    ) -> dict[int, list[Change]]:
        """Return what is at each offset of a topic from the start offsets on, by partition, in order.

        Args:
            state, topic_id: the topic, and as of when.
            with_holes: whether what lost parts told of is read from an object that is not there.

        Raises:
            LostPartError: a part of the state's checkpoint is lost, and there are to be no holes.
        """
        extents = state.extents[topic_id]
        if self._loaded_for != state.checkpoint:
            self._loaded, self._loaded_for = {}, state.checkpoint
        found = list[Change]()
        for part in extents.parts:
            try:
                if part not in self._loaded:
                    self._loaded[part] = self._load(part, state, topic_id)
                found += self._loaded[part]
            except LostPartError as error:
                if not with_holes:
                    raise
                found = [*_holes(state, topic_id, error.name), *found]
        return _from_start(state, topic_id, [*found, *extents.changes])

    def loaded(self, state: LedgerState, topic_id: str) -> list[list[Change] | None]:
        """Return what each part with a topic's extents has; None for one that `changes` reads."""
        loaded = self._loaded if self._loaded_for == state.checkpoint else {}
        return [loaded.get(part) for part in state.extents[topic_id].parts]

    def opened(self, root: Root) -> LedgerState:
        """Return the state that a checkpoint has; raises as `changes`."""
        return self._state_of(root, self.part(root.heads))

    def restored(self, objects: CheckpointObjects) -> LedgerState:
        """Return the state that these objects make; no store is asked.

        Raises:
            CorruptLedgerError: they are damaged, or do not belong together.
        """
        root = unpack_root(objects.root, names.root_name(objects.number), objects.number)
        ensure_of(root, decode(objects.entry, names.entry_name(objects.number)))
        if _why_not(root.heads, objects.heads):
            raise LostPartError(root.heads.name, "it is another one")
        state = self._state_of(root, objects.heads)
        self.objects = objects
        return state

    def _state_of(self, root: Root, heads: bytes) -> LedgerState:
        state = unpack_heads(heads, root.heads.name)
        if state.gc_boundary > root.number:
            raise CorruptLedgerError(
                root.heads.name,
                f"its horizon is {state.gc_boundary}; expected an entry up to {root.number}",
            )
        state.number, state.entry_id, state.time_ms = root.number, root.entry_id, root.time_ms
        state.checkpoint = root.number
        state.extents = {
            topic_id: TopicExtents(root.extents.get(topic_id, ())) for topic_id in state.topics
        }
        return state

    def ensure_whole(self, root: Root) -> None:
        """Check that each part of a checkpoint, or its copy, is whole; raises CorruptLedgerError."""
        state = self.opened(root)
        for topic_id in state.topics:
            self.changes(state, topic_id)

    def damaged(self, parts: Iterable[PartRef]) -> Iterator[tuple[PartRef, str, str]]:
        """Yield parts whose object or copy is damaged, or object is missing, its name, and why."""
        for part in parts:
            for name in (part.name, part.name + names.COPY):
                data = self._objects.get(name)
                why = _why_not(part, data)
                if why and (data is not None or name == part.name):
                    yield part, name, why

    def double(self, number: int) -> None:
        """Put a copy of each part of a checkpoint that has none; raises as `root` and `part`."""
        root, listed = self.root(number), {one.name for one in self._objects.list(names.PARTS)}
        for part in root.parts if root else ():
            if part.name + names.COPY not in listed:
                self._objects.put(part.name + names.COPY, self.part(part))

    def rest(self, state: LedgerState) -> None:
        """Let a state rest on the newest checkpoint that is not after it; raises as `root`."""
        self._rest_on_newer(state, self.newest_number(state.checkpoint, state.number))

    def _rest_on_newer(self, state: LedgerState, number: int) -> bool:
        """Let a state rest on a checkpoint, unless it does; return False if that is gone."""
        root = self.root(number) if number > state.checkpoint else None
        if root is not None:
            _rest_on(state, root)
        return state.checkpoint == number

    # Building.

    def build(self, state: LedgerState, entry: bytes = b"") -> bool:
        """Make the checkpoint of a state, and let the state rest on it; return False if it is not needed.

        Args:
            state: to store.
            entry: the one that the state is after, for `objects`.

        Raises:
            LostPartError: a part that would be merged is gone, and so is its checkpoint.
        """
        newest = self.newest_number(state.checkpoint)
        if newest >= state.number or not self._rest_on_newer(state, newest):
            return False
        random_id = names.random_id(self._rng)
        extents = {
            topic_id: parts
            for topic_id in sorted(state.extents)
            if (parts := self._parts(state, topic_id, random_id))
        }
        name = names.part_name(state.number, random_id, "heads")
        heads_data = pack_heads(state)
        heads = self._put(name, heads_data)
        root = Root(state.number, state.entry_id, state.time_ms, heads, extents)
        root_data = pack_root(root)
        answer = self._objects.create(names.root_name(root.number), root_data)
        if answer is CreateAnswer.CREATED:
            _rest_on(state, root)
            self.objects = CheckpointObjects(state.number, root_data, entry, heads_data)
        return answer is CreateAnswer.CREATED

    def _parts(self, state: LedgerState, topic_id: str, random_id: str) -> tuple[PartRef, ...]:
        """Return the parts with a topic's extents, of which at most one is new."""
        extents = state.extents[topic_id]
        parts, changes = [*extents.parts], extents.changes
        if not changes:
            return extents.parts
        data = pack_changes(_from_start(state, topic_id, changes))
        while parts and parts[-1].size_in_bytes <= _MERGED_FROM * len(data):
            try:
                older = self._load(parts[-1], state, topic_id)
            except LostPartError:
                if state.checkpoint not in self.numbers(state.checkpoint):
                    raise
                break  # It is named again, and what it had is all that is lost.
            parts.pop()
            changes = [*older, *changes]
            data = pack_changes(_from_start(state, topic_id, changes))
        name = names.part_name(state.number, random_id, f"extents-{topic_id}")
        return (*parts, self._put(name, data))

    def _put(self, name: str, data: bytes) -> PartRef:
        self._objects.put(name, data)
        return PartRef(name, len(data), sum_of(data))

    def _load(self, part: PartRef, state: LedgerState, topic_id: str) -> list[Change]:
        partitions = state.topics[topic_id].partitions
        return unpack_changes(self.part(part), part.name, state.checkpoint, partitions)

    def part(self, part: PartRef) -> bytes:
        """Return the bytes of a part, asked for twice, or of its copy; raises LostPartError."""
        for name in (part.name, part.name, part.name + names.COPY):
            found = self._objects.get(name)
            if found is not None and not _why_not(part, found):
                return found
        raise LostPartError(part.name, _why_not(part, self._objects.get(part.name)))


def _why_not(part: PartRef, data: bytes | None) -> str:
    """Return why bytes are not those of a part; empty if they are."""
    if data is None:
        return "it is missing"
    if (len(data), sum_of(data)) == part[1:]:
        return ""
    return f"it has {len(data)} bytes with the sum {sum_of(data)}, and {part[1:]} is expected"


def _rest_on(state: LedgerState, root: Root) -> None:
    """Take a checkpoint at or before a state as the one that its extents go on from."""
    for topic_id, extents in state.extents.items():
        # A topic that was created again since may have the id of the one that the checkpoint has.
        if state.topics[topic_id].created <= root.number:
            extents.parts = root.extents.get(topic_id, ())
            extents.changes = [one for one in extents.changes if one.number > root.number]
    state.checkpoint = root.number


def _from_start(
    state: LedgerState, topic_id: str, changes: Iterable[Change]
) -> dict[int, list[Change]]:
    """Return what is at each offset, without what is before the start offsets."""
    heads = state.heads[topic_id]
    return {
        partition: [
            one._replace(start_offset=max(one.start_offset, heads[partition].start_offset))
            for one in found
            if one.next_offset > heads[partition].start_offset
        ]
        for partition, found in overlaid(changes).items()
    }


def _holes(state: LedgerState, topic_id: str, part: str) -> Iterator[Change]:
    """Yield changes to all offsets of a topic, for those that a lost part alone told of.

    They are read from an object that is not there, whose time is the oldest: it goes with the first
    retention.
    """
    job_id = hashlib.sha256(part.encode()).hexdigest()[: names.ID_DIGITS]
    name = names.data_name(0, job_id, names.ID_DIGITS * "0")
    for partition, head in enumerate(state.heads[topic_id]):
        start, span = head.start_offset, head.next_offset - head.start_offset
        if span:
            placed = (DataExtent(name, 0, 1, span, 0, 0, 0),)
            append = PartitionAppend(partition, start, span, 0, 0, placed)
            yield Change(state.checkpoint, start, head.next_offset, append)
