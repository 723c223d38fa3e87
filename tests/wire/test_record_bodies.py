"""Bodies of Produce and Fetch, byte for byte against kafka-python's."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from spark_kbatch.model import AbortedTransaction
from spark_kbatch.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
)
from spark_kbatch.wire.leaders import CurrentLeader, NodeEndpoint
from spark_kbatch.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)
from spark_kbatch.wire.protocol import (
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.support import messages
from tests.support.messages import CASES, REQUEST, RESPONSE, case_id

_BY_HAND = [one for one in CASES if one[0] in (ApiKey.PRODUCE, ApiKey.FETCH)]


def ours(key: int, side: int, version: int, theirs: Any) -> Any:
    """Return our body with the values of the library's."""
    convert = {
        (ApiKey.PRODUCE, REQUEST): _produce_request,
        (ApiKey.PRODUCE, RESPONSE): _produce_response,
        (ApiKey.FETCH, REQUEST): _fetch_request,
        (ApiKey.FETCH, RESPONSE): _fetch_response,
    }
    return convert[ApiKey(key), side](theirs)


def _produce_request(theirs: Any) -> ProduceRequest:
    return ProduceRequest(
        theirs.acks,
        theirs.timeout_ms,
        [
            ProduceTopic(
                topic.name,
                [ProducePartition(one.index, one.records) for one in topic.partition_data],
            )
            for topic in theirs.topic_data
        ],
        theirs.transactional_id,
    )


def _produce_response(theirs: Any) -> ProduceResponse:
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.name,
                [
                    ProducePartitionResponse(
                        one.index,
                        one.error_code,
                        one.base_offset,
                        one.log_append_time_ms,
                        one.log_start_offset,
                        [
                            RecordError(error.batch_index, error.batch_index_error_message)
                            for error in one.record_errors
                        ],
                        one.error_message,
                        _leader(one.current_leader),
                    )
                    for one in topic.partition_responses
                ],
            )
            for topic in theirs.responses
        ],
        theirs.throttle_time_ms,
        [NodeEndpoint(one.node_id, one.host, one.port, one.rack) for one in theirs.node_endpoints],
    )


def _fetch_request(theirs: Any) -> FetchRequest:
    return FetchRequest(
        theirs.max_wait_ms,
        theirs.min_bytes,
        [
            FetchTopic(
                topic.topic,
                [
                    FetchPartition(
                        one.partition,
                        one.fetch_offset,
                        one.partition_max_bytes,
                        one.current_leader_epoch,
                        one.last_fetched_epoch,
                        one.log_start_offset,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in theirs.topics
        ],
        theirs.max_bytes,
        theirs.isolation_level,
        theirs.replica_id,
        theirs.session_id,
        theirs.session_epoch,
        [ForgottenTopic(topic.topic, topic.partitions) for topic in theirs.forgotten_topics_data],
        theirs.rack_id,
    )


def _fetch_response(theirs: Any) -> FetchResponse:
    return FetchResponse(
        [
            FetchTopicResponse(
                topic.topic,
                [
                    FetchPartitionResponse(
                        one.partition_index,
                        one.error_code,
                        one.high_watermark,
                        one.last_stable_offset,
                        one.log_start_offset,
                        None
                        if one.aborted_transactions is None
                        else [
                            AbortedTransaction(aborted.producer_id, aborted.first_offset)
                            for aborted in one.aborted_transactions
                        ],
                        one.preferred_read_replica,
                        one.records,
                        _epoch(one.diverging_epoch),
                        _leader(one.current_leader),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in theirs.responses
        ],
        theirs.throttle_time_ms,
        theirs.error_code,
        theirs.session_id,
    )


def _leader(theirs: Any) -> CurrentLeader | None:
    return theirs and CurrentLeader(theirs.leader_id, theirs.leader_epoch)


def _epoch(theirs: Any) -> EpochEndOffset | None:
    return theirs and EpochEndOffset(theirs.epoch, theirs.end_offset)


def a_message(case: tuple[int, int, int], random: Random) -> Any:
    key, version, side = case
    theirs = messages.message(key, version, side, random)
    if (key, side) == (ApiKey.FETCH, REQUEST) and version >= 12:
        theirs.cluster_id = None  # only brokers send it
    if (key, side) == (ApiKey.FETCH, RESPONSE) and version >= 12:
        for topic in theirs.responses:
            for one in topic.partitions:
                one.snapshot_id = None  # only sent to brokers
    return theirs


@pytest.mark.parametrize("case", _BY_HAND, ids=case_id)
def test_body_is_encoded_to_the_librarys_bytes_and_decoded_from_them(
    case: tuple[int, int, int],
) -> None:
    key, version, side = case
    random = Random(case_id(case))
    for _ in range(30):
        theirs = a_message(case, random)
        body = ours(key, side, version, theirs)
        encoded = bytes(theirs.encode(version=version))

        if side == REQUEST:
            frame = b"".join(encode_request(key, version, 1, None, body))
            decoded: Any = decode_request(memoryview(frame)).body
        else:
            frame = b"".join(encode_response(key, version, 1, body))
            decoded = decode_response(key, version, memoryview(frame)).body

        assert frame.endswith(encoded)
        assert len(frame) - len(encoded) <= 11  # the header
        assert decoded == body


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_records_of_a_produce_are_neither_copied_when_decoded_nor_when_encoded(
    version: int,
) -> None:
    records = memoryview(bytearray(b"records"))
    body = ProduceRequest(-1, 100, [ProduceTopic("events", [ProducePartition(0, records)])])

    pieces = encode_request(ApiKey.PRODUCE, version, 1, "c", body)
    frame = bytearray(b"".join(pieces))
    decoded = decode_request(memoryview(frame)).body.topics[0].partitions[0].records
    frame[frame.index(b"records")] = ord("R")

    assert any(piece is records for piece in pieces)
    assert bytes(decoded) == b"Records"


@pytest.mark.parametrize("version", [4, 11, 12])
def test_records_of_a_fetch_are_neither_copied_when_decoded_nor_when_encoded(version: int) -> None:
    records = memoryview(bytearray(b"records"))
    body = FetchResponse(
        [FetchTopicResponse("events", [FetchPartitionResponse(0, records=records)])]
    )

    pieces = encode_response(ApiKey.FETCH, version, 1, body)
    frame = bytearray(b"".join(pieces))
    decoded = decode_response(ApiKey.FETCH, version, memoryview(frame))
    frame[frame.index(b"records")] = ord("R")

    assert any(piece is records for piece in pieces)
    assert bytes(decoded.body.topics[0].partitions[0].records) == b"Records"


def test_unknown_tagged_fields_are_skipped() -> None:
    """Here a cluster id in a fetch, tag 0 of its body, which only brokers send."""
    random = Random(1)
    theirs = messages.message(ApiKey.FETCH, 12, REQUEST, random)
    theirs.cluster_id = "a-cluster"
    head = b"\0\x01\0\x0c\0\0\0\x01\xff\xff\0"

    decoded = decode_request(memoryview(head + bytes(theirs.encode(version=12)))).body

    assert decoded == _fetch_request(theirs)
