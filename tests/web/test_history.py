"""Samples over time: rates and lag as they are, gaps where nothing is known, and bounds of time and memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.model import LogOffsets, PartitionInfo, TopicPartition
from spark_kbatch.web import history
from spark_kbatch.web.history import BYTES, LAG, OFFSETS, SAMPLES, Samples
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support import builders
from tests.support.pages import Visitor, shown
from tests.support.waiting import until

EVERY_S = 15.0


class Group(NamedTuple):
    group_id: str
    lag: int


class Place:
    """A place whose topics are end offsets and sizes by partition, set by hand."""

    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[int, int]]] = {}
        self.lags: dict[str, int] = {}
        self.error: Exception | None = None
        self.unreadable: set[tuple[str, int]] = set()
        self.now_ms = 1_000

    def has(self, part: str) -> bool:
        return part == "groups"

    def topic_names(self) -> list[str]:
        return sorted(self.topics)

    def describe(self, names: list[str]) -> list[PartitionInfo]:
        if self.error is not None:
            raise self.error
        return [
            self._info(name, number, end, size)
            for name in names
            for number, (end, size) in enumerate(self.topics[name])
        ]

    def _info(self, name: str, number: int, end: int, size: int) -> PartitionInfo:
        tp = TopicPartition(name, number)
        if (name, number) in self.unreadable:
            return PartitionInfo(tp, LogOffsets(-1, -1, -1, -1), -1, "its disk is offline")
        return PartitionInfo(tp, LogOffsets(0, end, end, end), size)

    def groups(self) -> list[Group]:
        return [Group(group_id, lag) for group_id, lag in self.lags.items()]


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def samples(place: Place) -> Samples:
    return Samples(place, EVERY_S, clock=lambda: place.now_ms)  # type: ignore[arg-type]


@pytest.fixture
def after(place: Place, samples: Samples) -> Callable[..., None]:
    """Take a sample some seconds after the last one, once topics have changed."""

    def sample(seconds: float = 0, **topics: list[tuple[int, int]]) -> None:
        place.now_ms += int(seconds * 1000)
        place.topics.update(topics)
        samples.sample()

    return sample


def values(samples: Samples, kind: str, name: str = "") -> list[float | None]:
    found = samples.series(kind, name)[1].get(name, [])
    return [None if math.isnan(one) else one for one in found]


def test_a_rate_is_what_came_since_the_sample_before(
    samples: Samples, after: Callable[..., None]
) -> None:
    after(a=[(10, 1000), (5, 100)], b=[(7, 50)])
    after(15, a=[(40, 1600), (5, 100)], b=[(7, 50)])
    after(30, a=[(70, 1600), (35, 400)], b=[(67, 650)])

    assert values(samples, OFFSETS, "a") == [None, 2, 2]
    assert values(samples, OFFSETS, "b")[-2:] == [0, 2]
    assert values(samples, OFFSETS)[-2:] == [2, 4]
    assert values(samples, BYTES, "a")[-2:] == [40, 10]
    assert values(samples, BYTES)[-2:] == [40, 30]
    times = samples.series(OFFSETS, "a")[0]
    assert [later - times[0] for later in times] == [0, 15_000, 45_000]
    assert samples.latest(OFFSETS, "a") == 2
    assert samples.latest(OFFSETS) == 3


def test_a_topic_that_is_created_again_has_no_negative_rate(
    place: Place, samples: Samples, after: Callable[..., None]
) -> None:
    after(a=[(100, 1000)], b=[(0, 0)])
    after(10, a=[(200, 2000)], b=[(10, 10)])
    after(10, a=[(5, 50)], b=[(20, 20)])  # created again
    after(10, a=[(15, 150)], b=[(30, 30)])
    del place.topics["a"]
    after(10, b=[(40, 40)])
    after(10, a=[(50, 500)], b=[(50, 50)])  # and once more
    after(10, a=[(60, 600)], b=[(60, 60)])

    assert values(samples, OFFSETS, "a") == [None, 10, None, 1, None, None, 1]
    assert values(samples, OFFSETS) == [None, 11, 1, 2, 1, 1, 2]


def test_what_deletes_old_segments_is_no_negative_rate_of_bytes(
    samples: Samples, after: Callable[..., None]
) -> None:
    for number, size in enumerate((1000, 1100, 300, 400)):
        after(10, a=[(number * 10, size)])

    assert values(samples, BYTES, "a") == [None, 10, None, 10]
    assert values(samples, OFFSETS, "a") == [None, 1, 1, 1]


def test_a_partition_that_comes_back_is_no_peak(
    place: Place, samples: Samples, after: Callable[..., None]
) -> None:
    after(a=[(0, 0), (1_000_000, 9)])
    place.unreadable.add(("a", 1))
    after(10, a=[(10, 0), (1_000_000, 9)])
    place.unreadable.clear()
    after(10, a=[(20, 0), (1_000_000, 9)])
    after(10, a=[(30, 0), (1_000_000, 9)])

    assert values(samples, OFFSETS, "a") == [None, None, None, 1]


def test_a_place_that_tells_no_sizes_has_no_rate_of_bytes(
    samples: Samples, after: Callable[..., None]
) -> None:
    for end in (0, 10, 20):
        after(10, a=[(end, -1)])

    assert values(samples, OFFSETS) == [None, 1, 1]
    assert values(samples, BYTES) == values(samples, BYTES, "a") == []


def test_a_failure_is_a_gap_and_logged_once(
    place: Place, samples: Samples, after: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    place.lags["g"] = 3
    after(a=[(0, 0)])
    after(10, a=[(10, 10)])
    place.error = KafkaStorageError("its disk is gone")
    after(10)
    after(10)
    place.error, place.lags["g"] = None, 8
    after(10, a=[(70, 70)])

    assert values(samples, OFFSETS, "a") == [None, 1, None, None, 2]  # 60 records in 30 s
    assert values(samples, LAG, "g") == [3, 3, 3, 3, 8]
    (logged,) = (one for one in caplog.records if one.levelno >= logging.WARNING)
    assert "topics cannot be read: its disk is gone" in logged.getMessage()


def test_the_lag_of_groups_is_kept(
    place: Place, samples: Samples, after: Callable[..., None]
) -> None:
    for lag in (5, 7):
        place.lags["g/<x>"] = lag
        after(10)
    place.lags.clear()
    after(10)

    assert values(samples, LAG, "g/<x>") == [5, 7, None]
    assert math.isnan(samples.latest(LAG, "of another"))


def test_only_the_last_samples_are_kept_and_what_is_gone_makes_room(
    place: Place, samples: Samples, after: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_SERIES_MAX", 3)
    place.lags.update({f"old {number}": number for number in range(5)})
    after()
    place.lags = {"new": 0}
    for number in range(SAMPLES + 10):
        place.lags["new"] = number
        after(1)

    assert samples._kept[1].keys() == {(LAG, "new")}
    assert values(samples, LAG, "old 0") == values(samples, LAG, "old 4") == []
    for number in range(SAMPLES):
        place.lags["new"] = number
        after(1)
    assert values(samples, LAG, "new") == [*range(SAMPLES)]
    times = samples.series(LAG)[0]
    assert len(times) == SAMPLES
    assert times == sorted(times)


def test_rates_of_all_and_lag_are_kept_where_there_are_too_many_topics(
    place: Place, samples: Samples, after: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_SERIES_MAX", 7)
    topics = {f"topic-{number}": [(0, 0)] for number in range(9)}
    after(**topics)
    after(10, **{name: [(10, 20)] for name in topics})
    place.lags.update({"a": 5, "b": 6})  # groups that came later than the topics
    after(10, **{name: [(20, 40)] for name in topics})

    assert values(samples, OFFSETS) == [None, 9, 9]
    assert values(samples, BYTES) == [None, 18, 18]
    assert [values(samples, LAG, name) for name in "ab"] == [[None, None, 5], [None, None, 6]]
    assert len(samples._kept[1]) == 7
    assert values(samples, OFFSETS, "topic-0") == [None, 1, 1]


def test_the_first_page_has_its_rates_where_there_are_too_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_SERIES_MAX", 2)
    monkeypatch.setattr(Samples, "start", lambda _samples: None)
    cluster = builders.a_cluster(tmp_path, topics={"a": 1, "b": 1})
    with shown(cluster) as pages:
        for _ in range(2):
            pages._samples.sample()
        page = Visitor(pages).get("/").words

    assert "Offsets written per second" in page
    assert "Growth of the size per second" in page


def test_samples_take_at_most_a_hundredth_of_the_time(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_ms = iter((10, 2_000))
    now_ms = [0]
    monkeypatch.setattr(history, "since_boot_ms", lambda: now_ms[0])
    monkeypatch.setattr(samples, "sample", lambda: now_ms.append(now_ms.pop() + next(took_ms)))
    pauses_s = list[float]()

    def ended(pause_s: float) -> bool:
        pauses_s.append(pause_s)
        return len(pauses_s) == 3

    monkeypatch.setattr(samples._ended, "wait", ended)
    samples._run()

    assert pauses_s == [0, EVERY_S, 200]


def test_a_clock_that_stands_still_divides_by_nothing(
    samples: Samples, after: Callable[..., None]
) -> None:
    after(a=[(0, 0)])
    after(0, a=[(10, 10)])

    assert values(samples, OFFSETS, "a") == [None, 10_000]


def test_samples_start_and_end_with_the_server(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) as cluster:
        site = Site(cluster)
        assert not site.samples._thread.is_alive()
        with WebServer(site, "127.0.0.1", 0, token=None):
            until(lambda: bool(site.samples._kept[0]))
            assert site.samples._thread.is_alive()
        assert not site.samples._thread.is_alive()
        site.samples.close()  # again


def test_samples_of_a_real_place_count_what_was_written(tmp_path: Path) -> None:
    now = 0
    with Cluster(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("a", 2)
        cluster.alter_group_offsets("g", {("a", 0): 0})
        samples = Samples(cluster, EVERY_S, clock=lambda: now)
        samples.sample()
        with cluster.producer() as producer:
            for number in range(30):
                producer.send("a", value="v", partition=number % 2)
        now = 10_000
        samples.sample()

        assert samples.latest(OFFSETS, "a") == samples.latest(OFFSETS) == 3
        size = sum(one.size_in_bytes for one in cluster.describe("a"))
        assert samples.latest(BYTES, "a") == size / 10
        assert values(samples, LAG, "g") == [0, 15]
