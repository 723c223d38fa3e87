"""How much memory does a task's Python process take, and does it grow with the input?

Unit: MiB of peak resident memory above a process that imports what Spark's worker imports and drops (or
is given) the same Arrow batches; so numba and its kernels count. Each figure is a process of its own.

KBATCH_MEMORY_ROWS  the larger input
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.targets import Targets

MiB = 1 << 20
BUFFER_MEMORY = 32 * MiB
SMALL = 500_000
LARGE = int(os.environ.get("KBATCH_MEMORY_ROWS", "2_000_000"))
WRITE_LIMIT, READ_LIMIT = BUFFER_MEMORY / MiB + 150, 200
FLAT_WITHIN = 24

_SCRIPT = """
import resource, sys
import pyarrow, pyspark.sql.datasource
from tests.support.interleaved import bulk_rows

what, path, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = bulk_rows(10_000, key_bytes=16, value_bytes=100).select(["key", "value"])
batches = (made for _ in range(rows // 10_000))
if what == "nothing":
    for batch in batches:
        pass
elif what == "write":
    from spark_kbatch.opening.stores import begin_job
    from spark_kbatch.options.write import parse_write_options
    from spark_kbatch.spark.writer import KBatchWriter
    writer = KBatchWriter(begin_job(parse_write_options(
        {"path": path, "topic": f"t{rows}", "num.partitions": "8"})))
    writer.commit([writer.write(batches)])
else:
    from spark_kbatch.columns.reading import Scan
    from spark_kbatch.options.read import parse_read_options
    from spark_kbatch.spark.reader import KBatchReader
    options = parse_read_options({"path": path, "subscribe": f"t{rows}"})
    reader = KBatchReader(options, Scan(["key", "value"]))
    assert sum(b.num_rows for p in reader.partitions() for b in reader.read(p)) == rows
try:
    with open("/proc/self/status") as status:  # whose peak has nothing of the process that started this
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_mib(what: str, place: str, rows: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, place, str(rows)],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    unit = 1 if sys.platform == "darwin" else 1024
    return int(done.stdout) * unit / MiB


@pytest.mark.parametrize("place", ["folder", "bucket"])
def bench_memory_of_a_task(tmp_path: Path, place: str, targets: Targets) -> None:
    address = str(tmp_path) if place == "folder" else f"file+bucket://{tmp_path}"
    base = peak_mib("nothing", address, LARGE)
    targets.say(f"a process that drops the rows: {base:.0f} MiB")
    above = {
        (what, rows): peak_mib(what, address, rows) - base
        for what in ("write", "read")
        for rows in (SMALL, LARGE)
    }
    for what, limit in (("write", WRITE_LIMIT), ("read", READ_LIMIT)):
        for rows in (SMALL, LARGE):
            named = f"{what} {rows:,} rows, {place}, above that"
            targets.at_most(named, above[what, rows], limit, " MiB")
        grown = above[what, LARGE] - above[what, SMALL]
        named = f"{what}, {place}, growth from {SMALL:,} to {LARGE:,}"
        targets.at_most(named, grown, FLAT_WITHIN, " MiB")
