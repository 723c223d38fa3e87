"""Forked children go on with the clusters and logs that their parent had open."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import mutexes
from tests.support import builders
from tests.support.faults import run_child
from tests.support.store import store_of

SOON = 20  # seconds: work that has not ended by then hangs


def ends(work: Callable[[], object]) -> bool:
    """Return True if a child that does `work` ends without an error; one that hangs is killed."""

    def work_for_a_while() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SOON)
        work()

    _, status = os.waitpid(run_child(work_for_a_while), 0)
    return status == 0


def ensure_a_child_can(work: Callable[[], object], mutex: Any) -> None:
    """Ensure that a child forked while a thread holds the mutex can do `work`."""
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            is_held.set()
            may_end.wait(2 * SOON)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(SOON)
    try:
        assert ends(work)
    finally:
        may_end.set()
        thread.join()


@pytest.mark.parametrize("part", ["partitions", "log dirs"])
def test_a_child_uses_a_cluster_whose_mutex_a_thread_held_at_the_fork(
    tmp_path: Path, part: str
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    builders.append_records(cluster, {("events", 0): builders.batch(n=3)})
    held = store_of(cluster).manager if part == "partitions" else store_of(cluster).manager.dirs

    def work() -> None:
        assert store_of(cluster).manager.dirs.is_online(0)
        result = builders.append_records(cluster, {("events", 1): builders.batch(n=3)})
        assert [one.error for one in result.values()] == [None]
        assert cluster.read("events").read_all().num_rows == 6

    ensure_a_child_can(work, held._mutex)
    assert cluster.read("events").read_all().num_rows == 6


def test_a_child_reads_a_brokers_logs_whose_mutexes_a_thread_held_at_the_fork(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.append_records(cluster, {("events", 0): builders.batch(n=3)})
    shutil.copytree(cluster.path / "broker-0", tmp_path / "logs")
    before = list(mutexes._owners)
    logs = spark_kbatch.open(str(tmp_path / "logs"))
    assert logs.read("events").read_all().num_rows == 3
    owners = [owner for owner in list(mutexes._owners) if owner not in before]
    names = {(type(owner).__name__, name) for owner in owners for name in mutexes._owners[owner]}
    assert names == {
        ("ForeignLogDir", "_mutex"),
        ("ForeignLog", "_mutex"),
        ("ForeignLog", "_replay_mutex"),
        ("Positions", "_mutex"),
    }

    def work() -> None:
        assert logs.read("events").read_all().num_rows == 3
        assert not any(
            getattr(owner, name).locked() for owner in owners for name in mutexes._owners[owner]
        )

    for owner in owners:
        for name in mutexes._owners[owner]:
            ensure_a_child_can(work, getattr(owner, name))


def test_a_fork_leaves_the_parents_mutexes_held() -> None:
    class Owner:
        one: threading.Lock
        two: threading.Lock

    owner = Owner()
    mutexes.make(owner, "one", "two")
    with owner.one:
        assert ends(lambda: owner.one.acquire(timeout=SOON) or os._exit(2))
        assert owner.one.locked()
    assert not owner.two.locked()


def test_mutexes_are_forgotten_with_their_owner() -> None:
    class Owner:
        pass

    before = len(mutexes._owners)
    owner = Owner()
    mutexes.make(owner, "one")
    assert len(mutexes._owners) == before + 1
    del owner
    assert len(mutexes._owners) <= before
