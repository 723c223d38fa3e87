"""A progress bar on stderr, for work that takes long; none where stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from spark_kbatch.terminal import may_be_terminal, visible


class OnProgress(Protocol):
    """Callback that reports how much of a long task is done."""

    def __call__(self, completed: float, total: float | None, text: str) -> None:
        """Show how much is completed, as a share if the total is known, and a text beside it."""


def unshown(completed: float, total: float | None, text: str) -> None:
    """Show nothing: the update function where there is no progress bar."""


@contextlib.contextmanager
def progress_bar(what: str, *, hidden: bool = False) -> Iterator[OnProgress]:
    """Show a progress bar with the time left; yield its update function, `unshown` if none is shown."""
    if hidden or not may_be_terminal(sys.stderr):
        yield unshown
        return
    from rich.console import Console  # noqa: PLC0415  takes as long as a whole short command

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield unshown
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as shown:
        task = shown.add_task(visible(what), total=None, text="")

        def update(completed: float, total: float | None, text: str) -> None:
            shown.update(task, total=total, completed=completed, text=text)

        yield update
