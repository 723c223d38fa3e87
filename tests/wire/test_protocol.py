"""Requests and responses as bytes: headers, versions, and what is not copied."""

from __future__ import annotations

import struct
from random import Random

import pytest

from spark_kbatch.errors import ProtocolError, UnsupportedVersionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.protocol import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchResponse,
    MetadataRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from spark_kbatch.wire.records import produce_request
from tests.support.messages import CASES, case_id, decode, encode, message

Topic = FetchResponse.FetchableTopicResponse


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_message_is_decoded_to_what_was_encoded(case: tuple[int, int, int]) -> None:
    random = Random(case_id(case))
    for _ in range(5):
        body = message(*case, random)

        assert decode(case, encode(case, body)).body == body


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
    partition = Topic.PartitionData(partition_index=2**31)
    bodies = [
        (ApiKey.API_VERSIONS, ApiVersionsResponse(error_code=2**15)),
        (ApiKey.FETCH, FetchResponse(responses=[Topic(topic="t", partitions=[partition])])),
    ]
    for key, body in bodies:
        with pytest.raises(
            ValueError, match=f"{key.name} response, version 4 has a value that does not fit"
        ):
            encode_response(key, 4, 1, body)


@pytest.mark.parametrize("version", [4, 12])
def test_a_string_may_be_as_long_as_its_version_allows(version: int) -> None:
    for size, fits in ((32767, True), (32768, version == 12)):
        body = FetchResponse(responses=[Topic(topic="t" * size)])
        if fits:
            frame = b"".join(encode_response(ApiKey.FETCH, version, 1, body))
            assert decode_response(ApiKey.FETCH, version, memoryview(frame)).body == body
        else:
            with pytest.raises(ValueError, match="a string of 32768 bytes; at most 32767"):
                encode_response(ApiKey.FETCH, version, 1, body)


def test_a_string_of_a_request_may_be_as_long_as_kafka_accepts() -> None:
    def sent(size: int) -> memoryview:
        body = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t" * size)])
        return memoryview(b"".join(encode_request(ApiKey.METADATA, 12, 1, None, body)))

    assert decode_request(sent(32767)).body.topics[0].name == "t" * 32767
    with pytest.raises(
        ProtocolError, match=r"topics\.name at byte 28: .* of at most 32767 bytes, found 32768"
    ):
        decode_request(sent(32768))


def test_null_that_a_version_does_not_have_is_sent_as_empty() -> None:
    frame = b"".join(encode_request(ApiKey.METADATA, 0, 1, None, MetadataRequest(topics=None)))

    assert decode_request(memoryview(frame)).body.topics == []


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_records_of_a_produce_are_neither_copied_when_decoded_nor_when_encoded(
    version: int,
) -> None:
    records = memoryview(bytearray(b"records"))
    body = produce_request(-1, 100, {TopicPartition("events", 0): records})

    pieces = encode_request(ApiKey.PRODUCE, version, 1, "c", body)
    frame = bytearray(b"".join(pieces))
    decoded = decode_request(memoryview(frame)).body.topic_data[0].partition_data[0].records
    frame[frame.index(b"records")] = ord("R")

    assert any(piece is records for piece in pieces)
    assert bytes(decoded) == b"Records"


@pytest.mark.parametrize("version", [4, 11, 12])
def test_records_of_a_fetch_are_neither_copied_when_decoded_nor_when_encoded(version: int) -> None:
    records = memoryview(bytearray(b"records"))
    partition = Topic.PartitionData(records=records)
    body = FetchResponse(responses=[Topic(topic="events", partitions=[partition])])

    pieces = encode_response(ApiKey.FETCH, version, 1, body)
    frame = bytearray(b"".join(pieces))
    decoded = decode_response(ApiKey.FETCH, version, memoryview(frame))
    frame[frame.index(b"records")] = ord("R")

    assert any(piece is records for piece in pieces)
    assert bytes(decoded.body.responses[0].partitions[0].records) == b"Records"


def test_unknown_tagged_fields_are_skipped() -> None:
    head = struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\x01\x05\x03abc"
    body = b"\x02" + bytes(16) + b"\x02t" + b"\x01\x07\x02de" + b"\x01\0" + b"\0"

    (topic,) = decode_request(memoryview(head + body)).body.topics

    assert topic == MetadataRequest.MetadataRequestTopic(name="t")
