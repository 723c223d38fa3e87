"""What each look at a place costs: files, requests, bytes. The table of docs/ui.md has the bounds."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.routing import Route

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket import staging
from spark_kbatch.bucket.objects import MemoryObjects, ObjectInfo
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.files import Files
from spark_kbatch.web import site
from spark_kbatch.web.app import application
from spark_kbatch.web.history import Samples
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from spark_kbatch.wire.protocol import ApiKey
from tests.conftest import REPOSITORY
from tests.support import builders
from tests.support.bucket_jobs import commit_micro_batch
from tests.support.bucket_objects import AllCounted, a_bucket, opened_again
from tests.support.pages import Visitor, shown
from tests.web.test_commits import wrote

TOPICS, PARTITIONS, COMMITS = 20, 4, 200


class Cost(NamedTuple):
    """What looks have taken from a place."""

    requests: int  # to a store or to brokers, or files that were opened
    size_in_bytes: int  # that came; 0 of brokers

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.requests - other.requests, self.size_in_bytes - other.size_in_bytes)


# An address of each page, by its name in the table. A new page needs a row here, and one there.
VIEWS = {
    "topics": "/",
    "a topic": "/topics/events",
    "disks, a bucket": "/storage",
    "garbage": "/storage?garbage=1",
    "the newest records": "/topics/events/records",
    "records of a key": "/topics/events/records?key=key-1",
    "one record": "/topics/events/records/0/0",
    "groups": "/groups",
    "a group": "/groups/group?id=app",
    "commits": "/commits",
    "a commit": "/commits/{commit}",
    "`/metrics`": "/metrics",
    "`/ready`": "/ready",
}
SAMPLE = "a sample, each 15 or 60 s"  # in the background
NO_LOOKS = {"/health", "/style.css"}  # at the place
PLACES = ("folder", "bucket", "bucket, again", "brokers")  # the columns of the table


class CountedObjects(AllCounted):
    """Objects in memory that count all requests and the bytes that come, and name the prefixes of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost(0, 0)
        self.listed = list[str]()
        self.address = ""

    def get(self, name: str) -> bytes | None:
        data = super().get(name)
        self._add(data)
        return data

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        data = super().get_range(name, position, size_in_bytes)
        self._add(data)
        return data

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.listed.append(prefix)
        self._add(None)
        return MemoryObjects.list(self, prefix, start_after)

    def _add(self, data: bytes | None) -> None:
        with self._counted:
            self.cost = Cost(self.cost.requests + 1, self.cost.size_in_bytes + len(data or b""))


class CountedFiles(Files):
    """Files that count how often one is opened, and the bytes that are read."""

    def __init__(self) -> None:
        self.opens = self.size = 0

    def opened(self, path: Path, *, write: bool = False) -> contextlib.AbstractContextManager[int]:
        self.opens += 1
        return super().opened(path, write=write)

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        data = super().read(path, position, size)
        self.size += len(data)
        return data

    def read_each(self, paths: Iterator[str], size: int) -> Iterator[bytes]:  # type: ignore[override]
        for data in super().read_each(paths, size):
            self.opens, self.size = self.opens + 1, self.size + len(data)
            yield data

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        count = super().pread_into(descriptor, position, buffer)
        self.size += count
        return count

    @property
    def cost(self) -> Cost:
        return Cost(self.opens, self.size)


class Place(NamedTuple):
    """A place, and what has been asked of it so far."""

    cluster: Cluster
    asked: Callable[[], Cost]


def _names() -> list[str]:
    return ["events", *(f"topic-{number:02}" for number in range(TOPICS - 1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Place:
    files = CountedFiles()
    where = tmp_path_factory.mktemp("costs")
    made = builders.a_cluster(where, topics=dict.fromkeys(_names(), PARTITIONS), files=files)
    for name in _names():
        builders.append_records(made, {(name, 0): builders.batch(n=100)})
    for number in range(20):
        wrote(made, {0: 1}, number=number)
    made.alter_group_offsets("app", {("events", 0): 50})
    return Place(made, lambda: files.cost)


@pytest.fixture(scope="module")
def objects() -> CountedObjects:
    objects = CountedObjects()
    with a_bucket(objects, *_names(), partitions=PARTITIONS) as made:
        for number in range(COMMITS):
            commit_micro_batch(made.address, number, ["a value"])
        made.alter_group_offsets("app", {("events", 0): 50})
        objects.address = made.address
    return objects


@pytest.fixture
def bucket(objects: CountedObjects) -> Iterator[Place]:
    with Cluster.over(BucketStore(objects.address)) as cluster:
        yield Place(cluster, lambda: objects.cost)


@pytest.fixture(scope="module")
def brokers(folder: Place) -> Iterator[Place]:
    asked = list[str]()
    with folder.cluster.serve() as server:
        for key in server._dispatch.supported():
            name = ApiKey(key).name
            server._dispatch.intercept(key, lambda _request, name=name: asked.append(name))  # type: ignore[misc]
        with spark_kbatch.connect(server.bootstrap_servers) as cluster:
            cluster.topic_names()  # connects
            yield Place(cluster, lambda: Cost(len(asked), 0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what lets a minute pass, after which nothing that was found is shown again."""
    now_s = [1000.0]
    monkeypatch.setattr(site, "monotonic_s", lambda: now_s[0])

    def pass_a_minute() -> None:
        now_s[0] += 60

    return pass_a_minute


@pytest.fixture(autouse=True)
def _no_samples_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Samples, "start", lambda _samples: None)


def cost_of(place: Place, view: str, pages: WebServer, visitor: Visitor) -> Cost:
    """Return what one look takes, or one sample."""
    look: Callable[[], object] = pages._samples.sample
    if view != SAMPLE:
        address = VIEWS[view]
        if "{commit}" in address:
            newest = next(place.cluster.history()).number
            address = address.replace("{commit}", str(newest))
        look = functools.partial(visitor.get, address)
    before = place.asked()
    look()
    return place.asked() - before


def bounds() -> dict[str, dict[str, Cost | None]]:
    """Return the table of docs/ui.md: by page, the bound in each place; None where there is no such page."""
    text = (REPOSITORY / "docs" / "ui.md").read_text()
    rows = (
        text.partition("<!-- costs of pages -->")[2]
        .partition("<!-- end of costs -->")[0]
        .split("\n")
    )
    cells = [[cell.strip() for cell in row[1:-1].split("|")] for row in rows if row][2:]
    assert all(len(one) == 1 + len(PLACES) for one in cells), cells
    return {name: dict(zip(PLACES, map(bound_in, of), strict=True)) for name, *of in cells}


def bound_in(cell: str) -> Cost | None:
    numbers = [int(one.replace(",", "")) for one in re.findall(r"[0-9][0-9,]*", cell)]
    if not numbers:
        assert cell == "", cell
        return None
    requests, *size = numbers
    return Cost(requests, size[0] * 1024 if size else 0)


BOUNDS = bounds()


def ensure_close(found: Cost, bound: Cost | None) -> None:
    """Check that a look costs at most what the table says, and not much less, or that would say nothing."""
    assert bound is not None
    assert found.requests <= bound.requests <= 1.25 * found.requests + 2, (found, bound)
    assert found.size_in_bytes <= bound.size_in_bytes <= 1.5 * found.size_in_bytes + 4096, (
        found,
        bound,
    )


def test_each_page_has_a_row() -> None:
    app = application(Site(spark_kbatch.open("memory://rows", create=True)))
    paths = [address.partition("?")[0] for address in VIEWS.values()]
    without = [
        one.path
        for one in app.routes
        if isinstance(one, Route)
        and one.path not in NO_LOOKS
        and not any(one.path_regex.match(path) for path in paths)
    ]

    assert without == []
    assert all(isinstance(one, Route) for one in app.routes)
    assert [*BOUNDS] == [*VIEWS, SAMPLE]


@pytest.mark.parametrize("view", [one for one, of in BOUNDS.items() if of["folder"]])
def test_a_look_at_a_folder_opens_as_many_files_as_the_table_says(folder: Place, view: str) -> None:
    with shown(folder.cluster) as pages:
        found = cost_of(folder, view, pages, Visitor(pages))

    ensure_close(found, BOUNDS[view]["folder"])


@pytest.mark.parametrize("view", [one for one, of in BOUNDS.items() if of["bucket"]])
def test_a_look_at_a_bucket_asks_for_as_much_as_the_table_says(
    bucket: Place, objects: CountedObjects, clock: Callable[[], None], view: str
) -> None:
    objects.listed.clear()
    with shown(bucket.cluster) as pages:
        visitor = Visitor(pages)
        first = cost_of(bucket, view, pages, visitor)
        shared = cost_of(bucket, view, pages, visitor)
        clock()
        again = cost_of(bucket, view, pages, visitor)

    ensure_close(first, BOUNDS[view]["bucket"])
    ensure_close(again, BOUNDS[view]["bucket, again"])
    assert shared.requests < again.requests  # a moment later no one asks whether there is news
    # A list of data takes a request for each thousand of all objects that there are.
    assert {one.partition("/")[2] for one in objects.listed} <= {"ledger/", "checkpoints/"}


@pytest.mark.parametrize("view", [one for one, of in BOUNDS.items() if of["brokers"]])
def test_a_look_at_a_real_cluster_asks_as_often_as_the_table_says(
    brokers: Place, view: str
) -> None:
    with shown(brokers.cluster) as pages:
        found = cost_of(brokers, view, pages, Visitor(pages))

    ensure_close(found, BOUNDS[view]["brokers"])


def test_pages_that_a_place_does_not_have_are_in_no_cell(
    folder: Place, bucket: Place, brokers: Place
) -> None:
    for name, place in {"folder": folder, "bucket": bucket, "brokers": brokers}.items():
        with shown(place.cluster) as pages:
            visitor = Visitor(pages)
            for view, address in VIEWS.items():
                if BOUNDS[view][name] is None and "?" not in address:
                    assert visitor.ask(address).status in (400, 404), (name, view)


def test_sizes_that_take_many_requests_are_told_some_looks_later(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], None]
) -> None:
    monkeypatch.setattr(staging, "INDEX_BYTES_MIN", 0)  # so that each commit has an index object
    objects = CountedObjects()
    with a_bucket(objects, "events") as made:
        for number in range(50):
            commit_micro_batch(made.address, number, ["a value"])
    with opened_again(made) as cluster, shown(cluster) as pages:
        visitor = Visitor(pages)
        place = Place(cluster, lambda: objects.cost)
        costs, told = list[int](), list[bool]()
        for _ in range(4):
            costs.append(cost_of(place, "topics", pages, visitor).requests)
            told.append("not told" not in visitor.get("/").text)
            clock()
    assert told == [False, False, True, True]
    assert max(costs) <= 21
    assert costs[-1] == 1


def test_a_search_through_small_objects_ends_as_each_takes_a_request(
    bucket: Place, objects: CountedObjects
) -> None:
    asked = objects.cost.requests
    found = bucket.cluster.peek("events", where="key = 'no such key'", max_bytes=1 << 20)

    assert found.has_older
    assert objects.cost.requests - asked < 120  # of 200
    assert bucket.cluster.peek("events", where="key = 'no such key'").has_older is False
