"""The example project, with Spark's own connector and a real broker; the store that docs/testing.md starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.example_project import blocks, outcomes
from tests.support.kafka import Broker, Kafka, connectors_of_spark, free_ports

pytestmark = pytest.mark.interop


def test_all_of_its_tests_pass(kafka: Kafka, tmp_path: Path) -> None:
    """The service looks its group up in a list of all of them, which is long on the broker that other tests share."""
    jars = connectors_of_spark(tmp_path)
    with Broker(kafka, tmp_path / "broker") as broker:
        found = outcomes(
            tmp_path, f"--kbatch-bootstrap-servers={broker.address}", SPARK_KAFKA_JARS=jars
        )

    assert found == {"passed": 7, "skipped": 1}  # a real broker does not fail on purpose


def test_the_store_that_the_page_starts_is_taken(tmp_path: Path) -> None:
    """It is built into a home of its own, from what Go has fetched and compiled before."""
    (script,) = (one for one in blocks("sh") if "versitygw" in one)
    (port,) = free_ports(1)
    gos = "GOCACHE", "GOMODCACHE"
    places = subprocess.check_output(["go", "env", *gos], text=True).split()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-ec", "trap 'kill $(jobs -p)' EXIT\n" + script.replace("7070", str(port))],
        cwd=tmp_path,
        env=os.environ
        | dict(zip(gos, places, strict=True))
        | {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The store passed." in done.stdout
