"""Every way to read a bucket has the same rows before a merge, during it, and after it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.cli.main import cli
from tests.conftest import few
from tests.support import builders
from tests.support.bucket_jobs import commit_batch
from tests.support.bucket_objects import AgingObjects, a_bucket, a_url, opened_again
from tests.support.long_use import DAY_MS
from tests.support.stream_queries import Query

RECORDS = 9  # in each of two partitions
TIME_MS = 1_700_000_000_000


class WatchedObjects(AgingObjects):
    """Objects that let something happen once, before one of the requests for them."""

    def __init__(self) -> None:
        super().__init__()
        self.until, self.happens = -1, lambda: None  # requests until then; -1 for never

    def _count(self, what: str, name: str) -> None:
        self.until -= 1
        if self.until == -1:
            self.happens()
        super()._count(what, name)


@pytest.fixture
def objects() -> WatchedObjects:
    return WatchedObjects()


@pytest.fixture
def cluster(objects: WatchedObjects) -> Iterator[Cluster]:
    """Return a bucket with small commits, some of several partitions, and one with an index."""
    with a_bucket(objects, "events", partitions=2) as cluster:
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for at in range(RECORDS):
                for partition in range(2):
                    producer.send(
                        "events",
                        f"{partition}-{at}",
                        partition=partition,
                        timestamp=TIME_MS + 1000 * at,
                    ).result()
        commit_batch(url_of(cluster), [[f"job {at}" for at in range(5)], ["more"]])
        cluster.delete_records({("events", 1): 2})
        yield cluster


def url_of(cluster: Cluster) -> str:
    return str(cluster._store.address)


# Ways to read, each in a process of its own.


def all_rows(cluster: Cluster) -> object:
    return builders.contents(opened_again(cluster))


def between_offsets(cluster: Cluster) -> object:
    return builders.read_records(opened_again(cluster), "events", start=3, end=8)


def by_time(cluster: Cluster) -> object:
    start = datetime.datetime.fromtimestamp(TIME_MS / 1000 + 7, datetime.UTC)
    times = {("events", 0): TIME_MS + 6500, ("events", 1): TIME_MS}
    other = opened_again(cluster)
    return builders.read_records(other, "events", start=start), other.list_offsets(times)


def last_rows(cluster: Cluster) -> object:
    table = opened_again(cluster).read("events", last=7).read_all()
    return sorted(table.select(["partition", "offset", "value"]).to_pylist(), key=str)


def edges(cluster: Cluster) -> object:
    return [row.offsets for row in opened_again(cluster).describe(["events"])]


def by_a_stream(cluster: Cluster) -> object:
    other = opened_again(cluster)
    query = Query(other._store, subscribe="events", maxOffsetsPerTrigger=11)
    return [
        (
            name,
            builders.read_records(
                other, "events", partitions=[int(name[-1])], start=start, end=end
            ),
        )
        for batch in query.batches()
        for name, (start, end) in sorted(batch.items())
    ]


def by_a_command(cluster: Cluster) -> object:
    words = ["consume", url_of(cluster), "events", "--json"]
    result = CliRunner().invoke(cli, words, prog_name="kbatch")
    assert result.exit_code == 0, result.exception
    return sorted(result.stdout.splitlines())


def by_a_mirror(cluster: Cluster) -> object:
    url = a_url(MemoryObjects())
    spark_kbatch.mirror(url_of(cluster), url, "events", keep_offsets=True)
    with spark_kbatch.open(url) as copied:
        return builders.contents(copied)


WAYS = {
    way.__name__: way
    for way in (
        all_rows, between_offsets, by_time, last_rows, edges, by_a_stream, by_a_command, by_a_mirror,
    )
}  # fmt: skip
Way = Callable[[Cluster], object]


def merge(cluster: Cluster, *, partitions: int = 2) -> int:
    """Merge runs of three extents; return how many segments were written."""
    maintenance = Maintenance(url_of(cluster))
    runs = maintenance.runs(run_extents=3)
    return maintenance.merge([one for one in runs if one.partition < partitions]).segments


def collect(cluster: Cluster, objects: AgingObjects) -> None:
    """Delete what was merged, as if more than a week had gone by."""
    other = opened_again(cluster)
    for _ in range(20):  # a checkpoint, without which nothing is deleted
        other.alter_topic("events", {"retention.bytes": -1})
    objects.clock_ms += 8 * DAY_MS
    assert Maintenance(url_of(cluster)).collect().objects


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_rows_are_the_same_before_and_after_each_merge(
    cluster: Cluster, objects: WatchedObjects, way: Way
) -> None:
    before = way(cluster)
    assert before

    assert merge(cluster, partitions=1) == 1
    assert way(cluster) == before
    assert merge(cluster) >= 1
    assert way(cluster) == before
    collect(cluster, objects)
    assert way(cluster) == before


@pytest.mark.parametrize("way", few([*WAYS.values()], 3), ids=WAYS)
def test_rows_are_the_same_whenever_a_merge_happens_meanwhile(
    cluster: Cluster, objects: WatchedObjects, way: Way
) -> None:
    before, start = way(cluster), objects.copied()

    def happens() -> None:
        assert merge(cluster)

    objects.happens = happens
    for request in itertools.count():
        objects.restore(start)
        objects.until = request
        found = way(cluster)
        assert found == before, request
        if objects.until >= 0:
            break
    assert request > 1


@pytest.mark.parametrize("way", [all_rows, by_a_stream], ids=["all_rows", "by_a_stream"])
def test_rows_are_the_same_whenever_what_was_merged_is_deleted(
    cluster: Cluster, objects: WatchedObjects, way: Way
) -> None:
    before, start = way(cluster), objects.copied()

    def happens() -> None:
        assert merge(cluster)
        collect(cluster, objects)

    objects.happens = happens
    for request in itertools.count():
        objects.restore(start)
        objects.until = request
        assert way(cluster) == before, request
        if objects.until >= 0:
            break
