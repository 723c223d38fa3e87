"""A server with transactional producers, a job and retention, recorded step by step, and what may follow a crash.

A unit is what is visible as a whole or not at all: a transaction, or a job. The recording notes at which step the end
of each was asked for, and at which it was answered; so it is known which units must be visible after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.transactions import administration
from spark_kbatch.cluster.transactions.ending import idle_transactions
from spark_kbatch.cluster.transactions.log import read_transactions
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.crashes import Crash
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import SimulatedProcess
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    until_status,
    values,
)
from tests.support.reference import Record, encode_batch
from tests.support.soundness import ensure_sound
from tests.support.store import store_of
from tests.support.waiting import until

PATH = "/simulated/cluster"
IN = TopicPartition("in", 0)
OLD = b"old"
NEVER, BEFORE = 1 << 60, -1  # steps
PRODUCERS = ("kept", "dropped", "hangs", "late")


@dataclass
class Unit:
    """What is visible as a whole or not at all."""

    values: dict[TopicPartition, bytes]
    offset: int | None = None  # that it commits for IN, in the group of its name
    asked: int = NEVER  # the step before which no one asked for its commit
    answered: int = NEVER  # the step at which its commit was answered

    def may_be_visible(self, crash: Crash) -> bool:
        return crash.at >= self.asked

    def must_be_visible(self, crash: Crash) -> bool:
        return crash.at >= self.answered


@dataclass
class Script:
    """What happens while the server is recorded."""

    units: dict[str, Unit] = field(default_factory=dict)
    deleted: int = NEVER  # the step before which no one deleted the old record of OTHER
    suffix: str = ""  # of the names of units in this run

    @contextmanager
    def _commit(self, files: SimulatedProcess, name: str) -> Iterator[None]:
        unit = self.units[name + self.suffix]
        unit.asked = len(files.steps)
        yield
        unit.answered = len(files.steps)

    def run(self, files: SimulatedProcess) -> None:
        """Serve, and let producers, a job and retention do what they do; one producer hangs to the end."""
        cluster = Cluster(PATH, files=files)
        both = (EVENTS, OTHER)
        with cluster.serve(flush=True) as server, RawClient(server, timeout_s=60) as client:
            kept, dropped, hangs, late = (
                RawProducer(client, name, timeout_ms=300 if name == "late" else 60_000)
                for name in PRODUCERS
            )
            self._written(kept.start(), "first", *both, offset=5)
            self._written(hangs.start(), "hanging", EVENTS, offset=7)
            with self._commit(files, "first"):
                kept.end(commit=True)
            self._written(dropped.start(), "dropped", *both)
            self._written(late.start(), "late", OTHER, offset=9)
            dropped.end(commit=False)
            self._job(cluster, files)
            self._written(kept, "second", OTHER, offset=6)
            self.deleted = min(self.deleted, len(files.steps))
            cluster.delete_records({OTHER: 1})
            with self._commit(files, "second"):
                kept.end(commit=True)
            until_status(cluster, Status.COMPLETE_ABORT, "late")
            until_status(cluster, Status.COMPLETE_COMMIT, "kept")
            until_status(cluster, Status.COMPLETE_ABORT, "dropped")

    def _written(
        self,
        producer: RawProducer,
        name: str,
        *partitions: TopicPartition,
        offset: int | None = None,
    ) -> None:
        name += self.suffix
        self.units[name] = Unit(dict.fromkeys(partitions, name.encode()), offset)
        producer.write(*partitions, value=name.encode())
        if offset is not None:
            producer.add_group(name)
            producer.commit_offsets(name, {IN: offset})

    def _job(self, cluster: Cluster, files: SimulatedProcess) -> None:
        value = f"job{self.suffix}".encode()
        self.units[value.decode()] = Unit(dict.fromkeys((EVENTS, OTHER), value))
        with self._commit(files, "job"):
            commit_job(cluster, value)

    def run_again(self, files: SimulatedProcess) -> None:
        """Do the same in another run of a server, on the disk of the first, whose steps are all before these."""
        for unit in self.units.values():
            if unit.answered != NEVER:
                unit.asked = unit.answered = BEFORE
        self.deleted, self.suffix = BEFORE, " again"
        self.run(files)

    # What must hold.

    def ensure(self, cluster: Cluster, crash: Crash, *more: bytes, is_over: bool) -> set[str]:
        """Check what is visible; return the names of these units.

        Args:
            cluster: the cluster after the crash.
            crash: where it was.
            more: values that were written since, each in both partitions.
            is_over: whether all that was open is ended; else what follows an open transaction is held back.
        """
        found = {tp: Counter(values(cluster, tp)) for tp in (EVENTS, OTHER)}
        visible = set()
        for name, unit in self.units.items():
            seen = {found[tp].pop(value, 0) for tp, value in unit.values.items()}
            assert seen <= {0, 1}, f"{crash}: {name} is there {seen} times"
            if seen != {0}:
                assert unit.may_be_visible(crash), f"{crash}: {name} is visible"
                visible.add(name)
            if is_over:
                assert len(seen) == 1, f"{crash}: {name} is visible in part"
                if unit.must_be_visible(crash):
                    assert name in visible, f"{crash}: {name} is lost"
        if is_over:
            for tp, left in found.items():
                assert left.pop(OLD, 0) == 1 or (tp == OTHER and crash.at >= self.deleted)
                assert left == Counter(more), f"{crash}: {tp} has {left}"
            self._ensure_offsets(cluster, visible, crash)
        return visible

    def _ensure_offsets(self, cluster: Cluster, visible: set[str], crash: Crash) -> None:
        offsets = {
            one.group_id: one.offsets[IN].committed_offset
            for one in read_groups(store_of(cluster))
            if IN in one.offsets
        }
        for name, unit in self.units.items():
            if unit.offset is not None:
                wanted = unit.offset if name in visible else None
                assert offsets.get(name) == wanted, f"{crash}: offsets of {name}"


def made_disk() -> Disk:
    """Return the disk before the server starts, all of it flushed."""
    files = DiskFiles(Disk())
    cluster = Cluster(PATH, create=True, files=files)
    cluster.create_topic("events", partitions=2)
    cluster.create_topic("in", partitions=1)
    builders.write(cluster, {tp: [_batch(OLD)] for tp in (EVENTS, OTHER)})
    return files.disk.settled()


def _batch(value: bytes) -> bytes:
    return encode_batch([Record(0, builders.FIRST_TIMESTAMP_MS, None, value)])


def commit_job(cluster: Cluster, value: bytes) -> None:
    """Commit a job of one record in each partition."""
    batches = {(tp.topic, tp.partition): [_batch(value)] for tp in (EVENTS, OTHER)}
    transaction = value.hex().rjust(32, "0")
    extents = builders.staged(cluster, batches, transaction=transaction, flush=True)
    builders.commit(cluster, extents, transaction=transaction, flush=True)


# What comes after a crash. Each leaves no transaction open, and returns the values that it has written.


def no_server_is_started(files: Files) -> tuple[bytes, ...]:
    """End all that a server has left, as whoever finds it past its time-out does."""
    with idle_transactions(store_of(Cluster(PATH, files=files))) as transactions:
        for transactional_id in [*transactions.log.contents.transactions]:
            transactions.abort(transactional_id)
    return ()


def a_job_commits_first(files: Files) -> tuple[bytes, ...]:
    """Commit a job while transactions are open: it does not wait for them."""
    commit_job(Cluster(PATH, files=files), b"another job")
    no_server_is_started(files)
    return (b"another job",)


def producers_start_again(files: Files) -> tuple[bytes, ...]:
    """Serve; each producer starts again, which aborts what the one before it left, and writes."""
    cluster = Cluster(PATH, files=files)
    with cluster.serve(flush=True) as server, RawClient(server, timeout_s=60) as client:
        for name in PRODUCERS:
            producer = RawProducer(client, name).start()
            producer.write(EVENTS, OTHER, value=b"again " + name.encode()).end(commit=True)
        for name in PRODUCERS:
            until_status(cluster, Status.COMPLETE_COMMIT, name)
    return tuple(b"again " + name.encode() for name in PRODUCERS)


def a_reader_comes_late(files: Files) -> tuple[bytes, ...]:
    """Read when all time-outs are over, and no server has come: the reader itself ends what it would wait for."""
    cluster = Cluster(PATH, files=files)
    administration._next_look_ms.clear()  # it is another process
    store_of(cluster).manager.now_ms = lambda: now_ms() + 600_000
    values(cluster)
    return ()


def nothing_but_a_server_comes(files: Files) -> tuple[bytes, ...]:
    """Serve until the time-outs of what is open are over."""
    cluster = Cluster(PATH, files=files)
    with cluster.serve(flush=True) as server:
        coordinator = server._transactions
        until(lambda: coordinator._loaded_in is not None, "transactions are loaded")
        with coordinator._mutex:
            coordinator._deadlines = dict.fromkeys(coordinator._deadlines, 0)
        until(lambda: not coordinator._active, "nothing is open")
    return ()


Afterwards: TypeAlias = Callable[[Files], tuple[bytes, ...]]
AFTERWARDS: tuple[Afterwards, ...] = (
    no_server_is_started, producers_start_again, a_job_commits_first, nothing_but_a_server_comes,
    a_reader_comes_late,
)  # fmt: skip


def ensure_survived(script: Script, crash: Crash, afterwards: Afterwards) -> set[str]:
    """Look at the disk after a crash, let something come after it, and look again; return what is visible then."""
    with crash.met():
        files = crash.files()
        at_once = script.ensure(Cluster(PATH, files=files), crash, is_over=False)
        more = afterwards(files)
        cluster = Cluster(PATH, files=files)
        visible = script.ensure(cluster, crash, *more, is_over=True)
        assert at_once <= visible, f"{crash}: {at_once - visible} was visible before"
        for tp in (EVENTS, OTHER):
            state = store_of(cluster).manager.replica(tp).state
            assert state.last_stable_offset == state.log_end_offset, crash
        if afterwards is a_reader_comes_late:
            # It leaves what holds no reader back: transactions that have written nothing, or have all their markers.
            no_server_is_started(files)
            cluster = Cluster(PATH, files=files)
            assert script.ensure(cluster, crash, *more, is_over=True) == visible
        for tp in (EVENTS, OTHER):
            ensure_sound(store_of(cluster).manager.log(tp))
        found = read_transactions(store_of(cluster)).transactions.values()
        assert not any(one.is_open or one.is_decided for one in found), crash
        assert not files.open_files(), f"{crash}; then {afterwards.__name__}"
    return visible
