"""The producer of one Spark task, which stages its batches until the job commits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.model import INT_MAX, AppendResult, TopicPartition
from spark_kbatch.options.producer import ProducerConfig, fair_batch_size
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.producer import Producer, RoutedRows
from spark_kbatch.store.repetitions import RowSums
from spark_kbatch.store.transport import Answer, ProduceBatch, SendRequest

_Staged_co = TypeVar("_Staged_co", covariant=True)


class TaskStaging(Protocol[_Staged_co]):
    """The staging area of a task."""

    def finish(self) -> _Staged_co:
        """End the staging, and return what the job's commit needs."""

    def abandon(self) -> None:
        """Remove what was staged."""


class StagedBatches:
    """Transport of a task's producer, which stages before it answers; offsets come with the commit."""

    def __init__(self, stage: Callable[[ProduceBatch], object]) -> None:
        """Set up; `stage` stages one batch, and refuses one that a commit would refuse."""
        self._stage = stage

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Stage every batch of a produce request."""
        answer = dict[TopicPartition, AppendResult]()
        for batch in request.batches:
            answer[batch.topic_partition] = AppendResult()
            try:
                self._stage(batch)
            except RecordTooLargeError as error:
                answer[batch.topic_partition] = AppendResult(error=error)
        on_answer(answer)


class TaskProducer(Generic[_Staged_co]):
    """The producer of one Spark task; its batches get offsets when the job commits."""

    def __init__(
        self,
        stage: Callable[[ProduceBatch], object],
        staging: TaskStaging[_Staged_co],
        find_topic: Callable[[str], Topic],
        options: WriteOptions,
        clock_ms: Callable[[], int],
    ) -> None:
        """Set up.

        Args:
            stage: stages one batch; raises RecordTooLargeError for one that a commit would refuse.
            staging: where that stages them.
            find_topic: returns a topic by name; asked once for each.
            options: of the write.
            clock_ms: the time of day, for records without a time.
        """
        self._topic, self._staging = options.topic, staging
        # Rows, bytes of keys, of values by slot of `_partitions`; below 2^53 floats are exact.
        self._sums = np.empty((3, 0))
        self._partitions: Sequence[tuple[Topic, TopicPartition]] = ()
        find_topic = functools.cache(find_topic)
        batch_size = options.batch_size
        if self._topic is not None:
            partitions = find_topic(self._topic).partitions
            batch_size = fair_batch_size(batch_size, options.buffer_memory, partitions)
        # Of its batches; also for single records. With `linger.ms` it has a thread.
        self.producer = Producer(
            ProducerConfig(
                batch_size=batch_size,
                buffer_memory=options.buffer_memory,
                compression_type=options.compression_type,
                compression_level=options.compression_level,
                linger_ms=options.linger_ms,
                partitioner_class=options.partitioner_class,
                partitioner_ignore_keys=options.partitioner_ignore_keys,
                # A staged batch gets its offset when the job commits. If it fails, the task fails, and
                # Spark retries that.
                enable_idempotence=False,
                retries=0,
                max_request_size=INT_MAX,
                delivery_timeout_ms=INT_MAX,
                max_in_flight_requests_per_connection=1,
            ),
            StagedBatches(stage),
            find_topic,
            clock_ms,
            # Without a linger time, a thread would be of no use.
            inline=options.linger_ms is None,
        )

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows, whose columns the driver has checked, to the batches that the task stages.

        Raises:
            KBatchError, OSError: a row cannot be written, or an earlier batch failed.
        """
        for one in self.producer.append(rows, self._topic):
            self._count(one)
        self.producer.ensure_delivered()

    def _count(self, rows: RoutedRows) -> None:
        (columns, routing), count = rows, len(rows.routing.counts)
        sums = np.vstack([routing.counts, np.zeros((2, count))])
        for row, spans in ((1, columns.key), (2, columns.value)):
            if len(spans.bounds) and len(routing.topics) == 1 and not len(spans.valid):
                # Any slot of the topic will do, and no row is looked at.
                sums[row, routing.counts.argmax()] = spans.bounds[-1] - spans.bounds[0]
            elif len(spans.bounds):
                sizes = np.diff(spans.bounds) * (spans.valid if len(spans.valid) else 1)
                sums[row] = np.bincount(routing.slots, sizes, count)
        sums[:, : self._sums.shape[1]] += self._sums  # slots are only added
        self._sums, self._partitions = sums, routing.partitions

    @property
    def sums(self) -> RowSums:
        """The rows that were appended, with the bytes of their keys and values as they came."""
        return [
            (self._partitions[slot][0].name, *map(int, self._sums[:, slot]))  # type: ignore[misc]
            for slot in np.flatnonzero(self._sums[0]).tolist()
        ]

    def finish(self) -> _Staged_co:
        """Stage the rows still buffered, and return all that the task staged; raises as `append`."""
        self.producer.flush()
        self.producer.ensure_delivered()
        self.producer.close()
        return self._staging.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def abandon(self) -> None:
        """Remove what the task staged, because it failed; an error that leaves its `with` does this."""
        self.producer.close(timeout=0)
        self._staging.abandon()
