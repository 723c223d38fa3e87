"""JSON as columns, decoded slowly by the rules of docs/values.md: the judge of the fast decoder.

Python's `json` says what is JSON; what it takes too much is refused here: a BOM, NaN, digits that
are not ASCII, lone surrogates, bytes that are not UTF-8, nesting over DEPTH_MAX. Its scanner is
called with a wrapper that keeps where each value stands: a string takes any as it is written.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from fractions import Fraction
from json.decoder import JSONArray, JSONObject
from json.scanner import py_make_scanner
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

DEPTH_MAX = 500
_SPACES = " \t\n\r"
_EXACT = Context(prec=100)
_FLOAT_END = Fraction(2**25 - 1) * 2**103  # from here on the nearest float is infinite
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([-+]?)([0-9]+))?")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DATE = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
_TIME = re.compile(
    _DATE + r"[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(Z|z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


class Number(str):
    """A number as it is written."""


class Node(NamedTuple):
    """A value, and where it stands in the text."""

    value: Any  # None, a bool, str, Number, list of nodes, or tuple of pairs (name, node)
    begin: int
    end: int


class Judged(NamedTuple):
    """What the rules make of one value."""

    value: Any = None  # as `to_pylist` has it
    paths: tuple[str, ...] = ()  # of all that does not fit, in the order of the text
    is_json: bool = True  # False for an error of the text itself, at no path that the rules fix
    schema_id: int = -1

    @property
    def is_bad(self) -> bool:
        return bool(self.paths) or not self.is_json


class _Scanner(json.JSONDecoder):
    """Python's scanner, which makes nodes."""

    def __init__(self) -> None:
        super().__init__(
            parse_float=Number,
            parse_int=Number,
            parse_constant=_refuse,
            object_pairs_hook=tuple,
        )
        self._depth = 0
        self.parse_object = self._object
        self.parse_array = self._array
        self._scan = self._spanned(py_make_scanner(self))

    def document(self, text: str) -> Node:
        """Return the one value of a text.

        Raises:
            ValueError: it is none, or more.
        """
        begin = len(text) - len(text.lstrip(_SPACES))
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20 * DEPTH_MAX)
        try:
            node, end = self._scan(text, begin)
        except StopIteration:
            raise ValueError("no value") from None
        finally:
            sys.setrecursionlimit(limit)
            self._depth = 0
        if text[end:].strip(_SPACES):
            raise ValueError("left over")
        return node

    def _object(self, start: Any, strict: bool, scan_once: Any, *hooks: Any) -> Any:
        return self._nested(lambda: JSONObject(start, strict, self._spanned(scan_once), *hooks))

    def _array(self, start: Any, scan_once: Any) -> Any:
        return self._nested(lambda: JSONArray(start, self._spanned(scan_once)))

    def _nested(self, parse: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError("nested too deep")
        found = parse()
        self._depth -= 1
        return found

    @staticmethod
    def _spanned(scan_once: Any) -> Any:
        def spanned(text: str, begin: int) -> tuple[Node, int]:
            value, end = scan_once(text, begin)
            return Node(value, begin, end), end

        return spanned


def _refuse(word: str) -> None:
    raise ValueError(word)


def scanned(data: bytes) -> tuple[str, Node]:
    """Return the text and its value.

    Raises:
        ValueError: the bytes are not one JSON text.
    """
    text = data.decode()
    node = _Scanner().document(text)
    for one in _strings(node):
        if isinstance(one, Number) and not one.isascii():
            raise ValueError("other digits")
        one.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    return text, node


def _strings(node: Node) -> Iterator[str]:
    """Yield all names, strings and numbers."""
    match node.value:
        case str():
            yield node.value
        case tuple():
            for name, inner in node.value:
                yield name
                yield from _strings(inner)
        case list():
            for inner in node.value:
                yield from _strings(inner)


class _UnfitError(Exception):
    """A value that its type does not take."""


class JsonRules:
    """Decodes single values."""

    def __init__(
        self, kind: pa.DataType, *, is_framed: bool = False, lenient: Collection[str] = ()
    ) -> None:
        self._kind, self._is_framed, self._lenient = kind, is_framed, frozenset(lenient)
        self._text, self._paths = "", [""]

    def decode(self, data: bytes | None) -> Judged:
        schema_id = -1
        if data is None:
            return Judged()
        if self._is_framed:
            schema_id = int.from_bytes(data[1:5], "big", signed=True)
            if len(data) < 5 or data[0] != 0 or schema_id < 0:
                return Judged(is_json=False)
            data = data[5:]
        try:
            self._text, node = scanned(data)
        except ValueError:
            return Judged(is_json=False, schema_id=schema_id)
        self._paths = []
        value = self._read(self._kind, node, "")
        if self._paths:
            return Judged(paths=tuple(self._paths), schema_id=schema_id)
        return Judged(value, schema_id=schema_id)

    def _read(self, kind: pa.DataType, node: Node, path: str) -> Any:
        """Return the value, and keep the path of each that does not fit."""
        value = node.value
        if value is None:
            return None
        try:
            if pa.types.is_struct(kind):
                return self._struct(kind, _pairs(value), path)
            if pa.types.is_map(kind):
                return self._map(kind, _pairs(value), path)
            if pa.types.is_list(kind):
                if not isinstance(value, list):
                    raise _UnfitError
                return [self._read(kind.value_type, one, f"{path}[]") for one in value]
            if pa.types.is_string(kind):
                is_text = isinstance(value, str) and not isinstance(value, Number)
                return value if is_text else self._text[node.begin : node.end]
            return self._scalar(kind, value)
        except _UnfitError:
            self._paths.append(path)
            return None

    def _struct(self, kind: pa.DataType, pairs: Any, path: str) -> Any:
        fields = {one.name: one.type for one in kind}
        found: dict[str, Any] = dict.fromkeys(fields)
        seen = set()
        for name, node in pairs:
            if name not in fields:
                continue
            if name in seen:
                self._paths.append(f"{path}.{name}")
            seen.add(name)
            found[name] = self._read(fields[name], node, f"{path}.{name}")
        return found

    def _map(self, kind: pa.DataType, pairs: Any, path: str) -> Any:
        found: list[tuple[str, Any]] = []
        for name, node in pairs:
            if name in dict(found):
                self._paths.append(path)
            found.append((name, self._read(kind.item_type, node, f"{path}{{}}")))
        return found

    def _scalar(self, kind: pa.DataType, value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, Number)
        if pa.types.is_boolean(kind):
            return _checked(value, isinstance(value, bool))
        if pa.types.is_integer(kind):
            return self._whole(kind.bit_width, _number(value))
        if pa.types.is_floating(kind):
            if is_text and value in ("NaN", "Infinity", "-Infinity"):
                return float(value)
            number = _number(value)
            return _nearest_float(number) if kind.bit_width == 32 else _finite(float(number))
        if pa.types.is_decimal(kind):
            return self._decimal(kind, _number(value, may_be_text=is_text))
        _checked(value, is_text)
        if pa.types.is_binary(kind):
            return base64.b64decode(_matched(_BASE64, value).group())
        if pa.types.is_date(kind):
            return _day(*map(int, _matched(re.compile(_DATE), value).groups()))
        return self._time(kind, _matched(_TIME, value).groups())

    def _whole(self, bits: int, text: str) -> int:
        sign, digits, exponent = _parts(text)
        number = sign * self._scaled(digits, exponent, 40)
        return int(_checked(number, -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)))

    def _decimal(self, kind: pa.DataType, text: str) -> Decimal:
        sign, digits, exponent = _parts(text)
        number = self._scaled(digits, exponent + kind.scale, kind.precision)
        return Decimal(sign * number).scaleb(-kind.scale, _EXACT)

    def _scaled(self, digits: str, exponent: int, most: int) -> int:
        """Return a whole number of at most some digits."""
        if exponent < 0:
            _checked(digits, not digits or "digits" in self._lenient)
            digits, exponent = digits[: max(len(digits) + exponent, 0)], 0
        _checked(digits, not digits or len(digits) + exponent <= most)
        return int(digits) * 10**exponent if digits else 0

    def _time(self, kind: pa.DataType, parts: Any) -> datetime:
        *calendar, fraction, zone = parts
        digits = (fraction or "").ljust(9, "0")
        _checked(digits, digits[6:] == "000" or "digits" in self._lenient)
        numbers = [int(one or "0") for one in calendar]
        time = _day(*numbers[:3], *numbers[3:], int(digits[:6]))
        _checked(zone, (zone is None) == (kind.tz is None) or "zone" in self._lenient)
        if kind.tz is None:
            if zone is not None:
                _offset(zone)
            return time
        try:
            return time.replace(tzinfo=_offset(zone or "Z")).astimezone(UTC)
        except OverflowError:  # the moment is in a year that no calendar has
            raise _UnfitError from None


def _checked(value: Any, is_right: bool) -> Any:
    if not is_right:
        raise _UnfitError
    return value


def _pairs(value: Any) -> Any:
    return _checked(value, isinstance(value, tuple))


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise _UnfitError
    return found


def _number(value: Any, *, may_be_text: bool = False) -> str:
    """Return the text of a number."""
    if isinstance(value, Number):
        return value
    return _matched(_NUMBER, _checked(value, may_be_text)).group()


def _parts(text: str) -> tuple[int, str, int]:
    """Return sign, digits without zeros around them, and the power of ten."""
    sign, whole, fraction, exponent_sign, exponent = _matched(_NUMBER, text).groups("")
    digits = whole + fraction
    power = (exponent.lstrip("0") or "0")[:20]  # so large that nothing fits, with more digits too
    shift = -int(power) if exponent_sign == "-" else int(power)
    kept = digits.rstrip("0")
    shift += len(digits) - len(kept) - len(fraction)
    return (-1 if sign else 1), kept.lstrip("0"), shift


def _finite(number: float) -> float:
    return float(_checked(number, abs(number) != float("inf")))


def _nearest_float(text: str) -> float:
    """Return the nearest float of 32 bits, of two the even one."""
    rounded = _finite(float(text))  # which may be between two, by rounding to 53 bits
    if rounded == 0:
        return rounded
    exact = Fraction(Decimal(text))
    _checked(exact, abs(exact) < _FLOAT_END)
    with np.errstate(over="ignore"):
        near = np.float32(rounded)
        ends = (np.float32(0), np.float32("inf"), np.float32("-inf"))
        around = [near, *(np.nextafter(near, end) for end in ends)]

    def order(one: np.float32) -> tuple[Fraction, int]:
        return abs(Fraction(float(one)) - exact), int(one.view(np.uint32)) & 1

    return float(min((one for one in around if np.isfinite(one)), key=order))


def _day(year: int, month: int, day: int, *time: int) -> Any:
    try:
        return (datetime if time else date)(year, month, day, *time)
    except ValueError:
        raise _UnfitError from None


def _offset(zone: str) -> timezone:
    if zone in "Zz":
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or "0")
    _checked(zone, minutes < 60 and 60 * hours + minutes <= 18 * 60)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if zone[0] == "-" else offset)


def comparable(value: Any) -> Any:
    """Return a value with floats as texts: NaN is equal to itself, and 0.0 is not -0.0."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    return value
