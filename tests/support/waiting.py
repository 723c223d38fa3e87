"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 60
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


def until(
    condition: Callable[[], object], what: str = "it comes true", *, timeout_s: float = TIMEOUT_S
) -> None:
    """Wait until `condition()` holds; fail with `what` if it does not in time."""
    deadline, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
