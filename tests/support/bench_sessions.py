"""The Spark session of the benchmarks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.kafka import connectors_of_spark


@contextlib.contextmanager
def bench_session(*, memory: str = "4g", jars: Path | None = None) -> Iterator[SparkSession]:
    """Make a session on two cores, and stop it.

    Args:
        memory: of the driver.
        jars: a folder for Spark's own connector and Avro, which Maven fetches; without them by default.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.driver.memory", memory)
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if jars is not None:
        builder = builder.config("spark.jars", connectors_of_spark(jars))
    session = builder.getOrCreate()
    yield session
    session.stop()
