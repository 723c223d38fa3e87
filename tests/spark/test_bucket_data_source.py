"""The data source on a bucket: what Spark's processes do with it, one after the other, without a session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from spark_kbatch.spark.reader import KBatchStreamReader
from spark_kbatch.spark.source import ROW_SCHEMA, KBatchDataSource

pytestmark = pytest.mark.spark

WRITTEN = StructType([StructField("value", StringType())])
READ = StructType([ROW_SCHEMA["value"]])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file+bucket://{tmp_path}/bucket"


def sent(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(cloudpickle.dumps(value))


def source(url: str, **options: str) -> KBatchDataSource:
    found = sent(KBatchDataSource({"path": url, **options}))
    assert isinstance(found, KBatchDataSource)
    return found


def rows(value: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": [value]})


def write(url: str, *values: str, overwrite: bool = False) -> None:
    """Write a batch, each value in a task of its own."""
    writer = sent(source(url, topic="events").writer(WRITTEN, overwrite))
    messages = [sent(sent(writer).write(rows(value))) for value in values]
    sent(writer).commit(messages)


def read(url: str) -> list[str]:
    """Read the topic, each range in a task of its own."""
    reader = source(url, subscribe="events").reader(READ)
    parts = sent(reader.partitions())
    return [one for part in parts for one in values(sent(reader).read(part))]


def values(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [one.decode() for batch in batches for one in batch.column(0).to_pylist()]


def test_batches_are_written_read_and_overwritten(url: str) -> None:
    write(url, "a", "b")
    write(url, "c")
    assert read(url) == ["a", "b", "c"]
    write(url, "d", overwrite=True)
    assert read(url) == ["d"]


def test_a_stream_plans_and_reads_what_has_come(url: str) -> None:
    def opened() -> KBatchStreamReader:
        options = {"subscribe": "events", "startingOffsets": "earliest"}
        found = source(url, **options).streamReader(READ)
        assert isinstance(found, KBatchStreamReader)
        return found

    write(url, "a", "b")
    planner = opened()
    start = planner.initialOffset()
    end = planner.latestOffset(start)
    write(url, "c")
    later = planner.latestOffset(end)

    found = [
        [one for part in sent(planner.partitions(*edges)) for one in values(opened().read(part))]
        for edges in ((start, end), (end, later))
    ]
    assert found == [["a", "b"], ["c"]]
