"""The coordinator of Spark jobs' commits, which also finishes those of dead committers.

Its steps are place, prepare, flip and complete; the protocol is in the package's docstring.

One commit runs at a time: a committer holds the commit lock, and first rolls forward what a dead
committer left. The partition locks keep other writers away from the logs in the meantime.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.commit.history import History, pack
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.commit.sequences import LastSequences
from spark_kbatch.commit.snapshot import Transaction, last_of_each_id, transactions
from spark_kbatch.commit.staging import (
    Copies,
    Extent,
    Probe,
    gone,
    one_of,
    remove_abandoned_jobs,
    staged_by_partition,
    total,
)
from spark_kbatch.commit.state_records import (
    COMPLETE_COMMIT,
    PREPARE_COMMIT,
    TransactionValue,
    pack_key,
    pack_value,
)
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    KafkaStorageError,
    KBatchError,
    LogDirLockedError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log import overwritten
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.state import LogState
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.options.topic import NO_LIMIT, Topic
from spark_kbatch.options.write import COMMITS_RETENTION_BYTES, STAGING_RETENTION_MS
from spark_kbatch.record import scalar
from spark_kbatch.replica import administration
from spark_kbatch.replica.manager import ACKS_ALL, ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import Replica
from spark_kbatch.store.commits import NOTHING_VISIBLE, UNKNOWN_AUTHOR, Author, Commit
from spark_kbatch.store.repetitions import Attempt, Evidence, LastKept
from spark_kbatch.store.reports import GivenUp

logger = logging.getLogger(__name__)

COMMITTED = "the data is committed; the next writer will finish the commit"
UNKNOWN = (
    "whether the data is committed is unknown: the deciding write failed; read the topic to see"
)


_COMMITS_SEGMENTS = 8  # that hold commits.retention.bytes of history
_DIRECTORIES_MAX = 32  # of deleted topics that one commit removes
_JOBS_MAX = 100  # that one commit looks at, whether they are abandoned
_PAUSE_S = 0.1  # between looks at disks that may be back


class Prepared(NamedTuple):
    """The two log states of __transaction_state that decide a commit, and that complete it."""

    decided: LogState
    completed: LogState | None  # None if it was written on a leader that was lost since


class _Progress:
    """The outcome of a running commit so far, for the error if it fails."""

    def __init__(self) -> None:
        self.outcome = NOTHING_VISIBLE
        self.touched: list[TopicPartition] = []  # ready, and written to since
        self.commit: Commit | None = None


class Overwrite(NamedTuple):
    """A commit's replacement of everything that a topic holds."""

    topic: Topic  # as it was at the job's start
    delete_delay_ms: int  # how long files stay, for reads that were planned before


class _Job(NamedTuple):
    transactional_id: str
    value: TransactionValue  # without what `_prepare` knows: log states, the time and topics' ids
    author: Author
    overwrite: Overwrite | None
    attempt: Attempt | None


class Coordinator:
    """The coordinator that commits what Spark jobs have staged.

    It is thread-safe: the commit lock serializes commits.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        now_ms: Callable[[], int],
        *,
        adopt_min_bytes: int,
        flush: bool,
        acks: int = ACKS_ALL,
        replicas_timeout_ms: int = 0,
        staging_retention_ms: int = STAGING_RETENTION_MS,
        id_expiration_ms: int | None = None,
        commits_retention_bytes: int = COMMITS_RETENTION_BYTES,
    ) -> None:
        """Coordinate the commits of one cluster.

        Args:
            manager: of the cluster.
            now_ms: the clock.
            adopt_min_bytes: staged files of at least this size are renamed to be segments; smaller
                ones are copied.
            flush: whether files are flushed before the commit point.
            acks: with -1 a commit fails if a partition has fewer in-sync replicas than its
                topic's min.insync.replicas; with 0 and 1 those that are in sync are enough.
            replicas_timeout_ms: how long to wait for in-sync replicas before failing.
            staging_retention_ms: a job is abandoned after this long without a write to its files.
            id_expiration_ms: how long to keep a transactional id that does not commit any more; None
                for ever.
            commits_retention_bytes: about how much history to keep; NO_LIMIT for all.
        """
        self._manager, self._now_ms = manager, now_ms
        self._acks, self._replicas_timeout_ms = acks, replicas_timeout_ms
        self._adopt_min_bytes, self._flush = adopt_min_bytes, flush
        self._id_expiration_ms = id_expiration_ms
        self._staging_retention_ms = staging_retention_ms
        self._commits_retention_bytes = commits_retention_bytes
        self._sequences = LastSequences(manager, flush=flush)

    @functools.cached_property
    def _transaction_state(self) -> Partition:
        return self._manager.partition(TRANSACTION_STATE)

    def commit(
        self,
        extents: Sequence[Extent],
        *,
        transactional_id: str,
        sequence: int = NO_TRANSACTION_SEQUENCE,
        attempt: Attempt | None = None,
        author: Author = UNKNOWN_AUTHOR,
        overwrite: Overwrite | None = None,
        source_progress: bytes = b"",
        create_topics: Callable[[], Mapping[str, str]] = dict,
        ensure: Callable[[], None] = lambda: None,
    ) -> bool:
        """Make all batches that a job staged visible, in order within each partition, or none of them.

        Afterwards, delete expired segments of these topics, and overwritten ones whose delay is over.

        Args:
            extents: what the tasks staged, in the order of tasks.
            transactional_id: of the stream or the job.
            sequence: of the transaction within its id; 0 or more, and growing. If it is not above the
                last committed one, the commit is skipped as a duplicate.
            attempt: the micro-batch, or the application's version, that has that id and sequence,
                and decides whether it is a duplicate.
            author: for the history.
            overwrite: a topic that holds nothing but the extents afterwards, even if there are none.
            source_progress: of a mirror, what `take_over` returns from this commit on, even if there are
                no extents.
            create_topics: called when no other job can commit any more, unless the commit is a duplicate: creates
                the topics that the job has planned, and returns the id that each has now, by the planned one.
                Of a job without rows it is called in any case.
            ensure: called when no other job can commit any more, before anything is placed; an error of
                it is the cause of a CommitError.

        Returns:
            False if it was skipped as a duplicate.

        Raises:
            CommitError: its outcome says whether the data is visible; or as `create_topics`.
            LogDirLockedError: a broker uses a log dir; nothing is visible.
        """
        if not extents and overwrite is None and not source_progress:
            create_topics()
            return True
        began_s = monotonic_s()
        by_partition = staged_by_partition(extents, overwrite and overwrite.topic)
        kept = b"" if attempt is None else attempt.evidence.packed()
        value = TransactionValue(PREPARE_COMMIT, sequence, {}, 0, source_progress, evidence=kept)
        job = _Job(transactional_id, value, author, overwrite, attempt)
        progress = _Progress()
        try:
            self._await_replicas(by_partition)
            with self.settled():
                if self._is_duplicate(job):
                    return False
                ids = create_topics()
                # Topics are deleted, altered and extended under the commit lock too.
                by_now, job = self._as_topics_are(by_partition, job, ids)
                with self._manager.locks.partitions([*by_now, COMMITS]):
                    ensure()
                    try:
                        is_complete = self._publish_locked(by_now, job, progress)
                    except (OSError, KBatchError):
                        if progress.outcome == NOTHING_VISIBLE:
                            self._discard_placed_locked(progress.touched)
                        raise
                if not is_complete:
                    self._roll_forward_locked()
                self._maybe_rewrite()
        except (LogDirLockedError, CommitError):
            raise
        except (OSError, KBatchError) as error:
            raise CommitError(progress.outcome, str(error)) from error
        assert progress.commit is not None
        logger.info("%s, in %.3f s", progress.commit.summary(), monotonic_s() - began_s)
        self._delete_old_segments(by_partition, overwrite)
        self._delete_old_commits()
        self._remove_deleted_topics()
        return True

    def _publish_locked(
        self,
        by_partition: Mapping[TopicPartition, Sequence[Copies]],
        job: _Job,
        progress: _Progress,
    ) -> bool:
        """Run a commit's steps from place to complete; return False if it still has to be completed.

        No other commit is pending.
        """
        touched = [*by_partition, COMMITS]
        _, log, state = self._ready(touched)[COMMITS]
        progress.touched = touched
        number, time_ms = log.discard_unrecorded(state).log_end_offset, self._now_ms()
        states = {
            tp: self._place(tp, staged, number, time_ms, job.overwrite)
            for tp, staged in by_partition.items()
        }
        ends = {tp: _log_end(by_node) for tp, by_node in states.items()}
        counts = {tp: total(staged) for tp, staged in by_partition.items()}
        record = Commit(
            number=number,
            time_ms=time_ms,
            overwrite=job.overwrite is not None,
            transactional_id=job.transactional_id,
            sequence=job.value.sequence,
            author=job.author,
            records_count=sum(count.records_count for count in counts.values()),
            size_in_bytes=sum(count.size_in_bytes for count in counts.values()),
            offsets={
                tp: (ends[tp] - count.records_count, ends[tp])
                for tp, count in counts.items()
                if by_partition[tp]
            },
            ends=self._ends(ends),
        )
        progress.commit = record
        states[COMMITS] = self._place_record(record)
        self._ensure_enough_in_sync(states)
        prepared = self._prepare_and_decide(job, states, progress)
        progress.outcome = COMMITTED
        self._flip(states, flush=self._flush)
        if job.value.sequence != NO_TRANSACTION_SEQUENCE:
            offset = prepared.decided.prepare_offset
            self._sequences.save(Transaction(job.transactional_id, job.value, offset))
        return self._complete(prepared)

    def _discard_placed_locked(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove what a commit has placed that failed before it was decided; failures are logged.

        The next writer would do it, too, but on a full disk there may be none until it is gone.
        """
        for topic_partition in topic_partitions:
            with _failing_alone(f"what a failed commit has placed in {topic_partition} stays"):
                self._manager.partition(topic_partition).discard_unrecorded_locked()

    def take_over(self, transactional_id: str, transaction: str) -> tuple[int, bytes]:
        """Return a mirroring job's last sequence and its progress in the source; -1 and nothing if none.

        What an earlier process of the mirror staged and did not commit is removed.

        Args:
            transactional_id: of the mirror.
            transaction: the folder of all that it stages.

        Raises:
            ConfigError: a job has the transactional id.
        """
        with self.settled():
            for staging_dir in self._manager.dirs.staging().values():
                self._manager.files.remove_dir(staging_dir / transaction)
            last = last_of_each_id(self._manager.replica(TRANSACTION_STATE)).get(transactional_id)
        if last is None:
            return NO_TRANSACTION_SEQUENCE, b""
        if not last.value.is_mirrors:
            raise _is_taken(transactional_id, by_mirror=False)
        return last.value.sequence, last.value.source_progress

    def last_kept(self, transactional_id: str) -> LastKept:
        """Return what is kept of the last commit of an id, once no commit is unfinished."""
        with self.settled():
            return self._sequences.last(transactional_id).kept

    def is_pending(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Return True if an incomplete commit touches one of these partitions.

        A committer holds their locks until it has flipped them. So for a caller that holds those locks,
        the committer is dead, or has flipped these partitions already. Also True if the leader of
        __transaction_state cannot be read, or has lost records: it may have a commit that no one else knows of, which would be
        decided when it is back. `roll_forward` elects another leader.
        """
        partition = self._transaction_state
        if partition.only_log is not None:
            only_log = partition.view.usable_only_log(to_write=False)
            if not only_log.state().has_pending_commit:
                return False  # nearly always, and every append asks
        while True:
            look = partition.view.look()
            if not look.has_leader:
                return True
            replica = partition.view.shown(look)
            if not replica.state.has_pending_commit:
                return False
            try:
                states = _pending(replica).value.states_in(self._manager.is_current)
                return any(topic_partition in states for topic_partition in topic_partitions)
            except (FileNotFoundError, KafkaStorageError):
                # The commit was completed and the topic rewritten in the meantime.
                if self._manager.replica(TRANSACTION_STATE).state == replica.state:
                    raise

    def awaits_flip(self, topic_partition: TopicPartition, node_id: int) -> bool:
        """Return True if a replica has all batches of a decided commit, which waits to be finished."""
        replica = self._manager.replica(TRANSACTION_STATE)
        pending = _pending(replica).value if replica.state.has_pending_commit else None
        states = {} if pending is None else pending.states_in(self._manager.is_current)
        decided = states.get(topic_partition, {}).get(node_id)
        return decided is not None and self._is_placed(topic_partition, {node_id: decided})

    def roll_forward(self, *, deadline: float | None = None) -> None:
        """Finish the commit that a dead committer decided, if there is one.

        Raises:
            LockTimeoutError: another process still held a lock at the deadline.
        """
        with self.settled(deadline=deadline):
            pass

    @contextlib.contextmanager
    def settled(self, *, deadline: float | None = None) -> Iterator[None]:
        """Hold the commit lock, keeping brokers out, with no unfinished commit left."""
        with self._manager.locks.commit(deadline=deadline), self._manager.writing():
            self._roll_forward_locked(deadline=deadline)
            yield

    def elect_unclean(self, *, dry_run: bool = False) -> list[GivenUp]:
        """Let a replica of __transaction_state lead that is not in sync, if no in-sync one can be used.

        What it missed may be commits. Their data is in the partitions. Their sequences are taken
        from the history, so that no micro-batch is written twice, and so are their rows by topic,
        which tell a repetition from others. A commit that it has as decided is finished where its
        data is there, and dropped elsewhere.

        Args:
            dry_run: only look.

        Returns:
            What is given up; nothing if there was no need, so nothing has changed.

        Raises:
            KafkaStorageError: no replica can be used.
        """
        manager, partition = self._manager, self._transaction_state
        with manager.locks.commit(), manager.writing():
            given_up = administration.elect_unclean(
                manager, self, TRANSACTION_STATE.topic, dry_run=dry_run
            )
            if dry_run or not given_up:
                return given_up
            self._roll_forward_locked(is_there=self._is_placed)
            replica = partition.ready_locked(flush=True)
            known = last_of_each_id(replica)
            missed: dict[str, Commit] = {}
            history = History(lambda tps, _=(): {tp: manager.replica(tp) for tp in tps})
            for commit in history.read():
                name = commit.transactional_id
                before = missed.get(name) or (known[name].value if name in known else None)
                if commit.sequence > (before.sequence if before else NO_TRANSACTION_SEQUENCE):
                    missed[name] = commit
            if missed:
                appender = LogAppender(replica.log, replica.state, now_ms=self._now_ms())
                for name, commit in missed.items():
                    progress = known[name].value.source_progress if name in known else b""
                    value = TransactionValue(
                        COMPLETE_COMMIT,
                        commit.sequence,
                        {},
                        self._now_ms(),
                        progress,
                        evidence=Evidence.of_commit(commit).packed(),
                    )
                    appender.append(self._state_record(name, value))
                partition.publish_locked(appender.finish(flush=True), flush=True)
            self._sequences.scan_again()
        return given_up

    def _is_placed(self, topic_partition: TopicPartition, by_node: Mapping[int, LogState]) -> bool:
        """Return True if a replica has a decided state, or whole batches up to its end."""
        for node_id, decided in by_node.items():
            with contextlib.suppress(OSError, KBatchError):
                log = self._manager.partition(topic_partition).view.log_of(node_id)
                if log.state().sequence >= decided.sequence or log.has_up_to(decided):
                    return True
        return False

    def discard(self, extents: Sequence[Extent], transaction: str) -> None:
        """Remove the staged files of the task attempts that wrote these extents.

        The job's directory is removed, too, if nothing else is in it.

        After a commit their batches are placed; after an abort no one needs them. Attempts that are not
        named may still be writing and stay. If a file cannot be removed this only warns: the job's outcome
        is settled. Files of abandoned jobs are removed too.
        """
        for node_id, staging_dir in self._manager.dirs.staging().items():
            attempts = sorted({one.attempt for one in extents if one.node_id == node_id})
            with _failing_alone(f"staged files in {staging_dir} cannot be removed"):
                self._discard(staging_dir, attempts, transaction)

    def _discard(self, staging_dir: Path, attempts: Sequence[str], transaction: str) -> None:
        files, transaction_dir = self._manager.files, staging_dir / transaction
        for attempt in attempts:
            files.remove_dir(staging_dir / attempt)
        if files.exists(transaction_dir) and {*files.list(transaction_dir)} <= {Probe.NAME}:
            files.remove_dir(transaction_dir)
        removed, _ = remove_abandoned_jobs(
            files, staging_dir,
            retention_ms=self._staging_retention_ms, now_ms=expiring_ms(self._now_ms()), most=_JOBS_MAX,
        )  # fmt: skip
        for abandoned in removed:
            logger.warning(
                "removed %d bytes staged by abandoned job %s, which wrote nothing for %.1f days",
                abandoned.size_in_bytes, abandoned.transaction, abandoned.age_ms / 86_400_000,
            )  # fmt: skip

    def _delete_old_segments(
        self, topic_partitions: Iterable[TopicPartition], overwrite: Overwrite | None
    ) -> None:
        """Delete expired segments; failures are logged, and the next commit tries again."""
        with _failing_alone("old segments cannot be deleted"):
            find = self._manager.metadata.topics.find
            limited = [
                tp
                for tp in topic_partitions
                if (topic := find(tp.topic)) is not None
                and (overwrite is not None or topic.known_config.has_retention)
            ]
            if limited:
                self._manager.delete_old_segments(limited, self, skip_deleted=True)

    def _delete_old_commits(self) -> None:
        """Delete the oldest commits from `__commits`, after a commit that started a segment there.

        Failures are logged, and tried again with the next segment.
        """
        limit = self._commits_retention_bytes
        if limit == NO_LIMIT:
            return
        with _failing_alone(f"old commits in {COMMITS} cannot be deleted"):
            _, log, state = self._manager.replica(COMMITS)
            if state.segment_base_offset + 1 != state.log_end_offset:
                return
            bases = log.segments.bases(state)
            sizes = log.segments.sizes(state, bases)
            excess, start_offset = sum(sizes) - limit, 0
            for size, next_offset in zip(sizes, bases[1:], strict=False):
                excess -= size
                if excess < 0:
                    break
                start_offset = next_offset
            if start_offset > state.log_start_offset:
                self._manager.delete_records({COMMITS: start_offset}, self)

    def _is_duplicate(self, job: _Job) -> bool:
        """Return True if a job was committed before.

        Raises:
            ConfigError: its id is a mirror's, or that of a mirror is a job's: the numbers of one say nothing
                of the other.
        """
        name, sequence, is_mirror = job.transactional_id, job.value.sequence, job.value.is_mirrors
        if sequence == NO_TRANSACTION_SEQUENCE:
            return False
        last = self._sequences.last(name)
        if last.sequence != NO_TRANSACTION_SEQUENCE and last.is_mirror != is_mirror:
            raise _is_taken(name, by_mirror=not is_mirror)
        if job.attempt is None:
            return sequence <= last.sequence
        return job.attempt.is_repetition(last.kept)

    def _remove_deleted_topics(self) -> None:
        """Remove files of deleted topics; failures are logged, and tried again later."""
        with _failing_alone("files of deleted topics cannot be removed"):
            self._manager.remove_deleted_topics(_DIRECTORIES_MAX)

    def _as_topics_are(
        self,
        by_partition: Mapping[TopicPartition, Sequence[Copies]],
        job: _Job,
        ids: Mapping[str, str],
    ) -> tuple[Mapping[TopicPartition, Sequence[Copies]], _Job]:
        """Return a job's batches and its overwrite, adapted to topics that changed while the job ran.

        If a topic got more partitions, the job's records stay where its tasks put them, like those of any
        producer that ran meanwhile. An overwrite covers the new partitions too.

        Args:
            ids: that planned topics have now, by those that they were planned with.

        Raises:
            UnknownTopicOrPartitionError, KafkaStorageError: a topic was deleted, or recreated.
        """
        topics: dict[str, set[tuple[str, int]]] = {}  # as the job knew them
        for topic_partition, staged in by_partition.items():
            known = topics.setdefault(topic_partition.topic, set())
            for extent in chain.from_iterable(one_of(copies) for copies in staged):
                topic_id = ids.get(extent.topic_id, extent.topic_id)
                known.add((topic_id, extent.partition_count))
        if job.overwrite is not None:
            topic = job.overwrite.topic
            topic_id = ids.get(topic.topic_id, topic.topic_id)
            topics[topic.name].add((topic_id, topic.partitions))
        for name, known in topics.items():
            topic = self._find(name)
            for topic_id, partitions in sorted(known):
                if topic_id != topic.topic_id or partitions > topic.partitions:
                    raise KafkaStorageError(
                        f"topic {name!r} was recreated while the job ran: its id is "
                        f"{topic.topic_id} with {topic.partitions} partitions, the job wrote for "
                        f"{topic_id} with {partitions}; run the job again"
                    )
                if partitions < topic.partitions:
                    logger.warning(
                        "topic %s got partitions %d to %d while the job ran: the job's records are in "
                        "the old ones, even if their keys belong to a new one now",
                        name, partitions, topic.partitions - 1,
                    )  # fmt: skip
        if job.overwrite is None:
            return by_partition, job
        overwrite = job.overwrite._replace(topic=self._find(job.overwrite.topic.name))
        every: dict[TopicPartition, Sequence[Copies]] = dict.fromkeys(
            self._manager.partitions(overwrite.topic.name), ()
        )
        return every | {**by_partition}, job._replace(overwrite=overwrite)

    def _find(self, name: str) -> Topic:
        topic = self._manager.metadata.topics.find(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} was deleted while the job ran; create it again and run the job again"
            )
        return topic

    def _ready(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Replica]:
        """Return these partitions' leaders, after their followers caught up and enough are in sync."""
        ready = {
            tp: self._manager.partition(tp).ready_locked(flush=self._flush)
            for tp in topic_partitions
        }
        self._ensure_enough_in_sync(ready)
        return ready

    def _await_replicas(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Wait until enough replicas are in sync, before taking the commit lock.

        Of a partition that is gone `_as_topics_are` says what happened to its topic.
        """
        deadline_ms = self._manager.monotonic_ms() + self._replicas_timeout_ms
        for topic_partition in topic_partitions:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                self._await_replicas_of(topic_partition, deadline_ms)

    def _await_replicas_of(self, topic_partition: TopicPartition, deadline_ms: int) -> None:
        of = self._manager.partition
        while self._acks == ACKS_ALL and of(topic_partition).min_isr > 1:
            with self._manager.writing(), self._manager.locked([topic_partition], self):
                try:
                    of(topic_partition).ensure_enough_in_sync_locked()
                    return
                except NotEnoughReplicasError:
                    if self._manager.monotonic_ms() >= deadline_ms:
                        raise
            time.sleep(_PAUSE_S)

    def _ensure_enough_in_sync(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self._acks == ACKS_ALL:
            for topic_partition in topic_partitions:
                self._manager.partition(topic_partition).ensure_enough_in_sync_locked()

    def _place(
        self,
        topic_partition: TopicPartition,
        staged: Sequence[Copies],
        commit_number: int,
        time_ms: int,
        overwrite: Overwrite | None,
    ) -> dict[int, LogState]:
        """Write staged batches past a partition's log end, unseen; return the states that would show them.

        With an overwrite, the log of those states starts with them, in a segment of its own.
        """

        def place(replica: Replica) -> LogState:
            _, log, state = replica
            appender = LogAppender(log, state, now_ms=time_ms)
            if overwrite is not None:
                overwritten.add_entry(
                    log.files,
                    log.directory,
                    state,
                    commit=commit_number,
                    now_ms=time_ms,
                    delete_ms=time_ms + overwrite.delete_delay_ms,
                )
                appender.start_segment()
            for extent in self._extents_for(replica.node_id, staged):
                self._append(appender, extent, may_adopt=partition.only_log is not None)
            after = appender.finish(flush=self._flush)
            if overwrite is None:
                return after
            return after._replace(
                log_start_offset=state.log_end_offset,
                last_stable_offset=max(after.last_stable_offset, state.log_end_offset),
            )

        partition = self._manager.partition(topic_partition)
        return partition.place_locked(place)

    def _extents_for(self, node_id: int, staged: Iterable[Copies]) -> Iterator[Extent]:
        """Yield the staged extents to place on a node: its own copies, or else another replica's."""
        files, dirs = self._manager.files, self._manager.dirs.staging()
        for copies in staged:
            nodes = [node_id, *copies] if node_id in copies else [*copies]
            there = (
                node
                for node in nodes
                if node in dirs and files.exists(dirs[node] / copies[node][0].file)
            )
            yield from copies[nodes[0] if len(copies) == 1 else next(there, nodes[0])]

    def _append(self, appender: LogAppender, extent: Extent, *, may_adopt: bool) -> None:
        path = self._manager.metadata.cluster_file.log_dir(extent.node_id).staging / extent.file
        first_offset = appender.next_offset
        own_file = extent.position == 0 and path.name != "shared"
        try:
            if may_adopt and own_file and extent.size_in_bytes >= self._adopt_min_bytes:
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

    def _ends(self, placed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the high watermarks, after a commit, of all partitions of the topics that it touches.

        Those that cannot be read are left out.
        """
        ends = dict(placed)
        by_topic: dict[str, set[int]] = {}
        for topic, partition in placed:
            by_topic.setdefault(topic, set()).add(partition)
        for topic, numbers in by_topic.items():
            for number, end in self._manager.quick_high_watermarks(topic, numbers):
                topic_partition = TopicPartition(topic, number)
                try:
                    if end is None:
                        end = self._manager.replica(topic_partition).state.high_watermark
                    ends[topic_partition] = end
                except KafkaStorageError as error:
                    logger.warning("the history lacks the end of %s: %s", topic_partition, error)
        return ends

    def _place_record(self, commit: Commit) -> dict[int, LogState]:
        """Write the commit's history record past the end of `__commits`, unseen like its batches."""

        def place(replica: Replica) -> LogState:
            appender = LogAppender(replica.log, replica.state, now_ms=commit.time_ms)
            limit = self._commits_retention_bytes
            if limit != NO_LIMIT and replica.state.segment_size >= limit // _COMMITS_SEGMENTS:
                appender.start_segment()
            appender.append(pack(commit))
            return appender.finish(flush=self._flush)

        return self._manager.partition(COMMITS).place_locked(place)

    def _prepare_and_decide(
        self,
        job: _Job,
        states: Mapping[TopicPartition, Mapping[int, LogState]],
        progress: _Progress,
    ) -> Prepared:
        """Write PrepareCommit and the commit point; if the leader's disk fails, do so with another leader."""
        partition = self._transaction_state
        while True:
            leader = partition.leader
            try:
                prepared = self._prepare(job, states)
                progress.outcome = UNKNOWN
                decided = self._decide(prepared.decided)
                # Where another one leads since, its log has PrepareCommit alone.
                is_whole = partition.leader == leader
                return Prepared(decided, prepared.completed if is_whole else None)
            except (OSError, KafkaStorageError):
                if partition.only_log is not None:
                    raise
                after = partition.ready_locked(flush=self._flush)
                if after.state.has_pending_commit:
                    # It had reached the replica that leads now, and so is decided.
                    return Prepared(after.state, None)
                progress.outcome = NOTHING_VISIBLE
                if after.node_id == leader:
                    raise

    def _prepare(
        self, job: _Job, states: Mapping[TopicPartition, Mapping[int, LogState]]
    ) -> Prepared:
        """Write PrepareCommit and CompleteCommit past the end of __transaction_state, still unseen."""
        now_ms = self._now_ms()
        topic_ids = self._topic_ids({tp.topic for tp in states})
        prepare = job.value._replace(states=states, last_update_ms=now_ms, topic_ids=topic_ids)
        with self._transaction_state.leading_locked() as log:
            state = log.discard_unrecorded(log.state())
            appender = LogAppender(log, state, now_ms=now_ms)
            appender.append(self._state_record(job.transactional_id, prepare))
            decided = appender.finish(flush=False, prepare_offset=state.log_end_offset)
            complete = prepare._replace(status=COMPLETE_COMMIT, states={}, topic_ids={})
            appender.append(self._state_record(job.transactional_id, complete))
            completed = appender.finish(flush=self._flush)
        if self._flush:
            decided = decided._replace(recovery_point=decided.log_end_offset)
        return Prepared(decided, completed)

    def _topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return topics' ids, for a record that an image of a disk, or a power loss, may bring back."""
        return {name: self._manager.metadata.topics.topic(name).topic_id for name in names}

    def _state_record(self, transactional_id: str, value: TransactionValue) -> bytearray:
        key = pack_key(transactional_id)
        return scalar.encode([(key, pack_value(value))], value.last_update_ms)

    def _decide(self, decided: LogState) -> LogState:
        """Write the commit point, the state of __transaction_state that makes the data visible to readers."""
        partition = self._transaction_state
        return partition.publish_locked(decided, flush=self._flush)

    def _flip(
        self, states: Mapping[TopicPartition, Mapping[int, LogState]], *, flush: bool
    ) -> None:
        """Write each partition's new log state, which shows a decided commit's batches; may be repeated."""
        for topic_partition, by_node in sorted(states.items()):
            self._manager.partition(topic_partition).flip_locked(by_node, flush=flush)

    def _complete(self, prepared: Prepared) -> bool:
        """Mark the commit complete; return False if the leader changed since CompleteCommit was written."""
        if prepared.completed is None:
            return False
        completed = prepared.completed._replace(sequence=prepared.decided.sequence + 1)
        partition = self._transaction_state
        try:
            partition.publish_locked(completed, flush=self._flush)
        except (OSError, KafkaStorageError):
            if partition.only_log is not None:
                raise
            return False
        return True

    def _maybe_rewrite(self) -> None:
        """Keep __transaction_state small; failures are logged, and tried again later."""
        with _failing_alone(f"{TRANSACTION_STATE} cannot be rewritten"):
            self._sequences.maybe_rewrite(
                now_ms=expiring_ms(self._now_ms()), expiration_ms=self._id_expiration_ms
            )

    def _roll_forward_locked(
        self,
        *,
        deadline: float | None = None,
        is_there: Callable[[TopicPartition, Mapping[int, LogState]], bool] | None = None,
    ) -> None:
        partition = self._transaction_state
        leader = partition.ready_locked(flush=self._flush)
        if not leader.state.has_pending_commit:
            return
        pending = _pending(leader)
        states = pending.value.states_in(self._manager.is_current)
        if is_there is not None:
            dropped = [tp for tp, by_node in states.items() if not is_there(tp, by_node)]
            states = {tp: by_node for tp, by_node in states.items() if tp not in dropped}
            if dropped:
                logger.error(
                    "the commit of %s is dropped in %s, where its data is not there",
                    pending.transactional_id, ", ".join(map(str, sorted(dropped))),
                )  # fmt: skip
        logger.warning(
            "finishing the commit of %s, whose committer died", ", ".join(map(str, sorted(states)))
        )
        # The committer may have died before the commit point was on disk. If a flip got there first, a
        # power loss could leave the commit in that partition alone.
        with partition.leading_locked() as log:
            log.flush_state()
        with self._manager.locks.partitions(states, deadline=deadline):
            self._flip(states, flush=True)
        sequence = pending.value.sequence
        if sequence != NO_TRANSACTION_SEQUENCE:
            self._sequences.save(pending)
        # CompleteCommit's bytes are past the end since before the commit point. They are overwritten in
        # place, not discarded first, so that a full disk cannot stop this.
        now_ms = self._now_ms()
        with partition.leading_locked() as log:
            appender = LogAppender(log, leader.state, now_ms=now_ms)
            complete = pending.value._replace(
                status=COMPLETE_COMMIT, states={}, last_update_ms=now_ms, topic_ids={}
            )
            appender.append(self._state_record(pending.transactional_id, complete))
            completed = appender.finish(flush=True)
        # On disk, as what was decided is: the commit would be finished again after a power loss, in topics that
        # may be gone by then.
        partition.publish_locked(completed, flush=True)


def _is_taken(name: str, *, by_mirror: bool) -> ConfigError:
    return ConfigError(
        f"{name!r} is the name of a mirror into this cluster, so it cannot be a job's txnAppId too: give the job "
        "another one"
        if by_mirror
        else f"{name!r} is the txnAppId of a job that writes to this cluster, so it cannot be a mirror's name too: "
        "give the mirror another one (--name)"
    )


def _log_end(states: Mapping[int, LogState]) -> int:
    return next(iter(states.values())).log_end_offset


@contextlib.contextmanager
def _failing_alone(what: str) -> Iterator[None]:
    """Log what fails in here as a warning: it does not change the job's outcome."""
    try:
        yield
    except Exception as error:
        logger.warning(
            "%s for now: %s",
            what,
            str(error) or repr(error),
            exc_info=not isinstance(error, (OSError, KBatchError)),
        )


def _pending(replica: Replica) -> Transaction:
    # It may lie above the high watermark: placed, but not copied to all replicas.
    state = replica.state
    written = replica._replace(state=state._replace(high_watermark=state.log_end_offset))
    return next(transactions(written, state.prepare_offset))
