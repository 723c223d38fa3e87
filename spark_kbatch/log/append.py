"""Appending batches to a partition's log: as leader, as follower, or past its end for a commit.

    LogAppender           put batches after the end of a log, invisible until a state shows them
    append_as_leader      append one validated batch, or a run of them: assign offsets and leader epoch
    append_together       append batches of several producers, made visible by one state; after `check_together`
    append_as_follower    append a leader's batches byte for byte

    appender = LogAppender(log, state, now_ms=now_ms)
    appender.append(batches)                                        # invisible
    log.write_state(appender.finish(flush=True), flush=True)        # visible

Callers hold the partition's lock. To wait for the disks of several replicas together, an append can be
done in two steps: `append_ahead` and `append_as_follower` flush nothing, and what they return does.

Source: Kafka storage/.../log/UnifiedLog.java, LocalLog.java, LogSegment.append.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import (
    CorruptRecordError,
    KBatchError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
    without_frames,
)
from spark_kbatch.files import Buffer
from spark_kbatch.log import recovery
from spark_kbatch.log.checkpoints import EpochEntry, read_leader_epochs, write_leader_epochs
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.replay import replay
from spark_kbatch.log.producers.snapshot import write_snapshot
from spark_kbatch.log.producers.state import ProducerStates
from spark_kbatch.log.recovery import readable_epochs
from spark_kbatch.log.segment import (
    INDEX_ENTRY,
    RELATIVE_OFFSET_MAX,
    TIME_INDEX_ENTRY,
    SegmentIndexer,
    last_indexed_timestamp,
    make_files,
    segment_at,
)
from spark_kbatch.log.state import LogState, boot_id
from spark_kbatch.model import BATCHES_REMEMBERED, LONG_MAX, AppendOrigin, AppendResult
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import (
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    RUN_BYTES_MAX,
    BatchHeader,
    assign,
    assign_all,
    ensure_valid,
    header_at,
    set_log_append_time,
    together,
    unpack,
    walk,
    whole_size,
)
from spark_kbatch.record.legacy import unwrap

_COPY_BYTES = 8 * 1024 * 1024
_ASSIGNED_BYTES = 16  # base offset, length, leader epoch: outside the CRC


class LogAppender:
    """A writer that appends batches past a log's recorded end, invisible until a new log state is written.

    The caller holds the partition's lock and has called `discard_unrecorded`. Base offsets and leader
    epochs are written as absolute values found by walking the batches, so that a batch which an earlier
    attempt has changed comes out the same. In a topic with LogAppendTime each batch also gets the time of
    the append. A follower's batches have all of that from their leader.

    A segment is full, and the next one is started, when the batch would make it larger than segment.bytes,
    or take its offsets past what an index entry can hold; when an index has no room for another entry (the
    time index reserves room for its last one); or when the batch's largest timestamp is more than
    segment.ms after that of the segment's first batch.
    """

    def __init__(
        self, log: PartitionLog, state: LogState, *, now_ms: int, as_follower: bool = False
    ) -> None:
        self.next_offset = state.log_end_offset
        self._log, self._files, self._state = log, log.files, state
        self._initial_state = state
        self._magic = log.config.message_magic
        self._now_ms, self._as_follower = now_ms, as_follower
        self._stamps = log.config.is_log_append_time and not as_follower
        self._segment_time: int | None = None  # see `_time_of_segment`
        self._segment = segment_at(log.directory, state.segment_base_offset)
        self._size = state.segment_size
        self._index_size, self._time_index_size = state.index_size, state.time_index_size
        self._indexer = SegmentIndexer(
            state.segment_base_offset,
            interval_bytes=log.config.index_interval_bytes,
            max_timestamp=state.max_timestamp,
            max_timestamp_offset=state.max_timestamp_offset,
            bytes_since_entry=state.bytes_since_index_entry,
            # Not a method of this object, which would have a reference to itself, and wait for the garbage
            # collector after each append.
            last_indexed_timestamp=functools.partial(
                LogAppender._last_indexed_timestamp, weakref.proxy(self)
            ),
        )
        self._touched: dict[Path, None] = {}
        self._made_files = False
        # The state with earlier appends, if they were not flushed.
        self._unflushed = state if state.recovery_point < state.log_end_offset else None

    def append(self, data: bytearray | memoryview) -> None:
        """Append record batches to the active segment, rolling it when it is full.

        Writes to `data`. In a topic with an older format they are messages, as `down_convert` makes
        them.

        Raises:
            CorruptRecordError: `data` is not whole batches; carries the position in it.
        """
        if self._magic < MAGIC:
            self._append_messages(memoryview(data))
            return
        first = 0
        for position, header in walk(data):
            self._ensure_magic(header, position)
            if self._is_full(position - first, header):
                self._write_log(memoryview(data)[first:position])
                self._roll()
                first = position
            batch = memoryview(data)[position : position + header.size_in_bytes]
            head, records = batch[:RECORD_BATCH_OVERHEAD], batch[RECORD_BATCH_OVERHEAD:]
            header = self._assign(head, records, header)
            self._account((header,), self._size + position - first)
        self._write_log(memoryview(data)[first:])

    def _append_messages(self, data: memoryview, known: BatchHeader | None = None) -> None:
        """Append messages of the old formats V0 and V1, assigning offsets unless they come from a leader.

        `known` tells what a single wrapper holds, as its own offset may not.
        """
        # Few logs have these, and reading others need not load what decodes them.
        from spark_kbatch.record.down_conversion import assign_offsets  # noqa: PLC0415

        run_bytes_max = min(self._log.config.segment_bytes, RUN_BYTES_MAX)
        for position, header in walk(data, run_bytes_max=run_bytes_max):
            self._ensure_magic(header, position)
            messages, final = data[position : position + header.size_in_bytes], header
            if not self._as_follower:
                sent = known if known is not None and header.is_wrapper else header
                stamp = self._now_ms if self._stamps else None
                messages, final = assign_offsets(
                    messages, sent, self.next_offset, append_time_ms=stamp
                )
            elif header.is_wrapper:
                final = header.opened(self.next_offset)
            if self._is_full(0, final):
                self._roll()
            if self._size == 0:
                self._segment_time = final.max_timestamp
            if final.is_wrapper:
                self._indexer.add(final, self._size)
            else:
                self._indexer.add_messages(messages, final, self._size)
            self.next_offset = final.next_offset
            self._write_log(messages)

    def append_batch(self, data: Buffer, header: BatchHeader) -> BatchHeader:
        """Append the one record batch in `data`, whose header is known, rolling the segment if it is full.

        Only reads `data`.

        Returns:
            The batch's header in the log, except for its CRC.
        """
        if self._magic < MAGIC:
            base_offset = self.next_offset
            self._append_messages(memoryview(bytearray(data)), header)
            header = header._replace(base_offset=base_offset)
            return header.with_log_append_time(self._now_ms) if self._stamps else header
        if self.is_full_for(header):
            self._roll()
        view = memoryview(data)
        head, records = bytearray(view[:RECORD_BATCH_OVERHEAD]), view[RECORD_BATCH_OVERHEAD:]
        header = self._assign(head, records, header)
        self._account((header,), self._size)
        self._write_log(head, records)
        return header

    def append_run(
        self, data: bytearray | memoryview, batch_headers: Sequence[BatchHeader]
    ) -> list[BatchHeader]:
        """Append several batches, a run that fits into the active segment, assigning their offsets.

        Writes to `data`.

        Returns:
            The batch headers in the log, except for their CRCs.
        """
        view, position = memoryview(data), 0
        epoch = self._state.leader_epoch
        appended = assign_all(view, batch_headers, base_offset=self.next_offset, leader_epoch=epoch)
        for number, header in enumerate(appended if self._stamps else ()):
            start, end = position + RECORD_BATCH_OVERHEAD, position + header.size_in_bytes
            set_log_append_time(view[position:start], view[start:end], self._now_ms)
            appended[number] = header.with_log_append_time(self._now_ms)
            position = end
        self._account(appended, self._size)
        self._write_log(view)
        return appended

    @property
    def segment_base_offset(self) -> int:
        """Base offset of the active segment."""
        return self._indexer.base_offset

    def is_full_for(self, header: BatchHeader) -> bool:
        """Return True if the active segment has no room for this batch."""
        return self._is_full(0, header)

    def has_room_for(self, header: BatchHeader, batches_count: int) -> bool:
        """Return True if the active segment has room for a run of batches, whatever is in it."""
        return (
            header.size_in_bytes <= self._log.config.segment_bytes
            and not self._is_full(0, header)
            and not self._are_indexes_full(batches_count)
        )

    def start_segment(self) -> None:
        """Start a new segment, unless the active one is empty."""
        if self._size:
            self._roll()

    def append_extent(self, source: Path, position: int, size: int) -> None:
        """Append batches from a part of another file, copied in pieces of bounded size."""
        for piece in self._pieces(source, position, size):
            self.append(piece)

    def adopt(self, source: Path, size: int) -> None:
        """Make the file `source`, with `size` bytes of whole batches, the active segment by renaming it.

        It is copied instead, as by `append_extent`, if a segment may have to start within it, or if the
        CRCs of its batches change.
        """
        if not self._is_one_segment(size) or self._stamps or self._magic < MAGIC:
            self.append_extent(source, 0, size)
            return
        self.start_segment()
        with self._files.opened(source, write=True) as descriptor:
            view = memoryview(bytearray(RECORD_BATCH_OVERHEAD))
            position = 0
            while position < size:
                if self._files.pread_into(descriptor, position, view) < RECORD_BATCH_OVERHEAD:
                    raise CorruptRecordError(
                        "batch is truncated", path=str(source), position=position
                    )
                header = unpack(view)
                header.ensure_sane(position, size - position)
                self._ensure_magic(header, position)
                header = self._assign(view, b"", header)
                self._files.write_at(descriptor, position, view[:_ASSIGNED_BYTES])
                self._account((header,), position)
                position += header.size_in_bytes
        if position != size or self._files.size(source) != size:
            raise CorruptRecordError(
                "size of a staged file", path=str(source), position=0, expected=size, found=position
            )
        # Do not rename over the empty file: replacing one makes some file systems flush the data at once.
        self._files.remove(self._segment.log)
        self._files.rename(source, self._segment.log)
        self._touched[self._segment.log] = None
        self._made_files = True
        self._size = size

    def touch(self, path: Path) -> None:
        """Add the file at `path` to those that the next flush writes to disk."""
        self._touched[path] = None

    def finish(
        self,
        *,
        flush: bool,
        prepare_offset: int | None = None,
        high_watermark: int | None = None,
        last_stable_offset: int | None = None,
    ) -> LogState:
        """Write the index entries, flush if asked, and return the log state that makes the appends visible.

        May be called again after further appends; each state's sequence is one higher.

        Args:
            flush: whether to flush all files that were written.
            prepare_offset: the state's, from now on; None: as before.
            high_watermark: None: the log's end.
            last_stable_offset: None: the high watermark, unless a transaction was open: then as before.
        """
        if high_watermark is None:
            high_watermark = self.next_offset
        self._write_indexes()
        if flush:
            self._flush()
        if last_stable_offset is None:
            stable, end = self._state.last_stable_offset, self._state.log_end_offset
            # A follower gets the high watermark with what comes next.
            if self._state.high_watermark < end:
                as_leader = self._state._replace(high_watermark=end)
                stable = self._log.producers.last_stable_offset(as_leader)
            last_stable_offset = high_watermark if stable == end else stable
        self._state = self._state._replace(
            sequence=self._state.sequence + 1,
            log_end_offset=self.next_offset,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            segment_base_offset=self._indexer.base_offset,
            segment_size=self._size,
            index_size=self._index_size,
            time_index_size=self._time_index_size,
            max_timestamp=self._indexer.max_timestamp,
            max_timestamp_offset=self._indexer.max_timestamp_offset,
            bytes_since_index_entry=self._indexer.bytes_since_entry,
            recovery_point=self.next_offset if flush else self._state.recovery_point,
            prepare_offset=(
                self._state.prepare_offset if prepare_offset is None else prepare_offset
            ),
            boot_id=boot_id(),
        )
        return self._state

    def flush(self) -> LogState:
        """Flush the appended files to disk; return the last state from `finish` with a new recovery point.

        Its sequence stays the same.
        """
        self._flush()
        self._state = self._state._replace(recovery_point=self.next_offset)
        return self._state

    def _assign(
        self, head: bytearray | memoryview, records: Buffer, header: BatchHeader
    ) -> BatchHeader:
        """Set a batch's base offset, leader epoch and append time, as a leader does; return its new header.

        The CRC in that header is still the old one. A follower's batch stays as it is.
        """
        if self._as_follower:
            return header
        epoch = self._state.leader_epoch
        assign(head, 0, base_offset=self.next_offset, leader_epoch=epoch)
        header = header._replace(base_offset=self.next_offset, partition_leader_epoch=epoch)
        if self._stamps:
            set_log_append_time(head, records, self._now_ms)
            header = header.with_log_append_time(self._now_ms)
        return header

    def _account(self, headers: Sequence[BatchHeader], position: int) -> None:
        """Index batches from `position` of the active segment on, and advance the log's end past them.

        Their headers are final.
        """
        if position == 0:
            self._segment_time = headers[0].max_timestamp
        self._indexer.add_all(headers, position)
        self.next_offset = headers[-1].next_offset

    def _ensure_magic(self, header: BatchHeader, position: int) -> None:
        if header.magic != self._magic:
            raise CorruptRecordError(
                "magic byte",
                position=position + MAGIC_POSITION,
                expected=self._magic,
                found=header.magic,
            )

    def _is_full(self, unwritten: int, header: BatchHeader) -> bool:
        size = self._size + unwritten
        last_offset = self.next_offset + header.last_offset_delta
        return size > 0 and (
            size + header.size_in_bytes > self._log.config.segment_bytes
            or last_offset - self._indexer.base_offset > RELATIVE_OFFSET_MAX
            or self._are_indexes_full()
            or self._is_too_old_for(header)
        )

    def _are_indexes_full(self, entries: int = 1) -> bool:
        room = self._log.config.segment_index_bytes
        index_size = self._index_size + len(self._indexer.index)
        time_index_size = self._time_index_size + len(self._indexer.time_index)
        return (
            index_size + entries * INDEX_ENTRY.size > room
            or time_index_size + (entries + 1) * TIME_INDEX_ENTRY.size > room
        )

    def _is_too_old_for(self, header: BatchHeader) -> bool:
        segment_ms = self._log.config.segment_ms
        if segment_ms == LONG_MAX:
            return False
        first_time = self._time_of_segment()
        if first_time >= 0:
            time = self._now_ms if self._stamps else header.max_timestamp
            return time - first_time > segment_ms
        return self._now_ms - self._made_ms() > segment_ms

    def _time_of_segment(self) -> int:
        """Return the largest timestamp of the active segment's first batch; -1 if there is none."""
        if self._segment_time is None:
            head = self._files.read(self._segment.log, 0, RECORD_BATCH_OVERHEAD)
            try:
                first = header_at(head, 0, len(head), room=self._size)
            except CorruptRecordError as error:
                raise error.at(str(self._segment.log), 0) from None
            self._segment_time = first.max_timestamp
        return self._segment_time

    def _made_ms(self) -> int:
        """Return when the active segment was created, to apply segment.ms to records without timestamps.

        The time index is created with the segment and not written before a record has a timestamp.
        """
        try:
            return self._files.modified_ms(self._segment.time_index)
        except FileNotFoundError:
            return self._now_ms

    def _last_indexed_timestamp(self) -> int:
        """Return the timestamp of the last time index entry that was there before any append.

        Indexes that are missing or too short are rebuilt, since new entries go to the positions that the
        state names. Nothing has been added to them so far.
        """
        initial, log = self._initial_state, self._log
        segment = segment_at(log.directory, initial.segment_base_offset)
        found = last_indexed_timestamp(self._files, segment, initial.time_index_size)
        (index_size,) = self._files.sizes(log.directory, (segment.offset_index.name,))
        if found is None or index_size < initial.index_size:
            initial = recovery.rebuild_active_indexes(log.segments, initial)
            self._index_size, self._time_index_size = initial.index_size, initial.time_index_size
            found = last_indexed_timestamp(self._files, segment, initial.time_index_size)
        return -1 if found is None else found

    def _is_one_segment(self, size: int) -> bool:
        """Return True if batches of this size fit into one segment, whatever is in them."""
        config = self._log.config
        entries_max = size // (config.index_interval_bytes + 1) + 1
        return (
            size <= config.segment_bytes
            and (entries_max + 1) * TIME_INDEX_ENTRY.size <= config.segment_index_bytes
            and config.segment_ms == LONG_MAX
        )

    def _roll(self) -> None:
        """Close the active segment and start one at the next offset."""
        self._indexer.add_time_entry()
        self._write_indexes()
        self._indexer = SegmentIndexer(
            self.next_offset, interval_bytes=self._log.config.index_interval_bytes
        )
        self._segment = segment_at(self._log.directory, self.next_offset)
        self._size = self._index_size = self._time_index_size = 0
        self._segment_time = None
        make_files(self._files, self._segment)
        self._touched.update(dict.fromkeys(self._segment.paths))
        self._made_files = True

    def _write_log(self, *parts: Buffer) -> None:
        size = sum(map(len, parts))
        if not size:
            return
        if self._size == 0 and not self._made_files:
            # A crash in `adopt`, or in a truncation of all, leaves an active segment without files.
            for path in self._segment.paths:
                if not self._files.exists(path):
                    self._files.write(path, 0, b"")
                    self._touched[path] = None
            self._made_files = True
        with self._files.made(self._segment.log) as descriptor:
            position = self._size
            for part in parts:
                self._files.write_at(descriptor, position, part)
                position += len(part)
        self._touched[self._segment.log] = None
        self._size += size

    def _write_indexes(self) -> None:
        indexer = self._indexer
        if indexer.index:
            self._files.write(self._segment.offset_index, self._index_size, indexer.index)
            self._index_size += len(indexer.index)
            self._touched[self._segment.offset_index] = None
            indexer.index = bytearray()
        if indexer.time_index:
            self._files.write(self._segment.time_index, self._time_index_size, indexer.time_index)
            self._time_index_size += len(indexer.time_index)
            self._touched[self._segment.time_index] = None
            indexer.time_index = bytearray()

    def _flush(self) -> None:
        paths: dict[Path, None] = {}
        earlier = self._unflushed
        if earlier is not None:
            bases = self._log.segments.bases(earlier)
            first = max(bisect.bisect_right(bases, earlier.recovery_point) - 1, 0)
            for base in bases[first:]:
                paths.update(dict.fromkeys(segment_at(self._log.directory, base).paths))
        paths.update(self._touched)
        self._files.flush(path for path in paths if self._files.exists(path))
        if self._made_files or earlier is not None:
            self._files.flush([self._log.directory])
        self._touched, self._made_files, self._unflushed = {}, False, None

    def _pieces(self, source: Path, position: int, size: int) -> Iterator[memoryview]:
        """Yield whole batches of source[position : position + size], about 8 MiB at a time."""
        end = position + size
        while position < end:
            view = memoryview(bytearray(min(_COPY_BYTES, end - position)))
            if self._files.read_into(source, position, view) < len(view):
                raise CorruptRecordError(
                    "staged file is truncated", path=str(source), position=position
                )
            whole = whole_size(view)
            if whole == 0:
                batch_size = unpack(view).size_in_bytes if len(view) >= RECORD_BATCH_OVERHEAD else 0
                if not len(view) < batch_size <= end - position:
                    raise CorruptRecordError(
                        "batch length", path=str(source), position=position,
                        expected=f"at most {end - position}", found=batch_size,
                    )  # fmt: skip
                view = memoryview(bytearray(whole := batch_size))
                self._files.read_into(source, position, view)
            yield view[:whole]
            position += whole


class Ahead(NamedTuple):
    """An append to a leader's log that stays above the high watermark until the followers have it."""

    result: AppendResult
    state: LogState  # as it was written; `flush` returns the one with the new recovery point
    log: PartitionLog
    appender: LogAppender

    def flush(self) -> LogState:
        """Flush the appended batch, and the log state that covers it, to disk."""
        state = self.appender.flush()
        self.log.flush_state()
        return state


class Copied(NamedTuple):
    """An append to a follower's log that stays invisible until `show` is called."""

    log_end_offset: int
    show: Callable[[], LogState]


def append_as_leader(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    header: BatchHeader,
    *,
    origin: AppendOrigin,
    flush: bool,
    now_ms: int,
    batch_headers: Sequence[BatchHeader] = (),
) -> AppendResult:
    """Append a validated batch, or a run of them, to a leader's log and make it visible.

    `accept` has accepted the batches. A duplicate is not written again: the result has its original
    offsets. A run is a duplicate if its last batch is one, since its batches become visible together. The
    caller holds the partition's lock, and no decided commit waits for its flip here. `data` is not used
    after the call, and only read unless it is a run.

    Args:
        header: of the batch, or of the run together.
        batch_headers: of a run's batches.

    Raises:
        InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError,
            TransactionCoordinatorFencedError: nothing is written.
        OSError: the batch is not visible; if writing or flushing the state failed, it may be. An
            idempotent producer may safely retry: the log is checked for a duplicate then.
    Source: UnifiedLog.append.
    """
    return _append(
        log, state, data, header, batch_headers, origin, flush=flush, now_ms=now_ms
    ).result


def check_together(
    log: PartitionLog, state: LogState, headers: Sequence[BatchHeader], *, now_ms: int
) -> list[AppendResult | None]:
    """Find which batches of several producers `append_together` can append; nothing is written.

    They end before the first that has to be appended alone: the active segment has no room for it, it is
    a control batch or transactional, or of a producer that has a batch before it. The caller holds the
    partition's lock until it has appended them, and no decided commit waits for its flip here.

    Returns:
        For each of these, from the first on, None, or what it is answered without being written: a
        duplicate's offsets, or the error of `append_as_leader`.

    Raises:
        CorruptRecordError, KafkaStorageError: of the log, whose producers cannot be read.
    """
    count = 0
    if state.segment_size:  # the first batch of a log goes alone
        count = _together_count(LogAppender(log, state, now_ms=now_ms), headers)
    if not count or not log.segments.is_as_recorded(state):
        return []
    if any(header.producer_id > NO_PRODUCER_ID for header in headers[:count]):
        log.producers.read(state, now_ms)
    return [_known_outcome(log, state, header) for header in headers[:count]]


def _together_count(appender: LogAppender, headers: Sequence[BatchHeader]) -> int:
    producer_ids = set[int]()
    fits: BatchHeader | None = None
    for count, header in enumerate(headers):
        fits = header if fits is None else together([fits, header])
        if (
            header.magic < MAGIC
            or header.is_control
            or header.is_transactional
            or header.producer_id in producer_ids
            or not appender.has_room_for(fits, count + 1)
        ):
            return count
        if header.producer_id > NO_PRODUCER_ID:
            producer_ids.add(header.producer_id)
    return len(headers)


def _known_outcome(log: PartitionLog, state: LogState, header: BatchHeader) -> AppendResult | None:
    if header.producer_id <= NO_PRODUCER_ID:
        return None
    duplicate = log.producers.states.find_duplicate(header)
    if duplicate is not None:
        return _result(log, state, duplicate.base_offset, duplicate.timestamp)
    try:
        log.producers.states.ensure_follows(header)
    except KBatchError as error:
        return AppendResult(error=without_frames(error))
    return None


def append_together(
    log: PartitionLog,
    state: LogState,
    batches: Sequence[tuple[Buffer, BatchHeader]],
    outcomes: Sequence[AppendResult | None],
    *,
    flush: bool,
    now_ms: int,
) -> list[AppendResult]:
    """Append batches of several producers and make them visible with one state.

    The log is the same as after `append_as_leader` of each in turn, but is written, and flushed, once.
    The batches are only read.

    Args:
        outcomes: of `check_together`, for the first of the batches; the others are left.

    Raises:
        OSError, CorruptRecordError, KafkaStorageError: none is visible; if writing or flushing the state
            failed, they may be.
    """
    taken = [one for one, outcome in zip(batches, outcomes, strict=False) if outcome is None]
    headers = [header for _, header in taken]
    appender = LogAppender(log, state, now_ms=now_ms)
    appended: list[BatchHeader] = []
    are_known = log.producers.are_known(state)
    last_stable_offset = None
    if taken:
        appended = appender.append_run(bytearray().join(data for data, _ in taken), headers)
        if any(header.producer_id > NO_PRODUCER_ID for header in headers):
            last_stable_offset = _stable_with(log, state, appended[-1])
    # A duplicate may not have been flushed, or the flush of its state failed.
    if taken or (flush and any(one and one.error is None for one in outcomes)):
        state = appender.finish(flush=flush, last_stable_offset=last_stable_offset)
        log.write_state(state, flush=flush)
    if are_known and taken:
        for header in appended:
            if header.producer_id > NO_PRODUCER_ID:
                replay(log.producers.states, header, None, now_ms)
        log.producers.appended(state, len(appended))
    left = iter(appended)
    return [
        outcome or _result(log, state, (one := next(left)).base_offset, one.max_timestamp)
        for outcome in outcomes
    ]


def append_ahead(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    header: BatchHeader,
    *,
    origin: AppendOrigin,
    now_ms: int,
    batch_headers: Sequence[BatchHeader] = (),
) -> Ahead:
    """Append like `append_as_leader`, but flush nothing and leave the high watermark where it is.

    So the batch is visible to followers only.
    """
    return _append(
        log, state, data, header, batch_headers, origin,
        flush=False, now_ms=now_ms, high_watermark=state.high_watermark,
    )  # fmt: skip


def _append(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    header: BatchHeader,
    batch_headers: Sequence[BatchHeader],
    origin: AppendOrigin,
    *,
    flush: bool,
    now_ms: int,
    high_watermark: int | None = None,
) -> Ahead:
    appender = LogAppender(log, state, now_ms=now_ms)
    # Bytes that a dead writer left after the active segment show in its size. What else it left,
    # index entries and segments, matters only when the segment is rolled.
    may_roll = _may_roll(appender, header, batch_headers)
    if may_roll or not log.segments.is_as_recorded(state):
        state = log.discard_unrecorded(state)
        appender = LogAppender(log, state, now_ms=now_ms)
        may_roll = _may_roll(appender, header, batch_headers)
    idempotent = header.producer_id > NO_PRODUCER_ID
    marker = None
    if idempotent:
        log.producers.read(state, now_ms)
        if header.is_control:
            marker = read_marker(data, 0, header)
        if marker is not None:
            log.producers.states.ensure_may_end(header, marker)
        if origin.is_client:
            last = batch_headers[-1] if batch_headers else header
            duplicate = log.producers.states.find_duplicate(last)
            if duplicate is not None:
                if flush:  # It may not have been flushed, or the flush of its state failed.
                    state = appender.finish(flush=True, high_watermark=high_watermark)
                    log.write_state(state, flush=True)
                base_offset = duplicate.last_offset - header.last_offset_delta
                result = _result(log, state, base_offset, duplicate.timestamp)
                return Ahead(result, state, log, appender)
            log.producers.states.ensure_follows(header)
    are_known = log.producers.are_known(state)
    if may_roll:
        batches = batch_headers or [header]
        appended = _append_rolling(log, appender, data, batches, now_ms, are_known)
    elif batch_headers:
        run = bytearray(data) if isinstance(data, bytes) else data
        appended = appender.append_run(run, batch_headers)
    else:
        appended = [appender.append_batch(data, header)]
    header = together(appended) if batch_headers else appended[0]
    last_stable_offset = None
    if idempotent:
        last_stable_offset = _stable_with(log, state, header)
        aborted = log.producers.states.aborted_by(header, marker) if marker else None
        if aborted is not None:
            base = appender.segment_base_offset
            appender.touch(transaction_index.append(log.files, log.directory, base, [aborted]))
    if high_watermark is not None:
        last_stable_offset = state.last_stable_offset
    after = appender.finish(
        flush=flush, high_watermark=high_watermark, last_stable_offset=last_stable_offset
    )
    log.write_state(after, flush=flush)
    if are_known:
        for one in appended[-BATCHES_REMEMBERED:] if idempotent else ():
            replay(log.producers.states, one, marker, now_ms)
        log.producers.appended(after, len(appended))
    result = _result(log, state, header.base_offset, header.max_timestamp)
    return Ahead(result, after, log, appender)


def _stable_with(log: PartitionLog, state: LogState, header: BatchHeader) -> int:
    """Return the last stable offset that a log in this state has with a producer's batch more.

    It never goes back. An open transaction may have started before it: where all its records were deleted,
    a commit of a job that came after them is visible.
    """
    return max(state.last_stable_offset, log.producers.states.last_stable_offset_with(header))


def _may_roll(
    appender: LogAppender, header: BatchHeader, batch_headers: Sequence[BatchHeader]
) -> bool:
    """Return True if the active segment may have no room for a batch, or for all of a run."""
    if batch_headers:
        return not appender.has_room_for(header, len(batch_headers))
    return appender.is_full_for(header)


def _append_rolling(
    log: PartitionLog,
    appender: LogAppender,
    data: Buffer,
    batch_headers: Sequence[BatchHeader],
    now_ms: int,
    are_known: bool,
) -> list[BatchHeader]:
    """Append batches one by one, writing a producer snapshot whenever a segment is rolled.

    Snapshots are written only if the producers are known.

    Returns:
        The batch headers in the log, except for their CRCs.
    """
    # A copy: the log does not show these batches yet.
    producers = ProducerStates(log.topic_partition)
    producers.load(log.producers.states.entries, now_ms)
    view, appended = memoryview(data), list[BatchHeader]()
    for header in batch_headers:
        if appender.is_full_for(header) and are_known:
            entries = producers.entries
            appender.touch(write_snapshot(log.files, log.directory, appender.next_offset, entries))
        size = header.size_in_bytes
        batch, view = view[:size], view[size:]
        appended.append(appender.append_batch(batch, header))
        if header.producer_id > NO_PRODUCER_ID and not header.is_control:
            producers.add(appended[-1], now_ms)
    return appended


def append_as_follower(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    *,
    high_watermark: int,
    flush: bool,
    now_ms: int,
    prepare_offset: int | None = None,
) -> Copied:
    """Append batches fetched from the leader, byte for byte; `show` of the result makes them visible.

    Nothing is flushed before `show`. The caller holds the partition's lock. `data` is only read.

    Args:
        data: one or more whole batches, the first of which starts where this log ends.
        high_watermark: the leader's. Ours follows it, as far as our log goes, and never goes back.
        flush: whether `show` flushes.
        prepare_offset: the leader's, if its state has one.

    Raises:
        UnexpectedAppendOffsetError: the batches start elsewhere.
        OffsetsOutOfOrderError: there are gaps between them; logs written here have none.
        CorruptRecordError: a CRC does not match, or a leader epoch decreases; the position is the
            one in `data`.
        In all of these cases nothing is written.
    Source: UnifiedLog.appendAsFollower, LeaderEpochFileCache.assign.
    """
    first = next(header for _, header in walk(data))
    appender = LogAppender(log, state, now_ms=now_ms, as_follower=True)
    is_one_batch = first.size_in_bytes == len(data) and first.magic == MAGIC
    epochs = readable_epochs(log.files, log.directory)
    if (
        not is_one_batch
        or appender.is_full_for(first)
        or not log.segments.is_as_recorded(state)
        or not epochs
    ):
        state = log.discard_unrecorded(state)
        epochs = read_leader_epochs(log.files, log.directory)
    epochs_after = _checked_copy(log, state, data, epochs)
    if epochs_after != epochs:
        write_leader_epochs(log.files, log.directory, epochs_after)
    if epochs_after:
        if epochs_after == epochs and state.leader_epoch < epochs[-1][0]:
            # A process wrote them, and died before it wrote the state; or before they were on disk.
            LeaderEpochCache(log.files, log.directory, epochs).flush()
        state = state._replace(leader_epoch=max(state.leader_epoch, epochs_after[-1][0]))
    appender = LogAppender(log, state, now_ms=now_ms, as_follower=True)
    log.producers.read(state, now_ms)
    with _producers_with_batches(log):
        batches_count = _append_and_replay(log, appender, memoryview(data), now_ms)

    def show() -> LogState:
        shown_end = max(state.high_watermark, min(high_watermark, appender.next_offset))
        with _producers_with_batches(log):
            after = appender.finish(
                flush=flush,
                prepare_offset=prepare_offset,
                high_watermark=shown_end,
                last_stable_offset=log.producers.states.last_stable_offset(
                    shown_end, state.last_stable_offset
                ),
            )
            log.write_state(after, flush=flush)
        log.producers.appended(after, batches_count)
        return after

    return Copied(appender.next_offset, show)


@contextlib.contextmanager
def _producers_with_batches(log: PartitionLog) -> Iterator[None]:
    try:
        yield
    except BaseException:
        log.producers.forget()  # They may include batches that the log does not have.
        raise


def _append_and_replay(
    log: PartitionLog, appender: LogAppender, data: memoryview, now_ms: int
) -> int:
    """Append a leader's batches to a follower's log, its producer state and its transaction index.

    Returns:
        The number of batches.
    """
    start = count = 0
    for position, header in walk(data):
        count += 1
        if header.producer_id <= NO_PRODUCER_ID:
            continue
        marker = read_marker(data, position, header) if header.is_control else None
        aborted = replay(log.producers.states, header, marker, now_ms)
        if aborted is not None:
            # So that the active segment is then the one with the marker.
            end = position + header.size_in_bytes
            appender.append(data[start:end])
            start = end
            base = appender.segment_base_offset
            appender.touch(transaction_index.append(log.files, log.directory, base, [aborted]))
    appender.append(data[start:])
    return count


def _checked_copy(
    log: PartitionLog, state: LogState, data: Buffer, epochs: list[EpochEntry]
) -> list[EpochEntry]:
    """Check batches fetched from a leader; return the log's leader epochs including theirs."""
    next_offset = state.log_end_offset
    for position, header in walk(data):
        if header.is_wrapper and header.last_offset >= next_offset:
            # Its base offset is known once it is decompressed.
            header = unwrap(data, position, header).header
        has_gaps = header.magic < MAGIC and not header.is_dense
        if header.base_offset != next_offset or has_gaps:
            kind = OffsetsOutOfOrderError if position else UnexpectedAppendOffsetError
            raise kind(str(log.topic_partition), next_offset, header.base_offset)
        next_offset = header.next_offset
        ensure_valid(data, position, header)
        if header.magic < MAGIC:
            continue  # older formats have no leader epoch
        epoch, latest = header.partition_leader_epoch, epochs[-1][0] if epochs else -1
        if epoch < max(latest, 0):
            raise CorruptRecordError(
                "partition leader epoch", position=position + 12,
                expected=f"{max(latest, 0)} or more", found=epoch,
            )  # fmt: skip
        if epoch > latest:
            # An epoch that started here has no batch.
            epochs = [entry for entry in epochs if entry[1] < header.base_offset]
            epochs.append(EpochEntry(epoch, header.base_offset))
    return epochs


def _result(log: PartitionLog, state: LogState, base_offset: int, time_ms: int) -> AppendResult:
    log_append_time = time_ms if log.config.is_log_append_time else NO_TIMESTAMP
    return AppendResult(base_offset, log_append_time, state.log_start_offset)
