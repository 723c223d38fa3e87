"""A server and the jobs beside it are killed at random moments: no client and no reader sees a part of a job.

    clients of the server    a producer with idempotence and one without; a group; a client that commits
                             offsets; one that asks for the high watermarks
    jobs                     a process that stages and commits one job after the other
    readers of the folder    in this process

One kill by default, 12 with `make soak`; `tests.support.draws` has more, and how to repeat a run.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import pytest

import spark_kbatch
from spark_kbatch.options.topic import TopicConfig
from tests.conftest import REPOSITORY
from tests.server.test_killed_server import TOPIC, Load, OffsetCommits
from tests.support import builders, draws
from tests.support.clients.librdkafka import Librdkafka
from tests.support.committing_jobs import ROWS
from tests.support.killed_children import kills, lines
from tests.support.served import Served
from tests.support.waiting import until

PARTITIONS = 3
SESSION_TIMEOUT_MS = 120_000  # a member stays one while the server is down
DELIVERY_TIMEOUT_S = 240
UNACKNOWLEDGED_MAX = 500
BURST = 5  # records for each partition


class SteadyProducer:
    """A producer that numbers its records in each partition, and remembers what was acknowledged."""

    def __init__(self, address: str, topic: str, name: str, *, is_idempotent: bool) -> None:
        self._topic, self._name, self._is_idempotent = topic, name, is_idempotent
        self.sent = [0] * PARTITIONS
        self.places: dict[bytes, tuple[int, int]] = {}  # partition and offset
        self.errors: list[Any] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": is_idempotent,
                "max.in.flight.requests.per.connection": 5 if is_idempotent else 1,
                "acks": "all",
                "retries": 2**31 - 1,
                "linger.ms": 5,
                "request.timeout.ms": 100_000,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def send(self, _: int) -> None:
        """Send a burst, unless much is not acknowledged."""
        if sum(self.sent) - len(self.places) < UNACKNOWLEDGED_MAX:
            for partition in range(PARTITIONS):
                for _ in range(BURST):
                    value = self._value(partition, self.sent[partition])
                    self._producer.produce(
                        self._topic, value, partition=partition, on_delivery=self._delivered
                    )
                    self.sent[partition] += 1
        self._producer.poll(0)

    def _value(self, partition: int, number: int) -> bytes:
        return f"producer-{self._name}{partition}-{number}".encode()

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.errors.append(error)
        else:
            self.places[message.value()] = message.partition(), message.offset()

    def finish(self) -> None:
        assert self._producer.flush(DELIVERY_TIMEOUT_S) == 0
        assert self.errors == []

    def check(self, held: list[list[str]]) -> None:
        """Check that the topic has all records in their order, and none twice if the producer is idempotent."""
        for value, (partition, offset) in self.places.items():
            if offset >= 0:
                assert held[partition][offset] == value.decode()
        for partition, values in enumerate(held):
            mine = [v for v in values if v.startswith(f"producer-{self._name}{partition}-")]
            if not self._is_idempotent:
                mine = list(dict.fromkeys(mine))
            sent = [self._value(partition, n).decode() for n in range(self.sent[partition])]
            assert mine == sent, f"partition {partition}"


class Watermarks:
    """A client that asks for the ends of partitions, which never go back."""

    def __init__(self, address: str, *topics: str) -> None:
        self._topics = topics
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "watermarks",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.highs: Counter[tuple[str, int]] = Counter()

    def ask(self, number: int) -> None:
        topic = self._topics[number % len(self._topics)]
        for partition in range(PARTITIONS):
            place = confluent_kafka.TopicPartition(topic, partition)
            try:
                low, high = self._consumer.get_watermark_offsets(place, timeout=5)
            except confluent_kafka.KafkaException:
                return  # the server is down
            assert low <= high
            assert high >= self.highs[topic, partition], f"{topic}-{partition} went back"
            self.highs[topic, partition] = high

    def finish(self) -> None:
        self._consumer.close()


class Reader:
    """Reads of the folder, each of which shows what the last one did, and whole jobs only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: list[list[str]] = [[] for _ in range(PARTITIONS)]

    def read(self, _: int = 0) -> list[list[str]]:
        held: list[list[str]] = [[] for _ in range(PARTITIONS)]
        with spark_kbatch.open(str(self._path)) as cluster:
            for batch in cluster.read(TOPIC, columns=["partition", "offset", "value"]):
                for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
                    assert offset == len(held[partition])
                    held[partition].append(value.decode())
        for before, now in zip(self._seen, held, strict=True):
            assert now[: len(before)] == before
        self._seen = held
        jobs_in(held)
        return held


def jobs_in(held: list[list[str]]) -> list[str]:
    """Return the jobs, after checking that each is whole, once, and in the same order in all partitions."""
    found = []
    for values in held:
        of_jobs = [v.split("-") for v in values if not v.startswith("producer-")]
        found.append([])
        for job, rows in itertools.groupby(of_jobs, key=lambda row: row[0]):
            found[-1].append(job)
            assert [int(row) for _, row in rows] == [*range(ROWS)], job
        assert len(set(found[-1])) == len(found[-1])
    assert all(jobs == found[0] for jobs in found)
    return found[0]


class Jobs:
    """The process that commits jobs."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder, self._count = path, folder, itertools.count()
        self.notes = folder / "jobs"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [str(self._path), TOPIC, str(self.notes), f"{draws.FIRST}-{next(self._count)}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.committing_jobs", *words], cwd=REPOSITORY
        )

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "it ended by itself"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)


def ensure_kills_show_no_part_of_a_job(folder: Path, count: int) -> None:
    rng = random.Random(draws.FIRST)
    config = TopicConfig(retention_ms=-1, segment_bytes=rng.choice((20_000, 1 << 30)))
    cluster = builders.a_cluster(folder, topics={TOPIC: PARTITIONS}, config=config)
    cluster.close()
    path = Path(cluster.path)
    jobs, reader = Jobs(path, folder), Reader(path)
    jobs.start()
    try:
        with (
            Served(path, folder / "server.log") as server,
            Librdkafka(server.address).member(
                "group", TOPIC, session_timeout_ms=SESSION_TIMEOUT_MS
            ) as member,
        ):
            producers = [
                SteadyProducer(server.address, TOPIC, "once", is_idempotent=True),
                SteadyProducer(server.address, TOPIC, "again", is_idempotent=False),
            ]
            commits, watermarks = (
                OffsetCommits(server.address), Watermarks(server.address, TOPIC),
            )  # fmt: skip
            with Load() as load:
                for producer in producers:
                    load.start(producer.send, 0.02)
                load.start(commits.commit, 0.02)
                load.start(watermarks.ask, 0.02)
                load.start(reader.read, 0.2)
                for _ in range(count):
                    goes_on(load, jobs, lambda: len(lines(jobs.notes)), "a job commits")
                    for one in producers:
                        goes_on(load, jobs, lambda one=one: len(one.places), "a producer sends")  # type: ignore[misc]
                    time.sleep(rng.uniform(0, 0.3))
                    victims = rng.choice(("server", "jobs", "server and jobs"))
                    if "jobs" in victims:
                        jobs.kill()
                    if "server" in victims:
                        server.kill()
                        time.sleep(rng.choice([0, rng.uniform(0, 0.3)]))
                        server.start()
                        commits.check()
                    if "jobs" in victims:
                        jobs.start()
            for client in (*producers, commits):
                client.finish()
            jobs.kill()
            held = reader.read()
            until(lambda: len(member.records) >= sum(map(len, held)), "the group reads everything")
            watermarks.finish()
            assert member.rebalances == 1
            consumed = [*member.records]
    finally:
        jobs.kill()

    for producer in producers:
        producer.check(held)
    found = jobs_in(held)
    assert not [job for job in found if not job.startswith("job")]
    assert {*lines(jobs.notes)} <= {*found}
    for partition, values in enumerate(held):
        mine = [(offset, value.decode()) for p, offset, value in consumed if p == partition]
        assert mine == [*enumerate(values)]
        assert watermarks.highs[TOPIC, partition] <= len(values)
    check_files(path)
    assert reader.read() == held


def check_files(path: Path) -> None:
    """Check that the files of a cluster are sound, that no process holds a lock, and that no job is left."""
    command = "from spark_kbatch.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "verify", str(path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not holders_of(path)
    with spark_kbatch.open(str(path)) as cluster:
        cluster.collect_garbage(staging_retention_ms=0)
        assert list((path / "staging-0").iterdir()) == []
        for report in cluster.repair():
            assert report.damaged == ()
            assert report.found == ()


def holders_of(path: Path) -> list[str]:
    """Return the other processes that have lock files of a cluster open."""
    found = []
    for process in psutil.process_iter():
        if process.pid != psutil.Process().pid:
            try:
                names = [one.path for one in process.open_files()]
            except psutil.Error:
                continue
            found += [f"{process} {name}" for name in names if name.startswith(f"{path}/locks")]
    return found


def goes_on(load: Load, jobs: Jobs, count: Any, what: str) -> None:
    """Wait until a count has grown."""
    before = count()

    def has_grown() -> bool:
        load.check()
        jobs.check()
        return bool(count() > before)

    until(has_grown, what, timeout_s=120)


def test_no_part_of_a_job_is_seen_beside_clients(tmp_path: Path) -> None:
    with kills(1) as count:
        ensure_kills_show_no_part_of_a_job(tmp_path, count)


@pytest.mark.slow
def test_no_part_of_a_job_is_seen_though_all_are_killed_often(tmp_path: Path) -> None:
    with kills(12) as count:
        ensure_kills_show_no_part_of_a_job(tmp_path, count)
