"""A server over HTTP whose answers never end: one part of each comes in drops, a few a second.

with Dripping("headers") as server:
    ask(server.url)          # must give up
server.asked                 # how many requests it had
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

_PAUSE_S = 0.05
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"

# By the part that comes in drops: what comes before it at once, and a drop.
PARTS = {
    "status line": (b"HTTP/1.1 200 O", b"K"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": (_OK, b"X-Drop: y\r\n"),
    "a header": (_OK + b"X-Drop: ", b"x"),
    "body": (_OK + b"Content-Length: 5000\r\n\r\n", b" "),
    "body without a length": (_OK + b"\r\n", b" "),
    "chunks": (_CHUNKED, b"1\r\n \r\n"),
    "trailers": (_CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Drop: y\r\n"),
}


class Dripping:
    """The server, on loopback; it ends with its context."""

    def __init__(self, part: str) -> None:
        self._start, self._drop = PARTS[part]
        self._is_closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start_thread(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closing.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname()).close()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start_thread(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closing.is_set():
            client, _ = self._listener.accept()
            self._start_thread(self._answer, client)

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(10)
            if not client.recv(65536):
                return
            self.asked += 1
            client.sendall(self._start)
            while not self._is_closing.is_set():
                client.sendall(self._drop)
                time.sleep(_PAUSE_S)
