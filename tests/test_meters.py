"""Counts and rates of what goes on in a process."""

from __future__ import annotations

import math
import threading

import pytest

from spark_kbatch import meters
from spark_kbatch.meters import Meters


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(meters, "monotonic_s", lambda: self.now_s)


def test_a_steady_rate_is_shown_and_is_forgotten_in_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rate of one minute is Kafka's: moving, exponentially weighted, over steps of five seconds."""
    clock = Clock(monkeypatch)
    meter = Meters("Beats", "Misses")
    assert meter.as_dict()["Beats"] == {"Count": 0, "MeanRate": 0.0, "OneMinuteRate": 0.0}
    for _ in range(300):
        meter.add(10, 0)
        clock.now_s += 1
    found = meter.as_dict()["Beats"]
    assert found["Count"] == 3000
    assert found["MeanRate"] == pytest.approx(10)
    assert found["OneMinuteRate"] == pytest.approx(10)
    clock.now_s += 60
    assert meter.as_dict()["Beats"]["OneMinuteRate"] == pytest.approx(10 * math.exp(-1))
    clock.now_s += 1e9
    assert meter.as_dict()["Beats"]["OneMinuteRate"] == pytest.approx(0)


def test_counts_of_several_threads_are_all_there() -> None:
    meter = Meters("Beats", "Misses")

    def count() -> None:
        for _ in range(5000):
            meter.add(1, 2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: found["Count"] for name, found in meter.as_dict().items()} == {
        "Beats": 20_000, "Misses": 40_000,
    }  # fmt: skip
