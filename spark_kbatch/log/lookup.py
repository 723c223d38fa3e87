"""From times to offsets, in the segments of one log.

The answer to "from which offset on" is the first record, by offset, whose time is not before the one
asked for. Times need not grow with offsets, so no segment before the answer's may be left out:

    1. the first segment whose largest time is not before the one asked for; it was looked up once
       for each rolled segment, which is never written again, and is then remembered
    2. .timeindex: up to which batch all times are smaller
    3. .index: where that batch lies
    4. headers from there on: the first batch whose largest time is not smaller
    5. its records, one by one; none may be left of them where the log starts within: then from 4 on

As an index is a hint, both are looked at in the batches. A `.timeindex` entry is followed from the one
before it, and if that names a batch and its largest time: one entry that is damaged then costs time
alone. The last entry of a rolled segment must be right about its batch, and no batch behind the last
`.index` entry may have a later time; otherwise all headers of the segment are read. (Cut between two
entries, where times do not grow up to the end of the segment, it cannot be told from a whole one.)

Kafka looks into the one segment of step 1 and answers "none" where all its later times lie before the
log start; here the search goes on, so the answer is that of looking at every record.

Source: Kafka core/.../log/UnifiedLog.scala fetchOffsetByTimestamp; storage/.../LogSegment.java
findOffsetByTimestamp; clients/.../record/FileRecords.java searchForTimestamp.
"""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.batch_headers import (
    WALKED_BYTES,
    indexed_batch,
    walk_batch_headers,
)
from spark_kbatch.log.segment import (
    INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    IndexEntries,
    SegmentView,
    candidates,
)
from spark_kbatch.model import OffsetAndTimestamp
from spark_kbatch.record.header import NO_TIMESTAMP, BatchHeader
from spark_kbatch.record.times import times

logger = logging.getLogger(__name__)

_AFTER_ALL = 2**63


class Largest(NamedTuple):
    """The largest time in a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


_NONE = Largest(NO_TIMESTAMP, -1)


class SegmentViews(NamedTuple):
    """A log as somebody sees it: its own by a state, another's by what is in the directory."""

    bases: Sequence[int]  # base offsets, ascending
    view: Callable[[int], SegmentView]  # the segment at that place in `bases`
    active: Largest | None = None  # of the last one; None: to be looked up
    # Of the segments at [first, stop), in bytes, -1 for one that is gone; None: as `view` says.
    sizes: Callable[[int, int], Sequence[int]] | None = None

    def sizes_of(self, first: int, stop: int) -> Sequence[int]:
        """Return the sizes of the segments at [first, stop).

        Raises:
            FileNotFoundError: one of them is gone.
        """
        if self.sizes is None:
            return [self.view(at).size_in_bytes for at in range(first, stop)]
        found = self.sizes(first, stop)
        if -1 in found:
            gone = self.bases[first + found.index(-1)]
            raise FileNotFoundError(f"the segment that begins at offset {gone}")
        return found


class TimeLookup:
    """Looks up times in one log. Thread-safe: what is remembered does not change."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._rolled: dict[int, Largest] = {}  # by base offset

    def offset_for(
        self, segments: SegmentViews, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """The first record in [start_offset, end_offset) whose time is `timestamp_ms` or later.

        Raises:
            CorruptRecordError: a batch on the way does not hold.
        """
        for at in self._from(segments, start_offset):
            if segments.bases[at] >= end_offset:
                return None
            if self.largest(segments, at).timestamp >= timestamp_ms:
                found = self._search(segments.view(at), timestamp_ms, start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def max_timestamp(
        self, segments: SegmentViews, start_offset: int, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """The first record of those with the largest time, from `start_offset` on.

        None where it lies at or behind `end_offset`, and where no record has a time.

        Raises:
            CorruptRecordError: a batch on the way does not hold.
        """
        best, holder = _NONE, 0
        for at in self._from(segments, start_offset):
            if segments.bases[at] < start_offset:
                found = self._largest_from(segments.view(at), start_offset)
            else:
                found = self.largest(segments, at)
            if found.timestamp > best.timestamp:
                best, holder = found, at
        if best is _NONE:
            return None
        record = self._search(segments.view(holder), best.timestamp, start_offset)
        return record if record is not None and record.offset < end_offset else None

    def _from(self, segments: SegmentViews, offset: int) -> range:
        bases = segments.bases
        return range(max(bisect.bisect_right(bases, offset) - 1, 0), len(bases))

    def largest(self, segments: SegmentViews, at: int) -> Largest:
        """Return the largest time in the segment at that place.

        Raises:
            CorruptRecordError: a batch on the way does not hold.
        """
        base = segments.bases[at]
        known = self._rolled.get(base)
        if known is None:
            rolled = at < len(segments.bases) - 1
            if not rolled and segments.active is not None:
                return segments.active
            known = largest_timestamp(self._files, segments.view(at))
            if rolled:
                self._rolled[base] = known
        return known

    def _largest_from(self, view: SegmentView, start_offset: int) -> Largest:
        """Of the records from `start_offset` on; the offset is that of the record."""
        best = _NONE
        for _, header, batch in self._batches(view, 0, start_offset):
            if header.max_timestamp > best.timestamp:
                for offset, timestamp in times(batch(), 0, header):
                    if offset >= start_offset and timestamp > best.timestamp:
                        best = Largest(timestamp, offset)
        return best

    def _search(
        self, view: SegmentView, timestamp_ms: int, start_offset: int
    ) -> OffsetAndTimestamp | None:
        with self._files.opened(view.log) as descriptor:
            begin = _position_before(self._files, descriptor, view, timestamp_ms)
        for position, header, batch in self._batches(view, begin, start_offset):
            if header.max_timestamp >= timestamp_ms:
                try:
                    for offset, timestamp in times(batch(), 0, header):
                        if timestamp >= timestamp_ms and offset >= start_offset:
                            return OffsetAndTimestamp(offset, timestamp)
                except CorruptRecordError as error:
                    raise error.at(str(view.log), position) from None
        return None

    def _batches(
        self, view: SegmentView, position: int, start_offset: int
    ) -> Iterator[tuple[int, BatchHeader, Callable[[], bytes]]]:
        """Those that end at or behind `start_offset`, and how to read each."""
        files, path = self._files, view.log
        with files.opened(path) as descriptor:
            if start_offset > view.base_offset:
                indexed, _ = indexed_batch(files, descriptor, view, start_offset)
                position = max(position, indexed)
            for at, header in walk_batch_headers(
                files, descriptor, path, position, view.size_in_bytes
            ):
                if header.last_offset >= start_offset:
                    size = header.size_in_bytes
                    yield at, header, functools.partial(files.read, path, at, size)


def largest_timestamp(files: Files, view: SegmentView) -> Largest:
    """The largest time in a segment.

    Raises:
        CorruptRecordError: a batch on the way does not hold.
    """
    path = view.log
    if not view.size_in_bytes:
        return _NONE
    with files.opened(path) as descriptor:
        # Of a segment that is read at one look every batch is known as soon as its last one.
        last = _last_entry(files, view) if view.size_in_bytes > WALKED_BYTES else None
        if last is not None and _is_largest(files, descriptor, view, last):
            return last
        if last is not None:
            logger.warning(
                "%s says that the largest time is %d, of offset %d, which the batches do not: all of "
                "them are looked at; `kbatch repair` makes the index anew",
                view.segment.time_index, *last,
            )  # fmt: skip
        best = _NONE
        for _, header in walk_batch_headers(files, descriptor, path, 0, view.size_in_bytes):
            if header.max_timestamp > best.timestamp:
                best = Largest(header.max_timestamp, header.last_offset)
        return best


def _last_entry(files: Files, view: SegmentView) -> Largest | None:
    """What `.timeindex` ends with; None where there is no such, or no whole entry."""
    try:
        with files.opened(view.segment.time_index) as descriptor:
            entries = IndexEntries(files, descriptor, TIME_INDEX_ENTRY, view.time_index_size)
            if not entries or entries.size_in_bytes % TIME_INDEX_ENTRY.size:
                return None
            timestamp, relative = entries[-1]
            if timestamp == relative == 0:  # a broker's, longer than what is in it
                timestamp, relative = entries[max(entries.bisect(2**62) - 1, 0)]
    except FileNotFoundError:
        return None
    return Largest(timestamp, view.base_offset + relative)


def _is_largest(files: Files, descriptor: int, view: SegmentView, last: Largest) -> bool:
    """Whether the entry is right about its batch, and no batch of the segment's end is later."""
    path, end = view.log, view.size_in_bytes
    if not view.base_offset <= last.offset < view.next_offset:
        return False
    position, header = indexed_batch(files, descriptor, view, view.next_offset - 1)
    if header.base_offset > last.offset and not _has_batch(files, descriptor, view, last):
        return False
    inside = header.base_offset > last.offset
    for _, header in walk_batch_headers(files, descriptor, path, position, end):
        if header.max_timestamp > last.timestamp:
            return False
        inside = inside or (header.last_offset, header.max_timestamp) == (
            last.offset,
            last.timestamp,
        )
    return inside


def _has_batch(files: Files, descriptor: int, view: SegmentView, wanted: Largest) -> bool:
    return _position_of(files, descriptor, view, wanted) is not None


def _position_of(files: Files, descriptor: int, view: SegmentView, wanted: Largest) -> int | None:
    """Where the batch lies whose last offset and largest time these are."""
    path, end = view.log, view.size_in_bytes
    position, _ = indexed_batch(files, descriptor, view, wanted.offset)
    for at, header in walk_batch_headers(files, descriptor, path, position, end):
        if header.last_offset >= wanted.offset:
            return at if (header.max_timestamp, header.last_offset) == wanted else None
    return None


def _position_before(files: Files, descriptor: int, view: SegmentView, timestamp_ms: int) -> int:
    """A batch before which no record has this time or a later one; the segment's begin serves."""
    try:
        with files.opened(view.segment.time_index) as index:
            entries = IndexEntries(files, index, TIME_INDEX_ENTRY, view.time_index_size)
            at = entries.bisect(timestamp_ms) - 1
            if at < 1:
                return 0
            before, found = entries[at - 1], entries[at]
    except FileNotFoundError:
        return 0
    grows = before[0] < found[0] <= timestamp_ms and 0 <= before[1] < found[1]
    if not grows:
        return 0
    wanted = Largest(before[0], view.base_offset + before[1])
    return _position_of(files, descriptor, view, wanted) or 0


# Split points.


def split_points(
    files: Files, segments: SegmentViews, start_offset: int, end_offset: int, piece_bytes: int
) -> list[int]:
    """Cuts within (start_offset, end_offset), ascending; none where the range has no more bytes.

    Pieces are as large as the distance of index entries allows, and at most about `piece_bytes`.
    """
    bases = segments.bases
    first = max(bisect.bisect_right(bases, start_offset) - 1, 0)
    last = bisect.bisect_left(bases, end_offset) - 1
    if start_offset >= end_offset or last < first:
        return []
    try:
        return _split(files, segments, first, last, (start_offset, end_offset), piece_bytes)
    except FileNotFoundError:
        return []  # deleted since; what that means is seen when the range is read


def _split(
    files: Files,
    segments: SegmentViews,
    first: int,
    last: int,
    edges: tuple[int, int],
    piece_bytes: int,
) -> list[int]:
    """As `split_points`, of a range that lies in the segments from `first` to `last`."""
    start_offset, end_offset = edges
    sizes = segments.sizes_of(first, last + 1)
    if sum(sizes) <= piece_bytes:
        return []
    begin = _indexed_position(files, segments.view(first), start_offset)
    end, last_view = sizes[-1], segments.view(last)
    if end_offset < last_view.next_offset:
        end = _indexed_position(files, last_view, end_offset)
    ends, total = [], -begin  # of each segment, in bytes from the range's begin
    for size in sizes[:-1]:
        total += size
        ends.append(total)
    ends.append(total + end)
    pieces = -(-ends[-1] // piece_bytes)
    points: list[int] = []
    for piece in range(1, pieces):
        target = ends[-1] * piece // pieces
        at = bisect.bisect_right(ends, target)
        position = target - (ends[at - 1] if at else -begin)
        offset = _offset_after(files, segments.view(first + at), position)
        if (points[-1] if points else start_offset) < offset < end_offset:
            points.append(offset)
    return points


def _indexed_position(files: Files, view: SegmentView, offset: int) -> int:
    """About where an offset lies: the last indexed position up to it."""
    _, position = next(candidates(files, view.segment, offset, view.index_size))
    return min(position, view.size_in_bytes)


def _offset_after(files: Files, view: SegmentView, position: int) -> int:
    """The offset behind the first indexed batch at or behind `position`; else behind the segment."""
    try:
        with files.opened(view.segment.offset_index) as descriptor:
            entries = IndexEntries(files, descriptor, INDEX_ENTRY, view.index_size)
            at = bisect.bisect_left(
                entries, position, key=lambda entry: entry[1] if any(entry) else _AFTER_ALL
            )
            if at < len(entries) and any(entries[at]):
                return min(view.base_offset + max(entries[at][0], 0) + 1, view.next_offset)
    except FileNotFoundError:
        pass
    return view.next_offset
