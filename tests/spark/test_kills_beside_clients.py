"""A `kbatch serve` and Spark jobs work on the same topics, and are killed at random moments.

In each round, beside each other:

    clients of the server    a producer with idempotence and one without; a group; a client that commits
                             offsets; one that asks for the high watermarks
    jobs of a Spark driver   batch appends with and without a name, overwrites of another topic, a stream from
                             files, a stream that copies the whole topic, batch reads of it
    readers of the folder    in this process

The server, the driver and its workers are killed (kill -9) and started again. No reader ever sees a part of a
job, or less than before; at the end all that was acknowledged is there once, in order, and `verify` finds nothing.

`tests.support.draws` says how to run more rounds, and how to repeat one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import spark_kbatch
from spark_kbatch.options.topic import TopicConfig
from tests.server.test_killed_jobs_beside_clients import (
    SESSION_TIMEOUT_MS,
    SteadyProducer,
    Watermarks,
    check_files,
)
from tests.server.test_killed_server import TOPIC as COMMITTED
from tests.server.test_killed_server import Load, OffsetCommits
from tests.support.clients.interface import Member
from tests.support.clients.librdkafka import Librdkafka
from tests.support.kill_rounds import (
    DEADLINE_S,
    PARTITIONS,
    Drivers,
    all_held,
    check_whole,
    each_round,
    some_work,
)
from tests.support.killed_jobs import FOLLOWED, REPLACED, TOPIC, Work
from tests.support.kills import Moment, Victims, end_of, resume_later
from tests.support.served import Served
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers")) as drivers:
        yield drivers


class FolderReader:
    """Reads of the folder, each of which shows what the last one did, and whole jobs only."""

    def __init__(self, path: Path, work: Work) -> None:
        self._path, self._work = path, work
        self._seen: list[list[str]] = [[] for _ in range(PARTITIONS)]

    def read(self, _: int) -> None:
        held = all_held(self._path, TOPIC)
        for before, now in zip(self._seen, held, strict=True):
            assert now[: len(before)] == before
        self._seen = held
        check_whole(self._path, self._work)
        replaced_by(self._path, self._work)


def replaced_by(path: Path, work: Work) -> str:
    """Return the overwrite that the replaced topic shows, after checking that it is whole; "" if none."""
    values: dict[int, list[str]] = {p: [] for p in range(PARTITIONS)}
    with spark_kbatch.open(str(path)) as cluster:
        for batch in cluster.read(REPLACED, columns=["partition", "value"]):
            for partition, value in zip(*batch.to_pydict().values(), strict=True):
                values[partition].append(value.decode())
    jobs = {value.partition("-")[0] for some in values.values() for value in some}
    assert len(jobs) <= 1, jobs
    for job in jobs:
        for partition, some in values.items():
            assert some == [
                f"{job}-{task}-{row}"
                for task in range(work.tasks)
                for row in range(partition, work.rows, work.partitions)
            ]
    return "".join(jobs)


class Beside:
    """One round."""

    def __init__(self, folder: Path, rng: random.Random, drivers: Drivers, work: Work) -> None:
        self._folder, self._rng, self._drivers, self._work = folder, rng, drivers, work
        self._left: list[psutil.Process] = []  # stopped, or perhaps still running
        self._timers: list[threading.Timer] = []  # of those that are stopped
        self.path = folder / "cluster"
        work.save(folder)
        config = TopicConfig(segment_bytes=rng.choice((20_000, 1 << 30)), retention_ms=-1)
        with spark_kbatch.open(str(self.path), create=True) as cluster:
            for topic in (TOPIC, REPLACED, FOLLOWED, COMMITTED):
                cluster.create_topic(topic, partitions=PARTITIONS, config=config)

    def run(self, kills: int) -> None:
        """Kill so often, while all work; then let all end, and check everything."""
        log = self._folder / "server.log"
        with Served(self.path, log) as server:
            member = Librdkafka(server.address).member(
                "group", TOPIC, session_timeout_ms=SESSION_TIMEOUT_MS
            )
            with member:
                producers = (
                    SteadyProducer(server.address, TOPIC, "once", is_idempotent=True),
                    SteadyProducer(server.address, TOPIC, "again", is_idempotent=False),
                )
                commits = OffsetCommits(server.address)
                watermarks = Watermarks(server.address, TOPIC, REPLACED)
                try:
                    self._drivers.current().give(self._folder)
                    with Load() as load:
                        for producer in producers:
                            load.start(producer.send, 0.1)
                        load.start(commits.commit, 0.02)
                        load.start(watermarks.ask, 0.02)
                        load.start(FolderReader(self.path, self._work).read, 1)
                        self._kill(kills, load, server, commits)
                    for one in producers:
                        one.finish()
                    (self._folder / "clients.done").touch()
                    self._await(lambda: (self._folder / "driver.done").exists(), "the driver ends")
                except BaseException as error:
                    error.add_note(self._drivers.current().tail()[-3000:])
                    self._drivers.end()
                    raise
                finally:
                    for timer in self._timers:
                        timer.join()
                    end_of(self._left)
                commits.check()
                for client in (commits, watermarks):
                    client.finish()
                self._check(producers, watermarks, member)
        before = all_held(self.path, TOPIC)
        check_files(self.path)
        assert all_held(self.path, TOPIC) == before

    def _kill(self, kills: int, load: Load, server: Served, commits: OffsetCommits) -> None:
        for _ in range(kills):
            self._await(self._is_driver_working, "a driver works")
            moment = Moment(self._rng, self.path, commits=4)
            whom = self._rng.choice((*4 * ("server",), *Victims))
            pause_s = self._rng.choice((0.0, self._rng.uniform(0, 1)))
            until_s = time.monotonic() + DEADLINE_S

            def is_over(until_s: float = until_s) -> bool:
                load.check()
                self._drivers.current().ensure_alive()
                assert time.monotonic() < until_s
                return (self._folder / "driver.done").exists()

            moment.wait(is_over)
            print(f"kills {whom if whom == 'server' else whom.value} {moment}", flush=True)
            if whom == "server":
                server.kill()
                time.sleep(pause_s)
                server.start()
                commits.check()
                continue
            left = self._drivers.current().kill(whom, self._rng)
            if whom != Victims.SOME_WORKERS:
                self._drivers.forget()
                time.sleep(pause_s)
                self._drivers.current().give(self._folder)
                self._timers.append(resume_later(left, self._rng.uniform(0, 12)))
                self._left += left
        self._await(self._is_driver_working, "a driver works")

    def _is_driver_working(self) -> bool:
        started = self._folder / "driver.started"
        return started.exists() and started.read_text() == str(self._drivers.current().pid)

    def _await(self, condition: Any, what: str) -> None:
        def is_so() -> bool:
            self._drivers.current().ensure_alive()
            return bool(condition())

        until(is_so, what, timeout_s=DEADLINE_S)

    def _check(
        self, producers: tuple[SteadyProducer, ...], watermarks: Watermarks, member: Member
    ) -> None:
        assert not (self._folder / "wrong").exists(), (self._folder / "wrong").read_text()
        held = all_held(self.path, TOPIC)
        for producer in producers:
            producer.check(held)
        found = check_whole(self.path, self._work)
        acknowledged = {one.name for one in (self._folder / "acknowledged").iterdir()}
        runs = {job for job in found if job.startswith("run")}
        assert {one for one in acknowledged if one.startswith("run")} <= runs
        assert found - runs == {
            *(f"batch{n}" for n in range(self._work.batches)),
            *(f"stream{n}" for n in range(self._work.micro_batches)),
        }
        assert replaced_by(self.path, self._work) == f"over{self._work.overwrites - 1}"
        assert all_held(self.path, FOLLOWED) == held
        for (topic, partition), high in watermarks.highs.items():
            assert topic != TOPIC or high <= len(held[partition])

        total = sum(map(len, held))
        until(lambda: len(member.records) >= total, "the group reads everything", timeout_s=120)
        assert member.rebalances == 1
        for partition, values in enumerate(held):
            mine = [(o, v.decode()) for p, o, v in member.records if p == partition]
            assert mine == [*enumerate(values)]


@each_round
def test_nothing_is_lost_and_no_job_is_seen_in_part(
    tmp_path: Path,
    drivers: Drivers,
    number: int,
) -> None:
    rng = random.Random(f"beside-{number}")
    work = some_work(
        rng, f"beside-{number}", batches=2, micro_batches=3, overwrites=3, follows=True
    )
    Beside(tmp_path, rng, drivers, work).run(kills=4 + number % 4)
