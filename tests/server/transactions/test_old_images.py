"""The log of transactions from an older image of its disk decides nothing that the partitions know better.

A server runs, is stopped, and another runs; then it is killed at some step, and the log's directory comes back as it was
at some step of the first run. Either an error names the partitions and nothing is written to any, or all is right.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.model import TopicPartition
from tests.support import draws
from tests.support.crashes import Crash, Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.raw_transactions import EVENTS, OTHER
from tests.support.recorded_server import (
    PATH,
    Script,
    made_disk,
    nothing_but_a_server_comes,
    producers_start_again,
)
from tests.support.store import store_of
from tests.support.waiting import until

LOG_DIR = Path(PATH) / "broker-0" / str(CLIENT_TRANSACTIONS)


class Runs(NamedTuple):
    """Two runs of a server, one after the other."""

    script: Script
    images: list[Crash]  # of the first
    crashes: list[Crash]  # of the second


@pytest.fixture(scope="module")
def runs() -> Runs:
    script = Script()
    first = Recording(made_disk(), script.run)
    second = Recording(first.after.settled(), script.run_again)
    return Runs(script, [*first.kills(stride=1)], [*second.kills(stride=1)])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def put_back(image: Disk, onto: Disk) -> DiskFiles:
    """Return a copy of a disk with the log's directory of another; without one if that had none."""
    files, source = DiskFiles(onto.copy()), DiskFiles(image.copy())
    files.remove_dir(LOG_DIR)
    if source.exists(LOG_DIR):
        files.make_dir(LOG_DIR)
        for name in source.list(LOG_DIR):
            with files.made(LOG_DIR / name) as file:
                files.write_at(file, 0, source.read(LOG_DIR / name))
    return files


def ends(files: DiskFiles) -> list[tuple[TopicPartition, int, int]]:
    manager = store_of(Cluster(PATH, files=files)).manager
    states = {tp: manager.replica(tp).state for tp in (EVENTS, OTHER)}
    return [(tp, one.log_end_offset, one.last_stable_offset) for tp, one in states.items()]


def why_refused(files: DiskFiles) -> str:
    """Serve until transactions are loaded, or refused; return why they are refused."""
    with Cluster(PATH, files=files).serve(flush=True) as server:
        coordinator = server._transactions
        until(lambda: coordinator._loaded_in is not None or coordinator._told)
        return coordinator._told


def ensure_right_or_refused(runs: Runs, image: Crash, crash: Crash) -> bool:
    """Check what a server does that finds the older log; return True if it decides nothing."""
    files = put_back(image.disk, crash.disk)
    both = Crash(f"{crash}; with the log as of: {image}", crash.at, files.disk)
    before = ends(files)
    if why := why_refused(DiskFiles(files.disk)):
        assert "nothing is decided" in why, both
        held = {tp for tp, end, stable in before if stable < end}
        named = {tp for tp in (EVENTS, OTHER) if str(tp) in why}
        # A log of which the image has only a part, since it was just being made, cannot be read.
        is_unreadable = str(CLIENT_TRANSACTIONS) in why
        assert named == held if is_unreadable else named, both
        assert ends(files) == before, both
        runs.script.ensure(Cluster(PATH, files=files), both, is_over=False)
        return True
    nothing_but_a_server_comes(files)
    more = producers_start_again(files)
    runs.script.ensure(Cluster(PATH, files=files), both, *more, is_over=True)
    assert [end for _, end, _ in ends(files)] == [stable for *_, stable in ends(files)], both
    return False


@pytest.mark.more_in_soak
def test_an_older_log_of_transactions_decides_nothing_or_rightly(runs: Runs) -> None:
    refused = []
    for seed in draws.seeds(60):
        rng = random.Random(seed)
        chosen = rng.choice(runs.images), rng.choice(runs.crashes)
        try:
            refused.append(ensure_right_or_refused(runs, *chosen))
        except BaseException as error:
            error.add_note(draws.again(seed))
            raise
    assert True in refused or len(refused) < 10
