"""The batches of idempotent producers that a client was refused and may send again.

Invariant: once a client was told that a batch of an idempotent producer failed, in a way that lets it try
again, no later batch of that producer is appended to the partition before this one is.

The log keeps to that where it knows the producer. One that it does not know may begin with any sequence:
its entry may have expired, or its records may have been deleted. Without the invariant:

1. The first batch of a producer is refused, for example because the partition stays locked for too long.
2. The second one, sent before that answer came, is appended as the producer's first.
3. librdkafka concludes that the first one was written too, since one after it was, and tells its
   application so. The record is lost.

A connection is where this is known: a producer has one, whose requests are handled one after the other.
When it ends, the client sends again from the first batch that was not acknowledged.

Source: librdkafka src/rdkafka_request.c, rd_kafka_dr_implicit_ack.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.errors import OutOfOrderSequenceError
from spark_kbatch.files import Buffer
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import (
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    RECORD_BATCH_OVERHEAD,
    SEQUENCE_MAX,
    unpack,
)
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.produce import ProduceRequest

_REFUSED_MAX = 1000  # of a connection; one more ends it, after which its client begins anew


class IdempotentBatch(NamedTuple):
    """What tells a batch of an idempotent producer from its others."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    base_sequence: int


def idempotent_batch(topic_partition: TopicPartition, data: Buffer) -> IdempotentBatch | None:
    """Return what identifies a batch of an idempotent producer; None if it is of another, or too short."""
    if len(data) < RECORD_BATCH_OVERHEAD or data[MAGIC_POSITION] != MAGIC:
        return None
    header = unpack(data)
    if header.producer_id == NO_PRODUCER_ID:
        return None
    return IdempotentBatch(
        topic_partition, header.producer_id, header.producer_epoch, header.base_sequence
    )


class Unwritten:
    """The first batch that each idempotent producer of a connection has to send again, by partition.

    Used by one request at a time. Threads that append to different partitions may call it side by side.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, int], IdempotentBatch] = {}

    @property
    def is_full(self) -> bool:
        """Whether the connection has to end, because it was refused more than is remembered."""
        return len(self._refused) > _REFUSED_MAX

    def error(self, batch: IdempotentBatch) -> OutOfOrderSequenceError | None:
        """Return the error that refuses a batch because one before it is not written; None if none is."""
        refused = self._refused.get(batch[:2])
        if refused is None or not _is_later(batch, refused):
            return None
        return OutOfOrderSequenceError(
            str(batch.topic_partition),
            batch.producer_id,
            refused.base_sequence,
            batch.base_sequence,
        )

    def answered(self, batch: IdempotentBatch, error_code: int) -> None:
        """Remember how a batch is answered, before its client can know."""
        key = batch[:2]
        if not error_code:
            self._refused.pop(key, None)
        elif ErrorCode(error_code).is_retriable:
            refused = self._refused.get(key)
            if refused is None or not _is_later(batch, refused):
                self._refused[key] = batch

    def refused(self, request: ProduceRequest, error_code: int) -> None:
        """Remember that all batches of a request are answered with an error."""
        for topic in request.topics:
            for one in topic.partitions:
                topic_partition = TopicPartition(topic.topic, one.partition)
                batch = idempotent_batch(topic_partition, one.records or b"")
                if batch is not None:
                    self.answered(batch, error_code)


def _is_later(batch: IdempotentBatch, refused: IdempotentBatch) -> bool:
    """Return True if a batch follows another of the same epoch; sequences wrap."""
    if batch.producer_epoch != refused.producer_epoch:
        return False
    distance = (batch.base_sequence - refused.base_sequence) & SEQUENCE_MAX
    return 0 < distance <= SEQUENCE_MAX // 2
