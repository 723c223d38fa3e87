"""A cluster in a bucket, beside what the store takes, the same in a folder, and Delta Lake as a queue.

The store is versitygw, on the same cores, over a file system in memory if there is one; it is asked once for all
that it has before anything is measured.

    through Spark     ceiling: obstore's put or get of the same bytes, by as many threads as tasks, and the time
                      of the same job with a folder
    micro-batch       ceiling: a folder's, and three round trips
    open              seconds, of a topic with 10,000 commits
    a day             a topic of small objects, before it was merged and after
    queue             peer: Delta Lake (the package deltalake, with conditional puts): writers that append batches
                      of 1,000 rows, and a reader elsewhere that looks for them
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import shutil
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

import spark_kbatch
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.bucket.staging import DataObjects, WriterJob, append_of
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.bucket.urls import ledger_at
from spark_kbatch.ledger.entries import LedgerCommit, TopicCreation
from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.record.scalar import encode
from tests.support.interleaved import Candidate, Rates, interleave
from tests.support.object_servers import CLIENT, ObjectServer, versitygw
from tests.support.speeds import WITH_BUCKET, store_speeds
from tests.support.store_proxy import StoreProxy
from tests.support.targets import Targets

MILLION = 1_000_000
PARTITIONS, TASKS, ROUNDS = 4, 2, 7
OPEN_S = 0.5
_numbers = itertools.count()


@pytest.fixture
def server(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with versitygw(memory_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


def a_url(server: ObjectServer) -> str:
    return f"{server.url}-{next(_numbers)}"


def objects_at(server: ObjectServer, url: str) -> RealObjects:
    return RealObjects(url, server.config(), CLIENT)


@pytest.fixture
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    made = (
        spark.range(0, 2 * MILLION, 1, TASKS)
        .select(
            F.lpad(F.hex("id"), 16, "k").cast("binary").alias("key"),
            F.rpad(F.sha2(F.col("id").cast("string"), 256), 100, "v").cast("binary").alias("value"),
        )
        .persist()
    )
    made.count()
    yield made
    made.unpersist()


def write(rows: DataFrame, path: str, server: ObjectServer) -> None:
    writer = rows.write.format("kbatch").mode("append").option("topic", "t")
    if "://" in path:  # Spark's processes have the environment of its start
        writer = writer.options(**server.options())
    writer.option("num.partitions", PARTITIONS).option("flush", False).save(path)


def read(spark: SparkSession, path: str, server: ObjectServer) -> None:
    frame = spark.read.format("kbatch").option("subscribe", "t").schema("key binary, value binary")
    if "://" in path:
        frame = frame.options(**server.options())
    frame.load(path).write.format("noop").mode("overwrite").save()


def bench_through_spark(
    spark: SparkSession,
    rows: DataFrame,
    server: ObjectServer,
    memory_path: Path,
    targets: Targets,
) -> None:
    filled, folder, new = a_url(server), memory_path / "folder", memory_path / "new"
    write(rows, filled, server)
    write(rows, str(folder), server)
    objects = objects_at(server, filled)
    data = [one for one in objects.list("") if "/data/" in one.name]
    contents = [objects.get(one.name) or b"" for one in data]
    copies = objects_at(server, a_url(server))

    def put() -> None:
        with ThreadPoolExecutor(TASKS) as pool:
            for at, content in enumerate(contents):
                pool.submit(_put_in_parts, copies, f"data/{at}", content)

    def get() -> None:
        with ThreadPoolExecutor(TASKS) as pool:
            assert sum(
                len(found or b"") for found in pool.map(objects.get, [one.name for one in data])
            )

    units = rows.count() / 1e6
    rates = interleave(
        {
            "put": Candidate(put, units),
            "folder write": Candidate(
                lambda: write(rows, str(new), server), units, lambda: shutil.rmtree(new)
            ),
            "bucket write": Candidate(lambda: write(rows, a_url(server), server), units),
            "get": Candidate(get, units),
            "folder read": Candidate(lambda: read(spark, str(folder), server), units),
            "bucket read": Candidate(lambda: read(spark, filled, server), units),
        },
        rounds=ROUNDS,
    )
    _add_sum(rates, "put and folder write", "put", "folder write")
    _add_sum(rates, "get and folder read", "get", "folder read")
    wanted = {
        ("bucket write", "put and folder write"): 1 / 1.15,
        ("bucket read", "get and folder read"): 1 / 1.15,
    }
    targets.rates(rates, "Through Spark, local[2], 100-byte values", "M rows/s", wanted)


def _put_in_parts(objects: RealObjects, name: str, content: bytes) -> None:
    upload = objects.upload(name)
    for start in range(0, len(content), 1 << 20):
        upload.write(content[start : start + (1 << 20)])
    upload.finish()


def _add_sum(rates: Rates, name: str, *parts: str) -> None:
    """Add the rate of what takes as long as some others together."""
    rounds = zip(*(rates.rates[part] for part in parts), strict=True)
    rates.rates[name] = [1 / sum(1 / rate for rate in some) for some in rounds]


def bench_micro_batches(
    spark: SparkSession, server: ObjectServer, memory_path: Path, targets: Targets
) -> None:
    rows = spark.range(100).select(F.col("id").cast("string").alias("value")).coalesce(1)
    url, folder = a_url(server), str(memory_path / "folder")
    objects = objects_at(server, a_url(server))
    objects.put("one", b"x")
    rates = interleave(
        {
            "bucket": Candidate(lambda: write(rows, url, server), 1),
            "folder": Candidate(lambda: write(rows, folder, server), 1),
            "round trip": Candidate(lambda: [objects.get("one") for _ in range(10)], 10),
        },
        rounds=15,
    )
    rates.rates["three"] = [rate / 3 for rate in rates.rates["round trip"]]
    _add_sum(rates, "folder and three round trips", "folder", "three")
    wanted = {("bucket", "folder and three round trips"): 1.0}
    targets.rates(rates, "A job of 100 rows", "jobs/s", wanted)


def small_commits(url: str, count: int, *, partitions: int, tasks: int) -> None:
    """Fill a new topic as micro-batches of so many tasks do, with three records of each in each partition."""
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("another")
    ledger = ledger_at(url)
    topic = TopicCreation("small-" + "0" * 16, "small", (0,) * partitions)
    ledger.commit(lambda _state: topic)
    batch = encode([(b"key", b"a value of some bytes")] * 3, 1)
    with ThreadPoolExecutor(tasks) as pool:
        for _ in range(count):
            job = WriterJob.at(ledger.state.number, ledger.timing.rng)

            def stage(_task: int, job: WriterJob = job) -> Any:
                data = DataObjects(ledger.objects, job, ledger.timing.rng)
                for partition in range(partitions):
                    data.send(topic.topic_id, partition, memoryview(bytearray(batch)))
                return data.finish()

            staged = [*pool.map(stage, range(tasks))]

            def commit(state: Any, staged: Sequence[Any] = staged) -> LedgerCommit:
                heads = state.topics[topic.topic_id].partitions
                return LedgerCommit(
                    {
                        topic.topic_id: [
                            append_of(
                                at,
                                [one for found in staged for one in found[topic.topic_id, at]],
                                heads[at].next_offset,
                            )
                            for at in range(partitions)
                        ]
                    }
                )

            ledger.commit(commit)


def bench_open(server: ObjectServer, targets: Targets) -> None:
    url = a_url(server)
    small_commits(url, 10_000, partitions=1, tasks=1)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        BucketStore(url).views(BucketStore(url).partitions("small"))
        seconds.append(time.perf_counter() - started)
    targets.at_most("open a topic with 10,000 commits", statistics.median(seconds), OPEN_S, " s")


def bench_a_day_of_small_objects(server: ObjectServer, targets: Targets) -> None:
    """A hundredth of the commits of a day at one each 10 s: 86 of 8 tasks, each with 100 partitions."""
    url = a_url(server)
    small_commits(url, 86, partitions=100, tasks=8)
    with StoreProxy(server.address) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(proxy.address).items():
            patch.setenv(name, value)
        for when in ("before it is merged", "after"):
            options = parse_read_options({"path": url, "subscribe": "small"})
            proxy.asked.clear()
            tracemalloc.start()
            tasks = open_topics(options).plan(options)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            planned = len(proxy.asked)
            started, count = time.perf_counter(), 0
            reader = open_topics(options)
            for task in tasks:
                for batch in reader.read_task(task, ["offset", "value"], options, when):
                    count += batch.num_rows
            assert count == 86 * 8 * 3 * 100
            targets.say(
                f"a read {when}: {len(tasks)} tasks, {planned} requests and {peak / 2**20:.1f} MiB for the "
                f"plan, {len(proxy.asked) - planned} requests and {time.perf_counter() - started:.2f} s for "
                f"{count} records"
            )
            Maintenance(url).run(run_extents=2)


# As a queue.

QUEUE_ROWS, QUEUE_S = 1000, 10
DELTA = {"conditional_put": "etag", "aws_allow_http": "true"}
VALUES = pa.array([b"%0100d" % at for at in range(QUEUE_ROWS)])


def append_kbatch(url: str) -> Callable[[], None]:
    """Return what appends rows as a Spark job does: stage, then commit."""
    from spark_kbatch.opening.stores import begin_job  # noqa: PLC0415  in a process of its own
    from spark_kbatch.options.write import parse_write_options  # noqa: PLC0415

    options = parse_write_options({"path": url, "topic": "queue"})

    def append() -> None:
        times = pa.array([int(time.time() * 1e6)] * QUEUE_ROWS, pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_arrays([VALUES, times], ["value", "timestamp"])
        job = begin_job(options)
        job.commit_batch([job.stage(iter([batch]), application_id="bench")])

    return append


def append_delta(url: str) -> Callable[[], None]:
    import deltalake  # noqa: PLC0415  in a process of its own
    from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

    def append() -> None:
        rows = _delta_rows()
        while True:  # it gives up after 15 lost races
            with contextlib.suppress(CommitFailedError):
                deltalake.write_deltalake(url, rows, mode="append", storage_options=DELTA)
                return

    return append


def _delta_rows() -> pa.Table:
    times = pa.array([time.time_ns() // 1_000_000] * QUEUE_ROWS)
    return pa.table({"value": VALUES, "time": times})


def write_kbatch(url: str, ready: Barrier, out: Any, seconds: float) -> None:
    _write_for_a_while(append_kbatch(url), ready, out, seconds)


def write_delta(url: str, ready: Barrier, out: Any, seconds: float) -> None:
    _write_for_a_while(append_delta(url), ready, out, seconds)


def _write_for_a_while(
    append: Callable[[], None], ready: Barrier, out: Any, duration_s: float
) -> None:
    append()
    ready.wait()
    seconds, end = list[float](), time.perf_counter() + duration_s
    while time.perf_counter() < end:
        started = time.perf_counter()
        append()
        seconds.append(time.perf_counter() - started)
    out.put(seconds)


def follow_kbatch(url: str, end: Any, out: Any) -> None:
    """Look for new batches of rows, and note how long after its time each is there."""
    lags = list[float]()
    with spark_kbatch.open(url) as cluster:
        at = cluster.describe(["queue"])[0].offsets.high_watermark
        while not end.is_set():
            for batch in cluster.read("queue", start=at, columns=["offset", "timestamp"]):
                if batch.num_rows:
                    at = batch["offset"][-1].as_py() + 1
                    last = batch["timestamp"].cast(pa.int64())[-1].as_py()
                    lags.append(time.time() - last / _units(batch["timestamp"].type))
            time.sleep(0.02)
    out.put(lags)


def _units(kind: pa.DataType) -> float:
    return {"ms": 1e3, "us": 1e6}[kind.unit]


def follow_delta(url: str, end: Any, out: Any) -> None:
    """Likewise: follow the table's log, and read the files that are new."""
    import deltalake  # noqa: PLC0415  in a process of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = deltalake.DeltaTable(url, storage_options=DELTA)
    objects, lags = RealObjects(url, {}, CLIENT), list[float]()
    files = set(table.file_uris())
    while not end.is_set():
        table.update_incremental()
        new = set(table.file_uris()) - files
        files |= new
        for one in new:
            data = objects.get(one.removeprefix(f"{url}/"))
            times = pq.read_table(pa.BufferReader(data or b""), columns=["time"])["time"]
            lags.append(time.time() - times[-1].as_py() / 1e3)
        time.sleep(0.02)
    out.put(lags)


class Queue(NamedTuple):
    """What was measured of one kind of queue."""

    rows_per_s: float
    commits_s: list[float]
    lags_s: list[float]
    requests: float  # of a commit


def measured(kind: str, server: ObjectServer, writers: int) -> Queue:
    url = f"s3://{a_url(server).partition('://')[2]}-{kind}"
    write, follow = {
        "kbatch": (write_kbatch, follow_kbatch),
        "Delta": (write_delta, follow_delta),
    }[kind]
    context = multiprocessing.get_context("spawn")
    end, told, lags = context.Event(), context.Queue(), context.Queue()
    ready = context.Barrier(writers + 1)
    if kind == "kbatch":
        with spark_kbatch.open(url, create=True) as cluster:
            cluster.create_topic("queue")
    else:
        import deltalake  # noqa: PLC0415  only here

        deltalake.DeltaTable.create(url, _delta_rows().schema, storage_options=DELTA)
    processes = [
        context.Process(target=write, args=(url, ready, told, QUEUE_S)) for _ in range(writers)
    ]
    reader = context.Process(target=follow, args=(url, end, lags))
    for process in (*processes, reader):
        process.start()
    ready.wait()
    commits = [second for _ in processes for second in told.get(timeout=120)]
    for process in processes:
        process.join()
    end.set()
    found = lags.get(timeout=60)
    reader.join()
    return Queue(len(commits) * QUEUE_ROWS / QUEUE_S, commits, found, _requests(kind, server, url))


def _requests(kind: str, server: ObjectServer, url: str) -> float:
    """Return the requests of one commit, by writers that take turns."""
    with StoreProxy(server.address) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(proxy.address).items():
            patch.setenv(name, value)
        append = (append_kbatch if kind == "kbatch" else append_delta)(url)
        append()
        proxy.asked.clear()
        for _ in range(10):
            append()
        return len(proxy.asked) / 10


@pytest.mark.parametrize("writers", [1, 4, 16])
def bench_as_a_queue(server: ObjectServer, writers: int, targets: Targets) -> None:
    pytest.importorskip("deltalake", reason="`make bench-bucket` installs it")
    found = {
        kind: [measured(kind, server, writers) for _ in range(2)] for kind in ("kbatch", "Delta")
    }
    shown = {}
    for kind, rounds in found.items():
        commits = sorted(second for one in rounds for second in one.commits_s)
        lags = [second for one in rounds for second in one.lags_s]
        shown[kind] = (
            statistics.mean(one.rows_per_s for one in rounds),
            1000 * statistics.median(commits),
            1000 * commits[len(commits) * 99 // 100],
            1000 * statistics.median(lags),
            rounds[0].requests,
        )
        targets.say(
            f"{writers} writers, {kind}: {shown[kind][0]:,.0f} rows/s, commit p50 {shown[kind][1]:.0f} ms, "
            f"p99 {shown[kind][2]:.0f} ms, seen after {shown[kind][3]:.0f} ms, {shown[kind][4]:.1f} requests a commit"
        )
    ours, theirs = shown["kbatch"], shown["Delta"]
    targets.at_least(f"{writers} writers: rows/s, of Delta's", ours[0] / theirs[0], 1.0)
    if writers == 16:
        store_speeds(WITH_BUCKET, {"queue/delta": ours[0] / theirs[0]})
    for at, what in enumerate(
        ("p50 of a commit", "p99 of a commit", "seen after", "requests"), start=1
    ):
        targets.at_most(f"{writers} writers: {what}, of Delta's", ours[at] / theirs[at], 1.0)
