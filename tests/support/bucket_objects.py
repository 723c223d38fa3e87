"""Objects in memory that count what is asked of them, fail as they are told to, and are at a URL."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from spark_kbatch import Cluster
from spark_kbatch.bucket.objects import CreateAnswer, MemoryObjects, ObjectInfo
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.bucket.urls import place_in_memory

_numbers = itertools.count()
_PAGE = 1000  # names in the answer to one request for a list


class CountingObjects(MemoryObjects):
    """Objects in memory; `asked` counts requests by what they do and the first part of the name."""

    def __init__(self) -> None:
        super().__init__()
        self._counted = threading.Lock()  # guards asked
        self.asked: Counter[str] = Counter()

    def get(self, name: str) -> bytes | None:
        self._count("get", name)
        return super().get(name)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.get(name) for name in names]

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        self._count("get", name)
        data = super().get(name)
        return None if data is None else data[position : position + size_in_bytes]

    def create(self, name: str, data: bytes) -> CreateAnswer:
        self._count("create", name)
        return super().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._count("put", name)
        super().put(name, data)

    def names_of(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind, such as "data", in order."""
        return [one.name for one in self.list("") if kind_of(one.name) == kind]

    def taken(self) -> dict[str, int]:
        """Return what was asked since the last call."""
        with self._counted:
            asked, self.asked = self.asked, Counter()
        return dict(asked)

    def _count(self, what: str, name: str) -> None:
        with self._counted:
            self.asked[f"{what} {kind_of(name)}"] += 1


class AllCounted(CountingObjects):
    """Objects in memory that count lists too, by their pages."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        found = [*super().list(prefix, start_after)]
        for _ in range(len(found) // _PAGE + 1):
            self._count("list", prefix)
        return iter(found)


class AgingObjects(CountingObjects):
    """Objects of a store whose clock is set by hand; the one who asks may die at a request."""

    def __init__(self) -> None:
        self.clock_ms = 1_700_000_000_000
        self.left = -1  # requests until then; -1 for never
        super().__init__()
        self._now_ms = lambda: self.clock_ms

    def content(self, name: str) -> bytes:
        """Return what an object has, without a request."""
        return self._objects[name][0]

    def copied(self) -> tuple[dict[str, tuple[bytes, int]], list[str], int]:
        """Return all that there is, for `restore`."""
        return dict(self._objects), [*self._names], self.clock_ms

    def restore(self, copied: tuple[dict[str, tuple[bytes, int]], list[str], int]) -> None:
        """Let all be as it was when it was copied."""
        self._objects, self._names, self.clock_ms = dict(copied[0]), [*copied[1]], copied[2]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self._count("list", prefix)
        yield from super().list(prefix, start_after)

    def delete(self, names: Iterable[str]) -> None:
        self._count("delete", "")
        super().delete(names)

    def _count(self, what: str, name: str) -> None:
        self.left -= 1
        if self.left == -1:
            raise Died
        super()._count(what, name)


class Died(Exception):  # noqa: N818  no error of ours
    """The end of a process, in the middle of its work."""


def kind_of(name: str) -> str:
    """Return the kind of an object: the folder below the cluster's, or the name of one that has none."""
    parts = PurePosixPath(name).parts or ("",)
    return parts[1] if len(parts) > 1 else parts[0]


def a_url(objects: MemoryObjects | None = None) -> str:
    """Return the URL of a new place in memory, at which these objects are."""
    url = f"memory+bucket://place-{next(_numbers)}"
    place_in_memory(url, objects or MemoryObjects())
    return url


def a_bucket(objects: MemoryObjects | None = None, *topics: str, partitions: int = 1) -> Cluster:
    """Return a new cluster in these objects, with topics."""
    cluster = Cluster.over(BucketStore(a_url(objects), create=True))
    for topic in topics:
        cluster.create_topic(topic, partitions)
    return cluster


def opened_again(cluster: Cluster) -> Cluster:
    """Return another cluster object at the same URL, as another process would have it."""
    return Cluster.over(BucketStore(cluster._store.address))


def ledger_entries(objects: CountingObjects) -> int:
    """Return how many entries the ledger has."""
    return len(objects.names_of("ledger"))


def values(cluster: Cluster, topic: str = "events", **bounds: object) -> Iterator[str]:
    """Yield the values of a topic, as text."""
    table = cluster.read(topic, text=True, columns=["value"], **bounds).read_all()  # type: ignore[arg-type]
    yield from table.column("value").to_pylist()
