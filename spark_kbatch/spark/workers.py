"""Checks of the Python that Spark's workers run, which may lack this package.

Spark runs `python3` from PATH unless PYSPARK_PYTHON is set. So a program in a virtual environment that is
not activated (in an IDE, in Jupyter, from cron) has workers without its packages.

A job may also bring the package along, as a zip. Then tasks find it, and so does the process that plans a
batch; the one that plans a stream does not, because Spark has it look in a folder that is not there. So that
process needs the zip on its PYTHONPATH, which `found_by_planners` sees to.

Source: Spark sql/core/.../python/streaming/PythonStreamingSourceRunner.scala.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTS_MAX_SECONDS = 60


def why_unknown_to_workers(spark: SparkSession) -> str:
    """Return why workers cannot import this package, and what to do; empty if they can.

    Also empty if that cannot be found out here: with Spark Connect, or if the job ships the package.
    """
    try:
        context = spark.sparkContext
        python, brought_along = context.pythonExec, context._python_includes  # noqa: SLF001  not public
    except AttributeError:
        return ""
    if brought_along or _is_zipped():
        return ""
    return why_not_importable(python)


def _is_zipped() -> bool:
    return not Path(__file__).is_file()


@contextlib.contextmanager
def found_by_planners(spark: SparkSession) -> Iterator[None]:
    """Let the processes of a source that is registered meanwhile find this package, if it is a job's zip.

    Spark starts them with the environment that the context has at that moment.
    """
    if not _is_zipped():
        yield
        return
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    archive = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (archive, before)))
    try:
        yield
    finally:
        del environment["PYTHONPATH"]
        if before is not None:
            environment["PYTHONPATH"] = before


def why_not_importable(python: str) -> str:
    """Return why the interpreter `python` cannot import this package; empty if it can."""
    found = shutil.which(python)
    if found is not None and _is_this_python(Path(found)):
        return ""
    if found is None:
        reason = "which does not exist"
    else:
        reason = _error_of_import(found)
        if not reason:
            return ""
        reason = f"which is {found} and cannot import spark_kbatch ({reason})"
    return (
        f"Spark's workers run {python!r}, {reason}; this session runs {sys.executable}. Before the "
        'session is created, add: import os, sys; os.environ["PYSPARK_PYTHON"] = sys.executable. An '
        "existing session keeps its workers' Python: stop it with spark.stop() first, or in a notebook "
        "restart the kernel"
    )


def _is_this_python(python: Path) -> bool:
    # Compare folders: the python of a virtual environment is a link to the one it was created from.
    ours = Path(sys.executable)
    return python.absolute().parent == ours.absolute().parent and python.samefile(ours)


def _error_of_import(python: str) -> str:
    """Return the last line of the error when `python` imports this package; empty without an error."""
    command = [python, "-c", "import spark_kbatch.spark.source"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_IMPORTS_MAX_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
