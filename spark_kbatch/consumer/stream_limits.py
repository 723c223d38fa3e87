"""How much a micro-batch takes: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay.

Offsets are counted, not records: where transactions or compaction leave gaps there are fewer rows.

Source: Spark connector/kafka-0-10-sql/.../KafkaMicroBatchStream.scala rateLimit, delayBatch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spark_kbatch.model import TopicPartition


def rate_limited(
    limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return end offsets for a micro-batch of about `limit` offsets, in proportion to partitions' backlogs.

    A share below one is rounded up, so that a small partition does not starve; so the sum may exceed
    the limit by the number of partitions.

    Args:
        limit: 1 or more.
        start: next offset of every partition in `end`.
        end: exclusive. A partition without new data keeps it, even if it lies before the start.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = float(sum(sizes.values()))
    limited = dict(end)
    for topic_partition, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[topic_partition] = min(end[topic_partition], start[topic_partition] + taken)
    return limited


class TriggerDelay:
    """A delay of micro-batches: each waits for minOffsetsPerTrigger, but no longer than maxTriggerDelay.

    The first one never waits.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets, self._max_delay_ms = min_offsets, max_delay_ms
        self._last_trigger_ms: int | None = None

    def waits(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], now_ms: int
    ) -> bool:
        """Return True if the micro-batch between these offsets has to wait for more data.

        A partition that is not in `start` counts from offset 0.
        """
        last_ms = self._last_trigger_ms
        if last_ms is not None and now_ms - last_ms < self._max_delay_ms:
            if sum(end[tp] - start.get(tp, 0) for tp in end) < self._min_offsets:
                return True
        self._last_trigger_ms = now_ms
        return False
