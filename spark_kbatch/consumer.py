"""Offset ranges: planned from what was asked, fetched, decoded.

The bounds EARLIEST and LATEST stay in a plan as they are and are looked up when the range is read,
so that a plan which is used again sees what was written since. Offsets that the user gave are
checked against the log when they are planned.

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetReaderAdmin.scala, KafkaDataConsumer.scala.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from spark_kbatch.config import ReadOptions, Topic
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
    LogOffsets,
    OffsetRange,
    PartitionInfo,
    TopicPartition,
)
from spark_kbatch.record import codec
from spark_kbatch.record.header import LogRead

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
    ) -> tuple[LogRead, LogOffsets]:
        """Whole batches from the first that holds `offset` or a later one, and the log's edges.

        Nothing at the high watermark, and where compaction left no batch up to it.
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
    ) -> tuple[LogRead, LogOffsets]:
        """As `Fetcher.fetch`."""

    @abc.abstractmethod
    def resolve(self, wanted: OffsetRange, options: ReadOptions, action: str) -> OffsetRange:
        """A range of the plan that `options` make, with numbers for its bounds.

        Args:
            action: the same for all callers that are to agree, where PATH lets them.
        """

    def topics(self) -> list[Topic]:
        """All topics but internal ones, by name."""
        return [self.topic(name) for name in self.topic_names()]

    def plan(self, options: ReadOptions) -> list[OffsetRange]:
        """What a read has to go over; raises as `consumer.plan` and for unknown topics."""
        return plan(options, self.partitions, self.edges)

    def read_range(self, wanted: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As `consumer.read_range`."""
        return read_range(self, wanted, columns)

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | str = "earliest",
        end: int | str = "latest",
        columns: Sequence[str] = tuple(codec.RECORD_SCHEMA.names),
    ) -> Iterator[pa.RecordBatch]:
        """The records of a topic, partition by partition, in offset order within each.

        Args:
            topic: its name.
            partitions: which; all by default.
            start: offset, or "earliest"; inclusive.
            end: offset, or "latest"; exclusive.
            columns: which of `RECORD_SCHEMA`, in which order.

        Returns:
            Batches of the given columns of `RECORD_SCHEMA`, behind int32 `partition`.
        """
        for word, bound, name in (("earliest", start, "start"), ("latest", end, "end")):
            if (isinstance(bound, str) and bound != word) or (isinstance(bound, int) and bound < 0):
                raise ConfigError(
                    f"{name} is {bound!r}; accepted: {word!r}, or an offset from 0 on"
                )
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
        for tp, (first, last) in resolve(ranges, self.edges(chosen)).items():
            number = pa.scalar(tp.partition, pa.int32())
            for batch in self.read_range(OffsetRange(tp, first, last), columns):
                yield batch.add_column(0, "partition", pa.repeat(number, batch.num_rows))


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
            log_start, high_watermark = edges[topic_partition][:2]
            for option, offsets in (("startingOffsets", start), ("endingOffsets", end)):
                offset = offsets[topic_partition]
                if offset >= 0 and not log_start <= offset <= high_watermark:
                    raise OffsetOutOfRangeError(
                        str(topic_partition), offset, log_start, high_watermark, option
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
    ranges: Iterable[OffsetRange], edges: Mapping[TopicPartition, LogOffsets]
) -> dict[TopicPartition, tuple[int, int]]:
    """Numbers in place of EARLIEST and LATEST.

    Raises:
        DataLossError: a range that begins past the end.
    """
    resolved = {}
    for topic_partition, start, end in ranges:
        log_start, high_watermark = edges[topic_partition][:2]
        first = log_start if start == EARLIEST else start
        last = high_watermark if end == LATEST else end
        if first > last:
            raise DataLossError(
                f"{topic_partition} from offset {first} to {last}",
                f"offsets {log_start} to {high_watermark}",
                "it begins past its end, so records that it named are gone",
            )
        resolved[topic_partition] = (first, last)
    return resolved


def read_range(
    fetcher: Fetcher, wanted: OffsetRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of a range whose bounds are numbers, in offset order, in bounded pieces.

    Args:
        columns: names of `codec.RECORD_SCHEMA`; only those are decoded.

    Raises:
        OffsetOutOfRangeError: the log does not hold the range.
        CorruptRecordError: with file and position.
    """
    topic_partition, offset, end = wanted
    buffer = bytearray(FETCH_BYTES)
    while offset < end:
        read, edges = fetcher.fetch(topic_partition, offset, max_bytes=FETCH_BYTES, buffer=buffer)
        if not read.batches:
            if end <= edges.high_watermark:
                return
            raise OffsetOutOfRangeError(
                str(topic_partition), end, edges.log_start_offset, edges.high_watermark
            )
        try:
            yield from codec.decode_batches(
                read.data, read.batches, columns=columns,
                start_offset=offset, end_offset=end, max_bytes=PIECE_BYTES,
            )  # fmt: skip
        except CorruptRecordError as error:
            raise error.at(read.path, read.position) from None
        offset = read.batches[-1][1].next_offset
