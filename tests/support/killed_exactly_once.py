"""Streams into a real cluster, to be killed: `python -m tests.support.killed_exactly_once FOLDER SERVERS [stop]`.

    FOLDER/source          a cluster in a folder, with the topic `orders`
    FOLDER/STEP/           the checkpoint of the query that stops at a step; its topic and its prefix are `to-STEP`
    FOLDER/STEP.reached    created when it is there; holds the process group

With `stop` each query stops at its step in its second micro-batch, and waits there for SIGKILL: Spark plans and
commits in processes of its own, whose group is not the driver's. Without, all queries run to their end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import spark_kbatch
from spark_kbatch.remote.batch_producer import BatchProducer
from spark_kbatch.remote.exactly_once import ExactlyOnceJob
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.spark.source import KBatchDataSource
from spark_kbatch.spark.writer import KBatchStreamWriter

# Steps in their order: the method, and whether the query stops before it or after it.
STEPS: dict[str, tuple[type[Any], str, bool]] = {
    "before-take-over": (Transactions, "take_over", True),
    "taken-over": (Transactions, "take_over", False),
    "task": (ExactlyOnceJob, "stage", False),
    "before-commit": (ExactlyOnceJob, "_known", True),
    "progress-known": (ExactlyOnceJob, "_known", False),
    "partly-sent": (BatchProducer, "flush", True),
    "sent": (BatchProducer, "flush", False),
    "offsets-added": (Transactions, "add_offsets", False),
    "committed": (Transactions, "end", False),
}


def topic_of(step: str) -> str:
    """Return the topic, and the prefix, of the query that stops at a step."""
    return f"to-{step}"


class StoppingDataSource(KBatchDataSource):
    """The format, with a method that stops."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> KBatchStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        checkpoint = Path(self.options["checkpointLocation"])
        if (checkpoint / "commits" / "0").exists():
            writer._job.__class__ = StoppingJob
            writer._job.stop_at(checkpoint)  # type: ignore[attr-defined]
        return writer


class StoppingJob(ExactlyOnceJob):
    """A job that stops at the step of its checkpoint, in whatever process it is there."""

    def stop_at(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        kind, name, is_before = STEPS[checkpoint.name]
        method: Callable[..., Any] = getattr(kind, name)

        def stopping(*args: Any, **named: Any) -> Any:
            if is_before:
                _stop(checkpoint)
            found = method(*args, **named)
            _stop(checkpoint)
            return found

        setattr(kind, name, stopping)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._checkpoint.name == "task":
            self.stop_at(self._checkpoint)


def _stop(checkpoint: Path) -> None:
    aside = checkpoint.with_suffix(f".{os.getpid()}")
    aside.write_text(str(os.getpgrp()))
    aside.rename(checkpoint.with_suffix(".reached"))
    while True:
        signal.pause()


def main(folder: Path, servers: str, *how: str) -> None:
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.python.authenticate.socketTimeout", "2m")  # of slow machines
        .getOrCreate()
    )
    spark_kbatch.register(spark)
    if how:
        # By name: a module run with `python -m` is called __main__, which workers cannot import.
        from tests.support.killed_exactly_once import (  # noqa: PLC0415
            StoppingDataSource as source,  # noqa: N813
        )

        spark.dataSource.register(source)
    read = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    rows = spark.readStream.format("kbatch").options(**read).load(str(folder / "source"))
    for step in STEPS:
        options = {
            "kafka.bootstrap.servers": servers, "topic": topic_of(step),
            "delivery.guarantee": "exactly-once", "transactional.id.prefix": topic_of(step),
            "checkpointLocation": str(folder / step),
        }  # fmt: skip
        writer = rows.select("value").writeStream.format("kbatch").options(**options)
        query = writer.trigger(availableNow=True).start()
        # One after the other: all at once, they would start dozens of Python processes.
        while query.isActive and not (how and (folder / f"{step}.reached").exists()):
            query.awaitTermination(0.2)
        if query.exception() is not None:
            raise SystemExit(f"{step}: {query.exception()}")
    while how:
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
