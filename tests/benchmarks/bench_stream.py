"""What is a micro-batch of a stream made of, and what of it grows over a long stream?

Streams copy micro-batches of 100 rows from one topic to another of a folder on the disk, flushed as by
default; local[2], one partition. Unit: milliseconds, medians of Spark's `triggerExecution`.

    parts   the same stream into a Python sink that drops its rows, and into Spark's own `noop`, in turn.
            What the sink that drops takes is Spark's own and our source's; the rest are our task and the
            commit. Both are measured alone, too, in plain Python, and the flushes in them.
    growth  one stream of 1,000 micro-batches: the median of its last hundred beside the one of its
            second, with the files it leaves and the memory of its processes.

Before and after a change: `make bench`, then read the tables.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.table import Table

import spark_kbatch
from spark_kbatch import files
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from tests.support.spark_sources import BareSource
from tests.support.targets import Targets

ROWS = 100  # of a micro-batch
MICRO_BATCHES = int(os.environ.get("KBATCH_MICRO_BATCHES", "1000"))
BLOCK = 100  # micro-batches whose median counts
SHORT, ROUNDS = 30, 5  # micro-batches of a stream whose parts are measured, and how often
GROWTH_MAX = 1.2  # times the second block
OURS_MAX = 0.25  # of a micro-batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster with the topics `from`, which is empty, and `to`."""
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        for name in ("from", "to"):
            cluster.create_topic(name, partitions=1)
    return tmp_path / "cluster"


def fill(folder: Path, micro_batches: int) -> None:
    rows = pa.table({"value": [b"v" * 100] * ROWS})
    with spark_kbatch.open(folder) as cluster, cluster.producer(flush=False) as producer:
        for _ in range(micro_batches):
            producer.send_arrow("from", rows)


# How long the parts of a micro-batch took, in milliseconds, by Spark's names.
Durations = Mapping[str, int]


def source(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.format("kbatch").option("subscribe", "from")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS)
    return reader.load(str(folder)).select("key", "value")


def run(
    frame: DataFrame,
    sink: str,
    target: Path,
    checkpoint: Path,
    look: Callable[[int], object] = lambda _: None,
) -> list[Durations]:
    """Run a stream to its end and return its micro-batches with rows; `look` sees each number once or never."""
    frame.sparkSession.conf.set("spark.sql.streaming.numRecentProgressUpdates", MICRO_BATCHES + 10)
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(checkpoint))
    if sink == "kbatch":
        writer = writer.option("path", str(target)).option("topic", "to")
    query = writer.trigger(availableNow=True).start()
    seen = -1
    while not query.awaitTermination(1):
        now = _last_number(query)
        if now != seen:
            seen = now
            look(now)
    return [one.durationMs for one in query.recentProgress if one.numInputRows]


def _last_number(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last.batchId)


def median(found: Sequence[Durations], part: str = "triggerExecution") -> float:
    return statistics.median(one.get(part, 0) for one in found)


def bench_parts(spark: SparkSession, folder: Path, tmp_path: Path, targets: Targets) -> None:
    spark.dataSource.register(BareSource)
    fill(folder, SHORT)
    took: dict[str, list[float]] = {"kbatch": [], "bare": [], "noop": []}
    parts: dict[str, list[float]] = {}
    for number, (sink, times) in itertools.product(range(ROUNDS), took.items()):
        found = run(source(spark, folder), sink, folder, tmp_path / f"{sink} {number}")
        found = found[5:]  # of the first ones Python starts
        times.append(median(found))
        if sink == "kbatch":
            for part in found[0]:
                parts.setdefault(part, []).append(median(found, part))
    alone = job_alone(folder)
    table = Table(title="A micro-batch of 100 rows, ms", title_justify="left")
    for heading in ("", "median", "lowest", "highest"):
        table.add_column(heading, justify="right" if heading else "left")
    named = {f"into {sink}": times for sink, times in took.items()}
    named |= {f"of kbatch's, {part}": times for part, times in parts.items()} | alone
    for name, times in named.items():
        figures = (statistics.median(times), min(times), max(times))
        table.add_row(name, *(f"{one:,.1f}" for one in figures))
    targets.table(table)
    shares = [(ours - bare) / ours for ours, bare in zip(took["kbatch"], took["bare"], strict=True)]
    targets.at_most("our write and commit, of a micro-batch", statistics.median(shares), OURS_MAX)


def job_alone(folder: Path) -> dict[str, list[float]]:
    """Write micro-batches without Spark; return the times of the task and the commit, and of flushes in them."""
    options = parse_write_options({"path": str(folder), "topic": "to"})
    rows = pa.RecordBatch.from_pydict({"value": [b"v" * 100] * ROWS})
    found: dict[str, list[float]] = {}
    flushing = 0.0
    flush = files._to_disk

    def timed(descriptor: int) -> None:
        nonlocal flushing
        started = time.perf_counter()
        flush(descriptor)
        flushing += (time.perf_counter() - started) * 1e3

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(files, "_to_disk", timed)
        for number in range(BLOCK):
            job = begin_job(options, is_micro_batch=True)
            for what in ("task", "commit"):
                flushing, started = 0.0, time.perf_counter()
                if what == "task":
                    staged = [job.stage(iter([rows]), application_id="app", query_id="alone")]
                else:
                    job.commit_micro_batch(staged, number)
                took = (time.perf_counter() - started) * 1e3
                found.setdefault(f"{what} alone", []).append(took)
                found.setdefault(f"{what} alone, flushes", []).append(flushing)
    return found


def bench_growth_of_a_stream(
    spark: SparkSession, folder: Path, tmp_path: Path, targets: Targets
) -> None:
    fill(folder, MICRO_BATCHES)
    checkpoint = tmp_path / "checkpoint"
    memory: dict[int, tuple[float, float]] = {}
    left: dict[int, tuple[int, int]] = {}

    def look(number: int) -> None:
        if number // BLOCK not in memory:
            memory[number // BLOCK] = memory_mib()
            left[number // BLOCK] = (count_files(folder), count_files(checkpoint))

    found = run(source(spark, folder), "kbatch", folder, checkpoint, look)
    assert len(found) == MICRO_BATCHES
    parts = [part for part in found[-1] if max(one[part] for one in found[-BLOCK:]) > 2]
    table = Table(title=f"A stream of {MICRO_BATCHES} micro-batches, ms", title_justify="left")
    headings = [*parts, "Python MiB", "JVM MiB", "files", "of the checkpoint"]
    for heading in ("micro-batches", *headings):
        table.add_column(heading, justify="right" if heading in headings else "left")
    blocks = [found[at : at + BLOCK] for at in range(0, MICRO_BATCHES, BLOCK)]
    for number, block in enumerate(blocks):
        figures = [median(block, part) for part in parts]
        more = (*memory.get(number, ()), *left.get(number, ()))
        table.add_row(f"{number * BLOCK} to", *(f"{one:,.0f}" for one in (*figures, *more)))
    targets.table(table)
    growth = median(blocks[-1]) / median(blocks[1])
    targets.at_most("a micro-batch, the last hundred of the second", growth, GROWTH_MAX)


def memory_mib() -> tuple[float, float]:
    """Return what Spark's Python processes and the JVM hold, in MiB."""
    held = {True: 0.0, False: 0.0}
    for process in psutil.Process().children(recursive=True):
        try:
            held["python" in process.name()] += process.memory_info().rss / (1 << 20)
        except psutil.NoSuchProcess:
            continue
    return held[True], held[False]


def count_files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
