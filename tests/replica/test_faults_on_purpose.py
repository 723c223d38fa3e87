"""Faults that are put into the rules for several disks on purpose are found by their tests.

Most are found by the table of `test_disk_states`, by its other tests, or by random schedules. Those that these
reach too seldom are found by a test of the rule.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import pytest

from spark_kbatch.catalog.json_files import JsonFiles, Mirrors
from spark_kbatch.catalog.partition_states import PartitionState
from spark_kbatch.cluster.upkeep import ClusterRepair
from spark_kbatch.errors import KBatchError
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica import followers, view
from spark_kbatch.replica.administration import _KnownCommits
from spark_kbatch.replica.elections import Elections
from spark_kbatch.replica.locks import Locks
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import NOTHING_NEWER, PartitionView
from tests.commit import test_repair as repairs
from tests.commit import test_replicated_commits as commits
from tests.replica import test_disk_states as states
from tests.replica import test_newest_files as newest
from tests.replica import test_partition as partitions
from tests.replica.test_schedules import STEPS, Appends, Mounts
from tests.replica.test_topic_schedules import Topics
from tests.support.disk_states import Case
from tests.support.failing_disks import Clock, Disks, a_replicated_cluster, with_clock

SCHEDULES_MAX = 400
# Whatever a fault leads to, but no fault of its own code.
FOUND = (AssertionError, KBatchError, OSError, states.Said, pytest.fail.Exception)

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
    monkeypatch.setattr(Elections, "_refused_beside_more", lambda *_: None)


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


def _trust_the_full_in_sync_set(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PartitionView.state
    monkeypatch.setattr(
        PartitionView, "state", lambda self: state(self)._replace(isr=self.replicas)
    )


def _leave_folders_of_copies_unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(self: Mirrors, folder: Path, name: PurePath, data: bytes) -> bool:
        flush = self._files.flush
        own = (folder / name).parent
        self._files.flush = lambda paths: flush([one for one in paths if one == own])  # type: ignore[method-assign]
        try:
            return real(self, folder, name, data)
        finally:
            self._files.flush = flush  # type: ignore[method-assign]

    real = Mirrors._written
    monkeypatch.setattr(Mirrors, "_written", written)


def _refresh_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the copies of a disk that missed a change as they are."""
    monkeypatch.setattr(JsonFiles, "_refresh", lambda *_: None)


def _shrink_without_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: Elections, state: PartitionState) -> tuple[PartitionState, Collection[int]]:
        stored = self._view.state()
        if state.leader == stored.leader and {*state.isr} < {*stored.isr}:
            state = state._replace(leader_epoch=stored.leader_epoch)
        return real(self, state)

    real = Elections.write_state
    monkeypatch.setattr(Elections, "write_state", write)


def _lead_below_the_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader that lost what was shown go on while a member is away."""
    monkeypatch.setattr(Elections, "_refused_to_lead", lambda *_: None)


def _repair_before_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair the leader, whatever the other members have."""

    def leading(
        _: ClusterRepair, partition: Partition, *__: object
    ) -> tuple[PartitionLog, list[str]]:
        return partition.view.log_of(partition.view.state().leader), []

    monkeypatch.setattr(ClusterRepair, "_leading_locked", leading)


def _repair_beside_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for no commit again that died since the repair began."""

    @contextlib.contextmanager
    def locked(self: ClusterRepair, tp: TopicPartition) -> Iterator[None]:
        self._is_settled = False
        with real(self, tp):
            yield

    real = ClusterRepair._locked
    monkeypatch.setattr(ClusterRepair, "_locked", locked)


def _believe_any_log_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionView, "is_of_topic", lambda *_: True)


def _elect_beside_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an unclean election look for no commit that is decided and not finished."""
    monkeypatch.setattr(_KnownCommits, "is_pending", lambda *_: False)


def _restore_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locks, "exclusive_log_dirs", lambda *_: contextlib.nullcontext())


def _ignore_what_is_kept_for_an_only_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionView, "kept", lambda _: NOTHING_NEWER)


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


# Tests of one rule each, in a folder.


def _test_of_a_shrink(folder: Path) -> None:
    partitions.test_a_follower_that_alone_has_a_batch_and_leaves_is_truncated_when_it_is_back(
        folder, Disks(), Clock()
    )


def _test_of_a_leader_that_lost_what_was_shown(folder: Path) -> None:
    partitions.test_a_leader_that_lost_what_was_shown_waits_for_a_member_that_is_away(
        folder, Disks(), Clock(), False
    )


def _test_of_a_repair(folder: Path) -> None:
    """Nothing is lost, since a member that has more than its leader leads; but the repair says otherwise."""
    repairs.test_a_replica_that_is_whole_leads_and_the_others_are_made_again_from_it(
        repairs.a_cluster_with_batches(folder), lambda *to: repairs.cut(*to, 10), [0]
    )


def _test_of_a_restore(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patches:
        newest.test_a_restore_within_an_append_costs_no_record(newest.a_home(folder), patches)


def _test_of_what_is_kept(folder: Path) -> None:
    clock = Clock()
    cluster = with_clock(a_replicated_cluster(folder, Disks(), partitions=2), clock)
    with pytest.MonkeyPatch.context() as patches:
        commits.test_a_decided_commit_keeps_aside_what_is_for_a_lost_disk_and_all_else_goes_on(
            cluster, clock, patches
        )


@pytest.mark.more_in_soak
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
        (
            _trust_the_full_in_sync_set,
            states.test_copies_know_who_is_in_sync_though_power_was_lost_and_path_with_it,
        ),
        (
            _leave_folders_of_copies_unflushed,
            states.test_copies_know_who_is_in_sync_though_power_was_lost_and_path_with_it,
        ),
        (
            _refresh_no_copy,
            lambda: (
                states.test_a_disk_that_missed_changes_stands_in_for_all_others_once_it_was_refreshed(
                    Case.open
                )
            ),
        ),
    ],
)
def test_a_fault_on_purpose_is_found_by_the_table(
    fault: Fault, found_by: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(FOUND):
        found_by()


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        (_shrink_without_a_new_epoch, _test_of_a_shrink),
        (_lead_below_the_watermark, _test_of_a_leader_that_lost_what_was_shown),
        (_repair_before_looking, _test_of_a_repair),
        (_restore_without_locks, _test_of_a_restore),
        (_ignore_what_is_kept_for_an_only_replica, _test_of_what_is_kept),
    ],
)
def test_a_fault_on_purpose_is_found_by_the_test_of_its_rule(
    fault: Fault,
    found_by: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    with pytest.raises(FOUND):
        found_by(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (_believe_path, Mounts),
        (_follow_an_old_path, Mounts),
        (_restore_without_what_is_away, Mounts),
        (_follow_an_older_image, Mounts),
        (_trust_the_full_in_sync_set, Mounts),
        (_refresh_no_copy, Mounts),
        (_repair_beside_a_commit, Topics),
        (_believe_any_log_of_the_name, Topics),
        (_elect_beside_a_commit, Topics),
    ],
)
def test_a_fault_on_purpose_is_found_by_schedules(
    fault: Fault, kind: type[Appends | Topics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
