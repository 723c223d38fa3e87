"""The in-flight requests of a connection: those sent, or being sent, and not yet answered.

Answers arrive in the order of requests. Another request may be sent if none is in flight, or if the last
one is written and fewer than the maximum are in flight. So a connection has one send at a time, and stops
sending to a peer that does not read.

Source: Kafka clients/.../clients/InFlightRequests.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_kbatch.errors import KBatchError
from spark_kbatch.wire.framing import Send


@dataclass(slots=True)
class InFlightRequest:
    """A request that awaits its answer."""

    api_key: int
    version: int
    correlation_id: int
    send: Send
    sent_at_ms: int  # monotonic
    timeout_ms: int
    expects_response: bool
    on_complete: Callable[[Any, KBatchError | None], None]

    @property
    def expires_at_ms(self) -> int:
        """The time at which the request times out, on the monotonic clock."""
        return self.sent_at_ms + self.timeout_ms


class InFlightRequests:
    """The requests of one connection, in the order in which they were sent."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def can_send_more(self) -> bool:
        """Return True if another request may be sent on the connection now."""
        if not self._requests:
            return True
        last = self._requests[-1]
        return last.send.is_complete and len(self._requests) < self._max_in_flight

    def add(self, request: InFlightRequest) -> None:
        """Add a request that is being sent."""
        self._requests.append(request)

    def first(self) -> InFlightRequest | None:
        """Return the request that is answered next; None if none is in flight."""
        return self._requests[0] if self._requests else None

    def take_first(self) -> InFlightRequest | None:
        """Remove and return the request that is answered next; None if none is in flight."""
        return self._requests.popleft() if self._requests else None

    def take_last_if_answered_by_none(self) -> InFlightRequest | None:
        """Remove and return the last request, which is now written, if it expects no answer."""
        if not self._requests or self._requests[-1].expects_response:
            return None
        return self._requests.pop()

    def take_all(self) -> list[InFlightRequest]:
        """Remove and return all requests, because their connection is lost."""
        requests = list(self._requests)
        self._requests.clear()
        return requests

    def expired(self, now_ms: int) -> InFlightRequest | None:
        """Return an in-flight request that has timed out; None if there is none.

        Each request has its own time-out.
        """
        return next((one for one in self._requests if one.expires_at_ms <= now_ms), None)

    def next_expiry_ms(self) -> int | None:
        """Return the time of the first time-out; None if no request is in flight."""
        return min((one.expires_at_ms for one in self._requests), default=None)
