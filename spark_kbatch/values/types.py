"""The types of columns that JSON is read as: those of a DDL in Spark's syntax, and parts of them.

    DDL                                          Arrow
    boolean                                      bool
    tinyint, byte                                int8
    smallint, short                              int16
    int, integer                                 int32
    bigint, long                                 int64
    float, real                                  float
    double                                       double
    decimal(p, s), dec(p, s), numeric(p, s)      decimal128(p, s)
    string, char(n), character(n), varchar(n)    string
    binary                                       binary
    date                                         date32
    timestamp, timestamp_ltz                     timestamp[us, UTC]
    timestamp with local time zone               timestamp[us, UTC]
    timestamp_ntz, timestamp without time zone   timestamp[us]
    array<T>                                     list<element>
    map<string, V>                               map<string, value>
    struct<a: T, b: U>                           struct

A DDL is a list of columns, `id bigint, tags array<string>`, which makes a struct, or a single
type, `array<bigint>`. Two words are a column, as in Spark: `int int`. A decimal without digits
has ten and none after the point. How long the texts of a varchar(n) are is not checked. Names are
case-sensitive, and stand in backticks if they have other characters than letters of ASCII, digits
and underscores. COMMENT 'text' and SQL's own comments, but none in each other, are passed over.

Everything may be null but the keys of maps, as in `layout`, and so NOT NULL is refused. Also
refused is what JSON has no form for, such as interval, time and variant, or a map whose keys are
no strings; two fields whose names are equal or differ in case alone, since Spark cannot tell them
apart; and what is too deep or too wide.

A path in an error begins with a dot: `.customer.names[]`, where `[]` stands for the items of an
array and `{}` for the values of a map.

Source: Spark SqlBaseParser.g4 (`singleTableSchema`, `singleDataType`), DataTypeAstBuilder.scala.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import NESTING_MAX
from spark_kbatch.values.layout import (
    COLUMNS_MAX,
    DECIMAL_DIGITS_MAX,
    Wanted,
    ensure_distinct,
    found_fields,
    is_text,
    plain_type,
)

JSON_NAME = b"json"  # in a field's metadata: what it is called in JSON, if its column is not
_WORDS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# What values of other types of Arrow, which columns may have that are written, are read as.
_READ_AS: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
    "timestamp with local time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_SCALARS = {**_WORDS, **{word: _WORDS[other] for word, other in _SYNONYMS.items()}}
_DDL_OF = {kind: word for word, kind in _WORDS.items()}
_ACCEPTED = (
    "types are boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, "
    "binary, date, timestamp, timestamp_ntz, array<T>, map<string, T> and struct<name: T, ...>"
)
_BACKTICKS = "names with more than letters, digits and underscores stand in backticks: `unit-price`"
_NULLS = "leave NOT NULL out, because a value that cannot be read is null"
_COLUMNS = "columns are written as in id bigint, tags array<string> COMMENT 'or more'"
# "?>" keeps what it took, so that a long gap is not tried again in other parts.
_GAP = r"(?>\s+|--[^\n]*|/\*(?:(?!/\*).)*?\*/)"
# Kinds of tokens are in capitals, as no word in lower case is. A TYPE is what can be no name.
_TOKEN = re.compile(
    rf"""(?P<GAP>{_GAP}+)
    |(?P<NUMBER>[0-9]+(?:e[0-9]+|[lsyfd]|bd)?(?![A-Za-z0-9_]))
    |(?P<TYPE>(?P<nested>array|map|struct){_GAP}*<
        |(?:decimal|dec|numeric)\s*\(\s*(?P<digits>[0-9]+)\s*(?:,\s*(?P<scale>[0-9]+)\s*)?\)
        |(?:char|character|varchar)\s*\(\s*[0-9]+\s*\)
        |timestamp\s+(?:without|with\s+local)\s+time\s+zone\b)
    |(?P<COMMENT>comment{_GAP}*(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"))
    |(?P<NAME>[A-Za-z0-9_]+)
    |`(?P<QUOTED>(?:[^`]|``)*)`
    |(?P<END>\Z)
    |(?P<SIGN>[:,<>()])
    |(?P<OTHER>.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def parse_ddl(text: str) -> pa.DataType:
    """Return the Arrow type of a DDL in Spark's syntax: a struct of columns, or a single type.

    Raises:
        SchemaError: it is none, or has a type that JSON has no form for; says where in the text,
            and what to write.
    """
    return project_type(_Ddl(text).whole(), {})


class _Ddl:
    """One call of `parse_ddl`: the text, and the tokens of it that are not read yet."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._types_count = 0
        self._tokens = deque(one for one in _TOKEN.finditer(text) if one.lastgroup != "GAP")

    def whole(self) -> pa.DataType:
        """Return the type of the whole text."""
        is_column = len(self._tokens) > 2 and self._tokens[0].lastgroup != "TYPE"
        kind = pa.struct(list(self._fields("", 0))) if is_column else self._type("", 0)
        self._take("a comma", "", _COLUMNS, "END")
        return kind

    def _skip(self, *what: str) -> re.Match[str] | None:
        """Pass over the next token if it is one of these words or kinds; return it if it was."""
        is_one = not {self._tokens[0].lastgroup, self._tokens[0][0].lower()}.isdisjoint(what)
        return self._tokens.popleft() if is_one else None

    def _take(self, missing: str, path: str, hint: str, *what: str) -> re.Match[str]:
        """Return the next token if it is one of these; else raise what says it is missing."""
        taken = self._skip(*what)
        if taken:
            return taken
        found = self._tokens[0]
        lines = self._text[: found.start()].split("\n")
        place = f"{f'line {len(lines)}, ' * (len(lines) > 1)}character {len(lines[-1]) + 1}"
        there = f"there is {found[0]!r}" if found[0] else "the DDL ends"
        hint = _NULLS if found[0].lower() == "not" else hint
        raise SchemaError(path, f"{missing} is missing at {place}, where {there}; {hint}")

    def _fields(self, path: str, depth: int) -> Iterator[pa.Field]:
        """Yield fields with commas between them."""
        while True:
            found = self._take("a name", path, _BACKTICKS, "NAME", "QUOTED")
            name = found[str(found.lastgroup)].replace("``", "`")
            self._skip(":")
            yield pa.field(name, self._type(f"{path}.{name}", depth + 1))
            self._skip("COMMENT")
            if not self._skip(","):
                return

    def _type(self, path: str, depth: int) -> pa.DataType:
        self._types_count += 1
        if depth > NESTING_MAX or self._types_count > COLUMNS_MAX:
            raise SchemaError(
                path, f"there are more than {COLUMNS_MAX} columns, or {NESTING_MAX} in each other"
            )
        hint = _BACKTICKS if self._tokens[0].lastgroup == "OTHER" else _ACCEPTED
        found = self._take("a type", path, hint, "TYPE", *_SCALARS)
        match (found["nested"] or "").lower():
            case "array":
                kind = array_of(self._type(f"{path}[]", depth + 1))
            case "map":
                self._take("'string'", path, "keys of a map are names in JSON", "string")
                self._take("','", path, _ACCEPTED, ",")
                kind = map_of(self._type(f"{path}{{}}", depth + 1))
            case "struct":
                is_empty = self._tokens[0][0] == ">"
                kind = pa.struct([] if is_empty else list(self._fields(path, depth)))
            case _:
                if found["digits"]:
                    return decimal_of(found["digits"], found["scale"] or 0, path)
                return _SCALARS.get(" ".join(found[0].lower().split()), pa.string())
        self._take("'>'", path, _ACCEPTED, ">")
        return kind


def decimal_of(digits: Any, scale: Any, path: str) -> pa.DataType:
    """Return the type of decimals of so many digits, and so many of them after the point.

    Raises:
        SchemaError: there are no such decimals; names the path.
    """
    are_numbers = re.fullmatch("[0-9]+ [0-9]+", f"{digits} {scale}")
    if not are_numbers or not max(int(scale), 1) <= int(digits) <= DECIMAL_DIGITS_MAX:
        raise SchemaError(
            path,
            f"decimal({digits}, {scale}): a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and not "
            "more of them after the point",
        )
    return pa.decimal128(int(digits), int(scale))


def array_of(element: pa.DataType) -> pa.DataType:
    """Return the type of arrays of a type."""
    return pa.list_(pa.field("element", element))


def map_of(value: pa.DataType) -> pa.DataType:
    """Return the type of maps from strings to a type."""
    return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))


def project_type(
    kind: pa.DataType, wanted: Wanted, *, renames: bool = False, path: str = ""
) -> pa.DataType:
    """Return a type with the wanted fields only, through arrays and maps, if JSON may be of it.

    Args:
        kind: to take them from. One that only a column has that is written, such as uint8, becomes
            the type that its values are read as.
        wanted: the fields, in their new order, as `layout.wanted_fields` makes them; all if empty.
        renames: whether the column of a field that is found by a name of other case has that name.
            Then each field has its name in JSON in its metadata; else it has none.
        path: of the type, for errors.

    Raises:
        SchemaError: a field that a struct does not have, or fields of what is no struct; or a type
            that has no form in JSON; names the path.
    """
    kind = _READ_AS.get(plain_type(kind), plain_type(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return array_of(project_type(kind.value_type, wanted, renames=renames, path=f"{path}[]"))
    if pa.types.is_map(kind) and is_text(plain_type(kind.key_type)):
        return map_of(project_type(kind.item_type, wanted, renames=renames, path=f"{path}{{}}"))
    if pa.types.is_struct(kind):
        chosen: list[tuple[str, pa.Field, Wanted]] = [(one.name, one, {}) for one in kind]
        if wanted:
            chosen = found_fields(list(kind), wanted, path, "the struct")
        ensure_distinct([name for name, _, _ in chosen], path, "the struct")
        fields: list[pa.Field] = []
        for name, found, below in chosen:
            inner = project_type(found.type, below, renames=renames, path=f"{path}.{found.name}")
            in_json = {JSON_NAME: (found.metadata or {}).get(JSON_NAME, found.name)}
            fields.append(
                pa.field(name, inner, metadata=in_json) if renames else pa.field(found.name, inner)
            )
        return pa.struct(fields)
    if wanted:
        raise SchemaError(path, f"{_DDL_OF.get(kind) or kind} has no field {next(iter(wanted))!r}")
    is_decimal = pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if kind not in _DDL_OF and not is_decimal:
        raise SchemaError(path, f"JSON has no form for {kind}; {_ACCEPTED}")
    return kind
