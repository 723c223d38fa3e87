"""Counts the bytes of batches that reads fetch in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from spark_kbatch.consumer.same_topic import OneTopic
from spark_kbatch.model import LogOffsets, ReadRange, TopicPartition
from spark_kbatch.record.header import LogRead
from spark_kbatch.remote.fetcher import PartitionFetcher


@contextlib.contextmanager
def bytes_fetched() -> Iterator[list[int]]:
    """Yield the sizes of all answers so far, of a folder's logs, of memory and of brokers."""
    sizes = list[int]()
    with contextlib.ExitStack() as patched:
        for kind in (OneTopic, PartitionFetcher):
            patched.enter_context(patch.object(kind, "fetch", _counted(kind.fetch, sizes)))
        yield sizes


def _counted(fetch: Callable[..., tuple[LogRead, LogOffsets]], sizes: list[int]) -> Any:
    def counted(
        one: object, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        read, edges = fetch(one, topic_partition, asked)
        sizes.append(sum(header.size_in_bytes for _, header in read.batches))
        return read, edges

    return counted
