"""Where producers' batches go: into the logs at once, or to staging, until the job commits.

    LocalLog      of plain Python: appended before it answers
    StagedFiles   of a Spark task: staged before it answers; offsets come with the commit
    TaskProducer  a producer on top of staging, as a task has it

Producers make V2; what a topic of an older format gets is converted here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyarrow as pa

from spark_kbatch.commit.staging import Extent, ReplicatedStaging
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.model import INT_MAX, AppendResult, TopicPartition
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.sender import Answer, ProduceBatch, ProduceRequest
from spark_kbatch.record.codec import down_convert
from spark_kbatch.record.header import MAGIC
from spark_kbatch.record.legacy import MessageSet

# Smaller ones hold too few records to be worth a header.
_BATCH_SIZE_MIN = 16 * 1024

# After as long a batch whose partition is locked lets those of other partitions go before it.
_LOCK_TIMEOUT_MS = 100


class LocalLog:
    """The transport of plain Python: batches are appended to the logs before it answers."""

    def __init__(
        self, append_records: Callable[..., None], *, flush: bool, level: int | None = None
    ) -> None:
        """Set up.

        Args:
            append_records: `Cluster.append_records`.
            level: the codec's, for topics of an older format.
        """
        self._append_records, self._flush, self._level = append_records, flush, level

    def send(self, request: ProduceRequest, on_answer: Callable[[Answer], None]) -> None:
        """Append every batch; each partition has an answer of its own."""
        self._append_records(
            timeout_ms=request.timeout_ms,
            required_acks=request.acks,
            entries_per_partition={
                batch.topic_partition: _in_format(batch, self._level).data
                for batch in request.batches
            },
            topic_ids={batch.topic_partition: batch.topic.topic_id for batch in request.batches},
            on_complete=on_answer,
            flush=self._flush,
            # Other partitions' batches wait meanwhile. With acks=0 none is sent again: it has to wait.
            lock_timeout_ms=_LOCK_TIMEOUT_MS if request.acks else None,
        )


class StagedFiles:
    """The transport of a task: batches are staged before it answers; offsets come with the commit."""

    def __init__(self, staging: ReplicatedStaging, *, level: int | None = None) -> None:
        """`level` is the codec's, for topics of an older format."""
        self._staging, self._level = staging, level

    def send(self, request: ProduceRequest, on_answer: Callable[[Answer], None]) -> None:
        """Stage every batch."""
        answer: dict[TopicPartition, AppendResult] = {}
        for batch in request.batches:
            topic, topic_partition, _, records_count = batch
            data, largest = _in_format(batch, self._level)
            limit, option = min(
                (topic.config.max_message_bytes, "max.message.bytes"),
                (topic.config.segment_bytes, "segment.bytes"),
            )
            if largest > limit:
                # A commit would refuse it; of several records it is split.
                error = RecordTooLargeError(
                    f"a record for topic {topic.name!r}, as a batch of its own,", largest, limit,
                    option,
                )  # fmt: skip
                answer[topic_partition] = AppendResult(error=error)
            else:
                self._staging.send(topic, topic_partition.partition, data, records_count)
                answer[topic_partition] = AppendResult()
        on_answer(answer)


def _in_format(batch: ProduceBatch, level: int | None) -> MessageSet:
    """What a batch is in the format of its topic."""
    magic = batch.topic.config.message_magic
    if magic == MAGIC:
        return MessageSet(batch.data, len(batch.data))
    return down_convert(batch.data, magic, level=level)


class TaskProducer:
    """What one task writes through: a producer whose transport is staging."""

    def __init__(
        self,
        staging: ReplicatedStaging,
        find_topic: Callable[[str], Topic],
        options: WriteOptions,
        clock_ms: Callable[[], int],
    ) -> None:
        self._topic, self._staging = options.topic, staging
        find_topic = functools.cache(find_topic)  # its file is read once
        batch_size = options.batch_size
        if self._topic is not None:
            # So that each partition has a batch that stays open: those that are sent to make room for
            # others hold a record or two.
            each = options.buffer_memory // (2 * find_topic(self._topic).partitions)
            batch_size = min(batch_size, max(each, _BATCH_SIZE_MIN))
        self._producer = Producer(
            ProducerConfig(
                batch_size=batch_size,
                buffer_memory=options.buffer_memory,
                compression_type=options.compression_type,
                compression_level=options.compression_level,
                linger_ms=options.linger_ms,
                partitioner_class=options.partitioner_class,
                partitioner_ignore_keys=options.partitioner_ignore_keys,
                # A staged batch has an offset once the job is committed. What fails is the task,
                # and Spark tries that again.
                enable_idempotence=False,
                retries=0,
                max_request_size=INT_MAX,
                delivery_timeout_ms=INT_MAX,
                max_in_flight_requests_per_connection=1,
            ),
            StagedFiles(self._staging, level=options.compression_level),
            find_topic,
            clock_ms,
            # Where batches wait for no time, a thread would only cost.
            inline=options.linger_ms is None,
        )

    def append(self, rows: pa.RecordBatch) -> None:
        """Stage rows, whose columns the driver has checked.

        Raises:
            KBatchError, OSError: of a row that cannot be written, or of a batch before it.
        """
        self._producer.append(rows, self._topic)
        self._producer.ensure_delivered()

    def finish(self) -> list[Extent]:
        """Stage what is left; what was staged."""
        self._producer.flush()
        self._producer.ensure_delivered()
        self._producer.close()
        return self._staging.finish()

    def abandon(self) -> None:
        """Remove what was staged: the task failed."""
        self._producer.close(timeout=0)
        self._staging.abandon()
