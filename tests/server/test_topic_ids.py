"""Produce and Fetch that name topics by their ids, as all do from version 13 on."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.topic_files import TopicFiles
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.intercepts import InterceptedRequest
from spark_kbatch.server.metadata import uuid_of
from spark_kbatch.server.server import Server
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, FetchRequest
from tests.support import builders
from tests.support.failing_disks import BROKEN, Disks, a_replicated_cluster
from tests.support.raw_clients import RawClient, fetch, fetched, produce, produced, request
from tests.support.running_clients import Consuming
from tests.support.waiting import until

BATCH = builders.batch(n=3)
STORED = builders.batch(n=3, leader_epoch=0)
OF_PRODUCE = [one for one in range(SUPPORTED[ApiKey.PRODUCE].last + 1) if one >= 13]
OF_FETCH = [one for one in range(SUPPORTED[ApiKey.FETCH].last + 1) if one >= 13]
UNKNOWN = pytest.mark.parametrize(
    "unknown", [pytest.param(uuid.UUID(int=5), id="unknown"), pytest.param(None, id="zeros")]
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


def id_of(cluster: Cluster, topic: str = "events") -> uuid.UUID:
    return uuid_of(cluster.topic(topic).topic_id)


def produce_to(topic_id: uuid.UUID | None, *named: Any, **also: Any) -> Any:
    """Return a Produce of one batch to the topic with an id."""
    body = produce(*(named or (BATCH,)), topic="", **also)
    body.topic_data[0].topic_id = topic_id
    return body


def fetch_of(topic_id: uuid.UUID | None, offset: int = 0, **named: Any) -> FetchRequest:
    """Return a Fetch of one partition of the topic with an id."""
    body = fetch(offset, topic="", **named)
    body.topics[0].topic_id = topic_id
    return body


def recreate(cluster: Cluster) -> None:
    cluster.delete_topic("events")
    cluster.create_topic("events", partitions=2)


@pytest.mark.parametrize("version", OF_PRODUCE)
def test_produce_appends_to_the_topic_with_an_id(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    answer = client.ask(ApiKey.PRODUCE, version, produce_to(id_of(cluster), partition=1))

    assert answer.responses[0].topic_id == id_of(cluster)
    assert (produced(answer).error_code, produced(answer).base_offset) == (0, 0)
    assert len(builders.contents(cluster)[TopicPartition("events", 1)]) == 3


@pytest.mark.parametrize("version", OF_FETCH)
def test_fetch_reads_the_topic_with_an_id(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    builders.append_records(cluster, {("events", 0): BATCH})
    answer = client.ask(ApiKey.FETCH, version, fetch_of(id_of(cluster), 1))

    assert answer.responses[0].topic_id == id_of(cluster)
    assert (fetched(answer).error_code, fetched(answer).high_watermark) == (0, 3)
    assert fetched(answer).records == STORED
    assert answer.node_endpoints == []


@UNKNOWN
def test_a_produce_to_an_unknown_id_is_refused_and_the_rest_of_it_is_appended(
    cluster: Cluster, client: RawClient, unknown: uuid.UUID | None
) -> None:
    asked = produce_to(unknown)
    asked.topic_data += produce_to(id_of(cluster)).topic_data
    answer = client.ask(ApiKey.PRODUCE, 13, asked)

    assert produced(answer).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produced(answer).error_message
    assert answer.responses[0].topic_id == unknown
    assert answer.responses[1].partition_responses[0].error_code == 0


@UNKNOWN
@pytest.mark.parametrize("version", OF_FETCH)
def test_a_fetch_of_an_unknown_id_is_answered_at_once_and_the_rest_of_it_is_waited_for(
    cluster: Cluster, client: RawClient, version: int, unknown: uuid.UUID | None
) -> None:
    alone = client.ask(ApiKey.FETCH, version, fetch_of(unknown, max_wait_ms=60_000))
    assert fetched(alone).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert alone.responses[0].topic_id == unknown

    asked = fetch_of(unknown, max_wait_ms=60_000)
    asked.topics += fetch_of(id_of(cluster)).topics
    client.send(request(ApiKey.FETCH, version, asked))
    builders.append_records(cluster, {("events", 0): BATCH})
    answer = client.receive(ApiKey.FETCH, version)
    assert fetched(answer).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.responses[1].partitions[0].records == STORED


def test_each_of_several_unknown_ids_is_answered(client: RawClient) -> None:
    ids = [uuid.UUID(int=one + 1) for one in range(5)]
    asked = FetchRequest(topics=[fetch_of(one).topics[0] for one in ids])
    answer = client.ask(ApiKey.FETCH, 13, asked)

    assert [one.topic_id for one in answer.responses] == ids
    assert {one.partitions[0].error_code for one in answer.responses} == {
        ErrorCode.UNKNOWN_TOPIC_ID
    }


def test_a_partition_that_the_topic_has_not_is_no_unknown_id(
    cluster: Cluster, client: RawClient
) -> None:
    asked = produce_to(id_of(cluster), partition=9)
    assert produced(client.ask(ApiKey.PRODUCE, 13, asked)).error_code == 3
    body = fetch_of(id_of(cluster), partition=9)
    assert fetched(client.ask(ApiKey.FETCH, 13, body)).error_code == 3


@pytest.mark.parametrize("elsewhere", [False, True], ids=["by the server's process", "by another"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_the_id_of_a_deleted_topic_is_unknown_also_if_another_has_its_name(
    cluster: Cluster, client: RawClient, *, elsewhere: bool, again: bool
) -> None:
    old = id_of(cluster)
    assert produced(client.ask(ApiKey.PRODUCE, 13, produce_to(old))).error_code == 0
    with Cluster(cluster.path) as another:
        of = another if elsewhere else cluster
        of.delete_topic("events")
        if again:
            of.create_topic("events", partitions=2)
    # In this order: what each finds out, the next one would know.
    answers = [
        produced(client.ask(ApiKey.PRODUCE, 13, produce_to(old))),
        fetched(client.ask(ApiKey.FETCH, 13, fetch_of(old, max_wait_ms=60_000))),
        produced(client.ask(ApiKey.PRODUCE, 13, produce_to(old))),
    ]

    assert {one.error_code for one in answers} == {ErrorCode.UNKNOWN_TOPIC_ID}
    if again:
        assert builders.read_records(cluster, "events") == []
        asked = produce_to(id_of(cluster))
        assert produced(client.ask(ApiKey.PRODUCE, 13, asked)).base_offset == 0


def test_a_fetch_of_an_id_does_not_read_a_topic_that_another_process_has_recreated(
    cluster: Cluster, client: RawClient
) -> None:
    old = id_of(cluster)
    assert fetched(client.ask(ApiKey.FETCH, 13, fetch_of(old))).error_code == 0
    with Cluster(cluster.path) as another:
        recreate(another)
        builders.append_records(another, {("events", 0): BATCH})

    found = fetched(client.ask(ApiKey.FETCH, 13, fetch_of(old)))
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert found.records == b""


def test_a_fetch_that_waits_ends_when_its_topic_is_recreated(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    client.send(request(ApiKey.FETCH, 18, fetch_of(id_of(cluster), max_wait_ms=60_000)))
    until(lambda: server._fetches._waiting, "the fetch waits")
    recreate(cluster)

    assert fetched(client.receive(ApiKey.FETCH, 18)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_ids_are_known_to_a_server_that_was_asked_for_no_topic_yet(cluster: Cluster) -> None:
    first = id_of(cluster)
    with Cluster(cluster.path) as other, other.serve() as server, RawClient(server) as client:
        assert produced(client.ask(ApiKey.PRODUCE, 13, produce_to(first))).error_code == 0
        assert fetched(client.ask(ApiKey.FETCH, 18, fetch_of(first))).records == STORED
        cluster.create_topic("later")
        asked = produce_to(id_of(cluster, "later"))
        assert produced(client.ask(ApiKey.PRODUCE, 13, asked)).error_code == 0


def test_a_damaged_topic_does_not_hide_the_others(cluster: Cluster) -> None:
    cluster.create_topic("a-damaged-one")
    Path(cluster.path, "topics", "a-damaged-one.json").write_text("{")
    with Cluster(cluster.path) as other, other.serve() as server, RawClient(server) as client:
        asked = produce_to(id_of(cluster))
        assert produced(client.ask(ApiKey.PRODUCE, 13, asked)).error_code == 0


def test_the_event_loop_does_not_look_for_ids(
    cluster: Cluster, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    names = TopicFiles.names

    def listed(topics: TopicFiles, **named: Any) -> list[str]:
        looked.append(threading.current_thread().name)
        return names(topics, **named)

    # The server looks at all topics once by itself, when it loads transactions: before its answer to this.
    client.ask(ApiKey.LIST_TRANSACTIONS, 1, protocol.ListTransactionsRequest())
    monkeypatch.setattr(TopicFiles, "names", listed)
    client.ask(ApiKey.PRODUCE, 13, produce_to(id_of(cluster)))
    assert not looked
    client.ask(ApiKey.PRODUCE, 13, produce_to(uuid.UUID(int=5)))
    assert [one.rpartition("-")[0] for one in looked] == ["kbatch-produce"]


def test_the_clusters_own_topics_are_read_by_their_ids_and_not_written_to(
    cluster: Cluster, client: RawClient
) -> None:
    own = id_of(cluster, "__commits")

    assert fetched(client.ask(ApiKey.FETCH, 13, fetch_of(own))).error_code == 0
    refused = produced(client.ask(ApiKey.PRODUCE, 13, produce_to(own)))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_function_that_intercepts_sees_the_names_of_topics(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    seen: list[str] = []

    def fail(one: InterceptedRequest) -> None:
        topics = one.body.topic_data if one.api == "Produce" else one.body.topics
        seen.append(topics[0].name if one.api == "Produce" else topics[0].topic)
        one.fail("KAFKA_STORAGE_ERROR")

    for api in ("Produce", "Fetch"):
        server.intercept(api, fail)
    refused = client.ask(ApiKey.PRODUCE, 13, produce_to(id_of(cluster)))
    for version, body in ((12, fetch(0)), (18, fetch_of(id_of(cluster)))):
        answer = client.ask(ApiKey.FETCH, version, body)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    assert produced(refused).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.responses[0].topic_id == id_of(cluster)
    assert seen == ["events"] * 3


def test_batches_of_an_idempotent_producer_keep_their_order_by_id_too(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    """The first is refused, by a test; the second, sent meanwhile, gets the same error."""
    to = id_of(cluster)
    first, second = (builders.idempotent_batch(base_sequence=one) for one in (0, 1))
    server.intercept("Produce", lambda one: one.fail("NOT_ENOUGH_REPLICAS"))
    refused = produced(client.ask(ApiKey.PRODUCE, 13, produce_to(to, first)))
    server.intercept("Produce", None)
    late = produced(client.ask(ApiKey.PRODUCE, 13, produce_to(to, second)))

    assert refused.error_code == late.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    again = [produced(client.ask(ApiKey.PRODUCE, 13, produce_to(to, b))) for b in (first, second)]
    assert [one.error_code for one in again] == [0, 0]


@pytest.mark.parametrize("version", [one for one in OF_FETCH if one >= 15])
def test_followers_are_refused_by_the_state_that_replaces_their_id(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    body = fetch_of(id_of(cluster))
    for replica_id, error in ((2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), (-1, 0)):
        body.replica_state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=3)
        assert client.ask(ApiKey.FETCH, version, body).error_code == error


def test_a_client_with_an_older_leader_epoch_is_told_the_leader_from_version_16_on(
    tmp_path: Path,
) -> None:
    disks = Disks()
    with (
        a_replicated_cluster(tmp_path, disks, partitions=1, replicas=2) as cluster,
        cluster.serve() as server,
        RawClient(server) as client,
    ):
        builders.append_records(cluster, {("events", 0): BATCH})
        disks.fail(tmp_path / "disk-0", BROKEN)
        body = fetch_of(id_of(cluster), current_leader_epoch=0)

        def is_fenced() -> bool:
            error: int = fetched(client.ask(ApiKey.FETCH, 15, body)).error_code
            return error == ErrorCode.FENCED_LEADER_EPOCH

        until(is_fenced, "another replica is elected")
        before = client.ask(ApiKey.FETCH, 15, body)
        answer = client.ask(ApiKey.FETCH, 16, body)

    assert (fetched(before).current_leader, before.node_endpoints) == (None, [])
    leader = fetched(answer).current_leader
    assert (leader.leader_id, leader.leader_epoch) == (1, 1)
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port) == (1, server.host, server.port)


def test_a_client_that_fetches_by_id_goes_on_with_a_topic_that_is_created_again(
    cluster: Cluster, server: Server
) -> None:
    versions: set[int] = set()
    server.intercept("Fetch", lambda one: versions.add(one.version))
    builders.append_records(cluster, {("events", 0): builders.batch(n=50)})
    consuming = Consuming(server.bootstrap_servers, "events")
    until(lambda: len(consuming.records) == 50, "it reads the first one")
    recreate(cluster)
    builders.append_records(cluster, {("events", 0): builders.batch(n=5, seed=1)})
    until(lambda: len(consuming.records) == 55, "it reads the second one")
    consuming.stop()

    assert min(versions) >= 13
    assert [offset for _, offset, _ in consuming.records[50:]] == [*range(5)]
