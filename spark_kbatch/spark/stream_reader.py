"""Streaming reads: `spark.readStream.format("kbatch")`.

Spark asks one reader, which lives as long as a run of the query, for offsets and plans. Tasks read
through another one, and know of the first nothing but their partitions. An error in the options is
kept and raised from the first question, because Spark would hide one that is raised any earlier
behind an error of its own.

Before 4.2 Spark asks for the latest offset without saying where it is, knows no limits and nothing of
AvailableNow: then the planner does what can be done.

Source: Spark connector/kafka-0-10-sql/.../KafkaMicroBatchStream.scala.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer.rows import Rows
from spark_kbatch.consumer.source import Source
from spark_kbatch.consumer.stream_offset import StreamOffset
from spark_kbatch.consumer.stream_planner import StreamPiece, StreamPlanner, still_there
from spark_kbatch.errors import KBatchError
from spark_kbatch.opening import open_topics
from spark_kbatch.options.read import ReadOptions

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
        """Of a Spark that has none."""

    ReadAllAvailable = ReadMaxRows = ReadMinRows = ReadLimit  # type: ignore[misc,assignment]
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]


@dataclass
class StreamPartition(InputPartition):
    """What one task of a micro-batch reads."""

    piece: StreamPiece


class KBatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the given columns of Spark's Kafka row, one micro-batch after the other."""

    def __init__(self, options: ReadOptions, path: Path, columns: list[str]) -> None:
        self._options = replace(options, path=str(path))
        self._rows = Rows(columns)

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        """Only of the reader that Spark asks for offsets; what goes to tasks has none."""
        return StreamPlanner(self._options, self._open_source, monotonic_ms)

    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins, where no checkpoint says so."""
        return self._planner.initial().to_json()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        limited = not isinstance(limit, ReadAllAvailable)
        known = None if start is None else StreamOffset.from_json(start)
        end = self._planner.latest(known, limited=limited)
        # An equal text, for Spark to see that there is nothing new, is the one that it has.
        return start if start is not None and end == known else end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Anything but all where the options have limits: then all means that they do not count.

        Which one it is does not matter: the planner knows the options.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The run ends where the logs end when it is asked for the first end."""
        self._planner.prepare_for_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress."""
        latest = self._planner.report_latest()
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each piece of the micro-batch."""
        pieces = self._planner.plan(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [StreamPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one piece, in offset order."""
        # Spark makes a partition of its own where there are none.
        if not isinstance(partition, StreamPartition):
            return
        reader, wanted = open_topics(self._options), partition.piece.wanted
        if still_there(partition.piece, reader.source, self._options):
            batches = reader.read_available(
                wanted, self._rows.decoded, self._options, topic_id=partition.piece.topic_id
            )
            yield from self._rows.of(batches, wanted.topic_partition)

    def _open_source(self) -> Source:
        return open_topics(self._options).source


class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what was wrong with the options, whatever it is asked."""

    def __init__(self, error: KBatchError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        """Raises."""
        raise self._error

    def latestOffset(self, start: object = None, limit: object = None) -> NoReturn:
        """Raises."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """What follows raises."""

    def partitions(self, start: object, end: object) -> NoReturn:
        """Raises."""
        raise self._error

    def read(self, partition: object) -> NoReturn:
        """Raises."""
        raise self._error
