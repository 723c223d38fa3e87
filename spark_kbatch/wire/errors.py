"""Kafka's error codes, and the exceptions of this package that they stand for.

Servers use `code_of`, clients `error_of`. A code without an exception class becomes an `ApiError`; an
exception without a code becomes UNKNOWN_SERVER_ERROR.

Source: Kafka clients/.../common/protocol/Errors.java; subclasses of RetriableException are retriable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from spark_kbatch import errors
from spark_kbatch.errors import ApiError, KBatchError, RetriableApiError


class ErrorCode(IntEnum):
    """An error code of Kafka's protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def is_retriable(self) -> bool:
        """Whether repeating the same request is safe and may succeed."""
        return self in _RETRIABLE


_RETRIABLE = {
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_CONTROLLER,
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.LISTENER_NOT_FOUND, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH, ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}  # fmt: skip

# A subclass that is not listed has its parent's code.
_CODES: dict[type[BaseException], ErrorCode] = {
    errors.ConfigError: ErrorCode.INVALID_CONFIG,
    errors.CorruptRecordError: ErrorCode.CORRUPT_MESSAGE,
    errors.DisconnectedError: ErrorCode.NETWORK_EXCEPTION,
    errors.FencedLeaderEpochError: ErrorCode.FENCED_LEADER_EPOCH,
    errors.InvalidPartitionsError: ErrorCode.INVALID_PARTITIONS,
    errors.InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.InvalidRecordError: ErrorCode.INVALID_RECORD,
    errors.InvalidReplicationFactorError: ErrorCode.INVALID_REPLICATION_FACTOR,
    errors.InvalidRequiredAcksError: ErrorCode.INVALID_REQUIRED_ACKS,
    errors.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    errors.InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.InvalidTxnStateError: ErrorCode.INVALID_TXN_STATE,
    errors.KafkaStorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.LockTimeoutError: ErrorCode.REQUEST_TIMED_OUT,
    errors.LogDirLockedError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.NotEnoughReplicasAfterAppendError: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.NotEnoughReplicasError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.NotLeaderOrFollowerError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.ProtocolError: ErrorCode.INVALID_REQUEST,
    errors.RecordTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    errors.RequestTimedOutError: ErrorCode.REQUEST_TIMED_OUT,
    errors.SaslAuthenticationError: ErrorCode.SASL_AUTHENTICATION_FAILED,
    errors.TopicAlreadyExistsError: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.TransactionCoordinatorFencedError: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.UnknownLeaderEpochError: ErrorCode.UNKNOWN_LEADER_EPOCH,
    errors.UnknownProducerIdError: ErrorCode.UNKNOWN_PRODUCER_ID,
    errors.UnknownTopicOrPartitionError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnsupportedVersionError: ErrorCode.UNSUPPORTED_VERSION,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
}

# Errors whose only field is a sentence. Others need numbers that only the requesting code knows; it raises them.
_FROM_A_SENTENCE: dict[ErrorCode, Any] = {
    ErrorCode.INVALID_CONFIG: errors.ConfigError,
    ErrorCode.INVALID_PARTITIONS: errors.InvalidPartitionsError,
    ErrorCode.INVALID_RECORD: errors.InvalidRecordError,
    ErrorCode.INVALID_REPLICATION_FACTOR: errors.InvalidReplicationFactorError,
    ErrorCode.KAFKA_STORAGE_ERROR: errors.KafkaStorageError,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: errors.NotLeaderOrFollowerError,
    ErrorCode.REQUEST_TIMED_OUT: errors.RequestTimedOutError,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopicOrPartitionError,
}


def code_of(error: BaseException) -> ErrorCode:
    """Return Kafka's error code for an exception, to send to a client."""
    if isinstance(error, ApiError):
        return ErrorCode(error.code) if error.code in _KNOWN else ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, errors.RecordTooLargeError) and error.option == "segment.bytes":
        return ErrorCode.RECORD_LIST_TOO_LARGE
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_of(code: int, text: str = "") -> KBatchError:
    """Return the exception for an error code of Kafka's other than NONE.

    Args:
        code: an unknown code keeps its number, and is treated as UNKNOWN_SERVER_ERROR.
        text: the server's message, or what was asked of it.
    """
    if code not in _KNOWN:
        return ApiError(code, "an unknown error", text)
    known = ErrorCode(code)
    kind = RetriableApiError if known.is_retriable else ApiError
    error = kind(code, known.name, text)
    made: KBatchError = _FROM_A_SENTENCE[known](str(error)) if known in _FROM_A_SENTENCE else error
    return made


_KNOWN = frozenset(ErrorCode)
