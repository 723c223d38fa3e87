"""What users write passes `mypy --strict`: the README's code, and calls of the whole public API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import spark_kbatch
from tests.test_readme import README, examples

HERE = Path(__file__).resolve().parent
# As in a user's project: pyarrow ships no types.
SETTINGS = "[mypy]\nstrict = True\n[mypy-pyarrow.*]\nignore_missing_imports = True\n"


def test_users_code_passes_mypy_strict(tmp_path: Path) -> None:
    readme, settings = tmp_path / "readme.py", tmp_path / "mypy.ini"
    readme.write_text("\n".join(example.code for example in examples(README.read_text("utf-8"))))
    settings.write_text(SETTINGS)
    # What mypy knows of PySpark is kept from run to run.
    cache = README.parent / ".mypy_cache" / "users"
    run = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", cache,
            readme, HERE / "users_code.py",
        ],
        cwd=README.parent,
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
