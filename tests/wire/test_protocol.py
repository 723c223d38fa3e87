"""Requests and responses as bytes, against kafka-python's own encoder and decoder."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from spark_kbatch.errors import UnsupportedVersionError
from spark_kbatch.wire import protocol
from spark_kbatch.wire.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.support import messages
from tests.support.messages import CASES, REQUEST, RESPONSE, case_id, library_class

_OF_THE_LIBRARY = [one for one in CASES if one[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)]


@pytest.mark.parametrize("case", _OF_THE_LIBRARY, ids=case_id)
def test_message_is_decoded_as_the_library_decodes_it(case: tuple[int, int, int]) -> None:
    key, version, side = case
    random = Random(case_id(case))
    for _ in range(10):
        message = messages.message(key, version, side, random)
        if key == ApiKey.API_VERSIONS and side == RESPONSE:
            message.error_code = 0  # the library decodes all answers with an error as version 0
        encoded = bytes(message.encode(version=version))

        if side == REQUEST:
            frame = b"".join(encode_request(key, version, 7, "a-client", message))
            request = decode_request(memoryview(frame))
            assert request[:4] == (key, version, 7, "a-client")
            body: Any = request.body
        else:
            frame = b"".join(encode_response(key, version, 7, message))
            correlation_id, body = decode_response(key, version, memoryview(frame))
            assert correlation_id == 7

        assert frame.endswith(encoded)
        assert body == library_class(key, side).decode(encoded, version=version)


@pytest.mark.parametrize("case", _OF_THE_LIBRARY, ids=case_id)
def test_headers_are_encoded_as_the_librarys(case: tuple[int, int, int]) -> None:
    key, version, side = case
    kind = library_class(key, side)
    body, with_header = kind(version=version), kind(version=version)
    with_header.with_header(correlation_id=7, **({"client_id": "c"} if side == REQUEST else {}))
    head = with_header.encode_header(flexible=kind.flexible_version_q(version))

    pieces = (
        encode_request(key, version, 7, "c", body)
        if side == REQUEST
        else encode_response(key, version, 7, body)
    )

    assert b"".join(pieces)[: len(head)] == head
    assert len(b"".join(pieces)) == len(head) + len(body.encode(version=version))


def test_unknown_version_keeps_the_correlation_id_for_an_answer() -> None:
    frame = memoryview(b"\0\x12\0\x63\0\0\0\x09\xff\xff")

    with pytest.raises(UnsupportedVersionError, match=r"version 99 of API_VERSIONS") as raised:
        decode_request(frame)

    assert (raised.value.api_key, raised.value.correlation_id) == (ApiKey.API_VERSIONS, 9)
    assert raised.value.supported == (0, 4)


def test_unknown_key_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedVersionError, match="api key 999"):
        decode_request(memoryview(b"\x03\xe7\0\0\0\0\0\x09\xff\xff"))


def test_answer_to_an_unknown_version_of_api_versions_is_read_in_version_0() -> None:
    answer = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, max_version=2)]
    )
    frame = b"".join(encode_response(ApiKey.API_VERSIONS, 0, 3, answer))

    body = decode_response(ApiKey.API_VERSIONS, 4, memoryview(frame)).body

    assert (body.error_code, body.api_keys[0].max_version) == (35, 2)


def test_answer_to_api_versions_has_no_tagged_fields_in_its_header() -> None:
    frame = b"".join(encode_response(ApiKey.API_VERSIONS, 3, 3, ApiVersionsResponse(api_keys=[])))

    assert frame[:7] == b"\0\0\0\x03\0\0\x01"  # correlation id, error code, no keys


def test_client_id_may_be_null_and_bytes_after_the_body_are_ignored() -> None:
    frame = b"".join(encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest()))

    assert decode_request(memoryview(frame + b"more")).client_id is None


def test_value_that_does_not_fit_is_refused() -> None:
    partition = FetchPartitionResponse(2**31)
    bodies = [
        (ApiKey.API_VERSIONS, ApiVersionsResponse(error_code=2**15, api_keys=[])),
        (ApiKey.FETCH, FetchResponse([FetchTopicResponse("t", [partition])])),
    ]
    for key, body in bodies:
        with pytest.raises(
            ValueError, match=f"{key.name}, version 4 has a value that does not fit"
        ):
            encode_response(key, 4, 1, body)


@pytest.mark.parametrize("version", [4, 12])
def test_a_string_may_be_as_long_as_its_version_allows(version: int) -> None:
    for size, fits in ((32767, True), (32768, version == 12)):
        body = FetchResponse([FetchTopicResponse("t" * size, [])])
        if fits:
            frame = b"".join(encode_response(ApiKey.FETCH, version, 1, body))
            assert decode_response(ApiKey.FETCH, version, memoryview(frame)).body == body
        else:
            with pytest.raises(ValueError, match="a string of 32768 bytes; at most 32767"):
                encode_response(ApiKey.FETCH, version, 1, body)


def test_every_supported_version_has_messages_and_a_name() -> None:
    assert set(SUPPORTED) == set(protocol._MESSAGES) == set(ApiKey)
    for key, versions in SUPPORTED.items():
        assert all(versions.last <= one.max_version for one in map_of(key))


def map_of(key: int) -> list[Any]:
    return [library_class(key, side) for side in (0, 1)]
