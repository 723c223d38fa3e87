"""The batches of idempotent producers that a client was refused, which go before those that follow.

Invariant: once a client was told that a batch of an idempotent producer failed, in a way that lets it try
again, no later batch of that producer is appended to the partition before this one is. Those that follow
over the same connection get the same error, so that the client sends all of them again, in order.

The log keeps the order only where it knows the producer. One that it does not know may begin with any
sequence: its entry may have expired, or its records may have been deleted. Without the invariant:

1. The first batch of a producer is refused, for example because the partition stays locked for too long.
2. The second one, sent before that answer came, is appended as the producer's first.
3. librdkafka concludes that the first one was written too, since one after it was, and tells its
   application so. The record is lost.

The log's error, OUT_OF_ORDER_SEQUENCE_NUMBER, would not do: librdkafka then takes a new epoch, in which the
first batch is written twice if an attempt over an earlier connection is in the log after all.

A connection is where this is known: a producer has one, whose requests are handled one after the other.
When it ends, the client sends again from the first batch that was not acknowledged.

Source: librdkafka src/rdkafka_request.c, rd_kafka_dr_implicit_ack, rd_kafka_handle_idempotent_Produce_error.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.errors import KBatchError
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
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import ProduceRequest

_REFUSED_MAX = 1000  # of a connection; one more ends it, and its client starts over


class IdempotentBatch(NamedTuple):
    """A batch of an idempotent producer, by what it is known by."""

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


class UnwrittenBatches:
    """The first batch that each idempotent producer of a connection has to send again, by partition.

    Used by one request at a time. Threads that append to different partitions may call it side by side.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, int], tuple[IdempotentBatch, int]] = {}

    @property
    def is_full(self) -> bool:
        """Whether the connection has to end, because it was refused more than is remembered."""
        return len(self._refused) > _REFUSED_MAX

    def error(self, batch: IdempotentBatch) -> KBatchError | None:
        """Return the error of a batch before this one that is not written; None if there is none."""
        found = self._refused.get(batch[:2])
        if found is None or not _is_later(batch, found[0]):
            return None
        refused, error_code = found
        return error_of(
            error_code,
            f"nothing is written: the batch of producer {refused.producer_id} with sequence "
            f"{refused.base_sequence}, which comes first in {refused.topic_partition}, got this error",
        )

    def answered(self, batch: IdempotentBatch, error_code: int) -> None:
        """Remember how a batch is answered, before its client can know."""
        key = batch[:2]
        if not error_code:
            self._refused.pop(key, None)
        elif ErrorCode(error_code).is_retriable:
            found = self._refused.get(key)
            if found is None or not _is_later(batch, found[0]):
                self._refused[key] = batch, error_code

    def refused(self, request: ProduceRequest, error_code: int) -> None:
        """Remember that all batches of a request are answered with an error."""
        for topic in request.topic_data:
            for one in topic.partition_data:
                topic_partition = TopicPartition(topic.name, one.index)
                batch = idempotent_batch(topic_partition, one.records or b"")
                if batch is not None:
                    self.answered(batch, error_code)


def _is_later(batch: IdempotentBatch, refused: IdempotentBatch) -> bool:
    """Return True if a batch follows another of the same epoch; sequences wrap."""
    if batch.producer_epoch != refused.producer_epoch:
        return False
    distance = (batch.base_sequence - refused.base_sequence) & SEQUENCE_MAX
    return 0 < distance <= SEQUENCE_MAX // 2
