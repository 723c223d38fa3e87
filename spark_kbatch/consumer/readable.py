"""Topics as users read them in Python, wherever they are: named, described, looked up and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from spark_kbatch.consumer import planning
from spark_kbatch.consumer.offset_bounds import OffsetBound
from spark_kbatch.consumer.rows import ROW_SCHEMA, Rows, Text, ensure_columns
from spark_kbatch.consumer.source import Source
from spark_kbatch.consumer.topic_reader import TopicChoice, TopicReader
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
)
from spark_kbatch.model import (
    EARLIEST,
    INT_MAX,
    LATEST,
    MAX_TIMESTAMP,
    IsolationLevel,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    PartitionKey,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES, parse_isolation_level
from spark_kbatch.record.header import NO_TIMESTAMP


class ReadableTopics:
    """The topics of one place, to read. Thread-safe."""

    def __init__(self, source: Source, place: str) -> None:
        """Read from `source`; errors call it `place`."""
        self._reader = TopicReader(source)
        self._place = place
        self.is_closed = False

    def __enter__(self) -> Self:
        if self.is_closed:
            raise ClosedError(self._place)
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
        return f"{type(self).__name__}({self._place!r}{', closed' if self.is_closed else ''})"

    def close(self) -> None:
        """Close: every later call raises ClosedError, and so do reads in progress."""
        if not self.is_closed:
            self.is_closed = True
            self._reader.source.close()

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        Args:
            internal: whether to include internal topics, Kafka's own or the cluster's.
        """
        return self._reader.source.topic_names(internal=arguments.boolean("internal", internal))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic that are here, in order; raises as `topic`."""
        return self._reader.source.partitions(arguments.text("topic", topic))

    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics; of a cluster, at one moment."""
        return self._reader.source.describe(arguments.topic_names("topics", topics))

    def list_offsets(
        self,
        wanted: Mapping[PartitionKey, int | str],
        *,
        isolation_level: str = "read_committed",
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up offsets by time.

        Args:
            wanted: for each partition, as (topic, number), a time in ms, to find the first record with
                that time or a later one; or "earliest" (-2), the first offset held, "latest" (-1),
                the end, or "max_timestamp" (-3), the first record with the largest time.
            isolation_level: "read_committed" ends before the first open transaction.

        Returns:
            For each partition the offset and its time, or None if there is no such record before the
            end. For "earliest" and "latest" the time is -1.

        Raises:
            ConfigError: another word or number.
        Source: Kafka core/.../cluster/Partition.scala fetchOffsetForTimestamp; ListOffsetsRequest.
        """
        times = _parse_times(wanted)
        isolation = parse_isolation_level("isolation_level", isolation_level)
        return self._find_offsets(times, isolation)

    def _find_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for tp, view in self._reader.source.views(times).items():
            if times[tp] in (EARLIEST, LATEST):
                edge = planning.number(times[tp], view.offsets, isolation)
                found[tp] = OffsetAndTimestamp(edge, NO_TIMESTAMP)
            else:
                end_offset = view.offsets.end_offset(isolation)
                found[tp] = view.offset_for_timestamp(times[tp], end_offset=end_offset)
        return found

    def read(
        self,
        topics: TopicChoice,
        *,
        partitions: Iterable[int] | None = None,
        start: OffsetBound = "earliest",
        end: OffsetBound = "latest",
        last: int | None = None,
        columns: Iterable[str] = tuple(ROW_SCHEMA.names),
        text: bool | Literal["replace"] = False,
        isolation_level: str = "read_committed",
        max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
    ) -> pa.RecordBatchReader:
        """Read the records of topics, partition by partition, in offset order within each.

        Arguments are checked at once; records are read as you take batches. All partitions of a cluster
        in a folder are read as of one moment.

        Args:
            topics: a name, several, or a pattern, `re.compile("^orders-")`, which may match anywhere
                in a name; internal topics never match.
            partitions: which to read of each topic, by number; all by default.
            start: first offset to read, or "earliest", or a `datetime` with a time zone: the first
                record with that time or a later one, and none if there is no such record. Or one for
                each partition: `{0: 5, 1: "earliest"}`, of several topics `{("events", 0): 5}`.
            end: offset to stop before, or "latest", or a time, before whose first record to stop; or
                one for each partition.
            last: of each partition, read only the last so many records before `end`.
            columns: which columns, in which order, of key, value, topic, partition, offset,
                timestamp, timestampType and headers. Types are those of Spark. Only these columns
                are decoded.
            text: whether key and value are strings; "replace" puts U+FFFD for bytes that are not UTF-8.
            isolation_level: "read_committed" leaves out records of aborted transactions and ends
                before the first open one; "read_uncommitted" does neither.
            max_decompressed_batch_bytes: limit of one compressed batch when decompressed; a larger
                one raises CorruptRecordError when its rows are taken.

        Returns:
            An iterator of `pyarrow.RecordBatch`, of at least one. Its `read_all()` returns one table,
            which has the columns even if there are no records. DuckDB, Polars and everything else that
            takes Arrow streams accepts it as it is.

        Raises:
            UnknownTopicOrPartitionError: no such topic or partition.
            ConfigError: another argument is not accepted.
            OffsetOutOfRangeError: partitions do not hold these offsets; names all of them.
            RecordDeserializationError: as rows are taken, with `text=True`: bytes are not UTF-8.
        """
        rows = Rows(ensure_columns(columns), _parse_text(text))
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
        chosen = self._reader.chosen(topics, partitions)
        views = self._reader.source.views(chosen)
        ranges = self._reader.ranges(views, start, end, isolation)

        def read(wanted: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return self._reader.read_range(
                wanted,
                columns,
                isolation,
                topic_id=chosen[wanted.topic_partition],
                max_decompressed_batch_bytes=most,
            )

        def batches() -> Iterator[pa.RecordBatch]:
            is_empty = True
            for wanted in ranges:
                if last is not None:
                    wanted = self._reader.last_records(
                        wanted, last, lambda some: read(some, ["offset"])
                    )
                for batch in rows.of(read(wanted, rows.decoded), wanted.topic_partition):
                    is_empty = False
                    yield batch
            if is_empty:  # from which a caller that takes batches learns the columns
                yield pa.RecordBatch.from_pylist([], rows.schema)

        return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _parse_text(text: Any) -> Text | None:
    if isinstance(text, bool):
        return "strict" if text else None
    if not isinstance(text, str) or text != "replace":
        arguments.refuse("text", text, "True, False, 'replace'")
    return "replace"


_EDGES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


def _parse_times(wanted: Any) -> dict[TopicPartition, int]:
    """Return the argument of `list_offsets` with words replaced by their numbers."""
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
