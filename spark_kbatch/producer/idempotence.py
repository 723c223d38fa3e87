"""Sequence numbers of an idempotent producer, by which a log takes each batch once, and in order.

Each partition counts its records from 0 within a producer id and epoch. A batch keeps its numbers over
retries, and the log answers a retry of a written batch with the offsets of the first. A log remembers
five batches: so at most four are sent after one that has not ended, whether answered or not. The first
batch is sent alone: a log accepts any number from a producer that it does not know. A run, which a log
takes as a whole and knows again by its last batch, has any number of batches, whose numbers follow each other,
and starts only when none is in flight before it.

When a batch fails for good, all later ones would be out of order. The producer then takes a new epoch, in
which the partition's unfinished batches count from 0 again, but only once it is sure that no log has
them under their old numbers. Until then the partition is unresolved, and no new batch of it is drained:

    its oldest batch is refused as out of order               so are those after it: new epoch
    all are answered, and the next number follows
    the last acknowledged one                                 the log had the batch: no gap
    all are answered, and it does not                         new epoch
    a broker does not know the producer, or its epoch         so are those after it: new epoch

(Kafka renumbers at once when a batch fails for good. It may then write a batch twice whose answer was
lost.)

A transactional producer gets its id and epoch from its coordinator, which fences others by them. So it takes
no new epoch: where the table says so, the batch fails, and nothing more of its partition is sent. The
transaction can only be aborted.

Only the sender's thread calls this, with or without a queue's lock. When a producer has ended, the next one
of the process may go on with its id and numbers (`passed_on`), so that short tasks do not take an id each.

Source: Kafka clients/producer/internals/TransactionManager.java, TxnPartitionEntry.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    RetriableError,
    UnknownProducerIdError,
)
from spark_kbatch.model import BATCHES_REMEMBERED, AppendResult, TopicPartition
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.record.header import increment_sequence

logger = logging.getLogger(__name__)

_EPOCH_MAX = 2**15 - 1
_NONE_ACKED = -1


class _Partition:
    """The sequence numbers of one partition."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.next_sequence = 0
        self.last_acked_sequence = _NONE_ACKED
        self.in_flight: list[ProducerBatch] = []  # numbered and not ended, by age
        # First numbers of the last batches, ended or not: one more may be sent after each of them.
        self.recent: deque[int] = deque(maxlen=BATCHES_REMEMBERED - 1)
        self.is_unresolved = False

    def is_next(self, sequence: int) -> bool:
        """Return True if a sequence number directly follows the last acknowledged one."""
        if self.last_acked_sequence == _NONE_ACKED:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)


class Sequences:
    """The sequence numbers of one producer."""

    def __init__(
        self, new_producer_id: Callable[[], int], *, transactional_epoch: int | None = None
    ) -> None:
        """Set up; `new_producer_id` is called when the first batch needs one.

        A transactional producer keeps its epoch.
        """
        self._new_producer_id, self._transactional_epoch = new_producer_id, transactional_epoch
        self._producer_id, self._epoch = -1, 0
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unresolved: set[TopicPartition] = set()  # at least those that are
        self._to_renumber: set[TopicPartition] = set()

    def passed_on(self, new_producer_id: Callable[[], int]) -> Sequences:
        """Return these sequence numbers for the next producer, which goes on with the same producer id.

        Do not use this object any more.

        Batches that have not ended may have been written. So their partitions get a new epoch.
        """
        following = Sequences(new_producer_id)
        following._producer_id, following._epoch = self._producer_id, self._epoch
        following._partitions = self._partitions
        following._unresolved, following._to_renumber = self._unresolved, self._to_renumber
        for topic_partition, partition in self._partitions.items():
            if partition.in_flight:
                partition.in_flight.clear()
                following._set_unresolved(topic_partition)
        return following

    @property
    def has_id(self) -> bool:
        """Whether there is a producer id, which an earlier producer may have left."""
        return self._producer_id >= 0

    def forget_id(self) -> None:
        """Drop the producer id, which belongs to another cluster, so that the next batch gets a new one."""
        self._producer_id = -1
        kept = {tp: one for tp, one in self._partitions.items() if one.in_flight}
        self._partitions = kept
        self._unresolved &= kept.keys()
        self._to_renumber &= kept.keys()

    def prepare(self) -> None:
        """Get a producer id, or a new epoch if failures require one; call before draining.

        Raises:
            KBatchError: no producer id could be allocated.
        """
        for topic_partition in [*self._unresolved]:
            partition = self._partitions[topic_partition]
            if partition.is_unresolved and not partition.in_flight:
                if not partition.is_next(partition.next_sequence):
                    if self._transactional_epoch is not None:
                        continue
                    self._to_renumber.add(topic_partition)
                partition.is_unresolved = False
            if not partition.is_unresolved:
                self._unresolved.discard(topic_partition)
        if self._producer_id < 0:
            self._producer_id = self._new_producer_id()
            self._epoch = self._transactional_epoch or 0
        elif self._to_renumber:
            if self._epoch < _EPOCH_MAX:
                self._epoch += 1
            else:
                self._producer_id, self._epoch = self._new_producer_id(), 0
            logger.info("producer %d continues with epoch %d", self._producer_id, self._epoch)
        for topic_partition in self._to_renumber:
            self._start_over(self._partitions[topic_partition])
        self._to_renumber.clear()

    def may_drain(self, batch: ProducerBatch) -> bool:
        """Return True if the order of sequence numbers lets a queue's first batch be sent now."""
        partition = self._partition(batch.topic_partition)
        if batch.has_sequence:
            # A retry: batches with earlier numbers go first.
            return not partition.in_flight or partition.in_flight[0] is batch
        if partition.is_unresolved:
            return False
        if not partition.in_flight:
            return True
        is_run = len(batch.builder.parts) > 1
        return (
            not is_run
            and not self._is_stale(partition)
            and partition.last_acked_sequence != _NONE_ACKED
            and partition.in_flight[0].base_sequence in partition.recent
        )

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Return True if the batch is the oldest in flight in its partition."""
        return self._in_flight(batch)[0] is batch

    def follows(self, last: ProducerBatch, batch: ProducerBatch) -> bool:
        """Return True if no number lies between those of two batches: what has them may be in flight."""
        end = increment_sequence(last.base_sequence, last.records_count)
        if batch.has_sequence:
            return end == batch.base_sequence
        partition = self._partition(batch.topic_partition)
        return end == partition.next_sequence and not self._is_stale(partition)

    def assign(self, batch: ProducerBatch) -> None:
        """Assign sequence numbers to a drained batch that has none yet."""
        if batch.has_sequence:
            return
        partition = self._partition(batch.topic_partition)
        if self._is_stale(partition):
            self._start_over(partition)
        self._number(partition, batch)
        partition.in_flight.append(batch)

    def add_in_flight(self, batches: Sequence[ProducerBatch]) -> None:
        """Add the numbered batches that one was split into to their partition's batches in flight."""
        if batches[0].has_sequence:
            partition = self._partition(batches[0].topic_partition)
            partition.in_flight.extend(batches)
            # All numbers are shortly before the next one; after the largest number comes 0.
            end = partition.next_sequence
            partition.in_flight.sort(key=lambda other: (other.base_sequence - end) % 2**31)

    def position(self, batch: ProducerBatch, queue: Sequence[ProducerBatch]) -> int:
        """Return where to insert a batch in a queue, so that sequence numbers stay in order at its front."""
        order = {id(other): at for at, other in enumerate(self._in_flight(batch))}
        mine = order.get(id(batch), -1)
        index = 0
        while index < len(queue) and order.get(id(queue[index]), len(order)) < mine:
            index += 1
        return index

    def completed(self, batch: ProducerBatch) -> None:
        """Record that the log has acknowledged the batch, which advances the last acknowledged number."""
        partition = self._partition(batch.topic_partition)
        last = increment_sequence(batch.base_sequence, batch.records_count - 1)
        if (batch.producer_id, batch.producer_epoch) == (partition.producer_id, partition.epoch):
            acked = partition.last_acked_sequence
            # Answers may come in any order, and numbers wrap around.
            if acked == _NONE_ACKED or (last - acked) % 2**31 < 2**30:
                partition.last_acked_sequence = last
        self.remove(batch)

    def failed(self, batch: ProducerBatch) -> None:
        """Record that the batch has failed for good, and that the log may lack its sequence numbers."""
        if batch.has_sequence:
            self.remove(batch)
            self._set_unresolved(batch.topic_partition)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that has ended or was split from its partition's batches in flight."""
        in_flight = self._in_flight(batch)
        if batch in in_flight:
            in_flight.remove(batch)

    def can_retry(self, batch: ProducerBatch, answer: AppendResult) -> bool:
        """Return True if the batch may be retried after this error."""
        partition = self._partition(batch.topic_partition)
        is_oldest, needs_epoch = partition.in_flight[:1] == [batch], False
        if isinstance(answer.error, (InvalidProducerEpochError, UnknownProducerIdError)):
            # Those after it get the same answer, and are renumbered with it.
            needs_epoch = True
        elif isinstance(answer.error, OutOfOrderSequenceError):
            # The missing batch may be in flight; if it is not, only a new epoch helps. Older batches
            # must end first: a log may have them.
            expected = partition.is_next(batch.base_sequence) and not batch.sequence_was_reset
            needs_epoch = is_oldest and (partition.is_unresolved or expected)
        elif not isinstance(answer.error, RetriableError):
            return False
        if needs_epoch and self._transactional_epoch is not None:
            return False
        if needs_epoch and is_oldest:
            self._to_renumber.add(batch.topic_partition)
        return True

    def _set_unresolved(self, topic_partition: TopicPartition) -> None:
        self._partition(topic_partition).is_unresolved = True
        self._unresolved.add(topic_partition)

    def _in_flight(self, batch: ProducerBatch) -> list[ProducerBatch]:
        return self._partition(batch.topic_partition).in_flight

    def _partition(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._partitions[topic_partition] = _Partition(
                self._producer_id, self._epoch
            )
        return partition

    def _is_stale(self, partition: _Partition) -> bool:
        return (partition.producer_id, partition.epoch) != (self._producer_id, self._epoch)

    def _start_over(self, partition: _Partition) -> None:
        partition.producer_id, partition.epoch = self._producer_id, self._epoch
        partition.next_sequence, partition.last_acked_sequence = 0, _NONE_ACKED
        partition.is_unresolved = False
        partition.recent.clear()
        for batch in partition.in_flight:
            self._number(partition, batch)
            batch.is_in_doubt = False  # no log has it

    def _number(self, partition: _Partition, batch: ProducerBatch) -> None:
        batch.set_producer_state(partition.producer_id, partition.epoch, partition.next_sequence)
        # Those that were built together are several batches to the log, which remembers so many.
        partition.recent.extend(
            [batch.base_sequence, *[_NONE_ACKED] * (len(batch.builder.parts) - 1)]
        )
        partition.next_sequence = increment_sequence(partition.next_sequence, batch.records_count)
