"""The batches of one partition that wait, oldest first."""

from __future__ import annotations

import threading
from collections import deque

from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.batch import ProducerBatch


class PartitionQueue:
    """The queue of one partition, with a number of its own in its accumulator."""

    __slots__ = ("batches", "is_muted", "lock", "number", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, number: int) -> None:
        self.topic_partition, self.number = topic_partition, number
        # Guards batches, and the builder of the last one. It knows who has it, so that after an
        # interrupt that is let go which was taken.
        self.lock = threading.RLock()
        self.batches: deque[ProducerBatch] = deque()
        self.is_muted = False

    def has_full(self) -> bool:
        """Whether the first batch takes nothing more."""
        batches = self.batches
        return len(batches) > 1 or (len(batches) == 1 and batches[0].builder.is_full)
