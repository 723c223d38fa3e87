"""Answers that consist of an error: to a request whose handler failed, or that a test refuses.

Each kind of answer has its error in another place: one for the whole request, one for each requested thing,
or one for each partition.

Source: Kafka clients/.../common/requests/AbstractRequest.java getErrorResponse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from spark_kbatch.server.requests import Received
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.fetch import FetchPartitionResponse, FetchTopicResponse
from spark_kbatch.wire.produce import ProducePartitionResponse, ProduceTopicResponse
from spark_kbatch.wire.protocol import ApiKey

# Makes the fields of an answer besides the version.
_Fields: TypeAlias = Callable[[Received, ErrorCode], Mapping[str, Any]]

_FETCH_ERROR_SINCE = 7
_COORDINATOR_KEYS_SINCE = 4
_TOPIC_IDS_SINCE = 6  # of DeleteTopics
_OFFSET_FETCH_ERROR_SINCE, _OFFSET_FETCH_GROUPS_SINCE = 2, 8


def refusal(received: Received, error: ErrorCode) -> Any | None:
    """Return a response to a request with only this error; None for a Produce with acks=0."""
    api_key = ApiKey(received.api_key)
    if api_key is ApiKey.PRODUCE:
        return _produce(received.body, error)
    if api_key is ApiKey.FETCH:
        return fetch_refusal(received.body, received.version, error)
    response, fields = _ANSWERS[api_key]
    return response(version=received.version, **fields(received, error))


def _produce(request: protocol.ProduceRequest, error: ErrorCode) -> Any | None:
    if request.acks == 0:
        return None
    return protocol.ProduceResponse(
        [
            ProduceTopicResponse(
                topic.topic,
                [ProducePartitionResponse(one.partition, error) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def fetch_refusal(
    request: protocol.FetchRequest, version: int, error: ErrorCode
) -> protocol.FetchResponse:
    """Return an answer to a Fetch with only this error."""
    if version >= _FETCH_ERROR_SINCE:
        return protocol.FetchResponse([], error_code=error)
    return protocol.FetchResponse(
        [
            FetchTopicResponse(
                topic.topic,
                [FetchPartitionResponse(one.partition, error) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _once(received: Received, error: ErrorCode) -> Mapping[str, Any]:
    del received
    return {"error_code": error}


def _each(
    answers: str,
    make: Callable[..., Any],
    asked: Callable[[Received], Iterable[Any]],
    names: Callable[[Any], Mapping[str, Any]],
) -> _Fields:
    """Return a function that makes error responses with one entry per item, in the field `answers`."""

    def fields(received: Received, error: ErrorCode) -> Mapping[str, Any]:
        return {answers: [make(error_code=error, **names(one)) for one in asked(received)]}

    return fields


def _each_partition(
    make_topic: Any, make: Callable[..., Any], *, topic: str = "name", number: str
) -> _Fields:
    """Return a function that makes an error response with an entry for each requested partition.

    `topic` and `number` are the names of an entry's fields.
    """

    def fields(received: Received, error: ErrorCode) -> Mapping[str, Any]:
        return {
            "topics": [
                make_topic(
                    **{topic: getattr(one, topic)},
                    partitions=[
                        make(**{number: _number(partition, number)}, error_code=error)
                        for partition in one.partitions
                    ],
                )
                for one in received.body.topics
            ]
        }

    return fields


def _number(partition: Any, name: str) -> Any:
    return getattr(partition, name)


def _metadata(received: Received, error: ErrorCode) -> Mapping[str, Any]:
    make = protocol.MetadataResponse.MetadataResponseTopic
    topics = [
        make(error_code=error, name=one.name or "", topic_id=one.topic_id, partitions=[])
        for one in received.body.topics or ()
    ]
    return {"brokers": [], "topics": topics, "error_code": error}


def _find_coordinator(received: Received, error: ErrorCode) -> Mapping[str, Any]:
    none = {"error_code": error, "node_id": -1, "host": "", "port": -1}
    if received.version < _COORDINATOR_KEYS_SINCE:
        return none
    make = protocol.FindCoordinatorResponse.Coordinator
    return {"coordinators": [make(key=key, **none) for key in received.body.coordinator_keys]}


def _offset_fetch(received: Received, error: ErrorCode) -> Mapping[str, Any]:
    response, body = protocol.OffsetFetchResponse, received.body
    if received.version >= _OFFSET_FETCH_GROUPS_SINCE:
        make_group = response.OffsetFetchResponseGroup
        return {
            "groups": [
                make_group(group_id=group.group_id, topics=[], error_code=error)
                for group in body.groups
            ]
        }
    if received.version >= _OFFSET_FETCH_ERROR_SINCE:
        return {"topics": [], "error_code": error}
    make = response.OffsetFetchResponseTopic
    return {
        "topics": [
            make(
                name=topic.name,
                partitions=[
                    make.OffsetFetchResponsePartition(
                        partition_index=number, committed_offset=-1, metadata="", error_code=error
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in body.topics or ()
        ]
    }


def _deleted_topics(received: Received) -> Iterable[Mapping[str, Any]]:
    if received.version < _TOPIC_IDS_SINCE:
        return [{"name": name} for name in received.body.topic_names]
    return [{"name": one.name, "topic_id": one.topic_id} for one in received.body.topics]


def _resource(one: Any) -> Mapping[str, Any]:
    return {"resource_type": one.resource_type, "resource_name": one.resource_name}


def _answers() -> Mapping[ApiKey, tuple[Any, _Fields]]:
    p = protocol
    offsets = p.ListOffsetsResponse.ListOffsetsTopicResponse
    epochs = p.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    commits = p.OffsetCommitResponse.OffsetCommitResponseTopic
    deletions = p.DeleteRecordsResponse.DeleteRecordsTopicResult
    return {
        ApiKey.LIST_OFFSETS: (
            p.ListOffsetsResponse,
            _each_partition(
                offsets, offsets.ListOffsetsPartitionResponse, number="partition_index"
            ),
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (
            p.OffsetForLeaderEpochResponse,
            _each_partition(epochs, epochs.EpochEndOffset, topic="topic", number="partition"),
        ),
        ApiKey.OFFSET_COMMIT: (
            p.OffsetCommitResponse,
            _each_partition(
                commits, commits.OffsetCommitResponsePartition, number="partition_index"
            ),
        ),
        ApiKey.DELETE_RECORDS: (
            p.DeleteRecordsResponse,
            _each_partition(
                deletions, deletions.DeleteRecordsPartitionResult, number="partition_index"
            ),
        ),
        ApiKey.METADATA: (p.MetadataResponse, _metadata),
        ApiKey.FIND_COORDINATOR: (p.FindCoordinatorResponse, _find_coordinator),
        ApiKey.OFFSET_FETCH: (p.OffsetFetchResponse, _offset_fetch),
        ApiKey.API_VERSIONS: (p.ApiVersionsResponse, _once),
        ApiKey.INIT_PRODUCER_ID: (p.InitProducerIdResponse, _once),
        ApiKey.DESCRIBE_CLUSTER: (p.DescribeClusterResponse, _once),
        ApiKey.JOIN_GROUP: (p.JoinGroupResponse, _once),
        ApiKey.SYNC_GROUP: (p.SyncGroupResponse, _once),
        ApiKey.HEARTBEAT: (p.HeartbeatResponse, _once),
        ApiKey.LEAVE_GROUP: (p.LeaveGroupResponse, _once),
        ApiKey.LIST_GROUPS: (p.ListGroupsResponse, _once),
        ApiKey.OFFSET_DELETE: (p.OffsetDeleteResponse, _once),
        ApiKey.DESCRIBE_GROUPS: (
            p.DescribeGroupsResponse,
            _each(
                "groups", p.DescribeGroupsResponse.DescribedGroup,
                lambda received: received.body.groups, lambda group: {"group_id": group},
            ),
        ),
        ApiKey.DELETE_GROUPS: (
            p.DeleteGroupsResponse,
            _each(
                "results", p.DeleteGroupsResponse.DeletableGroupResult,
                lambda received: received.body.groups_names, lambda group: {"group_id": group},
            ),
        ),
        ApiKey.CREATE_TOPICS: (
            p.CreateTopicsResponse,
            _each(
                "topics", p.CreateTopicsResponse.CreatableTopicResult,
                lambda received: received.body.topics, lambda one: {"name": one.name},
            ),
        ),
        ApiKey.DELETE_TOPICS: (
            p.DeleteTopicsResponse,
            _each(
                "responses", p.DeleteTopicsResponse.DeletableTopicResult, _deleted_topics, dict,
            ),
        ),
        ApiKey.CREATE_PARTITIONS: (
            p.CreatePartitionsResponse,
            _each(
                "results", p.CreatePartitionsResponse.CreatePartitionsTopicResult,
                lambda received: received.body.topics, lambda one: {"name": one.name},
            ),
        ),
        ApiKey.DESCRIBE_CONFIGS: (
            p.DescribeConfigsResponse,
            _each(
                "results", p.DescribeConfigsResponse.DescribeConfigsResult,
                lambda received: received.body.resources, _resource,
            ),
        ),
        ApiKey.ALTER_CONFIGS: (
            p.AlterConfigsResponse,
            _each(
                "responses", p.AlterConfigsResponse.AlterConfigsResourceResponse,
                lambda received: received.body.resources, _resource,
            ),
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (
            p.IncrementalAlterConfigsResponse,
            _each(
                "responses", p.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
                lambda received: received.body.resources, _resource,
            ),
        ),
    }  # fmt: skip


_ANSWERS = _answers()
