"""A task that reads several ranges of a real cluster asks for all of them at once, and each comes complete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import DataLossError
from spark_kbatch.model import OffsetRange, StreamPiece, TopicPartition
from spark_kbatch.options.read import parse_stream_read_options
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    FetchResponse,
    ListOffsetsResponse,
    MetadataResponse,
    Request,
)
from tests.support.log_histories import data_batch
from tests.support.scripted_cluster import TOPIC, ScriptedCluster

PARTITIONS, NODES, RECORDS = 32, 4, 4
_Topic = FetchResponse.FetchableTopicResponse
_Offsets = ListOffsetsResponse.ListOffsetsTopicResponse
_Broker, _Named = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic


class ManyPartitions(ScriptedCluster):
    """Brokers of one topic with 32 partitions, each of which leads a quarter of them."""

    def __init__(self) -> None:
        super().__init__([data_batch(base_offset=2 * n, n=2) for n in range(2)], nodes=NODES)
        self.asked_for: list[dict[int, int]] = []  # offset by partition, of each fetch
        self.room = PARTITIONS  # partitions with records in an answer
        self.refuse: Callable[[int, int], int] = lambda _count, _partition: ErrorCode.NONE

    def _metadata(self, _node: int, _request: Request) -> Any:
        partitions = [
            _Named.MetadataResponsePartition(
                error_code=0, partition_index=number, leader_id=1 + number % NODES, leader_epoch=0,
                replica_nodes=[1], isr_nodes=[1],
            )
            for number in range(PARTITIONS)
        ]  # fmt: skip
        return MetadataResponse(
            brokers=[
                _Broker(node_id=number, host=one.node.host, port=one.node.port)
                for number, one in enumerate(self._servers, 1)
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[_Named(error_code=0, name=TOPIC, partitions=partitions)],
        )

    def _list_offsets(self, _node: int, request: Request) -> Any:
        """Tell that all records were deleted."""
        ((asked,),) = (each.partitions for each in request.body.topics)
        one = _Offsets.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=0, timestamp=-1, offset=RECORDS,
            leader_epoch=0,
        )  # fmt: skip
        return ListOffsetsResponse(topics=[_Offsets(name=TOPIC, partitions=[one])])

    def _fetch(self, node: int, request: Request) -> Any:
        (asked,) = (each.partitions for each in request.body.topics)
        assert all(one.partition % NODES == node - 1 for one in asked)
        self.asked_for.append({one.partition: one.fetch_offset for one in asked})
        parts = []
        for place, one in enumerate(asked):
            code = self.refuse(len(asked), one.partition)
            first = self.batches[one.fetch_offset // 2 : one.fetch_offset // 2 + 1]
            parts.append(
                _Topic.PartitionData(
                    partition_index=one.partition, error_code=code, high_watermark=RECORDS,
                    last_stable_offset=RECORDS, log_start_offset=0, aborted_transactions=None,
                    records=b"".join(first) if place < self.room and not code else b"",
                )
            )  # fmt: skip
        return FetchResponse(responses=[_Topic(topic=TOPIC, partitions=parts)])


@pytest.fixture
def cluster() -> Iterator[ManyPartitions]:
    with ManyPartitions() as cluster:
        yield cluster


def batches(cluster: ManyPartitions, end: int) -> Iterator[Any]:
    """Read all partitions up to an offset in one task of a stream."""
    given = parse_stream_read_options({"kafka.bootstrap.servers": "a:1", "subscribe": TOPIC})
    source = RemoteSource(cluster.options(retry_backoff_ms="1"))
    pieces = [
        StreamPiece(OffsetRange(TopicPartition(TOPIC, number), 0, end), "")
        for number in range(PARTITIONS)
    ]
    return TopicReader(source).read_stream_task(pieces, ["partition", "offset"], given)


def read(cluster: ManyPartitions, end: int = 2) -> list[tuple[int, int]]:
    """Return partition and offset of each row of all partitions."""
    return [
        row
        for batch in batches(cluster, end)
        for row in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]


def expected(end: int = 2) -> list[tuple[int, int]]:
    return [(number, offset) for number in range(PARTITIONS) for offset in range(end)]


def again(cluster: ManyPartitions) -> list[dict[int, int]]:
    """Return the fetches of one partition alone."""
    assert sum(len(one) > 1 for one in cluster.asked_for) == NODES
    return [one for one in cluster.asked_for if len(one) == 1]


def test_each_leader_is_asked_once_for_all_its_partitions(cluster: ManyPartitions) -> None:
    assert read(cluster) == expected()
    assert [*map(len, cluster.asked_for)] == [PARTITIONS // NODES] * NODES
    # The id of the topic before and after, and no request for a partition by itself: so many times the latency.
    assert sum(map(cluster.asked, SUPPORTED)) - cluster.asked(ApiKey.API_VERSIONS) <= NODES + 3


def test_what_does_not_fit_into_the_shared_answer_is_asked_for_again(
    cluster: ManyPartitions,
) -> None:
    cluster.room = 3
    assert read(cluster) == expected()
    assert again(cluster) == [{n: 0} for n in range(PARTITIONS) if n // NODES >= 3]


def test_all_ranges_go_on_at_once_after_their_first_answers(cluster: ManyPartitions) -> None:
    with contextlib.closing(batches(cluster, end=4)) as found:
        next(found)  # of the first range
        deadline = time.monotonic() + 10
        while len(cluster.asked_for) < NODES + PARTITIONS:
            assert time.monotonic() < deadline, cluster.asked_for
            time.sleep(0.001)
    assert sorted(map(str, again(cluster))) == sorted(str({n: 2}) for n in range(PARTITIONS))


def test_ranges_are_read_to_their_ends(cluster: ManyPartitions) -> None:
    assert read(cluster, end=4) == expected(4)
    assert len(again(cluster)) == PARTITIONS


def test_an_error_in_the_shared_answer_is_that_of_its_partition_alone(
    cluster: ManyPartitions,
) -> None:
    def refuse(count: int, partition: int) -> int:
        is_refused = partition == 5 and count > 1
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_refused else ErrorCode.NONE

    cluster.refuse = refuse
    assert read(cluster) == expected()
    assert again(cluster) == [{5: 0}]


def test_a_range_that_is_lost_is_named(cluster: ManyPartitions) -> None:
    cluster.refuse = lambda _, partition: (
        ErrorCode.OFFSET_OUT_OF_RANGE if partition == 5 else ErrorCode.NONE
    )
    with pytest.raises(DataLossError, match="events-5 from offset 0 to 2"):
        read(cluster)
