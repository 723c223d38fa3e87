"""What becomes of requests whose client has closed its connection by the time that they are handled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_kbatch.server.connection import _GONE_MAX, ClientConnection, Memory
from spark_kbatch.server.memory import AnswerMemory, RequestMemory
from spark_kbatch.server.peers import Peer, Peers, unmapped

MiB = 1 << 20


class Served:
    """A loop with connections of clients on loopback."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.memory = Memory(RequestMemory(MiB), AnswerMemory(MiB))
        self.peers = Peers(lambda delay_s, call: self.loop.call_later(delay_s, call))
        self.closed = 0
        self._listening = socket.create_server(("127.0.0.1", 0))

    def connect(
        self, on_request: Callable[[ClientConnection, memoryview], None]
    ) -> tuple[socket.socket, ClientConnection]:
        client = socket.create_connection(self._listening.getsockname())
        accepted, _ = self._listening.accept()
        accepted.setblocking(False)

        def count(_: ClientConnection) -> None:
            self.closed += 1

        connection = ClientConnection(
            self.loop,
            accepted,
            request_max_bytes=64 * MiB,
            memory=self.memory,
            peers=self.peers,
            on_request=on_request,
            on_closed=count,
        )
        return client, connection

    def run_until(self, is_done: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not is_done():
                await asyncio.sleep(0.005)

        self.loop.run_until_complete(asyncio.wait_for(wait(), 30))

    def close(self) -> None:
        self._listening.close()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with contextlib.closing(Served()) as served:
        yield served


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_all_requests_count_that_a_client_has_sent_before_it_closes(served: Served) -> None:
    """As those of a producer with acks 0, which has no answers to wait for."""
    handled = list[bytes]()

    def handle(connection: ClientConnection, frame: memoryview) -> None:
        handled.append(bytes(frame[:2]))
        served.loop.call_later(0.02, connection.answer, None)

    client, _ = served.connect(handle)
    for number in range(3):
        client.sendall(framed(b"R%d" % number + bytes(100)))
    client.close()

    served.run_until(lambda: served.closed == 1)
    assert handled == [b"R0", b"R1", b"R2"]


@pytest.fixture
def busy(served: Served, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """The peer of all clients, which has used up its share: its requests wait."""
    peer = served.peers.of("127.0.0.1")
    served.peers.are_several = True
    monkeypatch.setattr(peer, "wait_s", lambda: 3600.0)
    return peer


def take_turns(served: Served, peer: Peer) -> None:
    """Let requests that wait have their turns."""
    served.peers.are_several = False
    peer.is_scheduled = False
    while peer.waiting:
        served.peers.start_next(peer)
        peer.is_scheduled = False


def test_of_a_peer_that_has_to_wait_not_all_clients_that_are_gone_are_waited_for(
    served: Served, busy: Peer
) -> None:
    handled = list[bytes]()

    def handle(connection: ClientConnection, frame: memoryview) -> None:
        handled.append(bytes(frame[:4]))
        connection.answer(None)

    for number in range(_GONE_MAX + 20):
        client, _ = served.connect(handle)
        client.sendall(framed(b"%04d" % number + bytes(100)))
        client.close()
        served.run_until(lambda: len(busy.waiting) + served.closed > number)  # noqa: B023  run at once
    served.run_until(lambda: served.closed == 20)
    assert (busy.connections, busy.gone, len(busy.waiting)) == (_GONE_MAX,) * 3
    assert handled == []

    take_turns(served, busy)
    served.run_until(lambda: served.closed == _GONE_MAX + 20)
    assert handled == [b"%04d" % number for number in range(_GONE_MAX)]
    assert (busy.connections, busy.gone) == (0, 0)


def test_of_a_client_that_is_gone_nothing_is_kept_once_its_request_has_its_turn(
    served: Served, busy: Peer
) -> None:
    handled = list[ClientConnection]()
    client, _ = served.connect(lambda connection, _: handled.append(connection))
    client.sendall(framed(bytes(100)))
    client.close()
    served.run_until(lambda: busy.gone == 1)

    take_turns(served, busy)
    assert len(handled) == 1
    assert (busy.connections, busy.gone, served.closed) == (0, 0, 1)
    handled[0].answer(None)
    served.run_until(lambda: served.memory.requests.used_bytes == 0)


def test_of_a_peer_that_need_not_wait_all_requests_count_of_clients_that_are_gone(
    served: Served,
) -> None:
    handled = list[bytes]()
    waiting = list[ClientConnection]()

    def handle(connection: ClientConnection, frame: memoryview) -> None:
        handled.append(bytes(frame[:4]))
        waiting.append(connection)

    count = _GONE_MAX + 20
    for number in range(count):
        client, _ = served.connect(handle)
        client.sendall(framed(b"a%03d" % number + bytes(9)) + framed(b"b%03d" % number + bytes(9)))
        client.close()
    served.run_until(lambda: len(handled) == count)
    while served.closed < count:
        before = waiting.copy()
        waiting.clear()
        for connection in before:
            connection.answer(None)
        served.run_until(lambda: served.closed == count or bool(waiting))
    assert sorted(handled) == sorted(b"%s%03d" % (w, n) for w in (b"a", b"b") for n in range(count))


def test_a_request_of_a_client_that_is_lost_does_not_wait_for_its_turn(
    served: Served, busy: Peer
) -> None:
    handled = list[bytes]()
    client, _ = served.connect(lambda _, frame: handled.append(bytes(frame)))
    client.sendall(framed(bytes(20_000)))
    served.run_until(lambda: len(busy.waiting) == 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()

    served.run_until(lambda: served.closed == 1)
    assert not busy.waiting
    assert served.memory.requests.used_bytes == 0
    take_turns(served, busy)
    assert handled == []


def test_the_memory_of_a_request_counts_until_it_is_answered(served: Served) -> None:
    frames = list[memoryview]()

    def send(client: socket.socket) -> None:
        client.sendall(framed(bytes(8 * MiB)))
        client.close()

    client, connection = served.connect(lambda _, frame: frames.append(frame))
    sender = threading.Thread(target=send, args=(client,))
    sender.start()
    served.run_until(lambda: served.closed == 1)
    sender.join()
    assert len(frames) == 1
    assert served.memory.requests.used_bytes >= 7 * MiB

    connection.answer(None)
    served.run_until(lambda: served.memory.requests.used_bytes == 0)


def test_a_client_by_ipv4_is_told_an_ipv4_address() -> None:
    assert unmapped("::ffff:10.1.2.3") == "10.1.2.3"
    for host in ("10.1.2.3", "::1", "fe80::1%eth0", "2001:db8::ffff:1"):
        assert unmapped(host) == host
