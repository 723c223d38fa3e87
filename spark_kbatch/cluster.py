"""Wires the parts together; the one object that a face holds.

with spark_kbatch.open("PATH", create=True) as cluster:
cluster.create_topic("events", partitions=4)
for arrow_batch in cluster.read("events"):
...
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from spark_kbatch import consumer
from spark_kbatch.config import INTERNAL_PREFIX, ReadOptions, Topic, TopicConfig, WriteOptions
from spark_kbatch.errors import ConfigError
from spark_kbatch.log.files import Files
from spark_kbatch.model import EARLIEST, LATEST, LogOffsets, OffsetRange, TopicPartition
from spark_kbatch.producer.accumulator import RecordAccumulator
from spark_kbatch.producer.partitioner import Partitioner
from spark_kbatch.producer.sender import Sender
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.locks import Locks
from spark_kbatch.replica.manager import ReplicaManager, log_offsets
from spark_kbatch.replica.metadata import Metadata, absolute_path
from spark_kbatch.transaction import TRANSACTION_STATE_TOPIC
from spark_kbatch.transaction.coordinator import Coordinator
from spark_kbatch.transaction.snapshot import Snapshots
from spark_kbatch.transaction.staging import Staging

# One record per commit would pass max.message.bytes with a few thousand partitions.
_TRANSACTION_STATE_CONFIG = TopicConfig(max_message_bytes=2**31 - 1)


def now_ms() -> int:
    """The one clock; everything below takes it as an argument."""
    return time.time_ns() // 1_000_000


class PartitionInfo(NamedTuple):
    """One partition, as it stood at one moment."""

    topic_partition: TopicPartition
    offsets: LogOffsets
    size_in_bytes: int


class Cluster:
    """One PATH. Thread-safe; keeps no file open."""

    def __init__(self, path: str, *, create: bool = False, files: Files | None = None) -> None:
        """Open, and with `create` make it where there is none.

        Raises:
            ConfigError: PATH holds no cluster, or none can be made there; says why.
        """
        files = files or Files()
        self.metadata = Metadata(files, absolute_path(path))
        self.files, self.path = files, self.metadata.path
        self.locks = Locks(files, self.metadata.locks_dir)
        self.manager = ReplicaManager(files, self.metadata, self.locks)
        self.snapshots = Snapshots(self.manager, now_ms)
        if create and not self.metadata.exists():
            self._create()
        self.metadata.ensure_exists()

    def _create(self) -> None:
        self.metadata.ensure_creatable()
        with self.locks.metadata():
            if self.metadata.exists():
                return
            self.metadata.make_dirs()
            with self.manager.writing():
                self.manager.create_topic_locked(
                    TRANSACTION_STATE_TOPIC, partitions=1, config=_TRANSACTION_STATE_CONFIG
                )
            self.metadata.create()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held between calls."""

    # Topics.

    def topics(self) -> list[Topic]:
        """All topics but the cluster's own, by name."""
        return [self.metadata.topic(name) for name in self.metadata.topic_names()]

    def create_topic(
        self, name: str, *, partitions: int = 1, config: TopicConfig | None = None
    ) -> Topic:
        """Make a topic.

        Raises:
            ConfigError: it exists already, is the cluster's own, or has no partitions.
            InvalidTopicError: Kafka would refuse the name.
        """
        _ensure_not_internal(name)
        if partitions < 1:
            raise ConfigError(f"partitions is {partitions}; a topic has 1 or more")
        if self.metadata.find_topic(name) is not None:
            raise ConfigError(f"topic {name!r} exists already")
        return self.manager.create_topic(
            name, partitions=partitions, config=config or TopicConfig()
        )

    def topic_for(self, name: str, options: WriteOptions) -> Topic:
        """The topic that a write goes to, made by its options where it does not exist.

        Raises:
            ConfigError: it exists with other settings than the options name; also for a topic of
                the cluster's own.
        """
        _ensure_not_internal(name)
        found = self.metadata.find_topic(name)
        default = TopicConfig()
        wanted = TopicConfig(
            max_message_bytes=options.max_message_bytes or default.max_message_bytes,
            segment_bytes=options.segment_bytes or default.segment_bytes,
        )
        topic = found or self.manager.create_topic(
            name, partitions=options.num_partitions or 1, config=wanted
        )
        for key, given, existing in (
            ("num.partitions", options.num_partitions, topic.partitions),
            ("max.message.bytes", options.max_message_bytes, topic.config.max_message_bytes),
            ("segment.bytes", options.segment_bytes, topic.config.segment_bytes),
        ):
            if given is not None and given != existing:
                raise ConfigError(
                    f"option {key!r} is {given}, but topic {name!r} exists with {existing}; leave the "
                    "option out, or write to a new topic"
                )
        return topic

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Edges and sizes of all partitions of these topics, of one moment."""
        partitions = [tp for topic in topics for tp in self.manager.partitions(topic)]
        states = self.snapshots.states(partitions)
        return [
            PartitionInfo(tp, log_offsets(state), self.manager.log(tp).size_in_bytes(state))
            for tp, state in states.items()
        ]

    # Reading.

    def edges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
        """Of one moment."""
        return {tp: log_offsets(state) for tp, state in self.snapshots.states(partitions).items()}

    def plan(self, options: ReadOptions) -> list[OffsetRange]:
        """What a read has to go over; raises as `consumer.plan` and for unknown topics."""
        return consumer.plan(options, self.manager.partitions, self.edges)

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        buffer: bytearray | None = None,
    ) -> tuple[LogRead, LogOffsets]:
        """The `Fetcher` of readers in this process."""
        return self.manager.fetch(
            topic_partition,
            offset,
            max_bytes=max_bytes,
            states=self.snapshots.states,
            buffer=buffer,
        )

    def read_range(self, wanted: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As `consumer.read_range`."""
        return consumer.read_range(self, wanted, columns)

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | str = "earliest",
        end: int | str = "latest",
        columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    ) -> Iterator[pa.RecordBatch]:
        """The records of a topic, partition by partition, in offset order within each.

        Args:
            partitions: which; all by default.
            start: offset, or "earliest"; inclusive.
            end: offset, or "latest"; exclusive.

        Returns:
            Batches of the given columns of `RECORD_SCHEMA`, behind int32 `partition`.
        """
        for word, bound, name in (("earliest", start, "start"), ("latest", end, "end")):
            if (isinstance(bound, str) and bound != word) or (isinstance(bound, int) and bound < 0):
                raise ConfigError(
                    f"{name} is {bound!r}; accepted: {word!r}, or an offset from 0 on"
                )
        all_of_topic = self.manager.partitions(topic)
        chosen = (
            all_of_topic if partitions is None else [TopicPartition(topic, p) for p in partitions]
        )
        ranges = [
            OffsetRange(
                tp,
                EARLIEST if isinstance(start, str) else start,
                LATEST if isinstance(end, str) else end,
            )
            for tp in chosen
        ]
        for tp, (first, last) in consumer.resolve(ranges, self.edges(chosen)).items():
            number = pa.scalar(tp.partition, pa.int32())
            for batch in self.read_range(OffsetRange(tp, first, last), columns):
                yield batch.add_column(0, "partition", pa.repeat(number, batch.num_rows))

    # Writing.

    def coordinator(self, options: WriteOptions) -> Coordinator:
        """Who publishes what tasks stage."""
        return Coordinator(
            self.manager, now_ms, adopt_min_bytes=options.adopt_min_bytes, flush=options.flush
        )

    def task_producer(self, transaction: str, options: WriteOptions) -> TaskProducer:
        """What one task of a job writes through."""
        return TaskProducer(self, transaction, options)


def _ensure_not_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise ConfigError(f"topic {name!r} is the cluster's own; write to another")


class TaskProducer:
    """Partitioner, accumulator and sender of one task, whose transport is staging."""

    def __init__(self, cluster: Cluster, transaction: str, options: WriteOptions) -> None:
        self.staging = Staging(
            cluster.files,
            cluster.metadata.staging_dir,
            transaction,
            # An eighth, so that little of what could be renamed has to be copied.
            shared_bytes_max=options.adopt_min_bytes // 8,
            flush=options.flush,
        )
        sender = Sender(self.staging, compression_type=options.compression_type)
        self.accumulator = RecordAccumulator(
            sender, batch_size=options.batch_size, buffer_memory=options.buffer_memory
        )
        self.partitioner = Partitioner(
            lambda name: cluster.topic_for(name, options),
            switch_bytes=options.batch_size,
            seed=uuid.uuid4().int,
        )
