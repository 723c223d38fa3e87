"""Appending to a log, as a leader or as a follower, by who holds the partition's lock.

A leader takes one batch of a producer, which `validate` has accepted, and gives it offsets and an
epoch; a follower takes batches byte for byte. Each can be had in two steps, so that the disks of
several replicas are waited for together: `append_ahead` and `copy` flush nothing, and what they
return does.

Source: Kafka storage/.../log/UnifiedLog.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from spark_kbatch.errors import (
    CorruptRecordError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from spark_kbatch.files import Buffer
from spark_kbatch.log.appender import LogAppender
from spark_kbatch.log.checkpoints import read_leader_epochs, write_leader_epochs
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.replay import replay
from spark_kbatch.log.producers.snapshot import write_snapshot
from spark_kbatch.log.recovery import readable_epochs
from spark_kbatch.log.state import LogState
from spark_kbatch.model import AppendOrigin, AppendResult
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import (
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    ensure_valid,
    walk,
)
from spark_kbatch.record.legacy import unwrap


class Ahead(NamedTuple):
    """What a leader has, and shows once its followers have it."""

    result: AppendResult
    state: LogState  # as it was written; `flush` gives the one that says what is on disk
    log: PartitionLog
    appender: LogAppender

    def flush(self) -> LogState:
        """On return the batch, and the state with it, are on disk."""
        state = self.appender.flush()
        self.log.flush_state()
        return state


class Copied(NamedTuple):
    """What a follower has, and does not show yet."""

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
) -> AppendResult:
    """Append one batch that `validate` has accepted, and make it visible.

    A duplicate is not written again: the answer has its first offsets. The caller holds the
    partition's lock, and no decided commit waits for its flip here. `data` is only read, and not
    kept.

    Raises:
        InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError,
            TransactionCoordinatorFencedError: nothing is written.
        OSError: the batch is not visible, or, where writing or flushing the state failed, may
            be. Repeating it is safe for an idempotent producer: the log is looked at then.
    Source: UnifiedLog.append.
    """
    return _append(log, state, data, header, origin, flush=flush, now_ms=now_ms).result


def append_ahead(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    header: BatchHeader,
    *,
    origin: AppendOrigin,
    now_ms: int,
) -> Ahead:
    """As `append_as_leader`, for followers alone: the high watermark stays, nothing is flushed."""
    return _append(
        log, state, data, header, origin,
        flush=False, now_ms=now_ms, high_watermark=state.high_watermark,
    )  # fmt: skip


def _append(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    header: BatchHeader,
    origin: AppendOrigin,
    *,
    flush: bool,
    now_ms: int,
    high_watermark: int | None = None,
) -> Ahead:
    appender = LogAppender(log, state, now_ms=now_ms)
    # What a dead writer left behind the active segment shows in its size. Other left-overs,
    # index entries and segments, come to light only when the segment is rolled.
    if appender.is_full_for(header) or not log.is_as_recorded(state):
        state = log.cut(state)
        appender = LogAppender(log, state, now_ms=now_ms)
    idempotent = header.producer_id > NO_PRODUCER_ID
    marker = None
    if idempotent:
        log.producers.read(state, now_ms)
        if header.is_control:
            marker = read_marker(data, 0, header)
        if marker is not None:
            log.producers.states.ensure_may_end(header, marker)
        if origin is AppendOrigin.CLIENT:
            duplicate = log.producers.states.find_duplicate(header)
            if duplicate is not None:
                if flush:  # It was perhaps not flushed, or the flush of its state failed.
                    state = appender.finish(flush=True, high_watermark=high_watermark)
                    log.write_state(state, flush=True)
                result = _result(log, state, duplicate.base_offset, duplicate.timestamp)
                return Ahead(result, state, log, appender)
            log.producers.states.ensure_follows(header)
    are_known = log.producers.are_known(state)
    if appender.is_full_for(header) and are_known:
        appender.touch(
            write_snapshot(
                log.files, log.directory, state.log_end_offset, log.producers.states.entries
            )
        )
    header = appender.append_batch(data, header)
    last_stable_offset = None
    if idempotent:
        last_stable_offset = log.producers.states.last_stable_offset_with(header)
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
        if idempotent:
            replay(log.producers.states, header, marker, now_ms)
        log.producers.appended(after, 1)
    result = _result(log, state, header.base_offset, header.max_timestamp)
    return Ahead(result, after, log, appender)


def append_as_follower(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    *,
    high_watermark: int,
    flush: bool,
    now_ms: int,
    prepare_offset: int | None = None,
) -> LogState:
    """Append batches as their leader has them, byte for byte, and make them visible.

    The caller holds the partition's lock. `data` is only read.

    Args:
        data: whole batches, the first of which begins where this log ends; there may be none.
        high_watermark: the leader's. Ours follows it, as far as our log goes, and never back.
        prepare_offset: the leader's, where its state has one.

    Raises:
        UnexpectedAppendOffsetError: they begin elsewhere.
        OffsetsOutOfOrderError: they do not follow each other; logs written here have no gaps.
        CorruptRecordError: a CRC does not hold, or a leader epoch goes back; the position is
            that in `data`.
        In all of these cases nothing is written.
    Source: UnifiedLog.appendAsFollower, LeaderEpochFileCache.assign.
    """
    if not len(data):
        return log.move_high_watermark(state, high_watermark, flush=flush, now_ms=now_ms)
    return copy(
        log, state, data,
        high_watermark=high_watermark, flush=flush, now_ms=now_ms, prepare_offset=prepare_offset,
    ).show()  # fmt: skip


def copy(
    log: PartitionLog,
    state: LogState,
    data: Buffer,
    *,
    high_watermark: int,
    flush: bool,
    now_ms: int,
    prepare_offset: int | None,
) -> Copied:
    """The first half of `append_as_follower`; nothing is flushed before the second."""
    first = next(header for _, header in walk(data))
    appender = LogAppender(log, state, now_ms=now_ms, as_follower=True)
    is_one_batch = first.size_in_bytes == len(data) and first.magic == MAGIC
    epochs = readable_epochs(log.files, log.directory)
    if (
        not is_one_batch
        or appender.is_full_for(first)
        or not log.is_as_recorded(state)
        or not epochs
    ):
        state = log.cut(state)
        epochs = read_leader_epochs(log.files, log.directory)
    epochs_after = _checked_copy(log, state, data, epochs)
    if epochs_after != epochs:
        write_leader_epochs(log.files, log.directory, epochs_after)
    if epochs_after:
        # Also where they were written before: by one who died before its state was.
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
                    shown_end, state.log_start_offset
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
        log.producers.forget()  # They know of batches that the log may not have.
        raise


def _append_and_replay(
    log: PartitionLog, appender: LogAppender, data: memoryview, now_ms: int
) -> int:
    """Append a leader's batches, and let the producers and the transaction index know of them.

    Returns:
        How many there were.
    """
    begin = count = 0
    for position, header in walk(data):
        count += 1
        if header.producer_id <= NO_PRODUCER_ID:
            continue
        marker = read_marker(data, position, header) if header.is_control else None
        aborted = replay(log.producers.states, header, marker, now_ms)
        if aborted is not None:
            # So that the segment which is active then is the marker's.
            end = position + header.size_in_bytes
            appender.append(data[begin:end])
            begin = end
            base = appender.segment_base_offset
            appender.touch(transaction_index.append(log.files, log.directory, base, [aborted]))
    appender.append(data[begin:])
    return count


def _checked_copy(
    log: PartitionLog, state: LogState, data: Buffer, epochs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The leader epochs of the log once it has these batches, which are checked."""
    next_offset = state.log_end_offset
    for position, header in walk(data):
        if header.is_wrapper and header.last_offset >= next_offset:
            # Where it begins is known once it is open.
            header = unwrap(data, position, header).header
        has_gaps = header.magic < MAGIC and not header.is_dense
        if header.base_offset != next_offset or has_gaps:
            kind = OffsetsOutOfOrderError if position else UnexpectedAppendOffsetError
            raise kind(str(log.topic_partition), next_offset, header.base_offset)
        next_offset = header.next_offset
        ensure_valid(data, position, header)
        if header.magic < MAGIC:
            continue  # which has no leader epoch
        epoch, latest = header.partition_leader_epoch, epochs[-1][0] if epochs else -1
        if epoch < max(latest, 0):
            raise CorruptRecordError(
                "partition leader epoch", position=position + 12,
                expected=f"{max(latest, 0)} or more", found=epoch,
            )  # fmt: skip
        if epoch > latest:
            # One that begins here has no batch.
            epochs = [entry for entry in epochs if entry[1] < header.base_offset]
            epochs.append((epoch, header.base_offset))
    return epochs


def _result(log: PartitionLog, state: LogState, base_offset: int, time_ms: int) -> AppendResult:
    log_append_time = time_ms if log.config.is_log_append_time else NO_TIMESTAMP
    return AppendResult(base_offset, log_append_time, state.log_start_offset)
