"""Transports of producers, which append batches to logs at once, or stage them until a job commits.

    LocalLog      for plain Python: appends before it answers
    StagedFiles   for a Spark task: stages before it answers; offsets come with the commit

Producers make V2 batches; for a topic of an older format they are converted here.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.staging import ReplicatedStaging
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.files import Buffer
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import ensure_record_fits
from spark_kbatch.record.down_conversion import MessageSet, down_convert
from spark_kbatch.record.header import MAGIC
from spark_kbatch.store.transport import Answer, ProduceBatch, SendRequest

# A batch whose partition is locked for this long lets those of other partitions go first.
_LOCK_TIMEOUT_MS = 100


class LocalLog:
    """Transport of a producer in plain Python, which appends its batches to the cluster's logs at once.

    It takes runs.
    """

    def __init__(self, parts: FolderParts, *, flush: bool, level: int | None = None) -> None:
        """Set up to append batches to the logs of one cluster.

        Args:
            parts: of the cluster.
            flush: whether appends are flushed to disk.
            level: the codec's, for topics of an older format.
        """
        self._parts, self._flush, self._level = parts, flush, level

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Append every batch of a produce request; each partition gets an answer of its own.

        A run of batches is appended as one.
        """
        entries: dict[TopicPartition, list[Buffer]] = {}
        topic, is_v2 = None, True
        for batch in request.batches:
            if batch.topic is not topic:
                topic, is_v2 = batch.topic, batch.topic.message_magic == MAGIC
            data = batch.data if is_v2 else _in_format(batch, self._level).data
            entries.setdefault(batch.topic_partition, []).append(data)
        self._parts.manager.append_records(
            timeout_ms=request.timeout_ms,
            required_acks=request.acks,
            entries_per_partition={
                tp: run[0] if len(run) == 1 else bytearray().join(run)
                for tp, run in entries.items()
            },
            topic_ids={batch.topic_partition: batch.topic.topic_id for batch in request.batches},
            on_complete=on_answer,
            flush=self._flush,
            commits=self._parts.coordinator(flush=self._flush),
            # Other partitions' batches wait meanwhile. With acks=0 there is no retry, so it has to wait.
            lock_timeout_ms=_LOCK_TIMEOUT_MS if request.acks else None,
        )


class StagedFiles:
    """Transport of a Spark task's producer, which writes batches to staging files."""

    def __init__(self, staging: ReplicatedStaging, *, level: int | None = None) -> None:
        """Set up to stage batches; `level` is the compression level for topics of an older format."""
        self._staging, self._level = staging, level

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Write every batch of a produce request to staging files."""
        answer: dict[TopicPartition, AppendResult] = {}
        for batch in request.batches:
            topic, topic_partition, _, records_count = batch
            data, largest = _in_format(batch, self._level)
            try:
                ensure_record_fits(topic, largest)  # A commit would refuse it.
            except RecordTooLargeError as error:
                answer[topic_partition] = AppendResult(error=error)
                continue
            self._staging.send(topic, topic_partition.partition, data, records_count)
            answer[topic_partition] = AppendResult()
        on_answer(answer)


def _in_format(batch: ProduceBatch, level: int | None) -> MessageSet:
    """Return a batch, down-converted if its topic's message format is V0 or V1."""
    magic = batch.topic.message_magic
    if magic == MAGIC:
        return MessageSet(batch.data, len(batch.data))
    return down_convert(batch.data, magic, level=level)
