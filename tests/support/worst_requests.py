"""For each kind of request those that name as much as one may, as a peer without goodwill would send them.

worst(ApiKey.FETCH, 12, 60_000)      # in version 12; what it names does not exist
worst(ApiKey.FETCH, 12, 1_000, "t")  # partitions 0 to 999 of a topic
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from spark_kbatch.model import TopicPartition
from spark_kbatch.wire import protocol as p
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import produce_request
from tests.support import builders
from tests.support.raw_clients import fetch_several, request

NOWHERE = "nowhere"
_MiB = 1 << 20
_TIMEOUT_MS = 1000
_TEXT_MAX = 30_000  # bytes; a request's strings may have a few more

# Makes a body, given how many things it names, and a topic.
_Make = Callable[[int, str], Any]


def _produce(count: int, topic: str) -> Any:
    batch = builders.batch(n=1)
    batches = {TopicPartition(topic, number): batch for number in range(count)}
    return produce_request(-1, _TIMEOUT_MS, batches)


def _fetch(count: int, topic: str) -> Any:
    return fetch_several(
        dict.fromkeys(range(count), 0), topic, max_wait_ms=_TIMEOUT_MS, max_bytes=_MiB
    )


def _produce_by_id(count: int, topic: str) -> Any:
    """Return a Produce to as many ids, none of which is known, as it may name with a batch each."""
    body = _produce(1, topic)
    (part,) = body.topic_data[0].partition_data
    make = p.ProduceRequest.TopicProduceData
    body.topic_data = [
        make(topic_id=uuid.UUID(int=one + 1), partition_data=[part]) for one in range(count // 2)
    ]
    return body


def _fetch_by_id(count: int, topic: str) -> Any:
    body = _fetch(1, topic)
    make = p.FetchRequest.FetchTopic
    partitions = body.topics[0].partitions
    body.topics = [
        make(topic_id=uuid.UUID(int=one + 1), partitions=partitions) for one in range(count // 2)
    ]
    return body


def _list_offsets(count: int, topic: str) -> Any:
    make = p.ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        make.ListOffsetsPartition(partition_index=one, current_leader_epoch=-1, timestamp=1)
        for one in range(count)
    ]
    return p.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[make(name=topic, partitions=partitions)]
    )


def _log_dirs(count: int, topic: str) -> Any:
    make = p.DescribeLogDirsRequest.DescribableLogDirTopic
    return p.DescribeLogDirsRequest(topics=[make(topic=topic, partitions=list(range(count)))])


def _epochs(count: int, topic: str) -> Any:
    make = p.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partitions = [
        make.OffsetForLeaderPartition(partition=one, current_leader_epoch=-1, leader_epoch=0)
        for one in range(count)
    ]
    return p.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[make(topic=topic, partitions=partitions)]
    )


def _metadata(count: int, topic: str) -> Any:
    make = p.MetadataRequest.MetadataRequestTopic
    topics = [make(name=f"{topic}-{one}") for one in range(count)]
    return p.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _offset_commit(count: int, topic: str) -> Any:
    make = p.OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = [
        make.OffsetCommitRequestPartition(
            partition_index=one,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for one in range(count)
    ]
    return p.OffsetCommitRequest(
        group_id="worst", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        retention_time_ms=-1, topics=[make(name=topic, partitions=partitions)],
    )  # fmt: skip


def _offset_fetch(count: int, topic: str) -> Any:
    make = p.OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [make(name=topic, partition_indexes=list(range(count)))]
    return p.OffsetFetchRequest(group_id="worst", topics=topics, require_stable=False)


def _offset_fetch_of_groups(count: int, topic: str) -> Any:
    """Return a request that names one group again and again, each time with another topic."""
    make = p.OffsetFetchRequest.OffsetFetchRequestGroup
    topic_of = make.OffsetFetchRequestTopics
    groups = [
        make(group_id="worst", topics=[topic_of(name=f"{topic}-{one}", partition_indexes=[one])])
        for one in range(max(count // 3, 1))
    ]
    return p.OffsetFetchRequest(groups=groups, require_stable=False)


def _offset_delete(count: int, topic: str) -> Any:
    make = p.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [make.OffsetDeleteRequestPartition(partition_index=one) for one in range(count)]
    return p.OffsetDeleteRequest(group_id="worst", topics=[make(name=topic, partitions=partitions)])


def _join(count: int, topic: str) -> Any:
    make = p.JoinGroupRequest.JoinGroupRequestProtocol
    return p.JoinGroupRequest(
        group_id=f"{topic}-joined", session_timeout_ms=1_800_000, rebalance_timeout_ms=2**31 - 1,
        member_id="", group_instance_id=None, protocol_type="consumer",
        protocols=[make(name="range", metadata=bytes(16 * count))],
    )  # fmt: skip


def _sync(count: int, topic: str) -> Any:
    make = p.SyncGroupRequest.SyncGroupRequestAssignment
    return p.SyncGroupRequest(
        group_id=f"{topic}-joined", generation_id=1, member_id="m", group_instance_id=None,
        protocol_type="consumer", protocol_name="range",
        assignments=[make(member_id=str(one), assignment=b"a" * 8) for one in range(count)],
    )  # fmt: skip


def _leave(count: int, topic: str) -> Any:
    make = p.LeaveGroupRequest.MemberIdentity
    members = [make(member_id=str(one), group_instance_id=None) for one in range(count)]
    return p.LeaveGroupRequest(group_id=f"{topic}-joined", members=members)


def _delete_records(count: int, topic: str) -> Any:
    make = p.DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [
        make.DeleteRecordsPartition(partition_index=one, offset=-1) for one in range(count)
    ]
    return p.DeleteRecordsRequest(
        topics=[make(name=topic, partitions=partitions)], timeout_ms=_TIMEOUT_MS
    )


def _create_topics(count: int, topic: str) -> Any:
    """Return a request for topics whose names are not accepted: those of others would stay."""
    make = p.CreateTopicsRequest.CreatableTopic
    topics = [
        make(
            name=f"{topic}/{one}", num_partitions=-1, replication_factor=-1, assignments=[],
            configs=[],
        )
        for one in range(count)
    ]  # fmt: skip
    return p.CreateTopicsRequest(topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=False)


def _create_topics_alike(count: int, topic: str) -> Any:
    """Return a request for topics whose names may be like those of others, and which have no partitions."""
    make = p.CreateTopicsRequest.CreatableTopic
    topics = [
        make(
            name=f"{topic}.{one}", num_partitions=0, replication_factor=1, assignments=[],
            configs=[],
        )
        for one in range(count)
    ]  # fmt: skip
    return p.CreateTopicsRequest(topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=False)


def _create_partitions(count: int, topic: str) -> Any:
    make = p.CreatePartitionsRequest.CreatePartitionsTopic
    topics = [make(name=f"{topic}-{one}", count=9, assignments=None) for one in range(count)]
    return p.CreatePartitionsRequest(topics=topics, timeout_ms=_TIMEOUT_MS, validate_only=False)


def _delete_topics(count: int, topic: str) -> Any:
    return p.DeleteTopicsRequest(
        topic_names=[f"{topic}-{one}" for one in range(count)], timeout_ms=_TIMEOUT_MS
    )


def _delete_topics_by_id(count: int, _: str) -> Any:
    make = p.DeleteTopicsRequest.DeleteTopicState
    topics = [make(name=None, topic_id=uuid.UUID(int=one + 1)) for one in range(count)]
    return p.DeleteTopicsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)


def _describe_configs(count: int, topic: str) -> Any:
    make = p.DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        make(resource_type=2, resource_name=f"{topic}-{one}", configuration_keys=None)
        for one in range(count)
    ]
    return p.DescribeConfigsRequest(
        resources=resources, include_synonyms=True, include_documentation=True
    )


def _alter_configs(count: int, topic: str) -> Any:
    make = p.AlterConfigsRequest.AlterConfigsResource
    resources = [
        make(resource_type=2, resource_name=f"{topic}-{one}", configs=[]) for one in range(count)
    ]
    return p.AlterConfigsRequest(resources=resources, validate_only=False)


def _incremental(count: int, topic: str) -> Any:
    make = p.IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        make(resource_type=2, resource_name=f"{topic}-{one}", configs=[]) for one in range(count)
    ]
    return p.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def _add_partitions(count: int, topic: str) -> Any:
    make = p.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return p.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="worst",
        v3_and_below_producer_id=0,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[make(name=topic, partitions=list(range(count)))],
    )


def _txn_offset_commit(count: int, topic: str) -> Any:
    make = p.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partitions = [
        make.TxnOffsetCommitRequestPartition(
            partition_index=one, committed_offset=1, committed_metadata="m" * 10
        )
        for one in range(count)
    ]
    return p.TxnOffsetCommitRequest(
        transactional_id="worst", group_id="worst", producer_id=0, producer_epoch=0,
        topics=[make(name=topic, partitions=partitions)],
    )  # fmt: skip


def _list_transactions(count: int, _: str) -> Any:
    return p.ListTransactionsRequest(
        state_filters=[str(one) for one in range(count // 2)],
        producer_id_filters=list(range(count // 2)),
    )


def _describe_producers(count: int, topic: str) -> Any:
    """Return a request that names the same partitions again and again."""
    make = p.DescribeProducersRequest.TopicRequest
    topics = [make(name=topic, partition_indexes=[0, one]) for one in range(max(count // 3, 1))]
    return p.DescribeProducersRequest(topics=topics)


# What makes the body, by api key and version.
_WORST: Mapping[tuple[ApiKey, int], _Make] = {
    (ApiKey.PRODUCE, 9): _produce,
    (ApiKey.PRODUCE, 13): _produce_by_id,
    (ApiKey.FETCH, 12): _fetch,
    (ApiKey.FETCH, 18): _fetch_by_id,
    (ApiKey.LIST_OFFSETS, 7): _list_offsets,
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4): _epochs,
    (ApiKey.METADATA, 9): _metadata,
    (ApiKey.OFFSET_COMMIT, 8): _offset_commit,
    (ApiKey.OFFSET_FETCH, 7): _offset_fetch,
    (ApiKey.OFFSET_FETCH, 8): _offset_fetch_of_groups,
    (ApiKey.OFFSET_DELETE, 0): _offset_delete,
    (ApiKey.JOIN_GROUP, 7): _join,
    (ApiKey.SYNC_GROUP, 5): _sync,
    (ApiKey.LEAVE_GROUP, 4): _leave,
    (ApiKey.DELETE_RECORDS, 2): _delete_records,
    (ApiKey.CREATE_TOPICS, 5): _create_topics,
    (ApiKey.CREATE_TOPICS, 7): _create_topics_alike,
    (ApiKey.CREATE_PARTITIONS, 2): _create_partitions,
    (ApiKey.DELETE_TOPICS, 4): _delete_topics,
    (ApiKey.DELETE_TOPICS, 6): _delete_topics_by_id,
    (ApiKey.DESCRIBE_CONFIGS, 4): _describe_configs,
    (ApiKey.DESCRIBE_LOG_DIRS, 4): _log_dirs,
    (ApiKey.ALTER_CONFIGS, 2): _alter_configs,
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1): _incremental,
    (ApiKey.FIND_COORDINATOR, 4): lambda count, topic: p.FindCoordinatorRequest(
        key_type=0, coordinator_keys=[f"{topic}-{one}" for one in range(count)]
    ),
    (ApiKey.DESCRIBE_GROUPS, 5): lambda count, topic: p.DescribeGroupsRequest(
        groups=[f"{topic}-{one}" for one in range(count)]
    ),
    (ApiKey.DELETE_GROUPS, 2): lambda count, topic: p.DeleteGroupsRequest(
        groups_names=[f"{topic}-{one}" for one in range(count)]
    ),
    (ApiKey.LIST_GROUPS, 4): lambda count, _: p.ListGroupsRequest(
        states_filter=[str(one) for one in range(count)]
    ),
    (ApiKey.HEARTBEAT, 4): lambda count, topic: p.HeartbeatRequest(
        group_id="g" * min(16 * count, _TEXT_MAX), generation_id=1, member_id=topic
    ),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1): lambda count, topic: p.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        subscribed_topic_names=[f"{topic}-{one}" for one in range(count)],
    ),
    (ApiKey.INIT_PRODUCER_ID, 4): lambda count, _: p.InitProducerIdRequest(
        transactional_id="t" * min(16 * count, _TEXT_MAX), transaction_timeout_ms=1
    ),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3): _add_partitions,
    (ApiKey.ADD_OFFSETS_TO_TXN, 3): lambda count, _: p.AddOffsetsToTxnRequest(
        transactional_id="t" * min(16 * count, _TEXT_MAX),
        producer_id=0,
        producer_epoch=0,
        group_id="g" * min(16 * count, _TEXT_MAX),
    ),
    (ApiKey.TXN_OFFSET_COMMIT, 3): _txn_offset_commit,
    (ApiKey.END_TXN, 3): lambda count, _: p.EndTxnRequest(
        transactional_id="t" * min(16 * count, _TEXT_MAX),
        producer_id=0,
        producer_epoch=0,
        committed=True,
    ),
    (ApiKey.LIST_TRANSACTIONS, 0): _list_transactions,
    (ApiKey.DESCRIBE_TRANSACTIONS, 0): lambda count, topic: p.DescribeTransactionsRequest(
        transactional_ids=[f"{topic}-{one}" for one in range(count)]
    ),
    (ApiKey.DESCRIBE_PRODUCERS, 0): _describe_producers,
    (ApiKey.DESCRIBE_CLUSTER, 0): lambda *_: p.DescribeClusterRequest(),
    (ApiKey.SASL_HANDSHAKE, 1): lambda count, _: p.SaslHandshakeRequest(
        mechanism="P" * min(16 * count, _TEXT_MAX)
    ),
    (ApiKey.API_VERSIONS, 3): lambda count, _: p.ApiVersionsRequest(
        client_software_name="a" * min(16 * count, _TEXT_MAX), client_software_version="1"
    ),
}

CASES = tuple(_WORST)  # api keys and versions


def worst(api_key: ApiKey, version: int, count: int, topic: str = NOWHERE) -> bytes:
    """Return a framed request of this kind and version that names `count` things."""
    return request(api_key, version, _WORST[api_key, version](count, topic))


def bomb(compression: str, size_in_bytes: int) -> bytes:
    """Return a batch of one record of zeros: few bytes that stand for so many."""
    value = pa.array([bytes(size_in_bytes)], pa.binary())
    return builders.encode(pa.record_batch({"value": value}), compression=compression)
