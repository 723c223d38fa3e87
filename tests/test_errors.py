"""Errors leave a Spark worker as pickles, and Spark shows their text alone."""

from __future__ import annotations

import dataclasses
import pickle
import string

import pytest

from spark_kbatch import errors
from spark_kbatch.errors import KBatchError


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("a sentence"),
        errors.TopicAlreadyExistsError("events"),
        errors.SchemaError("Order.customer", "no record"),
        errors.OffsetOutOfRangeError("events-0", 9, 0, 5, option="startingOffsets"),
        errors.CorruptRecordError("CRC", position=61, expected=1, found=2).at("0.log", 100),
        errors.RecordDeserializationError(
            "events", 0, 7, "value", "a string is not UTF-8", "Order.id", 3, 9
        ),
        errors.KafkaStorageError.of(PermissionError(13, "Permission denied")),
        errors.FileSystemError.of(PermissionError(13, "Permission denied", "/x")),
        errors.InvalidTimestampTypeError(5, "events"),
        errors.InvalidTxnStateError("events-0", 7),
        errors.UnknownProducerIdError("events-0", 7),
        errors.UnsupportedForMessageFormatError("events-0", "0.10.0"),
        errors.UnknownLeaderEpochError("events-0", 3, 4),
        errors.NotEnoughReplicasAfterAppendError("events-0", (0, 1), 3),
        errors.BufferExhaustedError(100, 60_000, 50),
        errors.SchemaRegistryUnavailableError("http://host:8081", "schema id 7", "it is down"),
        errors.NotPicklableError("Cluster", "open it in the function"),
        errors.OutcomeUnknownError("unknown", "no answer", 42, "ab" * 16),
        errors.ObjectStoreError("get", "ledger/42", "timed out"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_error_keeps_its_type_fields_and_sentence(error: KBatchError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert copy.args == error.args
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    "error",
    [one for one in vars(errors).values() if isinstance(one, type) and vars(one).get("_text")],
)
def test_sentence_carries_every_field(error: type[KBatchError]) -> None:
    named = {name for _, name, _, _ in string.Formatter().parse(error._text) if name}

    assert named == {field.name for field in dataclasses.fields(error)}  # type: ignore[arg-type]
