"""Value types that many modules share, such as partitions, offset ranges and log offsets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

EARLIEST = -2  # in place of an offset: the log start, looked up when read
LATEST = -1  # in place of an offset: the end for its isolation level, looked up when read
MAX_TIMESTAMP = -3  # in place of a time: the largest of any record

BATCHES_REMEMBERED = 5  # by a log, of each idempotent producer, which may have so many in flight

NO_TRANSACTION_SEQUENCE = -1  # of a commit that is not one of a query's, in order

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


NO_PARTITION = TopicPartition("", -1)  # of reports on what all partitions share


def partition_of(directory: str) -> TopicPartition | None:
    """Parse the name of a partition's directory, TOPIC-P, into its partition; None for any other name."""
    found = re.fullmatch(r"(.+)-(0|[1-9][0-9]{0,9})", directory)
    return TopicPartition(found[1], int(found[2])) if found else None


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the order that they are given in."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


# A partition as callers may name it: a TopicPartition or a plain pair, one kind per mapping.
PartitionKey = TypeVar("PartitionKey", bound=tuple[str, int])


# Codec ids by name: what `compression.type` accepts, and bits 0 to 2 of a batch's attributes.
CODECS: Mapping[str, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODEC_NAMES: Mapping[int, str] = {codec: name for name, codec in CODECS.items()}


# The latest time that fits into Spark's and Arrow's timestamps, which count microseconds in 64 bits. No
# producer writes a later one, because no read could show it.
TIMESTAMP_MS_MAX = LONG_MAX // 1000


_RANGES_SHOWN = 8


def ranges_shown(offsets: Mapping[TopicPartition, tuple[int, int]]) -> str:
    """Return the given offset ranges by partition as one line of text, with only the first few of many."""
    shown = [
        f"{tp} {start} to {end - 1}" for tp, (start, end) in sorted(offsets.items())[:_RANGES_SHOWN]
    ]
    if len(offsets) > len(shown):
        topics = len({tp.topic for tp in offsets})
        shown.append(f"... in all {len(offsets)} partitions of {topics} topic{'s' * (topics != 1)}")
    return f"offsets {', '.join(shown)}" if shown else "no offsets"


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition; EARLIEST and LATEST stand for offsets not yet looked up."""

    topic_partition: TopicPartition
    start: int
    end: int


class Piece(NamedTuple):
    """The offset range that one task reads, the range it was split from, and the topic's id."""

    wanted: OffsetRange
    planned: OffsetRange
    topic_id: str = ""  # empty if the topic has none


class StreamPiece(NamedTuple):
    """The offset range that one task of a micro-batch reads, and the topic's id."""

    wanted: OffsetRange
    topic_id: str  # empty if the topic has none


class OffsetAndTimestamp(NamedTuple):
    """A record's offset and timestamp, found by time; -1 as the timestamp of a log's start or end."""

    offset: int
    timestamp: int  #: ms


class IsolationLevel(Enum):
    """Isolation level of a read, which decides what records of transactions it returns."""

    READ_UNCOMMITTED = "read_uncommitted"  # all, up to the high watermark
    READ_COMMITTED = "read_committed"  # those not aborted, up to the last stable offset


class ReadRange(NamedTuple):
    """The batches that one read of a log asks for: from an offset on, up to a size."""

    offset: int
    max_bytes: int
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    min_one_batch: bool = True  # the first one is returned even if larger than `max_bytes`
    buffer: bytearray | None = None  # holds the result if large enough; otherwise one is allocated


class LogOffsets(NamedTuple):
    """A log's start offset, high watermark, last stable offset and log end offset."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int

    @property
    def offsets_count(self) -> int:
        """Number of offsets from the log's start to its high watermark; 0 where they are not known.

        There are as many records, or fewer: markers of transactions take offsets too.
        """
        return self.high_watermark - self.log_start_offset

    @property
    def held_back(self) -> int:
        """Number of offsets that readers of committed records do not see yet: a transaction is open before them."""
        return self.high_watermark - self.last_stable_offset

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Return the log's end for an isolation level: its high watermark or last stable offset.

        That is what `latest` means.
        """
        committed = isolation is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if committed else self.high_watermark


class AbortedTransaction(NamedTuple):
    """An aborted transaction. A fetch response carries only the first two fields."""

    producer_id: int
    first_offset: int  # of its first batch, or of its first batch that was looked at
    last_offset: int = -1  # of its marker
    last_stable_offset: int = -1  # of the log after the marker was appended


class PartitionInfo(NamedTuple):
    """A partition's offsets and size in bytes at one moment; all -1 where its log cannot be read."""

    topic_partition: TopicPartition
    offsets: LogOffsets
    size_in_bytes: int
    error: str = ""  # why its log cannot be read


class AppendOrigin(Enum):
    """Origin of an appended batch, which decides what is checked. Followers copy what their leader has checked."""

    CLIENT = "client"  # a producer of ours: its header is checked, and its sequence numbers
    NETWORK = "network"  # any client of Kafka's protocol: all records are checked as well
    COORDINATOR = "coordinator"  # the cluster itself: may write control batches

    @property
    def is_client(self) -> bool:
        """Whether the append is a producer's, with sequence numbers to check."""
        return self is not AppendOrigin.COORDINATOR


class AppendResult(NamedTuple):
    """The outcome of appending one partition's batch; the numbers are -1 where `error` is set."""

    base_offset: int = -1
    log_append_time: int = -1  # ms; -1 where records keep their own times
    log_start_offset: int = -1
    error: Exception | None = None


OnAppended: TypeAlias = Callable[[Mapping[TopicPartition, AppendResult]], object]


class GroupMember(NamedTuple):
    """A member of a consumer group."""

    member_id: str
    instance_id: str | None  # of a static member
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]  # that it was assigned


class GroupOffset(NamedTuple):
    """A consumer group's committed offset and lag in a partition."""

    committed_offset: int | None  # of the next record that the group reads; None without a commit
    log_end_offset: (
        int | None
    )  # of the next record that comes; None if the partition cannot be read
    lag: int | None  # records in between
    metadata: str  # the client's own text
    commit_timestamp: int  # in ms; -1 for none


class ConsumerGroup(NamedTuple):
    """A consumer group, as it was last stored."""

    group_id: str
    state: str  # "Stable" with members, "Empty" without
    protocol_type: str  # "consumer"; empty if it only commits offsets
    protocol: str  # how partitions are assigned, such as "range"
    generation: int
    members: tuple[GroupMember, ...]
    offsets: Mapping[TopicPartition, GroupOffset]  # of partitions committed or assigned, sorted

    @property
    def lag(self) -> int:
        """Number of records that the group has not read, in partitions with committed offsets."""
        return sum(one.lag for one in self.offsets.values() if one.lag is not None)


def random_id() -> str:
    """Return a random UUID as Kafka writes it; never with a leading '-', which its tools take for a flag."""
    import uuid  # noqa: PLC0415  few processes make ids

    while True:
        text = text_of_uuid(uuid.uuid4().bytes)
        if not text.startswith("-"):
            return text


def text_of_uuid(value: bytes) -> str:
    """Return a topic id's 16 bytes as text, in the base64url form that Kafka's tools print."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def bytes_of_uuid(text: str) -> bytes:
    """Return the 16 bytes of a topic id that `text_of_uuid` has made."""
    return base64.urlsafe_b64decode(text + "==")
