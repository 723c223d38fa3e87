r"""Output formats of `kbatch consume`: fields, JSON, values alone, or a format string as in kcat.

    %t topic    %p partition    %o offset    %T time in ms, -1 for none
    %k key      %v or %s value  %h headers   %K size of the key, %S of the value, -1 for null
    %% a percent sign           \n \t \r \\ \xHH

Nothing is added, so a line ends where the format says so. A null key or value is nothing, a null header is
NULL, as in kcat. Keys, values and headers are written as they are, but to a terminal only what is printable:
there they are escaped as in a line of fields.
"""

from __future__ import annotations

import re

import click

from spark_kbatch.record.lines import Kind, Layout, Style, field_layout, json_layout

_KINDS = {
    "t": Kind.TOPIC,
    "p": Kind.PARTITION,
    "o": Kind.OFFSET,
    "T": Kind.TIME_MS,
    "k": Kind.KEY,
    "v": Kind.VALUE,
    "s": Kind.VALUE,
    "h": Kind.HEADERS,
    "K": Kind.KEY_SIZE,
    "S": Kind.VALUE_SIZE,
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_PIECE = re.compile(
    r"%(?P<kind>.?)|\\x(?P<byte>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL
)


def parse_format(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> list[bytes | Kind] | None:
    """Parse the format string that a user gives for records into its literal bytes and fields."""
    if text is None:
        return None
    parts: list[bytes | Kind] = []
    for found in _PIECE.finditer(text):
        kind, escape = found["kind"], found["escape"]
        if kind is not None:
            if kind != "%" and kind not in _KINDS:
                accepted = ", ".join(f"%{letter}" for letter in (*_KINDS, "%"))
                raise click.BadParameter(f"'%{kind}' is not known; accepted: {accepted}")
            parts.append(b"%" if kind == "%" else _KINDS[kind])
        elif found["byte"] is not None:
            parts.append(bytes([int(found["byte"], 16)]))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise click.BadParameter(
                    rf"'\{escape}' is not known; accepted: \n, \t, \r, \\, \x and two hex digits"
                )
            parts.append(_ESCAPES[escape])
        else:
            parts.append(found["text"].encode(errors="surrogateescape"))
    return parts


def layout_of(
    parts: list[bytes | Kind] | None,
    *,
    as_json: bool,
    raw: bool,
    with_topic: bool,
    to_terminal: bool,
) -> Layout:
    """Return the layout of printed records that --json, --raw or --format asks for.

    Raises:
        click.UsageError: several of them are given.
    """
    if (parts is not None) + as_json + raw > 1:
        raise click.UsageError("give one of --json, --raw and --format")
    if as_json:
        return json_layout()
    if raw:
        parts = [Kind.VALUE, b"\n"]
    if parts is None:
        return field_layout(with_topic=with_topic)
    return Layout(parts, Style.FIELD if to_terminal else Style.RAW)
