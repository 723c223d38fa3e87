"""Warnings about slow requests, by the time in which the server had them in hand.

    queued     from when the request is whole until its handler is called
    handled    in the handler, and of a Produce in the append that ended last
    waited     for others: a Fetch for records, a JoinGroup for members, a Produce for its partition's turn and lock

A request is slow if it was queued and handled for longer than the limit; waits are not the server's doing.

Source: Kafka server/.../network/metrics/RequestMetrics.java, RequestQueueTimeMs, LocalTimeMs, RemoteTimeMs.
"""

from __future__ import annotations

import logging
import math
import threading

from spark_kbatch.clock import monotonic_s
from spark_kbatch.server.intercepts import name_of
from spark_kbatch.wire.protocol import ApiKey

logger = logging.getLogger(__name__)

_WARNED_EVERY_S = 1.0  # a disk that hangs makes all requests slow


class SlowRequests:
    """A log of slow requests: one warning per second at most, with the number of those left out. Thread-safe."""

    def __init__(self, limit_ms: int) -> None:
        """Warn of requests that take longer than this; of none if it is negative."""
        self.limit_s = math.inf if limit_ms < 0 else limit_ms / 1000
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._again_s = -math.inf
        self._left_out = 0

    def answered(
        self, api_key: int, sender: str, size_in_bytes: int, *,
        queued_s: float, handled_s: float, waited_s: float,
    ) -> None:  # fmt: skip
        """Warn of an answered request if it was slow, and the last warning was long enough ago.

        Args:
            api_key: its kind.
            sender: words for its client.
            size_in_bytes: of the request.
            queued_s: how long it was in a queue.
            handled_s: how long the server worked on it.
            waited_s: how long it waited for others.
        """
        if queued_s + handled_s <= self.limit_s:
            return
        with self._mutex:
            now_s = monotonic_s()
            if now_s < self._again_s:
                self._left_out += 1
                return
            self._again_s = now_s + _WARNED_EVERY_S
            left_out, self._left_out = self._left_out, 0
        more = f"; {left_out} more since the last such line" if left_out else ""
        logger.warning(
            "slow request: %s of %s, %d bytes: %d ms queued, %d ms handled, %d ms waited%s",
            name_of(ApiKey(api_key)), sender, size_in_bytes,
            1000 * queued_s, 1000 * handled_s, 1000 * waited_s, more,
        )  # fmt: skip
