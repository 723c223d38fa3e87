"""A batch read of many partitions asks for each small object once, and has the rows that reads of each one have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from spark_kbatch import Cluster
from spark_kbatch.bucket import gathering, merging
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.consumer import splits
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import CorruptRecordError, DataLossError, ObjectStoreError
from spark_kbatch.model import Piece
from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import parse_read_options
from tests.support.bucket_jobs import begun, rows
from tests.support.bucket_objects import CountingObjects, a_bucket, opened_again

PARTITIONS, JOBS = 6, 40
Found = dict[
    int, list[tuple[int, str]]
]  # offsets and values of each partition, in the order of rows


class FailingObjects(CountingObjects):
    """Objects of which the next so many requests for data fail."""

    failures = 0

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        if self.failures > 0 and name.partition("/")[2].startswith("data/"):
            self.failures -= 1
            raise ObjectStoreError("get", name, "for a test")
        return super().get_range(name, position, size_in_bytes)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut what has few objects, into tasks of a few."""
    monkeypatch.setattr(gathering, "_EXTENTS_MIN", 2 * PARTITIONS)
    monkeypatch.setattr(gathering, "_OBJECTS_OF_TASK_MIN", 10)
    monkeypatch.setattr(gathering, "_RANKS_AT_ONCE", 7)
    monkeypatch.setattr(gathering, "HELD_BYTES", 20_000)


@pytest.fixture
def objects() -> FailingObjects:
    return FailingObjects()


@pytest.fixture
def cluster(objects: FailingObjects) -> Iterator[Cluster]:
    with a_bucket(objects, "events", partitions=PARTITIONS) as cluster:
        for number in range(JOBS):
            write(cluster, number)
        yield cluster


def write(cluster: Cluster, number: int, *, count: int = 2, tasks: int = 1, text: str = "") -> None:
    """Have a job write some rows to each partition; the seventh partition in a row gets none from some."""
    url = cluster._store.address
    job = begun(url)
    messages = []
    for task in range(tasks):
        partitions = [one for one in range(PARTITIONS) if one == 0 or number % 4] * count
        values = [f"{number}-{task}-{at}{text}" for at in range(len(partitions))]
        messages.append(job.stage(rows(values, partition=partitions), application_id="app"))
    begun(url).commit_batch(messages)


class Load:
    """A batch read, as Spark has it: planned in one process, read in another."""

    def __init__(self, cluster: Cluster, **options: object) -> None:
        given = {"path": cluster._store.address, "subscribe": "events"}
        given |= {name.replace("_", "."): str(value) for name, value in options.items()}
        self._options = parse_read_options(given)
        self.tasks = open_topics(self._options).plan(self._options)

    def read(self) -> Found:
        """Run the tasks in order, each in a process of its own."""
        found: Found = {}
        for number, task in enumerate(self.tasks):
            for partition, offset, value in self.rows(task, f"action-{id(self)}-{number}"):
                found.setdefault(partition, []).append((offset, value))
        return found

    def rows(self, task: Sequence[Piece], action: str) -> Iterator[tuple[int, int, str]]:
        columns = ["partition", "offset", "value"]
        reader = TopicReader(open_topics(self._options).source)
        for batch in reader.read_task(task, columns, self._options, action):
            for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
                yield partition, offset, value.decode()


def in_python(cluster: Cluster, **bounds: object) -> Found:
    """Read partition by partition."""
    found: Found = {}
    columns = ["partition", "offset", "value"]
    for batch in opened_again(cluster).read("events", columns=columns, **bounds):  # type: ignore[arg-type]
        for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
            found.setdefault(partition, []).append((offset, value.decode()))
    return found


def test_each_object_is_asked_for_once_for_all_partitions(
    cluster: Cluster, objects: FailingObjects
) -> None:
    load = Load(cluster)
    assert len(load.tasks) in (JOBS // 10, JOBS // 10 + 1)
    assert {len(task) for task in load.tasks} == {PARTITIONS}
    objects.taken()

    found = load.read()

    assert objects.taken()["get data"] == len(objects.names_of("data")) == JOBS
    assert found == in_python(cluster)
    assert sum(map(len, found.values())) > JOBS * PARTITIONS


def test_few_objects_and_divisions_of_the_users_are_read_partition_by_partition(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided = Load(cluster, minPartitions=PARTITIONS)
    assert [len(task) for task in divided.tasks] == [1] * PARTITIONS

    monkeypatch.setattr(gathering, "_EXTENTS_MIN", JOBS * PARTITIONS)
    assert [len(task) for task in Load(cluster).tasks] == [1] * PARTITIONS


def merge(cluster: Cluster) -> None:
    Maintenance(cluster._store.address).run(run_extents=10)


def write_more(cluster: Cluster) -> None:
    for number in range(JOBS, JOBS + 5):
        write(cluster, number)


def delete_some(cluster: Cluster) -> None:
    cluster.delete_records({("events", 0): 30, ("events", 3): 7})


@pytest.mark.parametrize(
    "before", [None, merge, write_more, delete_some], ids=["nothing", "merge", "write", "delete"]
)
@pytest.mark.parametrize(
    "after", [None, merge, write_more, delete_some], ids=["nothing", "merge", "write", "delete"]
)
def test_rows_are_those_that_are_there_when_the_action_begins(
    cluster: Cluster,
    before: Callable[[Cluster], None] | None,
    after: Callable[[Cluster], None] | None,
) -> None:
    """Others write before the plan is made, and between plan and action."""
    if before is not None:
        before(cluster)
        write_more(cluster)
    load = Load(cluster)
    if after is not None:
        after(cluster)

    assert load.read() == in_python(cluster)


def test_a_range_of_offsets_has_no_others(cluster: Cluster) -> None:
    starts = {str(partition): 11 + partition for partition in range(PARTITIONS)}
    ends = {str(partition): 50 + partition for partition in range(PARTITIONS)}
    load = Load(
        cluster,
        startingOffsets=json.dumps({"events": starts}),
        endingOffsets=json.dumps({"events": ends}),
    )

    bounds = (
        {("events", int(one)): offset for one, offset in given.items()} for given in (starts, ends)
    )
    assert load.read() == in_python(cluster, **dict(zip(("start", "end"), bounds, strict=True)))


def test_what_a_large_job_wrote_is_divided_by_partition(
    cluster: Cluster, objects: FailingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "SMALL_BYTES", 4000)
    write(cluster, 41, count=50, text="x" * 200)
    for number in range(JOBS):
        write(cluster, number)
    monkeypatch.setattr(splits, "PIECE_BYTES", 10_000)
    load = Load(cluster)

    assert {len(task) for task in load.tasks} == {1, PARTITIONS}
    assert load.read() == in_python(cluster)

    monkeypatch.setattr(splits, "PIECE_BYTES", 1 << 20)  # it is among small ones, and not held
    load = Load(cluster)
    assert {len(task) for task in load.tasks} == {PARTITIONS}
    objects.taken()
    assert load.read() == in_python(cluster)


def test_extents_that_an_index_lists_are_loaded_index_by_index(
    cluster: Cluster, objects: FailingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.staging.INDEX_BYTES_MIN", 0)
    for number in range(JOBS):
        write(cluster, number, tasks=3)
    expected = in_python(cluster)
    load = Load(cluster)
    objects.taken()
    assert load.read() == expected
    assert objects.taken()["get data"] == len(objects.names_of("data"))


def test_a_request_that_fails_is_repeated_and_one_that_fails_always_is_an_error(
    cluster: Cluster, objects: FailingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.objects._PAUSE_MS", 0)
    load, expected = Load(cluster), in_python(cluster)
    objects.failures = 3
    assert load.read() == expected

    objects.failures = 10**6
    with pytest.raises(ObjectStoreError, match="for a test"):
        load.read()


def test_an_object_that_is_missing_is_named(cluster: Cluster, objects: FailingObjects) -> None:
    load, name = Load(cluster), objects.names_of("data")[3]
    objects.delete([name])
    with pytest.raises(CorruptRecordError, match="missing") as raised:
        load.read()
    assert name.endswith(raised.value.path)


def test_a_topic_that_is_deleted_or_made_again_is_lost_data(cluster: Cluster) -> None:
    load = Load(cluster)
    cluster.delete_topic("events")
    with pytest.raises(DataLossError, match="does not exist"):
        load.read()
    cluster.create_topic("events", partitions=PARTITIONS)
    with pytest.raises(DataLossError, match="created again"):
        load.read()


def test_a_topic_that_is_made_again_while_a_task_reads_is_lost_data(cluster: Cluster) -> None:
    load = Load(cluster)
    reading = load.rows(load.tasks[0], "an action")
    next(reading)
    cluster.delete_topic("events")
    cluster.create_topic("events", partitions=PARTITIONS)
    with pytest.raises(DataLossError, match="created again"):
        list(reading)


# Merging.


def test_a_merge_asks_for_each_object_once_for_all_partitions_and_writes_one_entry(
    cluster: Cluster, objects: FailingObjects
) -> None:
    before = in_python(cluster)
    objects.taken()

    merged = Maintenance(cluster._store.address).run(run_extents=10).merged

    asked = objects.taken()
    assert (merged.segments, asked["get data"]) == (PARTITIONS, JOBS)
    assert asked["create ledger"] == 1
    assert in_python(cluster) == before
    assert not any(report.damaged for report in opened_again(cluster).verify())


def test_partitions_are_merged_together_as_far_as_they_have_few_bytes(
    cluster: Cluster, objects: FailingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_python(cluster)
    runs = Maintenance(cluster._store.address).runs(run_extents=10)
    monkeypatch.setattr(merging, "TOGETHER_BYTES", sum(run.size_in_bytes for run in runs[:2]))
    assert next(len(some) for some in merging.together(runs)) == 2
    objects.taken()

    assert Maintenance(cluster._store.address).merge(runs).segments == PARTITIONS

    assert objects.taken()["get data"] < 4 * JOBS
    assert in_python(cluster) == before


def test_a_partition_whose_records_go_meanwhile_is_merged_with_the_others(cluster: Cluster) -> None:
    maintenance = Maintenance(cluster._store.address)
    runs = maintenance.runs(run_extents=10)
    cluster.delete_records({("events", 2): -1, ("events", 3): 7})
    before = in_python(cluster)

    maintenance.merge(runs)

    assert in_python(cluster) == before
    assert not any(report.damaged for report in opened_again(cluster).verify())


def test_a_store_that_fails_now_and_then_is_asked_again_by_a_merge(
    cluster: Cluster, objects: FailingObjects
) -> None:
    before = in_python(cluster)
    objects.failures = 3

    assert Maintenance(cluster._store.address).run(run_extents=10).merged.segments == PARTITIONS
    assert in_python(cluster) == before
