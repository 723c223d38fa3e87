"""What do 500 partitions of 4 records cost, of which several share a task?

    jobs      whole Spark jobs, local[2], in batch and as streams: of a topic whose partitions share 16 tasks,
              of the same with a task each. Ceiling: as many records in 16 partitions, so in as many tasks.
              Peer: Spark's own files, 500 of Parquet. Tasks are counted.
    requests  of a plan and its tasks to a bucket, each task as a process of its own, counted by the store
    latency   one task that reads 32 partitions of 4 brokers, whose answers come 50 ms late, beside the same
              ranges one after the other; whole with the first answers, and with the second ones

Before and after a change: `make bench`, then read the tables.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

import spark_kbatch
from spark_kbatch.consumer.splits import TASKS_MIN
from spark_kbatch.model import StreamPiece
from tests.consumer.test_shared_tasks import Tasks, write
from tests.support.bucket_objects import CountingObjects, a_bucket
from tests.support.interleaved import Candidate, interleave
from tests.support.many_partitions import PARTITIONS, ManyPartitions, batches, pieces
from tests.support.proxies import Proxies
from tests.support.targets import Targets

MANY, RECORDS = 500, 4  # partitions, and records of each
ROUNDS = int(os.environ.get("KBATCH_ROUNDS", "5"))
SHARED, APART = "16 tasks", "a task for each partition"
CEILING, PEER = "as many records in 16 partitions", "Parquet, 500 files"
OF_APART, OF_CEILING = 3.0, 0.5
DELAY_S = 0.05
TOGETHER, IN_TURN = "together", "one after the other"
OF_IN_TURN = 8.0
REQUESTS_MAX = 300  # of a plan and its 16 tasks to a bucket


def bench_jobs(spark: SparkSession, memory_path: Path, targets: Targets) -> None:
    folder, files = memory_path / "cluster", memory_path / "parquet"
    fill(folder, files)
    for kind, load, run in (("batch", batch, consume), ("stream", stream, consume_stream)):
        frames = {
            SHARED: load(spark, folder, "many"),
            CEILING: load(spark, folder, "few"),
            APART: load(spark, folder, "many", shareTasks="false"),
            PEER: parquet(spark, files, kind),
        }
        counted = {name: run(frame) for name, frame in frames.items()}
        for name, (tasks, rows) in counted.items():
            assert rows == MANY * RECORDS, name
            targets.say(f"{name}, {kind}: {tasks} tasks")
        targets.at_most(f"tasks of a {kind}", counted[SHARED][0], TASKS_MIN)
        assert counted[APART][0] == MANY
        candidates = {
            name: Candidate(functools.partial(run, frame), 1.0) for name, frame in frames.items()
        }
        targets.rates(
            interleave(candidates, rounds=ROUNDS),
            f"500 partitions of 4 records, a {kind}",
            "jobs/s",
            {(SHARED, APART): OF_APART, (SHARED, CEILING): OF_CEILING},
        )


def fill(folder: Path, files: Path) -> None:
    """Write the records into 500 partitions, into 16, and into 500 files."""
    files.mkdir()
    numbers = [number for number in range(MANY) for _ in range(RECORDS)]
    rows = pa.table({"value": [b"v" * 100] * len(numbers)})
    with spark_kbatch.open(folder, create=True) as cluster:
        cluster.create_topic("many", MANY)
        cluster.create_topic("few", TASKS_MIN)
        with cluster.producer(flush=False) as producer:
            for topic, partitions in (("many", MANY), ("few", TASKS_MIN)):
                of = pa.array([number % partitions for number in numbers], pa.int32())
                producer.send_arrow(topic, rows.append_column("partition", of))
    for number in range(MANY):
        pq.write_table(rows.slice(0, RECORDS), files / f"{number}.parquet")


def batch(spark: SparkSession, folder: Path, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("kbatch").options(subscribe=topic, **options)
    return reader.load(str(folder)).select("value")


def stream(spark: SparkSession, folder: Path, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kbatch").options(subscribe=topic, **options)
    return reader.option("startingOffsets", "earliest").load(str(folder)).select("value")


def parquet(spark: SparkSession, files: Path, kind: str) -> DataFrame:
    reader = spark.read if kind == "batch" else spark.readStream
    return reader.schema("value binary").parquet(str(files))


def consume(frame: DataFrame) -> tuple[int, int]:
    """Run a batch; return how many tasks and rows it had."""
    return frame.rdd.getNumPartitions(), len(frame.collect())


def consume_stream(frame: DataFrame) -> tuple[int, int]:
    """Run a stream to its end, in one micro-batch; return how many tasks and rows it had."""
    found: list[tuple[int, int]] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: found.append(consume(rows)))
    writer.trigger(availableNow=True).start().awaitTermination()
    (one,) = found
    return one


def bench_requests_to_a_bucket(targets: Targets) -> None:
    table = Table(
        title="Requests to a bucket for 500 partitions of 4 records in one object",
        title_justify="left",
    )
    for heading in ("", "tasks", "of the plan", "of a task", "in all"):
        table.add_column(heading, justify="right" if heading else "left")
    objects = CountingObjects()
    with a_bucket(objects, "events", partitions=MANY) as cluster:
        write(cluster)
        for kind, (name, shared) in itertools.product(
            ("batch", "stream"), ((SHARED, "true"), (APART, "false"))
        ):
            objects.taken()
            found = Tasks(cluster, kind, shareTasks=shared)
            planned = sum(objects.taken().values())
            tasks = found.tasks[:: len(found.tasks) // TASKS_MIN]
            rows = [row for task in tasks for row in found.rows(task)]
            assert len(rows) == sum(map(len, tasks)) * RECORDS
            of_one = sum(objects.taken().values()) / len(tasks)
            figures = (len(found.tasks), planned, of_one, planned + of_one * len(found.tasks))
            table.add_row(f"{name}, {kind}", *(f"{one:,.0f}" for one in figures))
            if name == SHARED:
                targets.at_most(f"tasks of a {kind} of a bucket", len(found.tasks), TASKS_MIN)
                targets.at_most(f"requests of a {kind}", figures[-1], REQUESTS_MAX)
    targets.table(table)


@contextlib.contextmanager
def late_brokers() -> Iterator[ManyPartitions]:
    """Brokers whose answers come 50 ms late."""
    with ManyPartitions() as cluster, Proxies() as proxies:
        late = [proxies.open() for _ in cluster.addresses]
        for proxy, target in zip(late, cluster.addresses, strict=True):
            proxy.target, proxy.delay_s = target, DELAY_S
        cluster.addresses = [proxy.address for proxy in late]
        yield cluster


def bench_latency(targets: Targets) -> None:
    with late_brokers() as cluster:
        for what, end in (("one answer", 2), ("two answers", 4)):
            wanted = pieces(end)

            def read(by: int, wanted: Sequence[StreamPiece] = wanted, end: int = end) -> None:
                tasks = [wanted[at : at + by] for at in range(0, PARTITIONS, by)]
                found = [one for task in tasks for one in batches(cluster, task)]
                assert sum(one.num_rows for one in found) == PARTITIONS * end

            found = interleave(
                {
                    TOGETHER: Candidate(lambda: read(PARTITIONS), 1.0),
                    IN_TURN: Candidate(lambda: read(1), 1.0),
                },
                rounds=ROUNDS,
            )
            targets.rates(
                found,
                f"32 partitions of 4 brokers with 50 ms for each answer, whole with {what}",
                "tasks/s",
                {(TOGETHER, IN_TURN): OF_IN_TURN},
            )
            for name in (TOGETHER, IN_TURN):
                targets.say(f"{name}: {1 / found.median(name):.2f} s")
