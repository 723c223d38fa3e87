"""Where to cut a range of offsets into pieces that take about as many bytes each.

What `.index` says is taken as it is: any offset within the range is a cut that is right, and one
that a damaged entry names makes pieces of other sizes. It is the offset behind the batch that an
entry leads to, so that no batch is read for two pieces.
"""

from __future__ import annotations

import bisect

from spark_kbatch.files import Files
from spark_kbatch.log.batch_headers import SegmentView
from spark_kbatch.log.segment import INDEX_ENTRY, IndexEntries, candidates
from spark_kbatch.log.time_lookup import Segments

_AFTER_ALL = 2**63


def cut_offsets(
    files: Files, segments: Segments, start_offset: int, end_offset: int, piece_bytes: int
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
        return _cut(files, segments, first, last, (start_offset, end_offset), piece_bytes)
    except FileNotFoundError:
        return []  # deleted since; what that means is seen when the range is read


def _cut(
    files: Files,
    segments: Segments,
    first: int,
    last: int,
    edges: tuple[int, int],
    piece_bytes: int,
) -> list[int]:
    """As `cut_offsets`, of a range that lies in the segments from `first` to `last`."""
    start_offset, end_offset = edges
    sizes = segments.sizes_of(first, last + 1)
    if sum(sizes) <= piece_bytes:
        return []
    begin = _position(files, segments.view(first), start_offset)
    end, last_view = sizes[-1], segments.view(last)
    if end_offset < last_view.next_offset:
        end = _position(files, last_view, end_offset)
    ends, total = [], -begin  # of each segment, in bytes from the range's begin
    for size in sizes[:-1]:
        total += size
        ends.append(total)
    ends.append(total + end)
    pieces = -(-ends[-1] // piece_bytes)
    cuts: list[int] = []
    for piece in range(1, pieces):
        target = ends[-1] * piece // pieces
        at = bisect.bisect_right(ends, target)
        position = target - (ends[at - 1] if at else -begin)
        offset = _offset_behind(files, segments.view(first + at), position)
        if (cuts[-1] if cuts else start_offset) < offset < end_offset:
            cuts.append(offset)
    return cuts


def _position(files: Files, view: SegmentView, offset: int) -> int:
    """About where an offset lies: the last indexed position up to it."""
    _, position = next(candidates(files, view.paths, view.base_offset, offset, view.index_size))
    return min(position, view.size_in_bytes)


def _offset_behind(files: Files, view: SegmentView, position: int) -> int:
    """The offset behind the first indexed batch at or behind `position`; else behind the segment."""
    try:
        with files.opened(view.paths.offset_index) as descriptor:
            entries = IndexEntries(files, descriptor, INDEX_ENTRY, view.index_size)
            at = bisect.bisect_left(
                entries, position, key=lambda entry: entry[1] if any(entry) else _AFTER_ALL
            )
            if at < len(entries) and any(entries[at]):
                return min(view.base_offset + max(entries[at][0], 0) + 1, view.next_offset)
    except FileNotFoundError:
        pass
    return view.next_offset
