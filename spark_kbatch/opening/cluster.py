"""`Cluster`, the Python API of a cluster in a folder.

    with spark_kbatch.open("PATH", create=True) as cluster:
        cluster.create_topic("events", partitions=4)
        for arrow_batch in cluster.read("events"):
            ...

Checks arguments and delegates to `FolderStore`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.folder_store import FolderStore
from spark_kbatch.commit.history import Commit
from spark_kbatch.commit.staging import (
    AbandonedJob,
    NotRemoved,
    abandoned_jobs,
    remove_abandoned_jobs,
    waiting_jobs,
)
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    ServerRunningError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.model import (
    LONG_MAX,
    ConsumerGroup,
    DeletedTopic,
    Deletion,
    PartitionInfo,
    PartitionKey,
    TopicPartition,
    Waiting,
)
from spark_kbatch.opening.os_errors import raises_kbatch_errors, translating
from spark_kbatch.opening.topics_at_path import TopicsAtPath, damaged_topics, skipping_deleted
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    TRANSACTION_STATE_TOPIC,
    Topic,
    TopicConfig,
    ensure_not_internal,
    numbers_of_a_new_topic,
    parse_topic_options,
    topic_key,
)
from spark_kbatch.options.write import STAGING_RETENTION_MS
from spark_kbatch.replica import administration
from spark_kbatch.replica.administration import LogDirInfo
from spark_kbatch.replica.given_up import GivenUp
from spark_kbatch.replica.view import ReplicaInfo

# Every Spark read starts two processes that only plan: what they do not need is imported by the
# methods that do.
if TYPE_CHECKING:
    from spark_kbatch.cluster.export import ExportedPartition
    from spark_kbatch.log.repair import RepairReport
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.server.ownership import ServerAddress
    from spark_kbatch.server.server import Server

_Result = TypeVar("_Result")


class Garbage(NamedTuple):
    """Result of `collect_garbage`: everything that it deleted, or would delete."""

    partitions: Mapping[TopicPartition, Deletion]
    abandoned_jobs: Sequence[AbandonedJob]
    not_removed: Sequence[NotRemoved] = ()  # left among the staged files; why
    deleted_topics: Sequence[DeletedTopic] = ()  # topics whose files were due for deletion
    damaged_topics: Mapping[str, str] = {}  # left out; the reason by name
    waiting: Sequence[Waiting] = ()  # what is kept for now, and until when
    skipped: Mapping[TopicPartition, str] = {}  # partitions that cannot be used; why


@raises_kbatch_errors
class Cluster(TopicsAtPath):
    """A cluster in a folder, without a broker: topics with all their records.

    Thread-safe; keeps no file open.

        with spark_kbatch.open("my-cluster", create=True) as cluster:
            cluster.create_topic("events", partitions=4)
            with cluster.producer() as producer:
                producer.send("events", key="k", value="v")
            table = cluster.read("events").read_all()

    - Topics: create_topic, alter_topic, create_partitions, delete_topic, topics, topic_names, topic,
      partitions, describe.
    - Records: producer, read, list_offsets, delete_records, collect_garbage, export.
    - Jobs of Spark: history, find_commit, first_commit.
    - Disks: log_dirs, replicas, metrics, replicate, replace_log_dir, elect_unclean, verify, repair.
    - Kafka clients: serve, running_server, groups, alter_group_offsets, delete_group.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        create: bool = False,
        log_dirs: str | Sequence[StrPath] = (),
        without_nodes: Collection[int] | None = None,
        files: Files | None = None,
    ) -> None:
        """Open the cluster at `path`.

        Args:
            path: its folder; `~` is the home folder.
            create: whether to create it if there is none.
            log_dirs: where a new cluster keeps its logs: folders, each on a disk of its own, as many
                as a record may have replicas; as a list, or as text with commas between them. Inside
                `path` by default. If `path` is lost and these folders still hold its logs, it is
                restored from them: from all of them, as any may know the last change.
            without_nodes: nodes whose log dirs are lost for good, when `path` is restored; no cluster is
                created then. Records of which they had the only copy are given up.
            files: the disk; for tests.

        Raises:
            ConfigError: there is no cluster at `path`, none can be created, or it was created with
                other log dirs; says which.
        """
        self._parts = FolderStore(
            path, create=create, log_dirs=log_dirs, without_nodes=without_nodes, files=files
        )
        super().__init__(self._parts)
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._servers: weakref.WeakSet[Server] = weakref.WeakSet()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the cluster and its producers; after an error, producers give up unsent records at once."""
        self._close_producers(timeout=None if error is None else 0)
        self.close()

    def close(self) -> None:
        """Close the cluster with its servers, and its producers once they have sent all their records.

        Every later call raises ClosedError, and so do reads in progress.
        """
        self._close_producers(timeout=None)
        for server in list(self._servers):
            server.close()
        super().close()

    def _close_producers(self, timeout: float | None) -> None:
        for producer in list(self._producers):
            producer.close(timeout)

    # Topics.

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        exist_ok: bool = False,
        num_partitions: int | None = None,
    ) -> Topic:
        """Create a topic.

        Args:
            name: its name.
            partitions: how many; 1 by default.
            replication_factor: how many log dirs hold each record; 1 by default. If the cluster was
                created without `log_dirs`, missing log dirs are created in its folder; they protect
                records from the loss of a folder, not of the disk.
            config: its settings, by Kafka's keys: `{"retention.ms": 86_400_000}`, or `retention_ms`.
            exist_ok: whether to return the topic if it exists already with these settings.
            num_partitions: another name for `partitions`.

        Raises:
            TopicAlreadyExistsError: it exists; with `exist_ok`, it exists with other settings.
            ConfigError: the topic is internal, or an argument or setting is not accepted.
            InvalidTopicError: Kafka would refuse the name.
        """
        ensure_not_internal(name)
        arguments.boolean("exist_ok", exist_ok)
        given = numbers_of_a_new_topic(partitions, num_partitions, replication_factor)
        settings = (
            vars(config)
            if isinstance(config, TopicConfig)
            else parse_topic_options({} if config is None else config)
        )
        found = self._parts.metadata.topics.find(name)
        if found is None:
            return self._parts.make_topic(
                name,
                TopicConfig(**settings),
                given=() if isinstance(config, TopicConfig) else map(topic_key, settings),
                partitions=given.get("partitions", 1),
                replication_factor=given.get("replication_factor", 1),
                exist_ok=exist_ok,
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

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records, and return the topic as it was before.

        From then on, reading from it or writing to it raises UnknownTopicOrPartitionError. Its files
        are removed by the first commit or `collect_garbage` after file.delete.delay.ms.

        Raises:
            ConfigError: the topic is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        return administration.delete_topic(
            self._parts.manager,
            self._parts.coordinator(flush=True),
            name,
        )

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic, up to `total_count` in all, and return the topic.

        Existing records stay where they are. Keys of new records are spread over all partitions, so
        records with the same key may lie in two partitions.

        Raises:
            ConfigError: it has that many already, or is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        total_count = arguments.whole_number("total_count", total_count, 1, PARTITIONS_MAX)
        return administration.create_partitions(
            self._parts.manager,
            self._parts.coordinator(flush=True),
            name,
            total_count,
        )

    def alter_topic(self, name: str, config: Mapping[str, object]) -> Topic:
        """Change settings of a topic for everything written from now on, and return the topic.

        Args:
            name: the topic.
            config: the settings to change, by Kafka's keys: `{"retention.ms": 86_400_000}`. None
                resets a setting to its default.

        Raises:
            ConfigError: a setting is unknown, not accepted or cannot be changed; or the topic is
                internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        ensure_not_internal(name)
        return administration.alter_topic(
            self._parts.manager,
            self._parts.coordinator(flush=True),
            name,
            config,
        )

    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment.

        If some of them cannot be read, these have an `error`, and -1 in place of numbers.

        Raises:
            KafkaStorageError, CorruptRecordError: none of them can be read.
        """
        return self._parts.describe_each(arguments.topic_names("topics", topics))

    # Commits.

    def history(self, topic: str | None = None) -> Iterator[Commit]:
        """Yield the commits of Spark jobs, newest first, or only those that touched `topic`."""
        if topic is not None:
            arguments.text("topic", topic)
        return self._parts.history.read(self._parts.snapshots.replicas, topic)

    def first_commit(self) -> int:
        """Return the number of the oldest commit that `history` still has."""
        return self._parts.history.first_number(self._parts.snapshots.replicas)

    def find_commit(self, number: int) -> Commit:
        """Return the commit of a Spark job that has this number in `history`.

        Raises:
            ConfigError: there is no such commit, or the history does not have it any more.
        """
        number = arguments.whole_number("number", number, 0)
        return self._parts.history.find(self._parts.snapshots.replicas, number)

    # Replicas.

    def replicas(self, topics: str | Iterable[str]) -> dict[TopicPartition, list[ReplicaInfo]]:
        """Return the replicas of all partitions of these topics: which leads, which lag."""
        return administration.replicas_of(
            self._parts.manager, arguments.topic_names("topics", topics)
        )

    def log_dirs(self) -> list[LogDirInfo]:
        """Return the log dirs: what each holds, and why it is offline if it is."""
        return skipping_deleted(
            self,
            self.topic_names(internal=True),
            lambda names: administration.log_dirs_of(self._parts.manager, names),
        )

    def metrics(self) -> dict[str, Any]:
        """Return the state of topics, replicas, logs and log dirs, by the names of a Kafka broker's metrics.

        "ReplicaManager", "KafkaController" and "LogManager" count partitions, replicas and log dirs, and those
        that need attention, internal topics included. "Log" has offsets, segments and bytes by partition, None
        where no replica can be read. "BrokerTopicMetrics" counts what this process has appended and read since
        the cluster was opened: a "...PerSec" has Count, MeanRate and OneMinuteRate.
        """
        from spark_kbatch.cluster.metrics import metrics_of  # noqa: PLC0415  above

        return skipping_deleted(
            self, self.topic_names(internal=True), lambda names: metrics_of(self._parts, names)
        )

    def replicate(self, topics: str | Iterable[str] | None = None) -> list[TopicPartition]:
        """Bring lagging replicas of these topics up to date.

        Appends do so for the partitions they append to.

        Args:
            topics: all by default, internal ones too.

        Returns:
            Partitions whose replicas are still not all in sync, because log dirs are offline.
        """
        names = (
            self._parts.metadata.topics.names(internal=True)
            if topics is None
            else arguments.topic_names("topics", topics)
        )
        return administration.replicate_all(
            self._parts.manager,
            names,
            self._parts.coordinator(flush=True),
            skip_deleted=topics is None,
        )

    def replace_log_dir(
        self, node_id: int, *, unclean: bool = False, dry_run: bool = False
    ) -> list[GivenUp]:
        """Replace the lost log dir of a node by the empty directory at its path.

        What it held is copied there from other replicas by `replicate`, or by appends.

        Args:
            node_id: the node.
            unclean: whether to give up records of which the lost log dir may have had the only copy.
            dry_run: only look what would be given up.

        Returns:
            What is given up, by partition.

        Raises:
            ConfigError: no such node, it is online, the directory is not empty, or without `unclean`
                it may have had the only copy of some records.
        """
        return administration.replace_log_dir(
            self._parts.manager,
            arguments.whole_number("node_id", node_id, 0),
            self._parts.coordinator(flush=True),
            unclean=arguments.boolean("unclean", unclean),
            dry_run=arguments.boolean("dry_run", dry_run),
        )

    def elect_unclean(self, topic: str, *, dry_run: bool = False) -> list[GivenUp]:
        """Let replicas that are not in sync lead, where a topic has no in-sync one that can be used.

        Records that only the lost in-sync replicas had are given up; if their disks come back, they are
        truncated. Of `__transaction_state` it gives up what commits wrote there, not their records.

        Args:
            topic: its name, also that of an internal topic.
            dry_run: only look what would be given up.

        Returns:
            What is given up, in the partitions for which a replica was elected.

        Raises:
            UnknownTopicOrPartitionError: no such topic.
            KafkaStorageError: no replica of a partition can be used; says why.
        """
        arguments.text("topic", topic)
        arguments.boolean("dry_run", dry_run)
        if topic == TRANSACTION_STATE_TOPIC:
            return self._parts.coordinator(flush=True).elect_unclean(dry_run=dry_run)
        return administration.elect_unclean(self._parts.manager, topic, dry_run=dry_run)

    def export(self, topic: str, *, to: StrPath) -> list[ExportedPartition]:
        """Copy a topic's committed records into the log dir of a stopped Kafka broker.

        The topic must exist on the broker, with the same number of partitions and no records. Set
        `retention.ms=-1` on it to keep old records: a broker deletes segments by their records' times.

        Args:
            topic: not an internal one.
            to: one of the broker's `log.dirs`.

        Returns:
            What each partition of the broker's topic holds now; all of it is flushed to disk.

        Raises:
            UnknownTopicOrPartitionError: no such topic here.
            ConfigError: the log dir cannot take the topic; says why and what to do.
            LogDirLockedError: the broker is running.
            CorruptRecordError: a batch of the topic is damaged. Nothing was changed, as for all of these.
            KafkaStorageError: a file there is not what a broker writes.
        """
        from spark_kbatch.cluster.export import export_topic  # noqa: PLC0415  above

        ensure_not_internal(topic)
        return export_topic(
            self._parts.manager, self._parts.snapshots.replicas, topic, absolute_path(to, "to")
        )

    # Deleting.

    def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[TopicPartition, int]:
        """Delete the records below a given offset in each partition; offset -1 deletes all of them.

        The keys are (topic, partition) pairs.

        When this returns they cannot be read any more. Disk space is freed by whole segments.

        Returns:
            The log start offset of each partition: the given offset, or the old one if higher.

        Raises:
            OffsetOutOfRangeError: an offset is above the high watermark; nothing is deleted.
            ConfigError: a topic is internal.
            UnknownTopicOrPartitionError: a partition does not exist.
        """
        accepts = 'an offset for each partition, such as {("topic", 0): 1500}'
        wanted = {
            tp: arguments.whole_number(f"the offset of {tp}", offset, -LONG_MAX)
            for tp, offset in arguments.by_partition("offsets", offsets, accepts).items()
        }
        for topic_partition in wanted:
            ensure_not_internal(topic_partition.topic)
        done = self._parts.manager.delete_records(wanted, self._parts.coordinator(flush=True))
        return {tp: deletion.log_start_offset for tp, deletion in done.items()}

    def collect_garbage(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        staging_retention_ms: int = STAGING_RETENTION_MS,
        dry_run: bool = False,
    ) -> Garbage:
        """Delete expired segments, files of deleted topics, and staged files of abandoned jobs.

        A partition that cannot be used is skipped, and the result says why.

        Args:
            topics: whose segments to look at; all by default. Files of deleted topics and of
                abandoned jobs are looked at in any case.
            staging_retention_ms: a job is abandoned after this long without a write to its files.
            dry_run: whether to return what would be deleted without deleting it.

        Raises:
            UnknownTopicOrPartitionError: no such topic.
        """
        names = self.topic_names() if topics is None else arguments.topic_names("topics", topics)
        arguments.whole_number("staging_retention_ms", staging_retention_ms, 0)
        arguments.boolean("dry_run", dry_run)
        manager = self._parts.manager
        damaged = damaged_topics(self, names) if topics is None else {}
        names = [name for name in names if name not in damaged]

        def partitions(names: Iterable[str]) -> list[TopicPartition]:
            return [tp for name in names for tp in manager.partitions(name)]

        def of_each(work: Callable[[list[str]], _Result]) -> _Result:
            return work(names) if topics is not None else skipping_deleted(self, names, work)

        of_each(partitions)  # Before anything is deleted, it fails for a topic that does not exist.
        look = abandoned_jobs if dry_run else remove_abandoned_jobs
        found: list[AbandonedJob] = []
        not_removed: list[NotRemoved] = []
        waiting: list[Waiting] = []
        for log_dir in manager.dirs.all:
            if manager.dirs.is_online(log_dir.node_id):  # so it is ours
                gone, kept = look(
                    self._parts.files,
                    log_dir.staging,
                    retention_ms=staging_retention_ms,
                    now_ms=now_ms(),
                )
                found += gone
                not_removed += kept
                waiting += waiting_jobs(
                    self._parts.files,
                    log_dir.staging,
                    retention_ms=staging_retention_ms,
                    now_ms=now_ms(),
                )
        skipped: dict[TopicPartition, str] = {}
        replicas = self._parts.snapshots.replicas

        def usable(names: Iterable[str]) -> list[TopicPartition]:
            every = partitions(names)
            skipped.update(self._parts.unreadable(every))
            return [tp for tp in every if tp not in skipped]

        if dry_run:
            deletions = of_each(lambda some: manager.planned_deletions(usable(some), replicas))
            deleted = manager.planned_removals()
        else:
            deleted = manager.remove_deleted_topics()
            commits = self._parts.coordinator(flush=True)
            deletions = of_each(
                lambda some: manager.delete_old_segments(
                    usable(some), commits, skip_deleted=topics is None, skipped=skipped
                )
            )
        waiting += of_each(lambda some: manager.waiting(usable(some), replicas))
        why = {name: str(error) for name, error in damaged.items()}
        return Garbage(deletions, found, not_removed, deleted, why, waiting, skipped)

    def repair(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, dry_run: bool = False
    ) -> Iterator[RepairReport]:
        """Repair logs that cannot be read or written, keeping every valid batch; see `log/repair.py`.

        Args:
            partitions: which, as (topic, number); all by default, including those of internal topics
                and of topics whose file is lost or damaged, which is restored (`lost_topics.py`).
            dry_run: whether to report what would be done without doing it.

        Returns:
            A report for each partition, as it is done; of a log that cannot be repaired it says why.
        """
        from spark_kbatch.commit.cluster_repair import ClusterRepair  # noqa: PLC0415
        from spark_kbatch.commit.internal_topics import INTERNAL_TOPICS  # noqa: PLC0415
        from spark_kbatch.replica import lost_topics  # noqa: PLC0415  above

        arguments.boolean("dry_run", dry_run)
        repair = ClusterRepair(
            self._parts.manager, self._parts.coordinator(flush=True), dry_run=dry_run
        )
        if partitions is not None:
            return repair.run(arguments.topic_partitions("partitions", partitions))
        restored = lost_topics.restore(self._parts.manager, INTERNAL_TOPICS, dry_run=dry_run)
        every: list[TopicPartition] = []
        for name in self._parts.metadata.topics.names(internal=True):
            try:
                every += self._parts.manager.partitions(name)
            except UnknownTopicOrPartitionError:
                continue  # deleted since the names were listed
            except KafkaStorageError as error:  # the others are repaired all the same
                restored.setdefault(name, lost_topics.LostTopic(None, str(error)))
        return repair.run(every, restored, skip_deleted=True)

    def verify(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[RepairReport]:
        """Check everything that is stored, and write nothing; see `commit/cluster_repair.py`.

        Args:
            partitions: which, as (topic, number); by default all, including those of internal topics, and
                the records of commits and consumer groups.

        Returns:
            A report for each partition, as it is done: what `repair` would repair, batches that are
            damaged beyond repair, and replicas that were not looked at, because their disks are away.
        """
        from spark_kbatch.commit import cluster_repair  # noqa: PLC0415
        from spark_kbatch.commit.internal_topics import COMMITS, CONSUMER_OFFSETS  # noqa: PLC0415

        for report in self.repair(partitions, dry_run=True):
            yield cluster_repair.with_followers(self._parts.manager, report)
        if partitions is not None:
            return
        records: tuple[tuple[TopicPartition, str, Callable[[], object]], ...] = (
            (COMMITS, "commits", lambda: list(self.history())),
            (CONSUMER_OFFSETS, "consumer groups", self.groups),
        )
        for topic_partition, what, read in records:
            try:
                read()
            except (OSError, KBatchError) as error:
                yield from cluster_repair.unreadable(
                    self._parts.manager, topic_partition, what, error
                )

    def producer(self, config: Mapping[str, object] | None = None, /, **options: Any) -> Producer:
        """Return a producer for any topics of this cluster; close it, or use it in a `with`.

        A topic that does not exist is created by the first record for it, unless
        `auto_create_topics_enable` is False.

        Args:
            config: options of Kafka's producer by Kafka's keys: `{"linger.ms": 5, "acks": "all"}`; see
                `PRODUCER_OPTIONS`.
            options: the same, as keyword arguments: `linger_ms=5`, `compression_type="zstd"`.

        Raises:
            ConfigError: an option is unknown, has no meaning here, or has a bad value.
        """
        from spark_kbatch.cluster.transports import LocalLog  # noqa: PLC0415
        from spark_kbatch.options.producer import parse_producer_options  # noqa: PLC0415
        from spark_kbatch.producer.producer import Producer  # noqa: PLC0415  above

        self._parts.metadata.cluster_file.ensure_exists()
        given = arguments.options("config", config, '{"linger.ms": 5}')
        chosen = parse_producer_options(given, options)
        producer = Producer(
            chosen,
            LocalLog(
                self._parts.append_records, flush=chosen.flush, level=chosen.compression_level
            ),
            translating(
                self._parts.topics_to_write(create=chosen.auto_create_topics_enable), self.path
            ),
            now_ms,
            new_producer_id=self._parts.new_producer_id,
            takes_runs=True,
        )
        self._producers.add(producer)
        return producer

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        auto_create: bool = True,
        num_partitions: int = 1,
        replication_factor: int = 1,
        flush: bool = False,
        config: Mapping[str, object] | None = None,
        **options: Any,
    ) -> Server:
        """Serve this cluster to any Kafka client; close the server, or use it in a `with`.

            with cluster.serve() as server:
                producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers)

        There is no authentication: anyone who reaches the address may read, write and delete. Spark jobs and
        producers on this cluster go on beside the server.

        Args:
            host: address to listen on; by default only this machine can connect.
            port: port to listen on; 0 for any free port, which `bootstrap_servers` shows.
            advertise: HOST:PORT that clients connect to, if not the address that they have reached.
            auto_create: whether topics are created when clients ask for them.
            num_partitions: number of partitions of such a topic.
            replication_factor: number of replicas of such a topic, each in its own log dir.
            flush: whether batches are on disk before they are acknowledged. Kafka does not wait.
            config: further options by Kafka's keys: `{"connections.max.idle.ms": 60_000}`; see
                `SERVER_OPTIONS`.
            options: the same, as keyword arguments: `connections_max_idle_ms=60_000`.

        Raises:
            ServerRunningError: another server serves the cluster; gives its address.
            ConfigError: the server cannot listen there, or an argument is not accepted.
        """
        # Its defaults stand in the signature as well, held equal by a test: few processes load it.
        from spark_kbatch.options.server import (  # noqa: PLC0415  above
            PORT_MAX,
            parse_address,
            parse_server_options,
        )
        from spark_kbatch.server.server import Server  # noqa: PLC0415  above

        self._parts.metadata.cluster_file.ensure_exists()
        arguments.text("host", host)
        arguments.whole_number("port", port, 0, PORT_MAX)
        named = {
            "auto_create_topics_enable": auto_create,
            "num_partitions": num_partitions,
            "default_replication_factor": replication_factor,
            "flush": flush,
        }
        parsed = parse_server_options(
            named,
            arguments.options("config", config, '{"connections.max.idle.ms": 60000}'),
            options,
        )
        advertised = None if advertise is None else parse_address("advertise", advertise)
        server = Server(self._parts, parsed, host=host, port=port, advertised=advertised)
        self._servers.add(server)
        return server

    def running_server(self) -> ServerAddress | None:
        """Return the address at which some process serves this cluster now; None if no one does."""
        from spark_kbatch.server.ownership import running_server  # noqa: PLC0415  above

        return running_server(self._parts.metadata)

    def groups(self) -> list[ConsumerGroup]:
        """Return the consumer groups that Kafka clients made, with members, offsets and lag.

        A server need not run: they are read from the log. A rebalance that goes on is not in it.

        Raises:
            KafkaStorageError, CorruptRecordError: `__consumer_offsets` cannot be read.
        """
        from spark_kbatch.cluster.groups import groups_of  # noqa: PLC0415  above

        return groups_of(self._parts)

    def alter_group_offsets(self, group_id: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Set the offsets at which a consumer group continues; it may not have members, nor need it exist.

        If a server runs, here or in another process, it is asked to.

        Args:
            group_id: the group.
            offsets: of the next record to read, by (topic, partition); they may lie outside the log.

        Raises:
            GroupNotEmptyError: the group has members.
            UnknownTopicOrPartitionError: a partition does not exist.
        """
        from spark_kbatch.remote.cluster import connect_to  # noqa: PLC0415  above
        from spark_kbatch.server.groups.store import alter_offsets  # noqa: PLC0415  above

        group_id, wanted = arguments.group_offsets(group_id, offsets)
        try:
            alter_offsets(self._parts, group_id, wanted)
        except ServerRunningError as error:
            if not error.address:
                raise
            connect_to(error.address, None, {}).alter_group_offsets(group_id, wanted)

    def delete_group(self, group_id: str) -> None:
        """Delete a consumer group without members, with its offsets.

        If a server runs, here or in another process, it is asked to.

        Raises:
            GroupNotEmptyError: the group has members.
            GroupIdNotFoundError: there is no such group.
        """
        from spark_kbatch.remote.cluster import connect_to  # noqa: PLC0415  above
        from spark_kbatch.server.groups import store  # noqa: PLC0415  above

        group_id = arguments.group(group_id)
        try:
            store.delete_group(self._parts, group_id)
        except ServerRunningError as error:
            if not error.address:
                raise
            connect_to(error.address, None, {}).delete_group(group_id)
