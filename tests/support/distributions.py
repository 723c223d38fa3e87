"""The wheel and the source distribution, built from the working tree as `make dist` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def build_distributions(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; return both, the wheel first."""
    _build(folder)
    return _only(folder, "*.whl"), _only(folder, "*.tar.gz")


def build_wheel(folder: Path) -> Path:
    """Build the wheel alone, from the working tree."""
    _build(folder, "--wheel")
    return _only(folder, "*.whl")


def _build(folder: Path, *words: str) -> None:
    """Build with the packages of this environment, so that no network is needed."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *words, str(REPOSITORY)],
        check=True,
        capture_output=True,
    )  # fmt: skip


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found
