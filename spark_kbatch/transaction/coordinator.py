"""Place, prepare, flip, complete; roll forward. `transaction/__init__` tells the protocol.

One commit at a time: whoever commits holds the commit lock, and first rolls forward what a
committer that died has left. The partition locks keep other writers away from the logs meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.config import STAGING_RETENTION_MS, Topic
from spark_kbatch.errors import CommitError, KafkaStorageError, KBatchError, LogDirLockedError
from spark_kbatch.log import overwritten
from spark_kbatch.log.appender import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.record import plain
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.metadata import Probe
from spark_kbatch.transaction import rewriting
from spark_kbatch.transaction.history import COMMITS, NOBODY, Author, Commit, History, pack
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


class Overwrite(NamedTuple):
    """What a commit replaces: all that a topic holds."""

    topic: Topic  # as it was when the job began
    delete_delay_ms: int  # how long files stay, for ranges that were resolved before


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
        id_expiration_ms: int | None = None,
    ) -> None:
        """`id_expiration_ms`: how long an id that commits no more is kept; None for ever."""
        self._manager, self._now_ms = manager, now_ms
        self._adopt_min_bytes, self._flush = adopt_min_bytes, flush
        self._id_expiration_ms = id_expiration_ms
        self._staging_dir = manager.metadata.staging_dir
        self._staging_retention_ms = staging_retention_ms
        self._sequences = Sequences(manager, flush=flush)
        self._history = History(manager)

    def commit(
        self,
        extents: Sequence[Extent],
        *,
        transactional_id: str,
        sequence: int = NO_TRANSACTION_SEQUENCE,
        author: Author = NOBODY,
        overwrite: Overwrite | None = None,
    ) -> bool:
        """Make all extents visible, in their order within each partition, or none.

        Then delete what the topics' retention says, and what was overwritten long enough ago.

        Args:
            sequence: of the transaction within its id, 0 or more, growing. One that is not above
                the last committed one comes again: it is dropped, with a warning.
            author: for the history.
            overwrite: the topic that holds nothing but the extents afterwards; there may be none.

        Returns:
            Whether it was not dropped.

        Raises:
            CommitError: its outcome says whether the data is visible.
            LogDirLockedError: a broker is in; nothing is visible.
        """
        if not extents and overwrite is None:
            return True
        by_partition: dict[TopicPartition, list[Extent]] = {}
        if overwrite is not None:
            name, partitions = overwrite.topic.name, overwrite.topic.partitions
            by_partition = {TopicPartition(name, number): [] for number in range(partitions)}
        for extent in extents:
            by_partition.setdefault(extent.topic_partition, []).append(extent)
        outcome = NOTHING_VISIBLE
        try:
            with self._manager.locks.commit(), self._manager.writing():
                self._roll_forward_locked()
                if self._is_duplicate(transactional_id, sequence):
                    return False
                commits = self._history.log()
                with self._manager.locks.partitions([*by_partition, COMMITS]):
                    self._ensure_unchanged(by_partition, overwrite)
                    before = commits.cut(commits.state())
                    number, time_ms = before.log_end_offset, self._now_ms()
                    states = {
                        tp: self._place(tp, pieces, number, time_ms, overwrite)
                        for tp, pieces in by_partition.items()
                    }
                    record = Commit(
                        number=number,
                        time_ms=time_ms,
                        overwrite=overwrite is not None,
                        transactional_id=transactional_id,
                        sequence=sequence,
                        author=author,
                        records_count=sum(extent.records_count for extent in extents),
                        size_in_bytes=sum(extent.size_in_bytes for extent in extents),
                        offsets=_offsets(by_partition, states),
                        ends=self._ends(states),
                    )
                    states[COMMITS] = self._place_record(commits, before, record)
                    prepared = self._prepare(transactional_id, sequence, states)
                    outcome = UNKNOWN
                    decided = self._decide(prepared)
                    outcome = COMMITTED
                    self._flip(states, flush=self._flush)
                    if sequence != NO_TRANSACTION_SEQUENCE:
                        offset = prepared.decided.prepare_offset
                        self._sequences.note(transactional_id, sequence, offset)
                    self._complete(prepared, decided)
                self._maybe_rewrite()
        except LogDirLockedError:
            raise
        except (OSError, KBatchError) as error:
            raise CommitError(outcome, str(error)) from error
        self._delete_old_segments(by_partition, overwrite)
        return True

    def pending(self) -> Mapping[TopicPartition, LogState]:
        """What a commit that is decided and not complete will have written, by partition.

        To one who holds a partition's lock and finds a higher sequence number here than in the log,
        it says that the committer is dead.
        """
        while (state := self._manager.state(TRANSACTION_STATE)).has_pending_commit:
            try:
                return self._pending(state).value.states
            except (FileNotFoundError, KafkaStorageError):
                # It was completed meanwhile, and the topic rewritten.
                if self._manager.state(TRANSACTION_STATE) == state:
                    raise
        return {}

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

    def _delete_old_segments(
        self, topic_partitions: Iterable[TopicPartition], overwrite: Overwrite | None
    ) -> None:
        """Where there may be some. What goes wrong is not the commit's, and comes up again."""
        try:
            limited = [
                tp
                for tp in topic_partitions
                if overwrite is not None or self._manager.log(tp).config.has_retention
            ]
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

    def _ensure_unchanged(
        self, by_partition: Mapping[TopicPartition, list[Extent]], overwrite: Overwrite | None
    ) -> None:
        topics: dict[str, set[tuple[str, int]]] = {}  # as the job knew them
        for topic_partition, extents in by_partition.items():
            known = topics.setdefault(topic_partition.topic, set())
            known.update((extent.topic_id, extent.partition_count) for extent in extents)
        if overwrite is not None:
            topic = overwrite.topic
            topics[topic.name].add((topic.topic_id, topic.partitions))
        for name, known in topics.items():
            topic = self._manager.metadata.topic(name)
            for topic_id, partitions in known - {(topic.topic_id, topic.partitions)}:
                raise KafkaStorageError(
                    f"topic {name!r} was recreated or altered while the job ran: its id is "
                    f"{topic.topic_id} with {topic.partitions} partitions, the job wrote for "
                    f"{topic_id} with {partitions}; run the job again"
                )

    def _place(
        self,
        topic_partition: TopicPartition,
        extents: Sequence[Extent],
        commit_number: int,
        time_ms: int,
        overwrite: Overwrite | None,
    ) -> LogState:
        """Put the extents behind the partition's recorded end; the state that would show them.

        Where it overwrites, that state begins with them, in a segment of their own.
        """
        log = self._manager.log(topic_partition)
        state = log.cut(log.state())
        appender = LogAppender(log, state, now_ms=time_ms)
        if overwrite is not None:
            overwritten.note(
                log.files,
                log.directory,
                state,
                commit=commit_number,
                delete_ms=time_ms + overwrite.delete_delay_ms,
            )
            appender.begin_segment()
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
        after = appender.finish(flush=self._flush)
        if overwrite is None:
            return after
        return after._replace(
            log_start_offset=state.log_end_offset,
            last_stable_offset=max(after.last_stable_offset, state.log_end_offset),
        )

    def _ends(self, states: Mapping[TopicPartition, LogState]) -> dict[TopicPartition, int]:
        """High watermarks with these states, of all partitions of their topics."""
        topics = sorted({topic_partition.topic for topic_partition in states})
        every = (tp for topic in topics for tp in self._manager.partitions(topic))
        return {
            tp: (states.get(tp) or self._manager.log(tp).state()).high_watermark for tp in every
        }

    def _place_record(self, log: PartitionLog, state: LogState, commit: Commit) -> LogState:
        """Put the commit's record of itself behind the end of `__commits`."""
        appender = LogAppender(log, state, now_ms=commit.time_ms)
        appender.append(pack(commit))
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

    def _maybe_rewrite(self) -> None:
        """Keep __transaction_state small. What goes wrong is not the commit's, and comes up again."""
        try:
            expired = rewriting.maybe_rewrite(
                self._manager, now_ms=self._now_ms(), expiration_ms=self._id_expiration_ms
            )
            self._sequences.forget(expired)
        except (OSError, KBatchError) as error:
            logger.warning("%s stays as it is for now: %s", TRANSACTION_STATE, error)

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


def _offsets(
    by_partition: Mapping[TopicPartition, Sequence[Extent]],
    states: Mapping[TopicPartition, LogState],
) -> dict[TopicPartition, tuple[int, int]]:
    """Which offsets the extents have in these states."""
    ends = {tp: states[tp].log_end_offset for tp in by_partition}
    return {
        tp: (ends[tp] - sum(extent.records_count for extent in extents), ends[tp])
        for tp, extents in by_partition.items()
        if extents
    }
