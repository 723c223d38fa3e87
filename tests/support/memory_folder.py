"""A folder in memory, for tests that write and flush much, and need no disk for it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def memory_folder(size: int = 32 << 20) -> Iterator[Path]:
    """Make a folder in memory where the system has `size` bytes for files there, and else on its disk."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= size
    with tempfile.TemporaryDirectory(dir=_MEMORY if has_room else None) as folder:
        yield Path(folder)
