"""Retention and deleted records in a cluster: beside commits, appends and readers."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    KafkaStorageError,
    KBatchError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log.segment import LogSegments, segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.manager import RETENTION_CHECK_INTERVAL_MS
from spark_kbatch.store.reports import Deletion
from tests.support import builders
from tests.support.builders import JOB, append_records, batch
from tests.support.faults import (
    DiesAtTheCommitPoint,
    Fault,
    FaultyFiles,
    StopsInTheFlip,
    died,
)
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

EVENTS = TopicPartition("events", 0)
OTHERS = [TopicPartition("others", 0), TopicPartition("others", 1)]
SIZE = len(batch())
DAY = 86_400_000
# A batch of three records fills a segment; two segments are kept.
CONFIG = TopicConfig(segment_bytes=SIZE, retention_bytes=2 * SIZE)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, config=CONFIG, files=FaultyFiles())
    cluster.create_topic("others", partitions=2, config={"retention.ms": -1})
    return cluster


def bases(cluster: Cluster, topic_partition: TopicPartition = EVENTS) -> list[int]:
    log = store_of(cluster).manager.log(topic_partition)
    return log.segments.bases(log.state())


def offsets(cluster: Cluster, topic_partition: TopicPartition = EVENTS) -> list[int]:
    return [record.offset for record in builders.contents(cluster)[topic_partition]]


def later(cluster: Cluster, ms: int) -> None:
    """Set the clocks of its logs ahead."""
    now_ms: Callable[[], int] = store_of(cluster).manager.now_ms
    monotonic_ms = store_of(cluster).manager.monotonic_ms
    store_of(cluster).manager.now_ms = lambda: now_ms() + ms
    store_of(cluster).manager.monotonic_ms = lambda: monotonic_ms() + ms


# After commits and appends.


def test_a_commit_is_followed_by_retention(cluster: Cluster) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2, OTHERS[0]: [batch()] * 4})
    assert bases(cluster) == [0, 3]
    builders.write(cluster, {EVENTS: [batch()] * 2})
    assert bases(cluster) == [6, 9]
    assert offsets(cluster) == [*range(6, 12)]
    assert offsets(cluster, OTHERS[0]) == [*range(12)]
    for topic_partition in (EVENTS, *OTHERS, TRANSACTION_STATE):
        ensure_sound(store_of(cluster).manager.log(topic_partition))


def test_what_goes_wrong_in_retention_is_not_the_commits(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more space")

    monkeypatch.setattr(retention, "delete_old_segments", fail)
    with caplog.at_level(logging.WARNING):
        builders.write(cluster, {EVENTS: [batch()] * 3})
        assert append_records(cluster, {EVENTS: batch()})[EVENTS].error is None
    assert [record.getMessage() for record in caplog.records] == [
        "old segments cannot be deleted for now: no more space",
        "cannot delete old segments of events-0 for now: no more space",
    ]
    assert offsets(cluster) == [*range(12)]


def test_appends_are_followed_by_retention_every_five_minutes(cluster: Cluster) -> None:
    for _ in range(4):
        append_records(cluster, {EVENTS: batch()})
    assert bases(cluster) == [0, 3, 6, 9]
    later(cluster, RETENTION_CHECK_INTERVAL_MS)
    append_records(cluster, {EVENTS: batch()})
    assert bases(cluster) == [9, 12]
    append_records(cluster, {EVENTS: batch()})
    assert bases(cluster) == [9, 12, 15]
    assert offsets(cluster) == [*range(9, 18)]


def test_an_idempotent_producer_goes_on_after_its_batches_were_deleted(cluster: Cluster) -> None:
    for sequence in range(5):
        data = builders.idempotent_batch(base_sequence=sequence, value=b"v" * 300)
        assert append_records(cluster, {EVENTS: data})[EVENTS].error is None
    cluster.collect_garbage()
    assert len(offsets(cluster)) < 5
    for sequence in (4, 5):  # a duplicate, and the next
        data = builders.idempotent_batch(base_sequence=sequence, value=b"v" * 300)
        assert append_records(cluster, {EVENTS: data})[EVENTS].base_offset == sequence


# Deleting records.


def test_records_are_deleted_in_several_partitions(cluster: Cluster) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2, OTHERS[0]: [batch()], OTHERS[1]: [batch()]})
    assert cluster.delete_records({EVENTS: 4, OTHERS[1]: -1}) == {EVENTS: 4, OTHERS[1]: 3}
    assert offsets(cluster) == [4, 5], "also within a batch"
    assert (offsets(cluster, OTHERS[0]), offsets(cluster, OTHERS[1])) == ([0, 1, 2], [])
    assert bases(cluster) == [3]
    assert cluster.delete_records({EVENTS: 1}) == {EVENTS: 4}
    edges = reader_of(cluster).edges([EVENTS])[EVENTS]
    assert (edges.log_start_offset, edges.high_watermark) == (4, 6)
    assert cluster.delete_records({}) == {}


def test_a_range_that_begins_below_the_log_start_is_out_of_range(cluster: Cluster) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2})
    cluster.delete_records({EVENTS: 2})
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 1 of events-0 .* offsets 2 to 6"):
        list(cluster.read("events", start=1))
    assert offsets(cluster) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("offset", "error", "said"),
    [
        (7, OffsetOutOfRangeError, "offset 7 of events-0"),
        (-2, ConfigError, "the offset of events-0 is -2"),
    ],
)
def test_one_offset_out_of_range_deletes_nothing_anywhere(
    cluster: Cluster, offset: int, error: type[KBatchError], said: str
) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2, OTHERS[0]: [batch()]})
    with pytest.raises(error, match=said):
        cluster.delete_records({OTHERS[0]: 2, EVENTS: offset})
    assert offsets(cluster, OTHERS[0]) == [0, 1, 2]
    assert len(offsets(cluster)) == 6


def test_records_of_what_is_not_the_users_are_not_deleted(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="the cluster's own"):
        cluster.delete_records({TRANSACTION_STATE: 0})
    for topic_partition in (TopicPartition("nothing", 0), TopicPartition("events", 1)):
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.delete_records({topic_partition: 0})


@pytest.mark.parametrize("what", ["delete records", "collect garbage", "append"])
def test_a_commit_that_a_dead_committer_left_is_finished_before(
    cluster: Cluster, what: str
) -> None:
    builders.write(cluster, {EVENTS: [batch()], OTHERS[0]: [batch()]})
    extents = builders.staged(cluster, {EVENTS: [batch()] * 2, OTHERS[0]: [batch(n=2)]})
    with pytest.raises(CommitError):
        builders.commit(Cluster(str(cluster.path), files=StopsInTheFlip(1)), extents)
    # Neither partition's own state has the commit: nothing of it may be overwritten.
    again = Cluster(str(cluster.path), files=FaultyFiles())
    if what == "delete records":
        again.delete_records({EVENTS: 8, OTHERS[0]: 4})
    elif what == "collect garbage":
        again.collect_garbage()
    else:
        append_records(again, {EVENTS: batch(n=1)})
    found = {"delete records": [8], "collect garbage": [*range(3, 9)], "append": [*range(3, 10)]}
    assert offsets(again) == found[what]
    assert offsets(again, OTHERS[0]) == ([4] if what == "delete records" else [*range(5)])
    for topic_partition in (EVENTS, OTHERS[0]):
        if what != "append":
            ensure_sound(store_of(again).manager.log(topic_partition))


# Beside readers.


@pytest.mark.parametrize("gone", ["before the files are listed", "before the file is opened"])
def test_a_reader_whose_segment_goes_meanwhile_is_told_that_the_log_begins_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2})
    log = store_of(cluster).manager.log(EVENTS)
    list_segments = LogSegments.bases

    def segments(self: LogSegments, state: LogState) -> list[int]:
        monkeypatch.undo()
        before = list_segments(self, state)
        cluster.delete_records({EVENTS: 4})
        return before if "opened" in gone else list_segments(self, state)

    monkeypatch.setattr(LogSegments, "bases", segments)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 1 of events-0 .* offsets 4 to 6"):
        list(cluster.read("events", start=1))
    assert list_segments(log.segments, log.state()) == [3]


def test_a_segment_that_is_gone_for_no_reason_is_a_storage_error(cluster: Cluster) -> None:
    builders.write(cluster, {EVENTS: [batch()] * 2})
    segment_at(store_of(cluster).manager.log(EVENTS).directory, 0).log.unlink()
    with pytest.raises(KafkaStorageError, match="no segment holds offset 1"):
        list(cluster.read("events", start=1))


# Garbage.


def an_abandoned_job(cluster: Cluster, name: str, *, age_ms: int, newest: str) -> None:
    """Stage as a task of a job did, last writing to `newest` `age_ms` ago; all else is older."""
    builders.staged(cluster, {EVENTS: [batch()], OTHERS[0]: [batch()]}, transaction=name)
    folder = store_of(cluster).metadata.cluster_file.log_dir(0).staging / name
    (folder / "driver").write_bytes(b"mark")
    for path in (*folder.rglob("*"), folder):
        age = age_ms if path.name == newest else 100 * DAY
        time = builders.FIRST_TIMESTAMP_MS - age
        os.utime(path, ns=(time * 1_000_000, time * 1_000_000))


def everything(cluster: Cluster) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in cluster.path.rglob("*") if p.is_file()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spark_kbatch.catalog.folder_clock.now_ms", lambda: builders.FIRST_TIMESTAMP_MS
    )


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("newest", ["driver", "shared", JOB])
def test_what_a_dead_job_staged_goes_by_its_newest_file(cluster: Cluster, newest: str) -> None:
    an_abandoned_job(cluster, JOB, age_ms=7 * DAY, newest=newest)
    assert cluster.collect_garbage(staging_retention_ms=7 * DAY + 1).abandoned_jobs == []
    found = cluster.collect_garbage().abandoned_jobs
    assert [tuple(abandoned) for abandoned in found] == [(JOB, 2 * SIZE + 4, 7 * DAY)]
    assert list(store_of(cluster).metadata.cluster_file.log_dir(0).staging.iterdir()) == []


@pytest.mark.usefixtures("clock")
def test_a_dry_run_says_what_would_go_and_changes_nothing(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()})
    for _ in range(3):
        append_records(cluster, {EVENTS: batch()})
    an_abandoned_job(cluster, JOB, age_ms=8 * DAY, newest="driver")
    before = everything(cluster)
    planned = cluster.collect_garbage(dry_run=True)

    assert everything(cluster) == before
    assert planned.partitions[EVENTS] == Deletion(6, (0, 3), 2 * SIZE, ())
    done = cluster.collect_garbage()
    assert done._replace(waiting=planned.waiting) == planned
    (waiting,) = done.waiting
    assert (waiting.what, waiting.name) == ("deleted segments", "events-0")
    assert offsets(cluster) == [*range(6, 12)]
    assert cluster.collect_garbage().partitions[EVENTS] == Deletion(6, (), 0, ())


def test_what_a_killed_commit_has_placed_goes(cluster: Cluster) -> None:
    append_records(cluster, {OTHERS[0]: batch()})
    extents = builders.staged(
        cluster, {OTHERS[0]: [batch(seed=1)], OTHERS[1]: [batch(seed=2)]}, adopt_min_bytes=0
    )
    killed = Cluster(cluster.path, files=DiesAtTheCommitPoint())
    assert died(lambda: builders.commit(killed, extents, adopt_min_bytes=0))
    logs = [store_of(cluster).manager.log(tp) for tp in OTHERS]

    def sizes() -> list[int]:
        return [sum(file.stat().st_size for file in log.directory.glob("*.log")) for log in logs]

    assert sizes() == [2 * SIZE, SIZE]
    cluster.collect_garbage()
    assert sizes() == [log.state().segment_size for log in logs] == [SIZE, 0]
    assert offsets(cluster, OTHERS[0]) == [0, 1, 2]


def test_a_collection_leaves_a_commit_that_is_being_decided(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    extents = builders.staged(cluster, {OTHERS[0]: [batch()]})
    decide = Coordinator._decide

    def collect_first(coordinator: Coordinator, decided: LogState) -> LogState:
        Cluster(cluster.path).collect_garbage(["__transaction_state"])
        return decide(coordinator, decided)

    monkeypatch.setattr(Coordinator, "_decide", collect_first)
    builders.commit(cluster, extents)
    monkeypatch.undo()
    builders.commit(cluster, builders.staged(cluster, {OTHERS[0]: [batch(seed=1)]}))
    assert len(offsets(cluster, OTHERS[0])) == 6


@pytest.mark.parametrize("kind", ["file", "link", "loop", "folder"])
def test_what_no_job_made_stays_and_stops_nothing(cluster: Cluster, kind: str) -> None:
    for _ in range(4):
        append_records(cluster, {EVENTS: batch()})
    builders.staged(cluster, {EVENTS: [batch()]}, transaction="f" * 32)
    elsewhere = cluster.path.with_name("elsewhere")
    (elsewhere / "text").mkdir(parents=True)
    staging = store_of(cluster).metadata.cluster_file.log_dir(0).staging
    strays = [staging / name for name in (".nfs0001", "a" * 32)]
    for path in strays:
        if kind == "file":
            path.write_bytes(b"x")
        elif kind == "link":
            path.symlink_to(elsewhere)
        elif kind == "loop":
            path.symlink_to(path)
        else:
            path.mkdir()
            (path / "text").write_bytes(b"x")
    found = cluster.collect_garbage(staging_retention_ms=0)
    assert [path for path, _ in found.not_removed] == strays
    assert all(why for _, why in found.not_removed)
    assert [abandoned.transaction for abandoned in found.abandoned_jobs] == ["f" * 32]
    assert len(found.partitions[EVENTS].segments) == 2
    assert sorted(staging.iterdir()) == strays
    assert (elsewhere / "text").exists()


def test_no_retention_makes_files_of_running_jobs_garbage(cluster: Cluster) -> None:
    extents = builders.staged(cluster, {EVENTS: [batch()]})
    with pytest.raises(
        ConfigError, match="staging_retention_ms is -1; accepted: a whole number from 0"
    ):
        cluster.collect_garbage(staging_retention_ms=-1)
    builders.commit(cluster, extents)

    assert len(offsets(cluster)) == 3


def test_links_in_what_a_dead_job_left_are_not_followed(cluster: Cluster) -> None:
    elsewhere = cluster.path.with_name("elsewhere")
    elsewhere.mkdir()
    (elsewhere / "text").write_bytes(b"x" * 1000)
    builders.staged(cluster, {EVENTS: [batch()]}, transaction=JOB)
    (attempt,) = (store_of(cluster).metadata.cluster_file.log_dir(0).staging / JOB).iterdir()
    (attempt / "link").symlink_to(elsewhere)
    (attempt / "loop").symlink_to(attempt)
    (abandoned,) = cluster.collect_garbage(staging_retention_ms=0).abandoned_jobs
    assert abandoned.size_in_bytes == SIZE
    assert (elsewhere / "text").exists()
    assert list(store_of(cluster).metadata.cluster_file.log_dir(0).staging.iterdir()) == []


def test_what_cannot_be_removed_is_told_and_stops_nothing(cluster: Cluster) -> None:
    class Stuck(Files):
        def remove_dir(self, path: Path) -> None:
            if path.name == "a" * 32:
                raise PermissionError(13, "Permission denied", str(path))
            super().remove_dir(path)

    for name in ("a" * 32, "b" * 32):
        builders.staged(cluster, {EVENTS: [batch()]}, transaction=name)
    found = Cluster(str(cluster.path), files=Stuck()).collect_garbage(staging_retention_ms=0)
    ((path, why),) = found.not_removed
    assert (path.name, "Permission denied" in why) == ("a" * 32, True)
    assert [abandoned.transaction for abandoned in found.abandoned_jobs] == ["b" * 32]


def test_nothing_is_removed_beside_a_log_dir_that_is_not_the_clusters(cluster: Cluster) -> None:
    builders.staged(cluster, {EVENTS: [batch()]}, transaction=JOB)
    (store_of(cluster).metadata.cluster_file.log_dir(0).path / "meta.properties").unlink()
    Cluster(str(cluster.path)).collect_garbage(["others"], staging_retention_ms=0)
    assert (store_of(cluster).metadata.cluster_file.log_dir(0).staging / JOB).exists()


def test_garbage_of_some_topics_is_collected_alone(cluster: Cluster) -> None:
    builders.write(cluster, {OTHERS[0]: [batch()]})
    append_records(cluster, {EVENTS: batch()})
    for _ in range(3):
        append_records(cluster, {EVENTS: batch()})
    assert [*cluster.collect_garbage(["others"]).partitions] == OTHERS
    assert len(bases(cluster)) == 4
    assert [*cluster.collect_garbage(["events"]).partitions] == [EVENTS]
    assert len(bases(cluster)) == 2
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.collect_garbage(["nothing"])


def test_deleted_files_go_after_their_delay_also_without_retention(cluster: Cluster) -> None:
    cluster.create_topic("short", config=TopicConfig(segment_bytes=SIZE, file_delete_delay_ms=50))
    place = TopicPartition("short", 0)
    builders.write(cluster, {place: [batch()] * 3})
    cluster.delete_records({place: 7})
    folder = store_of(cluster).manager.log(place).directory
    assert len(list(folder.glob("*.deleted"))) == 6
    later(cluster, 50)
    assert len(cluster.collect_garbage().partitions[place].files) == 6
    assert list(folder.glob("*.deleted")) == []
    assert offsets(cluster, place) == [7, 8]


# A crash.


@pytest.mark.parametrize("what", ["collect garbage", "delete records"])
def test_a_kill_at_any_step_loses_no_record_that_is_to_stay_and_is_finished_next(
    tmp_path: Path, what: str
) -> None:
    def work(path: Path, files: FaultyFiles) -> None:
        cluster = Cluster(str(path), files=files)
        if what == "collect garbage":
            cluster.collect_garbage(staging_retention_ms=0)
        else:
            cluster.delete_records({EVENTS: 7, OTHERS[0]: 2})

    original = builders.a_cluster(tmp_path, config=CONFIG, files=FaultyFiles())
    original.create_topic("others", partitions=2, config={"retention.ms": -1})
    for _ in range(4):
        append_records(original, {EVENTS: batch(), OTHERS[0]: batch()})
    an_abandoned_job(original, JOB, age_ms=DAY, newest="driver")
    before = {EVENTS: [*range(12)], OTHERS[0]: [*range(12)]}
    starts = {EVENTS: 6, OTHERS[0]: 0} if what == "collect garbage" else {EVENTS: 7, OTHERS[0]: 2}
    counted = FaultyFiles()
    shutil.copytree(original.path, tmp_path / "steps")
    work(tmp_path / "steps", counted)
    assert {"lock", "write", "touch", "rename"} <= {step.split()[0] for step in counted.steps}
    for at, step in enumerate(counted.steps):
        path = tmp_path / str(at)
        shutil.copytree(original.path, path)
        assert died(lambda path=path, at=at: work(path, FaultyFiles(Fault(at))))
        found = Cluster(str(path), files=FaultyFiles())
        for tp, start in starts.items():
            assert offsets(found, tp) in (before[tp], before[tp][start:]), f"killed at {step}"
        work(path, FaultyFiles())
        for tp, start in starts.items():
            assert offsets(found, tp) == before[tp][start:], f"killed at {step}"
            ensure_sound(store_of(found).manager.log(tp))
        assert (store_of(found).metadata.cluster_file.log_dir(0).staging / JOB).exists() == (
            what == "delete records"
        )
        assert append_records(found, {EVENTS: batch()})[EVENTS].base_offset == 12
        shutil.rmtree(path)
