"""How long does the driver take to publish what tasks have staged?

Units: milliseconds a commit, and seconds for many large files; the ceiling of those is the time that
writing the same bytes takes. Everything is staged beforehand, on the disk under pytest's folder.
Readers that poll, and processes that only burn the same CPU, take turns beside commits; a ratio is the
median over rounds. Before and after a change: `make bench`, then read the lines.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import COMMITS, TRANSACTION_STATE
from spark_kbatch.commit.staging import Extent, Staging
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.faults import run_child
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of
from tests.support.targets import Targets
from tests.support.topics_of_writes import task_producer

SMALL_COMMITS, SMALL_MS_MAX, SEGMENTS_MAX = 1000, 10.0, 3
FILES, FILE_BATCHES, BATCH_BYTES = 1000, 16, 1 << 20
FILES_S_MAX, FLUSH_SHARE_MAX = 3.0, 0.5
TASKS, TASK_PARTITIONS, TASK_ROWS, STAGED_FILES_MAX = 200, 100, 10, 1000
BESIDE, READERS_RATIO_MAX, SNAPSHOT_RATIO_MAX = 16, 1.2, 3.0
ROUNDS, COMMITS_A_ROUND = 7, 40


def commit(cluster: Cluster, extents: list[Extent], number: int, *, flush: bool = False) -> float:
    """Milliseconds."""
    coordinator = Coordinator(
        store_of(cluster).manager, now_ms, adopt_min_bytes=8 << 20, flush=flush
    )
    start = time.perf_counter()
    coordinator.commit(extents, transactional_id=f"job-{number}")
    return (time.perf_counter() - start) * 1e3


def small_jobs(cluster: Cluster, count: int) -> list[list[Extent]]:
    """100 rows each, in four partitions."""
    job = {("events", p): [builders.batch(n=25, seed=p)] for p in range(4)}
    return [builders.staged(cluster, job, transaction=f"job-{n}") for n in range(count)]


def bench_small_commits(tmp_path: Path, targets: Targets) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 4})
    jobs = small_jobs(cluster, SMALL_COMMITS)
    times = [commit(cluster, extents, number) for number, extents in enumerate(jobs)]
    targets.at_most(f"a commit of 100 rows, median of {SMALL_COMMITS}", statistics.median(times), SMALL_MS_MAX, " ms")  # fmt: skip
    partitions = [TopicPartition("events", p) for p in range(4)]
    for tp in (*partitions, COMMITS, TRANSACTION_STATE):
        log = store_of(cluster).manager.log(tp)
        ensure_sound(log)
        targets.at_most(f"segments of {tp}", len(log.segments.bases(log.state())), SEGMENTS_MAX)
    edges = reader_of(cluster).edges(partitions)
    assert sum(edges[tp].high_watermark for tp in partitions) == 100 * SMALL_COMMITS


def large_files(cluster: Cluster, count: int, batch: bytes, *, flush: bool) -> list[Extent]:
    """Each by a task of its own."""
    extents = []
    topic = cluster.topic("events")
    for number in range(count):
        staging = Staging(
            store_of(cluster).files,
            store_of(cluster).metadata.cluster_file.log_dir(0).staging,
            "job",
            shared_bytes_max=0,
            flush=flush,
        )
        for _ in range(FILE_BATCHES):
            staging.send(topic, number % topic.partitions, batch, 8)
        extents += staging.finish()
    return extents


def bench_large_files(tmp_path: Path, targets: Targets) -> None:
    batch = builders.batch(n=8, value_bytes=BATCH_BYTES // 8 - 100)
    file_bytes = FILE_BATCHES * len(batch)
    count = min(FILES, shutil.disk_usage(tmp_path).free // 8 // file_bytes)
    if count < FILES:
        targets.say(f"The disk is small: {count} files in place of {FILES}.")
    for flush in (False, True):
        cluster = builders.a_cluster(tmp_path / str(flush), topics={"events": 10})
        start = time.perf_counter()
        extents = large_files(cluster, count, batch, flush=flush)
        writing_s = time.perf_counter() - start
        publishing_s = commit(cluster, extents, 0, flush=flush) / 1e3
        edges = reader_of(cluster).edges(cluster.partitions("events"))
        assert sum(edge.high_watermark for edge in edges.values()) == count * FILE_BATCHES * 8
        limit = FLUSH_SHARE_MAX * writing_s if flush else FILES_S_MAX * count / FILES
        how = f"flushed, written in {writing_s:.3g} s" if flush else "not flushed"
        targets.at_most(
            f"publishing {count} files of {round(file_bytes / (1 << 20))} MiB, {how}",
            publishing_s,
            limit,
            " s",
        )
        shutil.rmtree(cluster.path)


def bench_many_tasks_and_partitions(tmp_path: Path, targets: Targets) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": TASK_PARTITIONS})
    options = parse_write_options({"path": str(cluster.path), "topic": "events", "flush": "false"})
    rows = pa.record_batch(
        {
            "value": [b"value" * 20] * (TASK_ROWS * TASK_PARTITIONS),
            "partition": pa.array(list(range(TASK_PARTITIONS)) * TASK_ROWS, pa.int32()),
        }
    )
    extents = []
    for _ in range(TASKS):
        task = task_producer(store_of(cluster), "job", options)
        task.append(rows)
        extents += task.finish()
    files = sum(
        len(names)
        for _, _, names in os.walk(store_of(cluster).metadata.cluster_file.log_dir(0).staging)
    )
    targets.at_most(
        f"files that {TASKS} tasks staged for {TASK_PARTITIONS} partitions", files, STAGED_FILES_MAX
    )
    seconds = commit(cluster, extents, 0) / 1e3
    targets.say(f"publishing their {len(extents):,} extents: {seconds:.3g} s")
    edges = reader_of(cluster).edges(cluster.partitions("events"))
    assert {edge.high_watermark for edge in edges.values()} == {TASKS * TASK_ROWS}


def poll(path: Path) -> None:
    cluster = Cluster(str(path))
    partitions = cluster.partitions("events")
    while True:
        reader_of(cluster).edges(partitions)


def burn(_path: Path) -> None:
    while True:
        sum(range(1000))


def commit_for_ever(path: Path) -> None:
    cluster = Cluster(str(path))
    for number in range(1 << 30):
        (extents,) = small_jobs(cluster, 1)
        commit(cluster, extents, number)
        store_of(cluster).files.remove_dir(
            store_of(cluster).metadata.cluster_file.log_dir(0).staging / "job-0"
        )


@contextmanager
def beside(work: Callable[[Path], None], path: Path, count: int) -> Iterator[None]:
    children = [run_child(lambda: work(path)) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def bench_readers_do_not_starve_commits(tmp_path: Path, targets: Targets) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 4})
    jobs = iter(small_jobs(cluster, 2 * ROUNDS * COMMITS_A_ROUND))
    ratios = []
    for _ in range(ROUNDS):
        found = {}
        for work in (poll, burn):
            with beside(work, cluster.path, BESIDE):
                times = [commit(cluster, next(jobs), n) for n in range(COMMITS_A_ROUND)]
            found[work] = sum(times)
        ratios.append(found[poll] / found[burn])
    what = (
        f"a commit beside {BESIDE} readers, in times of one beside {BESIDE} processes that burn CPU"
    )
    targets.at_most(what, statistics.median(ratios), READERS_RATIO_MAX)


def bench_commits_do_not_starve_snapshots(tmp_path: Path, targets: Targets) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 4})
    partitions = cluster.partitions("events")

    def snapshots() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            reader_of(cluster).edges(partitions)
        return time.perf_counter() - start

    ratios = []
    for _ in range(ROUNDS):
        alone = snapshots()
        with beside(commit_for_ever, cluster.path, 1):
            ratios.append(snapshots() / alone)
    what = "a snapshot beside commits without pause, in times of one alone"
    targets.at_most(what, statistics.median(ratios), SNAPSHOT_RATIO_MAX)
