"""The tests of the example projects, and of docs/testing.md, pass for a user with no broker.

No virtual environment is active. `tests/interop` has more of them, and `tests/test_readme.py` runs the page's.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import REPOSITORY, SHORT_LIVED_SPARK
from tests.support.example_project import blocks, outcomes, outcomes_of_page


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


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_is_tested_with_an_ordinary_session(tmp_path: Path) -> None:
    """Its workers run this Python, which the first one on PATH is not."""
    found = outcomes_of_page(tmp_path, "test_words.py", **SHORT_LIVED_SPARK)

    assert found == {"passed": 1}


def test_time_is_frozen_by_either_tool_without_a_warning(tmp_path: Path) -> None:
    found = outcomes_of_page(tmp_path, "-W", "error", "test_recent.py")

    assert found == {"passed": 2}


# The workflow of the page.


def shown() -> str:
    (workflow,) = blocks("yaml")
    return workflow


def test_the_workflow_follows_its_published_schema(tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text(shown())
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_workflow_tests_an_example(tmp_path: Path) -> None:
    """What it installs is what the project names; its tests run as it says, with its environment."""
    job: dict[str, Any] = YAML(typ="safe").load(shown())["jobs"]["test"]
    install, test = (step["run"] for step in job["steps"] if "run" in step)

    assert install == "pip install -e '.[test]'"
    project = tomllib.loads((REPOSITORY / "examples/orders/pyproject.toml").read_text("utf-8"))
    extra = project["project"]["optional-dependencies"]["test"]
    assert {re.split("[^a-z-]", one)[0] for one in extra} == {"pytest", "pytest-xdist", "spark-kbatch"}  # fmt: skip

    (kept,) = (step["with"] for step in job["steps"] if "actions/cache@" in step.get("uses", ""))
    assert kept["path"] == "${{ env.NUMBA_CACHE_DIR }}"
    environment = {
        name: value.replace("${{ github.workspace }}", str(tmp_path))
        for name, value in job["env"].items()
    }
    program, *words = shlex.split(test)
    assert program == "pytest"
    found = outcomes(tmp_path, "-p", "xdist", *words, "tests/test_shipping.py", **environment)
    assert found == {"passed": 3, "skipped": 3}
