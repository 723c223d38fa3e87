r"""Java properties files, as Kafka's tools take them with `--command-config`.

    # a comment; so is a line that starts with !
    security.protocol=SASL_SSL          key and value are separated by =, : or spaces
    sasl.jaas.config=a.b.Module required \
        username="alice";               a backslash continues a line, whose indentation is left out
    ssl.key.password=\u00e9\t\\         escapes, in keys too

A file is in ISO 8859-1, as for Java, so that it means the same here and there. Nothing of a file is repeated in an
error: it may hold secrets.

Source: java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ENCODING = "iso-8859-1"

_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u([0-9A-Fa-f]{4})|.)", re.DOTALL)
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)


def read_properties(path: str) -> dict[str, str]:
    r"""Return the settings in a properties file; of a key that is set twice, the last value.

    Raises:
        OSError: the file cannot be read.
        ValueError: a \u is not followed by four hexadecimal digits; names the line.
    """
    return dict(parse_properties(Path(path).read_text(ENCODING)))


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values in the text of a properties file.

    Raises the errors of `read_properties`.
    """
    for number, line in _lines(text):
        found = _KEY.match(line)
        assert found is not None
        yield _unescaped(found[1], number), _unescaped(line[found.end() :], number)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield a properties file's logical lines, continuations joined, with their line numbers."""
    joined, first = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_SPACE)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        joined += line
        if _is_continued(line):
            joined = joined[:-1]
            continue
        yield first, joined
        joined, first = "", 0
    if first:
        yield first, joined


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str, line: int) -> str:
    def plain(found: re.Match[str]) -> str:
        if found[2]:
            return chr(int(found[2], 16))
        if found[1] == "u":
            raise ValueError(
                f"line {line} has a \\u that is not followed by four hexadecimal digits"
            )
        return _ESCAPES.get(found[1], found[1])

    return _ESCAPE.sub(plain, text)
