"""Outgoing and incoming frames, without sockets: the socket's owner moves the bytes.

    sock.sendmsg(send.pending())                    receive.received(sock.recv_into(receive.buffer()))
    send.advance(...)                               while (frame := receive.next_frame()) is not None: ...

A frame is four bytes of size and that many bytes. A `Send` keeps the pieces of a message unchanged and
counts how much of them is written. A `Receive` does not trust an announced size: its buffer starts small and
grows with the bytes that arrive, so an announced frame of 100 MiB costs nothing until then. After the first
MiB it allocates the rest as address space: it is not cleared, and a page uses no memory until it is written.
(Not earlier, because the kernel may allocate 2 MiB for the first byte.) At the start of a frame it reads
ahead, so that a small frame takes one call of the socket; the rest of a large one goes straight into the
frame's buffer, which becomes the frame.

Source: Kafka clients/.../common/network/NetworkReceive.java, ByteBufferSend.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from spark_kbatch.errors import ProtocolError
from spark_kbatch.model import INT_MAX
from spark_kbatch.record.checksums import Buffer

SIZE = struct.Struct(">i")
MAX_PIECES = 1024  # per call of sendmsg: IOV_MAX of Linux and macOS

_READ_AHEAD = 4096
_FIRST_BUFFER = 64 * 1024  # bytes, for a frame that announces more
_CLEARED_BELOW = 2 * _FIRST_BUFFER  # bytes; clearing fewer takes less time than a call of numpy
_GROWTH = 4
_BELIEVED_FROM = 2**20  # bytes that have come


class Send:
    """A frame that is being written; `pieces` must not change until it is complete."""

    __slots__ = ("_next", "_remaining", "_views")

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        """Frame a message: put its size before its pieces.

        Raises:
            ValueError: it has more than 2^31-1 bytes.
        """
        views = [memoryview(piece).cast("B") for piece in pieces]
        size_in_bytes = sum(map(len, views))
        if size_in_bytes > INT_MAX:
            raise ValueError(f"a message of {size_in_bytes} bytes; at most {INT_MAX} can be framed")
        self._views = [memoryview(SIZE.pack(size_in_bytes)), *(one for one in views if one)]
        self._next = 0
        self._remaining = SIZE.size + size_in_bytes

    @property
    def remaining(self) -> int:
        """Number of bytes still to be written, including those of the size."""
        return self._remaining

    @property
    def is_complete(self) -> bool:
        """Whether the whole frame is written."""
        return not self._remaining

    def pending(self, max_pieces: int = MAX_PIECES) -> list[memoryview]:
        """Return the frame's next pieces to write, at most as many as one call of `sendmsg` takes."""
        return self._views[self._next : self._next + max_pieces]

    def advance(self, size_in_bytes: int) -> None:
        """Count bytes of the frame as written."""
        self._remaining -= size_in_bytes
        while size_in_bytes:
            view = self._views[self._next]
            if size_in_bytes < len(view):
                self._views[self._next] = view[size_in_bytes:]
                return
            size_in_bytes -= len(view)
            self._views[self._next] = memoryview(
                b""
            )  # so that the piece can be freed or used again
            self._next += 1


class Receive:
    """The incoming frames of one connection. Not thread-safe.

    Take all complete frames before asking for the buffer again.
    """

    __slots__ = ("_ahead", "_end", "_filled", "_frame", "_size", "_start", "max_size")

    def __init__(self, max_size: int = INT_MAX, *, read_ahead: int = _READ_AHEAD) -> None:
        """Start with an empty buffer, before the first frame.

        Args:
            max_size: the largest frame. A client accepts any size: the first batch of a fetch is sent
                whole, even if it is over the limit.
            read_ahead: number of bytes to read at the start of a frame; at least the size's four.
        """
        self.max_size = max_size
        self._ahead = bytearray(max(read_ahead, SIZE.size))
        self._start = self._end = 0  # of the bytes read ahead; none while a frame is in progress
        self._frame: memoryview | None = None  # in progress
        self._size = self._filled = 0  # of the frame in progress

    @property
    def announced(self) -> int | None:
        """Size of the frame in progress, once it is known; None between frames."""
        return None if self._frame is None else self._size

    @property
    def has_more(self) -> bool:
        """Whether bytes of a frame that was not taken yet have been received."""
        return self._frame is not None or self._end > self._start

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes; never empty.

        Raises:
            ValueError: a complete frame was not taken.
        """
        if self._frame is None:
            self._close_gap()
            buffer = memoryview(self._ahead)[self._end :]
        else:
            if self._filled == len(self._frame):
                self._grow(self._frame)
            buffer = self._frame[self._filled :]
        if not buffer:
            raise ValueError("take the frames that are complete before reading on")
        return buffer

    def received(self, size_in_bytes: int) -> None:
        """Count bytes as received into the memory that `buffer` returned."""
        if self._frame is None:
            self._end += size_in_bytes
        else:
            self._filled += size_in_bytes

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame, without its size; None if there is none. The caller owns it.

        Raises:
            ProtocolError: its size is negative or above the maximum. Nothing after it can be read.
        """
        if self._frame is None and not self._begin():
            return None
        if self._frame is None or self._filled < self._size:
            return None
        frame, self._frame = self._frame, None
        return frame

    def _begin(self) -> bool:
        """Start the next frame with the bytes received so far; return False if its size is not among them."""
        if self._end - self._start < SIZE.size:
            return False
        size: int = SIZE.unpack_from(self._ahead, self._start)[0]
        if not 0 <= size <= self.max_size:
            raise ProtocolError("frame", "size", 0, f"0 to {self.max_size} bytes", size)
        body = self._start + SIZE.size
        there = min(size, self._end - body)
        self._frame = _uncleared(min(size, max(there, _FIRST_BUFFER)))
        self._frame[:there] = memoryview(self._ahead)[body : body + there]
        self._size, self._filled = size, there
        self._start = body + there
        return True

    def _close_gap(self) -> None:
        """Move the bytes that were read ahead to the front of their buffer."""
        if self._start:
            rest = self._end - self._start
            self._ahead[:rest] = self._ahead[self._start : self._end]
            self._start, self._end = 0, rest

    def _grow(self, frame: memoryview) -> None:
        """Enlarge the buffer of the frame that is being received."""
        size = self._size if len(frame) >= _BELIEVED_FROM else _GROWTH * len(frame)
        larger = _uncleared(min(self._size, size))
        larger[: len(frame)] = frame
        self._frame = larger


def _uncleared(size_in_bytes: int) -> memoryview:
    """Return memory for a frame, which is written before it is read."""
    if size_in_bytes < _CLEARED_BELOW:
        return memoryview(bytearray(size_in_bytes))
    import numpy as np  # noqa: PLC0415  a server starts without it

    return np.empty(size_in_bytes, np.uint8).data
