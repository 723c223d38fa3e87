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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_kbatch.log.files import Files
from spark_kbatch.log.segment import INDEX_ENTRY
from spark_kbatch.log.segment_scan import valid_batch_at

_Entries: TypeAlias = Sequence[tuple[int, int]] | npt.NDArray[np.int64]


class OpenSegment(NamedTuple):
    """A segment whose .log is open."""

    descriptor: int
    base_offset: int
    index_path: Path  # the file may be missing
    end_position: int  # bytes from there on do not exist


class Positions:
    """Of one log. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex = threading.Lock()  # guards _known
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # ascending

    def begin(self, segment: OpenSegment, offset: int) -> int:
        """A position from which on all batches lie that hold `offset` or a later one."""
        known = self._known_in(segment)
        at = bisect.bisect_right(known, offset, key=lambda entry: entry[0]) - 1
        if at >= 0 and known[at][0] == offset:
            return known[at][1]
        index = self._index(segment)
        count = np.searchsorted(index[:, 0], offset, side="right")
        position = self._tried(segment, index[:count])
        return max(position, known[at][1] if at >= 0 else 0)

    def last(self, segment: OpenSegment) -> int:
        """The last position that is known, or in the index, and holds when it is tried; or 0."""
        known = self._tried(segment, self._known_in(segment))
        return max(known, self._tried(segment, self._index(segment)))

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

    def _tried(self, segment: OpenSegment, entries: _Entries) -> int:
        """The position in the last of these entries that leads to a whole valid batch; 0 without."""
        count, step = len(entries), 1
        while count > 0:
            offset, position = (int(number) for number in entries[count - 1])
            header = valid_batch_at(self._files, segment.descriptor, position, segment.end_position)
            if header is not None and segment.base_offset <= header.base_offset <= offset:
                return position
            # Where one is wrong many may be, and each costs a read.
            count, step = count - step, step * 2
        return 0

    def _index(self, segment: OpenSegment) -> npt.NDArray[np.int64]:
        """The entries of .index, as far as both numbers grow."""
        path = segment.index_path
        try:
            with self._files.opened(path) as descriptor:
                count = self._entries_used(descriptor, self._files.size(path) // INDEX_ENTRY.size)
            data = self._files.read(path, 0, count * INDEX_ENTRY.size)
        except FileNotFoundError:
            data = b""
        count = len(data) // INDEX_ENTRY.size
        entries = np.frombuffer(data, ">i4", count * 2).reshape(-1, 2).astype(np.int64)
        before = np.vstack([np.array([[-1, 0]]), entries[:-1]])
        wrong = np.flatnonzero((entries <= before[: len(entries)]).any(axis=1))
        entries = entries[: wrong[0]] if len(wrong) else entries
        entries[:, 0] += segment.base_offset
        return entries

    def _entries_used(self, descriptor: int, count: int) -> int:
        """How many entries there are before the zeros of a preallocated file, up to 10 MiB of them."""

        def is_zero(at: int) -> bool:
            entry = bytearray(INDEX_ENTRY.size)
            self._files.pread_into(descriptor, at * INDEX_ENTRY.size, memoryview(entry))
            return not any(entry)

        return bisect.bisect_left(range(count), True, key=is_zero)
