"""The server's answers to requests of producers and consumers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.model import EARLIEST, LATEST, MAX_TIMESTAMP, TopicPartition
from spark_kbatch.server.appends import Appends
from spark_kbatch.server.metadata import (
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    uuid_of,
)
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ApiKey,
    DescribeClusterRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from spark_kbatch.wire.records import produce_request
from tests.support import builders, reference
from tests.support.log_histories import data_batch
from tests.support.raw_clients import (
    RawClient,
    fetch,
    fetched,
    produce,
    produced,
    request,
)
from tests.support.waiting import until

BATCH = builders.batch(n=3)
STORED = builders.batch(n=3, leader_epoch=0)  # the leader sets the epoch
ZSTD = builders.batch(n=3, compression="zstd")
EARLIEST_LOCAL, LATEST_TIERED = -4, -5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


# Produce.


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_appends_in_every_version(client: RawClient, version: int) -> None:
    found = produced(client.ask(ApiKey.PRODUCE, version, produce(BATCH)))

    assert (found.error_code, found.base_offset) == (0, 0)


@pytest.mark.parametrize("version", range(3))
def test_produce_is_refused_in_versions_that_are_only_offered(
    client: RawClient, version: int
) -> None:
    found = produced(client.ask(ApiKey.PRODUCE, version, produce(BATCH)))

    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        pytest.param(produce(BATCH, "none"), "UNKNOWN_TOPIC_OR_PARTITION", id="no topic"),
        pytest.param(produce(BATCH, partition=9), "UNKNOWN_TOPIC_OR_PARTITION", id="no partition"),
        pytest.param(produce(BATCH, "__commits"), "INVALID_TOPIC_EXCEPTION", id="internal topic"),
        pytest.param(produce(BATCH, "a/b"), "UNKNOWN_TOPIC_OR_PARTITION", id="bad name"),
        pytest.param(produce(BATCH, acks=2), "INVALID_REQUIRED_ACKS", id="acks"),
        pytest.param(
            produce(
                data_batch(base_offset=0, producer_id=9, transactional=True), transactional_id="t"
            ),
            "INVALID_TXN_STATE",
            id="no transaction",
        ),
        pytest.param(produce(None), "INVALID_RECORD", id="null"),
        pytest.param(produce(b""), "INVALID_RECORD", id="no batch"),
        pytest.param(produce(BATCH + BATCH), "INVALID_RECORD", id="two batches"),
        pytest.param(produce(BATCH[:-1]), "INVALID_RECORD", id="cut batch"),
        pytest.param(produce(BATCH[:-1] + b"\xff"), "CORRUPT_MESSAGE", id="damaged batch"),
        pytest.param(
            produce(builders.batch(n=1, value_bytes=2 << 20)), "MESSAGE_TOO_LARGE", id="large"
        ),
        pytest.param(
            produce(builders.idempotent_batch(base_sequence=3)),
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            id="sequence after a gap",
        ),
    ],
)
def test_each_refused_batch_has_its_own_error(
    cluster: Cluster, client: RawClient, asked: Any, error: str
) -> None:
    client.ask(ApiKey.PRODUCE, 9, produce(builders.idempotent_batch(base_sequence=0)))
    asked.topic_data += produce(BATCH, partition=1).topic_data

    answer = client.ask(ApiKey.PRODUCE, 9, asked)

    assert produced(answer).error_code == ErrorCode[error]
    assert produced(answer).error_message
    asked.topic_data.pop()
    assert (answer.responses[1].partition_responses[0].error_code != 0) == (asked.acks == 2)
    assert cluster.describe("events")[0].offsets.high_watermark == 1


def test_a_partition_that_a_produce_names_twice_is_appended_to_once(
    cluster: Cluster, client: RawClient
) -> None:
    asked = produce(builders.batch(n=1))
    asked.topic_data[0].partition_data *= 3
    first, *others = client.ask(ApiKey.PRODUCE, 9, asked).responses[0].partition_responses

    assert first.error_code == 0
    assert {one.error_code for one in others} == {ErrorCode.INVALID_REQUEST}
    assert cluster.describe("events")[0].offsets.high_watermark == 1


def test_batches_for_many_partitions_that_do_not_exist_are_refused_without_a_queue(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued: list[object] = []
    monkeypatch.setattr(Appends, "append", lambda *arguments: queued.append(arguments))
    batch = builders.batch(n=1)
    batches = {TopicPartition("events", number): batch for number in range(1000, 2000)}
    asked = produce_request(-1, 10_000, batches)
    found = client.ask(ApiKey.PRODUCE, 9, asked).responses[0].partition_responses

    assert not queued
    assert len(found) == len(batches)
    assert {one.error_code for one in found} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert [bool(one.error_message) for one in found[:3]] == [True, False, False]


def test_zstd_is_refused_in_versions_whose_clients_do_not_know_it(client: RawClient) -> None:
    found = produced(client.ask(ApiKey.PRODUCE, 6, produce(ZSTD)))

    assert found.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produced(client.ask(ApiKey.PRODUCE, 7, produce(ZSTD))).error_code == 0


def test_a_retried_batch_is_stored_once(cluster: Cluster, client: RawClient) -> None:
    batch = builders.idempotent_batch(base_sequence=0)
    answers = [produced(client.ask(ApiKey.PRODUCE, 9, produce(batch))) for _ in range(3)]

    assert [(one.error_code, one.base_offset) for one in answers] == [(0, 0)] * 3
    assert cluster.describe("events")[0].offsets.high_watermark == 1


def test_with_acks_0_there_is_no_answer_and_an_error_ends_the_connection(
    cluster: Cluster, client: RawClient
) -> None:
    client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, acks=0)))
    assert fetched(client.ask(ApiKey.FETCH, 12, fetch(0, max_wait_ms=5000))).records == STORED

    client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, "none", acks=0)))
    assert client.is_closed_by_server()


# Fetch.


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_returns_whole_batches_in_every_version(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    builders.append_records(cluster, {("events", 0): BATCH})
    found = fetched(client.ask(ApiKey.FETCH, version, fetch(1, max_bytes=1)))

    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 3)
    assert found.records == STORED
    assert found.aborted_transactions is None


def test_fetch_lists_aborted_transactions_only_for_read_committed(
    cluster: Cluster, client: RawClient
) -> None:
    found = fetched(client.ask(ApiKey.FETCH, 12, fetch(0, isolation_level=1)))

    assert found.aborted_transactions == []
    assert found.records == b""


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        pytest.param(fetch(9), "OFFSET_OUT_OF_RANGE", id="after the end"),
        pytest.param(fetch(-1), "OFFSET_OUT_OF_RANGE", id="before the start"),
    ],
)
def test_a_partition_that_cannot_be_fetched_is_answered_at_once(
    client: RawClient, asked: Any, error: str
) -> None:
    asked.max_wait_ms = 60_000
    asked.topics += fetch(0, partition=1).topics
    answer = client.ask(ApiKey.FETCH, 12, asked)
    asked.topics.pop()

    assert fetched(answer).error_code == ErrorCode[error]
    assert fetched(answer).records == b""
    assert answer.responses[-1].partitions[-1].error_code == 0


FAR_MS = 2 * 3_600_000


@pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
def test_records_with_times_far_ahead_are_refused_by_their_numbers(
    cluster: Cluster, client: RawClient, codec: int
) -> None:
    now = int(time.time() * 1000)
    times = [now, now + FAR_MS, -1, now - FAR_MS, now + 1000 * FAR_MS]
    records = [reference.Record(i, each, None, b"v") for i, each in enumerate(times)]
    data = reference.encode_batch(records, codec=codec)
    refused = produced(client.ask(ApiKey.PRODUCE, 8, produce(data)))
    cluster.alter_topic("events", {"message.timestamp.after.max.ms": 2**62})
    taken = produced(client.ask(ApiKey.PRODUCE, 8, produce(data)))

    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in refused.record_errors] == [1, 4]
    assert f"has the time {times[1]} ms" in refused.record_errors[0].batch_index_error_message
    assert "message.timestamp.after.max.ms=3600000" in refused.error_message
    assert (taken.error_code, taken.record_errors) == (0, [])


def test_no_more_than_a_thousand_records_are_named_in_an_answer(client: RawClient) -> None:
    far = int(time.time() * 1000) + FAR_MS
    data = reference.encode_batch([reference.Record(i, far, None, b"") for i in range(3000)])
    found = produced(client.ask(ApiKey.PRODUCE, 8, produce(data)))

    assert [one.batch_index for one in found.record_errors] == list(range(1000))


@pytest.mark.parametrize("least", [0, 1, 500])
def test_a_topic_may_refuse_any_but_small_batches(
    cluster: Cluster, client: RawClient, least: int
) -> None:
    """As tests of applications ask for, that provoke the error."""
    cluster.alter_topic("events", {"max.message.bytes": least})
    large = produced(client.ask(ApiKey.PRODUCE, 12, produce(builders.batch(n=1, value_bytes=600))))

    assert large.error_code == ErrorCode.MESSAGE_TOO_LARGE
    with cluster.producer() as producer:
        error = producer.send("events", b"v" * 600).exception()
    assert isinstance(error, RecordTooLargeError)


def test_a_client_id_that_is_not_utf_8_is_answered(client: RawClient) -> None:
    frame = bytearray(request(ApiKey.METADATA, 1, MetadataRequest(topics=None)))
    at = frame.index(b"a test")
    frame[at : at + 6] = b"\xe9 test"
    client.send(bytes(frame))

    assert [one.name for one in client.receive(ApiKey.METADATA, 1).topics if not one.is_internal]


def test_a_group_and_metadata_that_are_not_utf_8_are_committed_and_fetched(
    client: RawClient,
) -> None:
    def ask(api_key: ApiKey, body: Any) -> Any:
        client.send(request(api_key, 7, body).replace(b"cafe", b"caf\xe9"))
        return client.receive(api_key, 7)

    commit = OffsetCommitRequest.OffsetCommitRequestTopic
    place = commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata="at the cafe"
    )
    topics = [commit(name="events", partitions=[place])]
    answer = ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="cafe", topics=topics))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    asked = [OffsetFetchRequest.OffsetFetchRequestTopic(name="events", partition_indexes=[0])]
    answer = ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="cafe", topics=asked))
    found = answer.topics[0].partitions[0]
    assert (found.committed_offset, found.metadata) == (5, "at the caf\ufffd")


UNKNOWN = [
    pytest.param("none", 0, id="no topic"),
    pytest.param("a/b", 0, id="no name of a topic"),
    pytest.param("events", 9, id="no partition"),
    pytest.param("events", -1, id="a negative partition"),
]


@pytest.mark.parametrize(("topic", "partition"), UNKNOWN)
def test_a_fetch_waits_for_the_others_beside_what_does_not_exist(
    cluster: Cluster, client: RawClient, topic: str, partition: int
) -> None:
    asked = fetch(0, topic, partition, max_wait_ms=60_000)
    asked.topics += fetch(0, partition=1).topics
    client.send(request(ApiKey.FETCH, 12, asked))
    client.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.read(1)
    client.socket.settimeout(10)
    builders.append_records(cluster, {("events", 1): BATCH})
    answer = client.receive(ApiKey.FETCH, 12)

    assert fetched(answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bytes(answer.responses[-1].partitions[-1].records) == STORED


@pytest.mark.parametrize(("topic", "partition"), UNKNOWN)
def test_a_fetch_of_what_does_not_exist_alone_is_answered_at_once(
    client: RawClient, topic: str, partition: int
) -> None:
    answer = client.ask(ApiKey.FETCH, 12, fetch(0, topic, partition, max_wait_ms=60_000))

    assert fetched(answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_negative_leader_epoch_in_a_fetch_is_none(client: RawClient) -> None:
    asked = fetch(0)
    asked.topics[0].partitions[0].current_leader_epoch = -2

    assert fetched(client.ask(ApiKey.FETCH, 12, asked)).error_code == 0


def test_a_partition_that_is_named_often_is_fetched_once(
    cluster: Cluster, client: RawClient
) -> None:
    builders.append_records(cluster, {("events", 0): BATCH})
    asked = fetch(0)
    asked.topics[0].partitions *= 1000
    answer = client.ask(ApiKey.FETCH, 12, asked)

    assert [bytes(one.records) for one in answer.responses[0].partitions] == [STORED]


def test_fetch_fences_an_unknown_leader_epoch(client: RawClient) -> None:
    asked = fetch(0)
    asked.topics[0].partitions[0].current_leader_epoch = 7

    found = fetched(client.ask(ApiKey.FETCH, 12, asked))
    assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_fetch_has_no_sessions_and_no_followers(client: RawClient) -> None:
    first = client.ask(ApiKey.FETCH, 12, fetch(0, session_epoch=0))
    assert (first.error_code, first.session_id) == (0, 0)

    session = client.ask(ApiKey.FETCH, 12, fetch(0, session_id=5, session_epoch=1))
    assert session.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for replica_id in (0, 2):
        follower = client.ask(ApiKey.FETCH, 12, fetch(0, replica_id=replica_id))
        assert follower.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_fetches_get_as_much_as_there_is_memory_for_and_at_least_one_batch(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    builders.write(cluster, {("events", 0): [BATCH] * 10})
    asked = fetch(0)
    assert len(fetched(client.ask(ApiKey.FETCH, 12, asked)).records) == 10 * len(BATCH)

    memory = server._memory.answers
    until(lambda: not memory.used_bytes, "the answer is no longer counted")
    memory.count(memory.room())
    assert len(fetched(client.ask(ApiKey.FETCH, 12, asked)).records) == len(BATCH)


def test_fetches_that_have_waited_get_as_much_as_there_is_memory_for_by_then(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    """One commit ends the wait of many, each of which had all of the memory when it came."""
    memory = server._memory.answers
    client.send(request(ApiKey.FETCH, 12, fetch(0, max_wait_ms=30_000)))
    until(lambda: server._fetches._waiting and not memory.used_bytes, "the fetch waits")
    memory.count(memory.room())

    builders.write(cluster, {("events", 0): [BATCH] * 10})
    assert len(fetched(client.receive(ApiKey.FETCH, 12)).records) == len(BATCH)


# Offsets.


def list_offsets(
    client: RawClient, time_ms: int, *, version: int = 8, partition: int = 0, **named: Any
) -> Any:
    kind = ListOffsetsRequest
    one = kind.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition, timestamp=time_ms, **named
    )
    topics = [kind.ListOffsetsTopic(name="events", partitions=[one])]
    answer = client.ask(ApiKey.LIST_OFFSETS, version, kind(replica_id=-1, topics=topics))
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_are_found_by_time(cluster: Cluster, client: RawClient, version: int) -> None:
    builders.append_records(cluster, {("events", 0): BATCH})
    times = cluster.read("events").read_all().column("timestamp").cast("int64").to_pylist()
    first_ms, last_ms = times[0] // 1000, times[-1] // 1000

    def found(time_ms: int) -> tuple[int, int]:
        one = list_offsets(client, time_ms, version=version)
        assert one.error_code == 0
        return one.offset, one.timestamp

    assert found(EARLIEST) == (0, -1)
    assert found(LATEST) == (3, -1)
    assert found(0) == (0, first_ms)
    assert found(last_ms + 1) == (-1, -1)
    if version >= 7:
        assert found(MAX_TIMESTAMP)[1] == last_ms
    if version >= 8:
        assert found(EARLIEST_LOCAL) == (0, -1)
    if version >= 9:
        assert found(LATEST_TIERED) == (-1, -1)


@pytest.mark.parametrize(
    ("time_ms", "version", "named", "error"),
    [
        pytest.param(MAX_TIMESTAMP, 6, {}, "UNSUPPORTED_VERSION", id="early for a time"),
        pytest.param(LATEST_TIERED, 8, {}, "UNSUPPORTED_VERSION", id="early for tiered storage"),
        pytest.param(-9, 9, {}, "UNSUPPORTED_VERSION", id="unknown time"),
        pytest.param(0, 8, {"partition": 9}, "UNKNOWN_TOPIC_OR_PARTITION", id="no partition"),
        pytest.param(0, 8, {"current_leader_epoch": 7}, "UNKNOWN_LEADER_EPOCH", id="epoch"),
    ],
)
def test_offsets_that_cannot_be_found_have_an_error(
    client: RawClient, time_ms: int, version: int, named: dict[str, int], error: str
) -> None:
    found = list_offsets(client, time_ms, version=version, **named)

    assert (found.error_code, found.offset) == (ErrorCode[error], -1)


def test_a_partition_that_is_named_twice_has_no_offsets(client: RawClient) -> None:
    kind = ListOffsetsRequest
    twice, once = (
        kind.ListOffsetsTopic.ListOffsetsPartition(partition_index=number, timestamp=EARLIEST)
        for number in (0, 1)
    )
    topics = [
        kind.ListOffsetsTopic(name="events", partitions=[twice, once]),
        kind.ListOffsetsTopic(name="events", partitions=[twice]),
    ]
    answer = client.ask(ApiKey.LIST_OFFSETS, 8, kind(replica_id=-1, topics=topics))

    found = [
        (one.partition_index, one.error_code, one.offset)
        for topic in answer.topics
        for one in topic.partitions
    ]
    refused = (0, ErrorCode.INVALID_REQUEST, -1)
    assert found == [refused, (1, ErrorCode.NONE, 0), refused]


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize(
    ("partition", "epoch", "expected"),
    [
        pytest.param(0, 0, (ErrorCode.NONE, 0, 3), id="current epoch"),
        pytest.param(0, 5, (ErrorCode.NONE, -1, -1), id="later epoch"),
        pytest.param(9, 0, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1), id="no partition"),
    ],
)
def test_the_end_of_an_epoch_is_found(
    cluster: Cluster,
    client: RawClient,
    version: int,
    partition: int,
    epoch: int,
    expected: tuple[int, int, int],
) -> None:
    builders.append_records(cluster, {("events", 0): BATCH})
    kind = OffsetForLeaderEpochRequest
    one = kind.OffsetForLeaderTopic.OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch
    )
    topics = [kind.OffsetForLeaderTopic(topic="events", partitions=[one])]
    answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, kind(topics=topics))

    found = answer.topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == expected


def test_the_end_of_an_epoch_is_found_once_for_a_partition_that_is_named_often(
    client: RawClient,
) -> None:
    kind = OffsetForLeaderEpochRequest
    often, once = (
        kind.OffsetForLeaderTopic.OffsetForLeaderPartition(partition=number, leader_epoch=0)
        for number in (0, 1)
    )
    topics = [
        kind.OffsetForLeaderTopic(topic="events", partitions=[often] * 1000 + [once]),
        kind.OffsetForLeaderTopic(topic="events", partitions=[often]),
    ]
    answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, kind(topics=topics))

    found = [[one.partition for one in topic.partitions] for topic in answer.topics]
    assert found == [[0, 1], []]


# Producer ids and coordinators.


@pytest.mark.parametrize("version", range(6))
def test_each_idempotent_producer_gets_its_own_id(client: RawClient, version: int) -> None:
    asked = InitProducerIdRequest(transactional_id=None)
    found = [client.ask(ApiKey.INIT_PRODUCER_ID, version, asked) for _ in range(3)]

    assert [(one.error_code, one.producer_epoch) for one in found] == [(0, 0)] * 3
    assert len({one.producer_id for one in found}) == 3


def test_a_transactional_id_is_not_empty(client: RawClient) -> None:
    asked = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)

    assert client.ask(ApiKey.INIT_PRODUCER_ID, 4, asked).error_code == ErrorCode.INVALID_REQUEST


def test_a_producer_id_that_is_not_found_in_time_is_answered_with_a_retriable_error(
    cluster: Cluster, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.produce._TAKES_WITHIN_S", 0.05)
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    with FolderParts(cluster.path).manager.locks.metadata():
        late = client.ask(ApiKey.INIT_PRODUCER_ID, 4, asked)

    assert (late.error_code, late.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    assert client.ask(ApiKey.INIT_PRODUCER_ID, 4, asked).error_code == 0


@pytest.mark.parametrize("version", range(5))
def test_this_node_coordinates_all_groups_and_transactions(
    server: Server, client: RawClient, version: int
) -> None:
    def found(kind: int) -> Any:
        named: dict[str, Any] = {"coordinator_keys": ["k"]} if version > 3 else {"key": "k"}
        asked = FindCoordinatorRequest(key_type=kind, **named)
        answer = client.ask(ApiKey.FIND_COORDINATOR, version, asked)
        return answer.coordinators[0] if version > 3 else answer

    for kind in range(2 if version else 1):
        one = found(kind)
        assert (one.error_code, one.node_id, one.port) == (0, 1, server.port)
    if version:
        assert found(2).error_code == ErrorCode.INVALID_REQUEST


# Metadata.


@pytest.mark.parametrize("version", range(14))
def test_metadata_shows_one_node_that_leads_all_partitions(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="events")]
    answer = client.ask(ApiKey.METADATA, version, MetadataRequest(topics=topics))

    (topic,) = answer.topics
    assert [one.node_id for one in answer.brokers] == [1]
    assert [(one.leader_id, one.isr_nodes) for one in topic.partitions] == [(1, [1])] * 2
    if version >= 10:
        assert topic.topic_id == uuid_of(cluster.topic("events").topic_id)


def test_metadata_lists_all_topics_and_marks_internal_ones(client: RawClient) -> None:
    answer = client.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    found = {one.name: one.is_internal for one in answer.topics}

    assert found == {"events": False, "__commits": True, "__transaction_state": True}


def asked_for(client: RawClient, version: int = 12, *, make: bool = True, **named: Any) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(**named)]
    asked = MetadataRequest(topics=topics, allow_auto_topic_creation=make)
    return client.ask(ApiKey.METADATA, version, asked).topics[0]


def test_metadata_finds_topics_by_id(cluster: Cluster, client: RawClient) -> None:
    topic_id = uuid_of(cluster.topic("events").topic_id)

    assert asked_for(client, name=None, topic_id=topic_id).name == "events"
    unknown = asked_for(client, name=None, topic_id=uuid.UUID(int=5))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_that_is_named_often_is_shown_once(cluster: Cluster, client: RawClient) -> None:
    one_of = MetadataRequest.MetadataRequestTopic
    topic_id = uuid_of(cluster.topic("events").topic_id)
    by_name = [one_of(name="events")] * 1000
    by_id = [one_of(name=None, topic_id=topic_id)] * 1000

    for topics in (by_name, by_id, by_name + by_id):
        answer = client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=topics))
        assert [one.name for one in answer.topics] == ["events"]


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_have_ids_but_no_answer_without_a_name_find_no_topic_by_id(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    topic_id = uuid_of(cluster.topic("events").topic_id)

    for named in (
        {"name": None},
        {"name": None, "topic_id": topic_id},
        {"name": "events", "topic_id": topic_id},
    ):
        found = asked_for(client, version, **named)
        assert (found.error_code, found.name) == (ErrorCode.INVALID_REQUEST, named["name"] or "")


def test_who_asks_for_it_is_told_that_anyone_may_do_anything(client: RawClient) -> None:
    asked = MetadataRequest(
        topics=None, include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )  # fmt: skip
    answer = client.ask(ApiKey.METADATA, 10, asked)
    cluster_asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    of_cluster = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, cluster_asked).cluster_authorized_operations
    groups_asked = DescribeGroupsRequest(groups=["none"], include_authorized_operations=True)
    of_group = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups_asked).groups[0].authorized_operations

    assert answer.cluster_authorized_operations == of_cluster == CLUSTER_OPERATIONS
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
    assert of_group == GROUP_OPERATIONS
    plain = client.ask(ApiKey.METADATA, 10, MetadataRequest(topics=None))
    assert plain.cluster_authorized_operations == NOT_ASKED
    assert plain.topics[0].topic_authorized_operations == NOT_ASKED


def test_a_topic_is_created_only_if_the_request_allows_it(
    cluster: Cluster, client: RawClient
) -> None:
    found = asked_for(client, name="new", make=False)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "new" not in cluster.topic_names()

    assert asked_for(client, name="new").error_code == 0
    assert cluster.topic("new").partitions == 1


def test_a_topic_is_created_only_if_the_server_allows_it(cluster: Cluster) -> None:
    with cluster.serve(auto_create=False) as server, RawClient(server) as client:
        found = asked_for(client, name="new")

    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_not_created_in_time_is_answered_with_a_retriable_error(
    cluster: Cluster, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.metadata._MAKES_WITHIN_S", 0.05)
    topics = [
        MetadataRequest.MetadataRequestTopic(name=name) for name in ("new", "events", "newer")
    ]
    asked = MetadataRequest(topics=topics, allow_auto_topic_creation=True)

    with FolderParts(cluster.path).manager.locks.metadata():
        found = client.ask(ApiKey.METADATA, 9, asked).topics
    codes = [ErrorCode.LEADER_NOT_AVAILABLE, 0, ErrorCode.LEADER_NOT_AVAILABLE]
    assert [one.error_code for one in found] == codes
    assert cluster.topic_names() == ["events"]

    found = client.ask(ApiKey.METADATA, 9, asked).topics
    assert [one.error_code for one in found] == [0, 0, 0]


@pytest.mark.parametrize("name", ["__other", "a/b", "..", ""])
def test_topics_with_invalid_or_internal_names_are_not_created(
    cluster: Cluster, client: RawClient, name: str
) -> None:
    before = cluster.topic_names(internal=True)

    assert asked_for(client, name=name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.topic_names(internal=True) == before


def test_clients_are_sent_to_the_advertised_address(cluster: Cluster) -> None:
    with cluster.serve(advertise="kafka.example:1234") as server, RawClient(server) as client:
        asked = DescribeClusterRequest()
        (node,) = client.ask(ApiKey.DESCRIBE_CLUSTER, 0, asked).brokers

        assert (node.host, node.port) == ("kafka.example", 1234)
        assert server.bootstrap_servers == "kafka.example:1234"


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [
        pytest.param(1, "NONE", id="brokers"),
        pytest.param(2, "MISMATCHED_ENDPOINT_TYPE", id="controllers"),
        pytest.param(0, "UNSUPPORTED_ENDPOINT_TYPE", id="unknown"),
    ],
)
def test_only_an_endpoint_of_brokers_is_described(
    client: RawClient, endpoint_type: int, error: str
) -> None:
    asked = DescribeClusterRequest(endpoint_type=endpoint_type)
    found = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, asked)

    assert found.error_code == ErrorCode[error]
    assert bool(found.brokers) == (error == "NONE")


def test_a_producer_id_without_its_epoch_is_refused(client: RawClient) -> None:
    asked = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1, producer_id=7, producer_epoch=-1
    )

    assert client.ask(ApiKey.INIT_PRODUCER_ID, 4, asked).error_code == ErrorCode.INVALID_REQUEST
