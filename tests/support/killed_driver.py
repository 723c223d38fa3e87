"""A Spark driver to be killed: `python -m tests.support.killed_driver FOLDER`.

    FOLDER/STEP/           a cluster for each step, with the records of an earlier commit
    FOLDER/STEP.reached    created when a job on that cluster reaches the step; holds the process group
    FOLDER/unregistered    Spark's error for the format before it was registered

Every job stops at its step and waits there for SIGKILL. Spark commits in processes of its own, whose
group is not the driver's.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import spark_kbatch
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.spark.source import KBatchDataSource
from spark_kbatch.spark.writer import KBatchWriter, TaskMessage
from tests.support.frames import save, use_in_this_thread

TASKS, ROWS, PARTITIONS = 2, 60, 2


def frame_of(spark: SparkSession, text: str) -> DataFrame:
    """Return rows for all partitions of the topics t0 and t1, from each of two tasks."""
    return spark.range(0, ROWS, 1, TASKS).selectExpr(
        "concat('t', id % 2) AS topic",
        f"concat('{text}-', id) AS value",
        f"CAST((id / 2) % {PARTITIONS} AS int) AS partition",
    )


def before(step: Callable[..., Any], stop: Callable[[], NoReturn]) -> Callable[..., Any]:
    def stopping(*_args: Any, **_named: Any) -> NoReturn:
        stop()

    return functools.update_wrapper(stopping, step)


def after(step: Callable[..., Any], stop: Callable[[], NoReturn]) -> Callable[..., Any]:
    def stopping(*args: Any, **named: Any) -> NoReturn:
        step(*args, **named)
        stop()

    return functools.update_wrapper(stopping, step)


def after_one_state(step: Callable[..., Any], stop: Callable[[], NoReturn]) -> Callable[..., Any]:
    def stopping(self: Coordinator, states: dict[Any, Any], **named: Any) -> NoReturn:
        assert len(states) == 2 * PARTITIONS + 1  # __commits, which comes first
        step(self, dict([sorted(states.items())[1]]), **named)
        stop()

    return functools.update_wrapper(stopping, step)


# The step of the commit at which a job stops. `_place` is called for one partition after the other.
STEPS_OF_COMMIT = {
    "before-anything-is-placed": ("_place", before),
    "one-partition-placed": ("_place", after),
    "all-placed": ("_prepare", before),
    "prepared": ("_decide", before),
    "decided": ("_decide", after),
    "one-partition-flipped": ("_flip", after_one_state),
    "all-flipped": ("_flip", after),
    "complete": ("_complete", after),
}
ONE_TASK_STAGED = "one-task-staged"
STEPS = [ONE_TASK_STAGED, *STEPS_OF_COMMIT]


class StoppingWriter(KBatchWriter):
    """A writer that stops at the step after which its cluster's folder is named."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        staged = super().write(iterator)
        context = TaskContext.get()
        if self._cluster_dir.name == ONE_TASK_STAGED and context and context.partitionId() == 1:
            self._stop()
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        name, stopping = STEPS_OF_COMMIT[self._cluster_dir.name]
        setattr(Coordinator, name, stopping(getattr(Coordinator, name), self._stop))
        super().commit(messages)

    @property
    def _cluster_dir(self) -> Path:
        return Path(self._job.options.path)

    def _stop(self) -> NoReturn:
        reached = self._cluster_dir.with_suffix(".reached")
        aside = reached.with_suffix(".aside")
        aside.write_text(str(os.getpgrp()))
        aside.rename(reached)
        while True:
            signal.pause()


class StoppingDataSource(KBatchDataSource):
    def writer(self, schema: StructType, overwrite: bool) -> KBatchWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__ = StoppingWriter
        return writer


def main(folder: Path) -> None:
    # A task keeps one slot until it is killed; the others need more.
    spark = (
        SparkSession.builder.master("local[3]")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        spark.read.format("kbatch").load("nowhere")
    except Py4JJavaError as error:
        (folder / "unregistered").write_text(str(error))
    spark_kbatch.register(spark)
    save(frame_of(spark, "before"), folder / "original", num_partitions=PARTITIONS)
    for step in STEPS:
        shutil.copytree(folder / "original", folder / step)

    # By name: a module run with `python -m` is called __main__, which workers cannot import.
    from tests.support.killed_driver import StoppingDataSource as source  # noqa: N813, PLC0415

    spark.dataSource.register(source)
    frame = frame_of(spark, "killed")

    def write(step: str) -> None:
        use_in_this_thread(spark)
        save(frame, folder / step)

    for step in STEPS:
        threading.Thread(target=write, args=[step]).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
