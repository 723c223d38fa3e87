"""Spark's own Python processes, as this package leaves them for their next task; no Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import spark_kbatch

# A worker of Spark's runs one task after the other, and collects garbage after each.
TWO_TASKS = """
import gc, importlib.machinery, sys
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
from spark_kbatch.columns.reading import Scan
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.spark.reader import KBatchReader

options = parse_read_options({"path": sys.argv[1], "subscribe": "events"})
reader = KBatchReader(options, Scan(["value"]))
(partition,) = reader.partitions()
for _ in range(2):
    print(gc.get_freeze_count(), sum(batch.num_rows for batch in reader.read(partition)))
    gc.collect()
print(gc.get_freeze_count(), len(gc.get_objects()))
"""


ROWS = 50_000  # so many that kernels are compiled


def test_collections_leave_out_what_earlier_tasks_have_loaded(tmp_path: Path) -> None:
    cluster = spark_kbatch.open(tmp_path, create=True)
    cluster.create_topic("events", partitions=1)
    with cluster.producer() as producer:
        producer.send_arrow("events", {"value": [b"a"] * ROWS})
    ran = subprocess.run(
        [sys.executable, "-c", TWO_TASKS, tmp_path], capture_output=True, text=True, check=True
    )
    first, second, after = (tuple(map(int, line.split())) for line in ran.stdout.splitlines())
    assert first == second == (0, ROWS)
    frozen, left = after
    assert frozen > 50_000 > 5_000 > left  # numba alone has more than 50,000


LOADED = """
import gc, importlib.machinery, sys
if sys.argv[1] == "spark":
    sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
import pyspark.sql.datasource
before = gc.get_threshold()
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info))
import spark_kbatch.spark.source
print(gc.get_threshold() == before, len(collections) // 2)
"""


def test_modules_are_loaded_with_few_collections_in_sparks_processes_alone() -> None:
    found = {}
    for whose in ("spark", "other"):
        ran = subprocess.run(
            [sys.executable, "-c", LOADED, whose], capture_output=True, text=True, check=True
        )
        is_unchanged, collections = ran.stdout.split()
        found[whose] = is_unchanged, int(collections)
    assert found["other"][0] == "True"
    assert found["spark"][0] == "False"
    assert found["spark"][1] < found["other"][1] / 5
