"""Kills (kill -9) at random moments lose nothing, duplicate nothing and mix nothing up.

In each round several writers fill one topic of three partitions while drivers, workers and the
producer are killed and started again, and tasks fail:

    batch writes with a name and version (`txnAppId`), repeated until they are acknowledged
    batch writes without them: each run is in the topic as a whole or not at all
    a stream of micro-batches
    in the second test a producer in plain Python, beside the stream

`tests.support.kill_rounds` says how to run more rounds, and how to repeat one.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import spark_kbatch
from spark_kbatch.options.topic import TopicConfig
from tests.conftest import SPARK_4_1
from tests.support.kill_rounds import (
    DEADLINE_S,
    FIRST,
    Drivers,
    all_held,
    check_whole,
    each_round,
    is_producers,
    jobs_of,
    some_work,
)
from tests.support.killed_jobs import SOURCE, TOPIC, Work
from tests.support.kills import Moment, Program, Victims, end_of, resume_later

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers")) as drivers:
        yield drivers


class Round:
    """A round's work, and the processes that are killed while they do it."""

    def __init__(self, folder: Path, rng: random.Random, drivers: Drivers, work: Work) -> None:
        self._folder, self._rng, self._drivers, self._work = folder, rng, drivers, work
        self._left: list[psutil.Process] = []
        self._producers = itertools.count()
        work.save(folder)
        config = TopicConfig(segment_bytes=rng.choice((20_000, 1 << 30)))
        with spark_kbatch.open(str(self.cluster), create=True) as cluster:
            for topic in (TOPIC, SOURCE):
                cluster.create_topic(topic, partitions=work.partitions, config=config)
            with cluster.producer(linger_ms=5) as producer:
                for number in range(work.copies * work.rows):
                    partition = number % work.partitions
                    producer.send(SOURCE, value=f"copy-0-{number}", partition=partition)

    @property
    def cluster(self) -> Path:
        return self._folder / "cluster"

    def run(self, *, kills: int, commits: int = 5, with_producer: bool = False) -> None:
        """Kill `kills` times, each time within `commits` commits, then let the rest succeed."""
        producer = self._start_producer() if with_producer else None
        self._drivers.current().give(self._folder)
        timers = []
        try:
            for _ in range(kills):
                self._deadline = time.monotonic() + DEADLINE_S
                self._wait_for_start()
                moment = Moment(self._rng, self.cluster, commits=commits)
                whom = self._rng.choice([*Victims, Victims.SOME_WORKERS])
                kill_producer = self._rng.random() < 0.5
                if not moment.wait(self._is_driver_done):
                    print(f"over before: {moment}")
                    break
                print(f"kills {whom.value} {moment}{', and the producer' * bool(producer)}")
                if producer is not None and kill_producer:
                    producer.end()
                left = self._drivers.current().kill(whom, self._rng)
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


@each_round
def test_writes_survive_random_kills(tmp_path: Path, drivers: Drivers, number: int) -> None:
    rng = random.Random(f"kills-{number}")
    work = some_work(rng, f"kills-{number}", batches=2, micro_batches=3)
    Round(tmp_path, rng, drivers, work).run(kills=1 + number % 4)
    check_all(tmp_path, work)


@each_round
def test_a_stream_and_a_producer_survive_random_kills(
    tmp_path: Path, drivers: Drivers, number: int
) -> None:
    rng = random.Random(f"concurrent-{number}")
    work = some_work(rng, f"concurrent-{number}", micro_batches=5)
    Round(tmp_path, rng, drivers, work).run(kills=1 + number % 4, with_producer=True)
    check_all(tmp_path, work)
    held = all_held(tmp_path / "cluster", TOPIC)
    for partition, last in enumerate(json.loads((tmp_path / "producer.done").read_text())):
        sent = [f"producer-{partition}-{number}" for number in range(last + 1)]
        assert [value for value in held[partition] if is_producers(value)] == sent


@pytest.mark.parametrize(("micro_batches", "kills"), [(4, 1), (200, 20)])
def test_a_stream_between_topics_copies_each_record_once(
    tmp_path: Path, drivers: Drivers, micro_batches: int, kills: int
) -> None:
    seed = f"copies-{FIRST}"
    rng = random.Random(seed)
    work = some_work(rng, seed, copies=micro_batches, rows=30)
    commits = micro_batches // kills
    Round(tmp_path, rng, drivers, work).run(kills=kills, commits=commits)
    path = tmp_path / "cluster"
    assert all_held(path, TOPIC) == all_held(path, SOURCE)
    assert sum(map(len, all_held(path, TOPIC))) == micro_batches * work.rows
    # Spark keeps the last hundred commits. Spark 4.1 has no limits here and reads everything in one batch.
    batch_ids = [int(one.name) for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
    assert max(batch_ids) + 1 >= (1 if SPARK_4_1 else micro_batches)


def check_all(folder: Path, work: Work) -> None:
    """Check that all required rows are there once, and that other rows belong to complete runs."""
    found = check_whole(folder / "cluster", work)
    runs = {job for job in found if job.startswith("run")}
    acknowledged = {path.name for path in (folder / "acknowledged").iterdir()}
    assert {name for name in acknowledged if name.startswith("run")} <= runs
    named = [f"batch{n}" for n in range(work.batches)]
    streamed = [f"stream{n}" for n in range(work.micro_batches)]
    assert found - runs == {*named, *streamed}

    path = folder / "cluster"
    with spark_kbatch.open(str(path)) as cluster:
        before = all_held(path, TOPIC)
        cluster.collect_garbage(staging_retention_ms=0)
        assert list((path / "staging-0").iterdir()) == []
        for report in cluster.repair():
            assert report.damaged == ()
            assert report.found == ()
        assert all_held(path, TOPIC) == before
    in_order = [[job for job in jobs_of(values) if job not in runs] for values in before]
    for jobs in in_order:
        assert [job for job in jobs if job in named] == named
        assert [job for job in jobs if job in streamed] == streamed
        assert jobs == in_order[0], "commits have the same order in all partitions"


def check_copies(path: Path) -> None:
    """Check that the copied rows equal those of the source."""
    for copied, source in zip(all_held(path, TOPIC), all_held(path, SOURCE), strict=True):
        assert copied == source[: len(copied)]
