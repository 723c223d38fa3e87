"""Rounds of random kills: their number, their work, and what must be true of the topic at any time.

KBATCH_SOAK_ROUNDS   number of rounds; before a release, 100
KBATCH_SOAK_FIRST    number of the first round; a failure names its round

KBATCH_SOAK_FIRST=47 KBATCH_SOAK_ROUNDS=1 pytest tests/spark/test_random_kills.py

A round always has the same work, the same failing tasks and the same kinds of kills; which step a kill
hits depends on the machine.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from pathlib import Path
from typing import Self

import pytest

import spark_kbatch
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from tests.support.killed_jobs import TOPIC, Work
from tests.support.kills import Program

FIRST = int(os.environ.get("KBATCH_SOAK_FIRST", "0"))
ROUNDS = int(os.environ.get("KBATCH_SOAK_ROUNDS", "6"))
DEADLINE_S, PARTITIONS = 900, 3

each_round = pytest.mark.parametrize(
    "number", range(FIRST, FIRST + ROUNDS), ids=lambda number: f"round-{number}"
)


class Drivers:
    """One driver at a time, which works on round after round until it is killed."""

    def __init__(self, folder: Path) -> None:
        # Compile first: a process that is killed while it compiles saves nothing for the next one.
        record_kernels.load()
        routing.load()
        self._folder, self._count = folder, itertools.count()
        self._driver: Program | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def current(self) -> Program:
        if self._driver is None:
            self._driver = Program(self._folder / f"driver-{next(self._count)}", "driver")
        return self._driver

    def forget(self) -> None:
        self._driver = None

    def end(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None


def some_work(
    rng: random.Random,
    seed: str,
    *,
    batches: int = 0,
    micro_batches: int = 0,
    copies: int = 0,
    rows: int | None = None,
    overwrites: int = 0,
    follows: bool = False,
) -> Work:
    return Work(
        seed=seed,
        batches=batches,
        micro_batches=micro_batches,
        copies=copies,
        tasks=rng.choice((1, 2, 3)),
        rows=rows or rng.choice((90, 900)),
        partitions=PARTITIONS,
        options={
            "batch.size": rng.choice((500, 1 << 20)),
            # Files of a few hundred rows are renamed with the first value, and copied with the second.
            "adopt.min.bytes": rng.choice((4096, 8 << 20)),
            "flush": rng.choice((True, False)),
            "compression.type": rng.choice(("none", "lz4")),
        },
        overwrites=overwrites,
        follows=follows,
    )


def check_whole(path: Path, work: Work) -> set[str]:
    """Check that each visible job is there once, with all its rows in order; return the jobs."""
    jobs: list[list[str]] = []
    for partition, values in enumerate(all_held(path, TOPIC)):
        of_jobs = [value.split("-") for value in values if not is_producers(value)]
        jobs.append([])
        for job, rows in itertools.groupby(of_jobs, key=lambda row: row[0]):
            jobs[-1].append(job)
            tasks = 1 if job.startswith("stream") else work.tasks
            assert [(int(task), int(row)) for _, task, row in rows] == [
                (task, row)
                for task in range(tasks)
                for row in range(partition, work.rows, work.partitions)
            ], f"{job} in partition {partition}"
        assert max(Counter(jobs[-1]).values(), default=1) == 1, f"twice: {jobs[-1]}"
    assert all(of_one == jobs[0] for of_one in jobs), "a job is in all partitions or in none"
    return set(jobs[0])


def all_held(path: Path, topic: str) -> list[list[str]]:
    """Return the values of each partition from one snapshot, after checking that offsets have no gaps."""
    with spark_kbatch.open(str(path)) as cluster:
        values: list[list[str]] = [[] for _ in cluster.partitions(topic)]
        for batch in cluster.read(topic, columns=["partition", "offset", "value"]):
            for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
                assert offset == len(values[partition])
                values[partition].append(value.decode())
    return values


def jobs_of(values: list[str]) -> list[str]:
    return [
        job for job, _ in itertools.groupby(v.split("-")[0] for v in values if not is_producers(v))
    ]


def is_producers(value: str) -> bool:
    return value.startswith("producer-")
