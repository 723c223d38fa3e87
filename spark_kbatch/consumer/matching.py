"""The rows of a read that its condition is TRUE for, and what need not be looked at for that.

Record columns that a condition tests are decoded first, and then, of those rows that can still
match, the keys and values that it tests. So in mode FAILFAST a value that cannot be decoded is an
error only if the rest of the condition leaves its row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kbatch.condition.binding import Bound, bind, columns_of, leaves
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.pruning import may_match, span
from spark_kbatch.condition.text import parse
from spark_kbatch.consumer.rows import (
    BYTES,
    DecodedColumn,
    HeadersOf,
    TypedColumns,
    row_column,
)
from spark_kbatch.model import IsolationLevel, OffsetRange, TopicPartition
from spark_kbatch.store.source import LogView

logger = logging.getLogger(__name__)

Decoded: TypeAlias = tuple[pa.RecordBatch, dict[str, DecodedColumn]]


def bound(text: str, schema: pa.Schema, name: str) -> Bound:
    """Parse a condition, and bind it to the columns of rows; raises as `parse` and `bind`."""
    return bind(parse(text, name), schema, name)


class Where:
    """A condition of a read, and what decodes the columns that it tests."""

    def __init__(self, condition: Bound, typed: TypedColumns = BYTES) -> None:
        """Set up for a condition that is bound to the columns of `typed`."""
        self.condition, self.typed = condition, typed
        self.times_ms = span(condition, "timestamp")
        self._columns = [row_column(name, typed) for name in sorted(columns_of(condition))]
        self._typed_names = {one.source for one in self._columns if one.is_of(typed)}
        # Columns of RECORD_SCHEMA to decode for it.
        needed = [one.source for one in self._columns if one.source]
        self.decoded = list(dict.fromkeys(needed + typed.beside(self._typed_names)))

    def rows(
        self,
        batch: pa.RecordBatch,
        topic_partition: TopicPartition,
        headers_of: HeadersOf | None = None,
    ) -> Iterator[Decoded]:
        """Yield the records that match, with the keys and values that were decoded for that.

        No batch that is yielded is empty.

        Raises:
            RecordDeserializationError: as `TypedColumns.decoded`.
        """
        topic, partition = topic_partition
        known: dict[str, Any] = {
            "topic": pa.scalar(topic),
            "partition": pa.scalar(partition, pa.int32()),
        }
        found = self._kept(batch, {}, known)
        if not self._typed_names:
            yield from found
            return
        for records, _ in found:
            for part, decoded in self.typed.decoded(
                records, self._typed_names, topic_partition, headers_of
            ):
                yield from self._kept(part, decoded, known)

    def _kept(
        self, records: pa.RecordBatch, decoded: dict[str, DecodedColumn], known: Mapping[str, Any]
    ) -> Iterator[Decoded]:
        columns = dict(known)
        for one in self._columns:
            if one.source in decoded and one.is_of(self.typed):
                columns[one.name] = decoded[one.source].part(one.part)
            elif one.source and not one.is_of(self.typed):
                columns[one.name] = records.column(one.source)
        found = matching(self.condition, columns)
        if isinstance(found, pa.Scalar):
            found = pa.repeat(found, records.num_rows)
        count = found.true_count
        if 0 < count < records.num_rows:
            kept = np.flatnonzero(found.fill_null(False))
            records = records.filter(found)
            decoded = {name: one.only(kept) for name, one in decoded.items()}
        if count:
            yield records, decoded


def windows(
    ranges: Iterable[OffsetRange],
    views: Mapping[TopicPartition, LogView],
    condition: Bound,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets outside of which no record of a view matches, by partition.

    Partitions of which none can match are left out. Past the end of its view a partition has no
    bound but that of the condition's own offsets: there may be more when it is read.

    Args:
        ranges: of the read.
        views: of those partitions in which the condition's times are looked up.
        condition: of the read.
        isolation: decides where a view ends.

    Returns:
        The first offset and the end, exclusive.
    """
    offsets, times_ms = span(condition, "offset"), span(condition, "timestamp")
    if offsets.low > offsets.high or times_ms.low > times_ms.high:
        return {}
    found = {}
    for tp, _, _ in ranges:
        if may_match(condition, tp):
            low = max(offsets.low, 0)
            if times_ms.low > 0 and tp in views:
                view = views[tp]
                end = view.offsets.end_offset(isolation)
                low = max(low, view.start_by_time(times_ms.low, end_offset=end))
            if low <= offsets.high:
                found[tp] = (low, offsets.high + 1)
    return found


def warn_of_other_topics(condition: Bound, topics: Collection[str] | None) -> None:
    """Log a warning if a condition asks for topics that are not read.

    Args:
        condition: of the read.
        topics: that are read; with None there is no warning.
    """
    named = {
        name
        for leaf in leaves(condition)
        if leaf.column == "topic" and leaf.operator == "IN" and not leaf.is_negated
        for name in leaf.value.to_pylist()
    }
    if topics is not None and (missing := sorted(named - {*topics})):
        logger.warning(
            "the condition names topics that are not read: %s; read are: %s",
            ", ".join(missing),
            ", ".join(sorted(topics)) or "none",
        )
