"""Streams into a real cluster, held at a step, and then killed, frozen, or let go on.

`python -m tests.support.held_streams FOLDER SERVERS NAME...` runs these queries, each from the topic `orders` of the
cluster in FOLDER/source to the topic `to-NAME`, which is its prefix as well:

    FOLDER/NAME/           its checkpoint
    FOLDER/NAME.json       options of the write, beside those
    FOLDER/NAME.hold       "STEP N": it is held at this step of micro-batch N, or of a later one
    FOLDER/NAME.reached    what NAME.hold becomes once it is held; removed: it goes on
    FOLDER/NAME.ended      its error, or nothing
    FOLDER/NAME.tried      of NAME.json's "slow": attempts of its tasks, of which some are slow

A query starts when those before it are held or have ended: all at once, they would start dozens of Python processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import spark_kbatch
from spark_kbatch.remote.batch_producer import BatchProducer
from spark_kbatch.remote.exactly_once import ExactlyOnceJob
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.spark.source import KBatchDataSource
from spark_kbatch.spark.writer import KBatchStreamWriter
from tests.conftest import REPOSITORY, SHORT_LIVED_JVM
from tests.support.kills import kill_tree, tree_of
from tests.support.waiting import until

# Steps in their order: the method, and whether the query is held before it or after it.
STEPS: dict[str, tuple[type[Any], str, bool]] = {
    "before-take-over": (Transactions, "take_over", True),
    "taken-over": (Transactions, "take_over", False),
    "task": (ExactlyOnceJob, "stage", False),
    "before-commit": (ExactlyOnceJob, "_known", True),
    "progress-known": (ExactlyOnceJob, "_known", False),
    "partly-sent": (BatchProducer, "flush", True),
    "sent": (BatchProducer, "flush", False),
    "offsets-added": (Transactions, "add_offsets", False),
    "committed": (Transactions, "end", False),
}
TIMEOUT_S = 900  # of streams on a machine with much else to do
SLOW_EVERY = 3  # micro-batches
_SLOW_S = 60
_LOCAL = {"spark.master": "local[4]", "spark.driver.extraJavaOptions": SHORT_LIVED_JVM}
_PATIENT = {
    "spark.network.timeout": "900s",  # of a driver that is frozen
    "spark.python.authenticate.socketTimeout": "10m",  # on a machine with much else to do
}


def topic_of(name: str) -> str:
    """Return the topic, and the prefix, of a query."""
    return f"to-{name}"


# In the processes of Spark


class HeldDataSource(KBatchDataSource):
    """The format, whose streams may be held."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> KBatchStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        writer._job.__class__ = HeldJob
        writer._job.of(Path(self.options["checkpointLocation"]))  # type: ignore[attr-defined]
        return writer


class HeldJob(ExactlyOnceJob):
    """A job that is held at a step of its query, in whatever process it is there."""

    def of(self, checkpoint: Path) -> None:
        global _at_hand
        self._checkpoint = _at_hand = checkpoint
        _hold_at_steps()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.of(self._checkpoint)


_at_hand = Path()  # the checkpoint of this process's job


@functools.cache
def _hold_at_steps() -> None:
    """Replace the methods of this process, once."""
    for step, (kind, name, is_before) in STEPS.items():
        setattr(kind, name, _held(getattr(kind, name), step, is_before))


def _held(method: Callable[..., Any], step: str, is_before: bool) -> Callable[..., Any]:
    def holding(*args: Any, **named: Any) -> Any:
        if is_before:
            _hold(step)
        found = method(*args, **named)
        if not is_before:
            _hold(step)
        return found

    return holding


def _hold(step: str) -> None:
    hold, reached = _at_hand.with_suffix(".hold"), _at_hand.with_suffix(".reached")
    with contextlib.suppress(FileNotFoundError):
        wanted, number = hold.read_text().split()
        if wanted != step or last_committed(_at_hand) < int(number) - 1:
            return
        hold.rename(reached)  # by one of several tasks
        while reached.exists():
            time.sleep(0.01)


def last_committed(checkpoint: Path) -> int:
    """Return the number of the last micro-batch that Spark has noted, or -1."""
    return max((int(path.name) for path in checkpoint.glob("commits/[0-9]*")), default=-1)


def _slowly(folder: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function of tasks, of which some wait until another attempt of theirs runs."""

    def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        name, attempt = f"{number}-{context.partitionId()}", context.attemptNumber()
        (folder / f"{name}-{attempt}").touch()
        deadline = time.monotonic() + _SLOW_S
        if not attempt and not context.partitionId() and number % SLOW_EVERY == 1:
            while not (folder / f"{name}-1").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            if (folder / f"{name}-1").exists():
                (folder / f"{name}-both").touch()
        yield from batches

    return passed_on


# The driver


def started(
    spark: SparkSession, folder: Path, servers: str, name: str, **given: Any
) -> StreamingQuery:
    """Start a query up to what there is now, in the format that is registered.

    Args:
        spark: the session.
        folder: as above.
        servers: HOST:PORT,...
        name: of the query.
        given: options as in NAME.json; those of the write, `startingOffsets` and `maxOffsetsPerTrigger` of the source,
            `checkpoint`, the name of another one in the folder, and `slow`.
    """
    written = folder / f"{name}.json"
    given |= json.loads(written.read_text()) if written.exists() else {}
    is_slow = given.pop("slow", False)
    checkpoint = str(folder / given.pop("checkpoint", name))
    read = {
        "subscribe": "orders",
        "startingOffsets": given.pop("startingOffsets", "earliest"),
        "maxOffsetsPerTrigger": given.pop("maxOffsetsPerTrigger", 40),
    }  # fmt: skip
    rows = spark.readStream.format("kbatch").options(**read).load(str(folder / "source"))
    rows = rows.select("value")
    if is_slow:
        tried = folder / f"{name}.tried"
        tried.mkdir(exist_ok=True)
        rows = rows.mapInArrow(_slowly(tried), rows.schema)
    options = {
        "kafka.bootstrap.servers": servers, "topic": topic_of(name),
        "delivery.guarantee": "exactly-once", "transactional.id.prefix": topic_of(name),
        "checkpointLocation": checkpoint,
    } | given  # fmt: skip
    writer = rows.writeStream.format("kbatch").options(**options)
    return writer.trigger(availableNow=True).start()


def main(folder: Path, servers: str, *names: str) -> None:
    spark = (
        SparkSession.builder.config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark_kbatch.register(spark)
    # By name: a module run with `python -m` is called __main__, which workers cannot import.
    from tests.support import held_streams  # noqa: PLC0415

    spark.dataSource.register(held_streams.HeldDataSource)
    queries: dict[str, StreamingQuery] = {}
    waiting = list(names)
    while waiting or queries:
        if waiting and all((folder / f"{name}.reached").exists() for name in queries):
            name = waiting.pop(0)
            queries[name] = held_streams.started(spark, folder, servers, name)
        for name, query in list(queries.items()):
            if not query.isActive:
                del queries[name]
                error = query.exception()
                (folder / f"{name}.aside").write_text("" if error is None else str(error))
                (folder / f"{name}.aside").rename(folder / f"{name}.ended")
        time.sleep(0.05)


# The test


class HeldStreams:
    """A driver of some queries, in processes of its own."""

    def __init__(
        self, folder: Path, servers: str, *names: str, conf: Mapping[str, str] | None = None
    ) -> None:
        """Start it; `conf` is Spark's, by default that of a local session."""
        for name in names:
            (folder / f"{name}.ended").unlink(missing_ok=True)
        self._folder, self._output = folder, folder / "output"
        given = _PATIENT | dict(conf or _LOCAL)
        words = [f"--conf '{key}={value}'" for key, value in given.items()]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.held_streams", str(folder), servers, *names],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"]),
                },
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        kill_tree(self._process.pid)
        self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def holds(self, name: str) -> bool:
        """Wait until a query is held or has ended; return whether it is held."""
        return self.waited_for(name, (self._folder / f"{name}.reached").exists)

    def waited_for(self, name: str, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds or a query has ended; return whether it holds."""
        self._wait(lambda: condition() or (self._folder / f"{name}.ended").exists())
        return condition()

    def ended(self, name: str) -> str:
        """Wait until a query has ended; return its error, or nothing."""
        file = self._folder / f"{name}.ended"
        self._wait(file.exists)
        return file.read_text()

    def freeze(self) -> None:
        """Stop all of its processes, as a machine that is suspended does."""
        for one in tree_of(self._process.pid):
            one.suspend()

    def go_on(self) -> None:
        """Let them go on."""
        for one in tree_of(self._process.pid):
            one.resume()

    def _wait(self, condition: Callable[[], bool]) -> None:
        until(lambda: condition() or not self.is_running, timeout_s=TIMEOUT_S)
        assert condition(), self._output.read_text()


def fill(folder: Path, numbers: Iterable[int]) -> None:
    """Append numbers to what the streams read, which is created with two partitions."""
    with spark_kbatch.open(str(folder / "source"), create=True) as source:
        if "orders" not in source.topic_names():
            source.create_topic("orders", partitions=2)
        with source.producer() as producer:
            for number in numbers:
                producer.send("orders", b"%d" % number, partition=number % 2)


def hold(folder: Path, name: str, step: str, number: int) -> None:
    """Have a query held at a step of a micro-batch."""
    aside = folder / f"{name}.hold-aside"
    aside.write_text(f"{step} {number}")
    aside.rename(folder / f"{name}.hold")


def release(folder: Path, *names: str) -> None:
    """Let queries that are held go on."""
    for name in names:
        (folder / f"{name}.reached").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
