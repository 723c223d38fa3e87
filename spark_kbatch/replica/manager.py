"""The logs of a cluster by topic and partition: creating topics, fetching, keeping brokers out.

Lock order (see `locks.py`): commit, metadata, partitions by (topic, partition).

Easily broken:
- A state that is read may be behind a commit that is decided and not yet flipped. Every reader
  goes through the function given as `states`, which looks for one; only writers, who hold the
  partition's lock and have rolled forward, read a log's own state.
- A topic exists once its JSON file does: the logs are made before it.
- Whoever writes into the log dir holds its `.lock` shared, so no broker starts on it meanwhile.

Source: Kafka core/.../server/ReplicaManager.scala.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias

from spark_kbatch.config import Topic, TopicConfig, ensure_valid_topic
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.log.checkpoints import random_id
from spark_kbatch.log.files import Files
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import LogOffsets, TopicPartition
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.locks import Locks
from spark_kbatch.replica.metadata import Metadata

States: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogState]]


class ReplicaManager:
    """All partitions of one cluster, for one process. Thread-safe."""

    def __init__(self, files: Files, metadata: Metadata, locks: Locks) -> None:
        self.files, self.metadata, self.locks = files, metadata, locks
        self._mutex = threading.Lock()  # guards _logs; innermost
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartitionError: no such topic, or fewer partitions.
        """
        with self._mutex:
            log = self._logs.get(topic_partition)
        if log is None:
            topic = self.metadata.topic(topic_partition.topic)
            if not 0 <= topic_partition.partition < topic.partitions:
                raise UnknownTopicOrPartitionError(
                    f"partition {topic_partition} does not exist: topic {topic.name!r} has partitions "
                    f"0 to {topic.partitions - 1}"
                )
            log = self._open(topic_partition, topic.config)
            with self._mutex:
                self._logs[topic_partition] = log
        return log

    def _open(self, topic_partition: TopicPartition, config: TopicConfig) -> PartitionLog:
        directory = self.metadata.log_directory(topic_partition)
        return PartitionLog(self.files, directory, topic_partition, config)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order."""
        return [TopicPartition(topic, p) for p in range(self.metadata.topic(topic).partitions)]

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        states: States,
        buffer: bytearray | None = None,
    ) -> tuple[LogRead, LogOffsets]:
        """Whole batches from the one that holds `offset` on, and the log's edges.

        Args:
            max_bytes: the first batch is returned even when it is larger.
            states: answers with the states that count, commits not yet flipped included.
            buffer: used for the result where it is large enough.

        Raises:
            As `PartitionLog.read`.
        """
        state = states([topic_partition])[topic_partition]
        read = self.log(topic_partition).read(state, offset, max_bytes=max_bytes, buffer=buffer)
        return read, log_offsets(state)

    def create_topic(self, name: str, *, partitions: int, config: TopicConfig) -> Topic:
        """The topic, made if it does not exist."""
        ensure_valid_topic(name)
        with self.locks.metadata(), self.writing():
            return self.metadata.find_topic(name) or self.create_topic_locked(
                name, partitions=partitions, config=config
            )

    def create_topic_locked(self, name: str, *, partitions: int, config: TopicConfig) -> Topic:
        """As `create_topic`, of a topic that does not exist; the caller holds the metadata lock."""
        topic = Topic(name, random_id(), partitions, config)
        for partition in range(partitions):
            self._open(TopicPartition(name, partition), config).create(topic.topic_id)
        self.files.flush([self.metadata.broker_dir])
        self.metadata.write_topic(topic)
        return topic

    def writing(self) -> AbstractContextManager[None]:
        """Keeps brokers out of the log dir while this process writes into it.

        Raises:
            LogDirLockedError: a broker is in.
        """
        return self.locks.log_dir(self.metadata.broker_dir)


def log_offsets(state: LogState) -> LogOffsets:
    """The edges that a state records."""
    return LogOffsets(
        state.log_start_offset, state.high_watermark, state.last_stable_offset, state.log_end_offset
    )
