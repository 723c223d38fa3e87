"""A DDL for JSON of which a sample is seen, and what in the sample leaves it in doubt.

    seen in all values, beside null             type
    true, false                                 boolean
    numbers without a point or an exponent      bigint; decimal(38, 0) if one is larger, then double
    numbers, some with                          double
    texts of the form of a day or a time        date, timestamp, timestamp_ntz
    texts; values of several of these           string
    arrays                                      array of what was seen in them
    objects                                     struct of all fields that were seen
    objects that were all empty                 map<string, string>

It is a look: Python's `json` reads each value, and a value that the sample lacks may be of
another type.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kbatch.values.framing import HEADER_SIZE
from spark_kbatch.values.json_decoder import JsonDecoder
from spark_kbatch.values.layout import INT64
from spark_kbatch.values.types import parse_ddl

# The last group that is found is the type.
_TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:(?P<timestamp_ntz>[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*)?)?)"
    r"(?P<timestamp>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_LARGE = "decimal(38, 0)"
_KINDS = {
    type(None): "null",
    bool: "boolean",
    float: "double",
    list: "array",
    dict: "struct",
}
# Types of values, each set with the type that holds them all, last; string, where none does.
_READ_AS = (("string",), ("bigint", _LARGE), ("bigint", _LARGE, "double"))
_DOUBTS = {
    "bigint": "all numbers were whole",
    _LARGE: "all numbers were whole",
    "date": "all texts were days",
    "timestamp": "all texts were times with a zone",
    "timestamp_ntz": "all texts were times without a zone",
}


class Inferred(NamedTuple):
    """A DDL for a sample, and its doubts."""

    ddl: str  # empty if there was no JSON but null in it
    counts: dict[str, int]  # of all records, and of those that were null, framed or unreadable
    doubts: list[str]  # of places where another sample may have more: the path, and what was there


def infer(values: Iterable[bytes | None]) -> Inferred:
    """Return what a sample of values is read as, with or without Confluent's five bytes in front.

    Raises:
        SchemaError: no column can be as deep, or there are too many; names the path.
    """
    seen, counts = _Seen(), Counter(records=0, null=0, framed=0, unreadable=0)
    texts = list[str]()
    for value in values:
        is_framed = value is not None and value[:1] == b"\0" and len(value) >= HEADER_SIZE
        counts.update(records=1, null=value is None, framed=is_framed)
        try:
            if value is not None:
                text = value[HEADER_SIZE * is_framed :].decode()
                seen.take(json.loads(text, parse_constant=int))  # which refuses NaN, as JSON does
                texts.append(text)
        except (ValueError, RecursionError):
            counts.update(unreadable=1)
    doubts: list[str] = []
    ddl = seen.ddl("", doubts)
    refused = JsonDecoder(parse_ddl(ddl)).decode(pa.array(texts, pa.large_string())).errors
    if refused:
        place, why = refused[0].path or "the whole", refused[0].reason
        doubts.append(f"{place}: {why}; {len(refused):,} values cannot be read as this")
    return Inferred(ddl if seen.kinds.keys() - {"null"} else "", dict(counts), doubts)


class _Seen:
    """The values at one place of the documents."""

    def __init__(self) -> None:
        self.kinds = Counter[str]()  # words of a DDL, or null
        self._below = defaultdict[str | None, _Seen](_Seen)  # by names of fields; None for items

    def take(self, value: Any) -> None:
        """Count a value, and those in it."""
        self.kinds[_kind(value)] += 1
        items = [(None, one) for one in value] if isinstance(value, list) else []
        for name, one in value.items() if isinstance(value, dict) else items:
            self._below[name].take(one)

    def ddl(self, path: str, doubts: list[str]) -> str:
        """Return the type of all values, of the whole its columns, and add what is in doubt."""
        kinds = self.kinds.keys() - {"null"}
        word = next((one[-1] for one in _READ_AS if {*one} >= kinds), "string")
        word = min(kinds) if len(kinds) == 1 else word
        # Of names that differ in case alone, that of most values.
        every = [one for one in self._below if one is not None]
        often = sorted(every, key=lambda one: self._below[one].kinds.total())
        chosen = {one.casefold(): one for one in often if one.isprintable()}.values()
        names = [one for one in every if one in chosen]
        why = _DOUBTS.get(word, "") if len(kinds) == 1 else f"read as {word}"
        if word == "struct" and len(names) < len(self._below):
            left_out = ", ".join(repr(one) for one in every if one not in names)
            why = f"left out is {left_out}: names differ in case alone, or cannot be printed"
        if word == "struct" and not names:
            why, word = "all objects were empty", "map<string, string>"
        if why:
            seen = ", ".join(f"{count:,} {one}" for one, count in self.kinds.most_common())
            doubts.append(f"{path or 'the whole'}: {seen or 'no values'}; {why}")
        if word == "array":
            return f"array<{self._below[None].ddl(f'{path}[]', doubts)}>"
        if word != "struct":
            return word
        columns = ", ".join(
            f"{_quoted(name)} {self._below[name].ddl(f'{path}.{name}', doubts)}" for name in names
        )
        return f"struct<{columns}>" if path else columns


def _quoted(name: str) -> str:
    is_plain = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
    return name if is_plain else f"`{name.replace('`', '``')}`"


def _kind(value: Any) -> str:
    """Return the type of a single value: a word of a DDL, or null."""
    if isinstance(value, str):
        found = _TIME.fullmatch(value)
        try:
            datetime.fromisoformat(value.upper() if found else "")
        except ValueError:  # or there is no such day
            return "string"
        return str(found and found.lastgroup)
    if type(value) is not int:
        return _KINDS[type(value)]
    if INT64[0] <= value <= INT64[1]:
        return "bigint"
    return _LARGE if abs(value) < 10**38 else "double"
