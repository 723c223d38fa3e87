"""The table of messages, against Kafka's own descriptions of them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch.wire import messages, protocol
from spark_kbatch.wire.codec import Structure, Versions, error_codes
from spark_kbatch.wire.messages import ApiKey
from spark_kbatch.wire.protocol import SUPPORTED, ListOffsetsResponse, MetadataRequest
from tests.support.kafka_schemas import entry

# kafka-python, whose files are read here, does not have the newer groups.
DESCRIBED = [key for key in ApiKey if key is not ApiKey.CONSUMER_GROUP_HEARTBEAT]


@pytest.mark.parametrize("key", DESCRIBED, ids=lambda key: key.name)
def test_entry_is_as_kafka_describes_the_messages(key: ApiKey) -> None:
    assert entry(key.name, SUPPORTED[key]) in Path(messages.__file__).read_text()


def test_field_that_is_not_given_has_its_default() -> None:
    request = MetadataRequest(topics=None)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="events")

    assert request.topics is None
    assert request.allow_auto_topic_creation
    assert topic.ListOffsetsPartitionResponse() == topic.ListOffsetsPartitionResponse(
        partition_index=0, error_code=0, timestamp=-1, offset=-1, leader_epoch=-1
    )
    topic.partitions.append(1)
    assert topic.partitions == [1]
    assert ListOffsetsResponse.ListOffsetsTopicResponse().partitions == []


def test_a_refused_heartbeat_of_the_newer_groups_has_no_assignment() -> None:
    body = protocol.ConsumerGroupHeartbeatResponse(error_code=35, error_message="no")
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    for version in (0, 1):
        (data,) = protocol.encode_response(key, version, 7, body)
        # The correlation id, no tags; the time to wait, the error, its message, no member id, its epoch, the
        # interval, no assignment, no tags.
        assert bytes(data) == struct.pack(">ibihb2sbiibb", 7, 0, 0, 35, 3, b"no", 0, 0, 0, -1, 0)


def test_message_is_shown_with_its_fields() -> None:
    topic = MetadataRequest.MetadataRequestTopic(name="events")

    assert repr(topic) == "MetadataRequest.MetadataRequestTopic(topic_id=None, name='events')"
    assert topic != MetadataRequest.MetadataRequestTopic(name="other")
    secret = protocol.SaslAuthenticateRequest(auth_bytes=b"user\0secret")
    assert repr(secret) == "SaslAuthenticateRequest(auth_bytes=<11 bytes>)"
    assert topic != "events"


def test_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchRequest'"):
        _ = protocol.NoSuchRequest
    with pytest.raises(TypeError, match="no_such_field"):
        MetadataRequest(no_such_field=1)
    with pytest.raises(AttributeError, match="MetadataRequest has no field 'no_such_field'"):
        _ = MetadataRequest().no_such_field


@pytest.mark.parametrize(
    ("text", "versions"), [("3+", (3, 2**31 - 1)), ("0-7", (0, 7)), ("", (0, 2**31 - 1))]
)
def test_versions_are_parsed(text: str, versions: tuple[int, int]) -> None:
    assert Versions.parse(text) == versions


def with_errors(kind: type[Structure], numbers: Iterator[int]) -> Structure:
    """Return a structure whose parts, two of each array, have an error code each where they have one."""
    values: dict[str, object] = {}
    for field in kind.FIELDS:
        if field.name == "error_code":
            values[field.name] = next(numbers)
        elif field.is_array and field.structure is not None:
            values[field.name] = [with_errors(field.structure, numbers) for _ in range(2)]
    return kind(**values)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_all_error_codes_of_an_answer_are_found(key: ApiKey) -> None:
    numbers = itertools.count(1)
    body = with_errors(protocol.response_class(key), numbers)
    assert sorted(error_codes(body)) == [*range(1, next(numbers))]
    assert [*error_codes(type(body)())] == []
