"""Objects of a bucket that somebody wrote, with right sums: an error of the package says what is wrong with them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.bucket import staging
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.place import read_cluster
from spark_kbatch.bucket.recovery import Recovery
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import KBatchError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checksummed_json import sum_of
from spark_kbatch.ledger.entries import CommittedGroupOffset, LedgerCommit
from tests.fuzz.test_clusters import EVIL
from tests.support.bucket_jobs import begun, rows, staged
from tests.support.bucket_objects import a_bucket, a_url
from tests.support.fuzz_rounds import ROUNDS, for_each_round

COMMANDS = (
    ["topics", "-v"],
    ["verify"],
    ["repair", "--dry-run"],
    ["gc"],
    ["describe"],
    ["history", "--all"],
    ["history"],
    ["consume", "events"],
    ["repair"],
    ["recover", "--yes"],
)
OFTEN = 20  # forgeries in a round, of which one is used, and the others are looked at
SELDOM = 8  # rounds in which all commands are tried


def _bucket() -> MemoryObjects:
    """A bucket with a checkpoint, in which there is something of everything, and entries after it."""
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events", "others", partitions=2)
    url, topic_id = str(cluster._store.address), cluster.topic("events").topic_id
    store = cluster._store
    assert isinstance(store, BucketStore)
    group = {"billing": (CommittedGroupOffset(topic_id, 0, 1, "mine"),)}
    with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
        for number in range(7):
            producer.send("events", f"{number}", partition=number % 2).result()
    store.ledger.commit(lambda _: LedgerCommit(groups=group))
    job = begun(url, is_micro_batch=True)
    begun(url, is_micro_batch=True).commit_micro_batch(staged(job, ["a"], ["b"], query_id="q"), 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staging, "INDEX_BYTES_MIN", 1)
        wide = begun(url)
        wide.commit_batch([wide.stage(rows(["v"] * 2, partition=[0, 1]))])
    with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
        for number in range(6):
            producer.send("others", f"{number}", partition=number % 2).result()
    return objects


class Forger:
    """The bucket, of which one object is changed at a time, and all sums are made right again."""

    def __init__(self) -> None:
        self.objects = _bucket()
        found = read_cluster(self.objects)
        assert found is not None
        self._folder = f"{found}/"
        self._all = {one.name: self.objects.get(one.name) or b"" for one in self.objects.list("")}
        checkpoints = self._folder + names.CHECKPOINTS
        (self._root,) = [name for name in self._all if name.startswith(checkpoints)]
        self.kinds: dict[str, list[str]] = {}  # names of objects that are sealed, by kind
        for name in self._all:
            kind = name.removeprefix(self._folder).partition("/")[0]
            if kind == names.PARTS[:-1]:
                kind = name.rpartition("/")[2].partition("-")[0]
            if "/index-" in name:
                kind = "index"
            if kind != "data":
                self.kinds.setdefault(kind, []).append(name)

    def forged(self, rng: random.Random) -> MemoryObjects:
        """Return the objects with a change, or two."""
        content = dict(self._all)
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(self.kinds[rng.choice([*self.kinds])])
            lines = content[name].splitlines(keepends=True)
            values = json.loads(lines[0])
            _change(rng, values)
            forged = checksummed_json.encode(values) + b"".join(lines[2:])
            content[name] = forged
            self._fit(content, name, lines[0] + lines[1], forged)
        objects = MemoryObjects()
        for name, data in content.items():
            objects.put(name, data)
        return objects

    def _fit(self, content: dict[str, bytes], name: str, before: bytes, after: bytes) -> None:
        """Let whatever refers to an object have its new size and sum."""
        if "/index-" in name:
            after = after[: len(checksummed_json.encode(json.loads(after.splitlines()[0])))]
            old, new = (f'{len(one)},"{sum_of(one)}"' for one in (before, after))
        else:
            old, new = (f'{len(one)},"{sum_of(one)}"' for one in (before, content[name]))
        for other, data in content.items():
            if other != name and old.encode() in data and b"\n" in data:
                lines = data.replace(old.encode(), new.encode()).splitlines(keepends=True)
                fitted = b"".join(line + sum_of(line).encode() + b"\n" for line in lines[::2])
                content[other] = fitted
                self._fit(content, other, data, fitted)


def _paths(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to all values within JSON."""
    if path:
        yield path
    inner = (
        values
        if isinstance(values, dict)
        else dict(enumerate(values))
        if isinstance(values, list)
        else {}
    )
    for key, value in inner.items():
        yield from _paths(value, (*path, key))


def _change(rng: random.Random, values: Any) -> None:
    *way, key = rng.choice([*_paths(values)])
    inner = values
    for one in way:
        inner = inner[one]
    match rng.randrange(6):
        case 0 if isinstance(inner, dict):
            del inner[key]
        case 1 if isinstance(inner, list):
            inner.insert(key, copy.deepcopy(inner[key]))
        case 2 if isinstance(inner, list):
            del inner[key]
        case 3 if type(inner[key]) is int:
            inner[key] += rng.choice((-1, 1, 7, 2**31, 2**62, -(2**63)))
        case 4:
            others = [*inner] if isinstance(inner, dict) else range(len(inner))
            inner[key] = copy.deepcopy(inner[rng.choice(others)])
        case _:
            inner[key] = copy.deepcopy(rng.choice(EVIL))


def _ensure_of_the_package(what: Callable[[], object]) -> None:
    try:
        what()
    except KBatchError:
        pass


def _look(objects: MemoryObjects) -> None:
    """Open the cluster, list what there is, and see what could be recovered."""
    url = a_url(objects)

    def look() -> None:
        cluster = Cluster.over(BucketStore(url))
        for topic in cluster.topic_names():
            cluster.describe([topic])

    _ensure_of_the_package(look)
    _ensure_of_the_package(lambda: Recovery(url)._renewed("ab" * 16))


def _use(objects: MemoryObjects) -> None:
    """Read all, and write something."""
    url = a_url(objects)

    def use() -> None:
        cluster = Cluster.over(BucketStore(url))
        for topic in cluster.topic_names():
            _ensure_of_the_package(lambda topic=topic: cluster.describe([topic]))
            _ensure_of_the_package(lambda topic=topic: cluster.read(topic).read_all())

        def send() -> None:
            with cluster.producer(
                linger_ms=0, maintain_ms=0, request_timeout_ms=500, delivery_timeout_ms=500
            ) as producer:
                producer.send("events", "new").result()

        _ensure_of_the_package(send)
        for report in cluster.verify():
            str(report)

    _ensure_of_the_package(use)


def _command(objects: MemoryObjects, words: list[str]) -> None:
    result = CliRunner().invoke(cli, [words[0], a_url(objects), *words[1:]], prog_name="kbatch")
    error = result.exception
    if error is not None and not isinstance(error, (KBatchError, SystemExit)):
        raise error


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before an object that was cut short is asked for again: no one writes to it meanwhile."""
    monkeypatch.setattr("spark_kbatch.bucket.objects._PAUSE_MS", 0)


@pytest.fixture(scope="module")
def forger() -> Forger:
    return Forger()


def test_a_forged_object_ends_in_an_error_of_the_package(forger: Forger) -> None:
    assert {*forger.kinds} >= {"cluster", "ledger", "checkpoints", "heads", "extents", "index"}
    count = 0

    def one(rng: random.Random) -> None:
        nonlocal count
        for _ in range(OFTEN):
            objects = forger.forged(rng)
            _look(objects)
        _use(objects)
        count += 1
        if count % SELDOM == 0:
            for words in COMMANDS:
                _command(objects, words)

    for_each_round("buckets", one, rounds=ROUNDS // 6)
    _use(forger.objects)
