"""Ends of commands by a signal: of those that run until SIGINT or SIGTERM, and of all others."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

from spark_kbatch.terminal import visible

_INTERRUPTED = 128 + signal.SIGINT  # the exit code that shells give


def asked_to_stop() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set; a second one ends the process at once."""
    asked = threading.Event()
    _set_by_signals(asked)
    return asked


class StopOnceBegun(threading.Event):
    """An event that SIGINT and SIGTERM set, from the first time on that someone looks whether it is set.

    Before, they end the process as ever: where nothing has begun, there is nothing to finish.
    """

    has_begun = False  # whether someone has looked

    def is_set(self) -> bool:
        """Return True if a signal came."""
        if not self.has_begun:
            self.has_begun = True
            _set_by_signals(self)
        return super().is_set()


def _set_by_signals(asked: threading.Event) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def end_as_interrupted(why: str = "") -> NoReturn:
    """Say that the command was interrupted before it was done, and end it with exit code 130."""
    if sys.stderr.isatty():
        click.echo(err=True)  # after the ^C that the terminal shows, or a question
    click.echo(visible(f"kbatch: interrupted{why}"), err=True)
    sys.exit(_INTERRUPTED)


@contextlib.contextmanager
def interrupts_told() -> Iterator[None]:
    """End the command as interrupted at Ctrl+C, also if it comes in place of an answer."""
    try:
        yield
    except KeyboardInterrupt:
        end_as_interrupted()
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            end_as_interrupted()
        raise
