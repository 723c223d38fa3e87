"""A proxy on loopback before a server of an object store: it does to requests what networks and stores do to them.

    with StoreProxy(server.address, seed=7) as proxy:
        proxy.faults = {"lost": 0.1, "cut": 0.05}   # by chance, of the requests that one can happen to
        ...                                         # http://{proxy.address}
        proxy.seen                                  # how often each has happened

    lost        the request is done, and there is no answer
    failed      the request is done, and the answer is 500
    refused     500, 503 or 429, and nothing is done
    denied      403, with all that tells who asked, and nothing is done
    conflict    409 to a create, and nothing is done
    late        there is no answer to a put, which is done a moment later
    cut         half of the body that was asked for
    slow        the answer comes a moment later

`held` keeps one request until it is let go, so that something can be done in the middle of it.

Creates (If-None-Match: *) of one name go on one at a time, so that the server behind need not be atomic. What
happens is drawn from the seed, in the order in which requests come.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

ALL_FAULTS = {
    "lost": 0.04, "failed": 0.04, "refused": 0.04, "conflict": 0.1, "late": 0.06, "cut": 0.05, "slow": 0.05,
}  # fmt: skip
LATE_S_MAX = 0.3
_SLOW_S = 0.1
_TIMEOUT_S = 30
_OF_ONE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")


class _Asked(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def is_create(self) -> bool:
        return self.headers.get("If-None-Match") == "*"

    def may_meet(self, fault: str) -> bool:
        """Return True if a fault can happen to this request."""
        match fault:
            case "conflict":
                return self.is_create
            case "late":
                return self.method == "PUT"
            case "cut":
                return self.method == "GET"
        return True


class _Answered(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Held:
    """One request that waits: the n-th with a name that matches, before it is done or after, without an answer."""

    def __init__(self, method: str, name: str, number: int, *, is_done: bool) -> None:
        """Hold a request.

        Args:
            method: of the request; "" for any.
            name: a regular expression for some of its path.
            number: which one of all those, from 1 on.
            is_done: whether the server behind has done it when it waits.
        """
        self.is_done = is_done
        self.reached, self._let_go = threading.Event(), threading.Event()
        self._method, self._name, self._left = method, re.compile(name), number

    def takes(self, asked: _Asked) -> bool:
        """Return True if this request is the one; asked once for each, by one thread at a time."""
        if self._method in ("", asked.method) and self._name.search(asked.path):
            self._left -= 1
            return self._left == 0
        return False

    def wait(self) -> None:
        """Wait, as the request."""
        self.reached.set()
        self._let_go.wait(_TIMEOUT_S)

    def let_go(self) -> None:
        """Let the request go on."""
        self._let_go.set()


class StoreProxy:
    """The proxy; its attributes may be set from any thread."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        """Listen, without any fault at first.

        Args:
            target: HOST:PORT of the server behind.
            seed: of all that is drawn.
        """
        self.target, self.faults = target, dict[str, float]()
        self.held: Held | None = None
        self._lock = threading.Lock()  # guards all that follows
        self.seen: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []  # method and path
        self._rng = random.Random(seed)
        self._creating: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by path
        self._late: list[threading.Timer] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for timer in self._late:
            timer.join()

    def fault_of(self, asked: _Asked) -> str:
        """Draw what happens to a request; empty for nothing."""
        with self._lock:
            self.asked.append((asked.method, asked.path))
            for fault, chance in self.faults.items():
                if asked.may_meet(fault) and self._rng.random() < chance:
                    self.seen[fault] += 1
                    return fault
        return ""

    def held_for(self, asked: _Asked) -> Held | None:
        """Return what holds a request; None if nothing does."""
        with self._lock:
            held = self.held
            return held if held is not None and held.takes(asked) else None

    def chosen(self, *choices: int) -> int:
        """Draw one of several."""
        with self._lock:
            return self._rng.choice(choices)

    def forward(self, asked: _Asked) -> _Answered:
        """Have a request done, and return the answer."""
        with self._one_at_a_time(asked):
            connection = http.client.HTTPConnection(self.target, timeout=_TIMEOUT_S)
            with contextlib.closing(connection):
                connection.putrequest(
                    asked.method, asked.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in asked.headers.items():
                    if name.lower() not in ("connection", "content-length"):
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(asked.body)))
                connection.putheader("Connection", "close")
                connection.endheaders(asked.body)
                answer = connection.getresponse()
                return _Answered(answer.status, answer.getheaders(), answer.read())

    def forward_later(self, asked: _Asked) -> None:
        """Have a request done after a moment, whose answer no one gets."""

        def forward() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.forward(asked)

        with self._lock:
            timer = threading.Timer(self._rng.random() * LATE_S_MAX, forward)
            self._late.append(timer)
        timer.start()

    @contextlib.contextmanager
    def _one_at_a_time(self, asked: _Asked) -> Iterator[None]:
        if not asked.is_create:
            yield
            return
        with self._lock:
            lock = self._creating[asked.path]
        with lock:
            yield


class ServerOfKilledClients(ThreadingHTTPServer):
    """A server whose clients may be killed in the middle of a request."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say what went wrong, unless the client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Server(ServerOfKilledClients):
    proxy: StoreProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # with any method
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        asked = _Asked(self.command, self.path, self.headers, self.rfile.read(size))
        proxy, answer = self.server.proxy, None
        held = proxy.held_for(asked)
        if held is not None and not held.is_done:
            held.wait()
        fault = proxy.fault_of(asked)
        match fault:
            case "refused":
                answer = _Answered(proxy.chosen(500, 503, 429), [], b"")
            case "denied":
                answer = _Answered(403, [], repr(self.headers.items()).encode())
            case "conflict":
                answer = _Answered(409, [], b"")
            case "late":
                proxy.forward_later(asked)
            case _:
                try:
                    answer = proxy.forward(asked)
                except (OSError, http.client.HTTPException):
                    fault = "lost"  # the server behind is gone
        if held is not None and held.is_done:
            held.wait()
        if fault == "slow":
            time.sleep(_SLOW_S)
        if answer is None or fault == "lost":
            self.close_connection = True
        elif fault == "failed":
            self._answer(_Answered(500, [], b""))
        else:
            self._answer(answer, is_cut=fault == "cut")

    def _answer(self, answer: _Answered, *, is_cut: bool = False) -> None:
        size, body = str(len(answer.body)), answer.body
        if self.command == "HEAD":
            size = next((value for name, value in answer.headers if name.lower() == "content-length"), "0")  # fmt: skip
        if is_cut:
            body, self.close_connection = body[: len(body) // 2], True
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        with contextlib.suppress(OSError):  # the client gave up
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""
