"""How do the costs of operations grow with a cluster?

One axis at a time grows: the partitions of a topic, the topics beside it, the segments of a partition,
the small batches of a segment, the commits of the past, the reads of the past. On each cluster of an
axis the same operations run in turn, on one topic and, but for planning and describing, on one of its
partitions: open the cluster and look up an offset, append a batch (also the first one of an idempotent
producer in a process), commit one record, plan a read, describe the topic, run a read. Unit:
milliseconds; a ratio is the median over rounds, each cluster by the smallest of its axis.

    flat     touches one thing: the largest takes at most FLAT_MAX times the smallest
    linear   goes over all of it: from each size to the next at most as many times as there is more of it

The first write of a process to a partition lists its directory, for what a dead writer may have left
there; so it is linear in the segments, and the next one is flat.

Before and after a change: `make bench`, then read the tables.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from rich.table import Table

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.commit.staging import Extent
from spark_kbatch.log.append import LogAppender
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.cluster import Cluster
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.store import reader_of, store_of
from tests.support.targets import Targets
from tests.support.topics_of_writes import task_producer

ROUNDS = 7
FLAT_MAX = 2.0
TOPICS_MAX = 1.5  # times, with 1,000 topics beside it
LINEAR_SLACK = 1.3
COMMIT_4000_MS_MAX = 50.0
TOPIC = "events"
PARTITION = TopicPartition(TOPIC, 0)


class Sized(NamedTuple):
    """A cluster of an axis, which has `size` of what grows."""

    size: int
    path: Path
    batch: bytes
    opened: Cluster  # in a process that has written to the partition before

    def options(self) -> dict[str, str]:
        return {"path": str(self.path), "flush": "false"}


def look_up(sized: Sized) -> None:
    """Open the cluster, and see where one partition ends."""
    reader_of(Cluster(str(sized.path))).edges([PARTITION])


def append(sized: Sized) -> None:
    """In a process that has done nothing before."""
    builders.append_records(Cluster(str(sized.path)), {tuple(PARTITION): sized.batch})


def append_again(sized: Sized) -> None:
    """Append in a process that has appended before."""
    builders.append_records(sized.opened, {tuple(PARTITION): sized.batch})


def append_first_idempotent(sized: Sized) -> None:
    """Append the first batch of an idempotent producer."""
    cluster = Cluster(str(sized.path))
    data = builders.idempotent_batch(
        base_sequence=0, producer_id=store_of(cluster).new_producer_id()
    )
    result = builders.append_records(cluster, {tuple(PARTITION): data})
    assert result[PARTITION].error is None


def commit(sized: Sized) -> None:
    """Commit one record, as a Spark job of one task does."""
    _commit(sized, Cluster(str(sized.path)))


def commit_again(sized: Sized) -> None:
    """Commit one record in a process that has written to the partition before."""
    _commit(sized, sized.opened)


def _commit(sized: Sized, cluster: Cluster) -> None:
    options = parse_write_options({**sized.options(), "topic": TOPIC})
    transaction = uuid.uuid4().hex
    (store_of(cluster).metadata.cluster_file.log_dir(0).staging / transaction).mkdir(parents=True)
    task = task_producer(store_of(cluster), transaction, options)
    task.append(pa.record_batch({"value": [b"x"], "partition": pa.array([0], pa.int32())}))
    staged = task.finish()
    coordinator = coordinator_for(store_of(cluster), options)
    coordinator.commit(staged, transactional_id=transaction)
    coordinator.discard(staged, transaction)


def plan(sized: Sized) -> None:
    options = parse_read_options({"path": str(sized.path), "subscribe": TOPIC})
    assert reader_of(Cluster(str(sized.path))).plan(options)


def describe(sized: Sized) -> None:
    assert Cluster(str(sized.path)).describe([TOPIC])


def read_the_last(sized: Sized) -> None:
    """Plan a read of one record at the end, agree on where it ends, and read it."""
    cluster = Cluster(str(sized.path))
    end = reader_of(cluster).edges([PARTITION])[PARTITION].high_watermark
    given = {"assign": f'{{"{TOPIC}":[0]}}', "startingOffsets": f'{{"{TOPIC}":{{"0":{end - 1}}}}}'}
    options = parse_read_options({"path": str(sized.path), **given})
    action = uuid.uuid4().hex
    rows = [
        rows.num_rows
        for task in reader_of(cluster).plan(options)
        for rows in reader_of(cluster).read_task(task, ["value"], options, action)
    ]
    assert sum(rows) >= 1


Operation = Callable[[Sized], None]
AGAIN: tuple[Operation, ...] = (look_up, append_again, commit_again)
FIRST: tuple[Operation, ...] = (append, append_first_idempotent, commit, read_the_last)
ON_ONE = AGAIN + FIRST
ON_ALL: tuple[Operation, ...] = (plan, describe)


def timed(operation: Operation, sized: Sized) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    operation(sized)
    return (time.perf_counter() - start) * 1e3


def measure(
    axis: str,
    clusters: Sequence[Sized],
    *,
    flat: Iterable[Operation] = ON_ONE,
    linear: Iterable[Operation] = (),
    targets: Targets,
    flat_max: float = FLAT_MAX,
) -> Mapping[tuple[str, int], float]:
    """Run the operations on each cluster in turn, print the table; median milliseconds."""
    limits: dict[Operation, str] = dict.fromkeys(flat, "flat") | dict.fromkeys(linear, "linear")
    found: dict[tuple[str, int], list[float]] = {}
    gc.disable()
    try:
        for number in range(ROUNDS + 1):
            for operation, sized in itertools.product(limits, clusters):
                gc.collect()
                milliseconds = timed(operation, sized)
                if number:  # The first round does not count.
                    found.setdefault((operation.__name__, sized.size), []).append(milliseconds)
    finally:
        gc.enable()
    sizes = [sized.size for sized in clusters]
    table = Table(title=f"by {axis}", title_justify="left")
    for heading in ("ms (times the first)", *(f"{size:,}" for size in sizes), "may be"):
        table.add_column(heading, justify="right" if heading[0].isdigit() else "left")
    steepest: dict[str, tuple[float, float]] = {}  # what was found, and what may be
    for operation, limit in limits.items():
        name = operation.__name__
        runs = [found[name, size] for size in sizes]
        ratios = [_ratio(run, runs[0]) for run in runs]
        if limit == "flat":
            steepest[name] = ratios[-1], flat_max
        else:
            steps = [
                _ratio(after, before) / (more / less)
                for (before, after), (less, more) in zip(
                    pairwise(runs), pairwise(sizes), strict=True
                )
            ]
            steepest[name] = max(steps), LINEAR_SLACK
        cells = [
            f"{statistics.median(run):,.3g} ({ratio:.2g})"
            for run, ratio in zip(runs, ratios, strict=True)
        ]
        table.add_row(name, *cells, limit)
    targets.table(table)
    for name, (ratio, most) in steepest.items():
        what = "the largest by the smallest" if name in {o.__name__ for o in flat} else "by size"
        targets.at_most(f"{name}, {what}, by {axis}", ratio, most)
    return {key: statistics.median(run) for key, run in found.items()}


def _ratio(run: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(mine / theirs for mine, theirs in zip(run, other, strict=True))


def a_cluster(
    folder: Path, size: int, *, partitions: int = 1, config: TopicConfig | None = None
) -> Sized:
    """With one record in partition 0 of the topic."""
    cluster = builders.a_cluster(folder / str(size), topics={TOPIC: partitions}, config=config)
    sized = Sized(size, cluster.path, builders.batch(n=1), cluster)
    append_again(sized)
    return sized


def bench_by_partitions(memory_path: Path, targets: Targets) -> None:
    clusters = [a_cluster(memory_path, n, partitions=n) for n in (10, 100, 1000, 4000)]
    # A commit records where all partitions of its topics end; a read looks which partitions there are.
    of_all = (commit, commit_again, read_the_last)
    flat = [one for one in ON_ONE if one not in of_all]
    found = measure(
        "partitions of the topic", clusters, flat=flat, linear=(*of_all, *ON_ALL), targets=targets
    )
    milliseconds = found["commit_again", 4000]
    what = "a commit of one record into a topic of 4,000 partitions"
    targets.at_most(what, milliseconds, COMMIT_4000_MS_MAX, " ms")


def bench_by_topics(memory_path: Path, targets: Targets) -> None:
    clusters = []
    for size in (1, 10, 100, 1000):
        clusters.append(a_cluster(memory_path, size))
        for number in range(size - 1):
            clusters[-1].opened.create_topic(f"other-{number}", partitions=10)
    measure("topics", clusters, flat=ON_ONE + ON_ALL, flat_max=TOPICS_MAX, targets=targets)


def bench_by_segments(memory_path: Path, targets: Targets) -> None:
    clusters = []
    for size in (1, 100, 1000, 10_000):
        clusters.append(a_cluster(memory_path, size, config=TopicConfig(segment_bytes=200)))
        _append_batches(clusters[-1], size - 1, builders.batch(n=1, value_bytes=100))
        log = store_of(clusters[-1].opened).manager.log(PARTITION)
        assert len(log.segments.bases(log.state())) == size
    measure(
        "segments of the partition", clusters, flat=AGAIN, linear=FIRST + ON_ALL, targets=targets
    )


def bench_by_small_batches(memory_path: Path, targets: Targets) -> None:
    clusters = []
    for size in (10_000, 100_000, 1_000_000):
        clusters.append(a_cluster(memory_path, size))
        _append_batches(clusters[-1], size, builders.batch(n=1, value_bytes=10))
    measure("small batches of the segment", clusters, flat=ON_ONE + ON_ALL, targets=targets)


def _append_batches(sized: Sized, count: int, batch: bytes) -> None:
    log = store_of(sized.opened).manager.log(PARTITION)
    appender = LogAppender(log, log.state(), now_ms=now_ms())
    for _ in range(count):
        appender.append(bytearray(batch))
    log.write_state(appender.finish(flush=False), flush=False)


def bench_by_commits(memory_path: Path, targets: Targets) -> None:
    clusters = []
    for size in (1, 100, 1000, 10_000):
        clusters.append(a_cluster(memory_path, size))
        for number in range(size):
            _commit_of_a_query(clusters[-1], number)
    measure("commits before", clusters, flat=ON_ONE + ON_ALL, targets=targets)


def _commit_of_a_query(sized: Sized, number: int) -> None:
    cluster = sized.opened
    extents: list[Extent] = builders.staged(cluster, {tuple(PARTITION): [sized.batch]})
    coordinator = coordinator_for(
        store_of(cluster), parse_write_options({**sized.options(), "topic": TOPIC})
    )
    coordinator.commit(extents, transactional_id=f"query-{number % 10}", sequence=number)
    coordinator.discard(extents, "job")


def bench_by_reads(memory_path: Path, targets: Targets) -> None:
    clusters = []
    for size in (1, 100, 1000, 10_000):
        clusters.append(a_cluster(memory_path, size))
        for _ in range(size):
            read_the_last(clusters[-1])
    measure("reads before", clusters, flat=ON_ONE + ON_ALL, targets=targets)
