"""Metrics of the requests that a server has answered, by the names of a Kafka broker's metrics.

Source: Kafka server/.../network/metrics/RequestMetrics.java.
"""

from __future__ import annotations

import threading
from typing import Any

from spark_kbatch.clock import monotonic_s
from spark_kbatch.meters import Meters


class RequestMetrics:
    """Number, rate and times of the requests of one api key; thread-safe."""

    def __init__(self) -> None:
        self._requests = Meters("RequestsPerSec")
        self._lock = threading.Lock()  # guards the rest; innermost
        self._count, self._total_s, self._max_s = 0, 0.0, 0.0

    def answered(self, began_s: float) -> None:
        """Count a request that came at `began_s` of clock.monotonic_s, and is answered now."""
        took_s = monotonic_s() - began_s
        self._requests.add(1)
        with self._lock:
            self._count += 1
            self._total_s += took_s
            if took_s > self._max_s:
                self._max_s = took_s

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics by Kafka's names; times in ms are None if no request was answered."""
        with self._lock:
            count, total_s, max_s = self._count, self._total_s, self._max_s
        times = {
            "Count": count,
            "Mean": 1000 * total_s / count if count else None,
            "Max": 1000 * max_s if count else None,
        }
        return {**self._requests.as_dict(), "TotalTimeMs": times}
