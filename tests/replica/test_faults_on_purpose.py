"""Schedules of mounts find faults that are put into the rules on purpose; each says how soon.

Rules that a random schedule needs too long to reach have tests of their own: a disk that missed a change in
`test_newest_files`, a follower that alone has a batch in `test_partition`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_kbatch.replica.json_files import JsonFiles, Mirrors
from tests.replica.test_schedules import STEPS, Mounts

SCHEDULES_MAX = 400


def _believe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PATH's file of a partition count, whatever its copies say."""
    monkeypatch.setattr(JsonFiles, "reigning_mirrors", lambda self: Mirrors(self.files, ()))


def _follow_an_old_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes go on at an old PATH."""
    monkeypatch.setattr(JsonFiles, "_newer_than", lambda *_: None)


def _restore_without_what_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up each disk that is not there when PATH is restored."""
    monkeypatch.setattr(Mounts, "lost", Mounts.missing)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        _believe_path,
        _follow_an_old_path,
        _restore_without_what_is_away,
    ],
)
def test_a_fault_on_purpose_is_found(fault, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    fault(monkeypatch)
    for seed in range(SCHEDULES_MAX):
        try:
            Mounts(tmp_path / str(seed), seed).run(STEPS)
        except Exception as error:  # noqa: BLE001  whatever the fault leads to
            print(f"{fault.__name__}: found by schedule {seed}: {error!r}"[:300])
            return
        shutil.rmtree(tmp_path / str(seed))
    pytest.fail(f"not found in {SCHEDULES_MAX} schedules")
