"""Weeks of use of one bucket in simulated time: what is stored and asked of the store on each day.

A query commits micro-batches of some tasks, a job overwrites a topic each night, maintenance runs now and then,
and now and then something dies: a task between its objects and the commit, or maintenance in the middle. Once a day
a reader goes on where it was.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_kbatch.bucket.batch_stream import BatchStream
from spark_kbatch.bucket.ledger import Ledger, Timing
from spark_kbatch.bucket.maintenance import Maintenance, Merged
from spark_kbatch.bucket.place import create_cluster
from spark_kbatch.bucket.placement import Placements
from spark_kbatch.bucket.staging import DataObjects, WriterJob, append_of
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import (
    STAGING_TIMEOUT_MS,
    Content,
    LedgerCommit,
    MicroBatch,
    TopicCreation,
)
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.model import LONG_MAX
from tests.support.bucket_objects import AgingObjects, Died, a_url
from tests.support.reference import Record, encode_batch

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
CLUSTER_ID = "c1" * 16
STREAMED, NIGHTLY = "streamed", "nightly"  # ids of topics, which are their names too
PARTITIONS, RECORDS = 2, 3  # of the streamed topic; in each batch


class Day(NamedTuple):
    """What there was at the end of a day, and what was asked on it."""

    objects: int  # without entries, which stay for good
    size_in_bytes: int  # of these
    whole_entries: int  # that are no tombstones
    requests: int
    read: int  # records that the reader got


@dataclass
class LongUse:
    """One bucket, and those who use it."""

    every_ms: int  # between two micro-batches
    tasks: int  # of each
    days: int
    maintained_every_ms: int
    retention_ms: int
    staging_timeout_ms: int
    dies_every_ms: int = HOUR_MS
    seed: int = 1

    objects: AgingObjects = field(default_factory=AgingObjects)
    found: list[Day] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.url = a_url(self.objects)
        self.first_ms = self.objects.clock_ms
        create_cluster(self.objects, CLUSTER_ID, "", self._sleep)
        self.ledger = self._opened()
        self.ledger.start({STAGING_TIMEOUT_MS: self.staging_timeout_ms})
        for topic_id, partitions in ((STREAMED, PARTITIONS), (NIGHTLY, 1)):
            settings = {"retention.ms": f"{self.retention_ms}"} if topic_id == STREAMED else {}
            topic = TopicCreation(topic_id, topic_id, (0,) * partitions, settings)
            self.ledger.commit(lambda _state, topic=topic: topic)
        self.committed = 0  # micro-batches
        self.expected: Counter[int] = Counter()  # records committed, by partition
        self.position: Counter[int] = Counter()  # of the reader

    @property
    def timing(self) -> Timing:
        def now_ms() -> int:
            return self.objects.clock_ms

        return Timing(now_ms, now_ms, self._sleep, self.rng)

    def _sleep(self, ms: float) -> None:
        self.objects.clock_ms += int(ms)

    def _opened(self) -> Ledger:
        return Ledger(self.objects, CLUSTER_ID, self.timing)

    def run(self) -> list[Day]:
        """Let all days pass, and return what was found at the end of each."""
        due = {
            self.micro_batch: self.every_ms,
            self.maintain: self.maintained_every_ms,
            self.die: self.dies_every_ms,
            self.overwrite: DAY_MS,
            self.end_day: DAY_MS,
        }
        next_ms = {what: self.first_ms + ms for what, ms in due.items()}
        while len(self.found) < self.days:
            what = min(next_ms, key=next_ms.__getitem__)
            self.objects.clock_ms = max(self.objects.clock_ms, next_ms[what])
            next_ms[what] += due[what]
            what()
        return self.found

    # Who uses it.

    def micro_batch(self) -> None:
        self._commit(self._staged(STREAMED, PARTITIONS), MicroBatch("query", self.committed))
        self.committed += 1
        self.expected.update(dict.fromkeys(range(PARTITIONS), RECORDS * self.tasks))

    def overwrite(self) -> None:
        self._commit(self._staged(NIGHTLY, 1), None, is_overwrite=True)

    def die(self) -> None:
        """Let a job end before its commit, or maintenance before its end; a new process goes on."""
        if self.rng.random() < 0.5:
            self._staged(STREAMED, PARTITIONS)
        else:
            self._maintain(dies_after=self.rng.randrange(30))
        self.ledger = self._opened()

    def maintain(self) -> None:
        self._maintain(dies_after=-1)

    def _maintain(self, dies_after: int) -> None:
        maintenance = Maintenance(self.url, timing=self.timing)
        self.objects.left = dies_after

        def on_progress(_done: Merged, _total: int) -> None:
            self._sleep(100)

        try:
            maintenance.run(on_progress=on_progress)
        except Died:
            pass
        finally:
            self.objects.left = -1

    def end_day(self) -> None:
        """Read what is new, and note what there is."""
        read = self._read()
        requests = sum(self.objects.taken().values())
        stored = [*self.objects.list("")]
        ledger = f"{CLUSTER_ID}/{names.LEDGER}"
        others = [one for one in stored if not one.name.startswith(ledger)]
        entries = [one for one in stored if one.name.startswith(ledger)]
        self.found.append(
            Day(
                len(others),
                sum(one.size_in_bytes for one in others),
                sum(b'"tombstone"' not in self.objects.content(one.name) for one in entries),
                requests,
                read,
            )
        )

    def _read(self) -> int:
        ledger = self._opened()
        placements, changes = Placements(ledger.objects), ledger.changes(STREAMED)
        read = 0
        for partition in range(PARTITIONS):
            head = ledger.state.partition(STREAMED, partition)
            assert head.next_offset == self.expected[partition], (
                "what was committed is not there once"
            )
            start = self.position[partition]
            assert head.start_offset <= start, "retention took what was not read"
            extents = placements.of(changes[partition], start, head.next_offset)
            stream = BatchStream(ledger.objects, extents, start)
            while (batches := stream.take(LONG_MAX)) is not None:
                for _, header in batches.batches:
                    assert header.base_offset == self.position[partition], "a record is missing"
                    self.position[partition] = header.next_offset
                    read += header.records_count
            assert self.position[partition] == head.next_offset
        return read

    # What they do.

    def _staged(self, topic_id: str, partitions: int) -> dict[int, list[object]]:
        job = WriterJob.at(self.ledger.state.number, self.rng)
        found: dict[int, list[object]] = {at: [] for at in range(partitions)}
        for _ in range(self.tasks):
            data = DataObjects(self.ledger.objects, job, self.rng)
            for at in range(partitions):
                data.send(topic_id, at, memoryview(_batch(self.objects.clock_ms)))
            for (_, at), extents in data.finish().items():
                found[at] += extents
        return found

    def _commit(
        self,
        staged: dict[int, list[object]],
        micro_batch: MicroBatch | None,
        *,
        is_overwrite: bool = False,
    ) -> None:
        topic_id = NIGHTLY if is_overwrite else STREAMED

        def content(state: LedgerState) -> Content:
            heads = state.heads[topic_id]
            appends = tuple(
                append_of(at, extents, heads[at].next_offset)  # type: ignore[arg-type]
                for at, extents in staged.items()
            )
            starts = {at: head.next_offset for at, head in enumerate(heads)}
            return LedgerCommit(
                {topic_id: appends}, {topic_id: starts} if is_overwrite else {}, micro_batch
            )

        self.ledger.commit(content)


def _batch(time_ms: int) -> bytes:
    return encode_batch([Record(at, time_ms, None, b"v") for at in range(RECORDS)])
