"""Histories of a cluster in a bucket: real processes on machines with faults, over S3's protocol, by a seed.

Producers, writers of jobs and of micro-batches, readers and two maintainers share a cluster on a server that does
what stores and networks do. All but readers are killed, and stopped for seconds; one machine in five has a wrong
clock; sessions end; storms of 503 come over all; and in some histories the store's clock goes on by days, so that
what was staged before is collected. That goes on until enough is acknowledged. Then all is let be, and each process
has to do one more thing; and what all of them told is checked.

    faults, told = run_history(7, Size(jobs=250, records=25_000), folder)

`tests.support.draws` has how many are gone through, and how to repeat one. What the seed draws is the same each time;
in which order processes come is not.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from click.testing import CliRunner

import spark_kbatch
from spark_kbatch.bucket import shared_ledger
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import KBatchError
from spark_kbatch.ledger.entries import PRODUCER_ID_EXPIRATION_MS
from spark_kbatch.ledger.image import DEFAULT_LIMITS
from tests.support import draws
from tests.support.history_checker import Checker, History, Lines, Read, read_from
from tests.support.history_processes import (
    CALM,
    CHECKPOINTS,
    READS,
    STOPPED,
    TOPICS,
    Spec,
    run,
)
from tests.support.rough_store import ADDRESS_VARIABLE, RoughStore

DAY_MS = 86_400_000
MACHINES = 5
# Of one machine, in ms before or after the others'.
JUMPING = "jumping"  # two days further ahead in each process that follows another one
WRONG_CLOCKS: list[int | str] = [
    2 * DAY_MS, 400 * DAY_MS, JUMPING, -2 * DAY_MS, -400 * DAY_MS, STOPPED,
]  # fmt: skip
# Records of a few seconds are never as old by the store's clock, wherever a history moves it.
RETENTION_MS = 300 * DAY_MS
# The times of records are right wherever they come from, and so they are far ahead of some clocks.
CONFIG = {"retention.ms": RETENTION_MS, "message.timestamp.after.max.ms": 2 * RETENTION_MS}
_CLOCK_STEPS_MAX = 60  # days of the store's clock
_QUIET_MAX_S = _CALM_MAX_S = 90
_PAUSE_S = (0.2, 2.0)  # between what is done to processes and the store
SESSION_S = (2.0, 12.0)
_FREEZE_S = (0.2, 5.0)
_LONG_STEP_DAYS = 18  # while a process is stopped: past what it has staged

PROCESSES = {
    "p1": "producer", "p2": "producer", "p3": "producer", "w1": "jobs", "w2": "jobs", "v1": "versions", "s1": "stream",
    "s2": "stream", "r1": "reader", "r2": "reader", "m1": "maintainer", "m2": "maintainer",
}  # fmt: skip
UNHARMED = "reader"  # neither killed nor stopped

# Shares of the requests that each can happen to, in the roughest weather.
FAULTS = {
    "lost": 0.02, "failed": 0.02, "conflicted": 0.04, "twice": 0.03, "late": 0.03, "conflict": 0.04,
    "refused": 0.03, "dropped": 0.02, "cut": 0.02, "slow": 0.03,
}  # fmt: skip

# Of the store itself, which are put in on purpose.
STORE_FAULTS = {"overwrites": 0.1, "forgets": 0.2}


class Size(NamedTuple):
    """The amount that has to be acknowledged before a history ends."""

    jobs: int  # and micro-batches
    records: int  # of producers


class Told(NamedTuple):
    """The numbers of one history, or of several."""

    jobs: int
    records: int
    happened: Counter[str]
    clocks: str = ""

    def plus(self, other: Told) -> Told:
        """Return the sums."""
        return Told(self.jobs + other.jobs, self.records + other.records, self.happened + other.happened)  # fmt: skip

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.happened.items()))
        return f"{self.jobs:,} jobs and {self.records:,} records were acknowledged; {counts}; {self.clocks}"


@functools.cache
def _context() -> ForkServerContext:
    """Return what starts processes: each is a copy of one that has imported all and done nothing yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "tests.support.warm_processes"])
    forkserver.ensure_running()  # now, in a folder of its own
    return context


class _Slot:
    """The processes of one name, of which one is there at a time."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.process: ForkServerProcess | None = None
        self.is_killed = False
        self.restart_s = 0.0  # when the next one begins
        self.thaw_s: float | None = None  # when it goes on

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def start(self) -> None:
        spec, number = self.spec, self.spec.incarnation
        begun = spec._replace(clock=2 * DAY_MS * number) if spec.clock == JUMPING else spec
        self.process = _context().Process(target=run, args=(begun,), daemon=True)
        self.process.start()
        self.spec = spec._replace(incarnation=number + 1)
        self.is_killed = False

    def signal(self, number: int) -> None:
        assert self.process is not None
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()


class _Run:
    """One history."""

    def __init__(
        self, seed: int, size: Size, folder: Path, store: RoughStore, fault: str = ""
    ) -> None:
        self.rng = random.Random(seed)
        self.size, self.folder, self.store = size, folder, store
        self.happened = Counter[str]()
        self.history = History()
        self._began_s = time.monotonic()
        self._faults_of_store = {fault: STORE_FAULTS[fault]} if fault in STORE_FAULTS else {}
        for name in ("told", READS, CHECKPOINTS, *map(self._machine, range(MACHINES))):
            (folder / name).mkdir(parents=True)
        self.lines = Lines(folder / "told")
        self.has_moving_clock = self.rng.random() < 0.5
        self.wrong = self.rng.choice(WRONG_CLOCKS)
        self._days = 0  # by which the store's clock has moved
        names = [*PROCESSES]
        self.rng.shuffle(names)
        # Of every kind someone is on the machine with a wrong clock, in some history.
        specs = [
            Spec(
                PROCESSES[name], name, 0, seed, folder, self._machine(at % MACHINES),
                0 if at % MACHINES else self.wrong, store.url, store.address, store.options, "" if fault in STORE_FAULTS else fault,
            )
            for at, name in enumerate(names)
        ]  # fmt: skip
        self.slots = [_Slot(spec) for spec in specs]

    @staticmethod
    def _machine(number: int) -> str:
        return f"machine-{number}"

    def _clocks(self) -> str:
        wrong = [slot.spec.name for slot in self.slots if slot.spec.clock]
        clock = f"{self.wrong // DAY_MS} days ahead" if isinstance(self.wrong, int) else self.wrong
        moving = f", and the store's by {self._days} days" if self.has_moving_clock else ""
        return f"the clock of {', '.join(wrong)} is {clock}{moving}"

    # The run.

    def faults(self) -> list[str]:
        """Go through the history, and return what does not hold in it."""
        history = self.history
        self._begin()
        rates = {name: rate * self.rng.uniform(0, 1) for name, rate in FAULTS.items()}
        self.store.order(faults={**self._faults_of_store, **rates}, session_s=SESSION_S)
        try:
            self._goes_on()
            self.store.order(faults=self._faults_of_store, storm_s=0, session_s=(3600, 3600))
            if not history.broken:
                self._calm_down()
        finally:
            for slot in self.slots:
                slot.end()
        self._listen()
        try:
            final = self._final()
        except KBatchError as error:
            history.broken.append(f"the last read: {error}")
            final = None
        return Checker(history, final).faults()

    def _begin(self) -> None:
        limits = dict(DEFAULT_LIMITS)
        if self.has_moving_clock:
            # What a clock that moves by days says of a producer means nothing for one that goes on.
            limits[PRODUCER_ID_EXPIRATION_MS] = RETENTION_MS
        with (
            mock.patch.object(shared_ledger, "DEFAULT_LIMITS", limits),
            spark_kbatch.open(self.store.url, create=True, store=self.store.options) as cluster,
        ):
            for topic, partitions in TOPICS.items():
                cluster.create_topic(topic, partitions, config=CONFIG)
        for slot in self.slots:
            slot.start()

    def _goes_on(self) -> None:
        """Do to processes and the store what the seed draws, until enough is acknowledged, or something is wrong."""
        history, next_s = self.history, time.monotonic()
        while len(history.committed) < self.size.jobs or len(history.acknowledged) < self.size.records:  # fmt: skip
            self._look_after_processes()
            if time.monotonic() >= next_s:
                self._do_something()
                next_s = time.monotonic() + self.rng.uniform(*_PAUSE_S)
            time.sleep(0.05)
            self._listen()
            if time.monotonic() - max(history.last_news_s, self._began_s) > _QUIET_MAX_S:
                history.broken.append(f"nothing is acknowledged for {_QUIET_MAX_S} s")
            if history.broken:
                return

    def _listen(self) -> None:
        for line in self.lines.new():
            self.history.take(line, self.folder / READS)

    def _look_after_processes(self) -> None:
        now_s = time.monotonic()
        for slot in self.slots:
            if slot.thaw_s is not None and now_s >= slot.thaw_s:
                slot.thaw_s = None
                slot.signal(signal.SIGCONT)
            if not slot.is_running:
                if not slot.is_killed:
                    self.history.broken.append(f"{slot.spec.name} has ended by itself")
                if now_s >= slot.restart_s:
                    slot.start()

    def _do_something(self) -> None:
        draw = self.rng.random()
        slot = self.rng.choice([one for one in self.slots if one.spec.kind != UNHARMED])
        is_free = slot.is_running and slot.thaw_s is None
        if draw < 0.35 and is_free:
            self.happened["kills"] += 1
            slot.is_killed, slot.restart_s = True, time.monotonic() + self.rng.uniform(0, 1)
            slot.signal(signal.SIGKILL)
        elif draw < 0.65 and is_free:
            self.happened["freezes"] += 1
            slot.signal(signal.SIGSTOP)
            slot.thaw_s = time.monotonic() + self.rng.uniform(*_FREEZE_S)
            if self.rng.random() < 0.2:
                self._move_clock(_LONG_STEP_DAYS)
        elif draw < 0.72:
            self.store.order(storm_s=self.rng.uniform(0.2, 2.0))
        elif draw < 0.82:
            self.store.order(expire=True)
        else:
            self._move_clock(1)

    def _move_clock(self, days: int) -> None:
        if self.has_moving_clock and self._days + days <= _CLOCK_STEPS_MAX:
            self._days += days
            self.happened["days of the store's clock"] += days
            self.store.order(clock_ms=days * DAY_MS)

    def _calm_down(self) -> None:
        """Let all be, and wait until each process has done something since."""
        (self.folder / CALM).touch()
        deadline_s = time.monotonic() + _CALM_MAX_S
        for slot in self.slots:
            if not slot.is_running:
                slot.start()
            slot.thaw_s = None
            slot.signal(signal.SIGCONT)
        while any(slot.is_running for slot in self.slots) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        self._listen()
        done = {label.partition(".")[0] for label in self.history.done}
        stuck = sorted({slot.spec.name for slot in self.slots} - done)
        if stuck:
            self.history.broken.append(f"{', '.join(stuck)} did nothing in {_CALM_MAX_S} s of calm")

    def _final(self) -> Read:
        """Return what is there in the end, after a look of `kbatch verify` at it."""
        settings = self.folder / "store.properties"
        settings.write_text(
            "".join(f"{key}={value}\n" for key, value in self.store.options.items())
        )
        command = ["verify", self.store.url, "--command-config", str(settings)]
        verified = CliRunner().invoke(cli, command)
        if verified.exit_code:
            self.history.broken.append(f"verify: {verified.output}")
        with spark_kbatch.open(self.store.url, store=self.store.options) as cluster:
            columns = ["topic", "partition", "offset", "value"]
            table = cluster.read([*TOPICS], columns=columns).read_all()
        return read_from("the end", time.monotonic(), {}, table)

    def told(self) -> Told:
        """Return what there was."""
        history, seen = self.history, self.store.seen()
        self.happened += Counter(
            {
                "storms": seen["storm"], "sessions ended": seen["expiry"], "requests refused by them": seen["expired"],
                "answers of a storm": seen["in a storm"], "faults of requests": sum(seen[name] for name in FAULTS),
                "reads": len(history.reads), "jobs refused": len(history.refused),
                "rounds of maintenance": history.told["maintained"],
                "extents merged": history.maintained["merged"], "objects deleted": history.maintained["deleted"],
                "entries buried": history.maintained["tombstones"], "steps failed": history.told["failed"],
            }
        )  # fmt: skip
        return Told(
            len(history.committed), len(history.acknowledged), self.happened, self._clocks()
        )


def run_history(seed: int, size: Size, folder: Path, *, fault: str = "") -> tuple[list[str], Told]:
    """Go through a history, and return what does not hold in it, and what there was.

    Args:
        seed: of all that is drawn.
        size: of it.
        folder: that does not exist.
        fault: that is put in on purpose, of `tests.support.history_faults` or of STORE_FAULTS.
    """
    folder.mkdir(parents=True)
    _context()
    with RoughStore(seed=seed) as store, _at_home(folder, store):
        one = _Run(seed, size, folder, store, fault)
        return one.faults(), one.told()


@contextlib.contextmanager
def _at_home(folder: Path, store: RoughStore) -> Iterator[None]:
    """Let this process know the store, and have a cache of its own."""
    was, os.environ[ADDRESS_VARIABLE] = tempfile.tempdir, store.address
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = was
        del os.environ[ADDRESS_VARIABLE]


def run_histories(default: int, size: Size, folder: Path) -> Told:
    """Go through as many histories as are to be drawn, and return what there was in all of them.

    Args:
        default: how many.
        size: of each.
        folder: an empty one; what a history has left is deleted if nothing is wrong in it.
    """
    total = Told(0, 0, Counter())
    for seed in draws.seeds(default):
        faults, told = run_history(seed, size, folder / str(seed))
        assert not faults, "\n".join([f"seed {seed}: {draws.again(seed)}", str(told), *faults])
        shutil.rmtree(folder / str(seed))
        print(f"history {seed}: {told}")
        total = total.plus(told)
    return total
