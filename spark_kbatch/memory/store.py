"""A store of topics in the memory of this process: batches in lists, behind one lock.

It has what a place needs and nothing else: no replicas, retention, consumer groups or jobs of Spark, whose
tasks run in other processes. Batches are those of a log, V2, with their offsets.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn, TypeAlias

from spark_kbatch.clock import now_ms
from spark_kbatch.consumer.same_topic import Closed, OwnSource
from spark_kbatch.errors import (
    ConfigError,
    KBatchError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    MAX_TIMESTAMP,
    AppendResult,
    LogOffsets,
    OffsetAndTimestamp,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    altered,
    ensure_more_partitions,
    ensure_not_internal,
    ensure_valid_topic,
)
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.producer import Producer
from spark_kbatch.record.header import MAGIC, BatchHeader, LogRead, assign, unpack
from spark_kbatch.record.scalar import times
from spark_kbatch.store.catalog import OwnCatalog
from spark_kbatch.store.transport import Answer, SendRequest

_Batch: TypeAlias = tuple[BatchHeader, bytes]


@dataclass
class _Log:
    """One partition: its batches, and where it starts."""

    batches: list[_Batch] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else self.start

    @property
    def edges(self) -> LogOffsets:
        return LogOffsets(self.start, self.end, self.end, self.end)

    def at(self, offset: int) -> int:
        """Return the number of the first batch that ends after an offset."""
        return bisect.bisect_right(self.batches, offset, key=lambda one: one[0].last_offset + 1)


@dataclass
class _Held:
    """A topic with its partitions."""

    topic: Topic
    logs: list[_Log]


class _Place:
    """The topics at one address; all stores of the process at that address share it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards everything here
        self.topics: dict[str, _Held] = {}
        self.ids = itertools.count()  # of topics and producers


_places: dict[str, _Place] = {}


class MemoryView(NamedTuple):
    """A partition as it was at one moment; a `LogView`."""

    offsets: LogOffsets
    batches: list[_Batch]

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with that time or a later one, or None."""
        found: OffsetAndTimestamp | None = None
        for header, data in self.batches:
            for offset, time_ms in times(data, 0, header):
                if not self.offsets.log_start_offset <= offset < end_offset:
                    continue
                if timestamp_ms != MAX_TIMESTAMP and time_ms >= timestamp_ms:
                    return OffsetAndTimestamp(offset, time_ms)
                if timestamp_ms == MAX_TIMESTAMP and (found is None or time_ms > found.timestamp):
                    found = OffsetAndTimestamp(offset, time_ms)
        return found

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return the first offset of that time or a later one; `end_offset` if there is none."""
        found = self.offset_for_timestamp(timestamp_ms, end_offset=end_offset)
        return end_offset if found is None else found.offset

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that split [start_offset, end_offset) into pieces of about that size."""
        points, size = list[int](), 0
        for header, data in self._between(start_offset, end_offset):
            if size >= piece_bytes:
                points.append(header.base_offset)
                size = 0
            size += len(data)
        return points

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Return the size of the batches with offsets of a range."""
        return sum(len(data) for _, data in self._between(start_offset, end_offset))

    def _between(self, start_offset: int, end_offset: int) -> Iterator[_Batch]:
        for batch in self.batches:
            if start_offset < batch[0].next_offset and batch[0].base_offset < end_offset:
                yield batch


class MemoryStore(OwnSource, OwnCatalog):
    """The topics at one address in memory; a `store.Store`, and its own source and catalog."""

    groups = commits = disks = upkeep = server = ledger = None
    is_remote = False
    cluster_id = ""
    why_not = "it is in the memory of this process, and only for tests"

    def __init__(self, address: str, *, create: bool = False) -> None:
        """Open the place at `address`, "memory://NAME".

        Raises:
            ConfigError: there is none, and none is to be created.
        """
        if create:
            _places.setdefault(address, _Place())
        if address not in _places:
            raise ConfigError(
                f"nothing is at {address} in this process; create it with spark_kbatch.open({address!r}, create=True)"
            )
        self.address = address
        self.catalog = self
        self._place = _places[address]

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> NoReturn:
        """Raise ConfigError: the tasks of a job run in other processes."""
        raise ConfigError(f"Spark cannot write to {self.address}: {self.why_not}; give it a folder")

    def close(self) -> None:
        """Make every later call raise ClosedError; the topics stay."""
        setattr(self, "_place", Closed(self.address))  # noqa: B010  of another type

    # The catalog.

    def topics(self, *, internal: bool) -> list[Topic]:
        """Return all topics, sorted by name; none is internal."""
        return [one.topic for _, one in sorted(self._place.topics.items())]

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if there is none."""
        found = self._place.topics.get(name)
        return None if found is None else found.topic

    def plan(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: TopicConfig,
        given: Iterable[str],
    ) -> Topic:
        """Return a topic as it would be created."""
        ensure_valid_topic(name)
        if replication_factor != 1:
            raise ConfigError("replication_factor is more than 1; in memory there is one copy")
        topic_id = f"{next(self._place.ids)}"
        return Topic(name, topic_id, partitions, _supported(config), given=frozenset(given))

    def create(
        self, planned: Topic, first_offsets: Sequence[int] = (), *, level: int = logging.WARNING
    ) -> Topic:
        """Create a topic, which is not logged."""
        logs = [_Log(start=start) for start in first_offsets or [0] * planned.partitions]
        with self._place.lock:
            return self._place.topics.setdefault(planned.name, _Held(planned, logs)).topic

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records."""
        ensure_not_internal(name)
        with self._place.lock:
            found = self._find(name)
            del self._place.topics[name]
            return found.topic

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic."""
        ensure_not_internal(name)
        with self._place.lock:
            found = self._find(name)
            ensure_more_partitions(name, found.topic.partitions, total_count)
            found.logs += [_Log() for _ in range(total_count - len(found.logs))]
            found.topic = replace(found.topic, partitions=total_count)
            return found.topic

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic."""
        ensure_not_internal(name)
        with self._place.lock:
            found = self._find(name)
            after = altered(found.topic, changes)
            _supported(after.known_config)
            found.topic = after
            return after

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset; batches of which a record stays are kept."""
        with self._place.lock:
            logs = {tp: self._log(tp) for tp in below}
            for tp, offset in below.items():
                if offset > logs[tp].end:
                    raise OffsetOutOfRangeError(str(tp), offset, logs[tp].start, logs[tp].end)
            for tp, offset in below.items():
                log = logs[tp]
                end = log.end
                log.start = max(log.start, end if offset < 0 else offset)
                kept = log.batches[log.at(log.start) :]
                log.batches = kept if kept or log.start == end else log.batches
            return {tp: log.start for tp, log in logs.items()}

    # The source.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._place.topics)

    def topic(self, name: str) -> Topic:
        """Return a topic; raises UnknownTopicOrPartitionError, which names the nearest."""
        return self._find(name).topic

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MemoryView]:
        """Return views of these partitions, all as of one moment."""
        with self._place.lock:
            logs = {tp: self._log(tp) for tp in partitions}
            return {tp: MemoryView(log.edges, [*log.batches]) for tp, log in logs.items()}

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics."""
        views = self.views(tp for topic in topics for tp in self.partitions(topic))
        return [
            PartitionInfo(tp, view.offsets, sum(len(data) for _, data in view.batches))
            for tp, view in views.items()
        ]

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches from an offset on."""
        with self._place.lock:
            log = self._log(topic_partition)
            edges = log.edges
            if not edges.log_start_offset <= asked.offset <= edges.log_end_offset:
                raise OffsetOutOfRangeError(
                    str(topic_partition), asked.offset, edges.log_start_offset, edges.high_watermark
                )
            batches = log.batches[log.at(asked.offset) :]
        taken, found = bytearray(), list[tuple[int, BatchHeader]]()
        for header, data in batches:
            is_first_of_any_size = not found and asked.min_one_batch
            if len(taken) + len(data) > asked.max_bytes and not is_first_of_any_size:
                break
            found.append((len(taken), header))
            taken += data
        return LogRead("", 0, memoryview(taken), found), edges

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, whose first record for a topic creates that by default."""
        chosen = parse_producer_options(config, options)
        if chosen.transactional_id is not None:
            raise ConfigError(
                f"option 'transactional.id' is {chosen.transactional_id!r}; {self.address} has no transactions: "
                "leave it out, or write to a folder"
            )
        return Producer(
            chosen,
            self,
            self.finder(create=chosen.auto_create_topics_enable),
            now_ms,
            new_producer_id=self._place.ids.__next__,
        )

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Append every batch of a producer's request; a `Transport`."""
        answer = dict[TopicPartition, AppendResult]()
        with self._place.lock:
            for batch in request.batches:
                topic_partition, data = batch.topic_partition, bytearray(batch.data)
                try:
                    log = self._log_to_append(batch.topic, topic_partition, len(data))
                except KBatchError as error:
                    answer[topic_partition] = AppendResult(error=error)
                    continue
                offset = log.end
                assign(data, 0, base_offset=offset, leader_epoch=0)
                log.batches.append((unpack(data), bytes(data)))
                answer[topic_partition] = AppendResult(offset)
        on_answer(answer)

    def _log_to_append(self, topic: Topic, topic_partition: TopicPartition, size: int) -> _Log:
        now = self._find(topic.name).topic
        if now.topic_id != topic.topic_id:
            raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was created again")
        if size > now.batch_bytes_max:
            limit = now.batch_bytes_max
            raise RecordTooLargeError("a batch", size, limit, "max.message.bytes", topic.name)
        return self._log(topic_partition)

    def _find(self, name: str) -> _Held:
        topics = self._place.topics
        found = topics.get(name)
        if found is None:
            has = ", ".join(sorted(topics)) or "none"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist in {self.address}, which has {has}"
            )
        return found

    def _log(self, topic_partition: TopicPartition) -> _Log:
        logs = self._find(topic_partition.topic).logs
        if not 0 <= topic_partition.partition < len(logs):
            raise UnknownTopicOrPartitionError(
                f"partition {topic_partition} does not exist: topic {topic_partition.topic!r} has "
                f"partitions 0 to {len(logs) - 1}"
            )
        return logs[topic_partition.partition]


def _supported(config: TopicConfig) -> TopicConfig:
    if config.message_magic < MAGIC or config.is_log_append_time:
        raise ConfigError("in memory there are no older message formats, and no LogAppendTime")
    return config
