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

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, IsolationLevel
from spark_kbatch.options import arguments
from spark_kbatch.options.write import FOREIGN_ENDS, MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.terminal import JsonLogFormatter, LogFormatter, iso_time_ms

logger = logging.getLogger(__name__)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def parsed(
    parse: Callable[[Any], Any],
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback of an option that parses what is given, and leaves None where nothing is.

    What `parse` refuses as a ConfigError is an error of usage.
    """

    def convert(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
        try:
            return None if given is None else parse(given)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def gathered(
    into: str, options: Sequence[Callable[[Any], Any]], make: Callable[[dict[str, Any]], Any] = dict
) -> Callable[[_Command], Callable[..., Any]]:
    """Return a decorator that adds options to a command, which gets all of them as one argument.

    Args:
        into: the argument's name.
        options: of click, in the order in which the help shows them.
        make: makes the argument of the values by name, without those that are None.
    """

    def add(command: _Command) -> Callable[..., Any]:
        before = len(getattr(command, "__click_params__", ()))

        @functools.wraps(command)
        def with_options(*given: Any, **named: Any) -> Any:
            found = {name: named.pop(name) for name in names}
            some = {name: value for name, value in found.items() if value is not None}
            return command(*given, **{into: make(some)}, **named)

        for option in reversed(options):
            option(with_options)
        own: list[click.Parameter] = vars(with_options)["__click_params__"][before:]
        names = [one.name or "" for one in own]
        return with_options

    return add


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
partitions_option = functools.partial(
    click.option,
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    metavar="PARTITION",
    multiple=True,
)
where_option = click.option(
    "--where",
    metavar="CONDITION",
    help="Only records that this condition is true for: \"key = 'a' AND offset >= 5\".",
)
TIME_HELP = "milliseconds since 1970, or an ISO 8601 time, which is in UTC unless it has a zone"


def _properties_in(file: str) -> dict[str, str]:
    """Read a file of client properties; errors do not repeat values, which may be secret."""
    try:
        return read_properties(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise click.BadParameter(f"{file!r} cannot be read: {why}") from None


properties_file_option = functools.partial(
    click.option, type=click.Path(exists=True, dir_okay=False), callback=parsed(_properties_in)
)


def _registry(given: dict[str, Any]) -> dict[str, str]:
    from_file: dict[str, str] = given.get("registry_file", {})
    registry = {key.removeprefix("schema.registry."): value for key, value in from_file.items()}
    if "registry_url" in given:
        registry["url"] = given["registry_url"]
    return registry


# The options of a registry, which a command gets as its argument `registry`, a mapping.
registry_options = gathered(
    "registry",
    [
        click.option("--registry", "registry_url", metavar="URL", envvar="KBATCH_REGISTRY", show_envvar=True, help="Schema registry: URLs, with commas between them, or a folder that stands in for one."),
        properties_file_option("--registry-config", "registry_file", help="File with properties of the registry's client, such as basic.auth.user.info, as Confluent's tools take it."),
    ],
    _registry,
)  # fmt: skip


def _set_log_format(chosen: str) -> str:
    """Let the command's own handler, and no one else's, write JSON if that is chosen."""
    for handler in logging.getLogger().handlers:
        if chosen == "json" and isinstance(handler.formatter, LogFormatter):
            handler.setFormatter(JsonLogFormatter())
    return chosen


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    callback=parsed(_set_log_format),
    help="Form of what is logged on stderr: text, or one JSON object per line, with its time; then what is printed at the start is one, too.",
)


def examples(*lines: str) -> str:
    """Return the epilog of a command's help that shows these examples."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def _settings(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word and Path(word).is_file():
            raise click.BadParameter(
                f"{word!r} is a file, and not KEY=VALUE; a client's properties are given by --command-config"
            )
    return parse_settings(words, "{!r} is not KEY=VALUE, such as retention.ms=86400000")


config_option = functools.partial(
    click.option, "--config", metavar="KEY=VALUE", multiple=True, callback=parsed(_settings)
)


def parse_settings(words: Sequence[str], malformed: str) -> dict[str, str]:
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


def given(*options: str) -> list[str]:
    """Return those of some options of the command that runs that are on its command line."""
    context = click.get_current_context()
    words = set[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE:
            words |= {*parameter.opts, *parameter.secondary_opts}
    return [option for option in options if option in words]


def refuse(where: str, *options: str) -> None:
    """Refuse options that mean nothing where a command works now."""
    for option in given(*options):
        raise click.UsageError(f"{option} has no meaning {where}: leave it out")


def refuse_beside(option: str, given: object, *others: str) -> None:
    """Refuse options that mean nothing beside one that is given."""
    if given is not None:
        refuse(f"beside {option}", *others)


def ensure_one_of(*options: str, is_needed: bool = False) -> None:
    """Refuse several of some options, and with `is_needed` none, too."""
    if len(given(*options)) > 1 or (is_needed and not given(*options)):
        raise click.UsageError(f"give one of {', '.join(options[:-1])} and {options[-1]}")


def ensure_beside(option: str, *others: str) -> None:
    """Refuse an option that means something only beside one of some others."""
    if given(option) and not given(*others):
        raise click.UsageError(f"{option} goes with {' or '.join(others)}")


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
        if (len(line) - len(line.rstrip("\\"))) % 2:  # it is continued
            joined = joined[:-1]
            continue
        yield first, joined
        joined, first = "", 0
    if first:
        yield first, joined


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
