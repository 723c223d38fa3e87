"""The planning and reading of a source's topics, for Spark tasks and for users in Python."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from spark_kbatch.consumer import planning, splits
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    going_on,
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
    PartitionKey,
    Piece,
    ReadRange,
    StreamPiece,
    TopicPartition,
    ranges_shown,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.columns import READ
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES, parse_isolation_level
from spark_kbatch.store.source import Fetcher, FoundTopic, LogView, Source

# Planning reads no record, so what decodes them is imported by the methods that do.
if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.condition.binding import Bound
    from spark_kbatch.consumer.matching import Where
    from spark_kbatch.consumer.rows import HeadersOf, TypedColumns


# A name, several, or a pattern that is searched for in names.
TopicChoice = str | Iterable[str] | re.Pattern[str]
# An offset, a time, or a word.
OneBound = int | str | datetime.datetime
# Partitions with the ids of their topics, views of their logs, and the ranges of known offsets to
# read there.
Planned = tuple[
    Mapping[TopicPartition, str], Mapping[TopicPartition, LogView], Sequence[OffsetRange]
]
_UNREADABLE = (OSError, KafkaStorageError, CorruptRecordError)
# Where a range starts or ends: for all partitions, or for each, by (topic, number), or by number in one topic.
OffsetBound = OneBound | Mapping[Any, OneBound]


class TopicReader:
    """A reader of one source's topics, for Spark tasks and for Python.

    It is thread-safe, and keeps no file open.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def edges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
        """Return the start and end offsets of these partitions' logs; raises as `Source.views`."""
        return {tp: view.offsets for tp, view in self.source.views(partitions).items()}

    def plan(self, options: ReadOptions, condition: Bound | None = None) -> list[tuple[Piece, ...]]:
        """Return the pieces of a batch read that each task reads; raises as `planning.ranges`.

        Args:
            options: of the read.
            condition: of the read; what cannot match it is no piece.
        """
        topics = planning.TopicsLookedUp(self.source)
        ranges = planning.ranges(options, topics)
        views = self.source.views(one.topic_partition for one in ranges)
        within = None
        if condition is not None:
            from spark_kbatch.consumer import matching  # noqa: PLC0415  above

            matching.warn_of_other_topics(condition, topics.ids)
            # Without its id no one sees that a topic was recreated before an action reads it.
            same = {tp: view for tp, view in views.items() if topics.ids[tp.topic]}
            within = matching.windows(ranges, same, condition, options.isolation_level)
        tasks = splits.tasks(ranges, views, options, self.source, within)
        for name in {one.topic_partition.topic for one in ranges}:
            self._ensure_same(name, topics.ids[name], "while this read was planned")
        return [
            tuple(
                one._replace(topic_id=topics.ids[one.planned.topic_partition.topic]) for one in task
            )
            for task in tasks
        ]

    def _ensure_same(self, topic: str, topic_id: str, when: str) -> None:
        """Check that a topic was not recreated; skipped if it has no id."""
        found = self.source.topic(topic).topic_id
        if topic_id and found and found != topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} was deleted and created again {when}; load again"
            )

    def read_task(
        self,
        pieces: Sequence[Piece],
        columns: Sequence[str],
        options: ReadOptions,
        action: str,
        typed: TypedColumns | None = None,
        where: Where | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that one task of a batch read reads, in offset order within each partition.

        Args:
            pieces: of one task of a plan that was made with `options`.
            columns: names of `typed.schema`.
            options: of the read.
            action: as in `Source.agreed_offsets`.
            typed: what keys and values become, bytes by default.
            where: which rows to yield, all by default.

        Raises:
            DataLossError: part of a piece is gone, and `failOnDataLoss` is set.
            CorruptRecordError: with file and position.
            RecordDeserializationError: as `Rows.of`.
        """
        loss = DataLoss(fail=options.fail_on_data_loss)
        wanted = self.resolve(pieces, options, action, loss)
        yield from self._read_gathered(wanted, columns, options, loss, typed, where)

    def read_stream_task(
        self,
        pieces: Sequence[StreamPiece],
        columns: Sequence[str],
        options: ReadOptions,
        typed: TypedColumns | None = None,
        where: Where | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that one task of a micro-batch reads, in offset order within each partition.

        If a topic was recreated since, its rows are lost data.

        Args:
            pieces: of one task of a plan that was made with `options`.
            columns: names of `typed.schema`.
            options: of the stream.
            typed: what keys and values become, bytes by default.
            where: which rows to yield, all by default.

        Raises the errors of `read_task`.
        """
        loss = DataLoss(fail=options.fail_on_data_loss)
        # The read itself reports a topic that is gone.
        found = self.source.existing_topics({one.wanted.topic_partition.topic for one in pieces})
        now = {name: one.topic_id for name, one in found.items()}
        wanted = {}
        for one, topic_id in pieces:
            if topic_id and now.get(one.topic_partition.topic, "") not in ("", topic_id):
                asked = f"{one.topic_partition} from offset {one.start} to {one.end}"
                loss.report(asked, "nothing of it", "its topic was deleted and created again")
            else:
                wanted[one] = topic_id
        yield from self._read_gathered(wanted, columns, options, loss, typed, where)

    def _read_gathered(
        self,
        wanted: Mapping[OffsetRange, str],
        columns: Sequence[str],
        options: ReadOptions,
        loss: DataLoss,
        typed: TypedColumns | None,
        where: Where | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges of known offsets, as `_read_available` does.

        Args:
            wanted: ranges of different partitions, and the ids of their topics.
            columns, options, loss, typed, where: as there.
        """
        topic_ids = {one.topic_partition: topic_id for one, topic_id in wanted.items()}
        try:
            for part, fetcher in self.source.gathered(wanted):
                yield from self._read_available(
                    part,
                    topic_ids[part.topic_partition],
                    fetcher,
                    columns,
                    options,
                    loss,
                    typed,
                    where,
                )
        except UnknownTopicOrPartitionError as error:
            asked = ranges_shown({one.topic_partition: (one.start, one.end) for one in wanted})
            loss.report(asked, "not all of them", str(error))

    def _read_available(
        self,
        wanted: OffsetRange,
        topic_id: str,
        opened: AbstractContextManager[Fetcher],
        columns: Sequence[str],
        options: ReadOptions,
        loss: DataLoss,
        typed: TypedColumns | None,
        where: Where | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of known offsets that the log still holds.

        Args:
            wanted: the range.
            topic_id: of the topic that the range belongs to, empty if it has none. Nothing is read
                from another topic of the same name.
            opened: what fetches the range.
            columns: names of `typed.schema`.
            options: of the read.
            loss: told what is gone.
            typed: what keys and values become, bytes by default.
            where: which rows to yield, all by default.
        """
        from spark_kbatch.consumer import reading  # noqa: PLC0415  above
        from spark_kbatch.consumer.rows import BYTES, Rows  # noqa: PLC0415  likewise

        headers_of = self._headers_of(
            options.isolation_level, topic_id, options.max_decompressed_batch_bytes
        )
        rows = Rows(columns, typed or BYTES, headers_of=headers_of, where=where)
        try:
            with opened as fetcher:
                batches = reading.read_range(
                    fetcher, wanted, rows.decoded, options.isolation_level,
                    on_loss=loss.offsets_gone,
                    max_decompressed_batch_bytes=options.max_decompressed_batch_bytes,
                    times_ms=None if where is None else where.times_ms,
                )  # fmt: skip
                yield from rows.of(batches, wanted.topic_partition)
        except UnknownTopicOrPartitionError as error:
            loss.report(f"partition {wanted.topic_partition}", "nothing of it", str(error))
        except CorruptRecordError as error:
            raise going_on(
                error,
                wanted.topic_partition,
                lambda at, after: (
                    f"the option startingOffsets={json.dumps({at.topic: {str(at.partition): after}})}"
                ),
            ) from None

    def resolve(
        self, pieces: Sequence[Piece], options: ReadOptions, action: str, loss: DataLoss
    ) -> dict[OffsetRange, str]:
        """Return the offset ranges of a task's pieces, with EARLIEST and LATEST looked up, and their topics' ids.

        A partition that is gone, or whose topic was recreated, is lost data.

        Raises:
            DataLossError: as `read_task`.
        """
        late = [one.planned.topic_partition for one in pieces if min(one.planned[1:]) < 0]
        edges: dict[TopicPartition, tuple[int, int]] = {}
        gone: dict[TopicPartition, UnknownTopicOrPartitionError] = {}
        try:
            edges |= self.source.agreed_offsets(late, options, action) if late else {}
        except UnknownTopicOrPartitionError:
            for tp in late:  # one by one, as some may be there
                try:
                    edges |= self.source.agreed_offsets([tp], options, action)
                except UnknownTopicOrPartitionError as error:
                    gone[tp] = error
        # Checked afterwards, so that the agreed offsets are known to be of these topics too.
        recreated: dict[str, UnknownTopicOrPartitionError] = {}
        for topic, topic_id in {
            one.planned.topic_partition.topic: one.topic_id for one in pieces
        }.items():
            try:
                self._ensure_same(topic, topic_id, "after this read was planned")
            except UnknownTopicOrPartitionError as error:
                recreated[topic] = error
        found = {}
        for piece in pieces:
            tp, wanted = piece.planned.topic_partition, piece.wanted
            why = gone.get(tp) or recreated.get(tp.topic)
            if why is not None:
                loss.report(f"partition {tp}", "nothing of it", str(why))
                continue
            if tp in edges:
                wanted = planning.resolve(
                    wanted, piece.planned, *edges[tp], loss, self.source.why_gone
                )
            found[wanted] = piece.topic_id
        return found

    def read_range(
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        topic_id: str = "",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
        typed: TypedColumns | None = None,
        where: Where | None = None,
        times_ms: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of an offset range of one topic, as `reading.read_range` does.

        Args:
            topic_id: of the topic to read; by default of the one that has the name when the first rows
                are taken.
            typed: what keys and values become, bytes by default.
            where: which records to yield, all by default.
            times_ms: as for `reading.read_range`, where there is no `where`.
        """
        from spark_kbatch.consumer import reading  # noqa: PLC0415  above

        if where is not None:
            views = self.source.views([wanted.topic_partition])
            wanted = self._part_of(wanted, views, where, isolation)
        topic_id = topic_id or self.source.topic(wanted.topic_partition.topic).topic_id
        headers_of = self._headers_of(isolation, topic_id, max_decompressed_batch_bytes)
        names = typed.by_name.keys() & set(columns) if typed else set()
        decoded_of = [*dict.fromkeys([*columns, *(typed.beside(names) if typed else ())])]
        needed = dict.fromkeys([*decoded_of, *(where.decoded if where else ())])
        with self.source.fetcher(wanted, topic_id) as fetcher:
            for batch in reading.read_range(
                fetcher, wanted, [*needed], isolation,
                max_decompressed_batch_bytes=max_decompressed_batch_bytes,
                times_ms=where.times_ms if where else times_ms,
            ):  # fmt: skip
                kept = (
                    where.rows(batch, wanted.topic_partition, headers_of)
                    if where
                    else [(batch, {})]
                )
                for chosen, _ in kept:
                    if typed is None:
                        yield chosen.select([*columns])
                        continue
                    for records, decoded in typed.decoded(
                        chosen.select(decoded_of), names, wanted.topic_partition, headers_of
                    ):
                        for name, one in decoded.items():
                            place = records.schema.get_field_index(name)
                            records = records.set_column(place, name, one.shown())
                        yield records.select([*columns])

    def _headers_of(
        self, isolation: IsolationLevel, topic_id: str, max_decompressed_batch_bytes: int
    ) -> HeadersOf:
        """Return what reads the headers of records that cannot be decoded."""
        return lambda wanted: self.read_range(
            wanted,
            ["offset", "headers"],
            isolation,
            topic_id=topic_id,
            max_decompressed_batch_bytes=max_decompressed_batch_bytes,
        )

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
        return self.ranges(views, start, end, isolation, _START_WORDS)

    def readable(
        self, wanted: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogView], dict[TopicPartition, Exception]]:
        """Return views of these partitions, of one moment; if some cannot be read, of each alone.

        Returns:
            The views, and why there is none of the other partitions.

        Raises:
            KafkaStorageError, CorruptRecordError, OSError: there is a view of none.
        """
        found, unreadable = dict[TopicPartition, LogView](), dict[TopicPartition, Exception]()
        try:
            found.update(self.source.views(wanted) if wanted else {})
        except _UNREADABLE:
            for one in wanted:
                try:
                    found.update(self.source.views([one]))
                except _UNREADABLE as error:
                    unreadable[one] = error
            if not found:
                raise
        return found, unreadable

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
            return dict(sorted(self.source.existing_topics(matching).items()))
        names = list(dict.fromkeys(arguments.topic_names("topics", topics)))
        found = self.source.existing_topics(names)
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
        start_words: Sequence[str] = ("earliest", "latest"),
    ) -> list[OffsetRange]:
        """Return each partition's range of offsets to read, between the start and the end of a read.

        All partitions are checked, so that a bound which only some of them have fails before the
        first record is read.

        Args:
            views: of the partitions to read.
            start: first offset to read, or a word; or one for each partition. A time stands for
                the first record with that time or a later one, or the end if there is none.
            end: offset to stop before, or "latest"; or one for each partition; times as for `start`.
            isolation: decides where a log ends.
            start_words: which words a start may be.

        Raises:
            ConfigError: not a bound; or a start that is greater than the end.
            OffsetOutOfRangeError: partitions do not hold these offsets, or all that they ended
                before was overwritten; names all of them.
        """
        starts = bounds_of("start", start, views, *start_words)
        ends = bounds_of("end", end, views, "latest")
        given = {tp: end for tp, end in ends.items() if isinstance(end, int)}
        from_start = {tp for tp in given if not isinstance(starts[tp], int)}
        lacking = planning.overwritten(given, from_start, views, isolation, self.source.why_gone)
        if lacking:
            raise _of_all(lacking)
        found = []
        for tp, view in views.items():
            log_start, log_end = view.offsets.log_start_offset, view.offsets.end_offset(isolation)
            wanted = OffsetRange(
                tp,
                resolved(starts[tp], log_start, view, log_end),
                resolved(ends[tp], log_end, view, log_end),
            )
            found.append(wanted)
            if max(wanted.start, wanted.end) > log_end:
                past = wanted.start if wanted.start > log_end else wanted.end
                lacking.append(OffsetOutOfRangeError(str(tp), past, log_start, log_end))
                continue
            _ensure_ordered(wanted, starts[tp], ends[tp])
            if wanted.start < min(log_start, wanted.end):
                error = self._why_unreadable(tp, wanted.start, isolation)
                lacking += [error] if error is not None else []
        if lacking:
            raise _of_all(lacking)
        return found

    def _why_unreadable(
        self, topic_partition: TopicPartition, offset: int, isolation: IsolationLevel
    ) -> OffsetOutOfRangeError | None:
        """Return the error of an offset below the log start; None if it can still be read."""
        try:
            self.source.fetch(topic_partition, ReadRange(offset, 1, isolation))
        except OffsetOutOfRangeError as error:
            return error
        return None

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
        import pyarrow as pa  # noqa: PLC0415  above

        end, left, step = wanted.end, count, count
        while end > wanted.start:
            start = max(end - step, wanted.start)
            offsets = [batch.column(0) for batch in read(wanted._replace(start=start, end=end))]
            found = pa.chunked_array(offsets, pa.int64())
            if len(found) >= left:
                return wanted._replace(start=found[len(found) - left].as_py())
            end, left, step = start, left - len(found), 2 * step
        return wanted

    def read(
        self,
        topics: TopicChoice,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        last: int | None = None,
        columns: Iterable[str] = READ,
        typed: TypedColumns | None = None,
        isolation_level: str = "read_committed",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
        where: str | Where | None = None,
        taken: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = iter,
        of: Planned | None = None,
    ) -> pa.RecordBatchReader:
        """Read records as Arrow; arguments and errors are those of `Cluster.read`.

        `typed` says what keys and values become, bytes by default; `taken` is applied to the batches, for errors as callers get them.
        `of` is what to read, in place of topics, partitions and bounds.
        """
        import pyarrow as pa  # noqa: PLC0415  above

        from spark_kbatch.consumer.rows import BYTES, Rows, ensure_columns  # noqa: PLC0415  likewise
        from spark_kbatch.record.columns import no_rows  # noqa: PLC0415  likewise

        typed = typed or BYTES
        names = ensure_columns(columns, typed.schema.names)
        if last is not None:
            arguments.whole_number("last", last, 1)
            if not isinstance(start, str) or start != "earliest":
                raise ConfigError(
                    "start and last are both given; both say where to start: give one"
                )
        isolation = parse_isolation_level("isolation_level", isolation_level)
        most = arguments.whole_number(
            "max_decompressed_batch_bytes", max_decompressed_batch_bytes, 1, INT_MAX
        )
        chosen, views, ranges = of or (self.chosen(topics, partitions), {}, [])
        chosen_rows = (
            None if where is None else self.where(where, typed, topics={tp.topic for tp in chosen})
        )
        if of is None:
            views = self.source.views(chosen)
            ranges = self.ranges(views, start, end, isolation, _START_WORDS)

        def read(
            wanted: OffsetRange, columns: Sequence[str], times_ms: tuple[int, int] | None = None
        ) -> Iterator[pa.RecordBatch]:
            return self.read_range(
                wanted,
                columns,
                isolation,
                topic_id=chosen[wanted.topic_partition],
                max_decompressed_batch_bytes=most,
                times_ms=times_ms,
            )

        rows = Rows(
            names, typed,
            headers_of=lambda wanted: read(wanted, ["offset", "headers"]), where=chosen_rows,
        )  # fmt: skip
        times_ms = None if chosen_rows is None else chosen_rows.times_ms

        def batches() -> Iterator[pa.RecordBatch]:
            is_empty = True
            for wanted in ranges:
                if last is not None:
                    wanted = self.last_records(wanted, last, lambda some: read(some, ["offset"]))
                if chosen_rows is not None:
                    wanted = self._part_of(wanted, views, chosen_rows, isolation)
                for batch in rows.of(read(wanted, rows.decoded, times_ms), wanted.topic_partition):
                    is_empty = False
                    yield batch
            if is_empty:  # from which a caller that takes batches learns the columns
                yield no_rows(rows.schema)

        return pa.RecordBatchReader.from_batches(rows.schema, taken(batches()))

    def where(
        self,
        text: str | Where,
        typed: TypedColumns | None,
        name: str = "where",
        *,
        topics: Collection[str] | None = None,
    ) -> Where:
        """Return the condition of a text.

        Args:
            text: of the condition; one that is made already is returned.
            typed: what keys and values become; bytes if None.
            name: of the option or argument, for errors.
            topics: that are read: a warning names others that the condition asks for; None for no warning.

        Raises:
            ConfigError: a text that is not taken, or that does not fit the columns; says where.
        """
        from spark_kbatch.consumer import matching  # noqa: PLC0415  above
        from spark_kbatch.consumer.rows import BYTES  # noqa: PLC0415  likewise

        if isinstance(text, matching.Where):
            return text
        typed = typed or BYTES
        condition = matching.bound(text, typed.schema, name)
        matching.warn_of_other_topics(condition, topics)
        return matching.Where(condition, typed)

    def _part_of(
        self,
        wanted: OffsetRange,
        views: Mapping[TopicPartition, LogView],
        where: Where,
        isolation: IsolationLevel,
    ) -> OffsetRange:
        """Return the part of a range of known offsets in which records can match, perhaps empty."""
        from spark_kbatch.consumer import matching  # noqa: PLC0415  above

        pieces = splits.clipped(
            [Piece(wanted, wanted)],
            matching.windows([wanted], views, where.condition, isolation),
        )
        return pieces[0].wanted if pieces else wanted._replace(start=wanted.end)

    def list_offsets(
        self,
        wanted: Mapping[PartitionKey, int | str | datetime.datetime],
        *,
        isolation_level: str = "read_committed",
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up offsets by time; arguments and errors are those of `Cluster.list_offsets`."""
        times = _parse_times(wanted)
        isolation = parse_isolation_level("isolation_level", isolation_level)
        return self.source.list_offsets(times, isolation)


_EDGES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}
_OTHER_SPELLINGS = {"max-timestamp": "max_timestamp"}  # Kafka's tools and the command line


def _parse_times(wanted: Any) -> dict[TopicPartition, int]:
    """Parse the times given to `list_offsets`, with words such as 'latest' replaced by their numbers."""
    accepts = f"a time in ms, 0 or later, a datetime, or one of {', '.join(map(repr, _EDGES))}"
    by_partition = arguments.by_partition(
        "wanted", wanted, f'{accepts}, for each partition: {{("topic", 0): "latest"}}'
    )
    times = {}
    for tp, asked in by_partition.items():
        if isinstance(asked, datetime.datetime):
            times[tp] = max(arguments.time_ms(f"the time of {tp}", asked, up=True), 0)
            continue
        if isinstance(asked, str):
            number: object = _EDGES.get(_OTHER_SPELLINGS.get(asked, asked))
        else:
            number = asked
        try:
            times[tp] = arguments.whole_number("time", number, min(_EDGES.values()))
        except ConfigError:
            arguments.refuse(f"the time of {tp}", asked, accepts)
    return times


_Bound = int | datetime.datetime | None  # None is the log's own start or end
_START_WORDS = ("earliest",)  # of a read, which has no records after the latest


def resolved(bound: _Bound, edge: int, view: LogView, log_end: int) -> int:
    """Return the offset of a bound: an edge for None, and the log's end for a time after all."""
    if isinstance(bound, datetime.datetime):
        record = view.offset_for_timestamp(time_of(bound), end_offset=log_end)
        return log_end if record is None else record.offset
    return edge if bound is None else log_end if bound == LATEST else bound


def time_of(bound: datetime.datetime) -> int:
    """Return the time of a bound in ms, rounded up."""
    return max(arguments.time_ms("a bound", bound, up=True), 0)


def bounds_of(
    name: str, bound: Any, partitions: Collection[TopicPartition], *words: str
) -> dict[TopicPartition, _Bound]:
    """Return the bound of each partition: None for the first of the words, LATEST for another.

    Raises:
        ConfigError: it is no bound, or one for other partitions than these.
    """
    if not isinstance(bound, Mapping):
        return dict.fromkeys(partitions, _one(name, bound, *words))
    topics = {tp.topic for tp in partitions}
    given = {_partition(name, key, topics): one for key, one in bound.items()}
    if given.keys() != set(partitions):
        raise ConfigError(
            f"{name} names the partitions {_listed(given)}, but what is read has {_listed(partitions)}: "
            "name each partition that is read, and no other"
        )
    return {tp: _one(f"{name} of {tp}", given[tp], *words) for tp in partitions}


def _partition(name: str, key: Any, topics: set[str]) -> TopicPartition:
    what = f"a partition in {name}"
    if isinstance(key, tuple):
        return arguments.topic_partition(what, key)
    number = arguments.whole_number(what, key, 0, INT_MAX)
    if len(topics) > 1:
        arguments.refuse(what, key, 'partitions of several topics as ("topic", number)')
    (topic,) = topics or {""}
    return TopicPartition(topic, number)


def _one(name: str, bound: Any, *words: str) -> _Bound:
    known = " or ".join(map(repr, words))
    accepts = f"{known}, an offset from 0 on, or a time as a datetime with a time zone"
    if isinstance(bound, datetime.datetime):
        arguments.time_ms(name, bound)  # has a time zone
        return bound
    if isinstance(bound, str):
        if bound not in words:
            arguments.refuse(name, bound, accepts)
        return None if bound == words[0] else LATEST
    try:
        return arguments.whole_number(name, bound, 0)
    except ConfigError:
        arguments.refuse(name, bound, accepts)


def _ensure_ordered(wanted: OffsetRange, start: _Bound, end: _Bound) -> None:
    if wanted.start <= wanted.end:
        return
    whence = (
        ", where its log starts" if start is None
        else f", by its time {start}" if isinstance(start, datetime.datetime)
        else ""
    )  # fmt: skip
    until = f", by its time {end}" if isinstance(end, datetime.datetime) else ""
    raise ConfigError(
        f"start of {wanted.topic_partition} is {wanted.start}{whence}, after its end, {wanted.end}{until}; "
        "give an end that is the same or greater"
    )


def _of_all(lacking: Sequence[OffsetOutOfRangeError]) -> OffsetOutOfRangeError:
    """Return the first of several partitions' errors, with the others named in its text."""
    first, *others = lacking
    if not others:
        return first
    rest = ", ".join(
        f"{other.topic_partition} ({other.log_start_offset} to {other.log_end_offset})"
        for other in others
    )
    why = f"{first.why and f'{first.why}; '}out of range, too, in {rest}"
    return OffsetOutOfRangeError(
        first.topic_partition, first.offset, first.log_start_offset, first.log_end_offset, why=why
    )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
