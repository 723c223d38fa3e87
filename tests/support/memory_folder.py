"""A folder in memory, for tests that write and flush much, and need no disk for it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 32 << 20


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder in memory where the system has room for files there, and else on its disk."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    with tempfile.TemporaryDirectory(dir=_MEMORY if has_room else None) as folder:
        yield Path(folder)
