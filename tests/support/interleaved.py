"""Ratios that can be measured on a noisy machine: candidates take turns, and each round gives one ratio.

A speed alone says more about the machine and its other users than about the code. So every number is
compared with a ceiling, what the hardware can do with the same bytes, and with a peer, another program
with the same task. They all run in turn, and a ratio is the median over the rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Candidate(NamedTuple):
    """Something to time: `run` does `units` of work; what `tidy` does is not timed."""

    run: Callable[[], object]
    units: float
    tidy: Callable[[], object] = lambda: None


class Rates:
    """Units per second of every candidate in every round."""

    def __init__(self, rates: Mapping[str, list[float]]) -> None:
        self.rates = rates

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over rounds of name / other."""
        return statistics.median(self.ratios(name, other))

    def ratios(self, name: str, other: str) -> list[float]:
        """Return name / other of each round."""
        pairs = zip(self.rates[name], self.rates[other], strict=True)
        return [mine / theirs for mine, theirs in pairs]


def interleave(candidates: Mapping[str, Candidate], *, rounds: int = 9) -> Rates:
    """Time every candidate once per round, after one round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 1):
            # Each candidate goes first equally often, and runs after each of the others.
            in_turn = [*candidates.items()][:: 1 if number % 2 else -1]
            first = number // 2 % len(in_turn)
            for name, (run, units, tidy) in in_turn[first:] + in_turn[:first]:
                started = time.perf_counter()
                run()
                seconds = time.perf_counter() - started
                tidy()
                if number:
                    rates[name].append(units / seconds)
    finally:
        gc.enable()
    return Rates(rates)


def bulk_rows(n: int, *, key_bytes: int, value_bytes: int, seed: int = 0) -> pa.RecordBatch:
    """Make many rows of one size fast: key, value, and a growing timestamp."""
    rng = np.random.default_rng(seed)

    def column(size: int) -> pa.Array:
        data = rng.integers(0, 256, n * size, dtype=np.uint8)
        bounds = np.arange(0, n * size + 1, size, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.binary(), n, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        )

    times = pa.array(np.arange(n) // 100 + 1_700_000_000_000)
    arrays = [column(key_bytes), column(value_bytes), times]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "value", "timestamp"])
