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

Whole numbers and decimals are bound to `<=` and `IN` alone, with limits that the column's type has: `offset < 900.5` is
`offset <= 900`, and what is so for each number of the type, or for none, is `NOT IN ()` or `IN ()`, which leave null.

Source: Spark sql/catalyst/.../analysis/AnsiTypeCoercion.scala, expressions/predicates.scala.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_kbatch.condition import text
from spark_kbatch.condition.tree import AllOf, AnyOf, Name, Node, Predicate, Token

_CONTEXT = Context(prec=2 * text.DIGITS_MAX)


class Leaf(NamedTuple):
    """A test of a column of rows, or of a part of one.

    The path has numbers of fields, and texts for the value of a header or of a map's entry.
    """

    column: str  # of rows
    path: tuple[int | str, ...]
    operator: str  # IN, <, <=, LIKE or "IS NULL"
    is_negated: bool
    # For IN an array, without null; for < and <= a scalar; for LIKE a regular expression.
    value: Any = None
    has_null: bool = False  # a list has NULL


Bound: TypeAlias = Leaf | AllOf | AnyOf


class _ColumnKind(NamedTuple):
    """The values that columns of a type are compared with, by kind of a literal: a fraction for whole numbers."""

    shown: str  # the type, as Spark has it
    values: Mapping[str, Callable[[Any], Any]]
    instead: str = ""  # of other literals


def _double(value: Decimal | float) -> float:
    return float(value) + 0.0  # zeros of both signs are one value, but not in an array


_WHOLE, _ANY = {"number": Fraction}, {"number": _double, "double": _double}
_DIGITS = "a number without exponent, such as 5"
_MOMENT = "TIMESTAMP '2024-01-31 23:59:59Z'"
_RECORD_TIME = _ColumnKind("TIMESTAMP", {"timestamp": lambda us: Fraction(us, 1000)}, _MOMENT)
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], _ColumnKind], ...] = (
    (
        types.is_binary,
        _ColumnKind(
            "BINARY", {"text": str.encode, "bytes": bytes, "pattern": str}, "'text' or X'00ff'"
        ),
    ),
    (types.is_string, _ColumnKind("STRING", {"text": str, "pattern": str}, "'text'")),
    (types.is_int64, _ColumnKind("BIGINT", _WHOLE, _DIGITS)),
    (types.is_int32, _ColumnKind("INT", _WHOLE, _DIGITS)),
    (types.is_int16, _ColumnKind("SMALLINT", _WHOLE, _DIGITS)),
    (types.is_int8, _ColumnKind("TINYINT", _WHOLE, _DIGITS)),
    (types.is_decimal, _ColumnKind("DECIMAL({0.precision},{0.scale})", _WHOLE, _DIGITS + ".25")),
    (types.is_float32, _ColumnKind("FLOAT", _ANY, "a number, such as 5.25")),
    (types.is_float64, _ColumnKind("DOUBLE", _ANY, "a number, such as 5.25")),
    (
        types.is_boolean,
        _ColumnKind("BOOLEAN", dict.fromkeys(("TRUE", "FALSE", "alone"), bool), "TRUE or FALSE"),
    ),
    (types.is_date, _ColumnKind("DATE", {"date": int}, "DATE '2024-01-31'")),
    (
        lambda type_: type_ == pa.timestamp("us"),
        _ColumnKind("TIMESTAMP_NTZ", {"timestamp_ntz": int}, "TIMESTAMP_NTZ '2024-01-31 23:59:59'"),
    ),
    (types.is_timestamp, _ColumnKind("TIMESTAMP", {"timestamp": int}, _MOMENT)),
    (types.is_struct, _ColumnKind("a struct", {})),
    (types.is_map, _ColumnKind("a map", {})),
    (types.is_list, _ColumnKind("an array", {})),
)
_LITERALS_INSTEAD = {
    "pattern": "a comparison: LIKE is for text and bytes",
    "alone": "a comparison: BOOLEAN is all that stands alone",
}


def bind(condition: Node, schema: pa.Schema, name: str = "where") -> Bound:
    """Bind a condition to the columns of rows.

    Args:
        condition: as parsed.
        schema: of all columns that rows of the read can have.
        name: of the option or argument, for errors.

    Raises:
        ConfigError: a name that is no column, or a literal that Spark would cast; says where, and what to write.
    """
    return _Binder(schema, name).bound(condition)


def columns_of(condition: Bound) -> set[str]:
    """Return the names of the columns of rows that a condition tests."""
    return {leaf.column for leaf in leaves(condition)}


def leaves(condition: Bound, joined_by: tuple[type, ...] = (AllOf, AnyOf)) -> Iterator[Leaf]:
    """Yield the tests of a condition, of those that are joined in these ways alone."""
    if isinstance(condition, Leaf):
        yield condition
    elif isinstance(condition, joined_by):
        for one in condition.parts:
            yield from leaves(one, joined_by)


class _Binder:
    def __init__(self, schema: pa.Schema, name: str) -> None:
        self._schema, self._name = schema, name

    def bound(self, node: Node) -> Bound:
        if isinstance(node, Predicate):
            return self._leaf(node)
        return type(node)(tuple(map(self.bound, node.parts)))

    def _leaf(self, test: Predicate) -> Leaf:
        column, path, type_ = self._found(test.name)
        leaf = Leaf(column, path, test.operator, test.is_negated)
        if test.operator == "IS NULL":
            return leaf
        kind = _kind(type_)
        if not kind.values:
            self._refuse(
                test.name,
                f"it is {kind.shown}, of which IS NULL and IS NOT NULL are taken, and tests of its fields",
            )
        if column == "timestamp" and not path:
            type_, kind = pa.int64(), _RECORD_TIME
        given = [one for one in test.literals if one.kind != "NULL"]
        values = [self._value(one, test.name, type_, kind) for one in given]
        leaf = leaf._replace(has_null=len(given) < len(test.literals))
        if test.operator == "LIKE":
            return leaf._replace(value=self._pattern(given[0]))
        if values and isinstance(values[0], Fraction):
            leaf, values = _whole(leaf, values, type_)
        compared = pa.float64() if types.is_floating(type_) else type_
        in_list = leaf.operator == "IN"
        return leaf._replace(
            value=pa.array(values, compared) if in_list else pa.scalar(values[0], compared)
        )

    def _found(self, name: Name) -> tuple[str, tuple[int | str, ...], pa.DataType]:
        """Return the column that a name means, the path to its part, and the type of that."""
        path, type_ = list[int | str](), pa.struct(list(self._schema))
        for place, (part, is_key) in enumerate(name.parts):
            step: int | str = part
            before = name._replace(parts=name.parts[:place]).shown
            if not is_key:
                if not types.is_struct(type_):
                    self._refuse(
                        name,
                        f"{before} is {_kind(type_).shown.format(type_)}, which has no fields"
                        + ("; write headers['name']" if before == "headers" else ""),
                    )
                step = self._index(name, part, before, type_)
                type_ = type_.field(step).type
            elif place == 1 and self._schema.names[int(path[0])] == "headers":
                type_ = pa.binary()
            elif types.is_map(type_) and types.is_string(type_.key_type):
                type_ = type_.item_type
            else:
                self._refuse(
                    name,
                    "['...'] is for headers and for maps with keys of text; write a dot before a field",
                )
            path.append(step)
        return self._schema.names[int(path[0])], tuple(path[1:]), type_

    def _index(self, name: Name, part: str, before: str, struct: pa.StructType) -> int:
        """Return the number of a field by its name, as written first; else of the one that differs in case alone."""
        names = [struct.field(n).name for n in range(struct.num_fields)]
        alike = [one for one in names if one.lower() == part.lower()]
        if part in alike or len(alike) == 1:
            return names.index(part if part in alike else alike[0])
        if alike:
            self._refuse(
                name,
                f"several have the name {part!r} in upper or lower case; write it as one of {', '.join(alike)}",
            )
        what = f"field of {before}" if before else "column"
        near = difflib.get_close_matches(part, names, n=1)
        self._refuse(
            name,
            f"no {what} has the name {part!r}{(near and f'; the nearest is {near[0]}') or ''}; there are: {', '.join(names)}",
        )

    def _refuse(self, place: Name | Token, why: str) -> NoReturn:
        text.refuse(self._name, place, why)

    def _value(self, literal: Token, name: Name, type_: pa.DataType, kind: _ColumnKind) -> Any:
        """Return what is compared with a column of this type."""
        if literal.kind not in kind.values:
            instead = _LITERALS_INSTEAD.get(literal.kind, kind.instead)
            self._refuse(literal, f"{name.shown} is {kind.shown.format(type_)}; write {instead}")
        return kind.values[literal.kind](literal.value)

    def _pattern(self, literal: Token) -> str:
        pattern = rf"\A(?s:{literal.value})\z"
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid:
            self._refuse(literal, "the pattern is too large; write a shorter one")
        return pattern


def _kind(type_: pa.DataType) -> _ColumnKind:
    return next((kind for is_so, kind in _KINDS if is_so(type_)), _ColumnKind(str(type_), {}))


def _whole(leaf: Leaf, values: list[Fraction], type_: pa.DataType) -> tuple[Leaf, list[Any]]:
    """Return what means the same for all numbers of a type, with values that are such numbers."""
    scale = type_.scale if types.is_decimal(type_) else 0
    most = 10**type_.precision - 1 if types.is_decimal(type_) else 2 ** (type_.bit_width - 1) - 1
    least = -most if types.is_decimal(type_) else -most - 1
    scaled = [one * 10**scale for one in values]
    found = [one.numerator for one in scaled if one.denominator == 1 and least <= one <= most]
    if leaf.operator != "IN":
        limit = math.floor(scaled[0]) if leaf.operator == "<=" else math.ceil(scaled[0]) - 1
        is_bound = least <= limit < most
        found = [limit] if is_bound else []
        leaf = leaf._replace(
            operator="<=" if is_bound else "IN",
            is_negated=leaf.is_negated is not (limit >= most),
        )
    if types.is_decimal(type_):
        return leaf, [Decimal(one).scaleb(-scale, _CONTEXT) for one in found]
    return leaf, found
