"""Whatever a peer sends, the server answers or closes that connection, and other clients are not affected."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from spark_kbatch import Cluster
from spark_kbatch.server.peers import warn_once
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import (
    ApiKey,
    ApiVersionsRequest,
    CreateTopicsRequest,
    MetadataRequest,
    SaslHandshakeRequest,
)
from tests.support import builders
from tests.support.raw_clients import (
    RawClient,
    fetch,
    fetched,
    framed,
    produce,
    produced,
    request,
)
from tests.support.waiting import until

MiB = 1 << 20
BATCH = builders.batch(n=1)
PRODUCE = request(ApiKey.PRODUCE, 9, produce(BATCH))
METADATA = request(ApiKey.METADATA, 9, MetadataRequest(topics=[]))


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    with cluster.serve(
        socket_request_max_bytes=100 * MiB, queued_max_request_bytes=4 * MiB
    ) as server:
        yield server


def with_setting(name: str, value: str) -> bytes:
    topic = CreateTopicsRequest.CreatableTopic
    setting = topic.CreatableTopicConfig(name=name, value=value)
    new = topic(
        name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[setting]
    )
    return request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new], validate_only=False))


def end_offset(cluster: Cluster) -> int:
    (info,) = cluster.describe("events")
    return info.offsets.high_watermark


def ensure_answers(server: Server) -> None:
    with RawClient(server) as client:
        client.send(METADATA)
        assert client.receive(ApiKey.METADATA, 9).controller_id == 1


def test_a_request_torn_at_any_byte_stores_nothing(cluster: Cluster, server: Server) -> None:
    for end in range(len(PRODUCE)):
        with RawClient(server) as client:
            client.send(PRODUCE[:end])

    ensure_answers(server)
    assert end_offset(cluster) == 0


def test_a_request_that_arrives_in_two_pieces_is_answered(cluster: Cluster, server: Server) -> None:
    with RawClient(server) as client:
        for end in range(1, len(PRODUCE)):
            client.send(PRODUCE[:end])
            client.send(PRODUCE[end:])
            assert produced(client.receive(ApiKey.PRODUCE, 9)).base_offset == end - 1


def test_requests_sent_together_are_answered_in_order(server: Server) -> None:
    with RawClient(server) as client:
        client.send(
            b"".join(
                request(ApiKey.PRODUCE, 9, produce(BATCH), number)
                + request(ApiKey.FETCH, 12, fetch(number), 100 + number)
                for number in range(20)
            )
        )
        for number in range(20):
            assert produced(client.receive(ApiKey.PRODUCE, 9, number)).base_offset == number
            found = fetched(client.receive(ApiKey.FETCH, 12, 100 + number))
            assert found.high_watermark == number + 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SIZE.pack(-1), id="negative size"),
        pytest.param(SIZE.pack(0), id="nothing in the frame"),
        pytest.param(framed(b"1234567"), id="less than a header"),
        pytest.param(SIZE.pack(100 * MiB + 1), id="larger than is accepted"),
        pytest.param(framed(struct.pack(">hhih", 99, 0, 1, -1)), id="unknown key"),
        pytest.param(framed(struct.pack(">hhih", 3, 99, 1, -1)), id="unknown version"),
        pytest.param(framed(struct.pack(">hhih", -1, -1, 1, -1)), id="negative key"),
        pytest.param(framed(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)), id="lying count"),
        pytest.param(framed(struct.pack(">hhihi", 3, 1, 1, 30_000, 1)), id="lying length"),
        pytest.param(with_setting("n" * MiB, "1"), id="long name of a setting"),
        pytest.param(with_setting("cleanup.policy", "," * MiB), id="long value of a setting"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
def test_bytes_that_are_not_a_request_end_their_connection(server: Server, data: bytes) -> None:
    with RawClient(server) as client:
        client.send(data)
        assert client.is_closed_by_server()

    ensure_answers(server)


def test_a_client_of_another_protocol_is_named_in_the_log_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    address = ("127.0.0.1", server.port)
    for _ in range(3):
        with pytest.raises(OSError), socket.create_connection(address, timeout=60) as plain:  # noqa: PT011  a reset, or an end
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        for method in ("GET", "POST"):
            asked = http.client.HTTPConnection(*address, timeout=60)
            asked.request(method, "/metrics")
            with pytest.raises((http.client.HTTPException, OSError)):
                asked.getresponse()
            asked.close()

    ensure_answers(server)
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [one.partition(", ")[0] for one in told] == [
        "client at 127.0.0.1: it speaks TLS",
        "client at 127.0.0.1: it speaks HTTP; this server answers Kafka's clients alone",
    ]
    assert "security.protocol=PLAINTEXT" in told[0]


@pytest.mark.parametrize("version", [0, 1])
def test_sasl_is_refused_as_by_a_broker_without_it_and_named_in_the_log_once(
    server: Server, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    warn_once.cache_clear()
    for _ in range(3):
        with RawClient(server) as client:
            body = SaslHandshakeRequest(mechanism="PLAIN")
            answer = client.ask(ApiKey.SASL_HANDSHAKE, version, body)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])

    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(told) == 1
    assert "it asks for SASL" in told[0]


def test_a_client_with_sasl_fails_and_the_log_says_why(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    errors: list[str] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p", "log_level": 0,
        "error_cb": lambda error: errors.append(str(error)),
    }  # fmt: skip
    producer = Producer(settings)
    until_s = time.monotonic() + 60
    while not errors and time.monotonic() < until_s:
        producer.poll(0.5)

    assert "SASL" in errors[0]
    assert "it asks for SASL, and this server has no users" in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_damaged_requests_are_answered_or_end_their_connection(
    cluster: Cluster, server: Server, seed: int
) -> None:
    rng = random.Random(seed)
    frames = [PRODUCE, METADATA, request(ApiKey.FETCH, 12, fetch(0))]
    for _ in range(50):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.choice((1, 1, 2, 8))):
            frame[rng.randrange(SIZE.size, len(frame))] ^= 1 << rng.randrange(8)
        with RawClient(server) as client:
            client.send(bytes(frame))
            client.socket.shutdown(1)
            while client.socket.recv(65_536):
                pass

    ensure_answers(server)
    assert not any(report.found for report in cluster.repair())
    assert cluster.read("events").read_all().num_rows == end_offset(cluster)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(server: Server) -> None:
    with RawClient(server) as client:
        client.send(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 77, 11, -1)))
        answer = client.receive(ApiKey.API_VERSIONS, 0)

        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {one.api_key for one in answer.api_keys} >= {ApiKey.PRODUCE, ApiKey.API_VERSIONS}
        again = client.ask(
            ApiKey.API_VERSIONS,
            3,
            ApiVersionsRequest(client_software_name="a", client_software_version="1"),
        )
        assert again.error_code == 0


def test_api_versions_refuses_a_client_without_a_name(server: Server) -> None:
    with RawClient(server) as client:
        body = ApiVersionsRequest(client_software_name="-", client_software_version="")

        assert client.ask(ApiKey.API_VERSIONS, 3, body).error_code == ErrorCode.INVALID_REQUEST


def test_requests_that_are_announced_and_never_sent_cost_nothing(server: Server) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    clients = [RawClient(server) for _ in range(50)]
    for client in clients:
        client.send(SIZE.pack(100 * MiB) + PRODUCE[4:20])

    ensure_answers(server)
    assert process.memory_info().rss - before < 20 * MiB
    for client in clients:
        client.socket.close()


def test_large_requests_take_turns_for_memory_and_are_all_answered(
    cluster: Cluster, server: Server
) -> None:
    """Each of six is half as large as the memory for all, and none is whole before all have started."""
    cluster.alter_topic("events", {"max.message.bytes": 8 * MiB})
    batch = builders.batch(n=1, value_bytes=2 * MiB)
    large = request(ApiKey.PRODUCE, 9, produce(batch))
    clients = [RawClient(server) for _ in range(6)]
    for client in clients:
        client.send(large[: MiB // 2])
    for client in clients:
        client.socket.setblocking(False)
    left = {client: memoryview(large)[MiB // 2 :] for client in clients}
    peak, deadline = 0, time.monotonic() + 20
    while left and time.monotonic() < deadline:
        ensure_answers(server)  # small requests do not have to wait
        for client in list(left):
            try:
                left[client] = left[client][client.socket.send(left[client]) :]
            except BlockingIOError:
                continue
            if not left[client]:
                del left[client]
        peak = max(peak, server._memory.requests.used_bytes)
    assert not left
    for client in clients:
        client.socket.setblocking(True)
        assert produced(client.receive(ApiKey.PRODUCE, 9)).error_code == 0
        client.socket.close()

    assert peak < 4 * MiB + len(large)
    assert end_offset(cluster) == len(clients)


def test_a_request_that_waits_for_memory_is_not_taken_for_a_stalled_one(cluster: Cluster) -> None:
    cluster.alter_topic("events", {"max.message.bytes": 8 * MiB})
    large = request(ApiKey.PRODUCE, 9, produce(builders.batch(n=1, value_bytes=3 * MiB)))
    with (
        cluster.serve(queued_max_request_bytes=1 * MiB, connections_max_idle_ms=300) as server,
        RawClient(server) as slow,
        RawClient(server) as waiting,
    ):
        memory = server._memory.requests
        slow.send(large[: 2 * MiB])
        until(lambda: memory.used_bytes > MiB, "one has used up the memory")
        slow.send(large[2 * MiB : 2 * MiB + 1])
        until(lambda: memory._favoured, "it may go on")
        waiting.socket.setblocking(False)
        sent = waiting.socket.send(large)
        until(lambda: memory._waiting, "the other waits")
        for position in range(2 * MiB + 1, 2 * MiB + 10):
            slow.send(large[position : position + 1])
            time.sleep(0.1)
        slow.send(large[2 * MiB + 10 :])
        assert produced(slow.receive(ApiKey.PRODUCE, 9)).error_code == 0
        waiting.socket.setblocking(True)
        waiting.send(large[sent:])
        assert produced(waiting.receive(ApiKey.PRODUCE, 9)).error_code == 0


def test_a_client_that_does_not_read_gets_one_answer_at_a_time(
    cluster: Cluster, server: Server
) -> None:
    builders.write(cluster, {("events", 0): [builders.batch(n=1, value_bytes=900_000)] * 20})
    client = RawClient(server)
    asked = request(ApiKey.FETCH, 12, fetch(0, max_bytes=16 * MiB))
    client.send(50 * asked)
    deadline = time.monotonic() + 5
    while not server._memory.answers.used_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)

    held = server._memory.answers.used_bytes
    assert 0 < held <= 16 * MiB
    ensure_answers(server)
    client.socket.close()
    while server._memory.answers.used_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server._memory.answers.used_bytes == 0


def test_two_hundred_connections_leave_nothing_when_they_end(server: Server) -> None:
    ensure_answers(server)
    process = psutil.Process()
    descriptors, threads = process.num_fds(), process.num_threads()
    clients = [RawClient(server) for _ in range(200)]
    for _ in range(2):
        for client in clients:
            client.send(METADATA)
        for client in clients:
            assert client.receive(ApiKey.METADATA, 9).controller_id == 1
    assert server._listener.connections_count() == 200
    for client in clients:
        client.socket.close()
    deadline = time.monotonic() + 10
    while server._listener.connections_count() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert process.num_fds() <= descriptors
    assert process.num_threads() <= threads + 4  # of the pool for lookups


def test_connections_above_the_maximum_are_closed(cluster: Cluster) -> None:
    with cluster.serve(max_connections=2) as server:
        first, second = RawClient(server), RawClient(server)
        for client in (first, second):
            client.send(METADATA)
            client.receive(ApiKey.METADATA, 9)
        with RawClient(server) as third:
            assert third.is_closed_by_server()
        first.socket.close()
        deadline = time.monotonic() + 5
        while server._listener.connections_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        ensure_answers(server)
        second.socket.close()


def test_a_silent_connection_is_closed_but_not_one_that_waits_for_an_answer(
    cluster: Cluster,
) -> None:
    with cluster.serve(connections_max_idle_ms=200) as server:
        silent, waiting = RawClient(server), RawClient(server)
        waiting.send(request(ApiKey.FETCH, 12, fetch(0, max_wait_ms=1000)))

        assert silent.is_closed_by_server()
        assert fetched(waiting.receive(ApiKey.FETCH, 12)).error_code == 0
        silent.socket.close()
        waiting.socket.close()
