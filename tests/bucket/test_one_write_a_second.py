"""A cluster in a store that takes one write a second of each name, as Google's does, and refuses the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import CreateAnswer
from spark_kbatch.errors import ObjectStoreError
from tests.support.bucket_objects import AgingObjects, a_bucket, kind_of, opened_again, values

WRITERS, RECORDS = 3, 12


class OneWriteASecond(AgingObjects):
    """Objects of which each is written once a second at most, by a clock that goes on with each request.

    A create of what was written just now is refused in the same way, whether it is there or not.
    """

    request_ms = 25  # who is refused pauses in real time until forty requests were sent

    def __init__(self) -> None:
        super().__init__()
        self._writes = threading.Lock()  # guards the rest
        self._written_ms: dict[str, int] = {}
        self.refused: list[str] = []  # "put" or "create", and the kind of the object
        self.before_entry: Callable[[], object] | None = (
            None  # called once, before an entry is created
        )

    def create(self, name: str, data: bytes) -> CreateAnswer:
        if kind_of(name) == "ledger" and self.before_entry is not None:
            call, self.before_entry = self.before_entry, None
            call()
        if not self._may_write("create", name):
            return CreateAnswer.UNKNOWN
        return super().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        if not self._may_write("put", name):
            raise ObjectStoreError("put", name, "429: it was written less than a second ago")
        super().put(name, data)

    def _may_write(self, what: str, name: str) -> bool:
        with self._writes:
            self.clock_ms += self.request_ms
            if self.clock_ms - self._written_ms.get(name, 0) < 1000:
                self.refused.append(f"{what} {kind_of(name)}")
                return False
            self._written_ms[name] = self.clock_ms
            return True


@pytest.fixture
def objects() -> OneWriteASecond:
    return OneWriteASecond()


def test_writers_at_once_and_maintenance_lose_and_repeat_nothing(objects: OneWriteASecond) -> None:
    sent = [[f"{writer}-{number}" for number in range(RECORDS)] for writer in range(WRITERS)]
    with a_bucket(objects, "events") as cluster:
        objects.refused.clear()  # those of the test of the store, in which creators meet

        def write(some: list[str]) -> None:
            with (
                opened_again(cluster) as own,
                own.producer(linger_ms=0, maintain_ms=0) as producer,
            ):
                for value in some:
                    producer.send("events", value, partition=0).result()

        with ThreadPoolExecutor(WRITERS) as pool:
            [*pool.map(write, sent)]
        for _ in range(20):  # days, in which all is merged, and what was merged is deleted
            Maintenance(cluster._store.address).run(run_extents=8)
            objects.clock_ms += 86_400_000
        found = [*values(opened_again(cluster))]

    assert sorted(found) == sorted(value for some in sent for value in some)
    for some in sent:
        assert [value for value in found if value in some] == some
    assert len(objects.names_of("data")) < WRITERS * RECORDS
    # Writers that meet at an entry; nothing else is written twice within a second, but by who may leave it.
    assert {*objects.refused} <= {"create ledger", "put hint"}


def test_a_writer_that_is_refused_at_anothers_entry_takes_the_next(
    objects: OneWriteASecond,
) -> None:
    objects.request_ms = 200  # one who is refused asks some five times, with real pauses between
    options = {"linger_ms": 0, "maintain_ms": 0}
    with (
        a_bucket(objects, "events") as cluster,
        opened_again(cluster) as another,
        another.producer(**options) as theirs,
        cluster.producer(**options) as ours,
    ):
        objects.before_entry = lambda: theirs.send("events", "theirs").result()
        ours.send("events", "ours").result()
        assert [*values(cluster)] == ["theirs", "ours"]
    assert "create ledger" in objects.refused
