"""Kafka logs for PySpark, with no broker to run and no JAR to add.

In Spark, a topic in the folder `my-cluster` is written and read as a data source:

    df.write.format("kbatch").option("topic", "events").mode("append").save("my-cluster")
    spark.read.format("kbatch").option("subscribe", "events").load("my-cluster")

and without Spark:

    import spark_kbatch

    with spark_kbatch.open("my-cluster", create=True) as cluster:
        cluster.create_topic("events", partitions=4, exist_ok=True)
        with cluster.producer() as producer:
            print(producer.send("events", key="k", value="v").result().offset)
        for batch in cluster.read("events", columns=["offset", "value"]):
            print(batch.to_pydict())

`open` also reads the log directory of a real Kafka broker, and `connect("host:9092")` reaches a real cluster
over the network. See `help(spark_kbatch.Cluster)` for what else a cluster can do. All errors are KBatchErrors;
`spark_kbatch.errors` has every class. docs/options.md describes every option.
"""

# The rooms of the package, from the bottom up. Imports go one way: a room imports only those above it.
#
#     errors      every exception, as a tree
#     model       values that cross rooms
#     files       all file I/O; beside it: clock, meters, mutexes, machine_files (what this machine
#                 remembers), stored_json (JSON read from disk, checked), terminal (text made safe to print)
#     options     each option once, with its default; checks of arguments
#     kernels     compiled code: records, routing (row -> batch), messages of V0 and V1
#     record      bytes <-> Arrow: the record batch
#     values      bytes <-> Arrow: what keys and values hold
#     registry    schemas by id, and the versions of subjects
#     store       the port to places of topics: protocols and values
#     ledger      what happened in a cluster, entry by entry, and the state that they make
#     log         one replica of one partition on disk; a real broker's logs, read only
#     producer    rows -> batches
#     consumer    offset ranges: planned, fetched, decoded
#     wire        Kafka's protocol: messages, frames, connections
#     remote      a real cluster over the network: its client, reads, writes
#     memory      topics in the memory of one process, for tests
#     bucket      a cluster in a bucket of an object store
#     replica     the partitions of a cluster, their replicas and locks
#     commit      a Spark job's data, all or nothing
#     server      a Kafka server over the folder of a cluster
#     cluster     the stores of a folder and of a broker's logs
#     opening     the door of Spark and the command line; the public `Cluster` over any store
#     mirroring   topics copied from one place to another, exactly once
#     spark       the data source `kbatch`, functions of columns, and the demo
#     functions   their names for users: from_avro, to_avro
#     cli         the `kbatch` command
#     testing     what the pytest plugin does; its fixtures are in pytest_kbatch.py
#
#     write:  spark/writer -> opening/stores -> cluster/job
#             -> producer: partitioner, accumulator, sender -> commit/staging
#                                                        in every task, in parallel, invisible
#             -> commit/coordinator: place, prepare, flip, complete            on the driver, atomic
#     read:   spark/reader -> opening/stores -> consumer: planning, reading
#             -> replica/manager -> log -> record/codec -> Arrow

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_kbatch import files as files  # first: on Windows it says what to do
from spark_kbatch.options.mirror import FAIL_ON_DATA_LOSS, UNIT_BYTES, UNIT_SECONDS

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from spark_kbatch.bucket.maintenance import Maintained
    from spark_kbatch.consumer.following import Following
    from spark_kbatch.consumer.lag import Lag
    from spark_kbatch.consumer.peeking import Peek
    from spark_kbatch.errors import (
        ApiError,
        AuthenticationError,
        BufferExhaustedError,
        ClosedError,
        ClusterReplacedError,
        CommitError,
        ConfigError,
        CorruptRecordError,
        DataLossError,
        GroupIdNotFoundError,
        GroupNotEmptyError,
        GroupOffsetsMovedError,
        InvalidTimestampError,
        InvalidTopicError,
        InvalidValueError,
        KafkaStorageError,
        KBatchError,
        LogDirLockedError,
        MirrorFencedError,
        NoCredentialsError,
        NotEnoughReplicasError,
        NotPicklableError,
        ObjectAccessDeniedError,
        ObjectStoreError,
        OffsetOutOfRangeError,
        ProducerClosedError,
        ProducerFencedError,
        ProducerForkedError,
        RecordDeserializationError,
        RecordTooLargeError,
        RefusedEntryError,
        RequestTimedOutError,
        RetriableError,
        SaslAuthenticationError,
        SchemaError,
        SchemaNotFoundError,
        SchemaRegistryError,
        SchemaRegistryUnavailableError,
        ServerRunningError,
        SslAuthenticationError,
        TopicAlreadyExistsError,
        TransactionAbortedError,
        UnknownTopicOrPartitionError,
        UnsupportedLedgerError,
    )
    from spark_kbatch.mirroring.copying import MirrorProgress
    from spark_kbatch.model import LogOffsets, OffsetAndTimestamp, PartitionInfo, TopicPartition
    from spark_kbatch.opening.cluster import Cluster
    from spark_kbatch.options.paths import StrPath
    from spark_kbatch.options.topic import Topic, TopicConfig
    from spark_kbatch.producer.futures import ArrowFuture, RecordFuture, RecordMetadata
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.producer.transactional import TransactionalProducer
    from spark_kbatch.remote.topics import RemoteTopic
    from spark_kbatch.server.intercepts import InterceptedRequest
    from spark_kbatch.server.server import Server
    from spark_kbatch.spark.lag import LagListener
    from spark_kbatch.store.commits import Commit
    from spark_kbatch.values.decoded import DecodedValues

__version__ = "0.1.0"

# A library leaves it to the program what becomes of its log.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "ApiError",
    "ArrowFuture",
    "AuthenticationError",
    "BufferExhaustedError",
    "ClosedError",
    "Cluster",
    "ClusterReplacedError",
    "Commit",
    "CommitError",
    "ConfigError",
    "CorruptRecordError",
    "DataLossError",
    "DecodedValues",
    "Following",
    "GroupIdNotFoundError",
    "GroupNotEmptyError",
    "GroupOffsetsMovedError",
    "InterceptedRequest",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidValueError",
    "KBatchError",
    "KafkaStorageError",
    "Lag",
    "LagListener",
    "LogDirLockedError",
    "LogOffsets",
    "MirrorFencedError",
    "MirrorProgress",
    "NoCredentialsError",
    "NotEnoughReplicasError",
    "NotPicklableError",
    "ObjectAccessDeniedError",
    "ObjectStoreError",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionInfo",
    "Peek",
    "Producer",
    "ProducerClosedError",
    "ProducerFencedError",
    "ProducerForkedError",
    "RecordDeserializationError",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RefusedEntryError",
    "RemoteTopic",
    "RequestTimedOutError",
    "RetriableError",
    "SaslAuthenticationError",
    "SchemaError",
    "SchemaNotFoundError",
    "SchemaRegistryError",
    "SchemaRegistryUnavailableError",
    "Server",
    "ServerRunningError",
    "SslAuthenticationError",
    "Topic",
    "TopicAlreadyExistsError",
    "TopicConfig",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionalProducer",
    "UnknownTopicOrPartitionError",
    "UnsupportedLedgerError",
    "connect",
    "decode_values",
    "encode_values",
    "lag",
    "maintain",
    "mirror",
    "open",
    "register",
    "store_options",
]

# All names are imported on first use: a program that only reads loads neither the producer, nor the server, nor the
# network, and `kbatch --help` nothing at all. Names that are not here are errors.
_MODULES = {
    "ArrowFuture": "producer.futures",
    "Cluster": "opening.cluster",
    "Commit": "store.commits",
    "Following": "consumer.following",
    "Peek": "consumer.peeking",
    "DecodedValues": "values.decoded",
    "InterceptedRequest": "server.intercepts",
    "Lag": "consumer.lag",
    "LagListener": "spark.lag",
    "LogOffsets": "model",
    "MirrorProgress": "mirroring.copying",
    "OffsetAndTimestamp": "model",
    "PartitionInfo": "model",
    "Producer": "producer.producer",
    "RecordFuture": "producer.futures",
    "RecordMetadata": "producer.futures",
    "RemoteTopic": "remote.topics",
    "Server": "server.server",
    "Topic": "options.topic",
    "TopicConfig": "options.topic",
    "TopicPartition": "model",
    "TransactionalProducer": "producer.transactional",
}


if not TYPE_CHECKING:  # a type checker would take every name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__ and name != "errors":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415  needed only here

        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
        found = module if name == "errors" else getattr(module, name)
        globals()[name] = found  # found at once from now on
        return found


def __dir__() -> list[str]:
    """Return the public names, for completion; the rooms and what they share are not public."""
    return sorted([*__all__, "errors", *(name for name in globals() if name.startswith("__"))])


def open(
    path: StrPath,
    *,
    create: bool = False,
    log_dirs: str | Sequence[StrPath] = (),
    without_nodes: Collection[int] | None = None,
    foreign_end: str | None = None,
    store: Mapping[str, str] | None = None,
) -> Cluster:
    """Open the cluster, or a real broker's logs, at `path`; or connect to a real cluster.

    Args:
        path: a cluster's folder; or, opened read-only, a real broker's log dir, the directory of a
            partition in one, or a .log file. `~` is the home folder. Or HOST:PORT of a real cluster, for
            which `connect` takes a client's options. Or "s3://BUCKET/PREFIX", a cluster in a bucket. Or
            "memory://NAME", for tests: topics in this process, gone with it.
        create: whether to create a cluster if there is none.
        log_dirs: folders, usually on different disks, for the logs of a cluster that is created: a
            list, or text separated by commas. A record can have as many replicas as there are folders.
            By default logs are in `path`.
        without_nodes: nodes whose log dirs are lost for good, when a cluster whose `path` is lost or old is
            restored from the other log dirs. Records of which they had the only copy are given up.
        foreign_end: where to end in a broker's logs: "log", after the last valid batch, even where
            its files show that records are missing, or "checkpoint", at the high watermark that the
            broker last wrote to its checkpoint. By default a read fails once it comes to what is
            missing.
        store: of a bucket: options of its store by key, such as {"store.region": "eu-west-1"}.
            What is not given is in the environment.

    Returns:
        A Cluster. Any place is read the same way; what it has not, such as a producer for a broker's logs,
        raises ConfigError.

    Raises:
        ConfigError: neither is there; says what is there instead.
    """
    from spark_kbatch.opening.stores import open_place  # noqa: PLC0415  as all names here

    return open_place(
        path,
        create=create,
        log_dirs=log_dirs,
        without_nodes=without_nodes,
        foreign_end=foreign_end,
        store=store,
    )


def mirror(
    source: StrPath,
    target: StrPath,
    topics: str | Iterable[str],
    *,
    name: str | None = None,
    follow: bool = False,
    unit_bytes: int = UNIT_BYTES,
    unit_seconds: float = UNIT_SECONDS,
    fail_on_data_loss: bool = FAIL_ON_DATA_LOSS,
    keep_offsets: bool = False,
    foreign_end: str | None = None,
    source_config: Mapping[str, Any] | None = None,
    target_config: Mapping[str, Any] | None = None,
    on_progress: Callable[[MirrorProgress], object] | None = None,
    stop: threading.Event | None = None,
) -> MirrorProgress:
    """Copy topics from `source` to `target`, each record exactly once and in order, and return what was done.

    A process that dies at any moment leaves nothing half done: call this again with the same arguments, and
    it goes on. Topics keep their names and numbers of partitions; those that the target does not have are
    created. Records keep key, value, headers, time and order within their partition, but for the time in a topic
    of the target with message.timestamp.type=LogAppendTime, which is that of the copy; offsets are the target's own
    unless they are kept. Records of aborted transactions are left out. Batches are copied as they are, compressed,
    wherever the target can take them so.

    Args:
        source: the path of a cluster, or of a real broker's logs, "host:port" of a real cluster, or the URL of
            a cluster in a bucket.
        target: the path or URL of a cluster, which is created if there is none, or "host:port".
        topics: a name, or several.
        name: of the mirror, under which the target keeps its progress; by default made from the id of the
            source's cluster. Each of several mirrors into one target needs a name of its own. In a real
            cluster it is the transactional id, and the group that commits the source's offsets.
        follow: whether to go on with what comes, until `stop` is set.
        unit_bytes: bytes after which what was copied is committed.
        unit_seconds: seconds after which it is committed.
        fail_on_data_loss: whether to fail if the source deleted records before they were copied, or to go on
            without them.
        keep_offsets: whether topics that are created get the ids and settings that they have in the source, and
            records their offsets, so that whoever has read the source goes on in the target, as a stream does with
            its checkpoint. The target is a path or a bucket's URL.
        foreign_end: where to end in a broker's logs, as for `open`.
        source_config: of a real cluster: Kafka's keys for clients, such as "security.protocol"; of a bucket:
            options of its store, such as "store.endpoint".
        target_config: likewise of the target.
        on_progress: called with what was done so far, after each piece; if it raises, the mirror ends.
        stop: an event that another thread sets to end the mirror after what is being copied.

    Raises:
        ConfigError: the target's topic has, or gets meanwhile, records that the mirror did not write, has
            another number of partitions, or was created again; says what to do.
        DataLossError: the source does not hold records that were not copied yet, or has others in place of
            those that were.
        MirrorFencedError: another process mirrors under the same name.
        RecordTooLargeError: the target takes no record of that size.
    """
    from spark_kbatch.mirroring.copying import mirror as run  # noqa: PLC0415  loads the kernels

    return run(
        source,
        target,
        topics,
        name=name,
        follow=follow,
        unit_bytes=unit_bytes,
        unit_seconds=unit_seconds,
        fail_on_data_loss=fail_on_data_loss,
        keep_offsets=keep_offsets,
        foreign_end=foreign_end,
        source_config=source_config,
        target_config=target_config,
        on_progress=on_progress,
        stop=stop,
    )


def connect(
    bootstrap_servers: str | Sequence[str],
    config: Mapping[str, object] | None = None,
    **options: Any,
) -> Cluster:
    """Connect to a real Kafka cluster.

        with spark_kbatch.connect("host:9092", security_protocol="SSL") as cluster:
            table = cluster.read("events").read_all()

    Args:
        bootstrap_servers: HOST:PORT of servers to ask first, which name all others: as text, with
            commas between them, or as a list.
        config: options of the client by Kafka's keys, such as `{"security.protocol": "SSL"}`; other keys
            than those in docs/kafka-cluster.md are refused.
        options: the same, as keyword arguments: `security_protocol="SSL"`.

    Raises:
        ConfigError: an option is unknown or not accepted.
        RequestTimedOutError: no server answered within default.api.timeout.ms; says why.
        AuthenticationError: a server, or this client, was refused by the other side.
    """
    from spark_kbatch.opening.stores import connect as opened  # noqa: PLC0415  as all names here

    return opened(bootstrap_servers, config, options)


def decode_values(
    array: pa.Array | pa.ChunkedArray,
    *,
    registry: StrPath | Mapping[str, str] | None = None,
    **formats: Any,
) -> DecodedValues:
    """Decode an Arrow array of keys or values, of any origin, into columns.

        found = spark_kbatch.decode_values(array, registry="http://localhost:8081", value_subject="orders-value")
        found.values                                # an array of the type of the subject's latest schema

    Args:
        array: binary or string, or a large one of these. Chunked ones are decoded chunk by chunk.
            All rows are returned at once: a null takes as much as a value of all fields.
        registry: of schemas, as for `Cluster.read`.
        formats: as for `Cluster.read`: `value_schema`, `value_subject`, `value_framing`, `value_fields`, `mode`,
            `json_lenient`. `value_format` is "avro" by default; with "json", `value_schema` may be a DDL, such as
            "id bigint, tags array<string>".

    Returns:
        The `values`; the `schema_ids` that wrote them, -1 where none is named; and the `errors` of rows that
        are null for that, with `mode="PERMISSIVE"`.

    Raises:
        InvalidValueError: a row cannot be decoded, and `mode` is not "PERMISSIVE".
        ConfigError: an argument is not accepted, or the schema cannot be used.
        SchemaRegistryError: the registry does not have a schema, or cannot be asked.
    """
    from spark_kbatch.columns import functions  # noqa: PLC0415  loads the kernels

    return functions.decode_values(array, registry, formats)


def encode_values(
    array: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table,
    *,
    registry: StrPath | Mapping[str, str] | None = None,
    auto_register: bool = False,
    **formats: Any,
) -> pa.Array | pa.ChunkedArray:
    """Encode Arrow columns as values of Avro or JSON, for a producer.

        values = spark_kbatch.encode_values(table, registry="http://localhost:8081", value_subject="orders-value")
        producer.send_arrow("orders", {"value": values})
        values = spark_kbatch.encode_values(table, value_format="json")     # needs no schema

    Args:
        array: of any type that fits the schema; of a table or a batch, a row is a record. Columns go to fields
            by their names; what the schema lacks is refused, and so is a missing field of Avro without a default.
        registry: of schemas, as for `Cluster.read`. Where it is given, values get Confluent's framing.
        auto_register: whether to register the schema, if the subject does not have it: JSON or a
            file, or one that is made of the columns, where `value_schema` is not given.
        formats: as the options of a write, with underscores: `value_schema`, by default the subject's
            latest without `auto_register`, `value_subject`, `value_framing`, `value_record_name`.
            `value_format` is "avro" by default; with "json", null fields are left out, and without a
            registry any type is written that JSON has a form for.

    Returns:
        An array of binary, chunked if `array` is; null stays null.

    Raises:
        InvalidValueError: a row does not fit the schema, or JSON has no form for it.
        ConfigError: an argument is not accepted, or columns do not fit the schema.
        SchemaRegistryError: the registry does not have the schema or does not allow it, or cannot be asked.
    """
    from spark_kbatch.columns import functions  # noqa: PLC0415  loads the kernels

    return functions.encode_values(array, registry, formats, auto_register=auto_register)


def register(spark: SparkSession) -> None:
    """Register `format("kbatch")` with a session that does not find it by itself.

    Warns if Spark's workers run a Python without this package.
    """
    from spark_kbatch.spark.source import register as register_source  # noqa: PLC0415  loads pyspark

    register_source(spark)


def lag(progress: Mapping[str, Any] | None) -> Lag | None:
    """Return how many offsets a streaming query is behind the logs, by its progress.

        query = spark.readStream.format("kbatch")...start()
        print(spark_kbatch.lag(query.lastProgress))

    It is the lag as the micro-batch ended that the progress is of, against the logs' ends when that was planned. With
    `isolation.level` read_committed, the default, a log ends where its first open transaction starts. Sources of
    `format("kafka")` count too. A run with Trigger.AvailableNow knows of the ends at its start alone.

    Args:
        progress: `query.lastProgress`, or one of its sources; also as read back from JSON, such as a line that a
            listener has stored. None is accepted, for a query that has not yet run a micro-batch.

    Returns:
        The lag over all partitions that the query reads. None if it reads no topics, or if the progress does not
        tell the lag yet: the micro-batch that a restarted query repeats was planned by its earlier run.

    Raises:
        ConfigError: the progress is of Spark before 4.2, which does not report where the logs end; or it is none.
    """
    from spark_kbatch.consumer.lag import lag as lag_of  # noqa: PLC0415  loads the planner

    return lag_of(progress)


def maintain(
    spark: SparkSession,
    url: str,
    *,
    dry_run: bool = False,
    store: Mapping[str, str] | None = None,
) -> Maintained:
    """Keep retention, merge small objects and delete garbage of a cluster in a bucket, as a Spark job.

    It does what `kbatch gc` does, with a task for each 64 MiB or so of a topic that are to be merged, and can
    run beside all other jobs.

    Args:
        spark: the session whose executors merge.
        url: of the bucket, such as s3://BUCKET/PREFIX.
        dry_run: whether to change nothing, and to return what would be done.
        store: options of the bucket's store, as for `open`.

    Raises:
        ConfigError: no cluster is at the URL, or the store cannot be used.
        ObjectStoreError, ObjectAccessDeniedError: the store fails, or the right to write or delete is missing.
        CorruptRecordError: a batch that was to be merged is damaged.
    """
    from spark_kbatch.spark.maintaining import maintain as run  # noqa: PLC0415  only for a bucket

    return run(spark, url, store, dry_run=dry_run)


def store_options(spark: SparkSession, url: str = "", *, stream: bool = False) -> dict[str, str]:
    """Return the options `store.*` that say what a session's settings `fs.s3a.*` say.

        options = spark_kbatch.store_options(spark, "s3a://events/plant")
        spark.read.format("kbatch").options(**options).option("subscribe", "readings").load("s3a://events/plant")

    Endpoint, region and keys are translated; what is not set, or comes from elsewhere than the configuration, is
    left to the environment of each process. Options travel in plans, with their values hidden where a plan is shown.

    Args:
        spark: the session; not one of Spark Connect.
        url: of the bucket, for settings of this bucket alone, `fs.s3a.bucket.BUCKET.*`.
        stream: whether the options are for a stream, which outlives the token of a session.

    Raises:
        ConfigError: a token is set, and `stream` is true; or a setting cannot be used.
    """
    from spark_kbatch.spark.hadoop import store_options as translate  # noqa: PLC0415  only for a bucket

    return translate(spark, url, stream=stream)
