"""A producer over the network: what it sends is in the log once and in order, whatever becomes of requests."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import (
    ApiError,
    KBatchError,
    ProducerClosedError,
    RecordTooLargeError,
    SaslAuthenticationError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import CODECS, TopicPartition
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.remote import ClusterOptions, parse_cluster_options
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote import transport
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.server.intercepts import InterceptedRequest
from spark_kbatch.server.server import Server
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.protocol import ApiKey, InitProducerIdResponse, Request
from tests.support import builders, reference
from tests.support.accumulators import bytes_in_use
from tests.support.faults import run_child
from tests.support.sasl_servers import PASSWORD, USER, SaslAnswers
from tests.support.store import store_of
from tests.support.waiting import until
from tests.support.wire_servers import LoopbackServer, metadata_answer


def options_of(server: Server, **more: Any) -> ClusterOptions:
    servers = {"bootstrap_servers": server.bootstrap_servers}
    return parse_cluster_options(servers | more, alone=True)


@contextmanager
def producing(server: Server, **options: Any) -> Iterator[Producer]:
    """Open a producer; by default each record is a batch."""
    defaults = {"batch_size": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    of_cluster = options_of(server, retry_backoff_ms=5, reconnect_backoff_ms=5)
    producer = open_producer(of_cluster, parse_producer_options(defaults | options), seed=1)
    try:
        yield producer
    finally:
        producer.close(timeout=10)


def values(cluster: spark_kbatch.Cluster, partition: int = 0) -> list[bytes | None]:
    found = builders.contents(cluster)[TopicPartition("events", partition)]
    return [record.value for record in found]


def headers(cluster: spark_kbatch.Cluster, partition: int = 0) -> list[reference.BatchHeader]:
    directory = store_of(cluster).metadata.cluster_file.log_directory(
        TopicPartition("events", partition)
    )
    data = (directory / f"{0:020}.log").read_bytes()
    return [reference.read_header(batch) for batch in reference.split_batches(data)]


def test_a_batch_may_be_larger_than_the_limit_of_a_new_topic(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    """What a real topic takes is known to its brokers alone."""
    cluster.alter_topic("events", {"max.message.bytes": 8 << 20})
    options = {"batch_size": 4 << 20, "max_request_size": 8 << 20, "linger_ms": 60_000}
    with producing(server, **options) as producer:
        for _ in range(30):
            producer.send("events", os.urandom(100_000), partition=0)
        producer.flush()

    assert [one.records_count for one in headers(cluster)] == [30]


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def do_in_turn(*steps: Callable[[InterceptedRequest], Any] | None) -> Any:
    """Return a function that does one step with each request, in turn; then nothing."""
    left = iter(steps)

    def intercept(request: InterceptedRequest) -> None:
        step = next(left, None)
        if step is not None:
            step(request)

    return intercept


# What is written.


@pytest.mark.parametrize("codec", CODECS)
def test_rows_and_records_arrive_whole_with_every_codec(
    cluster: spark_kbatch.Cluster, server: Server, codec: str
) -> None:
    table = pa.table(
        {
            "key": [None, b"", b"key"] * 100,
            "value": [b"value" * 20, None, b""] * 100,
            "partition": pa.array([1] * 300, pa.int32()),
            "headers": pa.array(
                [[], [{"key": "h", "value": None}], [{"key": "h", "value": b"1"}] * 2] * 100,
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with producing(server, compression_type=codec, batch_size=4096) as producer:
        future = producer.send_arrow("events", table)
        single = producer.send(
            "events", "text", "key", headers={"h": b"x"}, timestamp=5, partition=0
        )
        assert future.result(30).column("offset").to_pylist() == list(range(300))
        assert single.result(30).offset == 0
    found = builders.contents(cluster)
    rows = found[TopicPartition("events", 1)]
    assert [row.key for row in rows] == table.column("key").to_pylist()
    assert [row.value for row in rows] == table.column("value").to_pylist()
    assert [row.headers for row in rows[:3]] == [(), (("h", None),), (("h", b"1"),) * 2]
    (record,) = found[TopicPartition("events", 0)]
    assert (record.timestamp, record.headers) == (5, (("h", b"x"),))
    assert {header.attributes & 7 for header in headers(cluster, 1)} == {CODECS[codec]}


@pytest.mark.parametrize(("acks", "is_known"), [("all", True), ("1", True), ("0", False)])
def test_every_acks_writes_everything_before_close_returns(
    cluster: spark_kbatch.Cluster, server: Server, acks: str, is_known: bool
) -> None:
    with producing(server, acks=acks) as producer:
        futures = [producer.send("events", value, partition=0) for value in numbered(30)]
        producer.close()
        offsets = [future.result(0).offset for future in futures]
    until(lambda: len(values(cluster)) == 30)  # with acks 0 the server may still be at it
    assert values(cluster) == numbered(30)
    assert offsets == (list(range(30)) if is_known else [-1] * 30)


def test_topic_that_does_not_exist_is_refused_and_not_created(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    with producing(server) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'nope'.*topics: events"):
            producer.send("nope", b"v")
    assert cluster.topic_names() == ["events"]


def test_batch_that_the_broker_finds_too_large_is_split(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    cluster.alter_topic("events", {"max.message.bytes": "2000"})
    with producing(server, batch_size=10_000, linger_ms=10_000) as producer:
        futures = [producer.send("events", value * 100, partition=0) for value in numbered(20)]
        producer.flush(30)
        assert [future.result(0).offset for future in futures] == list(range(20))
        (too_large,) = [producer.send("events", b"v" * 3000, partition=0)]
        producer.flush(30)
        error = too_large.exception(0)
        assert isinstance(error, RecordTooLargeError)
        assert "'events'" in str(error)
        assert "max.message.bytes" in str(error)
    assert values(cluster) == [value * 100 for value in numbered(20)]


def test_the_broker_says_which_times_it_takes(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    far = int(time.time() * 1_000_000)
    with producing(server) as producer:
        with pytest.raises(KBatchError, match="INVALID_TIMESTAMP"):
            producer.send("events", b"v", timestamp=far).result(30)
        cluster.alter_topic("events", {"message.timestamp.after.max.ms": 2**62})
        producer.send("events", b"v", timestamp=far).result(30)


# Faults.


@pytest.mark.parametrize(
    "error",
    [
        "NOT_LEADER_OR_FOLLOWER",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "CORRUPT_MESSAGE",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_PRODUCER_EPOCH",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
    ],
)
def test_batch_refused_for_the_moment_is_written_once_and_in_order(
    cluster: spark_kbatch.Cluster, server: Server, error: str
) -> None:
    def fail(request: InterceptedRequest) -> None:
        request.fail(error)

    server.intercept("Produce", do_in_turn(None, fail, None, fail, fail))
    with producing(server) as producer:
        futures = [producer.send("events", value, partition=0) for value in numbered(30)]
        assert [future.result(30).offset for future in futures] == list(range(30))
    assert values(cluster) == numbered(30)


def test_lost_connections_lose_and_repeat_nothing(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    drop = InterceptedRequest.drop
    server.intercept("Produce", do_in_turn(drop, None, drop, None, None, None, drop, drop))
    with producing(server) as producer:
        futures = [producer.send("events", value, partition=0) for value in numbered(30)]
        assert [future.result(30).offset for future in futures] == list(range(30))
    assert values(cluster) == numbered(30)


def test_batches_whose_answers_came_too_late_are_written_once(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    late = itertools.repeat(lambda request: request.delay(0.4), 3)
    server.intercept("Produce", do_in_turn(None, *late))
    with producing(server, request_timeout_ms=150) as producer:
        futures = [producer.send("events", value, partition=0) for value in numbered(10)]
        assert [future.exception(30) for future in futures] == [None] * 10
    assert values(cluster) == numbered(10)


def test_duplicate_counts_as_written_at_an_unknown_offset(server: Server) -> None:
    server.intercept("Produce", lambda request: request.fail("DUPLICATE_SEQUENCE_NUMBER"))
    with producing(server) as producer:
        assert producer.send("events", b"v").result(30).offset == -1


def test_error_that_stays_fails_the_record_with_the_brokers_name_for_it(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    server.intercept("Produce", do_in_turn(lambda one: one.fail("TOPIC_AUTHORIZATION_FAILED")))
    with producing(server) as producer:
        error = producer.send("events", b"refused", partition=0).exception(30)
        assert isinstance(error, ApiError)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
        assert producer.send("events", b"later", partition=0).result(30).offset == 0
    assert values(cluster) == [b"later"]


def test_refused_producer_id_fails_records_at_once(server: Server) -> None:
    server.intercept("InitProducerId", lambda one: one.fail("CLUSTER_AUTHORIZATION_FAILED"))
    with producing(server) as producer:
        error = producer.send("events", b"v").exception(30)
    assert isinstance(error, ApiError)
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(error)


def test_server_that_ends_and_comes_back_gets_everything_once(
    cluster: spark_kbatch.Cluster,
) -> None:
    with cluster.serve() as server:
        port = int(server.bootstrap_servers.rpartition(":")[2])
        with producing(server) as producer:
            futures = [producer.send("events", value, partition=0) for value in numbered(5)]
            futures[0].result(30)
            server.close()
            futures += [producer.send("events", b"9%03d" % n, partition=0) for n in range(5)]
            with cluster.serve(port=port):
                assert [future.exception(30) for future in futures] == [None] * 10
    assert values(cluster) == [*numbered(5), *(b"9%03d" % n for n in range(5))]


def test_close_by_force_ends_records_that_no_one_answers(server: Server) -> None:
    held = threading.Event()
    server.intercept("Produce", lambda request: held.wait(30))
    with producing(server) as producer:
        future = producer.send("events", b"v")
        producer.close(timeout=0)
        assert isinstance(future.exception(0), ProducerClosedError)
        held.set()


def test_memory_is_free_once_everything_is_answered(server: Server) -> None:
    server.intercept("Produce", do_in_turn(InterceptedRequest.drop))
    with producing(server, batch_size=1000, buffer_memory=64_000) as producer:
        for _ in range(10):
            producer.send_arrow("events", {"value": [b"v" * 100] * 1000})
        producer.flush(30)
        until(lambda: bytes_in_use(producer._pool) == 0)


# Producer ids.


def ids_asked_for(server: Server) -> list[InterceptedRequest]:
    asked: list[InterceptedRequest] = []
    server.intercept("InitProducerId", asked.append)
    return asked


def test_producers_that_follow_each_other_share_one_id_and_go_on_counting(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    asked = ids_asked_for(server)
    for value in numbered(100):
        with producing(server) as producer:
            producer.send("events", value, partition=0)
    assert len(asked) == 1
    assert values(cluster) == numbered(100)
    found = [(one.producer_id, one.producer_epoch, one.base_sequence) for one in headers(cluster)]
    assert found == [(found[0][0], 0, number) for number in range(100)]


def test_producer_after_one_that_was_closed_by_force_has_a_new_epoch(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    with producing(server) as producer:
        producer.send("events", b"first", partition=0).result(30)
        came, held = threading.Event(), threading.Event()
        server.intercept("Produce", lambda request: (came.set(), held.wait(30), request.drop()))
        producer.send("events", b"lost", partition=0)
        assert came.wait(30)
        producer.close(timeout=0)
        server.intercept("Produce", None)
        held.set()
    with producing(server) as producer:
        producer.send("events", b"second", partition=0).result(30)
    assert values(cluster) == [b"first", b"second"]
    assert [one.producer_epoch for one in headers(cluster)] == [0, 1]


def test_producers_at_the_same_time_and_in_forked_children_have_ids_of_their_own(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    def send() -> None:
        with producing(server) as producer:
            producer.send("events", b"v", partition=0).result(30)

    asked = ids_asked_for(server)
    with producing(server) as first:
        first.send("events", b"v", partition=0).result(30)
        send()
    send()
    assert len(asked) == 2
    _, status = os.waitpid(run_child(send), 0)
    assert status == 0
    assert len(asked) == 3
    assert len({one.producer_id for one in headers(cluster)}) == 3


@pytest.mark.parametrize("leader", [1, -1], ids=["leader known", "leader unknown"])
def test_password_that_is_refused_meanwhile_fails_records_at_once(
    monkeypatch: pytest.MonkeyPatch, leader: int
) -> None:
    """The password changes while the record is sent, or while its leader is looked up."""
    looked_up = itertools.count(1)

    def answer(request: Request) -> Any:
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=0)
        if request.api_key == ApiKey.METADATA and (leader == 1 or next(looked_up) < 5):
            return metadata_answer([Node(1, "127.0.0.1", server.node.port)], {"events": [leader]})
        monkeypatch.setattr("tests.support.sasl_servers.PASSWORD", "a new one")
        return server.hang_up()

    with LoopbackServer(SaslAnswers(answer)) as server:
        options = parse_cluster_options(
            {
                "bootstrap.servers": str(server.node),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'P required username="{USER}" password="{PASSWORD}";',
            }
        )
        producer = open_producer(options, parse_producer_options({}))
        try:
            with pytest.raises(SaslAuthenticationError, match=r"sasl\.jaas\.config"):
                producer.send("events", b"v", partition=0).result(20)
            assert server.accepted < 10
        finally:
            producer.close(timeout=0)


def test_another_cluster_at_the_same_address_gives_another_producer_id(tmp_path: Path) -> None:
    """It would take the batches of two producers with one id for repetitions of each other."""

    def send(server: Server, value: bytes, partition: int) -> None:
        with producing(server) as producer:
            producer.send("events", value, partition=partition).result(30)

    with builders.a_cluster(tmp_path / "before", topics={"events": 2}) as cluster:
        with cluster.serve() as server:
            port = int(server.bootstrap_servers.rpartition(":")[2])
            send(server, b"before", 0)
    inherited = {options: list(free) for options, free in transport._free_identities.items()}
    with builders.a_cluster(tmp_path / "after", topics={"events": 2}) as cluster:
        with cluster.serve(port=port) as server:
            transport._free_identities.clear()  # as another process
            send(server, b"of another process", 1)
            transport._free_identities.clear()
            transport._free_identities.update(inherited)
            send(server, b"after", 1)
        assert values(cluster, 1) == [b"of another process", b"after"]


def test_another_cluster_is_noticed_before_anything_is_sent_over_a_new_connection(
    tmp_path: Path,
) -> None:
    """The producer's own process has not spoken to it, and believes what it knows of the topic."""
    with builders.a_cluster(tmp_path / "before", topics={"events": 2}) as cluster:
        with cluster.serve() as server:
            port = int(server.bootstrap_servers.rpartition(":")[2])
            with producing(server) as producer:
                producer.send("events", b"before", partition=0).result(30)
    with builders.a_cluster(tmp_path / "after", topics={"events": 2}) as cluster:
        with cluster.serve(port=port) as server:

            def send_first() -> None:
                with producing(server) as producer:
                    producer.send("events", b"of another process", partition=1).result(30)

            _, status = os.waitpid(run_child(send_first), 0)
            assert status == 0
            with producing(server) as producer:
                producer.send("events", b"after", partition=1).result(30)
        assert values(cluster, 1) == [b"of another process", b"after"]
