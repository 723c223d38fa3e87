"""Checks of what Python code gives to public methods; `options` has those of text options.

Each answers with the argument as it is used from then on, or raises a ConfigError that names it.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX, TopicPartition

_YEAR = 366.0 * 86_400


def refuse(name: str, value: object, accepts: str) -> NoReturn:
    """Raise for an argument that is not accepted."""
    kind = "" if isinstance(value, (str, int, float, type(None))) else f" ({type(value).__name__})"
    raise ConfigError(f"{name} is {shown(value)}{kind}; accepted: {accepts}")


def whole_number(name: str, value: Any, low: int, high: int = LONG_MAX) -> int:
    """A number that may be numpy's."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if low <= number <= high:
                return number
    refuse(name, value, f"a whole number from {low} to {high}")


def seconds(name: str, value: Any) -> float:
    """A time to wait, 0 or longer; what no clock has is a year."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        refuse(name, value, "seconds, 0 or more, or None")
    return min(number, _YEAR)


def text(name: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        refuse(name, value, "text")
    return value


def boolean(name: str, value: Any) -> bool:
    """True or False; not what is like them."""
    if not isinstance(value, bool):
        refuse(name, value, "True, False")
    return value


def path_text(name: str, value: Any) -> str:
    """A path, as text or as a `pathlib.Path`."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        refuse(name, value, "a path, as text or pathlib.Path")
    return path


def names(name: str, value: Any, what: str) -> list[str]:
    """Some strings, such as `what` says; one alone would be taken for its characters, and is refused."""
    found = _listed(name, value, what)
    if any(not isinstance(one, str) for one in found):
        refuse(name, value, what)
    return found


def topic_names(name: str, value: Any) -> list[str]:
    """Topics by name; one may be given alone."""
    return [value] if isinstance(value, str) else names(name, value, "topic names")


def partition_numbers(name: str, value: Any) -> list[int]:
    """Numbers of partitions."""
    accepts = "partition numbers, such as [0, 1]"
    found = _listed(name, value, accepts)
    return [whole_number(f"a number in {name}", one, 0, INT_MAX) for one in found]


def topic_partition(name: str, value: Any) -> TopicPartition:
    """A partition, as a pair of its topic and its number."""
    match value:
        case (str(topic), number) if not isinstance(value, str):
            return TopicPartition(
                topic, whole_number(f"the partition in {name}", number, 0, INT_MAX)
            )
        case _:
            refuse(name, value, 'a partition as ("topic", number)')


def topic_partitions(name: str, value: Any) -> list[TopicPartition]:
    """Partitions, as pairs."""
    found = _listed(name, value, 'partitions, such as [("topic", 0)]')
    return [topic_partition(f"a partition in {name}", one) for one in found]


def by_partition(name: str, value: Any, accepts: str) -> dict[TopicPartition, Any]:
    """Something for each of some partitions, which are pairs; what it is has to be checked yet."""
    if not isinstance(value, Mapping):
        refuse(name, value, accepts)
    return {topic_partition(f"a partition in {name}", tp): wanted for tp, wanted in value.items()}


def _listed(name: str, value: Any, accepts: str) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        refuse(name, value, accepts)
    if not isinstance(value, Iterable):
        refuse(name, value, accepts)
    return list(value)


def shown(value: object) -> str:
    """Return a value in short, for an error; also one that cannot be shown."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001  whatever an object raises
        return f"a {type(value).__name__}"
