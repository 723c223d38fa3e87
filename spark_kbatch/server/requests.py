"""What a handler is given, and how it answers.

    def handle(received: Received, respond: Respond) -> None

`respond` takes the body of the answer, None where none is sent (a Produce with acks=0), or HANG_UP to
end the connection. It is called exactly once, by any thread, before the handler returns or later. A
handler that raises has its request answered by an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias


class Received(NamedTuple):
    """A request, and who sent it."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    local_address: tuple[str, int]  # that the client has connected to
    body: Any  # of Produce and Fetch one of ours, of all others the library's


HANG_UP = object()  # in place of an answer

Respond: TypeAlias = Callable[[Any | None], None]
Handler: TypeAlias = Callable[[Received, Respond], None]
