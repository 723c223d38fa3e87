"""What of a read no row can match by a condition, so that it need not be read.

Partitions are tried one by one. Offsets and times are told by the tests that are joined by AND at the top; all others
leave every offset and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from spark_kbatch.condition.binding import All, Bound, Leaf
from spark_kbatch.condition.evaluation import matching
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
    for leaf in _joined_by_and(condition):
        if leaf.column == column and not leaf.path:
            one = _of(leaf)
            low, high = max(low, one.low), min(high, one.high)
    return Span(low, high)


def _joined_by_and(condition: Bound) -> Iterator[Leaf]:
    if isinstance(condition, Leaf):
        yield condition
    elif isinstance(condition, All):
        for one in condition.conditions:
            yield from _joined_by_and(one)


def _of(leaf: Leaf) -> Span:
    """Return the span of a test of whole numbers."""
    none = Span(LONG_MAX, _LONG_MIN)
    if leaf.operator == "IN" and not leaf.is_negated:
        values = leaf.value.to_pylist()
        return Span(min(values), max(values)) if values else none
    if leaf.operator == "CONSTANT" and leaf.value == leaf.is_negated:
        return none
    match leaf.operator:  # whole numbers are compared by these alone
        case "=":
            return Span(leaf.value.as_py(), leaf.value.as_py())
        case "<=":
            return Span(high=leaf.value.as_py())
        case ">=":
            return Span(low=leaf.value.as_py())
    return Span()
