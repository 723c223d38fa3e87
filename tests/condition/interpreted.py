"""Conditions as texts, each beside a function of one row in plain Python: True, False, or None for UNKNOWN."""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Drawn = TypeVar("Drawn")
Row = dict[str, Any]
Meaning = Callable[[Row], bool | None]
Condition = tuple[str, Meaning]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        (
            "value",
            pa.struct(
                [
                    ("text", pa.string()),
                    ("tiny", pa.int8()),
                    ("small", pa.int16()),
                    ("int", pa.int32()),
                    ("long", pa.int64()),
                    ("float", pa.float32()),
                    ("double", pa.float64()),
                    ("flag", pa.bool_()),
                    ("date", pa.date32()),
                    ("at", pa.timestamp("us", tz="UTC")),
                    ("local", pa.timestamp("us")),
                    ("price", pa.decimal128(9, 2)),
                    ("odd `name", pa.struct([("in", pa.int32())])),
                    ("entries", pa.map_(pa.string(), pa.int32())),
                    ("list", pa.list_(pa.int32())),
                ]
            ),
        ),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

_BYTES = [
    b"",
    b"a",
    b"ab",
    b"a\xff",
    b"\xc3\xa4",
    b"a%",
    b"a_b",
    b"\xed\xa0\x80",
    b"\xed\xa0",
    b"B\0b\xf0\x9f\x98",
    b"B",
    b"a\nb",
]
_TEXTS = ["", "a", "ab", "ä", "a%", "a_b", "B", "a'b", "a\\b", "😀", "a\nb"]
_LONGS = [-(2**63), -1, 0, 1, 5, 2**53 + 1, 2**63 - 1]
_INTS = [-(2**31), -1, 0, 1, 5, 2**31 - 1]
_DOUBLES = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 0.5, 1.0, 0.1, -1e300]
_DATES = [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]
_MOMENTS = [
    EPOCH,
    EPOCH + datetime.timedelta(microseconds=1),
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, datetime.UTC),
]
_DECIMALS = [Decimal("0.00"), Decimal("1.50"), Decimal("-1.25"), Decimal("9999999.99")]
_NUMBERS = [
    "0",
    "-0.0",
    "+1",
    "-1",
    "5",
    "0.5",
    "0.1",
    "-1.255",
    "1.50",
    "900.5",
    "2147483648",
    "9223372036854775808",
    "-9223372036854775809",
    "9007199254740993",
]
_TIMES_MS = [-1, 0, 1, 1709251199999]


def rows() -> st.SearchStrategy[list[Row]]:
    """Return lists of rows of `SCHEMA`, whose `timestamp` is a number of ms."""

    def maybe(values: list[Any]) -> st.SearchStrategy[Any]:
        return st.none() | st.sampled_from(values)

    value = st.fixed_dictionaries(
        {
            "text": maybe(_TEXTS),
            "tiny": maybe([-128, 0, 5, 127]),
            "small": maybe([-(2**15), 0, 5, 900]),
            "int": maybe(_INTS),
            "long": maybe(_LONGS),
            "float": maybe([one for one in _DOUBLES if one > -1e300 or one != one]),
            "double": maybe(_DOUBLES),
            "flag": maybe([True, False]),
            "date": maybe(_DATES),
            "at": maybe(_MOMENTS),
            "local": maybe([one.replace(tzinfo=None) for one in _MOMENTS]),
            "price": maybe(_DECIMALS),
            "odd `name": st.none() | st.fixed_dictionaries({"in": maybe(_INTS)}),
            "entries": st.none() | st.dictionaries(st.sampled_from(["a", "b"]), maybe(_INTS)),
            "list": st.none() | st.lists(st.sampled_from(_INTS), max_size=2),
        }
    )
    header = st.fixed_dictionaries({"key": st.sampled_from(["n", "N", ""]), "value": maybe(_BYTES)})
    row = st.fixed_dictionaries(
        {
            "key": maybe(_BYTES),
            "value": st.none() | value,
            "topic": st.just("t"),
            "partition": st.just(3),
            "offset": st.sampled_from(_LONGS),
            "timestamp": st.sampled_from(_TIMES_MS),
            "timestampType": st.sampled_from([-1, 0, 1]),
            "headers": st.none() | st.lists(header, max_size=4),
        }
    )
    return st.lists(row, min_size=1, max_size=12)


def columns(of: list[Row]) -> dict[str, Any]:
    """Return rows as the columns that an evaluation takes."""
    found = {}
    for field in SCHEMA:
        kind = pa.int64() if field.name == "timestamp" else field.type
        found[field.name] = pa.array([row[field.name] for row in of], kind)
    return found | {"topic": pa.scalar("t"), "partition": pa.scalar(3, pa.int32())}


def _field(*names: str) -> Callable[[Row], Any]:
    def get(row: Row) -> Any:
        found: Any = row
        for name in names:
            if found is None:
                return None
            found = dict(found).get(name) if isinstance(found, (dict, list)) else found[name]
        return found

    return get


def _header(row: Row) -> Any:
    found = [one["value"] for one in row["headers"] or [] if one["key"] == "n"]
    return found[-1] if found else None


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _moment(kind: str) -> Callable[[datetime.datetime], str]:
    zone = "Z" if kind == "TIMESTAMP" else ""
    return lambda one: f"{kind} '{one.replace(tzinfo=None).isoformat(' ', 'microseconds')}{zone}'"


def _bytes(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _ordered(value: Any) -> Any:
    """Return a value by which Spark orders: NaN after all numbers, bytes without signs, times as numbers."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return (
            (1, Fraction(0))
            if value != value
            else (
                2 * (value > 0) - 1 if abs(value) == float("inf") else 0,
                Fraction(value) if abs(value) != float("inf") else Fraction(0),
            )
        )
    return value


def _float_literal(text: str) -> Any:
    return _ordered(float(text))


# By operand: how it is found in a row, and literals as pairs of text and value to compare by.
def _pairs(shown: Callable[[Any], str], values: list[Any]) -> list[tuple[str, Any]]:
    return [(shown(one), _ordered(one)) for one in values]


_exact = [(one, Fraction(one)) for one in _NUMBERS]
_doubles = [(one, _float_literal(one)) for one in [*_NUMBERS, "1e300", "5E-1", "-1e300", "-0e0"]]
_of_bytes = [*_pairs(_bytes, _BYTES), *_pairs(_text, _TEXTS)]
OPERANDS: dict[str, tuple[Callable[[Row], Any], list[tuple[str, Any]]]] = {
    "key": (_field("key"), _of_bytes),
    "headers['n']": (_header, _of_bytes),
    "Topic": (_field("topic"), _pairs(_text, ["t", "u"])),
    "`partition`": (_field("partition"), _exact),
    "offset": (_field("offset"), _exact),
    "timestamp": (lambda row: 1000 * row["timestamp"], [(_moment("TIMESTAMP")(one), (one - EPOCH) // datetime.timedelta(microseconds=1)) for one in _MOMENTS]),
    "value.text": (_field("value", "text"), _pairs(_text, _TEXTS)),
    "value.tiny": (_field("value", "tiny"), _exact),
    "value.small": (_field("value", "small"), _exact),
    "value.int": (_field("value", "int"), _exact),
    "VALUE.long": (_field("value", "long"), _exact),
    "value.float": (lambda row: _single(_field("value", "float")(row)), _doubles),
    "value.double": (_field("value", "double"), _doubles),
    "value.flag": (_field("value", "flag"), [("TRUE", True), ("false", False)]),
    "value.date": (_field("value", "date"), _pairs(lambda one: f"DATE '{one}'", _DATES)),
    "value.at": (_field("value", "at"), _pairs(_moment("TIMESTAMP"), _MOMENTS)),
    "value.local": (_field("value", "local"), _pairs(_moment("TIMESTAMP_NTZ"), [one.replace(tzinfo=None) for one in _MOMENTS])),
    "value.price": (_field("value", "price"), _exact),
    "value.`odd ``name`.in": (_field("value", "odd `name", "in"), _exact),
    "value.entries['a']": (_field("value", "entries", "a"), _exact),
}  # fmt: skip
_OTHERS = {
    "value": _field("value"),
    "value.list": _field("value", "list"),
    "headers": _field("headers"),
}
_COMPARED = {
    "=": operator.eq,
    "==": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _single(value: Any) -> Any:
    return None if value is None else pa.scalar(value, pa.float32()).as_py()


def _known(get: Callable[[Row], Any], test: Callable[[Any], bool | None]) -> Meaning:
    def meaning(row: Row) -> bool | None:
        value = get(row)
        return None if value is None else test(_ordered(value))

    return meaning


def _not(inner: Meaning) -> Meaning:
    def meaning(row: Row) -> bool | None:
        found = inner(row)
        return None if found is None else not found

    return meaning


def _joined(parts: list[Condition], decided: bool) -> Meaning:
    def meaning(row: Row) -> bool | None:
        found = [one(row) for _, one in parts]
        return decided if decided in found else None if None in found else not decided

    return meaning


def _in(values: list[Any], *, has_null: bool) -> Callable[[Any], bool | None]:
    return lambda value: True if value in values else None if has_null else False


def _java_text(value: bytes) -> str:
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xff", value).decode(errors="replace")


def _likes(text: str, pattern: str) -> bool:
    """Return whether a text is like a pattern, whose escape character is a backslash."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    reached = {0}
    for one in parts:
        if one == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {
                at + 1 for at in reached if at < len(text) and (one == "_" or text[at] == one[-1])
            }
    return len(text) in reached


@st.composite
def tests(draw: st.DrawFn) -> Condition:
    """Return tests of one operand."""
    kind = draw(st.sampled_from(["compare", "turned", "in", "between", "null", "like", "alone"]))
    name = draw(st.sampled_from([*OPERANDS]))
    get, literals = OPERANDS[name]
    literal = st.sampled_from(literals)
    word = draw(st.sampled_from(["", "NOT "]))
    if kind == "alone":
        return "value.flag", _known(_field("value", "flag"), bool)
    if kind == "null":
        some = draw(st.sampled_from([*OPERANDS, *_OTHERS]))
        found = OPERANDS[some][0] if some in OPERANDS else _OTHERS[some]
        return f"{some} is {word}null", lambda row: (found(row) is None) is not bool(word)
    if kind == "like":
        some = draw(st.sampled_from(["key", "headers['n']", "Topic", "value.text"]))
        pieces = draw(
            st.lists(
                st.sampled_from(
                    ["a", "%", "_", "b", r"\%", r"\_", r"\\", "ä", "\n", "t", "\ufffd"]
                ),
                max_size=4,
            )
        )
        pattern = "".join(pieces)
        shown = pattern.replace("\\\\", "\\\\\\\\")
        like = _known(OPERANDS[some][0], lambda value: _likes(_java_text(value), pattern))
        return f"{some} {word}LIKE '{shown}'", _not(like) if word else like
    if kind == "in":
        chosen = draw(st.lists(literal, min_size=1, max_size=4))
        has_null = draw(st.booleans())
        listed = ", ".join([*(one for one, _ in chosen), *(["NULL"] if has_null else [])])
        found_in = _known(get, _in([one for _, one in chosen], has_null=has_null))
        return f"{name} {word}IN ({listed})", _not(found_in) if word else found_in
    low, (shown, value) = draw(literal), draw(literal)
    if kind == "between":
        both = _known(get, lambda one: low[1] <= one <= value)
        return f"{name} {word}between {low[0]} and {shown}", _not(both) if word else both
    sign = draw(st.sampled_from([*_COMPARED]))
    compared = _known(get, lambda one: _COMPARED[sign](one, value))
    if kind == "turned":
        return f"{shown} {_TURNED.get(sign, sign)} {name}", compared
    return f"{name}{sign}{shown}", compared


def conditions() -> st.SearchStrategy[Condition]:
    """Return conditions of several tests."""

    def joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        several = st.lists(inner, min_size=2, max_size=4)
        return (
            several.map(
                lambda some: (" AND ".join(f"({one})" for one, _ in some), _joined(some, False))
            )
            | several.map(
                lambda some: (" or ".join(f"({one})" for one, _ in some), _joined(some, True))
            )
            | inner.map(lambda one: (f"NOT ({one[0]})", _not(one[1])))
        )

    return st.recursive(tests(), joined, max_leaves=8)


def drawn(strategy: st.SearchStrategy[Drawn], count: int, by_seed: int) -> list[Drawn]:
    """Return so many examples of a strategy, by a seed."""
    found = list[Drawn]()

    @seed(by_seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: Drawn) -> None:
        found.append(one)

    collect()
    return found
