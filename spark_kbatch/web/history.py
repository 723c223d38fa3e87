"""Samples of a place over time: how fast its topics grow, and how far groups are behind.

A thread takes one each 15 seconds, of a place over the network each 60: the end offsets and sizes of all topics, in
one look, and the lag of all groups. It never takes more than a hundredth of the time. The last 240 samples are
kept, of a bounded number of topics and groups.

What is kept of a topic is its rate since the sample before, so that no reader has to know what a topic that was deleted
and created again means: where its end went back, nothing is known, and no more where it cannot be read. The rate of bytes is
that of its size, of which a deletion of old segments takes something away; there it is not known either.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from spark_kbatch.clock import now_ms, since_boot_ms
from spark_kbatch.errors import KBatchError

if TYPE_CHECKING:
    from spark_kbatch import Cluster

logger = logging.getLogger(__name__)

SAMPLES = 240
OFFSETS, BYTES, LAG = "offsets", "bytes", "lag"  # what series are of
WHOLE = ""  # in place of a topic: all of them

_SERIES_MAX = 5_000  # of 240 numbers each: 10 MB
_LATEST = 4  # samples, over which "now" is
_COST = 100  # times what a sample takes is the least time to the next
_ENDS_WITHIN_S = 5.0

_Values = dict[tuple[str, str], float]
_Series = dict[tuple[str, str], np.ndarray]


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
        # Times and series, each as long as these; replaced by each sample, so that readers need no lock.
        self._kept: tuple[list[int], _Series] = [], {}
        self._before: tuple[int, _Values] = 0, {}  # when topics were looked at, and what they had
        self._failed: set[str] = set()  # what could not be looked at last time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbatch-samples", daemon=True)

    def start(self) -> None:
        """Start to take samples."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, without waiting long for a sample in progress. May be called again."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_ENDS_WITHIN_S)

    def series(self, kind: str, *names: str) -> tuple[list[int], dict[str, list[float]]]:
        """Return what is known over time of topics, of all of them, or of groups.

        Returns:
            Times of day in ms, ascending, and values at these times, by name; NaN where not known.
        """
        times_ms, series = self._kept
        return times_ms, {
            name: series[kind, name].tolist() for name in names if (kind, name) in series
        }

    def latest(self, kind: str, name: str = WHOLE) -> float:
        """Return the mean of the last few samples; NaN if nothing is known."""
        values = self.series(kind, name)[1].get(name, [])[-_LATEST:]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) if known else math.nan

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
        times_ms, series = self._kept
        unknown = np.full(len(times_ms), math.nan)
        lines = {
            key: np.append(series.get(key, unknown), values.get(key, math.nan))[-SAMPLES:]
            for key in itertools.islice(dict.fromkeys([*series, *values]), _SERIES_MAX)
        }
        known = {key: line for key, line in lines.items() if not np.isnan(line).all()}
        self._kept = [*times_ms, at_ms + self._of_day_ms][-SAMPLES:], known

    def _rates(self, at_ms: int) -> _Values:
        """Return the rates of all topics since the last look at them."""
        self._follow()
        names, ends = self._cluster.topic_names(), defaultdict[tuple[str, str], float](float)
        for one in self._cluster.describe(names) if names else ():
            topic, size = one.topic_partition.topic, one.size_in_bytes
            ends[OFFSETS, topic] += math.nan if one.error else one.offsets.high_watermark
            ends[BYTES, topic] += math.nan if size < 0 else size
        (before_ms, before), self._before = self._before, (at_ms, ends)
        rates = {
            key: (end - before[key]) * 1000 / max(at_ms - before_ms, 1)
            for key, end in ends.items()
            if end >= before.get(key, math.inf)
        }
        for kind in (OFFSETS, BYTES):
            known = [rate for (of, _), rate in rates.items() if of == kind]
            if known:
                rates[kind, WHOLE] = sum(known)
        return rates

    def _lags(self, _at_ms: int) -> _Values:
        groups = self._cluster.groups() if self._cluster.has("groups") else []
        return {(LAG, one.group_id): one.lag for one in groups}

    def _run(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began_ms = since_boot_ms()
            self.sample()
            pause_s = max(self._every_s, _COST * (since_boot_ms() - began_ms) / 1000)
