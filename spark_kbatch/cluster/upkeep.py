"""The check and repair of all that a cluster in a folder stores, in an order that loses no commit.

With several replicas all members of the ISR are looked at before anything is written. One that is whole
leads, and those that are not are made again from it. So a log is cut only where none is whole, which the
report says, and not while a member is away. States that were kept for a failed disk are written first.

A member that is an image of a deleted topic of the same name is none: the others lead, and it is moved aside.

As everywhere, a decided commit is rolled forward before anything is discarded. But that needs the
states of its partitions, and that of __transaction_state. Hence the order:

    1. __transaction_state, if its state is lost. If its last record is CompleteCommit, that is taken
       back, so that the commit is pending: whether its states were flipped is not known.
    2. Partitions whose state is lost. Each gets a sequence number above all that are recorded for it,
       so that rolling forward leaves it alone; it keeps the commit's batches, like all valid ones.
    3. Roll forward.
    4. All other partitions.

With `dry_run` nothing is written and no lock is taken. A check is such a run over each replica that is
read; `verify` adds what is wrong with in-sync replicas, and how their batches differ.

A log that cannot be repaired is reported, and the others are repaired all the same. If rolling forward
fails, nothing more is written: it may need what is past a recorded end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.history import History
from spark_kbatch.commit.internal_topics import (
    CLIENT_TRANSACTIONS,
    COMMITS,
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
)
from spark_kbatch.commit.snapshot import last_prepare, transactions
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    LogDirLockedError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.log.partition_log import PartitionLog, holds_records
from spark_kbatch.log.repair import LogRepair, is_lost
from spark_kbatch.log.segment import base_offset_of
from spark_kbatch.log.state import LogState, has_more, read_state, valid_slots
from spark_kbatch.log.truncation import state_before
from spark_kbatch.model import ReadRange, TopicPartition, partition_of
from spark_kbatch.options.topic import INTERNAL_PREFIX, Topic, TopicConfig
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION, BatchHeader
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import PartitionView, Replica
from spark_kbatch.store.reports import UNKNOWN_OFFSET, RepairReport
from spark_kbatch.store.source import Source

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_VERSION_OF_MAGIC = {0: "0.9.0", 1: "0.10.2"}


class FolderUpkeep:
    """The upkeep of one cluster in a folder; a `store.Upkeep`."""

    def __init__(self, parts: FolderParts, source: Source) -> None:
        self._parts, self._source = parts, source

    def verify(self, partitions: Sequence[TopicPartition] | None) -> Iterator[RepairReport]:
        """Check partitions; by default all, and the records of commits and groups."""
        manager, commits = self._parts.manager, self._parts.commits
        for report in self.repair(partitions, dry_run=True):
            yield _with_followers(manager, report, commits)
        if partitions is not None:
            return
        # These load Kafka's protocol.
        from spark_kbatch.cluster.groups import FolderGroups  # noqa: PLC0415
        from spark_kbatch.cluster.transactions.log import read_transactions  # noqa: PLC0415

        history = History(self._parts.snapshots.replicas)
        groups = FolderGroups(self._parts, self._source)
        records: tuple[tuple[TopicPartition, str, Callable[[], object]], ...] = (
            (COMMITS, "commits", lambda: list(history.read())),
            (CONSUMER_OFFSETS, "consumer groups", groups.groups),
            (CLIENT_TRANSACTIONS, "transactions", lambda: read_transactions(self._parts)),
        )
        for topic_partition, what, read in records:
            try:
                read()
            except (OSError, KBatchError) as error:
                # Else its own report says that its disk is away.
                if manager.or_offline(topic_partition, error) is error:
                    yield _of_nothing(topic_partition, damaged=(f"{what} cannot be read: {error}",))

    def repair(
        self, partitions: Sequence[TopicPartition] | None, *, dry_run: bool
    ) -> Iterator[RepairReport]:
        """Repair partitions; by default all, those of lost topics too."""
        manager = self._parts.manager
        repair = ClusterRepair(manager, self._parts.commits, dry_run=dry_run)
        if partitions is not None:
            return repair.run(partitions, {}, skip_deleted=False)
        restored = _restore_topics(manager, dry_run=dry_run)
        every: list[TopicPartition] = []
        for name in self._source.topic_names(internal=True):
            try:
                every += manager.partitions(name)
            except UnknownTopicOrPartitionError:
                continue  # deleted since the names were listed
            except KafkaStorageError as error:  # the others are repaired all the same
                restored.setdefault(name, LostTopic(None, str(error)))
        return repair.run(every, restored, skip_deleted=True)


class LostTopic(NamedTuple):
    """A topic whose file is lost or damaged, and what the file is recreated from, if it can be."""

    topic: Topic | None  # None if the file cannot be recreated
    # A sentence: what was lost, what it was recreated from, what is not known; or why it cannot be.
    what: str


class ClusterRepair:
    """One run that checks and repairs the logs of a cluster."""

    def __init__(self, manager: ReplicaManager, coordinator: Coordinator, *, dry_run: bool) -> None:
        self._manager, self._coordinator, self._dry_run = manager, coordinator, dry_run
        self._is_settled = False  # whether commits can be rolled forward, and have been

    def run(
        self,
        topic_partitions: Iterable[TopicPartition],
        restored: Mapping[str, LostTopic],
        *,
        skip_deleted: bool,
    ) -> Iterator[RepairReport]:
        """Repair the logs of these partitions; yield a report for each, in the order of the work.

        Args:
            topic_partitions: which.
            restored: topics whose file was lost and is restored, or would be with `dry_run`; reported with
                their partitions.

        Raises:
            LogDirLockedError: a broker uses a log dir.
        """
        for report in self._run(sorted(set(topic_partitions))):
            if skip_deleted and report.damaged and self._is_deleted(report.topic_partition):
                continue
            lost = restored.get(report.topic_partition.topic)
            yield report if lost is None else report._replace(found=(lost.what, *report.found))
        for name, (topic, what) in sorted(restored.items()):
            if topic is None:
                yield _of_nothing(TopicPartition(name, 0), damaged=(what,))
            elif not self._is_readable(name):  # with `dry_run`
                for number in range(topic.partitions):
                    yield _of_nothing(TopicPartition(name, number), found=(what,))

    def _is_readable(self, topic: str) -> bool:
        try:
            return self._manager.metadata.topics.find(topic) is not None
        except KafkaStorageError:
            return False

    def _run(self, wanted: list[TopicPartition]) -> Iterator[RepairReport]:
        lost = [tp for tp in wanted if self._is_lost(tp)]
        if TRANSACTION_STATE in lost:
            yield self._reported(TRANSACTION_STATE, self._repair_transactions)
        known = self._recorded_states()
        for tp in lost:
            if tp != TRANSACTION_STATE:
                yield self._reported(tp, functools.partial(self._repair, tp, known.get(tp, {})))
        unfinished = self._roll_forward()
        self._is_settled = not unfinished
        for tp in wanted:
            if tp not in lost:
                report = self._reported(tp, functools.partial(self._repair, tp, known.get(tp, {})))
                if unfinished and (report.found or report.damaged):
                    report = report._replace(damaged=(*report.damaged, unfinished))
                yield report

    def _reported(self, tp: TopicPartition, repair: Callable[[], RepairReport]) -> RepairReport:
        """Run the repair of a partition and return its report; if it fails, a report that says why."""
        try:
            offline = _offline(self._manager, tp)
            if offline.keys() >= {*_members(self._manager.partition(tp).view)}:
                return _of_nothing(tp, offline=tuple(offline.values()))
            return repair()
        except LogDirLockedError:
            raise
        except (OSError, KBatchError) as error:
            return _of_nothing(tp, damaged=(str(error),))

    def _is_deleted(self, tp: TopicPartition) -> bool:
        """Return True if the partition's topic does not exist, so was deleted while its log was repaired."""
        try:
            return self._manager.metadata.topics.find(tp.topic) is None
        except KBatchError:
            return False

    def _is_lost(self, tp: TopicPartition) -> bool:
        try:
            view = self._manager.partition(tp).view
            return all(is_lost(view.log_of(node)) for node in _members(view))
        except (OSError, KBatchError):
            return False  # its repair says why

    def _roll_forward(self) -> str:
        """Finish a commit that was decided but not completed; if that fails, return why, and stop writing."""
        try:
            if not self._dry_run:
                self._coordinator.roll_forward()
        except LogDirLockedError:
            raise
        except (OSError, KBatchError) as error:
            self._dry_run = True
            return f"nothing is written here: a commit that is decided cannot be finished: {error}"
        return ""

    def _repair(self, tp: TopicPartition, known: Mapping[int, LogState]) -> RepairReport:
        topic_id = self._manager.metadata.topics.topic(tp.topic).topic_id
        partition = self._manager.partition(tp)
        with self._locked(tp):
            if partition.only_log is not None:  # whose state may be what is to be repaired
                log, said = partition.view.usable_only_log(to_write=not self._dry_run), list[str]()
                if not self._dry_run:
                    partition.write_kept_locked()
            elif self._dry_run:
                log, said = partition.view.readable().log, []
            else:
                log, said = self._leading_locked(partition, topic_id, known)
            node_id = next(n for n in partition.replicas if partition.view.log_of(n) is log)
            report = LogRepair(log, dry_run=self._dry_run).run(topic_id, known.get(node_id))
        return report._replace(found=(*said, *report.found))

    def _leading_locked(
        self, partition: Partition, topic_id: str, known: Mapping[int, LogState]
    ) -> tuple[PartitionLog, list[str]]:
        """Let a replica lead that is whole; return its log, and what was done about those that are not.

        All members of the ISR are looked at before anything is written. If none is whole, the one that has
        most leads, to be cut, and all others will be made equal to it.

        Raises:
            KafkaStorageError: a member that is away may be whole; or a commit's state cannot be written.
        """
        view, manager = partition.view, self._manager
        if view.state().unwritten:
            with contextlib.suppress(OSError, KBatchError):
                partition.write_kept_locked()  # as each append does; what they show is looked at
        state = view.state()
        looked: dict[int, LogRepair] = {}
        reports: dict[int, RepairReport] = {}
        # In the place of some may be images of a deleted topic of the same name.
        online = {n for n in state.isr if manager.dirs.is_online(n)}
        foreign = {n for n in online if not view.is_of_topic(view.log_of(n))}
        if foreign == {*state.isr}:  # Then their partition.metadata is damaged.
            foreign = set()
        usable = online - foreign
        for node_id in state.leader_first(state.isr):
            if node_id in usable:
                repair = LogRepair(view.log_of(node_id), dry_run=True)
                with contextlib.suppress(OSError, KBatchError):
                    reports[node_id] = repair.run(topic_id, known.get(node_id))
                    looked[node_id] = repair
        whole = [n for n, repair in looked.items() if not repair.loses and not reports[n].damaged]
        states = {n: s for n in looked if (s := view.log_state(n, to_write=False)) is not None}
        if any(
            all(n in states and has_more(states[other], states[n]) for n in whole)
            for other in states.keys() - {*whole}
        ):
            whole = []  # They are older images: whole, and not all that there is.
        if whole:
            partition.write_kept_locked()
            partition.elections.lead_among_locked(whole)
            broken = [n for n in state.isr if n in usable and n not in whole]
            for node_id in broken:  # It is recreated.
                manager.files.remove_dir(view.log_of(node_id).directory)
            leader, log, _ = partition.ready_locked(flush=True)
            return log, [
                f"the replica on node {node_id} is not whole: it is made again from that on node {leader}"
                for node_id in broken
            ]
        if not looked:
            raise view.no_usable_replica(state)
        most = max(looked, key=lambda node: reports[node].log_end_offset)
        if not looked[most].loses:
            partition.write_kept_locked()
            return view.log_of(most), []
        files = manager.files
        away = [
            n
            for n in state.isr
            if not (
                manager.dirs.is_online(n)
                and (n in looked or n in foreign or not files.exists(view.log_of(n).directory))
            )
        ]
        if away:
            raise KafkaStorageError(
                f"no replica of {partition.topic_partition} that can be read is whole, but that on node "
                f"{', '.join(map(str, away))} may be: mount its disk, or replace it "
                "(`kbatch log-dirs --replace`), then repair"
            )
        if not is_lost(view.log_of(most)):
            partition.write_kept_locked()
        partition.elections.lead_alone_locked(most)
        return view.log_of(most), [
            f"none of its replicas is whole: node {most}, which has most, leads, and the others are made "
            "equal to it"
        ]

    @contextlib.contextmanager
    def _locked(self, tp: TopicPartition) -> Iterator[None]:
        if self._dry_run:
            yield
            return
        # A committer that dies meanwhile leaves what belongs to a commit, until that is rolled forward.
        commits, locks = self._coordinator if self._is_settled else None, self._manager.locks
        lock = locks.commit() if tp == TRANSACTION_STATE else locks.partitions([tp], commits)
        with lock, self._manager.writing():
            yield

    def _repair_transactions(self) -> RepairReport:
        report = self._repair(TRANSACTION_STATE, {})
        if self._dry_run:
            return report
        log = self._manager.log(TRANSACTION_STATE)
        with self._locked(TRANSACTION_STATE):
            state = read_state(log.files, log.directory)
            offset = last_prepare(Replica(0, log, state))
            if offset is not None:
                after = state
                if offset + 1 < state.log_end_offset:
                    after = state_before(log, state, offset + 1)
                after = after._replace(sequence=state.sequence + 1, prepare_offset=offset)
                log.write_state(after, flush=True)
        return report

    def _recorded_states(self) -> dict[TopicPartition, dict[int, LogState]]:
        """Return the last log state that a commit recorded for each replica, by partition and node.

        If __transaction_state is damaged, what could be read counts.
        """
        newest: dict[TopicPartition, dict[int, LogState]] = {}
        try:
            replica = self._manager.replica(TRANSACTION_STATE)
            for transaction in transactions(replica, replica.state.log_start_offset):
                for tp, by_node in transaction.value.states_in(self._manager.is_current).items():
                    newest.setdefault(tp, {}).update(by_node)
        except KBatchError as error:
            logger.warning("cannot read all of __transaction_state: %s", error)
        return newest


def _members(view: PartitionView) -> tuple[int, ...]:
    """Return the nodes of a partition's in-sync replicas; of an only one no file tells."""
    return view.replicas if view.only_log is not None else view.state().isr


def _offline(manager: ReplicaManager, tp: TopicPartition) -> dict[int, str]:
    """Return sentences about a partition's replicas that are on log dirs that cannot be read, by node."""
    replicas = manager.partition(tp).replicas
    away = [node for node in replicas if not manager.dirs.is_readable(node)]
    found = {node: manager.dirs.offline(node) for node in away}
    return {node: f"its replica on {why}" for node, why in found.items() if why is not None}


def _of_nothing(
    tp: TopicPartition,
    *,
    found: tuple[str, ...] = (),
    damaged: tuple[str, ...] = (),
    offline: tuple[str, ...] = (),
) -> RepairReport:
    return RepairReport(tp, UNKNOWN_OFFSET, UNKNOWN_OFFSET, found, damaged, offline)


def _with_followers(
    manager: ReplicaManager, report: RepairReport, commits: Coordinator
) -> RepairReport:
    """Return a partition's repair report, extended by what is wrong with its followers.

    A replica that only waits for the end of a decided commit, whose process died, has no fault.
    """
    tp = report.topic_partition
    try:
        view = manager.partition(tp).view
        if view.only_log is not None:
            return report
        topic_id = manager.metadata.topics.topic(tp.topic).topic_id
        offline = _offline(manager, tp)
        leader, isr, replicas = view.readable(), view.state().isr, view.describe()
        replicas = [
            one
            for one in replicas
            if one.in_sync or one.node_id not in isr or not commits.awaits_flip(tp, one.node_id)
        ]
    except (OSError, KBatchError):
        return report  # which says why
    found, damaged = list(report.found), list(report.damaged)
    for node_id, is_leader, in_sync, own_end, _, why_offline in replicas:
        name = f"replica on node {node_id}"
        if is_leader and not in_sync and why_offline is None:
            own = view.log_state(node_id, to_write=False)
            own_start = -1 if own is None else own.log_start_offset
            start, end = leader.state.log_start_offset, leader.state.log_end_offset
            found.append(
                f"{name}, which leads, has offsets {own_start} to {own_end}, others in sync have "
                f"{start} to {end}: what was written or deleted since was lost there, as from an older image of "
                "its disk; the next append or `kbatch log-dirs --replicate` brings it up to date, or lets "
                "another one lead"
            )
            continue
        if node_id == leader.node_id or node_id in offline:
            continue
        if not in_sync and (node_id not in isr or why_offline is None):
            found.append(
                f"{name} is not in sync: `kbatch log-dirs --replicate` brings it up to date"
            )
            continue
        try:
            log = view.log_of(node_id)
            if not is_lost(log):
                damaged += [
                    f"{name}: {what}"
                    for what in _differences(leader, Replica(node_id, log, log.state()))
                ]
            its = LogRepair(log, dry_run=True).run(topic_id, None)
            found += [f"{name}: {what}" for what in its.found]
            damaged += [f"{name}: {what}" for what in its.damaged]
        except (OSError, KBatchError) as error:
            damaged.append(f"{name}: {error}")
    return report._replace(
        found=tuple(found), damaged=tuple(damaged), offline=tuple(offline.values())
    )


def _differences(leader: Replica, follower: Replica) -> Iterator[str]:
    """Yield how an in-sync follower's log first differs from the leader's."""
    start = max(leader.state.log_start_offset, follower.state.log_start_offset)
    end = leader.state.high_watermark
    if follower.state.log_end_offset < end:
        yield f"it ends at offset {follower.state.log_end_offset}, the partition at {end}"
        end = follower.state.log_end_offset
    for one, other in itertools.zip_longest(
        _batches(leader, start, end), _batches(follower, start, end)
    ):
        if one != other:
            offset = min(header.base_offset for header in (one, other) if header is not None)
            yield f"its batch at offset {offset} is not that of node {leader.node_id}"
            return


def _batches(replica: Replica, offset: int, end: int) -> Iterator[BatchHeader]:
    """Yield the headers of committed batches, which have the CRCs of their records."""
    state = replica.state._replace(high_watermark=end, last_stable_offset=end)
    buffer = bytearray(_READ_BYTES)
    while offset < end:
        read = replica.log.read(state, ReadRange(offset, _READ_BYTES, buffer=buffer))
        for _, header in read.batches:
            if header.base_offset < end:
                yield header
        offset = read.batches[-1][1].next_offset if read.batches else end


# Lost topics.


def _restore_topics(manager: ReplicaManager, *, dry_run: bool) -> dict[str, LostTopic]:
    """Recreate topic files that are lost or damaged, from mirrors or from the topics' logs.

        name, partitions    the names of the directories, in all log dirs
        topic id            their partition.metadata
        replicas            the nodes that hold a directory; the one with the highest state leads
        settings            unknown: the defaults, except for the format that the records have. Those of
                            an internal topic are known

    A copy in a mirror has all of that, and is put back as it is. Where there are mirrors a user's topic is not
    made again from directories, unless its file is there and damaged: one that neither PATH nor a current mirror
    knows was deleted, and its directories come from an older image of a disk. An empty log is no sign of a topic:
    an interrupted creation leaves such logs. A damaged file is copied to TOPIC.json.damaged first.

    Args:
        manager: of the cluster.
        dry_run: only look, and take no lock.

    Returns:
        The topics whose files were lost or damaged, by name.
    """
    if dry_run:
        return dict(_lost_topics(manager, dry_run=True))
    found = {}
    with manager.locks.metadata(), manager.writing():
        for name, lost in _lost_topics(manager, dry_run=False):
            if lost.topic is not None:
                manager.metadata.topics.write_again(lost.topic)
                logger.warning("topic %s: %s", name, lost.what)
            found[name] = lost
    return found


def _lost_topics(manager: ReplicaManager, *, dry_run: bool) -> Iterator[tuple[str, LostTopic]]:
    topics, topics_dir = manager.metadata.topics, manager.metadata.paths.topics_dir
    own = {name.removesuffix(".json") for name in manager.files.list(topics_dir)}
    directories = {
        name: found
        for name, found in _directories(manager, skip_failing=dry_run).items()
        if name in INTERNAL_TOPICS or not name.startswith(INTERNAL_PREFIX)
    }
    for name in sorted({*topics.names(internal=True)}):
        if name.startswith(".") or (name in own and topics.is_sound(name)):
            continue
        fault = f"{topics_dir / name}.json is {'damaged' if name in own else 'lost'}"
        copy = topics.mirrored(name)
        if copy is not None:
            yield name, LostTopic(copy, f"{fault}: recreated from its copy in a mirror")
        elif name in directories:
            yield name, _recreated(manager, name, directories[name], fault)
        else:
            why = "there is nothing to recreate it from: restore it from a backup"
            yield name, LostTopic(None, f"{fault}, and {why}")
        own.add(name)
    for name, of_topic in sorted(directories.items()):
        if name not in own and _hold_records(manager.files, of_topic):
            if topics.was_deleted(name):
                directory = next(iter(next(iter(of_topic.values())).values()))
                logger.warning(
                    "%s is of topic %r, which was deleted: it is left as it is; a new topic of that name moves "
                    "it aside",
                    directory,
                    name,
                )
                continue
            fault = f"{topics_dir / name}.json is lost"
            yield name, _recreated(manager, name, of_topic, fault)


_Directories = Mapping[int, Mapping[int, Path]]  # of one topic: by partition and node


def _directories(
    manager: ReplicaManager, *, skip_failing: bool
) -> dict[str, dict[int, dict[int, Path]]]:
    """Return all partitions' directories in the log dirs, by topic, partition and node.

    With `skip_failing` without those of log dirs that fail: a topic might be made again without them.
    """
    found: dict[str, dict[int, dict[int, Path]]] = {}
    for log_dir in manager.dirs.all:
        if manager.dirs.is_readable(log_dir.node_id):
            try:
                names = manager.files.list(log_dir.path)
            except OSError as error:
                if not skip_failing or len(manager.dirs.all) == 1:
                    raise
                manager.dirs.failed(log_dir.node_id, error)
                continue
            for name in names:
                held = partition_of(name)
                directory = log_dir.path / name
                if held is None or manager.metadata.deleted.owns(directory):
                    continue
                if manager.files.is_dir(directory):
                    by_partition = found.setdefault(held.topic, {})
                    by_node = by_partition.setdefault(held.partition, {})
                    by_node[log_dir.node_id] = directory
    return found


def _hold_records(files: Files, directories: _Directories) -> bool:
    return any(
        holds_records(files, directory)
        for by_node in directories.values()
        for directory in by_node.values()
    )


def _recreated(
    manager: ReplicaManager, name: str, directories: _Directories, fault: str
) -> LostTopic:
    """Return a lost topic as recreated from its partitions' directories, or why that is impossible.

    Args:
        manager: of the cluster.
        name: of the topic.
        directories: of its partitions.
        fault: what is wrong with its file.
    """
    try:
        return _from_directories(manager, name, directories, fault)
    except KafkaStorageError as error:
        return LostTopic(None, str(error))


def _from_directories(
    manager: ReplicaManager, name: str, directories: _Directories, fault: str
) -> LostTopic:
    for log_dir in manager.dirs.all:
        if not manager.dirs.is_readable(log_dir.node_id):
            raise KafkaStorageError(
                f"{fault}, and cannot be recreated while the log dir {log_dir.path} is offline: "
                "it may hold more of the topic"
            )
    partitions = max(directories) + 1
    if len(directories) < partitions:
        missing = next(number for number in range(partitions) if number not in directories)
        raise KafkaStorageError(
            f"{fault}, and so is the directory of partition {missing}, while there are "
            f"{len(directories)} others up to {partitions - 1}: restore that from a backup first"
        )
    files = manager.files
    topic_id = _topic_id(files, fault, directories)
    replicas = tuple(_leader_first(files, directories[number]) for number in range(partitions))
    config = INTERNAL_TOPICS.get(name)
    settings_said = "settings are those of every internal topic"
    if config is None:
        config, settings_said = _guessed_config(files, directories)
    return LostTopic(
        Topic(name, topic_id, partitions, config, replicas),
        f"{fault}: recreated from the directories of {partitions} "
        f"{'partition' if partitions == 1 else 'partitions'}; its {settings_said}",
    )


def _guessed_config(files: Files, directories: _Directories) -> tuple[TopicConfig, str]:
    """Return topic settings with which a lost topic's records can be read, and a text that describes them."""
    magic = _magic(files, directories)
    version = _VERSION_OF_MAGIC.get(magic, TopicConfig().message_format_version)
    format_said = f", except for message.format.version={version}" if magic != MAGIC else ""
    said = f"settings are not known, so they are the defaults{format_said}"
    return TopicConfig(message_format_version=version), said


def _topic_id(files: Files, fault: str, directories: _Directories) -> str:
    found: dict[str, Path] = {}
    for by_node in directories.values():
        for directory in by_node.values():
            try:
                found[read_partition_metadata(files, directory)] = directory
            except (FileNotFoundError, KafkaStorageError):
                continue  # The partition's repair recreates it.
    if len(found) != 1:
        where = " and ".join(f"{topic_id} in {one}" for topic_id, one in sorted(found.items())[:2])
        raise KafkaStorageError(
            f"{fault}, and its directories do not agree on the topic's id: "
            f"{where or 'none of them has one'}; move those of another topic away"
        )
    return next(iter(found))


def _leader_first(files: Files, by_node: Mapping[int, Path]) -> tuple[int, ...]:
    """Return the nodes that hold a partition, by how far their logs reach, so most likely the leader first.

    A file in partitions/ may name another leader.

    No follower's log ends after its leader's, and a follower learns the high watermark later.
    """

    def ends(node_id: int) -> tuple[int, int]:
        try:
            slots = valid_slots(files, by_node[node_id])
        except FileNotFoundError:
            slots = []
        state = max(slots, default=None)
        return (-1, -1) if state is None else (state.log_end_offset, state.high_watermark)

    # Sorting is stable: equal nodes stay in order.
    return tuple(sorted(sorted(by_node), key=ends, reverse=True))


def _magic(files: Files, directories: _Directories) -> int:
    """Return the message format version (magic) of the first batch found in a topic's logs."""
    for by_node in directories.values():
        for directory in by_node.values():
            for name in files.list(directory):
                if base_offset_of(name) is not None:
                    found = files.read(directory / name, MAGIC_POSITION, 1)
                    if found:
                        return found[0]
    return MAGIC
