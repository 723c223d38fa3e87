"""The segments of one replica of a partition, in order: read, cut, append as leader or follower.

Reading takes a state and no lock: it sees what that state says, whatever is written meanwhile.
Appending puts batches past every recorded end and yields the state that would make them visible;
who holds the partition's lock writes that state, or does not. `append_as_leader` is both, for one
batch of a producer; `append_as_follower` is, for batches as a leader has them.

    log = PartitionLog(files, directory, TopicPartition("events", 0), TopicConfig())
    state = log.state()
    log.cut(state)                              # what a dead writer left past the recorded ends
    appender = LogAppender(log, state, now_ms=now_ms)
    appender.append(batches)                    # invisible
    log.write_state(appender.finish(flush=True), flush=True)        # visible
    log.read(log.state(), 0, max_bytes=1 << 20)

Offsets in our logs have no gaps, so a base offset that a flipped bit changed does not fit between
its neighbours; a leader epoch does not fit the leader-epoch-checkpoint. Both lie outside the CRC.

Source: Kafka storage/.../log/UnifiedLog.java, LocalLog.java; DESIGN of the state in `state.py`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path

from spark_kbatch.config import TopicConfig
from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from spark_kbatch.log.appender import LogAppender
from spark_kbatch.log.checkpoints import (
    read_leader_epochs,
    write_leader_epochs,
    write_partition_metadata,
)
from spark_kbatch.log.files import Buffer, Files
from spark_kbatch.log.producer_state import ProducerStates
from spark_kbatch.log.segment import (
    base_offset_of,
    lookup,
    segment_paths,
)
from spark_kbatch.log.state import (
    LogState,
    create_state,
    empty_state,
    read_state,
    write_state,
)
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.record.header import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    LogRead,
    ensure_valid,
    unpack,
    walk,
    whole_size,
)

_SEGMENT_FILES = (".log", ".index", ".timeindex")


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
        # Replaced whole. Entries change at the list's end alone, for offsets that are not in the log
        # then; so an old list is wrong about new batches alone, and is then read again.
        self._leader_epochs: list[tuple[int, int]] = []
        # Both guarded by the partition's lock. The producers are those of the batches below the end
        # of this state; None until an idempotent producer comes.
        self._producers = ProducerStates(topic_partition)
        self._producers_as_of: LogState | None = None

    def create(self, topic_id: str) -> None:
        """Make the directory of an empty log; what an unfinished creation left is removed."""
        self.files.remove_dir(self.directory)
        self.files.make_dir(self.directory)
        write_partition_metadata(self.files, self.directory, topic_id)
        write_leader_epochs(self.files, self.directory, [(0, 0)])
        for path in segment_paths(self.directory, 0):
            self.files.write(path, 0, b"")
        create_state(self.files, self.directory, empty_state())

    def state(self) -> LogState:
        """The recorded state, which a commit that is decided but not flipped may have overtaken."""
        return read_state(self.files, self.directory)

    def write_state(self, state: LogState, *, flush: bool) -> None:
        """Make `state` the one that counts. The caller holds the partition's lock."""
        write_state(self.files, self.directory, state, flush=flush)

    def segments(self, state: LogState) -> list[int]:
        """Base offsets, ascending; the last is the active segment's."""
        bases = (base_offset_of(name) for name in self.files.list(self.directory))
        return [base for base in bases if base is not None and base <= state.segment_base_offset]

    def size_in_bytes(self, state: LogState) -> int:
        """Of all batches."""
        rolled = self.segments(state)[:-1]
        return state.segment_size + sum(map(self.log_size, rolled))

    def log_size(self, base: int) -> int:
        """Of a segment's file; 0 where it is gone, which readers may find without a lock."""
        try:
            return self.files.size(segment_paths(self.directory, base).log)
        except FileNotFoundError:
            return 0

    def read(
        self, state: LogState, offset: int, *, max_bytes: int, buffer: bytearray | None = None
    ) -> LogRead:
        """Whole batches from the one that holds `offset` on, up to the high watermark.

        Args:
            max_bytes: the first batch is returned even when it is larger.
            buffer: used for the result where it is large enough, which spares a new one.

        Returns:
            Batches of one segment. Nothing where `offset` is the high watermark.

        Raises:
            OffsetOutOfRangeError: below the log start or above the high watermark.
            CorruptRecordError: sizes, magic, offsets or epochs that cannot be. CRCs are not checked.
            KafkaStorageError: the files are shorter than the state says.
        Source: LocalLog.read, LogSegment.translateOffset.
        """
        if not state.log_start_offset <= offset <= state.high_watermark:
            raise OffsetOutOfRangeError(
                str(self.topic_partition), offset, state.log_start_offset, state.high_watermark
            )
        if offset == state.high_watermark:
            return LogRead("", 0, memoryview(b""), [])
        bases = self.segments(state)
        at = bisect.bisect_right(bases, offset) - 1
        if at < 0 or bases[-1] != state.segment_base_offset:
            wanted = offset if at < 0 else state.segment_base_offset
            raise KafkaStorageError(f"{self.directory} has no segment that holds offset {wanted}")
        base = bases[at]
        active = base == state.segment_base_offset
        paths = segment_paths(self.directory, base)
        end_position = state.segment_size if active else self.files.size(paths.log)
        end_offset = state.log_end_offset if active else bases[at + 1]
        known, position = lookup(
            self.files, paths, base, offset, state.index_size if active else None
        )
        with self.files.opened(paths.log) as descriptor:
            expected = base if position == 0 else None
            while True:
                header = self._header_at(descriptor, paths.log, position, end_position)
                if expected is None and header.last_offset != known:
                    raise CorruptRecordError(
                        "last offset of an indexed batch",
                        path=str(paths.log), position=position, expected=known, found=header.last_offset,
                    )  # fmt: skip
                self._ensure_fits(paths.log, position, header, expected)
                if header.last_offset >= offset:
                    break
                position += header.size_in_bytes
                expected = header.next_offset
        size = max(min(max_bytes, end_position - position), header.size_in_bytes)
        view = (
            memoryview(buffer)[:size]
            if buffer and len(buffer) >= size
            else memoryview(bytearray(size))
        )
        if self.files.read_into(paths.log, position, view) < size:
            raise self._too_short(paths.log, position + size)
        batches = self._whole_batches(paths.log, position, view, header.base_offset)
        last_position, last = batches[-1]
        end = last_position + last.size_in_bytes
        if position + end == end_position and last.next_offset != end_offset:
            raise CorruptRecordError(
                "end offset of a segment",
                path=str(paths.log), position=position + last_position,
                expected=end_offset, found=last.next_offset,
            )  # fmt: skip
        return LogRead(str(paths.log), position, view[:end], batches)

    def cut(self, state: LogState) -> None:
        """Remove what lies past the recorded ends. The caller holds the partition's lock.

        So do leader epochs: one that begins at the log's end may have been given without a batch yet.

        Raises:
            KafkaStorageError: a file is shorter than recorded.
        """
        for name in self.files.list(self.directory):
            base = base_offset_of(f"{name.partition('.')[0]}.log")
            if (
                base is not None
                and base > state.segment_base_offset
                and name.endswith(_SEGMENT_FILES)
            ):
                self.files.remove(self.directory / name)
        recorded = (state.segment_size, state.index_size, state.time_index_size)
        for path, size in zip(
            segment_paths(self.directory, state.segment_base_offset), recorded, strict=True
        ):
            found = self.files.size(path) if self.files.exists(path) else 0
            if found < size:
                raise self._too_short(path, size)
            if found > size:
                self.files.truncate(path, size)
        epochs = read_leader_epochs(self.files, self.directory)
        if epochs and epochs[-1][1] > state.log_end_offset:
            write_leader_epochs(self.files, self.directory, _shown(epochs, state))

    def append_as_leader(
        self,
        state: LogState,
        data: Buffer,
        header: BatchHeader,
        *,
        origin: AppendOrigin,
        flush: bool,
        now_ms: int,
    ) -> AppendResult:
        """Append one batch that `validate` has accepted, and make it visible.

        A duplicate is not written again: the answer has its first offsets. The caller holds the
        partition's lock, and no decided commit waits for its flip here. `data` is only read, and not
        kept.

        Raises:
            InvalidProducerEpochError, OutOfOrderSequenceError: nothing is written.
            OSError: the batch is not visible, or, where writing or flushing the state failed, may
                be. Repeating it is safe for an idempotent producer: the log is looked at then.
        Source: UnifiedLog.append.
        """
        appender = LogAppender(self, state, now_ms=now_ms)
        idempotent = header.producer_id > NO_PRODUCER_ID
        if idempotent:
            self._read_producers(state, now_ms)
            if origin is AppendOrigin.CLIENT:
                duplicate = self._producers.find_duplicate(header)
                if duplicate is not None:
                    if flush:  # It was perhaps not flushed, or the flush of its state failed.
                        self.write_state(appender.finish(flush=True), flush=True)
                    return self._appended(state, duplicate.base_offset, duplicate.timestamp)
                self._producers.ensure_follows(header)
        # What a dead writer left behind the active segment shows in its size. Other left-overs,
        # index entries and segments, come to light only when the segment is rolled.
        if (
            appender.is_full_for(header)
            or self.log_size(state.segment_base_offset) != state.segment_size
        ):
            self.cut(state)
        header = appender.append_batch(data, header)
        after = appender.finish(flush=flush)
        self.write_state(after, flush=flush)
        known = self._producers_as_of
        if known is not None and known.log_end_offset == state.log_end_offset:
            if idempotent:
                self._producers.add(header, now_ms)
            self._producers_as_of = after
        return self._appended(state, header.base_offset, header.max_timestamp)

    def append_as_follower(
        self, state: LogState, data: Buffer, *, high_watermark: int, flush: bool, now_ms: int
    ) -> LogState:
        """Append batches as their leader has them, byte for byte, and make them visible.

        The caller holds the partition's lock. `data` is only read.

        Args:
            data: whole batches, the first of which begins where this log ends.
            high_watermark: the leader's. Ours follows it, as far as our log goes, and never back.

        Raises:
            UnexpectedAppendOffsetError: they begin elsewhere.
            OffsetsOutOfOrderError: they do not follow each other; logs written here have no gaps.
            CorruptRecordError: a CRC does not hold, or a leader epoch goes back; the position is
                that in `data`.
            In all of these cases nothing is written.
        Source: UnifiedLog.appendAsFollower, LeaderEpochFileCache.assign.
        """
        epochs = _shown(read_leader_epochs(self.files, self.directory), state)
        epochs_after = self._checked_copy(state, data, epochs)
        self.cut(state)
        if epochs_after != epochs:
            write_leader_epochs(self.files, self.directory, epochs_after)
        if epochs_after:
            # Also where they were written before: by one who died before its state was.
            state = state._replace(leader_epoch=max(state.leader_epoch, epochs_after[-1][0]))
        appender = LogAppender(self, state, now_ms=now_ms, as_follower=True)
        appender.append(memoryview(data))
        high_watermark = max(state.high_watermark, min(high_watermark, appender.next_offset))
        after = appender.finish(flush=flush, high_watermark=high_watermark)
        self.write_state(after, flush=flush)
        return after

    def _checked_copy(
        self, state: LogState, data: Buffer, epochs: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The leader epochs of the log once it has these batches, which are checked."""
        next_offset = state.log_end_offset
        for position, header in walk(data):
            if header.base_offset != next_offset:
                kind = OffsetsOutOfOrderError if position else UnexpectedAppendOffsetError
                raise kind(str(self.topic_partition), next_offset, header.base_offset)
            ensure_valid(data, position, header)
            epoch, latest = header.partition_leader_epoch, epochs[-1][0] if epochs else -1
            if epoch < max(latest, 0):
                raise CorruptRecordError(
                    "partition leader epoch", position=position + 12,
                    expected=f"{max(latest, 0)} or more", found=epoch,
                )  # fmt: skip
            if epoch > latest:
                # One that begins here has no batch.
                epochs = [entry for entry in epochs if entry[1] < next_offset]
                epochs.append((epoch, next_offset))
            next_offset = header.next_offset
        return epochs

    def headers(
        self, base: int, position: int, end_position: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """The batches of a segment from one to an end, as (position, header).

        Raises:
            CorruptRecordError: what lies there is not whole batches.
        """
        path = segment_paths(self.directory, base).log
        with self.files.opened(path) as descriptor:
            while position < end_position:
                header = self._header_at(descriptor, path, position, end_position)
                yield position, header
                position += header.size_in_bytes

    def forget_producers(self) -> None:
        """Know of no batch of theirs: for who has taken some out of the log."""
        self._producers = ProducerStates(self.topic_partition)
        self._producers_as_of = None

    def _appended(self, state: LogState, base_offset: int, time_ms: int) -> AppendResult:
        log_append_time = time_ms if self.config.is_log_append_time else NO_TIMESTAMP
        return AppendResult(base_offset, log_append_time, state.log_start_offset)

    def _read_producers(self, state: LogState, now_ms: int) -> None:
        """Look at the batches that came since the last look: of other processes, and of commits.

        Ours as well where the write of their state seemed to fail. What lies in the log before the
        first look is not read: ids are not used by two processes.
        """
        known = self._producers_as_of
        if known is not None and known.log_end_offset > state.log_end_offset:
            self.forget_producers()  # somebody has truncated the log
        elif known is not None and known.log_end_offset != state.log_end_offset:
            for header in self._headers_between(known, state):
                if header.producer_id > NO_PRODUCER_ID:
                    self._producers.add(header, now_ms)
        self._producers_as_of = state
        self._producers.remove_expired(now_ms)

    def _headers_between(self, before: LogState, after: LogState) -> Iterator[BatchHeader]:
        """Of the batches that `after` shows and `before` does not, as far as they are still held."""
        bases = [after.segment_base_offset]
        if before.segment_base_offset != after.segment_base_offset:
            bases = [base for base in self.segments(after) if base >= before.segment_base_offset]
        for base in bases:
            active = base == after.segment_base_offset
            position = before.segment_size if base == before.segment_base_offset else 0
            end_position = after.segment_size if active else self.log_size(base)
            for _, header in self.headers(base, position, end_position):
                yield header

    def _header_at(
        self, descriptor: int, path: Path, position: int, end_position: int
    ) -> BatchHeader:
        view = memoryview(bytearray(RECORD_BATCH_OVERHEAD))
        if end_position - position < RECORD_BATCH_OVERHEAD:
            raise CorruptRecordError(
                "batch is cut off", path=str(path), position=position,
                expected=f"{RECORD_BATCH_OVERHEAD} bytes or more", found=end_position - position,
            )  # fmt: skip
        if self.files.pread_into(descriptor, position, view) < RECORD_BATCH_OVERHEAD:
            raise self._too_short(path, position + RECORD_BATCH_OVERHEAD)
        header = unpack(view)
        try:
            header.ensure_sane(position, end_position - position)
        except CorruptRecordError as error:
            raise error.at(str(path), 0) from None
        return header

    def _whole_batches(
        self, path: Path, position: int, view: memoryview, base_offset: int
    ) -> list[tuple[int, BatchHeader]]:
        """The batches that lie in `view` from its begin; a partial one at the end is left out."""
        found: list[tuple[int, BatchHeader]] = []
        try:
            for at, header in walk(view, 0, whole_size(view)):
                self._ensure_fits(path, position + at, header, base_offset)
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
        if base_offset is not None and header.base_offset != base_offset:
            raise CorruptRecordError(
                "base offset", path=str(path), position=position,
                expected=base_offset, found=header.base_offset,
            )  # fmt: skip
        if header.partition_leader_epoch != self._epoch_of(header.base_offset):
            self._leader_epochs = read_leader_epochs(self.files, self.directory)
            epoch = self._epoch_of(header.base_offset)
            if header.partition_leader_epoch != epoch:
                raise CorruptRecordError(
                    "partition leader epoch", path=str(path), position=position + 12,
                    expected=epoch, found=header.partition_leader_epoch,
                )  # fmt: skip

    def _epoch_of(self, offset: int) -> int:
        starts = [start for _, start in self._leader_epochs]
        at = bisect.bisect_right(starts, offset) - 1
        return self._leader_epochs[at][0] if at >= 0 else -1

    def _too_short(self, path: Path, size: int) -> KafkaStorageError:
        found = self.files.size(path) if self.files.exists(path) else 0
        return KafkaStorageError(
            f"{path} has {found} bytes, fewer than the {size} that {self.directory.name}/kbatch.state "
            "records: the file was cut or replaced from outside, or a power loss took what was not "
            "flushed"
        )


def _shown(epochs: list[tuple[int, int]], state: LogState) -> list[tuple[int, int]]:
    """Those of the leader epochs that begin in what the state shows, or at its end."""
    return [entry for entry in epochs if entry[1] <= state.log_end_offset]
