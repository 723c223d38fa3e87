"""How much memory does a task's Python process take, and does it grow with the input?

Unit: MiB of peak resident memory above a process that imports the same modules, loads the same
kernels and drops (or is given) the same Arrow batches. Each figure is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

MiB = 1 << 20
BUFFER_MEMORY = 32 * MiB
SMALL, LARGE = 500_000, 2_000_000
WRITE_LIMIT, READ_LIMIT = BUFFER_MEMORY / MiB + 64, 96
FLAT_WITHIN = 24

_SCRIPT = """
import resource, sys
from pathlib import Path
from spark_kbatch.cluster.job import Job
from spark_kbatch.spark.writer import KBatchWriter
from spark_kbatch.spark.reader import KBatchReader
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.options.read import parse_read_options

what, path, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "python":
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    raise SystemExit
from spark_kbatch.kernels import records as record_kernels, routing
from tests.support.interleaved import bulk_rows
record_kernels.load()
routing.load()
made = bulk_rows(10_000, key_bytes=16, value_bytes=100).select(["key", "value"])
batches = (made for _ in range(rows // 10_000))
if what in ("drop", "ready made"):
    for batch in batches:
        pass
elif what == "write":
    writer = KBatchWriter(Job.begin(parse_write_options(
        {"path": path, "topic": f"t{rows}", "num.partitions": "8", "flush": "false"})))
    writer.commit([writer.write(batches)])
else:
    options = parse_read_options({"path": path, "subscribe": f"t{rows}"})
    reader = KBatchReader(options, ["key", "value"])
    assert sum(b.num_rows for p in reader.partitions() for b in reader.read(p)) == rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_mib(what: str, path: Path, rows: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, str(path), str(rows)],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    unit = 1 if sys.platform == "darwin" else 1024
    return int(done.stdout) * unit / MiB


def bench_memory_of_a_task(tmp_path: Path) -> None:
    table = Table(title="Peak memory of a task's Python process, MiB", title_justify="left")
    for heading in ("", "peak", "above no-op", "limit"):
        table.add_column(heading, justify="right" if heading else "left")
    python = peak_mib("python", tmp_path, 0)
    base = peak_mib("drop", tmp_path, LARGE)
    table.add_row("Python with pyspark and pyarrow", f"{python:.0f}", "", "")
    table.add_row(
        "no-op: and numba with the kernels", f"{base:.0f}", f"numba: {base - python:.0f}", ""
    )
    above = {}
    for what, limit in (("write", WRITE_LIMIT), ("read", READ_LIMIT)):
        for rows in (SMALL, LARGE):
            peak = peak_mib(what, tmp_path, rows)
            above[what, rows] = peak - base
            table.add_row(
                f"{what} {rows:,} rows", f"{peak:.0f}", f"{peak - base:.0f}", f"{limit:.0f}"
            )
    console = Console(width=110)
    console.print()
    console.print(table)
    for what, limit in (("write", WRITE_LIMIT), ("read", READ_LIMIT)):
        assert above[what, LARGE] <= limit, above
        assert above[what, LARGE] - above[what, SMALL] <= FLAT_WITHIN, above
