"""Plans and reads of the topics of one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_kbatch.consumer import offset_bounds, planning, reading, splits
from spark_kbatch.consumer.data_loss import DataLoss
from spark_kbatch.consumer.offset_bounds import OffsetBound
from spark_kbatch.consumer.planning import FoundTopic, LogView
from spark_kbatch.consumer.source import Source
from spark_kbatch.consumer.splits import Piece
from spark_kbatch.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_kbatch.model import (
    IsolationLevel,
    LogOffsets,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES, parse_isolation_level

# A name, several, or a pattern that is searched for in names.
TopicChoice = str | Iterable[str] | re.Pattern[str]


class TopicReader:
    """Reads the topics of one source. Thread-safe; keeps no file open."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def edges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
        """Return where these logs start and end; raises as `Source.views`."""
        return {tp: view.offsets for tp, view in self.source.views(partitions).items()}

    def plan(self, options: ReadOptions) -> list[Piece]:
        """Return what each task of a batch read covers; raises as `planning.ranges`."""
        topics = _TopicsPlanned(self.source)
        ranges = planning.ranges(options, topics)
        views = self.source.views(one.topic_partition for one in ranges)
        pieces = splits.split(ranges, views, options)
        for name in {one.topic_partition.topic for one in ranges}:
            self._ensure_same(name, topics.ids[name], "while this read was planned")
        return [
            piece._replace(topic_id=topics.ids[piece.whole.topic_partition.topic])
            for piece in pieces
        ]

    def _ensure_same(self, topic: str, topic_id: str, when: str) -> None:
        """Check that a topic was not recreated; skipped if it has no id."""
        found = self.source.topic(topic).topic_id
        if topic_id and found and found != topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} was deleted and created again {when}; load again"
            )

    def read_piece(
        self, piece: Piece, columns: Sequence[str], options: ReadOptions, action: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield what one task reads of a plan made with `options`; columns as in `reading.read_range`.

        Args:
            action: as in `Source.agreed_offsets`.

        Raises:
            DataLossError: part of the piece is gone, and `failOnDataLoss` is set.
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
        """Yield the records of a range of known offsets that the log still holds; raises as `read_piece`.

        Args:
            topic_id: of the topic that the range belongs to, empty if it has none. Nothing is read
                from another topic of the same name.
        """
        loss = DataLoss(fail=options.fail_on_data_loss)
        try:
            with self.source.fetcher(wanted, topic_id) as fetcher:
                yield from reading.read_range(
                    fetcher, wanted, columns, options.isolation_level,
                    on_loss=loss.offsets_gone,
                    max_decompressed_batch_bytes=options.max_decompressed_batch_bytes,
                )  # fmt: skip
        except UnknownTopicOrPartitionError as error:
            loss.report(f"partition {wanted.topic_partition}", "nothing of it", str(error))

    def resolve(
        self, piece: Piece, options: ReadOptions, action: str, loss: DataLoss
    ) -> OffsetRange:
        """Return the offsets of a piece, looking up EARLIEST and LATEST.

        Raises:
            DataLossError: as `read_piece`.
            UnknownTopicOrPartitionError: the partition is gone, or its topic was recreated.
        """
        topic_partition = piece.whole.topic_partition
        is_known = min(piece.whole[1:]) >= 0
        edges = (0, 0) if is_known else self.source.agreed_offsets(topic_partition, options, action)
        # Checked afterwards, so that the agreed offsets are known to be of this topic too.
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
        """Do as `reading.read_range`.

        Args:
            topic_id: of the topic to read; by default of the one that has the name when the first rows
                are taken.
        """
        topic_id = topic_id or self.source.topic(wanted.topic_partition.topic).topic_id
        with self.source.fetcher(wanted, topic_id) as fetcher:
            yield from reading.read_range(
                fetcher, wanted, columns, isolation,
                max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            )  # fmt: skip

    def offset_ranges(
        self,
        topics: TopicChoice,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        isolation_level: str = "read_committed",
    ) -> list[OffsetRange]:
        """Return the ranges that a read covers; arguments and errors as of `Cluster.read`."""
        isolation = parse_isolation_level("isolation_level", isolation_level)
        views = self.source.views(self.chosen(topics, partitions))
        return self.ranges(views, start, end, isolation)

    def chosen(
        self, topics: TopicChoice, partitions: Iterable[int] | None
    ) -> dict[TopicPartition, str]:
        """Return the partitions that `Cluster.read` reads for these arguments, each with its topic's id."""
        numbers = (
            None if partitions is None else arguments.partition_numbers("partitions", partitions)
        )
        return {
            tp: topic_id
            for name, (topic_id, held) in self._topics_chosen(topics).items()
            for tp in (held if numbers is None else [TopicPartition(name, n) for n in numbers])
        }

    def _topics_chosen(self, topics: TopicChoice) -> dict[str, FoundTopic]:
        if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
            matching = filter(topics.search, self.source.topic_names())
            # Others were deleted since the names were listed.
            return dict(sorted(self.source.found(matching).items()))
        names = list(dict.fromkeys(arguments.topic_names("topics", topics)))
        found = self.source.found(names)
        return {name: found[name] if name in found else self._topic(name) for name in names}

    def _topic(self, name: str) -> FoundTopic:
        """Return a topic; raises UnknownTopicOrPartitionError, which names the nearest."""
        return FoundTopic(self.source.topic(name).topic_id, self.source.partitions(name))

    def ranges(
        self,
        views: Mapping[TopicPartition, LogView],
        start: OffsetBound,
        end: OffsetBound,
        isolation: IsolationLevel,
    ) -> list[OffsetRange]:
        """Return the ranges from `start` to `end` of these partitions; raises as `offset_bounds.ranges`."""

        def why_unreadable(tp: TopicPartition, offset: int) -> OffsetOutOfRangeError | None:
            try:
                self.source.fetch(tp, ReadRange(offset, 1, isolation))
            except OffsetOutOfRangeError as error:
                return error
            return None

        return offset_bounds.ranges(views, start, end, isolation, why_unreadable)

    def last_records(
        self,
        wanted: OffsetRange,
        count: int,
        read: Callable[[OffsetRange], Iterable[pa.RecordBatch]],
    ) -> OffsetRange:
        """Return the part of a range that holds its last `count` records, or all of it if it has fewer.

        Offsets are not counted: some have no record, after a compaction or a transaction.

        Args:
            read: yields the offsets of a range that have a record, as the only column.
        """
        end, left, step = wanted.end, count, count
        while end > wanted.start:
            start = max(end - step, wanted.start)
            offsets = [batch.column(0) for batch in read(wanted._replace(start=start, end=end))]
            found = pa.chunked_array(offsets, pa.int64())
            if len(found) >= left:
                return wanted._replace(start=found[len(found) - left].as_py())
            end, left, step = start, left - len(found), 2 * step
        return wanted


class _TopicsPlanned:
    """`planning.Topics` that remembers the ids of topics whose partitions were looked up."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.ids: dict[str, str] = {}

    def topic_names(self, *, internal: bool = False) -> list[str]:
        return self._source.topic_names(internal=internal)

    def partitions(self, topic: str) -> list[TopicPartition]:
        self.ids[topic] = self._source.topic(topic).topic_id
        return self._source.partitions(topic)

    def found(self, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        found = self._source.found(names)
        self.ids |= {name: one.topic_id for name, one in found.items()}
        return found

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        return self._source.views(partitions)
