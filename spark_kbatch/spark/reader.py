"""Spark readers of batches and streams: plan on the driver, and read Arrow batches in tasks.

For a batch, Spark plans once per `load()` and reuses the plan in every later action. So `earliest`
and `latest` travel inside the partitions and are resolved by the tasks: the first task of an action
resolves all partitions of the load, and the others use its answer. In a broker's log directory, and
in a real cluster, each task resolves its own: there a task that is run again may see more than
before. Spark 4.0 plans each scan. The scans of one action still agree, as they have the id of their
`load()`; only where partitions were added between two plans, each has an answer of its own.

For a stream, Spark asks one reader, which lives as long as a run of the query, for offsets and
plans. Tasks read through copies, which know nothing but their partition. An error in the options is
raised only by the first method that Spark calls for the run, because Spark would hide an earlier
one behind its own.

Before 4.2, Spark asks for the latest offset without passing its own, and has neither limits nor
AvailableNow: then the planner does what can be done.

Source: Spark connector/kafka-0-10-sql/.../KafkaMicroBatchStream.scala.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_kbatch.columns.reading import NewSchema, NewSchemas, Scan
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import Piece, StreamPiece
from spark_kbatch.opening.stores import open_stream, open_topics
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.spark.process import briefly, freeze_modules

if TYPE_CHECKING:
    from spark_kbatch.consumer.stream_planner import StreamPlanner


@dataclass
class RangePartition(InputPartition):
    """Spark input partition with the ranges of offsets that one task reads, and its plan's id.

    Plans of one `load()` that cover the same partitions share the id.
    """

    plan: str
    pieces: tuple[Piece, ...]


class KBatchReader(DataSourceReader):
    """Spark batch reader for the requested columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, scan: Scan, load: str = "") -> None:
        # The id of the `load()` that is read, by default of one that no other reader has.
        self._options, self._scan, self._load = options, scan, load or uuid.uuid4().hex

    @briefly
    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each task of the read's plan."""
        tasks = open_topics(self._options).plan(self._options, self._scan.condition)
        covered = sorted({(p.planned.topic_partition, p.topic_id) for task in tasks for p in task})
        digest = hashlib.sha256(repr(covered).encode()).hexdigest()[:16]
        return [RangePartition(f"{self._load}-{digest}", pieces) for pieces in tasks]

    @briefly
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, in offset order within each partition."""
        # Spark passes a partition of its own if the plan has none.
        if not isinstance(partition, RangePartition):
            return
        freeze_modules()
        action = f"{partition.plan}-{_action()}"
        reader = open_topics(self._options)
        typed, where = self._scan.decoders()
        yield from reader.read_task(
            partition.pieces, self._scan.names, self._options, action, typed, where
        )


def _action() -> str:
    """Return an id that all tasks of one Spark action share, and no other action has."""
    context = TaskContext.get()
    if context is None:
        return uuid.uuid4().hex
    execution = context.getLocalProperty("spark.sql.execution.id")
    return execution or f"stage-{context.stageId()}"


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2

    class ReadLimit:  # type: ignore[no-redef]
        """Stand-in for Spark's ReadLimit, in a Spark without read limits."""

    ReadAllAvailable = ReadMaxRows = ReadMinRows = ReadLimit  # type: ignore[misc,assignment]
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]


@dataclass
class StreamPartition(InputPartition):
    """Spark input partition with the ranges of offsets that one task of a micro-batch reads."""

    pieces: tuple[StreamPiece, ...]
    new_schemas: tuple[NewSchema, ...] = ()  # that the task's copy of the reader does not know


class KBatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark stream reader for the requested columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, scan: Scan) -> None:
        self._options, self._scan = options, scan

    @functools.cached_property
    def _new_schemas(self) -> NewSchemas:
        """New schemas of the subjects of keys and values; only the reader that plans has them."""
        return NewSchemas(self._scan.columns)

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        """The planner of micro-batches; only the reader that Spark asks for offsets creates one."""
        return open_stream(self._options)

    @briefly
    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a query without a checkpoint starts."""
        return self._planner.initial()

    @briefly
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offsets at which the next micro-batch ends."""
        return self._planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a read limit if the options set one, so that Spark can ask for all data instead.

        Its value does not matter: the planner knows the options.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the log ends that the first `latestOffset` call finds."""
        self._planner.prepare_for_available_now()

    @briefly
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest offsets of the logs, for the query's progress report."""
        return self._planner.report_latest()

    @briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return an input partition for each task of the micro-batch."""
        new = self._new_schemas.found()
        tasks = self._planner.plan(start, end, self._scan.condition)
        return [StreamPartition(some, new) for some in tasks]

    @briefly
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, in offset order within each partition."""
        # Spark passes a partition of its own if the plan has none.
        if not isinstance(partition, StreamPartition):
            return
        freeze_modules()
        reader = open_topics(self._options)
        typed, where = self._scan.decoders(partition.new_schemas)
        yield from reader.read_stream_task(
            partition.pieces, self._scan.names, self._options, typed, where
        )


class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader whose every method raises the error in the options."""

    def __init__(self, error: KBatchError) -> None:
        self._error = error

    @briefly
    def initialOffset(self) -> NoReturn:
        """Raise the error in the options."""
        raise self._error

    @briefly
    def latestOffset(self, start: object = None, limit: object = None) -> NoReturn:
        """Raise the error in the options."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the next call raises."""

    @briefly
    def partitions(self, start: object, end: object) -> NoReturn:
        """Raise the error in the options."""
        raise self._error

    @briefly
    def read(self, partition: object) -> NoReturn:
        """Raise the error in the options."""
        raise self._error
