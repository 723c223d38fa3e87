"""The log of one replica of a partition: its recorded state, reads, and lookups by timestamp.

Reading takes a state and no lock: it sees what that state says, whatever is written meanwhile.
Appending (`append`) puts batches past every recorded end and returns the state that would make them
visible; the holder of the partition's lock writes that state, or does not.

    log = PartitionLog(files, directory, TopicPartition("events", 0), TopicConfig())
    state = log.state()
    state = log.discard_unrecorded(state)       # what a dead writer left past the recorded ends
    appender = LogAppender(log, state, now_ms=now_ms)
    appender.append(batches)                    # invisible
    log.write_state(appender.finish(flush=True), flush=True)        # visible
    log.read(log.state(), ReadRange(0, max_bytes=1 << 20))

Base offsets and leader epochs lie outside the CRC. But batches in our logs follow each other without gaps, so a base offset
with a flipped bit does not fit between its neighbours, and a leader epoch with one does not fit the
leader-epoch-checkpoint.

Source: Kafka storage/.../log/UnifiedLog.java, LocalLog.java. `state.py` describes the state.
"""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    MissingRecordsError,
    OffsetOutOfRangeError,
)
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log import recovery
from spark_kbatch.log.batch_headers import (
    header_at,
    indexed_batch,
    too_short,
    walk_batch_headers,
)
from spark_kbatch.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    leader_epochs,
    partition_metadata,
)
from spark_kbatch.log.epochs import UNDEFINED_EPOCH, LeaderEpochCache
from spark_kbatch.log.lookup import Largest, SegmentViews, TimeLookup, bytes_between, split_points
from spark_kbatch.log.producers import saved as saved_producers
from spark_kbatch.log.producers.manager import LogProducers
from spark_kbatch.log.producers.replay import AbortedSearch
from spark_kbatch.log.segment import (
    LogSegments,
    SegmentView,
    base_offset_of,
    log_name,
    segment_at,
)
from spark_kbatch.log.segment_scan import find_next
from spark_kbatch.log.state import (
    STATE_FILE,
    LogState,
    boot_id,
    both_slots,
    compact,
    empty_state,
    flush_state,
    is_of_new_log,
    read_slots,
    read_state,
    valid_slots,
    write_state,
)
from spark_kbatch.model import (
    MAX_TIMESTAMP,
    IsolationLevel,
    OffsetAndTimestamp,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import (
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    LogRead,
    ensure_valid,
    walk,
    whole_size,
)

logger = logging.getLogger(__name__)


class PartitionLog:
    """The log of one replica of a partition, as files in a directory.

    Keeps nothing open; any number of threads may read.
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
        self.segments = LogSegments(files, directory, topic_partition, config)
        # Replaced whole. The file only grows at its end, so an old list is wrong only about new
        # offsets, and is then read again.
        self._leader_epochs = LeaderEpochCache(files, directory, [])
        # What `offset_for_timestamp` remembers, and as of which state; the first is replaced whole.
        self._times = TimeLookup(files)
        self._times_as_of: LogState | None = None
        # The bytes that `state` read last, and the state in them; replaced whole.
        self._read: tuple[bytes, LogState | None] = b"", None
        # The last state of another boot, and what is left of it; replaced whole.
        self._checked: tuple[LogState | None, LogState | None] = (None, None)
        self.producers = LogProducers(self.segments)
        self._aborted = AbortedSearch(files)
        self._is_swept = False  # whether `discard_unrecorded` has listed all segments

    def create(self, topic_id: str) -> None:
        """Create the directory of an empty log, flushed to disk; remove what was there."""
        self.files.flush(self.create_unflushed(topic_id))

    def create_unflushed(self, topic_id: str, first_offset: int = 0) -> list[Path]:
        """Create an empty log like `create`, for a caller that creates thousands and flushes them together.

        Args:
            topic_id: of its topic.
            first_offset: that its first record gets.

        Returns:
            The paths to flush before anything refers to the log.
        """
        self.files.remove_dir(self.directory)
        self.files.make_dir(self.directory)
        contents = {
            PARTITION_METADATA: partition_metadata(topic_id),
            LEADER_EPOCHS: leader_epochs([(0, first_offset)]),
            STATE_FILE: both_slots(empty_state(first_offset)),
        }
        for path in segment_at(self.directory, first_offset).paths:
            self.files.write(path, 0, b"")
        for name, data in contents.items():
            self.files.write(self.directory / name, 0, data)
        return [*(self.directory / name for name in contents), self.directory]

    def state(self) -> LogState:
        """Return the log's state as recorded in `kbatch.state`: its offsets and the active segment's sizes.

        A commit that is decided but not flipped may have overtaken it.

        Raises:
            KafkaStorageError: the log is gone, or what was flushed is missing.
            CorruptRecordError: neither slot of the state is valid.
        """
        try:
            data = read_slots(self.files, self.directory)
            slots, (known, state) = compact(data), self._read
            if slots != known or state is None:
                state = self.verified(read_state(self.files, self.directory, data))
                self._read = slots, state
            return state
        except FileNotFoundError as error:
            raise self.segments.gone(Path(error.filename)) from error

    def verified(self, state: LogState) -> LogState:
        """Return `state`, ending before the first bad batch if a reboot may have lost unflushed batches.

        The batches are checked if the state was written before the last reboot and not all of it was flushed.
        `recovery.py` says how that is found.
        """
        if state.boot_id == boot_id() or state.recovery_point >= state.log_end_offset:
            return state
        known, found = self._checked
        if known != state:
            first = max(state.recovery_point, state.log_start_offset)
            if known is not None and known == found and known.sequence < state.sequence:
                if known.leader_epoch == state.leader_epoch:
                    first = max(first, min(known.log_end_offset, state.log_end_offset))
            found = recovery.verified(self.segments, state, first)
            self._checked = state, found
        return found or state

    def has_up_to(self, state: LogState) -> bool:
        """Return True if the log's files have whole batches between its recorded end and that of `state`."""
        start, segments = self.state().log_end_offset, self.segments
        views = segments.views_from(state, segments.bases(state), start)
        return recovery.first_damage(self.files, self.directory, views, state, start) is None

    def holds(self, decided: LogState) -> bool:
        """Return False if the files lack batches of a decided commit that were placed: the disk is an older image.

        What a power loss may have taken is for `verified` to find.
        """
        if decided.boot_id != boot_id() and decided.recovery_point < decided.log_end_offset:
            return True
        active = log_name(decided.segment_base_offset)
        (size,) = self.files.sizes(self.directory, (active,))
        if size == decided.segment_size:
            return True
        try:
            return self.has_up_to(decided)
        except KafkaStorageError:
            return False

    def write_state(self, state: LogState, *, flush: bool) -> None:
        """Record `state` in the log's `kbatch.state`.

        The caller holds the partition's lock.
        """
        write_state(self.files, self.directory, state, flush=flush)

    def flush_state(self) -> None:
        """Flush the log's `kbatch.state` to disk, whichever process wrote it."""
        flush_state(self.files, self.directory)

    def size_in_bytes(self, state: LogState) -> int:
        """Return the size in bytes of all batches of the log."""
        return sum(self.segments.sizes(state, self.segments.bases(state)))

    def read(self, state: LogState, asked: ReadRange) -> LogRead:
        """Read whole batches, starting with the one that holds `asked.offset`.

        Returns:
            Batches of one segment, up to the high watermark, or for READ_COMMITTED up to the last
            stable offset and with the aborted transactions. Nothing if the offset is that end or
            above it.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            CorruptRecordError: impossible sizes, magic bytes, offsets or epochs, at the offset; batches
                before damage are returned. Or no segment holds the offset. Says where reading can go on.
                CRCs are not checked.
            KafkaStorageError: the files are shorter than the state says.
        Source: LocalLog.read, LogSegment.translateOffset.
        """
        offset, isolation = asked.offset, asked.isolation
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                str(self.topic_partition), offset, state.log_start_offset, state.high_watermark
            )
        nothing = LogRead("", 0, memoryview(b""), [])
        committed = isolation is IsolationLevel.READ_COMMITTED
        if offset >= (state.last_stable_offset if committed else state.high_watermark):
            return nothing
        held, active = self.segments.bases(state), state.segment_base_offset
        bases = held if held[-1:] == [active] else [*held, active]
        at = bisect.bisect_right(bases, offset) - 1
        if at < 0 or at == len(held):  # the first one is missing, or the active one
            ends = *bases[at + 1 : at + 2], state.high_watermark
            raise MissingRecordsError(
                f"no segment holds offset {offset}",
                str(self.directory),
                offset=offset,
                next_offset=ends[0],
            )
        segment = self.segments.view(state, bases, at)
        with self.files.opened(segment.log) as descriptor:
            found = self._batches_from(descriptor, segment, asked)
        if found is None:
            return nothing
        position, view, batches = found
        last_position, last = batches[-1]
        end = last_position + last.size_in_bytes
        read = LogRead(str(segment.log), position, view[:end], batches)
        if not committed:
            return read.below(state.high_watermark)
        return self._aborted.decided(
            read,
            self.segments.segments_from(state, segment.base_offset),
            last_stable_offset=state.last_stable_offset,
            log_end_offset=state.log_end_offset,
        )

    def _batches_from(
        self, descriptor: int, segment: SegmentView, asked: ReadRange
    ) -> tuple[int, memoryview, list[tuple[int, BatchHeader]]] | None:
        """Return the batches of a segment from an offset on, their position and their bytes.

        None if the first is larger than may be read.
        """
        path, after = segment.log, None
        while True:
            position, header, expected = self._batch_with(descriptor, segment, asked.offset, after)
            if header.size_in_bytes > asked.max_bytes and not asked.min_one_batch:
                return None
            size = max(min(asked.max_bytes, segment.size_in_bytes - position), header.size_in_bytes)
            view = (
                memoryview(asked.buffer)[:size]
                if asked.buffer and len(asked.buffer) >= size
                else memoryview(bytearray(size))
            )
            if self.files.pread_into(descriptor, position, view) < size:
                raise too_short(self.files, path, position + size)
            try:
                batches = self._whole_batches(path, position, view, expected)
                self._ensure_ends(segment, position, view, batches)
                return position, view, batches
            except CorruptRecordError as error:
                first = header.base_offset
                after = self._after_damage(
                    descriptor, segment, error, position, first, asked.offset
                )

    def _batch_with(
        self,
        descriptor: int,
        segment: SegmentView,
        offset: int,
        after: tuple[int, BatchHeader] | None,
    ) -> tuple[int, BatchHeader, int | None]:
        """Return the batch that holds an offset: its position, its header, and where the one before ends.

        What is damaged before it is passed over.

        Args:
            after: the batch to start at; by default one that the index names.
        """
        path, end_position = segment.log, segment.size_in_bytes
        position, first = 0, segment.base_offset  # of what may be damaged
        before: tuple[int, BatchHeader] | None = None
        while True:
            try:
                expected: int | None = None
                if after is not None:
                    (position, header), before, after = after, None, None
                    first = header.base_offset
                elif before is None:
                    position, header = indexed_batch(self.files, descriptor, segment, offset)
                    first = header.base_offset
                    if position == 0:
                        first = expected = segment.base_offset
                else:
                    position = before[0] + before[1].size_in_bytes
                    first = expected = before[1].next_offset
                    header = header_at(self.files, descriptor, path, position, end_position)
                self._ensure_fits(path, position, header, expected)
                if header.last_offset >= offset:
                    return position, header, expected
                if position + header.size_in_bytes == end_position:
                    batch = self.files.read(path, position, header.size_in_bytes)
                    raise self._ends_early(segment, position, batch, header)
                before = position, header
            except CorruptRecordError as error:
                if error.offset >= 0:  # All is sound up to there.
                    raise
                damage = error
                if before is not None:
                    # It may be wrong about where it ends: its CRC tells.
                    position, header = before
                    try:
                        ensure_valid(
                            self.files.read(path, position, header.size_in_bytes), 0, header
                        )
                    except CorruptRecordError as error_before:
                        first, damage = header.base_offset, error_before.at(str(path), position)
                after = self._after_damage(descriptor, segment, damage, position, first, offset)

    def _after_damage(
        self,
        descriptor: int,
        segment: SegmentView,
        error: CorruptRecordError,
        position: int,
        first: int,
        offset: int,
    ) -> tuple[int, BatchHeader]:
        """Return the next valid batch after damage, if it is not past `offset`.

        Args:
            error: says what is damaged.
            position: of the damaged batch, or of the one before it.
            first: offset that is damaged.
            offset: that is read.

        Raises:
            CorruptRecordError: `offset` lies in the damage; with the offsets that do.
        """
        following = find_next(
            self.files, descriptor, position, segment.size_in_bytes,
            range(first + 1, segment.next_offset), is_dense=self.config.message_magic == MAGIC,
        )  # fmt: skip
        next_offset = segment.next_offset if following is None else following[1].base_offset
        if following is None or offset < next_offset:
            raise replace(error, offset=first, next_offset=next_offset) from None
        _warn_of_damage(str(error))
        return following

    def _ensure_ends(
        self,
        segment: SegmentView,
        position: int,
        view: memoryview,
        batches: list[tuple[int, BatchHeader]],
    ) -> None:
        """Check that a segment's last batch ends where the next segment starts.

        If it is damaged, the batches before it stay; if there are none, raise. If offsets are missing
        after it, all stay: reading those is an error.
        """
        at, last = batches[-1]
        end = at + last.size_in_bytes
        if position + end < segment.size_in_bytes or last.next_offset == segment.next_offset:
            return
        error = self._ends_early(segment, position + at, view[at:end], last)
        if error.offset < 0:
            if len(batches) == 1:
                raise error
            del batches[-1]

    def offset_for_timestamp(
        self, state: LogState, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with a timestamp of `timestamp_ms` or later.

        `lookup.py` tells how it is found. For MAX_TIMESTAMP return the first record with the largest
        timestamp.

        Raises:
            CorruptRecordError: a batch on the way is damaged.
        """
        while True:
            try:
                segments, start_offset = self._timed_segments(state), state.log_start_offset
                if timestamp_ms == MAX_TIMESTAMP:
                    return self._times.max_timestamp(segments, start_offset, end_offset)
                return self._times.offset_for(segments, timestamp_ms, start_offset, end_offset)
            except (FileNotFoundError, KafkaStorageError):
                # 1. the caller looks at the log. 2. its first segments are deleted. 3. they are searched here.
                start_offset = self.state().log_start_offset
                if start_offset <= state.log_start_offset:
                    raise
                state = state._replace(log_start_offset=start_offset)

    def largest_timestamp(self, state: LogState, base: int) -> int:
        """Return the largest timestamp in the segment that starts at `base`; -1 if no record has one.

        Raises:
            CorruptRecordError: a batch on the way is damaged.
        """
        segments = self._timed_segments(state)
        return self._times.largest(segments, bisect.bisect_left(segments.bases, base)).timestamp

    def _timed_segments(self, state: LogState) -> SegmentViews:
        """Return the segments for timestamp lookups; drop cached timestamps that `state` contradicts."""
        bases = self.segments.bases_with_active(state)
        known = self._times_as_of
        if known is not None and (
            known.leader_epoch != state.leader_epoch or known.log_end_offset > state.log_end_offset
        ):
            # A truncated segment may have grown again with other times.
            self._times = TimeLookup(self.files)
        self._times_as_of = state
        largest = Largest(state.max_timestamp, state.max_timestamp_offset)
        return SegmentViews(bases, lambda at: self.segments.view(state, bases, at), largest)

    def split_points(
        self, state: LogState, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[int]:
        """Return offsets that split a range of the log into pieces of about `piece_bytes`.

        See `lookup.split_points`.
        """
        segments = self._sized_segments(state)
        return split_points(self.files, segments, start_offset, end_offset, piece_bytes)

    def bytes_between(self, state: LogState, start_offset: int, end_offset: int) -> int | None:
        """Return about the size of a range of the log; see `lookup.bytes_between`."""
        return bytes_between(self.files, self._sized_segments(state), start_offset, end_offset)

    def _sized_segments(self, state: LogState) -> SegmentViews:
        bases = self.segments.bases_with_active(state)
        return SegmentViews(
            bases,
            lambda at: self.segments.view(state, bases, at),
            sizes=lambda first, stop: self.segments.sizes(state, bases[first:stop], if_gone=-1),
        )

    def discard_unrecorded(self, state: LogState, *, thorough: bool = False) -> LogState:
        """Remove what dead writers left past the log's recorded end, and check what may have been lost.

        The caller holds the partition's lock, and continues from the state that is returned.
        `recovery.py` lists what may be found.

        Args:
            thorough: whether to look at all segments, as the first call does, even if the active one
                shows no sign of a dead writer.

        Raises:
            KafkaStorageError: what was flushed is missing.
            OSError: a link is in place of the directory, and nothing is written there.
        """
        self.files.ensure_no_link(self.directory, self.directory.parent)
        try:
            if self._is_swept and not thorough and recovery.is_clean(self.segments, state):
                return recovery.discard_unrecorded_in_active(self.segments, state)
            state = recovery.discard_unrecorded(self.segments, state)
            self._is_swept = True
            return state
        except FileNotFoundError as error:
            raise self.segments.gone(Path(error.filename)) from error

    def move_high_watermark(
        self,
        state: LogState,
        high_watermark: int,
        *,
        flush: bool,
        now_ms: int,
        are_plain: bool = False,
    ) -> LogState:
        """Raise the log's high watermark, at most to the log's end, and write the new state.

        It never moves back. The last stable offset moves with it. The caller holds the partition's lock.

        Args:
            are_plain: whether no batch above the old one has a producer id.
        """
        high_watermark = min(high_watermark, state.log_end_offset)
        if high_watermark <= state.high_watermark:
            return state
        is_stable = state.last_stable_offset == state.high_watermark
        if are_plain and is_stable and not self.producers.are_known(state):
            last_stable_offset = high_watermark
        else:
            self.producers.read(state, now_ms)
            last_stable_offset = self.producers.states.last_stable_offset(
                high_watermark, state.last_stable_offset
            )
        after = state._replace(
            sequence=state.sequence + 1,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
        )
        self.write_state(after, flush=flush)
        self.producers.high_watermark_moved(after)
        return after

    def batch_headers(
        self, base: int, position: int, end_position: int, *, messages_together: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch in a byte range of a segment.

        Messages of the older formats come one by one, or with `messages_together` uncompressed ones in
        runs, as from `walk`.

        Args:
            base: base offset of the segment.
            position: where the first of the batches starts.
            end_position: where the last of them ends.

        Raises:
            CorruptRecordError: what lies there is not whole batches.
        """
        path = segment_at(self.directory, base).log
        with self.files.opened(path) as descriptor:
            yield from walk_batch_headers(
                self.files, descriptor, path, position, end_position,
                messages_together=messages_together,
            )  # fmt: skip

    def forget_batches(self) -> None:
        """Drop cached and saved producer state after batches were removed from the log."""
        self.producers.forget()
        saved_producers.remove(self.files, self.directory)
        self._aborted = AbortedSearch(self.files)

    def _whole_batches(
        self, path: Path, position: int, view: memoryview, base_offset: int | None
    ) -> list[tuple[int, BatchHeader]]:
        """Check and return the batches at the start of `view`, except for a partial one at its end.

        They end before one that is damaged, unless that is the first. The end of the batch before a wrapper
        tells its first offset, since there are no gaps.
        """
        found: list[tuple[int, BatchHeader]] = []
        try:
            for at, header in walk(view, 0, whole_size(view)):
                self._ensure_fits(path, position + at, header, base_offset)
                if header.is_wrapper and base_offset is not None:
                    header = header.opened(base_offset)
                base_offset = header.next_offset
                found.append((at, header))
        except CorruptRecordError as error:
            damaged = error
            # The batch before may be wrong about where it ends: its CRC tells.
            try:
                for at, header in found[-1:]:
                    ensure_valid(view, at, header)
            except CorruptRecordError as error_before:
                damaged = error_before
                del found[-1]
            if not found:
                raise damaged if damaged.path else damaged.at(str(path), position) from None
        return found

    def _ensure_fits(
        self, path: Path, position: int, header: BatchHeader, base_offset: int | None
    ) -> None:
        """Check that a batch's magic, base offset and leader epoch fit its log; the CRC does not cover them.

        `base_offset` is where the batch before ends, if known.
        """
        if header.magic != self.config.message_magic:
            raise CorruptRecordError(
                "magic byte", path=str(path), position=position + MAGIC_POSITION,
                expected=self.config.message_magic, found=header.magic,
            )  # fmt: skip
        # The CRC covers how many records a batch has, but not how many messages follow each other.
        fits = header.base_offset == base_offset and (header.magic == MAGIC or header.is_dense)
        if header.is_wrapper and base_offset is not None:
            fits = header.last_offset >= base_offset
        if base_offset is not None and not fits:
            raise CorruptRecordError(
                "base offset", path=str(path), position=position,
                expected=base_offset, found=header.base_offset,
            )  # fmt: skip
        if header.magic < MAGIC:
            return  # older formats have no leader epoch
        if header.partition_leader_epoch != self._leader_epochs.epoch_for(header.base_offset):
            try:
                self._leader_epochs = LeaderEpochCache.read(self.files, self.directory)
            except (FileNotFoundError, KafkaStorageError) as error:
                self._leader_epochs = LeaderEpochCache(self.files, self.directory, [])
                _warn_without_epochs(self.directory, str(error))
            epoch = self._leader_epochs.epoch_for(header.base_offset)
            # None is known of a batch that is being deleted, nor until a writer has rebuilt a lost file.
            if epoch != UNDEFINED_EPOCH and header.partition_leader_epoch != epoch:
                raise CorruptRecordError(
                    "partition leader epoch", path=str(path), position=position + 12,
                    expected=epoch, found=header.partition_leader_epoch,
                )  # fmt: skip

    def _ends_early(
        self, segment: SegmentView, position: int, batch: Buffer, header: BatchHeader
    ) -> CorruptRecordError:
        """Return the error for a segment whose last batch does not end where the next segment starts.

        It has the offsets that are missing if the batch is sound.
        """
        path, found, expected = segment.log, header.next_offset, segment.next_offset
        try:
            ensure_valid(batch, 0, header)
        except CorruptRecordError as error:
            return error.at(str(path), position)
        if found > expected:
            return CorruptRecordError(
                "end offset of a segment",
                path=str(path), position=position, expected=expected, found=found,
            )  # fmt: skip
        return MissingRecordsError(
            f"the segment ends at offset {found}, but the next one starts at {expected}: the file was "
            f"truncated, or {segment_at(self.directory, found).log.name} is missing",
            str(path), position, offset=found, next_offset=expected,
        )  # fmt: skip


@functools.lru_cache(maxsize=1024)  # once per damage, not at every read after it
def _warn_of_damage(error: str) -> None:
    logger.warning("%s; what is read lies after that", error)


@functools.lru_cache(maxsize=1024)  # once per directory and error, not at every read
def _warn_without_epochs(directory: Path, error: str) -> None:
    logger.warning(
        "leader epochs are not checked in %s until the next writer rebuilds its "
        "leader-epoch-checkpoint: %s",
        directory, error,
    )  # fmt: skip


def holds_records(files: Files, directory: Path) -> bool:
    """Return True if the log in a partition's directory holds, or once held, any batches.

    An interrupted creation leaves neither a byte in a .log file nor a state that was written since; a log that begins
    elsewhere than at 0 ends there.
    """
    if not files.is_dir(directory):
        return False
    try:
        logs = (name for name in files.list(directory) if base_offset_of(name) is not None)
        if any(files.size(directory / name) for name in logs):
            return True
        return any(
            state.log_end_offset > 0 and not is_of_new_log(state)
            for state in valid_slots(files, directory)
        )
    except FileNotFoundError:  # no state, or the directory was removed meanwhile
        return False
