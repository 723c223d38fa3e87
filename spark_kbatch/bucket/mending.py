"""Repair of a cluster in a bucket, on request, while no one writes to it.

    what is found                                   what is done
    ----------------------------------------------  ----------------------------------------------------
    the object `cluster` is missing or damaged      it is put again, if only one cluster can be meant
    a part of a checkpoint is missing or damaged,   it is put again, as its copy is from the part
      and its copy is whole
    a checkpoint is damaged, or a part is lost      its root is deleted, and one of the last entry
                                                    made, if another one and entries tell the state;
                                                    else it is left, and all other topics can be
                                                    read and written
    the first entry is missing or damaged           it is made again, by the name of its folder
    an entry is missing or damaged, and a whole     a tombstone is put in its place: the checkpoint has what it
      checkpoint is at or after it                  said
    another entry is missing or damaged, or does    reported and left: what came after it cannot be told; see
      not follow                                    `recovery`
    an extent is missing or damaged, and its        they are written again into a segment, and read from that;
      batches are also where they were before         nothing is lost
      a merge
    another extent is missing or damaged            reported and left: what follows it can still be read
    an index is missing or damaged                  likewise

Whatever cannot be mended, all else is looked at, and mended. So nothing is given up here: whatever
is done loses no record, and what cannot be done so is said. A merge leaves the objects that it has
read until the GC boundary has passed, so for about a week a damaged segment can be written again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from spark_kbatch.bucket.checkpoints import LostPartError
from spark_kbatch.bucket.ledger import Ledger, ensure_may_write, real_timing
from spark_kbatch.bucket.merging import Merger, MergeRun, is_small
from spark_kbatch.bucket.place import read_cluster, replace_cluster
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.bucket.reading import partitions_of, topic_id_of
from spark_kbatch.bucket.remains import Fault, LedgerRemains, faults, why_damaged
from spark_kbatch.errors import CorruptLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import NO_ENTRY, Entry, encode
from spark_kbatch.ledger.extents import Change
from spark_kbatch.ledger.state import NO_CHECKPOINT, LedgerState
from spark_kbatch.model import LONG_MAX, NO_PARTITION, TopicPartition
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.store.reports import RepairReport

_LEFT = "it is left as it is"


class LedgerReport(NamedTuple):
    """The damage in a ledger, and what was done about it, or would be."""

    last_entry: int  # of the state that can be told
    found: tuple[str, ...]  # sentences
    damaged: tuple[str, ...]  # what cannot be repaired


class BucketRepair:
    """One run, or dry run, of the repair of the cluster at one URL, to which no one writes. Not thread-safe."""

    def __init__(
        self, url: str, options: StoreOptions = NO_STORE_OPTIONS, *, dry_run: bool
    ) -> None:
        """Look at the ledger.

        Args:
            url: of the bucket.
            options: of the store that it is in.
            dry_run: whether to report what would be done without doing it.

        Raises:
            ConfigError: no cluster is there.
            ObjectStoreError, ObjectAccessDeniedError: the store cannot be used.
            UnsupportedLedgerError: another version has written it.
        """
        self._dry_run = dry_run
        self._remains = LedgerRemains(url, options)
        self._objects = self._remains.objects
        self._state, self._why = self._remains.state(self._remains.last)
        self._is_open = False  # whether the ledger can be opened, and written to
        self._found: list[str] = []
        self._damaged: list[str] = []

    # The ledger.

    def ledger(self, *, quick: bool = False) -> LedgerReport:
        """Repair the ledger and its checkpoints, and report it; raises as `Objects`.

        Args:
            quick: whether to leave out whether each entry before the newest checkpoint's is sound.

        Raises:
            UnsupportedLedgerError: writers need a later version.
        """
        if not self._dry_run:
            ensure_may_write(self._state)
        self._mend_place()
        self._mend_parts()
        if self._remains.is_closed:
            self._damaged.append(
                "it is closed by a `kbatch recover` that was stopped, and no one can write: "
                "run that again"
            )
        elif self._state.number == NO_ENTRY or self._why:
            self._damaged.append(
                f"{self._why or 'there is no entry'}; {_LEFT}, and what came after it cannot be told: "
                "`kbatch recover` begins a cluster with what was before it"
            )
        else:
            self._is_open = True
            self._mend_entries(quick=quick)
            self._mend_checkpoints()
        return LedgerReport(self._state.number, tuple(self._found), tuple(self._damaged))

    def _mend(self, sentence: str, do: Callable[[], object]) -> None:
        """Tell what is wrong and is mended, and mend it, unless that is a dry run."""
        self._found.append(sentence)
        if not self._dry_run:
            do()

    def _put_entry(self, what: str, entry: Entry) -> None:
        """Put an entry in place of one that cannot be read."""
        name = names.entry_name(entry.number)
        self._mend(
            f"{name}: {self._remains.faults[name]}; {what}",
            lambda: self._objects.put(name, encode(entry)),
        )

    def _mend_place(self) -> None:
        try:
            why = "" if read_cluster(self._remains.place) else f"{names.CLUSTER} is missing"
        except CorruptLedgerError as error:
            why = f"{names.CLUSTER} is damaged: {error.reason}"
        if why:
            self._mend(
                f"{why}: it is put again, and names {self._remains.cluster_id}",
                lambda: replace_cluster(self._remains.place, self._remains.cluster_id, "repaired"),
            )

    def _mend_parts(self) -> None:
        remains = self._remains
        roots = [root for one in remains.checkpoints if (root := remains.readable_root(one))]
        parts = dict.fromkeys(part for root in roots for part in root.parts)
        for part, name, why in remains.reader.damaged(parts):
            with contextlib.suppress(LostPartError):  # told with its checkpoint
                put = functools.partial(self._objects.put, name, remains.reader.part(part))
                self._mend(f"{name}: {why}; it is put again, as there are two of it", put)

    def _mend_entries(self, *, quick: bool) -> None:
        remains, state = self._remains, self._state
        base = max((one for one in remains.checkpoints if remains.root(one)), default=NO_ENTRY)
        if base == NO_ENTRY and remains.entry(0) is None and state.checkpoint == NO_CHECKPOINT:
            self._put_entry("it is made again", remains.first_again())
        listed = {*remains.numbers} - {base} if quick else {*()}  # that one is read by all
        for number in range(base + 1):
            if number not in listed and remains.entry(number) is None:
                self._put_entry(
                    f"a tombstone is put in its place, as checkpoint {base} has what it said",
                    remains.tombstone(number, state),
                )

    def _mend_checkpoints(self) -> None:
        remains = self._remains
        broken = [number for number in remains.checkpoints if remains.root(number) is None]
        if self._state.checkpoint in broken:
            fault = remains.faults[names.root_name(self._state.checkpoint)]
            self._damaged.append(
                f"{fault}; {_LEFT}, and so are all checkpoints: what it had cannot be read, and all "
                "else can; `kbatch recover` begins a cluster without it"
            )
            return
        for number in broken:
            name = names.root_name(number)
            self._found.append(
                f"{name} cannot be used: {remains.faults[name]}; it is deleted, and a checkpoint of entry "
                f"{self._state.number} is made"
            )
        if broken and not self._dry_run:
            self._objects.delete(map(names.root_name, broken))
            self._opened().make_checkpoint()

    def _opened(self) -> Ledger:
        return Ledger(self._remains.place, self._remains.cluster_id, real_timing())

    # Partitions.

    def verify(self, chosen: Iterable[TopicPartition] | None = None) -> Iterator[RepairReport]:
        """Check all, or the ledger and some partitions, as far as can be told; yield reports.

        That of the ledger has the topic "" and the partition -1, and is left out if it is well.
        """
        _, *found = self.ledger(quick=True)
        if any(found):
            yield RepairReport(NO_PARTITION, -1, -1, *found)
        yield from self.repair(chosen)

    def seen(self) -> Iterator[str]:
        """Yield sentences of what maintenance can see: the ledger, lost data, what it may merge."""

        def why_small(placed: PlacedExtent) -> str:
            return why_damaged(self._objects, placed) if is_small(placed) else ""

        yield from itertools.chain(*self.ledger(quick=True)[1:])
        for one in self._remains.missing(self._state, why_small):
            topic = self._state.topics[one.topic_id].name
            yield f"{TopicPartition(topic, one.change.append.partition)}: {one.fault}"

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; none is internal."""
        del internal
        return sorted(self._state.topic_ids)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            CorruptLedgerError: it may be in what cannot be told.
        """
        self._ensure_told(topic)
        return partitions_of(self._state, topic)

    def _ensure_told(self, topic: str) -> None:
        """Raise CorruptLedgerError if a topic may be in what cannot be told."""
        if self._why and topic not in self._state.topic_ids:
            name, _, reason = self._why.partition(": ")
            raise CorruptLedgerError(name, reason)

    def known(self, topic_partition: TopicPartition) -> TopicPartition:
        """Return a partition.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
        """
        topic, partition = topic_partition
        self._ensure_told(topic)
        self._state.partition(topic_id_of(self._state, topic), partition)
        return topic_partition

    def repair(self, chosen: Iterable[TopicPartition] | None = None) -> Iterator[RepairReport]:
        """Repair partitions, by default all, after the ledger, and yield a report of each.

        Where the ledger cannot be opened, they are only looked at. Raises as `Objects`.
        """
        merger = None
        if self._is_open and not self._dry_run:
            ledger = self._opened()
            merger = Merger(ledger, ledger.timing)
        wanted = None if chosen is None else {*chosen}
        for topic in sorted(self._state.topics.values(), key=lambda one: one.name):
            mended = _MendedTopic(
                self._remains, self._state, topic.topic_id, merger, is_open=self._is_open
            )
            for number in range(topic.partitions):
                topic_partition = TopicPartition(topic.name, number)
                if wanted is None or topic_partition in wanted:
                    yield mended.report(topic_partition)


class _MendedTopic:
    """The partitions of one topic, of which what is damaged is looked for elsewhere."""

    def __init__(
        self,
        remains: LedgerRemains,
        state: LedgerState,
        topic_id: str,
        merger: Merger | None,
        *,
        is_open: bool,
    ) -> None:
        """Set up; without a merger nothing is done, and what would be is reported if it is open."""
        self._objects, self._remains, self._state = remains.objects, remains, state
        self._topic_id, self._merger, self._is_open = topic_id, merger, is_open
        self._placements = Placements(remains.objects)
        self._sound: dict[PlacedExtent, bool] = {}  # whether it is, of those that were looked at
        self._changes = remains.changes_of(state, topic_id)

    @functools.cached_property
    def _others(self) -> dict[int, list[PlacedExtent]]:
        """All extents that the topic was ever read from and that are there, by partition."""
        found: dict[int, list[PlacedExtent]] = {}
        for append in self._remains.appends(self._state, self._topic_id):
            whole = Change(NO_ENTRY, append.base_offset, append.next_offset, append)
            extents = found.setdefault(append.partition, [])
            with contextlib.suppress(CorruptLedgerError):  # an index that is missing or damaged
                for placed in self._placements.of([whole], 0, LONG_MAX):
                    if placed.extent.name in self._remains.sizes:
                        extents.append(placed)
        return found

    def report(self, topic_partition: TopicPartition) -> RepairReport:
        """Repair a partition, and report it; raises as `Objects`."""
        partition = topic_partition.partition
        head = self._state.partition(self._topic_id, partition)
        found, damaged = list[str](), list[str]()
        mended = head.start_offset  # up to there
        changes = self._changes.get(partition, [])
        edges = head.start_offset, head.next_offset
        why_not = functools.partial(why_damaged, self._objects)
        for fault in faults(self._placements, changes, edges, why_not):
            if fault.next_offset <= mended:
                continue  # it was in what was written again
            run = self._run(partition, fault) if self._is_open else []
            if not run:
                damaged.append(f"{fault}; {_LEFT}, and reading it is an error")
                continue
            count = len({one.extent.name for one in run})
            found.append(
                f"{fault}; offsets {run[0].start_offset} to {run[-1].next_offset - 1} are written again from where "
                f"they were before: {count} {'object' if count == 1 else 'objects'}"
            )
            mended = run[-1].next_offset
            if self._merger is not None:
                merged = self._merger.merge(
                    MergeRun(self._topic_id, partition, run, self._state.number)
                )
                self._merger.commit(self._topic_id, [merged])
        return RepairReport(
            topic_partition, head.start_offset, head.next_offset, tuple(found), tuple(damaged)
        )

    def _run(self, partition: int, fault: Fault) -> list[PlacedExtent]:
        """Return whole extents, none of them damaged, that have all offsets of a fault; none if there are not all."""
        others = self._others.get(partition, [])
        for first in others:
            if first.start_offset <= fault.start_offset < first.next_offset:
                run = self._run_from(first, others, fault.next_offset)
                if run:
                    return run
        return []

    def _run_from(
        self, first: PlacedExtent, others: list[PlacedExtent], end: int
    ) -> list[PlacedExtent]:
        run: list[PlacedExtent] = []
        one: PlacedExtent | None = first
        while one is not None and self._is_sound(one):
            run.append(one)
            if one.next_offset >= end:
                return run
            offset = one.next_offset
            at_offset = (other for other in others if other.start_offset == offset)
            one = next(filter(self._is_sound, at_offset), None)
        return []

    def _is_sound(self, placed: PlacedExtent) -> bool:
        if placed not in self._sound:
            self._sound[placed] = not why_damaged(self._objects, placed)
        return self._sound[placed]
