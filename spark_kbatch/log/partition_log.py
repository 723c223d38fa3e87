"""The segments of one replica of a partition, in order: read, look up, cut.

Reading takes a state and no lock: it sees what that state says, whatever is written meanwhile.
Appending puts batches past every recorded end and yields the state that would make them visible;
who holds the partition's lock writes that state, or does not. `appending` does both.

    log = PartitionLog(files, directory, TopicPartition("events", 0), TopicConfig())
    state = log.state()
    state = log.discard_unrecorded(state)                      # what a dead writer left past the recorded ends
    appender = LogAppender(log, state, now_ms=now_ms)
    appender.append(batches)                    # invisible
    log.write_state(appender.finish(flush=True), flush=True)        # visible
    log.read(log.state(), ReadRange(0, max_bytes=1 << 20))

Offsets in our logs have no gaps, so a base offset that a flipped bit changed does not fit between
its neighbours; a leader epoch does not fit the leader-epoch-checkpoint. Both lie outside the CRC.

Source: Kafka storage/.../log/UnifiedLog.java, LocalLog.java; DESIGN of the state in `state.py`.
"""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
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
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.lookup import Largest, SegmentViews, TimeLookup, split_points
from spark_kbatch.log.producers import saved as saved_producers
from spark_kbatch.log.producers.manager import LogProducers
from spark_kbatch.log.producers.replay import AbortedSearch
from spark_kbatch.log.segment import (
    SegmentView,
    base_offset_of,
    segment_at,
)
from spark_kbatch.log.segments import LogSegments
from spark_kbatch.log.state import (
    STATE_FILE,
    LogState,
    boot_id,
    both_slots,
    empty_state,
    flush_state,
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
    """One replica of one partition. Keeps nothing open; any number of threads may read."""

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
        # Replaced whole; only ever grows at its end, so an old list is wrong about new offsets
        # alone, and is then read again.
        self._leader_epochs = LeaderEpochCache(files, directory, [])
        # What `offset_for_timestamp` remembers, and of which state; the first is replaced whole.
        self._times = TimeLookup(files)
        self._times_as_of: LogState | None = None
        # What `state` found last, and what it made of it; replaced whole.
        self._read: tuple[bytes, LogState | None] = b"", None
        # The last state of another boot, and what of it holds; replaced whole.
        self._checked: tuple[LogState | None, LogState | None] = (None, None)
        self.producers = LogProducers(self.segments)
        self._aborted = AbortedSearch(files)
        self._is_swept = False  # whether `discard_unrecorded` has looked at all segments

    def create(self, topic_id: str) -> None:
        """Make the directory of an empty log, on disk on return; what was there is removed."""
        self.files.flush(self.create_unflushed(topic_id))

    def create_unflushed(self, topic_id: str) -> list[Path]:
        """As `create`, for a caller that makes thousands and flushes them together.

        Returns:
            What is to be flushed before anything names the log.
        """
        self.files.remove_dir(self.directory)
        self.files.make_dir(self.directory)
        contents = {
            PARTITION_METADATA: partition_metadata(topic_id),
            LEADER_EPOCHS: leader_epochs([(0, 0)]),
            STATE_FILE: both_slots(empty_state()),
        }
        for path in segment_at(self.directory, 0).paths:
            self.files.write(path, 0, b"")
        for name, data in contents.items():
            self.files.write(self.directory / name, 0, data)
        return [*(self.directory / name for name in contents), self.directory]

    def state(self) -> LogState:
        """The recorded state, which a commit that is decided but not flipped may have overtaken."""
        try:
            data = read_slots(self.files, self.directory)
            known, state = self._read
            if data != known or state is None:
                state = self.verified(read_state(self.files, self.directory, data))
                self._read = data, state
            return state
        except FileNotFoundError as error:
            raise self.segments.gone(Path(error.filename)) from error

    def verified(self, state: LogState) -> LogState:
        """The state, or what is left of it where it is of another boot; `recovery.py` tells more."""
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

    def write_state(self, state: LogState, *, flush: bool) -> None:
        """Make `state` the one that counts. The caller holds the partition's lock."""
        write_state(self.files, self.directory, state, flush=flush)

    def flush_state(self) -> None:
        """On return the state that counts is on disk, whoever wrote it."""
        flush_state(self.files, self.directory)

    def size_in_bytes(self, state: LogState) -> int:
        """Return the size of all batches."""
        return sum(self.segments.sizes(state, self.segments.bases(state)))

    def read(self, state: LogState, asked: ReadRange) -> LogRead:
        """Read whole batches, starting with the one that holds `asked.offset`.

        Returns:
            Batches of one segment, up to the high watermark, or for READ_COMMITTED up to the last
            stable offset and with the aborted transactions. Nothing if the offset is that end or
            above it.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            CorruptRecordError: sizes, magic, offsets or epochs that cannot be. CRCs are not checked.
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
        bases = self.segments.bases(state)
        at = bisect.bisect_right(bases, offset) - 1
        if at < 0 or bases[-1] != state.segment_base_offset:
            wanted = offset if at < 0 else state.segment_base_offset
            raise self.segments.missing(wanted)
        segment = self.segments.view(state, bases, at)
        path, end_position = segment.log, segment.size_in_bytes
        with self.files.opened(path) as descriptor:
            position, header = indexed_batch(self.files, descriptor, segment, offset)
            expected = segment.base_offset if position == 0 else None
            while True:
                self._ensure_fits(path, position, header, expected)
                if header.last_offset >= offset:
                    break
                if position + header.size_in_bytes == end_position:
                    batch = self.files.read(path, position, header.size_in_bytes)
                    raise self._ends_early(segment, position, batch, header)
                position += header.size_in_bytes
                expected = header.next_offset
                header = header_at(self.files, descriptor, path, position, end_position)
        if header.size_in_bytes > asked.max_bytes and not asked.first_batch_whole:
            return nothing
        size = max(min(asked.max_bytes, end_position - position), header.size_in_bytes)
        view = (
            memoryview(asked.buffer)[:size]
            if asked.buffer and len(asked.buffer) >= size
            else memoryview(bytearray(size))
        )
        if self.files.read_into(path, position, view) < size:
            raise too_short(self.files, path, position + size)
        batches = self._whole_batches(path, position, view, expected)
        last_position, last = batches[-1]
        end = last_position + last.size_in_bytes
        if position + end == end_position and last.next_offset != segment.next_offset:
            raise self._ends_early(segment, position + last_position, view[last_position:end], last)
        read = LogRead(str(path), position, view[:end], batches)
        if committed:
            return self._decided(state, read, segment.base_offset)
        return read.below(state.high_watermark)

    def _decided(self, state: LogState, read: LogRead, base: int) -> LogRead:
        """What a reader of committed data is given of `read`, out of the segment `base`."""
        return self._aborted.decided(
            read,
            self.segments.segments_from(state, base),
            last_stable_offset=state.last_stable_offset,
            log_end_offset=state.log_end_offset,
        )

    def offset_for_timestamp(
        self, state: LogState, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """The first record before `end_offset` whose time is `timestamp_ms` or later, if there is one.

        `lookup.py` tells how it is found. MAX_TIMESTAMP: the first with the largest time.

        Raises:
            CorruptRecordError: a batch on the way does not hold.
        """
        segments = self._timed_segments(state)
        edges = (state.log_start_offset, end_offset)
        if timestamp_ms == MAX_TIMESTAMP:
            return self._times.max_timestamp(segments, *edges)
        return self._times.offset_for(segments, timestamp_ms, *edges)

    def largest_timestamp(self, state: LogState, base: int) -> int:
        """Return the largest time in the segment that begins at `base`; -1 if no record has one.

        Raises:
            CorruptRecordError: a batch on the way does not hold.
        """
        segments = self._timed_segments(state)
        return self._times.largest(segments, bisect.bisect_left(segments.bases, base)).timestamp

    def _timed_segments(self, state: LogState) -> SegmentViews:
        """Return the segments to look up times in; what is remembered of them holds for `state`."""
        bases = self.segments.bases_with_active(state)
        known = self._times_as_of
        if known is not None and (
            known.leader_epoch != state.leader_epoch or known.log_end_offset > state.log_end_offset
        ):
            # A segment that was cut may have grown again with other times.
            self._times = TimeLookup(self.files)
        self._times_as_of = state
        largest = Largest(state.max_timestamp, state.max_timestamp_offset)
        return SegmentViews(bases, lambda at: self.segments.view(state, bases, at), largest)

    def split_points(
        self, state: LogState, start_offset: int, end_offset: int, *, piece_bytes: int
    ) -> list[int]:
        """Where to cut a range into pieces of about `piece_bytes`; as `lookup.split_points`."""
        bases = self.segments.bases_with_active(state)
        segments = SegmentViews(
            bases,
            lambda at: self.segments.view(state, bases, at),
            sizes=lambda first, stop: self.segments.sizes(state, bases[first:stop], if_gone=-1),
        )
        return split_points(self.files, segments, start_offset, end_offset, piece_bytes)

    def discard_unrecorded(self, state: LogState, *, thorough: bool = False) -> LogState:
        """Remove what lies past the recorded ends, after a look at what may have been lost.

        The caller holds the partition's lock, and goes on from the state that is returned.
        `recovery.py` says what may be found.

        Args:
            thorough: whether to look at all segments, as the first time, where the active one
                shows nothing.

        Raises:
            KafkaStorageError: what was flushed is not there.
        """
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
        """Write the state with this high watermark, as far as the log goes, and never back.

        The last stable offset goes with it. The caller holds the partition's lock.

        Args:
            are_plain: whether no batch above the old one is of a producer with an id.
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
                high_watermark, state.log_start_offset
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
        """The batches of a segment from one to an end, as (position, header).

        Of an older format each message, or with `messages_together` plain ones as `walk` has them.

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
        """Remember nothing of the batches: for who has taken some out of the log."""
        self.producers.forget()
        saved_producers.remove(self.files, self.directory)
        self._aborted = AbortedSearch(self.files)

    def _whole_batches(
        self, path: Path, position: int, view: memoryview, base_offset: int | None
    ) -> list[tuple[int, BatchHeader]]:
        """The batches that lie in `view` from its begin; a partial one at the end is left out.

        What a wrapper holds is said by what lies before it, since there are no gaps.
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
            # It may be the batch before that is wrong about where it ends: its CRC tells.
            try:
                for at, header in found[-1:]:
                    ensure_valid(view, at, header)
            except CorruptRecordError as error_before:
                damaged = error_before
            raise damaged if damaged.path else damaged.at(str(path), position) from None
        return found

    def _ensure_fits(
        self, path: Path, position: int, header: BatchHeader, base_offset: int | None
    ) -> None:
        """Check what lies outside the CRC; `base_offset` is the end of the batch before, if known."""
        if header.magic != self.config.message_magic:
            raise CorruptRecordError(
                "magic byte", path=str(path), position=position + MAGIC_POSITION,
                expected=self.config.message_magic, found=header.magic,
            )  # fmt: skip
        # How many records a batch has is inside its CRC, but not how many messages lie in a row.
        fits = header.base_offset == base_offset and (header.magic == MAGIC or header.is_dense)
        if header.is_wrapper and base_offset is not None:
            fits = header.last_offset >= base_offset
        if base_offset is not None and not fits:
            raise CorruptRecordError(
                "base offset", path=str(path), position=position,
                expected=base_offset, found=header.base_offset,
            )  # fmt: skip
        if header.magic < MAGIC:
            return  # which has no leader epoch
        if header.partition_leader_epoch != self._leader_epochs.epoch_for(header.base_offset):
            try:
                self._leader_epochs = LeaderEpochCache.read(self.files, self.directory)
            except (FileNotFoundError, KafkaStorageError) as error:
                self._leader_epochs = LeaderEpochCache(self.files, self.directory, [])
                _warn_without_epochs(self.directory, str(error))
            epoch = self._leader_epochs.epoch_for(header.base_offset)
            # Without epochs, until the next writer has made the file anew, none can be wrong.
            if self._leader_epochs.entries and header.partition_leader_epoch != epoch:
                raise CorruptRecordError(
                    "partition leader epoch", path=str(path), position=position + 12,
                    expected=epoch, found=header.partition_leader_epoch,
                )  # fmt: skip

    def _ends_early(
        self, segment: SegmentView, position: int, batch: Buffer, header: BatchHeader
    ) -> KBatchError:
        """What is wrong where the last batch of a segment does not lead up to the next one."""
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
        return KafkaStorageError(
            f"{path} ends at offset {found}, and what follows has offset {expected}: the file was "
            f"cut, or {segment_at(self.directory, found).log.name} is missing"
        )


@functools.lru_cache(maxsize=1024)  # Once for each, not at every read.
def _warn_without_epochs(directory: Path, error: str) -> None:
    logger.warning(
        "leader epochs are not checked in %s until the next writer has made its "
        "leader-epoch-checkpoint again: %s",
        directory, error,
    )  # fmt: skip


def holds_records(files: Files, directory: Path) -> bool:
    """Return True if a partition's directory is, or was, more than an empty log.

    What a creation leaves that was cut off never is: neither has its log a byte, nor its state an end.
    """
    if not files.is_dir(directory):
        return False
    logs = (name for name in files.list(directory) if base_offset_of(name) is not None)
    if any(files.size(directory / name) for name in logs):
        return True
    try:
        return any(state.log_end_offset > 0 for state in valid_slots(files, directory))
    except FileNotFoundError:
        return False
