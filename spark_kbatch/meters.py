"""Counters of this process's appends, fetches and requests, with the rates of Kafka's meters.

Appends, fetches and requests are counted, never a record by itself: one lock and one look at the clock for each.

Source: the meters of Kafka's broker are Yammer's com.yammer.metrics.core.Meter.
"""

from __future__ import annotations

import math
import threading

from spark_kbatch import mutexes
from spark_kbatch.clock import monotonic_s

READS = ("BytesOutPerSec", "TotalFetchRequestsPerSec")  # meters of reads, one for each partition

_TICK_S = 5.0
_OF_ONE_MINUTE = 1 - math.exp(-_TICK_S / 60)
_TICKS_MAX = 1000  # after which nothing is left of a rate


class Meters:
    """A group of counters that are updated together, with their rates per second.

    Thread-safe.
    """

    def __init__(self, *names: str) -> None:
        """Start all counters at 0; their names are those of Kafka's meters."""
        self._names = names
        self._lock: threading.Lock  # guards the rest; innermost
        mutexes.make(self, "_lock")
        self._counts, self._at_tick = [0] * len(names), [0] * len(names)
        self._rates = [0.0] * len(names)
        self._has_ticked = False
        self._started_s = self._ticked_s = monotonic_s()

    def add(self, *counts: int) -> None:
        """Add a number to each counter, in the order of their names."""
        now_s = monotonic_s()
        with self._lock:
            if now_s - self._ticked_s >= _TICK_S:
                self._tick_locked(now_s)
            for index, count in enumerate(counts):
                self._counts[index] += count

    def as_dict(self) -> dict[str, dict[str, int | float]]:
        """Return each counter's count, mean rate and one-minute rate, by name."""
        now_s = monotonic_s()
        with self._lock:
            if now_s - self._ticked_s >= _TICK_S:
                self._tick_locked(now_s)
            seconds = max(now_s - self._started_s, 1e-9)
            return {
                name: {"Count": count, "MeanRate": count / seconds, "OneMinuteRate": rate}
                for name, count, rate in zip(self._names, self._counts, self._rates, strict=True)
            }

    def _tick_locked(self, now_s: float) -> None:
        """Update the one-minute rates, in steps of five seconds.

        All that was counted since the last update counts for the first step.
        """
        ticks = int((now_s - self._ticked_s) / _TICK_S)
        for index, count in enumerate(self._counts):
            now = (count - self._at_tick[index]) / _TICK_S
            before = self._rates[index] if self._has_ticked else now
            rate = before + _OF_ONE_MINUTE * (now - before)
            self._rates[index] = rate * (1 - _OF_ONE_MINUTE) ** min(ticks - 1, _TICKS_MAX)
        self._at_tick = [*self._counts]
        self._has_ticked = True
        self._ticked_s += ticks * _TICK_S


class BrokerTopicMetrics:
    """Counts of what this process appends to the logs of one cluster and reads from them. Thread-safe.

    Source: Kafka storage/.../log/metrics/BrokerTopicMetrics.java.
    """

    def __init__(self) -> None:
        self._appends = Meters(
            "MessagesInPerSec",
            "BytesInPerSec",
            "TotalProduceRequestsPerSec",
            "FailedProduceRequestsPerSec",
        )
        self._fetches = Meters(*READS)

    def appended(self, messages: int, size_in_bytes: int, *, batches: int, failed: int) -> None:
        """Count appended records, bytes and batches, and the batches that failed."""
        self._appends.add(messages, size_in_bytes, batches, failed)

    def fetched(self, size_in_bytes: int) -> None:
        """Count one read of a partition, with its bytes."""
        self._fetches.add(size_in_bytes, 1)

    def as_dict(self) -> dict[str, dict[str, int | float]]:
        """Return all counts and rates by the names of Kafka's broker topic metrics."""
        return self._appends.as_dict() | self._fetches.as_dict()
