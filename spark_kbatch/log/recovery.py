"""Recovery of a log whose files are not as its `kbatch.state` says, for instance after a crash.

    what is found                             a reader                   the next writer
    ----------------------------------------  -------------------------  --------------------------
    bytes, index entries, segments and leader ignores them               discards them
      epochs past the recorded ends
    a state of another boot, all flushed      reads                      writes
    a state of another boot, not all flushed  checks what is past the    checks it, too; rebuilds the
                                              recovery point, once, in   indexes of these segments
                                              memory                     where they differ
      with a bad batch or too few bytes past  reads up to there;         truncates there, flushes,
      the recovery point                      a warning                  writes the state; a warning
    .log of the active segment shorter than   error if that is read      as with another boot
      recorded, past the recovery point
      the same, before it                     error if that is read      error
    .index, .timeindex of the active segment
      missing or short                        walks batches instead      rebuilds it before the next
                                                                         entry or roll
      zero or garbage                         the same, with a warning   (does not look)
    the same of a rolled segment
      missing                                 walks batches instead      rebuilds it
      short, zero or garbage                  the same, with a warning   (does not look)
      the same, and it ends at the recovery   the same                   rebuilds it: its last entry
      point of a state of another boot, not                              is flushed with what follows
      all flushed
    .log of a rolled segment missing or short error if that is read      (does not look)
    leader-epoch-checkpoint missing, empty    does not check epochs      rebuilds it at the next roll,
      or damaged                                                         commit or election
    kbatch.producers, .snapshot missing,      (does not look)            reads the batches instead
      damaged, or of other batches
    partition.metadata missing                (does not look)            (does not look)
    kbatch.state: one slot damaged            uses the other one         the same, and overwrites it
    kbatch.state: missing, or both damaged    error                      error
    the partition's directory missing         error                      error
    *.deleted, *.cleaned, *.swap              ignores them               leaves them

Errors are KafkaStorageError, or CorruptRecordError if bytes are not what they should be, and name the
file. `repair.py` is for them, and for what no one looked at. A state is of another boot if its machine
was restarted since, or if it is another machine's: then what was not flushed may be lost. So a reader on
a machine where no one writes checks all batches as they arrive, each once.

Source: Kafka storage/.../log/LogLoader.java, LogSegment.recover.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.batch_headers import indexed_batch, too_short, walk_batch_headers
from spark_kbatch.log.checkpoints import (
    LEADER_EPOCHS,
    EpochEntry,
    read_leader_epochs,
    write_leader_epochs,
)
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.producers import saved as saved_producers
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.manager import LogProducers
from spark_kbatch.log.producers.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from spark_kbatch.log.segment import (
    RELATIVE_OFFSET_MAX,
    LogSegments,
    SegmentIndexer,
    SegmentView,
    base_offset_of,
    log_name,
    segment_at,
)
from spark_kbatch.log.state import LogState, boot_id, read_state, write_state
from spark_kbatch.record.header import BatchHeader, ensure_valid

logger = logging.getLogger(__name__)

_SEGMENT_FILES = (".log", ".index", ".timeindex", transaction_index.SUFFIX, SNAPSHOT_SUFFIX)


class Damage(NamedTuple):
    """The position and error of the first batch of a log that is invalid or missing."""

    base_offset: int  # of its segment
    position: int
    offset: int  # of its first record: the log ends there
    error: CorruptRecordError | KafkaStorageError


def verified(segments: LogSegments, state: LogState, from_offset: int) -> LogState:
    """Check the log's batches from `from_offset` on; return its state, ending before the first bad one.

    Raises:
        KafkaStorageError: something before the recovery point is missing.
    """
    views = segments.views_from(state, segments.bases(state), from_offset)
    found = first_damage(segments.files, segments.directory, views, state, from_offset)
    if found is None:
        return state
    _warn_of_loss(segments.directory, state, found)
    return state_ending_at(segments, state, *found[:3])


def discard_unrecorded(segments: LogSegments, state: LogState) -> LogState:
    """Recover a log and discard what is past its recorded end, as every writer does first.

    The caller holds the partition's lock, and no decided commit waits for its flip here. Indexes and
    the state are written only if they were wrong.

    Returns:
        The state from which the writer continues.

    Raises:
        KafkaStorageError: something before the recovery point is missing.
    """
    files, directory = segments.files, segments.directory
    names = files.list(directory)
    every = [base for base in map(base_offset_of, names) if base is not None]
    bases = [base for base in every if base <= state.segment_base_offset]
    state = _recovered(segments, state, set(names), bases)
    # The last first, so that a crash meanwhile leaves a file of the segment at the log's end.
    last = f"{state.segment_base_offset:020d}."
    for name in reversed(names):
        if name[:21] > last and name[20:].endswith(_SEGMENT_FILES):
            if base_offset_of(f"{name[:20]}.log") is not None:
                files.remove(directory / name)
    return discard_unrecorded_in_active(segments, state)


def is_clean(segments: LogSegments, state: LogState) -> bool:
    """Return True if the active segment shows that no data has to be discarded and none was lost.

    A writer that dies leaves at least one of two signs: bytes after the active segment, because they are
    written before the next segment is created; or a segment at the log's end, because that is removed
    last. A truncation writes the state before it removes batches, so it leaves the same signs. So the
    directory of a log need not be listed again once it was looked at.
    """
    return (
        segments.is_as_recorded(state)
        and not lacks_index_entries(segments, state)
        and bool(readable_epochs(segments.files, segments.directory))
    )


def discard_unrecorded_in_active(segments: LogSegments, state: LogState) -> LogState:
    """Truncate the active segment's files at their recorded ends, and drop later leader epochs."""
    files, directory = segments.files, segments.directory
    for path, size in _recorded_sizes(directory, state):
        if files.sizes(directory, [path.name])[0] > size:
            files.truncate(path, size)
    transaction_index.truncate(files, directory, state.segment_base_offset, state.log_end_offset)
    # Keep an epoch that starts at the log's end: its leader may not have appended yet.
    with contextlib.suppress(KafkaStorageError):
        LeaderEpochCache.read(files, directory).truncate_from_end(state.log_end_offset + 1)
    return state


def _recovered(
    segments: LogSegments, state: LogState, names: Set[str], bases: Sequence[int]
) -> LogState:
    """Check the batches, indexes and epochs that may be damaged, and rebuild what is; discard nothing."""
    if not readable_epochs(segments.files, segments.directory):
        logger.warning("rebuilding %s from the batches", segments.directory / LEADER_EPOCHS)
        views = segments.views_from(state, bases, 0)
        epochs = epochs_of(segments.files, views, highest=state.leader_epoch)
        for path, base_offset, epoch in epochs.doubtful:
            logger.warning(
                "%s: the batch at offset %d has leader epoch %d, which does not fit its neighbours",
                path, base_offset, epoch,
            )  # fmt: skip
        entries = epochs.entries or [(state.leader_epoch, 0)]
        write_leader_epochs(segments.files, segments.directory, entries)

    after = state._replace(boot_id=boot_id())
    first = max(state.recovery_point, state.log_start_offset)
    to_index = _bases_without_indexes(segments, state, names, bases)
    if _may_have_lost(segments, state, first):
        views = segments.views_from(state, bases, first)
        damage = first_damage(segments.files, segments.directory, views, state, first)
        if damage is not None:
            _warn_of_loss(segments.directory, state, damage)
            after = state_ending_at(segments, after, *damage[:3])
        # A segment that ends there got its last index entries when the next one began.
        to_index |= {
            view.base_offset for view in segments.views_from(state, bases, max(first - 1, 0))
        }
    for view in segments.views_from(after, bases, min(to_index)) if to_index else ():
        if view.base_offset in to_index:
            after = _rebuild_indexes(segments, after, view)

    recorded = read_state(segments.files, segments.directory)
    if after == recorded._replace(boot_id=after.boot_id):
        return after
    views = segments.views_from(after, bases, first)
    segments.files.flush(
        path for view in views for path in view.segment.paths if segments.files.exists(path)
    )
    segments.files.flush([segments.directory])
    if after.log_end_offset != recorded.log_end_offset:
        after = after._replace(recovery_point=after.log_end_offset)
        saved_producers.remove(segments.files, segments.directory)
    after = after._replace(sequence=recorded.sequence + 1)
    write_state(segments.files, segments.directory, after, flush=True)
    return after


def readable_epochs(files: Files, directory: Path) -> list[EpochEntry]:
    """Return the entries of leader-epoch-checkpoint; none if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, KafkaStorageError):
        return read_leader_epochs(files, directory)
    return []


def _bases_without_indexes(
    segments: LogSegments, state: LogState, names: Set[str], bases: Sequence[int]
) -> set[int]:
    """Return the base offsets of segments without index files, or with too short ones in the active one."""
    found = {
        base for base in bases[:-1]
        if f"{base:020d}.index" not in names or f"{base:020d}.timeindex" not in names
    }  # fmt: skip
    if log_name(state.segment_base_offset) not in names or lacks_index_entries(segments, state):
        found.add(state.segment_base_offset)
    return found


def lacks_index_entries(segments: LogSegments, state: LogState) -> bool:
    """Return True if an index of the active segment is missing, or shorter than recorded."""
    recorded = (state.index_size, state.time_index_size)
    stem = f"{state.segment_base_offset:020d}"
    found = segments.files.sizes(segments.directory, (f"{stem}.index", f"{stem}.timeindex"))
    return any(map(operator.lt, found, recorded))


def rebuild_active_indexes(segments: LogSegments, state: LogState) -> LogState:
    """Rebuild the indexes of the active segment; return the log's state with their sizes."""
    base, end = state.segment_base_offset, state.log_end_offset
    segment = segment_at(segments.directory, base)
    logger.warning("rebuilding the indexes of %s from the batches", segment.log)
    return _rebuild_indexes(segments, state, SegmentView(segment, end, state.segment_size))


def _may_have_lost(segments: LogSegments, state: LogState, first_unflushed: int) -> bool:
    """Return True if a crash may have lost batches that were not flushed.

    Raises:
        KafkaStorageError: flushed ones are lost.
    """
    path = segment_at(segments.directory, state.segment_base_offset).log
    is_short = is_shorter(segments.files, path, state.segment_size)
    all_flushed = first_unflushed >= state.log_end_offset
    if is_short and all_flushed:
        raise too_short(segments.files, path, state.segment_size)
    return not all_flushed and (is_short or state.boot_id != boot_id())


def is_shorter(files: Files, path: Path, size: int) -> bool:
    """Return True if a file has fewer than `size` bytes, or is missing; opens it only if it seems so."""
    if files.exists(path) and files.size(path) >= size:
        return False
    try:
        return files.opened_size(path) < size
    except FileNotFoundError:
        return size > 0


def _rebuild_indexes(segments: LogSegments, state: LogState, view: SegmentView) -> LogState:
    """Rebuild the indexes of a segment if they differ; return the log's state with their sizes.

    They end before a damaged batch: what follows it is found by walking, and writing goes on.
    """
    active = view.base_offset == state.segment_base_offset
    made = SegmentIndexer(view.base_offset, interval_bytes=segments.config.index_interval_bytes)
    is_whole = True
    try:
        index(segments.files, view, made, rolled=not active)
    except CorruptRecordError as error:
        logger.warning("the indexes of %s end before a damaged batch: %s", view.log, error)
        is_whole = False
    for path, content in (
        (view.segment.offset_index, bytes(made.index)),
        (view.segment.time_index, bytes(made.time_index)),
    ):
        if not segments.files.exists(path) or segments.files.read(path) != content:
            segments.files.replace(path, content)
    if not active:
        return state
    if not is_whole:
        return state._replace(index_size=len(made.index), time_index_size=len(made.time_index))
    return _indexed_state(state, made)


# What is valid.


def first_damage(
    files: Files,
    directory: Path,
    views: Sequence[SegmentView],
    state: LogState,
    from_offset: int,
) -> Damage | None:
    """Find the first batch at or after `from_offset` with a bad size, offset or CRC.

    Args:
        views: the segments from the one that holds `from_offset` on.

    Raises:
        KafkaStorageError: the log ends before `from_offset`.
    """
    if not views or views[0].base_offset > from_offset:
        path = segment_at(directory, from_offset).log
        error = KafkaStorageError(f"no segment holds offset {from_offset}: {path} is missing")
        if from_offset > state.log_start_offset:
            raise error
        return Damage(from_offset, 0, from_offset, error)
    expected = from_offset
    for view in views:
        path = view.log
        with files.opened(path) as descriptor:
            size = min(view.size_in_bytes, files.descriptor_size(descriptor))
            position = 0
            if view is views[0]:
                try:
                    position, expected = _position_of(files, descriptor, view, from_offset, size)
                except KafkaStorageError as error:
                    if from_offset > state.log_start_offset:
                        raise
                    return Damage(from_offset, 0, from_offset, error)
            try:
                for at, header in walk_batch_headers(files, descriptor, path, position, size):
                    position = at
                    header = _ensure_holds(files, path, at, header, expected, view)
                    position, expected = at + header.size_in_bytes, header.next_offset
            except CorruptRecordError as error:
                return Damage(view.base_offset, position, expected, error)
        if expected != view.next_offset:
            ended = CorruptRecordError(
                "end of the batches", path=str(path), position=position,
                expected=f"offset {view.next_offset}", found=expected,
            )  # fmt: skip
            return Damage(view.base_offset, position, expected, ended)
    return None


def _position_of(
    files: Files, descriptor: int, view: SegmentView, offset: int, size: int
) -> tuple[int, int]:
    """Return position and base offset of a segment's first batch that ends after `offset`; or of its end."""
    path = view.log
    try:
        if offset == view.base_offset:
            return 0, offset
        position, header = indexed_batch(
            files, descriptor, view._replace(size_in_bytes=size), offset - 1
        )
        for at, header in walk_batch_headers(files, descriptor, path, position, size):
            if header.last_offset >= offset:
                return at, header.base_offset
            if header.next_offset == offset:
                return at + header.size_in_bytes, offset
        reason = f"its batches end at offset {header.next_offset}"
    except CorruptRecordError as error:
        reason = str(error)
    raise KafkaStorageError(
        f"{path} does not hold offset {offset - 1}, which was flushed: {reason}; the file was "
        "truncated or replaced by something else; `kbatch repair` keeps what is valid"
    )


def _ensure_holds(
    files: Files, path: Path, position: int, header: BatchHeader, expected: int, view: SegmentView
) -> BatchHeader:
    """Check a batch's offset and CRC; return its header, for a wrapper with its first message's offset."""
    if header.is_wrapper and header.last_offset >= expected:
        header = header.opened(expected)
    if (
        header.base_offset != expected
        or header.last_offset - view.base_offset > RELATIVE_OFFSET_MAX
    ):
        raise CorruptRecordError(
            "base offset", path=str(path), position=position,
            expected=expected, found=header.base_offset,
        )  # fmt: skip
    try:
        ensure_valid(files.read(path, position, header.size_in_bytes), 0, header)
    except CorruptRecordError as error:
        raise error.at(str(path), position) from None
    return header


# What is rebuilt.


def indexed(
    files: Files, view: SegmentView, *, interval_bytes: int, rolled: bool
) -> SegmentIndexer:
    """Collect all `.index` and `.timeindex` entries of a segment from its batches, as an appender would."""
    indexer = SegmentIndexer(view.base_offset, interval_bytes=interval_bytes)
    index(files, view, indexer, rolled=rolled)
    return indexer


def index(files: Files, view: SegmentView, indexer: SegmentIndexer, *, rolled: bool) -> None:
    """Pass all batches of a segment to `indexer`, which makes index entries for them.

    Raises:
        CorruptRecordError: a batch is damaged, or has an offset that no entry can hold; the batches
            before it were added.
    """
    path, base = view.log, view.base_offset
    if view.size_in_bytes:
        with files.opened(path) as descriptor:
            for position, header in walk_batch_headers(
                files, descriptor, path, 0, view.size_in_bytes
            ):
                if not 0 <= header.last_offset - base <= RELATIVE_OFFSET_MAX:
                    raise CorruptRecordError(
                        "base offset", path=str(path), position=position,
                        expected=f"{base} to {base + RELATIVE_OFFSET_MAX}", found=header.base_offset,
                    )  # fmt: skip
                indexer.add(header, position)
    if rolled:
        indexer.add_time_entry()


class EpochsFound(NamedTuple):
    """The leader epochs found in the batches of a log, and batches whose epoch does not fit in."""

    entries: list[tuple[int, int]]  # (epoch, start offset) of each
    doubtful: list[tuple[Path, int, int]]  # file, base offset and epoch of batches that do not fit


def epochs_of(
    files: Files, views: Iterable[SegmentView], *, highest: int | None = None
) -> EpochsFound:
    """Find the start offset of each leader epoch by reading a log's batches.

    A batch's epoch lies outside its CRC and may be damaged. Epochs do not decrease, so the largest set of
    batches counts whose epochs do not. A damaged batch hides those after it in its segment.

    Args:
        highest: the epoch of the partition, if it is known; higher ones are damaged.
    """
    runs: list[tuple[Path, int, int]] = []  # batches with one epoch that follow each other
    counts: list[int] = []
    for view in views:
        path, size = view.log, view.size_in_bytes
        try:
            with files.opened(path) as descriptor:
                for _, header in walk_batch_headers(files, descriptor, path, 0, size):
                    epoch = header.partition_leader_epoch
                    if epoch < 0:
                        continue  # older formats have none
                    if runs and runs[-1][2] == epoch:
                        counts[-1] += 1
                    else:
                        runs.append((path, header.base_offset, epoch))
                        counts.append(1)
        except CorruptRecordError as error:
            logger.warning("leader epochs after a damaged batch are unknown: %s", error)
    kept = _ascending([epoch for _, _, epoch in runs], counts, highest)
    entries: list[tuple[int, int]] = []
    for number in sorted(kept):
        _, base_offset, epoch = runs[number]
        if not entries or epoch > entries[-1][0]:
            entries.append((epoch, base_offset))
    return EpochsFound(entries, [run for number, run in enumerate(runs) if number not in kept])


def _ascending(epochs: Sequence[int], counts: Sequence[int], highest: int | None) -> set[int]:
    """Return the runs of batches to trust: those with non-decreasing leader epochs and the most batches.

    A run is returned as its number.
    """
    lasts: list[int] = []  # [n]: the smallest epoch that a choice of n + 1 batches can end with
    ends: list[int] = []  # [n]: the run that has it
    before: dict[int, int] = {}
    for number, (epoch, count) in enumerate(zip(epochs, counts, strict=True)):
        if highest is None or epoch <= highest:
            at = bisect.bisect_right(lasts, epoch)
            before[number] = ends[at - 1] if at else -1
            lasts[at : at + count] = [epoch] * count
            ends[at : at + count] = [number] * count
    kept, number = set[int](), ends[-1] if ends else -1
    while number >= 0:
        kept.add(number)
        number = before[number]
    return kept


def state_ending_at(
    segments: LogSegments, state: LogState, base: int, position: int, offset: int
) -> LogState:
    """Return the log's state changed to end at `offset`, at `position` of the segment `base`."""
    if offset < state.log_start_offset:  # As in Kafka, the log is then empty at its start.
        base, position, offset = state.log_start_offset, 0, state.log_start_offset
    view = SegmentView(segment_at(segments.directory, base), offset, position)
    made = indexed(
        segments.files, view, interval_bytes=segments.config.index_interval_bytes, rolled=False
    )
    after = _indexed_state(state, made)._replace(
        log_end_offset=offset,
        high_watermark=min(state.high_watermark, offset),
        segment_base_offset=base,
        segment_size=position,
        prepare_offset=state.prepare_offset if state.prepare_offset < offset else -1,
    )
    # A transaction whose marker is gone is open again.
    stable = LogProducers(segments).last_stable_offset(after)
    return after._replace(last_stable_offset=stable)


def _indexed_state(state: LogState, made: SegmentIndexer) -> LogState:
    return state._replace(
        index_size=len(made.index),
        time_index_size=len(made.time_index),
        max_timestamp=made.max_timestamp,
        max_timestamp_offset=made.max_timestamp_offset,
        bytes_since_index_entry=made.bytes_since_entry,
    )


def _warn_of_loss(directory: Path, state: LogState, damage: Damage) -> None:
    logger.warning(
        "%s: the log ends at offset %d instead of %d: only that much survived of what was not "
        "flushed, from offset %d on (%s)",
        directory, max(damage.offset, state.log_start_offset), state.log_end_offset,
        state.recovery_point, damage.error,
    )  # fmt: skip


def _recorded_sizes(directory: Path, state: LogState) -> list[tuple[Path, int]]:
    sizes = (state.segment_size, state.index_size, state.time_index_size)
    return list(zip(segment_at(directory, state.segment_base_offset).paths, sizes, strict=True))
