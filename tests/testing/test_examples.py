"""The tests of the example projects pass for a user with no broker; `tests/interop` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.example_project import outcomes


def test_the_service_passes_on_the_server(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "tests/test_shipping.py")

    assert found == {"passed": 3, "skipped": 3}  # on a real broker


@pytest.mark.slow
@pytest.mark.spark
def test_the_job_passes_on_a_folder(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "tests/test_invoicing.py", SPARK_KAFKA_JARS="")

    assert found == {"passed": 1, "skipped": 1}  # with Spark's own connector


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_is_made_of_the_events_of_debezium(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "tests/test_customers.py", name="debezium")

    assert found == {"passed": 6}  # of JSON, JSON with its schema, and Avro
