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
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_kbatch.cluster import open_for_reading
from spark_kbatch.consumer.splits import Piece
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import InvalidTimestampError
from spark_kbatch.model import TopicPartition
from spark_kbatch.read_config import ReadOptions
from spark_kbatch.record.codec import RECORD_SCHEMA

_RECORD_COLUMNS = {name: name for name in RECORD_SCHEMA.names} | {"timestampType": "timestamp_type"}
_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass
class RangePartition(InputPartition):
    """What one task reads; `load` names the plan that it belongs to."""

    load: str
    piece: Piece


class KBatchReader(DataSourceReader):
    """Reads the given columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, path: Path, columns: list[str]) -> None:
        self._options = replace(options, path=str(path))
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """One for each piece of the plan."""
        load = uuid.uuid4().hex
        return [RangePartition(load, piece) for piece in self._open().plan(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order."""
        # Spark makes a partition of its own where there are none.
        if not isinstance(partition, RangePartition):
            return
        logs = self._open()
        action = f"{partition.load}-{_action()}"
        wanted = logs.resolve(partition.piece, self._options, action)
        names = [_RECORD_COLUMNS[name] for name in self._columns if name in _RECORD_COLUMNS]
        for batch in logs.read_range(wanted, names, self._options.isolation_level):
            yield self._to_row_batch(batch, wanted.topic_partition)

    def _open(self) -> TopicReader:
        return open_for_reading(self._options.path, foreign_end=self._options.foreign_end)

    def _to_row_batch(
        self, batch: pa.RecordBatch, topic_partition: TopicPartition
    ) -> pa.RecordBatch:
        arrays = []
        for name in self._columns:
            if name == "topic":
                arrays.append(pa.repeat(topic_partition.topic, batch.num_rows))
            elif name == "partition":
                number = pa.scalar(topic_partition.partition, pa.int32())
                arrays.append(pa.repeat(number, batch.num_rows))
            elif name == "timestamp":
                arrays.append(_to_timestamp(batch.column("timestamp")))
            else:
                arrays.append(batch.column(_RECORD_COLUMNS[name]))
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)


def _to_timestamp(times_ms: pa.Array) -> pa.Array:
    try:
        return pc.multiply_checked(times_ms, 1000).cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        raise InvalidTimestampError(pc.max(times_ms).as_py()) from None


def _action() -> str:
    """The same for all tasks of one action, different for the next one."""
    context = TaskContext.get()
    if context is None:
        return uuid.uuid4().hex
    execution = context.getLocalProperty("spark.sql.execution.id")
    return execution or f"stage-{context.stageId()}"
