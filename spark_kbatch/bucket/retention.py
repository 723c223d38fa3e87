"""Where partitions start by their topics' `retention.ms` and `retention.bytes`.

Whole extents go, oldest first, as a log's segments do:

    retention.ms      while all records of the oldest extent are older
    retention.bytes   while what is left has still so many bytes

An extent whose records have no time is kept by the first, with all that comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kbatch.bucket.extents import NO_TIME
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.bucket.state import TopicHead
from spark_kbatch.options.topic import NO_LIMIT, TopicConfig, parse_topic_options


def config_of(topic: TopicHead) -> TopicConfig:
    """Return a topic's settings, with the defaults of those that were not given."""
    return TopicConfig(**parse_topic_options(topic.config))


def retained_from(
    extents: Iterable[PlacedExtent], config: TopicConfig, start_offset: int, now_ms: int
) -> int:
    """Return the offset from which on a partition is kept.

    Args:
        extents: from the start offset on, in order.
        config: of the topic.
        start_offset: where the partition starts now.
        now_ms: since 1970.
    """
    found = [*extents]
    left = sum(one.extent.size_in_bytes for one in found)
    for one in found:
        last_ms = one.extent.last_ms
        is_old = (
            config.retention_ms != NO_LIMIT and NO_TIME < last_ms < now_ms - config.retention_ms
        )
        left -= one.extent.size_in_bytes
        is_over = config.retention_bytes != NO_LIMIT and left >= config.retention_bytes
        if not (is_old or is_over):
            break
        start_offset = one.next_offset
    return start_offset
