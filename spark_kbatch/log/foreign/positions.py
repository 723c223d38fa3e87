"""A cache of checked batch positions in the segments of a log that another program owns.

An entry is (offset, position): a batch starts at that position, and all batches before it have lower
offsets. `.index` entries are checked before use: if one does not lead to a whole valid batch, one further
back is tried. Positions found by reading are remembered by file, not by its name: compaction may give the
name to another file.

`batch_headers.follow` says what a broker's index entry means.

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
    """A cache of the positions at which batches start in the segments of one log.

    Thread-safe.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex: threading.Lock  # guards _known
        mutexes.make(self, "_mutex")
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # ascending

    def start_for(self, descriptor: int, segment: Segment, offset: int) -> int:
        """Return a segment position to scan from: not after any batch that holds `offset` or a later one."""
        known = self._known_in(descriptor, segment)
        at = bisect.bisect_right(known, offset, key=lambda entry: entry[0]) - 1
        if at >= 0 and known[at][0] == offset:
            return known[at][1]
        return max(self._indexed(descriptor, segment, offset), known[at][1] if at >= 0 else 0)

    def last(self, descriptor: int, segment: Segment) -> int:
        """Return the last position in a segment, cached or indexed, at which a valid batch starts; or 0."""
        known = self._tried(descriptor, segment, reversed(self._known_in(descriptor, segment)))
        return max(
            known, self._indexed(descriptor, segment, segment.base_offset + RELATIVE_OFFSET_MAX)
        )

    def remember(self, descriptor: int, segment: Segment, offset: int, position: int) -> None:
        """Cache the position of a batch in a segment; all batches before it have offsets below `offset`."""
        with self._mutex:
            known = self._known.setdefault(self._key(descriptor, segment), [])
            at = bisect.bisect_left(known, (offset, position))
            if known[at : at + 1] != [(offset, position)]:
                known.insert(at, (offset, position))

    def forget(self) -> None:
        """Drop all cached positions."""
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
        """Return the position of the first (offset, position) entry that leads to a valid batch; else 0."""
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
