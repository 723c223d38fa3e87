"""Records as Arrow rows with the columns of Spark's Kafka source, with and without Spark.

The one definition of what a read returns: names, types and order of the columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_kbatch.errors import ConfigError, InvalidTimestampError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.record.codec import RECORD_SCHEMA

ROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),  # 0 CreateTime, 1 LogAppendTime, -1 none (V0)
        RECORD_SCHEMA.field("headers"),
    ]
)

_RECORD_COLUMNS = {name: name for name in RECORD_SCHEMA.names} | {"timestampType": "timestamp_type"}
_TIMESTAMP = ROW_SCHEMA.field("timestamp").type
_TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")


def ensure_columns(columns: Any) -> list[str]:
    """Return a list of column names, checked against those that rows have.

    Raises:
        ConfigError: an unknown column, with the nearest; or one that is named twice.
    """
    names = arguments.names("columns", columns, "a list of columns, such as ['offset', 'value']")
    for name in names:
        if name not in ROW_SCHEMA.names:
            (near,) = difflib.get_close_matches(name, ROW_SCHEMA.names, n=1, cutoff=0.0)
            raise ConfigError(
                f"columns names {name!r}, which rows do not have; the nearest is {near!r}, they have: "
                f"{', '.join(ROW_SCHEMA.names)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"columns names {name!r} twice; name each column once")
    return names


class Rows:
    """Rows with some of the columns; only these are decoded."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self.schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        # Columns of RECORD_SCHEMA to decode for them.
        self.decoded = [_RECORD_COLUMNS[name] for name in columns if name in _RECORD_COLUMNS]

    def of(
        self, batches: Iterable[pa.RecordBatch], topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows for records of one partition, which have the columns `decoded`.

        Raises:
            InvalidTimestampError: a time that does not fit a timestamp in microseconds.
        """
        for batch in batches:
            yield self._of(batch, topic_partition)

    def _of(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        if not self._columns:
            return batch
        arrays = []
        for name in self._columns:
            if name == "topic":
                arrays.append(pa.repeat(topic_partition.topic, batch.num_rows))
            elif name == "partition":
                number = pa.scalar(topic_partition.partition, pa.int32())
                arrays.append(pa.repeat(number, batch.num_rows))
            elif name == "timestamp":
                arrays.append(_to_timestamp(batch.column("timestamp"), topic_partition.topic))
            else:
                arrays.append(batch.column(_RECORD_COLUMNS[name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _to_timestamp(times_ms: pa.Array, topic: str) -> pa.Array:
    try:
        return times_ms.cast(_TIMESTAMP_MS).cast(_TIMESTAMP)  # checks the multiplication
    except pa.ArrowInvalid:
        farthest = max(times_ms.to_pylist(), key=abs)
        raise InvalidTimestampError(farthest, topic) from None
