"""The topics of a real cluster as a `store.source.Source`, for planning and running reads.

Every question is put to the cluster when it is asked: topics, partitions and ids to any broker, starts, ends and
times to the leaders. Partitions are looked at one leader after another, so there is no moment that is common
to all of them, and two callers that ask where a partition ends may get different answers.

Nothing tells how many bytes lie between two offsets, so ranges are never divided by size.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from spark_kbatch.consumer.same_topic import PartitionsApart, recreated
from spark_kbatch.errors import ClosedError, RetriableError
from spark_kbatch.model import (
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionInfo,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead
from spark_kbatch.remote import offsets
from spark_kbatch.remote.client import Client, leased
from spark_kbatch.remote.fetcher import PartitionFetcher, SeveralFetcher
from spark_kbatch.store.source import Fetcher, FoundTopic

logger = logging.getLogger(__name__)

SIZE_UNKNOWN = -1

_T = TypeVar("_T")


@dataclass
class _Times:
    """Cache of offsets looked up by timestamp, for partitions that one read views together.

    The first time is looked up for all of them, since most reads ask for one time in all partitions.
    """

    find: Callable[
        [Mapping[TopicPartition, int]], Mapping[TopicPartition, OffsetAndTimestamp | None]
    ]
    partitions: list[TopicPartition]
    found: dict[tuple[TopicPartition, int], OffsetAndTimestamp | None] = field(default_factory=dict)

    def of(self, tp: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        if (tp, time_ms) not in self.found:
            asked = [tp] if self.found else self.partitions
            times = dict.fromkeys(asked, time_ms)
            self.found |= {(one, time_ms): at for one, at in self.find(times).items()}
        return self.found[tp, time_ms]


class RemoteView:
    """A partition's start and end offsets as of one moment, and a lookup of offsets by timestamp."""

    def __init__(self, tp: TopicPartition, edges: LogOffsets, times: _Times) -> None:
        self.offsets = edges
        self._topic_partition, self._times = tp, times

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record below `end_offset` that is at or after a timestamp, or None.

        For MAX_TIMESTAMP the first record with the largest time.
        """
        found = self._times.of(self._topic_partition, timestamp_ms)
        return found if found is not None and found.offset < end_offset else None

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return an offset before which no record has that time or a later one, 0 if none is known.

        A broker looks into one segment and no further, so that no answer proves nothing.
        Source: Kafka storage/.../log/UnifiedLog.java fetchOffsetByTimestamp.
        """
        found = self._times.of(self._topic_partition, timestamp_ms)
        return 0 if found is None else min(found.offset, end_offset)

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return an empty list, as a cluster does not tell where to split a range by bytes."""
        del start_offset, end_offset, piece_bytes
        return []

    def bytes_between(self, start_offset: int, end_offset: int) -> None:
        """Return None, as a cluster does not tell sizes by offset."""
        del start_offset, end_offset


class RemoteSource(PartitionsApart):
    """The topics, offsets and records of a real cluster, for reads; leases a client for each call.

    Thread-safe.
    """

    def __init__(self, cluster: ClusterOptions, patience: Patience = DEFAULT_PATIENCE) -> None:
        """Set up without contacting the cluster.

        A client retries each call within default.api.timeout.ms by itself.
        """
        self.cluster = cluster
        self._patience = patience
        self.is_closed = False

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        self.is_closed = True

    # Topics.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the sorted names of all topics, with internal ones only if `internal` is true."""
        found = self._look_up(lambda client: client.metadata(fresh=True)).topics.values()
        return sorted(one.name for one in found if internal or not one.is_internal)

    def topic(self, name: str) -> Topic:
        """Return a topic's id and partition count, without looking up its settings.

        The id is empty if the cluster tells none.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
        """
        found = self._look_up(lambda client: client.topic(name, fresh=True))
        replicas = tuple(one.replicas for one in found.partitions)
        return Topic(name, found.topic_id, len(found.partitions), None, replicas)

    def existing_topics(self, names: Iterable[str]) -> dict[str, FoundTopic]:
        """Return the ids and partitions of those named topics that exist, after asking several times for others."""
        wanted = set(names)
        if not wanted:
            return {}
        found = self._look_up(lambda client: client.existing_topics(wanted)).topics
        return {
            name: FoundTopic(
                one.topic_id, [TopicPartition(name, number.partition) for number in one.partitions]
            )
            for name, one in found.items()
        }

    # Offsets.

    def views(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, RemoteView]:
        """Return a view of each partition, with its offsets, asking one leader after another.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        wanted = list(partitions)
        if not wanted:
            return {}
        found = self._look_up(lambda client: offsets.edges(client, wanted))
        find = functools.partial(self.list_offsets, isolation=IsolationLevel.READ_UNCOMMITTED)
        times = _Times(find, wanted)
        return {tp: RemoteView(tp, found[tp], times) for tp in wanted}

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return the offsets of all partitions of these topics, with the sizes unknown (-1)."""
        names = [*topics]
        found = self.existing_topics(names)
        # Of one that is not there the other question says what is.
        wanted = [
            tp
            for name in names
            for tp in (found[name].partitions if name in found else self.partitions(name))
        ]
        views = self.views(wanted)
        return [PartitionInfo(tp, views[tp].offsets, SIZE_UNKNOWN) for tp in wanted]

    # Records.

    def list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look up offsets by time, of which leaders are asked."""
        return (
            self._look_up(lambda client: offsets.list_offsets(client, times, isolation))
            if times
            else {}
        )

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return batches of a partition from an offset on, by a fetcher made for this one call."""
        one = OffsetRange(topic_partition, asked.offset, asked.offset + 1)
        with self.fetcher(one, "") as fetcher:
            return fetcher.fetch(topic_partition, asked)

    @contextlib.contextmanager
    def fetcher(
        self, wanted: OffsetRange, topic_id: str, last_epoch: int = NO_LEADER_EPOCH
    ) -> Iterator[PartitionFetcher]:
        """Yield a fetcher of an offset range that fails if the topic was deleted and created again.

        The id is compared when the last batch has come: the cluster tells it in metadata alone.
        """
        with self.client() as client:
            yield PartitionFetcher(
                client,
                wanted,
                last_epoch=last_epoch,
                timeout_ms=self._timeout_ms(client),
                ensure_same=lambda: self._ensure_same(
                    client, wanted.topic_partition.topic, topic_id
                ),
            )

    def gathered(
        self, wanted: Mapping[OffsetRange, str]
    ) -> Iterator[tuple[OffsetRange, AbstractContextManager[Fetcher]]]:
        """Yield the ranges with a fetcher; the starts of all are asked for with the first fetch.

        The ids of topics are compared before the first records of each are yielded, which came with the starts, and
        once all ranges have been read.
        """
        if len(wanted) == 1:
            yield from super().gathered(wanted)
            return
        with self.client() as client:
            ids = {one.topic_partition.topic: topic_id for one, topic_id in wanted.items()}
            fetcher = SeveralFetcher(
                client, wanted,
                timeout_ms=self._timeout_ms(client),
                ensure_same=functools.cache(
                    lambda topic: self._ensure_same(client, topic, ids[topic])
                ),
            )  # fmt: skip
            for one in wanted:
                self.ensure_open()
                yield one, contextlib.nullcontext(fetcher)
            for topic, topic_id in ids.items():
                self._ensure_same(client, topic, topic_id)

    def _timeout_ms(self, client: Client) -> int:
        timeout_ms = self._patience.poll_timeout_ms
        return client.options.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def _ensure_same(self, client: Client, topic: str, topic_id: str) -> None:
        self.ensure_open()
        found = client.topic(topic, fresh=True).topic_id if topic_id else ""
        if found and found != topic_id:
            raise recreated(topic, str(self.cluster))

    # Asking.

    def _look_up(self, ask: Callable[[Client], _T]) -> _T:
        """Return the cluster's answer to a query, repeated after retriable errors as options allow."""
        left = self._patience.look_ups_repeated
        while True:
            try:
                with self.client() as client:
                    return ask(client)
            except RetriableError as error:
                if not left:
                    raise
                logger.warning("%s; asking again, at most %d times", error, left)
            time.sleep(self._patience.pause_ms / 1000)
            left -= 1

    def ensure_open(self) -> None:
        """Raise ClosedError if the source is closed."""
        if self.is_closed:
            raise ClosedError(str(self.cluster))

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lease a client of the cluster; raises as `ensure_open`."""
        self.ensure_open()
        with leased(self.cluster) as client:
            yield client
