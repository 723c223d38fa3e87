"""Commits to replicated topics: a disk may fail, or the process die, at any step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import (
    COMMITTED,
    NOTHING_VISIBLE,
    UNKNOWN,
    Coordinator,
    Overwrite,
)
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.commit.staging import Extent
from spark_kbatch.errors import CommitError, ConfigError, KafkaStorageError, KBatchError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.replica.manager import ACKS_ALL, ACKS_LEADER
from spark_kbatch.replica.partition import Partition
from spark_kbatch.store.commits import Author
from spark_kbatch.store.repetitions import Attempt, Evidence
from tests.support.builders import JOB, append_records, batch, contents, records_of, staged
from tests.support.failing_disks import (
    BROKEN,
    READ_ONLY,
    Clock,
    Disks,
    Killed,
    a_replicated_cluster,
    bytes_of,
    with_clock,
)
from tests.support.faults import ReadOnlyFiles
from tests.support.store import store_of
from tests.support.topics_of_writes import find_or_create_topic

PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
OLD, NEW, LATER = batch(n=3, seed=1), batch(n=4, seed=2), batch(n=2, seed=3)
NODES = [0, 1, 2]


@pytest.fixture
def cluster(tmp_path: Path, disks: Disks, clock: Clock) -> Cluster:
    return with_clock(a_replicated_cluster(tmp_path, disks, partitions=2), clock)


def job(cluster: Cluster, data: bytes) -> list[Extent]:
    return staged(cluster, {tuple(tp): [data] for tp in PARTITIONS})


def commit(
    cluster: Cluster, extents: Sequence[Extent], clock: Clock, *, acks: int = ACKS_ALL
) -> None:
    committer = Coordinator(
        store_of(cluster).manager, clock, adopt_min_bytes=1, flush=True, acks=acks
    )
    committer.commit(extents, transactional_id="job")
    committer.discard(extents, JOB)


def write(cluster: Cluster, data: bytes, clock: Clock) -> None:
    commit(cluster, job(cluster, data), clock)


def values(cluster: Cluster) -> list[list[bytes | None]]:
    """Return the values of each partition, as seen by a process that has just opened the cluster."""
    found: list[list[bytes | None]] = [[] for _ in PARTITIONS]
    for rows in Cluster(str(cluster.path), files=store_of(cluster).files).read("events"):
        for number, value in zip(
            rows["partition"].to_pylist(), rows["value"].to_pylist(), strict=True
        ):
            found[number].append(value)
    return found


def of(*batches: bytes) -> list[list[bytes | None]]:
    return [[record.value for data in batches for record in records_of([data])]] * 2


def isr(cluster: Cluster, topic_partition: TopicPartition) -> list[int]:
    return sorted(store_of(cluster).manager.partition(topic_partition).view.state().isr)


def ensure_equal_replicas(cluster: Cluster) -> None:
    for tp in [*PARTITIONS, COMMITS, TRANSACTION_STATE]:
        assert isr(cluster, tp) == NODES, tp
        assert len({bytes_of(cluster, node, tp) for node in NODES}) == 1, tp


def test_every_replica_gets_the_same_bytes(cluster: Cluster, clock: Clock) -> None:
    write(cluster, OLD, clock)
    extents = job(cluster, NEW)
    assert {extent.node_id for extent in extents} == {0, 1, 2}
    commit(cluster, extents, clock)

    assert values(cluster) == of(OLD, NEW)
    assert [c.records_count for c in cluster.history()] == [8, 6]
    ensure_equal_replicas(cluster)
    for node in NODES:
        assert (
            store_of(cluster).files.list(
                store_of(cluster).metadata.cluster_file.log_dir(node).staging
            )
            == []
        )


def test_jobs_and_producers_take_turns(cluster: Cluster, clock: Clock) -> None:
    append_records(cluster, {tuple(tp): OLD for tp in PARTITIONS}, flush=True)
    write(cluster, NEW, clock)
    append_records(cluster, {tuple(tp): LATER for tp in PARTITIONS}, flush=True)

    assert values(cluster) == of(OLD, NEW, LATER)
    for tp in PARTITIONS:
        assert len({bytes_of(cluster, node, tp) for node in NODES}) == 1


@pytest.mark.parametrize("node", NODES)
def test_a_commit_leaves_out_a_disk_that_failed_after_staging(
    cluster: Cluster, clock: Clock, node: int
) -> None:
    write(cluster, OLD, clock)
    extents = job(cluster, NEW)
    shutil.rmtree(cluster.path.parent / f"disk-{node}")
    commit(cluster, extents, clock)

    assert values(cluster) == of(OLD, NEW)
    others = [n for n in NODES if n != node]
    assert [isr(cluster, tp) for tp in (*PARTITIONS, COMMITS)] == [others] * 3


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("placed", [PARTITIONS[0], PARTITIONS[1], COMMITS], ids=str)
def test_a_commit_leaves_out_a_disk_that_is_unmounted_while_it_is_placed(
    cluster: Cluster,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    placed: TopicPartition,
    node: int,
) -> None:
    write(cluster, OLD, clock)
    extents = job(cluster, NEW)
    disk, place = cluster.path.parent / f"disk-{node}", Partition.place_locked

    def unmounted_first(self: Partition, *args: Any) -> Any:
        if self.topic_partition == placed and disk.exists():
            disk.rename(disk.with_name("away"))
        return place(self, *args)

    monkeypatch.setattr(Partition, "place_locked", unmounted_first)
    commit(cluster, extents, clock)
    assert values(cluster) == of(OLD, NEW)
    disk.with_name("away").rename(disk)
    monkeypatch.undo()
    clock.now_ms += 5_000
    write(cluster, LATER, clock)
    assert values(cluster) == of(OLD, NEW, LATER)
    ensure_equal_replicas(cluster)


def test_a_decided_commit_keeps_aside_what_is_for_a_lost_disk_and_all_else_goes_on(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = TopicPartition("single", 1)  # on node 1 alone
    cluster.create_topic("single", partitions=2)
    disk, flip = cluster.path.parent / "disk-1", Coordinator._flip

    def unmounted_first(self: Coordinator, *args: Any, **named: Any) -> None:
        disk.rename(disk.with_name("away"))
        flip(self, *args, **named)

    extents = staged(cluster, {tuple(tp): [OLD] for tp in [*PARTITIONS, lost]})
    monkeypatch.setattr(Coordinator, "_flip", unmounted_first)
    commit(cluster, extents, clock)
    monkeypatch.undo()
    write(cluster, NEW, clock)
    assert values(cluster) == of(OLD, NEW)
    cluster.create_partitions("single", 3)
    (result,) = append_records(cluster, {lost: LATER}).values()
    assert isinstance(result.error, KafkaStorageError)
    assert [one.topic_partition for one in cluster.repair() if one.offline] == [lost]

    (disk.with_name("away")).rename(disk)
    clock.now_ms += 5_000
    reader = Cluster(str(cluster.path), files=ReadOnlyFiles())
    assert contents(reader)[lost] == records_of([OLD])
    (result,) = append_records(cluster, {lost: LATER}).values()
    assert (result.error, result.base_offset) == (None, 3)
    assert contents(cluster)[lost] == records_of([OLD, LATER])


@pytest.mark.parametrize("ended_by", ["delete", "unclean"])
def test_what_is_kept_for_a_lost_disk_can_be_given_up(
    cluster: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    lost = TopicPartition("single", 1)  # on node 1 alone
    cluster.create_topic("single", partitions=2)
    flip = Coordinator._flip

    def dies_first(self: Coordinator, *args: Any, **named: Any) -> None:
        shutil.rmtree(cluster.path.parent / "disk-1")
        flip(self, *args, **named)

    extents = staged(cluster, {tuple(lost): [OLD]})
    monkeypatch.setattr(Coordinator, "_flip", dies_first)
    commit(cluster, extents, clock)
    monkeypatch.undo()
    if ended_by == "delete":
        cluster.delete_topic("single")
        cluster.replace_log_dir(1)
        cluster.create_topic("single", partitions=2)
    else:
        cluster.replace_log_dir(1, unclean=True)
    (result,) = append_records(cluster, {lost: NEW}).values()

    assert (result.error, result.base_offset) == (None, 0)
    assert contents(cluster)[lost] == records_of([NEW])


def test_staged_files_that_a_disk_lacks_come_from_another_disk(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    folder = cluster.path.parent / "disk-1"
    disks.fail(folder / "staging-1", BROKEN)
    extents = job(cluster, NEW)
    disks.mend(folder / "staging-1")

    assert {extent.node_id for extent in extents} == {0, 2}
    commit(cluster, extents, clock)
    assert values(cluster) == of(NEW)
    ensure_equal_replicas(cluster)


def test_a_task_fails_if_no_copy_of_its_staged_files_is_left(
    cluster: Cluster, disks: Disks
) -> None:
    for node in NODES:
        disks.fail(cluster.path.parent / f"disk-{node}", BROKEN)
    with pytest.raises((OSError, KafkaStorageError)):
        job(cluster, NEW)


def test_with_too_few_replicas_in_sync_acks_all_commits_nothing_and_acks_1_does(
    tmp_path: Path, disks: Disks, clock: Clock
) -> None:
    config = TopicConfig(min_insync_replicas=2)
    cluster = with_clock(a_replicated_cluster(tmp_path, disks, partitions=2, config=config), clock)
    write(cluster, OLD, clock)
    for node in (1, 2):
        disks.fail(tmp_path / f"disk-{node}", READ_ONLY)
    extents = job(cluster, NEW)
    with pytest.raises(
        CommitError, match=r"nothing is visible: events-0 has the in-sync replicas 0, and"
    ):
        commit(cluster, extents, clock)
    assert values(cluster) == of(OLD)

    commit(cluster, extents, clock, acks=ACKS_LEADER)
    assert values(cluster) == of(OLD, NEW)
    for node in (1, 2):
        disks.mend(tmp_path / f"disk-{node}")
    clock.now_ms += 5_000
    write(cluster, LATER, clock)
    assert values(cluster) == of(OLD, NEW, LATER)
    ensure_equal_replicas(cluster)


def test_log_dirs_must_be_those_that_the_cluster_was_created_with(cluster: Cluster) -> None:
    folders = [str(cluster.path.parent / f"disk-{node}") for node in NODES]
    Cluster(cluster.path, create=True, log_dirs=folders)
    with pytest.raises(ConfigError, match=r"'log\.dirs' is .*disk-0.*exists with .*disk-2"):
        Cluster(cluster.path, create=True, log_dirs=folders[:1])


def test_replication_factor_must_be_the_one_that_the_topic_was_created_with(
    cluster: Cluster,
) -> None:
    options = {"path": str(cluster.path), "topic": "events", "replication.factor": "2"}
    with pytest.raises(ConfigError, match=r"'replication.factor' is 2, .* exists with 3"):
        find_or_create_topic(store_of(cluster), "events", parse_write_options(options))


def test_overwritten_records_are_deleted_from_every_replica(cluster: Cluster, clock: Clock) -> None:
    write(cluster, OLD, clock)
    committer = Coordinator(store_of(cluster).manager, clock, adopt_min_bytes=1, flush=True)
    overwrite = Overwrite(cluster.topic("events"), delete_delay_ms=0)
    committer.commit(job(cluster, NEW), transactional_id="job", overwrite=overwrite)
    assert values(cluster) == of(NEW)

    clock.now_ms += 60_001
    write(cluster, LATER, clock)
    store_of(cluster).manager.delete_old_segments(PARTITIONS, committer)
    assert values(cluster) == of(NEW, LATER)
    for tp in PARTITIONS:
        for node in NODES:
            names = store_of(cluster).files.list(
                store_of(cluster).metadata.cluster_file.log_directory(tp, node)
            )
            assert f"{3:020d}.log" in names
            assert not [name for name in names if name.startswith(f"{0:020d}")]


def begun(folder: Path, disks: Disks) -> tuple[Cluster, list[Extent], Clock]:
    """Return a cluster that holds OLD, the extents of a job that has staged NEW, and the clock."""
    clock = Clock()
    cluster = with_clock(a_replicated_cluster(folder, disks, partitions=2), clock)
    write(cluster, OLD, clock)
    return cluster, job(cluster, NEW), clock


# Faults at each step. A run without faults counts the steps.


def steps_of(tmp_path: Path, run: Callable[[Cluster, list[Extent], Clock], None]) -> int:
    disks = Disks()
    cluster, extents, clock = begun(tmp_path / "steps", disks)
    before = len(disks.steps)
    run(cluster, extents, clock)
    return len(disks.steps) - before


each_step = pytest.mark.parametrize(
    "every", [pytest.param(10, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def cases(tmp_path: Path, every: int) -> Iterator[tuple[Path, int]]:
    """Yield a folder and the number for each step of a commit."""
    for step in range(0, steps_of(tmp_path, commit), every):
        yield tmp_path / str(step), step
        shutil.rmtree(tmp_path / str(step))


class FailsLater(Disks):
    """Disks of which one folder fails at a step, and stays failed."""

    at: int | None = None
    folder = Path()

    def _check(self, path: Path, *, changes: bool) -> None:
        if self.at is not None and len(self.steps) > self.at:
            self.fail(self.folder, BROKEN)
        super()._check(path, changes=changes)


@each_step
@pytest.mark.parametrize("node", NODES)
def test_a_disk_may_fail_at_any_step_of_a_commit_and_come_back(
    tmp_path: Path, node: int, every: int
) -> None:
    for folder, step in cases(tmp_path, every):
        disks = FailsLater()
        cluster, extents, clock = begun(folder, disks)
        disks.folder, disks.at = folder / f"disk-{node}", len(disks.steps) + step
        commit(cluster, extents, clock)
        assert values(cluster) == of(OLD, NEW), step

        write(cluster, LATER, clock)
        disks.at = None
        disks.mend(disks.folder)
        clock.now_ms += 5_000
        write(cluster, OLD, clock)
        assert values(cluster) == of(OLD, NEW, LATER, OLD), step
        ensure_equal_replicas(cluster)


@each_step
@pytest.mark.parametrize("lost", [None, 0, 1])
def test_a_committer_may_die_at_any_step_and_a_disk_with_it(
    tmp_path: Path, lost: int | None, every: int
) -> None:
    for folder, step in cases(tmp_path, every):
        disks = Disks()
        cluster, extents, clock = begun(folder, disks)
        disks.kill_at = step
        with pytest.raises(Killed):
            commit(cluster, extents, clock)
        disks.kill_at = None
        if lost is not None:
            disks.fail(folder / f"disk-{lost}", BROKEN)

        survivor = with_clock(cluster, clock)
        seen = values(survivor)
        assert seen in (of(OLD), of(OLD, NEW)), step
        write(survivor, LATER, clock)
        # If the commit was not decided yet, the next write may have decided it.
        before, seen = seen, values(survivor)
        assert seen == of(OLD, NEW, LATER) or (seen == of(OLD, LATER) and before == of(OLD)), step
        if lost is not None:
            disks.mend(folder / f"disk-{lost}")
            clock.now_ms += 5_000
        append_records(survivor, {tuple(tp): OLD for tp in PARTITIONS}, flush=True)
        assert values(survivor) == [[*rows, *of(OLD)[0]] for rows in seen], step
        write(survivor, OLD, clock)
        ensure_equal_replicas(survivor)


@pytest.mark.parametrize(
    "every", [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_the_last_replica_may_fail_after_the_commit_point(tmp_path: Path, every: int) -> None:
    """No other replica has the decided commit, so its state is kept until its disk is back."""
    outcomes = set()
    for folder, step in cases(tmp_path, every):
        disks, clock = FailsLater(), Clock()
        cluster = with_clock(a_replicated_cluster(folder, disks, partitions=2), clock)
        write(cluster, OLD, clock)
        for node in (1, 2):
            disks.fail(folder / f"disk-{node}/broker-{node}/events-0", BROKEN)
            disks.fail(folder / f"disk-{node}/broker-{node}/events-1", BROKEN)
        write(cluster, LATER, clock)  # node 0 is the last of the ISR there
        for node in (1, 2):
            disks.mend(folder / f"disk-{node}/broker-{node}/events-0")
            disks.mend(folder / f"disk-{node}/broker-{node}/events-1")
        extents = job(cluster, NEW)
        disks.folder, disks.at = folder / "disk-0/broker-0", len(disks.steps) + step
        try:
            commit(cluster, extents, clock)
            outcome = COMMITTED
        except CommitError as error:
            outcome = error.outcome
        disks.at = None
        disks.mend(disks.folder)
        clock.now_ms += 5_000
        outcomes.add(outcome)
        seen = values(cluster)
        possible = {COMMITTED: [of(OLD, LATER, NEW)], NOTHING_VISIBLE: [of(OLD, LATER)]}
        assert seen in possible.get(outcome, [of(OLD, LATER), of(OLD, LATER, NEW)]), (step, outcome)
        write(cluster, OLD, clock)
        before, seen = seen, values(cluster)
        if seen != [[*rows, *of(OLD)[0]] for rows in before]:  # the next write decided it
            assert (outcome, seen) == (UNKNOWN, of(OLD, LATER, NEW, OLD)), step
        ensure_equal_replicas(cluster)
    assert outcomes >= {COMMITTED, NOTHING_VISIBLE}


def die_once_decided(cluster: Cluster, extents: list[Extent], clock: Clock) -> None:
    """Commit a job in a process that is killed when the commit is decided, before any replica shows it."""
    committer = Coordinator(store_of(cluster).manager, clock, adopt_min_bytes=1, flush=True)

    def die(*_: object, **__: object) -> None:
        raise Killed

    committer._flip = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        committer.commit(extents, transactional_id="job")


def test_a_reader_sees_a_decided_commit_in_every_replica(tmp_path: Path) -> None:
    """Even from a replica that stands in for the leader, before anyone has rolled the commit forward."""
    disks = Disks()
    cluster, extents, clock = begun(tmp_path, disks)
    die_once_decided(cluster, extents, clock)
    for node in NODES:
        assert values(cluster) == of(OLD, NEW), node
        disks.fail(tmp_path / f"disk-{node}", BROKEN)
        if node < 2:
            continue
        with pytest.raises((KBatchError, OSError)):
            values(cluster)


def test_an_unclean_election_finishes_a_decided_commit_where_its_data_is_there(
    tmp_path: Path, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, extents, clock = begun(tmp_path, disks)
    die_once_decided(cluster, extents, clock)
    dirs = [tmp_path / f"disk-{node}/broker-{node}" for node in NODES]
    for log in (folder / "events-1" / f"{0:020}.log" for folder in dirs):
        assert log.stat().st_size == len(OLD) + len(NEW)
        os.truncate(log, len(OLD))
    view = store_of(cluster).manager.partition(TRANSACTION_STATE).view
    after = view.state()._replace(
        leader=2, isr=(2,), partition_epoch=view.state().partition_epoch + 1
    )
    topic_id = cluster.topic(TRANSACTION_STATE.topic).topic_id
    store_of(cluster).metadata.partition_states.write(TRANSACTION_STATE, after, topic_id)
    for folder in dirs[1:]:
        shutil.rmtree(folder / str(TRANSACTION_STATE))
    cluster = with_clock(cluster, clock)

    assert store_of(cluster).coordinator(flush=True).elect_unclean()
    assert "dropped in events-1, where its data is not there" in caplog.text
    (whole, _), (part, _) = of(OLD, NEW), of(OLD)
    assert values(cluster) == [whole, part]
    write(cluster, LATER, clock)
    (whole, _), (part, _) = of(OLD, NEW, LATER), of(OLD, LATER)
    assert values(cluster) == [whole, part]


def test_an_unclean_election_of_the_commits_topic_writes_no_micro_batch_twice(
    tmp_path: Path, disks: Disks, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica that leads misses a commit, which the history has."""
    cluster = with_clock(a_replicated_cluster(tmp_path, disks, partitions=2), clock)

    def micro_batch(number: int, data: bytes, topic: str = "events") -> bool:
        committer = Coordinator(store_of(cluster).manager, clock, adopt_min_bytes=1, flush=True)
        extents = job(cluster, data)
        sums = f"{2 * len(records_of([data]))} rows to {topic} with 0 + {len(data)} bytes"
        evidence = Evidence(topic, sums, f"the plan of {number}", "", "query", "", "now")
        return committer.commit(
            extents,
            transactional_id="query",
            sequence=number,
            attempt=Attempt("query", number, evidence, None),
            author=Author(query_id="query"),
        )

    assert micro_batch(0, OLD)
    logs = [tmp_path / f"disk-{node}/broker-{node}/{TRANSACTION_STATE}" for node in NODES]
    shutil.copytree(logs[0], tmp_path / "image")
    assert micro_batch(1, NEW)
    states = store_of(cluster).metadata.partition_states
    topic_id = cluster.topic(TRANSACTION_STATE.topic).topic_id
    state = store_of(cluster).manager.partition(TRANSACTION_STATE).view.state()
    after = state._replace(leader=2, isr=(2,), partition_epoch=state.partition_epoch + 1)
    states.write(TRANSACTION_STATE, after, topic_id)
    for log in logs:
        shutil.rmtree(log)
    (tmp_path / "image").rename(logs[0])
    cluster = with_clock(cluster, clock)
    with pytest.raises(CommitError, match="no in-sync replica"):
        micro_batch(2, LATER)

    assert store_of(cluster).coordinator(flush=True).elect_unclean()
    # Of what told it from others the history has the rows by topic.
    said = "Committed is 1: 8 rows to events, 20.*from where the last micro-batch ended that it wrote to"
    for data, topic in ((LATER, "events"), (NEW, "other")):
        with pytest.raises(CommitError, match=f"its topic or its rows differ.*{said} {topic}"):
            micro_batch(1, data, topic)
    assert not micro_batch(1, NEW)
    assert "its checkpoint could not be compared, only its rows" in caplog.text
    with pytest.raises(CommitError, match="micro-batch 0 of query is no repetition"):
        micro_batch(0, OLD)
    assert micro_batch(2, LATER)
    assert values(cluster) == of(OLD, NEW, LATER)
