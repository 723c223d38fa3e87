"""Readers see whole commits, while others commit and after they died."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.commit import coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import CommitError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.faults import Fault, FaultyFiles, ReadOnlyFiles, run_child
from tests.support.store import reader_of, store_of

TOPICS = {"clicks": 3, "views": 2}
PLACES = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
PARTITIONS = [TopicPartition(*place) for place in PLACES]
RECORDS = 3


def a_commit(path: Path, files: Files | None = None, *, number: int = 0) -> None:
    """Commit `RECORDS` more records to every partition of both topics."""
    cluster = Cluster(str(path), files=files)
    jobs = {place: [builders.batch(n=RECORDS)] for place in PLACES}
    name = f"job-{number}"
    builders.commit(cluster, builders.staged(cluster, jobs, transaction=name), transaction=name)


def ends(cluster: Cluster) -> list[int]:
    """Return the high watermark of every partition, all from one snapshot."""
    return [offsets.high_watermark for offsets in reader_of(cluster).edges(PARTITIONS).values()]


def an_undone_flip(path: Path, flips: int) -> None:
    """Leave a commit whose committer stopped after it had flipped `flips` partitions."""
    coordinator_for(
        store_of(Cluster(str(path))), parse_write_options({"path": str(path)})
    ).roll_forward()
    dry_run = FaultyFiles()
    a_commit(path, dry_run)
    states = [n for n, step in enumerate(dry_run.steps) if step.endswith("kbatch.state")]
    decided, *flipped, _completed = states
    assert decided < flipped[0]
    assert len(flipped) == 1 + len(PLACES)  # __commits comes first
    fault = Fault(at=states[2 + flips], error=errno.EIO, lasting=True)
    with pytest.raises(CommitError, match="committed") as error:
        a_commit(path, FaultyFiles(fault))
    assert error.value.outcome == coordinator.COMMITTED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return builders.a_cluster(tmp_path, topics=TOPICS).path


class SlowFiles(Files):
    """Files that pause before each write, so that readers overtake the writer."""

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        time.sleep(0.0005)
        super().write_at(descriptor, position, data)


@pytest.mark.parametrize("where", ["another process", "another thread"])
def test_a_reader_sees_each_commit_in_all_partitions_or_in_none(path: Path, where: str) -> None:
    cluster = Cluster(str(path))
    a_commit(path)

    def commits() -> None:
        for number in range(40):
            a_commit(path, SlowFiles(), number=number)

    finished: Callable[[], bool]
    if where == "another process":
        child = run_child(commits)

        def finished() -> bool:
            return os.waitpid(child, os.WNOHANG)[0] != 0
    else:
        thread = threading.Thread(target=commits)
        thread.start()

        def finished() -> bool:
            return not thread.is_alive()

    seen = [RECORDS]
    while not finished():
        found = ends(cluster)
        assert len(set(found)) == 1, found
        assert found[0] >= seen[-1], "records that were visible do not go away"
        seen.append(found[0])
    assert ends(cluster) == [41 * RECORDS] * len(PLACES)
    assert len(set(seen)) > 10


def test_a_reader_sees_each_commit_as_a_whole_when_the_committer_is_killed(path: Path) -> None:
    cluster = Cluster(str(path))

    def commits() -> None:
        while True:
            a_commit(path, SlowFiles())

    for _ in range(8):
        child = run_child(commits)
        last = ends(cluster)[0]
        while ends(cluster)[0] < last + 2 * RECORDS:
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = ends(cluster)
        assert len(set(found)) == 1, found


class OvertakenFiles(Files):
    """Files that call `meanwhile` before the n-th read of a state."""

    def __init__(self, at: int, meanwhile: Callable[[], None]) -> None:
        self.at, self.meanwhile, self.reads = at, meanwhile, 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        if path.name == "kbatch.state":
            self.reads += 1
            if self.reads == self.at + 1:
                self.meanwhile()
        return super().read(path, position, size)


def _one_commit(path: Path) -> None:
    a_commit(path)


def _two_commits(path: Path) -> None:
    a_commit(path)
    a_commit(path)


def _a_commit_that_stops(path: Path) -> None:
    an_undone_flip(path, flips=2)  # which commits twice: once in full, to count


@pytest.mark.parametrize("pending", [False, True], ids=["nothing pending", "a commit pending"])
@pytest.mark.parametrize(
    ("meanwhile", "more"),
    [
        pytest.param(_one_commit, 1, id="a commit"),
        pytest.param(_two_commits, 2, id="two commits"),
        pytest.param(_a_commit_that_stops, 2, id="a commit and one that stops"),
    ],
)
@pytest.mark.parametrize("at", range(2 + len(PLACES)))
def test_commits_between_any_two_reads_of_a_snapshot_are_seen_as_a_whole(
    path: Path, at: int, meanwhile: Callable[[Path], None], more: int, pending: bool
) -> None:
    before = 1
    a_commit(path)
    if pending:
        an_undone_flip(path, flips=1)
        before += 2

    files = OvertakenFiles(at, lambda: meanwhile(path))
    found = ends(Cluster(str(path), files=files))
    assert files.reads > at
    assert len(set(found)) == 1, found
    assert before * RECORDS <= found[0] <= (before + more) * RECORDS


@pytest.mark.parametrize("flips", range(len(PLACES) + 1))
def test_a_decided_commit_is_read_even_if_nothing_can_be_written(path: Path, flips: int) -> None:
    an_undone_flip(path, flips)
    reader = Cluster(str(path), files=ReadOnlyFiles())
    assert store_of(reader).manager.log(TRANSACTION_STATE).state().has_pending_commit

    assert ends(reader) == [2 * RECORDS] * len(PLACES)
    assert {len(records) for records in builders.contents(reader).values()} == {2 * RECORDS}
    one = reader_of(reader).edges(PARTITIONS[3:4])
    assert one[PARTITIONS[3]].high_watermark == 2 * RECORDS
    assert [info.size_in_bytes for info in reader.describe(["clicks"])] == [
        2 * len(builders.batch(n=RECORDS))
    ] * TOPICS["clicks"]


def test_a_state_newer_than_the_pending_commit_is_not_replaced(path: Path) -> None:
    an_undone_flip(path, flips=5)
    cluster = Cluster(str(path))
    log = store_of(cluster).manager.log(PARTITIONS[0])
    newer = log.state()._replace(sequence=log.state().sequence + 1, log_start_offset=2)
    log.write_state(newer, flush=False)
    assert reader_of(cluster).edges(PARTITIONS[:1])[PARTITIONS[0]] == newer.offsets


def test_the_next_commit_finishes_the_previous_one_and_both_are_visible(path: Path) -> None:
    an_undone_flip(path, flips=2)
    a_commit(path)
    cluster = Cluster(str(path))
    assert [store_of(cluster).manager.log(tp).state().log_end_offset for tp in PARTITIONS] == (
        [3 * RECORDS] * len(PLACES)
    )


def test_a_partition_that_does_not_exist_is_an_error(path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"clicks-3 .* partitions 0 to 2"):
        reader_of(Cluster(str(path))).edges([TopicPartition("clicks", 3)])


def test_a_partition_without_a_readable_replica_is_an_error(path: Path) -> None:
    shutil.rmtree(path / f"broker-0/{PARTITIONS[0]}")

    lost, *others = Cluster(str(path)).describe([PARTITIONS[0].topic])
    assert str(PARTITIONS[0]) in lost.error
    assert not any(row.error for row in others)
    with pytest.raises(KafkaStorageError, match=str(PARTITIONS[0])):
        Cluster(str(path)).read(PARTITIONS[0].topic).read_all()
