"""One segment: its `.log`, `.index` and `.timeindex` files, named by its base offset.

    .index      8 bytes an entry, big-endian: last offset of a batch - base offset, i32; position of
                that batch in .log, i32. Strictly increasing.
    .timeindex  12 bytes: largest timestamp up to that batch, i64; last offset of the batch that has
                it - base offset, i32. Timestamps strictly increasing.

An entry is written for a batch when more than index.interval.bytes were appended since the last one;
never for the first batch of a segment. A last .timeindex entry is written when the segment is rolled.
Neither file has a checksum: both are made from the batches and can be rebuilt. So an index is only a
hint: what it says is checked against the batches, and if it is wrong they are walked instead.

Source: Kafka storage/.../log/OffsetIndex.java, TimeIndex.java, LogSegment.append.
"""

from __future__ import annotations

import bisect
import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, overload

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log.state import STATE_FILE, LogState, boot_id
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import (
    LOG_OVERHEAD,
    BatchHeader,
    MessageRun,
    scan_messages,
    unpack,
)

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
RELATIVE_OFFSET_MAX = 2**31 - 1


class Segment(NamedTuple):
    """The files of one segment, and how much of its .log belongs to the log."""

    base_offset: int
    log: Path
    offset_index: Path  # may be missing, as may the next
    time_index: Path
    size_in_bytes: int | None = None  # where its batches end; None: at the end of the file

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """Paths of the segment's three files, `.log` first."""
        return self.log, self.offset_index, self.time_index

    def end_position(self, files: Files) -> int:
        """Return the position in the segment's `.log` file where its batches end.

        Raises:
            FileNotFoundError: the file is gone, and its size was not known.
        """
        return files.size(self.log) if self.size_in_bytes is None else self.size_in_bytes


class SegmentView(NamedTuple):
    """The part of a segment that a reader sees: up to which offset, and how many bytes of each file."""

    segment: Segment
    next_offset: int  # exclusive end of its offsets
    size_in_bytes: int  # of its batches
    index_size: int | None = None  # of the entries that count; None: all of the file
    time_index_size: int | None = None

    @property
    def base_offset(self) -> int:
        """The segment's base offset, the first offset that it may hold."""
        return self.segment.base_offset

    @property
    def log(self) -> Path:
        """The segment's `.log` file."""
        return self.segment.log


@lru_cache(maxsize=4096)  # joining paths takes longer than writing a small batch
def segment_at(directory: Path, base_offset: int) -> Segment:
    """Return the segment of a log that has this base offset.

    Kafka names its files by 20 digits of it.
    """
    stem = f"{base_offset:020d}"
    log, offset_index, time_index = (
        directory / f"{stem}.{end}" for end in ("log", "index", "timeindex")
    )
    return Segment(base_offset, log, offset_index, time_index)


def log_name(base_offset: int) -> str:
    """Return the name of the .log file of the segment with this base offset."""
    return f"{base_offset:020d}.log"


def make_files(files: Files, segment: Segment) -> None:
    """Create the three files of an empty segment.

    `first_made_name` names the first of them.
    """
    for path in (segment.offset_index, segment.log, segment.time_index):
        files.write(path, 0, b"")


def first_made_name(base_offset: int) -> str:
    """Return the name of a segment's `.index`, the file that is created first and removed last.

    If it is missing the segment has no files.
    """
    return f"{base_offset:020d}.index"


def base_offset_of(name: str) -> int | None:
    """Return the base offset in the name of a .log file; None for any other name."""
    # Most names in a log with many segments are of other files: sort those out quickly.
    is_log = len(name) == 24 and name.endswith(".log") and name[:20].isdigit()
    return int(name[:20]) if is_log else None


class SegmentIndexer:
    """A collector of `.index` and `.timeindex` entries for the batches appended to one segment."""

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
        """Continue after the index entries that the segment already has.

        Args:
            base_offset: the segment's.
            interval_bytes: index.interval.bytes.
            max_timestamp: the largest so far, -1 for none.
            max_timestamp_offset: the last offset of the batch that has it.
            bytes_since_entry: size of the batches since the last index entry.
            last_indexed_timestamp: the last one in the time index, or a function that looks it up:
                few batches need it.
        """
        self.base_offset = base_offset
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
        self.bytes_since_entry = bytes_since_entry
        self.index, self.time_index = bytearray(), bytearray()
        self._interval_bytes = interval_bytes
        self._last_indexed_timestamp = last_indexed_timestamp

    def add(self, header: BatchHeader, position: int) -> None:
        """Add the batch at `position` of the segment, with index entries if they are due.

        Its header has its final offsets.
        """
        self.add_all((header,), position)

    def add_all(self, headers: Iterable[BatchHeader], position: int) -> None:
        """Add batches that lie back to back from `position` on, as `add`."""
        since, largest = self.bytes_since_entry, self.max_timestamp
        for header in headers:
            last_offset = header[0] + header[6]
            if header[8] > largest:
                largest = header[8]
                self.max_timestamp, self.max_timestamp_offset = largest, last_offset
            if since > self._interval_bytes:
                self.index += INDEX_ENTRY.pack(last_offset - self.base_offset, position)
                self.add_time_entry()
                since = 0
            size = LOG_OVERHEAD + header[1]
            position += size
            since += size
        self.bytes_since_entry = since

    def add_messages(self, data: Buffer, header: BatchHeader, position: int) -> None:
        """Add V0 or V1 messages that are walked as one batch, each as a batch of its own.

        Args:
            data: these messages and nothing else, with their final offsets.
            header: of the messages together.
            position: of the first one in the segment.
        """
        at = 0
        while at < header.size_in_bytes:
            one = unpack(data, at)
            self.add(one, position + at)
            at += one.size_in_bytes
            # None of the messages up to `stop` needs an entry.
            stop = min(header.size_in_bytes, at + self._interval_bytes - self.bytes_since_entry)
            if stop <= at:
                continue
            rest = scan_messages(data, MessageRun(at), stop, header.magic)
            if rest.records_count:
                if rest.max_timestamp > self.max_timestamp:
                    self.max_timestamp = rest.max_timestamp
                    self.max_timestamp_offset = rest.max_timestamp_offset
                self.bytes_since_entry += rest.end_position - at
                at = rest.end_position

    def add_time_entry(self) -> None:
        """Add a `.timeindex` entry for the segment's largest timestamp, unless the last entry has it."""
        if not isinstance(self._last_indexed_timestamp, int):
            self._last_indexed_timestamp = self._last_indexed_timestamp()
        if self.max_timestamp > self._last_indexed_timestamp:
            relative = self.max_timestamp_offset - self.base_offset
            self.time_index += TIME_INDEX_ENTRY.pack(self.max_timestamp, relative)
            self._last_indexed_timestamp = self.max_timestamp


def last_indexed_timestamp(files: Files, segment: Segment, time_index_size: int) -> int | None:
    """Return the last timestamp in the first `time_index_size` bytes of a `.timeindex`; -1 for 0 bytes.

    Return None if the file is missing or too short.
    """
    if time_index_size < TIME_INDEX_ENTRY.size:
        return -1
    position = time_index_size - TIME_INDEX_ENTRY.size
    try:
        entry = files.read(segment.time_index, position, TIME_INDEX_ENTRY.size)
    except FileNotFoundError:
        return None
    return int(TIME_INDEX_ENTRY.unpack(entry)[0]) if len(entry) == TIME_INDEX_ENTRY.size else None


class IndexEntries(Sequence[tuple[int, int]]):
    """The entries of an open index file, each read from disk when it is used.

    A broker preallocates the index of an active segment, which is zero after the last entry; after a
    crash an index may be zero or garbage anywhere.
    """

    def __init__(
        self, files: Files, descriptor: int, entry: struct.Struct, size: int | None
    ) -> None:
        """Use the first `size` bytes of an index file, or all of it if `size` is None.

        The file may be shorter.
        """
        found = files.descriptor_size(descriptor)
        self._files, self._descriptor, self._entry = files, descriptor, entry
        self.size_in_bytes = found if size is None else min(size, found)

    def __len__(self) -> int:
        return self.size_in_bytes // self._entry.size

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, int]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        buffer = bytearray(self._entry.size)  # stays zero if the file was truncated meanwhile
        position = at % len(self) * self._entry.size
        self._files.pread_into(self._descriptor, position, memoryview(buffer))
        first, second = self._entry.unpack(buffer)
        return first, second

    def bisect(self, wanted: int) -> int:
        """Return how many entries at the start have a first field of at most `wanted`, by binary search."""
        after_all = 2**63
        return bisect.bisect_right(
            self, wanted, key=lambda entry: entry[0] if any(entry) else after_all
        )


def candidates(
    files: Files, segment: Segment, offset: int, index_size: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield `.index` entries to start looking for `offset` at, best first: (last offset, position).

    This is only what the index says: the caller has to check that there is such a batch, and otherwise
    take the next one, which is further back. The last is (-1, 0), the start of the segment.

    Args:
        index_size: how much of the active segment's index counts; None: all of the file.
    """
    base_offset = segment.base_offset
    with contextlib.ExitStack() as opened:
        try:
            descriptor = opened.enter_context(files.opened(segment.offset_index))
        except FileNotFoundError:
            pass
        else:
            entries = IndexEntries(files, descriptor, INDEX_ENTRY, index_size)
            at, step = entries.bisect(offset - base_offset) - 1, 1
            while at >= 0:
                relative, position = entries[at]
                if 0 <= relative <= offset - base_offset and position > 0:
                    yield base_offset + relative, position
                at, step = at - step, step * 2
    yield -1, 0


class LogSegments:
    """The segments in a log's directory, as a recorded state of the log shows them.

        bases = segments.bases(state)       # base offsets
        segments.view(state, bases, 0)      # the first segment, as far as the state shows it

    Nothing is written here, and nothing stays open. A segment before the active one ends where its file
    ends; of the active one, as much counts as the state says. Any number of threads may use it.

    Source: Kafka storage/.../log/LogSegments.java.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        # What `bases` returned last, and for what; replaced whole.
        self._listed: tuple[object, list[int]] = (None, [])

    def bases(self, state: LogState) -> list[int]:
        """Return the base offsets of the log's segments, ascending; the last is the active segment's.

        Do not change the list. A list is used again while the directory holds the same names and the
        state names the same first offset, active segment and epoch. Either condition alone would do but
        for two cases: a directory that changes twice within the resolution of its clock looks unchanged,
        but a segment was rolled, which the state tells; and a log that was truncated may roll at an old
        offset again, but that takes longer than the clock's resolution.

        Raises:
            KafkaStorageError: the directory is gone.
            OSError: a link is in its place. It may lead to a private log of the reader's.
        """
        known, bases = self._listed
        try:
            version = self.files.version(self.directory)
            key = (version, state.segment_base_offset, state.log_start_offset, state.leader_epoch)
            names = self.files.list(self.directory) if known != key else ()
        except FileNotFoundError as error:
            raise self.gone(self.directory) from error
        if known != key:
            every = map(base_offset_of, names)
            active = state.segment_base_offset
            bases = [base for base in every if base is not None and base <= active]
            self._listed = key, bases
        return bases

    def bases_with_active(self, state: LogState) -> list[int]:
        """Return the base offsets of the log's segments; raise if the active one is missing.

        Raises:
            KafkaStorageError: the active segment is missing.
        """
        bases = self.bases(state)
        if not bases or bases[-1] != state.segment_base_offset:
            raise KafkaStorageError(f"{self.active(state).log} is missing: it has the log's end")
        return bases

    def sizes(self, state: LogState, bases: Sequence[int], *, if_gone: int = 0) -> list[int]:
        """Return the sizes in bytes of the segments at `bases`; `if_gone` for one whose file is gone."""
        active = state.segment_base_offset
        found = self.files.sizes(self.directory, map(log_name, bases))
        return [
            state.segment_size if base == active else size if size >= 0 else if_gone
            for base, size in zip(bases, found, strict=True)
        ]

    def active(self, state: LogState) -> SegmentView:
        """Return a view of the active segment, up to the end that the log's state records."""
        return SegmentView(
            segment_at(self.directory, state.segment_base_offset), state.log_end_offset,
            state.segment_size, state.index_size, state.time_index_size,
        )  # fmt: skip

    def view(self, state: LogState, bases: Sequence[int], at: int) -> SegmentView:
        """Return a view of the segment that starts at bases[at], up to its end in the log's state."""
        base = bases[at]
        if base == state.segment_base_offset:
            return self.active(state)
        segment = segment_at(self.directory, base)
        return SegmentView(segment, bases[at + 1], self.files.size(segment.log))

    def views_from(
        self, state: LogState, bases: Sequence[int], from_offset: int
    ) -> list[SegmentView]:
        """Return views of the segments from the one that holds `from_offset` on, without their indexes.

        Args:
            bases: base offsets in the directory; those past the active segment are left out.
        """
        bases = [base for base in bases if base <= state.segment_base_offset]
        views = []
        for at in range(max(bisect.bisect_right(bases, from_offset) - 1, 0), len(bases)):
            segment = segment_at(self.directory, bases[at])
            next_offset = bases[at + 1] if at + 1 < len(bases) else state.log_end_offset
            active = bases[at] == state.segment_base_offset
            size = state.segment_size if active else self.files.opened_size(segment.log)
            views.append(SegmentView(segment, next_offset, size))
        return views

    def segments_from(self, state: LogState, offset: int) -> Iterator[Segment]:
        """Yield the segments from the one that holds `offset` on, the active one with its recorded size."""
        bases = self.bases(state)
        for base in bases[max(bisect.bisect_right(bases, offset) - 1, 0) :]:
            segment = segment_at(self.directory, base)
            active = base == state.segment_base_offset
            yield segment._replace(size_in_bytes=state.segment_size) if active else segment

    def is_as_recorded(self, state: LogState) -> bool:
        """Return True if the active segment is there in its recorded size, and its state is of this boot.

        Nor may a segment start at the log's end: a writer that died after it started one left that. One that
        died while it truncated the log to below its start left no active segment, and others after it.

        Raises:
            OSError: a link is in place of the directory, and nothing may be written there.
        """
        self.files.ensure_no_link(self.directory, self.directory.parent)
        active, end = state.segment_base_offset, state.log_end_offset
        (size,) = self.files.sizes(self.directory, (log_name(active),))
        return (
            size == state.segment_size
            and state.boot_id == boot_id()
            and (active == end or not self.files.holds(self.directory, first_made_name(end)))
        )

    def gone(self, path: Path) -> KafkaStorageError:
        """Return the error for a file or directory of the log that is gone."""
        if path.name == STATE_FILE and self.files.exists(self.directory):
            return KafkaStorageError(
                f"{path}, of partition {self.topic_partition}, is missing: run `kbatch repair`, which makes "
                "it again from the batches"
            )
        return KafkaStorageError(
            f"{path}, of partition {self.topic_partition}, is gone: it was deleted or unmounted"
        )
