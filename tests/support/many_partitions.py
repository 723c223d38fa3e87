"""Brokers in memory of a topic with many partitions, each of which leads some; one task reads them all.

with ManyPartitions() as cluster:
[*batches(cluster, pieces(end=4))]
cluster.asked_for                       # offset by partition, of each fetch
cluster.addresses = [...]               # of proxies before the brokers, by node
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.model import OffsetRange, StreamPiece, TopicPartition
from spark_kbatch.options.read import parse_stream_read_options
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
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
        self.addresses = [str(one.node) for one in self._servers]
        self.asked_for: list[dict[int, int]] = []  # offset by partition, of each fetch
        self.room = PARTITIONS  # partitions with records in an answer
        self.refuse: Callable[[int, int], int] = lambda _count, _partition: ErrorCode.NONE
        # Of the topic, from fetch to fetch; the last one stays.
        self.ids: list[uuid.UUID | None] = [None]

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
                _Broker(node_id=number, host=host, port=int(port))
                for number, (host, port) in enumerate((one.split(":") for one in self.addresses), 1)
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[_Named(error_code=0, name=TOPIC, topic_id=self.ids[0], partitions=partitions)],
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
        self.ids = self.ids[1:] or self.ids
        if request.body.rack_id:  # a leader names the nearest replica, and sends no records
            self.room = 0
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


def pieces(end: int, topic_id: str = "") -> list[StreamPiece]:
    """Return the range up to an offset of each partition."""
    return [
        StreamPiece(OffsetRange(TopicPartition(TOPIC, number), 0, end), topic_id)
        for number in range(PARTITIONS)
    ]


def batches(
    cluster: ManyPartitions, pieces: Sequence[StreamPiece], *, fail: str = "true", **options: str
) -> Iterator[Any]:
    """Read ranges in one task of a stream; `options` are those of the client, `fail` is failOnDataLoss."""
    given = parse_stream_read_options(
        {"kafka.bootstrap.servers": "a:1", "subscribe": TOPIC, "failOnDataLoss": fail}
    )
    source = RemoteSource(cluster.options(retry_backoff_ms="1", **options))
    return TopicReader(source).read_stream_task(pieces, ["partition", "offset"], given)
