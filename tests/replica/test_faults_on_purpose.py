"""Faults that are put into the rules for several disks on purpose are found by their tests.

Those that a random schedule needs too long to reach have tests of their own: a disk that missed a change in
`test_newest_files`, a follower that alone has a batch in `test_partition`, a commit that is kept for a lost
disk in `commit/test_replicated_commits`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from spark_kbatch.catalog.json_files import JsonFiles, Mirrors
from spark_kbatch.errors import KBatchError
from spark_kbatch.replica import followers, view
from spark_kbatch.replica.partition import Partition
from tests.replica import test_disk_states as states
from tests.replica.test_schedules import STEPS, Appends, Mounts

SCHEDULES_MAX = 400

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], object]


def _follow_an_older_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader lead that lost what others have."""
    _truncate_a_member(monkeypatch)
    _read_an_older_image(monkeypatch)


def _truncate_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "has_more", lambda *_: False)


def _read_an_older_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "has_more", lambda *_: False)


def _lead_beside_more_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "_refused_beside_more", lambda *_: None)


def _delete_on_the_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "_delete_on_followers_locked", lambda *_: None)


def _copy_what_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh copies from a PATH that may lose what they get."""

    def refresh(self: JsonFiles) -> None:
        flush, self.files.flush = self.files.flush, lambda paths: None  # type: ignore[method-assign]
        try:
            real(self)
        finally:
            self.files.flush = flush  # type: ignore[method-assign]

    real = JsonFiles.refresh
    monkeypatch.setattr(JsonFiles, "refresh", refresh)


def _believe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PATH's file of a partition count, whatever its copies say."""
    monkeypatch.setattr(JsonFiles, "reigning_mirrors", lambda self: Mirrors(self.files, ()))


def _follow_an_old_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes go on at an old PATH."""
    monkeypatch.setattr(JsonFiles, "_newer_than", lambda *_: None)


def _restore_without_what_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up each disk that is not there when PATH is restored."""
    monkeypatch.setattr(Mounts, "lost", Mounts.missing)


def _state(state: str, node: int) -> Callable[[], object]:
    return lambda: states.test_an_operation_does_what_the_table_says_and_nothing_is_lost(
        state, node
    )


def _failure(operation: str, *, lasts: bool, node: int) -> Callable[[], object]:
    test: Any = states.test_a_disk_may_fail_at_any_change_within_an_operation
    return lambda: test(operation, lasts, node)


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        (_truncate_a_member, _state("an older image", states.LEADER)),
        (_read_an_older_image, _state("an older image", states.LEADER)),
        (
            _lead_beside_more_that_cannot_be_written,
            lambda: (
                states.test_what_only_a_disk_has_that_cannot_be_written_is_read_and_not_given_up(
                    states.FULL
                )
            ),
        ),
        (
            _delete_on_the_leader_alone,
            _failure("delete-records", lasts=True, node=states.LEADER),
        ),
        (
            _copy_what_is_not_flushed,
            states.test_copies_are_not_newer_than_a_path_whose_writer_died_before_it_was_flushed,
        ),
        (_follow_an_old_path, _state("PATH older", states.LEADER)),
    ],
)
def test_a_fault_on_purpose_is_found_by_the_table(
    fault: Fault, found_by: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    # Whatever the fault leads to, but not one of its own.
    with pytest.raises((AssertionError, KBatchError, OSError, states.Said, pytest.fail.Exception)):
        found_by()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (_believe_path, Mounts),
        (_follow_an_old_path, Mounts),
        (_restore_without_what_is_away, Mounts),
        (_follow_an_older_image, Mounts),
    ],
)
def test_a_fault_on_purpose_is_found_by_schedules(
    fault: Fault, kind: type[Appends], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    for seed in range(SCHEDULES_MAX):
        try:
            kind(tmp_path / str(seed), seed).run(STEPS)
        except Exception as error:  # noqa: BLE001  whatever the fault leads to
            print(f"{fault.__name__}: found by schedule {seed}: {error!r}"[:300])
            return
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
    pytest.fail(f"not found in {SCHEDULES_MAX} schedules")
