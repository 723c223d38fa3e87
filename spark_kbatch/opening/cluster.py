"""`Cluster`, the Python API of topics in any place: a folder, a bucket, a real Kafka cluster, a broker's logs.

    with spark_kbatch.open("PATH", create=True) as cluster:
        cluster.create_topic("events", partitions=4)
        for arrow_batch in cluster.read("events"):
            ...

Checks arguments and delegates to the place's store.
"""

from __future__ import annotations

import datetime
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, overload

from spark_kbatch.consumer.topic_reader import OffsetBound, TopicChoice, TopicReader
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    NotPicklableError,
)
from spark_kbatch.model import (
    ConsumerGroup,
    OffsetAndTimestamp,
    PartitionInfo,
    PartitionKey,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.columns import READ
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    Topic,
    TopicConfig,
    ensure_not_internal,
    numbers_of_a_new_topic,
)
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES, STAGING_RETENTION_MS
from spark_kbatch.store.catalog import existing
from spark_kbatch.store.commits import ALL_COMMITS, Commit, CommitHistory
from spark_kbatch.store.os_errors import raises_kbatch_errors, translated, translated_each
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import Catalog, Disks, Groups, Store, Upkeep

# Every Spark read starts two processes that only plan: what they do not need is imported by the
# methods that do.
if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.consumer.following import Following, Stop
    from spark_kbatch.consumer.peeking import Peek
    from spark_kbatch.files import Files
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.producer.transactional import TransactionalProducer
    from spark_kbatch.server.server import Server
    from spark_kbatch.store.reports import (
        ExportedPartition,
        Garbage,
        GivenUp,
        LogDirInfo,
        RepairReport,
        ReplicaInfo,
        ServerAddress,
    )

PEEK_BYTES = 8 << 20
ALL_RECORDS = -1  # in place of an offset to delete below

_Part = TypeVar("_Part")


# What a place may not have.
_PARTS: Mapping[str, Callable[[Store], object]] = {
    "catalog": lambda store: store.catalog,
    "producer": lambda store: store.catalog,
    "groups": lambda store: store.groups,
    "commits": lambda store: store.commits,
    "disks": lambda store: store.disks,
    "upkeep": lambda store: store.upkeep,
    "server": lambda store: store.server,
}
# How an error says that it has not.
_WITHOUT = {
    "catalog": "topics and their records cannot be changed",
    "producer": "nothing can be written",
    "groups": "no consumer groups are kept",
    "commits": "there are no commits of Spark jobs",
    "disks": "no log dirs or replicas are looked after, cleaned up or exported",
    "upkeep": "there is nothing to check or repair",
    "server": "there is nothing to serve",
}


@raises_kbatch_errors
class Cluster:
    """Topics with all their records: of a cluster in a folder or a bucket, of a real Kafka cluster, of a broker's logs.

    Thread-safe; keeps no file open.

        with spark_kbatch.open("my-cluster", create=True) as cluster:
            cluster.create_topic("events", partitions=4)
            with cluster.producer() as producer:
                producer.send("events", key="k", value="v")
            table = cluster.read("events").read_all()

    Any place is read in the same way. What it has not raises ConfigError; a broker's logs are only read.

    - Topics: create_topic, alter_topic, create_partitions, delete_topic, topics, topic_names, topic,
      partitions, describe.
    - Records: producer, read, follow, peek, list_offsets, delete_records.
    - Consumer groups: groups, alter_group_offsets, delete_group.
    - Jobs of Spark to a folder or a bucket: history, find_commit, first_commit, commit_numbers.
    - Check and repair of a folder or a bucket: verify, also of a broker's logs, and repair.

    Of a folder alone, where no broker sees to it:

    - Disks: log_dirs, replicas, metrics, replicate, replace_log_dir, elect_unclean, collect_garbage, export.
    - Kafka clients: serve, running_server.
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
        """Open the cluster in the folder at `path`; `connect` and `open` have the other places.

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
        from spark_kbatch.cluster.folder_store import FolderStore  # noqa: PLC0415  others have their store
        from spark_kbatch.cluster.parts import FolderParts  # noqa: PLC0415

        parts = FolderParts(
            path, create=create, log_dirs=log_dirs, without_nodes=without_nodes, files=files
        )
        self._store: Store = FolderStore(parts)
        self._open()

    @classmethod
    def over(cls, store: Store) -> Cluster:
        """Return the cluster over any store (`spark_kbatch.store`); `open` and `connect` find one by an address."""
        self = cls.__new__(cls)
        self._store = store
        self._open()
        return self

    def _open(self) -> None:
        self._reader = TopicReader(self._store.source)
        self._is_closed = False
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._servers: weakref.WeakSet[Server] = weakref.WeakSet()

    def __enter__(self) -> Self:
        self._ensure_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the cluster and its producers; after an error, producers give up unsent records at once."""
        self._close_producers(timeout=None if error is None else 0)
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self._store.address!r}{', closed' if self.is_closed else ''})"

    def __reduce__(self) -> NoReturn:
        opened_by = "connect" if self.is_remote else "open"
        raise NotPicklableError(
            "Cluster",
            f"open it in the function, in each task: spark_kbatch.{opened_by}({self._store.address!r})",
        )

    def close(self) -> None:
        """Close the cluster with its servers, and its producers once they have sent all their records.

        Every later call raises ClosedError, and so do reads in progress.
        """
        self._close_producers(timeout=None)
        for server in list(self._servers):
            server.close()
        if not self.is_closed:
            self._is_closed = True
            self._store.close()

    def _close_producers(self, timeout: float | None) -> None:
        for producer in list(self._producers):
            producer.close(timeout)

    # The place.

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def address(self) -> str:
        """The address, as `spark_kbatch.open` takes it: an absolute path, bootstrap servers, a URL."""
        return self._store.address

    @property
    def path(self) -> Path:
        """The absolute path of a folder or a broker's logs."""
        found = Path(self._store.address)
        if not found.is_absolute():
            raise ConfigError(f"{self._store.address} is no folder, and has no path")
        return found

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers of a real cluster, separated by commas."""
        if not self.is_remote:
            raise ConfigError(
                f"{self._store.address} is no real cluster; `serve` gives a server's address"
            )
        return self._store.address

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, which a broker's log dir may tell too."""
        with translated(self._store.address):
            found = self._store.cluster_id
        if not found:
            raise ConfigError(f"{self._store.address} does not tell the id of its cluster")
        return found

    @property
    def is_remote(self) -> bool:
        """Whether this is a real cluster, reached over the network."""
        return self._store.is_remote

    def has(self, part: str) -> bool:
        """Return True if the place has what is named; what it has not raises ConfigError.

        Args:
            part: "catalog" (its topics can be changed), "producer", "groups" (of a broker's logs if
                `__consumer_offsets` is there), "commits", "upkeep" (it can be verified, and
                repaired unless it is only read); and of a folder alone "disks" and "server".
        """
        self._ensure_open()
        if arguments.text("part", part) not in _PARTS:
            arguments.refuse("part", part, ", ".join(_PARTS))
        return _PARTS[part](self._store) is not None

    @property
    def _source(self) -> Source:
        return self._reader.source

    def _catalog(self) -> Catalog:
        return self._had(self._store.catalog, "catalog")

    def _groups(self) -> Groups:
        return self._had(self._store.groups, "groups")

    def _commits(self) -> CommitHistory:
        return self._had(self._store.commits, "commits")

    def _disks(self) -> Disks:
        return self._had(self._store.disks, "disks")

    def _upkeep(self) -> Upkeep:
        return self._had(self._store.upkeep, "upkeep")

    def _had(self, part: _Part | None, name: str) -> _Part:
        """Return a part of the place while this is open; raises ConfigError if it has none."""
        self._ensure_open()
        if part is None:
            raise ConfigError(f"{_WITHOUT[name]} in {self._store.address}: {self._store.why_not}")
        return part

    def _ensure_open(self) -> None:
        if self.is_closed:
            raise ClosedError(self._store.address)

    # Topics.

    def topics(self, *, internal: bool = False) -> list[Topic]:
        """Return all topics, sorted by name; internal ones, Kafka's own or the cluster's, only if asked."""
        arguments.boolean("internal", internal)
        if self._store.catalog is None:
            return existing(self._source.topic, self.topic_names(internal=internal))
        return [*self._store.catalog.topics(internal=internal)]

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            internal: whether to include internal topics, Kafka's own or the cluster's.
        """
        return self._source.topic_names(internal=arguments.boolean("internal", internal))

    def topic(self, name: str) -> Topic:
        """Return a topic: its id, partition count, replicas and settings.

        Of a real cluster it is a RemoteTopic, with leaders and all settings that the cluster tells. In a
        broker's log dir the count is of the partitions that are there, the id is empty if the broker
        wrote none, and settings are not known.

        Raises:
            UnknownTopicOrPartitionError: no such topic; names the nearest.
        """
        arguments.text("topic", name)
        return (self._store.catalog or self._source).topic(name)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all of a topic's partitions that are here, in order; raises as `topic`."""
        return self._source.partitions(arguments.text("topic", topic))

    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics.

        Of a folder all are as of one moment; if some cannot be read, these have an `error`, and -1 in place
        of numbers. A real cluster's leaders are asked one after another, and tell no sizes (-1).

        Raises:
            KafkaStorageError, CorruptRecordError: none of them can be read.
        """
        return self._source.describe(arguments.topic_names("topics", topics))

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
        """Create a topic, and return it once it can be used.

        Args:
            name: its name.
            partitions: how many; by default 1, in a real cluster its `num.partitions`.
            replication_factor: how many log dirs or brokers hold each record; by default 1, in a real
                cluster its `default.replication.factor`. If a folder was created without `log_dirs`,
                missing log dirs are created in it; they protect records from the loss of a folder, not
                of the disk.
            config: its settings, by Kafka's keys: `{"retention.ms": 86_400_000}`, or `retention_ms`.
                What a real cluster accepts is for it to say.
            exist_ok: whether to return the topic if it exists already with all that is given here.
            num_partitions: another name for `partitions`.

        Raises:
            TopicAlreadyExistsError: it exists; with `exist_ok`, it differs from what is given here.
            ConfigError: the topic is internal, or an argument or setting is not accepted.
            InvalidTopicError: Kafka would refuse the name.
        """
        arguments.boolean("exist_ok", exist_ok)
        given = numbers_of_a_new_topic(partitions, num_partitions, replication_factor)
        return self._catalog().create_topic(
            name,
            partitions=given.get("partitions"),
            replication_factor=given.get("replication_factor"),
            config={} if config is None else config,
            exist_ok=exist_ok,
        )

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records, and return the topic as it was before.

        From then on, reading from it or writing to it raises UnknownTopicOrPartitionError. In a folder its
        files are removed by the first commit or `collect_garbage` after file.delete.delay.ms. Brokers of a
        real cluster learn of it one after another: for a moment some may still answer for it.

        Raises:
            ConfigError: the topic is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        arguments.text("topic", name)
        return self._catalog().delete_topic(name)

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic, up to `total_count` in all, and return the topic.

        Existing records stay where they are. Keys of new records are spread over all partitions, so
        records with the same key may lie in two partitions.

        Raises:
            ConfigError: it has that many already, or is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        arguments.text("topic", name)
        total_count = arguments.whole_number("total_count", total_count, 1, PARTITIONS_MAX)
        return self._catalog().create_partitions(name, total_count)

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
        arguments.text("topic", name)
        return self._catalog().alter_topic(name, config)

    # Records.

    def list_offsets(
        self,
        wanted: Mapping[PartitionKey, int | str | datetime.datetime],
        *,
        isolation_level: str = "read_committed",
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up offsets by time.

        Args:
            wanted: for each partition, as (topic, number), a time in ms or a `datetime` with a time zone,
                to find the first record with that time or a later one; or "earliest" (-2), the first
                offset held, "latest" (-1), the end, or "max_timestamp" (-3), the first record with the
                largest time.
            isolation_level: "read_committed" ends before the first open transaction.

        Returns:
            For each partition the offset and its time, or None if there is no such record before the
            end. For "earliest" and "latest" the time is -1.

        Raises:
            ConfigError: another word or number.
        Source: Kafka core/.../cluster/Partition.scala fetchOffsetForTimestamp; ListOffsetsRequest.
        """
        self._ensure_open()
        return self._reader.list_offsets(wanted, isolation_level=isolation_level)

    def read(
        self,
        topics: TopicChoice,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        last: int | None = None,
        columns: Iterable[str] = READ,
        text: bool | Literal["replace"] = False,
        isolation_level: str = "read_committed",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
        registry: StrPath | Mapping[str, str] | None = None,
        where: str | None = None,
        **formats: Any,
    ) -> pa.RecordBatchReader:
        """Read the records of topics, partition by partition, in offset order within each.

        Arguments are checked at once; records are read as you take batches. All partitions of a cluster
        in a folder are read as of one moment.

        Args:
            topics: a name, several, or a pattern, `re.compile("^orders-")`, which may match anywhere
                in a name; internal topics never match.
            partitions: which to read of each topic, by number; all by default.
            start: first offset to read, or "earliest", or a `datetime` with a time zone: the first
                record with that time or a later one, and none if there is no such record. Or one for
                each partition: `{0: 5, 1: "earliest"}`, of several topics `{("events", 0): 5}`.
            end: offset to stop before, or "latest", or a time, before whose first record to stop; or
                one for each partition.
            last: of each partition, read only the last so many records before `end`.
            columns: which columns, in which order, of key, value, topic, partition, offset,
                timestamp, timestampType and headers, and those that `formats` adds. Types are those of
                Spark. Only these columns are decoded.
            text: whether key and value are strings, where they have no format; "replace" puts U+FFFD for
                bytes that are not UTF-8.
            isolation_level: "read_committed" leaves out records of aborted transactions and ends
                before the first open one; "read_uncommitted" does neither.
            max_decompressed_batch_bytes: limit of one compressed batch when decompressed; a larger
                one raises CorruptRecordError when its rows are taken.
            registry: of schemas: a URL, a folder, or a mapping with credentials:
                `{"url": ..., "basic.auth.user.info": "USER:PASSWORD"}`.
            where: only the rows that this condition is true for, in Spark's spelling:
                `"key = 'a' AND offset >= 5"`; see docs/where.md. It sees all columns, those that
                `columns` leaves out too. What it leaves out is not checked. `last` counts records
                before it.
            formats: the options of values as columns, with underscores: `value_format="avro"`,
                `key_format="string"`, `value_schema="version:3"`, `mode="PERMISSIVE"`; of JSON `value_format="json"`
                and a DDL, `value_schema="id bigint, tags array<string>"`; see docs/values.md.

        Returns:
            An iterator of `pyarrow.RecordBatch`, of at least one. Its `read_all()` returns one table,
            which has the columns even if there are no records. DuckDB, Polars and everything else that
            takes Arrow streams accepts it as it is.

        Raises:
            UnknownTopicOrPartitionError: no such topic or partition.
            ConfigError: another argument is not accepted.
            OffsetOutOfRangeError: partitions do not hold these offsets; names all of them.
            RecordDeserializationError: as rows are taken: a key or a value is not text, or not of its schema.
            SchemaRegistryError: the registry does not have a schema, or cannot be asked.
            CorruptRecordError: as rows are taken, after those before the damage: names the damaged offsets.
        """
        if not isinstance(topics, (str, re.Pattern)):
            topics = arguments.topic_names("topics", topics)  # once, of an iterator
        from spark_kbatch.columns.reading import read_as  # noqa: PLC0415  above

        typed = read_as(text, registry, formats, topics)
        if columns is READ:
            columns = typed.schema.names
        return self._reader.read(
            topics,
            partitions=partitions,
            start=start,
            end=end,
            last=last,
            columns=columns,
            typed=typed,
            isolation_level=isolation_level,
            max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            where=where,
            taken=lambda batches: translated_each(batches, self._store.address),
        )

    def follow(
        self,
        topics: TopicChoice,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "latest",
        columns: Iterable[str] = READ,
        text: bool | Literal["replace"] = False,
        isolation_level: str = "read_committed",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
        registry: StrPath | Mapping[str, str] | None = None,
        where: str | None = None,
        group: str | None = None,
        stop_at: OffsetBound | None = None,
        timeout: float | None = None,
        stop: Stop | None = None,
        **formats: Any,
    ) -> Following:
        """Read records as they come, in a loop that goes on: the consumer of plain Python.

            with cluster.follow("orders", group="billing", columns=["key", "value"]) as records:
                for batch in records:
                    ...

        Each batch is of one partition, and bounded; the order is that of each partition. A topic
        that comes later and matches a pattern, or a new partition, is read from its start. A loop
        that no one asks does nothing: there is no thread. `async for` takes it too.

        Args:
            topics: as for `read`. A topic of a pattern that is deleted is left out with a warning.
            partitions, columns, text, isolation_level, max_decompressed_batch_bytes: as for `read`.
            registry, where, formats: as for `read`.
            start: where to begin: "latest", only what comes from now on; "earliest"; an offset, a
                time, or one for each partition, as for `read`.
            group: a consumer group without members. The loop starts where it stands, and at `start`
                if it has no offsets of a topic. It commits what was handed out once the next batch
                is asked for, while many come at once each second, in a bucket each ten, and at its
                end: each record at least once. One loop at a time has a group.
            stop_at: where to end: "latest", as of now, an offset, also one ahead, or a time: before
                its first record, or once it has passed and all there is was read. Or one for each
                partition.
            timeout: seconds without a record, after which the loop ends; by default it waits for
                ever.
            stop: ends the loop: a `threading.Event` once it is set, or a function once it returns
                True, looked at before each batch and each look.

        Returns:
            An iterator of `pyarrow.RecordBatch`, with `positions`, `schema` and `close`, to be used
            in a `with`.

        Raises:
            The errors of `read`; from the loop also:
            UnknownTopicOrPartitionError: a topic that was named is deleted, or deleted and created
                again.
            OffsetOutOfRangeError: a log has lost records that were read.
            GroupNotEmptyError: the group has members.
            GroupOffsetsMovedError: another loop has the group, or it was reset.
            ConfigError: with a group, the place keeps none.
        """
        if not isinstance(topics, (str, re.Pattern)):
            topics = arguments.topic_names("topics", topics)  # once, of an iterator
        from spark_kbatch.columns.reading import read_as  # noqa: PLC0415  above
        from spark_kbatch.consumer import following  # noqa: PLC0415  above
        from spark_kbatch.options.values import FOLLOW_ARGUMENTS  # noqa: PLC0415  above

        typed = read_as(text, registry, formats, topics, FOLLOW_ARGUMENTS)
        return following.follow(
            self._reader,
            topics,
            None if group is None else (self._groups(), arguments.group(group)),
            partitions=partitions,
            start=start,
            columns=typed.schema.names if columns is READ else columns,
            typed=typed,
            isolation_level=isolation_level,
            max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            where=where,
            stop_at=stop_at,
            timeout=timeout,
            stop=stop,
            address=self._store.address,
        )

    def peek(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound | None = None,
        end: OffsetBound = "latest",
        count: int = 20,
        where: str | None = None,
        isolation_level: str = "read_committed",
        max_bytes: int = PEEK_BYTES,
        registry: StrPath | Mapping[str, str] | None = None,
        **formats: Any,
    ) -> Peek:
        """Return some records of a topic to look at: the newest ones, or those from `start` on.

            print(cluster.peek("orders", count=5).rows.to_pylist())

        Few bytes are read for that, however large the topic is, so not all that is asked for may be among
        them: the ranges of what is returned say where to go on. Damaged records are left out and named.

        Args:
            topic: its name, also that of an internal topic.
            partitions: which to look at, by number; all by default, one after another.
            start: where to begin, as for `read`; by default at the end, with the newest.
            end: where to end, exclusive, as for `read`.
            count: how many records to return at most, of all partitions together. Of several, these are
                the newest or oldest by their times, but each partition keeps the order of its offsets.
            where: only records that a condition is true for, as for `read`: `key = 'a'`.
            isolation_level: as for `read`.
            max_bytes: about how many bytes of batches to read; a little more, as batches are read whole.
            registry, formats: as for `read`; a registry that does not answer is not asked again.

        Returns:
            The `rows`, oldest first, a `pyarrow.Table` with the columns of `read` but for `topic`. For each
            partition that was looked at, the `ranges` of offsets whose records are among them, as
            (topic_partition, start, end). Pass the starts as the next call's `end`, by partition, for
            older ones, or the ends as its `start`.

        Raises:
            The errors of `read`, but for CorruptRecordError of a partition, which is in `errors`.
        """
        from spark_kbatch.columns.reading import read_as  # noqa: PLC0415  above
        from spark_kbatch.consumer import peeking  # noqa: PLC0415  above

        arguments.text("topic", topic)
        return peeking.peek(
            self._reader,
            topic,
            read_as(False, registry, formats, topic, retries=False),
            partitions=partitions,
            start=start,
            end=end,
            count=count,
            where=where,
            isolation_level=isolation_level,
            max_bytes=max_bytes,
        )

    # Commits.

    def history(
        self, topic: str | None = None, *, numbers: range = ALL_COMMITS
    ) -> Iterator[Commit]:
        """Yield the commits of Spark jobs, newest first, or only those that touched `topic`.

        Args:
            topic: its name, also of a topic that was deleted.
            numbers: those to look at, such as `cluster.commit_numbers()[-100:]`; all by default. In a bucket
                later entries are then not read, and `ends` of a commit have of its topics the partitions
                that it or a commit after it, among these, wrote to.
        """
        if topic is not None:
            arguments.text("topic", topic)
        if getattr(numbers, "step", None) != 1 or numbers.start < 0:
            arguments.refuse("numbers", numbers, "a range from 0 or more on, without steps")
        return self._commits().read(topic, numbers)

    def commit_numbers(self) -> range:
        """Return the numbers that commits in `history` may have, up to that of the next one, in a bucket of the next entry."""
        return self._commits().numbers()

    def first_commit(self) -> int:
        """Return the number of the oldest commit that `history` still has."""
        return self._commits().numbers().start

    def find_commit(self, number: int) -> Commit:
        """Return the commit of a Spark job that has this number in `history`.

        Raises:
            ConfigError: there is no such commit, or the history does not have it any more.
        """
        number = arguments.whole_number("number", number, 0)
        return self._commits().find(number)

    # Replicas.

    def replicas(self, topics: str | Iterable[str]) -> dict[TopicPartition, list[ReplicaInfo]]:
        """Return the replicas of all partitions of these topics: which leads, which lag."""
        return self._disks().replicas(arguments.topic_names("topics", topics))

    def log_dirs(self) -> list[LogDirInfo]:
        """Return the log dirs: what each holds, and why it is offline if it is."""
        return self._disks().log_dirs()

    def metrics(self) -> dict[str, Any]:
        """Return the state of topics, replicas, logs and log dirs, by the names of a Kafka broker's metrics.

        "ReplicaManager", "KafkaController" and "LogManager" count partitions, replicas and log dirs, and those
        that need attention, internal topics included. "Log" has offsets, segments and bytes by partition, None
        where no replica can be read. "BrokerTopicMetrics" counts what this process has appended and read since
        the cluster was opened: a "...PerSec" has Count, MeanRate and OneMinuteRate.
        """
        return self._disks().metrics()

    def replicate(self, topics: str | Iterable[str] | None = None) -> list[TopicPartition]:
        """Bring lagging replicas of these topics up to date.

        Appends do so for the partitions they append to.

        Args:
            topics: all by default, internal ones too.

        Returns:
            Partitions whose replicas are still not all in sync, because log dirs are offline.
        """
        disks = self._disks()
        return disks.replicate(None if topics is None else arguments.topic_names("topics", topics))

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
        return self._disks().replace_log_dir(
            arguments.whole_number("node_id", node_id, 0),
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
        return self._disks().elect_unclean(topic, dry_run=dry_run)

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
        ensure_not_internal(topic)
        return self._disks().export(topic, absolute_path(to, "to"))

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
            KBatchError: a real cluster refuses it, as for a compacted topic.
        """
        accepts = 'an offset for each partition, such as {("topic", 0): 1500}'
        wanted = {
            tp: arguments.whole_number(f"the offset of {tp}", offset, ALL_RECORDS)
            for tp, offset in arguments.by_partition("offsets", offsets, accepts).items()
        }
        return self._catalog().delete_records(wanted)

    def collect_garbage(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        staging_retention_ms: int = STAGING_RETENTION_MS,
        dry_run: bool = False,
    ) -> Garbage:
        """Delete expired segments, files of deleted topics, and staged files of abandoned jobs.

        What dead writers left past the ends of logs goes, too. A partition that cannot be used is skipped,
        and the result says why.

        Args:
            topics: whose segments to look at; all by default. Files of deleted topics and of
                abandoned jobs are looked at in any case.
            staging_retention_ms: a job is abandoned after this long without a write to its files.
            dry_run: whether to return what would be deleted without deleting it.

        Raises:
            UnknownTopicOrPartitionError: no such topic.
        """
        return self._disks().collect_garbage(
            None if topics is None else arguments.topic_names("topics", topics),
            staging_retention_ms=arguments.whole_number(
                "staging_retention_ms", staging_retention_ms, 0
            ),
            dry_run=arguments.boolean("dry_run", dry_run),
        )

    def repair(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, dry_run: bool = False
    ) -> Iterator[RepairReport]:
        """Repair logs that cannot be read or written, keeping every valid batch; see `log/repair.py`.

        In a bucket, to which no one writes meanwhile, what its ledger lacks is repaired first, and then
        batches; see `bucket/mending.py`.

        Args:
            partitions: which, as (topic, number); all by default, including those of internal topics
                and of topics whose file is lost or damaged, which is restored (`cluster/upkeep.py`).
            dry_run: whether to report what would be done without doing it.

        Returns:
            A report for each partition, as it is done; of a log that cannot be repaired it says why.
        """
        arguments.boolean("dry_run", dry_run)
        return self._upkeep().repair(_chosen(partitions), dry_run=dry_run)

    def verify(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[RepairReport]:
        """Check everything that is stored, and write nothing; see `cluster/upkeep.py`.

        Of a broker's logs it is the partitions' files; see `log/foreign/check.py`. In a bucket it is every
        batch that the ledger refers to; see `bucket/remains.py`.

        Args:
            partitions: which, as (topic, number); by default all, including those of internal topics, and
                the records of commits and consumer groups.

        Returns:
            A report for each partition, as it is done: what `repair` would repair, batches that are
            damaged beyond repair, and replicas that were not looked at, because their disks are away.
            Of a bucket first one of its ledger, with the topic "" and the partition -1, if
            something is wrong there.
        """
        return self._upkeep().verify(_chosen(partitions))

    @overload
    def producer(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        transactional_id: str,
        **options: Any,
    ) -> TransactionalProducer: ...

    @overload
    def producer(
        self, config: Mapping[str, object] | None = None, /, **options: Any
    ) -> Producer: ...

    def producer(self, config: Mapping[str, object] | None = None, /, **options: Any) -> Producer:
        """Return a producer for any topics of this cluster; close it, or use it in a `with`.

        With `transactional_id` it is a TransactionalProducer, whose records become visible a transaction at a time.

        In a folder, a topic that does not exist is created by the first record for it, unless
        `auto_create_topics_enable` is False.

        Args:
            config: options of Kafka's producer by Kafka's keys: `{"linger.ms": 5, "acks": "all"}`; see
                `PRODUCER_OPTIONS`. Those of the connection to a real cluster are `connect`'s.
            options: the same, as keyword arguments: `linger_ms=5`, `compression_type="zstd"`.

        Raises:
            ConfigError: an option is unknown, has no meaning here, or has a bad value.
        """
        self._had(self._store.catalog, "producer")
        given = arguments.options("config", config, '{"linger.ms": 5}')
        producer: Producer = self._store.producer(given, options)
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
        from spark_kbatch.options import server as known  # noqa: PLC0415  above
        from spark_kbatch.server.server import Server  # noqa: PLC0415  above

        served = self._had(self._store.server, "server")
        arguments.text("host", host)
        arguments.whole_number("port", port, 0, known.PORT_MAX)
        named = {
            "auto_create_topics_enable": auto_create,
            "num_partitions": num_partitions,
            "default_replication_factor": replication_factor,
            "flush": flush,
        }
        parsed = known.parse_server_options(
            {key: one for key, one in named.items() if one != getattr(known.ServerConfig, key)},
            arguments.options("config", config, '{"connections.max.idle.ms": 60000}'),
            options,
        )
        advertised = None if advertise is None else known.parse_address("advertise", advertise)
        server = Server(served, parsed, host=host, port=port, advertised=advertised)
        self._servers.add(server)
        return server

    def running_server(self) -> ServerAddress | None:
        """Return the address at which some process serves this cluster now; None if no one does."""
        found: ServerAddress | None = self._had(self._store.server, "server").running_server()
        return found

    def groups(self) -> list[ConsumerGroup]:
        """Return the consumer groups that Kafka clients made, with members, offsets and lag.

        Of a folder they are read from the log, so a server need not run; a rebalance that goes on is not in
        it. A real cluster shows those that this client may see, without generations and times of commits
        (-1), and without members of the newer protocol (`group.protocol=consumer`). In a bucket no
        group has members. Of a broker's logs they are those in the partitions of
        `__consumer_offsets` that are there; an end is None where a topic's partition is not.

        Raises:
            KafkaStorageError, CorruptRecordError: `__consumer_offsets` cannot be read.
        """
        return self._groups().groups()

    def alter_group_offsets(self, group_id: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Set the offsets at which a consumer group continues; it may not have members, nor need it exist.

        Args:
            group_id: the group.
            offsets: of the next record to read, by (topic, partition); they may lie outside the log.

        Raises:
            GroupNotEmptyError: the group has members.
            UnknownTopicOrPartitionError: a partition does not exist.
        """
        group_id, wanted = arguments.group_offsets(group_id, offsets)
        self._groups().alter_offsets(group_id, wanted)

    def delete_group(self, group_id: str) -> None:
        """Delete a consumer group without members, with its offsets.

        Raises:
            GroupNotEmptyError: the group has members.
            GroupIdNotFoundError: there is no such group.
        """
        self._groups().delete(arguments.group(group_id))


def _chosen(partitions: Iterable[tuple[str, int]] | None) -> list[TopicPartition] | None:
    return None if partitions is None else arguments.topic_partitions("partitions", partitions)
