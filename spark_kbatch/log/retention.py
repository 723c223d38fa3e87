"""Deletion of segments from the start of a log: which, when, and in which order.

Segments are deleted oldest first, and none after one that stays:

    below the log start   if the next segment starts at or below it; the active one, if nothing of it is left
    by size               while the log has at least retention.bytes without it
    by time               if its newest record is older than retention.ms, or its file if its records have
                          no timestamps; a timestamp in the future keeps it, and all segments after it
    never                 if it reaches past the high watermark, or is active and empty
    not yet               if a commit overwrote it a short while ago, see `overwritten.py`; nor any
                          segment after it, though the log start may move past them

The active segment may be deleted, too: an empty one is then started at the log's end.

    1. kbatch.overwritten               drop entries of failed commits, if the log start moves
    2. the files of the empty segment   past the recorded ends: after a crash the next writer removes them
    3. the state, flushed               the log start, and the new active segment
    4. files are renamed to .deleted    .log last: while it exists the segment is found again
    5. .deleted files are removed       by any later run, once they are file.delete.delay.ms old
    6. leader-epoch-checkpoint          loses the epochs that have no batch in the segments that are left

On a disk that is full, files are removed in step 4 and without a delay in step 5: what was deleted to make
room makes room at once. None of the steps needs any: the state is written in place, new files are empty, and
without room step 6 is left to a later deletion.

The leader epoch of every batch in a segment that is left stays in leader-epoch-checkpoint. So it is the first
segment that counts in step 6, and not the log start: that may lie within a segment, or after segments that
readers of an overwritten range still need.

The state changes before any file does, so a crash in between leaves segments below the log start, which
the next run deletes first. A rename does not change a file's time, so `.deleted` files are given the time
of their renaming. The caller holds the partition's lock.

Source: Kafka storage/.../log/UnifiedLog.java deleteOldSegments, LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Sequence

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, OffsetOutOfRangeError
from spark_kbatch.files import NO_ROOM
from spark_kbatch.log import overwritten
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import make_files, segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.options.topic import NO_LIMIT
from spark_kbatch.record.header import NO_TIMESTAMP
from spark_kbatch.store.reports import Deletion, Waiting

logger = logging.getLogger(__name__)

_DELETED = ".deleted"
_SEGMENT_FILE = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)")


def plan(log: PartitionLog, state: LogState, now_ms: int) -> Deletion:
    """Return which of a log's segments retention would delete now, and change nothing.

    These are what `delete_old_segments` would delete. Needs no lock.
    """
    segments = _segments(log, state)
    going = _below_log_start(segments, state)
    going += _by_size(segments[going:], log, state)
    going += _by_time(segments[going:], log, state, now_ms)
    log_start_offset = max([state.log_start_offset, *(s.stop for s in segments[:going])])
    gone = _without_held(segments[:going], log, state, now_ms)
    return _deletion(log, state, log_start_offset, gone, now_ms)


def delete_old_segments(log: PartitionLog, state: LogState, now_ms: int) -> Deletion:
    """Delete the log's expired segments, by size and time, and finish what an earlier run has started."""
    return _carry_out(log, state, plan(log, state, now_ms), now_ms)


def delete_records(log: PartitionLog, state: LogState, offset: int, now_ms: int) -> Deletion:
    """Move the log start to `offset`, which may be within a batch, and delete the segments below it.

    An offset below the log start changes nothing.

    Raises:
        OffsetOutOfRangeError: above the high watermark.
    Source: UnifiedLog.maybeIncrementLogStartOffset.
    """
    ensure_deletable(log, state, offset)
    moved = state._replace(log_start_offset=max(state.log_start_offset, offset))
    segments = _segments(log, moved)
    gone = segments[: _below_log_start(segments, moved)]
    gone = _without_held(gone, log, state, now_ms)
    planned = _deletion(log, state, moved.log_start_offset, gone, now_ms)
    return _carry_out(log, state, planned, now_ms)


def being_deleted(log: PartitionLog, state: LogState, now_ms: int) -> list[int]:
    """Return the base offsets of segments below the log start, without overwritten ones that are still kept.

    A process died between the log start's move and their deletion, so that some of their files are gone.
    """
    segments = _segments(log, state)
    below = segments[: _below_log_start(segments, state)]
    return [segment.start for segment in _without_held(below, log, state, now_ms)]


def ensure_deletable(log: PartitionLog, state: LogState, offset: int) -> None:
    """Check that the log start can be moved to `offset`.

    Raises:
        OffsetOutOfRangeError: above the high watermark.
    """
    if not 0 <= offset <= state.high_watermark:
        raise OffsetOutOfRangeError(
            str(log.topic_partition), offset, state.log_start_offset, state.high_watermark
        )


def delete_segments(
    log: PartitionLog, bases: Iterable[int], *, now_ms: int, at_once: bool = False
) -> None:
    """Rename to .deleted the files of segments that the log's state no longer refers to.

    With `at_once` they are removed.
    """
    stems = {f"{base:020d}" for base in bases}
    if not stems:
        return
    found = [
        name
        for name in log.files.list(log.directory)
        if name[:20] in stems and _SEGMENT_FILE.fullmatch(name)
    ]
    for name in sorted(found, key=lambda name: (name.endswith(".log"), name)):
        path = log.directory / name
        if at_once:
            log.files.remove(path)
            continue
        log.files.set_modified_ms(path, now_ms)
        log.files.rename(path, path.with_name(name + _DELETED))


def _carry_out(log: PartitionLog, state: LogState, planned: Deletion, now_ms: int) -> Deletion:
    files = log.files
    if state.segment_base_offset in planned.segments:
        state = log.discard_unrecorded(state)  # a dead writer may have left a segment there
    after = state._replace(
        log_start_offset=planned.log_start_offset,
        last_stable_offset=max(state.last_stable_offset, planned.log_start_offset),
    )
    if after.log_start_offset != state.log_start_offset:
        overwritten.drop_undecided(files, log.directory, state)
    if state.segment_base_offset in planned.segments:
        end = state.log_end_offset
        segment = segment_at(log.directory, end)
        make_files(files, segment)
        files.flush([*segment.paths, log.directory])
        after = after._replace(
            segment_base_offset=end,
            segment_size=0,
            index_size=0,
            time_index_size=0,
            max_timestamp=NO_TIMESTAMP,
            max_timestamp_offset=-1,
            bytes_since_index_entry=0,
            recovery_point=end,
        )
    if after != state:
        # Always flushed: an older state would refer to files that are gone.
        log.write_state(after._replace(sequence=state.sequence + 1), flush=True)
    delete_segments(log, planned.segments, now_ms=now_ms, at_once=files.is_full(log.directory))
    for name in planned.files:
        files.remove(log.directory / name)
    if planned.segments:
        _forget_epochs(log, after, planned.segments)
    return planned


def _forget_epochs(log: PartitionLog, state: LogState, deleted: Sequence[int]) -> None:
    """Remove the leader epochs of batches in deleted segments, unless the first one left has them, too."""
    # A follower that died when it started over has no file of the active segment yet.
    first = next(
        (base for base in log.segments.bases(state) if base not in deleted),
        state.segment_base_offset,
    )
    try:
        LeaderEpochCache.read(log.files, log.directory).truncate_from_start(first)
    except (FileNotFoundError, KafkaStorageError):
        pass  # The next writer rebuilds it.
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def _deletion(
    log: PartitionLog,
    state: LogState,
    log_start_offset: int,
    segments: Sequence[range],
    now_ms: int,
) -> Deletion:
    return Deletion(
        log_start_offset=log_start_offset,
        segments=tuple(segment.start for segment in segments),
        size_in_bytes=sum(log.segments.sizes(state, [segment.start for segment in segments])),
        files=tuple(_old_deleted_files(log, now_ms)),
    )


def _segments(log: PartitionLog, state: LogState) -> list[range]:
    """Return the offset range of each segment of the log, from its base offset up to the next segment's."""
    bases = log.segments.bases(state)
    return list(map(range, bases, [*bases[1:], state.log_end_offset]))


def _below_log_start(segments: list[range], state: LogState) -> int:
    """Return how many of the oldest segments are entirely below the log start.

    An empty active one is not.
    """
    return sum(segment.stop <= state.log_start_offset for segment in segments if len(segment) > 0)


def _without_held(
    segments: list[range], log: PartitionLog, state: LogState, now_ms: int
) -> list[range]:
    """Return the oldest segments without those that readers of an overwritten range may still need."""
    held_from = overwritten.held_from(log.files, log.directory, state, now_ms)
    if held_from is None:
        return segments
    return [segment for segment in segments if segment.stop <= held_from]


def _may_go(segment: range, state: LogState) -> bool:
    return segment.stop <= state.high_watermark and len(segment) > 0


def _by_size(segments: list[range], log: PartitionLog, state: LogState) -> int:
    """Return how many of the oldest segments can go while the log still has retention.bytes."""
    limit = log.config.retention_bytes
    if limit == NO_LIMIT:
        return 0
    sizes = log.segments.sizes(state, [segment.start for segment in segments])
    excess = sum(sizes) - limit
    for number, segment in enumerate(segments):
        excess -= sizes[number]
        if excess < 0 or not _may_go(segment, state):
            return number
    return len(segments)


def _by_time(segments: list[range], log: PartitionLog, state: LogState, now_ms: int) -> int:
    """Return how many of the oldest segments hold only records older than retention.ms."""
    limit = log.config.retention_ms
    if limit == NO_LIMIT:
        return 0
    for number, segment in enumerate(segments):
        if not _may_go(segment, state) or not _is_older(segment, log, state, now_ms - limit):
            return number
    return len(segments)


def _is_older(segment: range, log: PartitionLog, state: LogState, oldest_ms: int) -> bool:
    """Return True if the segment's newest record is from before `oldest_ms`."""
    path = segment_at(log.directory, segment.start).log
    try:
        newest = log.largest_timestamp(state, segment.start)
        if newest >= oldest_ms:
            return False
        # The index has no checksum, and deletion is final: the batches must agree.
        (size,) = log.segments.sizes(state, [segment.start])
        for _, header in log.batch_headers(segment.start, 0, size, messages_together=True):
            newest = max(newest, header.max_timestamp)
    except CorruptRecordError as error:
        logger.warning(
            "retention of %s stops at a segment whose age is unknown: %s",
            log.topic_partition,
            error,
        )
        return False
    return (newest if newest >= 0 else log.files.modified_ms(path)) < oldest_ms


def waiting_files(log: PartitionLog, now_ms: int) -> Waiting | None:
    """Return the files of deleted segments that are too young to be removed; None if there are none."""
    due = set(_old_deleted_files(log, now_ms))
    size_in_bytes = newest_ms = 0
    for name in log.files.list(log.directory):
        if name.endswith(_DELETED) and name not in due:
            with contextlib.suppress(FileNotFoundError):
                size_in_bytes += log.files.size(log.directory / name)
                newest_ms = max(newest_ms, log.files.modified_ms(log.directory / name))
    if not newest_ms:
        return None
    until_ms = newest_ms + log.config.file_delete_delay_ms
    name = str(log.topic_partition)
    return Waiting("deleted segments", name, size_in_bytes, newest_ms, until_ms)


def waiting_overwritten(log: PartitionLog, state: LogState, now_ms: int) -> Waiting | None:
    """Return the segments of overwritten records that are kept for readers; None if there are none."""
    held = overwritten.held(log.files, log.directory, state, now_ms)
    if not held:
        return None
    first = min(one.start_offset for one in held)
    kept = [
        segment.start
        for segment in _segments(log, state)
        if first < segment.stop <= state.log_start_offset
    ]
    size_in_bytes = written_ms = 0
    with contextlib.suppress(FileNotFoundError):  # deleted since they were listed
        size_in_bytes = sum(log.segments.sizes(state, kept))
        paths = [segment_at(log.directory, base).log for base in kept]
        written_ms = max((log.files.modified_ms(path) for path in paths), default=0)
    if not size_in_bytes:
        return None
    until_ms = max(one.delete_ms for one in held)
    return Waiting("overwritten", str(log.topic_partition), size_in_bytes, written_ms, until_ms)


def _old_deleted_files(log: PartitionLog, now_ms: int) -> list[str]:
    delay_ms = 0 if log.files.is_full(log.directory) else log.config.file_delete_delay_ms
    found = []
    for name in log.files.list(log.directory):
        if name.endswith(_DELETED) and _SEGMENT_FILE.fullmatch(name.removesuffix(_DELETED)):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                if now_ms - log.files.modified_ms(log.directory / name) >= delay_ms:
                    found.append(name)
    return found
