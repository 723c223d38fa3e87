"""Reads of several partitions whose batches lie in the same small objects: each object is asked for once.

A job's task leaves one object, with its batches of all partitions. Read partition by partition, such objects cost
a request for each partition and object. So a batch read or a micro-batch of many is cut between commits, the same
ones in all partitions of a topic, and each Spark task reads all partitions from one cut to the next:

    common_cuts   where to cut, by the sizes in a few commits, so that a plan does not load all indexes
    gathered      the parts of one task, in the order of offsets within each partition; about twice HELD_BYTES of
                  objects are in memory

Only what was not merged is cut so. An object on both sides of a cut is asked for twice, and that is all that depends
on where the cuts are.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from spark_kbatch.bucket.batch_stream import request_threads
from spark_kbatch.bucket.objects import ObjectInfo, RangeReader
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.consumer.same_topic import recreated
from spark_kbatch.errors import ObjectStoreError, UnknownTopicOrPartitionError
from spark_kbatch.ledger.extents import FINAL_EPOCH, Change, within
from spark_kbatch.model import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from spark_kbatch.bucket.reading import BucketReads, PartitionReader

HELD_BYTES = 16 << 20
SMALL_BYTES = 256 << 10  # an extent
_EXTENTS_MIN = 1000  # of a read that is cut
_EXTENTS_OF_OBJECT_MIN = 4
_OBJECTS_OF_TASK_MIN = 64
_SAMPLES = 16  # commits
_RANKS_AT_ONCE = 64
REQUESTS_AT_ONCE = 16
_WASTE_MAX = 2  # bytes that are read of an object for each that is wanted

K = TypeVar("K")
Part = tuple[OffsetRange, "AbstractContextManager[PartitionReader]"]


def unmerged(changes: Sequence[Change]) -> Sequence[Change]:
    """Return the last changes of a partition, of which none is merged."""
    first = len(changes)
    while first > 0 and changes[first - 1].append.leader_epoch != FINAL_EPOCH:
        first -= 1
    return changes[first:]


def ranks(changes: Mapping[K, Sequence[Change]]) -> dict[K, list[int]]:
    """Return a number for each change: the same for changes of two partitions that have objects in common.

    The numbers of a partition never fall. They are an order of the commits as far as objects tell of it: entries
    that are in a checkpoint have no numbers there.
    """
    longest: Sequence[Change] = max(changes.values(), key=len, default=())
    known: dict[str, int] = {}
    for rank, change in enumerate(longest):
        known |= dict.fromkeys(change.append.objects, rank)
    found: dict[K, list[int]] = {}
    for key, some in changes.items():
        found[key], rank = [], 0
        for change in some:
            rank = max(rank, *(known.get(name, 0) for name in change.append.objects))
            found[key].append(rank)
    return found


def common_cuts(
    placements: Placements, held: Mapping[TopicPartition, Sequence[Change]], *, piece_bytes: int
) -> list[dict[TopicPartition, int]]:
    """Return the offsets at which tasks begin that read all partitions, task by task; none if that saves little.

    Args:
        placements: of the cluster.
        held: what is in the range of each partition.
        piece_bytes: about what a task reads at most.
    """
    tails = {tp: tail for tp, changes in held.items() if (tail := unmerged(changes))}
    if len(tails) < _EXTENTS_OF_OBJECT_MIN:
        return []
    ranked = ranks(tails)
    offsets_of: dict[int, int] = {}  # by rank
    for tp, tail in tails.items():
        for one, rank in zip(tail, ranked[tp], strict=True):
            offsets_of[rank] = offsets_of.get(rank, 0) + _span(one)
    every = sorted(offsets_of)
    sampled = set(every[:: -(-len(every) // _SAMPLES)])
    changes = [
        one
        for tp, tail in tails.items()
        for one, rank in zip(tail, ranked[tp], strict=True)
        if rank in sampled
    ]
    placements.load_indexes(changes)
    extents = [one.extent for change in changes for one in placements.whole(change)]
    size, objects = sum(one.size_in_bytes for one in extents), len({one.name for one in extents})
    if (
        len(extents) * len(every) < _EXTENTS_MIN * len(sampled)
        or len(extents) < _EXTENTS_OF_OBJECT_MIN * objects
        or size > SMALL_BYTES * len(extents)
    ):
        return []
    offset_bytes = size / sum(map(_span, changes))
    tasks = min(objects * len(every) // (len(sampled) * _OBJECTS_OF_TASK_MIN), len(tails))
    most = min(sum(offsets_of.values()) * offset_bytes / max(tasks, 1), piece_bytes)
    begin, left = [0], 0.0
    for rank in every:
        added = offsets_of[rank] * offset_bytes
        if added > piece_bytes:
            # Of a large job: it is divided partition by partition, and so is what is before it.
            begin, left = [rank + 1], 0.0
            continue
        if left and left + added > most:
            begin.append(rank)
            left = 0.0
        left += added
    if begin[0] > every[-1]:
        return []
    return [{tp: _start(tail, ranked[tp], rank) for tp, tail in tails.items()} for rank in begin]


def _start(tail: Sequence[Change], ranked: Sequence[int], rank: int) -> int:
    """Return the first offset of a partition with the rank or a later one."""
    first = bisect.bisect_left(ranked, rank)
    return tail[first].start_offset if first < len(tail) else tail[-1].next_offset


def _span(change: Change) -> int:
    return change.next_offset - change.start_offset


class HeldObjects:
    """Parts of objects that are in memory, or coming; all else is asked of the store. Thread-safe."""

    def __init__(self, objects: RangeReader, executor: Executor) -> None:
        """Set up; the executor asks for what is to be held."""
        self._objects, self._executor = objects, executor
        self._held: dict[str, tuple[int, int, Future[bytes | None]]] = {}

    def hold(self, extents: Iterable[PlacedExtent]) -> set[str]:
        """Ask for the objects of extents; return the names of those that are held until they are dropped."""
        spans: dict[str, tuple[int, int, int]] = {}  # start, end, bytes that are wanted
        for placed in extents:
            one = placed.extent
            end = one.position + one.size_in_bytes
            first, last, wanted = spans.get(one.name, (one.position, end, 0))
            spans[one.name] = min(first, one.position), max(last, end), wanted + one.size_in_bytes
        held = set()
        for name, (start, end, wanted) in spans.items():
            if end - start <= _WASTE_MAX * wanted:
                coming = self._executor.submit(self._objects.get_range, name, start, end - start)
                self._held[name] = start, end, coming
                held.add(name)
        return held

    def drop(self, names: Iterable[str]) -> None:
        """Let go of objects."""
        for name in names:
            self._held.pop(name, None)

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        """Return a range of an object, as `Objects.get_range` does."""
        if name in self._held:
            start, end, coming = self._held[name]
            if start <= position and position + size_in_bytes <= end:
                try:
                    data = coming.result()
                except ObjectStoreError:
                    pass  # asked for again, which says what is wrong
                else:
                    first = position - start
                    return None if data is None else data[first : first + size_in_bytes]
        return self._objects.get_range(name, position, size_in_bytes)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in the order of names, as `Objects.list` does."""
        return self._objects.list(prefix, start_after)


class _Chunk(NamedTuple):
    """Changes that are read together; their objects are held, unless they are large."""

    changes: dict[OffsetRange, list[Change]]
    extents: list[PlacedExtent]
    is_large: bool


def gathered(reads: BucketReads, wanted: Mapping[OffsetRange, str]) -> Iterator[Part]:
    """Yield the parts of several ranges, each with a fetcher of it, in order within each range.

    Args:
        reads: of the cluster.
        wanted: ranges of different partitions, and the ids of their topics.

    Raises:
        UnknownTopicOrPartitionError: after the last part: a topic was deleted or recreated meanwhile.
    """
    if len(wanted) == 1:
        for one, topic_id in wanted.items():
            yield one, reads.fetcher(one, topic_id)
        return
    with reads.ledger.state():
        pass  # the newest one, which all parts are of
    ledger, changes = reads.ledger.followed(), dict[OffsetRange, list[Change]]()
    for one, topic_id in wanted.items():
        try:
            _, found = ledger.partition(topic_id, one.topic_partition.partition)
        except UnknownTopicOrPartitionError:
            found = []
        changes[one] = within(found, one.start, one.end)
    starts = {one: one.start for one in changes}
    with request_threads(REQUESTS_AT_ONCE) as executor:
        objects = HeldObjects(reads.objects, executor)
        for chunk, held in _held_ahead(_chunks(reads.placements, changes, executor), objects):
            for one, found in chunk.changes.items():
                part = one._replace(start=starts[one], end=found[-1].next_offset)
                starts[one] = part.end
                yield part, reads.fetcher(part, wanted[one], None if chunk.is_large else objects)
            objects.drop(held)
    for one, start in starts.items():
        if start < one.end:  # which no change tells of
            yield one._replace(start=start), reads.fetcher(one._replace(start=start), wanted[one])
    with reads.ledger.state() as state:
        for topic, topic_id in {(one.topic_partition.topic, wanted[one]) for one in changes}:
            if state.topic_ids.get(topic) != topic_id:
                raise recreated(topic)


def _held_ahead(
    chunks: Iterator[_Chunk], objects: HeldObjects
) -> Iterator[tuple[_Chunk, set[str]]]:
    """Yield chunks with the names of their objects, which are asked for while the one before is read."""
    before: tuple[_Chunk, set[str]] | None = None
    for chunk in chunks:
        coming = chunk, objects.hold([] if chunk.is_large else chunk.extents)
        if before is not None:
            yield before
        before = coming
    if before is not None:
        yield before


def _chunks(
    placements: Placements, changes: Mapping[OffsetRange, list[Change]], executor: Executor
) -> Iterator[_Chunk]:
    """Yield changes rank by rank: small ones as many together as there is room for, and large ones by themselves."""
    by_rank: dict[int, dict[OffsetRange, list[Change]]] = {}
    for one, ranked in ranks(changes).items():
        for change, rank in zip(changes[one], ranked, strict=True):
            by_rank.setdefault(rank, {}).setdefault(one, []).append(change)
    left = iter(sorted(by_rank))
    chunk: _Chunk | None = None
    size = 0
    while some := list(itertools.islice(left, _RANKS_AT_ONCE)):
        loaded = [one for rank in some for few in by_rank[rank].values() for one in few]
        placements.load_indexes(loaded, executor)
        for rank in some:
            few = by_rank.pop(rank)
            placed = [
                extent
                for found in few.values()
                for one in found
                for extent in placements.whole(one)
            ]
            added = sum(one.extent.size_in_bytes for one in placed)
            is_large = added > SMALL_BYTES * len(placed) or added > HELD_BYTES
            is_full = not is_large and size + added > HELD_BYTES
            if chunk is None or is_full or is_large != chunk.is_large:
                if chunk is not None:
                    yield chunk
                chunk, size = _Chunk({}, [], is_large), 0
            for one, found in few.items():
                chunk.changes.setdefault(one, []).extend(found)
            if not is_large:
                chunk.extents.extend(placed)
                size += added
    if chunk is not None:
        yield chunk
