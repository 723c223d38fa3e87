"""Numbers of an idempotent producer: so that a log takes each batch once, and in order.

Each partition counts its records from 0 within a producer id and epoch. A batch keeps its numbers
over retries, and the log answers a repeated one with the offsets of the first. A log remembers five
batches: no more than four are sent behind one that has not ended, answered or not. The first one goes
alone: a log takes any number of a producer that it does not know.

When a batch is lost for good, what comes after it would be out of order for ever: the producer then
takes a new epoch, in which the partition's unfinished batches count from 0 again. But only once it
is sure that no log has them under their old numbers: the partition is unresolved until

    its oldest batch is refused as out of order               so are those behind it: new epoch
    all of them are answered, and the last acknowledged
    number is the one before the next                         the log had the batch: no gap
    likewise, and it is not                                   new epoch

and draws no new batch meanwhile. (Kafka renumbers at once where a batch was refused for good, and may
then write one twice whose answer was lost.)

The sender's thread alone calls this, with or without a queue's lock.

Source: Kafka clients/producer/internals/TransactionManager.java, TxnPartitionEntry.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from spark_kbatch.errors import OutOfOrderSequenceError, RetriableError
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.record.header import increment_sequence

logger = logging.getLogger(__name__)

_EPOCH_MAX = 2**15 - 1
_NONE_ACKED = -1
_BATCHES_REMEMBERED = 5  # by a log


class _Partition:
    """Numbers of one partition."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.next_sequence = 0
        self.last_acked_sequence = _NONE_ACKED
        self.in_flight: list[ProducerBatch] = []  # numbered and not ended, by age
        # First numbers of the last batches, ended or not: one more may be sent behind each.
        self.recent: deque[int] = deque(maxlen=_BATCHES_REMEMBERED - 1)
        self.is_unresolved = False

    def is_next(self, sequence: int) -> bool:
        """Whether it follows the last one that a log has acknowledged."""
        if self.last_acked_sequence == _NONE_ACKED:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)


class Sequences:
    """The numbers of one producer."""

    def __init__(self, new_producer_id: Callable[[], int]) -> None:
        """Set up; `new_producer_id` is called when the first batch needs one."""
        self._new_producer_id = new_producer_id
        self._producer_id, self._epoch = -1, 0
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._to_renumber: set[TopicPartition] = set()

    def prepare(self) -> None:
        """Before anything is drained: have an id, and the epoch that failures ask for.

        Raises:
            KBatchError: no id can be had.
        """
        for topic_partition, partition in self._partitions.items():
            if partition.is_unresolved and not partition.in_flight:
                if not partition.is_next(partition.next_sequence):
                    self._to_renumber.add(topic_partition)
                partition.is_unresolved = False
        if self._producer_id < 0:
            self._producer_id, self._epoch = self._new_producer_id(), 0
        elif self._to_renumber:
            if self._epoch < _EPOCH_MAX:
                self._epoch += 1
            else:
                self._producer_id, self._epoch = self._new_producer_id(), 0
            logger.info("producer %d goes on with epoch %d", self._producer_id, self._epoch)
        for topic_partition in self._to_renumber:
            self._start_over(self._partitions[topic_partition])
        self._to_renumber.clear()

    def may_drain(self, batch: ProducerBatch) -> bool:
        """Whether the first batch of a queue may go now."""
        partition = self._partition(batch.topic_partition)
        if batch.has_sequence:
            # Sent before: those numbered before it go first.
            return not partition.in_flight or partition.in_flight[0] is batch
        if partition.is_unresolved:
            return False
        return not partition.in_flight or (
            not self._is_stale(partition)
            and partition.last_acked_sequence != _NONE_ACKED
            and partition.in_flight[0].base_sequence in partition.recent
        )

    def assign(self, batch: ProducerBatch) -> None:
        """Number a batch that is drained, unless it is."""
        if batch.has_sequence:
            return
        partition = self._partition(batch.topic_partition)
        if self._is_stale(partition):
            self._start_over(partition)
        self._number(partition, batch)
        partition.in_flight.append(batch)

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Take in a batch that came numbered out of a split."""
        if batch.has_sequence:
            partition = self._partition(batch.topic_partition)
            partition.in_flight.append(batch)
            # All lie closely before the next number, and 0 follows the largest.
            end = partition.next_sequence
            partition.in_flight.sort(key=lambda other: (other.base_sequence - end) % 2**31)

    def position(self, batch: ProducerBatch, queue: Sequence[ProducerBatch]) -> int:
        """Where in a queue a batch belongs: numbered ones in the order of their numbers, first."""
        order = {id(other): at for at, other in enumerate(self._in_flight(batch))}
        mine = order.get(id(batch), -1)
        index = 0
        while index < len(queue) and order.get(id(queue[index]), len(order)) < mine:
            index += 1
        return index

    def completed(self, batch: ProducerBatch) -> None:
        """A log has the batch."""
        partition = self._partition(batch.topic_partition)
        last = increment_sequence(batch.base_sequence, batch.records_count - 1)
        if (batch.producer_id, batch.producer_epoch) == (partition.producer_id, partition.epoch):
            acked = partition.last_acked_sequence
            # Answers may come in any order, and numbers begin again behind the largest.
            if acked == _NONE_ACKED or (last - acked) % 2**31 < 2**30:
                partition.last_acked_sequence = last
        self.remove(batch)

    def failed(self, batch: ProducerBatch) -> None:
        """The batch has ended, and a log need not have it."""
        if batch.has_sequence:
            self.remove(batch)
            self._partition(batch.topic_partition).is_unresolved = True

    def remove(self, batch: ProducerBatch) -> None:
        """Forget a batch that has ended or was split."""
        in_flight = self._in_flight(batch)
        if batch in in_flight:
            in_flight.remove(batch)

    def can_retry(self, batch: ProducerBatch, answer: AppendResult) -> bool:
        """Whether the batch may be sent again after an answer with an error."""
        if isinstance(answer.error, OutOfOrderSequenceError):
            partition = self._partition(batch.topic_partition)
            # What is missing may be on its way again; if nothing is, only a new epoch helps. Older
            # batches have to end first: a log may have them.
            is_oldest = partition.in_flight[0] is batch
            expected = partition.is_next(batch.base_sequence) and not batch.sequence_was_reset
            if is_oldest and (partition.is_unresolved or expected):
                self._to_renumber.add(batch.topic_partition)
            return True
        return isinstance(answer.error, RetriableError)

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

    def _number(self, partition: _Partition, batch: ProducerBatch) -> None:
        batch.set_producer_state(partition.producer_id, partition.epoch, partition.next_sequence)
        partition.recent.append(batch.base_sequence)
        partition.next_sequence = increment_sequence(partition.next_sequence, batch.records_count)
