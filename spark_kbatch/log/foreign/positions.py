"""Where batches begin in the segments of a log that another program owns: tried, then remembered.

An entry is (offset, position): a batch begins at that position, and all before it have lower offsets.
Entries of `.index` are tried before they are followed; where one leads to no whole valid batch, one
further back is tried. What reading finds out is remembered by file, whatever the file's name: another
file may come to have that name, made by compaction from this one.

Of an append of several batches a broker's entry has the first one's position, but the last one's last
offset; so all that is asked of the batch there is that it does not begin above that offset.

Source: Kafka storage/.../log/OffsetIndex.java, LogSegment.translateOffset.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from typing import NamedTuple

from spark_kbatch import mutexes
from spark_kbatch.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX, SegmentPaths, candidates
from spark_kbatch.log.segment_scan import valid_batch_at


class OpenSegment(NamedTuple):
    """A segment whose .log is open."""

    descriptor: int
    base_offset: int
    paths: SegmentPaths  # .index may be missing
    end_position: int  # bytes from there on do not exist


class Positions:
    """Of one log. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex: threading.Lock  # guards _known
        mutexes.make(self, "_mutex")
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # ascending

    def begin(self, segment: OpenSegment, offset: int) -> int:
        """A position from which on all batches lie that hold `offset` or a later one."""
        known = self._known_in(segment)
        at = bisect.bisect_right(known, offset, key=lambda entry: entry[0]) - 1
        if at >= 0 and known[at][0] == offset:
            return known[at][1]
        return max(self._indexed(segment, offset), known[at][1] if at >= 0 else 0)

    def last(self, segment: OpenSegment) -> int:
        """The last position that is known, or in the index, and holds when it is tried; or 0."""
        known = self._tried(segment, reversed(self._known_in(segment)))
        return max(known, self._indexed(segment, segment.base_offset + RELATIVE_OFFSET_MAX))

    def remember(self, segment: OpenSegment, offset: int, position: int) -> None:
        """Add an entry."""
        with self._mutex:
            known = self._known.setdefault(self._key(segment), [])
            at = bisect.bisect_left(known, (offset, position))
            if known[at : at + 1] != [(offset, position)]:
                known.insert(at, (offset, position))

    def forget(self) -> None:
        """Know nothing again."""
        with self._mutex:
            self._known.clear()

    def _known_in(self, segment: OpenSegment) -> list[tuple[int, int]]:
        with self._mutex:
            return list(self._known.get(self._key(segment), ()))

    def _key(self, segment: OpenSegment) -> tuple[int, ...]:
        return segment.base_offset, *self._files.identity(segment.descriptor)

    def _indexed(self, segment: OpenSegment, offset: int) -> int:
        found = candidates(self._files, segment.paths, segment.base_offset, offset, None)
        return self._tried(segment, found)

    def _tried(self, segment: OpenSegment, entries: Iterable[tuple[int, int]]) -> int:
        """The position in the first of these entries that leads to a whole valid batch; 0 without."""
        for offset, position in entries:
            if position == 0:
                break
            header = valid_batch_at(self._files, segment.descriptor, position, segment.end_position)
            if header is not None and segment.base_offset <= header.base_offset <= offset:
                return position
        return 0
