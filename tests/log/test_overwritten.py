"""The ranges that commits have overwritten: for how long each keeps its files, however many there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kbatch.log import overwritten
from spark_kbatch.log.state import LogState, empty_state
from tests.support.faults import Unflushed

FILES = Unflushed()
DAY, SECOND = 86_400_000, 1000
MOST = 100


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overwritten, "_ENTRIES_MAX", MOST)


def state_at(start: int, end: int) -> LogState:
    return empty_state(start)._replace(log_end_offset=end)


def overwrite_all(folder: Path, count: int, *, every_ms: int, delay_ms: int) -> None:
    """Overwrite a log of one record `count` times, each time with another record."""
    for number in range(count):
        overwritten.add_entry(
            FILES, folder, state_at(number, number + 1),
            commit=number, now_ms=number * every_ms, delete_ms=number * every_ms + delay_ms,
        )  # fmt: skip


def held_from(folder: Path, count: int, now_ms: int) -> int | None:
    """Return which files are kept after so many overwrites."""
    return overwritten.held_from(FILES, folder, state_at(count, count + 1), now_ms)


def entries(folder: Path) -> list[list[int]]:
    found: list[list[int]] = json.loads((folder / overwritten.OVERWRITTEN_FILE).read_bytes())
    return found


@pytest.mark.parametrize("count", [MOST - 1, MOST, MOST + 1, 3 * MOST])
def test_a_range_is_kept_until_its_time_however_many_come_after_it(
    tmp_path: Path, count: int
) -> None:
    overwrite_all(tmp_path, count, every_ms=SECOND, delay_ms=DAY)
    assert held_from(tmp_path, count, count * SECOND) == 0
    assert held_from(tmp_path, count, DAY - 1) == 0
    assert len(entries(tmp_path)) <= MOST


def test_files_go_soon_after_their_time_while_overwrites_go_on(tmp_path: Path) -> None:
    count, delay_ms = 6 * MOST, 2 * MOST * SECOND
    overwrite_all(tmp_path, count, every_ms=SECOND, delay_ms=delay_ms)
    due = count - delay_ms // SECOND  # overwritten before that
    first = held_from(tmp_path, count, count * SECOND)
    assert first is not None
    assert due * 99 // 100 <= first <= due + 1
    assert len(entries(tmp_path)) <= MOST
    assert held_from(tmp_path, count, count * SECOND + delay_ms) is None


def test_an_offset_in_a_joined_range_names_the_last_of_its_commits(tmp_path: Path) -> None:
    overwrite_all(tmp_path, MOST + 1, every_ms=0, delay_ms=DAY)
    state = state_at(MOST + 1, MOST + 2)
    found = [overwritten.find(FILES, tmp_path, state, offset) for offset in (0, MOST - 1, MOST)]
    assert [one and one.commit for one in found] == [MOST - 1, MOST - 1, MOST]


def test_ranges_between_which_records_were_deleted_are_not_joined(tmp_path: Path) -> None:
    """What was deleted would be readable again."""
    for number in range(MOST + 2):
        overwritten.add_entry(
            FILES, tmp_path, state_at(2 * number, 2 * number + 1),
            commit=number, now_ms=0, delete_ms=DAY,
        )  # fmt: skip
    state = state_at(2 * MOST + 4, 2 * MOST + 5)
    assert overwritten.find(FILES, tmp_path, state, 0) is not None
    assert overwritten.find(FILES, tmp_path, state, 1) is None


def test_of_too_many_the_oldest_go_whose_time_has_come(tmp_path: Path) -> None:
    overwrite_all(tmp_path, 3 * MOST, every_ms=DAY, delay_ms=DAY)
    assert [entry[0] for entry in entries(tmp_path)] == [*range(2 * MOST, 3 * MOST)]
