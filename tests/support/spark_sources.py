"""The cost of Spark's own part of a Python source: a writer that drops rows, a reader of prepared rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tests.support.interleaved import bulk_rows


@dataclass
class Rows(InputPartition):
    count: int


class DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropStreamWriter(DropWriter, DataSourceStreamArrowWriter):
    """The same for a micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del messages, batchId


SCHEMAS = {
    "offset": "offset long",
    "two": "key binary, value binary",
    "seven": "key binary, value binary, topic string, partition int, offset long, "
    "timestamp timestamp, timestampType int",
}


class ReadyReader(DataSourceReader):
    """`partitions` tasks yield `rows` rows in all, the same batch again and again."""

    def __init__(
        self, columns: str, rows: int, partitions: int, batch_rows: int, value_bytes: int
    ) -> None:
        self._columns = columns
        self._rows, self._partitions, self._batch_rows = rows, partitions, batch_rows
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [Rows(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        made = bulk_rows(self._batch_rows, key_bytes=16, value_bytes=self._value_bytes)
        made = made.select(["key", "value"])
        if self._columns != "two":
            made = with_all_columns(made)
        if self._columns == "offset":
            made = made.select(["offset"])
        left = partition.count
        while left > 0:
            yield made.slice(0, left)
            left -= made.num_rows


def with_all_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add the other columns of Spark's Kafka source, but headers."""
    count = rows.num_rows
    offsets = pa.array(range(count), pa.int64())
    times = pa.array(range(count), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    columns = {
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": offsets,
        "timestamp": times,
        "timestampType": pa.array([0] * count, pa.int32()),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows


class ReadyTable(DataSource, DataSourceReader):
    """Format `table`: the rows of an Arrow file, `path`, in two tasks, which each have half of its batches."""

    @classmethod
    def name(cls) -> str:
        return "table"

    def schema(self) -> StructType:
        with pa.memory_map(self.options["path"]) as file:
            found: StructType = from_arrow_schema(pa.ipc.open_file(file).schema)
        return found

    def reader(self, schema: StructType) -> ReadyTable:
        del schema
        return self

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.options["path"]) as file:
            batches = pa.ipc.open_file(file)
            for number in range(partition.value, batches.num_record_batches, 2):
                yield batches.get_batch(number)


class BareSource(DataSource):
    """Format `bare`; its option `columns` is one of SCHEMAS."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return SCHEMAS[self.options.get("columns", "two")]

    def reader(self, schema: StructType) -> ReadyReader:
        del schema
        names = ("rows", "partitions", "batchrows", "valuebytes")
        columns = self.options.get("columns", "two")
        return ReadyReader(columns, *(int(self.options[name]) for name in names))

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:
        del schema, overwrite
        return DropWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DropStreamWriter:  # noqa: N802
        del schema, overwrite
        return DropStreamWriter()
