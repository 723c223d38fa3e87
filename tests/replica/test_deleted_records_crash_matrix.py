"""A process that deletes records of a replicated topic dies, or loses power, at every step: none of them is back.

There are three disks. After each crash the next process finds the log start where it was or where it was to go;
whichever disk is lost then, the log start never goes back, and appends go on.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.crashes import Crash, Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import Fault, SimulatedProcess
from tests.support.store import reader_of, store_of

PATH = "/simulated/cluster"
EVENTS = TopicPartition("events", 0)
OLD = [builders.batch(n=4, seed=n) for n in range(3)]
MORE = builders.batch(n=2, seed=9)
DELETED = {"records": 6, "segments": 8}


def deleting(kind: str, files: Files) -> None:
    cluster = Cluster(PATH, files=files)
    if kind == "records":
        cluster.delete_records({EVENTS: DELETED[kind]})
    else:
        cluster.collect_garbage()


def log_start(files: Files) -> int:
    return reader_of(Cluster(PATH, files=files)).edges([EVENTS])[EVENTS].log_start_offset


class Start:
    """A disk with three log dirs and batches, and what a deletion does to it."""

    def __init__(self, kind: str) -> None:
        self.kind, self.disk = kind, Disk()
        files = DiskFiles(self.disk)
        log_dirs = [f"/simulated/disk-{n}" for n in range(3)]
        cluster = Cluster(PATH, create=True, log_dirs=log_dirs, files=files)
        config = TopicConfig(segment_bytes=700)
        cluster.create_topic("events", replication_factor=3, config=config)
        for batch in OLD:
            builders.append_records(cluster, {EVENTS: batch}, flush=True)
        if kind == "segments":
            cluster.alter_topic("events", {"retention.bytes": 400})
        self.disk.settled()
        self.recording = Recording(self.disk, lambda files: deleting(kind, files))
        assert log_start(DiskFiles(self.recording.after)) == DELETED[kind]

    def ensure_survived(self, crash: Crash, lost: int) -> None:
        with crash.met():
            files = crash.files()
            before = log_start(files)
            assert before in (0, DELETED[self.kind]), crash
            files.remove_dir(Path(f"/simulated/disk-{lost}"))
            assert log_start(files) >= before, f"{crash}; disk {lost} is lost"
            cluster = Cluster(PATH, files=files)
            (result,) = builders.append_records(cluster, {EVENTS: MORE}, flush=True).values()
            assert (result.error, result.base_offset) == (None, 12), crash
            start = log_start(files)
            assert start >= before, crash
            assert builders.contents(cluster)[EVENTS] == builders.records_of([*OLD, MORE])[start:]
            states = [
                store_of(cluster).manager.partition(EVENTS).view.log_of(node).state()
                for node in {0, 1, 2} - {lost}
            ]
            assert len({(one.log_start_offset, one.log_end_offset) for one in states}) == 1, crash


@pytest.fixture(scope="module", params=list(DELETED))
def start(request: pytest.FixtureRequest) -> Start:
    return Start(request.param)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence what each case logs."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_deletion_is_done_or_not_and_is_never_undone(start: Start, lost: int) -> None:
    for crash in [*start.recording.kills(stride=3), *start.recording.torn_kills()]:
        start.ensure_survived(crash, lost)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("lost", [0, 1])
def test_a_deletion_whose_power_is_lost_is_done_or_not_and_is_never_undone(
    start: Start, lost: int
) -> None:
    for crash in start.recording.power_losses():
        start.ensure_survived(crash, lost)


def test_a_follower_that_cannot_delete_leaves_before_the_log_start_moves(start: Start) -> None:
    of_follower = [
        (at, step)
        for at, step in enumerate(start.recording.steps)
        if step.startswith("write") and "disk-1/broker-1/events-0" in step
    ]
    assert of_follower
    for at, step in of_follower:
        files = SimulatedProcess(start.disk.copy(), Fault(at, errno.EIO))
        deleting(start.kind, files)
        after = DiskFiles(files.disk)
        assert log_start(after) == DELETED[start.kind], step
        after.remove_dir(Path("/simulated/disk-0"))
        assert log_start(after) == DELETED[start.kind], step
