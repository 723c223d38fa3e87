"""Batch writes: tasks stage, the driver commits.

What reaches a task depends on the session: time zone, nullability, large types and the names of list
children differ, so columns are taken as they come and not compared with a schema. The types were
checked on the driver, once.

Source: Spark connector/kafka-0-10-sql/.../KafkaWriter.scala, KafkaWriteTask.scala.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from spark_kbatch.cluster import Cluster
from spark_kbatch.config import WriteOptions
from spark_kbatch.errors import ConfigError, KafkaStorageError
from spark_kbatch.log.files import Files
from spark_kbatch.replica.metadata import Probe
from spark_kbatch.transaction.staging import Extent


def ensure_writable(schema: StructType, options: WriteOptions) -> None:
    """Check the columns that a write has. Names match by case; others are ignored.

    Raises:
        ConfigError: no value, no topic, or a type that a column cannot have.
    """
    types = {field.name: field.dataType for field in schema}
    if "value" not in types:
        raise ConfigError(
            f"required attribute 'value' not found; the columns are: {', '.join(types) or 'none'}"
        )
    if "topic" not in types and options.topic is None:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present: name the topic in the "
            "option 'topic', or give each row one in a column 'topic'"
        )
    accepted: dict[str, tuple[str, bool]] = {}
    for name, given in types.items():
        match name:
            case "key" | "value":
                accepted[name] = "string or binary", isinstance(given, (StringType, BinaryType))
            case "topic":
                accepted[name] = "string", isinstance(given, StringType)
            case "partition":
                accepted[name] = "int", isinstance(given, IntegerType)
            case "timestamp":
                accepted[name] = "timestamp", isinstance(given, TimestampType)
            case "headers":
                accepted[name] = "array<struct<key:string,value:binary>>", _is_headers(given)
    for name, (wanted, fits) in accepted.items():
        if not fits:
            raise ConfigError(
                f"{name} attribute unsupported type {types[name].simpleString()}. {name} must be "
                f"a(n) {wanted}; cast the column, or leave it out"
            )


def _is_headers(given: DataType) -> bool:
    if not (isinstance(given, ArrayType) and isinstance(given.elementType, StructType)):
        return False
    fields = [(field.name, type(field.dataType)) for field in given.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged."""

    extents: list[Extent]


class KBatchWriter(DataSourceArrowWriter):
    """One job's writer; `begin` makes it on the driver, tasks and commit get copies."""

    def __init__(self, options: WriteOptions, transaction: str, probe: Probe) -> None:
        self._options = options
        self._transaction = transaction
        self._probe = probe

    @classmethod
    def begin(cls, options: WriteOptions) -> KBatchWriter:
        """Make cluster and topic where they do not exist, and the job's staging directory."""
        cluster = Cluster(options.path, create=True)
        options = replace(options, path=str(cluster.path))
        transaction = uuid.uuid4().hex
        try:
            if options.topic is not None:
                cluster.topic_for(options.topic, options)
            probe = Probe.leave(cluster.files, cluster.metadata.staging_dir / transaction)
        except OSError as error:
            raise KafkaStorageError(
                f"the cluster at {cluster.path} cannot be written: {error}"
            ) from error
        return cls(options, transaction, probe)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage all rows."""
        self._probe.ensure_seen(Files())
        producer = Cluster(self._options.path).task_producer(self._transaction, self._options)
        done = False
        try:
            for batch in iterator:
                producer.append(batch)
            extents = producer.finish()
            done = True
        finally:
            if not done:
                producer.abandon()
        return Staged(extents)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what the tasks staged, in the order of tasks."""
        cluster = Cluster(self._options.path)
        coordinator = cluster.coordinator(self._options)
        extents = _extents(messages)
        coordinator.commit(extents, transactional_id=self._transaction)
        coordinator.discard(extents, self._probe.transaction_dir)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: remove what finished tasks staged; others may still be writing."""
        coordinator = Cluster(self._options.path).coordinator(self._options)
        coordinator.discard(_extents(messages), self._probe.transaction_dir)


def _extents(messages: list[WriterCommitMessage | None]) -> list[Extent]:
    return [
        extent for message in messages if isinstance(message, Staged) for extent in message.extents
    ]
