"""Kafka logs for PySpark, with no broker to run and no JAR to add.

    write:  spark/writer -> producer/partitioner -> accumulator -> record/codec -> sender
            -> transaction/staging                                           in every task, invisible
            -> transaction/coordinator: place, prepare, flip, complete       on the driver, atomic
    read:   spark/reader -> consumer (plan) -> replica/manager (fetch) -> log -> record/codec -> Arrow

    errors       every exception, as a tree
    model        values that cross modules
    arguments    checks of what Python code gives to public methods
    options      what an option is: key, type, default, range; `config` has those of writes,
                 `read_config`, `producer_config` and `topic_config` the others
    kernels      compiled code of the record format, `message_kernels` that of old ones,
                 `placement_kernels` of the partitioner; `jit` compiles on first use, with LLVM
                 code of `intrinsics`
    record       bytes <-> Arrow: the record batch, once
    producer     rows -> batches
    log          one replica of one partition on disk
    replica      the partitions of a cluster, and the locks
    transaction  a Spark job's data, all or nothing
    export       a topic, placed in a broker's log dir
    consumer     offset ranges: planned, fetched, decoded
    broker       what a real broker wrote, read the same way
    transports   where producers' batches go: the logs, or staging
    cluster      wires the above; `opening` finds out what lies at a path
    spark        the data source `kbatch`
    cli          the `kbatch` command; `terminal` escapes what it prints
    demo         the pipeline that `make demo` runs

Imports go one way, from the last of these to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kbatch.broker import BrokerLogs
from spark_kbatch.cluster import Cluster
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    CorruptRecordError,
    DataLossError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaStorageError,
    KBatchError,
    LogDirLockedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.opening import open_for_reading
from spark_kbatch.topic_config import TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.1.0"

__all__ = [
    "BrokerLogs",
    "Cluster",
    "CommitError",
    "ConfigError",
    "CorruptRecordError",
    "DataLossError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "KBatchError",
    "KafkaStorageError",
    "LogDirLockedError",
    "OffsetOutOfRangeError",
    "RecordTooLargeError",
    "RetriableError",
    "TopicConfig",
    "UnknownTopicOrPartitionError",
    "open",
    "register",
]


def open(
    path: str,
    *,
    create: bool = False,
    log_dirs: Sequence[str | Path] = (),
    foreign_end: str = "log",
) -> Cluster | BrokerLogs:
    """What lies at `path`: a cluster, made with `create` where there is none, or a broker's logs.

    Args:
        path: the cluster's folder; a real broker's log dir, the directory of a partition in one, or
            a .log file, of which nothing is ever written.
        create: whether to make a cluster.
        log_dirs: where one that is made keeps its logs: folders, on disks of their own, so many as
            a record may have replicas; in `path` by default.
        foreign_end: where a broker's logs end: "log", the last whole valid batch, or "checkpoint",
            the high watermark that it last wrote there.

    Raises:
        ConfigError: says what is there instead.
    """
    if create:
        return Cluster(path, create=True, log_dirs=log_dirs)
    return open_for_reading(path, foreign_end=foreign_end)


def register(spark: SparkSession) -> None:
    """Make `format("kbatch")` known to a session that does not find it by itself.

    Warns where Spark's workers run a Python that does not have this package.
    """
    from spark_kbatch.spark.source import register as register_source  # noqa: PLC0415  no pyspark before

    register_source(spark)
