"""Output and questions of commands, and their ends by signals.

Tables, JSON and lines go to stdout, questions and progress bars to stderr.
Everything is escaped that is not printable. A command that deletes something or gives it up asks
first: on a terminal, and elsewhere `--yes` answers. There are no progress bars where stderr is no
terminal. With --json, stdout has nothing but objects, one a line, and there are no bars.

    stdout is         a table is
    a terminal        drawn; a row below the other, heading by heading, where it is too narrow
    anything else     lines of tab-separated values below a line of headings, numbers as plain digits

Numbers and times are never cut and never folded.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from spark_kbatch.errors import ConfigError
from spark_kbatch.terminal import cell, may_be_terminal, to_json, visible

if TYPE_CHECKING:
    from rich.console import Console


Row = dict[str, Any]  # what --json prints of one thing
_FOLDED = 12  # the least width to which text is folded
_JSON = "spark_kbatch.json"  # in what a run of click keeps
_INTERRUPTED = 128 + signal.SIGINT  # the exit code that shells give


def _keep(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    context.meta[_JSON] = is_given


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep,
    help="Print one JSON object per line.",
)


def is_json() -> bool:
    """Return True if the command that runs was given --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def tell(row: Row, *lines: str) -> None:
    """Print what a command has found or done: as an object with --json, and else in lines."""
    if is_json():
        print_json(row)
        return
    for line in lines:
        print_line(visible(line))


def warn(sentence: str) -> None:
    """Print a line to stderr, escaped."""
    click.echo(visible(sentence), err=True)


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


class TableColumn(NamedTuple):
    """A column of a table: its heading, and what returns its value of a row.

    A row is what `--json` prints of it; a value is a text, a whole number, a list, or None, which
    is shown as "-".
    """

    heading: str
    of: Callable[[Any], Any]
    is_number: bool
    folds: bool
    shown_if: Callable[[Any], object] | None  # if it is true for no row the column is left out


def _column(
    heading: str,
    of: str | Callable[[Any], Any] = "",
    *,
    is_number: bool = False,
    folds: bool = False,
    shown_if: Callable[[Any], object] | None = None,
) -> TableColumn:
    """Return a column of a key, by default the heading, or of what a function returns."""
    key = of or heading.replace(" ", "_")
    value = key if callable(key) else operator.methodcaller("get", key)
    return TableColumn(heading, value, is_number, folds, shown_if)


text = functools.partial(_column, folds=True)  # which may be wrapped
word = _column  # a text that is never wrapped, such as a time
number = functools.partial(_column, is_number=True)


def show(
    title: str,
    columns: Sequence[TableColumn],
    rows: Iterable[Row],
    if_empty: str = "",
) -> None:
    """Print rows: each as an object with --json, as it comes, and else all as a table."""
    if is_json():
        for row in rows:
            print_json(row)
    else:
        Table(title, columns, rows).print(if_empty=if_empty)


class Table:
    """A table for the terminal, printed as lines with tabs where stdout is not a terminal."""

    def __init__(self, title: str, columns: Sequence[TableColumn], rows: Iterable[Row]) -> None:
        self._title, found = title, [*rows]
        self._columns = [
            column
            for column in columns
            if column.shown_if is None or any(map(column.shown_if, found))
        ]
        self._rows = [[column.of(row) for column in self._columns] for row in found]

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
        least, whole, folded = list[int](), 0, 0  # widths: of each column, and of all
        for n, column in enumerate(self._columns):
            longest = max((len(row[n]) for row in rows), default=0)
            least.append(max(longest, *map(len, column.heading.split())))
            whole += max(longest, len(column.heading))
            folded += min(least[n], _FOLDED) if column.folds else least[n]
        borders = 3 * len(self._columns) + 1
        if folded + borders > console.width:
            self._draw_row_by_row(console, rows)
            return
        has_room = whole + borders <= console.width
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
        from rich.text import Text  # noqa: PLC0415  as in _console

        console.print(cell(self._title, "table.title"), soft_wrap=True)
        width = max(len(column.heading) for column in self._columns)
        for row in rows:
            console.print()
            for column, text in zip(self._columns, row, strict=True):
                line = Text.assemble((f"{column.heading:{width}}  ", "table.header"), text)
                console.print(line, soft_wrap=True)


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return visible(text_of(value))


def raise_first(errors: Sequence[Exception]) -> None:
    """Raise the first of these errors, if there are any, after the others are printed to stderr."""
    for error in errors[1:]:
        warn(f"kbatch: {error}")
    for error in errors[:1]:
        raise error


def print_json(value: Row) -> None:
    """Print an object as one line of JSON."""
    print_line(to_json(value))


print_line = click.echo  # of a line whose parts were already escaped with `terminal`


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
dry_run_option = functools.partial(click.option, "--dry-run", is_flag=True)
look_option = dry_run_option(help="Only show what would be deleted.")


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
        warn(line)
    if not sys.stdin.isatty():
        raise ConfigError(
            f"nothing was {done}: stdin is no terminal, so the question whether to {verb} cannot be asked; "
            f"give --yes to {verb}{look}"
        )
    click.confirm(f"{verb.capitalize()}?", abort=True, err=True)


def delete_each(
    noun: str,
    found: Mapping[str, tuple[str, Row]],
    delete: Callable[[str], object],
    *,
    yes: bool,
    dry_run: bool,
    verb: tuple[str, str] = ("delete", "deleted"),
) -> None:
    """Delete things by their names, after the question, and print each; or with `dry_run` only print.

    Args:
        noun: what they are, such as "topic".
        found: by name, what is lost as text, and what is printed with --json.
        delete: deletes one.
        yes: whether not to ask.
        dry_run: as the option.
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
        outcome = f"would be {verb[1]}" if dry_run else verb[1]
        tell({**row, verb[1]: not dry_run}, f"{noun} {name} {outcome}: {lost}")


# What shows how much of a long task is done: as a share if its total is known, and a text beside it.
OnProgress = Callable[[float, float | None, str], object]


def unshown(completed: float, total: float | None, text: str) -> None:
    """Show nothing: the update function where there is no progress bar."""


@contextlib.contextmanager
def progress_bar(what: str, *, hidden: bool | None = None) -> Iterator[OnProgress]:
    """Show a progress bar with the time left; yield its update function, `unshown` if none is shown.

    It is hidden with --json, if nothing else is said.
    """
    console = None if (is_json() if hidden is None else hidden) else _console(stderr=True)
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
    warn(f"kbatch: interrupted{why}")
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
