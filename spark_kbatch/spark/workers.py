"""The Python that Spark's workers run, which need not be the one that a session was started from.

Spark takes `python3` from PATH unless PYSPARK_PYTHON says otherwise, so a program that runs in a
virtual environment which is not activated (an IDE, Jupyter, cron) has workers without its packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTS_MAX_SECONDS = 60


def why_unknown_to_workers(spark: SparkSession) -> str:
    """Return why workers cannot import this package, and what to do; empty if they can.

    Also empty where that cannot be seen from here: with Spark Connect, and where a job brings the
    package along.
    """
    try:
        context = spark.sparkContext
        python, brought_along = context.pythonExec, context._python_includes  # noqa: SLF001  not public
    except AttributeError:
        return ""
    if brought_along or not Path(__file__).is_file():  # imported from a zip
        return ""
    return why_not_importable(python)


def why_not_importable(python: str) -> str:
    """Return why the interpreter `python` does not import this package; empty if it does."""
    found = shutil.which(python)
    if found is not None and _is_this_python(Path(found)):
        return ""
    if found is None:
        reason = "which is not there"
    else:
        reason = _error_of_import(found)
        if not reason:
            return ""
        reason = f"which is {found} and does not import spark_kbatch ({reason})"
    return (
        f"Spark's workers run {python!r}, {reason}; this session runs {sys.executable}. Before the "
        'session is created, add: import os, sys; os.environ["PYSPARK_PYTHON"] = sys.executable. A '
        "session that exists keeps its workers' Python: stop it with spark.stop() first, and in a "
        "notebook restart the kernel"
    )


def _is_this_python(python: Path) -> bool:
    # By the folder: the python of a virtual environment is a link to the one that it was made from.
    ours = Path(sys.executable)
    return python.absolute().parent == ours.absolute().parent and python.samefile(ours)


def _error_of_import(python: str) -> str:
    """Return the last line that the import says there; empty if it succeeds."""
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
