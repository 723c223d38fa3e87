"""Compilation of the package's numba kernels before tests need them, with a message to the user."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_kbatch.kernels import records, routing

_JIT_LOGGER = "spark_kbatch.kernels.jit"


class _Announcement(logging.Handler):
    """Log handler that tells the user once that kernels are being compiled."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.is_made = False
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the user about the first compilation, and ignore later ones."""
        if not self.is_made:
            self.is_made = True
            self._say(f"kbatch: {record.getMessage()}; this takes some seconds")


def load_kernels(say: Callable[[str], None]) -> float | None:
    """Load the compiled kernels for reads and writes, and compile those missing on this machine.

    Args:
        say: takes a line for the user before kernels are compiled.

    Returns:
        How long it took in seconds; None if nothing was compiled.
    """
    logger, announcement = logging.getLogger(_JIT_LOGGER), _Announcement(say)
    level, start = logger.level, time.monotonic()
    logger.setLevel(logging.INFO)
    logger.addHandler(announcement)
    try:
        records.load()
        routing.load()
    finally:
        logger.removeHandler(announcement)
        logger.setLevel(level)
    return time.monotonic() - start if announcement.is_made else None
