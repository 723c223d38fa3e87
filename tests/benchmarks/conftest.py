"""What benchmarks share: a session with memory for their rows, a folder, and their targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.bench_sessions import bench_session
from tests.support.kafka_fixtures import kafka
from tests.support.memory_folder import memory_folder
from tests.support.targets import Targets

__all__ = ["kafka"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with bench_session() as session:
        yield session


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
