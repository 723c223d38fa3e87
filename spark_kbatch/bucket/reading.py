"""Reads of a cluster in a bucket: partitions as they are at one moment, offsets by time, whole batches.

A moment is the number of an entry: all partitions that are looked at together are as of the same one. What was
appended later is not in a view, whenever its extents are looked up: those of an offset stay where they are, or
are replaced by the same records.

An object that is missing was deleted because nothing refers to it any more, so the newest state knows more:

    the topic is gone                          UnknownTopicOrPartitionError
    a commit has overwritten the offset        for an hour it is read as it was before that
    the log starts after the offset            OffsetOutOfRangeError
    the offset is in another object            it is read from there
    it is in the same one                      CorruptRecordError with the object's name
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from itertools import chain

from spark_kbatch.bucket.batch_stream import (
    WINDOWS_AHEAD,
    BatchStream,
    MissingObjectError,
    request_threads,
)
from spark_kbatch.bucket.objects import RangeReader
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.bucket.shared_ledger import OVERWRITTEN_KEPT_MS, SharedLedger
from spark_kbatch.clock import now_ms
from spark_kbatch.consumer.same_topic import recreated
from spark_kbatch.errors import (
    CorruptLedgerError,
    CorruptRecordError,
    KBatchError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger.extents import Change
from spark_kbatch.ledger.state import LedgerState, PartitionHead
from spark_kbatch.model import (
    LONG_MAX,
    MAX_TIMESTAMP,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.record.header import LogRead
from spark_kbatch.record.scalar import times

logger = logging.getLogger(__name__)

_PIECES_MAX = 300  # of a partition, above which a reader warns: no one merges them, it seems
# An extent of at least this part of a piece may be divided; smaller ones go to one piece as a whole.
_DIVIDED_FROM = 4


class BucketView:
    """A partition as it was at one moment; a `LogView`."""

    def __init__(
        self, reads: BucketReads, topic_id: str, partition: int, offsets: LogOffsets
    ) -> None:
        self.offsets = offsets
        self._reads, self._topic_id, self._partition = reads, topic_id, partition

    @property
    def size_in_bytes(self) -> int:
        """Size of the extents in which the log's records are."""
        return sum(placed.extent.size_in_bytes for placed in self._extents())

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with that time or a later one, or None."""
        extents = [one for one in self._extents() if one.start_offset < end_offset]
        if timestamp_ms == MAX_TIMESTAMP:
            return self._greatest_time(extents, end_offset)
        for placed in extents:
            if placed.extent.last_ms >= timestamp_ms:
                for offset, time_ms in self._times(placed, end_offset):
                    if time_ms >= timestamp_ms:
                        return OffsetAndTimestamp(offset, time_ms)
        return None

    def _greatest_time(
        self, extents: Iterable[PlacedExtent], end_offset: int
    ) -> OffsetAndTimestamp | None:
        found: OffsetAndTimestamp | None = None
        for placed in sorted(extents, key=lambda one: -one.extent.last_ms):
            if found is not None and placed.extent.last_ms < found.timestamp:
                break  # it may be that of a record that is not in the range
            for offset, time_ms in self._times(placed, end_offset):
                is_first = found is None or (time_ms, -offset) > (found.timestamp, -found.offset)
                if is_first:
                    found = OffsetAndTimestamp(offset, time_ms)
        return found

    def _times(self, placed: PlacedExtent, end_offset: int) -> Iterator[tuple[int, int]]:
        stream = BatchStream(self._reads.objects, [placed], self.offsets.log_start_offset)
        while (read := stream.take(LONG_MAX)) is not None:
            for position, header in read.batches:
                for offset, time_ms in times(read.data, position, header):
                    if self.offsets.log_start_offset <= offset < end_offset:
                        yield offset, time_ms

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return the start of the first extent that may have a record of that time or later."""
        extents = (one for one in self._extents() if one.start_offset < end_offset)
        starts = (one.start_offset for one in extents if one.extent.last_ms >= timestamp_ms)
        return next(starts, end_offset)

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that split [start_offset, end_offset) into pieces of about that size."""
        points, size = list[int](), 0.0  # of the piece so far
        for placed in self._extents(start_offset, end_offset):
            first = max(placed.start_offset, start_offset)
            end = min(placed.next_offset, end_offset)
            if size >= piece_bytes:
                points.append(first)
                size = 0.0
            offset_bytes = placed.extent.size_in_bytes / placed.extent.span
            if placed.extent.size_in_bytes * _DIVIDED_FROM > piece_bytes:
                while size + (end - first) * offset_bytes > piece_bytes:
                    at = first + max(round((piece_bytes - size) / offset_bytes), 1)
                    if at >= end:
                        break
                    points.append(at)
                    first, size = at, 0.0
            size += (end - first) * offset_bytes
        return points

    def bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Return about the size of a range: that of its extents, and of a part of an extent by its offsets."""
        return math.ceil(
            sum(
                placed.extent.size_in_bytes
                * (min(placed.next_offset, end_offset) - max(placed.start_offset, start_offset))
                / placed.extent.span
                for placed in self._extents(start_offset, end_offset)
            )
        )

    def load(self, requests_max: int) -> int:
        """Load what index objects tell of the topic, so that each is asked for once.

        Return how many requests that takes. If these are more than `requests_max`, only so many are made.
        """
        parts = self._reads.ledger.unread_parts(self._topic_id)
        if parts > requests_max:
            return parts
        changes = [*chain.from_iterable(self._reads.ledger.changes(self._topic_id).values())]
        return parts + self._reads.placements.load_indexes(changes, at_most=requests_max - parts)

    def _extents(self, start_offset: int = 0, end_offset: int = LONG_MAX) -> Iterator[PlacedExtent]:
        """Yield the extents with offsets of a range, as far as the view shows it."""
        _, changes = self._reads.ledger.partition(self._topic_id, self._partition)
        start = max(self.offsets.log_start_offset, start_offset)
        return self._reads.placements.of(
            changes, start, min(self.offsets.high_watermark, end_offset)
        )


class BucketReads:
    """The partitions of a cluster in a bucket, to read. Thread-safe."""

    def __init__(self, ledger: SharedLedger) -> None:
        self.placements, self.objects = Placements(ledger.objects), ledger.objects
        self.ledger = ledger
        self._warned: set[str] = set()  # topics; needs no lock, as a warning too many does no harm

    def warn_of_small(self, topic: str, pieces: int) -> None:
        """Warn once that a partition of a topic is in many pieces, if it is."""
        if pieces > _PIECES_MAX and topic not in self._warned:
            self._warned.add(topic)
            logger.warning(
                "a partition of topic %r is in %d pieces, each of which costs a request: `kbatch gc %s` "
                "merges them",
                topic,
                pieces,
                self.ledger.address,
            )

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BucketView]:
        """Return views of these partitions, all as of one moment."""
        with self.ledger.state() as state:
            return {tp: self._view(state, tp) for tp in partitions}

    def views_of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, BucketView]:
        """Return views of all partitions of these topics, all as of one moment."""
        with self.ledger.state() as state:
            every = [tp for topic in topics for tp in partitions_of(state, topic)]
            return {tp: self._view(state, tp) for tp in every}

    def _view(self, state: LedgerState, topic_partition: TopicPartition) -> BucketView:
        topic_id = topic_id_of(state, topic_partition.topic)
        offsets = _edges(state.partition(topic_id, topic_partition.partition))
        return BucketView(self, topic_id, topic_partition.partition, offsets)

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches from an offset on, of the topic that has the name now."""
        with self.ledger.state() as state:
            topic_id = topic_id_of(state, topic_partition.topic)
        return PartitionReader(self, topic_partition, topic_id, LONG_MAX).fetch(
            topic_partition, asked
        )

    @contextlib.contextmanager
    def fetcher(
        self, wanted: OffsetRange, topic_id: str, held: RangeReader | None = None
    ) -> Iterator[PartitionReader]:
        """Return a fetcher for one range, which reads ahead, or reads what is held."""
        if held is not None:
            yield PartitionReader(self, wanted.topic_partition, topic_id, wanted.end, held=held)
            return
        with request_threads(WINDOWS_AHEAD) as executor:
            yield PartitionReader(
                self, wanted.topic_partition, topic_id, wanted.end, executor=executor
            )


class PartitionReader:
    """A fetcher of one partition of the topic with an id. Not thread-safe."""

    # As many as a batch counts at least where reads are bounded: it may take a request.
    batch_bytes = 16 << 10

    def __init__(
        self,
        reads: BucketReads,
        topic_partition: TopicPartition,
        topic_id: str,
        end_offset: int,
        *,
        executor: Executor | None = None,
        held: RangeReader | None = None,
    ) -> None:
        """Look at the partition as it is now.

        Args:
            reads: of the cluster.
            topic_partition: what is read.
            topic_id: of its topic.
            end_offset: with which the last fetch ends.
            executor: reads ahead.
            held: what has the objects, for a caller that follows the ledger itself: no one looks whether it is
                still the same topic.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic, or another one has its name.
        """
        self._reads, self._topic_partition, self._topic_id = reads, topic_partition, topic_id
        self._end_offset, self._executor, self._held = end_offset, executor, held
        self._look_again(reads.ledger if held is None else reads.ledger.followed())
        self._stream: BatchStream | None = None

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return whole batches from an offset on; a `Fetcher`."""
        assert topic_partition == self._topic_partition
        self._reads.ledger.ensure_open()
        if asked.offset >= self._next_offset:
            self._look_again(self._reads.ledger)
            self._stream = None  # it ends where the log did
        self._ensure_in_range(asked.offset)
        try:
            try:
                read = self._take(asked)
            except CorruptRecordError:
                self._held = None
                read = self._take(asked)
        except (MissingObjectError, CorruptLedgerError) as error:  # the latter of an index
            read = self._take_elsewhere(asked, error)
        is_end = not read.batches or read.batches[-1][1].next_offset >= self._end_offset
        if is_end and self._held is None:
            self._look(self._reads.ledger)  # raises if these are not of the topic that has the name
        return read, self._edges

    def _take(self, asked: ReadRange) -> LogRead:
        stream, self._stream = self._stream, None  # dropped after an error
        if stream is None or stream.next_offset != asked.offset:
            if stream is not None:
                self._held = None  # asked for again: it was damaged, maybe as it came
            stream = self._stream_from(asked.offset)
        read = stream.take(asked.max_bytes, min_one_batch=asked.min_one_batch)
        self._stream = stream
        return read or LogRead("", 0, memoryview(b""), [])

    def _stream_from(self, offset: int) -> BatchStream:
        return BatchStream(
            self._held or self._reads.objects,
            self._extents(offset),
            offset,
            executor=self._executor,
        )

    def _extents(self, offset: int) -> Iterator[PlacedExtent]:
        end = min(self._end_offset, self._next_offset)
        return self._reads.placements.of(self._changes, offset, end)

    def _take_elsewhere(self, asked: ReadRange, missing: KBatchError) -> LogRead:
        """Return batches as the newest state knows them, after an object was not there."""
        self._look_again(self._reads.ledger)
        self._ensure_in_range(asked.offset)
        ends = (one.next_offset for one in self._changes if one.next_offset > asked.offset)
        next_offset = next(ends, asked.offset)  # after what an index lists
        try:
            for first in itertools.islice(self._extents(asked.offset), 1):
                next_offset = first.next_offset
                if first.extent.name == str(missing):
                    raise missing
            return self._take(asked)
        except (MissingObjectError, CorruptLedgerError) as error:
            raise CorruptRecordError(
                error.reason if isinstance(error, CorruptLedgerError) else "the object is missing",
                error.name if isinstance(error, CorruptLedgerError) else str(error),
                offset=asked.offset,
                next_offset=next_offset,
            ) from None

    def _ensure_in_range(self, offset: int) -> None:
        if self._first_offset <= offset <= self._next_offset:
            return
        start, end = self._edges.log_start_offset, self._edges.log_end_offset
        if offset >= start or not self._go_back(offset):
            raise OffsetOutOfRangeError(str(self._topic_partition), offset, start, end)

    def _go_back(self, offset: int) -> bool:
        """Read what a commit has overwritten, if it is not long ago: the range was resolved before it.

        What comes after that may have been overwritten, too, by a later commit: it is looked for in its turn.
        """
        partition = self._topic_partition.partition
        found = self._reads.ledger.overwritten(
            self._topic_id, partition, offset, now_ms(), OVERWRITTEN_KEPT_MS
        )
        if found is None:
            return False
        head, self._changes = found
        self._first_offset, self._next_offset = head.start_offset, head.next_offset
        return True

    def _look_again(self, ledger: SharedLedger) -> None:
        self._edges, self._changes = self._look(ledger)
        # What the changes tell of.
        self._first_offset = self._edges.log_start_offset
        self._next_offset = self._edges.log_end_offset

    def _look(self, ledger: SharedLedger) -> tuple[LogOffsets, list[Change]]:
        topic = self._topic_partition.topic
        with ledger.state() as state:
            if topic_id_of(state, topic) != self._topic_id:
                raise recreated(topic)
            partition = self._topic_partition.partition
            head, changes = ledger.partition(self._topic_id, partition)
        self._reads.warn_of_small(topic, len(changes))
        return _edges(head), changes


def partitions_of(state: LedgerState, topic: str) -> list[TopicPartition]:
    """Return all partitions of a topic, in order; raises UnknownTopicOrPartitionError."""
    count = state.topics[topic_id_of(state, topic)].partitions
    return [TopicPartition(topic, number) for number in range(count)]


def topic_id_of(state: LedgerState, topic: str) -> str:
    """Return the id of a topic; raises UnknownTopicOrPartitionError, which says what there is."""
    if topic not in state.topic_ids:
        has = ", ".join(sorted(state.topic_ids)) or "none"
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} does not exist in the bucket, which has {has}"
        )
    return state.topic_ids[topic]


def _edges(head: PartitionHead) -> LogOffsets:
    return LogOffsets(head.start_offset, head.next_offset, head.next_offset, head.next_offset)
