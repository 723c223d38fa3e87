"""What the tasks of a job have staged, as its commit takes it: by partition, task and node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from spark_kbatch.commit.staging import Extent
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic

# What one task has staged for a partition: the same batches for each of these nodes.
Copies: TypeAlias = Mapping[int, Sequence[Extent]]


class Total(NamedTuple):
    """How much there is, each copy counted once."""

    records_count: int
    size_in_bytes: int


def staged_by_partition(
    extents: Iterable[Extent], replaced: Topic | None
) -> dict[TopicPartition, list[Copies]]:
    """What is to be placed in each partition, in the order of tasks.

    Args:
        replaced: all of its partitions are there, also those that nothing was staged for.
    """
    found: dict[TopicPartition, dict[str, dict[int, list[Extent]]]] = {}
    if replaced is not None:
        found = {TopicPartition(replaced.name, number): {} for number in range(replaced.partitions)}
    for extent in extents:
        copies = found.setdefault(extent.topic_partition, {}).setdefault(extent.attempt, {})
        copies.setdefault(extent.node_id, []).append(extent)
    return {tp: [*by_attempt.values()] for tp, by_attempt in found.items()}


def one_of(copies: Copies) -> Sequence[Extent]:
    """What was staged, once."""
    return next(iter(copies.values()))


def total(staged: Iterable[Copies]) -> Total:
    """Of all that several tasks staged."""
    records_count = size_in_bytes = 0
    for extent in chain.from_iterable(map(one_of, staged)):
        records_count += extent.records_count
        size_in_bytes += extent.size_in_bytes
    return Total(records_count, size_in_bytes)
