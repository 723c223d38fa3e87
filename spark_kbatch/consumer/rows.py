"""Records as Arrow rows with the columns of Spark's Kafka source, with and without Spark.

The one definition of what a read returns: names, types and order of the columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from spark_kbatch.errors import ConfigError, InvalidTimestampError, RecordDeserializationError
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
_TEXTS = ("key", "value")  # columns that may be asked for as text

Text = Literal["strict", "replace"]  # what to do about bytes that are not UTF-8


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

    def __init__(self, columns: Sequence[str], text: Text | None = None) -> None:
        """Set up for rows with these columns, key and value as text if asked for."""
        self._columns, self._text = columns, text
        self._texts = [name for name in columns if text and name in _TEXTS]
        self.schema = pa.schema(
            [
                pa.field(name, pa.string()) if name in self._texts else ROW_SCHEMA.field(name)
                for name in columns
            ]
        )
        # Columns of RECORD_SCHEMA to decode for them; an error about text names the offset, which costs nothing.
        self.decoded = [_RECORD_COLUMNS[name] for name in columns if name in _RECORD_COLUMNS]
        if self._texts and "offset" not in columns:
            self.decoded.append("offset")

    def of(
        self, batches: Iterable[pa.RecordBatch], topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows for records of one partition, which have the columns `decoded`.

        Raises:
            InvalidTimestampError: a time that does not fit a timestamp in microseconds.
            RecordDeserializationError: bytes that are not UTF-8 in a column of text.
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
            elif name in self._texts:
                arrays.append(self._to_text(batch, name, topic_partition))
            else:
                arrays.append(batch.column(_RECORD_COLUMNS[name]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _to_text(
        self, batch: pa.RecordBatch, name: str, topic_partition: TopicPartition
    ) -> pa.Array:
        try:
            return batch.column(name).cast(pa.string())  # shares the bytes, and checks them
        except pa.ArrowInvalid:
            texts = []
            for row, data in enumerate(batch.column(name).to_pylist()):
                try:
                    texts.append(None if data is None else data.decode(errors=self._text))
                except UnicodeDecodeError as error:
                    offset = batch.column("offset")[row].as_py()
                    raise RecordDeserializationError(
                        *topic_partition, offset, name, error.start, data[error.start]
                    ) from None
            return pa.array(texts, pa.string())


def _to_timestamp(times_ms: pa.Array, topic: str) -> pa.Array:
    try:
        return times_ms.cast(_TIMESTAMP_MS).cast(_TIMESTAMP)  # checks the multiplication
    except pa.ArrowInvalid:
        farthest = max(times_ms.to_pylist(), key=abs)
        raise InvalidTimestampError(farthest, topic) from None
