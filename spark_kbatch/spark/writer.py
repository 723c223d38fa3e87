"""Writes, of batches and of streams: tasks stage, the driver commits.

What reaches a task depends on the session: time zone, nullability, large types and the names of list
children differ, so columns are taken as they come and not compared with a schema. The types were
checked on the driver, once.

A micro-batch is a transaction: its id is the query's, which outlives restarts, its sequence the
batch's. Spark repeats a micro-batch under the same two whenever it did not learn that it was
committed, and then it is dropped. Spark makes a writer for the tasks of a micro-batch and another
one for its commit, which know nothing of each other but what the tasks' messages say.

Source: Spark connector/kafka-0-10-sql/.../KafkaWriter.scala, KafkaWriteTask.scala,
KafkaStreamingWrite.scala.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.commit.history import Author
from spark_kbatch.commit.probe import Probe
from spark_kbatch.commit.staging import Extent
from spark_kbatch.commit.state_records import NO_TRANSACTION_SEQUENCE
from spark_kbatch.errors import ConfigError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.options.option import nearest
from spark_kbatch.options.write import WriteOptions

logger = logging.getLogger(__name__)


def ensure_writable(schema: StructType, options: WriteOptions) -> None:
    """Check the columns that a write has. Names match by case; others are ignored.

    Logs a warning for one that is ignored and looks like a column that is not there.

    Raises:
        ConfigError: no topic, no value, a column twice, or a type that a column cannot have.
    Source: KafkaWriter.validateQuery, topicExpression.
    """
    names = schema.fieldNames()
    types = {field.name: field.dataType for field in schema}
    for name, (wanted, accepts) in _COLUMNS.items():
        if name == "topic" and options.topic is not None:
            continue  # the column is not looked at
        if name not in types:
            if name in _REQUIRED:
                raise ConfigError(_REQUIRED[name].format(columns=", ".join(names) or "none"))
        elif names.count(name) > 1:
            raise ConfigError(
                f"column {name!r} is there {names.count(name)} times; rename or drop all but one"
            )
        elif not accepts(types[name]):
            raise ConfigError(
                f"{name} attribute unsupported type {types[name].simpleString()}. {name} must be "
                f"a(n) {wanted}: {_remedy(name, types[name])}"
            )
    _warn_of_misspelt(names)


def _remedy(name: str, given: DataType) -> str:
    """What to write in place of a column whose type is not accepted."""
    match name, given:
        case (("key" | "value"), (StructType() | ArrayType() | MapType())):
            instead = f"write to_json({name})"
        case (("key" | "value" | "topic"), _):
            instead = f"write CAST({name} AS STRING)"
        case "partition", _:
            instead = "write CAST(partition AS INT)"
        case "timestamp", IntegralType():
            instead = "write timestamp_millis(timestamp) of milliseconds since 1970"
        case "timestamp", TimestampNTZType():
            instead = (
                "write CAST(timestamp AS TIMESTAMP), which takes it in the session's time zone"
            )
        case "timestamp", _:
            instead = "write CAST(timestamp AS TIMESTAMP)"
        case _:
            instead = "write array(struct('name' AS key, CAST('text' AS BINARY) AS value))"
    without = {"value": "", "topic": ", or name the topic in the option 'topic'"}
    return instead + without.get(name, ", or leave the column out")


def _warn_of_misspelt(names: Sequence[str]) -> None:
    absent = [name for name in _COLUMNS if name not in names]
    for name in dict.fromkeys(names):
        # A topic that was read may be written as it is, with columns that only a read has.
        if name in _COLUMNS or name in _OF_READS:
            continue
        near = nearest(name, absent)
        if near is not None:
            logger.warning(
                "column %r is not written; is %r meant? The columns of a write are: %s",
                name, near, ", ".join(_COLUMNS),
            )  # fmt: skip


def _is_headers(given: DataType) -> bool:
    if not (isinstance(given, ArrayType) and isinstance(given.elementType, StructType)):
        return False
    fields = [(field.name, type(field.dataType)) for field in given.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


# What each column may be, in the order in which Spark's connector looks at them: the first that is
# wrong is the one that is told.
_COLUMNS: dict[str, tuple[str, Callable[[DataType], bool]]] = {
    "topic": ("string", lambda given: isinstance(given, StringType)),
    "key": ("string or binary", lambda given: isinstance(given, (StringType, BinaryType))),
    "value": ("string or binary", lambda given: isinstance(given, (StringType, BinaryType))),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "partition": ("int or bigint", lambda given: isinstance(given, IntegralType)),
    "timestamp": ("timestamp", lambda given: isinstance(given, TimestampType)),
}
_OF_READS = ("offset", "timestampType")
_REQUIRED = {
    "topic": "topic option required when no 'topic' attribute is present: name the topic in the "
    "option 'topic', or give each row one in a column 'topic'",
    "value": "required attribute 'value' not found; the columns are: {columns}",
}


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged, where, and for whom: on the driver nobody knows."""

    extents: list[Extent]
    transaction: str
    application_id: str | None
    query_id: str | None


class Job:
    """What a writer's tasks and its commit share; `begin` makes it on the driver, others get copies."""

    def __init__(
        self,
        options: WriteOptions,
        transaction: str,
        probe: Probe,
        overwrite: Overwrite | None,
        topic_id: str,
    ) -> None:
        self.options = options
        self._topic_id = (
            topic_id  # of the topic that the options name, empty where rows name theirs
        )
        self._transaction = transaction
        self._probe = probe
        self._overwrite = overwrite

    @classmethod
    def begin(cls, options: WriteOptions, *, overwrite: bool = False) -> Job:
        """Make cluster and topic where they do not exist, and the job's staging directory.

        Raises:
            ConfigError: what would be overwritten is not named.
        """
        if overwrite and options.topic is None:
            raise ConfigError(
                "save mode \"overwrite\" needs the option 'topic': it replaces all that the topic holds"
            )
        cluster = Cluster(options.path, create=True, log_dirs=options.log_dirs)
        options = replace(options, path=str(cluster.path))
        transaction = uuid.uuid4().hex
        replaced, topic_id = None, ""
        try:
            if options.topic is not None:
                topic = cluster.topic_for(options.topic, options)
                topic_id = topic.topic_id
                if overwrite:
                    replaced = Overwrite(topic, options.overwrite_delete_delay_ms)
            probe = Probe.leave(cluster.files, cluster.staging_dir() / transaction)
        except OSError as error:
            raise KafkaStorageError(
                f"the cluster at {cluster.path} cannot be written: {error}"
            ) from error
        return cls(options, transaction, probe, replaced, topic_id)

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage all rows."""
        self._probe.ensure_seen(Files())
        producer = Cluster(self.options.path).task_producer(
            self._transaction, self.options, self._topic_id
        )
        done = False
        try:
            for batch in iterator:
                with _explained():
                    producer.append(batch)
            with _explained():
                extents = producer.finish()
            done = True
        finally:
            if not done:
                producer.abandon()
        context = TaskContext.get()
        application_id, query_id = (
            context.getLocalProperty(name) if context else None
            for name in ("spark.app.id", "sql.streaming.queryId")
        )
        return Staged(extents, self._transaction, application_id, query_id)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        transactional_id: str | None = None,
        sequence: int = NO_TRANSACTION_SEQUENCE,
    ) -> None:
        """On the driver: publish what the tasks staged, in the order of tasks."""
        coordinator = Cluster(self.options.path).coordinator(self.options)
        staged = [message for message in messages if isinstance(message, Staged)]
        extents = [extent for message in staged for extent in message.extents]
        coordinator.commit(
            extents,
            transactional_id=transactional_id or self._transaction,
            sequence=sequence,
            author=_author(staged),
            overwrite=self._overwrite,
        )
        self._discard(coordinator, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: remove what finished tasks staged; others may still be writing."""
        coordinator = Cluster(self.options.path).coordinator(self.options)
        self._discard(coordinator, [m for m in messages if isinstance(m, Staged)])

    def _discard(self, coordinator: Coordinator, staged: Sequence[Staged]) -> None:
        extents = [extent for message in staged for extent in message.extents]
        own = self._transaction
        for transaction in dict.fromkeys([*(message.transaction for message in staged), own]):
            coordinator.discard(extents, transaction)
            extents = []


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say of an error of the disk what it means for the job."""
    try:
        yield
    except OSError as error:
        raise KafkaStorageError(
            f"a task cannot stage its rows: {error}; nothing of the job is visible"
        ) from error


def _author(staged: Sequence[Staged]) -> Author:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    first = staged[0] if staged else None
    return Author(
        application_id=(first and first.application_id) or "",
        query_id=(first and first.query_id) or "",
        user=user,
    )


class KBatchWriter(DataSourceArrowWriter):
    """One batch job's writer."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage all rows."""
        return self._job.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what the tasks staged, in the order of tasks."""
        options = self._job.options
        if options.txn_app_id is None or options.txn_version is None:
            self._job.commit(messages)
        else:
            self._job.commit(messages, options.txn_app_id, options.txn_version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: remove what finished tasks staged; others may still be writing."""
        self._job.abort(messages)


class KBatchStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch's tasks, or of its commit."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage all rows."""
        return self._job.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver: publish the micro-batch, unless that was done before."""
        query_ids = {m.query_id for m in messages if isinstance(m, Staged) and m.extents}
        if not query_ids:
            self._job.abort(messages)  # no rows
            return
        (query_id,) = query_ids
        if query_id is None:
            raise KafkaStorageError(
                "the tasks of this micro-batch do not know their query, so a repetition of it could "
                "not be told; nothing is visible"
            )
        self._job.commit(messages, query_id, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver: remove what finished tasks staged; others may still be writing."""
        self._job.abort(messages)
