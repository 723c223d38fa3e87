"""Some records of a topic for a person to look at: the newest ones, or those from an offset on.

That costs a bounded number of bytes, wherever the records are and however large they are:

    partitions     one after another, each with its share of the bytes that are left
    windows        of offsets, from the end down or from the start up, each wider than the one before; one that is too
                   large for the share is narrowed, and read again from a later offset
    fetches        of a few bytes first, then of more; the first batch comes whole
    decoded        bytes count too: a batch of a few may hold many

So where few records are wanted, a peek ends with its bytes, and its ranges say where to go on.

Records of several partitions are put in order by their times, but each partition keeps the order of its
offsets: a record counts as new as the newest one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.consumer import matching, reading
from spark_kbatch.consumer.rows import TypedColumns, row_column
from spark_kbatch.errors import UNREADABLE, CorruptRecordError
from spark_kbatch.model import (
    LONG_MAX,
    IsolationLevel,
    LogOffsets,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.write import parse_isolation_level
from spark_kbatch.record.codec import RECORD_SCHEMA

if TYPE_CHECKING:
    from spark_kbatch.consumer.topic_reader import OffsetBound, TopicReader
    from spark_kbatch.record.header import LogRead
    from spark_kbatch.store.source import Fetcher, LogView

COUNT_MAX = 10_000
_DECOMPRESSED_MAX = 64 << 20  # of one batch
_DECODED_PER_BYTE = 8  # so many decoded bytes count as one that is read
_FIRST_FETCH_BYTES = 64 << 10
_FIRST_OFFSETS = 4096  # of a window, where not every record is wanted
_WIDER = 4  # is each window than the one before
_TIME = pa.timestamp("ms", tz="UTC")
_UNREADABLE = (*UNREADABLE, OSError)


class Peek(NamedTuple):
    """Some records of a topic, and where they are."""

    # Oldest first. The columns of a read with the same options, without `topic`; `timestamp` in ms, so that it
    # holds whatever a record has.
    rows: pa.Table
    # Of each partition the offsets of which all records that are wanted are among the rows.
    ranges: Sequence[OffsetRange]
    has_older: (
        bool  # whether offsets before the ranges, where records may be wanted, were not looked at
    )
    has_newer: bool
    offsets_count: int  # that were looked at
    size_in_bytes: int  # of batches that were read
    errors: Mapping[TopicPartition, Exception]  # why not all of a partition could be read


class _BoundedFetcher:
    """A fetcher that has no more batches once it has fetched so many bytes."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        self._fetcher, self._left, self._next_bytes = fetcher, max_bytes, _FIRST_FETCH_BYTES
        self._nothing: tuple[LogRead, LogOffsets] | None = None  # there is before the first fetch
        self.size_in_bytes = 0
        self.next_offset = 0  # after what was fetched
        self.is_cut = False  # there was more to fetch

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches as the fetcher does, none once there were enough."""
        if self._nothing is not None and self._left <= 0:
            self.is_cut = True
            return self._nothing
        most = max(min(self._next_bytes, self._left), 1)
        read, edges = self._fetcher.fetch(topic_partition, asked._replace(max_bytes=most))
        self._nothing = read._replace(batches=[]), edges
        self._left -= len(read.data)
        self._next_bytes *= 2
        self.size_in_bytes += len(read.data)
        self.next_offset = read.batches[-1][1].next_offset if read.batches else asked.offset
        return read, edges


class _Wanted:
    """Which records are wanted, in what form, and how they are read."""

    def __init__(
        self,
        reader: TopicReader,
        typed: TypedColumns,
        where: matching.Where | None,
        key: bytes | None,
        isolation: IsolationLevel,
    ) -> None:
        self.reader, self.typed, self.where, self.key = reader, typed, where, key
        self.isolation = isolation
        self.is_every = where is None and key is None
        names = [name for name in typed.schema.names if name not in ("topic", "partition")]
        self._columns = [row_column(name, typed) for name in names]
        fields = [typed.schema.field(name) for name in names]
        at = names.index("timestamp")
        fields[at] = fields[at].with_type(_TIME)
        self.schema = pa.schema([*fields, typed.schema.field("partition")])

    def rows(self, batch: pa.RecordBatch, tp: TopicPartition) -> list[pa.RecordBatch]:
        """Return the records of a batch that are wanted, as rows."""
        if self.key is not None:
            batch = batch.filter(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        found = self.where.rows(batch, tp) if self.where else [(batch, {})]
        names = [*self.typed.by_name]
        return [
            pa.RecordBatch.from_arrays(
                [
                    *(
                        decoded[one.source].part(one.part)
                        if one.is_of(self.typed)
                        else records.column(one.source).cast(self.schema.field(one.name).type)
                        for one in self._columns
                    ),
                    pa.array(np.full(len(records), tp.partition, np.int32)),
                ],
                schema=self.schema,
            )
            for chosen, _ in found
            for records, decoded in self.typed.decoded(chosen, names, tp)
            if len(records)
        ]


class _Peeked:
    """The records of one partition that are wanted, and the offsets among which these are all of them."""

    def __init__(
        self,
        wanted: _Wanted,
        topic_id: str,
        view: LogView,
        limits: OffsetRange,
        held: range,
        *,
        newest: bool,
    ) -> None:
        """Set up without reading.

        Args:
            wanted: the records.
            topic_id: of their topic.
            view: of the log.
            limits: where to look.
            held: the offsets at which the log may have some.
            newest: whether to look from the end down.
        """
        self._wanted, self._topic_id, self._view = wanted, topic_id, view
        self._limits, self._held, self._newest = limits, held, newest
        self._bound(limits.end if newest else limits.start)
        self.rows = wanted.schema.empty_table()
        self.offsets_count = self.size_in_bytes = 0
        self.error: Exception | None = None

    @property
    def has_older(self) -> bool:
        """Whether records before the range may be wanted."""
        return self._held.start < min(self.range.start, self._held.stop)

    @property
    def has_newer(self) -> bool:
        """Whether records after the range may be wanted."""
        return max(self.range.end, self._held.start) < self._held.stop

    def look(self, count: int, max_bytes: int) -> None:
        """Read until so many records are found, or as far as bytes or damage allow."""
        tp, low, high = self._limits
        newest = self._newest
        low, high = first, last = max(low, self._held.start), min(high, self._held.stop)
        width, is_stuck = count if self._wanted.is_every else _FIRST_OFFSETS, False
        while low < high and len(self.rows) < count and not is_stuck:
            left = max_bytes - self.size_in_bytes
            if left <= 0 and (low, high) != (
                first,
                last,
            ):  # it reads something, whatever that costs
                break
            width = min(width, high - low)
            width, most = self._fitting(width, high, left) if newest else (width, left)
            start = high - width if newest else low
            rows, reached, is_damaged = self._read(OffsetRange(tp, start, start + width), most)
            if newest and start < reached < high:
                # Records after that are newer: it was too large, or there is damage before them.
                width = high - reached if is_damaged else max((reached - start) // 2, 1)
                continue
            self.rows = pa.concat_tables([rows, self.rows] if newest else [self.rows, rows])
            is_stuck = reached <= start
            low, high = (low, start) if newest else (reached, high)
            width *= _WIDER
        self.offsets_count = max(low - first + last - high, 0)
        self._bound(high if newest else low)
        self.keep(count)

    def _bound(self, offset: int) -> None:
        """Say that records were looked at down to, or up to, an offset."""
        start, end = (offset, self._limits.end) if self._newest else (self._limits.start, offset)
        self.range = self._limits._replace(start=start, end=end)

    def keep(self, count: int) -> None:
        """Keep only so many of the records that were found, and the offsets among which they are all."""
        left_out = len(self.rows) - count
        if left_out <= 0:
            return
        offsets = self.rows.column("offset")
        self._bound(offsets[left_out - 1].as_py() + 1 if self._newest else offsets[count].as_py())
        self.rows = self.rows.slice(left_out if self._newest else 0, count)

    def _fitting(self, width: int, high: int, left: int) -> tuple[int, int]:
        """Return how many offsets before `high` to read at a time, and how many bytes to take for them."""
        if left <= 0:
            return 1, 1
        while (about := self._view.bytes_between(high - width, high) or 0) > left and width > 1:
            width //= 2
        # Where nothing tells their size, half of the bytes are left for fewer of them.
        return width, left if about else max(left // 2, 1)

    def _read(self, window: OffsetRange, max_bytes: int) -> tuple[pa.Table, int, bool]:
        """Read a window of offsets.

        Returns:
            The rows that are wanted, the offset up to which it was read, and whether damage is why that is not
            the end; then it is where records can be read again, if that is known.
        """
        wanted, rows, decoded = self._wanted, [self.rows.slice(0, 0)], 0
        reached, damage = window.start, None
        with wanted.reader.source.fetcher(window, self._topic_id) as fetcher:
            bounded = _BoundedFetcher(fetcher, max_bytes)
            try:
                for batch in reading.read_range(
                    bounded, window, RECORD_SCHEMA.names, wanted.isolation,
                    on_loss=lambda *_: None, max_decompressed_batch_bytes=_DECOMPRESSED_MAX,
                    times_ms=wanted.where.times_ms if wanted.where else None,
                ):  # fmt: skip
                    rows += map(_as_table, wanted.rows(batch, window.topic_partition))
                    reached = batch.column("offset")[-1].as_py() + 1
                    decoded += batch.nbytes
                    if decoded > max_bytes * _DECODED_PER_BYTE:
                        break
                else:
                    reached = bounded.next_offset if bounded.is_cut else window.end
            except _UNREADABLE as error:
                damage = self.error = error
                if isinstance(error, CorruptRecordError):
                    reached = max(reached, error.next_offset)
        self.size_in_bytes += max(bounded.size_in_bytes, decoded // _DECODED_PER_BYTE)
        return pa.concat_tables(rows), min(reached, window.end), damage is not None


def _as_table(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows])


def peek(
    reader: TopicReader,
    topic: str,
    typed: TypedColumns,
    *,
    partitions: Sequence[int] | None,
    start: OffsetBound | None,
    end: OffsetBound,
    count: int,
    key: bytes | str | None,
    where: str | None,
    isolation_level: str,
    max_bytes: int,
) -> Peek:
    """Return some records of a topic; arguments and errors are those of `Cluster.peek`."""
    isolation, newest = parse_isolation_level("isolation_level", isolation_level), start is None
    arguments.whole_number("count", count, 1, COUNT_MAX)
    arguments.whole_number("max_bytes", max_bytes, 1)
    if isinstance(key, str):
        key = key.encode()
    if not isinstance(key, bytes | None):
        arguments.refuse("key", key, "bytes, or text, which is its UTF-8")
    condition = None if where is None else reader.where(where, typed)
    wanted = _Wanted(reader, typed, condition, key, isolation)
    chosen = reader.chosen([topic], partitions)
    views, unreadable = reader.readable(chosen)
    ranges = reader.ranges(
        views, "earliest" if start is None else start, end, isolation, ("earliest",)
    )
    within = dict.fromkeys(views, (0, LONG_MAX))
    if condition is not None:
        within = matching.windows(ranges, views, condition.condition, isolation)
    peeked = list[_Peeked]()
    for number, limits in enumerate(ranges):
        tp = limits.topic_partition
        edges, (low, high) = views[tp].offsets, within.get(tp, (0, 0))
        held = range(max(low, edges.log_start_offset), min(high, edges.end_offset(isolation)))
        one = _Peeked(wanted, chosen[tp], views[tp], limits, held, newest=newest)
        left = max_bytes - sum(other.size_in_bytes for other in peeked)
        if left > 0:
            one.look(count, left // (len(ranges) - number))
        peeked.append(one)
    rows = _in_order(wanted, peeked, count, newest=newest)
    return Peek(
        rows,
        [one.range for one in peeked],
        any(one.has_older for one in peeked),
        any(one.has_newer for one in peeked),
        sum(one.offsets_count for one in peeked),
        sum(one.size_in_bytes for one in peeked),
        unreadable | {one.range.topic_partition: one.error for one in peeked if one.error},
    )


def _in_order(wanted: _Wanted, peeked: Sequence[_Peeked], count: int, *, newest: bool) -> pa.Table:
    """Return the first or the newest records of those that were found, and have the others dropped."""
    found = [one.rows for one in peeked]
    times = [
        np.maximum.accumulate(rows.column("timestamp").cast(pa.int64()).to_numpy())
        for rows in found
    ]
    of = np.repeat(np.arange(len(found)), [len(rows) for rows in found])
    every = pa.concat_tables([wanted.schema.empty_table(), *found]).combine_chunks()
    # Each partition's are in order already, and this sort keeps that.
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *times]), kind="stable")
    chosen = order[-count:] if newest else order[:count]
    for one, taken in zip(peeked, np.bincount(of[chosen], minlength=len(found)), strict=True):
        one.keep(int(taken))
    return every.take(chosen)
