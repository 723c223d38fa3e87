"""A retried task leaves each of its rows once.

The driver is like a user's: a new session in an empty folder, without `register`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.frames import records

pytestmark = pytest.mark.spark

TASKS, ROWS = 4, 2000

# The second task fails twice, once by an exception and once by the end of its process. Each time it is
# nearly done and has sent its writer rows for many batches.
SCRIPT = f"""
import os

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
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        if context.attemptNumber() == 1:
            os._exit(1)
    return str(row)

frame = spark.range(0, {ROWS}, 1, {TASKS}).select(
    fail_twice("id").alias("value"), F.expr("CAST(id % 2 AS int) AS partition")
)
(
    frame.write.format("kbatch")
    .options(**{{"topic": "t", "num.partitions": 2, "batch.size": 500}})
    .mode("append")
    .save("here/cluster")
)
print("read back:", spark.read.format("kbatch").option("subscribe", "t").load("here/cluster").count())
"""


@pytest.mark.slow
def test_a_task_that_fails_twice_leaves_each_row_once_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert f"read back: {ROWS}\n" in run.stdout
    attempts = [line for line in (run.stdout + run.stderr).splitlines() if "attempt " in line]
    assert {"attempt 0", "attempt 1", "attempt 2"} <= {line.strip() for line in attempts}

    for number, held in records(spark, tmp_path / "here" / "cluster").items():
        assert [int(r.value or b"") for r in held] == list(range(number, ROWS, 2))
        assert [r.offset for r in held] == list(range(ROWS // 2))
