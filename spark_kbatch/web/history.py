"""Samples of a place over time: how fast its topics grow, and how far groups are behind.

A thread takes one each 15 seconds, of a place over the network each 60: the end offsets and sizes of all topics, in
one look, and the lag of all groups. It never takes more than a hundredth of the time. The last 240 samples are
kept, of a bounded number of topics and groups.

What is kept of a topic is its rate since the sample before, so that no reader has to know what a topic that was deleted
and created again means: where its end went back, nothing is known, and no more where it cannot be read. The rate of bytes is
that of its size, of which a deletion of old segments takes something away; there it is not known either.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from spark_kbatch.clock import now_ms, since_boot_ms
from spark_kbatch.errors import KBatchError

if TYPE_CHECKING:
    from spark_kbatch import Cluster

logger = logging.getLogger(__name__)

SAMPLES = 240
RECORDS, BYTES, LAG = "records", "bytes", "lag"  # what series are of
WHOLE = ""  # in place of a topic: all of them

_SERIES_MAX = 5_000  # of 240 numbers each: 10 MB
_LATEST = 4  # samples, over which "now" is
_COST = 100  # times what a sample takes is the least time to the next
_ENDS_WITHIN_S = 5.0

_Values = dict[tuple[str, str], float]


class Samples:
    """The samples of one place. Thread-safe.

    Args:
        cluster: the place.
        every_s: how often a sample is taken.
        clock: ms from any moment; it may not go back.
        follow: called before each sample, to have the cluster show what is new.
    """

    def __init__(
        self,
        cluster: Cluster,
        every_s: float,
        clock: Callable[[], int] = since_boot_ms,
        follow: Callable[[], object] = bool,
    ) -> None:
        self._cluster, self._every_s, self._clock, self._follow = cluster, every_s, clock, follow
        self._of_day_ms = now_ms() - clock()  # what the clock lacks
        self._mutex = threading.Lock()  # guards _times_ms, _series and _taken
        self._times_ms = np.zeros(SAMPLES, np.int64)  # a ring, as are all series
        self._series: dict[tuple[str, str], np.ndarray] = {}
        self._taken = 0
        self._before: tuple[int, Mapping[str, tuple[float, float]]] | None = None
        self._failed: set[str] = set()  # what could not be looked at last time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbatch-samples", daemon=True)

    def start(self) -> None:
        """Start to take samples."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting long for a sample in progress. May be called again, or before `start`."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_ENDS_WITHIN_S)

    def series(self, kind: str, *names: str) -> tuple[list[int], dict[str, list[float]]]:
        """Return what is known over time of topics, of all of them, or of groups.

        Returns:
            Times of day in ms, ascending, and values at these times, by name; NaN where not known.
        """
        with self._mutex:
            taken = np.arange(max(0, self._taken - SAMPLES), self._taken) % SAMPLES
            found = {name: self._series.get((kind, name)) for name in names}
            lines = {name: one[taken].tolist() for name, one in found.items() if one is not None}
            return self._times_ms[taken].tolist(), lines

    def latest(self, kind: str, name: str = WHOLE) -> float:
        """Return the mean of the last few samples; NaN if nothing is known."""
        values = self.series(kind, name)[1].get(name, [])
        known = [value for value in values[-_LATEST:] if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan

    def pause_s(self, took_s: float) -> float:
        """Return how long to wait for the next sample after one that took some time."""
        return max(self._every_s, _COST * took_s)

    def sample(self) -> None:
        """Take a sample; what cannot be looked at is missing in it."""
        at_ms, values = self._clock(), _Values()
        for what, found in (("topics", self._rates), ("groups", self._lags)):
            try:
                values |= found(at_ms)
                self._failed.discard(what)
            except (KBatchError, OSError) as error:
                if what not in self._failed and not self._ended.is_set():
                    logger.warning("rates and lag have a gap, as %s cannot be read: %s", what, error)  # fmt: skip
                self._failed.add(what)
        with self._mutex:
            slot = self._taken % SAMPLES
            for one in self._series.values():
                one[slot] = math.nan
            if slot == 0:  # those that are gone since the last round make room
                known = [key for key, one in self._series.items() if not np.isnan(one).all()]
                self._series = {key: self._series[key] for key in known}
            for key, value in values.items():
                if key in self._series or len(self._series) < _SERIES_MAX:
                    self._series.setdefault(key, np.full(SAMPLES, math.nan))[slot] = value
            self._times_ms[slot] = at_ms + self._of_day_ms
            self._taken += 1

    def _rates(self, at_ms: int) -> _Values:
        """Return the rates of all topics since the last look at them."""
        self._follow()
        names, ends = self._cluster.topic_names(), dict[str, tuple[float, float]]()
        for one in self._cluster.describe(names) if names else ():
            end = math.nan if one.error else one.offsets.high_watermark
            size = math.nan if one.size_in_bytes < 0 else one.size_in_bytes
            held = ends.get(one.topic_partition.topic, (0.0, 0.0))
            ends[one.topic_partition.topic] = held[0] + end, held[1] + size
        before, self._before = self._before, (at_ms, ends)
        rates = _Values()
        if before is None or at_ms <= before[0]:
            return rates
        for number, kind in enumerate((RECORDS, BYTES)):
            grown = {
                (kind, name): (ends[name][number] - was[number]) * 1000 / (at_ms - before[0])
                for name, was in before[1].items()
                if name in ends
            }
            known = {key: rate for key, rate in grown.items() if rate >= 0}
            if known or not ends:
                rates |= {(kind, WHOLE): sum(known.values()), **known}
        return rates

    def _lags(self, _at_ms: int) -> _Values:
        groups = self._cluster.groups() if self._cluster.has("groups") else []
        return {(LAG, one.group_id): one.lag for one in groups}

    def _run(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began_ms = since_boot_ms()
            self.sample()
            pause_s = self.pause_s((since_boot_ms() - began_ms) / 1000)
