"""Records as rows of Spark's Kafka source, in Arrow: for batches and streams alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from spark_kbatch.errors import InvalidTimestampError
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.codec import RECORD_SCHEMA

_RECORD_COLUMNS = {name: name for name in RECORD_SCHEMA.names} | {"timestampType": "timestamp_type"}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")


class Rows:
    """Rows of some columns; only these are decoded."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        # Of RECORD_SCHEMA: what has to be decoded for them.
        self.decoded = [_RECORD_COLUMNS[name] for name in columns if name in _RECORD_COLUMNS]

    def of(
        self, batches: Iterable[pa.RecordBatch], topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """The rows of records of one partition, whose columns are `decoded`.

        Raises:
            InvalidTimestampError: a time that Spark's timestamp does not hold.
        """
        for batch in batches:
            yield self._of(batch, topic_partition)

    def _of(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
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
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)


def _to_timestamp(times_ms: pa.Array, topic: str) -> pa.Array:
    try:
        return times_ms.cast(_TIMESTAMP_MS).cast(_TIMESTAMP)  # checks the multiplication
    except pa.ArrowInvalid:
        farthest = max(times_ms.to_pylist(), key=abs)
        raise InvalidTimestampError(farthest, topic) from None
