"""Producer state and aborted transactions, found by reading the batch headers of a log.

    rebuild          rebuild producers, open and aborted transactions from the newest valid snapshot and
                     the batches after it; from the log start if there is none
    AbortedSearch    find which transactions in a range of offsets were aborted, reading from there on

Both only read, and trust no other file than a snapshot, which has a checksum. So they also work on a
broker's directory, even one that is read-only or has lost its `.txnindex`. Of a data batch only the header
is read; a control batch is read as a whole and its CRC is checked.

    segments = [segment_at(directory, 0)._replace(size_in_bytes=whole_bytes)]
    rebuilt = rebuild(
        files, directory, tp, lambda offset: segments, log_start_offset=0, log_end_offset=n, now_ms=now
    )
    lso = rebuilt.states.last_stable_offset(high_watermark)
    AbortedSearch(files).decided(read, segments, last_stable_offset=lso, log_end_offset=n)

Messages of the formats V0 and V1 have no producers and are skipped.

When a batch was appended is not in the log, and its records may be older than that: those of a reprocessed
day, say. So it counts as appended when its segment was last written, unless its records are newer. That is
never too early for a producer whose retry is still to come; Kafka goes by the records alone. What was saved
in `kbatch.producers` has the times by the clock.

Source: Kafka core/.../log/UnifiedLog.scala rebuildProducerState, loadProducersFromRecords;
storage/.../log/ProducerStateManager.java truncateAndReload.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.saved import SavedProducers
from spark_kbatch.log.producers.snapshot import newest_snapshot, snapshot_offsets
from spark_kbatch.log.producers.state import (
    ProducerEntry,
    ProducerStates,
)
from spark_kbatch.log.segment import Segment, base_offset_of, segment_at
from spark_kbatch.model import AbortedTransaction, TopicPartition
from spark_kbatch.record.control import EndTransactionMarker, read_marker
from spark_kbatch.record.header import (
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    PRODUCER_ID_POSITION,
    RECORD_BATCH_OVERHEAD,
    RUN_BYTES_MAX,
    BatchHeader,
    LogRead,
    ensure_valid,
    unpack,
    walk,
    whole_size,
)

_MAGIC_POSITION = 16
_LEGACY_OVERHEAD = LOG_OVERHEAD + 14
# Batches without a sequence are small, and read as a whole: one may be a marker without its control bit.
_WITHOUT_SEQUENCE_MAX = 4096
_WINDOW_SIZE = 8192
assert _WITHOUT_SEQUENCE_MAX <= _WINDOW_SIZE


class BatchPosition(NamedTuple):
    """The position of a batch in a log: the base offset of its segment, and the position in that."""

    base_offset: int  # of its segment
    position: int


class ReplayedBatch(NamedTuple):
    """A producer's batch, with its end-of-transaction marker if it is a control batch."""

    position: BatchPosition
    header: BatchHeader
    marker: EndTransactionMarker | None


class Rebuilt(NamedTuple):
    """The producer state and aborted transactions of a log, as `rebuild` found them."""

    states: ProducerStates
    aborted: list[AbortedTransaction]  # whose markers lie at `replayed_from` or above, in order
    replayed_from: int  # offset of the snapshot, or the log start


def rebuild(
    files: Files,
    directory: Path,
    topic_partition: TopicPartition,
    segments_from: Callable[[int], Iterable[Segment]],
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    snapshots: Collection[int] | None = None,
    saved: tuple[SavedProducers, BatchPosition] | None = None,
) -> Rebuilt:
    """Rebuild the producer state of a log as of its end, from a snapshot and the batches after it.

    Args:
        segments_from: returns the segments from the one that holds an offset on, ascending. Earlier ones
            may be among them; they are not opened.
        log_start_offset: where the replay starts without a snapshot.
        log_end_offset: batches from there on are ignored, as are later snapshots.
        now_ms: the time as of which producers expire.
        snapshots: offsets of the snapshots that may be used; None: all.
        saved: used if there is no snapshot to use, and where the batches after it start.

    Raises:
        CorruptRecordError: an impossible header or marker; carries file and position.
    """
    found_offsets = snapshot_offsets(files, directory) if snapshots is None or snapshots else []
    usable = [
        offset
        for offset in found_offsets
        if log_start_offset < offset <= log_end_offset
        and (snapshots is None or offset in snapshots)
    ]
    states = ProducerStates(topic_partition)
    times = _AppendTimes(files, directory, now_ms)
    replayed_from = log_start_offset
    if (found := newest_snapshot(files, directory, usable)) is not None:
        replayed_from = found[0]
        states.load(times.of_entries(found[1]), now_ms)
        saved = None
    elif saved is not None:
        replayed_from = saved[0].offset
        states.load(saved[0].entries, now_ms)
    aborted: list[AbortedTransaction] = []
    if replayed_from < log_end_offset:
        for position, header, marker in producer_batches(
            files, segments_from(replayed_from), replayed_from, saved and saved[1]
        ):
            if header.base_offset >= log_end_offset:
                break
            appended_ms = times.of(position.base_offset, header.max_timestamp)
            ended = replay(states, header, marker, appended_ms)
            if ended is not None:
                aborted.append(ended)
    states.remove_expired(now_ms)
    return Rebuilt(states, aborted, replayed_from)


class _AppendTimes:
    """Estimates of when batches were appended, from their segments' file times; never too early."""

    def __init__(self, files: Files, directory: Path, now_ms: int) -> None:
        self._files, self._directory, self._now_ms = files, directory, now_ms
        self._written_ms: dict[int, int] = {}  # when a segment was last written, by its base offset

    def of(self, base_offset: int, timestamp: int) -> int:
        """Estimate when a batch was appended, from its segment's base offset and its own timestamp."""
        if timestamp >= self._now_ms:
            return self._now_ms
        written_ms = self._written_ms.get(base_offset)
        if written_ms is None:
            try:
                written_ms = self._files.modified_ms(segment_at(self._directory, base_offset).log)
            except OSError:
                written_ms = self._now_ms  # The segment is gone: no one can tell.
            self._written_ms[base_offset] = written_ms
        return min(max(timestamp, written_ms), self._now_ms)

    def of_entries(self, entries: Mapping[int, ProducerEntry]) -> dict[int, ProducerEntry]:
        """Return the producer entries of a snapshot with estimated times of their last appends."""
        names = self._files.list(self._directory)
        bases = sorted(base for base in map(base_offset_of, names) if base is not None)
        found = {}
        for producer_id, entry in entries.items():
            appended_ms = entry.last_timestamp
            if bases and entry.batches:
                # A batch whose segment is gone is older than the first one that is there.
                at = bisect.bisect_right(bases, entry.batches[-1].last_offset) - 1
                appended_ms = self.of(bases[max(at, 0)], appended_ms)
            found[producer_id] = entry._replace(last_append_ms=appended_ms)
        return found


def replay(
    states: ProducerStates,
    header: BatchHeader,
    marker: EndTransactionMarker | None,
    now_ms: int,
) -> AbortedTransaction | None:
    """Apply a producer's batch to the producer state; return the transaction that it aborted, if any."""
    if not header.is_control:
        states.add(header, now_ms)
    elif marker is not None:
        return states.end_transaction(header, marker, now_ms)
    return None


def producer_batches(
    files: Files, segments: Iterable[Segment], offset: int, start: BatchPosition | None = None
) -> Iterator[ReplayedBatch]:
    """Yield the batches with a producer id, from the one that holds `offset` on, in order.

    Args:
        segments: ascending; the next one is not taken before it is needed.
        offset: where to start.
        start: where the first batch at or above `offset` starts, if it is known.

    Raises:
        CorruptRecordError: carries file and position.
    """
    for segment in _from_offset(segments, offset):
        position, next_offset = 0, segment.base_offset
        if start is not None and start.base_offset == segment.base_offset:
            position, next_offset = start.position, offset
        end_position = segment.end_position(files)
        with files.opened(segment.log) as descriptor:
            window = _Window(files, descriptor, end_position)
            while position < end_position:
                try:
                    header, size = _header_and_size(window, position)
                    if header is not None:
                        if header.base_offset < next_offset:
                            raise CorruptRecordError(
                                "base offset", position=0,
                                expected=f"{next_offset} or more", found=header.base_offset,
                            )  # fmt: skip
                        next_offset = header.next_offset
                        known = header.producer_id > NO_PRODUCER_ID or header.is_transactional
                        if known and next_offset > offset:
                            marker = _marker(window, position, header)
                            yield ReplayedBatch(
                                BatchPosition(segment.base_offset, position), header, marker
                            )
                except CorruptRecordError as error:
                    raise error.at(str(segment.log), position) from None
                position += size


def _from_offset(segments: Iterable[Segment], offset: int) -> Iterator[Segment]:
    """Yield the segments from the one that holds `offset` on.

    That is the last one that does not start above it.
    """
    floor: Segment | None = None
    for segment in segments:
        if segment.base_offset > offset:
            if floor is not None:
                yield floor
            yield segment
            floor, offset = None, -1
        else:
            floor = segment
    if floor is not None:
        yield floor


class _Window:
    """A buffer for a few KiB of a `.log` file, read at once as they may hold many small batches."""

    def __init__(self, files: Files, descriptor: int, end_position: int) -> None:
        self._files, self._descriptor, self.end_position = files, descriptor, end_position
        self._buffer = memoryview(bytearray(_WINDOW_SIZE))
        self._position = self._end = 0

    def at(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from `position`, fewer at the end of the file; valid until the next call."""
        if not self._position <= position <= self._end - size:
            is_far = position - self._end > _WINDOW_SIZE
            count = min(size if is_far else _WINDOW_SIZE, self.end_position - position)
            count = self._files.pread_into(self._descriptor, position, self._buffer[:count])
            self._position, self._end = position, position + count
        start = position - self._position
        return self._buffer[start : min(start + size, self._end - self._position)]

    def size_of_messages(self, position: int, first_size: int) -> int:
        """Return the size of the run of uncompressed V0 or V1 messages at `position`, to skip them all."""
        room = self.end_position - position
        data = memoryview(bytearray(min(max(RUN_BYTES_MAX, first_size), room)))
        data = data[: self._files.pread_into(self._descriptor, position, data)]
        for _, run in walk(data, 0, whole_size(data)):
            return run.size_in_bytes
        return first_size


def _header_and_size(window: _Window, position: int) -> tuple[BatchHeader | None, int]:
    """Return header and size of the batch at `position`; the header is None for V0 and V1 messages.

    Positions in errors are relative to it.
    """
    room = window.end_position - position
    view = window.at(position, RECORD_BATCH_OVERHEAD)
    if len(view) < min(room, RECORD_BATCH_OVERHEAD) or len(view) < _LEGACY_OVERHEAD:
        raise CorruptRecordError(
            "batch is truncated", position=0,
            expected=f"{_LEGACY_OVERHEAD} bytes or more", found=len(view),
        )  # fmt: skip
    size = LOG_OVERHEAD + int.from_bytes(view[8:LOG_OVERHEAD], "big", signed=True)
    is_legacy = view[_MAGIC_POSITION] in (0, 1)
    size_min = _LEGACY_OVERHEAD if is_legacy else RECORD_BATCH_OVERHEAD
    if not size_min <= size <= room:
        raise CorruptRecordError(
            "batch length", position=8,
            expected=f"{size_min - LOG_OVERHEAD} to {room - LOG_OVERHEAD}",
            found=size - LOG_OVERHEAD,
        )  # fmt: skip
    header = unpack(view)
    if is_legacy:
        return None, size if header.is_wrapper else window.size_of_messages(position, size)
    header.ensure_sane(0, room)
    return header, size


def _marker(window: _Window, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    size = header.size_in_bytes
    if header.producer_id <= NO_PRODUCER_ID:
        raise CorruptRecordError(
            "producer id of a transactional batch", position=PRODUCER_ID_POSITION,
            expected="0 or more", found=header.producer_id,
        )  # fmt: skip
    if not header.is_control and (header.base_sequence >= 0 or size > _WITHOUT_SEQUENCE_MAX):
        return None
    if size > _WITHOUT_SEQUENCE_MAX:
        raise CorruptRecordError(
            "size of a control batch", position=8,
            expected=f"at most {_WITHOUT_SEQUENCE_MAX}", found=size,
        )  # fmt: skip
    data = window.at(position, size)
    if len(data) < size:
        raise CorruptRecordError("batch is truncated", position=0, expected=size, found=len(data))
    if not header.is_control:
        ensure_valid(data, 0, header)
        return None
    return read_marker(data, 0, header)


class _Looked(NamedTuple):
    """The progress and results of a search for aborted transactions.

    Replaced whole.
    """

    start_offset: int
    next_offset: int
    position: BatchPosition
    open: dict[int, int]  # first known offset of each open transaction, by producer id
    aborted: tuple[AbortedTransaction, ...]


class AbortedSearch:
    """A search for the aborted transactions of one log, by reading its batches.

    Any number of threads may use it. A transaction's marker follows its data, as far away as its producer
    kept it open. So the search starts at the data, and continues until everything in the range is
    decided. It remembers how far it came, so that a sequential reader does not search twice.
    """

    # Readers take no lock: what is remembered is replaced whole, and a reader whose result was replaced
    # by another's searches again from where it reads.

    def __init__(self, files: Files) -> None:
        self._files = files
        self._looked: _Looked | None = None

    def decided(
        self,
        read: LogRead,
        segments: Iterable[Segment],
        *,
        last_stable_offset: int,
        log_end_offset: int,
    ) -> LogRead:
        """End a READ_COMMITTED read at the last stable offset, and add its aborted transactions.

        Args:
            read: what was read.
            segments: ascending, from the one that was read on; used only if there are transactions.
            last_stable_offset: the log's.
            log_end_offset: the log's.
        """
        read = read.below(last_stable_offset)
        if not any(header.is_transactional for _, header in read.batches):
            return read
        segments = iter(segments)
        segment = next(segments)
        first, last = read.batches[0][1], read.batches[-1][1]
        aborted = self.between(
            itertools.chain([segment], segments),
            first.base_offset,
            BatchPosition(segment.base_offset, read.position),
            last.next_offset,
            log_end_offset,
        )
        return read._replace(aborted=aborted)

    def between(
        self,
        segments: Iterable[Segment],
        offset: int,
        start: BatchPosition,
        end_offset: int,
        log_end_offset: int,
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in [offset, end_offset), by first offset.

        So are those that were still open when their records were overwritten. A first offset below `offset` may be that of the first batch that was read.

        Args:
            segments: ascending, from the one of `start` or an earlier one on.
            offset: base offset of the batch at `start`.
            start: where to start.
            end_offset: at most the last stable offset: nothing above it is decided.
            log_end_offset: the log's.

        Raises:
            CorruptRecordError: carries file and position.
        """
        looked = self._looked
        if looked is None or not looked.start_offset <= offset <= looked.next_offset:
            looked = _Looked(offset, offset, start, {}, ())
        looked = self._looked = self._look(segments, looked, offset, end_offset, log_end_offset)
        found = transaction_index.collect([looked.aborted], offset, end_offset)
        # Only records that were overwritten are below the last stable offset and undecided.
        found += [
            AbortedTransaction(producer_id, first, log_end_offset)
            for producer_id, first in looked.open.items()
            if first < end_offset
        ]
        return sorted(found, key=lambda one: one.first_offset)

    def _look(
        self,
        segments: Iterable[Segment],
        looked: _Looked,
        offset: int,
        end_offset: int,
        log_end_offset: int,
    ) -> _Looked:
        still_open = dict(looked.open)
        aborted = [one for one in looked.aborted if one.last_offset >= offset]
        next_offset, start = looked.next_offset, looked.position
        for at, header, marker in producer_batches(self._files, segments, next_offset, start):
            undecided = any(first < end_offset for first in still_open.values())
            if header.base_offset >= (log_end_offset if undecided else end_offset):
                break
            if marker is not None:
                first_offset = still_open.pop(header.producer_id, None)
                if marker.is_abort and first_offset is not None:
                    aborted.append(
                        AbortedTransaction(header.producer_id, first_offset, header.base_offset)
                    )
            elif header.is_transactional and not header.is_control:
                still_open.setdefault(header.producer_id, header.base_offset)
            next_offset = header.next_offset
            start = BatchPosition(at.base_offset, at.position + header.size_in_bytes)
        return _Looked(offset, next_offset, start, still_open, tuple(aborted))
