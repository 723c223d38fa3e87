"""Look-up of host names."""

from __future__ import annotations

import socket
from typing import Any


def look_up(host: str, port: int) -> list[Any]:
    """Return the addresses of a host for stream sockets, as `socket.getaddrinfo` does.

    Raises:
        OSError: it has none, or no host can have such a name.
    """
    try:
        if "\0" not in host:  # after which the system would not look at the rest
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a part of the name is empty or too long
        pass
    raise OSError(f"{host!r} is not a valid host name")
