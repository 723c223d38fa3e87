"""The kinds of values that options accept. Each parses the text of a value, or refuses it."""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX

_T_co = TypeVar("_T_co", covariant=True)
_Word = TypeVar("_Word", bound=str)
# A number with a unit, as other programs take it, such as 7d or 64 MB; not months.
_QUANTITY = re.compile(r"([0-9]{1,12})\s*(?!mo)(mil|ms|[a-z])[a-z]*", re.IGNORECASE)
_OF_TIME = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # in seconds
_UNITS = {
    r"[._]ms$": ("milliseconds", {"ms": 1, "mil": 1} | {u: s * 1000 for u, s in _OF_TIME.items()}),
    r"[._]minutes$": ("minutes", {u: s // 60 for u, s in _OF_TIME.items() if s >= 60}),
    r"bytes|memory|(batch|request)[._]size$": (
        "bytes",
        {u: 1 << 10 * n for n, u in enumerate("bkmgt")},
    ),
}  # by what ends the names of options
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class OptionKind(Generic[_T_co]):
    """The values that an option accepts: their parser, and what the documentation's tables say of them."""

    parse: Callable[[str, str], _T_co]  # raises a ConfigError with key, value and what is accepted
    accepts: str


def refuse(key: str, value: str, accepts: str, why: str = "") -> NoReturn:
    """Raise a ConfigError for an option's value that is not accepted."""
    raise ConfigError(f"option {key!r} is {value!r}{why}; accepted: {accepts}")


def number(low: int, high: int = INT_MAX, accepts: str = "") -> OptionKind[int]:
    """Return the kind of whole numbers from `low` to `high`, both inclusive; `accepts` replaces its words."""

    def parse(key: str, value: str) -> int:
        text = value.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            refuse(key, value, f"a whole number from {low} to {high}{_without_unit(key, text)}")
        return int(text)

    shown = f"{low} to {high}" if high < LONG_MAX else f"{low} or more"
    return OptionKind(parse, accepts or shown)


def _without_unit(key: str, text: str) -> str:
    """Return what a number with a unit, such as 7d, is in that of an option; else nothing."""
    if found := _QUANTITY.fullmatch(text):
        for name, (unit, sizes) in _UNITS.items():
            if re.search(name, key) and found[2].lower() in sizes:
                return f"; it is in {unit}: {text} is {int(found[1]) * sizes[found[2].lower()]}"
    return ""


def one_of(*words: _Word, later: Sequence[str] = ()) -> OptionKind[_Word]:
    """Return the kind of words that are accepted in any case; `later` are not supported yet."""
    by_lower = {word.lower(): word for word in words}
    accepts = ", ".join(words)

    def parse(key: str, value: str) -> _Word:
        word = by_lower.get(value.strip().lower())
        if word is None:
            is_later = value.strip().lower() in later
            refuse(key, value, accepts, ", which is not supported yet" if is_later else "")
        return word

    return OptionKind(parse, accepts)


def any_text(accepts: str) -> OptionKind[str]:
    """Return the kind of any text."""
    return OptionKind(lambda _key, value: value, accepts)


def stripped(accepts: str) -> OptionKind[str]:
    """Return the kind of any text, from which blanks around it are removed."""
    return OptionKind(lambda _key, value: value.strip(), accepts)


def parse_dotted_path(key: str, value: str) -> str:
    """Parse a function's dotted path; whether it exists is checked where it is imported."""
    text = value.strip()
    if not _DOTTED_PATH.fullmatch(text):
        refuse(key, value, "package.module.function")
    return text


def imported(key: str, path: str, accepted: str) -> Callable[..., Any]:
    """Import and return the function that an option names.

    Args:
        key: of the option.
        path: "package.module.function", or "package.module:function".
        accepted: what the option accepts, for errors.

    Raises:
        ConfigError: it cannot be imported, or cannot be called.
    """
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not name:
        raise ConfigError(
            f"option {key!r} is {path!r}, which names no module; accepted: {accepted}"
        )
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:
        raise ConfigError(
            f"option {key!r} is {path!r}, which cannot be imported ({type(error).__name__}: {error}); "
            f"accepted: {accepted}"
        ) from error
    if not callable(found):
        raise no_function(key, path, found, accepted)
    function: Callable[..., Any] = found
    return function


def no_function(key: str, path: str, found: object, accepted: str) -> ConfigError:
    """Return the error that an option names something else than a function."""
    return ConfigError(
        f"option {key!r} is {path!r}, which is of type {type(found).__name__}; accepted: {accepted}"
    )


def _boolean(key: str, value: str) -> bool:
    text = value.strip().lower()
    if text not in ("true", "false"):
        refuse(key, value, "true or false")
    return text == "true"


BOOLEAN = OptionKind(_boolean, "true, false")
