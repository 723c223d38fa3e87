"""Repair of a damaged log from its batches, only on request, as by `kbatch repair`.

    what is found                              what is done
    -----------------------------------------  --------------------------------------------------
    kbatch.state missing or both slots bad     rebuilt from the batches: all valid ones from the first
                                               segment on, up to the first that is not; the bytes
                                               after it are copied, and later segments moved, to names
                                               that end in .damaged
    kbatch.state with one bad slot             the bad one is overwritten
    .log of the active segment too short       the log ends with its last whole batch
    a bad batch elsewhere                      reported and left: what follows it can still be read
    .index, .timeindex not as the batches say  rebuilt
    leader-epoch-checkpoint missing, damaged,  rebuilt from the batches
      or empty, though the log is not
    partition.metadata missing, damaged        rebuilt from the topic's id
    what the next writer would do              done (`recovery.py`)

So a log that lost its state keeps whatever was acknowledged before the first bad batch, and perhaps
more: batches that a writer had placed and no one had committed.

Source: Kafka storage/.../log/LogLoader.java.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spark_kbatch.clock import now_ms
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.log import retention
from spark_kbatch.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    read_leader_epochs,
    read_partition_metadata,
    write_leader_epochs,
    write_partition_metadata,
)
from spark_kbatch.log.recovery import (
    epochs_of,
    first_damage,
    indexed,
    is_shorter,
    state_ending_at,
)
from spark_kbatch.log.segment import SegmentIndexer, SegmentView, base_offset_of, segment_at
from spark_kbatch.log.state import (
    LogState,
    create_state,
    empty_state,
    is_whole,
    read_state,
    write_state,
)
from spark_kbatch.model import LONG_MAX
from spark_kbatch.store.reports import UNKNOWN_OFFSET, RepairReport

if TYPE_CHECKING:
    from spark_kbatch.log.partition_log import PartitionLog

_INDEX_ENTRY = np.dtype([("key", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("key", ">i8"), ("offset", ">i4")])
_NOT_OF_BATCHES = "does not match the batches"
_COPY_BYTES = 8 * 1024 * 1024


class LogRepair:
    """One run, or dry run, of the repair of one log.

    The caller holds the partition's lock, except for a dry run. No decided commit waits for its flip
    here, unless the state is lost.
    """

    def __init__(self, log: PartitionLog, *, dry_run: bool) -> None:
        self._log, self._files, self._directory = log, log.files, log.directory
        self._dry_run = dry_run
        self._found: list[str] = []
        self._damaged: list[str] = []
        self.loses = False  # whether less is left than the log's state says, or the state was lost

    def run(self, topic_id: str, known: LogState | None) -> RepairReport:
        """Repair the log's files, or report in a dry run what would be done.

        Args:
            topic_id: the id of the log's topic.
            known: the newest state of this log that is recorded elsewhere: a lost state is rebuilt with
                its log start and a higher sequence number.

        Raises:
            KafkaStorageError: the directory is gone.
        """
        if not self._files.exists(self._directory):
            raise KafkaStorageError(
                f"{self._directory} is gone: there is nothing to rebuild the log from"
            )
        self._files.ensure_no_link(self._directory, self._directory.parent)
        if is_lost(self._log):
            state = self._rebuilt(known)
        else:
            state = self._as_recorded()
        state = self._check_indexes(state)
        self._check_epochs(state)
        self._check_metadata(topic_id)
        if not self._dry_run:
            with contextlib.suppress(KafkaStorageError, CorruptRecordError):  # reported before
                state = self._log.discard_unrecorded(state, thorough=True)
        return RepairReport(
            self._log.topic_partition,
            state.log_start_offset,
            state.log_end_offset,
            tuple(self._found),
            tuple(self._damaged),
        )

    def _do(self, what: str, *steps: Callable[[], object]) -> None:
        self._found.append(what)
        if not self._dry_run:
            for step in steps:
                step()

    # A state that is there.

    def _as_recorded(self) -> LogState:
        log, files, directory = self._log, self._files, self._directory
        state = read_state(files, directory)
        path, recorded = segment_at(directory, state.segment_base_offset).log, state.segment_size
        if is_shorter(files, path, recorded):
            # Check from the segment's start: what was flushed is gone, so nothing in it can be trusted.
            first = max(state.segment_base_offset, state.log_start_offset)
            state = self._truncated(state, first)
        else:
            state = self._as_read(state)
        if not is_whole(files, directory):
            state = state._replace(sequence=state.sequence + 1)
            self._do(
                f"{directory}/kbatch.state: one of its two slots is damaged; it is overwritten",
                partial(write_state, files, directory, state, flush=True),
            )
        start = state.log_start_offset
        views = log.segments.views_from(state, log.segments.bases(state), start)
        while views and start < state.log_end_offset:
            found = first_damage(files, directory, views, state, start)
            if found is None:
                break
            self._damaged.append(f"{found.error}; it is left as it is, and reading it is an error")
            # Check the segments after it, too, each by itself.
            views = [view for view in views if view.base_offset > found.base_offset]
            start = views[0].base_offset if views else start
        return state

    def _as_read(self, state: LogState) -> LogState:
        try:
            found = self._log.verified(state)
            if found.log_end_offset < state.log_end_offset:
                self.loses = True
                self._found.append(
                    f"{self._directory}: offsets {found.log_end_offset} to {state.log_end_offset}, which "
                    "were not flushed, are lost"
                )
            return found
        except KafkaStorageError as error:
            self._damaged.append(str(error))
            return state

    def _truncated(self, state: LogState, first: int) -> LogState:
        log, files, directory = self._log, self._files, self._directory
        views = log.segments.views_from(state, log.segments.bases(state), first)
        trusting = state._replace(recovery_point=0, log_start_offset=first)
        damage = first_damage(files, directory, views, trusting, first)
        if damage is None:
            return state
        self.loses = True
        after = state_ending_at(log.segments, state, *damage[:3])
        after = after._replace(
            sequence=state.sequence + 1,
            recovery_point=min(state.recovery_point, after.log_end_offset),
        )
        self._do(
            f"{segment_at(directory, damage.base_offset).log} is shorter than recorded: the log "
            f"ends at offset {after.log_end_offset} instead of {state.log_end_offset}",
            partial(log.write_state, after, flush=True),
            partial(log.discard_unrecorded, after, thorough=True),
        )
        return after

    # A state that is lost.

    def _rebuilt(self, known: LogState | None) -> LogState:
        self.loses = True
        files, directory = self._files, self._directory
        names = files.list(directory)
        bases = [base for base in map(base_offset_of, names) if base is not None]
        state = self._from_batches(bases, known)
        start = state.log_start_offset if known is None else known.log_start_offset
        state = state._replace(
            sequence=0 if known is None else known.sequence + 1,
            log_start_offset=min(max(start, state.log_start_offset), state.log_end_offset),
            leader_epoch=max([known.leader_epoch if known else 0, *self._epochs_in(state, bases)]),
        )
        stable = max(state.last_stable_offset, state.log_start_offset)
        state = state._replace(last_stable_offset=stable)
        self._do(
            f"{directory}/kbatch.state is lost: it is rebuilt from the batches, offsets "
            f"{state.log_start_offset} to {state.log_end_offset}"
        )
        path, end = segment_at(directory, state.segment_base_offset).log, state.segment_size
        size = files.opened_size(path) if files.exists(path) else 0
        if size > end:
            aside = path.with_name(path.name + ".damaged")
            self._do(
                f"{path}: there is no valid batch from position {end} on; these {size - end} "
                f"bytes are moved to {aside.name}",
                partial(self._copy, path, end, size, aside),
                partial(files.truncate, path, end),
            )
        for name in names:
            base = base_offset_of(f"{name.partition('.')[0]}.log")
            if base is not None and base > state.segment_base_offset and name.count(".") == 1:
                self._do(
                    f"{directory / name} does not continue at offset {state.log_end_offset}: it is "
                    f"moved to {name}.damaged",
                    partial(files.rename, directory / name, directory / f"{name}.damaged"),
                )
        if not self._dry_run:
            held = (segment_at(directory, b).log for b in bases if b <= state.segment_base_offset)
            files.flush([*(path for path in held if files.exists(path)), directory])
            create_state(files, directory, state)
        return state._replace(sequence=state.sequence + 1)

    def _from_batches(self, bases: list[int], known: LogState | None) -> LogState:
        """Return a new log state made from the batches, up to the first invalid one or the end."""
        log, directory = self._log, self._directory
        if not bases:
            start = known.log_start_offset if known else 0
            return empty_state()._replace(
                log_start_offset=start, log_end_offset=start, high_watermark=start,
                last_stable_offset=start, segment_base_offset=start, recovery_point=start,
            )  # fmt: skip
        everything = empty_state()._replace(
            log_start_offset=bases[0],
            log_end_offset=UNKNOWN_OFFSET,
            high_watermark=LONG_MAX,
            segment_base_offset=bases[-1],
            segment_size=self._files.opened_size(segment_at(directory, bases[-1]).log),
        )
        views = log.segments.views_from(everything, bases, bases[0])
        damage = first_damage(self._files, directory, views, everything, bases[0])
        assert damage is not None, "no log ends at an offset below all others"
        if (damage.base_offset, damage.position) != (bases[-1], everything.segment_size):
            self._damaged.append(f"{damage.error}; the log ends there")
        after = state_ending_at(log.segments, everything, *damage[:3])
        return after._replace(recovery_point=after.log_end_offset)

    def _epochs_in(self, state: LogState, bases: list[int]) -> list[int]:
        with contextlib.suppress(FileNotFoundError, KafkaStorageError):
            return [epoch for epoch, _ in read_leader_epochs(self._files, self._directory)]
        views = self._log.segments.views_from(state, bases, 0)
        return [epoch for epoch, _ in epochs_of(self._files, views).entries]

    def _copy(self, source: Path, position: int, end: int, target: Path) -> None:
        self._files.remove(target)
        for at in range(position, end, _COPY_BYTES):
            data = self._files.read(source, at, min(_COPY_BYTES, end - at))
            self._files.write(target, at - position, data)

    # What is rebuilt from the batches.

    def _check_indexes(self, state: LogState) -> LogState:
        """Check the log's indexes against its batches, and rebuild wrong ones; return the new log state.

        An entry is right if its batch is there, whatever index.interval.bytes was when it was made.
        """
        log, files, after = self._log, self._files, state
        going = retention.being_deleted(log, state, now_ms())
        for view in log.segments.views_from(state, self._bases(state), 0):
            if view.base_offset in going:
                continue
            active = view.base_offset == state.segment_base_offset
            made = functools.cache(partial(self._indexed, view, rolled=not active))
            try:
                every = made(0)
            except (CorruptRecordError, KafkaStorageError):
                continue  # reported before; an index is no help there
            sizes = (state.index_size, state.time_index_size) if active else (None, None)
            wrong = [
                self._is_wrong(view.segment.offset_index, sizes[0], every.index, _INDEX_ENTRY),
                self._is_wrong(view.segment.time_index, sizes[1], every.time_index, _TIME_ENTRY),
            ]
            if not active and not wrong[1]:
                # The last entry of a rolled segment has its largest time.
                last = every.time_index[-_TIME_ENTRY.itemsize :]
                if not files.read(view.segment.time_index).endswith(last):
                    wrong[1] = _NOT_OF_BATCHES
            if not any(wrong):
                continue
            rebuilt = made(log.config.index_interval_bytes)
            contents = rebuilt.index, rebuilt.time_index
            for path, what, content in zip(view.segment.paths[1:], wrong, contents, strict=True):
                if what:
                    rebuild = partial(files.replace, path, bytes(content))
                    self._do(f"{path} {what}: it is rebuilt", rebuild)
            if active:
                after = state._replace(
                    sequence=state.sequence + 1,
                    index_size=len(rebuilt.index) if wrong[0] else state.index_size,
                    time_index_size=len(rebuilt.time_index) if wrong[1] else state.time_index_size,
                    bytes_since_index_entry=(
                        rebuilt.bytes_since_entry if wrong[0] else state.bytes_since_index_entry
                    ),
                )
                if after._replace(sequence=state.sequence) == state:
                    after = state
                elif not self._dry_run:
                    log.write_state(after, flush=True)
        return after

    def _indexed(self, view: SegmentView, interval_bytes: int, *, rolled: bool) -> SegmentIndexer:
        return indexed(self._files, view, interval_bytes=interval_bytes, rolled=rolled)

    def _is_wrong(
        self, path: Path, size: int | None, every: bytearray, entry: np.dtype[np.void]
    ) -> str:
        """Return what is wrong with an index file, given every entry that it may have; "" if nothing is."""
        if not self._files.exists(path):
            return "is missing"
        content = self._files.read(path, 0, size)
        if len(content) % entry.itemsize or (size is not None and len(content) < size):
            return _NOT_OF_BATCHES
        found, possible = np.frombuffer(content, entry), np.frombuffer(every, entry)
        # Both ascend by their first field.
        at = np.searchsorted(possible["key"], found["key"])
        is_right = np.all(at < len(possible)) and np.all(np.diff(at) > 0)
        return "" if is_right and np.array_equal(possible[at], found) else _NOT_OF_BATCHES

    def _check_epochs(self, state: LogState) -> None:
        files, directory = self._files, self._directory
        what = "is missing"
        try:
            entries = read_leader_epochs(files, directory)
            # An epoch that starts at the end was written before its first batch and the state.
            is_empty = state.log_start_offset == state.log_end_offset
            if (entries or is_empty) and all(
                epoch <= state.leader_epoch or start >= state.log_end_offset
                for epoch, start in entries
            ):
                return
            what = f"has an epoch above {state.leader_epoch}, the log's" if entries else "is empty"
        except FileNotFoundError:
            pass
        except KafkaStorageError:
            what = "is damaged"
        views = self._log.segments.views_from(state, self._bases(state), 0)
        found = epochs_of(files, views, highest=state.leader_epoch)
        self._damaged += [
            f"{path}: the batch at offset {offset} has leader epoch {epoch}, which does not fit its "
            "neighbours; it is left as it is, and reading it is an error"
            for path, offset, epoch in found.doubtful
        ]
        epochs = found.entries or [(state.leader_epoch, state.log_start_offset)]
        self._do(
            f"{directory / LEADER_EPOCHS} {what}: it is rebuilt from the batches",
            partial(write_leader_epochs, files, directory, epochs),
        )

    def _check_metadata(self, topic_id: str) -> None:
        files, directory = self._files, self._directory
        what = "is missing"
        try:
            if read_partition_metadata(files, directory) == topic_id:
                return
            what = "names another topic"
        except FileNotFoundError:
            pass
        except KafkaStorageError:
            what = "is damaged"
        self._do(
            f"{directory / PARTITION_METADATA} {what}: it is rebuilt",
            partial(write_partition_metadata, files, directory, topic_id),
        )

    def _bases(self, state: LogState) -> list[int]:
        names = self._files.list(self._directory)
        bases = [base for base in map(base_offset_of, names) if base is not None]
        return [base for base in bases if base <= state.segment_base_offset]


def is_lost(log: PartitionLog) -> bool:
    """Return True if a log's `kbatch.state` is missing or cannot be read."""
    try:
        read_state(log.files, log.directory)
    except (FileNotFoundError, CorruptRecordError):
        return True
    return False
