"""Tables, JSON and lines on stdout, with everything escaped that is not printable."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from spark_kbatch.terminal import cell, to_json, visible


def counted(things: Sequence[object], noun: str) -> str:
    """Return the number of things with their noun, such as "2 topics"."""
    return f"{len(things):,} {noun}{'s' * (len(things) != 1)}"


def iso_time(timestamp_ms: int) -> str | None:
    """Return ISO 8601 in UTC with milliseconds; the number itself past year 9999; None for no time."""
    if timestamp_ms == -1:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_of(value: Any) -> str:
    """Return a number, time or list as text; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def new_table(title: str) -> Table:
    """Return an empty table."""
    return Table(title=cell(title, "table.title"), title_justify="left")


def print_table(table: Table, *, if_empty: str = "") -> None:
    """Print a table, or a sentence in its place if it has no rows."""
    if table.rows or not if_empty:
        Console().print(table)
    else:
        print_line(visible(if_empty))


def print_json(value: dict[str, Any]) -> None:
    """Print an object as one line of JSON."""
    print_line(to_json(value))


def print_line(line: str) -> None:
    """Print a line whose parts went through `terminal`."""
    click.echo(line)
