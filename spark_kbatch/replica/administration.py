"""Administration: creating topics, and on which log dirs; growing, altering, deleting them; replacing log dirs.

A topic exists once its JSON file does, so its logs are made before it.

Growing, altering and deleting hold these locks, while others read and write:

    commit lock      so no commit is under way; one that a dead committer left is finished first
    metadata lock    so no other change is; interrupted deletions are continued first
    partition locks  so no append is: a writer that gets one later finds the topic as it is then

A deadline is a time of `clock.monotonic_s`, until when locks are waited for: by default for ever.

Each change is decided by one step, before which nothing has happened to anyone:

    creating           topics/TOPIC.json is written, once the logs are there
    adding partitions  topics/TOPIC.json is replaced, once the new logs are there. Logs that a crash before
                       that leaves are empty, and made again by the next attempt
    altering           topics/TOPIC.json is replaced
    deleting           topics/TOPIC.json is renamed; `deletions` has what follows

Source: Kafka metadata/.../controller/ReplicationControlManager.java createTopics, createPartitions,
deleteTopic; ConfigurationControlManager.java incrementalAlterConfigs; tools/.../LogDirsCommand.java.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from spark_kbatch.catalog.paths import stray_of
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidReplicationFactorError,
    KafkaStorageError,
    KBatchError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.partition_log import PartitionLog, holds_records
from spark_kbatch.model import TopicPartition, partition_of, random_id
from spark_kbatch.options.topic import (
    INTERNAL_PREFIX,
    TRANSACTION_STATE_TOPIC,
    Topic,
    TopicConfig,
    altered,
    ensure_more_partitions,
    ensure_valid_topic,
    partitions_of,
)
from spark_kbatch.replica.locks import Commits
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.store.reports import GivenUp, LogDirInfo, ReplicaInfo

logger = logging.getLogger(__name__)

_FEW, _FLUSHES_AT_ONCE = 64, 16
_NAMED = 5  # partitions in an error


# Topics.


def create_topic(
    manager: ReplicaManager,
    name: str,
    *,
    partitions: int,
    config: TopicConfig,
    replication_factor: int = 1,
    deadline: float | None = None,
) -> Topic:
    """Create a topic, unless it exists; return it. Raises as `plan_topic` and `create_planned_topic`."""
    planned = plan_topic(
        manager,
        name,
        partitions=partitions,
        config=config,
        replication_factor=replication_factor,
        deadline=deadline,
    )
    return create_planned_topic(manager, planned, deadline=deadline)


def plan_topic(
    manager: ReplicaManager,
    name: str,
    *,
    partitions: int,
    config: TopicConfig,
    given: Iterable[str] = (),
    replication_factor: int = 1,
    deadline: float | None = None,
) -> Topic:
    """Return a topic as it would be created now, for `create_planned_topic`; only missing log dirs are made.

    Args:
        given: keys of the settings that were given, also of those with the default's value.

    Raises:
        InvalidReplicationFactorError: there are not enough log dirs.
        InvalidTopicError: Kafka would refuse the name, alone or beside that of another topic.
        LockTimeoutError: the metadata lock was not free by the deadline.
    """
    ensure_valid_topic(name)
    if why_lost := manager.metadata.topics.why_lost(name):
        raise KafkaStorageError(why_lost)  # as a creation would find
    manager.metadata.topics.ensure_may_be_named(name)
    if replication_factor > 1:
        with manager.locks.metadata(deadline=deadline):
            manager.metadata.cluster_file.add_log_dirs(replication_factor)
    return _new_topic(manager, name, partitions, config, given, replication_factor)


def _new_topic(
    manager: ReplicaManager,
    name: str,
    partitions: int,
    config: TopicConfig,
    given: Iterable[str],
    replication_factor: int,
) -> Topic:
    replicas = _assign(manager, partitions, replication_factor)
    return Topic(name, random_id(), partitions, config, replicas, frozenset(given))


def create_planned_topic(
    manager: ReplicaManager,
    topic: Topic,
    *,
    level: int = logging.INFO,
    first_offsets: Sequence[int] = (),
    deadline: float | None = None,
) -> Topic:
    """Create a topic as `plan_topic` returned it, unless one of its name exists; return what exists then.

    Args:
        level: of the line in the log that tells the creation.
        first_offsets: where each partition begins; 0 by default.
        deadline: until when to wait for the metadata lock.

    Raises:
        InvalidTopicError: a topic with a name too much like its was created since.
        LockTimeoutError: the lock was not free by the deadline.
    """
    with manager.locks.metadata(deadline=deadline):
        found = manager.metadata.topics.find(topic.name)
        if found is not None:
            return found
        manager.metadata.topics.ensure_may_be_named(topic.name)
        _create_locked(manager, topic, level, first_offsets)
        return topic


def _create_locked(
    manager: ReplicaManager, topic: Topic, level: int, first_offsets: Sequence[int] = ()
) -> None:
    """Create a topic whose name no other has, and tell it in the log; internal topics are not told."""
    with manager.writing():
        manager.deletions.continue_locked()
        manager.deletions.ensure_name_is_free_locked(topic.name)
        manager.deletions.free_id_locked(topic)
        _write_locked(manager, topic, first_offsets)
    if not topic.name.startswith(INTERNAL_PREFIX):
        logger.log(
            level,
            "created topic %r with %d partition%s in %s",
            topic.name,
            topic.partitions,
            "s" * (topic.partitions != 1),
            manager.metadata.path,
        )


def _write_locked(manager: ReplicaManager, topic: Topic, first_offsets: Sequence[int] = ()) -> None:
    _make_logs(manager, topic, range(topic.partitions), first_offsets)
    manager.metadata.topics.write(topic)


def create_topic_locked(
    manager: ReplicaManager,
    name: str,
    *,
    partitions: int,
    config: TopicConfig,
    given: Iterable[str] = (),
    replication_factor: int = 1,
) -> Topic:
    """Create a topic that does not exist yet, for a caller that holds the metadata lock.

    The caller also keeps brokers out of the log dirs.
    """
    topic = _new_topic(manager, name, partitions, config, given, replication_factor)
    _write_locked(manager, topic)
    return topic


def create_partitions(
    manager: ReplicaManager,
    commits: Commits,
    name: str,
    total_count: int,
    *,
    deadline: float | None = None,
) -> Topic:
    """Add partitions to a topic, up to `total_count`, with its replication factor; return the grown topic.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
        InvalidPartitionsError: it already has as many.
        InvalidReplicationFactorError: there are not enough log dirs.
        LockTimeoutError: a lock was not free by the deadline.
    """
    with _changing(manager, commits, name, deadline) as topic:
        ensure_more_partitions(name, topic.partitions, total_count)
        assigned = _assign(manager, total_count, topic.replication_factor)
        known = tuple(topic.replicas_of(partition) for partition in range(topic.partitions))
        grown = replace(
            topic, partitions=total_count, replicas=known + assigned[topic.partitions :]
        )
        _make_logs(manager, grown, range(topic.partitions, total_count))
        manager.metadata.topics.write(grown)
    return grown


def alter_topic(
    manager: ReplicaManager,
    commits: Commits,
    name: str,
    changes: Mapping[str, object],
    *,
    fixed: Mapping[str, object] | None = None,
    deadline: float | None = None,
) -> Topic:
    """Change a topic's settings, where None restores a default; return the changed topic.

    `fixed` are changes of settings with one possible value, see `altered`.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
        ConfigError: a setting that is unknown, not accepted, or cannot be changed.
        LockTimeoutError: a lock was not free by the deadline.
    """
    with _changing(manager, commits, name, deadline) as topic:
        after = altered(topic, changes, fixed or {})
        if after == topic:
            return topic
        config = after.known_config
        if config.min_insync_replicas > topic.known_config.min_insync_replicas:
            for topic_partition in manager.partitions(name):
                partition = manager.partition(topic_partition)
                partition.ready_locked(flush=True)
                partition.settle_high_watermark_locked(config.min_insync_replicas)
        manager.metadata.topics.write(after)
    return after


def delete_topic(
    manager: ReplicaManager,
    commits: Commits,
    name: str,
    *,
    topic_id: str | None = None,
    deadline: float | None = None,
) -> Topic:
    """Delete a topic; return its metadata as it was before.

    Args:
        manager: the cluster's.
        commits: the cluster's.
        name: the topic's.
        topic_id: the id that it must have; any by default.
        deadline: until when to wait for locks.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
        LockTimeoutError: a lock was not free by the deadline.
    """
    with _changing(manager, commits, name, deadline) as topic:
        if topic_id not in (None, topic.topic_id):
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} has the id {topic.topic_id}, not {topic_id}: it was created again"
            )
        manager.deletions.delete_locked(topic, manager.now_ms())
    for topic_partition in partitions_of(topic):
        # What waits for something of a topic that is gone is answered.
        manager.delayed_produces.check_and_complete(topic_partition)
        manager.delayed_fetches.check_and_complete(topic_partition)
    manager.forget_deleted(partitions_of(topic))
    try:
        manager.remove_deleted_topics()  # whose delay is over; this one's may be 0
    except (OSError, KBatchError) as error:
        logger.warning("files of deleted topics stay for now: %s", error)
    return topic


@contextlib.contextmanager
def _changing(
    manager: ReplicaManager, commits: Commits, name: str, deadline: float | None
) -> Iterator[Topic]:
    """Hold the commit, metadata and partition locks needed to change a topic; yield the current topic."""
    with commits.settled(deadline=deadline), manager.locks.metadata(deadline=deadline):
        manager.metadata.keep_room()
        manager.deletions.continue_locked()
        topic = manager.metadata.topics.topic(name)
        with manager.locks.partitions(manager.partitions(name), deadline=deadline):
            yield topic


def _assign(
    manager: ReplicaManager, partitions: int, replication_factor: int
) -> tuple[tuple[int, ...], ...]:
    """Return the replica assignment of a topic's partitions, with leaders spread evenly over the nodes.

    Raises:
        InvalidReplicationFactorError: fewer log dirs are online.
    Source: Kafka metadata/.../placement/StripedReplicaPlacer.java.
    """
    dirs = manager.dirs
    nodes = [one.node_id for one in dirs.all]
    if len(nodes) > 1:
        nodes = [node for node in nodes if dirs.is_online(node)]
    if replication_factor > len(nodes):
        raise InvalidReplicationFactorError(
            f"replication.factor is {replication_factor}, but only {len(nodes)} of "
            f"{len(dirs.all)} log dirs are online; `kbatch log-dirs PATH` shows them"
        )
    return tuple(
        tuple(nodes[(partition + n) % len(nodes)] for n in range(replication_factor))
        for partition in range(partitions)
    )


def _make_logs(
    manager: ReplicaManager, topic: Topic, partitions: range, first_offsets: Sequence[int] = ()
) -> None:
    """Create the empty logs of a topic's new partitions, flushed to disk; they begin at 0 by default.

    What an interrupted attempt has left is removed: that is always empty.

    Raises:
        KafkaStorageError: a directory with the name of such a partition holds records; or a log dir is offline.
    """
    cluster_file, dirs = manager.metadata.cluster_file, manager.dirs
    wanted = sorted({node for number in partitions for node in topic.replicas_of(number)})
    for node_id in wanted if len(dirs.all) > 1 else ():
        if not dirs.is_online(node_id):
            # The disk would later hide a log that is made on its mount point.
            raise KafkaStorageError(
                f"topic {topic.name!r} was planned with a replica on node {node_id}, whose log dir is offline: "
                f"{dirs.why_offline(node_id)}; write again, and others take it"
            )
    for directory in _empty_logs(manager, topic.name, partitions.start, wanted):
        with contextlib.suppress(OSError):  # It harms no one; a log dir may be read-only.
            manager.files.remove_dir(directory)
    nodes: set[int] = set()
    unflushed: list[Path] = []
    for number in partitions:
        topic_partition = TopicPartition(topic.name, number)
        for node_id in topic.replicas_of(number):
            directory = cluster_file.log_directory(topic_partition, node_id)
            log = PartitionLog(manager.files, directory, topic_partition, topic.known_config)
            first_offset = first_offsets[number] if first_offsets else 0
            unflushed += log.create_unflushed(topic.topic_id, first_offset)
            nodes.add(node_id)
    _flush(manager, unflushed)
    manager.files.flush(dirs.all[node_id].path for node_id in sorted(nodes))


def _empty_logs(
    manager: ReplicaManager, topic: str, first: int, nodes: Container[int]
) -> list[Path]:
    """Return a topic's empty partition directories, from `first` on, that an interrupted creation left.

    One that holds records is a deleted topic's where topics' files have copies: it is moved aside.

    Args:
        nodes: which get replicas of these partitions.

    Raises:
        KafkaStorageError: one of them holds records, or cannot be moved.
    """
    metadata, empty = manager.metadata, []
    log_dirs = [one for one in manager.dirs.all if manager.dirs.is_readable(one.node_id)]
    start = f"{topic}-"
    for node_id, directory in (
        (one.node_id, one.path / name)
        for one in log_dirs
        for name in manager.files.list(one.path)
        if name.startswith(start)
    ):
        found = partition_of(directory.name)
        if found is None or found.topic != topic or found.partition < first:
            continue
        if metadata.deleted.owns(directory):
            continue
        if holds_records(manager.files, directory):
            if metadata.topics.was_deleted(topic):
                stray = stray_of(directory)
                what = f"{directory} has records of a deleted topic, as from an older image of its disk"
                try:
                    manager.files.rename(directory, stray)
                except OSError as error:
                    if node_id in nodes:
                        raise KafkaStorageError(f"{what}, and cannot be moved: {error}") from error
                    logger.warning("%s, and cannot be moved: %s", what, error)
                else:
                    logger.warning("%s: moved to %s", what, stray.name)
                continue
            raise KafkaStorageError(
                f"{directory} holds records, but no file in {metadata.paths.topics_dir} knows that "
                f"partition: topic {topic!r} cannot be created over them. `kbatch repair "
                f"{metadata.path}` recreates a topic's lost file; for an empty topic move the "
                "directory away"
            )
        empty.append(directory)
    return empty


def _flush(manager: ReplicaManager, paths: Sequence[Path]) -> None:
    """Flush files to disk (fsync), many of them in parallel.

    Flushes that wait together cost the disk one write.
    """
    if len(paths) < _FEW or not manager.uses_threads:
        manager.files.flush(paths)
        return
    with ThreadPoolExecutor(_FLUSHES_AT_ONCE) as pool:
        shares = (paths[first::_FLUSHES_AT_ONCE] for first in range(_FLUSHES_AT_ONCE))
        for _ in pool.map(manager.files.flush, shares):
            pass  # and raise what went wrong


# Replicas and log dirs.


def replicas_of(
    manager: ReplicaManager, topics: Iterable[str]
) -> dict[TopicPartition, list[ReplicaInfo]]:
    """Return the replicas of all partitions of these topics, in order of preference."""
    every = (tp for topic in topics for tp in manager.partitions(topic))
    return {tp: manager.partition(tp).view.describe() for tp in every}


def log_dirs_of(
    manager: ReplicaManager,
    topics: Iterable[str],
    staged_size: Callable[[Path], int],
    *,
    writes: bool = True,
) -> list[LogDirInfo]:
    """Return all log dirs, each with counts of the replicas of these topics that it holds.

    Args:
        manager: of the replicas.
        topics: whose replicas are counted.
        staged_size: returns the size of what jobs have staged in a folder.
        writes: whether each log dir is tried with a write.
    """
    manager.dirs.look_again()
    by_node: dict[int, list[tuple[ReplicaInfo, bool]]] = {}
    for replicas in replicas_of(manager, topics).values():
        for replica in replicas:
            by_node.setdefault(replica.node_id, []).append((replica, len(replicas) == 1))
    return [
        LogDirInfo(
            one.node_id,
            str(one.path),
            why,
            len(found := by_node.get(one.node_id, [])),
            sum(replica.is_leader for replica, _ in found),
            sum(not replica.in_sync for replica, _ in found),
            sum(is_only for _, is_only in found),
            state,
            staged_size(one.staging),
        )
        for one in manager.dirs.all
        for state, why in [manager.dirs.probe(one.node_id, writes=writes)]
    ]


def replicate_all(
    manager: ReplicaManager, topics: Sequence[str], commits: Commits, *, skip_deleted: bool
) -> list[TopicPartition]:
    """Let all usable replicas catch up with their leaders; return the partitions still not in sync.

    What a log dir lacks is copied in pieces, between which others may append. With `skip_deleted` a
    topic that was deleted meanwhile is no error.
    """
    manager.dirs.look_again()
    manager.metadata.partition_states.try_again()
    with manager.locks.metadata():
        manager.metadata.json_files.refresh()
    commits.roll_forward()  # which replicates the commits' own topics first
    left = []
    for topic in topics:
        try:
            left += [tp for tp in manager.partitions(topic) if not _in_sync(manager, tp, commits)]
        except UnknownTopicOrPartitionError:
            if not skip_deleted:
                raise
    return left


def _in_sync(manager: ReplicaManager, topic_partition: TopicPartition, commits: Commits) -> bool:
    """Let a partition's replicas catch up with its leader; return True if all are in sync afterwards."""
    furthest: dict[int, int] = {}
    turns_left = (
        2  # A replica that is lost leaves the ISR in the first, and is recreated in the second.
    )
    was_ready = False  # after which a later writer's records may be on their way, but no dead one's
    while True:
        # Each time, since others may change or delete the topic.
        view = manager.partition(topic_partition).view
        replicas = view.describe()
        if all(one.in_sync for one in replicas) and (
            view.only_log is not None or (view.are_equal() and (was_ready or view.shows_all()))
        ):
            return True
        ends = {one.node_id: one.log_end_offset for one in replicas if not one.in_sync}
        if any(end > furthest.get(node, -1) for node, end in ends.items()):
            turns_left = 2
        if not turns_left:  # No replica has come any further.
            return False
        turns_left -= 1
        furthest |= {node: max(end, furthest.get(node, -1)) for node, end in ends.items()}
        try:
            with _ready(manager, topic_partition, commits) as partition:
                partition.look_locked()
            was_ready = True
        except (OSError, KBatchError) as error:
            logger.warning("cannot replicate %s for now: %s", topic_partition, error)


@contextlib.contextmanager
def _ready(
    manager: ReplicaManager, topic_partition: TopicPartition, commits: Commits
) -> Iterator[Partition]:
    """Hold the lock of a partition, and yield it, ready."""
    with contextlib.ExitStack() as held:
        if topic_partition.topic == TRANSACTION_STATE_TOPIC:  # whose lock is the commit lock
            held.enter_context(commits.settled())
        else:
            held.enter_context(manager.writing())
            held.enter_context(manager.locked([topic_partition], commits))
        yield manager.partition(topic_partition)


def replace_log_dir(
    manager: ReplicaManager, node_id: int, commits: Commits, *, unclean: bool, dry_run: bool
) -> list[GivenUp]:
    """Accept an empty directory as the log dir of a node whose disk was lost.

    Before that the node leaves the ISR of all its partitions, so that no one counts on what it had. Its
    replicas are recreated there. If the process dies after the directory was accepted, the same call goes on:
    what is left to do is seen by partitions that no replica has a log of.

    Args:
        manager: the cluster's.
        node_id: the node.
        commits: the cluster's.
        unclean: whether to go on if the lost disk may have had the only copy of some records.
        dry_run: only look, and take no lock.

    Returns:
        What is given up.

    Raises:
        ConfigError: no such node, it is online, the directory is not empty, or it may have had the only copy.
    """
    only = _without_log(manager, node_id)
    is_accepted = bool(only)
    if not is_accepted:
        _ensure_lost(manager, node_id)
        manager.dirs.look_again()
    lost = [given_up(manager, tp, [node_id]) for tp in only]
    lost = lost or given_up_without(manager, [node_id])
    if dry_run:
        return lost
    if not is_accepted:
        only = _replicas_on(manager, node_id, lambda tp: not _left(manager, tp, node_id, commits))
    names = ", ".join(map(str, only[:_NAMED])) + (", ..." if only[_NAMED:] else "")
    if only and not unclean:
        raise ConfigError(
            f"no other replica that is in sync can be used of {names}: the lost log dir of node {node_id} "
            "may have had the only copy. Mount what is missing (`kbatch log-dirs` shows it), or give up "
            "these records with `--unclean` (unclean=True)"
        )
    with manager.locks.commit(), manager.locks.metadata(), manager.writing():
        if not is_accepted:
            _ensure_lost(manager, node_id)
            manager.metadata.cluster_file.replace_log_dir(node_id)
            manager.dirs.look_again()
        for tp in only:
            with manager.locks.partitions([tp]):
                manager.partition(tp).give_up_locked(node_id)
    return [one for one in lost if one.topic_partition in only]


def _without_log(manager: ReplicaManager, node_id: int) -> list[TopicPartition]:
    """Return the partitions of a node whose log dir is online that no replica has a log of, nor may have."""
    if not _is_online(manager, node_id):
        return []
    return _replicas_on(manager, node_id, lambda tp: not manager.partition(tp).may_have_records())


def _replicas_on(
    manager: ReplicaManager, node_id: int, which: Callable[[TopicPartition], bool]
) -> list[TopicPartition]:
    found = []
    for topic in manager.metadata.topics.names(internal=True):
        with contextlib.suppress(UnknownTopicOrPartitionError):  # deleted meanwhile
            for tp in manager.partitions(topic):
                if node_id in manager.partition(tp).replicas and which(tp):
                    found.append(tp)
    return found


class _KnownCommits:
    """A cluster's unfinished commits, none if they cannot be looked up.

    If no replica of __transaction_state can be used either, another one is let lead there, too: that drops the part
    of a commit that is not in its partition by then.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self.roll_forward, self.settled = commits.roll_forward, commits.settled

    def is_pending(self, topic_partitions: Collection[TopicPartition], /) -> bool:
        try:
            return self._commits.is_pending(topic_partitions)
        except KafkaStorageError as error:
            logger.warning("whether a commit is unfinished cannot be told: %s", error)
            return False


def elect_unclean(
    manager: ReplicaManager, commits: Commits, topic: str, *, dry_run: bool
) -> list[GivenUp]:
    """Let replicas that are not in sync lead where no in-sync one can be used.

    What only the in-sync ones had is given up: a disk that comes back later is truncated.

    Args:
        manager: the cluster's. The caller holds the commit lock if the topic is `__transaction_state`.
        commits: that may not be finished.
        topic: its name.
        dry_run: elect no replica that is not in sync.

    Returns:
        What is given up; only of partitions for which a replica was elected, or would be.

    Raises:
        KafkaStorageError: no replica of a partition can be used; those before it have leaders.
    """
    manager.dirs.look_again()
    found = []
    for tp in manager.partitions(topic):
        with contextlib.ExitStack() as held:
            if tp.topic != TRANSACTION_STATE_TOPIC:
                held.enter_context(manager.locks.partitions([tp], _KnownCommits(commits)))
            held.enter_context(manager.writing())
            partition = manager.partition(tp)
            with contextlib.suppress(OSError, KBatchError):
                partition.ready_locked(flush=True)
                continue
            lost = given_up(manager, tp)
            if lost.first_offset is None:
                raise partition.view.no_usable_replica(partition.view.state())
            if dry_run or partition.elect_unclean_locked() is not None:
                found.append(lost)
    return found


def _is_online(manager: ReplicaManager, node_id: int) -> bool:
    return 0 <= node_id < len(manager.dirs.all) and manager.dirs.is_online(node_id)


def _ensure_lost(manager: ReplicaManager, node_id: int) -> None:
    if _is_online(manager, node_id):
        raise ConfigError(
            f"the log dir of node {node_id} is online; only one that is lost can be replaced"
        )


def _left(
    manager: ReplicaManager, topic_partition: TopicPartition, node_id: int, commits: Commits
) -> bool:
    """Let a lost node leave a partition's ISR; return False if no other replica can lead."""
    if manager.partition(topic_partition).only_log is not None:
        return False
    try:
        with _ready(manager, topic_partition, commits) as partition:
            return node_id not in partition.view.state().isr
    except (OSError, KafkaStorageError, CorruptRecordError) as error:
        logger.warning("%s: %s", topic_partition, error)
        return False


def given_up(
    manager: ReplicaManager, topic_partition: TopicPartition, lost: Collection[int] = ()
) -> GivenUp:
    """Return what a partition gives up if it goes on without the in-sync replicas that cannot be used.

    The replica that was written furthest goes on. Records after its end, that only in-sync replicas had, are
    given up; so are all records where no replica is left. Where they end is known only if all in-sync replicas
    can be read, or the end was kept for them by a commit.

    Takes no lock and changes nothing.

    Args:
        manager: the cluster's.
        topic_partition: whose in-sync replicas cannot be used.
        lost: nodes that cannot be used, whatever is at their paths.
    """
    view = manager.partition(topic_partition).view
    state = view.state()
    best = view.furthest(lost)
    ends = dict.fromkeys(state.isr, -1)
    for node in ends:
        log_state = None if node in lost else view.log_state(node, to_write=False)
        known = [one for one in (log_state, state.unwritten.get(node)) if one is not None]
        ends[node] = max((one.log_end_offset for one in known), default=-1)
    return GivenUp(
        topic_partition,
        None if best is None else best[1].log_end_offset,
        None if -1 in ends.values() else max(ends.values()),
        tuple(node for node in ends if best is None or node != best[0]),
    )


def given_up_without(manager: ReplicaManager, nodes: Collection[int]) -> list[GivenUp]:
    """Return what all partitions give up together if these nodes are lost; takes no lock."""
    found = []
    for topic in manager.metadata.topics.names(internal=True):
        for tp in manager.partitions(topic):
            rows = manager.partition(tp).view.describe()
            is_there = any(row.in_sync and row.node_id not in nodes for row in rows)
            if not is_there and any(row.node_id in nodes for row in rows):
                found.append(given_up(manager, tp, nodes))
    return found
