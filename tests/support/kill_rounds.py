"""Rounds of random kills: their number, their work, and what must be true of the topic at any time.

`tests.support.draws` says how to run more rounds, and how to repeat one.

A round always has the same work, the same failing tasks and the same kinds of kills; which step a kill
hits depends on the machine.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import pytest

import spark_kbatch
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from spark_kbatch.options.topic import TopicConfig
from tests.support import draws
from tests.support.killed_jobs import SOURCE, TOPIC, Work
from tests.support.kills import Moment, Program, Victims, end_of, resume_later
from tests.support.store_moments import StoreMoment
from tests.support.store_proxy import StoreProxy

ROUNDS = 3
DEADLINE_S, PARTITIONS = 900, 3

each_round = pytest.mark.parametrize(
    "number", draws.seeds(ROUNDS), ids=lambda number: f"round-{number}"
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

    def printed(self) -> str:
        """Return what all drivers have printed."""
        files = sorted(self._folder.glob("driver-*"))
        return "".join(file.read_text(errors="replace") for file in files)

    def forget(self) -> None:
        self._driver = None

    def end(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None


class Round:
    """A round's work, and the processes that are killed while they do it."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        drivers: Drivers,
        work: Work,
        proxy: StoreProxy | None = None,
    ) -> None:
        """Make the cluster and what the work needs.

        Args:
            folder: of the round.
            rng: for all that is drawn.
            drivers: where the driver comes from.
            work: its work.
            proxy: before the store, if the cluster is in a bucket.
        """
        self._folder, self._rng, self._drivers, self._work = folder, rng, drivers, work
        self._proxy, self.cluster = proxy, work.address(folder)
        self._left: list[psutil.Process] = []
        self._producers = itertools.count()
        work.save(folder)
        segment_bytes = rng.choice((20_000, 1 << 30))
        config = TopicConfig(segment_bytes=segment_bytes) if proxy is None else TopicConfig()
        with spark_kbatch.open(self.cluster, create=True) as cluster:
            for topic in (TOPIC, SOURCE):
                cluster.create_topic(topic, partitions=work.partitions, config=config)
            with cluster.producer(linger_ms=5) as producer:
                for number in range(work.copies * work.rows):
                    partition = number % work.partitions
                    producer.send(SOURCE, value=f"copy-0-{number}", partition=partition)

    def run(
        self,
        *,
        kills: int,
        commits: int = 5,
        with_producer: bool = False,
        victims: Sequence[Victims] = (*Victims, Victims.SOME_WORKERS),
        request: str = "",
    ) -> None:
        """Kill `kills` times, each time within `commits` commits, then let the rest succeed.

        Args:
            kills: how often.
            commits: within which each moment is drawn.
            with_producer: whether a producer in plain Python works and is killed too.
            victims: of which one is drawn for each kill.
            request: at which all moments are, of `store_moments.REQUESTS`; "" for any moment.
        """
        producer = self._start_producer() if with_producer else None
        self._drivers.current().give(self._folder)
        timers = []
        try:
            for _ in range(kills):
                self._deadline = time.monotonic() + DEADLINE_S
                self._wait_for_start()
                moment = self._moment(commits, request)
                whom = self._rng.choice(victims)
                kill_producer = self._rng.random() < 0.5
                if not moment.wait(self._is_driver_done):
                    print(f"over before: {moment}")
                    moment.end()
                    break
                print(f"kills {whom.value} {moment}{', and the producer' * bool(producer)}")
                if producer is not None and kill_producer:
                    producer.end()
                left = self._drivers.current().kill(whom, self._rng)
                moment.end()
                if self._work.copies:
                    check_copies(self.cluster)
                else:
                    check_whole(self.cluster, self._work)
                if whom != Victims.SOME_WORKERS:
                    self._drivers.forget()
                    self._drivers.current().give(self._folder)
                    timers.append(resume_later(left, self._rng.uniform(0, 12)))
                    self._left += left
                if producer is not None and kill_producer:
                    producer = self._start_producer()
            self._deadline = time.monotonic() + DEADLINE_S
            while not self._is_driver_done():
                time.sleep(0.01)
            while producer is not None and not (self._folder / "producer.done").exists():
                producer.ensure_alive()
                assert time.monotonic() < self._deadline, producer.tail()
                time.sleep(0.01)
        except BaseException:
            self._drivers.end()
            raise
        finally:
            for timer in timers:
                timer.join()
            end_of(self._left)
            if producer is not None:
                producer.end()

    def _moment(self, commits: int, request: str) -> Moment | StoreMoment:
        if self._proxy is None:
            return Moment(self._rng, Path(self.cluster), commits=commits)
        return StoreMoment(self._rng, self._proxy, commits=commits, request=request)

    def _wait_for_start(self) -> None:
        started = self._folder / "driver.started"
        while not (started.exists() and int(started.read_text()) == self._drivers.current().pid):
            assert not self._is_driver_done()
            time.sleep(0.01)

    def _is_driver_done(self) -> bool:
        driver = self._drivers.current()
        if (self._folder / "driver.done").exists():
            return True
        driver.ensure_alive()
        assert time.monotonic() < self._deadline, driver.tail()
        return False

    def _start_producer(self) -> Program:
        output = self._folder / f"producer-{next(self._producers)}"
        return Program(output, "producer", str(self._folder))


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


def check_whole(path: Path | str, work: Work) -> set[str]:
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


def all_held(path: Path | str, topic: str) -> list[list[str]]:
    """Return the values of each partition from one snapshot, after checking that offsets have no gaps."""
    with spark_kbatch.open(str(path)) as cluster:
        values: list[list[str]] = [[] for _ in cluster.partitions(topic)]
        for batch in cluster.read(topic, columns=["partition", "offset", "value"]):
            for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
                assert offset == len(values[partition])
                values[partition].append(value.decode())
    return values


def check_copies(path: Path | str) -> None:
    """Check that the copied rows equal those of the source."""
    for copied, source in zip(all_held(path, TOPIC), all_held(path, SOURCE), strict=True):
        assert copied == source[: len(copied)]


def check_in_order(path: Path | str, work: Work, folder: Path) -> None:
    """Check at the end that all required rows are there once and in order, and others belong to complete runs."""
    found = check_whole(path, work)
    runs = {job for job in found if job.startswith("run")}
    acknowledged = {path.name for path in (folder / "acknowledged").iterdir()}
    assert {name for name in acknowledged if name.startswith("run")} <= runs
    named = [f"batch{n}" for n in range(work.batches)]
    streamed = [f"stream{n}" for n in range(work.micro_batches)]
    assert found - runs == {*named, *streamed}
    held = all_held(path, TOPIC)
    in_order = [[job for job in jobs_of(values) if job not in runs] for values in held]
    for jobs in in_order:
        assert [job for job in jobs if job in named] == named
        assert [job for job in jobs if job in streamed] == streamed
        assert jobs == in_order[0], "commits have the same order in all partitions"


def jobs_of(values: list[str]) -> list[str]:
    return [
        job for job, _ in itertools.groupby(v.split("-")[0] for v in values if not is_producers(v))
    ]


def is_producers(value: str) -> bool:
    return value.startswith("producer-")
