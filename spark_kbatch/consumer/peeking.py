"""Some records of a topic for a person to look at: the newest ones, or those from an offset on.

That costs a bounded number of bytes, wherever the records are and however large they are:

    partitions     one after another, each with its share of the bytes that are left
    windows        of offsets, from the end down or from the start up, each wider than the one before; one that is too
                   large for the share is narrowed, and read again from a later offset
    fetches        of a few bytes first, then of more; the first batch comes whole
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
import pyarrow.compute as pc

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
_FIRST_FETCH_BYTES, _FETCH_BYTES_MAX = 64 << 10, 1 << 20
_FIRST_OFFSETS = 4096  # of a window, where not every record is wanted
_BYTES_PER_OFFSET = 1024  # is guessed where nothing tells
_WIDER = 4  # is each window than the one before


class Peek(NamedTuple):
    """Some records of a topic, and where they are."""

    rows: (
        pa.Table
    )  # oldest first, with the columns of a read with the same options, without `topic`
    # Of each partition the offsets of which all records that are wanted are among the rows.
    ranges: Sequence[OffsetRange]
    has_older: bool  # whether records that are wanted may be before the ranges
    has_newer: bool
    size_in_bytes: int  # of batches that were read
    errors: Mapping[TopicPartition, Exception]  # why not all of a partition could be read


class _BoundedFetcher:
    """A fetcher that has no more batches once it has fetched so many bytes."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        self._fetcher, self._max_bytes = fetcher, max_bytes
        self._batch_bytes = getattr(fetcher, "batch_bytes", 0)
        self._next_bytes = _FIRST_FETCH_BYTES if not self._batch_bytes else _FIRST_FETCH_BYTES >> 4
        self._nothing: tuple[LogRead, LogOffsets] | None = None  # there is before the first fetch
        self.size_in_bytes = self.next_offset = 0  # of what was fetched, and after it
        self.is_cut = False  # there was more to fetch

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches as the fetcher does, none once there were enough."""
        left = self._max_bytes - self.size_in_bytes
        if self._nothing is not None and left <= 0:
            self.is_cut = True
            return self._nothing
        asked = asked._replace(max_bytes=max(min(self._next_bytes, left), 1))
        read, edges = self._fetcher.fetch(topic_partition, asked)
        self._nothing = read._replace(batches=[]), edges
        self.size_in_bytes += max(len(read.data), self._batch_bytes * len(read.batches))
        self._next_bytes = min(2 * self._next_bytes, _FETCH_BYTES_MAX)
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
    key: bytes | str | None,
    where: str | None,
    isolation_level: str,
    max_bytes: int,
) -> Peek:
    """Return some records of a topic; arguments and errors are those of `Cluster.peek`."""
    isolation, newest = parse_isolation_level("isolation_level", isolation_level), start is None
    arguments.whole_number("count", count, 1, COUNT_MAX)
    left = arguments.whole_number("max_bytes", max_bytes, 1)
    if not isinstance(key, bytes | str | None):
        arguments.refuse("key", key, "bytes, or text, which is its UTF-8")
    wanted_key = None if key is None else pa.scalar(key, pa.binary())
    condition = None if where is None else reader.where(where, typed)
    chosen = reader.chosen([topic], partitions)
    views, unreadable = reader.readable(chosen)
    first = "earliest" if start is None else start
    ranges = reader.ranges(views, first, end, isolation, ("earliest",))
    within = dict.fromkeys(views, (0, LONG_MAX))
    if condition is not None:
        within = matching.windows(ranges, views, condition.condition, isolation)
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
                    has_key = None if key is None else pc.equal(batch.column("key"), wanted_key)
                    of_key = batch if has_key is None else batch.filter(has_key)
                    found += rows.of([of_key], window.topic_partition)
                    reached = batch.column("offset")[-1].as_py() + 1
                    decoded += batch.nbytes
                    if decoded > most * _DECODED_PER_BYTE:
                        break
                else:
                    reached = bounded.next_offset if bounded.is_cut else window.end
            except (*UNREADABLE, OSError) as error:
                damage, reached = error, max(reached, getattr(error, "next_offset", -1))
        size = max(bounded.size_in_bytes, decoded // _DECODED_PER_BYTE)
        table = pa.Table.from_batches(found, rows.schema)
        return _Read(table, window._replace(end=min(reached, window.end)), size, damage)

    held, parts = dict[TopicPartition, tuple[int, int]](), list[_Read]()
    width = count if condition is None and key is None else _FIRST_OFFSETS
    for number, (tp, *asked) in enumerate(ranges):
        log = views[tp].offsets.log_start_offset, views[tp].offsets.end_offset(isolation)
        held[tp] = _clamped(within.get(tp, (0, 0)), *log)
        limits = OffsetRange(tp, *_clamped(asked, *held[tp]))
        share, most = left // (len(ranges) - number), count if left > 0 else 0
        about = views[tp].bytes_between
        part = _part(read, about, limits, most, width, share, rows.schema, newest=newest)
        left -= part.size_in_bytes
        parts.append(part)
    parts, table = _in_order(parts, rows.schema, count, newest=newest)
    found = [one.range for one in parts]
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
    bytes_between: Callable[[int, int], int | None],
    limits: OffsetRange,
    count: int,
    width: int,
    max_bytes: int,
    schema: pa.Schema,
    *,
    newest: bool,
) -> _Read:
    """Read of one partition until so many records are found, or as far as bytes or damage allow.

    Args:
        read: reads a window, for a number of bytes.
        bytes_between: returns about how many bytes a range has, None if nothing tells.
        limits: where to look.
        count: how many records are wanted.
        width: of the first window.
        max_bytes: how many to read; it reads something, whatever that costs.
        schema: of the records.
        newest: whether to look from the end down.
    """
    tp, low, high = limits
    found, size, is_stuck = schema.empty_table(), 0, False
    error: Exception | None = None
    while low < high and found.num_rows < count and not is_stuck:
        # With few bytes left, what is stored together would be read again for few records.
        if size >= max_bytes * 3 // 4 and (low, high) != limits[1:]:
            break
        most = left = max(max_bytes - size, 1)
        width = min(width, high - low)
        if newest:
            about = bytes_between(high - width, high)
            # Where nothing tells, half of the bytes are for fewer of its records, should they be larger.
            left, most = (left, 2 * left) if about else (left // 2, left // 2)
            about = about or width * _BYTES_PER_OFFSET
            width = max(width * min(left, about) // about, 1)
        start = high - width if newest else low
        one = read(OffsetRange(tp, start, start + width), most)
        size, error, reached = size + one.size_in_bytes, error or one.error, one.range.end
        if newest and start < reached < high:  # what comes after that is wanted first
            width = high - reached if one.error else max((reached - start) // 2, 1)
            continue
        found = pa.concat_tables([one.rows, found] if newest else [found, one.rows])
        low, high = (low, start) if newest else (reached, high)
        width, is_stuck = width * _WIDER, reached <= start
    looked_at = (high, limits.end) if newest else (limits.start, low)
    part = _Read(found, OffsetRange(tp, *looked_at), size, error)
    return _kept(part, count, newest=newest)


def _clamped(bounds: Iterable[int], low: int, high: int) -> tuple[int, int]:
    start, end = (min(max(one, low), high) for one in bounds)
    return start, end


def _kept(part: _Read, count: int, *, newest: bool) -> _Read:
    """Return the newest or oldest records of a partition, and the offsets among which these are all of them."""
    rows, left_out = part.rows, part.rows.num_rows - count
    if left_out <= 0:
        return part
    last = rows.column("offset")[left_out - 1 if newest else count].as_py()
    bound = {"start": last + 1} if newest else {"end": last}
    kept = rows.slice(left_out if newest else 0, count)
    return part._replace(rows=kept, range=part.range._replace(**bound))


def _in_order(
    parts: Sequence[_Read], schema: pa.Schema, count: int, *, newest: bool
) -> tuple[list[_Read], pa.Table]:
    """Return the newest or oldest records of all partitions, and those of each."""
    times = [
        np.maximum.accumulate(one.rows.column("timestamp").cast(pa.int64()).to_numpy())
        for one in parts
    ]
    # Each partition's are in order already, and this sort keeps that.
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *times]), kind="stable")
    order = order[max(len(order) - count, 0) :] if newest else order[:count]
    of = np.repeat(np.arange(len(parts)), [one.rows.num_rows for one in parts])
    counts = np.bincount(of[order], minlength=len(parts)).tolist()
    table = pa.concat_tables([schema.empty_table(), *(one.rows for one in parts)])
    kept = [_kept(one, n, newest=newest) for one, n in zip(parts, counts, strict=True)]
    return kept, table.combine_chunks().take(order)
