r"""Options that several commands share, and how they are parsed; Java properties files.

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

import functools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from spark_kbatch.model import INT_MAX, IsolationLevel
from spark_kbatch.options import arguments
from spark_kbatch.options.write import FOREIGN_ENDS, MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.terminal import JsonLogFormatter, LogFormatter, iso_time_ms

logger = logging.getLogger(__name__)

foreign_end_option = click.option(
    "--foreign-end",
    type=click.Choice(FOREIGN_ENDS),
    help="Where to end in a real broker's logs: after the last valid batch, even where records are missing, which else is an error; or at the high watermark of its checkpoint.",
)
max_decompressed_option = click.option(
    "--max-decompressed-batch-bytes",
    type=click.IntRange(1, INT_MAX),
    default=MAX_DECOMPRESSED_BATCH_BYTES,
    show_default=True,
    help="Largest size that one compressed batch may expand to; a larger one is an error.",
)
isolation_level_option = click.option(
    "--isolation-level",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value,
    show_default=True,
    help="Whether to read only committed records of transactions of Kafka's clients.",
)
where_option = click.option(
    "--where",
    metavar="CONDITION",
    help="Only records that this condition is true for: \"key = 'a' AND offset >= 5\".",
)
TIME_HELP = "milliseconds since 1970, or an ISO 8601 time, which is in UTC unless it has a zone"
_REGISTRY_HELP = (
    "Schema registry: URLs, with commas between them, or a folder that stands in for one."
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def registry_options(command: _Command) -> Callable[..., Any]:
    """Add the options `--registry` and `--registry-config`, which a command gets as its argument `registry`.

    That is a mapping of options of a registry, empty if neither is given.
    """

    @click.option("--registry", "registry_url", metavar="URL", envvar="KBATCH_REGISTRY", show_envvar=True, help=_REGISTRY_HELP)  # fmt: skip
    @click.option("--registry-config", "registry_file", type=click.Path(exists=True, dir_okay=False), callback=properties_of, help="File with properties of the registry's client, such as basic.auth.user.info, as Confluent's tools take it.")  # fmt: skip
    @functools.wraps(command)
    def with_registry(
        *given: Any, registry_url: str | None, registry_file: dict[str, str], **named: Any
    ) -> Any:
        registry = {
            key.removeprefix("schema.registry."): value for key, value in registry_file.items()
        }
        if registry_url is not None:
            registry["url"] = registry_url
        return command(*given, registry=registry, **named)

    return with_registry


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line."
)


def _set_log_format(_context: click.Context, _parameter: click.Parameter, chosen: str) -> None:
    """Let the command's own handler, and no one else's, write JSON if that is chosen."""
    for handler in logging.getLogger().handlers:
        if chosen == "json" and isinstance(handler.formatter, LogFormatter):
            handler.setFormatter(JsonLogFormatter())


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    expose_value=False,
    callback=_set_log_format,
    help="Form of what is logged on stderr: text, or one JSON object per line, with its time.",
)


def examples(*lines: str) -> str:
    """Return the epilog of a command's help that shows these examples."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def settings_given(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[str, str]:
    """Parse KEY=VALUE of an option that may be repeated."""
    for word in words:
        if "=" not in word and Path(word).is_file():
            raise click.BadParameter(
                f"{word!r} is a file, and not KEY=VALUE; a client's properties are given by --command-config"
            )
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


def refuse_beside(option: str, given: object, *others: str) -> None:
    """Refuse options that mean nothing beside one that is given."""
    if given is None:
        return
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and {*parameter.opts} & {*others}:
            raise click.UsageError(
                f"{parameter.opts[0]} has no meaning beside {option}: leave it out"
            )


def time_given(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    """Parse the time that an option takes into ms."""
    return None if text is None else time_ms(text)


def time_ms(text: str, *words: str) -> int:
    """Parse a time in ms or ISO 8601 (UTC unless it has a zone) into ms.

    Args:
        text: to parse.
        words: that are accepted in place of a time, for the error.

    Raises:
        click.BadParameter: it is neither, or before 1970.
    """
    if text.isascii() and text.isdigit():
        if arguments.looks_like_seconds(int(text)):
            logger.warning("%s", arguments.in_seconds("time", int(text)))
        return int(text)
    found = iso_time_ms(text)
    if found is None or found < 0:
        accepted = ", ".join([*words, "milliseconds", "or a time such as 2024-10-25T08:00:00Z"])
        raise click.BadParameter(f"{text!r} is not a time since 1970; accepted: {accepted}")
    return found


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
