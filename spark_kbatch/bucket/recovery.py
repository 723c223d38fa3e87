"""Recovery of a cluster from a one-way replica of its bucket, in which objects are missing.

A replica gets objects one by one and in no order, and ends at any moment. So what is good in it is a state: the
newest one that can be told, and of which every object is there.

    0 close    a last entry in the ledger, after which no one commits: what was before is the chain;
               it is a `format` with CLOSED, which no version knows
    1 chain    the newest state by checkpoints and entries; if an object is missing to which it
               refers, and that is younger than the GC boundary, the state before the entry that
               brought it, and so on
    2 lost     what later entries and checkpoints say that is not in that state
    3 copy     all objects of the state into the folder of a new cluster id, within the store
    4 ledger   tombstones up to the state's entry, and a checkpoint with the state; then a fence, which says when
    5 cluster  the object at the place names the new id

What is missing and older than the GC boundary is not on its way any more: it is lost, and takes
nothing else with it. The new cluster has holes there, as it has where the part of a checkpoint is
lost that says where the data is, and where no state before can be told: what refers to it stays,
and reading it is an error.

The last entry is created as any entry is. So whoever has committed is before it, and whoever comes
later reads it before its next commit, and is refused. So no commit is acknowledged that is not in
what was read of the ledger after it was closed. Readers go on.

Until the last step nothing has changed but that no one writes, and nothing is ever deleted: what
was there stays below the old id. Who looks only, as `--dry-run` does, begins with step 1.

A run that was stopped goes on where it was: the new id, and those of topics, follow from the chain, so a second run finds
what the first one has copied. A folder in which anything comes after the chain is left alone: it was finished once, and
may have been written to.

Topics get new ids. So a stream's checkpoint or a mirror that has read what is lost, and would find
other records at the same offsets, stops instead. A mirror into the cluster goes on from the
progress that the state has, and copies again what is lost; a group goes on from the offsets that
the state has. Numbers of entries go on, as objects are named by them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import uuid
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from spark_kbatch.bucket.checkpoints import LedgerCheckpoints
from spark_kbatch.bucket.ledger import Ledger, real_timing, signed
from spark_kbatch.bucket.objects import Folder, Objects, create_or_get
from spark_kbatch.bucket.place import readable_cluster, replace_cluster
from spark_kbatch.bucket.remains import LedgerRemains
from spark_kbatch.clock import now_ms, sleep_ms
from spark_kbatch.errors import ConfigError, CorruptLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.audit import words_of
from spark_kbatch.ledger.entries import (
    CLOSED,
    NO_ENTRY,
    NO_ENTRY_ID,
    Content,
    Entry,
    Fence,
    GcBoundary,
    LedgerCommit,
    NewFormat,
    Replacement,
    Tombstone,
    TopicCreation,
    encode,
)
from spark_kbatch.ledger.state import NO_CHECKPOINT, LedgerState, TopicExtents
from spark_kbatch.model import TopicPartition, text_of_uuid
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions

_AT_ONCE = 16
_TOMBSTONES_AT_ONCE = 1000
_WRITER = "recover"  # as entries name it, and the fence
# What these say is in the state in another way, or is nothing that can be lost.
_NOT_TOLD = (LedgerCommit, Replacement, GcBoundary, Fence, Tombstone)


class LostRange(NamedTuple):
    """Offsets of a partition that are lost, as far as anything tells of them."""

    topic_partition: TopicPartition
    start_offset: int
    next_offset: int
    records_count: int  # that entries tell of, which may be gone themselves

    @property
    def is_known(self) -> bool:
        """Whether entries tell of all offsets."""
        return self.records_count >= self.next_offset - self.start_offset


class LostQuery(NamedTuple):
    """A query that has written more than is left."""

    query_id: str
    last: int  # of its micro-batches that is left; -1 for none
    lost: int  # greatest one that is lost


class Chain(NamedTuple):
    """The entries that can be recovered, and what is lost."""

    cluster_id: str  # of the cluster that is there
    entry: int  # the last one
    time_ms: int  # of that
    why: str  # the next one is not in it; empty at the end of all that is there
    later: int  # entries after it that can be read
    newest: int  # the greatest number of an entry or checkpoint that is there
    has_holes: bool  # whether some of what is lost is in the state itself
    lost: tuple[LostRange, ...]
    undone: Mapping[int, str]  # by entry: what else had happened
    queries: tuple[LostQuery, ...]
    objects: int  # that are kept
    size_in_bytes: int  # of these


class Recovery:
    """Recovery of the cluster at one URL. Not thread-safe."""

    def __init__(self, url: str, options: StoreOptions = NO_STORE_OPTIONS) -> None:
        """Find the longest whole chain.

        Args:
            url: of the bucket.
            options: of the store that it is in.

        Raises:
            ConfigError: no cluster is there, or nothing of it can be recovered.
            ObjectStoreError, ObjectAccessDeniedError: the store cannot be used.
            UnsupportedLedgerError: another version has written it.
        """
        self._url, self._options = url, options
        self._look()

    def _look(self) -> None:
        self._remains = LedgerRemains(self._url, self._options)
        self.address, self._place = self._remains.address, self._remains.place
        self._state, why = self._newest_whole()
        self._names = self._remains.objects_of(self._state)
        self.chain = self._told(why)

    @property
    def is_needed(self) -> bool:
        """Whether something is lost, or an earlier run was stopped once the ledger was closed."""
        chain = self.chain
        return (
            self._remains.is_closed or bool(chain.why or chain.lost) or chain.newest > chain.entry
        )

    def _newest_whole(self) -> tuple[LedgerState, str]:
        """Return the newest state that is whole, and why no later one is."""
        remains = self._remains
        newest = state, why = remains.state(remains.last)
        if state.number == NO_ENTRY:
            raise ConfigError(
                f"nothing of the cluster {remains.cluster_id} at {self.address} can be recovered: "
                f"{why}"
            )
        while state.number != NO_ENTRY:
            late = (  # by the last entry when they were written
                one
                for one in remains.missing(state)
                if names.start_entry(one.fault.name) >= newest.state.gc_boundary
            )
            missing = min(late, key=lambda one: one.change.number, default=None)
            if missing is None:
                return state, why
            # It is in all states from the entry on that brought it, or from the checkpoint on that has it.
            state, stopped = remains.state(missing.change.number - 1)
            why = stopped or missing.fault.why
        return newest

    def _told(self, why: str) -> Chain:
        state, remains = self._state, self._remains
        numbers = [number for number in remains.numbers if number > state.number]
        later = [entry for number in numbers if (entry := remains.entry(number)) is not None]
        lost = _Lost(state)
        for entry in later:
            lost.add(entry.content)
        for number in remains.checkpoints:
            root = remains.readable_root(number) if number > state.number else None
            if root is not None:
                lost.add_heads(remains.reader.opened(root))
        holes = [
            LostRange(
                TopicPartition(lost.names[one.topic_id], one.change.append.partition),
                one.fault.start_offset,
                one.fault.next_offset,
                one.fault.records_count,
            )
            for one in remains.missing(state)
        ]
        return Chain(
            self._remains.cluster_id,
            state.number,
            state.time_ms,
            why,
            len(later),
            remains.last,
            bool(holes),
            (*holes, *lost.ranges()),
            {
                one.number: words_of(one.content, lost.names)
                for one in later
                if not isinstance(one.content, _NOT_TOLD)
            },
            tuple(lost.queries()),
            len(self._names),
            sum(remains.sizes[name] for name in self._names),
        )

    def recover(
        self, on_progress: Callable[[int, int], object] = lambda _done, _total: None
    ) -> str:
        """Begin a new cluster with the chain, and return its id.

        Args:
            on_progress: called with how many objects are copied, and how many are to be.

        Raises:
            CorruptLedgerError: an object is gone by now, or the store does not return what was written.
            ObjectStoreError, ObjectAccessDeniedError: the store fails; all is as it was.
        """
        rng = random.Random()
        if readable_cluster(self._place) is None:
            # Else a run that is stopped leaves two folders, and nothing tells which one is meant.
            replace_cluster(self._place, self._remains.cluster_id, "found")
        while not self._remains.is_closed:
            self._try_to_close()
            self._look()
        cluster_id, sizes = self._new_cluster()
        target = Folder(self._place, f"{cluster_id}/")
        renewed = self._renewed(cluster_id)
        self._copy(cluster_id, sizes, on_progress)
        self._bury(target, sizes)
        checkpoints = LedgerCheckpoints(target, rng)
        checkpoints.build(renewed)
        checkpoints.double(renewed.number)
        ledger = Ledger(self._place, cluster_id, real_timing(rng))
        if (ledger.state.number, ledger.state.topics) != (renewed.number, renewed.topics):
            raise CorruptLedgerError(names.LEDGER, "the store does not return what was written")
        ledger.commit(lambda state: Fence(_WRITER, state.fences.get(_WRITER, 0) + 1), by=_WRITER)
        ledger.make_checkpoint()
        replace_cluster(self._place, cluster_id, f"recovered from {self._remains.cluster_id}")
        return cluster_id

    def _try_to_close(self) -> None:
        """Close the ledger, unless another entry is first, after which it is to be looked at again."""
        last = self._remains.last
        before = self._remains.entry(last)
        # If it cannot be read no one commits after it either.
        entry_id, time_ms = (before.entry_id, before.time_ms) if before else (NO_ENTRY_ID, 0)
        own_id, time_ms = names.random_id(random.Random()), max(time_ms, now_ms())
        entry = Entry(last + 1, own_id, entry_id, time_ms, NewFormat(CLOSED), signed(_WRITER))
        name, data = names.entry_name(entry.number), encode(entry)
        create_or_get(
            self._remains.objects, name, data, attempts=8, pause_ms=100, sleep_ms=sleep_ms
        )

    def _new_cluster(self) -> tuple[str, dict[str, int]]:
        """Return the new cluster's id, and the sizes of the objects that an earlier run has left in its folder."""
        state = self._state
        chain = (self._remains.cluster_id, str(state.number), state.entry_id, *sorted(self._names))
        digest = hashlib.sha256("\n".join(chain).encode())
        while True:
            cluster_id = digest.hexdigest()[: names.ID_DIGITS]
            found = Folder(self._place, f"{cluster_id}/").list("")
            sizes = {one.name: one.size_in_bytes for one in found}
            if max(map(names.number_of, sizes), default=NO_ENTRY) <= state.number:
                return cluster_id, sizes
            digest.update(b"\n")

    def _copy(
        self, cluster_id: str, there: Mapping[str, int], on_progress: Callable[[int, int], object]
    ) -> None:
        wanted = sorted(self._names)

        def copied(name: str) -> bool:
            # An object is never changed, and is copied whole or not at all.
            return there.get(name) == self._remains.sizes[name] or self._place.copy(
                f"{self._remains.cluster_id}/{name}", f"{cluster_id}/{name}"
            )

        with ThreadPoolExecutor(_AT_ONCE, "kbatch-recover") as pool:
            for done, (name, is_there) in enumerate(
                zip(wanted, pool.map(copied, wanted), strict=True), 1
            ):
                if not is_there:
                    raise CorruptLedgerError(name, "it was there, and is missing by now")
                on_progress(done, len(wanted))

    def _bury(self, target: Objects, there: Container[str]) -> None:
        """Put a tombstone for each entry of the chain."""

        def put(entry: Entry) -> None:
            target.put(names.entry_name(entry.number), encode(entry))

        state = self._state
        entries = (
            self._remains.tombstone(number, state)
            for number in range(state.number + 1)
            if names.entry_name(number) not in there
        )
        with ThreadPoolExecutor(_AT_ONCE, "kbatch-recover") as pool:
            while some := [*itertools.islice(entries, _TOMBSTONES_AT_ONCE)]:
                deque(pool.map(put, some), maxlen=0)

    def _renewed(self, cluster_id: str) -> LedgerState:
        """Return the state with the new id, and with new ids of topics, which rests on no checkpoint."""
        state = self._state
        ids = {topic_id: _new_topic_id(cluster_id, topic_id) for topic_id in state.topics}
        extents = {topic_id: TopicExtents() for topic_id in ids.values()}
        for topic_id, changes in self._remains.changes(state):
            extents[ids[topic_id]].changes += changes
        return replace(
            state,
            cluster_id=cluster_id,
            topics={
                ids[topic_id]: head._replace(topic_id=ids[topic_id])
                for topic_id, head in state.topics.items()
            },
            heads={ids[topic_id]: heads for topic_id, heads in state.heads.items()},
            producers={
                (producer, ids[topic_id], partition): head
                for (producer, topic_id, partition), head in state.producers.items()
            },
            mirrors={name: _with_ids(text, ids) for name, text in state.mirrors.items()},
            groups={
                group: {(ids[topic_id], at): head for (topic_id, at), head in offsets.items()}
                for group, offsets in state.groups.items()
            },
            checkpoint=NO_CHECKPOINT,
            extents=extents,
        )


def _new_topic_id(cluster_id: str, topic_id: str) -> str:
    """Return the id of a topic in a new cluster: the same one in each run; never with a leading '-'."""
    found = uuid.UUID(cluster_id)
    while True:
        found = uuid.uuid5(found, topic_id)
        text = text_of_uuid(found.bytes)
        if not text.startswith("-"):
            return text


class _Lost:
    """The losses after a state, gathered from what is left of later entries and checkpoints."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self.names = state.topic_names
        self._starts = {
            (topic_id, number): end
            for topic_id in state.topics
            for number, end in state.ends(topic_id).items()
        }
        self._ends: dict[tuple[str, int], int] = {}
        self._counts = Counter[tuple[str, int]]()
        self._micro_batches: dict[str, int] = {}

    def add(self, content: Content) -> None:
        """Add what an entry says."""
        if isinstance(content, TopicCreation):
            self.names[content.topic_id] = content.name
            for number, offset in enumerate(content.first_offsets):
                self._starts.setdefault((content.topic_id, number), offset)
        if not isinstance(content, LedgerCommit):
            return
        for topic_id, appends in content.appends.items():
            for append in appends:
                key = topic_id, append.partition
                self._ends[key] = max(self._ends.get(key, 0), append.next_offset)
                self._counts[key] += append.records_count
        if content.micro_batch is not None:
            query_id, number = content.micro_batch
            self._micro_batches[query_id] = max(self._micro_batches.get(query_id, -1), number)

    def add_heads(self, later: LedgerState) -> None:
        """Add where partitions end in a later state."""
        for topic in later.topics.values():
            self.names.setdefault(topic.topic_id, topic.name)
            for number, end in later.ends(topic.topic_id).items():
                key = topic.topic_id, number
                self._ends[key] = max(self._ends.get(key, 0), end)
        for query_id, query in later.queries.items():
            self._micro_batches[query_id] = max(self._micro_batches.get(query_id, -1), query.number)

    def ranges(self) -> Iterator[LostRange]:
        """Yield the lost offsets of each partition."""
        by_name = sorted(self._ends, key=lambda key: (self.names[key[0]], key[1]))
        for key in by_name:
            topic_id, partition = key
            start, end = self._starts.get(key, 0), self._ends[key]
            if start < end:
                tp = TopicPartition(self.names[topic_id], partition)
                yield LostRange(tp, start, end, self._counts[key])

    def queries(self) -> Iterator[LostQuery]:
        """Yield the queries that have written more."""
        for query_id, number in sorted(self._micro_batches.items()):
            left, _ = self._state.last_kept(query_id)
            if number > left:
                yield LostQuery(query_id, left, number)


def _with_ids(progress: str, ids: Mapping[str, str]) -> str:
    """Return a mirror's progress with other ids of its target's topics; see `mirroring/progress.py`."""
    try:
        found = json.loads(progress)
        for topic in found["topics"].values():
            topic["target_topic_id"] = ids.get(topic["target_topic_id"], topic["target_topic_id"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return progress  # of a later format: the mirror will see that the topics are others
    return json.dumps(found, separators=(",", ":"))
