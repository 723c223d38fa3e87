"""Workers that do not have the package installed: the job ships it, or the error says what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pyspark
import pytest

from tests.conftest import REPOSITORY, SHORT_LIVED_SPARK
from tests.support.distributions import build_wheel

pytestmark = pytest.mark.spark

_JOB = re.compile(r"^```python\n(# job\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)

# The driver has the package and its workers do not.
FORGOTTEN = """
from pyspark.sql import SparkSession
import spark_kbatch

spark = SparkSession.builder.master("local[1]").getOrCreate()
for prepare in (lambda: None, lambda: spark_kbatch.register(spark)):
    prepare()
    try:
        spark.read.format("kbatch").option("subscribe", "t").load("cluster")
    except Exception as error:
        print("error:", str(error).replace("\\n", " "))
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Python that has the package's dependencies, but not the package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # Its .pth files, such as that of an editable installation, are ignored.
    (site_packages / "needed.pth").write_text(str(Path(pyspark.__file__).parent.parent))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, with a name that Spark accepts."""
    built = build_wheel(tmp_path_factory.mktemp("wheel"))
    return built.rename(built.with_suffix(".zip"))


def run(words: list[object], script: str, folder: Path, worker: Path) -> str:
    """Run the script in an empty folder, with workers of this Python; return what it prints."""
    (folder / "job.py").write_text(script)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME")}
    done = subprocess.run(
        [*map(str, words), "job.py"],
        cwd=folder,
        env=kept | SHORT_LIVED_SPARK | {"PYSPARK_PYTHON": str(worker), "PYSPARK_DRIVER_PYTHON": str(worker)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_job_needs_only_the_wheel_that_is_submitted_with_it(
    tmp_path: Path, bare_python: Path, wheel: Path
) -> None:
    """The job is the one of docs/deploying.md, with a batch and a stream."""
    (job,) = _JOB.findall((REPOSITORY / "docs" / "deploying.md").read_text())
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"

    printed = run(
        [submit, "--master", "local[2]", "--py-files", wheel],
        f"{job}print('package:', spark_kbatch.__file__)\n",
        tmp_path,
        bare_python,
    )

    shown = [line.split("|")[2:4] for line in printed.splitlines() if "copies" in line]
    assert shown == [["[6F 6E 65]", "copies"], ["[74 77 6F]", "copies"]]
    assert f"{wheel.name}/spark_kbatch/__init__.py\n" in printed


@pytest.mark.slow
def test_two_errors_tell_that_workers_lack_the_package(tmp_path: Path, bare_python: Path) -> None:
    """docs/deploying.md explains both."""
    printed = run([sys.executable], FORGOTTEN, tmp_path, bare_python)

    unregistered, registered = (line for line in printed.splitlines() if line.startswith("error: "))
    assert "[DATA_SOURCE_NOT_FOUND]" in unregistered
    assert "No module named 'spark_kbatch'" in registered
