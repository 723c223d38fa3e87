"""How a follower becomes equal to its leader: cut to what both have, then given what it lacks.

There is no fetcher thread: whoever holds the partition's lock does this, so nothing changes meanwhile.

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
from spark_kbatch.log.state import LogState
from spark_kbatch.model import ReadRange

_COPY_BYTES = 8 << 20


class LeaderError(Exception):
    """What is wanted cannot be had from the leader; carries why."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class ReplicaFetcher:
    """What all followers take from one leader, as it stands now.

    Every method raises LeaderError for what is wrong with the leader; any other OSError or
    KBatchError is the follower's.
    """

    def __init__(self, log: PartitionLog, state: LogState, now_ms: Callable[[], int]) -> None:
        self._log, self._state, self._now_ms = log, state, now_ms
        self._piece, self._piece_offset = memoryview(b""), -1  # what was read last

    def agree(self, follower: PartitionLog) -> LogState:
        """The follower's state, after it was cut to what the leader has, too."""
        state, leader = follower.state(), self._state
        if state.log_end_offset < leader.log_start_offset:
            return truncation.truncate_fully_and_start_at(
                follower, state, leader.log_start_offset, now_ms=self._now_ms()
            )
        if state.leader_epoch == leader.leader_epoch:
            if state.log_end_offset <= leader.log_end_offset:
                return state
        try:
            theirs = LeaderEpochCache.read(self._log.files, self._log.directory)
        except (OSError, KBatchError) as error:
            raise LeaderError(error) from error
        while True:
            state = follower.discard_unrecorded(state)
            ours = LeaderEpochCache.read(follower.files, follower.directory)
            if ours.latest_epoch < 0:
                # It has had no batch with one: what was committed is the same in all logs.
                end = min(state.high_watermark, leader.log_end_offset)
                if end < state.log_end_offset:
                    state = truncation.truncate_to(follower, state, end, now_ms=self._now_ms())
                return state
            epoch, end = theirs.end_offset_for(ours.latest_epoch, leader.log_end_offset)
            if epoch < 0:
                raise KafkaStorageError(
                    f"{follower.directory} knows leader epoch {ours.latest_epoch}, which its leader "
                    "does not"
                )
            if epoch < ours.latest_epoch:
                end = min(end, ours.end_offset_for(epoch, state.log_end_offset).start_offset)
            if end >= state.log_end_offset:
                # An epoch that began at its end, and has no batch, may be one of nobody else.
                ours.truncate_from_end(state.log_end_offset)
                return state
            state = truncation.truncate_to(follower, state, end, now_ms=self._now_ms())

    def make_anew(self, follower: PartitionLog, topic_id: str) -> LogState:
        """The state of a follower that has nothing, and begins where the leader does."""
        follower.create(topic_id)
        follower.files.flush([follower.directory.parent])
        follower.forget_batches()
        state, start_offset = follower.state(), self._state.log_start_offset
        if start_offset == 0:
            return state
        return truncation.truncate_fully_and_start_at(
            follower, state, start_offset, now_ms=self._now_ms()
        )

    def lacks(self, state: LogState) -> bool:
        """Whether a follower that agrees lacks something, or has what the leader has deleted."""
        leader = self._state
        return (
            state.log_end_offset < leader.log_end_offset
            or state.log_start_offset < leader.log_start_offset
        )

    def fill_up(
        self, follower: PartitionLog, state: LogState, *, bytes_max: int | None, flush: bool
    ) -> Callable[[], LogState]:
        """Give a follower that lacks something what it lacks, and delete what the leader has deleted.

        Args:
            bytes_max: about how much, where that is limited.

        Returns:
            What shows the last of it, and gives the follower's state then. With `flush` it is nearly
            all waiting for a disk, so it may have a thread of its own.
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
                # A copy is checked before it is written; then no file is to blame but the leader's.
                raise error if error.path else LeaderError(error) from error

        def finish() -> LogState:
            after = show()
            if after.log_start_offset < leader.log_start_offset:
                self.delete(follower, after)
            return after

        return finish

    def delete(self, follower: PartitionLog, state: LogState) -> None:
        """Let a follower begin where the leader does."""
        leader, now_ms = self._state, self._now_ms()
        if state.high_watermark < leader.log_start_offset:
            state = follower.move_high_watermark(
                state, leader.high_watermark, flush=True, now_ms=now_ms
            )
        retention.delete_records(follower, state, leader.log_start_offset, now_ms)

    def _read(self, offset: int) -> memoryview:
        """Whole batches from `offset` on; once for all that lack the same."""
        if self._piece_offset != offset:
            seen = self._state._replace(high_watermark=self._state.log_end_offset)
            try:
                self._piece = self._log.read(seen, ReadRange(offset, _COPY_BYTES)).data
            except (OSError, KBatchError) as error:
                raise LeaderError(error) from error
            self._piece_offset = offset
        return self._piece
