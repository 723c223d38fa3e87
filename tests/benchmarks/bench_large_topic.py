"""How does a topic of 100 GB behave, beside one of 10 GB?

One partition, segments of 1 GiB, batches of one record of 1 MB whose value is zeros, so that the files
are sparse; all else of them is real. Each operation runs in a process that knows nothing of the log, as
a command does: append a batch; the first append after a process was killed between its batch and the
state; find an offset by time; plan a read; delete by retention what is beyond a tenth. Unit:
milliseconds, best of ROUNDS, but for retention, which is done once, and MiB of peak resident memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.table import Table

from spark_kbatch.files import Buffer, Files
from spark_kbatch.log.append import LogAppender
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import walk
from tests.support import builders
from tests.support.store import store_of
from tests.support.targets import Targets

PARTITION = TopicPartition("events", 0)
SMALL, LARGE = 10_000, 100_000  # records
VALUE_BYTES = 1_000_000
SAME_TIME = 10  # records
START_MS = 1_700_000_000_000
STEP_MS = 1000
ROUNDS = 3
PAGE = 4096
RECOVERY_MS_MAX, LOOKUP_MS_MAX, PLAN_MS_MAX, GROWTH_MIB_MAX = 5_000.0, 10.0, 1_000.0, 16.0

# Prints milliseconds, and the peak of memory in KiB.
_SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from spark_kbatch import Cluster
from spark_kbatch.files import Files
from spark_kbatch.options.read import parse_read_options
from tests.support import builders
from tests.support.store import reader_of

what, path, argument = sys.argv[1:]

class Dies(Files):
    def write_at(self, descriptor, position, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("kbatch.state"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().write_at(descriptor, position, data)

batch = builders.batch(n=1, value_bytes=1_000)
cluster = Cluster(path, files=Dies() if what == "die" else None)
start = time.perf_counter()
if what == "find again":
    cluster.list_offsets({("events", 0): int(argument) + 5000})
    start = time.perf_counter()
if what in ("append", "die"):
    builders.append_records(cluster, {("events", 0): batch}, flush=True)
elif what.startswith("find"):
    assert cluster.list_offsets({("events", 0): int(argument)})[("events", 0)].timestamp == int(argument)
elif what == "plan":
    options = parse_read_options({"path": path, "subscribe": "events", "minPartitions": "1000"})
    assert len(reader_of(cluster).plan(options)) >= 1000
elif what == "retain":
    cluster.alter_topic("events", {"retention.bytes": int(argument)})
    cluster.collect_garbage("events")
    assert cluster.list_offsets({("events", 0): "earliest"})[("events", 0)].offset > 0
else:
    assert what == "open"
milliseconds = (time.perf_counter() - start) * 1e3
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(milliseconds, peak)
"""


class SparseFiles(Files):
    """Writes no page of zeros."""

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        whole = len(view) // PAGE * PAGE
        pages = np.frombuffer(view[:whole], np.uint64).reshape(-1, PAGE // 8)
        for number in np.flatnonzero(pages.any(axis=1)).tolist():
            at = number * PAGE
            super().write_at(descriptor, position + at, view[at : at + PAGE])
        super().write_at(descriptor, position + whole, view[whole:])


def a_topic(folder: Path, records: int) -> Path:
    config = TopicConfig(max_message_bytes=2 * VALUE_BYTES)
    cluster = builders.a_cluster(folder, config=config, files=SparseFiles())
    log = store_of(cluster).manager.log(PARTITION)
    appender = LogAppender(log, log.state(), now_ms=START_MS)
    for step in range(records // SAME_TIME):
        time_ms = pa.array([START_MS + step * STEP_MS], pa.timestamp("ms", "UTC"))
        data = builders.encode(
            pa.record_batch({"value": [bytes(VALUE_BYTES)], "timestamp": time_ms})
        )
        ((_, header),) = walk(data)
        for _ in range(SAME_TIME):
            appender.append_batch(data, header)
    log.write_state(appender.finish(flush=False), flush=False)
    return cluster.path


def run(what: str, path: Path, argument: int = 0) -> tuple[float, float]:
    """Run an operation in a process of its own; return milliseconds and MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, str(path), str(argument)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=what != "die",
    )  # fmt: skip
    if what == "die":
        assert done.returncode == -9, done.stderr
        return 0.0, 0.0
    milliseconds, peak = done.stdout.split()
    return float(milliseconds), int(peak) / 1024


def best(
    what: str, paths: Sequence[Path], arguments: Sequence[int] = (0, 0), *, killed: bool = False
) -> list[tuple[float, float]]:
    found: list[list[tuple[float, float]]] = [[] for _ in paths]
    for _ in range(ROUNDS):
        for each, path, argument in zip(found, paths, arguments, strict=True):
            if killed:
                run("die", path)
            each.append(run(what, path, argument))
    return [min(each) for each in found]


def bench_a_topic_of_100_gb(memory_path: Path, targets: Targets) -> None:
    sizes = (SMALL, LARGE)
    paths = [a_topic(memory_path / str(records), records) for records in sizes]
    size = sum(one.stat().st_size for one in paths[1].glob("broker-0/events-0/*.log"))
    assert size > LARGE * VALUE_BYTES
    targets.say(
        f"{size / 1e9:.0f} GB in files, of which {_on_disk(paths[1]) / 1e6:.0f} MB are not zeros"
    )
    middles = [START_MS + records // SAME_TIME // 2 * STEP_MS for records in sizes]
    found = {
        "nothing": best("open", paths),
        "append": best("append", paths),
        "append after a kill": best("append", paths, killed=True),
        "find a first offset by time": best("find", paths, middles),
        "find an offset by time": best("find again", paths, middles),
        "plan": best("plan", paths),
        "delete what is beyond a tenth": [
            run("retain", path, records * VALUE_BYTES // 10)
            for path, records in zip(paths, sizes, strict=True)
        ],
    }  # fmt: skip
    table = Table(title="A topic of 10 GB and of 100 GB", title_justify="left")
    for heading in ("", "ms, 10 GB", "ms, 100 GB", "MiB, 10 GB", "MiB, 100 GB"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, ((small_ms, small), (large_ms, large)) in found.items():
        table.add_row(
            name, f"{small_ms:,.1f}", f"{large_ms:,.1f}", f"{small:,.0f}", f"{large:,.0f}"
        )
    targets.table(table)
    for name, most in (
        ("append after a kill", RECOVERY_MS_MAX),
        ("find an offset by time", LOOKUP_MS_MAX),
        ("plan", PLAN_MS_MAX),
    ):
        targets.at_most(f"{name}, 100 GB", found[name][1][0], most, " ms")
    growth = max(large - small for (_, small), (_, large) in found.values())
    targets.at_most("memory, growth from 10 to 100 GB", growth, GROWTH_MIB_MAX, " MiB")


def _on_disk(path: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in path.glob("broker-0/events-0/*.log"))
