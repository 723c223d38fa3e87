"""Repairing a cluster: decided commits count, whichever partitions lost their state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import COMMITS
from spark_kbatch.errors import CommitError, CorruptRecordError
from spark_kbatch.log import state as log_state
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.builders import a_cluster, commit, contents, staged, write
from tests.support.failing_disks import READ_ONLY, Disks, a_replicated_cluster, bytes_of
from tests.support.faults import DiesAtTheCommitPoint, ReadOnlyFiles, StopsInTheFlip, died
from tests.support.store import store_of

FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)
TRANSACTIONS = TopicPartition("__transaction_state", 0)
BEFORE = {("events", 0): [builders.batch(n=2)], ("events", 1): [builders.batch(n=3, seed=1)]}
AFTER = {("events", 0): [builders.batch(n=4, seed=2)], ("events", 1): [builders.batch(seed=3)]}
COUNTS = {FIRST: 6, SECOND: 6}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before reading an invalid slot again: no one is writing, so it stays invalid."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = a_cluster(tmp_path, topics={"events": 2})
    write(cluster, BEFORE)
    return cluster


def lose(cluster: Cluster, *partitions: TopicPartition) -> None:
    for tp in partitions:
        path = store_of(cluster).metadata.cluster_file.log_directory(tp) / "kbatch.state"
        data = bytearray(path.read_bytes())
        for at in (20, 4096 + 20):
            data[at] ^= 1
        path.write_bytes(data)


def counts(cluster: Cluster) -> dict[TopicPartition, int]:
    return {tp: len(records) for tp, records in contents(cluster).items()}


def stopped_in_the_flip(cluster: Cluster, flips: int) -> Cluster:
    """Leave a second commit decided, with `flips` of its partitions flipped."""
    files = StopsInTheFlip(flips)
    failing = Cluster(str(cluster.path), files=files)
    extents = staged(failing, AFTER)
    with pytest.raises(CommitError):
        commit(failing, extents)
    return Cluster(str(cluster.path))


def test_a_sound_cluster_is_left_as_it_is(cluster: Cluster) -> None:
    reports = list(cluster.repair())
    assert [report.topic_partition for report in reports] == [COMMITS, TRANSACTIONS, FIRST, SECOND]
    assert all(not report.found and not report.damaged for report in reports)


def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    lose(cluster, FIRST, TRANSACTIONS)
    before = {path: path.read_bytes() for path in cluster.path.rglob("*") if path.is_file()}
    reader = Cluster(str(cluster.path), files=ReadOnlyFiles())
    found = {report.topic_partition: report for report in reader.repair(dry_run=True)}
    assert "kbatch.state is lost" in found[FIRST].found[0]
    assert "kbatch.state is lost" in found[TRANSACTIONS].found[0]
    assert found[SECOND].found == ()
    assert before == {path: path.read_bytes() for path in cluster.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lost", [[FIRST], [SECOND], [TRANSACTIONS], [FIRST, SECOND, TRANSACTIONS]])
def test_committed_records_are_there_after_a_repair(
    cluster: Cluster, lost: list[TopicPartition]
) -> None:
    before = contents(cluster)
    lose(cluster, *lost)
    with pytest.raises(CorruptRecordError, match="kbatch repair"):
        contents(cluster)
    reports = {report.topic_partition: report for report in cluster.repair()}
    assert all("is lost" in reports[tp].found[0] for tp in lost)
    cluster = Cluster(str(cluster.path))
    assert contents(cluster) == before
    write(cluster, AFTER)
    assert counts(cluster) == COUNTS
    assert all(report.found == () for report in cluster.repair())


@pytest.mark.parametrize("flips", [0, 1], ids=["none-flipped", "one-flipped"])
@pytest.mark.parametrize(
    "lost",
    [[], [FIRST], [SECOND], [TRANSACTIONS], [TRANSACTIONS, SECOND]],
    ids=["none", "first", "second", "transactions", "transactions-and-second"],
)
def test_a_decided_commit_is_rolled_forward_before_anything_is_truncated(
    cluster: Cluster, lost: list[TopicPartition], flips: int
) -> None:
    cluster = stopped_in_the_flip(cluster, flips)
    lose(cluster, *lost)
    list(cluster.repair())
    cluster = Cluster(str(cluster.path))
    assert counts(cluster) == COUNTS
    assert not store_of(cluster).manager.log(TRANSACTIONS).state().has_pending_commit
    write(cluster, BEFORE)
    assert counts(cluster) == {FIRST: 8, SECOND: 9}


def test_a_placed_commit_whose_log_lost_its_state_is_visible_as_a_whole_or_not_at_all(
    cluster: Cluster,
) -> None:
    extents = staged(cluster, AFTER)
    files = DiesAtTheCommitPoint()
    assert died(lambda: commit(Cluster(str(cluster.path), files=files), extents))
    cluster = Cluster(str(cluster.path))
    assert counts(cluster) == {FIRST: 2, SECOND: 3}
    lose(cluster, TRANSACTIONS)
    list(cluster.repair())
    assert counts(Cluster(str(cluster.path))) in (COUNTS, {FIRST: 2, SECOND: 3})


def test_a_single_partition_can_be_repaired(cluster: Cluster) -> None:
    lose(cluster, FIRST)
    (report,) = cluster.repair([FIRST])
    assert report.topic_partition == FIRST
    assert counts(Cluster(str(cluster.path))) == {FIRST: 2, SECOND: 3}


def damaged_base_offset(cluster: Cluster, tp: TopicPartition) -> None:
    path = store_of(cluster).metadata.cluster_file.log_directory(tp) / f"{0:020d}.log"
    path.write_bytes(b"\x80" + path.read_bytes()[1:])


@pytest.mark.parametrize("dry_run", [False, True], ids=["repair", "look"])
@pytest.mark.parametrize("lost", ["directory", "base offset"])
def test_repair_goes_on_after_a_partition_that_cannot_be_repaired(
    cluster: Cluster, lost: str, dry_run: bool
) -> None:
    directory = store_of(cluster).metadata.cluster_file.log_directory(FIRST)
    if lost == "directory":
        directory.rename(directory.parent.parent / "moved away")
    else:
        damaged_base_offset(cluster, FIRST)
    damaged_base_offset(cluster, SECOND)
    reports = {report.topic_partition: report for report in cluster.repair(dry_run=dry_run)}
    assert reports.keys() == {COMMITS, TRANSACTIONS, FIRST, SECOND}
    (first,), (second,) = reports[FIRST].damaged, reports[SECOND].damaged
    assert f"{directory} is gone" in first if lost == "directory" else "base offset" in first
    assert "base offset" in second
    assert reports[TRANSACTIONS].damaged == ()


def test_repair_keeps_the_files_of_a_commit_that_cannot_be_finished(cluster: Cluster) -> None:
    cluster = stopped_in_the_flip(cluster, 0)
    directory = store_of(cluster).metadata.cluster_file.log_directory(FIRST)
    away = directory.rename(directory.parent.parent / "moved away")
    other = store_of(cluster).metadata.cluster_file.log_directory(SECOND)
    (other / f"{0:020d}.index").unlink()
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    reports = {report.topic_partition: report for report in cluster.repair()}
    assert "a commit that is decided cannot be finished" in reports[SECOND].damaged[-1]
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before
    away.rename(directory)
    list(cluster.repair())
    assert counts(Cluster(str(cluster.path))) == COUNTS


# Several replicas.


EVENTS = TopicPartition("events", 0)
BATCHES = [builders.batch(n=n + 1, seed=n) for n in range(4)]


@pytest.fixture
def replicated(tmp_path: Path) -> Cluster:
    return a_cluster_with_batches(tmp_path)


def a_cluster_with_batches(folder: Path) -> Cluster:
    cluster = a_replicated_cluster(folder, Disks())
    for batch in BATCHES[:3]:
        builders.append_records(cluster, {EVENTS: batch}, flush=True)
    return cluster


def directory(cluster: Cluster, node_id: int) -> Path:
    return store_of(cluster).metadata.cluster_file.log_directory(EVENTS, node_id)


def cut(cluster: Cluster, node_id: int, size: int) -> None:
    path = directory(cluster, node_id) / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - size)


def flip_a_bit(cluster: Cluster, node_id: int) -> None:
    path = directory(cluster, node_id) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def lose_state(cluster: Cluster, node_id: int) -> None:
    (directory(cluster, node_id) / "kbatch.state").write_bytes(bytes(8192))


def ensure_goes_on(cluster: Cluster, count: int) -> None:
    """Check that the first `count` batches are there, that appends go on, and that all replicas are equal."""
    cluster = Cluster(str(cluster.path))
    records = builders.records_of(BATCHES[:count])
    assert contents(cluster)[EVENTS] == records
    (result,) = builders.append_records(cluster, {EVENTS: BATCHES[3]}).values()
    assert (result.error, result.base_offset) == (None, len(records))
    assert cluster.replicate() == []
    assert contents(cluster)[EVENTS] == builders.records_of([*BATCHES[:count], BATCHES[3]])
    assert len({bytes_of(cluster, node_id) for node_id in range(3)}) == 1
    assert all(not report.found + report.damaged for report in cluster.verify())


@pytest.mark.parametrize("damage", [lambda *to: cut(*to, 10), flip_a_bit, lose_state])
@pytest.mark.parametrize("node_ids", [[0], [1], [0, 2]])
def test_a_replica_that_is_whole_leads_and_the_others_are_made_again_from_it(
    replicated: Cluster, damage: Callable[[Cluster, int], None], node_ids: list[int]
) -> None:
    for node_id in node_ids:
        damage(replicated, node_id)
    reports = {one.topic_partition: one for one in Cluster(str(replicated.path)).repair()}

    leader = 1 if 0 in node_ids else 0
    assert reports[EVENTS].damaged == ()
    assert reports[EVENTS].found == tuple(
        f"the replica on node {node_id} is not whole: it is made again from that on node {leader}"
        for node_id in node_ids
    )
    ensure_goes_on(replicated, 3)


def test_where_none_is_whole_the_one_that_has_most_leads_and_that_is_said(
    replicated: Cluster,
) -> None:
    for node_id, size in enumerate([700, 10, 700]):
        cut(replicated, node_id, size)
    found = {one.topic_partition: one.found for one in Cluster(str(replicated.path)).repair()}

    assert "none of its replicas is whole: node 1, which has most, leads" in found[EVENTS][0]
    ensure_goes_on(replicated, 2)


def test_nothing_is_cut_while_a_replica_is_away_that_may_be_whole(replicated: Cluster) -> None:
    for node_id in (0, 1):
        cut(replicated, node_id, 10)
    disk = replicated.path.parent / "disk-2"
    disk.rename(disk.with_name("away"))
    reports = {one.topic_partition: one for one in Cluster(str(replicated.path)).repair()}
    assert "that on node 2 may be: mount its disk" in reports[EVENTS].damaged[0]
    disk.with_name("away").rename(disk)
    assert not [one for one in Cluster(str(replicated.path)).repair() if one.damaged]

    ensure_goes_on(replicated, 3)


def test_a_replicas_states_that_are_all_lost_are_rebuilt_from_the_batches(
    replicated: Cluster,
) -> None:
    for node_id in range(3):
        lose_state(replicated, node_id)
    assert not [one for one in Cluster(str(replicated.path)).repair() if one.damaged]

    ensure_goes_on(replicated, 3)


def test_a_commit_whose_state_was_kept_for_a_failed_disk_is_there_after_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks()
    cluster = a_replicated_cluster(tmp_path, disks, replicas=2)
    shutil.rmtree(tmp_path / "disk-1")
    flip = Coordinator._flip

    def fails(self: Coordinator, *args: Any, **named: Any) -> None:
        disks.fail(tmp_path / "disk-0" / "broker-0" / str(EVENTS), READ_ONLY)
        flip(self, *args, **named)
        disks.mend(tmp_path / "disk-0" / "broker-0" / str(EVENTS))

    monkeypatch.setattr(Coordinator, "_flip", fails)
    write(cluster, {tuple(EVENTS): [BATCHES[2]]})
    again = Cluster(str(cluster.path))
    assert store_of(again).manager.partition(EVENTS).view.state().unwritten
    assert not [one for one in again.repair() if one.damaged]

    assert contents(Cluster(str(cluster.path)))[EVENTS] == builders.records_of([BATCHES[2]])
    (result,) = builders.append_records(Cluster(str(cluster.path)), {EVENTS: BATCHES[0]}).values()
    assert (result.error, result.base_offset) == (None, 3)
