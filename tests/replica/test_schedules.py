"""Any schedule of appends, commits, disks that fail and come back, and processes that are killed.

Two processes share a topic of two or three replicas. Appends go to one of its partitions, each commit to
both. After each step, and between two changes of files within some:

- a commit is seen in both partitions or in none;
- what was below a high watermark that anyone saw is still there, unchanged, at the same offset;
- no high watermark is lower than one that was seen before;
- a reader gets an answer, as long as the disk of an in-sync replica can be read.

In the end all disks are back: every record that was acknowledged is there, all replicas are in sync
and hold the same bytes, each append was answered once, each commit is what its committer was told, and
no lock is left behind.

Other schedules delete records too, also while disks are replaced by older images of themselves: none of them
is back, and the replicas are equal again in the end.

In others PATH has a disk of its own, and disks are unmounted, mounted again, and lost for good; PATH is lost,
and restored, or is one of its former states, while processes go on that had it open. A restore while a
disk is away is refused. Faults put in on purpose are found by some of these schedules.

75 schedules of each kind by default, 1,000 with `make soak`, where faults put in on purpose are found within 84;
`tests.support.draws` has more, and how to repeat one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.commit.coordinator import (
    COMMITTED,
    NOTHING_VISIBLE,
    UNKNOWN,
    Coordinator,
    Overwrite,
)
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    FileSystemError,
    KafkaStorageError,
    KBatchError,
)
from spark_kbatch.model import AppendResult, LogOffsets, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.view import PartitionView
from tests.support import builders
from tests.support.crashes import another_boot
from tests.support.failing_disks import (
    EVENTS,
    Killed,
    MemoryDisks,
    a_replicated_cluster,
    bytes_of,
    partition,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.schedules import Schedule, Step, ensure_all_or_nothing, run_schedules
from tests.support.store import append_records as append_by
from tests.support.store import reader_of, store_of

QUICK, MANY = 25, 1000
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


def has_begun(view: PartitionView) -> bool:
    """Whether a partition's leader has taken its epoch."""
    state = view.state()
    leader = view.log_state(state.leader, to_write=False)
    return leader is not None and leader.leader_epoch == state.leader_epoch


class Appends(Schedule):
    """Appends and commits to two partitions."""

    always_flushes = False

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, nodes=[2, 3, 3])
        self.appends: list[tuple[int, int, Append]] = []  # process, acks, append
        self.jobs: dict[bytes, str] = {}  # outcomes by key
        self.seen: dict[int, bytes | None] = {}  # keys by offset, below a high watermark
        self.high_watermark = 0
        self.looks = 0  # of readers within a step

    def a_cluster(self) -> Cluster:
        config = TopicConfig(
            min_insync_replicas=self.rng.choice([1, 1, 2]),
            segment_bytes=self.rng.choice([300, 1 << 20]),
        )
        return a_replicated_cluster(
            self.folder, self.disks, partitions=2, replicas=self.nodes, config=config
        )

    def steps(self) -> list[Step]:
        weighted: list[Step] = [self.append] * 5 + [self.commit] * 3 + [self.fail] * 3
        weighted += [self.mend] * 2 + [self.kill] * 4 + [self.turn] * 2
        return [*weighted, self.lose, self.sync]

    def steps_to_kill(self) -> list[tuple[Step, int]]:
        return [(self.append, 30), (self.commit, 120)]

    # Steps.

    def append(self, number: int) -> None:
        acks = self.rng.choice([-1, -1, 1, 0])
        one = Append(f"{len(self.appends)}".encode())
        self.appends.append((number, acks, one))
        self.log[-1] += f" {one.key!r} by {number}, acks {acks}"
        size = self.rng.choice([1, 3])
        records = [Record(n, 1000 + n, one.key, b"value") for n in range(size)]
        append_by(
            store_of(self.processes[number]),
            timeout_ms=TIMEOUT_MS,
            required_acks=acks,
            entries_per_partition={EVENTS: encode_batch(records)},
            on_complete=one,
            flush=self.flushes(),
        )

    def flushes(self) -> bool:
        return self.always_flushes or self.rng.random() < 0.5

    def commit(self, number: int) -> None:
        cluster, key = self.processes[number], f"job-{len(self.jobs)}".encode()
        acks, flush = self.rng.choice([-1, -1, 1]), self.flushes()
        self.log[-1] += f" {key!r} by {number}, acks {acks}"
        self.jobs[key] = UNKNOWN  # until the commit returns or fails
        data = bytes(encode_batch([Record(n, 1000 + n, key, b"value") for n in range(2)]))
        try:
            extents = builders.staged(
                cluster, {tuple(tp): [data] for tp in PARTITIONS}, transaction=key.decode()
            )
            committer = Coordinator(
                store_of(cluster).manager, self.clock, adopt_min_bytes=0, flush=flush, acks=acks
            )
            committer.commit(extents, transactional_id=key.decode())
            self.jobs[key] = COMMITTED
            committer.discard(extents, key.decode())
        except CommitError as error:
            self.jobs[key] = error.outcome
        except (OSError, KafkaStorageError):
            self.jobs[key] = NOTHING_VISIBLE  # nothing could be staged
        self.log[-1] += f": {self.jobs[key]}"

    def turn(self, _: int) -> None:
        self.clock.now_ms += self.rng.choice([10, TIMEOUT_MS, RETRY_MS, 2 * RETRY_MS])
        for process in self.processes:
            store_of(process).manager.delayed_produces.look()

    def lose(self, _: int) -> None:
        """Lose all that a disk holds, if another one has everything that counts, too."""
        node = self.rng.randrange(self.nodes)
        if self.is_readable(node) and self.has_all_without(node):
            self.log[-1] += f" {node}"
            self.disks.take_away(self.disk(node))

    def has_all_without(self, node: int) -> bool:
        return all(
            any(n != node and self.is_readable(n) for n in self.in_sync(tp))
            for tp in [*PARTITIONS, COMMITS, TRANSACTION_STATE]
        )

    def sync(self, number: int) -> None:
        commits = store_of(self.processes[0]).coordinator(flush=self.always_flushes)
        store_of(self.processes[number]).manager.replicate(
            PARTITIONS, commits, flush=self.always_flushes
        )

    # What must hold.

    def look(self) -> None:
        process = self.rng.choice(self.processes)
        try:
            offsets, found = self.read(process)
        except (OSError, KafkaStorageError):
            # A disk that has failed is not tried again for a while.
            self.clock.now_ms += RETRY_MS
            if not all(self.has_readable(tp) for tp in [*PARTITIONS, TRANSACTION_STATE]):
                return
            offsets, found = self.read(process)
        assert offsets.high_watermark >= self.high_watermark, "the high watermark moved back"
        assert offsets.high_watermark <= len(found)
        assert [record.offset for record in found] == list(range(len(found)))
        for offset, key in self.seen.items():
            assert found[offset].key == key, f"offset {offset} has changed"
        views = [partition(process, tp).view for tp in [EVENTS, TRANSACTION_STATE]]
        if all(self.is_readable(view.state().leader) and has_begun(view) for view in views):
            # Else no one could be elected, and what followers show is not binding. Nor is what all have
            # before a leader has taken its epoch: while one of them is away, the leader's own counts.
            self.high_watermark = offsets.high_watermark
            self.seen |= {r.offset: r.key for r in found[: offsets.high_watermark]}

    def watch(self, at: int) -> None:
        with contextlib.suppress(OSError, KBatchError):  # PATH is old, or a disk fails.
            reader = with_clock(self.processes[0], self.clock)
            # Another process would wait for the locks of the step.
            store_of(reader).snapshots._elect = lambda _: None
            self.disks.look_at, self.disks.look = at, lambda: self.look_within(reader)

    def look_within(self, reader: Cluster) -> None:
        """A reader that takes no lock finds a commit whole, and all that was seen before."""
        # A disk failed, or comes back, just now; or PATH is being restored.
        with contextlib.suppress(OSError, KafkaStorageError):
            offsets, found = self.read(reader)
            assert offsets.high_watermark <= len(found)
            for offset, key in self.seen.items():
                assert found[offset].key == key, f"offset {offset} has changed for a reader"
            self.looks += 1

    def read(self, process: Cluster) -> tuple[LogOffsets, list[Record]]:
        offsets, found = reader_of(process).edges([EVENTS])[EVENTS], builders.contents(process)
        self.ensure_whole(found)
        return offsets, found[EVENTS]

    def ensure_whole(self, found: Mapping[TopicPartition, list[Record]]) -> None:
        for key, outcome in self.jobs.items():
            counts = [sum(one.key == key for one in records) for records in found.values()]
            ensure_all_or_nothing(key, outcome, counts, records=2)

    def mend_all(self) -> None:
        self.log.append("all disks are back")
        self.disks.failing.clear()
        self.clock.now_ms += 2 * RETRY_MS
        for node in range(self.nodes):
            if not self.disks.has(self.disk(node)):
                self.processes[0].replace_log_dir(node)
        self.clock.now_ms += 2 * RETRY_MS

    def finish(self) -> None:
        self.mend_all()
        self.sync(0)  # a lost replica leaves first, and is recreated then
        self.sync(1)
        self.append(0)
        self.commit(0)  # discards what a commit that was never decided has left
        assert self.jobs.popitem()[1] == COMMITTED
        self.look()
        for process in self.processes:
            store_of(process).manager.delayed_produces.look()
            self.clock.now_ms += TIMEOUT_MS
            store_of(process).manager.delayed_produces.look()
            assert len(store_of(process).manager.delayed_produces) == 0

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


class Deletions(Appends):
    """The same, and records at the start are deleted, within batches too."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.log_start = 0

    def steps(self) -> list[Step]:
        return [*super().steps(), *[self.delete] * 4]

    def steps_to_kill(self) -> list[tuple[Step, int]]:
        return [(self.append, 30), (self.delete, 25)]

    def delete(self, number: int) -> None:
        process = self.processes[number]
        try:
            edges = reader_of(process).edges([EVENTS])[EVENTS]
            offset = self.rng.randint(edges.log_start_offset, edges.high_watermark)
            self.log[-1] += f" below {offset}"
            store_of(process).manager.delete_records(
                {EVENTS: offset}, store_of(process).coordinator(flush=False)
            )
            self.log_start = max(self.log_start, offset)
        except (OSError, KafkaStorageError) as error:
            self.log[-1] += f": {error}"

    def read(self, process: Cluster) -> tuple[LogOffsets, list[Record]]:
        offsets, found = (
            reader_of(process).edges([EVENTS])[EVENTS],
            builders.contents(process)[EVENTS],
        )
        start = offsets.log_start_offset
        assert start >= self.log_start, "the log start moved back"
        assert [one.offset for one in found] == list(range(start, offsets.high_watermark))
        if self.leader_starts_at(process, start):
            # Else its deleter died, or is at work, and what followers show is not binding.
            self.log_start = start
        return offsets, [*self.deleted(start), *found]

    def leader_starts_at(self, process: Cluster, start: int) -> bool:
        view = partition(process, EVENTS).view
        leader = view.log_state(view.state().leader, to_write=False)
        return leader is not None and leader.log_start_offset == start

    def deleted(self, start: int) -> list[Record]:
        """Return stand-ins for the deleted records, with the keys that were seen."""
        return [Record(n, 0, self.seen.get(n), None) for n in range(start)]

    def finish(self) -> None:
        self.mend_all()
        cluster = self.processes[0]
        assert cluster.replicate() == []
        self.append(0)
        self.look()
        for tp in PARTITIONS:
            view = partition(cluster, tp).view
            assert {*view.state().isr} == {*view.replicas}
            states = [view.log_of(node).state() for node in range(self.nodes)]
            assert len({(one.log_start_offset, one.log_end_offset) for one in states}) == 1
        assert not [what for one in cluster.verify() for what in one.damaged + one.found]
        found = {one.offset: one.key for one in builders.contents(cluster)[EVENTS]}
        for _, acks, one in self.appends:
            if acks == -1 and one.answers and one.offset is not None:
                is_deleted = one.offset < self.log_start
                assert is_deleted or found[one.offset] == one.key, f"{one.key!r} is gone"


class Mounts(Appends):
    """The same, while disks and PATH are unmounted and come back, PATH also as it was before."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        # What max.message.bytes of the topic may be: the last that was set, and those of failures since.
        self.sizes = {TopicConfig.max_message_bytes}
        self.has_gone_back = False  # PATH or a disk, and not all was looked at since

    @property
    def path(self) -> Path:
        return self.folder / "cluster"

    @property
    def backup(self) -> Path:
        return self.folder / "backup"

    def steps(self) -> list[Step]:
        weighted: list[Step] = [self.append] * 6 + [self.commit] * 2 + [self.unmount] * 4
        weighted += [self.mount] * 3 + [self.kill] * 3 + [self.turn] * 2 + [self.alter] * 2
        weighted += [self.fail, self.mend, self.sync, self.open_again, self.lose]
        weighted += [self.image, self.image, self.put_image, self.put_image]
        return [*weighted, self.back_up, self.back_up, self.go_back, self.go_back, self.lose_path]

    # Steps.

    def fail(self, number: int) -> None:
        if self.is_settled():
            super().fail(number)

    def lose(self, number: int) -> None:
        if self.is_settled():
            super().lose(number)

    def is_settled(self) -> bool:
        """Look at all before another disk leaves: what is newer than an image may be known there alone."""
        if self.has_gone_back:
            with contextlib.suppress(OSError, KBatchError):
                self.disks.failing.clear()
                self.clock.now_ms += RETRY_MS
                self.opened(0)
                self.has_gone_back = bool(self.processes[0].replicate())
        return not self.has_gone_back

    def unmount(self, _: int) -> None:
        node = self.rng.randrange(self.nodes)
        if self.is_settled() and self.disks.has(self.disk(node)):
            self.unmount_one(node)

    def image(self, _: int) -> None:
        """Keep a copy of a disk as it is, unless it leads and has not shown all: the others do not know what was shown."""
        node = self.rng.randrange(self.nodes)
        if self.disks.has(self.disk(node)) and self.shows_all_that_it_leads(node):
            self.log[-1] += f" of {node}"
            self.disks.take_away(self.imaged(node))
            self.disks.clone(self.disk(node), self.imaged(node))

    def shows_all_that_it_leads(self, node: int) -> bool:
        with contextlib.suppress(OSError, KBatchError):
            views = [
                partition(self.processes[0], tp).view
                for tp in [*PARTITIONS, COMMITS, TRANSACTION_STATE]
            ]
            return all(view.shows_all() for view in views if view.state().leader == node)
        return False

    def put_image(self, _: int) -> None:
        """Put a disk back as it once was, if another one has everything that counts; all others are there."""
        node = self.rng.randrange(self.nodes)
        if not self.disks.has(self.imaged(node)):
            return
        for other in range(self.nodes):
            self.mount_again(other)
        if self.has_all_without(node):
            self.log[-1] += f" of {node}"
            self.disks.take_away(self.disk(node))
            self.disks.mount_at(self.imaged(node), self.disk(node))
            self.clock.now_ms += RETRY_MS  # so that the others are seen to be back
            self.has_gone_back = True

    def imaged(self, node: int) -> Path:
        return self.folder / f"disk-{node}.image"

    def alter(self, number: int) -> None:
        """Change a file that is the whole cluster's."""
        size = 1_000_000 + len(self.log)
        self.sizes.add(size)
        try:
            self.processes[number].alter_topic("events", {"max.message.bytes": size})
        except (OSError, KBatchError) as error:
            self.log[-1] += f": {error}"
        else:
            self.sizes = {size}

    def append(self, number: int) -> None:
        self.refused(super().append, number)

    def commit(self, number: int) -> None:
        self.refused(super().commit, number)

    def sync(self, number: int) -> None:
        self.refused(super().sync, number)

    def refused(self, step: Step, number: int) -> None:
        """Run a step, which an old PATH may refuse; then the process opens the cluster again."""
        try:
            step(number)
        except (ConfigError, KafkaStorageError) as error:
            self.log[-1] += f": {error}"
            self.open_again(number)

    def open_again(self, number: int) -> None:
        self.restored(lambda: self.opened(number))

    def opened(self, number: int) -> None:
        folders = [self.disk(node) for node in range(self.nodes)]
        made = Cluster(
            str(self.path),
            create=True,
            log_dirs=folders,
            without_nodes=self.lost(),
            files=self.disks,
        )
        for node in self.lost():
            self.disks.take_away(self.imaged(node))  # It is refused from now on.
        self.processes[number] = with_clock(made, self.clock)

    def missing(self) -> list[int]:
        return [node for node in range(self.nodes) if not self.disks.has(self.disk(node))]

    def lost(self) -> list[int]:
        """Return the nodes whose disks are gone for good."""
        return [node for node in self.missing() if not self.disks.has(self.away(node))]

    def restored(self, step: Callable[[], object]) -> None:
        """Run a step; if the restore of PATH needs disks that are away, mount them first."""
        try:
            step()
        except (ConfigError, FileSystemError) as error:
            self.log[-1] += f": {error}"
            self.disks.failing.clear()
            for node in range(self.nodes):
                self.mount_again(node)
            step()

    def back_up(self, _: int) -> None:
        self.disks.take_away(self.backup)
        self.disks.clone(self.path, self.backup)

    def go_back(self, _: int) -> None:
        """Put an older PATH in its place; one of the processes goes on without opening it.

        All disks are mounted: who led last may be known on one of them alone.
        """
        if self.disks.has(self.backup):
            for node in range(self.nodes):
                self.mount_again(node)
            self.disks.take_away(self.path)
            self.disks.clone(self.backup, self.path)
            self.has_gone_back = True
            self.restored(lambda: self.opened(self.rng.randrange(2)))

    def lose_path(self, number: int) -> None:
        self.disks.take_away(self.path)
        self.restored(lambda: self.opened(number))

    # What must hold.

    def look(self) -> None:
        for node in range(self.nodes):
            self.mount_again(node) if not self.has_all() else None
        with contextlib.suppress(ConfigError):
            super().look()

    def has_all(self) -> bool:
        return all(self.has_readable(tp) for tp in [*PARTITIONS, TRANSACTION_STATE])

    def mend_all(self) -> None:
        for node in range(self.nodes):
            self.mount_again(node)
        super().mend_all()
        for number in range(2):
            self.opened(number)

    def finish(self) -> None:
        super().finish()
        assert self.processes[0].topic("events").config.max_message_bytes in self.sizes


class DeletedImages(Deletions, Mounts):
    """Both, and topics are overwritten with nothing: an image of a disk has records that were deleted since."""

    def steps(self) -> list[Step]:
        weighted: list[Step] = [self.overwrite] * 2 + [self.undo] * 6
        return [*super().steps(), *weighted]

    def put_image(self, number: int) -> None:
        """One at a time: an image of a follower tells nothing until someone looks at it."""
        if self.is_settled():
            super().put_image(number)

    def undo(self, number: int) -> None:
        """Delete records, and put an image in place that has them, and lacks nothing else."""
        for _ in range(self.nodes):
            self.image(number)
        self.rng.choice([self.delete, self.overwrite])(number)
        self.put_image(number)

    def delete(self, number: int) -> None:
        self.refused(super().delete, number)

    def overwrite(self, number: int) -> None:
        self.refused(self._overwrite, number)

    def _overwrite(self, number: int) -> None:
        cluster = self.processes[number]
        overwrite = Overwrite(cluster.topic("events"), delete_delay_ms=0)
        manager = store_of(cluster).manager
        committer = Coordinator(manager, self.clock, adopt_min_bytes=0, flush=self.flushes())
        name = f"empty-{len(self.log)}"
        try:
            edges = reader_of(cluster).edges([EVENTS])[EVENTS]
            committer.commit([], transactional_id=name, overwrite=overwrite)
            self.log_start = max(self.log_start, edges.high_watermark)
        except (CommitError, OSError) as error:
            self.log[-1] += f": {error}"


class PowerLosses(Mounts):
    """The same on disks in memory, while power is lost: on each disk some, all or nothing of what was not flushed.

    All is flushed before it is acknowledged.
    """

    always_flushes = True

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(Path("/simulated"), seed)
        self.disks.disk.settled()
        self.boots = contextlib.ExitStack()

    def some_disks(self) -> MemoryDisks:
        return MemoryDisks()

    def steps(self) -> list[Step]:
        return [*super().steps(), *[self.lose_power] * 5]

    def lose_power(self, _: int) -> None:
        """End both processes, perhaps within a step, and start the machine again."""
        step, operations = self.rng.choice(self.steps_to_kill())
        self.disks.kill_at = self.rng.randrange(operations)
        with contextlib.suppress(Killed):
            step(0)
        self.disks.kill_at = None
        self.disks.lose_power(self.rng)
        # A process that died may have shown what it had not flushed, and acknowledged to no one.
        acknowledged = {
            one.key for _, acks, one in self.appends if acks == -1 and one.offset is not None
        }
        acknowledged |= {key for key, outcome in self.jobs.items() if outcome == COMMITTED}
        self.seen = {offset: key for offset, key in self.seen.items() if key in acknowledged}
        self.high_watermark = max(self.seen, default=-1) + 1
        self.boots.enter_context(another_boot())
        for number in range(2):
            self.open_again(number)

    def run(self, count: int) -> None:
        with self.boots:
            super().run(count)


def test_a_few_schedules_lose_nothing() -> None:
    run_schedules(Appends, steps=STEPS, default=QUICK)


def test_what_is_deleted_in_a_few_schedules_stays_deleted() -> None:
    run_schedules(Deletions, steps=STEPS, default=QUICK)


def test_what_is_deleted_in_a_few_schedules_of_images_stays_deleted() -> None:
    run_schedules(DeletedImages, steps=STEPS, default=QUICK)


def test_a_few_schedules_of_power_losses_lose_nothing() -> None:
    run_schedules(PowerLosses, steps=STEPS, default=QUICK)


def test_a_few_schedules_of_mounts_lose_nothing() -> None:
    run_schedules(Mounts, steps=STEPS, default=QUICK)


@pytest.mark.parametrize("seed", [311, 1548, 2385, 3083, 3391, 4298])
def test_power_losses_that_once_lost_something_lose_nothing(tmp_path: Path, seed: int) -> None:
    PowerLosses(tmp_path, seed).run(STEPS)


def test_a_follower_comes_back_after_a_deletion_within_the_leaders_batch(tmp_path: Path) -> None:
    Deletions(tmp_path, 3759).run(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Appends, Deletions, Mounts, DeletedImages, PowerLosses])
def test_many_schedules_lose_nothing(kind: type[Appends]) -> None:
    run_schedules(kind, steps=STEPS, default=MANY)
