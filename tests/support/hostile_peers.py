"""Peers that break the rules: what a test says is done to each connection, and a proxy that damages TLS.

with Peer(lambda sock: sock.sendall(b"HTTP/1.1 400")) as peer, leaves_nothing():
    error = refusal_of(lambda: client.request(peer.node, ...), within_s=2, secrets=["a-password"])
"""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from spark_kbatch.errors import KBatchError
from spark_kbatch.wire.connections import Node

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset
_CHUNK = 65_536


class Peer:
    """A listener on loopback, which calls `run` with each connection in a thread, and then closes it."""

    def __init__(self, run: Callable[[socket.socket], object]) -> None:
        self._run = run
        self.accepted = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.node = Node(-1, *self._listener.getsockname())
        self.address = f"127.0.0.1:{self.node.port}"
        self.over = threading.Event()  # set at the end

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.accepted += 1
                self._sockets.append(sock)
                self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), sock:
            self._run(sock)


def http_request(sock: socket.socket) -> bytes:
    """Return a whole request: if a part of one is unread, closing the connection resets it."""
    data = b""
    while b"\r\n\r\n" not in data and (some := sock.recv(_CHUNK)):
        data += some
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *(\d+)", head)
    left = int(found[1]) - len(body) if found else 0
    while left > 0 and (some := sock.recv(_CHUNK)):
        data += some
        left -= len(some)
    return data


class Damage(NamedTuple):
    """A change of the server's bytes, once so many have passed."""

    what: str  # one of DAMAGES
    at: int
    junk: bytes = b""

    @property
    def needs_no_byte(self) -> bool:
        """Whether it may come after the last byte."""
        return self.what in ("close", "reset", "stall", "insert")


DAMAGES = ("close", "reset", "stall", "flip", "insert", "drop", "repeat", "trickle")
_TRICKLE_S = 0.02


class Meddler(Peer):
    """A proxy in front of a server, which damages what that sends on each connection."""

    def __init__(self, server: Node, damage: Damage | None = None) -> None:
        super().__init__(self._meddle)
        self._server = server
        self.damage = damage
        self.passed = 0  # bytes of the server on the last connection

    def _meddle(self, client: socket.socket) -> None:
        with socket.create_connection(self._server[1:]) as server:
            self._start(_pump, client, server)
            self._sockets.append(server)
            self.passed = 0
            while data := server.recv(_CHUNK):
                damage, position = self.damage, self.passed
                self.passed += len(data)
                if damage is None or not position <= damage.at < self.passed + damage.needs_no_byte:
                    client.sendall(data)
                    continue
                client.sendall(data[: damage.at - position])
                if not self._damage(client, damage, data[damage.at - position :]):
                    return

    def _damage(self, client: socket.socket, damage: Damage, rest: bytes) -> bool:
        """Do the damage in front of the rest; return whether the connection goes on."""
        match damage.what:
            case "close":
                client.shutdown(socket.SHUT_RDWR)
                return False
            case "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.shutdown(socket.SHUT_RD)  # wakes the other thread, which uses it too
                return False
            case "stall":
                self.over.wait()
                return False
            case "trickle":
                for one in rest:
                    client.sendall(bytes([one]))
                    if self.over.wait(_TRICKLE_S):
                        return False
            case "flip":
                client.sendall(bytes([rest[0] ^ 0x41]) + rest[1:])
            case "insert":
                client.sendall(damage.junk + rest)
            case "drop":
                client.sendall(rest[1:])
            case "repeat":
                client.sendall(rest + rest)
        return True


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def any_damage(random: Random, size_in_bytes: int) -> Damage:
    """Return damage to one of the first bytes of a server that sends so many."""
    return Damage(
        random.choice(DAMAGES), random.randrange(size_in_bytes), random.randbytes(random.choice((1, 5, 300)))
    )  # fmt: skip


def refusal_of(
    act: Callable[[], object], *, within_s: float, secrets: Sequence[str] = ()
) -> KBatchError | None:
    """Call `act`, and return its error, None if there is none, after checking that it is one for users.

    It comes in time, survives pickling, and shows no secret; nothing else than a KBatchError is raised.
    """
    started, error = time.monotonic(), None
    try:
        act()
    except KBatchError as raised:
        error = raised
    assert time.monotonic() - started < within_s
    if error is not None:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        shown = f"{error!r} {error} {error.__dict__}"
        assert str(error).isprintable(), error
        assert len(str(error)) < 2500
        assert not [secret for secret in secrets if secret in shown]
    return error


@contextlib.contextmanager
def leaves_nothing() -> Iterator[None]:
    """Assert that the block leaves no thread and no descriptor."""
    threads, descriptors = threading.active_count(), _descriptors()
    yield
    until = time.monotonic() + 5
    while threading.active_count() > threads or _descriptors() > descriptors:
        assert time.monotonic() < until, (threading.enumerate(), _descriptors() - descriptors)
        time.sleep(0.01)


def _descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
