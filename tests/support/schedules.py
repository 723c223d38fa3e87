"""Random schedules of two processes that share a cluster on several disks, under a clock that tests set.

Disks fail and come back, and processes are killed within a step. The test says which steps there are, and
what must hold after each of them and at the end. `tests.support.draws` has how many are run, and how to repeat one.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import COMMITTED, NOTHING_VISIBLE
from spark_kbatch.model import TopicPartition
from tests.support import draws
from tests.support.failing_disks import (
    BROKEN,
    FULL,
    READ_ONLY,
    Clock,
    Disks,
    Killed,
    MemoryDisks,
    partition,
    with_clock,
)
from tests.support.memory_folder import memory_folder

_LOGGED_MAX = 300  # schedules of one test
_WITHIN = 0.3  # share of the steps in which a reader looks

Step: TypeAlias = Callable[[int], object]  # by the process with this number


class Schedule(abc.ABC):
    """One seed's run."""

    def __init__(self, folder: Path, seed: int, nodes: Sequence[int]) -> None:
        """Draw the number of nodes from `nodes`."""
        self.folder, self.rng = folder, random.Random(seed)
        self.disks, self.clock = self.some_disks(), Clock()
        self.nodes = self.rng.choice(nodes)
        made = self.a_cluster()
        self.processes = [with_clock(made, self.clock) for _ in range(2)]
        self.log: list[str] = []  # what was done, for a failure

    def some_disks(self) -> Disks | MemoryDisks:
        """Return what the disks are made of."""
        return Disks()

    @abc.abstractmethod
    def a_cluster(self) -> Cluster:
        """Create the cluster that the processes share."""

    @abc.abstractmethod
    def steps(self) -> list[Step]:
        """Return the steps to choose from, likelier ones several times."""

    @abc.abstractmethod
    def steps_to_kill(self) -> list[tuple[Step, int]]:
        """Return the steps to kill a process in, each with a bound on its operations."""

    @abc.abstractmethod
    def look(self) -> None:
        """Check what must hold after each step."""

    def watch(self, at: int) -> None:
        """Have a reader look between two changes of files of the next step; by default none does."""
        self.disks.look_at = None

    @abc.abstractmethod
    def finish(self) -> None:
        """Mend all disks, and check what must hold at the end."""

    def run(self, count: int) -> None:
        steps = self.steps()
        for _ in range(count):
            step = self.rng.choice(steps)
            self.log.append(step.__name__)  # type: ignore[attr-defined]
            if self.rng.random() < _WITHIN:
                self.watch(self.rng.randrange(60))
            step(self.rng.randrange(2))
            self.disks.look_at = None
            self.look()
        self.finish()

    # Steps.

    def kill(self, number: int) -> None:
        """Kill a process somewhere within a step."""
        step, operations = self.rng.choice(self.steps_to_kill())
        self.disks.kill_at = self.rng.randrange(operations)
        self.log[-1] += f" {step.__name__}"  # type: ignore[attr-defined]
        try:
            step(number)
        except Killed:
            self.log[-1] += ", killed"
            self.disks.kill_at = None
            self.processes[number] = with_clock(self.processes[number], self.clock)
        self.disks.kill_at = None

    def fail(self, _: int) -> None:
        node, error = self.rng.randrange(self.nodes), self.rng.choice([BROKEN, FULL, READ_ONLY])
        self.log[-1] += f" {node} {error}"
        self.disks.fail(self.disk(node), error)

    def mend(self, _: int) -> None:
        node = self.rng.randrange(self.nodes)
        self.log[-1] += f" {node}"
        self.disks.mend(self.disk(node))

    # Disks.

    def disk(self, node: int) -> Path:
        return self.folder / f"disk-{node}"

    def away(self, node: int) -> Path:
        return self.folder / f"disk-{node}.away"

    def unmount_one(self, node: int) -> None:
        self.log[-1] += f" {node}"
        self.disks.mount_at(self.disk(node), self.away(node))

    def mount(self, _: int) -> None:
        self.mount_again(self.rng.randrange(self.nodes))

    def mount_again(self, node: int) -> None:
        if self.disks.has(self.away(node)):
            self.log[-1] += f" {node} is back"
            self.disks.take_away(self.disk(node))  # one that was made there while it was away
            self.disks.mount_at(self.away(node), self.disk(node))

    def is_readable(self, node: int) -> bool:
        folder = self.disk(node)
        return self.disks.failing.get(folder) != BROKEN and self.disks.has(folder)

    def in_sync(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        return partition(self.processes[0], topic_partition).view.state().isr

    def has_readable(self, topic_partition: TopicPartition) -> bool:
        return any(self.is_readable(node) for node in self.in_sync(topic_partition))


def ensure_all_or_nothing(
    key: bytes, outcome: str, counts: Collection[int], *, records: int
) -> None:
    """Check that each partition has as many records of a commit as its outcome allows: all or none."""
    allowed = {COMMITTED: {records}, NOTHING_VISIBLE: {0}}.get(outcome, {0, records})
    assert len({*counts}) == 1, f"partitions have {[*counts]} records of {key!r}"
    assert {*counts} <= allowed, f"{key!r}: {outcome}; partitions have {[*counts]} records"


def run_schedules(make: Callable[[Path, int], Schedule], *, steps: int, default: int) -> None:
    """Run as many schedules as are to be drawn, by default `default`, each of `steps` steps."""
    seeds = draws.seeds(default)
    with _logged(len(seeds) <= _LOGGED_MAX), memory_folder() as folder:
        for seed in seeds:
            schedule = make(folder / str(seed), seed)
            try:
                schedule.run(steps)
            except BaseException as error:
                error.add_note(f"seed {seed}: {draws.again(seed)}; " + "; ".join(schedule.log))
                raise
            shutil.rmtree(
                folder / str(seed), ignore_errors=True
            )  # of some, the disks are in memory


@contextlib.contextmanager
def _logged(is_logged: bool) -> Iterator[None]:
    """Log nothing within, unless `is_logged`.

    Pytest keeps each line until the test ends, and with an error in one of them all the disks of its schedule.
    """
    if not is_logged:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
