"""Merges small extents of a partition into segments, so that a range of offsets is read by few requests.

    runs       extents that follow each other, are small, and are enough to be worth it
    merge      a segment is written: the same batches, with their final offsets and leader epochs
               it is read back, and has the bytes that were written
    commit     an entry says that the range is read from the segment from now on

What was written by jobs is merged once there are RUN_EXTENTS of it, and small segments likewise, once there are
as many of these. So each batch is written again a few times at most, however small the commits are.

A merge changes no record and no offset. So mergers that meet, or that sleep between two steps, do no harm:
whichever entry is last counts for the offsets that it covers. What was merged stays where it was until the
horizon has passed it, for readers that have planned before. What a merger has written and not committed is
garbage as that of a job is.

A job's task leaves its batches of all partitions in one object. So runs of several partitions are merged together, as
many as have TOGETHER_BYTES: each object is asked for once for them, and one entry says that all are merged.

A segment's extents have at most about EXTENT_BYTES_MAX each: a reader that starts within a segment reads from
the start of an extent on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from spark_kbatch.bucket.batch_stream import BatchStream, request_threads
from spark_kbatch.bucket.gathering import REQUESTS_AT_ONCE, HeldObjects
from spark_kbatch.bucket.ledger import Ledger, Timing
from spark_kbatch.bucket.objects import RangeReader
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.bucket.staging import EXTENT_BYTES_MAX, append_of, with_batch
from spark_kbatch.errors import CorruptRecordError, KBatchError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Replacement, Rewrite
from spark_kbatch.ledger.extents import FINAL_EPOCH, NO_TIME, DataExtent
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.record.checksums import crc32c
from spark_kbatch.record.header import BatchHeader

_Item = TypeVar("_Item")

SMALL_BYTES = 4 << 20  # an extent below is worth a merge
RUN_EXTENTS = 100  # that are merged
RUN_BYTES = 64 << 20  # fewer are merged if they have so many bytes
SEGMENT_BYTES = 256 << 20  # of one run at most
TOGETHER_BYTES = 64 << 20
_EXTENTS_OF_ENTRY = 2000  # at most
_EXTENTS_OF_RANGE = 2  # that take as much as what says which range it is


class MergeRun(NamedTuple):
    """Extents of one partition that follow each other, and are merged into one segment."""

    topic_id: str
    partition: int
    extents: Sequence[PlacedExtent]
    # Number of the entry up to which that is known. A topic that has come since, with the same id, is another one.
    planned: int

    @property
    def size_in_bytes(self) -> int:
        """Size of all extents."""
        return sum(one.extent.size_in_bytes for one in self.extents)

    @property
    def start_offset(self) -> int:
        """The first offset."""
        return self.extents[0].start_offset

    @property
    def next_offset(self) -> int:
        """The offset after it."""
        return self.extents[-1].next_offset


def small_runs(
    topic_id: str,
    partition: int,
    extents: Iterable[PlacedExtent],
    planned: int,
    *,
    run_extents: int = RUN_EXTENTS,
) -> Iterator[MergeRun]:
    """Yield what is worth a merge in a partition.

    Args:
        topic_id, partition: which.
        extents: all of it, in the order of offsets.
        planned: number of the entry up to which that is known.
        run_extents: how many make a run.
    """
    small = filter(is_small, extents)
    for some in _lists(small, _size_of, SEGMENT_BYTES, _go_on_alike):
        run = MergeRun(topic_id, partition, tuple(some), planned)
        if len(some) >= run_extents or (len(some) > 1 and run.size_in_bytes >= RUN_BYTES):
            yield run


def runs_in(
    topic_id: str,
    partition: int,
    extents: Iterable[PlacedExtent],
    planned: int,
    objects: Container[str],
) -> Iterator[MergeRun]:
    """Yield what lies in some objects, so that these are needed no more; of whatever size.

    Args:
        topic_id, partition: which.
        extents: all of it, in the order of offsets.
        planned: number of the entry up to which that is known.
        objects: names of the objects.
    """
    inside = (one.whole for one in extents if one.extent.name in objects)
    for some in _lists(inside, _size_of, SEGMENT_BYTES, _go_on):
        yield MergeRun(topic_id, partition, tuple(some), planned)


def together(runs: Iterable[MergeRun]) -> Iterator[list[MergeRun]]:
    """Yield runs of one topic that are merged together."""
    return _lists(
        runs,
        lambda run: run.size_in_bytes,
        TOGETHER_BYTES,
        lambda last, run: run.topic_id == last.topic_id,
    )


def is_small(placed: PlacedExtent) -> bool:
    """Return True if an extent may be merged: it is small, and all of its offsets are read from it."""
    return placed == placed.whole and placed.extent.size_in_bytes < SMALL_BYTES


def _size_of(placed: PlacedExtent) -> int:
    return placed.extent.size_in_bytes


def _go_on(last: PlacedExtent, one: PlacedExtent) -> bool:
    return last.next_offset == one.start_offset


def _go_on_alike(last: PlacedExtent, one: PlacedExtent) -> bool:
    are_final = [placed.leader_epoch == FINAL_EPOCH for placed in (last, one)]
    return _go_on(last, one) and are_final[0] == are_final[1]


def _lists(
    found: Iterable[_Item],
    size_of: Callable[[_Item], int],
    size_max: int,
    go_on: Callable[[_Item, _Item], bool] = lambda _last, _one: True,
) -> Iterator[list[_Item]]:
    """Yield items in lists, each as long as its items go on from each other and it has room for them.

    Args:
        found: the items.
        size_of: returns what one takes.
        size_max: what a list of more than one takes at most.
        go_on: returns True if an item may be in the list of the one before.
    """
    some, size = list[_Item](), 0
    for one in found:
        if some and (size + size_of(one) > size_max or not go_on(some[-1], one)):
            yield some
            some, size = [], 0
        some.append(one)
        size += size_of(one)
    if some:
        yield some


class Merger:
    """Merges extents of one cluster. Not thread-safe."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        """Set up.

        Args:
            ledger: of the cluster; it is followed.
            timing: clocks and chance, as the ledger's.
        """
        self._ledger, self._timing = ledger, timing
        self._objects = ledger.objects
        self._placements = Placements(ledger.objects)

    def runs(
        self,
        topic_id: str,
        choose: Callable[[str, int, Iterable[PlacedExtent], int], Iterable[MergeRun]],
        noting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> list[MergeRun]:
        """Return what is chosen of a topic as of the state; raises as `Ledger.changes`.

        Args:
            topic_id: of the topic.
            choose: `small_runs`, or `runs_in` some objects.
            noting: returns what goes on after a CorruptLedgerError, where an index is lost.
        """
        found = list[MergeRun]()
        for partition, extents in self._placed(topic_id, noting):
            found += choose(topic_id, partition, extents, self._ledger.state.number)
        return found

    def objects_of(self, topic_id: str) -> set[str]:
        """Return the names of all objects that may have bytes of a topic; raises as `Ledger.changes`.

        They have records of it; or what no topic's records cover, which may be those that are read from elsewhere
        since, or were deleted.
        """
        found = {one.extent.name for _, extents in self._placed(topic_id) for one in extents}
        covered = dict[str, dict[int, int]]()  # sizes by object and position
        for other in {*self._ledger.state.topics} - {topic_id}:
            for extent in (one.whole.extent for _, some in self._placed(other) for one in some):
                covered.setdefault(extent.name, {})[extent.position] = extent.size_in_bytes
        for one in self._objects.list(names.DATA):
            if one.name in covered and sum(covered[one.name].values()) < one.size_in_bytes:
                found.add(one.name)
        return found

    def _placed(
        self,
        topic_id: str,
        noting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Iterator[tuple[int, list[PlacedExtent]]]:
        """Yield each partition of a topic with all that is read of it; raises as `Ledger.changes`."""
        for partition, changes in sorted(self._ledger.changes(topic_id).items()):
            extents = list[PlacedExtent]()
            with noting():
                self._placements.load_indexes(changes)
            for change in changes:
                with noting():
                    extents += self._placements.whole(change)
            yield partition, extents

    @contextlib.contextmanager
    def held(self, runs: Sequence[MergeRun]) -> Iterator[RangeReader]:
        """Return the objects of runs that are merged together, of each of which what they need is asked for once."""
        with request_threads(REQUESTS_AT_ONCE) as executor:
            objects = HeldObjects(self._objects, executor)
            if len(runs) > 1:
                objects.hold(placed for run in runs for placed in run.extents)
            yield objects

    def merge(self, run: MergeRun, objects: RangeReader | None = None) -> Rewrite:
        """Write a segment, and return what is to be replaced by it.

        Args:
            run: what to merge.
            objects: to read it from; by default those of the cluster.

        Raises:
            CorruptRecordError: a batch is damaged, or the store does not return what was written.
            MissingObjectError: an object is gone, as its offsets are read from another one by now.
            ObjectStoreError, ObjectAccessDeniedError: the store fails.
        """
        segment_id = names.random_id(self._timing.rng)
        name = names.segment_name(run.topic_id, run.partition, run.planned, segment_id)
        segment = _WrittenSegment(name, run.start_offset)
        upload = self._objects.upload(name)
        try:
            for piece in segment.pieces(objects or self._objects, run):
                upload.write(piece)
            upload.finish()
        except KBatchError:
            upload.abandon()
            raise
        extents = segment.extents
        for extent, crc in zip(extents, segment.sums, strict=True):
            data = self._objects.get_range(name, extent.position, extent.size_in_bytes)
            if data is None or crc32c(data) != crc:
                raise CorruptRecordError("segment", path=name, position=extent.position)
        append = append_of(run.partition, extents, run.start_offset, FINAL_EPOCH)
        return Rewrite(run.partition, run.start_offset, run.next_offset, (append,))

    def commit(self, topic_id: str, ranges: Sequence[Rewrite]) -> None:
        """Let ranges of a topic be read from the segments that `merge` has written; raises as `Ledger.commit`."""
        for some in _entries(ranges):

            def content(state: LedgerState, some: Sequence[Rewrite] = some) -> Replacement:
                state.ensure_topic(topic_id)
                return Replacement({topic_id: tuple(some)})

            self._ledger.commit(content, by="maintain")


def _entries(ranges: Sequence[Rewrite]) -> Iterator[list[Rewrite]]:
    """Yield as many ranges as fit into one entry."""
    return _lists(
        ranges,
        lambda one: _EXTENTS_OF_RANGE + sum(len(append.placed) for append in one.appends),
        _EXTENTS_OF_ENTRY,
    )


class _WrittenSegment:
    """A segment that is written: its extents, and the checksums of their bytes."""

    def __init__(self, name: str, start_offset: int) -> None:
        self.extents = list[DataExtent]()
        self.sums = list[int]()
        self._name, self._position, self._offset = name, 0, start_offset

    def pieces(self, objects: RangeReader, run: MergeRun) -> Iterator[bytearray]:
        """Yield the bytes of each extent, with all offsets and epochs final.

        Raises:
            CorruptRecordError: a batch is damaged, or there are other records than the extents say.
        """
        data, headers = bytearray(), list[BatchHeader]()
        for read in BatchStream(objects, run.extents, run.start_offset).checked():
            for position, header in read.batches:
                if headers and len(data) + header.size_in_bytes > EXTENT_BYTES_MAX:
                    yield self._finished(data, headers, header.base_offset)
                    data, headers = bytearray(), []
                data += read.data[position : position + header.size_in_bytes]
                headers.append(header)
        if headers:
            yield self._finished(data, headers, run.next_offset)
        expected = sum(one.extent.records_count for one in run.extents)
        found = sum(one.records_count for one in self.extents)
        if found != expected or self._offset != run.next_offset:
            raise CorruptRecordError(
                "records of merged extents", path=self._name, expected=expected, found=found
            )

    def _finished(
        self, data: bytearray, headers: Sequence[BatchHeader], next_offset: int
    ) -> bytearray:
        extent = DataExtent(self._name, self._position, 0, 0, 0, NO_TIME, NO_TIME)
        for header in headers:
            extent = with_batch(extent, header)
        self.extents.append(extent._replace(span=next_offset - self._offset))
        self.sums.append(crc32c(data))
        self._position += len(data)
        self._offset = next_offset
        return data
