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

`open` also reads the log directory of a real Kafka broker. See `help(spark_kbatch.Cluster)` for what else
a cluster can do. All errors are KBatchErrors. docs/options.md describes every option.
"""

# The rooms of the package, from the bottom up. Imports go one way: a room imports only those above it.
#
#     errors      every exception, as a tree
#     model       values that cross rooms
#     files       all file I/O; beside it: clock, mutexes, stored_json (JSON read from disk, checked),
#                 terminal (text made safe to print)
#     options     each option once, with its default; checks of arguments
#     kernels     compiled code: records, routing (row -> batch), messages of V0 and V1
#     record      bytes <-> Arrow: the record batch
#     log         one replica of one partition on disk; a real broker's logs, read only
#     producer    rows -> batches
#     consumer    offset ranges: planned, fetched, decoded
#     replica     the partitions of a cluster, their replicas and locks
#     commit      a Spark job's data, all or nothing
#     cluster     wires the above
#     opening     finds out what lies at a path
#     mirror      topics copied from one place to another, exactly once
#     spark       the data source `kbatch`, and the demo
#     cli         the `kbatch` command
#
#     write:  spark/writer -> producer: partitioner, accumulator, sender -> commit/staging
#                                                        in every task, in parallel, invisible
#             -> commit/coordinator: place, prepare, flip, complete            on the driver, atomic
#     read:   spark/reader -> consumer: planning, reading -> replica/manager -> log -> record/codec -> Arrow

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.cluster.parts import StrPath
from spark_kbatch.commit.history import Commit
from spark_kbatch.errors import (
    BufferExhaustedError,
    CommitError,
    ConfigError,
    CorruptRecordError,
    DataLossError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaStorageError,
    KBatchError,
    LogDirLockedError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    ProducerClosedError,
    RecordTooLargeError,
    RequestTimedOutError,
    RetriableError,
    ServerRunningError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import LogOffsets, OffsetAndTimestamp, PartitionInfo, TopicPartition
from spark_kbatch.opening import open_for_reading
from spark_kbatch.options import arguments
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.options.write import parse_foreign_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kbatch.producer.futures import ArrowFuture, RecordFuture, RecordMetadata
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.server.intercepts import InterceptedRequest
    from spark_kbatch.server.server import Server

__version__ = "0.1.0"

__all__ = [
    "ArrowFuture",
    "BrokerLogs",
    "BufferExhaustedError",
    "Cluster",
    "Commit",
    "CommitError",
    "ConfigError",
    "CorruptRecordError",
    "DataLossError",
    "InterceptedRequest",
    "InvalidTimestampError",
    "InvalidTopicError",
    "KBatchError",
    "KafkaStorageError",
    "LogDirLockedError",
    "LogOffsets",
    "NotEnoughReplicasError",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionInfo",
    "Producer",
    "ProducerClosedError",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "RetriableError",
    "Server",
    "ServerRunningError",
    "Topic",
    "TopicAlreadyExistsError",
    "TopicConfig",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "open",
    "register",
]

# Imported on first use, so that programs that only read load neither the producer nor the server.
_MODULES = {
    "ArrowFuture": "producer.futures",
    "InterceptedRequest": "server.intercepts",
    "Producer": "producer.producer",
    "RecordFuture": "producer.futures",
    "RecordMetadata": "producer.futures",
    "Server": "server.server",
}


if not TYPE_CHECKING:  # a type checker would take every name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415  needed only here

        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


@overload
def open(
    path: StrPath,
    *,
    create: Literal[True],
    log_dirs: str | Sequence[StrPath] = (),
    foreign_end: str = "log",
) -> Cluster: ...
@overload
def open(
    path: StrPath,
    *,
    create: bool = False,
    log_dirs: str | Sequence[StrPath] = (),
    foreign_end: str = "log",
) -> Cluster | BrokerLogs: ...
def open(
    path: StrPath,
    *,
    create: bool = False,
    log_dirs: str | Sequence[StrPath] = (),
    foreign_end: str = "log",
) -> Cluster | BrokerLogs:
    """Open the cluster, or a real broker's logs, at `path`.

    Args:
        path: a cluster's folder; or, opened read-only, a real broker's log dir, the directory of a
            partition in one, or a .log file. `~` is the home folder.
        create: whether to create a cluster if there is none.
        log_dirs: folders, usually on different disks, for the logs of a cluster that is created: a
            list, or text separated by commas. A record can have as many replicas as there are folders.
            By default logs are in `path`.
        foreign_end: where to end in a broker's logs: "log", after the last valid batch, or
            "checkpoint", at the high watermark that the broker last wrote to its checkpoint.

    Returns:
        A Cluster, or BrokerLogs. Both are read the same way; what only a cluster has, such as a
        producer, BrokerLogs refuses.

    Raises:
        ConfigError: neither is there; says what is there instead.
    """
    parse_foreign_end("foreign_end", foreign_end)
    if arguments.boolean("create", create):
        return Cluster(path, create=True, log_dirs=log_dirs)
    if log_dirs != ():
        raise ConfigError(
            f"log_dirs is {arguments.shown(log_dirs)}, which says where a new cluster keeps its logs; it "
            "goes with create=True"
        )
    return open_for_reading(path, foreign_end=foreign_end)


def register(spark: SparkSession) -> None:
    """Register `format("kbatch")` with a session that does not find it by itself.

    Warns if Spark's workers run a Python without this package.
    """
    from spark_kbatch.spark.source import register as register_source  # noqa: PLC0415  loads pyspark

    register_source(spark)
