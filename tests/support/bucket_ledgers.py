"""Ledgers over a store in memory, with a clock that tests set and answers that they choose."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from spark_kbatch.bucket.ledger import Ledger, Timing
from spark_kbatch.bucket.objects import CreateAnswer, Folder, MemoryObjects, ObjectInfo
from spark_kbatch.bucket.place import create_cluster
from spark_kbatch.errors import ObjectAccessDeniedError, ObjectStoreError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Content, Entry, LedgerCommit, TopicCreation
from spark_kbatch.ledger.state import LedgerState
from tests.support.bucket_contents import CLUSTER_ID, TOPIC_ID, append_of

LIMITS = {"staging.timeout.ms": 1000}
ROUND_TRIP_MS = 20


class SetTime:
    """A clock that goes on where someone sleeps, and by a round trip with each request."""

    def __init__(self) -> None:
        self.now_ms: float = 1_700_000_000_000
        self.slept: list[float] = []

    def sleep(self, ms: float) -> None:
        self.slept.append(ms)
        self.now_ms += ms

    def timing(self, seed: int = 1) -> Timing:
        def now() -> int:
            return int(self.now_ms)

        return Timing(now, now, self.sleep, random.Random(seed))


Answer = Callable[["ScriptedObjects", str, bytes], CreateAnswer]


class ScriptedObjects(MemoryObjects):
    """Objects in memory whose next answers to creates tests choose, and that count requests."""

    def __init__(self, time: SetTime | None = None) -> None:
        self.time = time or SetTime()
        super().__init__(lambda: int(self.time.now_ms))
        self.answers: list[Answer] = []  # of the next creates in the ledger; then as they are
        self.created: list[tuple[str, bytes]] = []  # each create in the ledger that was asked for
        self.failing: set[str] = set()  # requests that fail
        self.requests: list[tuple[str, str]] = []

    def _request(self, request: str, name: str) -> None:
        self.requests.append((request, name))
        self.time.now_ms += ROUND_TRIP_MS
        if request in self.failing:
            raise ObjectStoreError(request, name, "as the test says")

    def get(self, name: str) -> bytes | None:
        self._request("get", name)
        return super().get(name)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        found = [self.get(name) for name in names]
        self.time.now_ms -= ROUND_TRIP_MS * max(len(names) - 1, 0)  # all at once
        return found

    def create(self, name: str, data: bytes) -> CreateAnswer:
        self._request("create", name)
        if names.LEDGER in name:
            self.created.append((name, data))
            if self.answers:
                return self.answers.pop(0)(self, name, data)
        return super().create(name, data)

    def plainly(self, name: str, data: bytes) -> CreateAnswer:
        """Create an object, whatever the script says."""
        return MemoryObjects.create(self, name, data)

    def put(self, name: str, data: bytes) -> None:
        self._request("put", name)
        super().put(name, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self._request("list", prefix)
        return super().list(prefix, start_after)

    def delete(self, names: Iterable[str]) -> None:
        super().delete(names)


# Answers.


def landed_without_an_answer(objects: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
    objects.plainly(name, data)
    return CreateAnswer.UNKNOWN


def lost(objects: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
    return CreateAnswer.UNKNOWN


def conflict(objects: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
    return CreateAnswer.EXISTS


def denied(objects: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
    raise ObjectAccessDeniedError("create", name, "as the test says")


def rival(objects: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
    """Let another process be first, in no time."""
    script, objects.answers = objects.answers, []
    now_ms = objects.time.now_ms
    other = Ledger(objects, CLUSTER_ID, objects.time.timing(seed=len(objects.created)))
    other.commit(commit_of(1))
    objects.answers, objects.time.now_ms = script, now_ms
    return objects.plainly(name, data)


# Ledgers.


def a_place(time: SetTime | None = None) -> ScriptedObjects:
    """Return objects with a cluster, whose topic has two partitions."""
    objects = ScriptedObjects(time)
    create_cluster(objects, CLUSTER_ID, "", objects.time.sleep)
    ledger = a_ledger(objects)
    ledger.start(LIMITS)
    ledger.commit(lambda _: TopicCreation(TOPIC_ID, "events", (0, 0)))
    return objects


def a_ledger(objects: ScriptedObjects, *, every: int = 64, seed: int = 1) -> Ledger:
    return Ledger(objects, CLUSTER_ID, objects.time.timing(seed), checkpoint_every=every)


def cluster_of(objects: ScriptedObjects) -> Folder:
    return Folder(objects, f"{CLUSTER_ID}/")


def commit_of(span: int, *, partition: int = 0) -> Callable[[LedgerState], Content]:
    """Return what proposes a commit to a partition, from where it ends."""

    def propose(state: LedgerState) -> LedgerCommit:
        base = state.partition(TOPIC_ID, partition).next_offset
        return LedgerCommit(
            {TOPIC_ID: (append_of(partition, base, span=span, began=state.number),)}
        )

    return propose


def grow(ledger: Ledger, count: int) -> list[Entry]:
    """Commit so many times, in turn to both partitions."""
    found = [ledger.commit(commit_of(1, partition=number % 2)) for number in range(count)]
    return [entry for entry in found if entry is not None]
