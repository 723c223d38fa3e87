"""The example project, with Spark's own connector and a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.example_project import outcomes
from tests.support.kafka import Broker, Kafka, connectors_of_spark

pytestmark = pytest.mark.interop


def test_all_of_its_tests_pass(kafka: Kafka, tmp_path: Path) -> None:
    """The service looks its group up in a list of all of them, which is long on the broker that other tests share."""
    jars = connectors_of_spark(tmp_path)
    with Broker(kafka, tmp_path / "broker") as broker:
        found = outcomes(
            tmp_path, f"--kbatch-bootstrap-servers={broker.address}", SPARK_KAFKA_JARS=jars
        )

    assert found == {"passed": 7, "skipped": 1}  # a real broker does not fail on purpose
