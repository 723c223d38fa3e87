"""Users' code passes `mypy --strict`: that of README and docs, and calls of the whole public API."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import spark_kbatch
from tests.conftest import REPOSITORY
from tests.test_readme import PAGES, examples

HERE = Path(__file__).resolve().parent
# As in a user's project: pyarrow ships no types.
SETTINGS = "[mypy]\nstrict = True\n[mypy-pyarrow.*]\nignore_missing_imports = True\n"


def test_users_code_passes_mypy_strict(tmp_path: Path) -> None:
    settings, programs = tmp_path / "mypy.ini", []
    settings.write_text(SETTINGS)
    for page in PAGES:
        shown = [example.code for example in examples(page.read_text("utf-8"))]
        # Files of tests, whose fixtures people do not annotate, and runs of them are left out.
        kept = [one for one in shown if not re.match(r"# \w+[.]py\n|pytest ", one)]
        # A variable may get another type further down the page, but not around a function.
        apart = [one for one in kept if "\nasync def " in one]
        name = "_".join(page.relative_to(REPOSITORY).with_suffix("").parts).replace("-", "_")
        files = {name: "\n".join(one for one in kept if one not in apart)}
        files |= {f"{name}_{n}": f"import spark_kbatch\n{one}" for n, one in enumerate(apart)}
        for stem, code in files.items():
            programs.append(tmp_path / f"{stem}.py")
            programs[-1].write_text(code)
    # What mypy knows of PySpark is kept from run to run.
    cache = REPOSITORY / ".mypy_cache" / "users"
    run = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", cache,
            *programs, HERE / "users_code.py",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_names_that_do_not_exist_are_no_names_of_the_package(tmp_path: Path) -> None:
    """Though some are looked up when they are asked for."""
    for name in spark_kbatch.__all__:
        assert getattr(spark_kbatch, name) is not None
    assert not hasattr(spark_kbatch, "opne")
