"""Small ranges share tasks, in batches and streams: few tasks, each record once and in order, errors that name it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
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

PARTITIONS, RECORDS = 500, 4
_numbers = itertools.count()
ALL = [*itertools.product(range(PARTITIONS), range(RECORDS))]


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


@pytest.fixture(params=["memory", "bucket"])
def cluster(request: pytest.FixtureRequest, objects: CountingObjects) -> Iterator[Cluster]:
    """A cluster whose topic has 500 partitions of 4 records; in a bucket, in one object."""
    if request.param == "bucket":
        with a_bucket(objects, "events", partitions=PARTITIONS) as cluster:
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
    """Have a job of one task write to each partition."""
    job = begun(cluster._store.address)
    partitions = [partition for partition, _ in ALL]
    staged = job.stage(rows(["a value"] * len(ALL), partition=partitions), application_id="app")
    begun(cluster._store.address).commit_batch([staged])


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

    def rows(self, task: Any, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of each row of a task, by default partition and offset."""
        reader, columns = open_topics(self.options), columns or ("partition", "offset")
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
    [
        ({"shareTasks": "false"}, 500),
        ({"minPartitions": 2000}, 2000),
        ({"maxRecordsPerPartition": 4}, 500),
    ],
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
def test_a_task_asks_a_bucket_for_an_object_once(
    cluster: Cluster, objects: CountingObjects, kind: str
) -> None:
    for share in ("false", "true"):
        objects.taken()
        found = Tasks(cluster, kind, shareTasks=share)
        assert objects.taken()["get data"] == 1  # the index, which tells the sizes of all

    for task in found.tasks:
        found.rows(task)
        assert objects.taken()["get data"] == 2  # the index and the object


@pytest.mark.parametrize("cluster", ["bucket"], indirect=True)
def test_a_stream_with_many_small_extents_asks_a_bucket_for_an_object_once_in_all(
    cluster: Cluster, objects: CountingObjects
) -> None:
    write(cluster)
    write(cluster)
    objects.taken()

    found = Tasks(cluster, "stream")
    assert len(found.tasks) <= TASKS_MIN
    read = [row for task in found.tasks for row in found.rows(task)]

    assert sorted(read, key=lambda row: row[0]) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(3 * RECORDS)
    ]
    assert objects.taken()["get data"] <= 3 * 3  # three objects; their indexes, by driver and task


@pytest.fixture
def folder(tmp_path: Any) -> Iterator[Cluster]:
    """A cluster in a folder with 20 partitions of 4 records."""
    with spark_kbatch.open(str(tmp_path / "cluster"), create=True) as cluster:
        cluster.create_topic("events", 20)
        with cluster.producer() as producer:
            for partition, offset in itertools.product(range(20), range(4)):
                producer.send("events", f"{offset}", partition=partition)
        yield cluster


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_lost_records_of_one_range_name_it_and_the_others_are_read(
    folder: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        f"{side}Offsets": json.dumps({"events": {str(n): offset for n in range(20)}})
        for side, offset in [("starting", 0), ("ending", 4)]
        if kind == "batch"
    }
    found, lenient = (
        Tasks(folder, kind, **given, failOnDataLoss=fail) for fail in ("true", "false")
    )
    (at,) = [
        number
        for number, task in enumerate(found.tasks)
        if any(piece.wanted.topic_partition.partition == 7 for piece in task)
    ]
    assert len(found.tasks[at]) > 1
    folder.delete_records({("events", 7): 3})

    with pytest.raises(DataLossError, match=r"events-7 from offset 0 to 3"):
        found.rows(found.tasks[at])
    partitions = [piece.wanted.topic_partition.partition for piece in found.tasks[at]]
    assert lenient.rows(lenient.tasks[at]) == [
        (partition, n) for partition in partitions for n in range(3 if partition == 7 else 0, 4)
    ]
    assert "events-7 from offset 0 to 3" in caplog.text


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_damaged_batch_names_its_partition_and_offset(folder: Cluster, kind: str) -> None:
    found = Tasks(folder, kind)
    task = next(one for one in found.tasks if len(one) > 1)
    partition = task[-1].wanted.topic_partition
    (log,) = folder.path.glob(f"broker-*/{partition}/*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)

    with pytest.raises(CorruptRecordError, match=rf"{partition}\b.*offset"):
        found.rows(task, "value")


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_topic_that_was_recreated_is_lost_for_all_ranges_of_a_task(
    folder: Cluster, kind: str
) -> None:
    found = Tasks(folder, kind)
    folder.delete_topic("events")
    with spark_kbatch.open(str(folder.path)) as again:
        again.create_topic("events", 20)

    with pytest.raises(DataLossError, match=r"events-0.*created again"):
        found.rows(found.tasks[0])
