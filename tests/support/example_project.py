"""The projects of users in `examples/` and in docs/testing.md, whose tests run in a process of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

_TIMEOUT_S = 600
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def not_activated(folder: Path) -> dict[str, str]:
    """Return the environment of an IDE, or of cron: the first python3 on PATH has nothing of the virtual environment.

    Args:
        folder: for that python3.
    """
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if "PYSPARK" not in name and name != "PYTEST_ADDOPTS"
    }
    return kept | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def outcomes(folder: Path, *words: str, name: str = "orders", **environment: str) -> dict[str, int]:
    """Run pytest in a copy of a project of `examples` in `folder`; return the counts of its last line.

    Args:
        folder: where to.
        words: of pytest's command line.
        name: of the project.
        environment: variables to set.
    """
    project = shutil.copytree(REPOSITORY / "examples" / name, folder / name)
    return outcomes_in(project, *words, **environment)


def outcomes_of_page(folder: Path, *words: str, **environment: str) -> dict[str, int]:
    """Do the same with the files that docs/testing.md shows."""
    project = folder / "page"
    project.mkdir()
    for code in blocks("python"):
        if name := re.match(r"# (\w+[.]py)\n", code):
            (project / name[1]).write_text(code)
    return outcomes_in(project, *words, **environment)


def blocks(language: str) -> list[str]:
    """Return what docs/testing.md has in a language."""
    page = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
    return [body for of, body in _BLOCK.findall(page) if of == language]


def outcomes_in(project: Path, *words: str, **environment: str) -> dict[str, int]:
    """Run pytest in a folder, by its program in a virtual environment that is not active."""
    # The plugin by its name, as the environment may not know its entry point yet.
    pytest = [str(Path(sys.executable).with_name("pytest")), "-p", "pytest_kbatch"]
    done = subprocess.run(
        [*pytest, "-p", "no:cacheprovider", "-rs", *words],
        cwd=project,
        env=not_activated(project)
        | {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    return {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|skipped|failed)", last)}
