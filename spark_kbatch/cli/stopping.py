"""Signal handling of commands that run until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def asked_to_stop() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set; a second one ends the process at once."""
    asked = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return asked
