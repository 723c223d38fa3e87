"""Warnings about clients, which may cause any number of them: one a second is logged."""

from __future__ import annotations

import logging

from spark_kbatch.clock import monotonic_s

logger = logging.getLogger(__name__)

_WARNED_EVERY_S = 1.0


class ClientWarnings:
    """A rate limit on warnings about clients: at most one per second, however often clients cause them."""

    def __init__(self) -> None:
        self._again_s = 0.0

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, or a line for debugging if another was logged just before."""
        is_due = monotonic_s() >= self._again_s
        if is_due:
            self._again_s = monotonic_s() + _WARNED_EVERY_S
        logger.log(logging.WARNING if is_due else logging.DEBUG, message, *arguments)


client_warnings = ClientWarnings()
