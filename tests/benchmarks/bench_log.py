"""How fast is a log of very many segments opened, and an offset or a time found in it?

Unit: milliseconds; 10,000 segments of one small batch each, so 30,000 files, in memory. Opening is
reading the state and the list of segments, with nothing remembered. Its ceiling is `os.scandir` of the
directory. Then an offset anywhere and a time anywhere are found in the open log. What the first look
for a time costs beyond that, because it takes the largest time of each segment before the answer, is
shown and has no target. Before and after a change: `make bench`, then read the times.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from spark_kbatch.files import Files
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.model import OffsetAndTimestamp, ReadRange, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import reference
from tests.support.reference import Record
from tests.support.targets import Targets

SEGMENTS = 10_000
RECORDS = 3  # a segment
STEP_MS = 1000
ROUNDS = 50
OPEN_MS_MAX, FIND_MS_MAX = 100.0, 5.0
CONFIG = TopicConfig(segment_bytes=200)


def opened(directory: Path) -> PartitionLog:
    log = PartitionLog(Files(), directory, TopicPartition("events", 0), CONFIG)
    assert len(log.segments.bases(log.state())) == SEGMENTS
    return log


def find(log: PartitionLog, time_ms: int) -> OffsetAndTimestamp | None:
    state = log.state()
    return log.offset_for_timestamp(state, time_ms, end_offset=state.high_watermark)


@pytest.fixture
def directory(memory_path: Path) -> Path:
    log = PartitionLog(Files(), memory_path / "events-0", TopicPartition("events", 0), CONFIG)
    log.create("a-topic-id-of-22-chars")
    appender = LogAppender(log, log.state(), now_ms=0)
    for number in range(SEGMENTS):
        first = number * STEP_MS
        records = [Record(at, first + at, b"key", b"value" * 12) for at in range(RECORDS)]
        appender.append(bytearray(reference.encode_batch(records)))
    log.write_state(appender.finish(flush=False), flush=False)
    return log.directory


def milliseconds(work: Callable[[], object], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def bench_a_log_of_many_segments(directory: Path, targets: Targets) -> None:
    rng = random.Random(1)
    log = opened(directory)

    def find_offset() -> None:
        offset = rng.randrange(SEGMENTS * RECORDS)
        (_, header), *_ = log.read(log.state(), ReadRange(offset, max_bytes=1)).batches
        assert header.base_offset <= offset <= header.last_offset

    def find_time() -> None:
        number = rng.randrange(SEGMENTS)
        found = find(log, number * STEP_MS + 1)
        assert found == OffsetAndTimestamp(number * RECORDS + 1, number * STEP_MS + 1)

    def find_first_time() -> None:
        last = (SEGMENTS - 1) * STEP_MS
        assert find(opened(directory), last)

    times = {
        "os.scandir": milliseconds(lambda: sum(1 for _ in os.scandir(directory)), 10),
        "open": milliseconds(lambda: opened(directory), 10),
        "find an offset": milliseconds(find_offset, ROUNDS),
        "open, find a first time": milliseconds(find_first_time, 3),
        "find a time": (find_time(), milliseconds(find_time, ROUNDS))[1],
    }
    limits = {"open": OPEN_MS_MAX, "find an offset": FIND_MS_MAX, "find a time": FIND_MS_MAX}
    scandir = statistics.median(times["os.scandir"])
    table = Table(title=f"A log of {SEGMENTS:,} segments", title_justify="left")
    for heading in ("", "median ms", "slowest", "times os.scandir", "target ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, found in times.items():
        median = statistics.median(found)
        numbers = (f"{n:,.2f}" for n in (median, max(found), median / scandir))
        table.add_row(name, *numbers, f"{limits[name]:g}" if name in limits else "")
    targets.table(table)
    for name, limit in limits.items():
        targets.at_most(name, statistics.median(times[name]), limit, " ms")
