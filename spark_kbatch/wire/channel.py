"""A connected socket that carries frames: at most one outgoing, and the incoming ones.

Nothing here waits. The channel's owner asks a selector when to call `write` and `read`, and registers for
writing only if `wants_write`: while a send is in progress, or where TLS must write before it can read. With
TLS it calls both whatever the event was, since each may have waited for the other direction.

Source: Kafka clients/.../common/network/KafkaChannel.java, PlaintextTransportLayer.java.
"""

from __future__ import annotations

from typing import Protocol

from spark_kbatch.errors import DisconnectedError
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.framing import Receive, Send
from spark_kbatch.wire.tls import TlsSocket


class Socket(Protocol):
    """A connected, non-blocking socket."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def sendmsg(self, buffers: list[memoryview], /) -> int:
        """Write some bytes; return how many."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read some bytes; return how many, 0 at the end."""

    def close(self) -> None:
        """Close the descriptor, without ending a connection that another process still uses."""


class Channel:
    """A connection's socket, with the frame being sent and the frame being received."""

    def __init__(self, sock: Socket, peer: str, receive: Receive | None = None) -> None:
        """Take over a socket.

        Args:
            sock: connected, non-blocking; closed with the channel.
            peer: for errors.
            receive: a new `Receive`, if frames are limited.
        """
        self._socket = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._peer = peer
        self._receive = receive or Receive()
        self._send: Send | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether a send is in progress."""
        return self._send is not None

    @property
    def wants_write(self) -> bool:
        """Whether to wait until the socket is writable, to send a frame or for TLS."""
        if self._tls is None:
            return self.is_sending
        sends = self.is_sending and not self._tls.write_waits_for_read
        return sends or self._tls.read_waits_for_write

    @property
    def has_decrypted(self) -> bool:
        """Whether TLS has decrypted bytes that `read` has not taken yet."""
        return self._tls is not None and self._tls.pending() > 0

    def limit_frames(self, max_size: int) -> None:
        """Set the size of the largest frame that is accepted from now on."""
        self._receive.max_size = max_size

    def start(self, pieces: list[Buffer]) -> Send:
        """Start to send a message; `write` writes it.

        Raises:
            ValueError: a send is in progress.
        """
        if self._send is not None:
            raise ValueError(f"a send to {self._peer} is in progress")
        self._send = Send(pieces)
        return self._send

    def write(self) -> Send | None:
        """Write as much of the outgoing frame as the socket takes; return the `Send` if it is complete.

        Raises:
            DisconnectedError: the connection is lost.
        """
        send = self._send
        if send is None:
            return None
        try:
            while not send.is_complete:
                send.advance(self._socket.sendmsg(send.pending()))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from error
        self._send = None
        return send

    def read(self) -> list[memoryview]:
        """Read the bytes that have arrived; return the complete frames, often none.

        It stops at the first frame and those that arrived with it, so that one busy peer does not keep
        others waiting. With TLS, read again while `has_decrypted`: no selector tells of that.

        Raises:
            DisconnectedError: the connection is lost, or closed by the peer.
            SslAuthenticationError: the peer refused this client's certificate.
            ProtocolError: a frame's size is negative or too large.
        """
        frames: list[memoryview] = []
        while not frames:
            buffer = self._receive.buffer()
            try:
                count = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise self._lost(error) from error
            if not count:
                raise DisconnectedError(self._peer, "it closed the connection")
            self._receive.received(count)
            while (frame := self._receive.next_frame()) is not None:
                frames.append(frame)
            if count < len(buffer):
                break
        return frames

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _lost(self, error: OSError) -> DisconnectedError:
        return DisconnectedError(self._peer, error.strerror or str(error))
