"""Any schedule of topics that are deleted, created, grown and altered, beside appends and commits.

Two processes share the topics `events`, which comes and goes, and `others`, which stays, on two or three
disks. Disks fail and come back; processes are killed within any of this; a topic changes between what a
job stages and its commit. After each step:

- a change is done or not, and one that was answered is done;
- what was acknowledged is there as long as its topic is, at its offset;
- nothing of a deleted topic is found under its name again;
- a commit is seen in all partitions of topics that are still there, or in none.

In the end all disks are back: everyone can write, replicas are in sync, each directory is of the topic that
has its name, and a day later nothing is left of the deleted topics.

A few schedules by default, 100 with `make soak`; `tests.support.draws` has more, and how to repeat one.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.commit.coordinator import COMMITTED, NOTHING_VISIBLE, UNKNOWN, Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import CommitError, KafkaStorageError, KBatchError
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.log.partition_log import holds_records
from spark_kbatch.model import AppendResult, TopicPartition, partition_of
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.replica import administration
from tests.support import builders
from tests.support.failing_disks import (
    Killed,
    a_replicated_cluster,
    bytes_of,
    partition,
)
from tests.support.reference import Record, encode_batch
from tests.support.schedules import Schedule, Step, ensure_all_or_nothing, run_schedules
from tests.support.store import append_records as append_by
from tests.support.store import store_of

QUICK, MANY = 6, 100
STEPS = 16
DAY_MS = 86_400_000
TOPICS = ("events", "others")


class Job(NamedTuple):
    """A job's staged partitions, with their topics' ids, and the outcome of its commit."""

    places: dict[TopicPartition, str]
    outcome: str


class Changes(Schedule):
    """Changes of one topic, appends and commits to it and to another one."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, nodes=[2, 2, 3])
        # Of the topics that exist.
        self.ids = {name: self.processes[0].topic(name).topic_id for name in TOPICS}
        self.acknowledged: dict[tuple[str, TopicPartition, int], bytes] = {}
        self.jobs: dict[bytes, Job] = {}
        self.count, self.is_over = 0, False

    def a_cluster(self) -> Cluster:
        made = a_replicated_cluster(self.folder, self.disks, partitions=2, replicas=self.nodes)
        made.create_topic("others", replication_factor=self.nodes)
        return made

    def steps(self) -> list[Step]:
        weighted: list[Step] = [self.append] * 4 + [self.commit] * 3 + [self.change] * 6
        weighted += [self.kill] * 5 + [self.fail] * 2 + [self.mend] * 2
        return [*weighted, self.turn, self.collect]

    def steps_to_kill(self) -> list[tuple[Step, int]]:
        return [(self.append, 40), (self.commit, 120)] + [(self.change, 120)] * 3

    # Steps.

    def append(self, number: int) -> None:
        cluster, name = self.processes[number], self.rng.choice(TOPICS)
        topic_partition = TopicPartition(name, self.rng.randrange(2) if name == "events" else 0)
        key = self.new_key()
        self.log[-1] += f" {key!r} to {topic_partition}"
        results: list[AppendResult] = []
        append_by(
            store_of(cluster),
            timeout_ms=0,
            required_acks=-1,
            entries_per_partition={topic_partition: encode_batch([Record(0, 1000, key, b"v")])},
            on_complete=lambda found: results.extend(found.values()),
            flush=False,
        )
        store_of(cluster).manager.delayed_produces.look()
        for result in results:
            if result.error is None:
                place = (self.ids[name], topic_partition, result.base_offset)
                self.acknowledged[place] = key
            else:
                assert isinstance(result.error, KBatchError), result.error

    def commit(self, number: int) -> None:
        """Commit a job that writes to both topics; the other process may change one meanwhile."""
        cluster, key = self.processes[number], self.new_key()
        places = {TopicPartition("others", 0): self.ids["others"]}
        if "events" in self.ids:
            places |= {TopicPartition("events", p): self.ids["events"] for p in range(2)}
        self.log[-1] += f" {key!r} to {len(places)}"
        self.jobs[key] = Job(places, UNKNOWN)  # until the commit returns or fails
        data = bytes(encode_batch([Record(n, 1000 + n, key, b"v") for n in range(2)]))
        outcome = NOTHING_VISIBLE
        try:
            extents = builders.staged(
                cluster, {tuple(tp): [data] for tp in places}, transaction=key.decode()
            )
            if self.disks.kill_at is None and self.rng.random() < 0.4 and not self.is_over:
                self.change(1 - number)
            committer = Coordinator(
                store_of(cluster).manager, self.clock, adopt_min_bytes=0, flush=False
            )
            committer.commit(extents, transactional_id=key.decode())
            outcome = COMMITTED
            committer.discard(extents, key.decode())
        except CommitError as error:
            outcome = error.outcome
        except (OSError, KBatchError) as error:
            self.log[-1] += f" ({error})"  # nothing could be staged
        if self.ids.get("events", "") != places.get(TopicPartition("events", 0), ""):
            gone = TopicPartition("events", 0) in places
            assert not gone or outcome == NOTHING_VISIBLE, "its topic was gone"
        self.jobs[key] = Job(places, outcome)
        self.log[-1] += f": {outcome}"

    def change(self, number: int) -> None:
        """Delete, create, grow or alter."""
        cluster, before = self.processes[number], self.found()
        commits = store_of(cluster).coordinator(flush=False)
        manager, steps = store_of(cluster).manager, [self.rng.choice(["delete", "grow", "alter"])]
        if before is None:
            steps = ["create"]

            def is_after(now: Topic | None) -> bool:
                return now is not None

            factor, config = self.rng.randint(1, self.nodes), TopicConfig()

            def do() -> object:
                return administration.create_topic(
                    manager, "events", partitions=2, config=config, replication_factor=factor
                )

        elif steps == ["delete"]:

            def is_after(now: Topic | None) -> bool:
                return now is None

            def do() -> object:
                return administration.delete_topic(manager, commits, "events")

        elif steps == ["grow"]:
            total = before.partitions + self.rng.randint(1, 2)

            def is_after(now: Topic | None) -> bool:
                return now is not None and now.partitions == total

            def do() -> object:
                return administration.create_partitions(manager, commits, "events", total)

        else:
            changes = {
                "retention.bytes": self.rng.randrange(1 << 30, 1 << 31),
                "min.insync.replicas": self.rng.choice([1, 1, 2]),
            }

            def is_after(now: Topic | None) -> bool:
                return now is not None and now.config.retention_bytes == changes["retention.bytes"]

            def do() -> object:
                return administration.alter_topic(manager, commits, "events", changes)

        self.log[-1] += f" {steps[0]} by {number}"
        error: BaseException | None = None
        try:
            do()
        except (OSError, KBatchError) as failed:
            error = failed
            self.log[-1] += f" fails: {failed}"
        except Killed as killed:
            error = killed
        now = self.found()
        if error is None:
            assert is_after(now), "it was answered, but is not done"
        elif isinstance(error, Killed):
            assert now == before or is_after(now), "it is half done"
        else:
            assert now == before, f"it failed, but is done: {error!r}"
        if before is not None and now is not None:
            assert before.topic_id == now.topic_id
        self.ids = {"others": self.ids["others"]}
        if now is not None:
            self.ids["events"] = now.topic_id
        if isinstance(error, Killed):
            raise error

    def turn(self, _: int) -> None:
        self.clock.now_ms += self.rng.choice([10, RETRY_MS, 2 * RETRY_MS, 90_000])

    def collect(self, number: int) -> None:
        try:
            self.processes[number].collect_garbage()
        except (OSError, KBatchError) as error:
            self.log[-1] += f" fails: {error}"

    # What must hold.

    def look(self) -> None:
        process = self.rng.choice(self.processes)
        assert self.found() == store_of(process).metadata.topics.find("events")
        assert process.topic_names() == sorted(self.ids)
        try:
            found = builders.contents(process)
        except (OSError, KafkaStorageError):
            # A disk that has failed is not tried again for a while.
            self.clock.now_ms += 2 * RETRY_MS
            topics = [tp for name in self.ids for tp in store_of(process).manager.partitions(name)]
            if not all(self.has_readable(tp) for tp in [*topics, TRANSACTION_STATE]):
                return
            found = builders.contents(process)
        for (topic_id, tp, offset), key in self.acknowledged.items():
            if self.ids.get(tp.topic) == topic_id:
                assert found[tp][offset].key == key, f"{key!r} was acknowledged and is gone"
        known = {key: topic_id for (topic_id, *_), key in self.acknowledged.items()}
        for tp, records in found.items():
            assert [record.offset for record in records] == list(range(len(records)))
            for record in records:
                assert record.key is not None
                job = self.jobs.get(record.key)
                of = job.places[tp] if job else known.get(record.key, self.ids[tp.topic])
                assert of == self.ids[tp.topic], f"{record.key!r} is of a topic that was deleted"
        for key, job in self.jobs.items():
            there = [
                tp for tp, topic_id in job.places.items() if self.ids.get(tp.topic) == topic_id
            ]
            counts = [sum(record.key == key for record in found[tp]) for tp in there]
            ensure_all_or_nothing(key, job.outcome, counts, records=2)

    def finish(self) -> None:
        self.log.append("all disks are back")
        self.is_over = True
        self.disks.failing.clear()
        self.clock.now_ms += 2 * RETRY_MS
        cluster = self.processes[0]
        if "events" not in self.ids:
            self.change(0)
        for _ in range(2):  # a replica that is far behind catches up in pieces
            assert cluster.replicate() == []
        self.commit(0)  # which discards what a commit that was never decided has left
        assert self.jobs.popitem()[1].outcome == COMMITTED
        self.append(0)
        self.look()
        self.clock.now_ms += DAY_MS
        cluster.collect_garbage()
        assert list((cluster.path / "deleted").glob("*")) == []
        for node in range(self.nodes):
            log_dir = store_of(cluster).metadata.cluster_file.log_dir(node).path
            for path in log_dir.iterdir():
                assert not path.name.endswith("-delete"), path
                held = partition_of(path.name)
                if held is not None and held.topic in self.ids:
                    self.ensure_of_its_topic(path, held, node)
        for name in self.ids:
            for tp in store_of(cluster).manager.partitions(name):
                nodes = cluster.topic(name).replicas_of(tp.partition)
                assert partition(cluster, tp).view.state().isr == nodes
                assert len({bytes_of(cluster, node, tp) for node in nodes}) == 1
        self.look()

    def ensure_of_its_topic(self, directory: Path, held: TopicPartition, node: int) -> None:
        cluster = self.processes[0]
        topic = cluster.topic(held.topic)
        if held.partition < topic.partitions and node in topic.replicas_of(held.partition):
            assert read_partition_metadata(store_of(cluster).files, directory) == topic.topic_id
        else:  # An interrupted attempt to create or to grow leaves empty logs.
            assert not holds_records(store_of(cluster).files, directory), directory

    def found(self) -> Topic | None:
        return store_of(Cluster(str(self.folder / "cluster"))).metadata.topics.find("events")

    def new_key(self) -> bytes:
        self.count += 1
        return f"{self.count}".encode()


def test_a_few_schedules_of_changing_topics_lose_nothing() -> None:
    run_schedules(Changes, steps=STEPS, default=QUICK)


@pytest.mark.slow
def test_many_schedules_of_changing_topics_lose_nothing() -> None:
    run_schedules(Changes, steps=STEPS, default=MANY)
