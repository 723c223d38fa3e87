"""A bucket after a month of use, in simulated time, and what is seen of it once one object is lost or damaged.

A query commits micro-batches, a job overwrites a topic each night, a producer and a group commit, now and then a
commit is so large that an index lists its objects, and maintenance runs every second day. So there are tombstones, old
and new checkpoints with copies of parts, merged segments with and without what they were merged from, and garbage
that waits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.bucket.batch_stream import BatchStream, MissingObjectError
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.placement import Placements
from spark_kbatch.bucket.staging import append_of
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import CorruptLedgerError, CorruptRecordError, KBatchError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import (
    CommittedGroupOffset,
    LedgerCommit,
    ProducedBatch,
    TopicCreation,
)
from spark_kbatch.ledger.extents import IndexRange, pack_index
from spark_kbatch.ledger.state import LedgerState
from tests.support.bucket_objects import AgingObjects, a_url
from tests.support.long_use import CLUSTER_ID, DAY_MS, HOUR_MS, LongUse

GROUPED, QUIET = "grouped", "quiet"  # ids of topics, which are their names too
INDEXED = (5, 15, 28)  # days with an index
DAYS = 30
RUN_EXTENTS = 24  # small extents that are merged
Offset = tuple[str, int, int]  # topic, partition, offset
Content = dict[str, tuple[bytes, int]]  # by name; with times


class Month(LongUse):
    """The bucket as it is made."""

    def __init__(self) -> None:
        super().__init__(
            every_ms=4 * HOUR_MS,
            tasks=1,
            days=DAYS,
            maintained_every_ms=2 * DAY_MS,
            retention_ms=-1,
            staging_timeout_ms=7 * DAY_MS,
        )
        self.sent: Counter[str] = Counter()  # by topic
        for topic_id in (GROUPED, QUIET):
            topic = TopicCreation(topic_id, topic_id, (0, 0), {})
            self.ledger.commit(lambda _, topic=topic: topic)
        for day in range(DAYS):
            for _ in range(4):
                self.objects.clock_ms += 6 * HOUR_MS
                self.micro_batch()
            self.overwrite()
            self.produce(with_index=day in INDEXED)
            if day < INDEXED[0]:
                self.produce(QUIET)
            if day % 2:
                Maintenance(self.url, timing=self.timing).run(run_extents=RUN_EXTENTS)
        for _ in range(6):
            self.produce()
        self.content: Content = dict(self.objects._objects)

    def produce(self, topic_id: str = GROUPED, *, with_index: bool = False) -> None:
        """Commit records of a producer and a group's offset, or a job's with an index."""
        staged = self._staged(topic_id, 2)

        def content(state: LedgerState) -> LedgerCommit:
            heads = state.heads[topic_id]
            appends = [
                append_of(at, extents, heads[at].next_offset)  # type: ignore[arg-type]
                for at, extents in staged.items()
            ]
            if with_index:
                folder = names.folder_of(appends[0].objects[0])
                name = f"{folder}/index-{names.random_id(self.rng)}"
                data, placed = pack_index(name, {topic_id: appends})
                self.ledger.objects.put(name, data)
                return LedgerCommit(placed)
            base, sent = heads[0].next_offset, self.sent[topic_id]
            batch = ProducedBatch(9, 0, topic_id, 0, sent, sent + 2, base)
            group = {"billing": (CommittedGroupOffset(topic_id, 0, base, ""),)}
            return LedgerCommit({topic_id: appends}, produced=(batch,), groups=group)

        self.ledger.commit(content)
        self.sent[topic_id] += 0 if with_index else 3


# What is lost or damaged.

KINDS = (
    "the object `cluster`",
    "`hint`",
    "a tombstone",
    "an entry that a checkpoint has",
    "the entry of the newest checkpoint",
    "an entry after the newest checkpoint",
    "the last entry",
    "the root of a checkpoint",
    "a part of a checkpoint",
    "the copy of a part",
    "data or an index, as old as the horizon",
    "data or an index, younger than that",
    "a segment, and what it was merged from is gone",
    "a segment, and what it was merged from is there",
    "what nothing refers to",
)
DAMAGES = {
    "removed": lambda data: None,
    "halved": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: flipped(data, len(data) // 2),
}


def flipped(data: bytes, at: int) -> bytes:
    """Return bytes of which one has one bit flipped."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Accidents:
    """The bucket, of which one object at a time is lost or damaged."""

    def __init__(self) -> None:
        self.month = Month()
        ledger = self.month.ledger
        self.records = self._placed(self.month.objects)
        """What each object has, by its name in the cluster."""
        self.all = frozenset[Offset]().union(*self.records.values())
        self.last, self.horizon = ledger.state.number, ledger.state.gc_boundary
        self.by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
        roots = sorted(map(names.number_of, self._names(names.CHECKPOINTS)))
        for name in self.month.content:
            kind = self._kind(name.removeprefix(f"{CLUSTER_ID}/"), roots)
            if kind:
                self.by_kind[kind].append(name)

    def _names(self, folder: str) -> list[str]:
        whole = [name.removeprefix(f"{CLUSTER_ID}/") for name in self.month.content]
        return [name for name in whole if name.startswith(folder)]

    def _kind(self, name: str, roots: list[int]) -> str:
        number, last = names.number_of(name), KINDS
        if name.startswith(names.LEDGER):
            if number > roots[-1]:
                return last[6] if number == self.last else last[5]
            if number == roots[-1]:
                return last[4]
            return last[2] if number <= roots[0] else last[3]
        if name.startswith(names.PARTS):
            return last[9] if name.endswith(names.COPY) else last[8]
        if name in ("cluster", "hint"):
            return last[0] if name == "cluster" else last[1]
        if number >= 0:
            return last[7]
        if name not in self.records:
            return last[14]
        if name.startswith(names.SEGMENTS):
            return last[12] if names.start_entry(name) < self.horizon else last[13]
        return last[10] if names.start_entry(name) < self.horizon else last[11]

    def chosen(self, kind: str) -> list[str]:
        """Return the oldest object of a kind, one in the middle and the newest, if there are so many."""
        found = self.by_kind[kind]
        found.sort(key=lambda name: self.month.content[name][1])
        return [*dict.fromkeys((found[0], found[len(found) // 2], found[-1]))]

    def copied(self, name: str = "", data: bytes | None = None) -> AgingObjects:
        """Return the objects, of which one has another content, or is missing."""
        content, objects = dict(self.month.content), AgingObjects()
        if name and data is None:
            del content[name]
        elif data is not None:
            content[name] = data, content[name][1]
        objects.restore((content, sorted(content), self.month.objects.clock_ms))
        return objects

    def content(self, name: str) -> bytes:
        """Return what an object has."""
        return self.month.content[name][0]

    def kept(self, objects: AgingObjects) -> frozenset[Offset]:
        """Return all offsets that can be read; none without a ledger."""
        return frozenset[Offset]().union(*self._placed(objects).values())

    def used(self, name: str, data: bytes | None) -> tuple[str, frozenset[Offset]]:
        """Return whether readers and writers go on with one object changed, and what can be read then."""
        return self._used(self.copied(name, data)), self.kept(self.copied(name, data))

    def _placed(self, objects: AgingObjects) -> dict[str, frozenset[Offset]]:
        """Return which offsets are in each object that can be read, by its name; none without a ledger."""
        found: dict[str, set[Offset]] = {}
        try:
            cluster = Cluster.over(BucketStore(a_url(objects)))
        except KBatchError:
            return {}
        store = cluster._store
        assert isinstance(store, BucketStore)
        placements = Placements(store.ledger.objects)
        for topic in cluster.topic_names():
            try:
                changes = store.ledger.changes(cluster.topic(topic).topic_id)
            except CorruptLedgerError:
                continue
            for partition, of_partition in changes.items():
                for change in of_partition:
                    at = change.append.placed
                    index = [at.name] if isinstance(at, IndexRange) else []
                    try:
                        for placed in placements.whole(change):
                            stream = BatchStream(
                                store.ledger.objects, [placed], placed.start_offset
                            )
                            offsets = {
                                (topic, partition, offset)
                                for read in stream.checked()
                                for _, header in read.batches
                                for offset in range(header.base_offset, header.next_offset)
                            }
                            for name in (placed.extent.name, *index):
                                found.setdefault(name, set()).update(offsets)
                    except (CorruptLedgerError, CorruptRecordError, MissingObjectError):
                        continue
        return {name: frozenset(offsets) for name, offsets in found.items()}

    def outcome(self, name: str, data: bytes | None) -> tuple[str, ...]:
        """Return what is seen with one object changed: the cells of the table of docs/bucket-accidents.md, after the first."""
        inner = name.removeprefix(f"{CLUSTER_ID}/")
        repaired = self.copied(name, data)
        repair = _kbatch("repair", repaired)
        kept = self.kept(repaired)
        recovered = _recovered(_kbatch("recover", self.copied(name, data), "--dry-run", "--json"))
        if not kept:
            _kbatch("recover", repaired, "--yes")
            kept = self.kept(repaired)
        lost = self.all - kept
        what = "nothing"
        if lost:
            what = (
                "its records" if lost <= self.records.get(inner, frozenset()) else "later entries"
            )
        if lost and inner.startswith(names.LEDGER):
            what = "it and what came after it"
        assert len(lost) < len(self.all) / 4, (name, "the cluster")
        return (
            self._used(self.copied(name, data)),
            _exit(_kbatch("verify", self.copied(name, data)), "nothing", "says so"),
            _exit(repair, "mends it" if ": repaired" in repair.stdout else "nothing", "says so"),
            _exit(_kbatch("gc", self.copied(name, data)), "goes on", "goes on, and says so"),
            recovered,
            what,
        )

    def _used(self, objects: AgingObjects) -> str:
        """Return whether readers and writers go on."""
        damaged = False
        try:
            cluster = Cluster.over(BucketStore(a_url(objects)))
            for topic in cluster.topic_names():
                try:
                    cluster.read(topic).read_all()
                except (CorruptRecordError, CorruptLedgerError):
                    damaged = True
            for topic in cluster.topic_names():
                with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
                    producer.send(topic, "new").result()
        except CorruptLedgerError as error:
            return "stop" if "kbatch repair" in str(error) else str(error)
        return "go on, but for its records" if damaged else "go on"


def _kbatch(command: str, objects: AgingObjects, *words: str) -> Result:
    return CliRunner().invoke(cli, [command, a_url(objects), *words], prog_name="kbatch")


def _exit(result: Result, whole: str, told: str) -> str:
    """Return what a command did by its exit code, "stops" where it ended with an error."""
    if result.exit_code == 0:
        return whole
    if isinstance(result.exception, SystemExit):
        return told
    assert isinstance(result.exception, KBatchError), result.exception
    return "stops, and says so" if result.stderr else "stops"


def _recovered(result: Result) -> str:
    """Return what a new cluster would have."""
    if result.exit_code:
        return "nothing"
    found: Mapping[str, Any] = json.loads(result.stdout)
    if found["entry"] < found["newest_entry"]:
        return "what came before it"
    return "all, with a hole" if found["lost"] else "all"
