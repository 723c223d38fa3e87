"""Any schedule of writers, readers and an adversary that share a bucket, over the product's own ledger and fold.

Writers stage batches and commit them, as the micro-batches of a query or as jobs of their own, and try again in
a new process after each crash and each error. New processes begin with what one of two machines knows, which may
be old, or with nothing; and some commits do not ask what is new first. Two mirrors have one name. Consumers commit
offsets of groups, each of its own, and delete their group now and then. Readers read everything that comes. The
adversary does whatever may happen to a ledger at any time: it moves the horizon and deletes what that allows, puts
tombstones and takes checkpoints away, replaces data by merged data, moves start offsets, writes wrong hints, creates
and deletes topics. Beside it, in some schedules, others do nothing but merge, or move start offsets.

All the while:

- a record that is read at an offset is the same for all readers
- two processes that have folded the same number of entries have the same state
- what a reader's newest state refers to is there
- a consumer finds what it has committed last, unless that is old enough to be dropped
- no process needs more than a bounded number of requests

In the end, when nothing fails any more:

- each record that was acknowledged is in the ledger once, and none is in it twice; none of a job that was told
  that nothing is visible
- offsets are dense, and entries are a chain
- of each group and partition the last commit counts, and none comes after a later one of the same consumer
- each writer commits once more, and a new reader reads every record from the start offsets on

`tests.support.draws` has how many are run, and how to repeat one.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from spark_kbatch.bucket.garbage import GarbageCollector
from spark_kbatch.bucket.groups import BucketGroups
from spark_kbatch.bucket.ledger import KnownLedger, Ledger
from spark_kbatch.bucket.place import create_cluster
from spark_kbatch.errors import (
    CommitError,
    CorruptLedgerError,
    GroupIdNotFoundError,
    KBatchError,
    MirrorFencedError,
    ObjectStoreError,
    OutcomeUnknownError,
    RefusedEntryError,
)
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checkpoint_format import pack_heads
from spark_kbatch.ledger.entries import (
    Content,
    Entry,
    Fence,
    LedgerCommit,
    MicroBatch,
    MirrorStep,
    ProducedBatch,
    Replacement,
    Rewrite,
    StartOffsets,
    TopicCreation,
    TopicDeletion,
    decode,
)
from spark_kbatch.ledger.extents import (
    Change,
    DataExtent,
    IndexRange,
    PartitionAppend,
    pack_index,
    unpack_index,
)
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import increment_sequence
from tests.support import draws
from tests.support.simulated_bucket import (
    DAY_MS,
    HOUR_MS,
    Bucket,
    Killed,
    ProcessObjects,
    Simulation,
    Weather,
)

CLUSTER_ID = "c1" * 16
TOPICS = {"orders": ("topic-1", 2), "clicks": ("topic-2", 1)}  # id and partitions by name
ATTEMPTS_MAX = 10  # times the requests of one process, of all that go on after each other
EXPIRATIONS_MS = [1000, HOUR_MS, 2 * HOUR_MS]  # of producers
RETENTIONS_MS = [HOUR_MS, 10 * DAY_MS, 100 * DAY_MS]  # of offsets of groups

Step: TypeAlias = Callable[["Process"], object]


class Process:
    """One process, until it ends."""

    def __init__(self, model: Model, *, requests_max: int = 3000) -> None:
        skew_ms = model.rng.choice([0, 0, -DAY_MS, HOUR_MS, 30 * DAY_MS])
        self.objects = ProcessObjects(model.bucket, skew_ms, requests_max)
        self.rng, self.model = self.objects.rng, model
        self._ledger: Ledger | None = None
        self._seen = -2

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            known = self.model.memory.choice(self.model.known)
            every = self.model.checkpoint_every
            self._ledger = Ledger(
                self.objects, CLUSTER_ID, self.objects.timing, known, checkpoint_every=every
            )
            self._show(self._ledger.state)
        return self._ledger

    def _show(self, state: LedgerState) -> None:
        if state.number != self._seen:
            self._seen = state.number
            self.model.saw(state)
            self.model.remember(self.ledger.known(self.objects.timing.now_ms()))

    def follow(self) -> LedgerState:
        state = self.ledger.follow()
        self._show(state)
        return state

    def commit(self, propose: Callable[[LedgerState], Content | None]) -> Entry | None:
        timeout_ms = self.rng.choice([200, 3000, 120_000])
        is_followed = self.model.memory.random() < 0.3
        entry = self.ledger.commit(
            propose, by="model", timeout_ms=timeout_ms, is_followed=is_followed
        )
        self._show(self.ledger.state)
        return entry

    def extents(self, append: PartitionAppend) -> tuple[DataExtent, ...] | None:
        """Return an append's extents; None if their index is gone."""
        if not isinstance(append.placed, IndexRange):
            return append.placed
        data = self.ledger.objects.get_range(*append.placed[:3])
        return None if data is None else unpack_index(data, append.placed)

    def records(self, change: Change) -> dict[int, str] | None:
        """Return the records that a change shows, by offset; None if an object is gone."""
        extents = self.extents(change.append)
        if extents is None:
            return None
        found, base = {}, change.append.base_offset
        for extent in extents:
            if base < change.next_offset and base + extent.span > change.start_offset:
                data = self.ledger.objects.get_range(
                    extent.name, extent.position, extent.size_in_bytes
                )
                if data is None:
                    return None
                found.update(_unpacked(data, base))
            base += extent.span
        return {
            offset: one
            for offset, one in found.items()
            if change.start_offset <= offset < change.next_offset
        }


def _packed(records: dict[int, str]) -> bytes:
    """Return records by relative offset as the bytes of an object."""
    return ";".join(f"{offset}={one}" for offset, one in sorted(records.items())).encode()


def _unpacked(data: bytes, base: int) -> dict[int, str]:
    pairs = (pair.split("=") for pair in data.decode().split(";"))
    return {base + int(offset): one for offset, one in pairs}


@dataclass
class Job:
    """What one job writes: the records of each partition, by offset from 0, and their span."""

    job_id: str
    label: str  # of a micro-batch the same for all jobs that repeat it
    records: dict[tuple[str, int], dict[int, str]]
    spans: dict[tuple[str, int], int]
    micro_batch: MicroBatch | None


@dataclass
class Model:
    """One seed's run."""

    seed: int
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.rng = rng = self.simulation.rng
        rate = rng.choice([0.0, 0.03, 0.1, 0.25])
        self.weather = Weather(
            lost=rate * rng.random(),
            late=rate * rng.random(),
            conflict=rate * rng.random(),
            killed=rng.choice([0.0, 0.01, 0.04]),
            stalled=rng.choice([0.0, 0.02, 0.1]),
        )
        self.bucket = Bucket(self.simulation, Weather())
        # How long writers and readers may wait between requests of theirs.
        self.pauses_ms = rng.choice([[1, 100], [100, 2000, DAY_MS], [DAY_MS]])
        self.checkpoint_every = rng.choice([1, 2, 4, 8])
        self.states: dict[int, tuple[str, int]] = {}  # id and sum, by number
        self.read: dict[tuple[str, int], dict[int, str]] = {}  # by topic id and partition
        self.jobs: dict[str, Job] = {}
        self.acknowledged: set[str] = set()  # labels
        self._entries: list[Entry] = []
        self.denied: set[str] = set()  # ids of jobs that were told that nothing is visible
        self.running = 0  # writers and readers
        self.memory = random.Random(f"memory-{self.seed}")
        self.known: list[KnownLedger | None] = [None, None, None]  # nothing, and by two machines
        self.of_groups = random.Random(f"groups-{self.seed}")
        self.retention_ms = self.of_groups.choice(RETENTIONS_MS)
        self.groups: dict[
            str, dict[tuple[str, int], int]
        ] = {}  # offsets, as the last process finds them

    def remember(self, known: KnownLedger | None) -> None:
        """Let one of the machines know a ledger."""
        if known is not None:
            self.known[self.memory.choice([1, 2])] = known

    def saw(self, state: LedgerState) -> None:
        """Compare a state with that of others after the same entry."""
        found = state.entry_id, zlib.crc32(pack_heads(state))
        expected = self.states.setdefault(state.number, found)
        assert found == expected, f"states after entry {state.number} differ"

    def note(self, text: str) -> None:
        self.log.append(text)

    # The run.

    def run(self) -> None:
        self.simulation.spawn(self._begin)
        self.simulation.run()
        self.bucket.weather = self.weather
        rng = self.rng
        for number in range(rng.choice([1, 2, 3])):
            self._spawn(partial(Writer(self, number).run, rng.choice([1, 2, 4])))
        for number in range(rng.choice([0, 0, 2])):
            self._spawn(partial(MirrorWriter(self, 5 + number).run, rng.choice([1, 2])))
        for number in range(self.of_groups.choice([0, 0, 1, 2])):
            self._spawn(partial(Consumer(self, number).run, self.of_groups.choice([2, 5])))
        for _ in range(rng.choice([1, 2])):
            self._spawn(partial(Reader(self).run, rng.choice([1, 3])))
        self.simulation.spawn(Adversary(self).run)
        if rng.random() < 0.5:
            self.simulation.spawn(Merger(self).run)
        if rng.random() < 0.5:
            self.simulation.spawn(Retention(self).run)
        self.simulation.run()
        self.bucket.weather = Weather()
        self.simulation.spawn(self._end)
        self.simulation.run()
        self._check()

    def _spawn(self, work: Callable[[], object]) -> None:
        self.running += 1

        def run() -> None:
            try:
                work()
            finally:
                self.running -= 1

        self.simulation.spawn(run, self.rng.random() * 200)

    def _begin(self) -> None:
        process = Process(self)
        create_cluster(process.objects, CLUSTER_ID, "", self.simulation.sleep)
        expiration_ms = self.rng.choice(EXPIRATIONS_MS)
        process.ledger.start(
            {
                "staging.timeout.ms": 7 * DAY_MS,
                "producer.id.expiration.ms": expiration_ms,
                "offsets.retention.ms": self.retention_ms,
            }
        )
        for name, (topic_id, partitions) in TOPICS.items():
            offsets = tuple(self.rng.choice([0, 0, 10]) for _ in range(partitions))
            topic = TopicCreation(topic_id, name, offsets)
            process.commit(lambda _, topic=topic: topic)

    def _end(self) -> None:
        """Let all that may be deleted be deleted, then let everyone write and read once more."""
        self.simulation.sleep(30 * DAY_MS)
        adversary = Adversary(self)
        adversary.do(adversary.bury, Process(self, requests_max=2000))
        for number in range(2):
            Writer(self, 10 + number).run(1, requests_max=200)
        self.read.clear()
        Reader(self).run(1, requests_max=600)
        state = Process(self, requests_max=200).follow()
        self.groups = {
            group: {key: head.offset for key, head in offsets.items()}
            for group, offsets in state.groups.items()
        }

    # What must hold in the end.

    def entries(self) -> list[Entry]:
        """Return all entries, as they were created."""
        while True:
            name = names.entry_name(len(self._entries))
            data = self.bucket.written.get(f"{CLUSTER_ID}/{name}")
            if data is None:
                return self._entries
            self._entries.append(decode(data, name))

    def written(self, name: str) -> bytes:
        return self.bucket.written[f"{CLUSTER_ID}/{name}"]

    def originally(self, append: PartitionAppend) -> Iterator[DataExtent]:
        """Yield an append's extents as they were when it was written."""
        if isinstance(append.placed, IndexRange):
            at = append.placed
            data = self.written(at.name)[at.position : at.position + at.size_in_bytes]
            yield from unpack_index(data, at)
        else:
            yield from append.placed

    def _check(self) -> None:
        entries = self.entries()
        ledger = f"{CLUSTER_ID}/{names.LEDGER}"
        assert sum(name.startswith(ledger) for name in self.bucket.objects) == len(entries)
        assert sum(name.startswith(ledger) for name in self.bucket.written) == len(entries)
        for before, entry in pairwise(entries):
            assert (entry.number, entry.before) == (before.number + 1, before.entry_id)
        truth, starts = self._truth(entries)
        seen = [one for of_partition in truth.values() for one in of_partition.values()]
        assert len(seen) == len({*seen}), "a record is in the ledger twice"
        by_label: dict[str, set[str]] = {}
        for one in seen:
            label, _, rest = one.partition("@")
            by_label.setdefault(label, set()).add(rest.partition(":")[0])
        assert all(len(jobs) == 1 for jobs in by_label.values()), "a micro-batch is there twice"
        jobs = {job_id for found in by_label.values() for job_id in found}
        whole = {
            one
            for job in jobs
            for found in self.jobs[job].records.values()
            for one in found.values()
        }
        assert whole == {*seen}, "a job is there in part"
        assert self.acknowledged <= by_label.keys(), "an acknowledged record is lost"
        assert not self.denied & jobs, "a job was told that nothing is visible"
        self._check_groups(entries)
        for key, of_partition in truth.items():
            assert self.read.get(key, {}).items() <= of_partition.items(), "a wrong record was read"
            there = {offset for offset in of_partition if offset >= starts[key]}
            assert there <= self.read.get(key, {}).keys(), "a record was not read"
            assert self.read.get(key, {}).keys() <= there, "a record is back that was deleted"

    def _check_groups(self, entries: list[Entry]) -> None:
        """Compare what the last process finds with the last commits."""
        committed: dict[
            str, dict[tuple[str, int], tuple[int | None, int]]
        ] = {}  # offsets and times
        tries: dict[tuple[str, tuple[str, int]], int] = {}
        for entry in entries:
            groups = entry.content.groups if isinstance(entry.content, LedgerCommit) else {}
            for group, rows in groups.items():
                for topic_id, partition, offset, _ in rows:
                    key = topic_id, partition
                    committed.setdefault(group, {})[key] = offset, entry.time_ms
                    if offset is not None:
                        number = offset % Consumer.TRIES_MAX
                        assert tries.get((group, key), -1) < number, "an older commit came later"
                        tries[group, key] = number
        for group, offsets in committed.items():
            found = self.groups.get(group, {})
            for key, (offset, time_ms) in offsets.items():
                is_kept = offset is not None and entries[-1].time_ms - time_ms < self.retention_ms
                assert found.get(key, None if is_kept else offset) == offset, "not the last commit"
                assert offset is not None or key not in found, "a deleted offset is back"

    def _truth(
        self, entries: list[Entry]
    ) -> tuple[dict[tuple[str, int], dict[int, str]], dict[tuple[str, int], int]]:
        """Return the records and the start offset of each partition, by what the entries say."""
        truth: dict[tuple[str, int], dict[int, str]] = {}
        starts: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] = {}
        for content in (entry.content for entry in entries):
            if isinstance(content, TopicCreation):
                for number, offset in enumerate(content.first_offsets):
                    key = content.topic_id, number
                    truth[key], starts[key], ends[key] = {}, offset, offset
            elif isinstance(content, StartOffsets | LedgerCommit):
                for topic_id, of_topic in content.starts.items():
                    starts.update({(topic_id, number): one for number, one in of_topic.items()})
            if isinstance(content, LedgerCommit):
                for topic_id, appends in content.appends.items():
                    for append in appends:
                        key = topic_id, append.partition
                        assert append.base_offset == ends[key], "offsets are not dense"
                        ends[key] = base = append.base_offset
                        for extent in self.originally(append):
                            data = self.written(extent.name)[extent.position :]
                            truth[key].update(_unpacked(data[: extent.size_in_bytes], base))
                            base += extent.span
                        ends[key] = base
        return truth, starts


class Actor:
    """Someone who goes on in a new process after each crash."""

    def __init__(self, model: Model) -> None:
        self.model, self.rng = model, model.rng

    def pause(self) -> None:
        """Wait for a while, in some schedules for hours."""
        longest_ms = self.rng.choice(self.model.pauses_ms)
        self.model.simulation.sleep(longest_ms * self.rng.random())

    def in_new_processes(self, step: Callable[[Process], bool], requests_max: int = 3000) -> None:
        """Call `step` until it returns True, in a new process after a crash or an error of the store."""
        process, spent = Process(self.model, requests_max=requests_max), 0
        while True:
            try:
                if step(process):
                    return
            except (Killed, ObjectStoreError) as error:
                self.model.note(f"{type(self).__name__} {type(error).__name__}")
                spent += process.objects.requests
                assert spent <= ATTEMPTS_MAX * requests_max, f"blocked: {spent} requests in all"
                process = Process(self.model, requests_max=requests_max)
                self.model.simulation.sleep(self.rng.random() * 500)


class Writer(Actor):
    """A query whose micro-batches are repeated until they are acknowledged, and jobs of their own."""

    def __init__(self, model: Model, number: int) -> None:
        super().__init__(model)
        self.query_id, self.number = f"query-{number}", number
        self.batch = 0

    def run(self, batches: int, *, requests_max: int = 3000) -> None:
        self.batches = batches
        self.in_new_processes(self.step, requests_max)

    def step(self, process: Process) -> bool:
        began = process.follow().number
        job = self._job(process)
        placed = self._staged(process, job, began)
        self.pause()
        try:
            process.commit(lambda state: self._proposal(state, job, placed))
        except OutcomeUnknownError:
            self.abort(process, placed)
        except (CommitError, RefusedEntryError):
            self.model.denied.add(job.job_id)
            self.abort(process, placed)
            return False
        else:
            self.model.acknowledged.add(job.label)
            self.batch += 1
            return self.batch >= self.batches
        if job.micro_batch is None:
            self.batch += 1  # It may be there or not, and is not repeated.
        return self.batch >= self.batches

    def abort(self, process: Process, placed: dict[str, list[PartitionAppend]]) -> None:
        """Do as a failed job does: nothing."""

    def _job(self, process: Process) -> Job:
        job_id, rng = names.random_id(process.rng), self.rng
        is_micro_batch = rng.random() < 0.7
        label = f"{self.query_id}/{self.batch}" if is_micro_batch else f"job-{job_id[:8]}"
        records, spans = {}, {}
        for topic_id, partitions in TOPICS.values():
            for partition in range(partitions):
                if not records or rng.random() < 0.6:
                    span = rng.choice([1, 2, 5])
                    records[topic_id, partition] = {
                        one: f"{label}@{job_id}:{topic_id}/{partition}/{one}"
                        for one in range(span)
                        if one == 0 or rng.random() < 0.8
                    }
                    spans[topic_id, partition] = span
        job = Job(
            job_id,
            label,
            records,
            spans,
            MicroBatch(self.query_id, self.batch) if is_micro_batch else None,
        )
        self.model.jobs[job_id] = job
        return job

    def _staged(self, process: Process, job: Job, began: int) -> dict[str, list[PartitionAppend]]:
        """Put the batches of each task, and return the job's appends from offset 0 on."""
        objects, keys = process.ledger.objects, [*job.records]
        middle = self.rng.randrange(len(keys) + 1)
        found: dict[str, list[PartitionAppend]] = {}
        for task in filter(None, (keys[:middle], keys[middle:])):
            data, extents = bytearray(), {}
            for key in task:
                packed, span = _packed(job.records[key]), job.spans[key]
                counts = span, len(job.records[key])
                extents[key] = len(data), len(packed), *counts, 0, 0
                data += packed
            name = self._put(process, partial(names.data_name, began, job.job_id), bytes(data))
            for (topic_id, partition), placed in extents.items():
                append = PartitionAppend(
                    partition, 0, *placed[2:4], 0, (DataExtent(name, *placed),)
                )
                found.setdefault(topic_id, []).append(append)
        if self.rng.random() < 0.3:
            name = names.index_name(began, job.job_id, names.random_id(process.rng))
            data_of_index, found = pack_index(name, found)
            objects.put(name, data_of_index)
        return found

    def _put(self, process: Process, name_of: Callable[[str], str], data: bytes) -> str:
        """Put an object; after a failure under another name, as it may still come."""
        while True:
            name = name_of(names.random_id(process.rng))
            try:
                process.ledger.objects.put(name, data)
            except ObjectStoreError:
                continue
            return name

    def _proposal(
        self, state: LedgerState, job: Job, placed: dict[str, list[PartitionAppend]]
    ) -> LedgerCommit | None:
        last = state.queries.get(self.query_id)
        if job.micro_batch and last and last.number >= job.micro_batch.number:
            return None
        appends = {
            topic_id: tuple(
                one._replace(base_offset=state.partition(topic_id, one.partition).next_offset)
                for one in of_topic
            )
            for topic_id, of_topic in placed.items()
        }
        produced = [
            self._produced(state, topic_id, one)
            for topic_id, of_topic in appends.items()
            for one in of_topic
        ]
        return LedgerCommit(appends, micro_batch=job.micro_batch, produced=tuple(produced))

    def _produced(self, state: LedgerState, topic_id: str, one: PartitionAppend) -> ProducedBatch:
        head = state.producers.get((self.number, topic_id, one.partition))
        first = increment_sequence(head.batches[-1].last_sequence, 1) if head else 0
        last = increment_sequence(first, one.records_count - 1)
        return ProducedBatch(self.number, 0, topic_id, one.partition, first, last, one.base_offset)


class MirrorWriter(Writer):
    """One of two processes that mirror under the same name: each unit is the next one by the ledger."""

    NAME = "mirror"

    def step(self, process: Process) -> bool:
        state = process.follow()
        before = state.mirrors.get(self.NAME, "")
        unit = int(before or 0)
        job = self._job(process)
        job.micro_batch, job.label = None, f"{self.NAME}/{unit}"
        for key, records in job.records.items():
            job.records[key] = {
                at: f"{job.label}@{one.partition('@')[2]}" for at, one in records.items()
            }
        placed = self._staged(process, job, state.number)
        self.pause()

        def propose(state: LedgerState) -> LedgerCommit | None:
            found = self._proposal(state, job, placed)
            step = MirrorStep(self.NAME, before, f"{unit + 1}")
            return None if found is None else replace(found, mirror=step, produced=())

        try:
            process.commit(propose)
        except (OutcomeUnknownError, MirrorFencedError):
            return False
        except (CommitError, RefusedEntryError):
            self.model.denied.add(job.job_id)
            return False
        self.model.acknowledged.add(job.label)
        self.batch += 1
        return self.batch >= self.batches


class Consumer(Actor):
    """Someone who commits offsets of a group, by the product's own code, and finds them again."""

    TRIES_MAX = 1000  # the number of the try is an offset's remainder by this

    def __init__(self, model: Model, number: int) -> None:
        super().__init__(model)
        self.rng = random.Random(f"group-{number} of {model.seed}")
        self.group_id, self.tries = f"group-{number}", 0
        # By partition the offset that was answered last, None for none, and when by the time of entries; unless there was
        # no answer since.
        self.answered: dict[TopicPartition, tuple[int | None, int]] = {}

    def run(self, commits: int) -> None:
        self.commits = commits
        self.in_new_processes(self.step)

    def step(self, process: Process) -> bool:
        groups = BucketGroups(_ConsumersLedger(process))  # type: ignore[arg-type]
        self._ensure_found(process.follow())
        self.pause()
        self.tries += 1
        wanted: dict[TopicPartition, int | None] = {
            TopicPartition(name, number): self.rng.randrange(1000) * self.TRIES_MAX + self.tries
            for name, (_, partitions) in TOPICS.items()
            for number in range(partitions)
            if self.rng.random() < 0.7
        }
        is_deletion = self.rng.random() < 0.2
        try:
            if is_deletion:
                wanted = dict.fromkeys(self.answered)
                groups.delete(self.group_id)
            else:
                groups.alter_offsets(self.group_id, wanted)  # type: ignore[arg-type]
        except GroupIdNotFoundError:
            pass
        except CommitError:  # it may be there or not
            self.answered = {}
            return False
        except (Killed, ObjectStoreError):
            self.answered = {}
            raise
        state = process.ledger.state
        self.answered |= {tp: (offset, state.time_ms) for tp, offset in wanted.items()}
        self._ensure_found(state)
        self.commits -= 1
        return self.commits <= 0

    def _ensure_found(self, state: LedgerState) -> None:
        found = state.groups.get(self.group_id, {})
        for tp, (offset, time_ms) in self.answered.items():
            head = found.get((TOPICS[tp.topic][0], tp.partition))
            is_dropped = head is None and state.time_ms - time_ms >= self.model.retention_ms
            assert is_dropped or (head and head.offset) == offset, f"{tp} is not at {offset}"


class _ConsumersLedger:
    """The ledger of a process as consumers' offsets are committed to it, in the place of a SharedLedger."""

    address = "the bucket"

    def __init__(self, process: Process) -> None:
        self._process = process

    @contextlib.contextmanager
    def state(self, **_: object) -> Iterator[LedgerState]:
        yield self._process.follow()

    def commit(self, propose: Callable[[LedgerState], Content | None], **_: object) -> Entry | None:
        return self._process.commit(propose)


class Reader(Actor):
    """A reader of everything, that goes on where it was."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.positions: dict[tuple[str, int], int] = {}

    def run(self, rounds: int, *, requests_max: int = 3000) -> None:
        self.rounds = rounds
        self.in_new_processes(self.step, requests_max)

    def step(self, process: Process) -> bool:
        process.follow()
        for topic_id, partitions in TOPICS.values():
            for partition in range(partitions):
                self._read(process, topic_id, partition)
        self.rounds -= 1
        self.pause()
        return self.rounds <= 0

    def _read(self, process: Process, topic_id: str, partition: int) -> None:
        key, ledger = (topic_id, partition), process.ledger
        while True:
            changes = ledger.changes(topic_id).get(partition, [])
            head = ledger.state.partition(topic_id, partition)
            position = max(self.positions.get(key, 0), head.start_offset)
            ahead = [one for one in changes if one.next_offset > position]
            if not ahead:
                assert position == head.next_offset, f"{key} has nothing from {position} on"
                return
            assert ahead[0].start_offset <= position, f"{key} has a hole at {position}"
            found = process.records(ahead[0])
            if found is None:
                self._ensure_replaced(process, topic_id, ahead[0])
                continue
            there = self.model.read.setdefault(key, {})
            for offset, one in found.items():
                assert there.setdefault(offset, one) == one, f"{key} has two records at {offset}"
            self.positions[key] = ahead[0].next_offset

    def _ensure_replaced(self, process: Process, topic_id: str, gone: Change) -> None:
        """Check that what was not there is not referred to any more."""
        state = process.follow()
        offset = max(
            gone.start_offset,
            state.partition(topic_id, gone.append.partition).start_offset,
        )
        for one in process.ledger.changes(topic_id).get(gone.append.partition, []):
            is_there = one.start_offset <= offset < one.next_offset
            assert not is_there or one.append != gone.append, f"{gone.append} was deleted"


class Adversary(Actor):
    """Whatever may happen to a ledger at any time."""

    def run(self) -> None:
        process = Process(self.model)
        for _ in range(self.rng.choice([3, 8, 16])):
            if not self.model.running:
                return
            is_over = not self.do(self.rng.choice(self.steps()), process)
            if is_over or self.rng.random() < 0.2:
                process = Process(self.model)
            longest_ms = self.rng.choice([100, 1000, HOUR_MS])
            self.model.simulation.sleep(longest_ms * self.rng.random())

    def do(self, step: Step, process: Process) -> bool:
        """Do one step, or a part of it if it is refused, fails or is killed; return False then."""
        name = step.__name__  # type: ignore[attr-defined]
        try:
            step(process)
        except CorruptLedgerError:
            raise
        except (KBatchError, Killed) as error:
            self.model.note(f"{name} {type(error).__name__}")
            return False
        self.model.note(name)
        return True

    def steps(self) -> list[Step]:
        weighted = (
            [self.horizon] * 3 + [self.collect] * 4 + [self.due_gc_boundary] + [self.bury] * 5
        )
        weighted += [self.replace] * 3 + [self.hint] * 2 + [self.start_offsets]
        return [*weighted, self.fence, self.side_topic]

    # The horizon, and what it allows.

    def horizon(self, process: Process) -> None:
        """Move the horizon: in the product to the youngest entry of a certain age, here to any."""
        number = process.follow().number
        _SleepyCollector(process).move_gc_boundary(max(number - self.rng.choice([0, 0, 1, 5]), 0))

    def due_gc_boundary(self, process: Process) -> None:
        """Move the horizon as the product does."""
        collector = _SleepyCollector(process)
        due = collector.due_gc_boundary(process.ledger.store_now_ms())
        if due is not None:
            collector.move_gc_boundary(due)

    def collect(self, process: Process) -> None:
        """Delete what the horizon allows."""
        collector = _SleepyCollector(process)
        collector.collect(process.ledger.store_now_ms())

    def bury(self, process: Process) -> None:
        """Leave as little as there may be, while others sleep."""
        self.horizon(process)
        self.collect(process)

    # Entries.

    def replace(self, process: Process) -> None:
        """Merge a range of a partition into a segment."""
        state = process.follow()
        topic_id, partitions = self.rng.choice([*TOPICS.values()])
        partition = self.rng.randrange(partitions)
        began = state.number
        changes = process.ledger.changes(topic_id).get(partition, [])
        if not changes:
            return
        first = self.rng.randrange(len(changes))
        merged = changes[first : first + self.rng.choice([1, 2, 5])]
        records: dict[int, str] = {}
        for change in merged:
            found = process.records(change)
            if found is None:
                return
            records.update(found)
        start, end = merged[0].start_offset, merged[-1].next_offset
        data = _packed({offset - start: one for offset, one in records.items()})
        if not records:
            return
        name = names.segment_name(topic_id, partition, began, names.random_id(process.rng))
        process.ledger.objects.put(name, data)
        self.pause()
        extent = DataExtent(name, 0, len(data), end - start, len(records), 0, 0)
        append = PartitionAppend(partition, start, end - start, len(records), -1, (extent,))
        replaced = Rewrite(partition, start, end, (append,))
        process.commit(lambda _: Replacement({topic_id: (replaced,)}))

    def start_offsets(self, process: Process) -> None:
        topic_id, partitions = self.rng.choice([*TOPICS.values()])
        partition = self.rng.randrange(partitions)
        share = self.rng.random()

        def propose(state: LedgerState) -> StartOffsets:
            head = state.partition(topic_id, partition)
            offset = head.start_offset + int(share * (head.next_offset - head.start_offset))
            return StartOffsets({topic_id: {partition: offset}})

        process.commit(propose)

    def fence(self, process: Process) -> None:
        process.commit(lambda state: Fence("server", state.fences.get("server", -1) + 1))

    def side_topic(self, process: Process) -> None:
        """Create a topic, or delete it: each time with the same id, as one that is moved in and out."""
        side = TopicCreation("side-topic", "side", (0,))
        process.commit(
            lambda state: TopicDeletion("side-topic") if "side-topic" in state.topics else side
        )

    # What is no entry.

    def hint(self, process: Process) -> None:
        """Write a hint that is old, wrong, or none."""
        number = self.rng.choice([0, 1, 3, 10, 10**9])
        hints = [
            checksummed_json.encode({"checkpoint": number, "entry": number + 3}),
            b"",
            b"x" * 10,
        ]
        process.ledger.objects.put(names.HINT, self.rng.choice(hints))


class Merger(Adversary):
    """One who merges all the time, beside the others."""

    def steps(self) -> list[Step]:
        return [self.replace]


class Retention(Adversary):
    """One who moves start offsets all the time, beside the others."""

    def steps(self) -> list[Step]:
        return [self.start_offsets]


class _SleepyCollector(GarbageCollector):
    """The product's, which may stop for a day between what it deletes."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.ledger)
        self._process = process

    def _delete(self, found: list[str]) -> None:
        for name in found:
            if self._process.rng.random() < 0.1:
                self._process.objects.simulation.sleep(self._process.rng.random() * DAY_MS)
            super()._delete([name])


def run_models(default: int) -> None:
    """Run as many schedules as are to be drawn, by default `default`."""
    for seed in draws.seeds(default):
        run_model(seed)


def run_model(seed: int) -> None:
    """Run one schedule."""
    model = Model(seed)
    try:
        model.run()
    except BaseException as error:
        error.add_note(f"seed {seed}: {draws.again(seed)}; " + "; ".join(model.log))
        raise
