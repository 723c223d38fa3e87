r"""Escaping of text from records, names and paths, to make it safe to print.

Data may hold escape sequences, line ends and characters that reorder a line. Printed as it is, it could
move the cursor, set a window's title, forge a record's line, or be lost on the way. So the command line
prints:

    printable characters                               as they are
    tab, newline, carriage return                      \t \n \r
    other ASCII controls, bytes that are not UTF-8     \x1b, \xff
    other characters that Python's repr escapes        \u009b, \u202e, \U000e0001
    in fields of records also backslash, and null      \\, \N

So a printed field shows exactly which bytes it holds. Rich gets `Text`, never a `str`, in which it would
look for markup.
"""

from __future__ import annotations

import base64
import datetime
import json
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.text import Text

LOG_LEVEL = "KBATCH_LOG_LEVEL"  # of the environment: what is logged on stderr, where we say so

NULL = r"\N"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_LINE_ENDS = str.maketrans("\t\n\r", "   ")
_SHORT = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_NOT_PLAIN = re.compile(r"[^\x00-\x7e]")  # json.dumps escapes ASCII controls except DEL
_BYTE_IN_TEXT = range(0xDC80, 0xDD00)  # what "surrogateescape" makes of a byte that is not UTF-8


def counted(count: int, noun: str) -> str:
    """Return a number of things with their noun, such as "2 topics"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def iso_time(timestamp_ms: int) -> str | None:
    """Return a time in ms as ISO 8601 in UTC; as a number past year 9999, None for no time."""
    if timestamp_ms == -1:
        return None
    try:
        moment = EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_moment(text: str) -> datetime.datetime | None:
    """Parse an ISO 8601 time, in UTC unless it has a zone; None if `text` is not a time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def iso_time_ms(text: str) -> int | None:
    """Parse a time as `iso_moment` does, into ms."""
    moment = iso_moment(text)
    return None if moment is None else (moment - EPOCH) // datetime.timedelta(milliseconds=1)


def visible(text: str) -> str:
    """Return `text` with all characters that are not printable escaped."""
    return text if _is_shown(text) else "".join(map(_visible, text))


def field(data: bytes | str | None, separators: str = "") -> str:
    """Return a record's key, value or other field as text, escaped so that no two look alike.

    Args:
        separators: further characters to escape, those that separate fields.
    """
    if data is None:
        return NULL
    text = data.decode(errors="surrogateescape") if isinstance(data, bytes) else data
    separators += "\\"
    if _is_shown(text) and not any(c in text for c in separators):
        return text
    return "".join(_escaped(c) if c in separators else _visible(c) for c in text)


def may_be_terminal(stream: TextIO | None) -> bool:
    """Return False if rich would not take the stream for a terminal, so that it need not be imported."""
    if os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1":
        return True
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def cell(text: str, style: str = "") -> Text:
    """Return `text` as a table cell for the library rich, escaped, and never read as markup."""
    from rich.text import Text  # noqa: PLC0415  Spark's processes log with this module, and need no rich

    return Text(visible(text), style)


def to_json(value: Any) -> str:
    r"""Return JSON on one line, in which everything that is not printable is \uNNNN."""
    return json_on_one_line(json.dumps(value, ensure_ascii=False))


def json_on_one_line(text: str) -> str:
    r"""Return JSON text as it is written, but on one line, and with \uNNNN for everything that is not printable."""
    text = text.translate(_LINE_ENDS)  # which no string of JSON has
    return text if _is_shown(text) else _NOT_PLAIN.sub(_in_json, text)


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Return a record's key or value for JSON: text, or {"base64": ...} if it is not UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def shown_characters() -> bytes:
    """Return a table with 1 for each character that is printed as it is, and 0 for others.

    It is indexed by the character's number. Takes 0.1 s.
    """
    if not _prints_unicode():
        return bytes(map(_is_shown, map(chr, range(0x80)))).ljust(sys.maxunicode + 1, b"\0")
    return bytes(map(str.isprintable, map(chr, range(sys.maxunicode + 1))))


def log_level() -> str:
    """Return the lowest log level to show: that in KBATCH_LOG_LEVEL, or WARNING."""
    level = os.environ.get(LOG_LEVEL, "").upper()
    return level if level in logging.getLevelNamesMapping() else "WARNING"


class LogFormatter(logging.Formatter):
    """Formatter that writes level, logger and message of a log record, escaped."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the log record's first line, with level and logger, escaped."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        """Return the log record's traceback, each line escaped."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))


class JsonLogFormatter(logging.Formatter):
    """Formatter that writes a log record as one line of JSON, with the time in UTC; the traceback is a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as JSON."""
        shown = {
            "time": iso_time(int(record.created * 1000)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return to_json(shown)


def _visible(character: str) -> str:
    return character if _is_shown(character) else _escaped(character)


def _escaped(character: str) -> str:
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number in _BYTE_IN_TEXT:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _in_json(found: re.Match[str]) -> str:
    character = found[0]
    if _is_shown(character):
        return character
    return r"\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _is_shown(text: str) -> bool:
    """Return True if all of a text can be printed as it is."""
    return text.isprintable() and (text.isascii() or _prints_unicode())


def _prints_unicode() -> bool:
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
