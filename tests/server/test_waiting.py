"""Requests that wait do not delay others, and are answered when the server ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.appends import Appends
from spark_kbatch.server.fetch import FetchHandler
from spark_kbatch.server.memory import AnswerMemory
from spark_kbatch.server.requests import Received
from spark_kbatch.server.server import Server
from spark_kbatch.server.topic_names import TopicNames
from spark_kbatch.server.unwritten_batches import UnwrittenBatches
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ApiKey,
    FetchRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    MetadataRequest,
)
from tests.support import builders
from tests.support.raw_clients import (
    RawClient,
    fetch,
    fetch_several,
    fetched,
    produce,
    produced,
    request,
)
from tests.support.store import store_of

LOCKED = 8  # partitions, more than there are threads for appends
HELD_S = 0.6
SOON_S = 10
BATCH = builders.batch(n=1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": LOCKED + 1}) as cluster:
        yield cluster


@contextlib.contextmanager
def locked(cluster: Cluster, partitions: range, seconds: float) -> Iterator[None]:
    """Let another thread hold the locks of these partitions for some time."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        named = [TopicPartition("events", number) for number in partitions]
        with store_of(cluster).manager.locks.partitions(named):
            taken.set()
            over.wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_locked_partitions_delay_no_other_requests(cluster: Cluster, server: Server) -> None:
    clients = [RawClient(server) for _ in range(LOCKED)]
    with RawClient(server) as other, locked(cluster, range(LOCKED), 60):
        for number, client in enumerate(clients):
            client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, partition=number)))
        started = time.monotonic()

        appended = other.ask(ApiKey.PRODUCE, 9, produce(BATCH, partition=LOCKED))
        assert produced(appended).error_code == 0
        assert fetched(other.ask(ApiKey.FETCH, 12, fetch(0, partition=LOCKED))).records
        assert fetched(other.ask(ApiKey.FETCH, 12, fetch(0, partition=0))).high_watermark == 0
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        found = other.ask(ApiKey.HEARTBEAT, 4, heartbeat)
        assert found.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert other.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None)).topics

        assert time.monotonic() - started < 5
    for client in clients:
        assert produced(client.receive(ApiKey.PRODUCE, 9)).base_offset == 0
        client.socket.close()


def test_appends_to_a_locked_partition_keep_their_order(cluster: Cluster, server: Server) -> None:
    batches = [builders.idempotent_batch(base_sequence=number) for number in range(5)]
    with RawClient(server) as client:
        with locked(cluster, range(1), HELD_S):
            for number, batch in enumerate(batches):
                client.send(request(ApiKey.PRODUCE, 9, produce(batch), number))
            time.sleep(HELD_S / 2)
        for number in range(len(batches)):
            assert produced(client.receive(ApiKey.PRODUCE, 9, number)).base_offset == number


def test_a_produce_that_waits_longer_than_its_timeout_is_answered_and_writes_nothing(
    cluster: Cluster, server: Server
) -> None:
    clients = [RawClient(server) for _ in range(3)]
    with locked(cluster, range(1), 60):
        started = time.monotonic()
        for client in clients:
            client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, timeout_ms=200)))
        answers = [produced(client.receive(ApiKey.PRODUCE, 9)) for client in clients]
        waited_s = time.monotonic() - started
    for client in clients:
        client.socket.close()

    assert {one.error_code for one in answers} == {ErrorCode.REQUEST_TIMED_OUT}
    assert "nothing is written" in str(answers[0].error_message)
    assert 0.2 <= waited_s < SOON_S
    assert cluster.describe("events")[0].offsets.high_watermark == 0


def test_an_append_that_cannot_look_for_its_lock_any_more_is_answered(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with RawClient(server) as client:
        with locked(cluster, range(1), 60):
            client.send(request(ApiKey.PRODUCE, 9, produce(BATCH)))
            time.sleep(0.05)
            monkeypatch.setattr(store_of(cluster).manager.locks, "partitions", fail)
            answer = produced(client.receive(ApiKey.PRODUCE, 9))
            monkeypatch.undo()

        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH))).base_offset == 0


def test_many_locked_partitions_are_looked_at_less_often(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.appends._CHECKS_PER_S_MAX", 40)
    checks, is_locked = [0], Appends._is_locked

    def counted(appends: Appends, topic_partition: TopicPartition) -> bool:
        checks[0] += 1
        return is_locked(appends, topic_partition)

    monkeypatch.setattr(Appends, "_is_locked", counted)
    clients = [RawClient(server) for _ in range(LOCKED)]
    with locked(cluster, range(LOCKED), 60):
        for number, client in enumerate(clients):
            client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, partition=number)))
        time.sleep(HELD_S)
    for client in clients:
        assert produced(client.receive(ApiKey.PRODUCE, 9)).base_offset == 0
        client.socket.close()

    assert 0 < checks[0] < 2 * 40  # a second's worth; without the limit one partition has as many


def test_producer_ids_that_wait_for_a_lock_delay_no_other_requests(
    cluster: Cluster, server: Server
) -> None:
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    clients = [RawClient(server) for _ in range(LOCKED)]
    with RawClient(server) as other:
        with FolderParts(cluster.path).manager.locks.metadata():
            for client in clients:
                client.send(request(ApiKey.INIT_PRODUCER_ID, 4, asked))
            started = time.monotonic()
            other.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
            assert time.monotonic() - started < 5
    found = [client.receive(ApiKey.INIT_PRODUCER_ID, 4) for client in clients]
    for client in clients:
        client.socket.close()

    assert {one.error_code for one in found} == {0}
    assert len({one.producer_id for one in found}) == LOCKED


@pytest.mark.slow
def test_requests_wait_for_a_commit_of_ten_seconds(cluster: Cluster, server: Server) -> None:
    with RawClient(server, timeout_s=20) as client, locked(cluster, range(LOCKED), 10):
        client.send(request(ApiKey.PRODUCE, 9, produce(BATCH, timeout_ms=15_000)))
        with RawClient(server) as other:
            until = time.monotonic() + 9
            while time.monotonic() < until:
                started = time.monotonic()
                other.ask(ApiKey.FETCH, 12, fetch(0, max_wait_ms=10))
                heartbeat = HeartbeatRequest(group_id="g", generation_id=1)
                other.ask(ApiKey.HEARTBEAT, 4, heartbeat)
                assert time.monotonic() - started < 3
        assert produced(client.receive(ApiKey.PRODUCE, 9)).base_offset == 0


def test_a_fetch_waits_for_records_and_is_answered_once_they_arrive(server: Server) -> None:
    with RawClient(server) as consumer, RawClient(server) as producer:
        consumer.send(request(ApiKey.FETCH, 12, fetch(0, max_wait_ms=30_000)))
        time.sleep(0.05)
        started = time.monotonic()
        producer.ask(ApiKey.PRODUCE, 9, produce(BATCH))

        assert len(fetched(consumer.receive(ApiKey.FETCH, 12)).records) == len(BATCH)
        assert time.monotonic() - started < SOON_S


def test_a_fetch_waits_for_a_limited_time_whatever_its_client_asks_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.fetch._MAX_WAIT_MS", 100)
    with RawClient(server) as consumer:
        answer = consumer.ask(ApiKey.FETCH, 12, fetch(0, max_wait_ms=2**31 - 1))

    assert fetched(answer).error_code == 0
    assert not fetched(answer).records


def test_fetches_that_name_a_partition_very_often_keep_no_other_from_waiting(
    server: Server,
) -> None:
    topic = FetchRequest.FetchTopic
    one = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    many = FetchRequest(
        max_wait_ms=5000, min_bytes=1, max_bytes=1 << 20,
        topics=[topic(topic="events", partitions=[one] * 60_000)],
    )  # fmt: skip
    with RawClient(server) as first, RawClient(server) as second, RawClient(server) as consumer:
        for hostile in (first, second):
            hostile.send(request(ApiKey.FETCH, 11, many))
        time.sleep(0.5)
        started = time.monotonic()
        consumer.ask(ApiKey.FETCH, 12, fetch(0, max_wait_ms=300))
        assert time.monotonic() - started > 0.2


def test_partitions_that_do_not_exist_count_among_those_that_fetches_wait_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.fetch._WAITING_OF_PEER_MAX", 10)
    asked = fetch_several(dict.fromkeys([0, *range(100, 107)], 0), max_wait_ms=10_000)
    with RawClient(server) as first, RawClient(server, timeout_s=30) as second:
        first.send(request(ApiKey.FETCH, 12, asked))
        time.sleep(0.2)
        started = time.monotonic()
        (topic,) = second.ask(ApiKey.FETCH, 12, asked).responses
        waited_s = time.monotonic() - started

    assert [one.error_code for one in topic.partitions] == [
        0, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 7,
    ]  # fmt: skip
    assert waited_s < 5


def test_a_fetch_that_waits_does_not_keep_its_request(cluster: Cluster) -> None:
    parts = store_of(cluster)
    handler = FetchHandler(
        parts, AnswerMemory(1 << 20), TopicNames(parts),
        lambda received: received.local_address, max_bytes=1 << 20,
    )  # fmt: skip
    asked, local = fetch(0, max_wait_ms=5000), ("127.0.0.1", 9092)
    received = Received(ApiKey.FETCH, 12, "", local[0], local, UnwrittenBatches(), asked)
    answers: list[Any] = []
    references = sys.getrefcount(asked)

    handler.handle(received, answers.append)

    assert not answers
    assert sys.getrefcount(asked) == references
    handler.end()
    assert fetched(answers[0]).high_watermark == 0
    assert not handler._partitions  # nothing is left of a peer


def test_a_group_request_that_takes_very_long_holds_timers_up_for_some_seconds_at_most(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    for began_s, held_back_s in ((now_s - 1, 1), (now_s - 600, 5)):
        monkeypatch.setattr(server._pools.groups, "oldest_s", lambda began_s=began_s: began_s)
        until_s = server._groups_handled_until_ms() / 1000
        assert held_back_s - 0.1 < time.monotonic() - until_s < held_back_s + 1


def test_a_fetch_sees_records_that_a_job_commits_in_another_process(
    cluster: Cluster, server: Server
) -> None:
    with RawClient(server) as consumer:
        consumer.send(request(ApiKey.FETCH, 12, fetch(0, max_wait_ms=30_000, isolation_level=1)))
        time.sleep(0.05)
        builders.write(Cluster(cluster.path), {("events", 0): [BATCH, BATCH]})

        assert fetched(consumer.receive(ApiKey.FETCH, 12)).last_stable_offset == 2


def test_waiting_requests_are_answered_when_the_server_ends(cluster: Cluster) -> None:
    server = cluster.serve()
    consumer, member, producer = (RawClient(server) for _ in range(3))
    consumer.send(request(ApiKey.FETCH, 12, fetch(0, max_wait_ms=600_000)))
    joins = [
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=300_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        for _ in range(2)
    ]
    with RawClient(server) as first:
        first.ask(ApiKey.JOIN_GROUP, 3, joins[0])  # its group waits for it to rejoin
        member.send(request(ApiKey.JOIN_GROUP, 3, joins[1]))
        with locked(cluster, range(1), HELD_S):
            producer.send(request(ApiKey.PRODUCE, 9, produce(BATCH)))
            time.sleep(0.1)
            started = time.monotonic()
            server.close()

    assert time.monotonic() - started < 5
    assert fetched(consumer.receive(ApiKey.FETCH, 12)).error_code == 0
    assert member.receive(ApiKey.JOIN_GROUP, 3).error_code == ErrorCode.NOT_COORDINATOR
    assert produced(producer.receive(ApiKey.PRODUCE, 9)).error_code == 0
    for client in (consumer, member, producer):
        assert client.is_closed_by_server()
        client.socket.close()
