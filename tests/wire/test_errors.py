"""Kafka's error codes, against kio's table, and our exceptions as codes and back."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kbatch import errors
from spark_kbatch.errors import ApiError, KBatchError, RetriableApiError
from spark_kbatch.wire.errors import ErrorCode, code_of, error_of


def test_codes_names_and_retriable_ones_are_kafkas() -> None:
    ours = {code.value: (code.name, code.is_retriable) for code in ErrorCode}

    assert ours == {code.value: (code.name.upper(), code.retriable) for code in KioErrorCode}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BufferExhaustedError(1, 2, 3), ErrorCode.REQUEST_TIMED_OUT),
        (errors.UnknownLeaderEpochError("t-0", 1, 2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (errors.RecordTooLargeError("a batch", 2, 1, "max.message.bytes"), ErrorCode.MESSAGE_TOO_LARGE),
        (errors.RecordTooLargeError("a batch", 2, 1, "segment.bytes"), ErrorCode.RECORD_LIST_TOO_LARGE),
        (errors.InvalidTopicError("a b", "has a space"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (errors.ConfigError("a sentence"), ErrorCode.INVALID_CONFIG),
        (errors.LockTimeoutError("t-0", "path", 1.0), ErrorCode.REQUEST_TIMED_OUT),
        (errors.NotEnoughReplicasAfterAppendError("t-0", (0,), 2), ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (PermissionError(13, "no"), ErrorCode.KAFKA_STORAGE_ERROR),
        (KeyError("a fault of ours"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ApiError(27, "REBALANCE_IN_PROGRESS"), ErrorCode.REBALANCE_IN_PROGRESS),
        (ApiError(9999, "an unknown error"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=lambda one: one.name if isinstance(one, ErrorCode) else type(one).__name__,
)  # fmt: skip
def test_code_of_an_error_is_that_of_its_nearest_class(
    error: BaseException, code: ErrorCode
) -> None:
    assert code_of(error) == code


@pytest.mark.parametrize("code", [code for code in ErrorCode if code], ids=lambda code: code.name)
def test_code_becomes_an_error_that_becomes_the_code(code: ErrorCode) -> None:
    error = error_of(code, "what the server says")

    assert isinstance(error, KBatchError)
    assert code_of(error) == code
    assert code.name in str(error)
    assert "what the server says" in str(error)


def test_errors_without_a_class_say_whether_a_retry_may_help() -> None:
    assert type(error_of(ErrorCode.NOT_COORDINATOR)) is RetriableApiError
    assert type(error_of(ErrorCode.REBALANCE_IN_PROGRESS)) is ApiError
    assert str(error_of(9999)) == "the Kafka server answered an unknown error (9999)"


@pytest.mark.parametrize(
    "error",
    [
        errors.ProtocolError("FETCH response, version 4", "body", 3, "4 bytes", "1 byte"),
        errors.UnsupportedVersionError(18, "API_VERSIONS", 99, (0, 4), 7),
        errors.DisconnectedError("localhost:9092", "it closed the connection"),
        RetriableApiError(16, "NOT_COORDINATOR", "ask again"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_error_keeps_its_type_fields_and_sentence(error: KBatchError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), vars(copy), str(copy)) == (type(error), vars(error), str(error))
