"""Values that cross modules."""

from __future__ import annotations

from typing import NamedTuple

EARLIEST = -2  # in place of an offset: the log start, looked up when read
LATEST = -1  # in place of an offset: the high watermark, looked up when read


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition; EARLIEST and LATEST stand for bounds not yet known."""

    topic_partition: TopicPartition
    start: int
    end: int


class LogOffsets(NamedTuple):
    """The edges of a log: first held; then, exclusive, committed, decided, written."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
