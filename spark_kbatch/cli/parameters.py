"""Options that several commands share, and how they are parsed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_kbatch.cli.output import iso_time_ms
from spark_kbatch.cli.properties import read_properties
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
    return _parse_settings(words, "{!r} is not KEY=VALUE, such as retention.ms=86400000")


def client_properties_given(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[str, str]:
    """Parse KEY=VALUE of client properties; errors do not repeat values, which may be secret."""
    return _parse_settings(words, "it is not KEY=VALUE, such as security.protocol=SSL")


def _parse_settings(words: Sequence[str], malformed: str) -> dict[str, str]:
    """Parse KEY=VALUE words; `malformed` is the error text of any other, in which `{}` stands for the word."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise click.BadParameter(malformed.format(word))
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice")
        found[key] = value
    return found


def properties_of(
    _context: click.Context, _parameter: click.Parameter, file: str | None
) -> dict[str, str]:
    """Read a file of client properties; errors do not repeat values, which may be secret."""
    if file is None:
        return {}
    try:
        return read_properties(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise click.BadParameter(f"{file!r} cannot be read: {why}") from None


def time_ms(text: str) -> int | None:
    """Parse a time in ms or ISO 8601 (UTC unless it has a zone) into ms; return None if it is neither."""
    if text.isascii() and text.isdigit():
        return int(text)
    return iso_time_ms(text)
