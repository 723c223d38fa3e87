"""A client's connections to all servers of a cluster, on one selector; only `wakeup` is thread-safe.

    DISCONNECTED ----------> CONNECTING ----------> CHECKING_API_VERSIONS ----------> READY
         ^     ready(), back-off over   connected,             versions known,          |
         |                              TLS agreed on          authenticated            |
         +------------------------------------------------------------------------------+
              lost, refused, timed out, idle, closed by either side, an invalid answer

    while not connections.ready(node): connections.poll(...)
    connections.send(node, ApiKey.METADATA, body, on_complete)
    connections.poll(...)          # sends and receives; calls on_complete with the answer or an error

If a connection is lost, its requests in flight fail, and the client cannot know whether the server executed
them. `ready` reconnects, after a pause that doubles with each failure; each attempt tries all addresses of the
host's name in turn until one lets it connect, and begins after the one that failed last. As in Kafka, everything
else waits while a name is looked up. A connection that the client itself closed, because it was idle or its user
has ended, is made again without a pause.

`last_error` says why there is no connection. `refusal` returns it only where trying again does not help, because
a certificate or a password was refused; that might even lock the user out. Callers raise it at once.

A forked child closes the sockets that it inherited. The server does not notice, because the parent still has
them. The child does not touch the selector, which both share, and goes on with a new one. Requests in flight
are the parent's: callbacks of the child's copies are never called.

Source: Kafka clients/.../clients/NetworkClient.java, ClusterConnectionStates.java; common/network/Selector.java.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random as random_numbers
import selectors
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.clock import monotonic_ms as clock_monotonic_ms
from spark_kbatch.errors import (
    AuthenticationError,
    ConfigError,
    DisconnectedError,
    KBatchError,
    RequestTimedOutError,
    RetriableError,
    UnknownHostError,
    UnsupportedVersionError,
)
from spark_kbatch.options.security import Security
from spark_kbatch.wire.addresses import look_up
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.connection import Completion, Connection, ConnectionConfig, OnComplete
from spark_kbatch.wire.tls import TlsSocket, tls_context

if TYPE_CHECKING:
    from spark_kbatch.wire.sasl import Authenticator

logger = logging.getLogger(__name__)

_NEVER_MS = 2**62
_POLL_MAX_MS = 60_000


class Node(NamedTuple):
    """A server of a cluster; negative ids are for servers known by their address alone."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class State(Enum):
    """State of a connection."""

    DISCONNECTED = "disconnected"  # there is none, or it was lost
    CONNECTING = "connecting"  # its socket is not connected yet, or TLS is not agreed on
    CHECKING_API_VERSIONS = (
        "checking"  # connected; versions are not known, or authentication not done
    )
    READY = "ready"  # requests may be sent


class _Peer:
    """One node, with the socket or the connection to it, and its failed attempts to connect."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state = State.DISCONNECTED
        self.socket: socket.socket | None = None  # while it is connecting
        self.tls: TlsSocket | None = None  # while TLS is agreed on
        self.connection: Connection | None = None  # once it is connected
        self.registered = 0  # events of the selector
        self.addresses: list[Any] = []  # of the last look-up, not tried yet
        self.address: Any = None  # that was tried last
        self.failed_at_address = False
        self.last_attempt_ms = -1  # or when it failed last
        self.failures = 0  # failed attempts since the connection was last ready
        self.next_attempt_ms = 0
        self.setup_deadline_ms = _NEVER_MS
        self.last_error: KBatchError | None = None


class Connections:
    """A client's connections to the servers of a Kafka cluster, made on demand."""

    def __init__(
        self,
        config: ConnectionConfig | None = None,
        *,
        security: Security | None = None,
        monotonic_ms: Callable[[], int] = clock_monotonic_ms,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        """Start without any connection.

        Args:
            config: time-outs, limits, names.
            security: how connections are secured; None: not at all.
            monotonic_ms: the clock.
            random: returns a uniform number from [0, 1), for jitter.

        Raises:
            ConfigError: a certificate or a key cannot be used.
        """
        self._config = config or ConnectionConfig()
        self._security = security or Security()
        self._tls_context = tls_context(self._security) if self._security.uses_tls else None
        self._monotonic_ms = monotonic_ms
        self._reconnect_backoff = ExponentialBackoff(
            self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms, random
        )
        self._setup_timeout = ExponentialBackoff(
            self._config.socket_connection_setup_timeout_ms,
            self._config.socket_connection_setup_timeout_max_ms,
            random,
        )
        self._open()
        _all_connections.add(self)

    def _open(self) -> None:
        self._peers: dict[Node, _Peer] = {}
        self._completions: deque[Completion] = deque()
        self._selector = selectors.DefaultSelector()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ)
        self._is_closed = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    # States.

    def state(self, node: Node) -> State:
        """Return the state of the connection to a node."""
        peer = self._peers.get(node)
        return State.DISCONNECTED if peer is None else peer.state

    def can_send(self, node: Node) -> bool:
        """Return True if a request may be sent to the node now."""
        peer = self._peers.get(node)
        return peer is not None and peer.connection is not None and peer.connection.can_send_more()

    def ready(self, node: Node) -> bool:
        """Return True if a request may be sent to the node now; otherwise connect, unless in back-off."""
        peer = self._peers.get(node) or self._peers.setdefault(node, _Peer(node))
        if peer.state is State.DISCONNECTED and self._monotonic_ms() >= peer.next_attempt_ms:
            self._connect(peer)
        self._maybe_authenticate_again(peer)
        return self.can_send(node)

    def connection_delay_ms(self, node: Node) -> int:
        """Return how many ms of back-off are left before `ready` may connect to the node; 0 if none."""
        peer = self._peers.get(node)
        if peer is None or peer.state is not State.DISCONNECTED:
            return 0
        return max(0, peer.next_attempt_ms - self._monotonic_ms())

    def delay_ms(self, node: Node) -> int:
        """Return in how many ms `ready` is to be called again for a node that was not ready.

        A back-off or its throttling is over then, 0 if it is over by now. What else it waits for is an event:
        `poll` returns, so the delay is without end.
        """
        peer = self._peers.get(node)
        if peer is None or peer.state is State.DISCONNECTED:
            return self.connection_delay_ms(node)
        if peer.connection is None:
            return _NEVER_MS
        throttled_ms = peer.connection.throttled_ms()
        return throttled_ms or (0 if peer.connection.can_send_more() else _NEVER_MS)

    def unsent(self, node: Node) -> RequestTimedOutError:
        """Return the error of a request that could not be sent to a node in time."""
        left_ms = 0 if self.state(node) is State.DISCONNECTED else self.delay_ms(node)
        throttled = f": it has throttled this client, for {left_ms / 1000:,.0f} s from now"
        why = throttled if 0 < left_ms < _NEVER_MS else ""
        return RequestTimedOutError(f"{node} could not be sent the request{why}")

    def last_attempt_ms(self, node: Node) -> int:
        """Return when the node was last connected to, or last failed; -1 if never."""
        peer = self._peers.get(node)
        return -1 if peer is None else peer.last_attempt_ms

    def last_error(self, node: Node) -> KBatchError | None:
        """Return why there is no connection to the node; None if there is one, or none was tried."""
        peer = self._peers.get(node)
        return None if peer is None else peer.last_error

    def refusal(self, node: Node) -> KBatchError | None:
        """Return the error that makes it pointless to connect to the node again; None if there is none."""
        peer = self._peers.get(node)
        if peer is None or peer.state is not State.DISCONNECTED:
            return None
        return None if isinstance(peer.last_error, RetriableError) else peer.last_error

    def in_flight_count(self, node: Node | None = None) -> int:
        """Return the number of unanswered requests to a node, or to all nodes."""
        return sum(
            peer.connection.in_flight_count
            for peer in self._peers.values()
            if peer.connection is not None and node in (None, peer.node)
        )

    # Sending, waiting.

    def send(
        self,
        node: Node,
        api_key: int,
        body: Any,
        on_complete: OnComplete,
        *,
        last_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request to a node that is ready; `poll` goes on with it.

        The arguments and errors are those of `Connection.send`. If the connection is lost meanwhile,
        `on_complete` gets the error. Only `poll` calls it.
        """
        peer = self._peers.get(node)
        if peer is None or peer.connection is None:
            raise ValueError(f"{node} cannot be sent a request: it is not ready")
        try:
            peer.connection.send(
                api_key, body, on_complete, last_version=last_version, timeout_ms=timeout_ms
            )
        except UnsupportedVersionError:
            # Brokers that are upgraded behind one address may differ; the next one is asked again.
            if not peer.connection.in_flight_count:
                self._disconnect(peer, "it does not have the request's version", by_choice=True)
            raise
        with self._closing_on_error(peer):
            peer.connection.write()
            self._register(peer)

    def request(
        self,
        node: Node,
        api_key: int,
        body: Any,
        *,
        last_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send one request, wait for its answer and return it; connect first if necessary.

        Raises:
            RequestTimedOutError: `timeout_ms` have passed; says why there is no connection.
            DisconnectedError: the connection was lost before the answer arrived.
            AuthenticationError: the server or the client was refused.
            ConfigError: a package is missing that the authentication needs.
            UnsupportedVersionError: as for `send`.
        """
        timeout_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._monotonic_ms() + timeout_ms
        while not self.ready(node):
            left_ms = deadline_ms - self._monotonic_ms()
            if left_ms <= 0:
                why = self.last_error(node) or f"{node} did not answer"
                raise RequestTimedOutError(f"no connection within {timeout_ms} ms: {why}")
            self.poll(min(left_ms, self.delay_ms(node)))
            refusal = self.refusal(node)
            if refusal is not None:
                raise refusal
        ended: list[tuple[Any, KBatchError | None]] = []
        self.send(
            node,
            api_key,
            body,
            lambda answer, error: ended.append((answer, error)),
            last_version=last_version,
            timeout_ms=max(1, deadline_ms - self._monotonic_ms()),
        )
        while not ended:
            self.poll(_POLL_MAX_MS)
        answer, error = ended[0]
        if error is not None:
            raise error
        return answer

    def poll(self, timeout_ms: int) -> None:
        """Send and receive for at most `timeout_ms`; call `on_complete` of the requests that have ended.

        It returns once something has happened. An error of a callback is raised here; the next call makes
        the remaining callbacks.
        """
        for peer in self._peers.values():
            self._maybe_authenticate_again(peer)
        now_ms = self._monotonic_ms()
        wait_ms = 0 if self._completions else min(timeout_ms, self._next_deadline_ms() - now_ms)
        for key, events in self._selector.select(max(0, wait_ms) / 1000):
            if key.data is None:
                self._drain_wakeups()
            else:
                self._handle(key.data, events)
        self._close_those_out_of_time()
        while self._completions:
            self._completions.popleft().deliver()

    def wakeup(self) -> None:
        """End the waiting `poll`, or the next one if none waits. Any thread may call this."""
        with contextlib.suppress(OSError):  # already full of wakeups, or closed
            self._wakeup_writer.send(b"\0")

    def disconnect(self, node: Node, reason: str = "the client closed the connection") -> None:
        """Close the connection to a node; its requests in flight fail."""
        peer = self._peers.get(node)
        if peer is not None and peer.state is not State.DISCONNECTED:
            self._disconnect(peer, reason)

    def disconnect_busy(self, reason: str) -> None:
        """Close the connections that have requests in flight, and fail these requests."""
        for peer in self._peers.values():
            if peer.connection is not None and peer.connection.in_flight_count:
                self._disconnect(peer, reason, by_choice=True)

    def close(self) -> None:
        """Close all connections; requests in flight fail. Closing again does nothing."""
        if self._is_closed:
            return
        for peer in self._peers.values():
            if peer.state is not State.DISCONNECTED:
                self._disconnect(peer, "the client was closed")
        self._release()
        while self._completions:
            self._completions.popleft().deliver()

    # Connecting.

    def _connect(self, peer: _Peer) -> None:
        peer.setup_deadline_ms = self._monotonic_ms() + self._setup_timeout.pause_ms(peer.failures)
        peer.state = State.CONNECTING
        peer.last_attempt_ms = self._monotonic_ms()
        with self._closing_on_error(peer):
            peer.socket = _start_to_connect(self._next_address(peer), str(peer.node))
            self._register(peer)

    def _try_next_address(self, peer: _Peer) -> None:
        if peer.addresses:
            self._connect(peer)

    def _next_address(self, peer: _Peer) -> Any:
        if not peer.addresses:
            try:
                peer.addresses = look_up(peer.node.host, peer.node.port)
            except OSError as error:
                reason = f"its name cannot be looked up: {error.strerror or error}"
                raise UnknownHostError(str(peer.node), reason) from error
            self._put_first(peer)
        peer.address = peer.addresses.pop(0)
        return peer.address

    def _put_first(self, peer: _Peer) -> None:
        """Order the addresses of a name: after the one that was tried last and failed, or from it on.

        One that lets a client connect, and then is silent, would be tried for ever.
        """
        if peer.address in peer.addresses:
            at = peer.addresses.index(peer.address) + peer.failed_at_address
            peer.addresses = peer.addresses[at:] + peer.addresses[:at]

    def _connected(self, peer: _Peer, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise DisconnectedError(str(peer.node), os.strerror(code))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.addresses = []
        if self._tls_context is None:
            self._established(peer, sock)
            return
        self._selector.unregister(sock)  # which is about to lose its descriptor
        peer.registered = 0
        try:
            peer.tls = TlsSocket(sock, self._tls_context, peer.node.host, str(peer.node))
        except OSError as error:
            raise DisconnectedError(str(peer.node), error.strerror or str(error)) from error
        peer.socket = None
        self._shake_hands(peer, peer.tls)

    def _shake_hands(self, peer: _Peer, tls: TlsSocket) -> None:
        try:
            is_complete = tls.handshake()
        except OSError as error:
            raise DisconnectedError(str(peer.node), error.strerror or str(error)) from error
        if is_complete:
            self._established(peer, tls)

    def _established(self, peer: _Peer, sock: socket.socket | TlsSocket) -> None:
        peer.setup_deadline_ms = _NEVER_MS  # from here on requests have time-outs
        peer.state = State.CHECKING_API_VERSIONS
        peer.connection = Connection(
            Channel(sock, str(peer.node)),
            str(peer.node),
            self._completions,
            config=self._config,
            monotonic_ms=self._monotonic_ms,
            authenticator=self._authenticator(peer.node),
        )
        # Not before: an interrupt may come at any time, and the peer is disconnected by what it has.
        peer.socket = peer.tls = None
        peer.connection.write()

    def _authenticator(self, node: Node) -> Authenticator | None:
        if not self._security.uses_sasl:
            return None
        from spark_kbatch.wire.sasl import Authenticator  # noqa: PLC0415  few use SASL

        timeout_ms = self._config.request_timeout_ms
        return Authenticator(self._security, node.host, str(node), timeout_ms=timeout_ms)

    def _maybe_authenticate_again(self, peer: _Peer) -> None:
        connection = peer.connection
        if peer.state is State.READY and connection is not None and self._security.uses_sasl:
            with self._closing_on_error(peer):
                if connection.maybe_authenticate_again():
                    connection.write()
                    self._register(peer)

    # Events.

    def _handle(self, peer: _Peer, events: int) -> None:
        with self._closing_on_error(peer):
            if peer.socket is not None:
                self._connected(peer, peer.socket)
            elif peer.tls is not None:
                self._shake_hands(peer, peer.tls)
            elif peer.connection is not None:
                if events & selectors.EVENT_READ or self._security.uses_tls:
                    peer.connection.read()
                    self._note_ready(peer, peer.connection)
                if peer.connection.is_sending:
                    peer.connection.write()
            self._register(peer)

    def _note_ready(self, peer: _Peer, connection: Connection) -> None:
        if peer.state is State.CHECKING_API_VERSIONS and connection.is_ready:
            peer.state = State.READY
            peer.failures = 0
            peer.last_error = None

    def _register(self, peer: _Peer) -> None:
        """Register a node's socket with the selector, for writing only while it connects or sends."""
        if peer.socket is not None:
            events = selectors.EVENT_WRITE
        elif peer.tls is not None:
            waits = peer.tls.read_waits_for_write
            events = selectors.EVENT_WRITE if waits else selectors.EVENT_READ
        else:
            assert peer.connection is not None
            events = selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if peer.connection.wants_write else 0
        if events == peer.registered:
            return
        fd = self._fileno(peer)
        if peer.registered:
            self._selector.modify(fd, events, peer)
        else:
            self._selector.register(fd, events, peer)
        peer.registered = events

    def _fileno(self, peer: _Peer) -> int:
        owner = peer.socket or peer.tls or peer.connection
        assert owner is not None
        return owner.fileno()

    @contextlib.contextmanager
    def _closing_on_error(self, peer: _Peer) -> Iterator[None]:
        try:
            yield
        except (AuthenticationError, ConfigError, UnknownHostError) as error:
            self._disconnect(peer, str(error), error)
        except DisconnectedError as error:
            was_connecting = peer.state is State.CONNECTING and peer.tls is None
            self._disconnect(peer, error.reason + self._hint(peer))
            if was_connecting:
                self._try_next_address(peer)
        except KBatchError as error:
            self._disconnect(peer, str(error) + self._hint(peer))

    def _hint(self, peer: _Peer) -> str:
        """Return a hint for the error if a connection was lost before the server answered any request."""
        is_new = peer.connection is not None and not peer.connection.has_answered
        if not is_new and peer.tls is None:
            return ""
        return (
            f", before it answered any request; if this repeats, see whether security.protocol="
            f"{self._security.protocol} is right for this port"
        )

    def _disconnect(
        self,
        peer: _Peer,
        reason: str,
        error: KBatchError | None = None,
        *,
        by_choice: bool = False,
    ) -> None:
        logger.debug("no connection to %s: %s", peer.node, reason)
        if peer.registered:
            self._selector.unregister(self._fileno(peer))
            peer.registered = 0
        for sock in (peer.socket, peer.tls):
            if sock is not None:
                sock.close()
        if peer.connection is not None:
            peer.connection.close(reason, error)
        peer.socket = peer.tls = peer.connection = None
        peer.state = State.DISCONNECTED
        peer.setup_deadline_ms = _NEVER_MS
        peer.last_error = error or DisconnectedError(str(peer.node), reason)
        peer.failed_at_address = not by_choice
        if not by_choice:
            peer.last_attempt_ms = self._monotonic_ms()
            pause_ms = self._reconnect_backoff.pause_ms(peer.failures)
            peer.next_attempt_ms = self._monotonic_ms() + pause_ms
            peer.failures += 1

    # Time.

    def _next_deadline_ms(self) -> int:
        deadlines = [_NEVER_MS]
        for peer in self._peers.values():
            deadlines.append(peer.setup_deadline_ms)
            if peer.connection is not None:
                expiry = peer.connection.next_expiry_ms()
                idle = peer.connection.last_active_ms + self._config.connections_max_idle_ms
                deadlines.append(idle if expiry is None else expiry)
        return min(deadlines)

    def _close_those_out_of_time(self) -> None:
        now_ms = self._monotonic_ms()
        for peer in self._peers.values():
            if peer.setup_deadline_ms <= now_ms:
                was_connecting = peer.tls is None
                self._disconnect(peer, "it could not be set up in time")
                if was_connecting:
                    self._try_next_address(peer)
            elif peer.connection is None:
                continue
            elif peer.connection.has_expired():
                self._disconnect(peer, "a request before was not answered in time")
            elif self._is_idle(peer.connection, now_ms):
                self._disconnect(peer, "it was idle", by_choice=True)

    def _is_idle(self, connection: Connection, now_ms: int) -> bool:
        since_ms = now_ms - connection.last_active_ms
        return not connection.in_flight_count and since_ms >= self._config.connections_max_idle_ms

    # Wakeups, the end, forks.

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_reader.recv(4096):
                pass

    def _release(self) -> None:
        """Close the selector and the sockets that wake it up, or a forked child's copies of them."""
        self._is_closed = True
        self._selector.close()
        self._wakeup_reader.close()
        self._wakeup_writer.close()

    def start_again_in_a_child(self) -> None:
        """Close a forked child's copies of all sockets, and go on without connections."""
        if self._is_closed:
            return
        for peer in self._peers.values():
            for sock in (peer.socket, peer.tls):
                if sock is not None:
                    sock.close()
            if peer.connection is not None:
                peer.connection.abandon()
        self._release()
        self._open()


def _start_to_connect(address: Any, server: str) -> socket.socket:
    """Return a non-blocking socket that is connecting to an address of `getaddrinfo`."""
    family, kind, protocol, _, target = address
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise DisconnectedError(server, os.strerror(error.errno or 0)) from error
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    code = sock.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise DisconnectedError(server, os.strerror(code))
    return sock


_all_connections: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forget_inherited() -> None:
    for one in list(_all_connections):
        one.start_again_in_a_child()


os.register_at_fork(after_in_child=_forget_inherited)
