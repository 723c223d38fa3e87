"""Names and literals of a condition -> columns and values of their types, on the driver.

    column                   literals                  compared
    bytes                    text (its UTF-8), X'..'   as unsigned bytes
    text                     text                      by UTF-8 bytes
    int, bigint, decimal     digits[.digits]           exactly
    float, double            any number                as double; NaN is greater than every number
    boolean                  TRUE, FALSE, or alone
    date, timestamp,         DATE, TIMESTAMP,          in microseconds; `timestamp` of a record in milliseconds,
    timestamp_ntz            TIMESTAMP_NTZ             to which the literal is brought by the operator
    any other                none: IS NULL alone

A bound condition has no NOT: it is moved into the tests, where `NOT a < 5` is `a >= 5`. That is the same with three
values, and so a test that is not known yet can be taken for TRUE: what is TRUE then is all that can become TRUE.

Source: Spark sql/catalyst/.../analysis/AnsiTypeCoercion.scala, expressions/predicates.scala.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_kbatch.condition import text
from spark_kbatch.condition.tree import AllOf, AnyOf, Literal, Name, Node, Not, Test

_NOT = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_US_PER_MS = 1000
_CONTEXT = Context(prec=2 * text.DIGITS_MAX)

# By kind of a column: the kinds of its literals, and what to write.
_LITERALS = {
    "bytes": ({"text", "bytes"}, "'text' or X'00ff'"),
    "text": ({"text"}, "'text'"),
    "integer": ({"number"}, "a number without exponent, such as 5"),
    "decimal": ({"number"}, "a number without exponent, such as 5.25"),
    "double": ({"number", "double"}, "a number, such as 5.25"),
    "boolean": ({"boolean"}, "TRUE or FALSE"),
    "date": ({"date"}, "DATE '2024-01-31'"),
    "timestamp": ({"timestamp"}, "TIMESTAMP '2024-01-31 23:59:59Z'"),
    "timestamp_ntz": ({"timestamp_ntz"}, "TIMESTAMP_NTZ '2024-01-31 23:59:59'"),
}
_WITH_PATTERNS = ("bytes", "text")


class Leaf(NamedTuple):
    """A test of a column of rows, or of a part of one.

    The path has numbers of fields, and texts for the value of a header or of a map's entry. The operator is one of
    = != < <= > >=, IN, LIKE, "IS NULL", TRUE, or CONSTANT: TRUE or FALSE for all that is not null.
    """

    column: str  # of rows
    path: tuple[int | str, ...]
    kind: str  # of `_LITERALS`; else "other"
    operator: str
    value: Any = (
        None  # a scalar of the column's type; for IN an array, without null; a pattern; a bool
    )
    has_null: bool = False  # a list has NULL
    is_negated: bool = False  # not of comparisons


class All(NamedTuple):
    """Bound conditions joined by AND."""

    conditions: tuple[Bound, ...]


class Some(NamedTuple):
    """Bound conditions joined by OR."""

    conditions: tuple[Bound, ...]


Bound: TypeAlias = Leaf | All | Some


def bind(condition: Node, schema: pa.Schema, name: str = "where") -> Bound:
    """Bind a condition to the columns of rows.

    Args:
        condition: as parsed.
        schema: of all columns that rows of the read can have.
        name: of the option or argument, for errors.

    Raises:
        ConfigError: a name that is no column, or a literal that Spark would cast; says where, and what to write.
    """
    return _Binder(schema, name).bound(condition, is_negated=False)


def columns_of(condition: Bound) -> set[str]:
    """Return the names of the columns of rows that a condition tests."""
    return {leaf.column for leaf in leaves(condition)}


def leaves(condition: Bound) -> Iterator[Leaf]:
    """Yield all tests of a condition."""
    if isinstance(condition, Leaf):
        yield condition
        return
    for one in condition.conditions:
        yield from leaves(one)


class _Binder:
    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema, self._name = schema, name

    def bound(self, node: Node, *, is_negated: bool) -> Bound:
        match node:
            case Not(inner):
                return self.bound(inner, is_negated=not is_negated)
            case AllOf(conditions) | AnyOf(conditions):
                kind = All if isinstance(node, AllOf) is not is_negated else Some
                return kind(tuple(self.bound(one, is_negated=is_negated) for one in conditions))
            case Test():
                return self._leaf(node, is_negated=is_negated)

    def _leaf(self, test: Test, *, is_negated: bool) -> Leaf:
        column, path, type_ = self._found(test.name)
        kind = _kind(type_)
        leaf = Leaf(column, path, kind, test.operator, is_negated=is_negated)
        if test.operator == "IS NULL":
            return leaf
        if kind == "other":
            self._refuse(
                test.name,
                f"it is {_shown(type_)}, of which IS NULL and IS NOT NULL are taken, and tests of its fields",
            )
        if test.operator == "TRUE":
            if kind != "boolean":
                self._refuse(
                    test.name,
                    f"it is {_shown(type_)}, and alone no condition; compare it with {_LITERALS[kind][1]}",
                )
            return leaf
        for one in test.literals:
            self._ensure_fits(test.name, type_, kind, one)
        if test.operator == "LIKE":
            return leaf._replace(value=self._pattern(test.literals[0]))
        is_ms = column == "timestamp" and not path
        compared = _compared(type_, is_ms=is_ms)
        if test.operator == "IN":
            given = [one for one in test.literals if one.kind != "null"]
            exact = [self._exactly("=", one, type_, is_ms=is_ms) for one in given]
            values = [one for operator, one in exact if operator != "CONSTANT"]
            return leaf._replace(
                value=pa.array(values, compared), has_null=len(given) < len(test.literals)
            )
        operator = _NOT[test.operator] if is_negated else test.operator
        operator, value = self._exactly(operator, test.literals[0], type_, is_ms=is_ms)
        if operator != "CONSTANT":
            value = pa.scalar(value, compared)
        return leaf._replace(operator=operator, value=value, is_negated=False)

    def _found(self, name: Name) -> tuple[str, tuple[int | str, ...], pa.DataType]:
        """Return the column that a name means, the path to its part, and the type of that."""
        fields: Sequence[pa.Field] = list(self._schema)
        first = fields[self._index(name, 0, fields)]
        path, type_ = list[int | str](), first.type
        for place in range(1, len(name.parts)):
            if name.keys[place]:
                is_headers = first.name == "headers" and place == 1
                if not is_headers and not (types.is_map(type_) and _kind(type_.key_type) == "text"):
                    self._refuse(
                        name,
                        "['...'] is for headers and for maps with keys of text; write a dot before a field",
                    )
                path.append(name.parts[place])
                type_ = pa.binary() if is_headers else type_.item_type
                continue
            if not types.is_struct(type_):
                self._refuse(
                    name, f"{'.'.join(name.parts[:place])} is {_shown(type_)}, which has no fields"
                )
            fields = [type_.field(n) for n in range(type_.num_fields)]
            path.append(self._index(name, place, fields))
            type_ = fields[int(path[-1])].type
        return first.name, tuple(path), type_

    def _index(self, name: Name, place: int, fields: Sequence[pa.Field]) -> int:
        part, names = name.parts[place], [one.name for one in fields]
        alike = [n for n, one in enumerate(names) if one == part]
        alike = alike or [n for n, one in enumerate(names) if one.lower() == part.lower()]
        if len(alike) == 1:
            return alike[0]
        what = "column" if place == 0 else f"field of {'.'.join(name.parts[:place])}"
        if alike:
            self._refuse(
                name,
                f"several have the name {part!r} in upper or lower case; write it as one of {', '.join(names[n] for n in alike)}",
            )
        near = difflib.get_close_matches(part, names, n=1, cutoff=0.0)
        self._refuse(
            name,
            f"no {what} has the name {part!r}; the nearest is {near[0] if near else 'none'}, there are: {', '.join(names)}",
        )

    def _refuse(self, name: Name, why: str) -> Any:
        text.refuse(self._name, name.position, str(name), why)

    def _ensure_fits(self, name: Name, type_: pa.DataType, kind: str, literal: Literal) -> None:
        taken, instead = _LITERALS[kind]
        if literal.kind == "pattern":
            if kind in _WITH_PATTERNS:
                return
            instead = "a comparison: LIKE is for text and bytes"
        elif literal.kind in taken or literal.kind == "null":
            return
        text.refuse(
            self._name,
            literal.position,
            literal.shown,
            f"{name} is {_shown(type_)}; write {instead}",
        )

    def _pattern(self, literal: Literal) -> str:
        pattern = rf"\A(?s:{literal.value})\z"
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid:
            text.refuse(
                self._name,
                literal.position,
                literal.shown,
                "the pattern is too large; write a shorter one",
            )
        return pattern

    def _exactly(
        self, operator: str, literal: Literal, type_: pa.DataType, *, is_ms: bool
    ) -> tuple[str, Any]:
        """Return an operator and a value to compare with that mean the same, or CONSTANT and a bool."""
        value: Any = literal.value
        kind = _kind(type_)
        if kind in ("integer", "decimal") or is_ms:
            scale, least = 0, -(2 ** (_compared(type_, is_ms=is_ms).bit_width - 1))
            if kind == "decimal":
                scale, least = type_.scale, 1 - 10**type_.precision
            exact = Fraction(value) / _US_PER_MS if is_ms else Fraction(value) * 10**scale
            operator, value = _whole(
                operator, exact, least, -1 - least if kind != "decimal" else -least
            )
            if kind == "decimal" and operator != "CONSTANT":
                value = Decimal(value).scaleb(-scale, _CONTEXT)
        elif kind == "double":
            value = float(value)
            if math.isinf(value):
                text.refuse(
                    self._name,
                    literal.position,
                    literal.shown,
                    "no double is as large; write a smaller number",
                )
        elif kind == "bytes":
            value = value.encode() if isinstance(value, str) else value
        return operator, value


def _whole(operator: str, exact: Fraction, least: int, most: int) -> tuple[str, int]:
    """Return an operator and a whole number that mean the same for whole numbers from `least` to `most`.

    Or CONSTANT and whether all of them are so.
    """
    if operator in ("=", "!="):
        is_one = exact.denominator == 1 and least <= exact <= most
        return (operator, exact.numerator) if is_one else ("CONSTANT", operator == "!=")
    if operator[0] == "<":
        value = math.floor(exact) if operator == "<=" else math.ceil(exact) - 1
        return ("<=", value) if least <= value < most else ("CONSTANT", value >= most)
    value = math.ceil(exact) if operator == ">=" else math.floor(exact) + 1
    return (">=", value) if least < value <= most else ("CONSTANT", value <= least)


def _kind(type_: pa.DataType) -> str:
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return "bytes"
    if types.is_string(type_) or types.is_large_string(type_):
        return "text"
    if types.is_signed_integer(type_):
        return "integer"
    if types.is_decimal(type_):
        return "decimal"
    if types.is_floating(type_):
        return "double"
    if types.is_boolean(type_):
        return "boolean"
    if types.is_date32(type_):
        return "date"
    if types.is_timestamp(type_) and type_.unit == "us":
        return "timestamp" if type_.tz else "timestamp_ntz"
    return "other"


def _compared(type_: pa.DataType, *, is_ms: bool) -> pa.DataType:
    """Return the type in which values of a column's type are compared."""
    if is_ms:
        return pa.int64()
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    return pa.float64() if types.is_floating(type_) else type_


_SPARKS = {"bytes": "BINARY", "text": "STRING", "integer": "INT", "double": "DOUBLE"}


def _shown(type_: pa.DataType) -> str:
    """Return the name of a type, as Spark has it."""
    kind = _kind(type_)
    if types.is_int64(type_):
        return "BIGINT"
    if kind == "decimal":
        return f"DECIMAL({type_.precision},{type_.scale})"
    if types.is_float32(type_):
        return "FLOAT"
    if kind != "other":
        return _SPARKS.get(kind, kind.upper())
    if types.is_struct(type_):
        return "a struct"
    return "a map" if types.is_map(type_) else "an array" if types.is_list(type_) else str(type_)
