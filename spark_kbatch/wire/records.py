"""The requests of clients that write and read records: Produce and Fetch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_kbatch.model import TopicPartition
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.protocol import FetchRequest, ProduceRequest

_WrittenTopic, _ReadTopic = ProduceRequest.TopicProduceData, FetchRequest.FetchTopic


def produce_request(
    acks: int,
    timeout_ms: int,
    records: Mapping[TopicPartition, Buffer | None],
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Return a ProduceRequest of record batches by partition; they are not copied."""
    topics: dict[str, Any] = {}
    for (name, index), data in records.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = _WrittenTopic(name=name)
        topic.partition_data.append(_WrittenTopic.PartitionProduceData(index=index, records=data))
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=list(topics.values()),
        transactional_id=transactional_id,
    )


class ReadPart(NamedTuple):
    """The part of a FetchRequest for one partition."""

    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int


def fetch_request(wanted: Mapping[TopicPartition, ReadPart], **others: Any) -> FetchRequest:
    """Return a FetchRequest for some partitions; `others` are fields of the request itself."""
    topics: dict[str, Any] = {}
    for (name, number), part in wanted.items():
        topic = topics.setdefault(name, _ReadTopic(topic=name, partitions=[]))
        topic.partitions.append(_ReadTopic.FetchPartition(partition=number, **part._asdict()))
    return FetchRequest(topics=list(topics.values()), **others)
