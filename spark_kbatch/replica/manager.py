"""The partitions of a cluster: appends, fetches and deletions of records.

Lock order (see `locks`): commit, metadata, partitions by (topic, partition).

Easily broken:
- A state that is read may be older than a commit that is decided but not yet flipped. Every reader goes
  through the function given as `replicas`, which looks for such commits; only writers, which hold the
  partition's lock and have rolled forward, read a log's own state.
- A writer that has taken a partition's lock first looks for a commit that was decided there and is not
  complete: its committer is dead, or has flipped this partition already. Its data lies where new data
  would go, or where an out-of-sync replica is truncated, and its state has the sequence number that the
  next state would take. Rolling forward takes the commit lock, so the partition's is released first.
  `Locks.partitions` does all that, for all writers but committers.
- Another process may delete, recreate or alter a topic at any time, but only with the locks of all its
  partitions. So every writer asks for `partition` again once it holds the lock.
- `__transaction_state` is written under the commit lock, never by `append_records`.
- A process that writes into a log dir holds its `.lock` shared (see `writing`), so that no broker starts
  on it meanwhile.

For a server, whose clients append to many partitions, some of them locked for seconds by a commit:
- One call for each partition, from a queue of that partition: so its batches keep their order, and at most
  one thread at a time is busy with it. If several batches wait there, `check` looks at each and
  `append_together` appends as many as one state can show.
- `lock_timeout_ms=0`: nothing is waited for. A LockTimeoutError says that another holds the lock and that
  nothing is written; the thread serves other partitions, and a timer has the queue tried again. Before
  that, taking the lock alone tells whether it is free, without checking the batch again.
- The time that a client gives is the queue's to count, from when the request came. What is left of it is
  `timeout_ms`, which limits the wait for replicas; those are waited for without a thread.
- Batches are checked, decompressed too, before a lock is taken: threads do that side by side.

Source: Kafka core/.../server/ReplicaManager.scala.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from spark_kbatch import mutexes
from spark_kbatch.catalog.deletions import Deletions
from spark_kbatch.catalog.log_dirs import LogDirs
from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.clock import latest_ms, monotonic_ms, monotonic_s
from spark_kbatch.errors import (
    CorruptRecordError,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    KafkaStorageError,
    KBatchError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    without_frames,
)
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log import overwritten, retention
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState, read_high_watermarks
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.log.validator import Accepted, accept
from spark_kbatch.meters import BrokerTopicMetrics
from spark_kbatch.model import (
    LATEST,
    LONG_MAX,
    AppendOrigin,
    AppendResult,
    LogOffsets,
    OnAppended,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.topic import (
    TRANSACTION_STATE_TOPIC,
    Topic,
    ensure_not_internal,
    partitions_of,
)
from spark_kbatch.record.header import BatchHeader, LogRead
from spark_kbatch.replica.delayed_fetch import (
    DelayedFetch,
    Fetch,
    FetchInfo,
    FetchParams,
    FetchPurgatory,
    FetchResult,
    OnFetched,
    Room,
    WatchedLogs,
)
from spark_kbatch.replica.locks import Commits, Locks
from spark_kbatch.replica.partition import Appended, Partition
from spark_kbatch.replica.purgatory import DelayedProduce, Purgatory
from spark_kbatch.replica.view import Replica, Replicas
from spark_kbatch.store.reports import DeletedTopic, Deletion, Waiting

logger = logging.getLogger(__name__)

RETENTION_CHECK_INTERVAL_MS = 300_000  # Kafka's log.retention.check.interval.ms

# How long to wait for the lock of one of several partitions before the next one is tried.
_LOCK_PATIENCE_S = 0.05

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1

# Raises the error that a transactional batch for a partition, and the id of its topic, gets; does not wait.
EnsureInTransaction: TypeAlias = Callable[[BatchHeader, TopicPartition, str], None]


class ReplicaManager:
    """The manager of a cluster's partitions: appends, fetches and deletes records.

    It is thread-safe.
    """

    def __init__(
        self,
        files: Files,
        metadata: Metadata,
        now_ms: Callable[[], int],
        *,
        monotonic_ms: Callable[[], int] = monotonic_ms,
        uses_threads: bool = True,
    ) -> None:
        """Set up; without `uses_threads` no thread is started, and callers run the purgatories' `look`."""
        self.files, self.metadata = files, metadata
        self.now_ms, self.monotonic_ms, self.uses_threads = now_ms, monotonic_ms, uses_threads
        self.topic_metrics = BrokerTopicMetrics()
        self.ensure_in_transaction: EnsureInTransaction = _no_transactions  # set by a server
        self.locks = Locks(files, metadata.paths.locks_dir)
        self.dirs = LogDirs(files, metadata.cluster_file, monotonic_ms)
        self.deletions = Deletions(files, metadata.deleted, metadata.cluster_file, self.dirs)
        self._mutex: threading.Lock  # guards changes of _partitions; innermost
        mutexes.make(self, "_mutex")
        self._partitions: dict[TopicPartition, Partition] = {}
        # The mirrors that took no refresh, and how the copies of cluster.json looked then.
        self._lacking: tuple[object, list[Path]] = None, []
        # When an append last looked at retention; of each partition under its lock.
        self._retention_checked_ms: dict[TopicPartition, int] = {}
        self.delayed_fetches = FetchPurgatory(
            monotonic_ms,
            WatchedLogs(files, metadata.paths, self.all_of),
            has_thread=uses_threads,
        )
        self.delayed_produces: Purgatory[TopicPartition, DelayedProduce] = Purgatory(
            monotonic_ms, has_thread=uses_threads
        )

    # Partitions.

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the object for a partition of the topic that has this name now.

        It stays the same for the holder of the partition's lock: a topic is deleted, recreated or altered
        by one that holds the locks of all its partitions.

        Raises:
            UnknownTopicOrPartitionError: no such topic, or fewer partitions.
        """
        found = self._partitions.get(topic_partition)
        if found is not None and found.topic is self.metadata.topics.find(topic_partition.topic):
            return found
        return self.all_of([topic_partition])[topic_partition]

    def all_of(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        """Return the objects for several partitions, looking up each topic once; raises as `partition`."""
        wanted = list(topic_partitions)
        try:
            topics = {
                name: self.metadata.topics.topic(name) for name in {tp.topic for tp in wanted}
            }
        except UnknownTopicOrPartitionError:
            self.forget_deleted(wanted)
            raise
        found = {tp: self._partitions.get(tp) for tp in wanted}
        known = {
            tp: one
            for tp, one in found.items()
            if one is not None and one.topic is topics[tp.topic]
        }
        return known if len(known) == len(found) else self._renewed(wanted)

    def unknown(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Exception]:
        """Return those of the partitions that do not exist or whose topic cannot be looked up, with the error.

        Each topic is looked up once, and its partitions share an error: a request that names many which do
        not exist costs little.
        """
        topics: dict[str, Topic | Exception] = {}
        too_high: dict[str, Exception] = {}
        found: dict[TopicPartition, Exception] = {}
        for tp in topic_partitions:
            name = tp.topic
            topic = topics.get(name)
            if topic is None:
                try:
                    topic = self.metadata.topics.existing(name)
                except (OSError, KBatchError) as error:
                    topic = without_frames(error)
                topics[name] = topic
            if isinstance(topic, Exception):
                found[tp] = topic
            elif not 0 <= tp.partition < topic.partitions:
                if name not in too_high:
                    too_high[name] = UnknownTopicOrPartitionError(
                        f"topic {name!r} has partitions 0 to {topic.partitions - 1} only"
                    )
                found[tp] = too_high[name]
        return found

    def forget_deleted(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Drop the cached objects of those partitions whose topic no longer exists."""
        with self._mutex:
            for tp in topic_partitions:
                if tp in self._partitions and self.metadata.topics.find(tp.topic) is None:
                    del self._partitions[tp]
                    self._retention_checked_ms.pop(tp, None)

    def _renewed(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Partition]:
        with self._mutex:
            # Topics are looked up again, so that of two threads the later one has the newer topic: the
            # partition that the holder of its lock has is not replaced.
            topics = {
                name: self.metadata.topics.topic(name) for name in {tp.topic for tp in wanted}
            }
            found = {}
            for tp in wanted:
                topic, one = topics[tp.topic], self._partitions.get(tp)
                if not 0 <= tp.partition < topic.partitions:
                    raise UnknownTopicOrPartitionError(
                        f"partition {tp} does not exist: topic {topic.name!r} has partitions 0 to "
                        f"{topic.partitions - 1}"
                    )
                if one is None or not one.is_of(topic):
                    # What is remembered of a topic that was recreated or altered no longer holds.
                    one = self._partitions[tp] = self._new(tp, topic)
                one.topic = topic
                found[tp] = one
            return found

    def _new(self, topic_partition: TopicPartition, topic: Topic) -> Partition:
        logs: dict[int, PartitionLog] = {}

        def log_of(node_id: int) -> PartitionLog:
            log = logs.get(node_id)
            if log is None:
                directory = self.metadata.cluster_file.log_directory(topic_partition, node_id)
                # One for all threads: it knows the partition's producers.
                log = logs.setdefault(
                    node_id,
                    PartitionLog(self.files, directory, topic_partition, topic.known_config),
                )
            return log

        return Partition(
            topic_partition, topic, self.metadata.partition_states, self.dirs, log_of, self.now_ms,
            stale_mirrors=self._stale_mirrors, lacking_mirrors=self._lacking_mirrors,
            uses_threads=self.uses_threads,
        )  # fmt: skip

    def _stale_mirrors(self) -> list[Path]:
        """Bring what mirrors have missed there, and return those that still lack some.

        The caller may hold locks that come after the metadata lock, so that is not waited for.
        """
        json_files = self.metadata.json_files
        stale = json_files.stale_mirrors()
        if stale:
            with contextlib.suppress(OSError, LockTimeoutError, KafkaStorageError):
                with self.locks.metadata(deadline=monotonic_s()):
                    return json_files.refresh()
        return stale

    def _lacking_mirrors(self) -> list[Path]:
        """Bring what mirrors have missed there, and return those that do not take it.

        While another process changes files nothing is known of that.
        """
        json_files = self.metadata.json_files
        with contextlib.suppress(OSError, LockTimeoutError, KafkaStorageError):
            looked_at = json_files.look()
            if looked_at != self._lacking[0]:
                lacking: list[Path] = []
                if not json_files.are_equal():
                    with self.locks.metadata(deadline=monotonic_s()):
                        lacking = json_files.refresh()
                self._lacking = looked_at, lacking
            return self._lacking[1]
        return []

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order."""
        return partitions_of(self.metadata.topics.topic(topic))

    def replica(self, topic_partition: TopicPartition) -> Replica:
        """Return a partition's replica to read: its leader, or a stand-in if that cannot be read or lost records.

        Its state may miss a decided commit.

        Raises:
            UnknownTopicOrPartitionError: no such topic, or fewer partitions.
            KafkaStorageError: no replica can be read.
        """
        return self.partition(topic_partition).view.readable()

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return the log of a partition's replica to read; raises as `replica`."""
        view = self.partition(topic_partition).view
        if view.only_log is not None:
            return view.usable_only_log(to_write=False)
        return view.readable().log

    def quick_high_watermarks(
        self, topic: str, besides: Container[int]
    ) -> list[tuple[int, int | None]]:
        """Return the high watermarks of a topic's partitions, except `besides`, with few reads.

        They come with the partitions' numbers; None stands for one that only `replica` can tell.
        """
        found = self.metadata.topics.topic(topic)
        others = [number for number in range(found.partitions) if number not in besides]
        if found.replication_factor > 1:
            return [(number, None) for number in others]
        starts = [f"{one.path}/{topic}-" for one in self.dirs.all]
        nodes = [found.replicas[number][0] if found.replicas else 0 for number in others]
        directories = [
            f"{starts[node]}{number}" for node, number in zip(nodes, others, strict=True)
        ]
        ends = read_high_watermarks(self.files, directories)
        usable = {node for node in set(nodes) if self.dirs.is_used(node)}
        return [
            (number, end if node in usable else None)
            for node, number, end in zip(nodes, others, ends, strict=True)
        ]

    # Locks.

    def writing(self, nodes: Collection[int] | None = None) -> AbstractContextManager[None]:
        """Keep brokers out of the log dirs while this process writes into them.

        Args:
            nodes: whose log dirs it writes to; by default all.

        Entering it raises:
            LogDirLockedError: a broker is in.
            KafkaStorageError: PATH is an old one.
        """
        if nodes is None:
            nodes = range(len(self.dirs.all))
        if len(nodes) != 1:
            return self._writing_to(sorted(nodes))
        (node,) = nodes
        log_dir = self.metadata.cluster_file.log_dir(node)
        shared = self.locks.log_dir(log_dir.path, functools.partial(self.dirs.ensure_ours, log_dir))
        return self._writing_here(shared) if self.metadata.json_files.mirrors.folders else shared

    @contextlib.contextmanager
    def _writing_to(self, nodes: Iterable[int]) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for node_id in nodes:
                if self.dirs.is_online(node_id):
                    log_dir = self.metadata.cluster_file.log_dir(node_id).path
                    try:
                        held.enter_context(self.locks.log_dir(log_dir))
                    except OSError as error:
                        self.dirs.failed(node_id, error)
            # With the locks held: who restores PATH elsewhere holds them exclusively.
            self.metadata.json_files.ensure_newest()
            yield

    @contextlib.contextmanager
    def _writing_here(self, shared: AbstractContextManager[None]) -> Iterator[None]:
        with shared:
            self.metadata.json_files.ensure_newest()
            yield

    @contextlib.contextmanager
    def locked(
        self,
        topic_partitions: Collection[TopicPartition],
        commits: Commits,
        *,
        flush: bool = True,
        deadline: float | None = None,
    ) -> Iterator[dict[TopicPartition, Replica]]:
        """Hold the locks of partitions to write to them; yield their leaders.

        A commit that was decided but not flipped in one of them is finished first. Of several replicas
        one leads then, and the others are equal to it or not in sync. The caller keeps brokers out, see
        `writing`.
        """
        with self.locks.partitions(topic_partitions, commits, deadline=deadline):
            partitions = self.all_of(topic_partitions)
            yield {tp: one.ready_locked(flush=flush) for tp, one in partitions.items()}

    # Appends.

    def append_records(
        self,
        *,
        timeout_ms: int,
        required_acks: int,
        entries_per_partition: Mapping[TopicPartition, Buffer],
        on_complete: OnAppended,
        flush: bool,
        commits: Commits,
        internal_topics_allowed: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        lock_timeout_ms: int | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Append record batches to several partitions; a failure of one does not stop the others.

        Args:
            timeout_ms: how long an answer may wait: for partitions' locks, and then for replicas.
                A partition whose lock is held by others does not stop those whose lock is free.
            required_acks: -1 to wait until all in-sync replicas have the batch; 0 or 1 for the
                leader alone: the others get it after the answer, before this returns. With one
                replica they are the same.
            entries_per_partition: one whole batch each; of a CLIENT also a run, see `accept`, which is
                appended as a whole or not at all. Not referenced after the return, and only read unless
                it is a run.
            on_complete: called once, with no lock held, with an answer for each partition: before
                this returns, or later by another thread if it has to wait for replicas. An
                answer's `error` is what was wrong with that batch, or a RetriableError: then
                a retry is safe for an idempotent producer.
            flush: whether batches are on disk before they are answered.
            commits: the commits of this cluster. One that a dead process left unfinished is finished first.
            internal_topics_allowed: whether the cluster's own topics are accepted.
            origin: where the batches come from.
            lock_timeout_ms: how long to wait for locks, if less than `timeout_ms`. What is not
                written by then is answered with a LockTimeoutError.
            topic_ids: of the topics that are meant, by partition: a batch for a topic that was
                recreated is answered with an UnknownTopicOrPartitionError. By default the topics
                that have these names now are meant.
        Source: ReplicaManager.appendRecords.
        """
        if required_acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            refused = _answer(InvalidRequiredAcksError(required_acks))
            on_complete(dict.fromkeys(sorted(entries_per_partition), refused))
            return
        wait_ms = timeout_ms if lock_timeout_ms is None else min(timeout_ms, lock_timeout_ms)
        deadline = monotonic_s() + wait_ms / 1000
        appended: dict[TopicPartition, Appended] = {}
        accepted: dict[TopicPartition, tuple[Partition, Accepted]] = {}
        # All batches are checked before the first lock is taken.
        for tp in sorted(entries_per_partition):
            try:
                if not internal_topics_allowed:
                    ensure_not_internal(tp.topic)
                partition = self.partition(tp)
                batch = accept(
                    entries_per_partition[tp],
                    tp,
                    partition.config,
                    origin,
                    now_ms=latest_ms(self.now_ms()),
                )
                accepted[tp] = partition, batch
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
                        until = min(monotonic_s() + patience_s, deadline)
                        appended[tp] = append(*accepted[tp], deadline=until)
                    if monotonic_s() >= deadline:
                        break
                    waiting = [tp for tp in waiting if _is_locked(appended[tp])]
                    patience_s = _LOCK_PATIENCE_S if len(waiting) > 1 else math.inf
        except (OSError, KBatchError) as error:
            appended |= {tp: Appended(_answer(self.or_offline(tp, error))) for tp in accepted}
        batches = {tp: batch for tp, (_, batch) in accepted.items()}
        self._count(
            [(one, batches.get(tp)) for tp, one in appended.items()]
        )  # before the answer, after which the metrics are to have it
        self._answer_or_wait(appended, required_acks, timeout_ms, on_complete, commits)
        for topic_partition, (result, is_decided, *_) in appended.items():
            if result.error is not None:
                continue
            if not is_decided:
                self.replicate([topic_partition], commits, flush=flush, deadline=deadline)
            self.delayed_produces.check_and_complete(topic_partition)
            self.delayed_fetches.check_and_complete(topic_partition)

    def _count(self, tried: Iterable[tuple[Appended, Accepted | None]]) -> None:
        """Count appended and refused batches in the metrics; not those that met a lock, and are tried again."""
        tried = [(appended, batch) for appended, batch in tried if not _is_locked(appended)]
        written = [
            batch.header
            for appended, batch in tried
            if batch is not None and appended.result.error is None
        ]
        self.topic_metrics.appended(
            sum(header.records_count for header in written if not header.is_control),
            sum(header.size_in_bytes for header in written),
            batches=len(tried),
            failed=len(tried) - len(written),
        )

    def _answer_or_wait(
        self,
        appended: Mapping[TopicPartition, Appended],
        required_acks: int,
        timeout_ms: int,
        on_complete: OnAppended,
        commits: Commits,
    ) -> None:
        """Answer an append, or with acks=all have it wait until the in-sync replicas have the records."""
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
                decided, error = partition.view.reaches(one.required_offset, one.leader_epoch)
                if not decided and partition.view.may_join():
                    soon = monotonic_s() + _LOCK_PATIENCE_S
                    self.replicate([tp], commits, flush=True, deadline=soon)
            except (OSError, KBatchError) as failure:  # the topic was deleted, or a disk fails
                return True, failure
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
        """Let the usable followers of these partitions catch up with their leaders.

        An error is only logged: it is not the caller's, and the next append meets it again.
        """
        for topic_partition in topic_partitions:
            try:
                locked = self.locked([topic_partition], commits, flush=flush, deadline=deadline)
                with self.writing(), locked:
                    pass  # Taking the locks replicates first.
            except (OSError, KBatchError) as error:
                logger.warning("cannot replicate %s for now: %s", topic_partition, error)

    def _append_one(
        self,
        partition: Partition,
        batch: Accepted,
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
                if current is not partition:  # The topic was recreated, or altered.
                    partition = current
                    batch = accept(
                        batch.data,
                        topic_partition,
                        current.config,
                        origin,
                        now_ms=latest_ms(self.now_ms()),
                    )
                wanted_id = topic_ids.get(topic_partition, partition.topic.topic_id)
                ensure_same_topic(topic_partition, wanted_id, partition.topic.topic_id)
                if batch.header.is_transactional and origin is AppendOrigin.NETWORK:
                    # Now, as the batch may have waited: 1. it is queued. 2. Its transaction times out, which
                    # is decided. 3. The marker is queued behind it, or is in the log already.
                    self.ensure_in_transaction(
                        batch.header, topic_partition, partition.topic.topic_id
                    )
                try:
                    appended = partition.append_locked(
                        batch, origin=origin, required_acks=required_acks, flush=flush
                    )
                except (OSError, KafkaStorageError) as error:
                    why = self._of_log(partition, error)
                    if why is not error:
                        raise why from error
                    raise
                if partition.config.has_retention:
                    self._maybe_delete_old_segments(partition)
                return appended
        except CorruptRecordError as error:
            return Appended(_answer(self._of_log(partition, error)))
        except (OSError, KBatchError) as error:
            return Appended(_answer(error))

    def check(
        self, topic_partition: TopicPartition, data: Buffer
    ) -> tuple[Partition, Accepted] | None:
        """Check a network client's batch for `append_together`; None if the partition has several replicas.

        Raises:
            As `accept`; UnknownTopicOrPartitionError.
        """
        partition = self.partition(topic_partition)
        if partition.only_log is None:
            return None
        config, now_ms = partition.config, latest_ms(self.now_ms())
        origin = AppendOrigin.NETWORK
        return partition, accept(data, topic_partition, config, origin, now_ms=now_ms)

    def append_together(
        self,
        topic_partition: TopicPartition,
        checked: Sequence[tuple[Partition, Accepted]],
        *,
        on_complete: Callable[[list[AppendResult]], object],
        flush: bool,
        commits: Commits,
    ) -> int:
        """Append batches of several network clients to a partition under one lock, each for itself.

        That is faster than one by one, above all with `flush`. As many are taken as one state can show.

        Args:
            checked: by `check`.
            on_complete: called once with the answers of those that were taken, from the first on, if there
                are any; no lock is held.

        Returns:
            How many were taken. `append_records` is for the next one: it also waits for locks, starts
            segments and says what is wrong.
        """
        results: list[AppendResult] = []
        partition = checked[0][0]
        try:
            with (
                self.writing(partition.replicas),
                self.locks.partitions([topic_partition], commits, deadline=monotonic_s()),
            ):
                current = self.partition(topic_partition)  # it may have been recreated, or altered
                batches = [batch for of, batch in checked if of is current]
                if len(batches) == len(checked):
                    results = partition.append_together_locked(
                        batches,
                        flush=flush,
                        answer=lambda error: _answer(self._of_log(partition, error)),
                    )
                    if partition.config.has_retention:
                        self._maybe_delete_old_segments(partition)
        except (OSError, KBatchError) as error:
            # Without results nothing is written: `append_records` meets it again, and answers with it.
            if results:
                logger.warning("after appends to %s: %s", topic_partition, error)
        if results:
            tried = zip(map(Appended, results), checked, strict=False)
            self._count((appended, batch) for appended, (_, batch) in tried)
            on_complete(results)
            self.delayed_fetches.check_and_complete(topic_partition)
        return len(results)

    def _of_log(self, partition: Partition, error: Exception) -> Exception:
        """Return the error that producers get for one of a log, whose batches are sound."""
        topic_partition = partition.topic_partition
        if not isinstance(error, (OSError, KBatchError)):
            return error
        if isinstance(error, CorruptRecordError):
            damaged = KafkaStorageError(f"{topic_partition} cannot be appended to: {error}")
            damaged.__cause__ = error
            return _damaged(damaged)
        why = self.or_offline(topic_partition, error)
        if why is error and isinstance(error, KafkaStorageError) and partition.only_log is not None:
            _damaged(error)
        return why

    def or_offline(
        self, topic_partition: TopicPartition, error: OSError | KBatchError
    ) -> OSError | KBatchError:
        """Return an error of a partition; if its only replica is on an offline log dir, one that says so.

        That one is transient: the disk may be mounted again.
        """
        if not isinstance(error, (OSError, KafkaStorageError)):
            return error
        try:
            (node_id, *others) = self.partition(topic_partition).replicas
        except (OSError, KBatchError):  # its topic was deleted, or PATH is gone
            return error
        why = None if others else self.dirs.offline(node_id)
        if why is None:
            return error
        offline = KafkaStorageError(f"{topic_partition} cannot be used: its only replica on {why}")
        offline.__cause__ = error
        return offline

    # Deletions.

    def delete_old_segments(
        self,
        topic_partitions: Iterable[TopicPartition],
        commits: Commits,
        *,
        discard: bool = False,
        skip_deleted: bool = False,
        skipped: dict[TopicPartition, str] | None = None,
    ) -> dict[TopicPartition, Deletion]:
        """Delete expired segments, and files whose deletion is due; partition by partition.

        Args:
            topic_partitions: whose.
            commits: the commits of this cluster.
            discard: whether to remove what dead writers left past the ends of logs, too; not of
                `__transaction_state`.
            skip_deleted: whether a partition whose topic was deleted meanwhile is no error.
            skipped: if given, a partition that cannot be used is no error either: it is added here, with
                the reason.
        Source: LogManager.cleanupLogs.
        """
        done = {}
        with self.writing():
            for topic_partition in sorted(topic_partitions):
                try:
                    with self.locked([topic_partition], commits):
                        partition = self.partition(topic_partition)
                        done[topic_partition] = partition.delete_old_segments_locked(
                            expiring_ms(self.now_ms())
                        )
                        # The lock of __transaction_state is the commit lock: a commit may be writing to it.
                        if discard and topic_partition.topic != TRANSACTION_STATE_TOPIC:
                            partition.discard_unrecorded_locked()
                except UnknownTopicOrPartitionError:
                    if not skip_deleted:
                        raise
                except (OSError, KafkaStorageError, CorruptRecordError) as error:
                    if skipped is None:
                        raise
                    skipped[topic_partition] = str(self.or_offline(topic_partition, error))
        return done

    def planned_removals(self) -> list[DeletedTopic]:
        """Return the deleted topics whose directories `remove_deleted_topics` would remove."""
        now_ms = expiring_ms(self.now_ms())
        return [
            one
            for one in self.deletions.due(now_ms)
            if any(self.deletions.is_due(one, node, now_ms) for node in one.nodes)
        ]

    def remove_deleted_topics(self, directories_max: int = LONG_MAX) -> list[DeletedTopic]:
        """Remove files of deleted topics whose delay is over; return the topics of which nothing is left.

        Holds the metadata lock only while it changes what is known of the deleted topics.

        Args:
            directories_max: how many directories to remove at most.
        """
        now_ms = expiring_ms(self.now_ms())
        due = self.deletions.due(now_ms)
        if not due:
            return []
        with self.writing():
            if any(self.dirs.is_used(node) for deleted in due for node in deleted.named):
                with self.locks.metadata():
                    self.deletions.continue_locked()
            done = self.deletions.remove(now_ms, directories_max)
            if not done:
                return []
            with self.locks.metadata():
                return self.deletions.forget_locked(done)

    def _maybe_delete_old_segments(self, partition: Partition) -> None:
        """Delete old segments from time to time. An error is only logged: it is not the append's."""
        topic_partition = partition.topic_partition
        checked_ms = self._retention_checked_ms.get(topic_partition)
        elapsed_ms = self.monotonic_ms()
        if checked_ms is not None and elapsed_ms - checked_ms < RETENTION_CHECK_INTERVAL_MS:
            return
        self._retention_checked_ms[topic_partition] = elapsed_ms
        try:
            partition.delete_old_segments_locked(expiring_ms(self.now_ms()))
        except (OSError, KBatchError) as error:
            logger.warning("cannot delete old segments of %s for now: %s", topic_partition, error)

    def planned_deletions(
        self, topic_partitions: Iterable[TopicPartition], replicas: Replicas
    ) -> dict[TopicPartition, Deletion]:
        """Return what `delete_old_segments` would do; change nothing."""
        now_ms = expiring_ms(self.now_ms())
        found = replicas(topic_partitions)
        return {tp: retention.plan(log, state, now_ms) for tp, (_, log, state) in found.items()}

    def waiting(
        self, topic_partitions: Iterable[TopicPartition], replicas: Replicas
    ) -> list[Waiting]:
        """Return what was overwritten or deleted here, and deleted topics, whose files are kept for now."""
        now_ms = expiring_ms(self.now_ms())
        segments = [
            one
            for _, log, state in replicas(topic_partitions).values()
            for one in (
                retention.waiting_overwritten(log, state, now_ms),
                retention.waiting_files(log, now_ms),
            )
        ]
        return [*(one for one in segments if one is not None), *self.deletions.waiting(now_ms)]

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        commits: Commits,
        *,
        deadline: float | None = None,
    ) -> dict[TopicPartition, Deletion]:
        """Delete all records below these offsets, or none; LATEST is the high watermark.

        Raises:
            OffsetOutOfRangeError: an offset is above a high watermark.
            LockTimeoutError: a lock was not free by the deadline, a time of `clock.monotonic_s`.
        Source: ReplicaManager.deleteRecords.
        """
        locked = self.locked(sorted(offsets), commits, deadline=deadline)
        with self.writing(), locked as leaders:
            wanted = {
                tp: leaders[tp].state.high_watermark if offset == LATEST else offset
                for tp, offset in offsets.items()
            }
            for tp, (_, log, state) in leaders.items():
                retention.ensure_deletable(log, state, wanted[tp])
            now_ms = self.now_ms()
            return {
                tp: self.partition(tp).delete_records_locked(wanted[tp], now_ms) for tp in leaders
            }

    # Fetches.

    def fetch(
        self,
        topic_partition: TopicPartition,
        asked: ReadRange,
        *,
        replicas: Replicas,
        seen: Replica | None = None,
    ) -> tuple[LogRead, LogOffsets]:
        """Fetch whole batches of a partition from the one that holds an offset on; also return log offsets.

        Args:
            topic_partition: where to read.
            asked: what to read.
            replicas: how the caller sees partitions.
            seen: what `replicas` returned before: nothing is returned that was not there then. By
                default `replicas` is called now.

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
            if seen is not None and replica is not seen:
                state = _as_of(seen.state, state)
            try:
                read = log.read(state, asked)
                self.topic_metrics.fetched(len(read.data))
                return read, state.offsets
            except (OSError, KafkaStorageError, CorruptRecordError) as error:
                # 1. We read the state. 2. The log start is moved, and segments below it are renamed.
                # 3. We look for the one that held the offset.
                start, end = replicas([topic_partition])[topic_partition].state[1:3]
                if start > asked.offset:
                    raise OffsetOutOfRangeError(
                        str(topic_partition), asked.offset, start, end
                    ) from None
                if partition.only_log is not None:
                    raise
                partition.view.failed(node_id, error)
                failed[node_id] = error

    def fetch_overwritten(
        self, topic_partition: TopicPartition, asked: ReadRange, *, replicas: Replicas
    ) -> tuple[LogRead, LogOffsets]:
        """Fetch records below the log start that a commit has overwritten, for a read planned before it.

        Raises:
            OffsetOutOfRangeError: it was not overwritten, or its files are gone; names the commit.
        """
        _, log, state = replicas([topic_partition])[topic_partition]
        found = overwritten.find(log.files, log.directory, state, asked.offset)
        if found is not None:
            seen = state._replace(log_start_offset=found.start_offset)
            try:
                return log.read(seen, asked), state.offsets
            except (FileNotFoundError, KafkaStorageError):
                pass
        start, end = state.log_start_offset, state.high_watermark
        why = "" if found is None else found.why_gone
        raise OffsetOutOfRangeError(str(topic_partition), asked.offset, start, end, why=why)

    def why_gone(self, topic_partition: TopicPartition, offset: int, *, replicas: Replicas) -> str:
        """Return which commit has overwritten an offset; empty if none has."""
        _, log, state = replicas([topic_partition])[topic_partition]
        found = overwritten.find(log.files, log.directory, state, offset)
        return "" if found is None else found.why_gone

    def fetch_messages(
        self,
        params: FetchParams,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        on_complete: OnFetched,
        *,
        replicas: Replicas,
        room: Room | None = None,
    ) -> None:
        """Fetch whole batches of several partitions, waiting up to `max_wait_ms` for `min_bytes`.

        Args:
            params: limits, and which records are seen.
            fetch_infos: by partition, in the order in which they are read.
            on_complete: called once, with no lock held, with a result for each partition; before
                this returns, or later by another thread.
            replicas: how the caller sees partitions.
            room: returns how many bytes may be read at that moment, besides the first batch; asked
                only if the fetch had to wait. One commit may end the wait of many.
        Source: ReplicaManager.fetchMessages.
        """

        def read_replica(
            topic_partition: TopicPartition, asked: ReadRange, seen: Replica
        ) -> tuple[LogRead, LogOffsets]:
            return self.fetch(topic_partition, asked, replicas=replicas, seen=seen)

        unknown = self.unknown(fetch_infos)
        if unknown:
            known = {tp: info for tp, info in fetch_infos.items() if tp not in unknown}
        else:
            known = dict(fetch_infos)
        names = {tp.topic for tp in known}
        ids = {name: self._topic_id_of(name) for name in names}
        wanted_ids = {tp: info.topic_id or ids[tp.topic] for tp, info in known.items()}

        def ensure_same(topic_partition: TopicPartition) -> None:
            found_id = self.metadata.topics.topic(topic_partition.topic).topic_id
            ensure_same_topic(topic_partition, wanted_ids[topic_partition] or found_id, found_id)

        fetch = Fetch(params, known, replicas, read_replica, ensure_same)
        version = self.delayed_fetches.version
        moment = fetch.look()
        results = fetch.read(moment)
        if unknown or fetch.may_answer(results):
            errors = {error: FetchResult(error=error) for error in set(unknown.values())}
            on_complete(
                {tp: errors[unknown[tp]] if tp in unknown else results[tp] for tp in fetch_infos}
            )
        else:
            delayed = DelayedFetch(
                fetch,
                moment,
                on_complete,
                room,
                is_unchanged=lambda: self.delayed_fetches.version == version,
            )
            self.delayed_fetches.try_complete_else_watch(delayed, known)

    def is_current(self, name: str, topic_id: str) -> bool:
        """Return False if the topic with this id was deleted; True also if its file is lost or cannot be read."""
        topics = self.metadata.topics
        try:
            topic = topics.find(name)
            if topic is None:
                return not topics.was_deleted(name) and topics.has_logs(name)
        except (OSError, KBatchError):
            return True
        return topic_id == topic.topic_id

    def _topic_id_of(self, name: str) -> str:
        """Return the id of the topic with a name; empty if it cannot be found, which its fetch reports."""
        try:
            return self.metadata.topics.existing(name).topic_id
        except (OSError, KBatchError):
            return ""


def _as_of(before: LogState, state: LogState) -> LogState:
    """Return a log state whose high watermark and last stable offset are not above those of `before`."""
    high_watermark = min(state.high_watermark, before.high_watermark)
    stable = min(state.last_stable_offset, before.last_stable_offset)
    return state._replace(high_watermark=high_watermark, last_stable_offset=stable)


def ensure_same_topic(topic_partition: TopicPartition, wanted_id: str, found_id: str) -> None:
    """Check that a partition's topic still has the expected id, so was not deleted and recreated.

    Raises:
        UnknownTopicOrPartitionError: it is of another topic of the same name.
    """
    if found_id != wanted_id:
        raise UnknownTopicOrPartitionError(
            f"{topic_partition} is of another topic now: topic {topic_partition.topic!r} was deleted "
            f"and created again (its id was {wanted_id}, and is {found_id})"
        )


def _no_transactions(header: BatchHeader, topic_partition: TopicPartition, _: str) -> None:
    raise InvalidTxnStateError(str(topic_partition), header.producer_id)


def _is_locked(appended: Appended) -> bool:
    return isinstance(appended.result.error, LockTimeoutError)


def _answer(error: Exception) -> AppendResult:
    if isinstance(error, OSError) and not isinstance(error, KBatchError):
        error = KafkaStorageError.of(error)
    return AppendResult(error=without_frames(error))


def _damaged(error: KafkaStorageError) -> KafkaStorageError:
    """Mark a storage error as not transient, so that a producer does not retry, and return it."""
    error.is_transient = False
    return error
