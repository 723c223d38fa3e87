"""Wires the parts together; the one object that a face holds.

    with spark_kbatch.open("PATH", create=True) as cluster:
        cluster.create_topic("events", partitions=4)
        for arrow_batch in cluster.read("events"):
            ...

Other processes may change a cluster at any time, so it looks at the disk whenever it is asked.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.clock import now_ms
from spark_kbatch.commit import COMMITS_TOPIC, INTERNAL_TOPIC_CONFIG, TRANSACTION_STATE_TOPIC
from spark_kbatch.commit.agreements import Agreements
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.history import Commit, History
from spark_kbatch.commit.snapshot import TRANSACTION_STATE, Snapshots
from spark_kbatch.commit.staging import (
    LeftOver,
    NotRemoved,
    OpenFiles,
    ReplicatedStaging,
    Staging,
    left_overs,
    remove_left_overs,
)
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.source import TopicReader
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    KBatchError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import (
    LONG_MAX,
    AppendOrigin,
    DeletedTopic,
    Deletion,
    IsolationLevel,
    LogOffsets,
    OnAppended,
    PartitionInfo,
    PartitionKey,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.option import MiB
from spark_kbatch.options.paths import absolute_path
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    Topic,
    TopicConfig,
    ensure_not_internal,
    parse_topic_options,
    topic_key,
)
from spark_kbatch.options.write import (
    STAGING_RETENTION_MS,
    WriteOptions,
    ensure_codec_exists,
    parse_folders,
)
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica import administration
from spark_kbatch.replica.administration import LogDirInfo
from spark_kbatch.replica.delayed_fetch import CONSUMER_REPLICA_ID, FetchInfo, OnFetched
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.replica.view import Replica, ReplicaInfo

# Each read of a data source begins with two processes of its own, which only plan: what they do not
# need is imported by the methods that do.
if TYPE_CHECKING:
    from spark_kbatch.cluster.export import ExportedPartition
    from spark_kbatch.cluster.transports import TaskProducer
    from spark_kbatch.log.repair import RepairReport
    from spark_kbatch.producer.producer import Producer


logger = logging.getLogger(__name__)


StrPath = str | os.PathLike[str]

# As the option replication.factor has it.
REPLICATION_FACTOR_MAX = 32767


def _folders(log_dirs: Any) -> list[Path]:
    """What `log_dirs` names.

    Raises:
        ConfigError: no folders, or one that is named twice.
    """
    if isinstance(log_dirs, str):
        log_dirs = parse_folders("log_dirs", log_dirs)
    if isinstance(log_dirs, (bytes, Mapping)) or not isinstance(log_dirs, Iterable):
        arguments.refuse(
            "log_dirs", log_dirs, "folders in a list, or text with commas between them"
        )
    folders = [absolute_path(folder, "a folder in log_dirs") for folder in log_dirs]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"log_dirs names a folder twice, of {', '.join(map(str, folders))}; each is a disk of its own"
        )
    return folders


class Garbage(NamedTuple):
    """What was removed, or would be."""

    partitions: Mapping[TopicPartition, Deletion]
    left_overs: Sequence[LeftOver]
    not_removed: Sequence[NotRemoved] = ()  # of what jobs staged, or what lies among that
    deleted_topics: Sequence[DeletedTopic] = ()  # whose files' delay is over


class Cluster(TopicReader):
    """Topics with all their records, in a folder. Thread-safe; keeps no file open.

        with spark_kbatch.open("my-cluster", create=True) as cluster:
            cluster.create_topic("events", partitions=4)
            with cluster.producer() as producer:
                producer.send("events", key="k", value="v")
            table = cluster.read("events").read_all()

    Topics: create_topic, alter_topic, create_partitions, delete_topic, topics, topic_names, topic,
        partitions, describe.
    Records: producer, read, list_offsets, delete_records, collect_garbage, export.
    Jobs of Spark: history, find_commit, first_commit.
    Disks: log_dirs, replicas, replicate, replace_log_dir, repair.
    The rest is for Spark and for tests.
    """

    _parts = ("metadata", "manager", "snapshots", "_history")

    def __init__(
        self,
        path: StrPath,
        *,
        create: bool = False,
        log_dirs: str | Sequence[StrPath] = (),
        files: Files | None = None,
    ) -> None:
        """Open, and with `create` make it where there is none.

        Args:
            log_dirs: where a cluster that is made keeps its logs: a folder for each replica that a
                record may have, on disks of their own, also as text with commas between them; in
                PATH by default. Where PATH itself is lost, and they hold its logs, it is made again
                from what they know of it.

        Raises:
            ConfigError: PATH holds no cluster, or none can be made there, or one that was made with
                other log dirs; says why.
        """
        files = files or Files()
        folders = _folders(log_dirs)
        self.metadata = Metadata(files, absolute_path(path))
        self.files, self.path = files, self.metadata.path
        self.manager = ReplicaManager(files, self.metadata, now_ms)
        self.snapshots = Snapshots(self.manager, self._elect)
        self._agreements = Agreements(self.files, self.metadata.paths.snapshots_dir, now_ms)
        self._history = History(self.manager)
        self._committers: dict[bool, Coordinator] = {}  # by whether they flush
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        if arguments.boolean("create", create) and not self.metadata.cluster_file.exists():
            from spark_kbatch.replica.creation import create_cluster  # noqa: PLC0415  above

            own_topics = dict.fromkeys(
                (TRANSACTION_STATE_TOPIC, COMMITS_TOPIC), INTERNAL_TOPIC_CONFIG
            )
            create_cluster(self.manager, folders, own_topics)
        self.metadata.cluster_file.ensure_exists()
        if folders:
            self._ensure_log_dirs(folders)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and close its producers: at once, giving up what was not sent, where the block failed."""
        self._close_producers(timeout=None if error is None else 0)
        self.close()

    def close(self) -> None:
        """Close its producers, which send what they were given; then as `TopicReader.close`."""
        self._close_producers(timeout=None)
        super().close()

    def _close_producers(self, timeout: float | None) -> None:
        for producer in list(self._producers):
            producer.close(timeout)

    def _ensure_log_dirs(self, folders: Sequence[Path]) -> None:
        """Check that the cluster was made with these."""
        found = [one.path.parent for one in self.metadata.cluster_file.log_dirs()]
        if folders != found:
            given, has = (",".join(map(str, paths)) for paths in (folders, found))
            raise ConfigError(
                f"option 'log.dirs' is {given!r}, but the cluster at {self.path} exists with {has!r}; "
                "leave the option out, or write to a new cluster"
            )

    # Topics.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Sorted; the cluster's own where asked."""
        return self.metadata.topics.names(internal=arguments.boolean("internal", internal))

    def topic(self, name: str) -> Topic:
        """Return the topic; raises as `TopicFiles.topic`."""
        return self.metadata.topics.topic(arguments.text("topic", name))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """As `ReplicaManager.partitions`."""
        return self.manager.partitions(arguments.text("topic", topic))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        exist_ok: bool = False,
        num_partitions: int | None = None,
    ) -> Topic:
        """Make a topic.

        Args:
            partitions: how many; 1 by default.
            replication_factor: how many log dirs hold each record; 1 by default. Where the cluster
                was made without `log_dirs`, those it lacks are made in PATH, which saves records
                from the loss of a folder, not of the disk.
            config: its settings, by Kafka's keys: `{"retention.ms": 86_400_000}`, or `retention_ms`.
            exist_ok: whether a topic that exists is taken as it is, where it agrees with what is
                given here.
            num_partitions: another name for `partitions`.

        Raises:
            TopicAlreadyExistsError: it already exists; with `exist_ok`, with other settings.
            ConfigError: it is the cluster's own; an argument or setting that is not accepted.
            InvalidTopicError: Kafka would refuse the name.
        """
        ensure_not_internal(name)
        arguments.boolean("exist_ok", exist_ok)
        given = {
            key: arguments.whole_number(key, value, 1, most)
            for key, value, most in (
                ("partitions", partitions, PARTITIONS_MAX),
                ("num_partitions", num_partitions, PARTITIONS_MAX),
                ("replication_factor", replication_factor, REPLICATION_FACTOR_MAX),
            )
            if value is not None
        }
        count = given.pop("num_partitions", None)
        if count is not None and given.setdefault("partitions", count) != count:
            raise ConfigError(
                f"partitions is {partitions}, and num_partitions, another name for it, is {count}; "
                "give one"
            )
        settings = (
            vars(config)
            if isinstance(config, TopicConfig)
            else parse_topic_options({} if config is None else config)
        )
        found = self.metadata.topics.find(name)
        if found is None:
            return self._make_topic(
                name,
                TopicConfig(**settings),
                **({"partitions": 1, "replication_factor": 1} | given),
            )
        if not exist_ok:
            raise TopicAlreadyExistsError(name)
        differs = [f"{key}={has}" for key in given if (has := getattr(found, key)) != given[key]]
        differs += [
            f"{topic_key(field)}={has}"
            for field, value in settings.items()
            if (has := getattr(found.config, field)) != value
        ]
        if differs:
            raise TopicAlreadyExistsError(name, ", ".join(differs))
        return found

    def _make_topic(
        self, name: str, config: TopicConfig, *, partitions: int, replication_factor: int
    ) -> Topic:
        topic = administration.create_topic(
            self.manager, name, partitions=partitions, config=config,
            replication_factor=replication_factor,
        )  # fmt: skip
        in_path = [
            one for one in self.metadata.cluster_file.log_dirs() if one.path.parent == self.path
        ]
        if replication_factor > 1 and len(in_path) > 1:
            logger.warning(
                "the %d copies of each record of topic %r lie in folders of %s, on one disk: they "
                "survive the loss of a folder, not of the disk; for that make a cluster with log_dirs, "
                "on disks of their own",
                replication_factor,
                name,
                self.path,
            )
        return topic

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records; what it was.

        Who reads it, or writes to it, gets an UnknownTopicOrPartitionError from here on. Its files go
        once file.delete.delay.ms have passed, with the next commit or `collect_garbage`.

        Raises:
            ConfigError: it is the cluster's own.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        return administration.delete_topic(self.manager, self._commits(flush=True), name)

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Let a topic have more partitions, as many as `total_count` in all; what it is then.

        Records stay where they are. Keys of later ones are spread over all partitions, so records with
        equal keys may lie in two: those from before in another one.

        Raises:
            ConfigError: it has as many already, or is the cluster's own.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        total_count = arguments.whole_number("total_count", total_count, 1, PARTITIONS_MAX)
        return administration.create_partitions(
            self.manager, self._commits(flush=True), name, total_count
        )

    def alter_topic(self, name: str, config: Mapping[str, object]) -> Topic:
        """Change settings of a topic, for all that is written to it from here on; what it is then.

        Args:
            config: by Kafka's keys, those to change: `{"retention.ms": 86_400_000}`. None gives a
                setting its default again.

        Raises:
            ConfigError: a setting that is unknown, not accepted or cannot be changed; or the topic is the
                cluster's own.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        return administration.alter_topic(self.manager, self._commits(flush=True), name, config)

    def topic_for(self, name: str, options: WriteOptions) -> Topic:
        """The topic that a write goes to, made by its options where it does not exist.

        Raises:
            ConfigError: it exists with other settings than the options name; also for a topic of
                the cluster's own.
        """
        ensure_not_internal(name)
        found = self.metadata.topics.find(name)
        topic = found or self._make_topic(
            name,
            TopicConfig(**options.topic_config),
            partitions=options.num_partitions or 1,
            replication_factor=options.replication_factor or 1,
        )
        options.ensure_are_of(topic)
        ensure_codec_exists(topic, options.compression_type)
        return topic

    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Edges and sizes of all partitions of these topics, of one moment."""
        names = arguments.topic_names("topics", topics)
        partitions = [tp for topic in names for tp in self.manager.partitions(topic)]
        known = self.manager.all_of(partitions)
        found = self.snapshots.replicas(partitions)
        try:
            rows = [
                PartitionInfo(tp, state.offsets, log.size_in_bytes(state))
                for tp, (_, log, state) in found.items()
            ]
        except KafkaStorageError:
            if self.manager.all_of(partitions) == known:
                raise
            rows = []
        # A topic may have been deleted before its files were looked at, and created again.
        return rows if self.manager.all_of(partitions) == known else self.describe(names)

    # Commits.

    def history(self, topic: str | None = None) -> Iterator[Commit]:
        """All commits of Spark jobs that are kept, or those that touched a topic, the newest first."""
        if topic is not None:
            arguments.text("topic", topic)
        return self._history.read(self.snapshots.replicas, topic)

    def first_commit(self) -> int:
        """Return the number of the oldest commit that `history` keeps; earlier ones are gone."""
        return self._history.first_number(self.snapshots.replicas)

    def find_commit(self, number: int) -> Commit:
        """The commit with a number that `history` shows; raises as `History.find`."""
        number = arguments.whole_number("number", number, 0)
        return self._history.find(self.snapshots.replicas, number)

    # Replicas.

    def replicas(self, topics: str | Iterable[str]) -> dict[TopicPartition, list[ReplicaInfo]]:
        """The replicas of all partitions of these topics: who leads, who is in sync, who lags."""
        return administration.replicas_of(self.manager, arguments.topic_names("topics", topics))

    def log_dirs(self) -> list[LogDirInfo]:
        """The log dirs, which of them are offline and why, and what they hold."""
        return administration.log_dirs_of(self.manager)

    def replicate(self, topics: str | Iterable[str] | None = None) -> list[TopicPartition]:
        """Fill up replicas that lack something; appends do so too, but only of what they append to.

        Args:
            topics: all by default, the cluster's own too.

        Returns:
            The partitions with replicas that are not in sync, because their log dirs are offline.
        """
        names = (
            self.metadata.topics.names(internal=True)
            if topics is None
            else arguments.topic_names("topics", topics)
        )
        return administration.replicate_all(self.manager, names, self._commits(flush=True))

    def _elect(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Have other replicas lead, where those that do cannot be read. What goes wrong comes up again."""
        commits = self._commits(flush=True)
        others = [tp for tp in topic_partitions if tp != TRANSACTION_STATE]
        try:
            if len(others) < len(topic_partitions):
                commits.roll_forward()
        except (OSError, KBatchError) as error:
            logger.warning("nobody is elected for now: %s", error)
        self.manager.replicate(others, commits, flush=True)

    def replace_log_dir(self, node_id: int) -> None:
        """Take the empty directory at its path for the lost log dir of a node.

        What the node held is copied there from other replicas: by `replicate`, or by appends.

        Raises:
            ConfigError: no such node, it is online, or the directory is not empty.
        """
        node_id = arguments.whole_number("node_id", node_id, 0)
        administration.replace_log_dir(self.manager, node_id)

    # Reading.

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Replica]:
        """Of one moment."""
        return self.snapshots.replicas(partitions)

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """The `Fetcher` of readers in this process; ranges that were overwritten since are read."""
        replicas = self.snapshots.replicas
        try:
            return self.manager.fetch(topic_partition, asked, replicas=replicas)
        except OffsetOutOfRangeError as error:
            if asked.offset >= error.log_start_offset:
                raise
        return self.manager.fetch_overwritten(topic_partition, asked, replicas=replicas)

    def fetch_messages(
        self,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        on_complete: OnFetched,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * MiB,
        hard_max_bytes_limit: bool = False,
        replica_id: int = CONSUMER_REPLICA_ID,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> None:
        """As `ReplicaManager.fetch_messages`, with the defaults of Kafka's consumer."""
        self.manager.fetch_messages(
            max_wait_ms=max_wait_ms,
            replica_id=replica_id,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            hard_max_bytes_limit=hard_max_bytes_limit,
            fetch_infos=fetch_infos,
            isolation=isolation,
            on_complete=on_complete,
            replicas=self.snapshots.replicas,
        )

    def agreed_edges(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """The first caller with this `action` looks up all partitions, the others take its answer."""

        def look_up() -> dict[TopicPartition, tuple[int, int]]:
            edges = self.edges(planning.selected(options.selection, self))
            return {
                tp: (found.log_start_offset, found.end_offset(options.isolation_level))
                for tp, found in edges.items()
            }

        agreed = self._agreements.agree(action, look_up)
        if topic_partition not in agreed:
            raise UnknownTopicOrPartitionError(
                f"partition {topic_partition} does not exist in {self.path} any more: its topic was "
                "deleted after this read was planned; load again"
            )
        return agreed[topic_partition]

    def export(self, topic: str, *, to: StrPath) -> list[ExportedPartition]:
        """Place a topic's committed records in the log dir of a Kafka broker that is stopped.

        The broker has the topic already, with as many partitions and no records. Let it keep old
        records by `retention.ms=-1`: it deletes segments by the times of their records.

        Args:
            topic: not one of the cluster's own.
            to: one of `log.dirs` of the broker.

        Returns:
            What each partition holds there; all of it is on disk.

        Raises:
            As `export_topic`; then nothing was changed, unless it says so.
        """
        from spark_kbatch.cluster.export import export_topic  # noqa: PLC0415  above

        ensure_not_internal(topic)
        return export_topic(self.manager, self.snapshots.replicas, topic, absolute_path(to, "to"))

    # Writing.

    def append_records(
        self,
        *,
        timeout_ms: int,
        required_acks: int,
        entries_per_partition: Mapping[TopicPartition, Buffer],
        on_complete: OnAppended,
        flush: bool,
        internal_topics_allowed: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        lock_timeout_ms: int | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """As `ReplicaManager.append_records`; a commit that a dead committer left is finished."""
        self.manager.append_records(
            timeout_ms=timeout_ms,
            required_acks=required_acks,
            internal_topics_allowed=internal_topics_allowed,
            origin=origin,
            entries_per_partition=entries_per_partition,
            on_complete=on_complete,
            flush=flush,
            commits=self._commits(flush=flush),
            lock_timeout_ms=lock_timeout_ms,
            topic_ids=topic_ids,
        )

    def _commits(self, *, flush: bool) -> Coordinator:
        """Who finishes the commit that a dead committer left."""
        known = self._committers.get(flush)
        if known is None:
            known = Coordinator(self.manager, now_ms, adopt_min_bytes=0, flush=flush)
            self._committers[flush] = known
        return known

    # Deleting.

    def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[TopicPartition, int]:
        """Delete all records below an offset of each partition, (topic, number); -1 deletes all.

        They cannot be read any more when this returns. Their bytes go with whole segments.

        Returns:
            Where each partition begins now: the offset, or what it was where that is higher.

        Raises:
            OffsetOutOfRangeError: above a high watermark; nothing is deleted then.
            ConfigError: a topic of the cluster's own.
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        accepts = 'an offset for each partition, such as {("topic", 0): 1500}'
        wanted = {
            tp: arguments.whole_number(f"the offset of {tp}", offset, -LONG_MAX)
            for tp, offset in arguments.by_partition("offsets", offsets, accepts).items()
        }
        for topic_partition in wanted:
            ensure_not_internal(topic_partition.topic)
        done = self.manager.delete_records(wanted, self._commits(flush=True))
        return {tp: deletion.log_start_offset for tp, deletion in done.items()}

    def collect_garbage(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        staging_retention_ms: int = STAGING_RETENTION_MS,
        dry_run: bool = False,
    ) -> Garbage:
        """Delete what retention says, files whose delay is over, and what dead jobs have staged.

        Args:
            topics: all by default; what jobs have staged is looked at in any case.
            staging_retention_ms: after how long without a write to any of its files a job is dead.
            dry_run: only say what would go.

        Raises:
            UnknownTopicOrPartitionError: no such topic.
        """
        names = (
            self.metadata.topics.names()
            if topics is None
            else arguments.topic_names("topics", topics)
        )
        arguments.whole_number("staging_retention_ms", staging_retention_ms, -1)
        arguments.boolean("dry_run", dry_run)
        partitions = [tp for name in names for tp in self.manager.partitions(name)]
        look = left_overs if dry_run else remove_left_overs
        found: list[LeftOver] = []
        not_removed: list[NotRemoved] = []
        for log_dir in self.manager.dirs.all:
            if self.manager.dirs.is_online(log_dir.node_id):  # so it is ours
                gone, kept = look(
                    self.files, log_dir.staging, retention_ms=staging_retention_ms, now_ms=now_ms()
                )
                found += gone
                not_removed += kept
        if dry_run:
            deletions = self.manager.planned_deletions(partitions, self.snapshots.replicas)
            deleted = self.manager.planned_removals()
        else:
            deleted = self.manager.remove_deleted_topics()
            deletions = self.manager.delete_old_segments(partitions, self._commits(flush=True))
        return Garbage(deletions, found, not_removed, deleted)

    def new_producer_id(self) -> int:
        """An id that no producer of this cluster has had, in any process.

        Raises:
            KafkaStorageError: the cluster's folder cannot be written.
        """
        try:
            return self.manager.producer_ids.next()
        except OSError as error:
            raise KafkaStorageError.of(error, "no producer id can be had") from error

    def repair(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, dry_run: bool = False
    ) -> Iterator[RepairReport]:
        """Make logs whole again as far as their batches allow; `log/repair.py` says what that means.

        Args:
            partitions: which, as (topic, number); all by default, the cluster's own too, and also
                those of topics whose file is lost, which is made again (`lost_topics.py`).
            dry_run: only look, and say what would be done.

        Returns:
            A report for each, once it is done; of a log that cannot be read it says why.
        """
        from spark_kbatch.commit.repair import Repair  # noqa: PLC0415
        from spark_kbatch.replica import lost_topics  # noqa: PLC0415  above

        arguments.boolean("dry_run", dry_run)
        repair = Repair(self.manager, self._commits(flush=True), dry_run=dry_run)
        if partitions is not None:
            return repair.run(arguments.topic_partitions("partitions", partitions))
        restored = lost_topics.restore(self.manager, dry_run=dry_run)
        every: list[TopicPartition] = []
        for name in self.metadata.topics.names(internal=True):
            try:
                every += self.manager.partitions(name)
            except KafkaStorageError as error:  # The others are repaired all the same.
                restored[name] = lost_topics.LostTopic(None, str(error))
        return repair.run(every, restored)

    def coordinator(self, options: WriteOptions) -> Coordinator:
        """Who publishes what tasks stage."""
        return Coordinator(
            self.manager,
            now_ms,
            adopt_min_bytes=options.adopt_min_bytes,
            flush=options.flush,
            acks=options.acks,
            replicas_timeout_ms=options.request_timeout_ms,
            staging_retention_ms=options.staging_retention_ms,
            id_expiration_ms=options.transactional_id_expiration_ms,
            commits_retention_bytes=options.commits_retention_bytes,
        )

    def producer(self, **options: Any) -> Producer:
        """A producer of records for any topics of this cluster; close it, or use it in a `with`.

        Args:
            options: Kafka's, such as `acks="all"`, `linger_ms=5`, `compression_type="zstd"`; see
                `PRODUCER_OPTIONS`.

        Raises:
            ConfigError: an unknown option, one without meaning here, or a bad value.
        """
        from spark_kbatch.cluster.transports import LocalLog  # noqa: PLC0415
        from spark_kbatch.options.producer import parse_producer_options  # noqa: PLC0415
        from spark_kbatch.producer.producer import Producer  # noqa: PLC0415  above

        self.metadata.cluster_file.ensure_exists()
        config = parse_producer_options(options)
        producer = Producer(
            config,
            LocalLog(self.append_records, flush=config.flush, level=config.compression_level),
            self.topic_to_write,
            now_ms,
            new_producer_id=self.new_producer_id,
        )
        self._producers.add(producer)
        return producer

    def topic_to_write(self, name: str) -> Topic:
        """A topic that exists and is not the cluster's own.

        Raises:
            ConfigError, UnknownTopicOrPartitionError: it is, or does not.
        """
        ensure_not_internal(name)
        return self.metadata.topics.topic(name)

    def staging_dir(self) -> Path:
        """Where a job can leave what its tasks shall see.

        Raises:
            KafkaStorageError: all log dirs are offline.
        """
        for staging_dir in self.manager.dirs.staging().values():
            return staging_dir
        return self.manager.dirs.staging_of(0)

    def staging(self, transaction: str, *, shared_bytes_max: int, flush: bool) -> ReplicatedStaging:
        """What one task of a job stages; arguments as those of `Staging`."""
        open_files = OpenFiles()

        def on_node(node_id: int, attempt: str) -> Staging:
            return Staging(
                self.files,
                self.manager.dirs.staging_of(node_id),
                transaction,
                shared_bytes_max=shared_bytes_max,
                flush=flush,
                node_id=node_id,
                attempt=attempt,
                open_files=open_files,
            )

        return ReplicatedStaging(on_node)

    def task_producer(
        self, transaction: str, options: WriteOptions, topic_id: str = ""
    ) -> TaskProducer:
        """What one task of a job writes through.

        Args:
            topic_id: of the topic that the options name, as the job found it when it began: a task
                makes no other one in its place.
        """
        from spark_kbatch.cluster.transports import TaskProducer  # noqa: PLC0415  above

        staging = self.staging(
            transaction,
            # An eighth, so that little of what could be renamed has to be copied.
            shared_bytes_max=options.adopt_min_bytes // 8,
            flush=options.flush,
        )

        def find(name: str) -> Topic:
            if not topic_id or name != options.topic:
                return self.topic_for(name, options)
            topic = self.metadata.topics.find(name)
            if topic is None or topic.topic_id != topic_id:
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r} was deleted while the job ran; "
                    + ("create it again and run" if topic is None else "it was created again: run")
                    + " the job again"
                )
            return topic

        return TaskProducer(staging, find, options, now_ms)
