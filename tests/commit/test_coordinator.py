"""Commits: what they check, the order in which they place batches, and which faults stop them."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.commit import coordinator
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.errors import CommitError
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.builders import batch, commit, contents, records_of, staged
from tests.support.faults import Fault, FaultyFiles
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

EVENTS = TopicPartition("events", 0)
TWO_TOPICS = {"events": 1, "others": 2}


def a_job(*seeds: int) -> dict[tuple[str, int], list[bytes]]:
    return {("events", 0): [batch(seed=seed) for seed in seeds]}


def an_undone_flip(cluster: Cluster, *, flush: bool = False) -> None:
    """Leave a job that wrote to both topics decided, and stopped before its first flip."""
    job = {(topic, n): [batch()] for topic, count in TWO_TOPICS.items() for n in range(count)}
    extents = staged(cluster, job)

    class StopsAfterTheCommitPoint(FaultyFiles):
        def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
            super().write_at(descriptor, position, data)
            if self.steps[-1].endswith("__transaction_state-0/kbatch.state"):
                at = len(self.steps) + (1 if flush else 0)  # the next step flushes it
                self.fault = Fault(at, errno.EIO, lasting=True)

    undone = Cluster(str(cluster.path), files=StopsAfterTheCommitPoint())
    with pytest.raises(CommitError) as error:
        commit(undone, extents, flush=flush)
    assert error.value.outcome == coordinator.COMMITTED


def test_tasks_are_placed_in_the_order_of_their_extents(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    tasks = [staged(cluster, a_job(2 * n, 2 * n + 1), adopt_min_bytes=n) for n in range(4)]
    commit(cluster, [extent for task in tasks for extent in task])
    assert contents(cluster)[EVENTS] == records_of([batch(seed=seed) for seed in range(8)])
    ensure_sound(store_of(cluster).manager.log(EVENTS))


def test_many_small_commits_leave_few_segments(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    large = [batch(n=1, value_bytes=4000)]
    for number in range(60):
        job = {("events", 0): large if number % 20 == 19 else [batch(n=1)]}
        extents = staged(cluster, job, transaction=f"job-{number}", adopt_min_bytes=0)
        commit(cluster, extents, transaction=f"job-{number}", adopt_min_bytes=2000)
    assert len(contents(cluster)[EVENTS]) == 60
    for tp, segments in ((EVENTS, [0, 19, 39, 59]), (COMMITS, [0]), (TRANSACTION_STATE, [0])):
        log = store_of(cluster).manager.log(tp)
        assert log.segments.bases(log.state()) == segments, (
            "one for each file that was large enough"
        )
        ensure_sound(log)


def test_a_job_without_rows_commits_nothing(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    before = store_of(cluster).manager.log(TRANSACTION_STATE).state()
    commit(cluster, [])
    assert store_of(cluster).manager.log(TRANSACTION_STATE).state() == before


def test_a_commit_leaves_no_staged_files(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    commit(cluster, staged(cluster, a_job(1, 2), adopt_min_bytes=0))
    assert list(store_of(cluster).metadata.cluster_file.log_dir(0).staging.iterdir()) == []


def test_an_attempt_that_is_not_committed_is_left_as_it_is(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    late = staged(cluster, a_job(9))
    commit(cluster, staged(cluster, a_job(1)))
    assert (
        store_of(cluster).metadata.cluster_file.log_dir(0).staging / late[0].file
    ).read_bytes() == batch(seed=9)
    assert contents(cluster)[EVENTS] == records_of([batch(seed=1)])


def test_a_commit_succeeds_if_its_staged_files_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class KeepsDirs(Files):
        def remove_dir(self, path: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    cluster = builders.a_cluster(tmp_path)
    stubborn = Cluster(str(cluster.path), files=KeepsDirs())
    with caplog.at_level(logging.WARNING):
        commit(stubborn, staged(cluster, a_job(1)))
    assert "staged files in" in caplog.text
    assert len(contents(cluster)[EVENTS]) == 3


def test_a_commit_that_fails_before_it_is_decided_takes_back_what_it_has_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that is full no later writer may come so far as to do it."""
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    builders.write(cluster, a_job(1))
    job = {("events", 0): [batch(seed=2)], ("others", 1): [batch(seed=3)]}
    extents = staged(cluster, job, adopt_min_bytes=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(coordinator.Coordinator, "_prepare", full)
    with pytest.raises(CommitError, match="No space left") as error:
        commit(cluster, extents, adopt_min_bytes=0)

    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    for tp in (EVENTS, TopicPartition("others", 1), COMMITS):
        log = store_of(cluster).manager.log(tp)
        (file,) = log.directory.glob("*.log")
        assert file.stat().st_size == log.state().segment_size
        ensure_sound(log)


def test_an_error_while_a_failed_commit_is_taken_back_does_not_hide_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path)
    extents = staged(cluster, a_job(1))

    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(coordinator.Coordinator, "_prepare", lambda *_: fail(errno.ENOSPC))
        patch.setattr(
            "spark_kbatch.replica.partition.Partition.discard_unrecorded_locked",
            lambda _: fail(errno.EIO),
        )
        with pytest.raises(CommitError, match="No space left"):
            commit(cluster, extents)

    assert "placed in events-0 stays for now" in caplog.text
    commit(cluster, extents)
    assert contents(cluster)[EVENTS] == records_of([batch(seed=1)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"topic_id": "another"}, "was recreated while the job ran", id="topic recreated"
        ),
        pytest.param({"partition_count": 9}, "with 1 partitions", id="partitions gone"),
        pytest.param({"records_count": 2}, "holds 3 records where the task wrote 2", id="count"),
        pytest.param(
            {"file": "job/gone/shared"},
            "which a task of this job staged, is gone",
            id="file gone",
        ),
        pytest.param({"size_in_bytes": 10_000}, "corrupt record batch", id="file too short"),
        pytest.param({"position": 5}, "corrupt record batch", id="not a batch"),
        pytest.param({"topic": "unknown"}, "'unknown' was deleted while", id="topic deleted"),
    ],
)
def test_an_extent_that_does_not_match_its_topic_or_file_aborts_the_whole_job(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    good = staged(cluster, {("others", 1): [batch()]})
    (bad,) = staged(cluster, a_job(1))
    with pytest.raises(CommitError, match=words) as error:
        commit(cluster, [*good, bad._replace(**change)])
    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    assert not any(contents(cluster).values())

    builders.write(cluster, a_job(2))
    assert contents(cluster)[EVENTS] == records_of([batch(seed=2)])
    ensure_sound(store_of(cluster).manager.log(EVENTS))


def test_jobs_that_commit_at_the_same_time_take_turns(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = Cluster(str(cluster.path)) if number % 2 else cluster
            for _ in range(5):
                job = {("events", 0): [batch(n=1)], ("others", 1): [batch(n=1)]}
                name = f"job-{number}"
                commit(mine, staged(mine, job, transaction=name), transaction=name)
        except BaseException as error:  # noqa: BLE001  shown by the test, not by the thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for place in (EVENTS, TopicPartition("others", 1)):
        assert [record.offset for record in contents(cluster)[place]] == list(range(20))
        ensure_sound(store_of(cluster).manager.log(place))
    ensure_sound(store_of(cluster).manager.log(TRANSACTION_STATE))


# Rolling forward.


def test_rolling_forward_with_nothing_pending_writes_nothing(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, a_job(1))
    files = FaultyFiles()
    options = parse_write_options({"path": str(cluster.path)})
    coordinator_for(store_of(Cluster(str(cluster.path), files=files)), options).roll_forward()
    assert {step.split()[0] for step in files.steps} == {"lock"}


def test_a_job_that_cannot_finish_the_previous_one_stays_invisible(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    an_undone_flip(cluster)
    extents = staged(cluster, a_job(5), transaction="next")

    broken = Cluster(str(cluster.path), files=FaultyFiles(Fault(at=3, error=errno.EIO)))
    with pytest.raises(CommitError) as error:
        commit(broken, extents, transaction="next")
    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    assert [len(records) for records in contents(cluster).values()] == [3, 3, 3]


def test_a_flushed_commit_is_decided_up_to_its_recovery_point(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    an_undone_flip(cluster, flush=True)
    decided = store_of(cluster).manager.log(TRANSACTION_STATE).state()
    assert decided.has_pending_commit
    assert decided.recovery_point == decided.log_end_offset


class FullDisk(Files):
    """Files that can overwrite bytes, but can neither grow a file nor create one."""

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        if position + len(data) > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(descriptor, position, data)

    def create(self, path: Path) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_does_not_stop_rolling_forward(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    an_undone_flip(cluster)
    options = parse_write_options({"path": str(cluster.path)})
    coordinator_for(store_of(Cluster(str(cluster.path), files=FullDisk())), options).roll_forward()

    assert not store_of(cluster).manager.log(TRANSACTION_STATE).state().has_pending_commit
    for topic, count in TWO_TOPICS.items():
        for number in range(count):
            log = store_of(cluster).manager.log(TopicPartition(topic, number))
            assert log.state().log_end_offset == 3
            ensure_sound(log)
    ensure_sound(store_of(cluster).manager.log(TRANSACTION_STATE))


# The second is in the slot where the commit's state would be.
@pytest.mark.parametrize("writes", [1, 2])
def test_rolling_forward_never_moves_a_partition_back(tmp_path: Path, writes: int) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    an_undone_flip(cluster)
    log = store_of(cluster).manager.log(EVENTS)
    newer = store_of(cluster).snapshots.replicas([EVENTS])[EVENTS].state
    for start in range(1, writes + 1):
        newer = newer._replace(sequence=newer.sequence + 1, log_start_offset=start)
        log.write_state(newer, flush=False)

    coordinator_for(
        store_of(cluster), parse_write_options({"path": str(cluster.path)})
    ).roll_forward()
    assert log.state() == newer
    assert store_of(cluster).manager.log(TopicPartition("others", 0)).state().log_end_offset == 3


def test_rolling_forward_twice_is_the_same_as_once(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics=TWO_TOPICS)
    an_undone_flip(cluster)
    options = parse_write_options({"path": str(cluster.path)})
    states = []
    for _ in range(2):
        coordinator_for(store_of(cluster), options).roll_forward()
        states.append(
            [store_of(cluster).manager.log(tp).state() for tp in (EVENTS, TRANSACTION_STATE)]
        )
    assert states[0] == states[1]
