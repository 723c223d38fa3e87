"""Offset ranges: planned from what was asked, fetched, decoded.

The bounds EARLIEST and LATEST stay in a plan as they are and are looked up when the range is read,
so that a plan which is used again sees what was written since. Offsets that the user gave are
checked against the log when they are planned.

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetReaderAdmin.scala, KafkaDataConsumer.scala.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from spark_kbatch.config import ReadOptions, Topic, parse_isolation_level
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    TopicPartition,
)
from spark_kbatch.record import codec
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    LogRead,
    ensure_valid,
)

FETCH_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 4 * 1024 * 1024


class Fetcher(Protocol):
    """Where batches come from."""

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        buffer: bytearray | None,
        isolation: IsolationLevel,
    ) -> tuple[LogRead, LogOffsets]:
        """Whole batches from the first that holds `offset` or a later one, and the log's edges.

        Nothing at or above the end for this isolation level, and where compaction left no batch up
        to it. Where committed data is asked for, with the aborted transactions among the batches.
        """


class TopicReader(abc.ABC):
    """The topics at one PATH; what PATH is decides which there are and where batches come from.

    Thread-safe; keeps no file open.
    """

    path: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027  there is nothing to do, for any of them
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held between calls."""

    @abc.abstractmethod
    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Sorted; internal topics where asked."""

    @abc.abstractmethod
    def topic(self, name: str) -> Topic:
        """The topic.

        Raises:
            UnknownTopicOrPartitionError: names those that exist.
        """

    @abc.abstractmethod
    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order; raises as `topic`."""

    @abc.abstractmethod
    def edges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
        """Where these logs begin and end."""

    @abc.abstractmethod
    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Edges and sizes of all partitions of these topics."""

    @abc.abstractmethod
    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        buffer: bytearray | None = None,
        isolation: IsolationLevel,
    ) -> tuple[LogRead, LogOffsets]:
        """As `Fetcher.fetch`."""

    @abc.abstractmethod
    def resolve(self, wanted: OffsetRange, options: ReadOptions, action: str) -> OffsetRange:
        """A range of the plan that `options` make, with numbers for its bounds.

        Args:
            action: the same for all callers that are to agree, where PATH lets them.
        """

    @abc.abstractmethod
    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int | str],
        *,
        isolation_level: str = "read_committed",
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offsets by time.

        Args:
            wanted: for each partition, as (topic, number), a time in ms: the answer is the first
                record with that time or a later one. Or "earliest", "latest", "max_timestamp", as
                -2, -1 and -3: the first offset held, the end, the first record of those with the
                largest time.
            isolation_level: "read_committed" ends before the first transaction that is open.

        Returns:
            None where there is no such record before the end. The time of an edge is -1.

        Raises:
            ConfigError: another word or number.
        Source: Kafka core/.../cluster/Partition.scala fetchOffsetForTimestamp; ListOffsetsRequest.
        """

    def topics(self) -> list[Topic]:
        """All topics but internal ones, by name."""
        return [self.topic(name) for name in self.topic_names()]

    def plan(self, options: ReadOptions) -> list[OffsetRange]:
        """What a read has to go over; raises as `consumer.plan` and for unknown topics."""
        return plan(options, self.partitions, self.edges)

    def read_range(
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Iterator[pa.RecordBatch]:
        """As `consumer.read_range`."""
        return read_range(self, wanted, columns, isolation)

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | str = "earliest",
        end: int | str = "latest",
        columns: Sequence[str] = tuple(codec.RECORD_SCHEMA.names),
        isolation_level: str = "read_committed",
    ) -> Iterator[pa.RecordBatch]:
        """The records of a topic, partition by partition, in offset order within each.

        Args:
            topic: its name.
            partitions: which; all by default.
            start: offset, or "earliest"; inclusive.
            end: offset, or "latest"; exclusive.
            columns: which of `RECORD_SCHEMA`, in which order.
            isolation_level: "read_committed" leaves out what transactions aborted, and ends before
                the first that is open; "read_uncommitted" does neither.

        Returns:
            Batches of the given columns of `RECORD_SCHEMA`, behind int32 `partition`.
        """
        for word, bound, name in (("earliest", start, "start"), ("latest", end, "end")):
            if (isinstance(bound, str) and bound != word) or (isinstance(bound, int) and bound < 0):
                raise ConfigError(
                    f"{name} is {bound!r}; accepted: {word!r}, or an offset from 0 on"
                )
        isolation = parse_isolation_level("isolation_level", isolation_level)
        all_of_topic = self.partitions(topic)
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
        for tp, (first, last) in resolve(ranges, self.edges(chosen), isolation).items():
            number = pa.scalar(tp.partition, pa.int32())
            for batch in self.read_range(OffsetRange(tp, first, last), columns, isolation):
                yield batch.add_column(0, "partition", pa.repeat(number, batch.num_rows))


_EDGES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


def parse_times(wanted: Mapping[TopicPartition, int | str]) -> dict[TopicPartition, int]:
    """What `TopicReader.list_offsets` is asked, the words as their numbers."""
    times = {}
    for tp, asked in wanted.items():
        number = _EDGES.get(asked) if isinstance(asked, str) else asked
        if number is None or (number < 0 and number not in _EDGES.values()):
            raise ConfigError(
                f"offsets are listed by time: {asked!r} is neither a time in ms, 0 or later, nor one "
                f"of {', '.join(map(repr, _EDGES))}"
            )
        times[TopicPartition(*tp)] = number
    return times


def edge_if_asked(
    time: int, edges: LogOffsets, isolation: IsolationLevel
) -> OffsetAndTimestamp | None:
    """The edge that EARLIEST or LATEST stands for in place of a time; None for any other."""
    if time == EARLIEST:
        return OffsetAndTimestamp(edges.log_start_offset, NO_TIMESTAMP)
    if time == LATEST:
        return OffsetAndTimestamp(edges.end_offset(isolation), NO_TIMESTAMP)
    return None


def plan(
    options: ReadOptions,
    partitions_of: Callable[[str], Sequence[TopicPartition] | None],
    edges_of: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogOffsets]],
) -> list[OffsetRange]:
    """The ranges of a read, in order of topic and partition; empty ones left out.

    Args:
        partitions_of: a topic's partitions; raises for an unknown topic.
        edges_of: the logs' edges, for checking numbers.

    Raises:
        ConfigError: offsets that do not name exactly the partitions that are read.
        OffsetOutOfRangeError: a number outside the log.
    """
    wanted = sorted(_wanted(options, partitions_of))
    start = _by_partition("startingOffsets", options.starting_offsets, wanted)
    end = _by_partition("endingOffsets", options.ending_offsets, wanted)
    ranges = [OffsetRange(tp, start[tp], end[tp]) for tp in wanted]
    given = [r.topic_partition for r in ranges if r.start >= 0 or r.end >= 0]
    if given:
        edges = edges_of(given)
        for topic_partition in given:
            log_start = edges[topic_partition].log_start_offset
            log_end = edges[topic_partition].end_offset(options.isolation_level)
            for option, offsets in (("startingOffsets", start), ("endingOffsets", end)):
                offset = offsets[topic_partition]
                if offset >= 0 and not log_start <= offset <= log_end:
                    raise OffsetOutOfRangeError(
                        str(topic_partition), offset, log_start, log_end, option
                    )
    return [r for r in ranges if r.start < 0 or r.end < 0 or r.start < r.end]


def _wanted(
    options: ReadOptions, partitions_of: Callable[[str], Sequence[TopicPartition] | None]
) -> Iterator[TopicPartition]:
    option = "subscribe" if options.assigned is None else "assign"
    for topic in sorted({*options.topics, *(tp.topic for tp in options.assigned or ())}):
        try:
            existing = partitions_of(topic) or ()
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopicOrPartitionError(f"option {option!r}: {error}") from None
        yield from (tp for tp in existing if options.assigned is None or tp in options.assigned)


def _by_partition(
    key: str, offsets: int | Mapping[TopicPartition, int], wanted: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    if isinstance(offsets, int):
        return dict.fromkeys(wanted, offsets)
    if offsets.keys() != set(wanted):
        named, read = (", ".join(map(str, sorted(tps))) or "none" for tps in (offsets, wanted))
        raise ConfigError(
            f"option {key!r} must name exactly the partitions that are read; it names: {named}; "
            f"read are: {read}; use {EARLIEST} for earliest and {LATEST} for latest"
        )
    return offsets


def resolve(
    ranges: Iterable[OffsetRange],
    edges: Mapping[TopicPartition, LogOffsets],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, tuple[int, int]]:
    """Numbers in place of EARLIEST and LATEST.

    Raises:
        DataLossError: a range that begins past the end.
    """
    resolved = {}
    for topic_partition, start, end in ranges:
        log_start = edges[topic_partition].log_start_offset
        log_end = edges[topic_partition].end_offset(isolation)
        first = log_start if start == EARLIEST else start
        last = log_end if end == LATEST else end
        if first > last:
            raise DataLossError(
                f"{topic_partition} from offset {first} to {last}",
                f"offsets {log_start} to {log_end}",
                "it begins past its end, so records that it named are gone",
            )
        resolved[topic_partition] = (first, last)
    return resolved


def read_range(
    fetcher: Fetcher,
    wanted: OffsetRange,
    columns: Sequence[str],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> Iterator[pa.RecordBatch]:
    """The records of a range whose bounds are numbers, in offset order, in bounded pieces.

    Control records are left out; where committed data is asked for, so is what was aborted.

    Args:
        columns: names of `codec.RECORD_SCHEMA`; only those are decoded.

    Raises:
        OffsetOutOfRangeError: the log does not hold the range.
        CorruptRecordError: with file and position.
    """
    topic_partition, offset, end = wanted
    buffer = bytearray(FETCH_BYTES)
    while offset < end:
        read, edges = fetcher.fetch(
            topic_partition, offset, max_bytes=FETCH_BYTES, buffer=buffer, isolation=isolation
        )
        if not read.batches:
            log_end = edges.end_offset(isolation)
            if end <= log_end:
                return
            raise OffsetOutOfRangeError(str(topic_partition), end, edges.log_start_offset, log_end)
        # What lies behind the range is not looked at, so that a range can end before a damaged batch.
        read = read.below(end)
        if not read.batches:
            return
        try:
            yield from codec.decode_batches(
                read.data, without_aborted(read), columns=columns,
                start_offset=offset, end_offset=end, max_bytes=PIECE_BYTES,
            )  # fmt: skip
        except CorruptRecordError as error:
            raise error.at(read.path, read.position) from None
        offset = read.batches[-1][1].next_offset


def without_aborted(read: LogRead) -> list[tuple[int, BatchHeader]]:
    """The batches that are left once those of aborted transactions are taken out.

    Raises:
        CorruptRecordError: the CRC of a batch that is taken out, or of a marker, does not hold: they
            are judged by their headers, of which nothing is true without it.
    Source: CompletedFetch.nextFetchedRecord, consumeAbortedTransactionsUpTo.
    """
    if not read.aborted:
        return read.batches
    left: list[tuple[int, BatchHeader]] = []
    coming = deque(read.aborted)
    aborting: set[int] = set()  # producers whose transaction here was aborted
    for position, header in read.batches:
        if header.producer_id > NO_PRODUCER_ID:
            while coming and coming[0].first_offset <= header.last_offset:
                aborting.add(coming.popleft().producer_id)
            if header.is_control:
                marker = read_marker(read.data, position, header)
                if marker is not None and marker.is_abort:
                    aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in aborting:
                ensure_valid(read.data, position, header)
                continue
        left.append((position, header))
    return left
