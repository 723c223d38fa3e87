"""Charts in pages: their geometry is in proportion to what their tables say, and their labels are round."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.web import charts
from spark_kbatch.web.charts import Chart, chart
from spark_kbatch.web.history import BYTES, OFFSETS, Samples
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site, number_shown, size_shown
from tests.support import builders
from tests.support.pages import Visitor
from tests.support.shown_numbers import charts as charts_in
from tests.support.shown_numbers import table

HOUR_MS = 3_600_000
START_MS = 1_729_857_600_000  # 2024-10-25T12:00:00Z


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = builders.a_cluster(tmp_path_factory.mktemp("charts"), topics={"events": 3})
    builders.append_records(cluster, {("events", 0): builders.batch(n=40)})
    builders.append_records(cluster, {("events", 2): builders.batch(n=10)})
    return cluster


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Site:
    return Site(cluster)


@pytest.fixture(scope="module")
def visitor(site: Site) -> Iterator[Visitor]:
    with WebServer(site, "127.0.0.1", 0, token=None) as pages:
        yield Visitor(pages, None)


class Sampled(Samples):
    """Samples that a test gives, one each 15 s."""

    def __init__(self, cluster: Cluster, *values: dict[tuple[str, str], float]) -> None:
        self.now_ms = START_MS
        super().__init__(cluster, 15.0, clock=lambda: self.now_ms)
        self._of_day_ms = 0
        self.given = iter(values)
        for _ in values:
            self.sample()
            self.now_ms += 15_000

    def _rates(self, _at_ms: int) -> dict[tuple[str, str], float]:
        return next(self.given)

    def _lags(self, _at_ms: int) -> dict[tuple[str, str], float]:
        return {}


def test_a_line_is_in_proportion_to_its_table_and_a_gap_is_a_gap(
    site: Site, visitor: Visitor
) -> None:
    rates = [10.0, 25.0, math.nan, 40.0, math.nan, 0.0, 5.0]
    site.samples = Sampled(site.cluster, *({(OFFSETS, ""): rate} for rate in rates))

    found = charts_in(visitor.get("/").text)["offsets"]

    assert found.table[0] == ["Time (UTC)", "Offsets written per second"]
    shown = ["10", "25", "not known", "40", "not known", "0", "5"]
    assert [row[1] for row in found.table[1:]] == [*reversed(shown)]  # the newest first
    assert found.table[-1][0] == "2024-10-25 12:00:00"
    assert found.table[1][0] == "2024-10-25 12:01:30"
    assert found.values == ["0", "10", "20", "30", "40"]
    (line,) = found.lines.values()
    assert line == [
        (0.0, 250.0), (pytest.approx(1000 / 6, abs=0.1), 625.0), None, (500.0, 1000.0), None,
        (pytest.approx(5000 / 6, abs=0.1), 0.0), (1000.0, 125.0),
    ]  # fmt: skip
    assert [label for _, label in found.places] == ["12:00:00", "12:00:30", "12:01:00", "12:01:30"]
    assert [percent for percent, _ in found.places] == [0, 33.33, 66.67, 100]


def test_a_topic_has_its_own_rates(site: Site, visitor: Visitor) -> None:
    kinds = {(OFFSETS, "events"): 2.0, (BYTES, "events"): 3 * 1024.0, (OFFSETS, ""): 9.0}
    site.samples = Sampled(site.cluster, kinds, {**kinds, (OFFSETS, "events"): 4.0})

    found = charts_in(visitor.get("/topics/events").text)

    assert [row[1] for row in found["offsets"].table[1:]] == ["4", "2"]
    assert [row[1] for row in found["bytes"].table[1:]] == ["3.0 KiB", "3.0 KiB"]
    assert found["bytes"].values == ["0 Bytes", "1.0 KiB", "2.0 KiB", "3.0 KiB"]
    (row,) = table(visitor.get("/").text, "Topic")
    assert row[3] == "3"  # the mean of both


def test_there_is_no_chart_before_something_is_known(site: Site, visitor: Visitor) -> None:
    site.samples = Sampled(site.cluster, {})

    assert charts_in(visitor.get("/").text) == {}
    (row,) = table(visitor.get("/").text, "Topic")
    assert row[3] == ""


def test_partitions_side_by_side_are_in_proportion_to_their_table(
    cluster: Cluster, visitor: Visitor
) -> None:
    page = visitor.get("/topics/events").text
    found = charts_in(page)

    rows = table(page, "Partition")
    assert [row[3] for row in rows] == ["40", "0", "10"]
    drawn = found["sides"].bars
    assert [label for label, _, _ in drawn] == [
        "Partition 0: 40", "Partition 1: 0", "Partition 2: 10",
    ]  # fmt: skip
    assert [height for _, _, height in drawn] == [1000, 0, 250]
    assert [label for _, label in found["sides"].places] == ["0", "1", "2"]
    sizes = [height for _, _, height in found["sizes"].bars]
    known = [one.size_in_bytes for one in cluster.describe("events")]
    assert sizes[0] / sizes[2] == pytest.approx(known[0] / known[2], rel=0.01)


def drawn(site: Site, one: Chart | None) -> str:
    assert one is not None
    template = '{% from "charts.html" import chart as drawn %}{{ drawn(one) }}'
    return site._templates.from_string(template).render(one=one)


def test_hostile_names_are_text_in_charts(site: Site) -> None:
    lines = {"<script>": [1.0], "&amp;\x00": [2.0]}
    text = drawn(site, chart("x", "<b>&\x1b", [START_MS], lines))

    assert "<script" not in text
    found = charts_in(text)["x"]
    assert found.title == r"<b>&\x1b"
    assert list(found.lines) == ["<script>", r"&amp;\x00"]
    assert found.table[0] == ["Time (UTC)", "<script>", r"&amp;\x00"]


def test_one_value_is_a_dot_in_the_middle(site: Site) -> None:
    found = charts_in(drawn(site, chart("x", "one", [START_MS], {"a": [7.0]})))["x"]

    assert found.lines["one"] == [(500, 875)]
    assert found.places == [(50, "12:00:00")]
    values = [1.0, math.nan, 1.0, 1.0, math.nan]
    path = drawn(site, chart("x", "one", range(0, 5000, 1000), {"a": values})).partition("<path class=\"line")[2]  # fmt: skip
    assert re.findall("([ML][^h]*?)(h0)?\n", path.partition('"/>')[0]) == [
        ("M0.0 0.0", "h0"), ("M500.0 0.0", "h0"), ("L750.0 0.0", ""),
    ]  # fmt: skip


def test_charts_of_nothing_are_none() -> None:
    assert chart("x", "none", [], {}) is None
    assert chart("x", "none", [1], {"a": [math.nan]}) is None
    assert chart("x", "none", [], {"a": []}, bars=[]) is None


def test_events_at_one_moment_stand_in_the_middle(site: Site) -> None:
    one = chart("x", "now", [5, 5], {"records": [1, 2]}, bars=["Commit 3", "Commit 4"])

    assert charts_in(drawn(site, one))["x"].bars == [
        ("Commit 3: 1", 497, 500), ("Commit 4: 2", 497, 1000),
    ]  # fmt: skip


def test_what_is_not_known_has_no_bar(site: Site) -> None:
    bars = ["Partition 0", "Partition 1"]
    one = chart("x", "sizes", [0, 1], {"a": [math.nan, 2]}, bars=bars, of_times=False)

    assert charts_in(drawn(site, one))["x"].bars == [("Partition 1: 2", 550, 1000)]
    assert one is not None
    assert one.summary == "From Partition 0 to Partition 1: from 2 to 2."


@given(st.floats(0, 1e18), st.sampled_from([1000, 1024]))
def test_an_axis_reaches_its_largest_value_in_at_most_four_round_steps(
    largest: float, unit: int
) -> None:
    one = chart("x", "axis", [0], {"a": [largest]}, unit=unit)

    assert one is not None
    steps = len(one.steps) - 1
    assert 1 <= steps <= 4
    assert one.end >= largest
    assert largest == 0 or one.end <= largest * 2 or steps == 1
    step = one.end / steps
    assert math.log2(step) % 1 == 0 if unit == 1024 else f"{step:.6e}"[:8] in (
        "1.000000", "2.000000", "5.000000",
    )  # fmt: skip


@given(st.integers(-(10**12), 10**14), st.integers(0, 10**13))
def test_times_on_an_axis_are_round_few_and_within_it(left: int, span: int) -> None:
    ticks = charts._ticks(left, left + max(span, 1000), of_times=True)

    assert 1 <= len(ticks) <= 5
    assert all(0 <= percent <= 100 for percent, _ in ticks)
    assert sorted(ticks, key=lambda tick: tick[0]) == ticks


@pytest.mark.parametrize(
    ("count", "labels"), [(1, ["0"]), (2, ["0", "1"]), (3, ["0", "1", "2"]), (12, ["0", "5", "10"])]
)
def test_partitions_on_an_axis_have_whole_numbers(count: int, labels: list[str]) -> None:
    one = chart("x", "sides", range(count), {"a": [1] * count}, bars=["b"] * count, of_times=False)

    assert one is not None
    assert [label for _, label in one.ticks] == labels
    assert [percent for percent, label in one.ticks] == pytest.approx(
        [100 * (int(label) + 0.5) / count for label in labels]
    )
    assert list(one.places) == pytest.approx([1000 * (n + 0.5) / count for n in range(count)])
    assert one.bar == pytest.approx(800 / count)


@pytest.mark.parametrize(
    ("span_ms", "labels"),
    [
        pytest.param(4_000, ["12:00:00", "12:00:01", "12:00:02", "12:00:03", "12:00:04"], id="s"),
        pytest.param(HOUR_MS, ["12:00", "12:15", "12:30", "12:45", "13:00"], id="hour"),
        pytest.param(24 * HOUR_MS, ["12:00", "18:00", "00:00", "06:00", "12:00"], id="day"),
        pytest.param(7 * 24 * HOUR_MS, ["10-26", "10-28", "10-30", "11-01"], id="week"),
    ],
)
def test_times_are_shown_as_a_person_would(span_ms: int, labels: list[str]) -> None:
    ticks = charts._ticks(START_MS, START_MS + span_ms, of_times=True)
    assert [label for _, label in ticks] == labels


def test_rates_are_shown_without_decimals_that_say_nothing() -> None:
    shown = [number_shown(rate) for rate in (math.nan, 0, 0.25, 1, 2.56, 10.4, 12345.6)]
    assert shown == ["", "0", "0.250", "1", "2.6", "10", "12,346"]
    assert size_shown(1536) == "1.5 KiB"
