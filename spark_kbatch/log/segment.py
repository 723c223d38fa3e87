"""One segment: `.log`, `.index` and `.timeindex`, found by the base offset in their names.

    .index      8 bytes an entry, big-endian: last offset of a batch - base offset, i32; position of
                that batch in .log, i32. Strictly increasing.
    .timeindex  12 bytes: largest timestamp up to that batch, i64; last offset of the batch that has
                it - base offset, i32. Timestamps strictly increasing.

An entry is due before a batch once more than index.interval.bytes were appended since the last one;
the first batch of a segment never has one. A last .timeindex entry is due when the segment is
rolled. Neither file has a checksum: both are made from the batches and can be made again.

Source: Kafka storage/.../log/OffsetIndex.java, TimeIndex.java, LogSegment.append.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spark_kbatch.log.files import Buffer, Files
from spark_kbatch.record.header import BatchHeader, unpack
from spark_kbatch.record.legacy import scan

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
RELATIVE_OFFSET_MAX = 2**31 - 1


class SegmentPaths(NamedTuple):
    """The files of a segment; the indexes of an empty one may be missing."""

    log: Path
    offset_index: Path
    time_index: Path


class SegmentExtent(NamedTuple):
    """The part of a segment that counts: whole batches from its begin on."""

    base_offset: int
    path: Path
    size_in_bytes: int


@lru_cache(maxsize=4096)  # joining paths takes longer than to write a small batch to one
def segment_paths(directory: Path, base_offset: int) -> SegmentPaths:
    """Kafka's names: 20 digits."""
    stem = f"{base_offset:020d}"
    return SegmentPaths(*(directory / f"{stem}.{end}" for end in ("log", "index", "timeindex")))


def base_offset_of(name: str) -> int | None:
    """The base offset in the name of a .log file; None for any other name."""
    stem, dot, end = name.partition(".")
    return int(stem) if dot and end == "log" and len(stem) == 20 and stem.isdigit() else None


class SegmentIndexer:
    """Collects the index entries of batches as they are appended to one segment."""

    def __init__(
        self,
        base_offset: int,
        *,
        interval_bytes: int,
        max_timestamp: int = -1,
        max_timestamp_offset: int = -1,
        bytes_since_entry: int = 0,
        last_indexed_timestamp: int | Callable[[], int] = -1,
    ) -> None:
        """`last_indexed_timestamp` may be a function that looks for it; few batches need it."""
        self.base_offset = base_offset
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
        self.bytes_since_entry = bytes_since_entry
        self.index, self.time_index = bytearray(), bytearray()
        self._interval_bytes = interval_bytes
        self._last_indexed_timestamp = last_indexed_timestamp

    def add(self, header: BatchHeader, position: int) -> None:
        """Account for the batch at `position`; its header has its final offsets."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
        if self.bytes_since_entry > self._interval_bytes:
            self.index += INDEX_ENTRY.pack(header.last_offset - self.base_offset, position)
            self.add_time_entry()
            self.bytes_since_entry = 0
        self.bytes_since_entry += header.size_in_bytes

    def add_messages(self, data: Buffer, header: BatchHeader, position: int) -> None:
        """Account for messages that are walked as one batch, each as a batch of its own.

        Args:
            data: holds them alone, with their final offsets.
            position: of the first in the segment.
        """
        at = 0
        while at < header.size_in_bytes:
            one = unpack(data, at)
            self.add(one, position + at)
            at += one.size_in_bytes
            # Before none of those that follow here an entry is due.
            stop = min(header.size_in_bytes, at + self._interval_bytes - self.bytes_since_entry)
            rest = scan(data, at, stop, header.magic) if stop > at else None
            if rest is not None and rest.records_count:
                if rest.max_timestamp > self.max_timestamp:
                    self.max_timestamp = rest.max_timestamp
                    self.max_timestamp_offset = rest.max_timestamp_offset
                self.bytes_since_entry += rest.end_position - at
                at = rest.end_position

    def add_time_entry(self) -> None:
        """Append the largest timestamp so far, unless the last entry has it."""
        if not isinstance(self._last_indexed_timestamp, int):
            self._last_indexed_timestamp = self._last_indexed_timestamp()
        if self.max_timestamp > self._last_indexed_timestamp:
            relative = self.max_timestamp_offset - self.base_offset
            self.time_index += TIME_INDEX_ENTRY.pack(self.max_timestamp, relative)
            self._last_indexed_timestamp = self.max_timestamp


def last_indexed_timestamp(files: Files, paths: SegmentPaths, time_index_size: int) -> int:
    """Of the last entry below `time_index_size`; -1 where there is none."""
    if time_index_size < TIME_INDEX_ENTRY.size:
        return -1
    entry = files.read(
        paths.time_index, time_index_size - TIME_INDEX_ENTRY.size, TIME_INDEX_ENTRY.size
    )
    return int(TIME_INDEX_ENTRY.unpack(entry)[0])


def lookup(
    files: Files, paths: SegmentPaths, base_offset: int, offset: int, index_size: int | None
) -> tuple[int, int]:
    """Where to begin to look for `offset`: (last offset of a batch, its position).

    The entry with the greatest offset that is not above `offset`; (-1, 0), the segment's begin,
    where there is none. `index_size` bounds the active segment's file; None takes all of it.
    """
    if index_size == 0 or not files.exists(paths.offset_index):
        return -1, 0
    data = files.read(paths.offset_index, 0, index_size)
    entries = np.frombuffer(data, ">i4", len(data) // INDEX_ENTRY.size * 2).reshape(-1, 2)
    found = int(np.searchsorted(entries[:, 0], offset - base_offset, side="right")) - 1
    if found < 0:
        return -1, 0
    return base_offset + int(entries[found, 0]), int(entries[found, 1])
