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

The first and last piece of a range keep an EARLIEST or LATEST at its start or end.

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetRangeCalculator.scala,
KafkaOffsetReaderAdmin.getOffsetRangesFromUnresolvedOffsets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from spark_kbatch.consumer.planning import number
from spark_kbatch.model import LONG_MAX, OffsetRange, Piece, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.store.source import LogView

PIECE_BYTES = 128 << 20


Within: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
_EVERYWHERE: Within = {}

CutsOf: TypeAlias = Callable[[Sequence[OffsetRange]], Sequence[Mapping[TopicPartition, int]]]


def tasks(
    ranges: Sequence[OffsetRange],
    views: Mapping[TopicPartition, LogView],
    options: ReadOptions,
    cuts_of: CutsOf,
    within: Within = _EVERYWHERE,
) -> list[tuple[Piece, ...]]:
    """Return the pieces that each task of a batch read reads.

    Args:
        ranges: of the read.
        views: of their partitions.
        options: of the read.
        cuts_of: as `Source.common_cuts`.
        within: the first offset and the end of what is needed, by partition; the rest is not divided.
    """
    if options.min_partitions is not None or options.max_records_per_partition is not None:
        return [(piece,) for piece in split(ranges, views, options, within)]
    known = [_known(one, views[one.topic_partition], options, within) for one in ranges]
    cuts = cuts_of([one for one in known if one.start < one.end])
    apart, together = list[tuple[Piece, ...]](), [list[Piece]() for _ in cuts]
    for planned, one in zip(ranges, known, strict=True):
        tp = planned.topic_partition
        places = [place for place, cut in enumerate(cuts) if tp in cut]
        if not places:
            apart += [(piece,) for piece in _by_bytes(planned, one, views[tp])]
            continue
        points = [max(cuts[place][tp], one.start) for place in places]
        before = views[tp].split_points(one.start, points[0], piece_bytes=PIECE_BYTES)
        pieces = [*_split_at(planned, [*before, *points])]
        first = len(pieces) - len(points)
        apart += [(piece,) for piece in pieces[:first] if one.start < points[0]]
        # Those are left out that are empty, but for the last, in which there may be more when it is read.
        for place, piece, start, end in zip(
            places, pieces[first:], points, [*points[1:], LONG_MAX], strict=True
        ):
            if start == one.start:
                piece = piece._replace(wanted=piece.wanted._replace(start=planned.start))
            if start < end:
                together[place].append(piece)
    return [*apart, *(tuple(pieces) for pieces in together if pieces)]


def split(
    ranges: Sequence[OffsetRange],
    views: Mapping[TopicPartition, LogView],
    options: ReadOptions,
    within: Within = _EVERYWHERE,
) -> list[Piece]:
    """Split the offset ranges of a batch read into one piece for each task, by the read options.

    Pieces are in the order of ranges; a range that is empty now is kept.
    """
    if options.min_partitions is None and options.max_records_per_partition is None:
        known = [_known(one, views[one.topic_partition], options, within) for one in ranges]
        return [
            piece
            for planned, one in zip(ranges, known, strict=True)
            for piece in _by_bytes(planned, one, views[one.topic_partition])
        ]
    if not _needs_split(ranges, options):
        return [Piece(one, one) for one in ranges]
    known = [_known(one, views[one.topic_partition], options, within) for one in ranges]
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


def _by_bytes(planned: OffsetRange, known: OffsetRange, view: LogView) -> Iterator[Piece]:
    points = view.split_points(known.start, known.end, piece_bytes=PIECE_BYTES)
    return _split_at(planned, points)


def _known(one: OffsetRange, view: LogView, options: ReadOptions, within: Within) -> OffsetRange:
    """Return an offset range with EARLIEST and LATEST looked up, limited to what the log holds now, and is needed."""
    first, last = view.offsets.log_start_offset, view.offsets.end_offset(options.isolation_level)
    start, end = (number(n, view.offsets, options.isolation_level) for n in one[1:])
    tp = one.topic_partition
    low, high = within.get(tp, (first, last))
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
