"""A producer that is killed, loses power, or meets a failing disk, at every step of its appends.

Two batches go to each of two partitions, one of which starts a segment. What lay there before may
have the batches of a job that died, or a job that is decided and waits to be finished. The steps are
those of a run without a fault; each is a case.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.crashes import EVERY_STEP, Crash, Recording, sample
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import DISK_FAULTS, Fault, SimulatedProcess
from tests.support.reference import Record
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

PATH = "/simulated/cluster"
ACKNOWLEDGED = Path("/simulated/acknowledged/count")
CONFIG = TopicConfig(segment_bytes=940, index_interval_bytes=1)
PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
# The second batch of partition 1 does not fit into the segment of the first.
OLD = [[builders.batch(n=1)], [builders.batch(n=4)]]
JOB = [[builders.batch(n=1, seed=7)], [builders.batch(n=2, seed=8), builders.batch(n=5, seed=9)]]
NEW = [[builders.idempotent_batch(base_sequence=n, value=b"v" * 120)] for n in range(2)]
NEXT = builders.batch(n=2, seed=10)


def append(cluster: Cluster, number: int, partitions: Sequence[TopicPartition]) -> set[int]:
    """Append the producer's batch of this number; return the partitions in which that failed."""
    found = builders.append_records(cluster, dict.fromkeys(partitions, NEW[number][0]), flush=True)
    errors = {tp.partition: result.error for tp, result in found.items() if result.error}
    assert all(isinstance(error, KafkaStorageError) for error in errors.values()), errors
    return set(errors)


def produce(files: Files) -> None:
    """Append all of the producer's batches; the file `acknowledged` has how many were answered."""
    cluster = Cluster(PATH, files=files)
    for number in range(len(NEW)):
        assert not append(cluster, number, PARTITIONS)
        files.write(ACKNOWLEDGED, 0, bytes([number + 1]))
        files.flush([ACKNOWLEDGED, ACKNOWLEDGED.parent])


def acknowledged(files: DiskFiles) -> int:
    data = files.read(ACKNOWLEDGED) if files.exists(ACKNOWLEDGED) else b""
    return data[0] if data else 0


def contents(files: Files) -> list[list[Record]]:
    return list(builders.contents(Cluster(PATH, files=files)).values())


def expected(before: list[list[bytes]], partition: int, appended: int) -> list[Record]:
    new = [data for batches in NEW[:appended] for data in batches]
    return builders.records_of([*before[partition], *new])


def appended(before: list[list[bytes]], files: Files) -> list[int]:
    """Return how many of the producer's batches each partition holds; they are whole and in order."""
    counts = []
    for partition, records in enumerate(contents(files)):
        whole = [expected(before, partition, count) for count in range(len(NEW) + 1)]
        assert records in whole, f"partition {partition} holds neither old nor new: {records}"
        counts.append(whole.index(records))
    return counts


def ensure_next_writers_work(
    before: list[list[bytes]], counts: list[int], files: DiskFiles
) -> None:
    cluster = Cluster(PATH, files=files)
    results = builders.append_records(cluster, dict.fromkeys(PARTITIONS, NEXT), flush=True)
    assert [result.error for result in results.values()] == [None, None]
    builders.write(cluster, {place: [NEXT] for place in PARTITIONS})
    for partition, records in enumerate(contents(files)):
        new = [data for batches in NEW[: counts[partition]] for data in batches]
        assert records == builders.records_of([*before[partition], *new, NEXT, NEXT])
    for topic_partition in [*PARTITIONS, TRANSACTION_STATE]:
        ensure_sound(store_of(cluster).manager.log(topic_partition))


class Start:
    """A disk with batches, and what a producer then does to it."""

    def __init__(self, kind: str) -> None:
        self.kind, self.before, self.disk = kind, OLD, Disk()
        files = DiskFiles(self.disk)
        files.make_dir(ACKNOWLEDGED.parent)
        cluster = Cluster(PATH, create=True, files=files)
        cluster.create_topic("events", partitions=2, config=CONFIG)
        old = builders.staged(cluster, dict(zip(PARTITIONS, OLD, strict=True)))
        builders.commit(cluster, old, flush=True)
        if kind != "clean":
            extents = builders.staged(cluster, dict(zip(PARTITIONS, JOB, strict=True)))
            commit = Recording(
                self.disk, lambda files: builders.commit(Cluster(PATH, files=files), extents)
            )
            decided_at = commit.first("write", "__transaction_state-0/kbatch.state")
            flipped_at = commit.first("write", "events-0/kbatch.state")
            at = decided_at if kind == "abandoned" else flipped_at + 1
            self.disk = next(crash.disk for crash in commit.kills(stride=1) if crash.at >= at)
            if kind == "decided":
                self.before = [[*old, *job] for old, job in zip(OLD, JOB, strict=True)]
        self.disk.settled()
        self.recording = Recording(self.disk, produce)
        self.steps = self.recording.steps
        assert appended(self.before, DiskFiles(self.recording.after)) == [2, 2]


@pytest.fixture(scope="module", params=["clean", "abandoned", "decided"])
def start(request: pytest.FixtureRequest) -> Start:
    return Start(request.param)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings that each case logs."""
    caplog.set_level(logging.ERROR)


def test_the_appends_do_everything_that_an_append_can_do(start: Start) -> None:
    names = {step.split()[0] for step in start.steps}
    assert {"lock", "write", "create", "flush"} <= names
    assert any(step.startswith("write") and step.endswith(".index") for step in start.steps)
    assert ({"truncate", "remove"} <= names) == (start.kind == "abandoned")
    finishes_a_job = any("__transaction_state-0" in step for step in start.steps)
    assert finishes_a_job == (start.kind == "decided")


def ensure_nothing_is_lost(start: Start, crash: Crash) -> None:
    with crash.met():
        sure = acknowledged(crash.files())
        counts = appended(start.before, crash.files())
        assert all(sure <= count <= sure + 1 for count in counts), crash
        assert counts[0] >= counts[1], f"{crash}: partitions are written in their order"
        ensure_next_writers_work(start.before, counts, crash.files())


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_producer_killed_at_any_step_leaves_whole_batches_and_all_that_were_acknowledged(
    start: Start, torn: bool
) -> None:
    for crash in start.recording.torn_kills() if torn else start.recording.kills():
        ensure_nothing_is_lost(start, crash)


@pytest.mark.more_in_soak
def test_a_producer_whose_power_is_lost_at_any_step_leaves_all_that_were_acknowledged(
    start: Start,
) -> None:
    for crash in start.recording.power_losses():
        ensure_nothing_is_lost(start, crash)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_a_producer_that_crashes_in_another_way_leaves_them_too(start: Start, seed: int) -> None:
    for crash in [*start.recording.power_losses(seed), *start.recording.torn_kills(seed)]:
        ensure_nothing_is_lost(start, crash)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("fault", DISK_FAULTS)
def test_after_an_error_of_the_disk_a_retry_leaves_each_batch_there_once(
    start: Start, fault: Fault
) -> None:
    steps = [step for step in start.steps[:-1] if str(ACKNOWLEDGED.parent) not in step]
    for at, step in sample(list(enumerate(steps))):
        message = f"{fault} at step {at}: {step}"
        files = SimulatedProcess(
            start.disk.copy(), Fault(at, fault.error, fault.torn, fault.lasting)
        )
        cluster = Cluster(PATH, files=files)
        failures = 0
        for number in range(len(NEW)):
            failed = append(cluster, number, PARTITIONS)
            for partition, count in enumerate(appended(start.before, DiskFiles(files.disk))):
                sure = number + (partition not in failed)
                assert sure <= count <= number + 1, message
            if failed:
                failures += 1
                files.fault = None
                assert not append(cluster, number, [PARTITIONS[p] for p in failed]), message
        assert failures == 1, message
        assert not files.open_files(), message

        counts = appended(start.before, DiskFiles(files.disk))
        assert counts == [2, 2], message
        ensure_next_writers_work(start.before, counts, DiskFiles(files.disk))
