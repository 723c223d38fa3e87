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

from spark_kbatch import mutexes
from spark_kbatch.files import Files
from spark_kbatch.log.batch_headers import follow
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX, Segment, candidates


class Positions:
    """Of one log. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex: threading.Lock  # guards _known
        mutexes.make(self, "_mutex")
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # ascending

    def begin(self, descriptor: int, segment: Segment, offset: int) -> int:
        """A position from which on all batches lie that hold `offset` or a later one."""
        known = self._known_in(descriptor, segment)
        at = bisect.bisect_right(known, offset, key=lambda entry: entry[0]) - 1
        if at >= 0 and known[at][0] == offset:
            return known[at][1]
        return max(self._indexed(descriptor, segment, offset), known[at][1] if at >= 0 else 0)

    def last(self, descriptor: int, segment: Segment) -> int:
        """The last position that is known, or in the index, and holds when it is tried; or 0."""
        known = self._tried(descriptor, segment, reversed(self._known_in(descriptor, segment)))
        return max(
            known, self._indexed(descriptor, segment, segment.base_offset + RELATIVE_OFFSET_MAX)
        )

    def remember(self, descriptor: int, segment: Segment, offset: int, position: int) -> None:
        """Add an entry."""
        with self._mutex:
            known = self._known.setdefault(self._key(descriptor, segment), [])
            at = bisect.bisect_left(known, (offset, position))
            if known[at : at + 1] != [(offset, position)]:
                known.insert(at, (offset, position))

    def forget(self) -> None:
        """Know nothing again."""
        with self._mutex:
            self._known.clear()

    def _known_in(self, descriptor: int, segment: Segment) -> list[tuple[int, int]]:
        with self._mutex:
            return list(self._known.get(self._key(descriptor, segment), ()))

    def _key(self, descriptor: int, segment: Segment) -> tuple[int, ...]:
        return segment.base_offset, *self._files.identity(descriptor)

    def _indexed(self, descriptor: int, segment: Segment, offset: int) -> int:
        found = candidates(self._files, segment, offset)
        return self._tried(descriptor, segment, found)

    def _tried(self, descriptor: int, segment: Segment, entries: Iterable[tuple[int, int]]) -> int:
        """The position in the first of these entries that leads to a whole valid batch; 0 without."""
        end_position = segment.end_position(self._files)
        for offset, position in entries:
            if position == 0:
                break
            header = follow(
                self._files, descriptor, segment.log, offset, position, end_position, trusting=False
            )
            if header is not None and segment.base_offset <= header.base_offset:
                return position
        return 0
