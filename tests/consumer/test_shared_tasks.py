"""Small ranges share tasks, in batches and streams: few tasks, each record once and in order, errors that name it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.consumer.splits import TASKS_MIN
from spark_kbatch.errors import CorruptRecordError, DataLossError
from spark_kbatch.opening.stores import open_stream, open_topics
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from tests.support.bucket_jobs import begun, rows
from tests.support.bucket_objects import CountingObjects, a_bucket

PARTITIONS, OBJECTS, JOBS = 500, 2, 2
_numbers = itertools.count()
ALL = [(partition, offset) for partition in range(PARTITIONS) for offset in range(OBJECTS * JOBS)]


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


@pytest.fixture(params=["memory", "bucket"])
def cluster(request: pytest.FixtureRequest, objects: CountingObjects) -> Iterator[Cluster]:
    """A cluster whose topic has 500 partitions of 4 records; in a bucket, in 4 objects."""
    if request.param == "bucket":
        with a_bucket(objects, "events", partitions=PARTITIONS) as cluster:
            for _ in range(JOBS):
                write(cluster)
            yield cluster
        return
    with spark_kbatch.open(f"memory://shared-tasks-{next(_numbers)}", create=True) as cluster:
        cluster.create_topic("events", PARTITIONS)
        with cluster.producer() as producer:
            for partition, offset in ALL:
                producer.send("events", f"{offset}", partition=partition)
        yield cluster


def write(cluster: Cluster) -> None:
    """Have a job of two tasks write a record to each partition, each task an object of its own."""
    url = cluster._store.address
    job = begun(url)
    messages = [
        job.stage(
            rows(["a value"] * PARTITIONS, partition=[*range(PARTITIONS)]), application_id="app"
        )
        for _ in range(OBJECTS)
    ]
    begun(url).commit_batch(messages)


class Tasks:
    """The tasks of a batch, or of a stream's first micro-batch, each read as by a process of its own."""

    def __init__(self, cluster: Cluster, kind: str, **options: object) -> None:
        given = {"path": cluster._store.address, "subscribe": "events", "poll.ms": "0"}
        given |= {name: str(value) for name, value in options.items()}
        if kind == "batch":
            self.options = parse_read_options(given)
            self.tasks: list[Any] = open_topics(self.options).plan(self.options)
        else:
            given["startingOffsets"] = "earliest"
            self.options = parse_stream_read_options(given)
            planner = open_stream(self.options)
            start = planner.initial()
            self.tasks = planner.plan(start, planner.latest(start))
        self.is_batch = kind == "batch"

    def rows(self, task: Any) -> list[tuple[int, int]]:
        """Return partition and offset of each row of a task."""
        reader, columns = open_topics(self.options), ["partition", "offset"]
        batches = (
            reader.read_task(task, columns, self.options, f"action-{id(self)}")
            if self.is_batch
            else reader.read_stream_task(task, columns, self.options)
        )
        return [
            row
            for batch in batches
            for row in zip(*(batch[name].to_pylist() for name in columns), strict=True)
        ]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_500_partitions_of_4_records_are_16_tasks_that_read_each_record_once_and_in_order(
    cluster: Cluster, kind: str
) -> None:
    found = Tasks(cluster, kind)

    assert len(found.tasks) == TASKS_MIN
    assert [row for task in found.tasks for row in found.rows(task)] == ALL


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize(
    ("option", "tasks"),
    [({"shareTasks": "false"}, 500), ({"minPartitions": 600}, 1000)]
    + [({"maxRecordsPerPartition": 4}, 500)],
    ids=str,
)
def test_options_rule_it_out(
    cluster: Cluster, kind: str, option: dict[str, Any], tasks: int
) -> None:
    found = Tasks(cluster, kind, **option).tasks
    assert len(found) == tasks
    assert {*map(len, found)} == {1}


@pytest.mark.parametrize("cluster", ["bucket"], indirect=True)
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_task_asks_a_bucket_for_each_object_once(
    cluster: Cluster, objects: CountingObjects, kind: str
) -> None:
    objects.taken()
    found = Tasks(cluster, kind)
    planned = objects.taken()
    # An index for each job, which tells the sizes of all partitions.
    assert planned.get("get data", 0) <= JOBS

    for task in found.tasks:
        found.rows(task)
        asked = objects.taken()
        assert asked["get data"] <= OBJECTS * JOBS + JOBS, asked


@pytest.mark.parametrize("cluster", ["bucket"], indirect=True)
def test_a_stream_with_much_to_read_asks_a_bucket_for_each_object_once_in_all(
    cluster: Cluster, objects: CountingObjects
) -> None:
    for _ in range(20):
        write(cluster)
    data = len(objects.names_of("data"))
    objects.taken()

    found = Tasks(cluster, "stream")
    rows_found = [row for task in found.tasks for row in found.rows(task)]

    assert sorted(rows_found) == [(p, n) for p in range(PARTITIONS) for n in range(44)]
    asked = objects.taken()
    assert asked["get data"] <= 2 * data, asked


@pytest.fixture
def folder(tmp_path: Any) -> Iterator[Cluster]:
    """A cluster in a folder with 20 partitions of 4 records."""
    with spark_kbatch.open(str(tmp_path / "cluster"), create=True) as cluster:
        cluster.create_topic("events", 20)
        with cluster.producer() as producer:
            for partition, offset in itertools.product(range(20), range(4)):
                producer.send("events", f"{offset}", partition=partition)
        yield cluster


Change = Callable[[Cluster, str], object]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_lost_records_of_one_range_name_it_and_the_others_are_read(
    folder: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = {"endingOffsets": f'{{"events":{{{",".join(f"{chr(34)}{n}{chr(34)}:4" for n in range(20))}}}}}'}
    starts = {"startingOffsets": ends["endingOffsets"].replace(":4", ":0")}
    given: dict[str, Any] = {**ends, **starts} if kind == "batch" else {}
    found, lenient = (
        Tasks(folder, kind, **given, failOnDataLoss=fail) for fail in ("true", "false")
    )
    (at,) = [
        number
        for number, task in enumerate(found.tasks)
        if any(piece.wanted.topic_partition.partition == 7 for piece in task)
    ]
    assert len(found.tasks[at]) > 1 or len(found.tasks[at + 1]) > 1
    folder.delete_records({("events", 7): 3})

    with pytest.raises(DataLossError, match=r"events-7 from offset 0 to 3"):
        found.rows(found.tasks[at])
    expected = [(piece.wanted.topic_partition.partition, n) for piece in found.tasks[at] for n in range(4)]
    assert lenient.rows(lenient.tasks[at]) == [row for row in expected if row[0] != 7 or row[1] == 3]
    assert "events-7 from offset 0 to 3" in caplog.text


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_damaged_batch_names_its_partition_and_offset(folder: Cluster, kind: str) -> None:
    found = Tasks(folder, kind)
    task = next(one for one in found.tasks if len(one) > 1)
    partition = task[-1].wanted.topic_partition
    (log,) = (folder.path / "broker-1" / str(partition)).glob("*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)

    with pytest.raises(CorruptRecordError, match=rf"{partition}\b.*offset"):
        found.rows(task)


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_topic_that_was_recreated_is_lost_for_all_ranges_of_a_task(
    folder: Cluster, kind: str
) -> None:
    found = Tasks(folder, kind)
    folder.delete_topic("events")
    with spark_kbatch.open(str(folder.path)) as again:
        again.create_topic("events", 20)

    with pytest.raises(DataLossError, match="events-0.*created again"):
        found.rows(found.tasks[0])
