"""What is done to the partitions of a cluster: appends, fetches, deletions.

Lock order (see `locks.py`): commit, metadata, partitions by (topic, partition).

Easily broken:
- A state that is read may be behind a commit that is decided and not yet flipped. Every reader
  goes through the function given as `replicas`, which looks for one; only writers, who hold the
  partition's lock and have rolled forward, read a log's own state.
- Who has taken a partition's lock to write first looks for a commit that was decided there and is
  not complete: its committer is dead, or has flipped this partition. Its data lies where new data
  would go, or where a replica that is out of step is cut, and its state has the sequence number that
  the next state would take. Rolling forward takes the commit lock, so the partition's is let go
  before. `Locks.partitions` does that, for all writers but committers.
- Another process may delete a topic, create it again or alter it at any time, but only with the locks of
  all its partitions. So every writer asks for `partition` again once it holds the lock.
- `__transaction_state` is written under the commit lock, never by `append_records`.

Source: Kafka core/.../server/ReplicaManager.scala.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Protocol

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    FencedLeaderEpochError,
    InvalidRequiredAcksError,
    KafkaStorageError,
    KBatchError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log import overwritten, retention
from spark_kbatch.log.epochs import EpochEntry, LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.log.validator import validate
from spark_kbatch.model import (
    LATEST,
    AppendOrigin,
    AppendResult,
    DeletedTopic,
    Deletion,
    IsolationLevel,
    LogOffsets,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.topic import INTERNAL_PREFIX
from spark_kbatch.record.header import BatchHeader, LogRead
from spark_kbatch.replica.fetching import (
    NO_EPOCH,
    DelayedFetch,
    FetchInfo,
    FetchParams,
    FetchResult,
    Moment,
    OnFetched,
    ensure_in_range,
    may_answer,
    read_partitions,
)
from spark_kbatch.replica.locks import Commits
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.replica.partition import Appended, Partition
from spark_kbatch.replica.partitions import Partitions
from spark_kbatch.replica.producing import DelayedProduce, OnComplete
from spark_kbatch.replica.purgatory import Purgatory
from spark_kbatch.replica.view import Replica


class Replicas(Protocol):
    """How readers see partitions: with commits that are decided and not yet flipped."""

    def __call__(
        self, topic_partitions: Iterable[TopicPartition], avoid: Container[int] = (), /
    ) -> Mapping[TopicPartition, Replica]:
        """The replicas to read, of one moment, with the states that count.

        Args:
            avoid: nodes that could not be read.

        Raises:
            KafkaStorageError: of one of them none can be read.
        """


logger = logging.getLogger(__name__)

RETENTION_CHECK_INTERVAL_MS = 300_000  # Kafka's log.retention.check.interval.ms

# For one of several partitions whose locks others hold: then the next one is tried.
_LOCK_PATIENCE_S = 0.05

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1

_LOOKS_MAX = 5  # of a fetch at partitions of which one cannot be seen


class ReplicaManager(Partitions):
    """Appends to the partitions of one cluster, fetches and deletions. Thread-safe."""

    def __init__(
        self,
        files: Files,
        metadata: Metadata,
        now_ms: Callable[[], int],
        *,
        monotonic_ms: Callable[[], int] = monotonic_ms,
        uses_threads: bool = True,
    ) -> None:
        """Without `uses_threads` all is done by callers; who waits is looked at when `look` is called."""
        super().__init__(
            files, metadata, now_ms, monotonic_ms=monotonic_ms, uses_threads=uses_threads
        )
        self.monotonic_ms = monotonic_ms
        # When retention was last looked at behind an append; of each partition under its lock.
        self._retention_checked_ms: dict[TopicPartition, int] = {}
        self.delayed_fetches: Purgatory[TopicPartition] = Purgatory(
            monotonic_ms, looks_by_itself=uses_threads
        )
        self.delayed_produces: Purgatory[TopicPartition] = Purgatory(
            monotonic_ms, looks_by_itself=uses_threads
        )

    def append_records(
        self,
        *,
        timeout_ms: int,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        entries_per_partition: Mapping[TopicPartition, Buffer],
        on_complete: OnComplete,
        flush: bool,
        commits: Commits,
        lock_timeout_ms: int | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Append a batch to each of these partitions; one's failure does not stop the others.

        Args:
            timeout_ms: how long an answer may wait: for partitions' locks, and then for replicas.
                A partition whose lock others hold does not stop those whose lock is free.
            required_acks: -1 to wait until all in-sync replicas have the batch; 0 or 1 for the
                leader alone: the others get it behind the answer, before this returns. With one
                replica they are the same.
            internal_topics_allowed: whether topics of the cluster's own are accepted.
            origin: who appends. Replicas copy their leader's bytes and do not come here.
            entries_per_partition: one whole batch each. Only read, and not kept on return.
            on_complete: called once, with no lock held, with an answer for each partition: before
                this returns, or later by another thread where it has to wait for replicas. An
                answer's `error` is what was wrong with that batch, or a RetriableError: then
                repeating it is safe for an idempotent producer.
            flush: whether batches are on disk before they are answered.
            commits: the commits of this cluster.
            lock_timeout_ms: how long to wait for locks, where that is less than `timeout_ms`. What
                is not written by then is answered with a LockTimeoutError.
            topic_ids: of the topics that are meant, by partition: what is for a topic that was created
                again is answered with an UnknownTopicOrPartitionError. By default the topics that
                have these names are meant.
        Source: ReplicaManager.appendRecords.
        """
        if origin is AppendOrigin.REPLICATION:
            raise ValueError("a follower copies the bytes of its leader, it does not append")
        if required_acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            refused = _answer(InvalidRequiredAcksError(required_acks))
            on_complete(dict.fromkeys(sorted(entries_per_partition), refused))
            return
        wait_ms = timeout_ms if lock_timeout_ms is None else min(timeout_ms, lock_timeout_ms)
        deadline = time.monotonic() + wait_ms / 1000
        appended: dict[TopicPartition, Appended] = {}
        accepted: dict[TopicPartition, tuple[Partition, BatchHeader]] = {}
        # All are looked at before the first lock is taken.
        for tp in sorted(entries_per_partition):
            try:
                if not internal_topics_allowed:
                    ensure_not_internal(tp.topic)
                partition = self.partition(tp)
                header = validate(
                    entries_per_partition[tp], tp, partition.config, origin, now_ms=self._now_ms()
                )
                accepted[tp] = partition, header
            except (OSError, KBatchError) as error:
                appended[tp] = Appended(_answer(error))
        try:
            with self.writing({node for one, _ in accepted.values() for node in one.replicas}):
                append = functools.partial(
                    self._append_one,
                    required_acks=required_acks, origin=origin, flush=flush, commits=commits,
                    topic_ids=topic_ids or {},
                )  # fmt: skip
                waiting = list(accepted)
                patience_s = 0.0 if len(waiting) > 1 else math.inf
                while waiting:
                    for tp in waiting:
                        partition, header = accepted[tp]
                        until = min(time.monotonic() + patience_s, deadline)
                        appended[tp] = append(
                            partition, entries_per_partition[tp], header, deadline=until
                        )
                    if time.monotonic() >= deadline:
                        break
                    waiting = [tp for tp in waiting if _is_locked(appended[tp])]
                    patience_s = _LOCK_PATIENCE_S if len(waiting) > 1 else math.inf
        except (OSError, KBatchError) as error:
            appended |= dict.fromkeys(accepted, Appended(_answer(error)))
        self._answer_or_wait(appended, required_acks, timeout_ms, on_complete, commits)
        for topic_partition, (result, is_decided, *_) in appended.items():
            if result.error is not None:
                continue
            if not is_decided:
                self.replicate([topic_partition], commits, flush=flush, deadline=deadline)
            self.delayed_produces.check_and_complete(topic_partition)
            self.delayed_fetches.check_and_complete(topic_partition)

    def _answer_or_wait(
        self,
        appended: Mapping[TopicPartition, Appended],
        required_acks: int,
        timeout_ms: int,
        on_complete: OnComplete,
        commits: Commits,
    ) -> None:
        """Answer, unless acks are those of all replicas and some of what was written is not decided."""
        waiting = required_acks == ACKS_ALL and any(
            one.result.error is None and not one.is_decided for one in appended.values()
        )
        if not waiting:
            on_complete({tp: one.result for tp, one in appended.items()})
            return

        def is_decided(tp: TopicPartition, one: Appended) -> tuple[bool, Exception | None]:
            try:
                partition = self.partition(tp)
                ensure_same_topic(tp, one.topic_id, partition.topic.topic_id)
            except UnknownTopicOrPartitionError as deleted:
                return True, deleted
            decided, error = partition.reaches(one.required_offset, one.leader_epoch)
            if not decided and partition.may_join():
                soon = time.monotonic() + _LOCK_PATIENCE_S
                self.replicate([tp], commits, flush=True, deadline=soon)
            return decided, error

        delayed = DelayedProduce(timeout_ms, appended, is_decided, on_complete)
        self.delayed_produces.try_complete_else_watch(delayed, appended)

    def replicate(
        self,
        topic_partitions: Iterable[TopicPartition],
        commits: Commits,
        *,
        flush: bool,
        deadline: float | None = None,
    ) -> None:
        """Bring the followers of these partitions up to their leaders, as far as they can be used.

        What goes wrong is not the caller's, and comes up again.
        """
        for topic_partition in topic_partitions:
            try:
                locked = self.locked([topic_partition], commits, flush=flush, deadline=deadline)
                with self.writing(), locked:
                    pass  # That is what who takes the lock does first.
            except (OSError, KBatchError) as error:
                logger.warning("%s is not replicated for now: %s", topic_partition, error)

    def _append_one(
        self,
        partition: Partition,
        data: Buffer,
        header: BatchHeader,
        *,
        required_acks: int,
        origin: AppendOrigin,
        flush: bool,
        commits: Commits,
        deadline: float,
        topic_ids: Mapping[TopicPartition, str],
    ) -> Appended:
        topic_partition = partition.topic_partition
        try:
            with self.locks.partitions([topic_partition], commits, deadline=deadline):
                current = self.partition(topic_partition)
                if current is not partition:  # The topic was created again, or altered.
                    partition = current
                    header = validate(
                        data, topic_partition, current.config, origin, now_ms=self._now_ms()
                    )
                wanted_id = topic_ids.get(topic_partition, partition.topic.topic_id)
                ensure_same_topic(topic_partition, wanted_id, partition.topic.topic_id)
                try:
                    appended, log = partition.append_locked(
                        data, header, origin=origin, required_acks=required_acks, flush=flush
                    )
                except KafkaStorageError as error:
                    if partition.only_log is not None:
                        _damaged(error)
                    raise
                if log.config.has_retention:
                    self._maybe_delete_old_segments(log, self._now_ms())
                return appended
        except CorruptRecordError as error:  # in the log; the batch given is sound
            damaged = KafkaStorageError(f"{topic_partition} cannot be appended to: {error}")
            damaged.__cause__ = error
            return Appended(_answer(_damaged(damaged)))
        except (OSError, KBatchError) as error:
            return Appended(_answer(error))

    @contextlib.contextmanager
    def locked(
        self,
        topic_partitions: Collection[TopicPartition],
        commits: Commits,
        *,
        flush: bool = True,
        deadline: float | None = None,
    ) -> Iterator[dict[TopicPartition, Replica]]:
        """Hold the locks of partitions to write to them; yields their leaders.

        A commit that was decided and not flipped in one of them is finished before. Of several
        replicas one leads then, and the others are equal to it or not in sync. The caller keeps
        brokers out, see `writing`.
        """
        with self.locks.partitions(topic_partitions, commits, deadline=deadline):
            partitions = self.all_of(topic_partitions)
            yield {tp: one.ready_locked(flush=flush) for tp, one in partitions.items()}

    def delete_old_segments(
        self, topic_partitions: Iterable[TopicPartition], commits: Commits
    ) -> dict[TopicPartition, Deletion]:
        """What the topics' retention says, and what earlier deletions have left; one by one.

        Source: LogManager.cleanupLogs.
        """
        done = {}
        with self.writing():
            for topic_partition in sorted(topic_partitions):
                with self.locked([topic_partition], commits) as leaders:
                    _, log, state = leaders[topic_partition]
                    done[topic_partition] = retention.delete_old_segments(
                        log, state, self._now_ms()
                    )
                    self.partition(topic_partition).delete_on_followers_locked()
        return done

    def planned_removals(self) -> list[DeletedTopic]:
        """Return the deleted topics whose directories `remove_deleted_topics` would remove."""
        now_ms = self._now_ms()
        return [one for one in self.deletions.due(now_ms) if now_ms >= one.delete_ms]

    def remove_deleted_topics(self) -> list[DeletedTopic]:
        """Remove what deleted topics have left, once their time has come; those of which nothing is left.

        Takes the metadata lock where there is something to do, and only then.
        """
        now_ms = self._now_ms()
        if not self.deletions.due(now_ms):
            return []
        with self.locks.metadata(), self.writing():
            return self.deletions.continue_locked(now_ms)

    def _maybe_delete_old_segments(self, log: PartitionLog, now_ms: int) -> None:
        """As above, once in a while. What goes wrong is not the append's, and comes up again."""
        topic_partition = log.topic_partition
        checked_ms = self._retention_checked_ms.get(topic_partition)
        elapsed_ms = self.monotonic_ms()
        if checked_ms is not None and elapsed_ms - checked_ms < RETENTION_CHECK_INTERVAL_MS:
            return
        self._retention_checked_ms[topic_partition] = elapsed_ms
        try:
            retention.delete_old_segments(log, log.state(), now_ms)
        except (OSError, KBatchError) as error:
            logger.warning("old segments of %s stay for now: %s", topic_partition, error)

    def planned_deletions(
        self, topic_partitions: Iterable[TopicPartition], replicas: Replicas
    ) -> dict[TopicPartition, Deletion]:
        """What `delete_old_segments` would do; changes nothing."""
        now_ms = self._now_ms()
        found = replicas(topic_partitions)
        return {tp: retention.plan(log, state, now_ms) for tp, (_, log, state) in found.items()}

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], commits: Commits
    ) -> dict[TopicPartition, Deletion]:
        """Delete all records below these offsets, LATEST being the high watermark; or none.

        Raises:
            OffsetOutOfRangeError: above a high watermark.
        Source: ReplicaManager.deleteRecords.
        """
        with self.writing(), self.locked(sorted(offsets), commits) as leaders:
            wanted = {
                tp: leaders[tp].state.high_watermark if offset == LATEST else offset
                for tp, offset in offsets.items()
            }
            for tp, (_, log, state) in leaders.items():
                retention.ensure_deletable(log, state, wanted[tp])
            now_ms = self._now_ms()
            return {
                tp: retention.delete_records(log, state, wanted[tp], now_ms)
                for tp, (_, log, state) in leaders.items()
            }

    def fetch(
        self,
        topic_partition: TopicPartition,
        asked: ReadRange,
        *,
        replicas: Replicas,
        to_log_end: bool = False,
        seen: Replica | None = None,
    ) -> tuple[LogRead, LogOffsets]:
        """Whole batches from the one that holds an offset on, and the log's edges.

        Args:
            replicas: how the caller sees partitions.
            to_log_end: whether what is above the high watermark is wanted, too.
            seen: what `replicas` has said: nothing is given that was not there then. Asked now by
                default.

        Raises:
            As `PartitionLog.read`.
        """
        partition = self.partition(topic_partition)
        failed: dict[int, Exception] = {}
        while True:
            try:
                if seen is not None and not failed:
                    replica = seen
                else:
                    replica = replicas([topic_partition], failed)[topic_partition]
            except KafkaStorageError:
                for error in reversed(failed.values()):
                    raise error from None
                raise
            node_id, log, state = replica
            log_end_offset = state.log_end_offset
            if seen is not None and replica is not seen:
                state = _as_of(seen.state, state)
                log_end_offset = min(log_end_offset, seen.state.log_end_offset)
            shown, wanted = state, asked
            if to_log_end:
                shown = state._replace(high_watermark=log_end_offset)
                wanted = asked._replace(isolation=IsolationLevel.READ_UNCOMMITTED)
            try:
                return log.read(shown, wanted), state.offsets
            except (OSError, KafkaStorageError, CorruptRecordError) as error:
                # 1. We read the state. 2. The log start was moved, and segments below it renamed. 3. We
                # look for the one that held the offset.
                start, end = replicas([topic_partition])[topic_partition].state[1:3]
                if start > asked.offset:
                    raise OffsetOutOfRangeError(
                        str(topic_partition), asked.offset, start, end
                    ) from None
                if partition.only_log is not None:
                    raise
                partition.reading_failed(node_id, error)
                failed[node_id] = error

    def fetch_overwritten(
        self, topic_partition: TopicPartition, asked: ReadRange, *, replicas: Replicas
    ) -> tuple[LogRead, LogOffsets]:
        """As `fetch`, of an offset below the log start, for a range that was resolved before.

        Raises:
            OffsetOutOfRangeError: nobody has overwritten it, or its files are gone; names the commit.
        """
        _, log, state = replicas([topic_partition])[topic_partition]
        found = overwritten.find(log.files, log.directory, state, asked.offset)
        why = ""
        if found is not None:
            why = f"commit {found.commit} has overwritten it"
            seen = state._replace(log_start_offset=found.start_offset)
            try:
                return log.read(seen, asked), state.offsets
            except (FileNotFoundError, KafkaStorageError):
                pass
        start, end = state.log_start_offset, state.high_watermark
        raise OffsetOutOfRangeError(str(topic_partition), asked.offset, start, end, why=why)

    def fetch_messages(
        self,
        *,
        max_wait_ms: int,
        replica_id: int,
        min_bytes: int,
        max_bytes: int,
        hard_max_bytes_limit: bool,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        isolation: IsolationLevel,
        on_complete: OnFetched,
        replicas: Replicas,
    ) -> None:
        """Whole batches of several partitions, at once or when there are enough.

        Args:
            max_wait_ms: after how long the answer is what there is; 0 or less waits for nothing.
            replica_id: who asks; `fetching.py` tells what each may see.
            min_bytes: of all partitions together, to wait for.
            max_bytes: of all partitions together. Each has a limit of its own in `fetch_infos`.
            hard_max_bytes_limit: whether also the first batch must fit into the limits.
            fetch_infos: by partition, in the order in which they are read.
            isolation: what of transactions a consumer is given.
            on_complete: called once, with no lock held, with a result for each partition; before
                this returns, or later by another thread.
            replicas: how the caller sees partitions.
        Source: ReplicaManager.fetchMessages.
        """
        params = FetchParams(
            max_wait_ms, replica_id, min_bytes, max_bytes, hard_max_bytes_limit, isolation
        )
        reading = _Reading(self, replicas)
        results = read_partitions(reading, params, fetch_infos)
        if may_answer(params, results):
            on_complete(results)
        else:
            delayed = DelayedFetch(reading, params, fetch_infos, on_complete)
            self.delayed_fetches.try_complete_else_watch(delayed, fetch_infos)


class _Reading:
    """How a fetch sees partitions, with commits that are decided and not flipped."""

    def __init__(self, manager: ReplicaManager, replicas: Replicas) -> None:
        self._manager, self._replicas = manager, replicas

    def look(self, topic_partitions: Iterable[TopicPartition]) -> Moment:
        """As `fetching.Reading`."""
        wanted, failed = list(topic_partitions), dict[TopicPartition, Exception]()
        for left in reversed(range(_LOOKS_MAX)):
            try:
                return {**self._replicas(wanted), **failed}
            except (OSError, KBatchError) as error:
                # Where each can be seen alone by now, all are looked at together again.
                for topic_partition in wanted:
                    wrong = self._what_is_wrong(topic_partition) if left else error
                    if wrong is not None:
                        failed[topic_partition] = wrong
            wanted = [tp for tp in wanted if tp not in failed]
        return failed

    def _what_is_wrong(self, topic_partition: TopicPartition) -> Exception | None:
        try:
            self._replicas([topic_partition])
        except (OSError, KBatchError) as error:
            return error
        return None

    def state_for_fetch(self, seen: Replica, info: FetchInfo) -> LogState:
        """As `fetching.Reading`."""
        state, topic_partition = seen.state, seen.log.topic_partition
        known, current = info.current_leader_epoch, state.leader_epoch
        if known != NO_EPOCH and known < current:
            raise FencedLeaderEpochError(str(topic_partition), current, known)
        if known > current:
            raise UnknownLeaderEpochError(str(topic_partition), current, known)
        return state

    def read_for_fetch(
        self, seen: Replica, info: FetchInfo, params: FetchParams, asked: ReadRange
    ) -> FetchResult:
        """As `fetching.Reading`."""
        state = self.state_for_fetch(seen, info)
        diverging = _diverging(seen, info)
        if diverging is not None:
            return FetchResult(offsets=state.offsets, diverging=diverging)
        topic_partition = seen.log.topic_partition
        ensure_in_range(topic_partition, state, info.fetch_offset)
        read, offsets = self._manager.fetch(
            topic_partition,
            asked,
            replicas=self._replicas,
            to_log_end=params.to_log_end,
            seen=seen,
        )
        return FetchResult(read, offsets)


def _diverging(seen: Replica, info: FetchInfo) -> EpochEntry | None:
    """Where the caller's last epoch ends here, if its log and ours have come to differ."""
    if info.last_fetched_epoch == NO_EPOCH:
        return None
    _, log, state = seen
    epochs = LeaderEpochCache.read(log.files, log.directory)
    end = epochs.end_offset_for(info.last_fetched_epoch, state.log_end_offset)
    if end.epoch < 0:
        raise OffsetOutOfRangeError(
            str(log.topic_partition),
            info.fetch_offset,
            state.log_start_offset,
            state.log_end_offset,
        )
    differs = end.epoch < info.last_fetched_epoch or end.start_offset < info.fetch_offset
    return end if differs else None


def _as_of(before: LogState, state: LogState) -> LogState:
    """A replica's state without what another one did not show before."""
    high_watermark = min(state.high_watermark, before.high_watermark)
    stable = min(state.last_stable_offset, before.last_stable_offset)
    return state._replace(high_watermark=high_watermark, last_stable_offset=stable)


def ensure_same_topic(topic_partition: TopicPartition, wanted_id: str, found_id: str) -> None:
    """Check that a partition is of the topic that is meant.

    Raises:
        UnknownTopicOrPartitionError: it is of another one, which has the same name.
    """
    if found_id != wanted_id:
        raise UnknownTopicOrPartitionError(
            f"{topic_partition} is of another topic now: topic {topic_partition.topic!r} was deleted "
            f"and created again (its id was {wanted_id}, and is {found_id})"
        )


def ensure_not_internal(topic: str) -> None:
    """Check that a client may write to a topic of this name.

    Raises:
        ConfigError: it is the cluster's own.
    """
    if arguments.text("topic", topic).startswith(INTERNAL_PREFIX):
        raise ConfigError(f"topic {topic!r} is the cluster's own; write to another")


def _is_locked(appended: Appended) -> bool:
    return isinstance(appended.result.error, LockTimeoutError)


def _answer(error: OSError | KBatchError) -> AppendResult:
    if isinstance(error, OSError) and not isinstance(error, KBatchError):
        error = KafkaStorageError.of(error)
    # The frames of a traceback would keep the batch's buffer alive.
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None
        one = one.__cause__
    return AppendResult(error=error)


def _damaged(error: KafkaStorageError) -> KafkaStorageError:
    """The same, which does not pass by waiting: no other replica can stand in."""
    error.is_transient = False
    return error
