"""A client's connection in the event loop: a request, its answer, then the next; whether it is too slow.

    receiving   a request is not whole yet
    handling    it is whole, and its answer is awaited; nothing more is read
    sending     the kernel has not taken all of the answer yet

While a request is handled the socket stays registered for reading: most clients wait for the answer, and
each change of a registration costs a system call. If the socket becomes readable then, either the client
has sent its next request, which stays in the kernel, or it is gone, which ends the connection.

Only the loop calls these methods, except for those of `Exchange`.

Source: Kafka clients/.../common/network/KafkaChannel.java; core/.../network/SocketServer.scala Processor.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import itertools
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import KBatchError, ProtocolError
from spark_kbatch.meters import Meters
from spark_kbatch.server.memory import SMALL_REQUEST_BYTES, AnswerMemory, RequestMemory
from spark_kbatch.server.peers import Peers, client_warnings, unmapped, warn_once
from spark_kbatch.server.requests import HANG_UP
from spark_kbatch.server.unwritten_batches import UnwrittenBatches
from spark_kbatch.wire import protocol
from spark_kbatch.wire.codec import error_codes
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.framing import SIZE, Receive, Send

logger = logging.getLogger(__name__)

_REQUEST_MIN_BYTES = 8  # api key, version and correlation id
_PIECES_MAX = 256  # of one call of the kernel
_STALLED_AFTER_S = 30.0  # of a request nothing more comes, or of an answer nothing is taken
_SLOWEST_RATE = 65_536  # bytes/s of a whole request or answer, besides that time
_MEMORY_WITHIN_S = 60.0  # the longest that a request waits for memory
_HELD_FOR_S = 2.0  # when a connection may count as slow
# Connections of a peer that are only kept for requests that wait, of clients that have closed.
_GONE_MAX = 100
# Times of requests are counted up to each of these.
_TIMES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)


# What other protocols begin with, where a frame of Kafka's has its size, which is then above the
# limit: with TLS 369 MB, with HTTP more than a GB.
_TLS = "it speaks TLS, and this server has none: give it security.protocol=PLAINTEXT"
_HTTP = (
    "it speaks HTTP; this server answers Kafka's clients alone, and metrics are printed at SIGUSR1"
)
_OTHER_PROTOCOLS = {b"\x16\x03": _TLS} | dict.fromkeys(
    (b"GE", b"PO", b"PU", b"HE", b"OP", b"DE", b"PA", b"PR", b"CO"), _HTTP
)


def _other_protocol(error: Exception) -> str:
    """Return what a client speaks whose first bytes are no size of a frame; empty if unknown."""
    if not (isinstance(error, ProtocolError) and error.message == "frame"):
        return ""
    return _OTHER_PROTOCOLS.get(SIZE.pack(error.found)[:2], "")


class Memory(NamedTuple):
    """Memory limits that connections share."""

    requests: RequestMemory
    answers: AnswerMemory


class _State(Enum):
    RECEIVING = "receiving"
    HANDLING = "handling"
    SENDING = "sending"
    CLOSED = "closed"


class RequestMetrics:
    """Number, rate, errors and times of the requests of one api key; thread-safe.

    Source: Kafka server/.../network/metrics/RequestMetrics.java.
    """

    def __init__(self) -> None:
        self._requests = Meters("RequestsPerSec")
        self._lock = threading.Lock()  # guards the rest; innermost
        self._total_s, self._max_s = 0.0, 0.0
        self._times = [0] * (len(_TIMES_MS) + 1)  # up to each of these, and above the one before
        self._errors = Counter[int]()  # by code

    def answered(self, began_s: float, errors: Iterable[int] = ()) -> None:
        """Count a request that came at `began_s` of clock.monotonic_s, and is answered now, with these errors."""
        took_s = monotonic_s() - began_s
        self._requests.add(1)
        with self._lock:
            self._total_s += took_s
            self._max_s = max(self._max_s, took_s)
            self._times[bisect.bisect_left(_TIMES_MS, 1000 * took_s)] += 1
            self._errors.update(errors)

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics by Kafka's names; times in ms are None if no request was answered.

        "AtMost" has how many requests took so many ms or less.
        """
        with self._lock:
            total_s, max_s, times = self._total_s, self._max_s, [*self._times]
            errors = sorted(self._errors.items())
        count = sum(times)
        total = {
            "Count": count,
            "Mean": 1000 * total_s / count if count else None,
            "Max": 1000 * max_s if count else None,
            "Sum": 1000 * total_s,
            "AtMost": dict(
                zip([*map(str, _TIMES_MS), "+Inf"], itertools.accumulate(times), strict=True)
            ),
        }
        return {
            **self._requests.as_dict(),
            "ErrorsPerSec": {ErrorCode(code).name: {"Count": found} for code, found in errors},
            "TotalTimeMs": total,
        }


class Exchange:
    """A request in progress on a connection, to be answered once, by any thread; thread-safe."""

    __slots__ = (
        "_connection", "_correlation_id", "_is_answered", "_metrics",
        "api_key", "began_s", "peer", "size_in_bytes", "version",
    )  # fmt: skip

    def __init__(
        self,
        connection: ClientConnection,
        api_key: int,
        version: int,
        correlation_id: int,
        metrics: RequestMetrics,
        size_in_bytes: int,
    ) -> None:
        """Record when a request started; `metrics` count it once it is answered."""
        self.size_in_bytes = size_in_bytes
        self._connection, self.peer = connection, connection.peer
        self.api_key, self.version = api_key, version
        self._metrics, self.began_s = metrics, monotonic_s()
        self._correlation_id, self._is_answered = correlation_id, False

    @property
    def is_answered(self) -> bool:
        """Whether the answer is given."""
        return self._is_answered

    def respond(self, body: Any | None) -> None:
        """Send the answer's body; None sends no answer, and HANG_UP closes the connection."""
        if self._is_answered:
            logger.error("a request of key %d was answered twice", self.api_key)
            return
        self._is_answered = True
        errors = () if body is None or body is HANG_UP else error_codes(body)
        self._metrics.answered(self.began_s, errors)
        send: Send | None = None
        if body is not None and body is not HANG_UP:
            try:
                pieces = protocol.encode_response(
                    self.api_key, self.version, self._correlation_id, body
                )
                send = Send(pieces)
            except Exception:
                logger.exception("an answer to a request of key %d is no message", self.api_key)
                body = HANG_UP
        if body is HANG_UP:
            self._connection.in_loop(self._connection.close)
        else:
            self._connection.answer(send)

    def fail(self, error: Exception) -> None:
        """End the connection because of an error in the client's bytes, or of the server."""
        self._is_answered = True
        self._connection.in_loop(self._connection.end, error)


class ClientConnection:
    """A client's connection to the server, with one request in progress at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        request_max_bytes: int,
        memory: Memory,
        peers: Peers,
        on_request: Callable[[ClientConnection, memoryview], None],
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        """Serve a connected, non-blocking socket.

        Args:
            loop: the loop; this must be its thread.
            sock: closed at the end.
            request_max_bytes: a larger request ends the connection.
            memory: shared with all other connections.
            peers: of all connections; the client's may have to wait for its turn.
            on_request: called with each request; a KBatchError that it raises ends the connection.
            on_closed: called once.
        """
        self._loop, self._socket, self._memory = loop, sock, memory
        self._on_request, self._on_closed = on_request, on_closed
        self.client_host, self.client_port = sock.getpeername()[:2]
        host, port = sock.getsockname()[:2]
        self.local_address: tuple[str, int] = (unmapped(host), port)
        self.unwritten = UnwrittenBatches()
        self._peers, self.peer = peers, peers.of(self.client_host)
        self.peer.connections += 1
        self._last_active_s = loop.time()
        self._began_s: float | None = None  # a request or an answer, of which a part is passed on
        self._size_in_bytes = 0  # of that
        self._passed_bytes = 0  # since the last look at its rate
        self._looked_s = self._last_active_s
        self._state, self._is_ending = _State.RECEIVING, False
        self._turn: Callable[[], None] | None = None  # of a request that waits for it
        # Whether the client has closed, and its request waits for its turn.
        self._is_gone = False
        self._receive = Receive(request_max_bytes)
        self._send: Send | None = None
        self._reads = True  # whether the socket is registered for reading
        loop.add_reader(sock, self._readable)

    def __repr__(self) -> str:
        return f"the connection of {self.client_host}:{self.client_port}"

    def _read(self, on: bool) -> None:
        """Register the socket for reading, or unregister it."""
        if on and not self._reads:
            self._loop.add_reader(self._socket, self._readable)
        elif self._reads and not on:
            self._loop.remove_reader(self._socket)
        self._reads = on

    # Receiving.

    def _readable(self) -> None:
        if self._state is not _State.RECEIVING:
            self._notice_the_end()
            return
        try:
            while self._receive_some():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except Exception as error:  # noqa: BLE001  logged as the server's fault, if it is
            self.end(error)

    def _receive_some(self) -> bool:
        """Read from the socket once, and handle a complete request; return False to stop reading for now."""
        is_large = (self._receive.announced or 0) > SMALL_REQUEST_BYTES
        if is_large and not self._memory.requests.may_receive(self):
            self._read(False)
            return False
        with self._receive.buffer() as buffer:
            wanted = len(buffer)
            count = self._socket.recv_into(buffer)
        if not count:
            self.close()
            return False
        if is_large:
            self._memory.requests.take(self, count)
        self._last_active_s = self._loop.time()
        self._passed_bytes += count
        self._receive.received(count)
        self._handle_next()
        return count == wanted and self._state is _State.RECEIVING

    def _handle_next(self) -> None:
        """Pass the next request to `on_request`, if it has been received completely."""
        frame = self._receive.next_frame()
        if frame is None:
            if self._began_s is None and self._receive.announced is not None:
                self._begin(self._receive.announced)
            return
        self._began_s = None
        if len(frame) < _REQUEST_MIN_BYTES:
            raise ProtocolError("request", "size", 0, f"{_REQUEST_MIN_BYTES} or more", len(frame))
        self._state = _State.HANDLING
        self._turn = functools.partial(self._handle, frame)
        self._peers.admit(self.peer, self._turn)

    def _handle(self, frame: memoryview) -> None:
        self._turn = None
        is_gone, self._is_gone = self._is_gone, False
        self.peer.gone -= is_gone
        try:
            self._on_request(self, frame)
        except Exception as error:  # noqa: BLE001  logged as the server's fault, if it is
            self.end(error)
        if is_gone and not self._receive.has_more and self._state is _State.HANDLING:
            self.close(is_handled=True)

    def _begin(self, size_in_bytes: int) -> None:
        """Note that a part of a request or an answer has been passed on, of this size in all."""
        self._began_s, self._size_in_bytes = self._loop.time(), size_in_bytes
        self._passed_bytes, self._looked_s = 0, self._began_s

    def resume(self) -> None:
        """Read from the socket again, now that there is memory for the request."""
        if self._state is _State.RECEIVING:
            now_s = self._loop.time()
            if self._began_s is not None:
                self._began_s += now_s - self._last_active_s
            self._last_active_s = now_s
            self._read(True)

    def _notice_the_end(self) -> None:
        """Close the connection if the client is gone; else stop reading until its request is answered.

        What a client has sent before it closes counts, as nothing answers a request with acks 0. But of one
        peer not many such clients are waited for: it may close faster than its requests have their turns.
        """
        is_handled = self._turn is None
        try:
            has_closed = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close(is_handled=is_handled)
            return
        if has_closed and is_handled and not self._receive.has_more:
            self.close(is_handled=True)
            return
        if has_closed and not is_handled and not self._is_gone:
            if self.peer.gone >= _GONE_MAX:
                self.close()
                return
            self._is_gone = True
            self.peer.gone += 1
        self._read(False)

    # Answering.

    def in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, unless the loop has ended; for any thread."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            logger.debug("the server ended before %s was answered", self)

    def answer(self, send: Send | None) -> None:
        """Send an answer, or none, and go on with the next request; for any thread."""
        if send is not None:
            self._memory.answers.count(send.remaining)
        self.in_loop(self._start_sending, send)

    def _start_sending(self, send: Send | None) -> None:
        if self._state is not _State.HANDLING:
            self._memory.requests.release(self)  # of a connection that was closed meanwhile
            if send is not None:
                self._memory.answers.count(-send.remaining)
            return
        self._memory.requests.release(self)
        self._send, self._state = send, _State.SENDING
        self._last_active_s = self._loop.time()
        self._begin(0 if send is None else send.remaining)
        self._go_on_sending()

    def _go_on_sending(self) -> None:
        """Pass as much of the answer to the kernel as it takes; after all of it, handle the next request."""
        try:
            while self._send is not None:
                count = self._socket.sendmsg(self._send.pending(_PIECES_MAX))
                self._send.advance(count)
                self._passed_bytes += count
                self._memory.answers.count(-count)
                self._last_active_s = self._loop.time()
                if self._send.is_complete:
                    self._send = None
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket, self._writable)
            return
        except OSError as error:
            self.end(error)
            return
        if self._is_ending:
            self.close()
            return
        self._state, self._began_s = _State.RECEIVING, None
        self._read(True)
        try:
            self._handle_next()  # it may have been read together with the last one
        except Exception as error:  # noqa: BLE001  logged as the server's fault, if it is
            self.end(error)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self._go_on_sending()

    # The end.

    @property
    def _waits_for_memory(self) -> bool:
        return self._state is _State.RECEIVING and not self._reads

    @property
    def is_receiving(self) -> bool:
        """Whether a large request is not whole yet."""
        return self._state is _State.RECEIVING and self._size_in_bytes > SMALL_REQUEST_BYTES

    @property
    def is_sending(self) -> bool:
        """Whether the kernel has not taken all of a large answer yet."""
        return self._state is _State.SENDING and self._size_in_bytes > SMALL_REQUEST_BYTES

    def rate(self, now_s: float) -> float | None:
        """Return the bytes per second of its request or answer that were passed on since the last look.

        None if it does not wait for its client, or has not for long.
        """
        if self._began_s is None or self._waits_for_memory or now_s - self._began_s < _HELD_FOR_S:
            return None
        rate = self._passed_bytes / max(now_s - self._looked_s, 0.1)
        self._passed_bytes, self._looked_s = 0, now_s
        return rate

    def is_over(self, now_s: float, idle_s: float) -> bool:
        """Return True if the client sends or reads nothing for too long when it should, or is too slow."""
        if self._state is _State.HANDLING:
            return False
        if self._waits_for_memory:
            return now_s - self._last_active_s > _MEMORY_WITHIN_S
        if self._began_s is not None:
            within_s = _STALLED_AFTER_S + self._size_in_bytes / _SLOWEST_RATE
            if now_s - self._began_s > within_s:
                return True
        is_amid = self._state is _State.SENDING or self._receive.announced is not None
        limit_s = min(idle_s, _STALLED_AFTER_S) if is_amid else idle_s
        return now_s - self._last_active_s > limit_s

    def end(self, error: Exception) -> None:
        """Log an error of the network, of the client's bytes or of the server, and close the connection."""
        if self._state is _State.CLOSED:
            self.close()
            return
        other = _other_protocol(error)
        if other:
            warn_once(self.client_host, other)
        elif isinstance(error, KBatchError):
            client_warnings.warn("%s is closed: %s", self, error)
        elif isinstance(error, OSError):
            logger.debug("%s is lost: %s", self, error)
        else:
            logger.error("%s is closed, because of a fault of the server", self, exc_info=error)
        self.close()

    def end_when_answered(self) -> None:
        """Close once the request in progress is answered; at once if there is none."""
        if self._state in (_State.HANDLING, _State.SENDING):
            self._is_ending = True
        else:
            self.close()

    def close(self, *, is_handled: bool = False) -> None:
        """Close; closing again does nothing. Answers to requests in progress are dropped.

        With `is_handled` a request is in memory until it is answered.
        """
        if self._state is _State.CLOSED:
            self._memory.requests.release(self)
            return
        self._state = _State.CLOSED
        self._read(False)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        if self._send is not None:
            self._memory.answers.count(-self._send.remaining)
        self._send, self._receive = None, Receive()
        if self._turn is not None:
            self._peers.withdraw(self.peer, self._turn)
            self._turn = None
        if not is_handled:
            self._memory.requests.release(self)
        self.peer.connections -= 1
        self.peer.gone -= self._is_gone
        self._on_closed(self)

    def forget(self) -> None:
        """Close the descriptor in a forked child, whose parent goes on with the connection."""
        self._socket.close()
