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

`open` also reads what a Kafka broker wrote. `help(spark_kbatch.Cluster)` says what else there is; all
errors are KBatchErrors. The README has the options of Spark and of producers.
"""

# The source, from the first to the last that is imported:
#
#     write:  spark/writer -> producer/partitioner -> accumulator -> record/codec -> sender
#             -> transaction/staging                                           in every task, invisible
#             -> transaction/coordinator: place, prepare, flip, complete       on the driver, atomic
#     read:   spark/reader -> consumer (plan) -> replica/manager (fetch) -> log -> record/codec -> Arrow
#
#     errors       every exception, as a tree
#     model        values that cross modules
#     arguments    checks of what Python code gives to public methods
#     options      what an option is: key, type, default, range; `config` has those of writes,
#                  `read_config`, `producer_config` and `topic_config` the others
#     kernels      compiled code of the record format, `message_kernels` that of old ones,
#                  `placement_kernels` of the partitioner; `jit` compiles on first use, with LLVM
#                  code of `intrinsics`
#     record       bytes <-> Arrow: the record batch, once
#     producer     rows -> batches
#     log          one replica of one partition on disk
#     replica      the partitions of a cluster, and the locks
#     transaction  a Spark job's data, all or nothing
#     export       a topic, placed in a broker's log dir
#     consumer     offset ranges: planned, fetched, decoded
#     broker       what a real broker wrote, read the same way
#     transports   where producers' batches go: the logs, or staging
#     cluster      wires the above; `opening` finds out what lies at a path
#     spark        the data source `kbatch`
#     cli          the `kbatch` command; `terminal` escapes what it prints
#     demo         the pipeline that `make demo` runs
#
# Imports go one way, from the last of these to the first.

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster, StrPath
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
    "Topic",
    "TopicAlreadyExistsError",
    "TopicConfig",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "open",
    "register",
]

# By name, where they are asked for: who only reads does not load the producer.
_PRODUCERS = {
    "ArrowFuture": "futures",
    "Producer": "producer",
    "RecordFuture": "futures",
    "RecordMetadata": "futures",
}


if not TYPE_CHECKING:  # to whom any name would be one

    def __getattr__(name: str) -> Any:
        if name not in _PRODUCERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415  only here

        return getattr(importlib.import_module(f"{__name__}.producer.{_PRODUCERS[name]}"), name)


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
    """What lies at `path`: a cluster, made with `create` where there is none, or a broker's logs.

    Args:
        path: the cluster's folder; a real broker's log dir, the directory of a partition in one, or
            a .log file, of which nothing is ever written. `~` is the home folder.
        create: whether to make a cluster where there is none.
        log_dirs: where one that is made keeps its logs: folders, on disks of their own, so many as
            a record may have replicas, also as text with commas between them; in `path` by default.
        foreign_end: where a broker's logs end: "log", the last whole valid batch, or "checkpoint",
            the high watermark that it last wrote there.

    Returns:
        Both are read the same way. What only a cluster has, such as a producer, the other refuses.

    Raises:
        ConfigError: says what is there instead.
    """
    parse_foreign_end("foreign_end", foreign_end)
    if arguments.boolean("create", create):
        return Cluster(path, create=True, log_dirs=log_dirs)
    if log_dirs != ():
        raise ConfigError(
            f"log_dirs is {arguments.shown(log_dirs)}, which says where a cluster that is made keeps its logs; it "
            "goes with create=True"
        )
    return open_for_reading(path, foreign_end=foreign_end)


def register(spark: SparkSession) -> None:
    """Make `format("kbatch")` known to a session that does not find it by itself.

    Warns where Spark's workers run a Python that does not have this package.
    """
    from spark_kbatch.spark.source import register as register_source  # noqa: PLC0415  no pyspark before

    register_source(spark)
