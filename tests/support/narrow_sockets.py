"""Pairs of sockets in memory whose buffers hold a few bytes, so that every read and write is partial."""

from __future__ import annotations

import errno


class NarrowSocket:
    """One end; `capacity` bytes may be under way in each direction."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.incoming = bytearray()
        self.peer = self
        self.is_closed = False
        self.error: OSError | None = None  # of the next call

    def fileno(self) -> int:
        return -1

    def sendmsg(self, buffers: list[memoryview], /) -> int:
        self._fail()
        if self.peer.is_closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = self.capacity - len(self.peer.incoming)
        taken = b"".join(buffers)[:room]
        if not taken:
            raise BlockingIOError
        self.peer.incoming += taken
        return len(taken)

    def recv_into(self, buffer: memoryview, /) -> int:
        self._fail()
        taken = self.incoming[: len(buffer)]
        if not taken and not self.peer.is_closed:
            raise BlockingIOError
        buffer[: len(taken)] = taken
        del self.incoming[: len(taken)]
        return len(taken)

    def close(self) -> None:
        self.is_closed = True

    def _fail(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def narrow_pair(capacity: int) -> tuple[NarrowSocket, NarrowSocket]:
    """Return the two ends of a connection."""
    one, other = NarrowSocket(capacity), NarrowSocket(capacity)
    one.peer, other.peer = other, one
    return one, other
