"""A retried task leaves each of its rows once in a folder, and only its own rows again in a real cluster.

The driver is like a user's: a new session in an empty folder, without `register`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import spark_kbatch
from tests.conftest import SHORT_LIVED_SPARK
from tests.support.frames import records

pytestmark = pytest.mark.spark

TASKS, ROWS = 4, 2000

# The second task fails twice, once by an exception and once by the end of its process. Each time it is
# nearly done and has sent its writer rows for many batches, padded since Spark passes them on by 64 KiB.
SCRIPT = f"""
import json, os, sys, time

from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F

spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.log.level", "ERROR")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    .getOrCreate()
)

@F.udf("string")
def fail_twice(row):
    context = TaskContext.get()
    if context.partitionId() == 1 and row % {ROWS // TASKS} == {ROWS // TASKS - 2}:
        print("attempt", context.attemptNumber(), flush=True)
        time.sleep(3)  # what the writer has can go out
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        if context.attemptNumber() == 1:
            os._exit(1)
    return str(row)

place = json.loads(sys.argv[1])
frame = spark.range(0, {ROWS}, 1, {TASKS}).select(
    F.rpad(fail_twice("id"), 1000, " ").alias("value"), F.expr("CAST(id % 2 AS int) AS partition")
)
(
    frame.write.format("kbatch")
    .options(**{{"topic": "t", "num.partitions": 2, "batch.size": 5000}} | place)
    .mode("append")
    .save()
)
print("read back:", spark.read.format("kbatch").option("subscribe", "t").options(**place).load().count())
"""


@pytest.mark.slow
def test_a_task_that_fails_twice_leaves_each_row_once_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert f"read back: {ROWS}\n" in run({"path": "here/cluster"}, tmp_path)

    for number, held in records(spark, tmp_path / "here" / "cluster").items():
        assert [int(r.value or b"") for r in held] == list(range(number, ROWS, 2))
        assert [r.offset for r in held] == list(range(ROWS // 2))


@pytest.mark.slow
def test_a_real_cluster_has_only_the_rows_of_a_task_that_failed_more_than_once(
    tmp_path: Path,
) -> None:
    with spark_kbatch.open(tmp_path / "served", create=True) as cluster, cluster.serve() as server:
        output = run({"kafka.bootstrap.servers": server.bootstrap_servers}, tmp_path)

        table = cluster.read("t", columns=["partition", "value"]).read_all()
    assert f"read back: {table.num_rows}\n" in output
    per_task = ROWS // TASKS
    for partition in range(2):
        of_partition = table.filter(pc.equal(table["partition"], partition))["value"].to_pylist()
        of_task: dict[int, list[int]] = {task: [] for task in range(TASKS)}
        for value in map(int, of_partition):
            of_task[value // per_task].append(value)
        for task, values in of_task.items():
            whole = list(range(task * per_task + partition, (task + 1) * per_task, 2))
            if task != 1:
                assert values == whole
            else:
                # An attempt that failed left the first of its rows, in order, or none.
                attempts = [i for i, value in enumerate(values) if value == whole[0]]
                assert 2 <= len(attempts) <= 3
                for start, end in pairwise([*attempts, len(values)]):
                    assert values[start:end] == whole[: end - start]
                assert values[attempts[-1] :] == whole


def run(place: dict[str, str], folder: Path) -> str:
    """Run the job, with options that say where it writes to; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(place)],
        cwd=folder,
        env=environment | SHORT_LIVED_SPARK | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    attempts = [line for line in (done.stdout + done.stderr).splitlines() if "attempt " in line]
    assert {"attempt 0", "attempt 1", "attempt 2"} <= {line.strip() for line in attempts}
    return done.stdout
