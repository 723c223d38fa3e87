"""Compilation of kernels during tests: a message to the user, and time that does not count as the tests'."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from spark_kbatch.kernels import jit


class _Announcement(logging.Handler):
    """Log handler that tells the user once that kernels are being compiled."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._is_made = False
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the user about the first compilation, and ignore later ones."""
        if not self._is_made:
            self._is_made = True
            self._say(f"kbatch: {record.getMessage()}; this takes some seconds")


@contextlib.contextmanager
def announced(say: Callable[[str], None]) -> Iterator[Callable[[], float]]:
    """Tell the user when kernels are compiled; yield a function that returns for how many seconds they were.

    Args:
        say: takes a line for the user before the first one is compiled.
    """
    announcement, start_s = _Announcement(say), jit.compiling_s()
    level = jit.logger.level
    jit.logger.setLevel(logging.INFO)
    jit.logger.addHandler(announcement)
    try:
        yield lambda: jit.compiling_s() - start_s
    finally:
        jit.logger.removeHandler(announcement)
        jit.logger.setLevel(level)
