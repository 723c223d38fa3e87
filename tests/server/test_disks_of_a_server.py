"""A server, jobs, producers and readers in processes of their own, on three disks that go away, fill up, are swapped.

Three folders are file systems of their own. Meanwhile an operator replaces disks, PATH goes away and comes back,
and processes are killed. Whatever happens:

- each acknowledged record is in the log, where it was acknowledged; that of an idempotent producer once;
- each job is there whole in all partitions, or not at all;
- no offset is read with two contents;
- a group's offset never goes back behind what was acknowledged;
- in the end, after `kbatch log-dirs --replicate`, all replicas are equal.

And while at most one disk is away everyone goes on, as they do when all are back.

`tests.support.draws` has how long, and the seed, which a failure names.

KBATCH_DISKS_KEEP  a folder for what is left of a run that failed
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import walk
from tests.support import builders, draws
from tests.support.disk_workers import PARTITIONS, ROWS_OF_A_JOB, TOPIC
from tests.support.killed_children import lines
from tests.support.mounted_disks import MountedDisks, discard
from tests.support.running_clients import QUICK, Consuming, Producing, Running
from tests.support.served import Served
from tests.support.small_disk import kbatch, on_small_disk
from tests.support.store import store_of
from tests.support.waiting import TIMEOUT_S, until

SECONDS = draws.at_least(60)
DISKS, DISK_SIZE = 3, "256m"
GOES_ON_WITHIN_S = 30
# Without a disk that has `__consumer_offsets`, or PATH.
UNAVAILABLE = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT,
)  # fmt: skip
REPLICAS = ("--replication-factor", str(DISKS))
SERVER = ("--config", "log.retention.check.interval.ms=300", "--no-create")


class Committing(Running):
    """A client that commits 1, 2, 3, .. as the offset of a group without members."""

    def __init__(self, address: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "numbers"} | QUICK
        )
        self.attempted = self.acknowledged = 0
        super().__init__()

    def _work(self) -> None:
        self.attempted += 1
        place = confluent_kafka.TopicPartition(TOPIC, 0, self.attempted, "x" * 3000)
        with contextlib.suppress(confluent_kafka.KafkaException):
            self._consumer.commit(offsets=[place], asynchronous=False)
            self.acknowledged = self.attempted
        first = self.acknowledged
        with contextlib.suppress(confluent_kafka.KafkaException):
            place = confluent_kafka.TopicPartition(TOPIC, 0)
            (found,) = self._consumer.committed([place], timeout=1)
            assert found.error is not None or first <= found.offset, (first, found.offset)

    def _finish(self) -> None:
        self._consumer.close()


class Sending(Running):
    """Our own idempotent producer, over the network."""

    def __init__(self, address: str) -> None:
        self._address, self._count = address, 0
        self.places: dict[bytes, tuple[int, int]] = {}
        super().__init__()

    def _work(self) -> None:
        with (
            spark_kbatch.connect(self._address) as cluster,
            cluster.producer({"retry.backoff.ms": 20, "linger.ms": 1}) as producer,
        ):
            while not self._is_over.wait(0.01):
                self._send(producer)

    def _send(self, producer: Any) -> None:
        sent = []
        for _ in range(10):
            value, self._count = b"o-%d" % self._count, self._count + 1
            partition = self._count % PARTITIONS
            sent.append((value, producer.send(TOPIC, value, partition=partition)))
        for value, future in sent:
            found = future.result(120)
            self.places[value] = found.partition, found.offset

    def _finish(self) -> None:
        pass


class Administering(Running):
    """A client that creates topics, and deletes some of them again."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address} | QUICK)
        self._count = 0
        # As far as is known: a request that fails may have been carried out.
        self.created, self.deleted, self.unknown = set[str](), set[str](), set[str]()
        super().__init__()

    def _work(self) -> None:
        name, self._count = f"topic-{self._count}", self._count + 1
        self.unknown.add(name)
        topic = NewTopic(name, num_partitions=1, replication_factor=DISKS)
        if self._is_done(self._admin.create_topics([topic])[name]):
            self.unknown.discard(name)
            self.created.add(name)
            if self._count % 4:
                self.created.discard(name)
                self.unknown.add(name)
                if self._is_done(self._admin.delete_topics([name])[name]):
                    self.unknown.discard(name)
                    self.deleted.add(name)
        self._is_over.wait(0.1)

    def _is_done(self, future: Any) -> bool:
        try:
            future.result(TIMEOUT_S)
        except confluent_kafka.KafkaException:
            return False
        return True

    def _finish(self) -> None:
        pass


class Workers:
    """Processes of `disk_workers`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder, self._count = path, folder, 0
        self._running: dict[int, tuple[str, subprocess.Popen[bytes], Path]] = {}

    def start(self, work: str) -> None:
        self._count += 1
        notes = self._folder / f"{work}-{self._count}"
        with notes.with_suffix(".err").open("wb") as errors:
            words = [sys.executable, "-m", "tests.support.disk_workers", work, self._path, notes]
            process = subprocess.Popen(list(map(str, words)), stderr=errors)
        self._running[self._count] = work, process, notes

    def kill_one(self, rng: random.Random) -> str:
        """Kill one and start another."""
        work, process, _ = self._running.pop(rng.choice(sorted(self._running)))
        _kill(process)
        self.start(work)
        return work

    def check(self) -> None:
        for work, process, notes in self._running.values():
            assert process.poll() is None, f"{work} ended: {notes.with_suffix('.err').read_text()}"

    def counts(self) -> dict[str, int]:
        """Return how many lines each kind of those that run has written."""
        return {
            f"{work} {number}": len(lines(notes))
            for number, (work, _, notes) in self._running.items()
        }

    def stop(self) -> list[str]:
        """Kill all; return what they did."""
        works = [work for work, _, _ in self._running.values()]
        for _, process, _ in self._running.values():
            process.kill()
            process.wait()
        self._running = {}
        return works

    def noted(self, work: str) -> Iterator[list[str]]:
        for notes in self._folder.glob(f"{work}-*"):
            if notes.suffix != ".err":
                yield from map(str.split, lines(notes))


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it ended by itself"


class Site:
    """The cluster with all that uses it, and what happens to it."""

    def __init__(self, folder: Path) -> None:
        self.rng, self.done = random.Random(draws.FIRST), Counter[str]()
        self.disks = MountedDisks(folder, DISKS, size=DISK_SIZE)
        self.path, self.notes = folder / "path" / "cluster", folder / "notes"
        self.notes.mkdir()
        self.path.parent.mkdir()
        config = TopicConfig(min_insync_replicas=self.rng.choice((1, 2)), segment_bytes=1 << 18)
        with Cluster(str(self.path), create=True, log_dirs=self.disks.places) as cluster:
            cluster.create_topic(
                TOPIC, partitions=PARTITIONS, replication_factor=DISKS, config=config
            )
        self.made = 0  # topics, by an operator
        self.server = Served(self.path, self.notes / "server.log", *SERVER)
        self.workers = Workers(self.path, self.notes)

    def run(self) -> None:
        with self.server as server:
            for work in ("produce", "produce", "plain", "commit", "read", "read"):
                self.workers.start(work)
            clients: dict[str, Any] = {
                "librdkafka": Producing(server.address, TOPIC, partitions=PARTITIONS),
                "ours": Sending(server.address),
                "group": Consuming(server.address, TOPIC, tolerated=UNAVAILABLE),
                "offsets": Committing(server.address),
                "admin": Administering(server.address),
            }
            self.clients = clients
            try:
                self._goes_on()
                deadline = time.monotonic() + SECONDS
                while time.monotonic() < deadline:
                    self._one()
                    self._goes_on()
                for client in self.clients.values():
                    client.stop()
            finally:
                self.workers.stop()
            self._check()

    # What happens.

    def _one(self) -> None:
        happens = self.rng.choice(
            [
                self._away, self._away, self._two_away, self._replaced, self._replaced, self._full,
                self._read_only, self._swapped, self._path_away, self._killed, self._restored,
                self._replicated, self._old_path, self._old_image,
            ]
        )  # fmt: skip
        name = happens.__name__.lstrip("_")
        self.done[name] += 1
        print(f"{time.monotonic():.3f} {name}", flush=True)
        happens()

    def _pass_time(self, *, goes_on: bool = True) -> None:
        """Let everyone work; kill someone perhaps."""
        for _ in range(self.rng.randrange(3)):
            time.sleep(self.rng.uniform(0, 1.5))
            if self.rng.random() < 0.3:
                self._killed()
        if goes_on and self.rng.random() < 0.5:
            self._goes_on(but="admin")  # No topic is created with fewer disks than replicas.

    def _operate(self, *words: str) -> str:
        """Run `kbatch log-dirs`, sometimes killed before and sometimes twice at once; return what the last said."""
        command = [sys.executable, "-m", "spark_kbatch", "log-dirs", str(self.path), *words]
        if self.rng.random() < 0.4:
            with subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as first:
                time.sleep(self.rng.uniform(0.3, 1.2))
                if self.rng.random() < 0.7:
                    first.kill()
        done = kbatch("log-dirs", self.path, *words)
        return done.stdout + done.stderr

    def _killed(self) -> None:
        if self.rng.random() < 0.4:
            self.server.kill()
            time.sleep(self.rng.choice([0, self.rng.uniform(0, 0.5)]))
            self.server.start()
            self._say("server killed")
        else:
            self._say(f"{self.workers.kill_one(self.rng)} killed")

    def _disk(self) -> int:
        number = self.rng.randrange(DISKS)
        self._say(f"disk {number}")
        return number

    def _say(self, what: str) -> None:
        print(f"{time.monotonic():.3f}     {what}", flush=True)

    def _away(self) -> None:
        with self.disks.away(self._disk()):
            self._pass_time()

    def _two_away(self) -> None:
        first, second = self.rng.sample(range(DISKS), 2)
        self._say(f"disks {first}, {second}")
        with self.disks.away(first):
            self._pass_time()
            with self.disks.away(second):
                self._pass_time(goes_on=False)

    def _replaced(self) -> None:
        number = self._disk()
        place = self.disks.places[number]
        with self.disks.away(number) as (old,):
            self._pass_time()
            self.disks.mount_new(place)
            said = self._operate("--replace", str(number))
            if "may have had the only copy" in said:
                self._say(f"not replaced: {said}")
                discard(place)
                return
            # An operator whose command was killed finds the new disk online.
            assert "not in sync" in said or f"of node {number} is online" in said, said
            discard(old)
        self._pass_time()

    def _replicated(self) -> None:
        said = self._operate("--replicate")
        assert "not in sync" in said, said

    @property
    def _places(self) -> str:
        return ",".join(map(str, self.disks.places))

    def _full(self) -> None:
        with self.disks.full(self._disk()):
            self._pass_time()

    def _read_only(self) -> None:
        with self.disks.read_only(self._disk()) as is_so:
            if is_so:
                self._pass_time()

    def _swapped(self) -> None:
        numbers = self.rng.sample(range(DISKS), self.rng.choice((2, 3)))
        self._say(f"disks {numbers}")
        with self.disks.swapped(numbers):
            self._pass_time(goes_on=False)

    def _path_away(self) -> None:
        aside = self.path.with_name("aside")
        self.path.rename(aside)
        for _ in range(self.rng.randrange(3)):
            time.sleep(self.rng.uniform(0, 1.5))
        assert not self.path.exists(), sorted(self.path.rglob("*"))
        aside.rename(self.path)

    def _old_path(self) -> None:
        """Put a backup of PATH, which misses a change, in its place; only clients go on."""
        backup = self.path.with_name("backup")
        subprocess.run(["cp", "-a", self.path, backup], check=False)  # Files come and go.
        done = kbatch("create-topic", self.path, f"new-{self.made}", *REPLICAS)
        assert done.returncode == 0, done
        self.made += 1
        self._pass_time()
        self.server.kill()
        works = self.workers.stop()
        self.path.rename(self.path.with_name(f"lost-{time.monotonic_ns()}"))
        backup.rename(self.path)
        said = self._operate()
        assert "not in sync" in said, said
        self.server.start()
        for work in works:
            self.workers.start(work)

    def _old_image(self) -> None:
        """Let a disk come back as it was some time ago; the other ones are in sync."""
        number = self._disk()
        place, image = self.disks.places[number], self.notes.with_name("image")
        with self.disks.away(number) as (taken,):
            shutil.copytree(taken, image, symlinks=True)
        self._pass_time()
        self._goes_on()
        done = kbatch("log-dirs", self.path, "--replicate")
        assert done.returncode == 0, done
        with self.disks.away(number) as (taken,):
            self.disks.mount_copy(image, place)
            discard(taken)
        shutil.rmtree(image)
        self._pass_time()

    def _restored(self) -> None:
        """Lose PATH, and restore it while everyone goes on."""
        self.path.rename(self.path.with_name(f"lost-{time.monotonic_ns()}"))
        time.sleep(self.rng.choice([0, self.rng.uniform(0, 0.5)]))
        if self.rng.random() < 0.3:
            with self.disks.away(self._disk()):
                said = self._operate("--restore", self._places)
                assert "cannot be used: what was changed last may be known there alone" in said, (
                    said
                )
        said = self._operate("--restore", self._places)
        assert "not in sync" in said, said
        if self.rng.random() < 0.5:
            self.server.kill()
            self.server.start()

    # What has to be true.

    def _goes_on(self, *, but: str = "") -> None:
        """Wait until each process and client has got further."""
        before = {name: count for name, count in self._counts().items() if name != but}

        def all_went_on() -> bool:
            self.workers.check()
            assert not [error for one in self.clients.values() for error in one.errors]
            return self._waits_for(before) == []

        try:
            until(all_went_on, timeout_s=GOES_ON_WITHIN_S)
        except AssertionError as error:
            errors = [one.errors for one in self.clients.values() if one.errors]
            raise AssertionError(
                f"{error} does not go on: {self._waits_for(before)}, {errors}"
            ) from error

    def _waits_for(self, before: dict[str, int]) -> list[str]:
        now = self._counts()
        return [name for name, count in before.items() if now.get(name, count + 1) <= count]

    def _counts(self) -> dict[str, int]:
        clients = self.clients
        return self.workers.counts() | {
            "librdkafka": len(clients["librdkafka"].places),
            "ours": len(clients["ours"].places),
            "group": clients["group"].committed,
            "offsets": clients["offsets"].acknowledged,
            "admin": len(clients["admin"].deleted),
        }

    def _check(self) -> None:
        done = kbatch("log-dirs", self.path, "--replicate")
        assert done.returncode == 0, done
        done = kbatch("verify", self.path)
        assert done.returncode == 0, done
        with Cluster(str(self.path)) as cluster:
            assert cluster.replicate() == []
            topics, admin = {*cluster.topic_names()}, self.clients["admin"]
            made = {name for name in topics if name.startswith("new-")}
            assert len(made) == self.made
            topics -= made
            assert admin.created | {TOPIC} <= topics <= admin.created | admin.unknown | {TOPIC}
            for topic in store_of(cluster).metadata.topics.names(internal=True):
                for tp in store_of(cluster).manager.partitions(topic):
                    nodes = store_of(cluster).manager.partition(tp).replicas
                    copies = [batches_of(cluster, tp, node) for node in nodes]
                    assert all(copy == copies[0] for copy in copies), tp
            found = builders.contents(cluster)
        log = {
            (p, one.offset): one.value.decode()
            for p in range(PARTITIONS)
            for one in found[TopicPartition(TOPIC, p)]
        }
        for p in range(PARTITIONS):
            assert [o for number, o in log if number == p] == [
                *range(len(found[TopicPartition(TOPIC, p)]))
            ]
        self._check_records(log)
        self._check_jobs(log)
        self._check_reads(log)

    def _check_records(self, log: dict[tuple[int, int], str]) -> None:
        for work in ("produce", "plain"):
            for value, partition, offset in self.workers.noted(work):
                assert log.get((int(partition), int(offset))) == value
        for name in ("librdkafka", "ours"):
            for value, (partition, offset) in self.clients[name].places.items():
                if offset is not None:  # librdkafka does not know of all
                    assert log.get((partition, offset)) == value.decode()
        counts = Counter(log.values())
        sent = {value.decode() for value in self.clients["librdkafka"].places}
        assert sent <= counts.keys()
        twice = {v: n for v, n in counts.items() if n > 1 and not v.startswith(("p-", "j-"))}
        assert not twice

    def _check_jobs(self, log: dict[tuple[int, int], str]) -> None:
        rows = Counter(value for value in log.values() if value.startswith("j-"))
        jobs = {value.split("-")[1] for value in rows}
        whole = {f"j-{job}-{row}": PARTITIONS for job in jobs for row in range(ROWS_OF_A_JOB)}
        assert rows == whole
        assert {job for (job,) in self.workers.noted("commit")} <= jobs

    def _check_reads(self, log: dict[tuple[int, int], str]) -> None:
        for partition, offset, value in self.workers.noted("read"):
            assert log.get((int(partition), int(offset))) == value
        for partition, offset, value in self.clients["group"].records:
            assert log.get((partition, offset)) == value.decode()


def batches_of(cluster: Cluster, tp: TopicPartition, node: int) -> list[bytes]:
    """Return all that a replica has from its log start to its end, in pieces as of one read."""
    log = store_of(cluster).manager.partition(tp).view.log_of(node)
    state = log.state()
    state = state._replace(high_watermark=state.log_end_offset)  # A follower's may be lower.
    found, offset = [f"{state.log_start_offset}".encode()], state.log_start_offset
    data = b""
    while offset < state.log_end_offset:
        read = log.read(state, ReadRange(offset, 1 << 20))
        data += bytes(read.data)
        for _, header in walk(read.data):
            offset = header.next_offset
    return [*found, data]


def use_disks(folder: Path) -> None:
    """Run on a file system of its own; see `on_small_disk`."""
    try:
        Site(folder).run()
    except BaseException:
        keep = os.environ.get("KBATCH_DISKS_KEEP")
        if keep:
            for name in ("path", "notes", *(f"disk-{number}" for number in range(DISKS))):
                shutil.copytree(folder / name, Path(keep) / name, dirs_exist_ok=True, symlinks=True)
        raise


@pytest.mark.slow
@draws.naming_first()
def test_disks_that_come_and_go_beside_a_server_lose_and_double_nothing(tmp_path: Path) -> None:
    on_small_disk(use_disks, tmp_path, size="1g", timeout_s=5 * SECONDS + 300)
