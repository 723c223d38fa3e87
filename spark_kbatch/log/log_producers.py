"""Which producers a log knows: those of all batches below its end.

They are loaded on first need, from the newest `.snapshot` and the batches behind it, and brought up to
date from the batches that came since the last look: of other processes, of commits, and ours where the
write of their state seemed to fail. `producer_state` tells what is known of each.

Source: Kafka storage/.../log/ProducerStateManager.java, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kbatch.log.producer_snapshot import (
    snapshot_offsets,
    snapshot_path,
    stray_snapshots,
    write_snapshot,
)
from spark_kbatch.log.producer_state import ProducerStates
from spark_kbatch.log.replay import Place, producer_batches, rebuild, replay
from spark_kbatch.log.state import LogState

if TYPE_CHECKING:
    from spark_kbatch.log.partition_log import PartitionLog


class LogProducers:
    """Of one log; guarded by the partition's lock."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        # Of the batches below the end of this state; None until somebody needs them.
        self.states = ProducerStates(log.topic_partition)
        self._as_of: LogState | None = None

    def read(self, state: LogState, now_ms: int) -> None:
        """Know the producers of all batches that `state` shows."""
        known = self._as_of
        # What is cut off as another leader has it comes again with that leader's epoch.
        if (
            known is None
            or known.log_end_offset > state.log_end_offset
            or known.leader_epoch != state.leader_epoch
        ):
            self.states = self._load(state, now_ms)
        elif known.log_end_offset < state.log_end_offset:
            first = known.segment_base_offset
            for _, header, marker in producer_batches(
                self._log.files,
                self._log.extents(state, first),
                known.log_end_offset,
                Place(first, known.segment_size),
            ):
                replay(self.states, header, marker, now_ms)
        self.states.remove_expired(now_ms)
        self.are_as_of(state)

    def are_known(self, state: LogState) -> bool:
        """Whether they are those of all batches that `state` shows."""
        return self._as_of is not None and self._as_of.log_end_offset == state.log_end_offset

    def are_as_of(self, state: LogState) -> None:
        """Take note that `states` has all batches that `state` shows."""
        self._as_of = state
        self.states.forget_ended(state.high_watermark)

    def high_watermark_moved(self, state: LogState) -> None:
        """Take note of it, where the producers of this log are known."""
        if self.are_known(state):
            self.are_as_of(state)

    def forget(self) -> None:
        """Know of no batch: for who has taken some out of the log, or does not know whether."""
        self.states = ProducerStates(self._log.topic_partition)
        self._as_of = None

    def last_stable_offset(self, state: LogState, now_ms: int) -> int:
        """Where the first transaction begins that is open in a log of this state, or unstable.

        From the batches, whatever is remembered; nothing is written.
        """
        states = self._rebuilt(state, state.log_end_offset, now_ms)
        return states.last_stable_offset(state.high_watermark, state.log_start_offset)

    def _load(self, state: LogState, now_ms: int) -> ProducerStates:
        """From the log. Where commits have rolled segments, which write no snapshots, one is written.

        Those of segments that are gone are removed.
        """
        files, directory, active = self._log.files, self._log.directory, state.segment_base_offset
        if active > state.log_start_offset and not files.exists(snapshot_path(directory, active)):
            producers = self._rebuilt(state, active, now_ms)
            write_snapshot(files, directory, active, producers.entries)
        found = snapshot_offsets(files, directory)
        for offset in stray_snapshots(found, self._log.segments(state)):
            files.remove(snapshot_path(directory, offset))
        return self._rebuilt(state, state.log_end_offset, now_ms)

    def _rebuilt(self, state: LogState, log_end_offset: int, now_ms: int) -> ProducerStates:
        """The producers as of an offset.

        A snapshot counts only where a segment begins that the state shows: one that a dead writer
        left is at an offset that came to hold other batches. Nor does it above the high watermark:
        it does not say of which transactions the end is not yet sure.
        """
        bases = self._log.segments(state)
        return rebuild(
            self._log.files,
            self._log.directory,
            self._log.topic_partition,
            self._log.extents(state),
            log_start_offset=state.log_start_offset,
            log_end_offset=log_end_offset,
            now_ms=now_ms,
            snapshots={base for base in bases if base <= state.high_watermark},
        ).states
