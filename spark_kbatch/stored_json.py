"""Parsing of stored JSON with checks of each value, as anyone may have written the file.

    found = parse(files.read(path), path)
    found.integer("partitions", 1, 100_000)
    for log_dir in found.objects("log_dirs"):
        log_dir.text("path")

A value is checked when it is taken: its type, its range, its length. A failed check raises an error that
names the damaged file, the key, what was found and what was expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.model import LONG_MAX

# Or a text. One without an end is all that is left, so that no character is looked at twice.
_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)
_SHOWN_MAX = 60  # characters of a value that is not what was expected
_REQUIRED: Any = object()

_Value = TypeVar("_Value")
Damaged: TypeAlias = Callable[[str], KBatchError]  # makes the error, from its sentence


def parse(
    data: bytes | str, where: Path | str, *, damaged: Damaged = KafkaStorageError
) -> StoredObject:
    """Parse `data` as a JSON object.

    Args:
        where: the file, or another name for `data`, for errors.
        damaged: makes the error.

    Raises:
        KafkaStorageError, or what `damaged` makes: `data` is not a JSON object.
    """
    return StoredObject(_parsed(data, str(where), damaged), where, damaged=damaged)


def as_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the content of the file that stores it."""
    return (json.dumps(value, indent=1) + "\n").encode()


def parse_rows(data: bytes | str, where: Path | str, *types: type[Any]) -> list[tuple[Any, ...]]:
    """Parse `data` as a JSON list of lists, each with values of these types.

    Raises:
        KafkaStorageError: it is no such list.
    """
    rows = _parsed(data, str(where), KafkaStorageError)
    expected = f"a list of lists of {', '.join(one.__name__ for one in types)}"
    if not isinstance(rows, list):
        raise KafkaStorageError(f"{where} is damaged: it is {_shown(rows)}; expected {expected}")
    for row in rows:
        if not isinstance(row, list) or [type(value) for value in row] != [*types]:
            raise KafkaStorageError(
                f"{where} is damaged: it has {_shown(row)}; expected {expected}"
            )
    return [tuple(row) for row in rows]


def _parsed(data: bytes | str, where: str, damaged: Damaged) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        # The message of a RecursionError would be as long as the nesting is deep.
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise damaged(f"{where} is damaged: it is not JSON: {reason}") from None


def loads_commented(text: str) -> Any:
    """Parse JSON with comments, as people write it; raises as `json.loads`, with places in it."""
    text = text.removeprefix("\ufeff")  # which editors put in front
    return json.loads(
        _COMMENT.sub(
            lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0]), text
        )
    )


class StoredObject:
    """A JSON object read from disk, whose values are checked as they are taken."""

    def __init__(
        self,
        value: Any,
        where: Path | str,
        *,
        inside: str = "",
        damaged: Damaged = KafkaStorageError,
    ) -> None:
        """Check that `value` is an object; `inside` is the key of an inner object."""
        self.where, self._inside, self._error = where, inside, damaged
        if not isinstance(value, dict):
            what = f"{inside} is {_shown(value)}" if inside else f"it is {_shown(value)}"
            raise damaged(f"{where} is damaged: {what}; expected a JSON object")
        self.values: dict[str, Any] = value

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def without_nulls(self) -> StoredObject:
        """Return the object without its keys that are null."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return StoredObject(given, self.where, inside=self._inside, damaged=self._error)

    def keys(self) -> Sequence[str]:
        """Return the keys, in order."""
        return [*self.values]

    def integer(
        self, key: str, lowest: int = 0, highest: int = LONG_MAX, *, default: int | None = None
    ) -> int:
        """Return the integer at a key, within a range.

        Args:
            default: returned if the key is missing; without a default that is an error.
        """
        if default is not None and key not in self.values:
            return default
        value = self._value(key)
        if not _is_integer(value, lowest, highest):
            raise self.damaged(key, value, f"a whole number from {lowest} to {highest}")
        return int(value)

    def integers(
        self, key: str, lowest: int = 0, highest: int = LONG_MAX, *, count_max: int, least: int = 1
    ) -> tuple[int, ...]:
        """Return the list of distinct integers at a key, which has `least` to `count_max` of them."""
        if least == 0 and self._value(key) == []:
            return ()
        return self._numbers(key, self._value(key), lowest, highest, count_max)

    def pair(self, key: str) -> tuple[int, int]:
        """Return the two integers in the list at a key, the first not above the second."""
        value = self._value(key)
        is_pair = isinstance(value, list) and len(value) == 2
        if (
            not is_pair
            or not all(_is_integer(one, 0, LONG_MAX) for one in value)
            or value[0] > value[1]
        ):
            raise self.damaged(key, value, "two whole numbers, the first not above the second")
        return value[0], value[1]

    def lists_of_integers(
        self, key: str, lowest: int, highest: int, *, counts_max: tuple[int, int]
    ) -> list[tuple[int, ...]]:
        """Return the lists of integers in the list at a key, each checked as by `integers`.

        Args:
            counts_max: of lists, and of integers in each.
        """
        lists_max, numbers_max = counts_max
        return [
            self._numbers(f"{key}[{at}]", value, lowest, highest, numbers_max)
            for at, value in enumerate(self._list(key, lists_max, least=1))
        ]

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        """Return the text at a key, checked to match a pattern as a whole."""
        value = self._value(key)
        if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
            raise self.damaged(
                key, value, "text" if pattern is None else f"text as {pattern.pattern}"
            )
        return value

    def texts(self, key: str, *, count_max: int) -> list[str]:
        """Return the texts in the list at a key; none if the key is missing."""
        found = self._list(key, count_max) if key in self.values else []
        if not all(isinstance(one, str) for one in found):
            raise self.damaged(key, found, "a list of texts")
        return found

    def object(self, key: str, *, default: dict[str, Any] = _REQUIRED) -> StoredObject:
        """Return the object at a key."""
        value = default if default is not _REQUIRED and key not in self.values else self._value(key)
        return StoredObject(value, self.where, inside=self._at(key), damaged=self._error)

    def objects(self, key: str, *, count_max: int) -> list[StoredObject]:
        """Return the objects in the list at a key."""
        return [
            StoredObject(value, self.where, inside=f"{self._at(key)}[{at}]", damaged=self._error)
            for at, value in enumerate(self._list(key, count_max))
        ]

    def by_number(
        self, read: Callable[[StoredObject, str], _Value], highest: int
    ) -> Iterator[tuple[int, _Value]]:
        """Yield each key, which must be a number from 0 to `highest`, with what `read` returns for it."""
        for key in self.keys():
            if not (key.isascii() and key.isdecimal() and len(key) <= 19 and int(key) <= highest):
                raise self.damaged(key, self.values[key], f"a number up to {highest} as its key")
            yield int(key), read(self, key)

    def damaged(self, key: str, found: Any, expected: str) -> KBatchError:
        """Return the error to raise for an unexpected value at a key."""
        return self._error(
            f"{self.where} is damaged: {self._at(key)} is {_shown(found)}; expected {expected}"
        )

    def _numbers(
        self, key: str, value: Any, lowest: int, highest: int, count_max: int
    ) -> tuple[int, ...]:
        is_list = isinstance(value, list) and 0 < len(value) <= count_max
        if (
            not is_list
            or not all(_is_integer(one, lowest, highest) for one in value)
            or len({*value}) < len(value)
        ):
            raise self.damaged(
                key, value, f"1 to {count_max} different whole numbers from {lowest} to {highest}"
            )
        return tuple(value)

    def _list(self, key: str, count_max: int, *, least: int = 0) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list) or not least <= len(value) <= count_max:
            raise self.damaged(key, value, f"a list of {least} to {count_max}")
        return value

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise self._error(f"{self.where} is damaged: it has no {self._at(key)}")
        return self.values[key]

    def _at(self, key: str) -> str:
        return f"{self._inside}.{key}" if self._inside else key


def _is_integer(value: Any, lowest: int, highest: int) -> bool:
    return type(value) is int and lowest <= value <= highest  # not a bool


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
