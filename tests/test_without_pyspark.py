"""PySpark is an extra: without it plain Python and the command line work, and Spark's parts say what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_kbatch.errors import INSTALL_EXTRA
from tests.conftest import REPOSITORY

# As where it is not installed; None in sys.modules is what import calls an absent module.
WITHOUT_PYSPARK = "import sys; sys.modules['pyspark'] = None\n"
WRITE_AND_READ = """
import spark_kbatch

with spark_kbatch.open("cluster", create=True) as cluster:
    cluster.create_topic("events")
    with cluster.producer() as producer:
        print(producer.send("events", value="one").result().offset)
    print(cluster.read("events", columns=["value"]).read_all().to_pydict())
"""
COMMAND_LINE = "from spark_kbatch.cli.main import main; main()"
NEEDS_PYSPARK = INSTALL_EXTRA.format("spark")


def run(program: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PYSPARK + program, *words],
        cwd=folder,
        env={"PYTHONPATH": str(REPOSITORY), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_plain_python_and_the_command_line_work(tmp_path: Path) -> None:
    written = run(WRITE_AND_READ, folder=tmp_path)
    assert written.stdout == "0\n{'value': [b'one']}\n", written.stderr

    shown = run(COMMAND_LINE, "topics", "cluster", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "events" in shown.stdout


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import spark_kbatch; spark_kbatch.register(None)", id="register"),
        pytest.param("import pyspark_kbatch", id="pyspark_kbatch"),
        pytest.param("import spark_kbatch.spark.source", id="source"),
    ],
)
def test_what_needs_pyspark_says_what_to_install(program: str, tmp_path: Path) -> None:
    done = run(program, folder=tmp_path)

    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("ModuleNotFoundError: PySpark is not installed")
    assert NEEDS_PYSPARK in last_line


def test_the_demo_says_what_to_install_in_one_line(tmp_path: Path) -> None:
    done = run(COMMAND_LINE, "demo", folder=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("kbatch: the demo needs PySpark, which is not installed")
    assert INSTALL_EXTRA.format("demo") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_old_pyspark_is_named_with_the_version_that_is_needed(tmp_path: Path) -> None:
    old = "sys.modules['pyspark'] = type(sys)('pyspark'); sys.modules['pyspark'].__version__ = '3.5.8'\n"
    done = run(old + "import spark_kbatch; spark_kbatch.register(None)", folder=tmp_path)

    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith(
        "ImportError: PySpark 3.5.8 is installed; the Spark data source needs 4.0"
    )
    assert last_line in (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
