"""Frames that are truncated, damaged or false: our error says where, in bounded memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from random import Random

import pytest

from spark_kbatch.errors import ProtocolError
from spark_kbatch.wire.codec import Reader
from spark_kbatch.wire.protocol import (
    MAX_REQUEST_ELEMENTS,
    ApiKey,
    FetchResponse,
    decode_request,
    decode_response,
    encode_response,
)
from tests.support.messages import CASES, a_frame, case_id, decode

MB = 2**20


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_prefix_of_a_message_is_refused(case: tuple[int, int, int]) -> None:
    frame = a_frame(case, Random(case_id(case)))
    assert decode(case, frame)

    for size in {*range(min(len(frame), 100)), *range(0, len(frame), 7), len(frame) - 1}:
        with pytest.raises(ProtocolError) as raised:
            decode(case, frame[:size])
        assert 0 <= raised.value.position <= size


def request_head(key: int, version: int, *, flexible: bool) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")


METADATA_12 = request_head(ApiKey.METADATA, 12, flexible=True)
METADATA_8 = request_head(ApiKey.METADATA, 8, flexible=False)
PRODUCE_9 = request_head(ApiKey.PRODUCE, 9, flexible=True) + b"\0" + struct.pack(">hi", -1, 100)
PRODUCE_8 = request_head(ApiKey.PRODUCE, 8, flexible=False) + struct.pack(">hhi", -1, -1, 100)
A_TOPIC_9 = b"\x02t"
LAST_VARINT = b"\xff\xff\xff\xff\x0f"  # 2**32 - 1

LIES = {
    "array_count": (METADATA_8 + struct.pack(">i", 2**31 - 1), 10, "body.topics"),
    "array_count_below_null": (METADATA_8 + struct.pack(">i", -2), 10, "body.topics"),
    "flexible_array_count": (METADATA_12 + LAST_VARINT + b"\0" * 100, 11, "body.topics"),
    "string_length": (METADATA_8 + struct.pack(">ih", 1, 30000) + b"t", 16, "body.topics.name"),
    "string_length_below_null": (
        METADATA_8 + struct.pack(">ih", 1, -2) + b"t", 14, "body.topics.name",
    ),
    "null_where_none_may_be": (METADATA_8 + struct.pack(">ih", 1, -1), 16, "body.topics.name"),
    "null_bytes_where_none_may_be": (
        request_head(ApiKey.JOIN_GROUP, 0, flexible=False)
        + struct.pack(">hihhi", 0, 0, 0, 0, 1) + struct.pack(">hi", 0, -1),
        None,
        "body.protocols.metadata",
    ),
    "varint_of_6_bytes": (METADATA_12 + b"\x80\x80\x80\x80\x80\x01", 11, "body.topics"),
    "varint_of_33_bits": (METADATA_12 + b"\xff\xff\xff\xff\x1f", 11, "body.topics"),
    "size_of_an_unknown_tag": (
        METADATA_12 + b"\x01\0\0\x01\x07" + LAST_VARINT, 21, "tag 7 of body",
    ),
    "count_of_tags": (METADATA_12 + b"\x01\0\0" + LAST_VARINT, 14, "the tagged fields of body"),
    "records_length": (
        PRODUCE_9 + b"\x02" + A_TOPIC_9 + b"\x02\0\0\0\0" + LAST_VARINT, None, "records",
    ),
    "records_length_below_null": (
        PRODUCE_8 + struct.pack(">ihcii", 1, 1, b"t", 1, 0) + struct.pack(">i", -2), None, "records",
    ),
    "partitions_count": (PRODUCE_9 + b"\x02" + A_TOPIC_9 + LAST_VARINT, None, "partition_data"),
    "topics_count": (PRODUCE_8 + struct.pack(">i", 2**31 - 1), 18, "topic_data"),
    "null_topics": (PRODUCE_8 + struct.pack(">i", -1), 22, "topic_data"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_false_length_is_refused_at_its_position(lie: str) -> None:
    frame, position, field = LIES[lie]

    with pytest.raises(
        ProtocolError, match=r"malformed (METADATA|PRODUCE|JOIN_GROUP) request"
    ) as raised:
        decode_request(memoryview(frame))

    assert field in raised.value.field
    assert position in (None, raised.value.position)


def test_what_is_not_utf_8_is_read_as_kafka_reads_it() -> None:
    head = struct.pack(">hhih", ApiKey.METADATA, 8, 7, 3) + b"\xe9\xffa"
    asked = decode_request(memoryview(head + struct.pack(">ih", 1, 1) + b"\xff" + b"\0" * 3))

    assert asked.client_id == "\ufffd\ufffda"
    assert [one.name for one in asked.body.topics] == ["\ufffd"]


def test_tag_that_is_longer_than_its_value_is_refused() -> None:
    topic = FetchResponse.FetchableTopicResponse
    leader = topic.PartitionData.LeaderIdAndEpoch(leader_id=7, leader_epoch=8)
    partition = topic.PartitionData(current_leader=leader)
    body = FetchResponse(responses=[topic(topic="t", partitions=[partition])])
    frame = b"".join(encode_response(ApiKey.FETCH, 12, 1, body))
    at = frame.index(b"\x01\x09" + struct.pack(">ii", 7, 8))  # tag 1, 9 bytes
    lengthened = memoryview(frame[:at] + b"\x01\x0a" + frame[at + 2 :])

    with pytest.raises(ProtocolError, match=r"tag 1 of body\.responses\.partitions") as raised:
        decode_response(ApiKey.FETCH, 12, lengthened)

    assert (raised.value.expected, raised.value.found) == ("10 bytes", "9")


# Each fills 4 MB with what costs the most memory or time per byte.
HOSTILE = {
    "empty_topics": METADATA_12 + b"\xff\xff\xff\x01" + bytes(4 * MB),
    "unknown_tags": METADATA_12 + b"\x01\0\0" + b"\xff\xff\x7f" + b"\x09\0" * 2 * MB,
    "varint_without_end": METADATA_12 + b"\x80" * 4 * MB,
    "produce_partitions": PRODUCE_9 + b"\x02" + A_TOPIC_9 + b"\xff\xff\x7f" + bytes(4 * MB),
    "produce_topics": PRODUCE_9 + b"\xff\xff\xff\x00" + b"\x01\x01\0" * MB,
    "forgotten_partitions": request_head(ApiKey.FETCH, 7, flexible=False)
    + struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0)
    + struct.pack(">iihi", 0, 1, 0, MB)
    + bytes(4 * MB),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_request_costs_little_memory_and_time(kind: str) -> None:
    frame = memoryview(HOSTILE[kind])

    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(ProtocolError):
        decode_request(frame)
    elapsed = time.monotonic() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100 * MB
    assert elapsed < 5


def test_largest_number_of_elements_costs_little_memory() -> None:
    count = MAX_REQUEST_ELEMENTS
    frame = METADATA_8 + struct.pack(">i", count) + b"\0\1t" * count + b"\0\0\0"

    tracemalloc.start()
    assert len(decode_request(memoryview(frame)).body.topics) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 30 * MB


def test_elements_of_all_arrays_are_counted_together() -> None:
    half = MAX_REQUEST_ELEMENTS // 2
    topic = struct.pack(">h", 0) + struct.pack(">i", half) + bytes(4 * half)
    frame = (
        request_head(ApiKey.OFFSET_FETCH, 1, flexible=False) + struct.pack(">hi", 0, 2) + topic * 2
    )

    with pytest.raises(ProtocolError, match=f"at most {half - 2} more elements, found {half}"):
        decode_request(memoryview(frame))


def test_the_error_names_message_field_byte_and_both_values() -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_request(memoryview(METADATA_8 + struct.pack(">ih", 1, 300) + b"events"))

    assert str(raised.value) == (
        "malformed METADATA request, version 8: body.topics.name at byte 16: expected 300 bytes, "
        "found 6 bytes to the end"
    )


@pytest.mark.parametrize("size", range(6))
def test_a_varint_of_any_length_is_read_or_truncated(size: int) -> None:
    data = memoryview(b"\x81" * size)

    with pytest.raises(ProtocolError):
        Reader(data, "a message", max_elements=0).varint("a number")


def a_reader(data: bytes) -> Reader:
    return Reader(memoryview(data), "a message", max_elements=10**6)


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\x7f", 127), (b"\x80\x01", 128), (b"\xff\xff\xff\xff\x0f", 2**32 - 1), (b"\x80\x00", 0)],
    ids=["one_byte", "two_bytes", "largest", "longer_than_need_be"],
)  # fmt: skip
def test_varint_is_read(data: bytes, value: int) -> None:
    reader = a_reader(data + b"\xff")

    assert (reader.varint("a number"), reader.position) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x01"])
def test_varint_of_more_than_32_bits_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected a varint of 32 bits, found"):
        a_reader(data).varint("a number")


def test_count_is_bounded_by_the_bytes_that_are_left() -> None:
    reader = a_reader(b"\x07" + bytes(20))
    read: list[object] = []

    with pytest.raises(ProtocolError, match=r"at most 5 elements in the 20 bytes .*found 6"):
        reader.array(None, read.append, 4, "numbers")

    assert read == []
