"""A small file system of its own for one function: a tmpfs that can be filled, or made read-only.

    def fill_it(disk: Path) -> None: ...

    def test_...(tmp_path: Path) -> None:
        on_small_disk(fill_it, tmp_path)

The function runs in a new process, in a mount namespace that only it and its children see. So no test needs
to be root, and nothing is left to unmount.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SCRIPT = """\
mount -t tmpfs -o size=$1 tmpfs "$2" || exit
shift 2
exec "$@"
"""
_ROOT = Path(__file__).parents[2]


def on_small_disk(
    work: Callable[[Path], object], folder: Path, *, size: str = "8m", timeout_s: int = 120
) -> None:
    """Call a module's function with a folder that is a file system of this size, or skip the test."""
    ensure_available()
    disk = folder / "small-disk"
    disk.mkdir()
    in_python = [sys.executable, "-m", __spec__.name, work.__module__, work.__qualname__, str(disk)]
    done = subprocess.run(
        [*_namespace(), "sh", "-c", _SCRIPT, "sh", size, str(disk), *in_python],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@functools.cache
def ensure_available() -> None:
    """Skip the test where no file system can be mounted."""
    try:
        done = subprocess.run(
            [*_namespace(), "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"],
            capture_output=True,
            text=True,
            check=False,
        )
        reason = done.stderr.strip()
    except FileNotFoundError as error:  # macOS has no unshare
        done, reason = None, str(error)
    if done is None or done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {reason}")


def _namespace() -> list[str]:
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *own_user, "--mount"]


def fill(disk: Path, *, leaving: int = 0) -> Path:
    """Fill a disk, but for some bytes; return the file that takes the room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while room(disk) - size >= leaving or not leaving:
                    file.write(bytes(size))
            os.fsync(file)
    return filler


def room(disk: Path) -> int:
    """Return how many bytes are left on a disk."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def kbatch(*words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the command line; return its outcome."""
    return subprocess.run(
        [sys.executable, "-m", "spark_kbatch", *map(str, words)],
        input=stdin, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


if __name__ == "__main__":
    module, name, path = sys.argv[1:]
    getattr(importlib.import_module(module), name)(Path(path))
