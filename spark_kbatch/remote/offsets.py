"""ListOffsets requests to partition leaders: log start and end offsets, and offsets by timestamp.

Source: Kafka clients/.../consumer/internals/OffsetFetcherUtils.java; ListOffsetsRequest.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_kbatch.errors import KBatchError, RetriableError
from spark_kbatch.model import (
    EARLIEST,
    LATEST,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    TopicPartition,
    numbers_by_topic,
)
from spark_kbatch.remote.client import Client
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import ApiKey, ListOffsetsRequest

_NOTHING = -1
_CONSUMER = -1  # in place of a follower's id
_NO_EPOCH = -1


def list_offsets(
    client: Client,
    times: Mapping[TopicPartition, int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first record at or after a timestamp in each partition; None where there is none.

    Args:
        client: asks.
        times: in ms; or EARLIEST, LATEST or MAX_TIMESTAMP.
        isolation: decides where logs end.

    Raises:
        UnknownTopicOrPartitionError: a partition does not exist.
        RetriableError: the leaders did not answer within default.api.timeout.ms.
    """

    def build(_node: Node, partitions: list[TopicPartition]) -> Any:
        topic = ListOffsetsRequest.ListOffsetsTopic
        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=isolation_number(isolation),
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.ListOffsetsPartition(
                            partition_index=tp.partition,
                            current_leader_epoch=leader_epoch(client, tp),
                            timestamp=times[tp],
                        )
                        for tp in (TopicPartition(name, number) for number in numbers)
                    ],
                )
                for name, numbers in numbers_by_topic(partitions).items()
            ],
        )

    return client.request_leaders(ApiKey.LIST_OFFSETS, list(times), build, _results)


def edges(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
    """Return the log start offset, high watermark and last stable offset of each partition.

    Raises the errors of `list_offsets`.

    They are asked in the order in which they grow, so that none is past the next one.
    """
    wanted = list(partitions)
    starts = list_edge(client, wanted, EARLIEST)
    stable = list_edge(client, wanted, LATEST, IsolationLevel.READ_COMMITTED)
    ends = list_edge(client, wanted, LATEST)
    return {
        tp: LogOffsets(
            log_start_offset=starts[tp],
            high_watermark=ends[tp],
            last_stable_offset=stable[tp],
            log_end_offset=ends[tp],
        )
        for tp in wanted
    }


def list_edge(
    client: Client,
    partitions: Iterable[TopicPartition],
    edge: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Return where each partition starts, for EARLIEST, or ends, for LATEST.

    Raises the errors of `list_offsets`, and RetriableError if a leader does not tell: that is no proof that
    the partition is empty.
    """
    found = list_offsets(client, dict.fromkeys(partitions, edge), isolation)
    for tp, at in found.items():
        if at is None:
            side = "starts" if edge == EARLIEST else "ends"
            raise RetriableError(
                f"the leader of {tp} of {client.options} does not tell where it {side}"
            )
    return {tp: at.offset for tp, at in found.items() if at is not None}


def leader_epoch(client: Client, topic_partition: TopicPartition) -> int:
    """Return a partition's leader epoch, for a request to its leader; -1 if it is not known.

    Each attempt asks again, since the leader may have moved.
    """
    topic, partition = topic_partition
    found = client.metadata([topic]).leader_of(topic, partition)
    return _NO_EPOCH if found is None else found[1]


def isolation_number(isolation: IsolationLevel) -> int:
    """Return the number of an isolation level in Kafka's requests."""
    return 1 if isolation is IsolationLevel.READ_COMMITTED else 0


def _results(
    answer: Any,
) -> Mapping[TopicPartition, OffsetAndTimestamp | KBatchError | None]:
    found: dict[TopicPartition, OffsetAndTimestamp | KBatchError | None] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            if one.error_code != ErrorCode.NONE:
                found[tp] = error_of(one.error_code, f"asked for offsets of {tp}")
            elif one.offset == _NOTHING:
                found[tp] = None
            else:
                found[tp] = OffsetAndTimestamp(one.offset, one.timestamp)
    return found
