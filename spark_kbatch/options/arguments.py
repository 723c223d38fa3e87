"""Checks of arguments of public methods.

Each returns the argument in the form that is used from then on, or raises a ConfigError that names it.
"""

from __future__ import annotations

import datetime
import math
import operator
import os
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX, TopicPartition

_YEAR = 366.0 * 86_400
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)
_SECONDS_FROM, _SECONDS_TO = 10**8, 10**11  # 1973 to 5138 in seconds, January 1970 to 1973 in ms


def refuse(name: str, value: object, accepts: str) -> NoReturn:
    """Raise a ConfigError for an argument that is not accepted."""
    kind = "" if isinstance(value, (str, int, float, type(None))) else f" ({type(value).__name__})"
    raise ConfigError(f"{name} is {shown(value)}{kind}; accepted: {accepts}")


def whole_number(name: str, value: Any, low: int, high: int = LONG_MAX) -> int:
    """Return a whole number from `low` to `high`, both inclusive; numpy's are accepted."""
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
    """Return an argument that must be a time-out in seconds, 0 or more; more than a year becomes a year."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        refuse(name, value, "seconds, 0 or more, or None")
    return min(number, _YEAR)


def time_ms(name: str, moment: datetime.datetime, *, up: bool = False) -> int:
    """Return a datetime, which must have a time zone, in ms since 1970; fractions are dropped.

    Args:
        name: of the argument.
        moment: the time.
        up: whether fractions are rounded up: in a search, what lies a millisecond before is earlier.
    """
    if not isinstance(moment.utcoffset(), datetime.timedelta):  # pandas' NaT has neither
        raise ConfigError(
            f"{name} is {moment}, which has no time zone; give the datetime one, such as tzinfo=UTC"
        )
    return -int((_EPOCH - moment) // _MS) if up else int((moment - _EPOCH) // _MS)


def text(name: str, value: Any) -> str:
    """Return an argument that must be a string."""
    if not isinstance(value, str):
        refuse(name, value, "text")
    return value


def boolean(name: str, value: Any) -> bool:
    """Return an argument that must be True or False; other truthy and falsy values are refused."""
    if not isinstance(value, bool):
        refuse(name, value, "True, False")
    return value


def options(name: str, value: Any, example: str) -> Mapping[str, Any]:
    """Return a mapping of options by key; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(not isinstance(key, str) for key in value):
        refuse(name, value, f"a dict of text keys, such as {example}")
    return value


def path_text(name: str, value: Any) -> str:
    """Return a path as text; a `pathlib.Path` is accepted."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        refuse(name, value, "a path, as text or pathlib.Path")
    return path


def names(name: str, value: Any, what: str) -> list[str]:
    """Return a list of strings; a single string is refused, as it would be split into characters."""
    found = _listed(name, value, what)
    if any(not isinstance(one, str) for one in found):
        refuse(name, value, what)
    return found


def topic_names(name: str, value: Any) -> list[str]:
    """Return a list of topic names; a single one is accepted."""
    return [value] if isinstance(value, str) else names(name, value, "topic names")


def partition_numbers(name: str, value: Any) -> list[int]:
    """Return a list of partition numbers."""
    accepts = "partition numbers, such as [0, 1]"
    found = _listed(name, value, accepts)
    return [whole_number(f"a number in {name}", one, 0, INT_MAX) for one in found]


def topic_partition(name: str, value: Any) -> TopicPartition:
    """Return a partition, given as a pair of topic and number."""
    match value:
        case (str(topic), number) if not isinstance(value, str):
            return TopicPartition(
                topic, whole_number(f"the partition in {name}", number, 0, INT_MAX)
            )
        case _:
            refuse(name, value, 'a partition as ("topic", number)')


def topic_partitions(name: str, value: Any) -> list[TopicPartition]:
    """Return a list of partitions, given as pairs of topic and number."""
    found = _listed(name, value, 'partitions, such as [("topic", 0)]')
    return [topic_partition(f"a partition in {name}", one) for one in found]


def by_partition(name: str, value: Any, accepts: str) -> dict[TopicPartition, Any]:
    """Return an argument that must be a mapping by partition; its keys are checked, its values are not."""
    if not isinstance(value, Mapping):
        refuse(name, value, accepts)
    return {topic_partition(f"a partition in {name}", tp): wanted for tp, wanted in value.items()}


def looks_like_seconds(time_ms: int) -> bool:
    """Return True if a number is more likely a time in seconds than in ms: as ms it is of the early 1970s."""
    return _SECONDS_FROM <= time_ms < _SECONDS_TO


def in_seconds(what: str, time_ms: int) -> str:
    """Return a warning about a time that looks like one in seconds."""
    date = (_EPOCH + time_ms * _MS).date()
    return f"{what} {time_ms} is {date}: times are in ms, and this looks like seconds"


def group(group_id: Any) -> str:
    """Return the id of a consumer group, which must not be empty."""
    if not text("group_id", group_id):
        refuse("group_id", group_id, "a name that is not empty")
    return str(group_id)


def group_offsets(group_id: Any, offsets: Any) -> tuple[str, dict[TopicPartition, int]]:
    """Return the id of a consumer group, which must not be empty, and its offsets by partition."""
    accepts = 'an offset for each partition, such as {("topic", 0): 1500}'
    return group(group_id), {
        tp: whole_number(f"the offset of {tp}", offset, 0, LONG_MAX)
        for tp, offset in by_partition("offsets", offsets, accepts).items()
    }


def _listed(name: str, value: Any, accepts: str) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        refuse(name, value, accepts)
    if not isinstance(value, Iterable):
        refuse(name, value, accepts)
    return list(value)


def shown(value: object) -> str:
    """Return a short representation of a value for an error message, even if its `repr` fails."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001  whatever an object raises
        return f"a {type(value).__name__}"
