"""Requests and responses <-> bytes, for both sides of a connection.

A server decodes requests and encodes responses, a client the reverse; `framing` frames both. The messages
of Produce and Fetch are those of `produce` and `fetch`. All others are kafka-python's, named below: the
library builds and encodes them, and `schemas` decodes them.

`SUPPORTED` lists the versions that are understood; a server offers those that it has handlers for. Clients
infer a broker's features from its api keys: librdkafka uses lz4 only if FindCoordinator is offered, and needs either all keys of groups or
none. Produce is offered from version 0 on, because librdkafka otherwise stops compressing, but accepted only
from version 3 on. Topic ids start with version 13 of Produce and Fetch. Requests of transactions are for clients
only, and stop before the versions in which each transaction has an epoch of its own (KIP-890), as Produce does if
it is of a transaction: version 11, `PRODUCE_MAX_VERSION_OF_TRANSACTIONS`.

Importing kafka-python takes half a second: apart from this module only `sasl` does so.

Source: Kafka clients/.../common/requests/RequestHeader.java, ApiVersionsResponse.java; KIP-511.
"""

from __future__ import annotations

import functools
import struct
import warnings
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from spark_kbatch.errors import UnsupportedVersionError
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.fetch import FetchRequest, FetchResponse
from spark_kbatch.wire.primitives import Reader, Writer
from spark_kbatch.wire.produce import ProduceRequest, ProduceResponse
from spark_kbatch.wire.schemas import Decoder, structure

with warnings.catch_warnings():
    # The library reads its schemas in a way that Python 3.11 and 3.12 warn about.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import (
        AlterConfigsRequest,
        AlterConfigsResponse,
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DescribeClusterRequest,
        DescribeClusterResponse,
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        ListGroupsRequest,
        ListGroupsResponse,
    )
    from kafka.protocol.consumer import (
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )

__all__ = [
    "SUPPORTED",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "ApiKey",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "Request",
    "Response",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "Versions",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]


class ApiKey(IntEnum):
    """A kind of request; the names are Kafka's."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60


class Versions(NamedTuple):
    """The versions of a kind of request, both inclusive."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


SUPPORTED: Mapping[int, Versions] = {
    ApiKey.PRODUCE: Versions(0, 12),
    ApiKey.FETCH: Versions(4, 12),
    ApiKey.LIST_OFFSETS: Versions(1, 8),
    ApiKey.METADATA: Versions(0, 13),
    ApiKey.OFFSET_COMMIT: Versions(2, 9),
    ApiKey.OFFSET_FETCH: Versions(1, 9),
    ApiKey.FIND_COORDINATOR: Versions(0, 4),
    ApiKey.JOIN_GROUP: Versions(0, 9),
    ApiKey.HEARTBEAT: Versions(0, 4),
    ApiKey.LEAVE_GROUP: Versions(0, 5),
    ApiKey.SYNC_GROUP: Versions(0, 5),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 5),
    ApiKey.LIST_GROUPS: Versions(0, 4),
    ApiKey.SASL_HANDSHAKE: Versions(1, 1),  # version 0 goes with tokens outside of Kafka's protocol
    ApiKey.API_VERSIONS: Versions(0, 4),
    ApiKey.CREATE_TOPICS: Versions(2, 7),
    ApiKey.DELETE_TOPICS: Versions(1, 6),
    ApiKey.DELETE_RECORDS: Versions(0, 2),
    ApiKey.INIT_PRODUCER_ID: Versions(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 4),
    ApiKey.END_TXN: Versions(0, 4),
    ApiKey.TXN_OFFSET_COMMIT: Versions(0, 4),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4),
    ApiKey.ALTER_CONFIGS: Versions(0, 2),
    ApiKey.SASL_AUTHENTICATE: Versions(0, 2),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3),
    ApiKey.DELETE_GROUPS: Versions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
    ApiKey.OFFSET_DELETE: Versions(0, 0),
    ApiKey.DESCRIBE_CLUSTER: Versions(0, 2),
}
PRODUCE_MIN_VERSION = 3  # the lowest version that is accepted
PRODUCE_MAX_VERSION_OF_TRANSACTIONS = 11

_MESSAGES: Mapping[int, tuple[Any, Any]] = {
    ApiKey.PRODUCE: (ProduceRequest, ProduceResponse),
    ApiKey.FETCH: (FetchRequest, FetchResponse),
    ApiKey.LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    ApiKey.METADATA: (MetadataRequest, MetadataResponse),
    ApiKey.OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (OffsetFetchRequest, OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (FindCoordinatorRequest, FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    ApiKey.HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (DescribeGroupsRequest, DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (ListGroupsRequest, ListGroupsResponse),
    ApiKey.SASL_HANDSHAKE: (SaslHandshakeRequest, SaslHandshakeResponse),
    ApiKey.API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: (CreateTopicsRequest, CreateTopicsResponse),
    ApiKey.DELETE_TOPICS: (DeleteTopicsRequest, DeleteTopicsResponse),
    ApiKey.DELETE_RECORDS: (DeleteRecordsRequest, DeleteRecordsResponse),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest, InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    ApiKey.END_TXN: (EndTxnRequest, EndTxnResponse),
    ApiKey.TXN_OFFSET_COMMIT: (TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    ApiKey.DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    ApiKey.ALTER_CONFIGS: (AlterConfigsRequest, AlterConfigsResponse),
    ApiKey.SASL_AUTHENTICATE: (SaslAuthenticateRequest, SaslAuthenticateResponse),
    ApiKey.CREATE_PARTITIONS: (CreatePartitionsRequest, CreatePartitionsResponse),
    ApiKey.DELETE_GROUPS: (DeleteGroupsRequest, DeleteGroupsResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    ),
    ApiKey.OFFSET_DELETE: (OffsetDeleteRequest, OffsetDeleteResponse),
    ApiKey.DESCRIBE_CLUSTER: (DescribeClusterRequest, DescribeClusterResponse),
}

# Limit on the elements of all arrays of a message: it bounds the memory to about 20 MB, the time to a second.
MAX_REQUEST_ELEMENTS = 2**16
# A cluster's metadata has several for each partition.
MAX_RESPONSE_ELEMENTS = 2**21


class Request(NamedTuple):
    """A decoded request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


class Response(NamedTuple):
    """A decoded response; its kind and version are those of the request."""

    correlation_id: int
    body: Any


def decode_request(frame: memoryview, max_elements: int = MAX_REQUEST_ELEMENTS) -> Request:
    """Decode a request from a frame.

    Args:
        frame: without its size. The records of a Produce refer to it, everything else is copied. Bytes
            after the body are ignored, as in Kafka.
        max_elements: of all its arrays together; a request with more is refused.

    Raises:
        UnsupportedVersionError: its kind or version is not supported. The error has the correlation id,
            because ApiVersions is answered even then, in version 0.
        ProtocolError: the bytes are not a request.
    """
    reader = Reader(frame, "request", max_elements=max_elements)
    api_key, version, correlation_id = reader.unpack(_REQUEST_HEADER, "header")
    _ensure_supported(api_key, version, correlation_id)
    kind = _kind(api_key, version, _REQUEST)
    reader.describe(kind.name, flexible=False)
    client_id = reader.nullable_string("client_id")  # flexible in no version
    reader.flexible = kind.is_flexible
    reader.tagged_fields("header")
    return Request(api_key, version, correlation_id, client_id, kind.decode(reader))


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Any
) -> list[Buffer]:
    """Encode a request, header and body, as the pieces of a frame.

    Returns:
        the frame without its size, in pieces; the records of a Produce are separate pieces.

    Raises:
        ValueError: a value does not fit into its field.
    """
    _ensure_supported(api_key, version, correlation_id)
    writer = Writer()
    writer.pack(_REQUEST_HEADER, api_key, version, correlation_id)
    writer.string(client_id)
    writer.flexible = _kind(api_key, version, _REQUEST).is_flexible
    writer.tagged_fields()
    return _with_body(writer, api_key, version, body)


def decode_response(api_key: int, version: int, frame: memoryview) -> Response:
    """Decode the response to a request of this kind and version.

    Args:
        api_key: the kind.
        version: the request's. A server that does not know this version of ApiVersions answers in
            version 0, with the error UNSUPPORTED_VERSION.
        frame: without its size. The records of a Fetch refer to it, everything else is copied.

    Raises:
        ProtocolError: the bytes are not such a response.
    """
    _ensure_supported(api_key, version)
    kind = _kind(api_key, version, _RESPONSE)
    reader = Reader(frame, kind.name, max_elements=MAX_RESPONSE_ELEMENTS)
    correlation_id = reader.int32("correlation_id")
    if api_key == ApiKey.API_VERSIONS:
        start = reader.position
        if reader.int16("error_code") == ErrorCode.UNSUPPORTED_VERSION:
            kind = _kind(api_key, 0, _RESPONSE)
        reader.position = start
        reader.flexible = kind.is_flexible
    else:
        reader.flexible = kind.is_flexible
        reader.tagged_fields("header")
    return Response(correlation_id, kind.decode(reader))


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """Encode a response, header and body, as the pieces of a frame.

    Two threads must not encode the same body at the same time, because the library sets its version.

    Returns:
        the frame without its size, in pieces; the records of a Fetch are separate pieces.

    Raises:
        ValueError: a value does not fit into its field.
    """
    _ensure_supported(api_key, version, correlation_id)
    writer = Writer(flexible=_kind(api_key, version, _RESPONSE).is_flexible)
    writer.int32(correlation_id)
    if api_key != ApiKey.API_VERSIONS:  # its client does not know the server's versions yet
        writer.tagged_fields()
    return _with_body(writer, api_key, version, body)


_REQUEST, _RESPONSE = range(2)
_SIDES = ("request", "response")
_REQUEST_HEADER = struct.Struct(">hhi")  # api key, version, correlation id


def _ensure_supported(api_key: int, version: int, correlation_id: int = -1) -> None:
    versions = SUPPORTED.get(api_key)
    if versions is None or version not in versions:
        name = "" if versions is None else ApiKey(api_key).name
        supported = None if versions is None else (versions.first, versions.last)
        raise UnsupportedVersionError(api_key, name, version, supported, correlation_id)


class _Kind(NamedTuple):
    """A request or response type in one version: its name, its flexibility, and its body's decoder."""

    name: str
    is_flexible: bool
    decode: Decoder  # reads a body, flexible if the reader is


@functools.cache
def _kind(api_key: int, version: int, side: int) -> _Kind:
    message = _MESSAGES[api_key][side]
    name = f"{ApiKey(api_key).name} {_SIDES[side]}, version {version}"
    is_flexible = _MESSAGES[api_key][_REQUEST].flexible_version_q(version)
    if api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
        return _Kind(name, is_flexible, lambda reader: message.decode(reader, version))
    decoder, _ = structure(list(message.fields.values()), version, message, "body")
    return _Kind(name, is_flexible, decoder)


def _with_body(writer: Writer, api_key: int, version: int, body: Any) -> list[Buffer]:
    try:
        if api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
            body.encode(writer, version)
        else:
            writer.append(body.encode(version=version))
    except struct.error as error:
        name = f"{ApiKey(api_key).name}, version {version}"
        raise ValueError(f"a message of {name} has a value that does not fit: {error}") from error
    return writer.pieces()
