"""The segments of one replica of a partition, in order: read, append, adopt, roll, cut.

Reading takes a state and no lock: it sees what that state says, whatever is written meanwhile.
Appending puts batches past every recorded end and yields the state that would make them visible;
who holds the partition's lock writes that state, or does not.

    log = PartitionLog(files, directory, TopicPartition("events", 0), TopicConfig())
    state = log.state()
    log.cut(state)                              # what a dead writer left past the recorded ends
    appender = LogAppender(log, state)
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
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, OffsetOutOfRangeError
from spark_kbatch.log.checkpoints import (
    read_leader_epochs,
    write_leader_epochs,
    write_partition_metadata,
)
from spark_kbatch.log.files import Files
from spark_kbatch.log.segment import (
    INDEX_ENTRY,
    INDEX_SIZE_MAX,
    RELATIVE_OFFSET_MAX,
    SegmentIndexer,
    base_offset_of,
    last_indexed_timestamp,
    lookup,
    segment_paths,
)
from spark_kbatch.log.state import (
    LogState,
    boot_id,
    create_state,
    empty_state,
    read_state,
    write_state,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    LogRead,
    assign,
    ensure_valid,
    unpack,
    walk,
    whole_size,
)

_COPY_BYTES = 8 * 1024 * 1024
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
        # Replaced whole; only ever grows at its end, so an old list is wrong about new offsets
        # alone, and is then read again.
        self._leader_epochs: list[tuple[int, int]] = []

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
        sizes = (self.files.size(segment_paths(self.directory, base).log) for base in rolled)
        return state.segment_size + sum(sizes)

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


class LogAppender:
    """Puts batches behind the end of a log, unseen, and builds the state that would show them.

    The caller holds the partition's lock and has cut the log. Base offsets and leader epochs are
    written as absolute values found by walking the batches, so that a batch which an earlier
    attempt went over comes out the same.
    """

    def __init__(self, log: PartitionLog, state: LogState) -> None:
        self.next_offset = state.log_end_offset
        self._log, self._files, self._state = log, log.files, state
        self._paths = segment_paths(log.directory, state.segment_base_offset)
        self._size = state.segment_size
        self._index_size, self._time_index_size = state.index_size, state.time_index_size
        self._indexer = SegmentIndexer(
            state.segment_base_offset,
            interval_bytes=log.config.index_interval_bytes,
            max_timestamp=state.max_timestamp,
            max_timestamp_offset=state.max_timestamp_offset,
            bytes_since_entry=state.bytes_since_index_entry,
            last_indexed_timestamp=last_indexed_timestamp(
                log.files, self._paths, state.time_index_size
            ),
        )
        self._touched: dict[Path, None] = {}
        self._made_files = False

    def append(self, data: bytearray | memoryview) -> None:
        """Copy batches behind the active segment, rolling where it is full. Writes to `data`.

        Raises:
            CorruptRecordError: `data` is not whole batches; carries the position in it.
        """
        first = 0
        for position, header in walk(data):
            if self._is_full(position - first, header):
                self._write_log(memoryview(data)[first:position])
                self._roll()
                first = position
            assign(
                data, position, base_offset=self.next_offset, leader_epoch=self._state.leader_epoch
            )
            self._account(header, self._size + position - first)
        self._write_log(memoryview(data)[first:])

    def append_extent(self, source: Path, position: int, size: int) -> None:
        """As `append`, for batches that lie in another file; they are copied in bounded pieces."""
        for piece in self._pieces(source, position, size):
            self.append(piece)

    def adopt(self, source: Path, size: int) -> None:
        """Make the file `source`, `size` bytes of whole batches, the active segment by renaming it."""
        if size > self._log.config.segment_bytes:
            self.append_extent(source, 0, size)
            return
        if self._size:
            self._roll()
        with self._files.opened(source, write=True) as descriptor:
            view = memoryview(bytearray(RECORD_BATCH_OVERHEAD))
            position = 0
            while position < size:
                if self._files.pread_into(descriptor, position, view) < RECORD_BATCH_OVERHEAD:
                    raise CorruptRecordError(
                        "batch is cut off", path=str(source), position=position
                    )
                header = unpack(view)
                header.ensure_sane(position, size - position)
                assign(view, 0, base_offset=self.next_offset, leader_epoch=self._state.leader_epoch)
                self._files.write_at(descriptor, position, view[:16])
                self._account(header, position)
                position += header.size_in_bytes
        if position != size or self._files.size(source) != size:
            raise CorruptRecordError(
                "size of a staged file", path=str(source), position=0, expected=size, found=position
            )
        # Not over the empty file: to replace one makes some file systems write the data out at once.
        self._files.remove(self._paths.log)
        self._files.rename(source, self._paths.log)
        self._touched[self._paths.log] = None
        self._made_files = True
        self._size = size

    def finish(self, *, flush: bool, prepare_offset: int | None = None) -> LogState:
        """Write the index entries, flush, and return the state that makes all of it visible.

        May be called again after further appends; each state's sequence is one above the last.
        `prepare_offset` is what the state says from now on, where one is given.
        """
        self._write_indexes()
        if flush:
            self._flush()
        self._state = self._state._replace(
            sequence=self._state.sequence + 1,
            log_end_offset=self.next_offset,
            high_watermark=self.next_offset,
            last_stable_offset=self.next_offset,
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

    def _account(self, header: BatchHeader, position: int) -> None:
        header = header._replace(base_offset=self.next_offset)
        self._indexer.add(header, position)
        self.next_offset = header.next_offset

    def _is_full(self, unwritten: int, header: BatchHeader) -> bool:
        size = self._size + unwritten
        last_offset = self.next_offset + header.last_offset_delta
        return size > 0 and (
            size + header.size_in_bytes > self._log.config.segment_bytes
            or last_offset - self._indexer.base_offset > RELATIVE_OFFSET_MAX
            or self._index_size + len(self._indexer.index) + INDEX_ENTRY.size > INDEX_SIZE_MAX
        )

    def _roll(self) -> None:
        """Close the active segment and begin one at the next offset."""
        self._indexer.add_time_entry()
        self._write_indexes()
        self._indexer = SegmentIndexer(
            self.next_offset, interval_bytes=self._log.config.index_interval_bytes
        )
        self._paths = segment_paths(self._log.directory, self.next_offset)
        self._size = self._index_size = self._time_index_size = 0
        for path in self._paths:
            self._files.write(path, 0, b"")
            self._touched[path] = None
        self._made_files = True

    def _write_log(self, data: memoryview) -> None:
        if len(data):
            self._files.write(self._paths.log, self._size, data)
            self._touched[self._paths.log] = None
            self._size += len(data)

    def _write_indexes(self) -> None:
        indexer = self._indexer
        if indexer.index:
            self._files.write(self._paths.offset_index, self._index_size, indexer.index)
            self._index_size += len(indexer.index)
            self._touched[self._paths.offset_index] = None
            indexer.index = bytearray()
        if indexer.time_index:
            self._files.write(self._paths.time_index, self._time_index_size, indexer.time_index)
            self._time_index_size += len(indexer.time_index)
            self._touched[self._paths.time_index] = None
            indexer.time_index = bytearray()

    def _flush(self) -> None:
        paths: dict[Path, None] = {}
        if self._state.recovery_point < self._state.log_end_offset:
            # Earlier commits were not flushed: this one covers them too.
            bases = self._log.segments(self._state)
            first = max(bisect.bisect_right(bases, self._state.recovery_point) - 1, 0)
            for base in bases[first:]:
                paths.update(dict.fromkeys(segment_paths(self._log.directory, base)))
        paths.update(self._touched)
        self._files.flush(path for path in paths if self._files.exists(path))
        if self._made_files or self._state.recovery_point < self._state.log_end_offset:
            self._files.flush([self._log.directory])
        self._touched, self._made_files = {}, False

    def _pieces(self, source: Path, position: int, size: int) -> Iterator[memoryview]:
        """Whole batches of source[position : position + size], about 8 MiB at a time."""
        end = position + size
        while position < end:
            view = memoryview(bytearray(min(_COPY_BYTES, end - position)))
            if self._files.read_into(source, position, view) < len(view):
                raise CorruptRecordError(
                    "staged file is cut off", path=str(source), position=position
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
