"""Truncation of a log: back to an offset, or to an empty log that restarts at an offset.

A follower truncates its log where it has diverged from the leader's. The state is written first, always
flushed, and what it no longer covers is removed afterwards: a crash in between leaves bytes past the
recorded ends, which the next writer discards. The caller holds the partition's lock.

Source: Kafka storage/.../log/UnifiedLog.java truncateTo, truncateFullyAndStartAt, LogSegment.java
truncateTo.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kbatch.log.batch_headers import indexed_batch, walk_batch_headers
from spark_kbatch.log.checkpoints import write_leader_epochs
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.recovery import readable_epochs, state_ending_at
from spark_kbatch.log.retention import delete_segments
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import LogState


def truncate_to(log: PartitionLog, state: LogState, offset: int, *, now_ms: int) -> LogState:
    """Remove every batch that holds `offset` or comes after it; return the new state.

    The log then ends with a whole batch: below `offset` if that lies within one, where Kafka would put
    the end at `offset` itself. High watermark and log start go back with the end. An offset at or after
    the end changes nothing; one before all segments empties the log.

    Raises:
        CorruptRecordError: the batches before `offset` cannot be walked; nothing is changed.
    """
    if offset >= state.log_end_offset:
        return state
    bases = log.segments.bases(state)
    if not bases or offset < bases[0]:
        return truncate_fully_and_start_at(log, state, offset, now_ms=now_ms)
    after = _with_epoch(log, state_before(log, state, offset))
    log.forget_batches()
    log.write_state(after, flush=True)
    log.discard_unrecorded(after)
    return after


def truncate_fully_and_start_at(
    log: PartitionLog,
    state: LogState,
    offset: int,
    *,
    now_ms: int,
    epochs: Sequence[tuple[int, int]] = (),
) -> LogState:
    """Remove all batches of a log, whose next batch then gets `offset`; return the new state.

    Args:
        log: the log.
        state: its state.
        offset: where it starts over.
        now_ms: the time.
        epochs: the leader epochs, with their start offsets, that it has from then on; by default those
            of its own that start by `offset`. They are written first: a crash before the state is written
            leaves a log that still ends elsewhere, and is truncated again.
    """
    if epochs:
        write_leader_epochs(log.files, log.directory, epochs)
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
    log.forget_batches()
    log.write_state(after, flush=True)
    log.discard_unrecorded(after)
    for path in segment_at(log.directory, offset).paths:
        log.files.write(path, 0, b"")
    delete_segments(
        log, [base for base in log.segments.bases(after) if base < offset], now_ms=now_ms
    )
    return after


def state_before(log: PartitionLog, state: LogState, offset: int) -> LogState:
    """Return the log state to truncate to: it ends before the batch that holds `offset`.

    The active segment is then the one of that batch. Nothing is written. A segment has to hold `offset`.

    Raises:
        CorruptRecordError: the batches before `offset` cannot be walked.
    """
    segment = log.segments.views_from(state, log.segments.bases(state), offset)[0]
    path, end_offset, size = segment.log, segment.base_offset, 0
    with log.files.opened(path) as descriptor:
        # Start before the batch that is looked for, since a wrapper does not say where it starts.
        first, _ = indexed_batch(log.files, descriptor, segment, offset - 1)
        for position, header in walk_batch_headers(
            log.files, descriptor, path, first, segment.size_in_bytes
        ):
            if header.last_offset >= offset:
                break
            end_offset, size = header.next_offset, position + header.size_in_bytes
    # The log starts no later than it ends.
    state = state._replace(log_start_offset=min(state.log_start_offset, end_offset))
    after = state_ending_at(log.segments, state, segment.base_offset, size, end_offset)
    return after._replace(
        sequence=state.sequence + 1, recovery_point=min(state.recovery_point, end_offset)
    )


def _with_epoch(log: PartitionLog, state: LogState) -> LogState:
    """Return `state` with the last leader epoch that starts at or before the log's end.

    It is the last one that `discard_unrecorded` keeps.
    """
    epochs = readable_epochs(log.files, log.directory)
    kept = [epoch for epoch, start in epochs if start <= state.log_end_offset]
    return state._replace(leader_epoch=kept[-1] if kept else state.leader_epoch)
