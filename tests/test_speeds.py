"""Pictures in README and docs: they show stored figures, to which benchmarks add theirs, and a stored run of the demo."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import REPOSITORY
from tests.support import demo_picture, speeds
from tests.support.speeds import COMPARISONS, PICTURE, WITH_FOLDER, Span, spans, store_speeds


def test_the_picture_is_drawn_from_the_stored_figures() -> None:
    assert PICTURE.read_text(encoding="utf-8") == speeds.drawn(), "`make docs` draws it again"


def test_the_picture_of_the_demo_is_drawn_from_the_stored_run_and_none_of_it_is_cut() -> None:
    """tests/spark/test_demo.py compares the stored run with what the demo prints."""
    picture = demo_picture.PICTURE.read_text(encoding="utf-8")
    assert picture == demo_picture.drawn(), "`make docs` draws it again"
    assert f"](docs/{demo_picture.PICTURE.name})" in (REPOSITORY / "README.md").read_text("utf-8")

    drawn = ElementTree.fromstring(picture)
    lines = [*drawn.iter("{http://www.w3.org/2000/svg}text")]
    words = " ".join("".join(line.itertext()) for line in lines).split()
    assert words[3:] == demo_picture.STORED.read_text(encoding="utf-8").split()
    for line in lines:
        end = float(line.attrib["x"]) + float(line.attrib["textLength"])
        assert end <= float(drawn.attrib["width"])
        assert float(line.attrib["y"]) < float(drawn.attrib["height"])


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_pages_show_the_picture(page: str) -> None:
    path = REPOSITORY / page

    assert f"]({PICTURE.relative_to(path.parent)})" in path.read_text(encoding="utf-8")


def test_the_picture_has_each_comparison_with_its_figure_and_colours_for_dark_pages() -> None:
    found = {one.key: Span(1.0, 2.0) for one in COMPARISONS} | {"write/kafka": Span(3.14, 6.5)}
    drawn = ElementTree.fromstring(speeds.drawn(found))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]

    assert {one.bar for one in COMPARISONS if one.bar} <= set(texts)
    assert {"3.1 to 6.5", "1.0 to 2.0"} <= set(texts)
    assert "prefers-color-scheme: dark" in PICTURE.read_text(encoding="utf-8")
    ends = [float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]  # fmt: skip
    assert max(ends) <= float(drawn.attrib["width"])


def test_the_picture_has_only_bars_of_which_a_longer_one_is_better() -> None:
    assert [one.key for one in COMPARISONS if one.bar and spans()[one.key].low <= 1] == []


def test_every_stored_figure_is_shown_and_says_where_when_and_how_it_was_measured() -> None:
    assert spans().keys() == {one.key for one in COMPARISONS}
    measures = {one.key: one.command for one in COMPARISONS}
    for run in speeds.stored_runs():
        assert run["machine"]
        assert run["day"]
        assert {measures[key] for key in run["times"]} == {run["command"]}


def test_a_benchmark_adds_its_figures_if_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several runs on a day and machine become one, with the range of all."""
    stored = tmp_path / "speeds.json"
    old = {
        "machine": "m",
        "day": "d",
        "command": WITH_FOLDER,
        "times": {"read/parquet": [0.5, 0.7]},
    }
    stored.write_text(json.dumps([old]))

    monkeypatch.delenv("KBATCH_BENCH_STORE", raising=False)
    store_speeds(WITH_FOLDER, {"read/parquet": 0.9}, stored)
    assert speeds.stored_runs(stored) == [old]

    monkeypatch.setenv("KBATCH_BENCH_STORE", "1")
    for ratio in (0.6, 0.9, 0.8):
        store_speeds(WITH_FOLDER, {"read/parquet": ratio}, stored)
    before, new = speeds.stored_runs(stored)
    assert before == old
    assert (new["command"], new["machine"]) == (WITH_FOLDER, speeds.this_machine())
    assert new["times"] == {"read/parquet": [0.6, 0.9]}
    assert spans(stored) == {"read/parquet": Span(0.5, 0.9)}
