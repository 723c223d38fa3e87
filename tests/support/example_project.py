"""The projects of users in `examples/`, whose tests are run in a copy, in a process of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

_TIMEOUT_S = 600


def outcomes(folder: Path, *words: str, name: str = "orders", **environment: str) -> dict[str, int]:
    """Run pytest in a copy of a project of `examples` in `folder`; return the counts of its last line.

    Args:
        folder: where to.
        words: of pytest's command line.
        name: of the project.
        environment: variables to set.
    """
    project = shutil.copytree(REPOSITORY / "examples" / name, folder / name)
    # The plugin by its name, as the environment may not know its entry point yet.
    command = [sys.executable, "-m", "pytest", "-p", "pytest_kbatch", "-p", "no:cacheprovider", "-rs"]  # fmt: skip
    done = subprocess.run(
        [*command, *words],
        cwd=project,
        env=os.environ
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
