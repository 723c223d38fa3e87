"""Any schedule of disks that come back old beside topics that are made again, repairs and unclean commands.

Two processes share the topics `events`, which comes and goes, and `others`, which stays, on two or three
disks. Disks are unmounted, lost and replaced, and come back as older images of themselves. Records are
appended, committed, overwritten and deleted; clusters are repaired, replicas elected unclean, disks replaced
unclean; processes are killed within any of this.

What is promised: a disk holds what it was in sync for when that was acknowledged. One that comes back as an
image, or empty, counts as lost for what it got since. As long as a disk holds something it stays:

- an acknowledged record of a topic that lives is there once, at its offset;
- nothing of a deleted topic is found under its name, and no record below a log start that was answered;
- a commit is in all partitions or in none, and one that was seen stays, whatever is repaired or elected;
- what is given up unclean is what the command says, and nothing else.

A schedule never takes away the last disk that holds something while an older image of another one is mounted:
no one could know that the image lacks it.

In the end all disks are back or replaced: `repair` and `replicate` bring everything in sync, `verify` is silent,
replicas are equal, and both processes write.

60 schedules by default, 1,000 with `make soak`, where faults put in on purpose are found within 46;
`tests.support.draws` has more, and how to repeat one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

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
from spark_kbatch.errors import CommitError, ConfigError, KafkaStorageError, KBatchError
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.store.reports import GivenUp
from tests.support import builders
from tests.support.failing_disks import (
    Killed,
    MemoryDisks,
    a_replicated_cluster,
    partition,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.schedules import Schedule, Step, ensure_all_or_nothing, run_schedules
from tests.support.store import append_records as append_by
from tests.support.store import reader_of, store_of

QUICK, MANY = 20, 1000
STEPS = 16
DAY_MS = 86_400_000
PLACES = [TopicPartition("events", 0), TopicPartition("events", 1), TopicPartition("others", 0)]
OF_COMMITS = [TRANSACTION_STATE, COMMITS]


@dataclasses.dataclass
class Job:
    """A commit: where it writes, with the topics' ids, and what is known of it."""

    places: dict[TopicPartition, str]
    outcome: str
    deletions: dict[TopicPartition, int]  # of records there, when it began
    offsets: dict[TopicPartition, int] = dataclasses.field(
        default_factory=dict
    )  # where it was seen
    is_answered: bool = False
    given_up: set[TopicPartition] = dataclasses.field(default_factory=set)


class Held:
    """What was promised of a partition, and which disks hold it since when."""

    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}  # offsets of acknowledged records
        self.starts: dict[bytes, int] = {}  # log starts that were answered
        self.nodes: dict[bytes, dict[int, int]] = {}  # the moment since when, by node; in order
        self.start_max: float = 0  # that someone asked for

    def hold(self, what: bytes, nodes: Iterable[int], moment: int) -> None:
        """These nodes are in sync: they hold this, and all that was promised before."""
        self.nodes.setdefault(what, {})
        for held in self.nodes.values():
            for node in nodes:
                held.setdefault(node, moment)

    def lose(self, node: int, since: int) -> None:
        """A node's disk is as it was at a moment."""
        for what, held in list(self.nodes.items()):
            if held.get(node, -1) >= since:
                del held[node]
            if not held and what != b"made":
                self.forget(what)

    def forget(self, what: bytes) -> None:
        for known in (self.nodes, self.keys, self.starts):
            known.pop(what, None)  # type: ignore[attr-defined]

    def give_up(self, first_offset: int | None) -> None:
        """Records from an offset on, or all, may be gone, and so may each log start."""
        self.start_max = math.inf
        for what in list(self.nodes):
            if first_offset is None or self.keys.get(what, first_offset) >= first_offset:
                self.forget(what)


def die(*_: object, **__: object) -> NoReturn:
    raise Killed


class Topics(Schedule):
    """Images of disks, topics made again, repairs and unclean commands."""

    disks: MemoryDisks

    def __init__(self, _: Path, seed: int) -> None:
        super().__init__(Path("/simulated"), seed, nodes=[2, 3, 3])
        self.disks.disk.settled()
        self.ids = {name: self.processes[0].topic(name).topic_id for name in ("events", "others")}
        self.held: dict[tuple[TopicPartition, str], Held] = {}
        self.jobs: dict[bytes, Job] = {}
        self.known: dict[bytes, str] = {}  # ids of the topics of appended records
        self.deletions = dict.fromkeys(PLACES, 0)
        self.moment, self.count, self.sequence = 0, 0, 0
        self.images: dict[int, int] = {}  # moments, by node
        self.old: set[int] = set()  # nodes whose images came back, until all is in sync
        self.gone: set[int] = set()  # nodes whose disks are lost, until they are replaced
        for name in self.ids:
            self.hold_new(name)
        self.dies_decided = False  # the process in its next commit
        # Nodes whose disks someone began to replace, and the partitions that are given up with them.
        self.replacing: tuple[list[int], set[TopicPartition]] = [], set()
        self.collected = 0  # the moment when deleted topics were last due

    def some_disks(self) -> MemoryDisks:
        return MemoryDisks()

    def a_cluster(self) -> Cluster:
        made = a_replicated_cluster(
            self.folder, self.disks, partitions=2, replicas=self.nodes, config=self.a_config()
        )
        made.create_topic("others", replication_factor=self.nodes)
        return made

    def a_config(self) -> TopicConfig:
        return TopicConfig(
            min_insync_replicas=self.rng.choice([1, 1, 2]),
            segment_bytes=self.rng.choice([100, 300, 1 << 20]),
        )

    def steps(self) -> list[Step]:
        weighted: list[Step] = [self.append] * 6 + [self.commit] * 3 + [self.change] * 4
        weighted += [self.delete_records] * 2 + [self.kill] * 6 + [self.unmount] * 2
        weighted += [self.mount] * 2 + [self.image] * 4 + [self.put_image] * 4
        weighted += [self.repair] * 2 + [self.elect] * 3 + [self.open_again] * 2
        weighted += [self.make_again] * 3
        weighted += [self.fail, self.mend, self.lose, self.replace, self.give_up]
        weighted += [self.replicate, self.turn, self.collect]
        return weighted

    def steps_to_kill(self) -> list[tuple[Step, int]]:
        return [
            *[(self.commit, 150)] * 3,
            *[(self.change, 120)] * 3,
            (self.append, 40),
            (self.delete_records, 30),
            (self.repair, 60),
            (self.elect, 40),
            (self.replicate, 60),
            (self.replace, 60),
            (self.give_up, 200),
        ]

    # What is promised.

    def of(self, tp: TopicPartition) -> Held:
        return self.held.setdefault((tp, self.ids.get(tp.topic, "")), Held())

    def live(self) -> list[TopicPartition]:
        return [tp for tp in PLACES if tp.topic in self.ids]

    def all_live(self) -> list[TopicPartition]:
        return [*self.live(), *OF_COMMITS]

    def in_sync(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        view = partition(self.processes[0], topic_partition).view
        return view.replicas if view.only_log is not None else view.state().isr

    def hold(self, tp: TopicPartition, what: bytes, *, without: Collection[int] = ()) -> None:
        self.of(tp).hold(what, {*self.in_sync(tp)} - {*without}, self.moment)

    def hold_new(self, name: str) -> None:
        """Hold that a topic was made, unless that is known."""
        for tp in self.live():
            if tp.topic == name and not self.of(tp).nodes:
                self.hold(tp, b"made")

    def may_lose(self, *nodes: int) -> bool:
        """Return whether other disks that can be read hold everything."""
        return all(self._is_held_without(tp, nodes) for tp in self.all_live())

    def may_leave(self, *nodes: int) -> bool:
        """Return whether no older image could take the place of what these disks alone hold."""
        return all(
            not {*partition(self.processes[0], tp).replicas} & self.old.difference(nodes)
            or self._is_held_without(tp, nodes)
            for tp in self.all_live()
        )

    def _is_held_without(self, tp: TopicPartition, nodes: Collection[int]) -> bool:
        members = {n for n in self.in_sync(tp) if n not in nodes and self.is_readable(n)}
        every = self.of(tp).nodes.values()
        return bool(members - self.old or (every and members)) and all(
            members & held.keys() for held in every
        )

    def lost(self, node: int, since: int) -> None:
        for held in self.held.values():
            held.lose(node, since)

    def gave_up(self, found: Iterable[GivenUp]) -> None:
        for tp, first_offset, *_ in found:
            self.log[-1] += f" (gives up {tp} from {first_offset})"
            self.of(tp).give_up(first_offset)
            self.hold(tp, b"made")
            for job in self.jobs.values():
                if tp in OF_COMMITS:
                    if not job.is_answered:  # Its decision may be what is given up.
                        job.given_up |= job.places.keys()
                elif first_offset is None or job.offsets.get(tp, first_offset) >= first_offset:
                    job.given_up.add(tp)

    # Steps.

    def new_key(self) -> bytes:
        self.count += 1
        return f"{self.count}".encode()

    def record(self, key: bytes, number: int = 0) -> Record:
        """Return a record with a time of its own; by equal ones, logs of a topic and its successor may be equal."""
        return Record(number, 1000 * int(key) + number, key, b"v")

    def append(self, number: int) -> None:
        tp, key, acks = (
            self.rng.choice(self.live()),
            self.new_key(),
            self.rng.choice([-1, -1, -1, 1]),
        )
        self.log[-1] += f" {key!r} to {tp} by {number}, acks {acks}"
        self.known[key] = self.ids[tp.topic]
        results: list[AppendResult] = []
        store = store_of(self.processes[number])
        append_by(
            store,
            timeout_ms=0,
            required_acks=acks,
            entries_per_partition={tp: encode_batch([self.record(key)])},
            on_complete=lambda found: results.extend(found.values()),
            flush=False,
        )
        store.manager.delayed_produces.look()
        for result in results:
            if result.error is not None:
                assert isinstance(result.error, KBatchError), result.error
                self.log[-1] += f": {result.error}"[:200]
            elif acks == -1:
                self.of(tp).keys[key] = result.base_offset
                self.hold(tp, key)

    def commit(self, number: int, *, whole: bool = False) -> None:
        """Commit to all partitions, perhaps instead of what a topic has, perhaps a micro-batch again."""
        cluster, key = self.processes[number], self.new_key()
        name, sequence = f"job-{key.decode()}", -1
        if self.rng.random() < 0.4:
            name, sequence = "query", self.sequence
            self.sequence += 1
        instead = self.rng.choice([*self.ids]) if self.rng.random() < 0.25 and not whole else None
        self.log[-1] += f" {key!r} by {number}, instead of {instead}, {name} {sequence}"
        for tp in PLACES:
            self.deletions[tp] += tp.topic == instead
        places = {tp: self.ids[tp.topic] for tp in self.live() if instead in {None, tp.topic}}
        job = self.jobs[key] = Job(places, UNKNOWN, {**self.deletions})
        job.outcome = self._commit(cluster, key, name, sequence, instead, places)
        self.log[-1] += f": {job.outcome}"
        if job.outcome == COMMITTED:
            job.is_answered = True
            for tp in [*places, *OF_COMMITS]:
                self.hold(tp, key)
            if sequence >= 0 and self.rng.random() < 0.3:
                again = self._commit(cluster, key, name, sequence, None, places)
                self.log[-1] += f", again: {again}"

    def _commit(
        self,
        cluster: Cluster,
        key: bytes,
        name: str,
        sequence: int,
        instead: str | None,
        places: Collection[TopicPartition],
    ) -> str:
        data = bytes(encode_batch([self.record(key, n) for n in range(2)]))
        try:
            overwrite = None if instead is None else Overwrite(cluster.topic(instead), 0)
            extents = builders.staged(
                cluster, {tuple(tp): [data] for tp in places}, transaction=name
            )
            manager = store_of(cluster).manager
            large = self.rng.choice([0, 1 << 20])
            committer = Coordinator(manager, self.clock, adopt_min_bytes=large, flush=False)
            if self.dies_decided:
                committer._flip = die
            committer.commit(extents, transactional_id=name, sequence=sequence, overwrite=overwrite)
            committer.discard(extents, name)
        except CommitError as error:
            self.log[-1] += f" ({error})"[:300]
            return error.outcome
        except (OSError, KBatchError) as error:
            self.log[-1] += f" ({error})"[:300]
            return NOTHING_VISIBLE  # nothing could be staged
        return COMMITTED

    @contextlib.contextmanager
    def refusable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, KBatchError) as error:
            self.log[-1] += f": {error}"[:300]

    def delete_records(self, number: int) -> None:
        tp, process = self.rng.choice(self.live()), self.processes[number]
        with self.refusable():
            edges = reader_of(process).edges([tp])[tp]
            offset = self.rng.randint(edges.log_start_offset, edges.high_watermark)
            self.log[-1] += f" of {tp} below {offset} by {number}"
            self.deletions[tp] += 1
            held = self.of(tp)
            held.start_max = max(held.start_max, offset)
            process.delete_records({tp: offset})
            what = b"start " + self.new_key()
            held.starts[what] = offset
            self.hold(tp, what)

    def change(self, number: int) -> None:
        """Delete the topic, or make another one of its name."""
        process = self.processes[number]
        try:
            with self.refusable():
                if "events" in self.ids:
                    self.log[-1] += f" delete by {number}"
                    process.delete_topic("events")
                else:
                    replicas = self.rng.choice([self.nodes, self.rng.randint(1, self.nodes)])
                    self.log[-1] += f" create by {number}, {replicas} replicas"
                    process.create_topic(
                        "events", 2, replication_factor=replicas, config=self.a_config()
                    )
        finally:
            self.disks.kill_at = None
            found = store_of(Cluster(str(self.path), files=self.disks)).metadata.topics.find(
                "events"
            )
            self.ids = {"others": self.ids["others"]}
            if found is not None:
                self.ids["events"] = found.topic_id
                self.hold_new("events")

    def make_again(self, number: int) -> None:
        """Make another topic of the name, and put back a disk that knows the former one."""
        self.image(number)
        for _ in range(1 + ("events" in self.ids)):
            self.change(number)
        for _ in range(self.rng.randrange(4)):
            self.append(number)
        self.put_image(number)

    def repair(self, number: int) -> None:
        """Repair all; meanwhile the other process may die in a commit."""
        self.log[-1] += f" by {number}"
        with self.refusable():
            reports = self.processes[number].repair()
            if self.disks.kill_at is None and self.rng.random() < 0.5:
                for _ in range(self.rng.randrange(4)):
                    next(reports, None)
                self.die_in_a_commit(1 - number)
            self.said(what for one in reports for what in (*one.found, *one.damaged))

    def die_in_a_commit(self, number: int) -> None:
        """End a process in a commit: anywhere, or once it is decided and nothing of it is flipped."""
        self.dies_decided = self.rng.random() < 0.5
        self.disks.kill_at = None if self.dies_decided else self.rng.randrange(30, 150)
        try:
            self.commit(number)
        except Killed:
            self.log[-1] += ", killed"
            self.disks.kill_at = None
            self.processes[number] = with_clock(self.processes[number], self.clock)
        self.disks.kill_at, self.dies_decided = None, False

    def said(self, found: Iterable[str]) -> None:
        for what in found:
            self.log[-1] += f" ({what})"[:250]
            assert "none of its replicas is whole" not in what, "nothing is damaged"

    def elect(self, number: int) -> None:
        """Let the replicas on one disk lead, while the others are away."""
        node = self.rng.randrange(self.nodes)
        others = [n for n in range(self.nodes) if n != node and self.disks.has(self.disk(n))]
        if not (self.is_readable(node) and self.may_leave(*others)):
            return
        if self.disks.kill_at is None and self.rng.random() < 0.3:
            self.die_in_a_commit(1 - number)
        name = self.rng.choice([*self.ids, *self.ids, TRANSACTION_STATE.topic])
        self.log[-1] += f" {name} on {node} by {number}"
        for other in others:
            self.disks.mount_at(self.disk(other), self.away(other))
        self.clock.now_ms += 2 * RETRY_MS
        cluster = self.processes[number]
        said: list[GivenUp] = []
        try:
            with self.refusable():
                said = cluster.elect_unclean(name, dry_run=True)
                found = cluster.elect_unclean(name)
                assert {one.topic_partition for one in found} == {
                    one.topic_partition for one in said
                }, (found, said)
        finally:
            self.disks.kill_at = None
            self.gave_up(said)
            for other in others:
                self.mount_again(other)

    def replace(self, number: int) -> None:
        if not self.missing():
            self.lose(number)
        for node in self.missing():
            self.log[-1] += f" {node} by {number}"
            with self.refusable():
                assert self.processes[number].replace_log_dir(node) == []
                self.gone.discard(node)

    def give_up(self, number: int) -> None:
        """Lose all disks of a partition; replace them, and give up its records."""
        if "events" not in self.ids:
            return
        self.mount_all()
        tp = self.rng.choice([PLACES[0], PLACES[1]])
        nodes = [*partition(self.processes[0], tp).replicas]
        rest = ["others", *{one.topic for one in OF_COMMITS}]
        if self.missing() or not all(
            self._is_held_without(one, nodes) for one in self.all_live() if one.topic in rest
        ):
            return
        self.log[-1] += f" {tp} on {nodes} by {number}"
        for node in nodes:
            self.lose_disk(node)
        self.clock.now_ms += 2 * RETRY_MS
        lost = {one for one in self.live() if not self.of(one).nodes[b"made"]}
        self.replacing = self.rng.sample(nodes, len(nodes)), lost
        self.replace_unclean(number)

    def replace_unclean(self, number: int) -> None:
        """Replace lost disks; if a process died within that, the same command goes on."""
        cluster, (nodes, lost) = self.processes[number], self.replacing
        said: list[GivenUp] = []
        try:
            for node in nodes:
                try:
                    dry = cluster.replace_log_dir(node, unclean=True, dry_run=True)
                    said += dry
                    found = cluster.replace_log_dir(node, unclean=True)
                except ConfigError as error:
                    assert "is online" in str(error), error  # noqa: PT017  All was done.
                    self.gone.discard(node)
                    continue
                self.gone.discard(node)
                names = {one.topic_partition for one in found}
                assert names <= {one.topic_partition for one in dry}, (found, dry)
                assert names <= lost, f"{names - lost} have other members"
            self.replacing = [], set()
        finally:
            self.disks.kill_at = None
            self.gave_up(said)

    def turn(self, _: int) -> None:
        self.clock.now_ms += self.rng.choice([10, RETRY_MS, 2 * RETRY_MS])

    def collect(self, number: int) -> None:
        if self.rng.random() < 0.3:
            self.clock.now_ms += DAY_MS
            self.collected = self.moment
        with self.refusable():
            self.processes[number].collect_garbage()

    def open_again(self, number: int) -> None:
        self.processes[number] = with_clock(self.processes[number], self.clock)

    def replicate(self, number: int) -> None:
        with self.refusable():
            if self.processes[number].replicate() == []:
                self.is_in_sync()

    def is_in_sync(self) -> None:
        self.old.clear()
        for tp in self.all_live():
            if self.of(tp).nodes:
                self.hold(tp, next(reversed(self.of(tp).nodes)))

    # Disks.

    @property
    def path(self) -> Path:
        return self.folder / "cluster"

    def imaged(self, node: int) -> Path:
        return self.folder / f"disk-{node}.image"

    def missing(self) -> list[int]:
        """Return the nodes whose disks are lost, and not replaced."""
        dirs = store_of(self.processes[0]).manager.dirs
        dirs.look_again()
        self.gone = {node for node in self.gone if not dirs.is_online(node)}
        return sorted(self.gone)

    def fail(self, number: int) -> None:
        if all(self.may_leave(node) for node in range(self.nodes)):
            super().fail(number)

    def unmount(self, _: int) -> None:
        node = self.rng.randrange(self.nodes)
        if self.disks.has(self.disk(node)) and self.may_leave(node):
            self.unmount_one(node)

    def mount_all(self) -> None:
        self.disks.failing.clear()
        for node in range(self.nodes):
            self.mount_again(node)
        self.clock.now_ms += 2 * RETRY_MS

    def image(self, _: int) -> None:
        """Keep a copy of a disk, unless it leads and has not shown all: the others do not know what was shown."""
        node = self.rng.randrange(self.nodes)
        if node in self.images and self.images[node] > self.collected and self.rng.random() < 0.5:
            return
        if self.disks.has(self.disk(node)) and node not in self.old and self.shows_all(node):
            self.log[-1] += f" of {node}"
            self.disks.take_away(self.imaged(node))
            self.disks.clone(self.disk(node), self.imaged(node))
            self.images[node] = self.moment

    def shows_all(self, node: int) -> bool:
        with contextlib.suppress(OSError, KBatchError):
            views = [partition(self.processes[0], tp).view for tp in self.all_live()]
            return all(
                view.shows_all()
                for view in views
                if view.only_log is None and view.state().leader == node
            )
        return False

    def put_image(self, _: int) -> None:
        """Put a disk back as it once was, if others hold all that counts."""
        if not self.images:
            return
        node = self.rng.choice([*self.images])
        since = self.images[node]
        for other in range(self.nodes):
            self.mount_again(other)
        if self.rng.random() < 0.5:
            self.clock.now_ms += 2 * RETRY_MS
            self.replicate(0)
        if self.may_lose(node):
            self.log[-1] += f" of {node}"
            self.disks.take_away(self.disk(node))
            self.disks.clone(self.imaged(node), self.disk(node))
            self.clock.now_ms += RETRY_MS  # so that the others are seen to be back
            self.lost(node, since)
            self.old.add(node)

    def lose(self, _: int) -> None:
        node = self.rng.randrange(self.nodes)
        if self.disks.has(self.disk(node)) and self.may_lose(node):
            self.log[-1] += f" {node}"
            self.lose_disk(node)

    def lose_disk(self, node: int) -> None:
        self.disks.take_away(self.disk(node))
        self.forget_images(node)
        self.lost(node, 0)
        self.gone.add(node)

    def forget_images(self, node: int) -> None:
        """Of a disk that is replaced, an image is refused."""
        self.images.pop(node, None)
        self.old.discard(node)

    # What must hold.

    def look(self) -> None:
        self.moment += 1
        self.replace_unclean(0)
        process = self.rng.choice(self.processes)
        try:
            starts, found = self.read(process)
        except (OSError, KafkaStorageError):
            # A disk that has failed is not tried again for a while.
            self.clock.now_ms += 2 * RETRY_MS
            if not all(self.has_readable(tp) for tp in self.all_live()):
                self.log.append("all disks are mounted")
                self.mount_all()
            starts, found = self.read(process)
        assert process.topic_names() == sorted(self.ids)
        for tp in self.live():
            self.ensure_kept(tp, starts[tp], found[tp])
        if not self.may_show_less():
            for key, job in self.jobs.items():
                self.ensure_whole(key, job, found)

    def may_show_less(self) -> bool:
        """Return whether an image that no one looked at since is in sync beside a disk that cannot be used.

        Others that are in sync may know less than was shown, until all of them are there.
        """
        return bool(self.old) and not all(
            self.is_readable(n) and not self.disks.failing.get(self.disk(n))
            for n in range(self.nodes)
        )

    def waits_for_members(self, tp: TopicPartition) -> bool:
        """Return whether a replica was elected unclean, and shows what it has once min.insync.replicas have it."""
        view = partition(self.processes[0], tp).view
        return self.of(tp).start_max == math.inf and len(self.in_sync(tp)) < view.min_isr

    def read(
        self, process: Cluster
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, list[Record]]]:
        edges = reader_of(process).edges(self.live())
        found = builders.contents(process)
        for tp, one in edges.items():
            shown = [record.offset for record in found[tp]]
            assert shown == [*range(one.log_start_offset, one.high_watermark)], (tp, one, shown)
        return {tp: one.log_start_offset for tp, one in edges.items()}, found

    def ensure_kept(self, tp: TopicPartition, start: int, found: list[Record]) -> None:
        held, topic_id = self.of(tp), self.ids[tp.topic]
        by_offset = {record.offset: record.key for record in found}
        keys = [*by_offset.values()]
        for key in {*keys}:
            assert key is not None
            job = self.jobs.get(key)
            of = job.places.get(tp) if job else self.known[key]
            assert of == topic_id, f"{key!r} in {tp} is of a topic that was deleted"
            assert keys.count(key) <= (2 if job else 1), f"{key!r} is twice in {tp}"
        for offset in held.starts.values():
            assert start >= offset, f"{tp}: records below {offset} are back, from {start}"
        for key, job in self.jobs.items():
            if key in keys and job.places.get(tp) == topic_id:
                offset = min(offset for offset, one in by_offset.items() if one == key)
                held.start_max = max(held.start_max, offset)  # if it is instead of all before
                job.offsets.setdefault(tp, offset)
        assert start <= held.start_max, f"{tp} starts at {start}, not below {held.start_max}"
        shows_less = self.may_show_less() or self.waits_for_members(tp)
        for key, offset in held.keys.items():
            if shows_less and offset >= start + len(found):
                continue
            assert offset < start or by_offset.get(offset) == key, (
                f"{key!r} was acknowledged at {offset} of {tp} and is gone"
            )

    def ensure_whole(self, key: bytes, job: Job, found: dict[TopicPartition, list[Record]]) -> None:
        there = [
            tp
            for tp, topic_id in job.places.items()
            if self.ids.get(tp.topic) == topic_id
            and tp not in job.given_up
            and self.deletions[tp] == job.deletions[tp]
        ]
        counts = [sum(record.key == key for record in found[tp]) for tp in there]
        if counts:
            ensure_all_or_nothing(key, job.outcome, counts, records=2)
        if 2 in counts and job.outcome != COMMITTED:
            job.outcome = COMMITTED  # it was seen, and stays
            for tp in [*there, *OF_COMMITS]:
                self.hold(tp, key, without=self.old)

    def finish(self) -> None:
        self.log.append("all disks are back")
        self.mount_all()
        self.replace(0)
        self.clock.now_ms += 2 * RETRY_MS
        cluster = self.processes[0]
        assert self.missing() == []
        if self.rng.random() < 0.5:
            self.repair_all(cluster)
        # One that is far behind catches up in pieces.
        left = [cluster.replicate() for _ in range(3)]
        assert left[-1] == []
        self.repair_all(cluster)
        assert cluster.replicate() == []
        self.is_in_sync()
        if "events" not in self.ids:
            self.change(0)
            assert "events" in self.ids
        for number in range(2):
            # It discards what a commit that was never decided has left.
            self.commit(number, whole=True)
            assert [*self.jobs.values()][-1].outcome == COMMITTED
            self.look()
        for tp in self.live():
            data = encode_batch([Record(0, 1, b"last", b"v")])
            assert builders.append_records(self.processes[1], {tuple(tp): data})[tp].error is None
            self.known[b"last"] = self.ids[tp.topic]
        assert cluster.replicate() == []
        for tp in self.all_live():
            view = partition(cluster, tp).view
            assert {*self.in_sync(tp)} == {*view.replicas}
            states = [view.log_of(node).state() for node in view.replicas]
            assert len({(one.log_start_offset, one.log_end_offset) for one in states}) == 1
        assert not [
            what for one in cluster.verify() for what in (*one.damaged, *one.found, *one.offline)
        ]
        for process in self.processes:
            assert len(store_of(process).manager.delayed_produces) == 0

    def repair_all(self, cluster: Cluster) -> None:
        for one in cluster.repair():
            self.said((*one.found, *one.damaged))
            assert not one.damaged, one
            assert not one.offline, one
        self.look()


def test_a_few_schedules_of_topics_lose_nothing() -> None:
    run_schedules(Topics, steps=STEPS, default=QUICK)


def test_a_deleted_topic_stays_deleted_where_an_image_is_back_before_all_of_it_is_removed() -> None:
    Topics(Path(), 1041).run(STEPS)


@pytest.mark.slow
def test_many_schedules_of_topics_lose_nothing() -> None:
    run_schedules(Topics, steps=STEPS, default=MANY)
