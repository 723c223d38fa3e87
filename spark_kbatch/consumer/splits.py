"""The division of a read's offset ranges among Spark tasks.

With `minPartitions` or `maxRecordsPerPartition` they are divided as Spark's connector does it:

    1. A range of more than maxRecordsPerPartition offsets is split into as few pieces as possible.
    2. If that makes fewer than minPartitions pieces, each range gets a share of minPartitions by its
       size. Ranges whose share rounds to one piece are not split; what they leave of minPartitions is
       shared out again among the others.
    3. The pieces of a range have the same size; the remainder goes to the last ones.

Without both, a range of more than 128 MiB of log is split into pieces of about that size, so that one
large partition keeps all cores busy. Where the batches of several partitions are stored together, as small
objects of a bucket are, a task reads all of them from one cut to the next.

And small ranges share tasks, unless `shareTasks` is false, as Spark's small files do:

    small     at most 4 MiB of log; where nothing tells sizes, at most 1,000 offsets
    cost      bytes and 4 MiB, as each range costs some time by itself; a task has about 128 MiB of cost, so
              at most 32 ranges
    16 tasks  a read has at least, if it has as many ranges: Spark's files go by the cores of the cluster,
              which a data source in Python is not told

A task has ranges that follow each other by topic and partition, and reads one after the other.

The first and last piece of a range keep an EARLIEST or LATEST at its start or end.

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetRangeCalculator.scala,
KafkaOffsetReaderAdmin.getOffsetRangesFromUnresolvedOffsets; sql/core/.../FilePartition.scala,
spark.sql.files.openCostInBytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from spark_kbatch.consumer.planning import number
from spark_kbatch.model import LONG_MAX, OffsetRange, Piece, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.store.source import LogView, TopicLookup

PIECE_BYTES = 128 << 20
RANGE_COST_BYTES = 4 << 20  # of a range by itself; no more has one that is small
UNSIZED_OFFSETS_MAX = 1000  # of a small range, where nothing tells its size
TASKS_MIN = 16  # that small ranges are shared out among

# The first offset and the end of what is needed, by partition; one that is not named is not needed.
Within: TypeAlias = Mapping[TopicPartition, tuple[int, int]]


def tasks(
    ranges: Sequence[OffsetRange],
    views: Mapping[TopicPartition, LogView],
    options: ReadOptions,
    topics: TopicLookup,
    within: Within | None = None,
) -> list[tuple[Piece, ...]]:
    """Return the pieces that each task of a batch read or a micro-batch reads.

    Args:
        ranges: of the read.
        views: of their partitions.
        options: of the read.
        topics: whose views these are.
        within: what is needed of them; by default all.
    """
    if within is not None:
        needed = [one for one in ranges if one.topic_partition in within]
        known = [_known(one, views[one.topic_partition], options, within) for one in needed]
        divided = _divided(needed, known, views, options, topics)
        return [some for task in divided if (some := clipped(task, within))]
    known = [_known(one, views[one.topic_partition], options) for one in ranges]
    return _divided(ranges, known, views, options, topics)


def clipped(pieces: Iterable[Piece], within: Within) -> tuple[Piece, ...]:
    """Return the parts of pieces that are needed; EARLIEST and LATEST stay where nothing is cut."""
    found = []
    for piece in pieces:
        tp, start, end = piece.wanted
        if tp not in within:
            continue
        low, high = within[tp]
        start = max(start, low) if low else start
        if high <= LONG_MAX:
            end = high if end < 0 else min(end, high)
        if end < 0 or start < end:
            found.append(piece._replace(wanted=OffsetRange(tp, start, end)))
    return tuple(found)


def _divided(
    ranges: Sequence[OffsetRange],
    known: Sequence[OffsetRange],
    views: Mapping[TopicPartition, LogView],
    options: ReadOptions,
    topics: TopicLookup,
) -> list[tuple[Piece, ...]]:
    """Return the pieces of ranges for each task, as `tasks`.

    Args:
        known: each range as `_known`.
    """
    if options.min_partitions is not None or options.max_records_per_partition is not None:
        return [(piece,) for piece in _as_told(ranges, known, options)]
    held = [one for one in known if one.start < one.end]
    # Asked for in any case: it loads what tells sizes, of all partitions together.
    found = topics.common_cuts(held, piece_bytes=PIECE_BYTES)
    cuts = found if options.share_tasks else ()
    apart, together = list[tuple[Piece, OffsetRange]](), [list[Piece]() for _ in cuts]
    for planned, one in zip(ranges, known, strict=True):
        tp = planned.topic_partition
        places = [place for place, cut in enumerate(cuts) if tp in cut]
        points = [max(cuts[place][tp], one.start) for place in places]
        apart_end = points[0] if points else one.end
        before = views[tp].split_points(one.start, apart_end, piece_bytes=PIECE_BYTES)
        pieces = [*_split_at(planned, [*before, *points])]
        first = len(pieces) - len(points)
        if one.start < apart_end or not points:
            now = _split_at(one._replace(end=apart_end), before)
            apart += zip(pieces[:first], (piece.wanted for piece in now), strict=True)
        # Those are left out that are empty, but for the last, in which there may be more when it is read.
        for place, piece, start, end in zip(
            places, pieces[first:], points, [*points, LONG_MAX][1:], strict=True
        ):
            if start == one.start:
                piece = piece._replace(wanted=piece.wanted._replace(start=planned.start))
            if start < end:
                together[place].append(piece)
    alone = [(piece,) for piece, _ in apart]
    shares = options.share_tasks and len(apart) > TASKS_MIN
    return [
        *(_shared(apart, views) if shares else alone),
        *(tuple(pieces) for pieces in together if pieces),
    ]


def _shared(
    pieces: Sequence[tuple[Piece, OffsetRange]], views: Mapping[TopicPartition, LogView]
) -> list[tuple[Piece, ...]]:
    """Return the pieces of each task, small ones several together.

    Args:
        pieces: in order, and the offsets that each has now; at most one piece of a partition is small.
        views: of their partitions.
    """
    costs = [_cost_if_small(now, views[now.topic_partition]) for _, now in pieces]
    total, left = sum(costs), len(costs) - costs.count(0)
    count = max(TASKS_MIN - costs.count(0), -(-total // PIECE_BYTES), 1)
    if count >= left:
        return [(piece,) for piece, _ in pieces]
    found: dict[int, list[Piece]] = {}  # by the number of a shared task; below 0, of a large piece
    before, task = 0, -1
    for place, ((piece, _), cost) in enumerate(zip(pieces, costs, strict=True), 1):
        if not cost:
            found[-place] = [piece]
            continue
        # The middle of each piece decides, as long as no task stays without one.
        task = max(min((2 * before + cost) * count // (2 * total), task + 1), count - left)
        found.setdefault(task, []).append(piece)
        before, left = before + cost, left - 1
    return [*map(tuple, found.values())]


def _cost_if_small(one: OffsetRange, view: LogView) -> int:
    """Return what a small range costs, in bytes; 0 for a large one."""
    size = view.bytes_between(one.start, one.end)
    if size is None:
        return RANGE_COST_BYTES if one.end - one.start <= UNSIZED_OFFSETS_MAX else 0
    return RANGE_COST_BYTES + size if size <= RANGE_COST_BYTES else 0


def _as_told(
    ranges: Sequence[OffsetRange], known: Sequence[OffsetRange], options: ReadOptions
) -> list[Piece]:
    """Split offset ranges into one piece for each task, by minPartitions and maxRecordsPerPartition.

    Pieces are in the order of ranges; a range that is empty now is kept.
    """
    if not _needs_split(ranges, options):
        return [Piece(one, one) for one in ranges]
    pieces: dict[TopicPartition, list[OffsetRange]] = {}
    for piece in divide(known, options.min_partitions, options.max_records_per_partition):
        pieces.setdefault(piece.topic_partition, []).append(piece)
    return [
        piece
        for planned in ranges
        for piece in _split_at(
            planned, [piece.start for piece in pieces.get(planned.topic_partition, [])[1:]]
        )
    ]


def _needs_split(ranges: Sequence[OffsetRange], options: ReadOptions) -> bool:
    """Return True if minPartitions or maxRecordsPerPartition requires offset ranges to be split.

    The size of a range is only known if both ends are offsets; otherwise it does not count.
    Source: KafkaOffsetReaderAdmin.shouldDivvyUpLargePartitions.
    """
    most = options.max_records_per_partition
    return len(ranges) < (options.min_partitions or 0) or (
        most is not None and any(one.end - one.start > most for one in ranges)
    )


def _known(
    one: OffsetRange, view: LogView, options: ReadOptions, within: Within | None = None
) -> OffsetRange:
    """Return a range with EARLIEST and LATEST looked up, as far as it is held, and needed."""
    first, last = view.offsets.log_start_offset, view.offsets.end_offset(options.isolation_level)
    start, end = (number(n, view.offsets, options.isolation_level) for n in one[1:])
    tp = one.topic_partition
    low, high = within[tp] if within else (first, last)
    start, end = max(start, first, min(low, last)), min(end, last, high)
    return OffsetRange(tp, start, max(start, end) if within else end)


def _split_at(planned: OffsetRange, points: Sequence[int]) -> Iterator[Piece]:
    """Yield the pieces of one range, split at these offsets; its own start and end stay as they are."""
    for start, end in itertools.pairwise([planned.start, *points, planned.end]):
        yield Piece(OffsetRange(planned.topic_partition, start, end), planned)


def divide(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Divide ranges of known offsets as Spark's connector does it; empty ones are left out.

    Args:
        ranges: to divide.
        min_partitions: about how many pieces there should be.
        max_records: how many offsets a piece has at most.
    """
    found = [one for one in ranges if one.start < one.end]
    if max_records is not None:
        found = [
            piece
            for one in found
            for piece in _split_evenly(one, math.ceil((one.end - one.start) / max_records))
        ]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.end - one.start for one in found)
    unsplit = [one for one in found if _share(one, total, min_partitions) == 1]
    stay = {one.topic_partition for one in unsplit}
    rest = total - sum(one.end - one.start for one in unsplit)
    left = max(min_partitions - len(unsplit), 1)
    return [
        piece
        for one in found
        for piece in _split_evenly(
            one, 1 if one.topic_partition in stay else _share(one, rest, left)
        )
    ]


def _share(one: OffsetRange, total: int, pieces: int) -> int:
    share = (one.end - one.start) / total * pieces
    below = math.floor(share)
    return max(below + (share - below >= 0.5), 1)


def _split_evenly(one: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    start = one.start
    for part in range(parts):
        size = (one.end - start) // (parts - part)
        if size:
            yield OffsetRange(one.topic_partition, start, start + size)
        start += size
