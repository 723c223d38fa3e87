"""What becomes of requests whose client has closed its connection by the time that they are handled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_kbatch.server.connection import ClientConnection, Memory
from spark_kbatch.server.memory import AnswerMemory, RequestMemory
from spark_kbatch.server.peers import Peers, unmapped

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
