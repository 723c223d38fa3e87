"""What benchmarks share: a session with memory for their rows, a folder, and their targets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka_fixtures import kafka
from tests.support.memory_folder import memory_folder
from tests.support.targets import Targets

__all__ = ["kafka"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory where the system has one, so that no disk is measured."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def targets(request: pytest.FixtureRequest) -> Iterator[Targets]:
    """Takes what the benchmark found; writes it to build/bench."""
    module = request.node.path.stem
    found = Targets(re.sub(r"[^a-zA-Z0-9_]+", "-", f"{module}-{request.node.name}").strip("-"))
    yield found
    found.finish(request.config.rootpath / "build" / "bench")
