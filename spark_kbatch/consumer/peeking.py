"""Some records of a topic for a person to look at: the newest ones, or those from an offset on.

That costs a bounded number of bytes, wherever the records are and however large they are:

    partitions     one after another, each with its share of the bytes that are left
    windows        of offsets, from the end down or from the start up, each wider than the one before, as far as
                   that one's bytes tell that it fits; from the end down, one that is larger all the same is read
                   again from a later offset
    fetches        of few bytes each; the first batch comes whole
    decoded        bytes count too: a batch of a few may hold many
    batches        count as some bytes in a bucket, where each may be an object to ask for

So where few records are wanted, a peek ends with its bytes, and its ranges say where to go on.

Records of several partitions are put in order by their times, but each partition keeps the order of its
offsets: a record counts as new as the newest one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.consumer import matching, reading
from spark_kbatch.consumer.rows import Rows, TypedColumns
from spark_kbatch.errors import UNREADABLE
from spark_kbatch.model import LONG_MAX, LogOffsets, OffsetRange, ReadRange, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.write import parse_isolation_level
from spark_kbatch.record.codec import RECORD_SCHEMA

if TYPE_CHECKING:
    from spark_kbatch.consumer.topic_reader import OffsetBound, TopicReader
    from spark_kbatch.record.header import LogRead
    from spark_kbatch.store.source import Fetcher

COUNT_MAX = 10_000
_DECOMPRESSED_MAX = 64 << 20  # of one batch
_DECODED_PER_BYTE = 8  # so many decoded bytes count as one that is read
_FETCH_BYTES, _SMALL_FETCH_BYTES = 256 << 10, 4 << 10  # the second where batches count
_WIDER = 8  # is a window than the one before, where the bytes allow


class Peek(NamedTuple):
    """Some records of a topic, and where they are."""

    # Oldest first, with the columns of a read with the same options, without `topic`.
    rows: pa.Table
    # Of each partition the offsets of which all records that are wanted are among the rows.
    ranges: Sequence[OffsetRange]
    has_older: bool  # whether records that are wanted may be before the ranges
    has_newer: bool
    size_in_bytes: int  # of batches that were read
    errors: Mapping[TopicPartition, Exception]  # why not all of a partition could be read


class _EnoughError(Exception):
    """So many bytes were fetched as may be."""


class _BoundedFetcher:
    """A fetcher that raises _EnoughError once it has fetched so many bytes."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        self._fetcher, self._max_bytes = fetcher, max_bytes
        self._batch_bytes = getattr(fetcher, "batch_bytes", 0)
        self._fetch_bytes = _SMALL_FETCH_BYTES if self._batch_bytes else _FETCH_BYTES
        self.size_in_bytes = self.next_offset = 0  # of what was fetched, and after it

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches as the fetcher does."""
        left = self._max_bytes - self.size_in_bytes
        if left <= 0:
            raise _EnoughError
        read, edges = self._fetcher.fetch(
            topic_partition, asked._replace(max_bytes=min(self._fetch_bytes, left))
        )
        self.size_in_bytes += max(len(read.data), self._batch_bytes * len(read.batches))
        self.next_offset = read.batches[-1][1].next_offset if read.batches else asked.offset
        return read, edges


class _Read(NamedTuple):
    """The records of a range of offsets that are wanted."""

    rows: pa.Table
    # That was read. It ends at damage where records can be read again, if that is known.
    range: OffsetRange
    size_in_bytes: int
    error: Exception | None  # about damage


def peek(
    reader: TopicReader,
    topic: str,
    typed: TypedColumns,
    *,
    partitions: Iterable[int] | None,
    start: OffsetBound | None,
    end: OffsetBound,
    count: int,
    where: str | None,
    isolation_level: str,
    max_bytes: int,
) -> Peek:
    """Return some records of a topic; arguments and errors are those of `Cluster.peek`."""
    isolation, newest = parse_isolation_level("isolation_level", isolation_level), start is None
    arguments.whole_number("count", count, 1, COUNT_MAX)
    left = arguments.whole_number("max_bytes", max_bytes, 1)
    condition = None if where is None else reader.where(where, typed)
    chosen = reader.chosen([topic], partitions)
    views, unreadable = reader.readable(chosen)
    ranges = reader.ranges(
        views, "earliest" if start is None else start, end, isolation, ("earliest",)
    )
    within = (
        matching.windows(ranges, views, condition.condition, isolation)
        if condition
        else dict.fromkeys(views, (0, LONG_MAX))
    )
    rows = Rows([name for name in typed.schema.names if name != "topic"], typed, where=condition)

    def read(window: OffsetRange, most: int) -> _Read:
        found, decoded, reached, damage = list[pa.RecordBatch](), 0, window.start, None
        with reader.source.fetcher(window, chosen[window.topic_partition]) as fetcher:
            bounded = _BoundedFetcher(fetcher, most)
            try:
                for batch in reading.read_range(
                    bounded, window, RECORD_SCHEMA.names, isolation,
                    on_loss=lambda *_: None, max_decompressed_batch_bytes=_DECOMPRESSED_MAX,
                    times_ms=condition.times_ms if condition else None,
                ):  # fmt: skip
                    found += rows.of([batch], window.topic_partition)
                    reached = batch.column("offset")[-1].as_py() + 1
                    decoded += batch.nbytes
                    if decoded > most * _DECODED_PER_BYTE:
                        break
                else:
                    reached = window.end
            except _EnoughError:
                reached = bounded.next_offset
            except (*UNREADABLE, OSError) as error:
                damage, reached = error, max(reached, getattr(error, "next_offset", -1))
        return _Read(
            pa.Table.from_batches(found, rows.schema),
            window._replace(end=min(reached, window.end)),
            max(bounded.size_in_bytes, decoded // _DECODED_PER_BYTE),
            damage,
        )

    held, limits = dict[TopicPartition, tuple[int, int]](), list[OffsetRange]()
    for tp, *asked in ranges:
        log = views[tp].offsets
        held[tp] = _clamped(within.get(tp, (0, 0)), log.log_start_offset, log.end_offset(isolation))
        limits.append(OffsetRange(tp, *_clamped(asked, *held[tp])))
    parts, nothing = list[_Read](), rows.schema.empty_table()
    to_read = sum(one.start < one.end for one in limits)
    for one in limits:
        share = left // max(to_read, 1)
        to_read -= one.start < one.end
        parts.append(_part(read, one, nothing, count if left > 0 else 0, share, newest=newest))
        left -= parts[-1].size_in_bytes
    table, found = _in_order(parts, nothing, count, newest=newest)
    return Peek(
        table,
        found,
        any(one.start > held[one.topic_partition][0] for one in found),
        any(one.end < held[one.topic_partition][1] for one in found),
        max_bytes - left,
        unreadable | {one.range.topic_partition: one.error for one in parts if one.error},
    )


def _part(
    read: Callable[[OffsetRange, int], _Read],
    limits: OffsetRange,
    found: pa.Table,
    count: int,
    max_bytes: int,
    *,
    newest: bool,
) -> _Read:
    """Read of one partition until so many records are found, or as far as bytes or damage allow.

    Args:
        read: reads a window, for a number of bytes.
        limits: where to look.
        found: a table without rows.
        count: how many records are wanted.
        max_bytes: how many to read; it reads something, whatever that costs.
        newest: whether to look from the end down.
    """
    tp, low, high = limits
    start, reached = low - 1, low  # no further where damage has no end
    size, width, most = 0, count, max_bytes // 2
    error: Exception | None = None
    # With few bytes left, what is stored together would be read again for few records.
    while (
        low < high
        and found.num_rows < count
        and start < reached
        and (size < max_bytes * 3 // 4 or (low, high) == limits[1:])
    ):
        width = min(width, high - low)
        start = high - width if newest else low
        one = read(OffsetRange(tp, start, start + width), max(most, 1))
        size, error, reached = size + one.size_in_bytes, error or one.error, one.range.end
        most = max_bytes - size
        if newest and start < reached < high:  # what comes after that is wanted first
            width = max((reached - start) // 2, 1)
            continue
        found = pa.concat_tables([one.rows, found] if newest else [found, one.rows])
        low, high = (low, start) if newest else (reached, high)
        fitting = (reached - start) * most * 3 // (4 * max(one.size_in_bytes, 1))
        width = max(min(width * _WIDER, fitting), 1)
    looked_at = (high, limits.end) if newest else (limits.start, low)
    return _Read(found, OffsetRange(tp, *looked_at), size, error)


def _clamped(bounds: Iterable[int], low: int, high: int) -> tuple[int, int]:
    start, end = (min(max(one, low), high) for one in bounds)
    return start, end


def _in_order(
    parts: Sequence[_Read], nothing: pa.Table, count: int, *, newest: bool
) -> tuple[pa.Table, list[OffsetRange]]:
    """Return the newest or oldest records of all partitions, and the offsets among which these are all of them."""
    tables = [nothing, *(one.rows for one in parts)]
    times = [np.maximum.accumulate(one["timestamp"].cast(pa.int64()).to_numpy()) for one in tables]
    # Each partition's are in order already, and this sort keeps that.
    order = np.argsort(np.concatenate(times), kind="stable")
    cut = max(len(order) - count, 0) if newest else count
    table = pa.concat_tables(tables).take(order)
    oldest, rest = table.slice(0, cut), table.slice(cut)
    kept, others = (rest, oldest) if newest else (oldest, rest)
    edge = "max" if newest else "min"
    last = others.group_by("partition").aggregate([("offset", edge)]).to_pydict()
    bounds = dict(zip(last["partition"], last[f"offset_{edge}"], strict=True))
    return kept, [
        OffsetRange(tp, max(start, bounds.get(tp.partition, -1) + 1), end)
        if newest
        else OffsetRange(tp, start, bounds.get(tp.partition, end))
        for tp, start, end in (one.range for one in parts)
    ]
