"""Batches of producers, which are appended to logs at once, or staged until a job commits.

    LocalLog      transport for plain Python: appends before it answers
    stage         for a Spark task, or a mirror

Producers make V2 batches; for a topic of an older format they are converted here.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.staging import ReplicatedStaging
from spark_kbatch.files import Buffer
from spark_kbatch.model import TopicPartition
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


def stage(staging: ReplicatedStaging, batch: ProduceBatch, *, level: int | None = None) -> None:
    """Write a batch to staging files.

    Args:
        staging: the files.
        batch: of a producer.
        level: the codec's, for topics of an older format.

    Raises:
        RecordTooLargeError: a commit would refuse it.
        KafkaStorageError, OSError: as `ReplicatedStaging.send`.
    """
    topic, topic_partition, _, records_count = batch
    data, largest = _in_format(batch, level)
    ensure_record_fits(topic, largest)
    staging.send(topic, topic_partition.partition, data, records_count)


def _in_format(batch: ProduceBatch, level: int | None) -> MessageSet:
    """Return a batch, down-converted if its topic's message format is V0 or V1."""
    magic = batch.topic.message_magic
    if magic == MAGIC:
        return MessageSet(batch.data, len(batch.data))
    return down_convert(batch.data, magic, level=level)
