"""Every message in every version has the bytes that kio, or else kafka-python, gives it."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from kafka.protocol import producer

from spark_kbatch.wire.protocol import PRODUCE_MIN_VERSION, ApiKey
from tests.support import kio_messages
from tests.support.kio_messages import KIO_CASES, a_kio_message, assert_equal, kio_class
from tests.support.messages import CASES, SIDES, case_id, decode, encode, message

ROUNDS = 10
OTHERS = [case for case in CASES if case not in KIO_CASES]


def head_of(case: tuple[int, int, int]) -> bytes:
    """Return a header as kio encodes it."""
    key, version, _ = case
    kind = kio_class(case).__header_schema__
    names = {field.name for field in dataclasses.fields(kind)}
    values = {
        "request_api_key": key,
        "request_api_version": version,
        "correlation_id": 7,
        "client_id": "a client",
    }
    return kio_messages.encoded(kind(**{name: values[name] for name in names}))


@pytest.mark.parametrize("case", KIO_CASES, ids=case_id)
def test_message_is_decoded_from_kios_bytes_and_encoded_to_them(
    case: tuple[int, int, int],
) -> None:
    random, head = Random(case_id(case)), head_of(case)
    for _ in range(ROUNDS):
        theirs = a_kio_message(kio_class(case), random)
        frame = head + kio_messages.encoded(theirs)

        decoded = decode(case, frame)

        assert decoded.correlation_id == 7
        assert_equal(theirs, decoded.body)
        assert encode(case, decoded.body) == frame


def test_kio_has_every_version_but_those_of_produce_that_kafka_refuses() -> None:
    missing = {(key, version) for key, version, _ in OTHERS}

    assert missing == {(ApiKey.PRODUCE, version) for version in range(PRODUCE_MIN_VERSION)}


@pytest.mark.parametrize("case", OTHERS, ids=case_id)
def test_message_that_kio_has_not_is_encoded_to_kafka_pythons_bytes(
    case: tuple[int, int, int],
) -> None:
    _, version, side = case
    kind = getattr(producer, f"Produce{SIDES[side].title()}")
    random = Random(case_id(case))
    for _ in range(ROUNDS):
        ours = message(*case, random)
        fields = {one.name: getattr(ours, one.name) for one in ours.FIELDS}

        encoded = kind(**fields).encode(version=version)

        frame = encode(case, ours)
        assert frame.endswith(encoded)
        assert decode(case, frame).body == ours
