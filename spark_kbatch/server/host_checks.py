"""Checks of a server's machine: its limit of open files, and whether a cluster is on a network file system.

Appends and commits open files. If connections took all descriptors, these would fail, so some are left
for them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from spark_kbatch.catalog.folder_clock import network_file_system
from spark_kbatch.files import raise_descriptors_limit

logger = logging.getLogger(__name__)

_FOR_FILES = 256  # descriptors


def warn_of_network(path: Path) -> None:
    """Log a warning if a cluster lies on a file system that other machines may use, too."""
    found = network_file_system(path)
    if found:
        logger.warning(
            "%s lies on a network file system (%s): run this server and all jobs that write there on one "
            "machine, unless you have tried that locks on it hold between machines",
            path,
            found,
        )


def connections_possible(wanted: int) -> int:
    """Return how many of the `wanted` client connections the limit of open files allows.

    Raises the process's limit where it may; logs a warning if that is not enough.
    """
    needed = wanted + _FOR_FILES
    limit = raise_descriptors_limit(needed)
    if limit >= needed:
        return wanted
    possible = min(wanted, max(limit - _FOR_FILES, limit // 2))
    logger.warning(
        "at most %d connections can be open, not the %d of max.connections: this process may open %d "
        "files, and would need %d. Raise its limit, by `ulimit -n %d` or LimitNOFILE of a systemd "
        "service, or lower max.connections",
        possible,
        wanted,
        limit,
        needed,
        needed,
    )
    return possible
