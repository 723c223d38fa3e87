"""Options that several commands share, and how they are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from spark_kbatch.model import IsolationLevel
from spark_kbatch.options.write import FOREIGN_ENDS

foreign_end_option = click.option(
    "--foreign-end",
    type=click.Choice(FOREIGN_ENDS),
    default="log",
    show_default=True,
    help="Where to end in a real broker's logs: after the last valid batch, or at the high watermark of its checkpoint.",
)
isolation_level_option = click.option(
    "--isolation-level",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value,
    show_default=True,
    help="Whether to read only committed records of a real broker's transactions.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line."
)


def settings_given(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[str, str]:
    """Parse KEY=VALUE of an option that may be repeated."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{word!r} is not KEY=VALUE, such as retention.ms=86400000")
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice")
        found[key] = value
    return found


def properties_of(
    _context: click.Context, _parameter: click.Parameter, file: str | None
) -> dict[str, str]:
    """Read KEY=VALUE lines of a file of client properties; errors do not repeat values, which may be secret."""
    if file is None:
        return {}
    found: dict[str, str] = {}
    text = (
        Path(file).read_text().replace("\\\n", "")
    )  # a backslash at the end of a line continues it
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        if not (equals and key.strip()):
            raise click.BadParameter(f"line {number} of {file} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
