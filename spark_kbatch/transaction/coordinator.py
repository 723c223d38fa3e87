"""Place, prepare, flip, complete; roll forward. `transaction/__init__` tells the protocol.

One commit at a time: whoever commits holds the commit lock, and first rolls forward what a
committer that died has left. The partition locks keep other writers away from the logs meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.config import STAGING_RETENTION_MS
from spark_kbatch.errors import CommitError, KafkaStorageError, KBatchError, LogDirLockedError
from spark_kbatch.log.appender import LogAppender
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.record import plain
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.metadata import Probe
from spark_kbatch.transaction.messages import (
    COMPLETE_COMMIT,
    NO_TRANSACTION_SEQUENCE,
    PREPARE_COMMIT,
    TransactionValue,
    pack_key,
    pack_value,
)
from spark_kbatch.transaction.sequences import Sequences
from spark_kbatch.transaction.snapshot import TRANSACTION_STATE, Transaction, transactions
from spark_kbatch.transaction.staging import Extent, gone, remove_left_overs

logger = logging.getLogger(__name__)

NOTHING_VISIBLE = "nothing is visible"
COMMITTED = "the data is committed, the next writer finishes the work"
UNKNOWN = (
    "whether the data is committed is unknown: the deciding write failed; read the topic to see"
)


class Prepared(NamedTuple):
    """States of __transaction_state: with PrepareCommit, and with CompleteCommit."""

    decided: LogState
    completed: LogState


class Coordinator:
    """Publishes staged data. Thread-safe: the commit lock serialises."""

    def __init__(
        self,
        manager: ReplicaManager,
        now_ms: Callable[[], int],
        *,
        adopt_min_bytes: int,
        flush: bool,
        staging_retention_ms: int = STAGING_RETENTION_MS,
    ) -> None:
        self._manager, self._now_ms = manager, now_ms
        self._adopt_min_bytes, self._flush = adopt_min_bytes, flush
        self._staging_dir = manager.metadata.staging_dir
        self._staging_retention_ms = staging_retention_ms
        self._sequences = Sequences(manager, flush=flush)

    def commit(
        self,
        extents: Sequence[Extent],
        *,
        transactional_id: str,
        sequence: int = NO_TRANSACTION_SEQUENCE,
    ) -> bool:
        """Make all extents visible, in their order within each partition, or none.

        Then delete what the topics' retention says.

        Args:
            sequence: of the transaction within its id, 0 or more, growing. One that is not above
                the last committed one comes again: it is dropped, with a warning.

        Returns:
            Whether it was not dropped.

        Raises:
            CommitError: its outcome says whether the data is visible.
            LogDirLockedError: a broker is in; nothing is visible.
        """
        if not extents:
            return True
        by_partition: dict[TopicPartition, list[Extent]] = {}
        for extent in extents:
            by_partition.setdefault(extent.topic_partition, []).append(extent)
        outcome = NOTHING_VISIBLE
        try:
            with self._manager.locks.commit(), self._manager.writing():
                self._roll_forward_locked()
                if self._is_duplicate(transactional_id, sequence):
                    return False
                with self._manager.locks.partitions(by_partition):
                    self._ensure_unchanged(by_partition)
                    now_ms = self._now_ms()
                    states = {
                        topic_partition: self._place(topic_partition, pieces, now_ms)
                        for topic_partition, pieces in by_partition.items()
                    }
                    prepared = self._prepare(transactional_id, sequence, states)
                    outcome = UNKNOWN
                    decided = self._decide(prepared)
                    outcome = COMMITTED
                    self._flip(states, flush=self._flush)
                    if sequence != NO_TRANSACTION_SEQUENCE:
                        offset = prepared.decided.prepare_offset
                        self._sequences.note(transactional_id, sequence, offset)
                    self._complete(prepared, decided)
        except LogDirLockedError:
            raise
        except (OSError, KBatchError) as error:
            raise CommitError(outcome, str(error)) from error
        self._delete_old_segments(by_partition)
        return True

    def pending(self) -> Mapping[TopicPartition, LogState]:
        """What a commit that is decided and not complete will have written, by partition.

        To one who holds a partition's lock and finds a higher sequence number here than in the log,
        it says that the committer is dead.
        """
        state = self._manager.state(TRANSACTION_STATE)
        return self._pending(state).value.states if state.has_pending_commit else {}

    def roll_forward(self) -> None:
        """Finish the commit that a dead committer decided, if there is one."""
        with self._manager.locks.commit(), self._manager.writing():
            self._roll_forward_locked()

    def discard(self, extents: Sequence[Extent], transaction_dir: Path) -> None:
        """Remove the attempts that staged these extents; the directory too, where nothing is left.

        After a commit what they hold is placed; after an abort nobody wants it. Attempts that are
        not named may still be writing, so they stay. What cannot be removed stays as well: the
        commit has succeeded or failed before, whatever happens here. What jobs have left that are
        long dead is removed too.
        """
        files = self._manager.files
        try:
            for attempt in sorted({str(Path(extent.file).parent) for extent in extents}):
                files.remove_dir(self._staging_dir / attempt)
            if files.exists(transaction_dir) and {*files.list(transaction_dir)} <= {Probe.NAME}:
                files.remove_dir(transaction_dir)
            for left_over in remove_left_overs(
                files,
                self._staging_dir,
                retention_ms=self._staging_retention_ms,
                now_ms=self._now_ms(),
            ):
                logger.warning(
                    "%d bytes are removed that job %s has staged, which nobody has written to for "
                    "%.1f days",
                    left_over.size_in_bytes, left_over.transaction, left_over.age_ms / 86_400_000,
                )  # fmt: skip
        except OSError as error:
            logger.warning("staged files in %s are left behind: %s", self._staging_dir, error)

    def _delete_old_segments(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Of topics that have retention. What goes wrong is not the commit's, and comes up again."""
        try:
            limited = [tp for tp in topic_partitions if self._manager.log(tp).config.has_retention]
            if limited:
                self._manager.delete_old_segments(limited, self)
        except (OSError, KBatchError) as error:
            logger.warning("old segments stay for now: %s", error)

    def _is_duplicate(self, transactional_id: str, sequence: int) -> bool:
        if sequence == NO_TRANSACTION_SEQUENCE:
            return False
        last = self._sequences.last(transactional_id)
        if sequence <= last:
            logger.warning(
                "transaction %d of %s is dropped: %d was committed, so this one comes again",
                sequence, transactional_id, last,
            )  # fmt: skip
        return sequence <= last

    def _ensure_unchanged(self, by_partition: Mapping[TopicPartition, list[Extent]]) -> None:
        for topic_partition, extents in by_partition.items():
            topic = self._manager.metadata.topic(topic_partition.topic)
            for extent in extents:
                if (extent.topic_id, extent.partition_count) != (topic.topic_id, topic.partitions):
                    raise KafkaStorageError(
                        f"topic {topic.name!r} was recreated or altered while the job ran: its id is "
                        f"{topic.topic_id} with {topic.partitions} partitions, the job wrote for "
                        f"{extent.topic_id} with {extent.partition_count}; run the job again"
                    )

    def _place(
        self, topic_partition: TopicPartition, extents: Sequence[Extent], now_ms: int
    ) -> LogState:
        """Put the extents behind the partition's recorded end; the state that would show them."""
        log = self._manager.log(topic_partition)
        state = log.cut(log.state())
        appender = LogAppender(log, state, now_ms=now_ms)
        for extent in extents:
            path = self._staging_dir / extent.file
            first_offset = appender.next_offset
            own_file = extent.position == 0 and path.name != "shared"
            try:
                if own_file and extent.size_in_bytes >= self._adopt_min_bytes:
                    appender.adopt(path, extent.size_in_bytes)
                else:
                    appender.append_extent(path, extent.position, extent.size_in_bytes)
            except FileNotFoundError:
                if self._manager.files.exists(path):
                    raise
                raise gone(path) from None
            placed = appender.next_offset - first_offset
            if placed != extent.records_count:
                raise KafkaStorageError(
                    f"{path} holds {placed} records where the task wrote {extent.records_count}"
                )
        return appender.finish(flush=self._flush)

    def _prepare(
        self,
        transactional_id: str,
        sequence: int,
        states: Mapping[TopicPartition, LogState],
    ) -> Prepared:
        """Put PrepareCommit and CompleteCommit behind the end of __transaction_state."""
        with self._manager.partition(TRANSACTION_STATE).leading_locked() as log:
            state = log.cut(log.state())
            now_ms = self._now_ms()
            appender = LogAppender(log, state, now_ms=now_ms)
            prepare = TransactionValue(PREPARE_COMMIT, sequence, states, now_ms)
            appender.append(self._message(transactional_id, prepare))
            decided = appender.finish(flush=False, prepare_offset=state.log_end_offset)
            complete = TransactionValue(COMPLETE_COMMIT, sequence, {}, now_ms)
            appender.append(self._message(transactional_id, complete))
            completed = appender.finish(flush=self._flush)
        if self._flush:
            decided = decided._replace(recovery_point=decided.log_end_offset)
        return Prepared(decided, completed)

    def _message(self, transactional_id: str, value: TransactionValue) -> bytearray:
        key = pack_key(transactional_id)
        return plain.encode([(key, pack_value(value))], value.last_update_ms)

    def _decide(self, prepared: Prepared) -> LogState:
        """The commit point: from the last write in here on every reader sees the data."""
        partition = self._manager.partition(TRANSACTION_STATE)
        return partition.publish_locked(prepared.decided, flush=self._flush)

    def _flip(self, states: Mapping[TopicPartition, LogState], *, flush: bool) -> None:
        """Write each state over a lower sequence number only, so that doing it again changes nothing."""
        for topic_partition, state in sorted(states.items()):
            log = self._manager.log(topic_partition)
            if log.state().sequence < state.sequence:
                log.write_state(state, flush=flush)

    def _complete(self, prepared: Prepared, decided: LogState) -> None:
        completed = prepared.completed._replace(sequence=decided.sequence + 1)
        partition = self._manager.partition(TRANSACTION_STATE)
        partition.publish_locked(completed, flush=self._flush)

    def _pending(self, state: LogState) -> Transaction:
        # It may lie above the high watermark: placed, and not copied to all replicas.
        written = state._replace(high_watermark=state.log_end_offset)
        return next(transactions(self._manager, written, state.prepare_offset))

    def _roll_forward_locked(self) -> None:
        partition = self._manager.partition(TRANSACTION_STATE)
        state = partition.ready_locked(flush=self._flush)
        if not state.has_pending_commit:
            return
        pending = self._pending(state)
        states = pending.value.states
        logger.warning(
            "finishing the commit of %s, whose committer died", ", ".join(map(str, sorted(states)))
        )
        # The committer may have died before the commit point was on disk. Were a flip there sooner, a
        # loss of power could leave the commit in this partition alone.
        with partition.leading_locked() as log:
            log.flush_state()
        with self._manager.locks.partitions(states):
            self._flip(states, flush=True)
        sequence = pending.value.sequence
        if sequence != NO_TRANSACTION_SEQUENCE:
            self._sequences.note(pending.transactional_id, sequence, state.prepare_offset)
        # CompleteCommit's bytes lie behind the end since before the commit point. They are written
        # over in place, not cut first, so that a full disk cannot stop this.
        now_ms = self._now_ms()
        with partition.leading_locked() as log:
            appender = LogAppender(log, state, now_ms=now_ms)
            complete = TransactionValue(COMPLETE_COMMIT, sequence, {}, now_ms)
            appender.append(self._message(pending.transactional_id, complete))
            completed = appender.finish(flush=self._flush)
        partition.publish_locked(completed, flush=self._flush)
