"""Batch reads: partitions on the driver, Arrow batches in tasks.

Spark plans once per `load()` and uses the plan again in every later action, so `earliest` and
`latest` travel inside the partitions and are looked up by the tasks: the first task of an action
resolves all partitions of the load, the others take its answer. In a broker's directory each task
resolves its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_kbatch.consumer.rows import Rows
from spark_kbatch.consumer.splits import Piece
from spark_kbatch.opening import open_topics
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.spark.shown import briefly


@dataclass
class RangePartition(InputPartition):
    """What one task reads; `load` names the plan that it belongs to."""

    load: str
    piece: Piece


class KBatchReader(DataSourceReader):
    """Reads the given columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, path: Path, columns: list[str]) -> None:
        self._options = replace(options, path=str(path))
        self._rows = Rows(columns)

    @briefly
    def partitions(self) -> list[InputPartition]:
        """One for each piece of the plan."""
        load = uuid.uuid4().hex
        return [
            RangePartition(load, piece) for piece in open_topics(self._options).plan(self._options)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order."""
        # Spark makes a partition of its own where there are none.
        if not isinstance(partition, RangePartition):
            return
        piece, action = partition.piece, f"{partition.load}-{_action()}"
        reader = open_topics(self._options)
        batches = reader.read_piece(piece, self._rows.decoded, self._options, action)
        yield from self._rows.of(batches, piece.whole.topic_partition)


def _action() -> str:
    """The same for all tasks of one action, different for the next one."""
    context = TaskContext.get()
    if context is None:
        return uuid.uuid4().hex
    execution = context.getLocalProperty("spark.sql.execution.id")
    return execution or f"stage-{context.stageId()}"
