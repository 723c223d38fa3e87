"""Partitions, offsets and times of which no row can match a condition, so that they need not be read.

Partitions are tried one by one. Offsets and times are limited by the tests that are joined by AND at the top alone.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from spark_kbatch.condition.binding import Bound, leaves
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.tree import AllOf
from spark_kbatch.model import LONG_MAX, TopicPartition

_LONG_MIN = -LONG_MAX - 1


class Span(NamedTuple):
    """Whole numbers from `low` to `high`, both inclusive."""

    low: int = _LONG_MIN
    high: int = LONG_MAX


def may_match(condition: Bound, topic_partition: TopicPartition) -> bool:
    """Return True if a record of a partition can match."""
    topic, partition = topic_partition
    columns = {"topic": pa.scalar(topic), "partition": pa.scalar(partition, pa.int32())}
    return matching(condition, columns).as_py() is True


def span(condition: Bound, column: str) -> Span:
    """Return the offsets, or the times in ms, of all rows that can match.

    Args:
        condition: of the read.
        column: "offset" or "timestamp".
    """
    low, high = Span()
    for leaf in leaves(condition, joined_by=(AllOf,)):
        if leaf.column != column or leaf.path:
            continue
        match leaf.operator, leaf.is_negated:  # whole numbers are compared by these alone
            case "IN", False:
                values = leaf.value.to_pylist()
                low = max(low, min(values, default=LONG_MAX))
                high = min(high, max(values, default=_LONG_MIN))
            case "<=", False:
                high = min(high, leaf.value.as_py())
            case "<=", True:
                low = max(low, leaf.value.as_py() + 1)
    return Span(low, high)
