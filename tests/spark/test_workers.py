"""Errors and warnings on systems that cannot use this package; no Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch.spark import source
from spark_kbatch.spark.source import why_not_importable

REPOSITORY = Path(spark_kbatch.__file__).parent.parent


class ASession:
    """A stand-in for a session, as far as `register` uses it."""

    def __init__(self, python: str, *, brought_along: list[str] | None = None) -> None:
        self.sparkContext = SimpleNamespace(pythonExec=python, _python_includes=brought_along or [])
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)

    def createDataFrame(self, rows: list[Any], schema: str) -> None:  # noqa: N802  Spark's name
        assert (rows, schema) == ([], "value string")


@pytest.fixture
def another_python(tmp_path: Path) -> str:
    """Make a Python without packages, like the system's."""
    path = tmp_path / "python3"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_register_warns_if_workers_run_a_python_without_the_package(another_python: str) -> None:
    session = ASession(another_python)
    with pytest.warns(UserWarning, match="No module named") as caught:
        spark_kbatch.register(session)  # type: ignore[arg-type]
    (warning,) = caught
    assert warning.filename == __file__
    said = str(warning.message)
    assert another_python in said
    assert sys.executable in said
    line = said.partition("add: ")[2].partition(". An existing session")[0]
    environment: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", "")
        exec(line, environment)
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert [source.name() for source in session.registered] == ["kbatch"]


def test_the_error_for_a_missing_python_names_it() -> None:
    assert "'/no/python', which does not exist" in why_not_importable("/no/python")


def test_register_is_silent_if_workers_have_the_package(another_python: str) -> None:
    session = ASession(another_python, brought_along=["spark_kbatch.zip"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spark_kbatch.register(ASession(sys.executable))  # type: ignore[arg-type]
        spark_kbatch.register(session)  # type: ignore[arg-type]


def test_another_python_that_can_import_the_package_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "python3"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    assert why_not_importable(str(path)) == ""


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/mine"}], ids=["unset", "set"])
def test_a_zip_that_a_job_brings_along_is_found_by_the_process_that_plans_its_streams(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str]
) -> None:
    """Spark starts that process with the environment as of the registration."""
    monkeypatch.setattr(source, "__file__", "/job/kbatch.zip/spark_kbatch/spark/source.py")
    session = ASession(sys.executable, brought_along=["kbatch.zip"])
    context = session.sparkContext
    context.environment = dict(before)
    session.dataSource.register = lambda _: session.registered.append(dict(context.environment))

    spark_kbatch.register(session)  # type: ignore[arg-type]

    (found,) = session.registered
    assert found["PYTHONPATH"].split(os.pathsep) == ["/job/kbatch.zip", *before.values()]
    assert context.environment == before


# Windows

# What its Python lacks, as far as the standard library's own modules can do without it.
AS_ON_WINDOWS = """
import os, sys
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None
for name in ("fork", "geteuid", "getuid", "mkfifo", "pread", "pwrite", "register_at_fork", "sysconf", "uname"):
    delattr(os, name)
"""
IMPORTED = f"""{AS_ON_WINDOWS}
try:
    import spark_kbatch
except ImportError as error:
    print(error)
"""
FORMAT = f"""{AS_ON_WINDOWS}
from pyspark.sql.datasource import DataSource
from pyspark_kbatch import DefaultSource
assert issubclass(DefaultSource, DataSource)
print(DefaultSource.name())
try:
    DefaultSource({{}})
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("program", [IMPORTED, FORMAT], ids=["package", "format"])
def test_on_windows_the_error_names_the_supported_systems(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    *name, why = done.stdout.splitlines()
    assert name == (["kbatch"] if program == FORMAT else [])
    for part in ("Linux and macOS", "'fcntl'", "Windows", "WSL"):
        assert part in why
    sentence = why[why.index("spark_kbatch runs on") :]
    assert sentence in (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
