"""Replication: a follower is truncated to what it shares with its leader, then copies what it lacks.

There is no fetcher thread: the process that holds the partition's lock does this, so nothing changes
meanwhile.

Source: Kafka core/.../server/AbstractFetcherThread.scala, ReplicaFetcherThread.scala.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, KBatchError
from spark_kbatch.log import retention, truncation
from spark_kbatch.log.append import append_as_follower
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState, has_more
from spark_kbatch.model import ReadRange
from spark_kbatch.record.header import walk
from spark_kbatch.record.legacy import first_offset

_COPY_BYTES = 8 << 20


class LeaderError(Exception):
    """A failure of the leader, not of the follower, while a follower catches up; carries its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class ReplicaFetcher:
    """A fetcher that makes the logs of followers equal to their leader's, as it is now.

    Every method raises LeaderError for a failure of the leader; any other OSError or KBatchError is the
    follower's.
    """

    def __init__(self, log: PartitionLog, state: LogState, now_ms: Callable[[], int]) -> None:
        self._log, self._state, self._now_ms = log, state, now_ms
        self._piece, self._piece_offset = memoryview(b""), -1  # what was read last

    def truncate(self, follower: PartitionLog, state: LogState, *, is_in_sync: bool) -> LogState:
        """Truncate a follower's log, in this state, to where it agrees with the leader's; return the state then.

        If it ends before the leader's log start then, or at one within a batch, it starts over, as does one that
        starts after the leader, and is out of sync or has another history. One that is in sync and has more than
        the leader is left alone: the leader lost records, and has to follow.
        """
        leader = self._state
        if is_in_sync and has_more(state, leader):
            raise LeaderError(
                KafkaStorageError(
                    f"{self._log.directory} leads and ends at offset {leader.log_end_offset}, but "
                    f"{follower.directory} is in sync and ends at {state.log_end_offset}: what the leader "
                    "lacks was lost there, as from an older image of its disk"
                )
            )
        if state.log_start_offset > leader.log_start_offset and not (
            is_in_sync
            and self._epochs().reaches(
                state.leader_epoch, state.log_start_offset, leader.log_end_offset
            )
        ):
            # What it deleted without the leader, which was elected unclean, says nothing of the leader's records.
            # A member may be an image from before that.
            return self._started_over(follower, state)
        is_equal = (
            state.leader_epoch == leader.leader_epoch
            and state.log_end_offset <= leader.log_end_offset
        )
        if state.log_end_offset >= leader.log_start_offset and not is_equal:
            state = self._truncated(follower, state)
        if self._ends_below_first_batch(state):
            state = self._started_over(follower, state)
        return state

    def _ends_below_first_batch(self, state: LogState) -> bool:
        """Return True if a follower's log ends below the leader's log start, or at one within a batch.

        The leader's first batch then does not fit to its end.
        """
        end, start = state.log_end_offset, self._state.log_start_offset
        return end < start or (end == start > 0 and self._first_base_offset() < end)

    def _truncated(self, follower: PartitionLog, state: LogState) -> LogState:
        leader, theirs = self._state, self._epochs()
        state = follower.discard_unrecorded(state)
        ours = LeaderEpochCache.read(follower.files, follower.directory)
        start = max(state.log_start_offset, leader.log_start_offset)
        end = ours.agree_until(theirs, start, min(state.log_end_offset, leader.log_end_offset))
        state = truncation.truncate_to(follower, state, end, now_ms=self._now_ms())
        # Its own may have one more that started at its end, without a batch, and is in no other log.
        LeaderEpochCache.read(follower.files, follower.directory).take_over(
            theirs, state.log_end_offset
        )
        return state

    def recreate(self, follower: PartitionLog, topic_id: str) -> LogState:
        """Recreate a follower's log, empty and starting at the leader's log start; return its state."""
        follower.create(topic_id)
        follower.files.flush([follower.directory.parent])
        follower.forget_batches()
        state = follower.state()
        return self._started_over(follower, state) if self._state.log_start_offset > 0 else state

    def _started_over(self, follower: PartitionLog, state: LogState) -> LogState:
        """Empty a follower's log, for the batch that holds the leader's log start to be its first.

        It gets the leader's epochs: its own, of batches that are gone, would say that it has to be
        truncated below its start. Its log start follows once it has that batch (`catch_up`).
        """
        offset = self._first_base_offset()
        epochs = [entry for entry in self._epochs().entries if entry.start_offset <= offset]
        return truncation.truncate_fully_and_start_at(
            follower, state, offset, now_ms=self._now_ms(), epochs=epochs
        )

    def _first_base_offset(self) -> int:
        """Return where the leader's batch starts that holds its log start, or its end if it is empty."""
        start, end = self._state.log_start_offset, self._state.log_end_offset
        if start == end:
            return end
        data = self._read(start)
        _, header = next(walk(data))
        return first_offset(data, 0, header)

    def _epochs(self) -> LeaderEpochCache:
        try:
            return LeaderEpochCache.read(self._log.files, self._log.directory)
        except (OSError, KBatchError) as error:
            raise LeaderError(error) from error

    def lacks(self, state: LogState) -> bool:
        """Return True if a truncated follower's log ends or starts before the leader's."""
        leader = self._state
        return (
            state.log_end_offset < leader.log_end_offset
            or state.log_start_offset < leader.log_start_offset
        )

    def catch_up(
        self, follower: PartitionLog, state: LogState, *, bytes_max: int | None, flush: bool
    ) -> Callable[[], LogState]:
        """Copy missing batches to a truncated follower, and delete records that the leader has deleted.

        Args:
            follower: its log.
            state: of its log.
            bytes_max: about how much to copy; None for everything.
            flush: whether it is on disk in the end.

        Returns:
            A function that makes the last of it visible and returns the follower's state. With `flush`
            it mostly waits for a disk, so it may run in a thread of its own.
        """
        leader, copied_bytes = self._state, 0
        show: Callable[[], LogState] = lambda: state  # noqa: E731
        end_offset = state.log_end_offset
        while end_offset < leader.log_end_offset and copied_bytes < (bytes_max or math.inf):
            state = show()
            data = self._read(end_offset)
            copied_bytes += len(data)
            try:
                end_offset, show = append_as_follower(
                    follower, state, data,
                    high_watermark=leader.high_watermark, flush=flush, now_ms=self._now_ms(),
                    prepare_offset=leader.prepare_offset,
                )  # fmt: skip
            except CorruptRecordError as error:
                # A copy is checked before it is written: without a path the leader's file is the damaged one.
                raise error if error.path else LeaderError(error) from error

        def finish() -> LogState:
            after = show()
            if after.log_start_offset < leader.log_start_offset:
                start, end = leader.log_start_offset, leader.high_watermark
                delete_on_follower(follower, after, start, end, self._now_ms())
            return after

        return finish

    def _read(self, offset: int) -> memoryview:
        """Return whole batches of the leader from `offset` on, read once for all followers that need them."""
        if self._piece_offset != offset:
            # A batch may begin before the log start.
            seen = self._state._replace(
                high_watermark=self._state.log_end_offset,
                log_start_offset=min(offset, self._state.log_start_offset),
            )
            try:
                self._piece = self._log.read(seen, ReadRange(offset, _COPY_BYTES)).data
            except (OSError, KBatchError) as error:
                raise LeaderError(error) from error
            self._piece_offset = offset
        return self._piece


def delete_on_follower(
    follower: PartitionLog, state: LogState, offset: int, high_watermark: int, now_ms: int
) -> None:
    """Delete a follower's records below `offset`, which is at most its leader's high watermark."""
    if state.high_watermark < offset:
        state = follower.move_high_watermark(state, high_watermark, flush=True, now_ms=now_ms)
    retention.delete_records(follower, state, offset, now_ms)
