"""Lookups in the segments of one log: offsets for timestamps, and where to split a range.

The offset for a timestamp is that of the first record, by offset, whose timestamp is not before it.
Timestamps need not increase with offsets, so no segment may be skipped on the way:

    1. find the first segment whose largest timestamp is not before the wanted one; it is looked up once
       for each rolled segment, which is never written again, and then remembered
    2. .timeindex: up to which batch all timestamps are smaller
    3. .index: where that batch is
    4. batch headers from there on: the first batch whose largest timestamp is not smaller
    5. its records, one by one; if the log starts after all that match, continue with 4

Indexes are only hints, so what they say is checked against the batches. A search starts from the
`.timeindex` entry before the one found, and only if that names a batch and its largest timestamp: so one
damaged entry costs only time. The last entry of a rolled segment must be right about its batch, and no
batch after the last `.index` entry may have a later timestamp; otherwise all batch headers of the segment
are read. (An index that was truncated between two entries, in a segment whose timestamps do not increase
up to its end, cannot be distinguished from a complete one.)

Kafka searches only the segment of step 1, and answers "none" if all its later timestamps are before the
log start. Here the search goes on, so that the answer is the same as from looking at every record.

Split points are taken from `.index` unchecked: any offset within the range is a correct split point,
and a damaged entry only makes pieces of other sizes.

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
from spark_kbatch.record.scalar import times

logger = logging.getLogger(__name__)

_AFTER_ALL = 2**63


class Largest(NamedTuple):
    """The largest timestamp in a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


_NONE = Largest(NO_TIMESTAMP, -1)


class SegmentViews(NamedTuple):
    """The segments of a log as a reader sees them, each view made when it is needed."""

    bases: Sequence[int]  # base offsets, ascending
    view: Callable[[int], SegmentView]  # of the segment at that index in `bases`
    active: Largest | None = None  # of the last one; None: look it up
    # Of the segments at [first, stop), in bytes, -1 for one that is gone; None: take them from the views.
    sizes: Callable[[int, int], Sequence[int]] | None = None

    def sizes_of(self, first: int, stop: int) -> Sequence[int]:
        """Return the sizes in bytes of the segments at indexes [first, stop) of `bases`.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        if self.sizes is None:
            return [self.view(at).size_in_bytes for at in range(first, stop)]
        found = self.sizes(first, stop)
        if -1 in found:
            gone = self.bases[first + found.index(-1)]
            raise FileNotFoundError(f"the segment with base offset {gone} is gone")
        return found


class TimeLookup:
    """Timestamp lookups in one log, with a cache of the largest timestamp of each rolled segment.

    Thread-safe: what is remembered does not change.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._rolled: dict[int, Largest] = {}  # by base offset

    def offset_for(
        self, segments: SegmentViews, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record in [start_offset, end_offset) with a timestamp of `timestamp_ms` or later.

        Return None if there is none.

        Raises:
            CorruptRecordError: a batch on the way is damaged.
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
        """Return the first of the records with the largest timestamp from `start_offset` on.

        Return None if it is at or after `end_offset`, or if no record has a timestamp.

        Raises:
            CorruptRecordError: a batch on the way is damaged.
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
        """Return the largest timestamp in the segment at index `at` of `segments.bases`.

        Raises:
            CorruptRecordError: a batch on the way is damaged.
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
        """Return the largest timestamp in a segment from `start_offset` on, with the offset of its record."""
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
            start_position = _position_before(self._files, descriptor, view, timestamp_ms)
        for position, header, batch in self._batches(view, start_position, start_offset):
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
        """Yield position, header and a reader of a segment's batches that end at or after `start_offset`."""
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
    """Return the largest timestamp in a segment.

    Raises:
        CorruptRecordError: a batch on the way is damaged.
    """
    path = view.log
    if not view.size_in_bytes:
        return _NONE
    with files.opened(path) as descriptor:
        # In a segment small enough for one read, all batches are as close as the last one.
        last = _last_entry(files, view) if view.size_in_bytes > WALKED_BYTES else None
        if last is not None and _is_largest(files, descriptor, view, last):
            return last
        if last is not None:
            logger.warning(
                "%s says that the largest timestamp is %d, at offset %d, but the batches do not: "
                "reading all batch headers; `kbatch repair` rebuilds the index",
                view.segment.time_index, *last,
            )  # fmt: skip
        best = _NONE
        for _, header in walk_batch_headers(files, descriptor, path, 0, view.size_in_bytes):
            if header.max_timestamp > best.timestamp:
                best = Largest(header.max_timestamp, header.last_offset)
        return best


def _last_entry(files: Files, view: SegmentView) -> Largest | None:
    """Return the last `.timeindex` entry of a segment; None if the file is missing or has no whole entry."""
    try:
        with files.opened(view.segment.time_index) as descriptor:
            entries = IndexEntries(files, descriptor, TIME_INDEX_ENTRY, view.time_index_size)
            if not entries or entries.size_in_bytes % TIME_INDEX_ENTRY.size:
                return None
            timestamp, relative = entries[-1]
            if timestamp == relative == 0:  # preallocated by a broker
                timestamp, relative = entries[max(entries.bisect(2**62) - 1, 0)]
    except FileNotFoundError:
        return None
    return Largest(timestamp, view.base_offset + relative)


def _is_largest(files: Files, descriptor: int, view: SegmentView, last: Largest) -> bool:
    """Return True if a `.timeindex` entry fits its batch and none at the segment's end has a later time."""
    path, end = view.log, view.size_in_bytes
    if not view.base_offset <= last.offset < view.next_offset:
        return False
    position, header = indexed_batch(files, descriptor, view, view.next_offset - 1)
    if header.base_offset > last.offset and _position_of(files, descriptor, view, last) is None:
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


def _position_of(files: Files, descriptor: int, view: SegmentView, wanted: Largest) -> int | None:
    """Return the position of the batch with this last offset and largest timestamp, if there is one."""
    path, end = view.log, view.size_in_bytes
    position, _ = indexed_batch(files, descriptor, view, wanted.offset)
    for at, header in walk_batch_headers(files, descriptor, path, position, end):
        if header.last_offset >= wanted.offset:
            return at if (header.max_timestamp, header.last_offset) == wanted else None
    return None


def _position_before(files: Files, descriptor: int, view: SegmentView, timestamp_ms: int) -> int:
    """Return the position of a batch before which all timestamps are below `timestamp_ms`; at worst 0."""
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
    """Return offsets within (start_offset, end_offset) that split that range into about equal pieces.

    They are ascending, and none if the range has no more than `piece_bytes`. Each follows the batch of an
    index entry, so that no batch is read for two pieces. Pieces are as equal as the distance between
    index entries allows, and at most about `piece_bytes` long.
    """
    first, last = _segments_of(segments, start_offset, end_offset)
    if start_offset >= end_offset or last < first:
        return []
    try:
        return _split(files, segments, first, last, (start_offset, end_offset), piece_bytes)
    except FileNotFoundError:
        return []  # deleted meanwhile; reading the range will show what that means


def bytes_between(
    files: Files, segments: SegmentViews, start_offset: int, end_offset: int
) -> int | None:
    """Return about how many bytes the batches of [start_offset, end_offset) have, by index entries.

    None if a segment was deleted meanwhile.
    """
    first, last = _segments_of(segments, start_offset, end_offset)
    if start_offset >= end_offset or last < first:
        return 0
    try:
        sizes = segments.sizes_of(first, last + 1)
        borders = _borders(files, segments, first, sizes, (start_offset, end_offset))
        return max(borders[-1], 0)  # a damaged index may place the end before the start
    except FileNotFoundError:
        return None


def _segments_of(segments: SegmentViews, start_offset: int, end_offset: int) -> tuple[int, int]:
    """Return the numbers of the first and the last segment with offsets of a range."""
    first = max(bisect.bisect_right(segments.bases, start_offset) - 1, 0)
    return first, bisect.bisect_left(segments.bases, end_offset) - 1


def _split(
    files: Files,
    segments: SegmentViews,
    first: int,
    last: int,
    offsets: tuple[int, int],
    piece_bytes: int,
) -> list[int]:
    """Return offsets that split a range in the segments from `first` to `last` into about equal pieces."""
    start_offset, end_offset = offsets
    sizes = segments.sizes_of(first, last + 1)
    if sum(sizes) <= piece_bytes:
        return []
    borders = _borders(files, segments, first, sizes, offsets)
    pieces = -(-borders[-1] // piece_bytes)
    points: list[int] = []
    for piece in range(1, pieces):
        target = borders[-1] * piece // pieces
        at = bisect.bisect_right(borders, target) - 1
        offset = _offset_after(files, segments.view(first + at), target - borders[at])
        if (points[-1] if points else start_offset) < offset < end_offset:
            points.append(offset)
    return points


def _borders(
    files: Files,
    segments: SegmentViews,
    first: int,
    sizes: Sequence[int],
    offsets: tuple[int, int],
) -> list[int]:
    """Return where segments from `first` on start, and where the last one ends, in bytes from a range's start.

    The range's start and end are where `.index` entries have them. A range that starts with its segment needs
    no index for that.
    """
    start_offset, end_offset = offsets
    end, last_view = sizes[-1], segments.view(first + len(sizes) - 1)
    borders = [0]
    if start_offset > segments.bases[first]:
        borders = [-_indexed_position(files, segments.view(first), start_offset)]
    if end_offset < last_view.next_offset:
        end = _indexed_position(files, last_view, end_offset)
    for size in [*sizes[:-1], end]:
        borders.append(borders[-1] + size)
    return borders


def _indexed_position(files: Files, view: SegmentView, offset: int) -> int:
    """Return the approximate position of `offset` in a segment: the last `.index` position up to it."""
    _, position = next(candidates(files, view.segment, offset, view.index_size))
    return min(position, view.size_in_bytes)


def _offset_after(files: Files, view: SegmentView, position: int) -> int:
    """Return the offset after the first `.index` entry at or after `position`, else after the segment."""
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
