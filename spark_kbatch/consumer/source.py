"""What the topics at one PATH can be asked, whatever wrote them."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import pyarrow as pa

from spark_kbatch.consumer import offset_bounds, planning, reading, splits
from spark_kbatch.consumer.data_loss import DataLoss
from spark_kbatch.consumer.offset_bounds import OffsetBound
from spark_kbatch.consumer.planning import LogView
from spark_kbatch.consumer.rows import ROW_SCHEMA, Rows, ensure_columns
from spark_kbatch.consumer.splits import Piece
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    EARLIEST,
    INT_MAX,
    LATEST,
    MAX_TIMESTAMP,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    PartitionKey,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES, parse_isolation_level
from spark_kbatch.record.header import NO_TIMESTAMP, LogRead


class _Closed:
    """In place of a part of what was closed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError(self._path)


class TopicReader(abc.ABC):
    """The topics at one PATH; what PATH is decides which there are and where batches come from.

    Thread-safe; keeps no file open.
    """

    path: Path
    is_closed = False
    # What everything is asked of: closing replaces it.
    _parts: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        if self.is_closed:
            raise ClosedError(str(self.path))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}{', closed' if self.is_closed else ''})"

    def close(self) -> None:
        """Be of no more use: each later call, and reads that are not done, raise ClosedError."""
        if not self.is_closed:
            self.is_closed = True
            for part in self._parts:
                setattr(self, part, _Closed(str(self.path)))

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
    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        """These logs as they stand now; of one moment, where PATH knows one.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """

    @abc.abstractmethod
    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Edges and sizes of all partitions of these topics."""

    @abc.abstractmethod
    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """As `reading.Fetcher.fetch`."""

    @abc.abstractmethod
    def agreed_edges(
        self, topic_partition: TopicPartition, options: ReadOptions, action: str
    ) -> tuple[int, int]:
        """Where a partition begins and ends for all tasks of one action.

        Args:
            options: of the read; all partitions that they select are looked up together.
            action: the same for all callers that are to agree, where PATH lets them.
        """

    def topics(self) -> list[Topic]:
        """All topics but internal ones, by name."""
        return [self.topic(name) for name in self.topic_names()]

    def edges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
        """Where these logs begin and end; raises as `views`."""
        return {tp: view.offsets for tp, view in self.views(partitions).items()}

    def list_offsets(
        self,
        wanted: Mapping[PartitionKey, int | str],
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
        times = _parse_times(wanted)
        isolation = parse_isolation_level("isolation_level", isolation_level)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for tp, view in self.views(times).items():
            if times[tp] in (EARLIEST, LATEST):
                edge = planning.number(times[tp], view.offsets, isolation)
                found[tp] = OffsetAndTimestamp(edge, NO_TIMESTAMP)
            else:
                end_offset = view.offsets.end_offset(isolation)
                found[tp] = view.offset_for_timestamp(times[tp], end_offset=end_offset)
        return found

    def ranges(self, options: ReadOptions) -> list[OffsetRange]:
        """What a read goes over; raises as `planning.ranges`."""
        return planning.ranges(options, self)

    def plan(self, options: ReadOptions) -> list[Piece]:
        """What each task of a read goes over; raises as `planning.ranges`."""
        topics = _TopicsPlanned(self)
        ranges = planning.ranges(options, topics)
        views = self.views(one.topic_partition for one in ranges)
        pieces = splits.split(ranges, views, options)
        for name in {one.topic_partition.topic for one in ranges}:
            self._ensure_same(name, topics.ids[name], "while this read was planned")
        return [
            piece._replace(topic_id=topics.ids[piece.whole.topic_partition.topic])
            for piece in pieces
        ]

    def _ensure_same(self, topic: str, topic_id: str, when: str) -> None:
        """Check that a topic is the one that was meant; an empty id says nothing."""
        found = self.topic(topic).topic_id
        if topic_id and found and found != topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} was deleted and created again {when}; load again"
            )

    def read_piece(
        self, piece: Piece, columns: Sequence[str], options: ReadOptions, action: str
    ) -> Iterator[pa.RecordBatch]:
        """What one task reads of the plan that `options` make; columns as in `reading.read_range`.

        Args:
            action: as `agreed_edges`.

        Raises:
            DataLossError: something of the piece is gone, and that is not accepted.
            CorruptRecordError: with file and position.
        """
        loss = DataLoss(fail=options.fail_on_data_loss)
        try:
            wanted = self.resolve(piece, options, action, loss)
        except UnknownTopicOrPartitionError as error:
            loss.report(f"partition {piece.whole.topic_partition}", "nothing of it", str(error))
            return
        yield from self.read_available(wanted, columns, options, topic_id=piece.topic_id)

    def read_available(
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        options: ReadOptions,
        *,
        topic_id: str,
    ) -> Iterator[pa.RecordBatch]:
        """What is there of a range whose bounds are numbers; raises as `read_piece`.

        Args:
            topic_id: of the topic that the range is of, empty where it has none; another topic of the
                same name has nothing of it.
        """
        loss = DataLoss(fail=options.fail_on_data_loss)
        try:
            yield from reading.read_range(
                _OneTopic(self, topic_id), wanted, columns, options.isolation_level,
                on_loss=loss.offsets_gone,
                max_decompressed_batch_bytes=options.max_decompressed_batch_bytes,
            )  # fmt: skip
        except UnknownTopicOrPartitionError as error:
            loss.report(f"partition {wanted.topic_partition}", "nothing of it", str(error))

    def resolve(
        self, piece: Piece, options: ReadOptions, action: str, loss: DataLoss
    ) -> OffsetRange:
        """The numbers of a piece; raises as `read_piece`, or for a partition that is gone."""
        topic_partition = piece.whole.topic_partition
        is_known = min(piece.whole[1:]) >= 0
        edges = (0, 0) if is_known else self.agreed_edges(topic_partition, options, action)
        # Afterwards, so that what was agreed on is of this topic, too.
        self._ensure_same(topic_partition.topic, piece.topic_id, "after this read was planned")
        if is_known:
            return piece.wanted
        return planning.resolve(piece.wanted, piece.whole, *edges, loss)

    def read_range(
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        topic_id: str = "",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """As `reading.read_range`, of the topic that has the name when the first rows are taken."""
        topic_id = self.topic(wanted.topic_partition.topic).topic_id if not topic_id else topic_id
        yield from reading.read_range(
            _OneTopic(self, topic_id), wanted, columns, isolation,
            max_decompressed_batch_bytes=max_decompressed_batch_bytes,
        )  # fmt: skip

    def offset_ranges(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        isolation_level: str = "read_committed",
    ) -> list[OffsetRange]:
        """What `read` goes over with these arguments; raises as it does."""
        isolation = parse_isolation_level("isolation_level", isolation_level)
        chosen = self.partitions(arguments.text("topic", topic))
        if partitions is not None:
            numbers = arguments.partition_numbers("partitions", partitions)
            chosen = [TopicPartition(topic, number) for number in numbers]

        def why_unreadable(tp: TopicPartition, offset: int) -> OffsetOutOfRangeError | None:
            try:
                self.fetch(tp, ReadRange(offset, 1, isolation))
            except OffsetOutOfRangeError as error:
                return error
            return None

        return offset_bounds.ranges(self.edges(chosen), start, end, isolation, why_unreadable)

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        columns: Iterable[str] = tuple(ROW_SCHEMA.names),
        isolation_level: str = "read_committed",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
    ) -> pa.RecordBatchReader:
        """The records of a topic, partition by partition, in offset order within each.

        What is wrong with the call is said at once; records are read as batches are taken.

        Args:
            topic: its name.
            partitions: which, by number; all by default.
            start: offset, or "earliest"; inclusive. Or one for each partition: `{0: 5, 1: "earliest"}`.
            end: offset, or "latest"; exclusive. Or one for each partition.
            columns: which, in this order: of key, value, topic, partition, offset, timestamp,
                timestampType and headers, with the types that they have in Spark. Only these are
                decoded.
            isolation_level: "read_committed" leaves out what transactions aborted, and ends before
                the first that is open; "read_uncommitted" does neither.
            max_decompressed_batch_bytes: what one compressed batch may take decompressed; taking
                rows of a larger one is a CorruptRecordError.

        Returns:
            A reader: an iterator of `pyarrow.RecordBatch`. Its `read_all()` gives one table, which
            has the columns also where there are no records; DuckDB, Polars and whatever takes Arrow
            streams take it as it is.

        Raises:
            UnknownTopicOrPartitionError: no such topic or partition.
            ConfigError: another argument is not accepted.
            OffsetOutOfRangeError: partitions do not hold what was asked for; names all of them.
        """
        rows = Rows(ensure_columns(columns))
        topic_id = self.topic(arguments.text("topic", topic)).topic_id
        ranges = self.offset_ranges(
            topic,
            partitions=partitions,
            start=start,
            end=end,
            isolation_level=isolation_level,
        )
        isolation = parse_isolation_level("isolation_level", isolation_level)
        most = arguments.whole_number(
            "max_decompressed_batch_bytes", max_decompressed_batch_bytes, 1, INT_MAX
        )

        def rows_of(wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
            batches = self.read_range(
                wanted,
                rows.decoded,
                isolation,
                topic_id=topic_id,
                max_decompressed_batch_bytes=most,
            )
            return rows.of(batches, wanted.topic_partition)

        batches = itertools.chain.from_iterable(map(rows_of, ranges))
        return pa.RecordBatchReader.from_batches(rows.schema, batches)


class _TopicsPlanned:
    """`planning.Topics`, with the ids that topics had when their partitions were looked up."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self.ids: dict[str, str] = {}

    def topic_names(self, *, internal: bool = False) -> list[str]:
        return self._reader.topic_names(internal=internal)

    def partitions(self, topic: str) -> list[TopicPartition]:
        self.ids[topic] = self._reader.topic(topic).topic_id
        return self._reader.partitions(topic)

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        return self._reader.views(partitions)


class _OneTopic:
    """A topic's batches, as long as another one has not got its name."""

    def __init__(self, reader: TopicReader, topic_id: str) -> None:
        self._reader, self._topic_id = reader, topic_id

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """As `reading.Fetcher`; raises for a topic that was deleted, or created again."""
        try:
            return self._reader.fetch(topic_partition, asked)
        finally:
            # Once it was read: another topic that has the name by then had it not before.
            name = topic_partition.topic
            if self._topic_id and self._reader.topic(name).topic_id != self._topic_id:
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r} was deleted and created again while it was read: read it again"
                )


_EDGES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


def _parse_times(wanted: Any) -> dict[TopicPartition, int]:
    """What `TopicReader.list_offsets` is asked, the words as their numbers."""
    accepts = f"a time in ms, 0 or later, or one of {', '.join(map(repr, _EDGES))}"
    by_partition = arguments.by_partition(
        "wanted", wanted, f'{accepts}, for each partition: {{("topic", 0): "latest"}}'
    )
    times = {}
    for tp, asked in by_partition.items():
        number = _EDGES.get(asked) if isinstance(asked, str) else asked
        try:
            times[tp] = arguments.whole_number("time", number, min(_EDGES.values()))
        except ConfigError:
            arguments.refuse(f"the time of {tp}", asked, accepts)
    return times
