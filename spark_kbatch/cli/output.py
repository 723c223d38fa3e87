"""Output and questions of commands: tables, JSON and lines; questions and progress bars on stderr.

Everything is escaped that is not printable. A command that deletes something or gives it up asks
first: on a terminal, and elsewhere `--yes` answers. There are no progress bars where stderr is no
terminal.

    stdout is         a table is
    a terminal        drawn; a row below the other, heading by heading, where it is too narrow
    anything else     lines of tab-separated values below a line of headings, numbers as plain digits

Numbers and times are never cut and never folded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from spark_kbatch.errors import ConfigError
from spark_kbatch.terminal import cell, may_be_terminal, to_json, visible

if TYPE_CHECKING:
    from rich.console import Console


_FOLDED = 12  # the least width to which text is folded


def text_of(value: Any) -> str:
    """Return a number, time or list as text; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def is_terminal() -> bool:
    """Return True if stdout is a terminal, or is to be taken for one (FORCE_COLOR)."""
    return _console() is not None


def _console(*, stderr: bool = False) -> Console | None:
    """Return the terminal that stdout or stderr is; None, without importing rich, if it is none."""
    if not may_be_terminal(sys.stderr if stderr else sys.stdout):
        return None
    from rich.console import Console  # noqa: PLC0415  takes as long as a whole short command

    console = Console(stderr=stderr)
    return console if console.is_terminal else None


class _Column(NamedTuple):
    heading: str
    is_number: bool
    folds: bool


class Table:
    """A table for the terminal, printed as lines with tabs where stdout is not a terminal.

    Values are texts, whole numbers, lists, or None, which is shown as "-".
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._columns: list[_Column] = []
        self._rows: list[tuple[Any, ...]] = []

    def add_texts(self, *headings: str) -> None:
        """Add table columns of text that may be wrapped."""
        self._columns += [_Column(heading, is_number=False, folds=True) for heading in headings]

    def add_words(self, *headings: str) -> None:
        """Add table columns of text that is never wrapped, such as times."""
        self._columns += [_Column(heading, is_number=False, folds=False) for heading in headings]

    def add_numbers(self, *headings: str) -> None:
        """Add columns of numbers."""
        self._columns += [_Column(heading, is_number=True, folds=False) for heading in headings]

    def add_row(self, *values: Any) -> None:
        """Add a row with a value for each column."""
        assert len(values) == len(self._columns)
        self._rows.append(values)

    def print(self, *, if_empty: str = "") -> None:
        """Print the table, or a sentence in its place if it has no rows.

        The sentence goes to stderr if stdout is not a terminal.
        """
        console = _console()
        if console is None:
            print_line("\t".join(column.heading for column in self._columns))
            for row in self._rows:
                print_line("\t".join(visible(text_of(value)) for value in row))
        if if_empty and not self._rows:
            click.echo(visible(if_empty), err=console is None)
        elif console is not None:
            self._draw(console)

    def _draw(self, console: Console) -> None:
        from rich.table import Table as Drawn  # noqa: PLC0415  as in _console

        rows = [[_shown(value) for value in row] for row in self._rows]
        cells = [[len(row[n]) for row in rows] for n in range(len(self._columns))]
        longest = [max(sizes, default=0) for sizes in cells]
        whole = [max(n, len(one.heading)) for n, one in zip(longest, self._columns, strict=True)]
        least = [
            max(n, *map(len, one.heading.split()))
            for n, one in zip(longest, self._columns, strict=True)
        ]
        folded = [
            min(n, _FOLDED) if one.folds else n for n, one in zip(least, self._columns, strict=True)
        ]
        borders = 3 * len(self._columns) + 1
        if sum(folded) + borders > console.width:
            self._draw_row_by_row(console, rows)
            return
        has_room = sum(whole) + borders <= console.width
        drawn = Drawn(title=cell(self._title, "table.title"), title_justify="left")
        for column, width in zip(self._columns, least, strict=True):
            drawn.add_column(
                column.heading,
                justify="right" if column.is_number else "left",
                overflow="fold",
                width=None if has_room or column.folds else width,
            )
        for row in rows:
            drawn.add_row(*map(cell, row))
        console.print(drawn)

    def _draw_row_by_row(self, console: Console, rows: Sequence[Sequence[str]]) -> None:
        """Print each row vertically, with a line for each column's heading and value."""
        from rich.text import Text  # noqa: PLC0415  as in _console

        console.print(cell(self._title, "table.title"), soft_wrap=True)
        width = max(len(column.heading) for column in self._columns)
        for row in rows:
            console.print()
            for column, text in zip(self._columns, row, strict=True):
                line = Text.assemble((f"{column.heading:{width}}  ", "table.header"), text)
                console.print(line, soft_wrap=True)


def _shown(value: Any) -> str:
    """Return a value as text for a terminal, escaped, and with commas in numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return visible(text_of(value))


def raise_first(errors: Sequence[Exception]) -> None:
    """Raise the first of these errors, if there are any, after the others are printed to stderr."""
    for error in errors[1:]:
        click.echo(visible(f"kbatch: {error}"), err=True)
    for error in errors[:1]:
        raise error


def print_json(value: dict[str, Any]) -> None:
    """Print an object as one line of JSON."""
    print_line(to_json(value))


def print_line(line: str) -> None:
    """Print a line whose parts were already escaped with `terminal`."""
    click.echo(line)


@contextlib.contextmanager
def whole_pipe() -> Iterator[None]:
    """Ignore the broken pipe in a `with` block when a reader of stdout, such as `head`, has ended."""
    try:
        yield
    except BrokenPipeError:
        # What is left in buffers would raise again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


LOOK = ", or --dry-run to look only"  # of `confirm`

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")


def confirm(lines: Iterable[str], verb: str, done: str, look: str = "") -> None:
    """Print what would be lost, and ask for confirmation; end the command unless the answer is yes.

    Args:
        lines: what would be lost.
        verb: what is asked for, such as "delete".
        done: the same as done, such as "deleted".
        look: how to look only, as the end of the error's sentence.

    Raises:
        ConfigError: stdin is no terminal, so no one can answer: what it holds is not meant as an answer.
    """
    for line in lines:
        click.echo(visible(line), err=True)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"nothing was {done}: stdin is no terminal, so the question whether to {verb} cannot be asked; "
            f"give --yes to {verb}{look}"
        )
    click.confirm(f"{verb.capitalize()}?", abort=True, err=True)


def delete_each(
    noun: str,
    found: Mapping[str, tuple[str, Mapping[str, Any]]],
    delete: Callable[[str], object],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    verb: tuple[str, str] = ("delete", "deleted"),
) -> None:
    """Delete things by their names, after the question, and print each; or with `dry_run` only print.

    Args:
        noun: what they are, such as "topic".
        found: by name, what is lost as text, and what is printed with `as_json`.
        delete: deletes one.
        yes: whether not to ask.
        dry_run, as_json: as the options.
        verb: what is done in place of that, and the same as done.

    Raises:
        ConfigError: as `confirm`.
    """
    if not (yes or dry_run):
        lines = (f"{noun} {name}: {lost}" for name, (lost, _) in found.items())
        confirm(lines, *verb, LOOK)
    for name, (lost, row) in found.items():
        if not dry_run:
            delete(name)
        if as_json:
            print_json({**row, verb[1]: not dry_run})
        else:
            outcome = f"would be {verb[1]}" if dry_run else verb[1]
            print_line(visible(f"{noun} {name} {outcome}: {lost}"))


class OnProgress(Protocol):
    """Callback that reports how much of a long task is done."""

    def __call__(self, completed: float, total: float | None, text: str) -> None:
        """Show how much is completed, as a share if the total is known, and a text beside it."""


def unshown(completed: float, total: float | None, text: str) -> None:
    """Show nothing: the update function where there is no progress bar."""


@contextlib.contextmanager
def progress_bar(what: str, *, hidden: bool = False) -> Iterator[OnProgress]:
    """Show a progress bar with the time left; yield its update function, `unshown` if none is shown."""
    console = None if hidden else _console(stderr=True)
    if console is None or console.is_dumb_terminal:
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
