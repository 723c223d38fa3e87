"""Every supported message and version, encoded here and decoded by kio, and the reverse."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from spark_kbatch.wire.protocol import (
    PRODUCE_MIN_VERSION,
    ApiKey,
    encode_request,
    encode_response,
)
from tests.support import kio_messages
from tests.support.kio_messages import KIO_CASES, a_kio_message, assert_equal, kio_class
from tests.support.messages import CASES, REQUEST, case_id, decode, library_class

ROUNDS = 8
_BY_HAND = (ApiKey.PRODUCE, ApiKey.FETCH)


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


def encode(case: tuple[int, int, int], body: Any) -> bytes:
    key, version, side = case
    if side == REQUEST:
        return b"".join(encode_request(key, version, 7, "a client", body))
    return b"".join(encode_response(key, version, 7, body))


@pytest.mark.parametrize("case", KIO_CASES, ids=case_id)
def test_we_decode_kios_bytes_and_kio_decodes_ours(case: tuple[int, int, int]) -> None:
    key, version, side = case
    random, head = Random(case_id(case)), head_of(case)
    for _ in range(ROUNDS):
        theirs = a_kio_message(kio_class(case), random)
        encoded = kio_messages.encoded(theirs)

        decoded = decode(case, head + encoded)
        again = encode(case, decoded.body)

        assert decoded.correlation_id == 7
        assert again.startswith(head)
        assert kio_messages.decoded(kio_class(case), again[len(head) :]) == theirs
        body = decoded.body
        if key in _BY_HAND:  # test_record_bodies compares their bodies with the library's
            body = library_class(key, side).decode(encoded, version=version)
        assert_equal(theirs, body)


def test_kio_has_every_version_but_those_of_produce_that_kafka_refuses() -> None:
    missing = {(key, version) for key, version, _ in CASES} - {one[:2] for one in KIO_CASES}

    assert missing == {(ApiKey.PRODUCE, version) for version in range(PRODUCE_MIN_VERSION)}
