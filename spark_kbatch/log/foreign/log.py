"""Read-only access to a partition's directory as a Kafka broker left it, or is still writing it.

Nothing records where such a log ends. It is found each time the log's offsets are asked for, by what a
broker does when it starts, done in memory:

    swap files                  as `names_after_start` says
    log start offset            the checkpoint's, but at least the first segment's base offset
    segments to check           without a recovery point, and after a clean shutdown: the last one that
                                is not empty; else those from the one that holds the recovery point on
    where the check starts      at the last index entry that leads to a whole valid batch; at the start
                                of the segment if none does
    an invalid batch            without a recovery point, or below what the log had reached: stays in
                                the log if a whole valid batch follows, and reading it is an error;
                                else the log ends before it, and later segments do not count
    log end < log start         the log is empty, at its start offset

So a torn, zero-filled or preallocated tail is not read, and with indexes opening a log takes as long as
reading a few batches. What is left out is logged once, as a warning. What lies before the start of the
check is checked only when it is read, and damage is an error then.

Where `missing.py` has evidence that the log once had more, it keeps the offsets of that: it ends
where it had ended, and a read that comes to the missing records is an error, after all records before
them. Only where `foreign.end` is given as "log" is what is missing left out, with a warning.

The last stable offset comes from the producers' batches after the newest valid `.snapshot`; if there is
none, the batch headers of the whole log are read once.

An index is only a hint; see `Positions`. The directory may change while it is read, as segments are
compacted or removed. Then one attempt fails, and the next one uses what is there by then.

Source: Kafka storage/.../log/LogLoader.java, LogSegment.recover, UnifiedLog.java.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spark_kbatch import mutexes
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, OffsetOutOfRangeError
from spark_kbatch.files import Files
from spark_kbatch.log.batch_headers import follow, header_at
from spark_kbatch.log.foreign.missing import end_of, find_missing, traces
from spark_kbatch.log.lookup import SegmentViews, TimeLookup, bytes_between, split_points
from spark_kbatch.log.producers.replay import (
    AbortedSearch,
    BatchPosition,
    producer_batches,
    rebuild,
    replay,
)
from spark_kbatch.log.producers.state import ProducerStates
from spark_kbatch.log.segment import (
    RELATIVE_OFFSET_MAX,
    Segment,
    SegmentView,
    base_offset_of,
    candidates,
)
from spark_kbatch.log.segment_scan import (
    SegmentEnd,
    find_end,
    find_next,
    read_batches,
    valid_batch_at,
)
from spark_kbatch.model import (
    MAX_TIMESTAMP,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.record import legacy
from spark_kbatch.record.header import MAX_OFFSET, LogRead

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_NOTHING_EXPIRES = 0  # the clock, for producers of which only the transactions matter
_NOTHING = LogRead("", 0, memoryview(b""), [])
_STEM = re.compile(r"([0-9]{1,19}|0[0-9]{19})\.")
_SNAPSHOT_OF_METADATA = ".checkpoint.deleted"


class Positions:
    """A cache of checked positions at which batches start in the segments of a log that another program owns.

    An entry is (offset, position): a batch starts at that position, and all batches before it have lower
    offsets. `.index` entries are checked before use: if one does not lead to a whole valid batch, one further
    back is tried. Positions found by reading are remembered by file, not by its name: compaction may give the
    name to another file.

    `batch_headers.follow` says what a broker's index entry means. Thread-safe.

    Source: Kafka storage/.../log/OffsetIndex.java, LogSegment.translateOffset.
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


class Checkpoints(NamedTuple):
    """One partition's offsets in the checkpoint files of a broker's log dir; None for a missing one."""

    recovery_point: int | None = None  # unless the broker was shut down cleanly
    log_start_offset: int | None = None
    high_watermark: int | None = None  # if it bounds what is read
    reached: tuple[int, str] = (0, "")  # an offset that the log had reached; the file that says so
    leaves_out: bool = False  # whether what is missing is left out


class View(NamedTuple):
    """The segments and offsets of a broker's log, as of one look at its directory.

    Replaced whole.
    """

    segments: tuple[Segment, ...]
    offsets: LogOffsets
    end_offset: (
        int  # after the last valid batch; the log end offset, unless records are missing there
    )
    missing: tuple[CorruptRecordError, ...]  # ascending; each says which


class ForeignLog:
    """The log of a partition that another program, such as a Kafka broker, owns; it is only read.

    Keeps nothing open; thread-safe.
    """

    def __init__(
        self, files: Files, directory: Path, topic_partition: TopicPartition, *, file: str = ""
    ) -> None:
        """Read all segments in `directory`, or only the one whose .log file is named `file`."""
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self._file = file
        # Replaced whole, so that a reader always sees one of them.
        self._view: View | None = None
        self._positions = Positions(files)
        self._aborted = AbortedSearch(files)
        self._mutex: threading.Lock  # guards _warned_about
        self._warned_about: set[Hashable] = set()
        self._replay_mutex: threading.Lock  # guards what follows; before _mutex
        mutexes.make(self, "_mutex", "_replay_mutex")
        self._states: ProducerStates | None = None
        self._replayed_to = 0
        self._replayed_position: BatchPosition | None = None

    def size_in_bytes(self) -> int:
        """Return the size in bytes of all batches of the log, as of the last look at its directory."""
        view = self._view
        return sum(one.end_position(self.files) for one in view.segments) if view else 0

    def read(
        self, asked: ReadRange, checkpoints: Callable[[], Checkpoints]
    ) -> tuple[LogRead, LogOffsets]:
        """Read whole batches, starting with the first at or after `asked.offset`.

        Args:
            asked: its first batch is always returned, however large.
            checkpoints: called if the log was not looked at yet, or ends before the offset.

        Returns:
            Batches of one segment, up to the high watermark, or for READ_COMMITTED up to the last
            stable offset and with the aborted transactions; and the log's offsets. No batches at
            that end, or if compaction left none up to it.

        Raises:
            OffsetOutOfRangeError: below the log start or above the high watermark.
            CorruptRecordError: impossible sizes, magic bytes or offsets. CRCs are not checked.
        """
        view = self._view
        if view is None or asked.offset >= view.offsets.end_offset(asked.isolation):
            view = self.look(checkpoints())
        try:
            return self._read(view, asked), view.offsets
        except (FileNotFoundError, CorruptRecordError):
            # The owner may have compacted or removed the segment since the last look.
            self._positions.forget()
            self._aborted = AbortedSearch(self.files)
            view = self.look(checkpoints())
            return self._read(view, asked), view.offsets

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with a timestamp of `timestamp_ms` or later.

        The log is taken as of the last look at its directory. For MAX_TIMESTAMP return the first record
        with the largest timestamp. Nothing is remembered, since the owner may compact segments into one
        with the same base offset.
        """
        view = self._view
        if view is None or not view.segments:
            return None
        lookup, segments = TimeLookup(self.files), self._as_views(view)
        start_offset = view.offsets.log_start_offset
        if timestamp_ms == MAX_TIMESTAMP:
            return lookup.max_timestamp(segments, start_offset, end_offset)
        return lookup.offset_for(segments, timestamp_ms, start_offset, end_offset)

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that split a range of the log into pieces of about equal size.

        The log is taken as of the last look at its directory; see `lookup.split_points`.
        """
        view = self._view
        if view is None or not view.segments:
            return []
        segments = self._as_views(view)
        return split_points(self.files, segments, start_offset, end_offset, piece_bytes)

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """Return about the size of a range of the log, as of that look; see `lookup.bytes_between`."""
        view = self._view
        if view is None or not view.segments:
            return 0
        return bytes_between(self.files, self._as_views(view), start_offset, end_offset)

    def not_committed(self) -> set[int]:
        """Return the offsets of transactions that were aborted or have no marker yet."""
        found = set[int]()
        pending: dict[int, list[range]] = {}
        view = self._view
        segments = view.segments if view else ()
        for _, header, marker in producer_batches(self.files, segments, 0):
            if marker is not None:
                ended = pending.pop(header.producer_id, [])
                found.update(*ended * marker.is_abort)
            elif header.is_transactional and not header.is_control:
                batch = range(header.base_offset, header.next_offset)
                pending.setdefault(header.producer_id, []).append(batch)
        return found.union(*itertools.chain(*pending.values()))

    def _as_views(self, view: View) -> SegmentViews:
        segments = view.segments
        ends = [*(segment.base_offset for segment in segments[1:]), view.end_offset]

        def seen(at: int) -> SegmentView:
            segment = segments[at]
            return SegmentView(segment, ends[at], segment.end_position(self.files))

        return SegmentViews([segment.base_offset for segment in segments], seen)

    # Looking at the directory.

    def look(self, checkpoints: Checkpoints) -> View:
        """Look at the log's directory; return its segments and offsets, and what is missing.

        Raises:
            KafkaStorageError, OSError: the directory cannot be read.
        """
        missing = ""
        for _ in range(_ATTEMPTS):
            try:
                view = self._look_once(checkpoints)
                # A running broker may just have been renaming the files of a segment.
                return self._look_once(checkpoints) if view.missing else view
            except FileNotFoundError as error:
                # A segment that was listed may have been removed or renamed since.
                missing = error.filename
                if not self.files.exists(self.directory):
                    break
        raise KafkaStorageError(
            f"{missing} is gone: the topic was deleted, or the folder moved or unmounted"
        ) from None

    def _look_once(self, checkpoints: Checkpoints) -> View:
        segments, lost = self._segments()
        segments, end, left_out = self._up_to_the_end(segments, checkpoints)
        missing = find_missing(self.files, self.directory, segments, lost, end, checkpoints.reached)
        if end.fault is not None and (
            checkpoints.leaves_out or not missing or missing[-1].offset < end.next_offset
        ):
            self._warn_of_tail(segments[-1], end, left_out)
        if checkpoints.leaves_out:
            for one in missing:
                self._warn(("missing", one.offset), f"{one}: it is left out")
            missing = []
        log_start_offset = max(
            min([*(s.base_offset for s in segments), *(one.offset for one in missing)], default=0),
            checkpoints.log_start_offset or 0,
        )
        if segments and end.next_offset < log_start_offset:
            self._warn(
                "log start",
                f"{self.directory} ends at offset {end.next_offset}, before its log start offset "
                f"{log_start_offset} in the checkpoint: it is read as empty",
            )
            segments = []
        missing = [one for one in missing if end_of(one) > log_start_offset]
        end_offset = max(end.next_offset, log_start_offset)
        log_end_offset = max([end_offset, *map(end_of, missing)])
        high_watermark = log_end_offset
        if checkpoints.high_watermark is not None:
            high_watermark = min(max(checkpoints.high_watermark, log_start_offset), log_end_offset)
        last_stable_offset = self._last_stable_offset(
            segments, log_start_offset, high_watermark, end_offset
        )
        offsets = LogOffsets(log_start_offset, high_watermark, last_stable_offset, log_end_offset)
        view = View(tuple(segments), offsets, end_offset, tuple(missing))
        self._view = view
        return view

    def _segments(self) -> tuple[list[Segment], Mapping[int, str]]:
        """Return the segments, ascending, as a broker would have them after it starts.

        And the `traces` of others.
        """

        def next_offset_of(name: str) -> int:
            path = self.directory / name
            base = int(name.partition(".")[0])
            size = self.files.size(path)
            return find_end(self.files, path, base, 0, size, trusted_below=0).next_offset

        names = self.files.list(self.directory)
        if self._file:
            stem = self._file.removesuffix(".log")
            found = {name: name for name in names if name.partition(".")[0] == stem}
        else:
            found = names_after_start(names, next_offset_of)
        segments = []
        for name, log in found.items():
            if not name.endswith(".log"):
                continue
            base = base_offset_of(name)
            if base is None and name == self._file:
                base = self._first_offset(self.directory / name)
            if base is not None:
                index = name.removesuffix(".log") + ".index"
                index = found.get(index, index)
                time_index = index.replace(".index", ".timeindex")
                segments.append(
                    Segment(
                        base,
                        self.directory / log,
                        self.directory / index,
                        self.directory / time_index,
                    )
                )
        lost = {} if self._file else traces([*found, *(n for n in names if n.endswith(".deleted"))])
        return sorted(segments, key=lambda segment: segment.base_offset), lost

    def _first_offset(self, path: Path) -> int:
        """Return the first offset in a file whose name does not give it; 0 if it has no valid batch."""
        size = self.files.size(path)
        with self.files.opened(path) as descriptor:
            header = valid_batch_at(self.files, descriptor, 0, size)
        if header is None:
            return 0
        return legacy.first_offset(self.files.read(path, 0, header.size_in_bytes), 0, header)

    def _up_to_the_end(
        self, segments: list[Segment], checkpoints: Checkpoints
    ) -> tuple[list[Segment], SegmentEnd, list[Segment]]:
        """Find where the log ends.

        Return the segments up to there, the end of the last one, and the segments after it.
        """
        recovery_point, (reached, _) = checkpoints.recovery_point, checkpoints.reached
        end = SegmentEnd(0, 0, None, None)
        first = len(segments) - 1
        if recovery_point is not None:
            first = _floor(segments, recovery_point)
        while first > 0 and segments[first].end_position(self.files) == 0:
            first -= 1
        trusted_below = MAX_OFFSET if recovery_point is None else max(recovery_point, reached)
        for index, segment in enumerate(segments[first:], max(first, 0)):
            end = self._end(segment, trusted_below)
            if end.fault is not None and end.next_offset < reached and segment is not segments[-1]:
                continue  # reading it is an error: it goes on to the next segment
            segments[index] = segment._replace(size_in_bytes=end.position)
            if end.fault is not None:
                return segments[: index + 1], end, segments[index + 1 :]
        return segments, end, []

    def _end(self, segment: Segment, trusted_below: int) -> SegmentEnd:
        path = segment.log
        size = self.files.size(path)
        with self.files.opened(path) as descriptor:
            position = self._positions.last(descriptor, segment._replace(size_in_bytes=size))
            end = find_end(
                self.files, path, segment.base_offset, position, size, trusted_below=trusted_below
            )
            for known in (*end.resumed, *([end.last] if end.last else [])):
                self._positions.remember(descriptor, segment, *known)
        for error in end.damaged:
            self._warn(
                (error.path, error.position),
                f"{error}; reading it is an error, because whole batches follow it",
            )
        return end

    def _warn_of_tail(self, segment: Segment, end: SegmentEnd, left_out: Sequence[Segment]) -> None:
        path = segment.log
        bytes_left_out = self.files.size(path) - end.position
        also = ""
        if left_out:
            also = f", and the segments after it, from offset {left_out[0].base_offset} on,"
        self._warn(
            (path, end.position),
            f"the log of {self.topic_partition} is read up to offset {end.next_offset}: the last "
            f"{bytes_left_out} bytes of {path}{also} are left out ({end.fault})",
        )

    def _last_stable_offset(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
    ) -> int:
        with self._replay_mutex:
            try:
                states = self._states_at(segments, log_start_offset, log_end_offset)
            except CorruptRecordError as error:
                self._warn(
                    "transactions",
                    f"cannot tell which transactions of {self.topic_partition} are open, so all count as "
                    f"decided: {error}",
                )
                return high_watermark
            return states.last_stable_offset(high_watermark, log_start_offset)

    def _states_at(
        self, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int
    ) -> ProducerStates:
        """Return the producer state as of the log's end, replaying batches appended since the last look."""
        states, self._states = self._states, None
        if states is None or not log_start_offset <= self._replayed_to <= log_end_offset:
            rebuilt = rebuild(
                self.files, self.directory, self.topic_partition, lambda _: segments,
                log_start_offset=log_start_offset, log_end_offset=log_end_offset,
                now_ms=_NOTHING_EXPIRES,
            )  # fmt: skip
            states = rebuilt.states
        elif self._replayed_to < log_end_offset:
            for _, header, marker in producer_batches(
                self.files, segments, self._replayed_to, self._replayed_position
            ):
                replay(states, header, marker, _NOTHING_EXPIRES)
        self._states, self._replayed_to = states, log_end_offset
        if segments:
            last = segments[-1]
            self._replayed_position = BatchPosition(last.base_offset, last.end_position(self.files))
        return states

    def _warn(self, about: Hashable, text: str) -> None:
        with self._mutex:
            is_new = about not in self._warned_about
            self._warned_about.add(about)
        if is_new:
            logger.warning("%s", text)

    # Reading.

    def _read(self, view: View, asked: ReadRange) -> LogRead:
        offset, isolation = asked.offset, asked.isolation
        log_start_offset, high_watermark, last_stable_offset, _ = view.offsets
        if not log_start_offset <= offset <= high_watermark:
            raise OffsetOutOfRangeError(
                str(self.topic_partition), offset, log_start_offset, high_watermark
            )
        end = view.offsets.end_offset(isolation)
        if offset >= end:
            return _NOTHING
        # What lies before missing records is read; nothing is read from after them in their place.
        missing = [one for one in view.missing if offset < end_of(one) and one.offset < end]
        end = min([end, *(one.offset for one in missing)])
        segments = view.segments
        for index in range(_floor(segments, offset), len(segments)):
            if segments[index].base_offset >= end:
                break
            rest = segments[index + 1 :]
            end_offset = rest[0].base_offset if rest else view.end_offset
            found = self._read_segment(segments[index], asked, end_offset)
            if found is not None and isolation is IsolationLevel.READ_COMMITTED:
                return self._aborted.decided(
                    found,
                    segments[index:],
                    last_stable_offset=last_stable_offset,
                    log_end_offset=view.end_offset,
                )
            if found is not None:
                return found
        for one in missing:
            raise one
        return _NOTHING

    def _read_segment(self, segment: Segment, asked: ReadRange, end_offset: int) -> LogRead | None:
        """Read batches from one segment; return None if compaction left none in it at or after the offset."""
        offset = asked.offset
        path, at_least = segment.log, segment.base_offset
        end_position = segment.end_position(self.files)
        segment = segment._replace(size_in_bytes=end_position)
        with self.files.opened(path) as descriptor:
            position = self._positions.start_for(descriptor, segment, offset)
            while position < end_position:
                try:
                    read = read_batches(
                        self.files, descriptor, path, position, end_position,
                        max_bytes=asked.max_bytes, at_least=at_least, buffer=asked.buffer,
                    )  # fmt: skip
                except CorruptRecordError as error:
                    with contextlib.suppress(CorruptRecordError, KafkaStorageError):
                        header = header_at(self.files, descriptor, path, position, end_position)
                        if header.base_offset <= offset:
                            at_least = max(at_least, header.base_offset)
                    following = find_next(
                        self.files, descriptor, position, end_position,
                        range(at_least + 1, end_offset), is_dense=False,
                    )  # fmt: skip
                    next_offset = end_offset if following is None else following[1].base_offset
                    if following is None or offset < next_offset:
                        raise replace(error, offset=at_least, next_offset=next_offset) from None
                    self._warn(
                        (error.path, error.position), f"{error}; what is read lies after that"
                    )
                    position, at_least = following[0], next_offset
                    continue
                last_at, last = read.batches[-1]
                if last.next_offset > end_offset:
                    raise CorruptRecordError(
                        "end offset of a segment",
                        path=str(path), position=position + last_at,
                        expected=f"{end_offset} or less", found=last.next_offset,
                    )  # fmt: skip
                at_least = last.next_offset
                self._positions.remember(descriptor, segment, at_least, position + len(read.data))
                if last.last_offset >= offset:
                    return _from(read, offset)
                position += len(read.data)
        return None


def names_after_start(names: Iterable[str], next_offset_of: Callable[[str], int]) -> dict[str, str]:
    """Return the file names that a partition has after a broker starts, each with the current name.

    A starting broker resolves .swap, .cleaned and .deleted files on disk before it loads segments. Here it is
    only worked out, so that a read-only directory is read as the broker would read it:

        *.deleted      removed
        *.cleaned      removed: the cleaner, or a split of a segment, did not finish
        *.swap         removed if its base offset is not below that of every .cleaned; else it is renamed to
                       the name without the suffix, and every other file whose stem is in
                       [smallest base offset of a .log.swap, largest next offset in one) is removed: the
                       .swap was made from it

    Source: Kafka storage/.../log/LogLoader.load, removeTempFilesAndCollectSwapFiles.

    Args:
        names: of the regular files in the directory.
        next_offset_of: returns the offset after the last batch of a .log.swap, given its name.
    """
    kept, swaps, cleaned = [], [], []
    for name in names:
        if name.endswith(".cleaned"):
            cleaned.append(name)
        elif name.endswith(".swap"):
            swaps.append(name)
        elif not name.endswith(".deleted") or name.endswith(_SNAPSHOT_OF_METADATA):
            kept.append(name)
    if not swaps:
        return {name: name for name in kept}
    first_cleaned = min((stem for stem in map(_stem, cleaned) if stem is not None), default=None)
    valid = [
        name
        for name in swaps
        if (stem := _stem(name)) is not None and (first_cleaned is None or stem < first_cleaned)
    ]
    logs = [name for name in valid if name.endswith(".log.swap")]
    if logs:
        low = min(stem for stem in map(_stem, logs) if stem is not None)
        high = max(map(next_offset_of, logs))
        kept = [name for name in kept if (stem := _stem(name)) is None or not low <= stem < high]
    return {name: name for name in kept} | {name.removesuffix(".swap"): name for name in valid}


def _stem(name: str) -> int | None:
    """Return the base offset before the first dot of a file's name; None if there is none."""
    found = _STEM.match(name)
    return int(found[1]) if found else None


def _floor(segments: Sequence[Segment], offset: int) -> int:
    """Return the index in `segments` of the one that holds `offset`; 0 if `offset` is before all of them."""
    at = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return max(at, 0)


def _from(read: LogRead, offset: int) -> LogRead:
    """Drop the batches that end before `offset` from what was read."""
    first = next(i for i, (_, header) in enumerate(read.batches) if header.last_offset >= offset)
    start = read.batches[first][0]
    if start == 0:
        return read
    batches = [(at - start, header) for at, header in read.batches[first:]]
    return LogRead(read.path, read.position + start, read.data[start:], batches)
