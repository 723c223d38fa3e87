"""Values that cross modules."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeVar

EARLIEST = -2  # in place of an offset: the log start, looked up when read
LATEST = -1  # in place of an offset: the end for its isolation level, looked up when read
MAX_TIMESTAMP = -3  # in place of a time: the record with the largest

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# A partition as it may be named: also a plain pair. A mapping takes one or the other as its keys.
PartitionKey = TypeVar("PartitionKey", bound=tuple[str, int])


# The latest time of a record that a timestamp of microseconds holds, as Spark's and Arrow's are: no
# producer writes a later one, because no read could show it.
TIMESTAMP_MS_MAX = LONG_MAX // 1000


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition; EARLIEST and LATEST stand for bounds not yet known."""

    topic_partition: TopicPartition
    start: int
    end: int


class OffsetAndTimestamp(NamedTuple):
    """A record that a time was looked up for; the time is -1 where an edge of the log was asked."""

    offset: int
    timestamp: int  # ms


class IsolationLevel(Enum):
    """What a reader is given of transactions."""

    READ_UNCOMMITTED = "read_uncommitted"  # all data, up to the high watermark
    READ_COMMITTED = "read_committed"  # what was not aborted, up to the last stable offset


class ReadRange(NamedTuple):
    """The batches that one read of a log asks for: from an offset on, up to a size."""

    offset: int
    max_bytes: int
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    first_batch_whole: bool = True  # returned even if it is larger than `max_bytes`
    buffer: bytearray | None = None  # holds the result if large enough; otherwise one is allocated


class LogOffsets(NamedTuple):
    """The edges of a log: first held; then, exclusive, committed, decided, written."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Exclusive end of what such a reader is given: what `latest` means to it."""
        committed = isolation is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if committed else self.high_watermark


class AbortedTransaction(NamedTuple):
    """A transaction that ended in ABORT. An answer to a fetch carries the first two fields alone."""

    producer_id: int
    first_offset: int  # of its first batch, or of the first that was looked at
    last_offset: int = -1  # of its marker
    last_stable_offset: int = -1  # of the log once the marker was in it


class PartitionInfo(NamedTuple):
    """One partition, as it stood at one moment."""

    topic_partition: TopicPartition
    offsets: LogOffsets
    size_in_bytes: int


class Deletion(NamedTuple):
    """What was deleted from the begin of one partition, or would be."""

    log_start_offset: int  # from then on
    segments: tuple[int, ...]  # base offsets
    size_in_bytes: int  # of these segments' batches
    files: tuple[str, ...]  # of segments that were deleted before, removed for good now


class AppendOrigin(Enum):
    """Who appends, which decides what is checked."""

    CLIENT = "client"  # a producer: everything, its sequence numbers too
    COORDINATOR = "coordinator"  # the cluster itself: may write control batches
    REPLICATION = "replication"  # a follower, which copies what its leader has checked


class AppendResult(NamedTuple):
    """What became of one partition's batch; the numbers are -1 where `error` is given."""

    base_offset: int = -1
    log_append_time: int = -1  # ms; -1 where the records keep their own times
    log_start_offset: int = -1
    error: Exception | None = None
