"""Connections to servers on loopback: made, lost, remade, timed out, idle, and forked."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_kbatch.errors import (
    DisconnectedError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from spark_kbatch.wire import connections as all_connections
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.connection import ConnectionConfig
from spark_kbatch.wire.connections import Connections, Node, State
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, FetchRequest, MetadataRequest, Request
from spark_kbatch.wire.records import produce_request
from tests.support.hostile_peers import Peer, leaves_nothing, refusal_of
from tests.support.wire_servers import LoopbackServer, fetch_answer, metadata_body

METADATA = (ApiKey.METADATA, MetadataRequest(topics=[]))
POLL_MS = 20


class Clock:
    """The real clock, which a test may advance."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connections(clock: Clock) -> Iterator[Connections]:
    with made(clock) as client:
        yield client


def made(clock: Clock, **config: Any) -> Connections:
    return Connections(ConnectionConfig(**config), monotonic_ms=clock, random=lambda: 0.5)


def poll_until(client: Connections, done: Callable[[], object], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        client.poll(POLL_MS)


def make_ready(client: Connections, node: Node) -> None:
    poll_until(client, lambda: client.ready(node))


def descriptors() -> int:
    """Return how many descriptors the process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def connections_to(node: Node) -> int:
    """Return how many connections to a server this process has open."""
    open_now = psutil.Process().net_connections()
    return sum(1 for one in open_now if one.raddr and one.raddr[1] == node.port)


class Ended:
    """A callback that collects the answers and errors of requests."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.errors: list[Any] = []

    def __call__(self, answer: Any, error: Any) -> None:
        (self.answers if error is None else self.errors).append(answer if error is None else error)

    def __len__(self) -> int:
        return len(self.answers) + len(self.errors)


def test_a_request_makes_its_connection_and_is_answered(
    connections: Connections,
) -> None:
    with LoopbackServer() as server:
        assert connections.state(server.node) is State.DISCONNECTED

        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"
        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"

        assert connections.state(server.node) is State.READY
        assert (server.accepted, connections.in_flight_count()) == (1, 0)
        assert [one.api_key for one in server.requests] == [18, 3, 3]


def test_versions_are_asked_for_again_after_one_that_the_server_did_not_have(
    connections: Connections,
) -> None:
    offered = {ApiKey.API_VERSIONS: SUPPORTED[ApiKey.API_VERSIONS]}
    with LoopbackServer(offered=offered) as server:
        with pytest.raises(UnsupportedVersionError, match="METADATA"):
            connections.request(server.node, *METADATA)
        offered[ApiKey.METADATA] = SUPPORTED[ApiKey.METADATA]  # it was upgraded

        assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"

        assert server.accepted == 2


def test_a_version_that_is_not_there_fails_no_other_request(connections: Connections) -> None:
    offered = {key: SUPPORTED[key] for key in (ApiKey.API_VERSIONS, ApiKey.METADATA)}
    with LoopbackServer(offered=offered) as server:
        ended = Ended()
        make_ready(connections, server.node)
        connections.send(server.node, *METADATA, ended)
        with pytest.raises(UnsupportedVersionError):
            connections.send(server.node, ApiKey.LIST_GROUPS, None, ended)
        poll_until(connections, lambda: len(ended) == 1)

    assert len(ended.answers) == 1


def of_two_addresses(
    monkeypatch: pytest.MonkeyPatch, first: LoopbackServer, second: LoopbackServer
) -> Node:
    """Return a node whose name has the addresses of two servers, always in the same order."""
    stream = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    addresses = [(*stream, (one.node.host, one.node.port)) for one in (first, second)]
    monkeypatch.setattr(all_connections, "look_up", lambda _host, _port: list(addresses))
    return Node(1, "two.example", 9092)


@pytest.mark.parametrize("answer", [None, "hang up"], ids=["silent", "closing"])
def test_the_next_address_is_tried_after_one_that_connects_and_does_not_answer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    with (
        LoopbackServer(lambda _: answer, offered=None) as first,
        LoopbackServer() as second,
        made(clock, request_timeout_ms=100, reconnect_backoff_ms=1) as connections,
    ):
        node = of_two_addresses(monkeypatch, first, second)

        assert connections.request(node, *METADATA, timeout_ms=10_000).cluster_id == "a-cluster"

    assert (first.accepted, second.accepted) == (1, 1)


def test_the_pause_before_the_next_attempt_may_end_at_any_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ticks(Clock):
        """A clock on which time passes between any two looks at it."""

        def __call__(self) -> int:
            self.ahead_ms += 1
            return super().__call__()

    with (
        LoopbackServer(lambda _: "hang up", offered=None) as first,
        LoopbackServer() as second,
    ):
        node = of_two_addresses(monkeypatch, first, second)
        for pause_ms in range(1, 60):
            with made(Ticks(), reconnect_backoff_ms=pause_ms) as connections:
                answer = connections.request(node, *METADATA, timeout_ms=5_000)

            assert answer.cluster_id == "a-cluster"


def test_an_address_that_answered_is_tried_first_after_the_client_closed_the_connection(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        LoopbackServer(offered=None, answer=lambda _: "hang up") as first,
        LoopbackServer() as second,
        made(clock, connections_max_idle_ms=1000, reconnect_backoff_ms=1) as connections,
    ):
        node = of_two_addresses(monkeypatch, first, second)
        connections.request(node, *METADATA)
        clock.ahead_ms += 1000
        poll_until(connections, lambda: connections.state(node) is State.DISCONNECTED)

        connections.request(node, *METADATA)

    assert (first.accepted, second.accepted) == (1, 2)


def test_several_servers_are_asked_concurrently(connections: Connections) -> None:
    with (
        LoopbackServer(lambda _: metadata_body("one")) as one,
        LoopbackServer(lambda _: metadata_body("two")) as two,
    ):
        ended = Ended()
        for server in (one, two):
            make_ready(connections, server.node)
        for server in (one, two, one):
            connections.send(server.node, *METADATA, ended)
            poll_until(connections, lambda: connections.can_send(one.node))
        poll_until(connections, lambda: len(ended) == 3)

    assert sorted(answer.cluster_id for answer in ended.answers) == ["one", "one", "two"]


def test_large_messages_go_both_ways_in_many_parts(connections: Connections) -> None:
    records = os.urandom(5_000_000)

    def answer(request: Request) -> Any:
        if request.api_key == ApiKey.PRODUCE:
            return None
        return fetch_answer(records)

    with LoopbackServer(answer) as server:
        fetched = connections.request(server.node, ApiKey.FETCH, FetchRequest())
        assert bytes(fetched.responses[0].partitions[0].records) == records

        body = produce_request(0, 100, {})
        assert connections.request(server.node, ApiKey.PRODUCE, body) is None
        assert connections.request(server.node, ApiKey.FETCH, FetchRequest())


def test_refused_connection_is_retried_after_pauses_that_double(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Node(-1, *listener.getsockname())
    with made(clock, reconnect_backoff_ms=100, reconnect_backoff_max_ms=350) as client:
        pauses = []
        for _ in range(5):
            assert client.ready(node) is False
            poll_until(client, lambda: client.state(node) is State.DISCONNECTED)
            pauses.append(client.connection_delay_ms(node))
            assert client.ready(node) is False
            assert client.state(node) is State.DISCONNECTED
            clock.ahead_ms += 400

    assert [round(pause, -1) for pause in pauses] == [100, 200, 350, 350, 350]
    assert "Connection refused" in str(client.last_error(node))


def test_pauses_start_again_after_a_connection_was_ready(clock: Clock) -> None:
    with LoopbackServer() as server:
        node = server.node
    with made(clock, reconnect_backoff_ms=1000, reconnect_backoff_max_ms=60_000) as client:
        for _ in range(3):
            client.ready(node)
            poll_until(client, lambda: client.state(node) is State.DISCONNECTED)
            clock.ahead_ms += 60_000
        with LoopbackServer(port=node.port) as server:
            make_ready(client, node)
        poll_until(client, lambda: client.state(node) is State.DISCONNECTED)

        assert client.connection_delay_ms(node) <= 1000


def test_the_error_for_an_unreachable_server_says_why(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Node(-1, *listener.getsockname())

    with made(clock) as client, pytest.raises(RequestTimedOutError) as raised:
        client.request(node, *METADATA, timeout_ms=150)

    assert str(raised.value) == (
        f"no connection within 150 ms: no connection to {node}: Connection refused"
    )


def test_an_answer_that_comes_in_drops_is_given_up_in_time(clock: Clock) -> None:
    def run(sock: socket.socket) -> None:
        sock.recv(100_000)
        sock.sendall((1000).to_bytes(4, "big"))
        while True:
            sock.sendall(b"\0")
            time.sleep(0.02)

    with leaves_nothing(), Peer(run) as peer, made(clock, request_timeout_ms=300) as client:
        error = refusal_of(lambda: client.request(peer.node, *METADATA, timeout_ms=700), within_s=5)
        assert peer.accepted > 1
    assert isinstance(error, RequestTimedOutError)


class TestAddresses:
    """Of a host with several, of which the first does not answer."""

    @pytest.fixture
    def looked_up(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            unbound = listener.getsockname()
        with LoopbackServer() as self.server:
            names: list[str] = []

            def look_up(host: str, port: int, **_: object) -> list[Any]:
                names.append(host)
                kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
                there = (self.server.node.host, self.server.node.port)
                return [(*kind, unbound), (*kind, there), (*kind, there)]

            monkeypatch.setattr(socket, "getaddrinfo", look_up)
            yield names

    def test_all_are_tried_without_a_pause(self, clock: Clock, looked_up: list[str]) -> None:
        config = {"reconnect_backoff_ms": 10**6, "reconnect_backoff_max_ms": 10**6}
        with made(clock, **config) as client:
            assert client.request(Node(1, "a-name", 9092), *METADATA)

        assert looked_up == ["a-name"]

    def test_lost_connection_looks_the_name_up_again(
        self, clock: Clock, looked_up: list[str]
    ) -> None:
        node = Node(1, "a-name", 9092)
        with made(clock) as client:
            assert client.request(node, *METADATA)
            self.server.hang_up()
            poll_until(client, lambda: client.state(node) is State.DISCONNECTED)
            assert client.request(node, *METADATA)

        assert looked_up == ["a-name"] * 2


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64])
def test_the_error_for_a_name_that_cannot_be_looked_up_says_so(clock: Clock, host: str) -> None:
    node = Node(-1, host, 9092)
    with made(clock) as client:
        assert client.ready(node) is False

    assert "its name cannot be looked up" in str(client.last_error(node))


def test_a_server_that_accepts_and_never_answers_is_given_up(clock: Clock) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        made(clock, request_timeout_ms=1000) as client,
    ):
        node = Node(-1, *listener.getsockname())
        assert client.ready(node) is False
        poll_until(client, lambda: client.state(node) is State.CHECKING_API_VERSIONS)

        clock.ahead_ms += 1000
        client.poll(0)

        assert client.state(node) is State.DISCONNECTED


def test_connection_that_cannot_be_set_up_in_time_is_given_up(clock: Clock) -> None:
    """A listener with a full backlog does not finish connections."""
    with socket.socket() as listener, made(clock) as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        node = Node(-1, *listener.getsockname())
        with socket.create_connection(listener.getsockname()):
            assert client.ready(node) is False
            client.poll(0)
            assert client.state(node) is State.CONNECTING

            clock.ahead_ms += 10_000
            client.poll(0)

            assert client.state(node) is State.DISCONNECTED
            assert "could not be set up in time" in str(client.last_error(node))


def test_unanswered_request_closes_its_connection_and_fails_all_on_it(clock: Clock) -> None:
    ended = Ended()
    with LoopbackServer(lambda _: None) as server, made(clock, request_timeout_ms=5000) as client:
        make_ready(client, server.node)
        client.send(server.node, *METADATA, ended, timeout_ms=1000)
        poll_until(client, lambda: len(server.requests) == 2)
        client.send(server.node, *METADATA, ended)
        client.poll(0)
        assert len(ended) == 0

        clock.ahead_ms += 1000
        client.poll(0)

        assert [type(error) for error in ended.errors] == [RequestTimedOutError, DisconnectedError]
        assert client.state(server.node) is State.DISCONNECTED


def test_a_lost_connection_fails_its_requests_and_is_remade(clock: Clock) -> None:
    answers: list[Any] = ["hang up", metadata_body()]
    ended = Ended()
    with LoopbackServer(lambda _: answers.pop(0)) as server, made(clock) as client:
        make_ready(client, server.node)
        client.send(server.node, *METADATA, ended)
        poll_until(client, lambda: ended)

        assert isinstance(ended.errors[0], DisconnectedError)
        assert client.request(server.node, *METADATA).cluster_id == "a-cluster"
        assert server.accepted == 2
        assert client.last_error(server.node) is None


def test_frame_of_a_negative_size_closes_the_connection(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, made(clock) as client:
        node = Node(-1, *listener.getsockname())
        client.ready(node)
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"\xff\xff\xff\xff")
            poll_until(client, lambda: client.state(node) is State.CHECKING_API_VERSIONS)
            poll_until(client, lambda: client.state(node) is State.DISCONNECTED)

    assert "malformed frame: size at byte 0" in str(client.last_error(node))


def test_an_idle_connection_is_closed_and_remade_when_needed(clock: Clock) -> None:
    with LoopbackServer() as server, made(clock, connections_max_idle_ms=60_000) as client:
        client.request(server.node, *METADATA)
        clock.ahead_ms += 59_000
        client.poll(0)
        assert client.state(server.node) is State.READY

        clock.ahead_ms += 1000
        client.poll(0)

        assert client.state(server.node) is State.DISCONNECTED
        assert client.request(server.node, *METADATA)
        assert server.accepted == 2


def test_connection_is_not_idle_while_a_request_is_in_flight(clock: Clock) -> None:
    with (
        LoopbackServer(lambda _: None) as server,
        made(clock, connections_max_idle_ms=1000, request_timeout_ms=60_000) as client,
    ):
        make_ready(client, server.node)
        client.send(server.node, *METADATA, Ended())
        clock.ahead_ms += 30_000
        client.poll(0)

        assert client.state(server.node) is State.READY


def test_poll_waits_while_nothing_happens_on_a_connection(connections: Connections) -> None:
    """It waits for writing only while a send is unfinished, because a socket can nearly always take bytes."""
    with LoopbackServer() as server:
        connections.request(server.node, *METADATA)

        started = time.monotonic()
        connections.poll(30)

        assert time.monotonic() - started >= 0.02


def test_wakeup_ends_a_poll_that_waits(connections: Connections) -> None:
    timer = threading.Timer(0.05, connections.wakeup)
    timer.start()
    started = time.monotonic()
    connections.poll(60_000)
    timer.join()

    assert time.monotonic() - started < 10


def test_any_number_of_wakeups_does_not_block(connections: Connections) -> None:
    for _ in range(100_000):
        connections.wakeup()
    connections.poll(0)

    started = time.monotonic()
    connections.poll(30)
    assert time.monotonic() - started >= 0.02


def test_closing_fails_requests_in_flight_and_leaves_no_descriptor(clock: Clock) -> None:
    ended = Ended()
    with LoopbackServer(lambda _: None) as server:
        before = descriptors()
        client = made(clock)
        make_ready(client, server.node)
        client.send(server.node, *METADATA, ended)
        client.close()
        client.close()

        assert isinstance(ended.errors[0], DisconnectedError)
        assert "the client was closed" in str(ended.errors[0])
        server.hang_up()
        after = descriptors()
    assert after <= before + 1  # the server's own end


def test_an_error_of_one_callback_does_not_stop_the_others(connections: Connections) -> None:
    ended = Ended()

    def fail(answer: Any, error: Any) -> None:
        raise KeyError("a fault of the caller")

    with LoopbackServer() as server:
        make_ready(connections, server.node)
        connections.send(server.node, *METADATA, fail)
        connections.send(server.node, *METADATA, ended)
        with pytest.raises(KeyError, match="a fault of the caller"):
            poll_until(connections, lambda: ended)
        poll_until(connections, lambda: ended)


def test_callback_may_send_the_next_request(connections: Connections) -> None:
    ended = Ended()
    with LoopbackServer() as server:

        def again(answer: Any, error: Any) -> None:
            connections.send(server.node, *METADATA, ended)

        make_ready(connections, server.node)
        connections.send(server.node, *METADATA, again)
        poll_until(connections, lambda: ended)

    assert len(ended.answers) == 1


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_new_connections_and_leaves_the_parents_alone(
    clock: Clock,
) -> None:
    ended = Ended()
    release = threading.Event()

    def answer(request: Request) -> Any:
        if not release.is_set() and request.client_id == "a-client":
            release.wait(10)
        return metadata_body()

    with LoopbackServer(answer) as server, made(clock, client_id="a-client") as client:
        make_ready(client, server.node)
        client.send(server.node, *METADATA, ended)
        client.poll(0)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                told = f"{connections_to(server.node)} {client.state(server.node).value} {client.in_flight_count()}"
                client._config = ConnectionConfig(client_id="the-child")
                client.request(server.node, *METADATA, timeout_ms=5000)
                os.write(write_end, f"{told} {len(ended)}".encode())
            finally:
                os._exit(0)
        os.close(write_end)
        told = os.read(read_end, 100).decode()
        os.close(read_end)
        os.waitpid(child, 0)

        release.set()
        poll_until(client, lambda: ended)
        assert connections_to(server.node) == 1
        assert told == "0 disconnected 0 0"
        assert len(ended.answers) == 1
        assert client.request(server.node, *METADATA)
        assert server.accepted == 2


@pytest.mark.parametrize(
    ("attempts", "random", "pause"),
    [
        (0, 0.5, 50), (1, 0.5, 100), (4, 0.5, 800), (5, 0.5, 1000), (90, 0.5, 1000),
        (1, 0.0, 80), (1, 1.0, 120), (9, 1.0, 1000), (9, 0.0, 800),
    ],
)  # fmt: skip
def test_pauses_double_up_to_the_longest_with_a_fifth_of_jitter(
    attempts: int, random: float, pause: int
) -> None:
    assert ExponentialBackoff(50, 1000, lambda: random).pause_ms(attempts) == pause
