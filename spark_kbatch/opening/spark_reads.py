"""Spark's batch and streaming reads: planned on the driver, run by tasks, and pickled between them.

Nothing here knows of Spark: offsets of a stream are JSON objects, as Spark keeps them in its checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.reading import Rows
from spark_kbatch.consumer.source import Source
from spark_kbatch.consumer.stream_planner import StreamOffset, StreamPlanner, still_there
from spark_kbatch.model import Piece, StreamPiece
from spark_kbatch.opening.readers import open_topics
from spark_kbatch.options.read import ReadOptions


def ensure_readable(options: ReadOptions, *, is_batch: bool) -> None:
    """Check that the topics and partitions exist that a read's options name, and its offsets in a batch.

    A stream that resumes from its checkpoint does not need what its starting offsets name.

    Raises the errors of `planning.ranges`.
    """
    topics = open_topics(options).source
    if is_batch:
        planning.ranges(options, topics)
    else:
        planning.selected(options.selection, topics, strict=options.fail_on_data_loss)


class BatchRead:
    """A batch read of these columns of Spark's Kafka row."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options, self._rows = options, Rows(columns)

    def plan(self) -> list[Piece]:
        """Return the pieces to read, each by one task; raises as `TopicReader.plan`."""
        return open_topics(self._options).plan(self._options)

    def read(self, piece: Piece, action: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece, in offset order; raises as `TopicReader.read_piece`.

        Args:
            piece: of the plan.
            action: the same for all tasks of one Spark action, and for no other.
        """
        reader = open_topics(self._options)
        batches = reader.read_piece(piece, self._rows.decoded, self._options, action)
        yield from self._rows.of(batches, piece.planned.topic_partition)


class StreamRead:
    """A streaming read of these columns of Spark's Kafka row, in one run of the query.

    Not thread-safe: Spark asks one question at a time.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options, self._rows = options, Rows(columns)

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        """The planner of micro-batches; only the reader that Spark asks for offsets creates one."""
        return StreamPlanner(self._options, self._open_source, monotonic_ms)

    def _open_source(self) -> Source:
        return open_topics(self._options).source

    def initial(self) -> dict[str, Any]:
        """Return the offsets at which a query without a checkpoint starts."""
        return self._planner.initial().to_json()

    def latest(self, start: dict[str, Any] | None, *, limited: bool) -> dict[str, Any]:
        """Return the offsets at which the micro-batch ends that starts at `start`.

        Arguments and errors are those of `StreamPlanner.latest`.
        """
        known = None if start is None else StreamOffset.from_json(start)
        end = self._planner.latest(known, limited=limited)
        # Spark compares texts: to show that nothing is new, return exactly the one it passed.
        return start if start is not None and end == known else end.to_json()

    def prepare_for_available_now(self) -> None:
        """Make this run end, as Trigger.AvailableNow asks, at what the next call of `latest` finds."""
        self._planner.prepare_for_available_now()

    def report_latest(self) -> dict[str, Any] | None:
        """Return the logs' ends that the last call of `latest` found, ignoring limits; None if none."""
        latest = self._planner.report_latest()
        return None if latest is None else latest.to_json()

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPiece]:
        """Return the pieces of the micro-batch between two offsets; raises as `StreamPlanner.plan`."""
        return self._planner.plan(StreamOffset.from_json(start), StreamOffset.from_json(end))

    def read(self, piece: StreamPiece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece, in offset order; raises as `TopicReader.read_available`."""
        reader = open_topics(self._options)
        if still_there(piece, reader.source, self._options):
            batches = reader.read_available(
                piece.wanted, self._rows.decoded, self._options, topic_id=piece.topic_id
            )
            yield from self._rows.of(batches, piece.wanted.topic_partition)
