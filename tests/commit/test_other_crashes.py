"""Crashes at every step of other operations: overwriting, collecting garbage, rewriting `__transaction_state`."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit import sequences
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.crashes import EVERY_STEP, Crash, Recording, another_boot
from tests.support.disk import Disk, DiskFiles
from tests.support.jobs import PATH, Contents, contents
from tests.support.store import store_of

SLOT = "__transaction_state-0/kbatch.state"
PLACES = [("events", 0), ("events", 1)]
OLD = {place: [builders.batch(seed=number)] for number, place in enumerate(PLACES)}
NEW = {PLACES[0]: [builders.batch(seed=7)]}  # the other partition is emptied
SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), id="one seed"),
        pytest.param(EVERY_STEP, id="many seeds", marks=pytest.mark.slow),
    ],
)
BATCH = builders.batch(seed=8)
NEXT = {place: [builders.batch(seed=9)] for place in PLACES}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings: each case logs some."""
    caplog.set_level(logging.ERROR)


def a_disk(config: TopicConfig | None = None, jobs: int = 1) -> Disk:
    disk = Disk()
    cluster = Cluster(PATH, create=True, files=DiskFiles(disk))
    cluster.create_topic("events", partitions=2, config=config)
    for _ in range(jobs):
        builders.commit(cluster, builders.staged(cluster, OLD), flush=True)
    return disk.settled()


def crashes(recording: Recording, seeds: range) -> Iterator[Crash]:
    losses = (recording.power_losses(seed) for seed in seeds)
    return itertools.chain(recording.kills(), recording.torn_kills(), *losses)


def found_and_written_to(crash: Crash) -> Contents:
    """Ensure that the next job works; return what a reader finds before it."""
    with crash.met():
        found = contents(crash.files())
        files = crash.files()
        builders.write(Cluster(PATH, files=files), NEXT)
        for topic_partition, records in contents(files).items():
            # With retention, the next job's commit deletes too.
            after = [*found[topic_partition], *records[-3:]]
            assert records == after[-len(records) :], crash
            assert records[0].offset + len(records) == records[-1].offset + 1, crash
    return found


def overwrite(files: Files) -> None:
    cluster = Cluster(PATH, files=files)
    extents = builders.staged(cluster, NEW, flush=True)
    committer = Coordinator(
        store_of(cluster).manager,
        lambda: builders.FIRST_TIMESTAMP_MS,
        adopt_min_bytes=0,
        flush=True,
    )
    replaced = Overwrite(cluster.topic("events"), 0)
    committer.commit(extents, transactional_id="job", overwrite=replaced)
    committer.discard(extents, builders.JOB)


@pytest.mark.more_in_soak
@SEEDS
def test_an_overwrite_that_crashes_at_any_step_replaces_all_or_nothing(seeds: range) -> None:
    recording = Recording(a_disk(), overwrite)
    decided = recording.first("write", SLOT)
    old, new = contents(DiskFiles(a_disk())), contents(DiskFiles(recording.after))
    assert [len(records) for records in new.values()] == [3, 0]
    for crash in crashes(recording, seeds):
        allowed = [new] if crash.at > decided else [old]
        if crash.power_lost and crash.at == decided + 1:
            allowed = [old, new]
        assert found_and_written_to(crash) in allowed, crash


def test_a_commit_that_the_next_writer_has_finished_survives_a_power_loss() -> None:
    def job(files: Files) -> None:
        cluster = Cluster(PATH, files=files)
        builders.commit(cluster, builders.staged(cluster, OLD, flush=True), flush=True)

    disk = a_disk()
    Cluster(PATH, files=DiskFiles(disk)).create_topic("other")
    recording = Recording(disk.settled(), job)
    decided = recording.first("write", SLOT)
    for crash in recording.kills(stride=1):
        files = crash.files()
        cluster = Cluster(PATH, files=files)
        # Elsewhere, so that it writes no state of these partitions.
        builders.commit(
            cluster, builders.staged(cluster, {("other", 0): [BATCH]}, flush=True), flush=True
        )
        for seed in range(10):
            with another_boot():
                found = contents(DiskFiles(files.disk.after_power_loss(random.Random(seed))))
            counts = [len(found[TopicPartition(*place)]) for place in PLACES]
            assert counts == [6 if crash.at > decided else 3] * 2, f"{crash}, seed {seed}"


@pytest.mark.more_in_soak
@SEEDS
def test_garbage_collection_that_crashes_at_any_step_removes_only_garbage(seeds: range) -> None:
    size = len(OLD[PLACES[0]][0])
    config = TopicConfig(segment_bytes=size, retention_bytes=2 * size, file_delete_delay_ms=0)
    disk = a_disk(config, jobs=2)
    cluster = Cluster(PATH, files=DiskFiles(disk))
    builders.commit(cluster, builders.staged(cluster, OLD, transaction="dead" * 8), flush=True)
    builders.staged(cluster, OLD, transaction="dead" * 8, flush=True)
    kept = contents(DiskFiles(disk))

    def collect(files: Files) -> None:
        Cluster(PATH, files=files).collect_garbage(staging_retention_ms=0)

    recording = Recording(disk.settled(), collect)
    left = contents(DiskFiles(recording.after))
    for crash in crashes(recording, seeds):
        for topic_partition, records in found_and_written_to(crash).items():
            allowed = (kept[topic_partition], left[topic_partition])
            assert records in allowed, f"{crash}: {topic_partition} has {records}"
        files = crash.files()
        with crash.met():
            collect(files)
            assert contents(files) == left, crash


def commit(files: Files, transactional_id: str, sequence: int) -> bool:
    """Commit a transaction; return False if it was skipped as a duplicate."""
    cluster = Cluster(PATH, files=files)
    extents = builders.staged(cluster, NEXT, flush=True)
    committer = Coordinator(
        store_of(cluster).manager,
        lambda: builders.FIRST_TIMESTAMP_MS,
        adopt_min_bytes=1 << 20,
        flush=True,
    )
    return committer.commit(extents, transactional_id=transactional_id, sequence=sequence)


@pytest.mark.more_in_soak
@SEEDS
def test_a_rewrite_that_crashes_at_any_step_keeps_each_ids_sequence(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = a_disk()
    assert commit(DiskFiles(disk), "a", 2)
    monkeypatch.setattr(sequences, "REWRITE_BYTES", 1)
    old = contents(DiskFiles(disk))
    recording = Recording(disk.settled(), lambda files: commit(files, "c", 0))
    new = contents(DiskFiles(recording.after))
    decided = recording.first("write", SLOT)
    assert sum(step.startswith("write") and SLOT in step for step in recording.steps) == 3
    for crash in crashes(recording, seeds):
        with crash.met():
            files = crash.files()
            found = contents(files)
            allowed = [new] if crash.at > decided else [old]
            if crash.power_lost and crash.at == decided + 1:
                allowed = [old, new]
            assert found in allowed, crash
            assert not commit(files, "a", 2), crash
            assert commit(files, "c", 0) == (found == old), crash
            assert contents(files) == new, crash
