"""An answer over HTTP that must be complete at a given time, and within a given size.

A time-out of a socket is for each of its operations: a server that sends a byte now and then is
waited for without an end, in its status line, its headers, the interim answers before them, the body
and what follows it. So each read here has the time that is left until one moment.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from spark_kbatch.clock import monotonic_s


class BoundedAnswer(http.client.HTTPResponse):
    """An answer; a read that comes too late raises TimeoutError, and one of too much OSError."""

    def __init__(
        self, sock: socket.socket, *args: Any, until_s: float, size_max: int, **kwargs: Any
    ) -> None:
        """Read an answer from a socket.

        Args:
            sock: the socket.
            until_s: when the answer must be complete, by `clock.monotonic_s`.
            size_max: its largest number of bytes, with headers and all that is beside its body.
            args, kwargs: of `HTTPResponse`.
        """
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedReads(sock, until_s, size_max))


class _BoundedReads(io.RawIOBase):
    """Reads of a socket until a given time, however many there are, and up to a size."""

    def __init__(self, sock: socket.socket, until_s: float, size_max: int) -> None:
        self._socket = sock
        self._raw: io.RawIOBase = sock.makefile("rb", buffering=0)  # keeps the socket open
        self._until_s = until_s
        self._size_max = self._left = size_max

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left_s = self._until_s - monotonic_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)
        count: int | None = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise OSError(f"its answer is longer than {self._size_max} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
