"""What `make soak` runs and draws is decided in one place each."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import REPOSITORY
from tests.support import draws, more_in_soak


@given(st.none())
def test_a_test_of_a_property_does_more_in_soak(drawn: None) -> None:
    assert more_in_soak.is_soak() == (more_in_soak.PROFILE == "soak")


@pytest.mark.more_in_soak
def test_a_test_with_the_marker_may_do_more_in_soak() -> None:
    assert more_in_soak.is_soak() == (more_in_soak.PROFILE == "soak")


def test_any_other_fails_if_it_asks() -> None:
    with pytest.raises(more_in_soak.NotInSoakError):
        more_in_soak.is_soak()


@pytest.mark.parametrize(
    ("words", "readers"),
    [
        ("environ.*HYPOTHESIS_PROFILE", {"support/more_in_soak.py"}),
        ("environ.*KBATCH_SCHEDULES", {"support/draws.py"}),
        # A seed that failed is drawn alone where all are by the first one.
        (r"range\(.*draws\.many", set()),
        # The marker of the first is in the file of each test.
        (r"settings\.default|settings\(\)", {
            "record/test_inspection.py", "server/groups/test_model.py",
            "values/test_against_fastavro.py",
        }),
        # What Hypothesis runs within a test has no mark of its own: the first two do as much in both, the rest have the marker.
        (r"\n +@given|TestCase\(\)\.runTest|run_state_machine_as_test", {
            "condition/interpreted.py", "log/test_retention.py", "server/groups/test_model.py",
            "values/test_against_fastavro.py",
        }),
    ],
)  # fmt: skip
def test_nothing_else_reads_how_much_is_done(words: str, readers: set[str]) -> None:
    tests = REPOSITORY / "tests"
    found = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if re.search(words, path.read_text(encoding="utf-8"))
    }

    assert found - {"test_soak.py"} == readers


def test_a_factor_of_zero_draws_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_FACTOR", 0.0)
    monkeypatch.setattr(draws, "FIRST", 4711)

    assert [*draws.seeds(1000)] == [4711]
    assert [*draws.seeds(1000, after=8)] == [4711]
    assert draws.at_least(60) == 60
    with pytest.raises(ZeroDivisionError) as raised, draws.naming_first():
        1 / 0  # noqa: B018
    assert raised.value.__notes__ == ["KBATCH_SCHEDULES_FIRST=4711"]


def test_more_is_drawn_after_what_is_always_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_FACTOR", 2.0)
    monkeypatch.setattr(draws, "FIRST", 0)

    assert draws.seeds(3, after=5) == range(5, 11)
