"""Any schedule of appends, commits, disks that fail and come back, and processes that are killed.

Two processes share a topic of two or three replicas, under a clock that is turned. Appends go to one of
its partitions, each commit to both. After each step:

- a commit is seen in both partitions or in none;
- what was below a high watermark that anybody saw is still there, the same, at the same offset;
- no high watermark that is shown is lower than one before;
- whoever reads is answered, as long as the disk of an in-sync replica can be read.

In the end all disks are back: every record that was acknowledged is there, all replicas are in sync
and hold the same bytes, each append was answered once, each commit is what its committer was told, and
no lock is left behind.

KBATCH_SCHEDULES        how many; a few by default, 10,000 with `make soak`
KBATCH_SCHEDULES_FIRST  the seed of the first one; a failure names its seed
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.commit.coordinator import COMMITTED, NOTHING_VISIBLE, UNKNOWN, Coordinator
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.errors import CommitError, KafkaStorageError, KBatchError
from spark_kbatch.model import AppendResult, LogOffsets, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.log_dirs import RETRY_MS
from tests.support import builders
from tests.support.failing_disks import (
    BROKEN,
    EVENTS,
    FULL,
    READ_ONLY,
    Clock,
    Disks,
    Killed,
    a_replicated_cluster,
    bytes_of,
    partition,
    with_clock,
)
from tests.support.reference import Record, encode_batch

FIRST = int(os.environ.get("KBATCH_SCHEDULES_FIRST", "0"))
QUICK, MANY = 15, 10_000
PARTITIONS = [EVENTS, TopicPartition("events", 1)]
STEPS = 14
TIMEOUT_MS = 500


class Append:
    """One append, and how often it was answered."""

    def __init__(self, key: bytes) -> None:
        self.key, self.answers = key, 0
        self.offset: int | None = None  # where it was acknowledged by all replicas

    def __call__(self, results: Mapping[TopicPartition, AppendResult]) -> None:
        self.answers += 1
        ((_, result),) = results.items()
        if result.error is None:
            self.offset = result.base_offset
        else:
            assert isinstance(result.error, KBatchError), result.error


class Schedule:
    """One seed's run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disks, self.clock = Disks(), Clock()
        self.nodes = self.rng.choice([2, 3, 3])
        config = TopicConfig(
            min_insync_replicas=self.rng.choice([1, 1, 2]),
            segment_bytes=self.rng.choice([300, 1 << 20]),
        )
        made = a_replicated_cluster(
            folder, self.disks, partitions=2, replicas=self.nodes, config=config
        )
        self.folder = folder
        self.processes = [with_clock(made, self.clock) for _ in range(2)]
        self.appends: list[tuple[int, int, Append]] = []  # process, acks, append
        self.jobs: dict[bytes, str] = {}  # outcomes by key
        self.seen: dict[int, bytes | None] = {}  # keys by offset, below a high watermark
        self.high_watermark = 0
        self.log: list[str] = []

    def run(self) -> None:
        weighted = [self.append] * 5 + [self.commit] * 3 + [self.fail] * 3 + [self.mend] * 2
        weighted += [self.kill] * 4 + [self.turn] * 2 + [self.lose, self.sync]
        for _ in range(STEPS):
            step = self.rng.choice(weighted)
            self.log.append(step.__name__)
            step()
            self.look()
        self.finish()

    # Steps.

    def append(self, process: int | None = None) -> None:
        number = self.rng.randrange(2) if process is None else process
        acks = self.rng.choice([-1, -1, 1, 0])
        one = Append(f"{len(self.appends)}".encode())
        self.appends.append((number, acks, one))
        self.log[-1] += f" {one.key!r} by {number}, acks {acks}"
        size = self.rng.choice([1, 3])
        records = [Record(n, 1000 + n, one.key, b"value") for n in range(size)]
        self.processes[number].append_records(
            timeout_ms=TIMEOUT_MS,
            required_acks=acks,
            entries_per_partition={EVENTS: encode_batch(records)},
            on_complete=one,
            flush=self.rng.random() < 0.5,
        )

    def commit(self, process: int | None = None) -> None:
        number = self.rng.randrange(2) if process is None else process
        cluster, key = self.processes[number], f"job-{len(self.jobs)}".encode()
        acks, flush = self.rng.choice([-1, -1, 1]), self.rng.random() < 0.5
        self.log[-1] += f" {key!r} by {number}, acks {acks}"
        self.jobs[key] = UNKNOWN  # until somebody is told
        data = bytes(encode_batch([Record(n, 1000 + n, key, b"value") for n in range(2)]))
        try:
            extents = builders.staged(
                cluster, {tuple(tp): [data] for tp in PARTITIONS}, transaction=key.decode()
            )
            committer = Coordinator(
                cluster._parts.manager, self.clock, adopt_min_bytes=0, flush=flush, acks=acks
            )
            committer.commit(extents, transactional_id=key.decode())
            self.jobs[key] = COMMITTED
            committer.discard(extents, key.decode())
        except CommitError as error:
            self.jobs[key] = error.outcome
        except (OSError, KafkaStorageError):
            self.jobs[key] = NOTHING_VISIBLE  # nothing could be staged
        self.log[-1] += f": {self.jobs[key]}"

    def kill(self) -> None:
        """Somewhere within an append or a commit."""
        number, step = self.rng.randrange(2), self.rng.choice([self.append, self.commit])
        self.disks.kill_at = self.rng.randrange(30 if step == self.append else 120)
        self.log[-1] += f" {step.__name__}"
        try:
            step(number)
        except Killed:
            self.log[-1] += ", killed"
            self.processes[number] = with_clock(self.processes[number], self.clock)
        self.disks.kill_at = None

    def fail(self) -> None:
        node = self.rng.randrange(self.nodes)
        error = self.rng.choice([BROKEN, FULL, READ_ONLY])
        self.log[-1] += f" {node} {error}"
        self.disks.fail(self.disk(node), error)

    def mend(self) -> None:
        node = self.rng.randrange(self.nodes)
        self.log[-1] += f" {node}"
        self.disks.mend(self.disk(node))

    def turn(self) -> None:
        self.clock.now_ms += self.rng.choice([10, TIMEOUT_MS, RETRY_MS, 2 * RETRY_MS])
        for process in self.processes:
            process._parts.manager.delayed_produces.look()

    def lose(self) -> None:
        """All that a disk holds, where another one has everything that counts, too."""
        node = self.rng.randrange(self.nodes)
        in_sync = [
            {n for n in self.in_sync(tp) if self.is_readable(n)}
            for tp in [*PARTITIONS, COMMITS, TRANSACTION_STATE]
        ]
        if self.is_readable(node) and all(nodes - {node} for nodes in in_sync):
            self.log[-1] += f" {node}"
            shutil.rmtree(self.disk(node))

    def sync(self) -> None:
        self.processes[self.rng.randrange(2)].manager.replicate(
            PARTITIONS, self.processes[0]._parts.coordinator(flush=False), flush=False
        )

    # What must hold.

    def look(self) -> None:
        process = self.rng.choice(self.processes)
        try:
            edges, found = self.read(process)
        except KafkaStorageError:
            # What has failed is not tried again for a while.
            self.clock.now_ms += RETRY_MS
            if not all(self.has_readable(tp) for tp in [*PARTITIONS, TRANSACTION_STATE]):
                return
            edges, found = self.read(process)
        assert edges.high_watermark >= self.high_watermark, "the high watermark moved back"
        assert edges.high_watermark <= len(found)
        assert [record.offset for record in found] == list(range(len(found)))
        for offset, key in self.seen.items():
            assert found[offset].key == key, f"offset {offset} has changed"
        leaders = [partition(process, tp).view.state().leader for tp in [EVENTS, TRANSACTION_STATE]]
        if all(self.is_readable(node) for node in leaders):
            # Else nobody could be elected, and what followers show is not binding.
            self.high_watermark = edges.high_watermark
            self.seen |= {r.offset: r.key for r in found[: edges.high_watermark]}

    def read(self, process: Cluster) -> tuple[LogOffsets, list[Record]]:
        edges, found = process._reader.edges([EVENTS])[EVENTS], builders.contents(process)
        self.ensure_whole(found)
        return edges, found[EVENTS]

    def ensure_whole(self, found: Mapping[TopicPartition, list[Record]]) -> None:
        for key, outcome in self.jobs.items():
            counts = {sum(one.key == key for one in records) for records in found.values()}
            allowed: set[int] = {COMMITTED: {2}, NOTHING_VISIBLE: {0}}.get(outcome, {0, 2})
            assert len(counts) == 1, f"{key!r} is there in a part"
            assert counts <= allowed, f"{key!r}: {outcome}; each partition has {counts} records"

    def finish(self) -> None:
        self.log.append("all disks are back")
        self.disks.failing.clear()
        for node in range(self.nodes):
            if not self.disk(node).exists():
                with self.processes[0].manager.locks.metadata():
                    self.processes[0]._parts.metadata.cluster_file.replace_log_dir(node)
        self.clock.now_ms += 2 * RETRY_MS
        self.sync()  # a replica that is lost leaves first, and is made anew then
        self.sync()
        self.append(0)
        self.commit(0)  # cuts what a commit has left that was never decided
        assert self.jobs.popitem()[1] == COMMITTED
        self.look()
        for process in self.processes:
            process._parts.manager.delayed_produces.look()
            self.clock.now_ms += TIMEOUT_MS
            process._parts.manager.delayed_produces.look()
            assert len(process._parts.manager.delayed_produces) == 0

        cluster = self.processes[0]
        for tp in PARTITIONS:
            assert sorted(partition(cluster, tp).view.state().isr) == list(range(self.nodes))
            assert len({bytes_of(cluster, node, tp) for node in range(self.nodes)}) == 1
        found = builders.contents(cluster)[EVENTS]
        for _, acks, one in self.appends:
            assert one.answers <= 1
            if acks == -1 and one.answers and one.offset is not None:
                assert found[one.offset].key == one.key, f"{one.key!r} was acknowledged and is gone"
        keys = [record.key for record in found]
        assert len(found) == partition(cluster).view.describe()[0].log_end_offset
        assert all(keys.count(one.key) <= 3 for _, _, one in self.appends), "appended twice"

    def disk(self, node: int) -> Path:
        return self.folder / f"disk-{node}"

    def has_readable(self, topic_partition: TopicPartition) -> bool:
        return any(self.is_readable(node) for node in self.in_sync(topic_partition))

    def in_sync(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        return partition(self.processes[0], topic_partition).view.state().isr

    def is_readable(self, node: int) -> bool:
        folder = self.disk(node)
        return self.disks.failing.get(folder) != BROKEN and folder.exists()


def run_schedules(folder: Path, count: int) -> None:
    for seed in range(FIRST, FIRST + count):
        schedule = Schedule(folder / str(seed), seed)
        try:
            schedule.run()
        except BaseException as error:
            error.add_note(
                f"seed {seed}: KBATCH_SCHEDULES_FIRST={seed} KBATCH_SCHEDULES=1; "
                + "; ".join(schedule.log)
            )
            raise
        shutil.rmtree(folder / str(seed))


def test_a_few_schedules_lose_nothing(tmp_path: Path) -> None:
    run_schedules(tmp_path, int(os.environ.get("KBATCH_SCHEDULES", QUICK)))


@pytest.mark.slow
def test_many_schedules_lose_nothing(tmp_path: Path) -> None:
    run_schedules(tmp_path, int(os.environ.get("KBATCH_SCHEDULES", MANY)))
