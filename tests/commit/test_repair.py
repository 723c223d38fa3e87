"""Repairing a cluster: decided commits count, whichever partitions lost their state."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.internal_topics import COMMITS
from spark_kbatch.errors import CommitError, CorruptRecordError
from spark_kbatch.log import state as log_state
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.builders import a_cluster, commit, contents, staged, write
from tests.support.faults import DiesAtTheCommitPoint, ReadOnlyFiles, StopsInTheFlip, died

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
        path = cluster._parts.metadata.cluster_file.log_directory(tp) / "kbatch.state"
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
    assert not cluster._parts.manager.log(TRANSACTIONS).state().has_pending_commit
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
    path = cluster._parts.metadata.cluster_file.log_directory(tp) / f"{0:020d}.log"
    path.write_bytes(b"\x80" + path.read_bytes()[1:])


@pytest.mark.parametrize("dry_run", [False, True], ids=["repair", "look"])
@pytest.mark.parametrize("lost", ["directory", "base offset"])
def test_repair_goes_on_after_a_partition_that_cannot_be_repaired(
    cluster: Cluster, lost: str, dry_run: bool
) -> None:
    directory = cluster._parts.metadata.cluster_file.log_directory(FIRST)
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
    directory = cluster._parts.metadata.cluster_file.log_directory(FIRST)
    away = directory.rename(directory.parent.parent / "moved away")
    other = cluster._parts.metadata.cluster_file.log_directory(SECOND)
    (other / f"{0:020d}.index").unlink()
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    reports = {report.topic_partition: report for report in cluster.repair()}
    assert "a commit that is decided cannot be finished" in reports[SECOND].damaged[-1]
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before
    away.rename(directory)
    list(cluster.repair())
    assert counts(Cluster(str(cluster.path))) == COUNTS
