"""The server's event loop in its own thread: it accepts connections, and closes those that are idle.

Source: Kafka core/.../network/SocketServer.scala Acceptor, ConnectionQuotas.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from spark_kbatch.errors import ConfigError
from spark_kbatch.files import raise_descriptors_limit
from spark_kbatch.options.server import ServerConfig
from spark_kbatch.server.connection import ClientConnection, Memory
from spark_kbatch.server.peers import Peers, client_warnings
from spark_kbatch.wire.addresses import look_up

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64
_PAUSE_S = 1.0  # after a connection could not be accepted, most likely for lack of descriptors
_LOOKS_EVERY_S = 1.0  # at what connections hold, and at peers
_LOOKS_FOR_IDLE, _LOOKS_FOR_IDLE_EVERY_S = 4, 5.0  # checks per idle time-out; the longest pause
# Appends and commits open files. If connections took all descriptors, these would fail.
_FOR_FILES = 256  # descriptors

_Result = TypeVar("_Result")


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound, and does not listen yet.

    Raises:
        ConfigError: the name cannot be resolved, or the port is taken.
    """
    try:
        found = look_up(host or "0.0.0.0", port)
        # A name with addresses of both kinds, such as localhost, is served at its IPv4 address.
        family, kind, number, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        sock = socket.socket(family, kind, number)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"the server cannot listen at {host}:{port}: {error.strerror or error}; choose another "
        "address, or port 0 for any free port"
    )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _connections_possible(wanted: int) -> int:
    """Return how many of the `wanted` client connections the limit of open files allows.

    Raises the process's limit where it may; logs a warning if that is not enough.
    """
    needed = wanted + _FOR_FILES
    limit = raise_descriptors_limit(needed)
    if limit >= needed:
        return wanted
    possible = min(wanted, max(limit - _FOR_FILES, limit // 2))
    logger.warning(
        "at most %d connections can be open, not the %d of max.connections: this process may open %d "
        "files, and would need %d. Raise its limit, by `ulimit -n %d` or LimitNOFILE of a systemd "
        "service, or lower max.connections",
        possible,
        wanted,
        limit,
        needed,
        needed,
    )
    return possible


class Listener:
    """The server's event loop in its own thread, with the listening socket and all clients' connections."""

    def __init__(
        self,
        sock: socket.socket,
        config: ServerConfig,
        memory: Memory,
    ) -> None:
        """Prepare to serve a bound socket; `start` listens on it."""
        self._socket, self._config = sock, config
        self._connections_max = _connections_possible(config.max_connections)
        self._memory, self._peers = memory, Peers(self.call_later)
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._connections: set[ClientConnection] = set()  # used by the loop alone
        self.connections_made = 0  # changed by the loop alone
        self._no_more = False  # connections
        self._all_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbatch-server", daemon=True)

    def start(self, on_request: Callable[[ClientConnection, memoryview], None]) -> None:
        """Listen for connections, and start the event loop, which calls `on_request` with each request.

        Raises:
            ConfigError: someone else listens there, since the socket was bound.
        """
        self._on_request = on_request
        try:
            self._socket.listen(_BACKLOG)
        except OSError as error:
            host, port = self._socket.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error
        self._loop.add_reader(self._socket, self._accept)
        self._loop.call_soon(self._close_idle)
        self._loop.call_soon(self._look)
        self._thread.start()

    def discard(self) -> None:
        """Close the event loop of a listener that was not started."""
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in the loop's thread; return its result."""
        answer: Future[_Result] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001  it is the caller's
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return answer.result()

    def call_later(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread after some time, unless the loop ends before."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, delay_s, function)

    def connections_count(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    # In the loop.

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("a connection cannot be accepted for now: %s", error)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_PAUSE_S, self._accept_again)
                return
            if len(self._connections) >= self._connections_max:
                client_warnings.warn(
                    "a connection is closed at once: %d are open, as many as are allowed",
                    len(self._connections),
                )
                sock.close()
                continue
            try:
                self._connections.add(self._connected(sock))
                self.connections_made += 1
            except OSError:  # It is gone already.
                sock.close()

    def _accept_again(self) -> None:
        if not self._no_more:
            self._loop.add_reader(self._socket, self._accept)

    def _connected(self, sock: socket.socket) -> ClientConnection:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return ClientConnection(
            self._loop,
            sock,
            request_max_bytes=self._config.socket_request_max_bytes,
            memory=self._memory,
            peers=self._peers,
            on_request=self._on_request,
            on_closed=self._closed,
        )

    def _closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if self._no_more and not self._connections:
            self._all_ended.set()

    def _close_idle(self) -> None:
        idle_s, now_s = self._config.connections_max_idle_ms / 1000, self._loop.time()
        for connection in [one for one in self._connections if one.is_over(now_s, idle_s)]:
            logger.debug("%s is closed: its client is silent", connection)
            connection.close()
        pause_s = min(idle_s / _LOOKS_FOR_IDLE, _LOOKS_FOR_IDLE_EVERY_S)
        self._loop.call_later(pause_s, self._close_idle)

    def _look(self) -> None:
        """Close connections that are slow with memory which others need; see which peers are active."""
        now_s = self._loop.time()
        memory, connections = self._memory, list(self._connections)
        memory.requests.look(now_s, (one for one in connections if one.is_receiving))
        memory.answers.look(now_s, (one for one in connections if one.is_sending))
        self._peers.look()
        self._loop.call_later(_LOOKS_EVERY_S, self._look)

    def _end_when_answered(self) -> None:
        self._no_more = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for connection in list(self._connections):
            connection.end_when_answered()
        if not self._connections:
            self._all_ended.set()

    def _close_all(self) -> None:
        for connection in list(self._connections):
            connection.close()
        self._loop.stop()

    # The end.

    def begin_end(self) -> None:
        """Accept nothing more, and end each connection once its request in progress is answered."""
        self.call(self._end_when_answered)

    def finish_end(self, timeout_s: float) -> None:
        """Wait until the connections are closed, or close them after `timeout_s`; then end the thread."""
        self._all_ended.wait(timeout_s)
        self._loop.call_soon_threadsafe(self._close_all)
        self._thread.join()

    def forget(self) -> None:
        """Close the descriptors that a forked child inherited. The parent's connections go on."""
        with contextlib.suppress(OSError):
            self._socket.close()
        for connection in list(self._connections):
            connection.forget()
        # The loop's own methods would change what the parent's kernel object watches.
        self._selector.close()
