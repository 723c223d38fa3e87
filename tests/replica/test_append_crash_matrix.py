"""A producer that is killed, or that the disk fails, at every step of its appends.

Two batches go to each of two partitions, one of which begins a segment. What lay there before may
have left-overs of a job that died, or a job that is decided and waits to be finished. The steps are
those of a run without a fault; each is a case.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from spark_kbatch.cluster import Cluster
from spark_kbatch.config import TopicConfig
from spark_kbatch.errors import CommitError, KafkaStorageError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.transaction.snapshot import TRANSACTION_STATE
from tests import builders
from tests.faults import (
    CAN_BE_TORN,
    DiesAtTheCommitPoint,
    Fault,
    FaultyFiles,
    StopsInTheFlip,
    died,
    open_files,
)
from tests.log.soundness import ensure_sound
from tests.reference import Record

CONFIG = TopicConfig(segment_bytes=940, index_interval_bytes=1)
PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
# The second batch of partition 1 does not fit behind the first.
OLD = [[builders.batch(n=1)], [builders.batch(n=4)]]
JOB = [[builders.batch(n=1, seed=7)], [builders.batch(n=2, seed=8), builders.batch(n=5, seed=9)]]
NEW = [[builders.idempotent_batch(base_sequence=n, value=b"v" * 120)] for n in range(2)]
NEXT = builders.batch(n=2, seed=10)

Copies = Callable[[Path], Iterator[Path]]


def append(cluster: Cluster, number: int, partitions: Sequence[TopicPartition]) -> set[int]:
    """Append the producer's batch of this number; the partitions in which that failed."""
    found = builders.append_records(cluster, dict.fromkeys(partitions, NEW[number][0]), flush=True)
    errors = {tp.partition: result.error for tp, result in found.items() if result.error}
    assert all(isinstance(error, KafkaStorageError) for error in errors.values()), errors
    return set(errors)


def produce(path: Path, files: Files) -> None:
    """All of the producer's batches; the file `acknowledged` says how many were answered."""
    cluster = Cluster(str(path), files=files)
    for number in range(len(NEW)):
        assert not append(cluster, number, PARTITIONS)
        path.with_suffix(".acknowledged").write_text(str(number + 1))


def contents(path: Path) -> list[list[Record]]:
    return list(builders.contents(Cluster(str(path))).values())


def expected(before: list[list[bytes]], partition: int, appended: int) -> list[Record]:
    new = [data for batches in NEW[:appended] for data in batches]
    return builders.records_of([*before[partition], *new])


def appended(before: list[list[bytes]], path: Path) -> list[int]:
    """How many of the producer's batches each partition holds, which are whole and in order."""
    counts = []
    for partition, records in enumerate(contents(path)):
        whole = [expected(before, partition, count) for count in range(len(NEW) + 1)]
        assert records in whole, f"partition {partition} holds neither old nor new: {records}"
        counts.append(whole.index(records))
    return counts


def ensure_next_writers_work(before: list[list[bytes]], path: Path) -> None:
    counts = appended(before, path)
    cluster = Cluster(str(path), files=FaultyFiles())  # which does not wait for the disk
    results = builders.append_records(cluster, dict.fromkeys(PARTITIONS, NEXT), flush=True)
    assert [result.error for result in results.values()] == [None, None]
    builders.write(cluster, {place: [NEXT] for place in PARTITIONS})
    for partition, records in enumerate(contents(path)):
        new = [data for batches in NEW[: counts[partition]] for data in batches]
        assert records == builders.records_of([*before[partition], *new, NEXT, NEXT])
    for topic_partition in [*PARTITIONS, TRANSACTION_STATE]:
        ensure_sound(cluster.manager.log(topic_partition))


class Start:
    """What a producer finds: a cluster, the batches in it, and what it then does to the disk."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        cluster = builders.a_cluster(folder, topics={"events": 2}, config=CONFIG)
        builders.write(cluster, dict(zip(PARTITIONS, OLD, strict=True)))
        self.path, self.before = cluster.path, OLD
        if kind != "clean":
            extents = builders.staged(cluster, dict(zip(PARTITIONS, JOB, strict=True)))
        if kind == "left-overs":
            dying = Cluster(str(self.path), files=DiesAtTheCommitPoint())
            assert died(lambda: builders.commit(dying, extents))
        elif kind == "decided":
            with pytest.raises(CommitError):
                builders.commit(Cluster(str(self.path), files=StopsInTheFlip(1)), extents)
            self.before = [[*old, *job] for old, job in zip(OLD, JOB, strict=True)]
        copy, files = folder / "steps", FaultyFiles()
        shutil.copytree(self.path, copy)
        produce(copy, files)
        assert appended(self.before, copy) == [2, 2]
        self.steps = files.steps


@pytest.fixture(scope="module", params=["clean", "left-overs", "decided"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    return Start(request.param, tmp_path_factory.mktemp("start"))


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    """Fresh copies of a cluster, one after the other; each is removed when the next is taken."""

    def take(original: Path) -> Iterator[Path]:
        for number in itertools.count():
            path = tmp_path / str(number)
            shutil.copytree(original, path)
            yield path
            shutil.rmtree(path)

    return take


def test_the_appends_do_everything_that_an_append_can_do(start: Start) -> None:
    names = {step.split()[0] for step in start.steps}
    assert {"lock", "write", "create", "flush"} <= names
    assert any(step.startswith("write") and step.endswith(".index") for step in start.steps)
    assert ({"truncate", "remove"} <= names) == (start.kind == "left-overs")
    finishes_a_job = any("__transaction_state-0" in step for step in start.steps)
    assert finishes_a_job == (start.kind == "decided")


@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_producer_killed_at_any_step_leaves_whole_batches_and_all_that_were_acknowledged(
    start: Start, copies: Copies, torn: bool
) -> None:
    faults = [
        Fault(at, torn=torn)
        for at, step in enumerate(start.steps)
        if not torn or step.split()[0] in CAN_BE_TORN
    ]
    for fault, path in zip(faults, copies(start.path), strict=False):
        assert died(lambda path=path, fault=fault: produce(path, FaultyFiles(fault)))
        message = f"killed at {start.steps[fault.at]}"
        file = path.with_suffix(".acknowledged")
        acknowledged = int(file.read_text()) if file.exists() else 0
        file.unlink(missing_ok=True)
        counts = appended(start.before, path)
        assert all(acknowledged <= count <= acknowledged + 1 for count in counts), message
        assert counts[0] >= counts[1], f"{message}: partitions are written in their order"
        ensure_next_writers_work(start.before, path)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(at=0, error=errno.ENOSPC, torn=True, lasting=True), id="full disk"),
        pytest.param(Fault(at=0, error=errno.EIO, torn=True), id="one bad write"),
        pytest.param(Fault(at=0, error=errno.EROFS, lasting=True), id="remounted read-only"),
        pytest.param(Fault(at=0, error=errno.EACCES), id="one refusal"),
    ],
)
def test_after_an_error_of_the_disk_a_retry_leaves_each_batch_there_once(
    start: Start, copies: Copies, fault: Fault
) -> None:
    for (at, step), path in zip(enumerate(start.steps), copies(start.path), strict=False):
        message = f"{fault} at step {at}: {step}"
        files = FaultyFiles(Fault(at, fault.error, fault.torn, fault.lasting))
        cluster = Cluster(str(path), files=files)
        failures = 0
        for number in range(len(NEW)):
            failed = append(cluster, number, PARTITIONS)
            for partition, count in enumerate(appended(start.before, path)):
                sure = number + (partition not in failed)
                assert sure <= count <= number + 1, message
            if failed:
                failures += 1
                files.fault = None
                assert not append(cluster, number, [PARTITIONS[p] for p in failed]), message
        assert failures == 1, message
        assert not open_files(path), message

        assert appended(start.before, path) == [2, 2], message
        ensure_next_writers_work(start.before, path)
