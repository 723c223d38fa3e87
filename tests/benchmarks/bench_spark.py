"""The cost of kbatch on top of what Spark takes for any Python source.

Unit: million rows a second through a whole Spark job, local[2]; 16-byte keys, 4 partitions, flush off, on
a file system in memory if there is one, to leave out the disk's own time. Ceiling of writing: a writer
that drops the same Arrow batches. Ceiling of reading: a source that yields as many ready-made batches of
the same columns. Peer: Parquet.

With a codec the ceiling is computed in each round: the time of the job that drops or yields ready-made
batches, plus the time that the codec's library alone takes for the same bytes, divided by the two cores.
Without one, a limit is computed in the same way from the time that the file system takes to store, or to
fetch, the bytes of the log. No source that stores its rows is faster; a target does not depend on it.

A condition (`where`) is compared with Spark's own filter of the same read, with a read of no rows, and with
one of a topic that has the rows alone; KBATCH_BENCH_WHERE_ROWS says of how many, 20 million by default.

Planning and first use are latencies, in times of the same on an empty cluster, and in seconds.

Before and after a change: `make bench`, then read the ratios.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

from spark_kbatch import Cluster
from spark_kbatch.consumer.reading import FETCH_BYTES, PIECE_BYTES
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from spark_kbatch.model import CODECS
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import compression
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD, walk
from tests.support.interleaved import Candidate, Rates, interleave
from tests.support.keyed_rows import (
    ROWS_OF_A_KEY,
    WHERE_ROWS,
    keyed_rows,
    one_key,
    say_bytes,
    time_of_row,
)
from tests.support.spark_sources import BareSource
from tests.support.speeds import WITH_FOLDER, store_speeds
from tests.support.targets import Targets

MILLION = 1_000_000
PARTITIONS, CORES = 4, 2
BATCH_BYTES = 1 << 20  # the default batch.size of a write through Spark
ROUNDS = 7
COMPRESSED = 0.88  # of the limit
PLANNING = 1.2  # times an empty cluster
FIRST_USE_S = 3.0


@pytest.fixture
def rows(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[DataFrame]:
    """Rows that Spark keeps, as many and with values as long as the benchmark's parameters say."""
    count, value_bytes = request.param
    spark.dataSource.register(BareSource)
    record_kernels.load()
    routing.load()
    value = F.rpad(F.sha2(F.col("id").cast("string"), 256), value_bytes, "v").cast("binary")
    made = (
        spark.range(0, count, 1, PARTITIONS)
        .select(F.lpad(F.hex("id"), 16, "k").cast("binary").alias("key"), value.alias("value"))
        .persist()
    )
    assert made.count() == count
    yield made
    made.unpersist()


def file_system(path: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype


def write(rows: DataFrame, source: str, path: Path, codec: str = "none") -> None:
    writer = rows.write.format(source).mode("append")
    if source == "kbatch":
        writer = (
            writer.option("topic", "t")
            .option("num.partitions", PARTITIONS)
            .option("flush", False)
            .option("kafka.compression.type", codec)
        )
    elif source == "parquet":
        writer = writer.option("compression", codec)
    writer.save(str(path))


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def log_at(spark: SparkSession, path: Path, schema: str = "") -> DataFrame:
    reader = spark.read.format("kbatch").option("subscribe", "t")
    return (reader.schema(schema) if schema else reader).load(str(path))


def ready_made(spark: SparkSession, count: int, value_bytes: int, columns: str) -> DataFrame:
    """Return batches of as many rows as a piece of the log has."""
    return (
        spark.read.format("bare")
        .options(
            rows=count,
            partitions=PARTITIONS,
            batchrows=PIECE_BYTES // (value_bytes + 20),
            valuebytes=value_bytes,
            columns=columns,
        )
        .load()
    )


@pytest.mark.parametrize(
    ("rows", "limits"),
    [
        pytest.param((4 * MILLION, 100), (0.85, 0.92, 0.92), id="100 bytes"),
        pytest.param((MILLION, 1000), (0.75, 0.85, 0.85), id="1 KB"),
    ],
    indirect=["rows"],
)
def bench_write_and_read(
    spark: SparkSession,
    rows: DataFrame,
    limits: tuple[float, float, float],
    memory_path: Path,
    targets: Targets,
) -> None:
    count = rows.count()
    value_bytes = len(rows.first()["value"])
    filled, parquet, new = (memory_path / name for name in ("read", "read.parquet", "new"))
    copied = memory_path / "copied"
    write(rows, "kbatch", filled)
    write(rows, "parquet", parquet)
    # Spark asks a Python source for every column of its schema, so a reader of two names two.
    two = log_at(spark, filled, "key binary, value binary")
    assert two.count() == count
    ready_two = ready_made(spark, count, value_bytes, "two")
    seven = "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"
    all_columns = log_at(spark, filled).select(*seven)
    ready_all = ready_made(spark, count, value_bytes, "seven")

    logs = sorted(filled.glob("broker-0/t-*/*.log"))

    def tidy() -> None:
        shutil.rmtree(new, ignore_errors=True)
        copied.unlink(missing_ok=True)

    units = count / 1e6
    rates = interleave(
        {
            "drop": Candidate(lambda: write(rows, "bare", memory_path / "nothing"), units),
            "store": Candidate(lambda: store(copied, sum(map(file_size, logs))), units, tidy),
            "kbatch write": Candidate(lambda: write(rows, "kbatch", new), units, tidy),
            "Parquet write": Candidate(lambda: write(rows, "parquet", new), units, tidy),
            "ready made": Candidate(lambda: consume(ready_two), units),
            "fetch": Candidate(lambda: fetch(logs), units),
            "kbatch read": Candidate(lambda: consume(two), units),
            "Parquet read": Candidate(lambda: consume(spark.read.parquet(str(parquet))), units),
            "ready made, 7 columns": Candidate(lambda: consume(ready_all), units),
            "kbatch read, 7 columns": Candidate(lambda: consume(all_columns), units),
        },
        rounds=ROUNDS,
    )
    add_limit(rates, "write limit", bridge="drop", work="store")
    add_limit(rates, "read limit", bridge="ready made", work="fetch")
    add_limit(rates, "read limit, 7 columns", bridge="ready made, 7 columns", work="fetch")
    of_write, of_read, of_seven = limits
    targets.rates(
        rates,
        f"Through Spark, local[2], {value_bytes}-byte values, on {file_system(memory_path)}",
        "M rows/s",
        {
            ("kbatch write", "drop"): of_write,
            ("kbatch read", "ready made"): of_read,
            ("kbatch read, 7 columns", "ready made, 7 columns"): of_seven,
        },
    )
    for done, limit in (
        ("kbatch write", "write limit"),
        ("kbatch read", "read limit"),
        ("kbatch read, 7 columns", "read limit, 7 columns"),
    ):
        targets.ratio(rates, done, limit)
    if value_bytes == 100:
        found = {
            "read/parquet": rates.ratio("kbatch read", "Parquet read"),
            "read/bridge": rates.ratio("kbatch read", "ready made"),
            "write/parquet": rates.ratio("kbatch write", "Parquet write"),
            "write/bridge": rates.ratio("kbatch write", "drop"),
        }
        store_speeds(WITH_FOLDER, found)


@pytest.mark.parametrize("rows", [pytest.param((4 * MILLION, 100), id="100 bytes")], indirect=True)
def bench_count(spark: SparkSession, rows: DataFrame, memory_path: Path, targets: Targets) -> None:
    """Count a log's offsets, which takes its batches' headers; an action takes 0.5 s by itself."""
    log = memory_path / "log"
    for _ in range(4):
        write(rows, "kbatch", log)
    count = 4 * rows.count()
    ready = ready_made(spark, count, 100, "offset")

    def count_offsets() -> None:
        assert log_at(spark, log, "offset long").count() == count

    units = count / 1e6
    rates = interleave(
        {
            "kbatch read, 7 columns": Candidate(lambda: consume(log_at(spark, log)), units),
            "ready made, count() of offsets": Candidate(ready.count, units),
            "kbatch count() of offsets": Candidate(count_offsets, units),
        },
        rounds=ROUNDS,
    )
    title = f"{count // MILLION} M rows counted, local[2], on {file_system(memory_path)}"
    wanted = {("kbatch count() of offsets", "kbatch read, 7 columns"): 4.0}
    targets.rates(rates, title, "M rows/s", wanted)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
@pytest.mark.parametrize("rows", [pytest.param((2 * MILLION, 100), id="100 bytes")], indirect=True)
def bench_compressed(
    spark: SparkSession, rows: DataFrame, codec: str, memory_path: Path, targets: Targets
) -> None:
    count = rows.count()
    filled, parquet, new = (memory_path / name for name in ("read", "read.parquet", "new"))
    write(rows, "kbatch", filled, codec)
    write(rows, "parquet", parquet, codec)
    log = log_at(spark, filled, "key binary, value binary")
    assert log.count() == count
    ready = ready_made(spark, count, 100, "two")
    number = CODECS[codec]
    stored = list(compressed_records(filled))
    records = [bytes(compression.decompress(number, one)) for one in stored]

    def tidy() -> None:
        shutil.rmtree(new, ignore_errors=True)

    def library(work: Callable[[int, bytes], object], parts: list[bytes]) -> None:
        for part in parts:
            work(number, part)

    units = count / 1e6
    rates = interleave(
        {
            "drop": Candidate(lambda: write(rows, "bare", memory_path / "nothing"), units),
            "compress": Candidate(lambda: library(compression.compress, records), units),
            "kbatch write": Candidate(lambda: write(rows, "kbatch", new, codec), units, tidy),
            "Parquet write": Candidate(lambda: write(rows, "parquet", new, codec), units, tidy),
            "ready made": Candidate(lambda: consume(ready), units),
            "decompress": Candidate(lambda: library(compression.decompress, stored), units),
            "kbatch read": Candidate(lambda: consume(log), units),
            "Parquet read": Candidate(lambda: consume(spark.read.parquet(str(parquet))), units),
        },
        rounds=ROUNDS,
    )
    add_limit(rates, "write limit", bridge="drop", work="compress")
    add_limit(rates, "read limit", bridge="ready made", work="decompress")
    targets.rates(
        rates,
        f"{codec} through Spark, local[2], 100-byte values; the codec alone on one core",
        "M rows/s",
        {
            ("kbatch write", "write limit"): COMPRESSED,
            ("kbatch read", "read limit"): COMPRESSED,
        },
    )


def compressed_records(path: Path) -> Iterator[bytes]:
    """Yield the compressed part of each batch of the cluster's topic."""
    for log in sorted(path.glob("broker-0/t-*/*.log")):
        data = log.read_bytes()
        for position, header in walk(data):
            yield data[position + RECORD_BATCH_OVERHEAD : position + header.size_in_bytes]


def store(path: Path, size: int) -> None:
    """Write bytes to a new file, as many as a batch has at a time."""
    batch = memoryview(bytes(BATCH_BYTES))
    with path.open("wb", buffering=0) as file:
        for position in range(0, size, BATCH_BYTES):
            file.write(batch[: size - position])


def fetch(paths: list[Path]) -> None:
    """Read files, as much as a read of a log fetches at a time."""
    buffer = bytearray(FETCH_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def file_size(path: Path) -> int:
    return path.stat().st_size


def add_limit(rates: Rates, name: str, *, bridge: str, work: str) -> None:
    """Add the rate at which the bridge's work and some other, shared by all cores, are done."""
    pairs = zip(rates.rates[bridge], rates.rates[work], strict=True)
    rates.rates[name] = [1 / (1 / one + 1 / (CORES * other)) for one, other in pairs]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def bench_where(spark: SparkSession, codec: str, memory_path: Path, targets: Targets) -> None:
    """Only some rows: by a condition of the source, beside Spark's filter of all; bytes are counted."""
    spark.dataSource.register(BareSource)
    log, late = memory_path / "log", memory_path / "late"
    middle = WHERE_ROWS // 100 * 99
    write(keyed_rows(spark, 0, middle), "kbatch", log, codec)
    for path in (log, late):
        write(keyed_rows(spark, middle, WHERE_ROWS), "kbatch", path, codec)
    with Cluster(str(log)) as cluster:
        cluster.create_topic("empty", PARTITIONS)
    a_key = f"key = '{one_key(7)}'"
    a_hundred = "partition = 1 AND offset BETWEEN 1000 AND 1099"
    since = f"timestamp >= TIMESTAMP '{time_of_row(middle)}Z'"

    def found(where: str, count: int) -> Callable[[], None]:
        frame = spark.read.format("kbatch").option("subscribe", "t").option("where", where)

        def collect() -> None:
            assert len(frame.load(str(log)).select("key", "value").collect()) == count

        return collect

    def filtered() -> None:
        rows = log_at(spark, log).filter(F.col("key") == F.lit(one_key(7).encode()))
        assert len(rows.select("key", "value").collect()) == ROWS_OF_A_KEY

    def consumed(where: str = "", path: Path = log) -> Callable[[], None]:
        frame = spark.read.format("kbatch").option("subscribe", "t")
        frame = frame.option("where", where) if where else frame
        return lambda: consume(frame.load(str(path)))

    empty = spark.read.format("kbatch").option("subscribe", "empty")
    millions = WHERE_ROWS / MILLION
    title = f"{millions:g} M rows, {WHERE_ROWS // ROWS_OF_A_KEY:,} keys, {codec}"
    rates = interleave(
        {
            "one key": Candidate(found(a_key, ROWS_OF_A_KEY), millions),
            "Spark's filter": Candidate(filtered, millions),
            "all match": Candidate(consumed("key IS NOT NULL AND timestamp >= TIMESTAMP '2000-01-01 00:00:00Z'"), millions),
            "no condition": Candidate(consumed(), millions),
        },
        rounds=ROUNDS,
    )  # fmt: skip
    wanted = {
        ("one key", "Spark's filter"): 4.0 if codec == "none" else 2.0,
        ("all match", "no condition"): 1 / 1.1,
    }
    targets.rates(rates, f"where, {title}", "M rows/s", wanted)
    few = interleave(
        {
            "100 rows by offset": Candidate(found(a_hundred, 100), 1),
            "an empty topic": Candidate(lambda: empty.load(str(log)).collect(), 1),
        },
        rounds=2 * ROUNDS,
    )
    wanted = {("100 rows by offset", "an empty topic"): 1 / 1.15}
    targets.rates(few, f"where, {title}, 100 rows", "a second", wanted)
    hundredth = interleave(
        {
            "the last hundredth": Candidate(consumed(since), millions / 100),
            "a topic of these alone": Candidate(consumed(path=late), millions / 100),
        },
        rounds=2 * ROUNDS,
    )
    wanted = {("the last hundredth", "a topic of these alone"): 1 / 1.15}
    targets.rates(hundredth, f"where, {title}, the last hundredth", "M rows/s", wanted)
    with Cluster(str(log)) as cluster:
        say_bytes(cluster, "t", [a_key, a_hundred, since], targets)


def bench_planning(spark: SparkSession, memory_path: Path, targets: Targets) -> None:
    """Measure load() to the first row, beside 1,000 topics of 10 partitions and 10,000 segments."""
    empty, full = memory_path / "empty", memory_path / "full"
    for path in (empty, full):
        with Cluster(str(path), create=True) as cluster:
            cluster.create_topic("t")
            with cluster.producer(flush=False) as producer:
                producer.send("t", b"value")
    with Cluster(str(full)) as cluster:
        for number in range(1000):
            cluster.create_topic(f"other-{number}", partitions=10)
        config = TopicConfig(segment_bytes=1000)
        cluster.create_topic("segments", partitions=1, config=config)
        with cluster.producer(flush=False, batch_size=0) as producer:
            for _ in range(10_000):
                producer.send("segments", b"v" * 900)

    def first_row(path: Path, topic: str) -> None:
        found = spark.read.format("kbatch").option("subscribe", topic).load(str(path))
        assert found.select("value").limit(1).collect()

    rates = interleave(
        {
            "empty cluster": Candidate(lambda: first_row(empty, "t"), 1),
            "beside 1,000 topics": Candidate(lambda: first_row(full, "t"), 1),
            "of 10,000 segments": Candidate(lambda: first_row(full, "segments"), 1),
        },
        rounds=2 * ROUNDS,
    )
    beside = ("beside 1,000 topics", "of 10,000 segments")
    targets.rates(
        rates,
        "load() to the first row",
        "a second",
        {(name, "empty cluster"): 1 / PLANNING for name in beside},
    )


_FIRST_USE = """
import sys, time
import spark_kbatch
from tests.support.interleaved import bulk_rows

what, path = sys.argv[1:]
rows = bulk_rows(1000, key_bytes=16, value_bytes=100)
with spark_kbatch.open(path, create=True) as cluster:
    start = time.perf_counter()
    if what == "write":
        cluster.create_topic("t")
        with cluster.producer() as producer:
            producer.send_arrow("t", rows)
    else:
        assert cluster.read("t").read_all().num_rows == 1000
    print(time.perf_counter() - start)
"""


def bench_first_use(tmp_path: Path, targets: Targets) -> None:
    """Measure the first write and read of a machine: processes with an empty cache for kernels."""
    found: dict[str, list[float]] = {"write": [], "read": []}
    for number in range(3):
        for what in found:
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, "-c", _FIRST_USE, what, str(tmp_path / str(number))],
                    check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
                    env=os.environ | {"NUMBA_CACHE_DIR": cache, "XDG_CACHE_HOME": cache},
                )  # fmt: skip
            found[what].append(float(done.stdout))
    for what, seconds in found.items():
        targets.at_most(f"the first {what}", statistics.median(seconds), FIRST_USE_S, " s")
