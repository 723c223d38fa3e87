"""One client's connection, as the loop sees it: a request in, its answer out, and then the next one.

    receiving   a request is not whole yet
    handling    it is whole, and its answer is awaited; nothing more is read
    sending     the kernel has not taken all of the answer yet

While a request is handled the socket stays registered for reading: most clients wait for the answer, and
each change of a registration costs a system call. If the socket becomes readable then, the client has
sent its next request, which is left to the kernel, or is gone, which ends the connection.

Only the loop calls these methods, except for `Exchange.respond`.

Source: Kafka clients/.../common/network/KafkaChannel.java, NetworkReceive.java.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from spark_kbatch.errors import KBatchError, ProtocolError
from spark_kbatch.files import Buffer
from spark_kbatch.wire import protocol

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
_REQUEST_MIN_BYTES = 8  # api key, version and correlation id
_FIRST_BUFFER = 65_536  # grows as bytes come, so that a size alone costs nothing
_GROWTH = 4
_PIECES_MAX = 512  # of one system call, below what any kernel accepts


class _State(Enum):
    RECEIVING = "receiving"
    HANDLING = "handling"
    SENDING = "sending"
    CLOSED = "closed"


class Exchange:
    """One request that waits for its answer."""

    __slots__ = ("_answered", "_api_key", "_connection", "_correlation_id", "_version")

    def __init__(
        self, connection: Connection, api_key: int, version: int, correlation_id: int
    ) -> None:
        self._connection, self._api_key, self._version = connection, api_key, version
        self._correlation_id, self._answered = correlation_id, False

    def respond(self, body: Any | None) -> None:
        """Answer; called by any thread, once. None ends the exchange without an answer."""
        if self._answered:
            logger.error("a request of key %d was answered twice", self._api_key)
            return
        self._answered = True
        pieces: Sequence[Buffer] | None = ()
        if body is not None:
            try:
                pieces = protocol.encode_response(
                    self._api_key, self._version, self._correlation_id, body
                )
            except Exception:
                logger.exception("an answer to a request of key %d is no message", self._api_key)
                pieces = None
        self._connection.answer_from_any_thread(pieces)

    def fail(self, error: Exception) -> None:
        """End the connection in place of an answer."""
        if not self._answered:
            self._answered = True
            self._connection.end_from_any_thread(error)


class Connection:
    """One client's connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        request_max_bytes: int,
        on_request: Callable[[Connection, memoryview], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        """Serve a connected, non-blocking socket.

        Args:
            request_max_bytes: a larger request ends the connection.
            on_request: called with each request; it may raise a KBatchError, which ends the connection.
            on_closed: called once.
        """
        self._loop, self._socket = loop, sock
        self._request_max_bytes = request_max_bytes
        self._on_request, self._on_closed = on_request, on_closed
        self.client_host, self.client_port = sock.getpeername()[:2]
        host, port = sock.getsockname()[:2]
        self.local_address: tuple[str, int] = (host, port)
        self.last_active_s = loop.time()
        self._state, self._is_muted, self._is_ending = _State.RECEIVING, False, False
        self._size = bytearray(_SIZE.size)
        self._buffer, self._received, self._wanted = self._size, 0, -1
        self._unsent: list[memoryview] = []
        loop.add_reader(sock, self._readable)

    def __repr__(self) -> str:
        return f"the connection of {self.client_host}:{self.client_port}"

    def is_silent_since(self, before_s: float) -> bool:
        """Return True if the client has been silent since this time of the loop, though it is its turn."""
        return self._state is not _State.HANDLING and self.last_active_s < before_s

    # Receiving.

    def _readable(self) -> None:
        if self._state is not _State.RECEIVING:
            self._mute_or_notice_the_end()
            return
        try:
            while self._receive_some():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, KBatchError) as error:
            self._end(error)

    def _receive_some(self) -> bool:
        """Read once; return True if there may be more to read of this request."""
        with memoryview(self._buffer) as view:
            count = self._socket.recv_into(view[self._received :])
        if not count:
            self.close()
            return False
        self.last_active_s = self._loop.time()
        self._received += count
        if self._received < len(self._buffer):
            return False
        if self._wanted < 0:
            self._wanted = self._request_size()
            self._buffer, self._received = bytearray(min(self._wanted, _FIRST_BUFFER)), 0
            return True
        if self._received < self._wanted:
            larger = min(self._wanted, _GROWTH * self._received)
            self._buffer.extend(bytes(larger - self._received))
            return True
        self._handle()
        return False

    def _request_size(self) -> int:
        (size,) = _SIZE.unpack(self._size)
        if not _REQUEST_MIN_BYTES <= size <= self._request_max_bytes:
            accepted = (
                f"{_REQUEST_MIN_BYTES} to {self._request_max_bytes}, socket.request.max.bytes"
            )
            raise ProtocolError("request", "size", -1, accepted, size)
        return int(size)

    def _handle(self) -> None:
        frame = memoryview(self._buffer)
        self._buffer, self._received, self._wanted = self._size, 0, -1
        self._state = _State.HANDLING
        self._on_request(self, frame)

    def _mute_or_notice_the_end(self) -> None:
        try:
            is_over = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            is_over = True
        if is_over:
            self.close()
        else:
            self._loop.remove_reader(self._socket)
            self._is_muted = True

    # Answering.

    def answer_from_any_thread(self, pieces: Sequence[Buffer] | None) -> None:
        """Send an answer: the frame in pieces, without its size. None ends the connection."""
        try:
            self._loop.call_soon_threadsafe(self._answer, pieces)
        except RuntimeError:
            logger.debug("%s ended before an answer", self)

    def end_from_any_thread(self, error: Exception) -> None:
        """End the connection because of a request that cannot be answered."""
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            logger.debug("%s ended before an answer", self)

    def _answer(self, pieces: Sequence[Buffer] | None) -> None:
        if self._state is not _State.HANDLING:
            return
        if pieces is None:
            self.close()
            return
        if pieces:
            size = sum(map(len, pieces))
            self._unsent = [memoryview(one) for one in (_SIZE.pack(size), *pieces) if len(one)]
        self._state = _State.SENDING
        self._send()

    def _send(self) -> None:
        """Give the kernel what it takes of the answer, and listen again once it has taken all."""
        try:
            while self._unsent:
                self._sent(self._socket.sendmsg(self._unsent[:_PIECES_MAX]))
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket, self._writable)
            return
        except OSError as error:
            self._end(error)
            return
        self.last_active_s = self._loop.time()
        if self._is_ending:
            self.close()
            return
        self._state = _State.RECEIVING
        if self._is_muted:
            self._is_muted = False
            self._loop.add_reader(self._socket, self._readable)

    def _sent(self, count: int) -> None:
        done = 0
        for piece in self._unsent:
            if len(piece) > count:
                break
            count -= len(piece)
            done += 1
        del self._unsent[:done]
        if count:
            self._unsent[0] = self._unsent[0][count:]

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self._send()

    # The end.

    def _end(self, error: Exception) -> None:
        if isinstance(error, OSError):
            logger.debug("%s is lost: %s", self, error)
        else:
            logger.warning("%s is closed: %s", self, error)
        self.close()

    def end_when_answered(self) -> None:
        """Close once the request in progress is answered; at once if there is none."""
        if self._state in (_State.HANDLING, _State.SENDING):
            self._is_ending = True
        else:
            self.close()

    def close(self) -> None:
        """Close; closing again does nothing. What is still handled is answered to no one."""
        if self._state is _State.CLOSED:
            return
        self._state, self._unsent, self._buffer = _State.CLOSED, [], self._size
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._on_closed(self)

    def forget(self) -> None:
        """Close the descriptor in a forked child, whose parent goes on with the connection."""
        self._socket.close()
