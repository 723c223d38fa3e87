"""Cuts a log back to an offset, or empties it to begin anew at one.

Who copies a leader's log does so where the two have come to differ. The state is written first, and
what it no longer covers is removed behind it: a crash in between leaves bytes past the recorded
ends, which the next writer cuts. The caller holds the partition's lock.

Source: Kafka storage/.../log/UnifiedLog.java truncateTo, truncateFullyAndStartAt, LogSegment.java
truncateTo.
"""

from __future__ import annotations

import bisect
from pathlib import Path

import numpy as np

from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.log.files import Files
from spark_kbatch.log.headers import SegmentView, indexed_batch
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.retention import delete_segments
from spark_kbatch.log.segment import INDEX_ENTRY, TIME_INDEX_ENTRY, segment_paths
from spark_kbatch.log.state import LogState
from spark_kbatch.record.header import NO_TIMESTAMP

# As numpy reads index entries; `relative` is the offset less the segment's base.
_INDEX_ENTRIES = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME_INDEX_ENTRIES = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])
assert _INDEX_ENTRIES.itemsize == INDEX_ENTRY.size
assert _TIME_INDEX_ENTRIES.itemsize == TIME_INDEX_ENTRY.size


def truncate_to(
    log: PartitionLog, state: LogState, offset: int, *, now_ms: int, flush: bool
) -> LogState:
    """Remove every batch that holds `offset` or lies behind it; the state then.

    The log ends with a whole batch, so below `offset` where that lies within one; Kafka would put
    the end at `offset` itself. High watermark and log start go back with the end. An offset at the
    end or behind it changes nothing; one before all segments empties the log.

    Raises:
        CorruptRecordError: the batches before `offset` cannot be followed.
    """
    if offset >= state.log_end_offset:
        return state
    bases = log.segments(state)
    at = bisect.bisect_right(bases, offset) - 1
    if at < 0:
        return truncate_fully_and_start_at(log, state, offset, now_ms=now_ms, flush=flush)
    after = _with_epoch(log, _state_before(log, state, bases[at], offset))
    log.forget_producers()
    log.write_state(after, flush=flush)
    return log.cut(after)


def truncate_fully_and_start_at(
    log: PartitionLog, state: LogState, offset: int, *, now_ms: int, flush: bool
) -> LogState:
    """Remove everything; the next batch gets `offset`. The state then."""
    emptied = state._replace(
        sequence=state.sequence + 1,
        log_start_offset=offset,
        log_end_offset=offset,
        high_watermark=offset,
        last_stable_offset=offset,
        segment_base_offset=offset,
        segment_size=0,
        index_size=0,
        time_index_size=0,
        max_timestamp=-1,
        max_timestamp_offset=-1,
        bytes_since_index_entry=0,
        recovery_point=offset,
    )
    after = _with_epoch(log, emptied)
    log.forget_producers()
    log.write_state(after, flush=flush)
    log.cut(after)
    for path in segment_paths(log.directory, offset):
        log.files.write(path, 0, b"")
    delete_segments(log, [base for base in log.segments(after) if base < offset], now_ms=now_ms)
    return after


def _state_before(log: PartitionLog, state: LogState, base: int, offset: int) -> LogState:
    """The state with `base` as the active segment, cut before the batch that holds `offset`."""
    files, paths = log.files, segment_paths(log.directory, base)
    active = base == state.segment_base_offset
    end_position = state.segment_size if active else files.size(paths.log)
    index_size = state.index_size if active else None
    first = 0
    if end_position:
        view = SegmentView(paths, base, state.log_end_offset, end_position, index_size)
        with files.opened(paths.log) as descriptor:
            first, _ = indexed_batch(files, descriptor, view, offset - 1)
    end_offset, size, bytes_since_index_entry = base, 0, 0
    largest = NO_TIMESTAMP, -1
    for position, header in log.headers(base, first, end_position):
        end_offset, size = header.base_offset, position
        if header.last_offset >= offset:
            break
        end_offset, size = header.next_offset, position + header.size_in_bytes
        bytes_since_index_entry += header.size_in_bytes
        if header.max_timestamp > largest[0]:
            largest = header.max_timestamp, header.last_offset

    index = _kept(files, paths.offset_index, _INDEX_ENTRIES, index_size, end_offset - base)
    times = _kept(
        files,
        paths.time_index,
        _TIME_INDEX_ENTRIES,
        state.time_index_size if active else None,
        end_offset - base,
    )
    # The last entry has the largest time of all batches before those that were looked at.
    if len(times) and times["timestamp"][-1] >= largest[0]:
        largest = int(times["timestamp"][-1]), base + int(times["relative"][-1])
    return state._replace(
        sequence=state.sequence + 1,
        log_start_offset=min(state.log_start_offset, end_offset),
        log_end_offset=end_offset,
        high_watermark=min(state.high_watermark, end_offset),
        last_stable_offset=min(state.last_stable_offset, end_offset),
        segment_base_offset=base,
        segment_size=size,
        index_size=index.nbytes,
        time_index_size=times.nbytes,
        max_timestamp=largest[0],
        max_timestamp_offset=largest[1],
        bytes_since_index_entry=bytes_since_index_entry,
        recovery_point=min(state.recovery_point, end_offset),
    )


def _with_epoch(log: PartitionLog, state: LogState) -> LogState:
    """The state with the last of the leader epochs that `cut` keeps."""
    epochs = read_leader_epochs(log.files, log.directory)
    kept = [epoch for epoch, start in epochs if start <= state.log_end_offset]
    return state._replace(leader_epoch=kept[-1] if kept else state.leader_epoch)


def _kept(
    files: Files, path: Path, dtype: np.dtype[np.void], size: int | None, relative_end: int
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """An index's entries of offsets below an end; none where it has no file."""
    if size == 0 or not files.exists(path):
        return np.empty(0, dtype)
    data = files.read(path, 0, size)
    entries = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    return entries[: np.searchsorted(entries["relative"], relative_end)]
