"""Spark batch reader: plans input partitions on the driver, and reads Arrow batches in tasks.

Spark plans once per `load()` and reuses the plan in every later action. So `earliest` and `latest` travel
inside the partitions and are resolved by the tasks: the first task of an action resolves all partitions
of the load, and the others use its answer. In a broker's log directory, and in a real cluster, each task
resolves its own: there a task that is run again may see more than before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_kbatch.columns.reading import PinnedColumns
from spark_kbatch.model import Piece
from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.spark import process
from spark_kbatch.spark.short_errors import briefly


@dataclass
class RangePartition(InputPartition):
    """Spark input partition with the ranges of offsets that one task reads, and its plan's id."""

    load: str
    pieces: tuple[Piece, ...]


class KBatchReader(DataSourceReader):
    """Spark batch reader for the requested columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, columns: list[str], pinned: PinnedColumns) -> None:
        self._options, self._columns, self._pinned = options, columns, pinned

    @briefly
    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each task of the read's plan."""
        load = uuid.uuid4().hex
        return [
            RangePartition(load, pieces)
            for pieces in open_topics(self._options).plan(self._options)
        ]

    @briefly
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, in offset order within each partition."""
        # Spark passes a partition of its own if the plan has none.
        if not isinstance(partition, RangePartition):
            return
        process.freeze_modules()
        action = f"{partition.load}-{_action()}"
        reader = open_topics(self._options)
        typed = self._pinned.typed(names=self._columns)
        yield from reader.read_task(partition.pieces, self._columns, self._options, action, typed)


def _action() -> str:
    """Return an id that all tasks of one Spark action share, and no other action has."""
    context = TaskContext.get()
    if context is None:
        return uuid.uuid4().hex
    execution = context.getLocalProperty("spark.sql.execution.id")
    return execution or f"stage-{context.stageId()}"
