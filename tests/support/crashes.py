"""Every state in which a dying process may leave a disk.

    recording = Recording(disk, work)              # one run, on a copy of the disk
    for crash in recording.kills(): ...            # killed before each step, and after the last
    for crash in recording.torn_kills(): ...       # killed within each step that can be done in part
    for crash in recording.power_losses(): ...     # power lost before each step, and after the last

A crash says where it happened, and has the disk that it left; `crash.files()` opens it. What survives a
power loss depends on a seed: it is the same for the same seed and step. After a power loss the machine has
another boot id: look at the disk within `crash.met()`.

`make soak` crashes at every step, `make test` at every tenth one, including the first and the last: the tests that
ask have the marker `more_in_soak`, or are slow. With a seed, crashes are at every tenth step in both, and each seed
starts at another one: the ten of EVERY_STEP look at all.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

from spark_kbatch.log import state as log_state
from tests.support import draws, more_in_soak
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import CAN_BE_TORN, Fault, Killed, SimulatedProcess

Work = Callable[[SimulatedProcess], object]

STRIDE = 10
EVERY_STEP = draws.seeds(STRIDE, after=1)
T = TypeVar("T")


def sample(steps: Sequence[T], stride: int = STRIDE, *, seed: int = 0) -> list[T]:
    """Return every `stride`th of these, including the first and the last; all of them in `make soak`.

    With a seed: every tenth, from the step `seed % 10` on, whatever `stride` is and in `make soak` too.
    """
    if seed:
        return list(steps[seed % STRIDE :: STRIDE])
    stride = stride_of(stride)
    return [step for at, step in enumerate(steps) if at % stride == 0 or at == len(steps) - 1]


def stride_of(default: int) -> int:
    """Return the distance between the steps that a test looks at, by default `default`: one in `make soak`."""
    return 1 if default == 1 or more_in_soak.is_soak() else default


@dataclass(frozen=True)
class Crash:
    """The disk after one crash."""

    where: str
    at: int  # the step that was not done, or only in part
    disk: Disk = field(repr=False)
    power_lost: bool = False

    def __str__(self) -> str:
        return self.where

    def files(self) -> DiskFiles:
        """Return a fresh copy of the disk for one process."""
        return DiskFiles(self.disk.copy())

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """Run a block as if after this crash: under another boot id if power was lost."""
        if not self.power_lost:
            yield
        else:
            with another_boot():
                yield


class _BootIdFile:
    def __init__(self) -> None:
        self._text = str(uuid.uuid4())

    def exists(self) -> bool:
        return True

    def read_text(self) -> str:
        return self._text


@contextlib.contextmanager
def another_boot() -> Iterator[None]:
    """Simulate a restart of the machine."""
    file = log_state._BOOT_ID_FILE
    log_state._BOOT_ID_FILE = _BootIdFile()  # type: ignore[assignment]
    log_state.boot_id.cache_clear()
    try:
        yield
    finally:
        log_state._BOOT_ID_FILE = file
        log_state.boot_id.cache_clear()


class _Recorder(SimulatedProcess):
    """A process that keeps a copy of the disk before each step."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.disks: list[Disk] = []

    def _step(
        self, name: str, where: Path | int, partly: Callable[[float], object] | None = None
    ) -> None:
        with (
            self.disk.changed
        ):  # others of its threads wait: a copy and a step each have their turn
            self.disks.append(self.disk.copy())
            super()._step(name, where, partly)


class Recording:
    """One run's changes to a disk, step by step."""

    def __init__(self, before: Disk, work: Work) -> None:
        self._before, self._work = before, work
        recorder = _Recorder(before.copy())
        work(recorder)
        assert not recorder.open_files(), "files are left open"
        self.after = recorder.disk
        self.steps = [*recorder.steps, "the end"]
        self._disks = [*recorder.disks, recorder.disk.copy()]

    def kills(self, seed: int = 0, stride: int = STRIDE) -> Iterator[Crash]:
        """Yield a crash for each step that changes the disk: most locks and flushes do not."""
        last, different = None, []
        for at, (step, disk) in enumerate(zip(self.steps, self._disks, strict=True)):
            found = disk.contents()
            if found != last:
                different.append(Crash(f"killed before step {at}: {step}", at, disk))
            last = found
        yield from sample(different, stride, seed=seed)

    def torn_kills(self, seed: int = 0) -> Iterator[Crash]:
        """Yield crashes within a step, each from a run of its own."""
        torn = [at for at, step in enumerate(self.steps) if step.split()[0] in CAN_BE_TORN]
        for at in sample(torn, seed=seed):
            process = SimulatedProcess(self._before.copy(), Fault(at, torn=True, seed=seed))
            assert killed(self._work, process)
            where = f"killed within step {at}, seed {seed}: {self.steps[at]}"
            yield Crash(where, at, process.disk.copy())

    def power_losses(self, seed: int = 0, stride: int = STRIDE) -> Iterator[Crash]:
        """Yield a crash for each step."""
        steps = [*zip(count(), self.steps, self._disks, strict=False)]
        for at, step, disk in sample(steps, stride, seed=seed):
            rng = random.Random(f"{seed} {at}")
            where = f"power lost before step {at}, seed {seed}: {step}"
            yield Crash(where, at, disk.after_power_loss(rng), power_lost=True)

    def first(self, *parts: str, after: int = -1) -> int:
        """Return the number of the first step after `after` whose text has all of `parts`."""
        return next(
            at
            for at, step in enumerate(self.steps)
            if at > after and all(part in step for part in parts)
        )


def killed(work: Work, process: SimulatedProcess) -> bool:
    """Return True if the process that does `work` was killed."""
    try:
        work(process)
    except Killed:
        return True
    return False
