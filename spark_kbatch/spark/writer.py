"""Spark writers for batch jobs and streams: tasks stage rows, the driver commits them.

The schema of the rows that reach a task depends on the session: time zone, nullability, large types and
the names of list children differ. So columns are taken as they come, and not compared with a schema; the
driver has checked their types once.

In an embedded cluster a micro-batch is a transaction: its id is the query's, which outlives restarts, and its sequence number
the micro-batch's. Spark repeats a micro-batch under the same two numbers if it did not learn of its
commit; the duplicate is then skipped (`repetitions`). Spark creates one writer for the tasks of a micro-batch and another
one for its commit, which share nothing but the tasks' messages. In a real cluster a task's rows are visible
when they are written, and a task that runs again writes them again, as with Spark's own sink.

A commit reads in the query's checkpoint what Spark has planned:

    CHECKPOINT/metadata     {"id": the query's}
    CHECKPOINT/offsets/N    created once, when micro-batch N is planned, and never written again:
                            a version, settings and time, and a line for each source: where N ends
    CHECKPOINT/commits/N    created after N was committed; without it N is to be repeated

A location without a scheme may be on a file system that only Hadoop knows, and one with a scheme
nearly always is. So a folder is believed only if it has the query's id, and N is the last that was
planned and is not committed: otherwise nothing is known. No lock is held meanwhile, so that a disk
that hangs stops one query alone.

Source: Spark connector/kafka-0-10-sql/.../KafkaWriter.scala, KafkaWriteTask.scala,
KafkaStreamingWrite.scala; Spark sql/core/.../streaming/checkpointing/OffsetSeqLog.scala,
HDFSMetadataLog.scala.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
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

from spark_kbatch.columns.writing import NOTHING_ENCODED, WrittenColumns
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.columns import meant_for, warn_of_misspelt
from spark_kbatch.options.values import WrittenValueOptions
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.spark.process import briefly, freeze_modules
from spark_kbatch.store.job import WriteJob
from spark_kbatch.store.repetitions import UNREAD, PlannedOffsets

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before 4.1, whose tasks hand Arrow batches to any writer that is one of Arrow

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef,misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Stand-in for Spark's writer of a micro-batch's Arrow batches."""


def ensure_writable(
    schema: StructType, options: WriteOptions, encoded: WrittenColumns = NOTHING_ENCODED
) -> None:
    """Check the names and types of the columns that a DataFrame writes; those that are encoded have any type.

    Names are case-sensitive; unknown columns are ignored.

    Logs a warning for an ignored column whose name is close to that of a missing column.

    Raises:
        ConfigError: no topic, no value, a column given twice, or a column of a wrong type.
    Source: KafkaWriter.validateQuery, topicExpression.
    """
    names = schema.fieldNames()
    types = {field.name: field.dataType for field in schema}
    for name, (wanted, accepts) in _COLUMNS.items():
        if name == "topic" and options.topic is not None:
            continue  # the column is ignored
        if name not in types:
            if name in _REQUIRED:
                required = _REQUIRED[name].format(columns=", ".join(names) or "none")
                raise ConfigError(required + _rename(name, names))
        elif names.count(name) > 1:
            raise ConfigError(
                f"column {name!r} occurs {names.count(name)} times; rename or drop all but one"
            )
        elif name not in encoded.names and not accepts(types[name]):
            raise ConfigError(
                f"{name} attribute unsupported type {types[name].simpleString()}. {name} must be "
                f"{'an' if wanted[0] in 'ai' else 'a'} {wanted}: {_remedy(name, types[name])}"
            )
    warn_of_misspelt(names)


# Earlier than PySpark 4.3 times are in UTC without a word.
IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def encoded_types(schema: StructType, options: WrittenValueOptions) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns that a write encodes, of those that there are."""
    encoded = {one.column for one in options.encoded}
    return {
        one.name: to_arrow_type(one.dataType, **IN_UTC) for one in schema if one.name in encoded
    }


def _rename(wanted: str, names: Sequence[str]) -> str:
    """Return a hint which column to rename to `wanted`, whose name is alike; empty if none is."""
    near = meant_for(wanted, names)
    return "" if near is None else f"; did you mean {near!r}? Write {near} AS {wanted}"


def _remedy(name: str, given: DataType) -> str:
    """Return a hint how to convert a column of a wrong type, such as "write CAST(key AS STRING)"."""
    match name, given:
        case (("key" | "value"), (StructType() | ArrayType() | MapType())):
            instead = f"give the option {name}.format=json, or avro"
        case (("key" | "value" | "topic"), _):
            instead = f"write CAST({name} AS STRING)"
        case "partition", _:
            instead = "write CAST(partition AS INT)"
        case "timestamp", IntegralType():
            instead = "write timestamp_millis(timestamp) of milliseconds since 1970"
        case "timestamp", TimestampNTZType():
            instead = "write CAST(timestamp AS TIMESTAMP_LTZ), which uses the session's time zone"
        case "timestamp", _:
            instead = "write CAST(timestamp AS TIMESTAMP_LTZ)"
        case _:
            instead = "write array(struct('name' AS key, CAST('text' AS BINARY) AS value))"
    without = {"value": "", "topic": ", or name the topic in the option 'topic'"}
    return instead + without.get(name, ", or leave the column out")


def _is_headers(given: DataType) -> bool:
    if not (isinstance(given, ArrayType) and isinstance(given.elementType, StructType)):
        return False
    fields = [(field.name, type(field.dataType)) for field in given.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


# The type of each column, in the order in which Spark's connector checks them: the first wrong one is
# reported.
_COLUMNS: dict[str, tuple[str, Callable[[DataType], bool]]] = {
    "topic": ("string", lambda given: isinstance(given, StringType)),
    "key": ("string or binary", lambda given: isinstance(given, (StringType, BinaryType))),
    "value": ("string or binary", lambda given: isinstance(given, (StringType, BinaryType))),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "partition": ("int or bigint", lambda given: isinstance(given, IntegralType)),
    "timestamp": ("timestamp", lambda given: isinstance(given, TimestampType)),
}
_REQUIRED = {
    "topic": "topic option required when no 'topic' attribute is present: name the topic in the "
    "option 'topic', or give each row one in a column 'topic'",
    "value": "required attribute 'value' not found; the columns are: {columns}",
}


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's message to the commit: what it staged, or sent."""

    staged: Any


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Any]:
    return [message.staged for message in messages if isinstance(message, TaskMessage)]


class _StagingWriter:
    """A writer whose tasks stage all their rows, and whose abort removes them."""

    def __init__(
        self, job: WriteJob, columns: WrittenColumns = NOTHING_ENCODED, checkpoint: str = ""
    ) -> None:
        # The checkpoint is a query's, as the user has written it, or empty.
        self._job, self._columns, self._checkpoint = job, columns, checkpoint

    @briefly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        freeze_modules()
        context = TaskContext.get()
        # Spark gives the jobs of a query's run the run's id as their group.
        application_id, query_id, run_id = (
            context.getLocalProperty(name) if context else None
            for name in ("spark.app.id", "sql.streaming.queryId", "spark.jobGroup.id")
        )
        if self._columns.columns:
            iterator = self._columns.encoded(iterator)
        return TaskMessage(
            self._job.stage(
                iterator,
                application_id=application_id,
                query_id=query_id,
                run_id=run_id if query_id else None,
            )
        )

    @briefly
    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int = -1,  # noqa: N803  a batch job has none
    ) -> None:
        """Remove the rows that finished tasks staged; runs on the driver.

        Other tasks may still write.
        """
        self._job.abort(_staged(messages))


class KBatchWriter(_StagingWriter, DataSourceArrowWriter):
    """The writer of one batch job."""

    @briefly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows that all tasks staged; runs on the driver."""
        self._job.commit_batch(_staged(messages))


_SOURCES_MAX = 4096  # characters


def planned_offsets(location: str, query_id: str, number: int) -> PlannedOffsets:
    """Return what a query's checkpoint says of a micro-batch; `UNREAD` if that is not certain."""
    # Hadoop takes a path as it is written: %20 stands for itself.
    folder = Path(location.removeprefix("file:"))
    try:
        planned = (folder / "offsets" / str(number)).read_bytes()
        later = f"offsets/{number + 1}", f"commits/{number}"
        if (
            any((folder / name).exists() for name in later)
            or query_id != (json.loads((folder / "metadata").read_bytes())["id"])
        ):
            return UNREAD
        sources = planned.decode().split("\n", 2)[2]
        return hashlib.sha256(planned).hexdigest(), sources if len(sources) <= _SOURCES_MAX else ""
    except (OSError, ValueError, TypeError, LookupError):
        return UNREAD


class KBatchStreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """Spark writer of one micro-batch, in its tasks or for its commit on the driver."""

    @briefly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the micro-batch, unless it is committed already; runs on the driver."""
        read_plan = functools.partial(planned_offsets, self._checkpoint)
        self._job.commit_micro_batch(_staged(messages), batchId, read_plan)
