"""A folder that no one can write to for a while."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only; for root, whom modes do not stop, by a mount, or skip the test."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    for options in (["--bind", str(folder), str(folder)], ["-o", "remount,bind,ro", str(folder)]):
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)
            pytest.skip(f"root may write everywhere, and may not mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
