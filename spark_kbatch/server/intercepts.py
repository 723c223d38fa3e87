"""Interception of requests: a test can see, delay, refuse or drop them before they are answered.

    def fail_twice(request):
        if next(attempts) < 2:
            request.fail("NOT_LEADER_OR_FOLLOWER")

    server.intercept("Produce", fail_twice)
    server.intercept("Produce", None)               # answered as usual again

Functions are called by a separate thread, one request at a time, and may wait: that delays intercepted
requests, and no others.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from spark_kbatch.errors import ConfigError
from spark_kbatch.server.requests import Received
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey

logger = logging.getLogger(__name__)


class InterceptedRequest:
    """A request that a test sees before the server handles it, and may fail, delay or drop."""

    def __init__(self, received: Received) -> None:
        self.api = name_of(ApiKey(received.api_key))
        self.version, self.body = received.version, received.body
        self.client_id, self.client_host = received.client_id, received.client_host
        self.error: ErrorCode | None = None
        self.delay_s = 0.0
        self.is_dropped = False

    def __repr__(self) -> str:
        return f"InterceptedRequest({self.api!r}, version={self.version}, client_id={self.client_id!r})"

    def __dir__(self) -> list[str]:
        return [
            name for name in super().__dir__() if name not in ("delay_s", "error", "is_dropped")
        ]

    def fail(self, error: int | str) -> None:
        """Answer the request with an error, by Kafka's number or name, instead of handling it."""
        self.error = _error_code(error)

    def delay(self, seconds: float) -> None:
        """Handle the request only after this many seconds; the calling thread does not wait."""
        self.delay_s = seconds

    def drop(self) -> None:
        """Close the client's connection, without handling or answering the request."""
        self.is_dropped = True


Intercept: TypeAlias = Callable[[InterceptedRequest], Any]


def api_key_of(api: str) -> ApiKey:
    """Return the key of a kind of request, by Kafka's name in any spelling: `ListOffsets`, `LIST_OFFSETS`.

    Raises:
        ConfigError: no such name; names all.
    """
    by_name = {name_of(key).lower(): key for key in ApiKey}
    found = by_name.get(str(api).replace("_", "").lower())
    if found is None:
        known = ", ".join(map(name_of, ApiKey))
        raise ConfigError(f"there are no requests of the kind {api!r}; kinds: {known}")
    return found


@functools.cache  # each request asks
def name_of(key: ApiKey) -> str:
    """Return Kafka's name of a kind of request."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def _error_code(error: int | str) -> ErrorCode:
    try:
        return ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ConfigError(
            f"{error!r} is not one of Kafka's errors; accepted: a number, or a name such as "
            "'NOT_LEADER_OR_FOLLOWER'"
        ) from None
