"""The processes of a history: what each does again and again, and what it tells of it.

    producer    sends records to partitions, as an idempotent producer does, several requests at a time
    jobs        commits batch jobs of several tasks, into two topics at once
    versions    commits batch jobs under `txnAppId`, and repeats one until it knows that it is committed
    stream      commits micro-batches as a streaming query does: what its checkpoint begins, it repeats until it is done
    reader      reads both topics at once, from their starts or from where they ended before
    maintainer  maintains: retention, merges of few extents, the horizon, garbage

Each is a process on one of several machines, which have caches of their own, and clocks of their own: where a clock is
wrong, all that asks Python for the time of day gets that time. Durations are right, as they are on such machines.

What a process tells are lines of JSON in a file of its own, before it does something and after it. A line is one
write, so that a kill leaves it whole or not at all. Times in them are the monotonic clock's, which all processes of a
machine share. `tests.support.history_checker` has the words.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import pickle
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

import spark_kbatch
from spark_kbatch.bucket.job import BucketJob
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.errors import (
    CommitError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    OutcomeUnknownError,
    RefusedEntryError,
    RequestTimedOutError,
)
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.object_store import parse_store_options
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.producer.futures import RecordFuture
from spark_kbatch.producer.producer import Producer
from tests.support.history_faults import FAULTS
from tests.support.rough_store import ADDRESS_VARIABLE

TOPICS = {"events": 4, "audit": 2}  # partitions by topic
PRODUCED = "events"
STOPPED = "stopped"  # a machine's clock
CALM, READS, CHECKPOINTS = "calm", "reads", "checkpoints"  # in a history's folder

_DAY_MS = 86_400_000
_PRODUCER_OPTIONS: dict[str, Any] = {
    "linger_ms": 5, "delivery_timeout_ms": 60_000, "maintain_ms": 500,
}  # fmt: skip
_REQUEST_TIMEOUTS_MS = [300, 3000]
_ROUNDS_AT_ONCE = 3
_READ_COLUMNS = ["topic", "partition", "offset", "value"]

# What a store that fails, a rival or a long sleep may lead to. Anything else is a fault.
_EXPECTED = (ObjectStoreError, ObjectAccessDeniedError, CommitError, RefusedEntryError, RequestTimedOutError)  # fmt: skip
# Of these nothing is visible, ever.
_REFUSED = (CommitError, RefusedEntryError)

Row: TypeAlias = tuple[str, int]  # topic and partition


class Spec(NamedTuple):
    """The definition of one process."""

    kind: str
    name: str  # of all that come after each other: one is there at a time
    incarnation: int
    seed: int
    folder: Path  # of the history
    machine: str
    clock: int | str  # how many ms it is ahead, or STOPPED
    url: str
    address: str  # of the store
    store: Mapping[str, str]  # its options
    fault: str = ""  # of FAULTS

    @property
    def log(self) -> Path:
        """The file in which it tells what it does."""
        return self.folder / "told" / f"{self.name}.{self.incarnation}"


def place_of(topic: str, partition: int) -> str:
    """Return a partition as the lines name it."""
    return f"{topic}-{partition}"


class _Process(ABC):
    """A process, from its start to the end of the history or a kill."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.rng = random.Random(f"{spec.seed}-{spec.name}-{spec.incarnation}")
        self.label = f"{spec.name}.{spec.incarnation}"
        self._log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(self, what: str, **words: Any) -> None:
        line = json.dumps({"what": what, "by": self.label, "at": time.monotonic(), **words})
        os.write(self._log, f"{line}\n".encode())

    def run(self) -> None:
        """Take steps until all is calm, and one of them has succeeded since."""
        self.tell("begun")
        parent = multiprocessing.parent_process()
        while parent is None or parent.is_alive():
            is_last = (self.spec.folder / CALM).exists()
            try:
                self.step(is_last=is_last)
            except _EXPECTED as error:
                self.tell("failed", error=_words(error))
                time.sleep(self.rng.uniform(0, 0.3))
            except Exception as error:  # noqa: BLE001  the checker has to know of any
                self.tell("broke", error=_words(error))
                time.sleep(0.5)
            else:
                if is_last:
                    self.tell("done")
                    return
                time.sleep(self.pause_s())

    def pause_s(self) -> float:
        return self.rng.uniform(0, 0.2)

    @abstractmethod
    def step(self, *, is_last: bool) -> None:
        """Do one thing; raises its error."""

    def opened(self) -> Cluster:
        return spark_kbatch.open(self.spec.url, store=self.spec.store)


def _words(error: BaseException) -> str:
    cause = error.__cause__
    return f"{type(error).__name__}: {error}" + (f", from {_words(cause)}" if cause else "")


class _Round(NamedTuple):
    """Records that were sent together: the futures of each partition, and the number of the first one."""

    sent: dict[int, list[RecordFuture]]
    first: dict[int, int]


class _Producing(_Process):
    _producer: Producer | None = None
    _cluster: Cluster | None = None

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._next = 0
        self._rounds: deque[_Round] = deque()

    def step(self, *, is_last: bool) -> None:
        if self._producer is None:
            self._cluster = self.opened()
            timeout_ms = self.rng.choice(_REQUEST_TIMEOUTS_MS)
            self._producer = self._cluster.producer(
                request_timeout_ms=timeout_ms, **_PRODUCER_OPTIONS
            )
        self._send(self._producer)
        while len(self._rounds) >= (1 if is_last else _ROUNDS_AT_ONCE):
            self._await(self._rounds.popleft())

    def _send(self, producer: Producer) -> None:
        first, counts = {}, dict[int, int]()
        for partition in self.rng.sample(range(TOPICS[PRODUCED]), self.rng.choice([1, 2, 4])):
            first[partition], counts[partition] = self._next, self.rng.randrange(20, 120)
            self._next += counts[partition]
        places = {place_of(PRODUCED, one): (first[one], counts[one]) for one in first}
        self.tell("sent", records=places)
        sent: dict[int, list[RecordFuture]] = {one: [] for one in first}
        for partition, start in first.items():
            for number in range(start, start + counts[partition]):
                value = f"{self.label}/{number}"
                sent[partition].append(
                    producer.send(PRODUCED, value, partition=partition, timestamp=true_ms())
                )
        self._rounds.append(_Round(sent, first))

    def _await(self, one: _Round) -> None:
        errors = list[Exception]()
        for partition, futures in one.sent.items():
            offsets = list[int | None]()
            for future in futures:
                try:
                    offsets.append(future.result().offset)
                except Exception as error:  # noqa: BLE001  raised below
                    offsets.append(None)
                    errors.append(error)
            place = place_of(PRODUCED, partition)
            self.tell("acknowledged", place=place, first=one.first[partition], offsets=offsets)
        for first in errors[:1]:
            # As users do it: they begin again, with another producer, and other records.
            self._rounds.clear()
            self._producer = None
            if self._cluster is not None:
                self._cluster.close()
            self.label += "+"
            raise first

    def pause_s(self) -> float:
        return self.rng.uniform(0.2, 1.1)


def true_ms() -> int:
    """Return the time, whatever the machine's clock shows."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class _Job(NamedTuple):
    """The rows of a job by task, numbered through all tasks."""

    job_id: str
    tasks: Sequence[Sequence[Row]]

    @property
    def places(self) -> list[str]:
        """The partition of each row."""
        return [place_of(*row) for task in self.tasks for row in task]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each task."""
        first = 0
        for task in self.tasks:
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": [topic for topic, _ in task],
                    "partition": pa.array([partition for _, partition in task], pa.int32()),
                    "value": [f"{self.job_id}/{number}" for number in range(first, first + len(task))],
                    "timestamp": [datetime.datetime.fromtimestamp(true_ms() / 1000, datetime.UTC)] * len(task),
                }
            )  # fmt: skip
            first += len(task)


def _drawn(job_id: str, rng: random.Random) -> _Job:
    rows = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
    tasks = [rng.choices(rows, k=rng.randrange(1, 12)) for _ in range(rng.choice([1, 2, 3]))]
    return _Job(job_id, tasks)


class _Writing(_Process):
    """One that writes jobs."""

    def write(self, job: _Job, **options: str) -> None:
        """Begin, stage and commit a job as Spark does it: each part has its own copy."""
        is_stream = self.spec.kind == "stream"
        begun = self._begun(is_stream=is_stream, **options)
        query_id = self.spec.name if is_stream else None
        staged = [
            pickle.loads(pickle.dumps(begun.stage([rows], application_id=self.label, query_id=query_id)))
            for rows in job.batches()
        ]  # fmt: skip
        if is_stream:
            committing = self._begun(is_stream=True)
            committing.commit_micro_batch(staged, int(job.job_id.rpartition("#")[2]))
        else:
            begun.commit_batch(staged)

    def _begun(self, *, is_stream: bool, **options: str) -> BucketJob:
        given = {"path": self.spec.url, **self.spec.store, **options}
        job = begin_job(parse_write_options(given), is_micro_batch=is_stream)
        copied: BucketJob = pickle.loads(pickle.dumps(job))
        return copied


class _WritingJobs(_Writing):
    _written = 0

    def step(self, *, is_last: bool) -> None:
        del is_last
        self._written += 1
        job = _drawn(f"{self.label}#{self._written}", self.rng)
        self.tell("job", job=job.job_id, places=job.places)
        try:
            self.write(job)
        except OutcomeUnknownError:
            self.tell("unknown", job=job.job_id)
            raise
        except _REFUSED:
            self.tell("refused", job=job.job_id)
            raise
        self.tell("committed", job=job.job_id)


class _Repeating(_Writing):
    """One that repeats what it has begun until it is done, also after a kill.

    Its checkpoint has a file in `offsets` for each number that is begun, and one in `commits` for each that is done.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._checkpoint = spec.folder / CHECKPOINTS / spec.name
        for part in ("offsets", "commits"):
            (self._checkpoint / part).mkdir(parents=True, exist_ok=True)

    def step(self, *, is_last: bool) -> None:
        del is_last
        number = max((int(one.name) for one in self._files("offsets")), default=-1)
        if number < 0 or (self._checkpoint / "commits" / str(number)).exists():
            number += 1
            self._put("offsets", number)
        # The same rows, whoever repeats it.
        job = _drawn(
            f"{self.spec.name}#{number}", random.Random(f"{self.spec.seed}-{self.spec.name}-{number}")
        )  # fmt: skip
        self.tell("job", job=job.job_id, places=job.places)
        options = (
            {"txnAppId": self.spec.name, "txnVersion": str(number)}
            if self.spec.kind == "versions"
            else {}
        )
        self.write(job, **options)
        self.tell("committed", job=job.job_id)
        if self.rng.random() < 0.1:
            return  # as if it had ended before it could note that
        self._put("commits", number)

    def _files(self, part: str) -> list[Path]:
        return [one for one in (self._checkpoint / part).iterdir() if one.name.isdigit()]

    def _put(self, part: str, number: int) -> None:
        aside = self._checkpoint / part / f".{number}"
        aside.write_text(json.dumps({"number": number}))
        aside.rename(aside.with_name(str(number)))


class _Reading(_Process):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._reads = 0
        self._cluster: Cluster | None = None
        self._ends: dict[tuple[str, int], int] = {}

    def step(self, *, is_last: bool) -> None:
        if self._cluster is None or self.rng.random() < 0.2:
            self._cluster = self.opened()
        is_whole = is_last or self.rng.random() < 0.3
        starts = {} if is_whole else dict(self._ends)
        began = time.monotonic()
        start: Any = starts or "earliest"
        table = self._cluster.read([*TOPICS], columns=_READ_COLUMNS, start=start).read_all()
        self._reads += 1
        file = self.spec.folder / READS / f"{self.label}.{self._reads}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        told = {place_of(*one): offset for one, offset in starts.items()}
        self.tell("read", file=file.name, began=began, starts=told)
        rows = zip(*(table[name].to_pylist() for name in _READ_COLUMNS[:3]), strict=True)
        ends = {(topic, partition): offset + 1 for topic, partition, offset in rows}
        every = ((topic, number) for topic, count in TOPICS.items() for number in range(count))
        self._ends = {one: ends.get(one, starts.get(one, 0)) for one in every}

    def pause_s(self) -> float:
        return self.rng.uniform(0.05, 0.4)


class _Maintaining(_Process):
    _maintenance: Maintenance | None = None

    def step(self, *, is_last: bool) -> None:
        del is_last
        if self._maintenance is None or self.rng.random() < 0.3:
            options = parse_store_options(self.spec.store, self.spec.url)
            self._maintenance = Maintenance(self.spec.url, options)
        done = self._maintenance.run(run_extents=self.rng.choice([2, 5, 20, 100]))
        for lost in getattr(done, "damaged", ()):
            self.tell("broke", error=lost)
        self.tell(
            "maintained", merged=done.merged.extents, deleted=done.collected.objects,
            tombstones=done.collected.tombstones, starts=len(done.starts),
        )  # fmt: skip

    def pause_s(self) -> float:
        return self.rng.uniform(0.2, 1.5)


KINDS: dict[str, Callable[[Spec], _Process]] = {
    "producer": _Producing, "jobs": _WritingJobs, "versions": _Repeating, "stream": _Repeating,
    "reader": _Reading, "maintainer": _Maintaining,
}  # fmt: skip


def run(spec: Spec) -> None:
    """Be a process; what a process of a history starts with."""
    os.environ[ADDRESS_VARIABLE] = spec.address
    os.environ["TMPDIR"] = tempfile.tempdir = str(spec.folder / spec.machine)
    _set_clock(spec.clock)
    if spec.fault:
        FAULTS[spec.fault]()
    KINDS[spec.kind](spec).run()


def _set_clock(clock: int | str) -> None:
    """Let all code of this process see another time of day."""
    if not clock:
        return
    stopped_ns = None
    ahead_ns = 0
    if isinstance(clock, int):
        ahead_ns = clock * 1_000_000
    else:
        stopped_ns = time.time_ns()

    def shown_ns() -> int:
        if stopped_ns is not None:
            return stopped_ns
        return time.clock_gettime_ns(time.CLOCK_REALTIME) + ahead_ns

    class AnyDatetime(type):
        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, datetime.datetime)

    class Shown(datetime.datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(shown_ns() / 1e9, tz)

    time.time_ns = shown_ns
    time.time = lambda: shown_ns() / 1e9
    for name, module in [*sys.modules.items()]:
        if name.startswith("spark_kbatch") and vars(module).get("datetime") is datetime.datetime:
            vars(module)["datetime"] = Shown
