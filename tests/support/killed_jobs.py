"""Programs that work through a round until it is done, to be killed at any time and started again.

    python -m tests.support.killed_jobs driver        a Spark driver: a line on its input is a round's folder
    python -m tests.support.killed_jobs producer FOLDER

A round is a folder, with everything that outlives a program.

    FOLDER/work.json       the `Work`
    FOLDER/cluster         the cluster with the topic that all write to, and one that is copied to it; or it is
                           at the work's URL, in a bucket whose store is in the environment
    FOLDER/input/*.txt     the stream's input, a file per micro-batch; FOLDER/checkpoint is Spark's
    FOLDER/acknowledged/   a file for each batch write that has returned, and one for each partition
                           of the producer with the last number that was acknowledged
    FOLDER/clients.done    empty; made by others, for a driver that follows them until then
    FOLDER/wrong           what a driver read that must not be
    FOLDER/driver.started  the id of the process that works on the round
    FOLDER/driver.done     empty; FOLDER/producer.done lists the producer's last number in each partition

Every row names its writer: `JOB-TASK-ROW` for a job, `producer-PARTITION-NUMBER` for the producer. A job
is a batch write with a name, one run of a batch write without a name, or a micro-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

import spark_kbatch
from tests.conftest import SHORT_LIVED_JVM
from tests.support.frames import use_in_this_thread

TOPIC, SOURCE, REPLACED, FOLLOWED = "t", "source", "replaced", "followed"
CHECKPOINTS = {TOPIC: "checkpoint", FOLLOWED: "checkpoint-of-followed"}
RUNS_MAX = 20  # of one job, in one life of a driver


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a round."""

    seed: str
    batches: int  # batch writes with a name, each followed by one without
    micro_batches: int  # of the stream from files
    copies: int  # micro-batches of the stream from a topic
    tasks: int  # of a batch write
    rows: int  # of a task, and of a micro-batch
    partitions: int
    options: dict[str, Any]  # of every write
    overwrites: int = 0  # of a topic of their own
    follows: bool = (
        False  # whether a stream copies the topic and a batch reads it until clients are done
    )
    url: str = ""  # of a cluster in a bucket

    def save(self, folder: Path) -> None:
        (folder / "work.json").write_text(json.dumps(dataclasses.asdict(self)))
        (folder / "acknowledged").mkdir()
        (folder / "input").mkdir()
        for number in range(self.micro_batches):
            lines = [f"stream{number}-0-{row}\n" for row in range(self.rows)]
            file = folder / "input" / f"{number}.txt"
            file.write_text("".join(lines))
            os.utime(file, (number, number))  # Spark reads files in the order of their times

    def address(self, folder: Path) -> str:
        return self.url or str(folder / "cluster")

    @classmethod
    def load(cls, folder: Path) -> Work:
        return cls(**json.loads((folder / "work.json").read_text()))


def flaky(seed: str, rows: int) -> Callable[[Column], Column]:
    """Return a function that passes values on, and fails in some first and second attempts of tasks, by the seed."""

    @F.udf("string")
    def value_or_failure(value):
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        task, _, row = value.rpartition("-")
        rng = random.Random(f"{seed}-{task}-{attempt}")
        if attempt < 2 and int(row) == rng.randrange(4 * rows):
            if rng.random() < 0.5:
                raise RuntimeError(f"attempt {attempt} of {task} fails at row {row}")
            os._exit(1)
        return value

    return lambda column: value_or_failure(column)


class Driver:
    """A driver's work on one round."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._work = spark, folder, Work.load(folder)
        self._flaky = flaky(self._work.seed, self._work.rows)
        self._options = {"topic": TOPIC, **self._work.options}
        self._path = self._work.address(folder)
        self._are_others_done = threading.Event()  # the jobs that do not follow what others write

    def run(self) -> None:
        write_whole(self._folder / "driver.started", str(os.getpid()))
        jobs = {
            self._write_batches: self._work.batches,
            self._stream: self._work.micro_batches,
            self._copy: self._work.copies,
            self._overwrite: self._work.overwrites,
            self._follow: self._work.follows,
            self._read: self._work.follows,
        }
        threads = {
            job: threading.Thread(target=self._until_it_succeeds, args=[job])
            for job, count in jobs.items()
            if count
        }
        for thread in threads.values():
            thread.start()
        followers = {threads.pop(job, None) for job in (self._follow, self._read)}
        for thread in threads.values():
            thread.join()
        self._are_others_done.set()
        for thread in filter(None, followers):
            thread.join()
        (self._folder / "driver.done").touch()

    def _until_it_succeeds(self, job: Callable[[], None]) -> None:
        use_in_this_thread(self._spark)
        for _ in range(RUNS_MAX):
            try:
                return job()
            except Exception as error:  # noqa: BLE001  Spark raises anything where its workers are killed
                traceback.print_exc()
                if "CHECKPOINT_LOCATION_NOT_EMPTY" in str(error):
                    self._begin_again()
        print("gives up", flush=True)
        os._exit(1)

    def _begin_again(self) -> None:
        """Remove the checkpoints without a first batch: Spark cannot use what a killed driver left of those."""
        for name in CHECKPOINTS.values():
            if not (self._folder / name / "offsets" / "0").exists():
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def _write_batches(self) -> None:
        acknowledged = self._folder / "acknowledged"
        for number in range(self._work.batches):
            name = f"batch{number}"
            # A restarted driver repeats the last acknowledged write.
            if not (acknowledged / f"batch{number + 1}").exists():
                self._write(name, txnAppId="batches", txnVersion=number)
                (acknowledged / name).touch()
                run = f"run{uuid.uuid4().hex}"
                self._write(run)
                (acknowledged / run).touch()

    def _overwrite(self) -> None:
        acknowledged = self._folder / "acknowledged"
        for number in range(self._work.overwrites):
            if not (acknowledged / f"over{number}").exists():
                self._write(f"over{number}", mode="overwrite", topic=REPLACED)
                (acknowledged / f"over{number}").touch()

    def _write(self, job: str, mode: str = "append", **options: Any) -> None:
        tasks, rows = self._work.tasks, self._work.rows
        frame = self._spark.range(0, tasks * rows, 1, tasks)
        row = F.col("id") % rows
        value = F.concat_ws("-", F.lit(job), F.floor(F.col("id") / rows), row)
        (
            frame.select(self._flaky(value).alias("value"), self._partition(row))
            .write.format("kbatch")
            .options(**self._options | options)
            .mode(mode)
            .save(self._path)
        )

    def _stream(self) -> None:
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(
            str(self._folder / "input")
        )
        row = F.substring_index("value", "-", -1)
        self._write_stream(lines, F.col("value"), self._partition(row))

    def _copy(self) -> None:
        """Copy every record to the partition with the same number."""
        self._copy_of(SOURCE, maxOffsetsPerTrigger=self._work.rows)

    def _copy_of(self, source: str, **options: Any) -> None:
        records = (
            self._spark.readStream.format("kbatch")
            .options(subscribe=source, startingOffsets="earliest", **options)
            .load(self._path)
        )
        target = TOPIC if source == SOURCE else FOLLOWED
        self._write_stream(records, F.col("value").cast("string"), F.col("partition"), target)

    def _follow(self) -> None:
        """Copy what others write until they are done, and then the rest."""
        is_rest = False
        while not is_rest:
            is_rest = self._is_all_written()
            self._copy_of(TOPIC)

    def _is_all_written(self) -> bool:
        return self._are_others_done.is_set() and (self._folder / "clients.done").exists()

    def _read(self) -> None:
        """Read the topic again and again: each job is there with all its rows, or not at all."""
        is_last = False
        while not is_last:
            is_last = self._is_all_written()
            records = self._spark.read.format("kbatch").option("subscribe", TOPIC).load(self._path)
            job = F.split(F.col("value").cast("string"), "-")[0]
            for name, count in records.groupBy(job).count().collect():
                tasks = 1 if name.startswith("stream") else self._work.tasks
                if name != "producer" and count != tasks * self._work.rows:
                    write_whole(self._folder / "wrong", f"{name} has {count} rows")
            time.sleep(1)

    def _write_stream(
        self, rows: DataFrame, value: Column, partition: Column, topic: str = TOPIC
    ) -> None:
        query = (
            rows.select(self._flaky(value).alias("value"), partition)
            .writeStream.format("kbatch")
            .options(**self._options | {"topic": topic})
            .option("checkpointLocation", str(self._folder / CHECKPOINTS[topic]))
            .trigger(availableNow=True)
            .start(self._path)
        )
        query.awaitTermination()

    def _partition(self, row: Column) -> Column:
        return (row % self._work.partitions).cast("int").alias("partition")


def driver() -> None:
    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED_JVM)
        .config("spark.log.level", "ERROR")
        .config("spark.python.authenticate.socketTimeout", "120s")  # the machine may be busy
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    # Spark looks for data sources once, and does without them if that worker is killed.
    with contextlib.suppress(AnalysisException):
        spark.read.format("kbatch").load("nowhere")
    for line in sys.stdin:
        Driver(spark, Path(line.strip())).run()


def producer(folder: Path) -> None:
    """Send numbers to every partition, from the topic's last ones on, until the driver is done."""
    work = Work.load(folder)
    with spark_kbatch.open(work.address(folder)) as cluster:
        nexts = [0] * work.partitions
        for batch in cluster.read(TOPIC, columns=["partition", "value"]):
            for partition, value in zip(*batch.to_pydict().values(), strict=True):
                if value.startswith(b"producer-"):
                    nexts[partition] = int(value.rpartition(b"-")[2]) + 1
        acknowledged = [folder / "acknowledged" / f"{p}.last" for p in range(work.partitions)]
        for file, number in zip(acknowledged, nexts, strict=True):
            assert not file.exists() or int(file.read_text()) < number, f"{file}: lost"

        done = False
        with cluster.producer(acks="all", linger_ms=20) as sending:
            while not done:
                done = (folder / "driver.done").exists()
                futures = []
                for partition in range(work.partitions):
                    for _ in range(5):
                        value = f"producer-{partition}-{nexts[partition]}"
                        futures.append(sending.send(TOPIC, value=value, partition=partition))
                        nexts[partition] += 1
                for future in futures:
                    future.result()
                for file, number in zip(acknowledged, nexts, strict=True):
                    write_whole(file, str(number - 1))
    write_whole(folder / "producer.done", json.dumps([number - 1 for number in nexts]))


def write_whole(path: Path, text: str) -> None:
    aside = path.with_suffix(".aside")
    aside.write_text(text)
    aside.rename(path)


if __name__ == "__main__":
    if sys.argv[1] == "driver":
        driver()
    else:
        producer(Path(sys.argv[2]))
