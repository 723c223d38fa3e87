"""The interface of the server's request handlers.

    def handle(received: Received, respond: Respond) -> None

`respond` takes the body of the answer, None if none is sent (a Produce with acks=0), or HANG_UP to end the
connection. It is called exactly once, by any thread, before the handler returns or later. If a handler
raises, its request is answered with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.server.peers import Peer
from spark_kbatch.server.unwritten_batches import UnwrittenBatches

# Characters of a client's id, and of other names that clients choose, in the log.
NAME_SHOWN_MAX = 200


class Received(NamedTuple):
    """A request and its sender."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    local_address: tuple[str, int]  # the address that the client connected to
    unwritten: UnwrittenBatches  # of its connection
    body: Any  # a message, by the request's kind
    peer: Peer | None = None  # that the work is done for


HANG_UP = object()  # in place of an answer

Respond: TypeAlias = Callable[[Any | None], None]
Handler: TypeAlias = Callable[[Received, Respond], None]
