"""The producer state of one log, loaded when first needed and updated from the batches below the log's end.

They are loaded when first needed, and then updated from the batches that were appended since: by other
processes, by commits, and by us if the write of the state seemed to fail. `state` says what is known of
each. They are loaded from

    kbatch.producers      written after every thousand batches, as of the recorded end
    NNN.snapshot          written when a segment is rolled, as of its start; brokers read it, too
    the batches           from the newer of these on, or from the log start

So the first append of a process reads at most a thousand batch headers, unless others wrote without
loading the producers, as commits and producers without idempotence do. Then the first append reads theirs,
and saves what it found so that the next need not. Nothing is written when a producer is closed, so a
process that is killed loses nothing.

Source: Kafka storage/.../log/ProducerStateManager.java, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

import collections
import functools
import logging

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.log.batch_headers import indexed_batch, walk_batch_headers
from spark_kbatch.log.producers import saved as saved_producers
from spark_kbatch.log.producers.replay import BatchPosition, producer_batches, rebuild, replay
from spark_kbatch.log.producers.saved import SavedProducers
from spark_kbatch.log.producers.snapshot import (
    snapshot_offsets,
    snapshot_path,
    stray_snapshots,
    write_snapshot,
)
from spark_kbatch.log.producers.state import ProducerStates
from spark_kbatch.log.segment import LogSegments, segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD, BatchHeader

logger = logging.getLogger(__name__)

SAVED_AFTER_BATCHES = 1000


class LogProducers:
    """The producer state of one log: it detects duplicate batches and tracks open transactions.

    Guarded by the partition's lock.
    """

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self.states = ProducerStates(segments.topic_partition)
        # `states` has all batches that this state shows; None: not loaded.
        self._as_of: LogState | None = None
        self._unsaved = 0  # batches, or records where those were not counted, since the last save

    def read(self, state: LogState, now_ms: int) -> None:
        """Load the producer state, or update it with the batches appended since, up to the end in `state`."""
        known = self._as_of
        # Truncated batches are refetched under the new leader's epoch.
        if (
            known is None
            or known.log_end_offset > state.log_end_offset
            or known.leader_epoch != state.leader_epoch
        ):
            self.states = self._load(state, now_ms)
        elif known.log_end_offset < state.log_end_offset:
            first = known.segment_base_offset
            for _, header, marker in producer_batches(
                self._segments.files,
                self._segments.segments_from(state, first),
                known.log_end_offset,
                BatchPosition(first, known.segment_size),
            ):
                replay(self.states, header, marker, now_ms)
            self._unsaved += state.log_end_offset - known.log_end_offset
        self.states.remove_expired(now_ms)
        self.are_as_of(state)

    def are_known(self, state: LogState) -> bool:
        """Return True if the loaded producer state covers exactly the batches in the log's `state`."""
        known = self._as_of
        # Truncated batches are refetched under the new leader's epoch: the log may have grown to the same end again.
        return (
            known is not None
            and known.log_end_offset == state.log_end_offset
            and known.leader_epoch == state.leader_epoch
        )

    def are_as_of(self, state: LogState) -> None:
        """Record that the loaded producer state covers all batches in the log's `state`."""
        self._as_of = state
        self.states.forget_ended(state.high_watermark)

    def appended(self, state: LogState, batches: int) -> None:
        """Record an append that the producer state covers, and save that state about every 1000 batches."""
        self.are_as_of(state)
        self._unsaved += batches
        # Writing takes time for each producer, so many producers are saved less often.
        if self._unsaved >= max(SAVED_AFTER_BATCHES, len(self.states)):
            self._save(state)

    def high_watermark_moved(self, state: LogState) -> None:
        """Record a move of the log's high watermark, which may make ended transactions stable.

        Nothing happens if the producers are not loaded.
        """
        if self.are_known(state):
            self.are_as_of(state)

    def forget(self) -> None:
        """Drop the loaded producer state after batches were, or may have been, removed from the log.

        The next read loads it.
        """
        self.states = ProducerStates(self._segments.topic_partition)
        self._as_of = None

    def last_stable_offset(self, state: LogState) -> int:
        """Compute the last stable offset of a log in this state by reading its batches; takes no lock.

        It is read from the batches, whatever is cached; nothing is written. Where they are damaged it is
        as recorded.
        """
        try:
            # At no time, as a producer with an open transaction does not expire.
            states = self.states_of(state, 0)
        except (CorruptRecordError, KafkaStorageError, FileNotFoundError):
            return min(state.last_stable_offset, state.high_watermark)
        return states.last_stable_offset(state.high_watermark, state.log_start_offset)

    def states_of(self, state: LogState, now_ms: int) -> ProducerStates:
        """Return the producers of a log in this recorded state, as its batches say; no lock is needed."""
        return self._rebuilt(state, state.log_end_offset, now_ms, self._saved(state))

    def _load(self, state: LogState, now_ms: int) -> ProducerStates:
        """Load the producer state, and write a snapshot for the active segment if it has none.

        Rolls by commits do not write one. Snapshots of segments that are gone are removed.
        """
        files, directory, active = (
            self._segments.files,
            self._segments.directory,
            state.segment_base_offset,
        )
        saved = self._saved(state)
        if saved is not None and saved.segment_base_offset == active:
            self._unsaved = state.log_end_offset - saved.offset
            return self._rebuilt(state, state.log_end_offset, now_ms, saved)
        self._unsaved = state.log_end_offset - active
        if active > state.log_start_offset and not files.exists(snapshot_path(directory, active)):
            producers = self._rebuilt(state, active, now_ms, saved)
            write_snapshot(files, directory, active, producers.entries)
        found = snapshot_offsets(files, directory)
        for offset in stray_snapshots(found, self._segments.bases(state)):
            files.remove(snapshot_path(directory, offset))
        return self._rebuilt(state, state.log_end_offset, now_ms, saved)

    def _rebuilt(
        self, state: LogState, log_end_offset: int, now_ms: int, saved: SavedProducers | None
    ) -> ProducerStates:
        """Return the producer state as of `log_end_offset`, rebuilt from saved state and later batches.

        A snapshot counts only if a segment that the state shows starts there: one that a dead writer left
        may be at an offset that now holds other batches. Nor does it count above the high watermark: it
        does not say which transactions have ended but are not stable yet.
        """
        if saved is not None and saved.offset <= log_end_offset:
            # No snapshot is newer than what was saved in the active segment.
            first = saved.segment_base_offset
            later = [] if first == state.segment_base_offset else self._segments.bases(state)
            start = BatchPosition(first, saved.segment_size)
        else:
            saved, first, later, start = None, 0, self._segments.bases(state), None
        return rebuild(
            self._segments.files,
            self._segments.directory,
            self._segments.topic_partition,
            functools.partial(self._segments.segments_from, state),
            log_start_offset=state.log_start_offset,
            log_end_offset=log_end_offset,
            now_ms=now_ms,
            snapshots={base for base in later if first < base <= state.high_watermark},
            saved=None if saved is None or start is None else (saved, start),
        ).states

    def _save(self, state: LogState) -> None:
        """Save the producer state as of the log's recorded end in `kbatch.producers`.

        A failure only costs a replay.
        """
        self._unsaved = 0
        files, directory = self._segments.files, self._segments.directory
        try:
            last = self._last_batch(state)
            if last is not None:
                position, header = last
                path = segment_at(directory, state.segment_base_offset).log
                saved = SavedProducers(
                    state.log_end_offset,
                    state.segment_base_offset,
                    state.segment_size,
                    position,
                    files.read(path, position, RECORD_BATCH_OVERHEAD),
                    self.states.entries,
                )
                if header.next_offset == state.log_end_offset:
                    saved_producers.write(files, directory, saved)
        except (OSError, CorruptRecordError, KafkaStorageError) as error:
            logger.info(
                "cannot save the producers of %s: %s", self._segments.topic_partition, error
            )

    def _last_batch(self, state: LogState) -> tuple[int, BatchHeader] | None:
        """Return the position and header of the active segment's last batch; None if it is empty."""
        view = self._segments.active(state)
        if not view.size_in_bytes:
            return None
        files, path = self._segments.files, view.log
        with files.opened(path) as descriptor:
            last = indexed_batch(files, descriptor, view, view.next_offset - 1)
            walked = walk_batch_headers(files, descriptor, path, last[0], view.size_in_bytes)
            return collections.deque(walked, maxlen=1).pop()

    def _saved(self, state: LogState) -> SavedProducers | None:
        """Return the content of `kbatch.producers`, if it was made from batches that the log still has."""
        files, directory = self._segments.files, self._segments.directory
        saved = saved_producers.read(files, directory)
        if saved is None or not (
            state.log_start_offset < saved.offset <= min(state.high_watermark, state.log_end_offset)
            and 0 <= saved.segment_base_offset <= state.segment_base_offset
        ):
            return None
        path = segment_at(directory, saved.segment_base_offset).log
        (size,) = self._segments.sizes(state, [saved.segment_base_offset])
        if not 0 <= saved.batch_position < saved.segment_size <= size:
            return None
        found = files.read(path, saved.batch_position, RECORD_BATCH_OVERHEAD)
        return saved if found == saved.batch_header else None
