"""The types of columns that JSON is read as: made of a DDL in Spark's syntax, and written as one.

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

A DDL is a list of columns, `id bigint, tags array<string>`, which makes a struct, or a single type,
`array<bigint>`. Two words are a column, as in Spark: `int int`. A decimal without digits has ten and
none after the point. How long the texts of a varchar(n) are is not checked. Names are case-sensitive, and
stand in backticks if they have other characters than letters of ASCII, digits and underscores.
COMMENT 'text' and SQL's own comments are passed over.

Everything may be null but the keys of maps, as in `layout`, and so NOT NULL is refused. Also refused is what
JSON has no form for, such as interval, time and variant, or a map whose keys are no strings; two
fields whose names are equal or differ in case alone, since Spark cannot tell them apart; and what is
too deep or too wide.

A path in an error begins with a dot: `.customer.names[]`, where `[]` stands for the items of an array and
`{}` for the values of a map.

Source: Spark SqlBaseParser.g4 (`singleTableSchema`, `singleDataType`), DataTypeAstBuilder.scala.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_schema import NESTING_MAX
from spark_kbatch.values.layout import (
    COLUMNS_MAX,
    DECIMAL_DIGITS_MAX,
    Wanted,
    ensure_distinct,
    found_fields,
)

JSON_NAME = (
    b"json"  # in the metadata of a field that is called so in JSON, and otherwise as a column
)
REFUSED = b"refused"  # in the metadata of a field of type null: why its schema has no type
_SCALARS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp with local time zone": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp without time zone": pa.timestamp("us"),
}
_WORDS = {_SCALARS[word]: word for word in reversed(list(_SCALARS))}
_DECIMALS, _TEXTS = ("decimal", "dec", "numeric"), ("char", "character", "varchar")
_DECIMAL_DEFAULT = (10, 0)
_ACCEPTED = (
    "types are boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, binary, "
    "date, timestamp, timestamp_ntz, array<T>, map<string, T> and struct<name: T, ...>"
)
_EXAMPLE = "'id bigint, tags array<string>'"
_BACKTICKS = "names with more than letters, digits and underscores stand in backticks: `unit-price`"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<number>[0-9]+(?:e[0-9]+|[lsyfd]|bd)?(?![A-Za-z0-9_]))
    |(?P<name>timestamp\s+(?:without|with\s+local)\s+time\s+zone\b|[A-Za-z0-9_]+)
    |`(?P<quoted>(?:[^`]|``)*)`
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_END = "end"


class _Token(NamedTuple):
    kind: str  # a group of `_TOKEN`, or `_END`
    text: str
    position: int  # characters before it


def parse_ddl(text: str) -> pa.DataType:
    """Return the Arrow type of a DDL in Spark's syntax: a struct of columns, or a single type.

    Raises:
        SchemaError: it is none, or has a type that JSON has no form for; says where, and what to write.
    """
    kind = _Parser(text).whole()
    ensure_columns_of_json(kind)
    return kind


class _Parser:
    """One call of `parse_ddl`: the tokens, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), _Token(_END, "", len(text))]
        self._index = 0

    def whole(self) -> pa.DataType:
        """Return the type of the whole text."""
        if self._next.kind == _END:
            raise SchemaError("", f"the DDL is empty; write columns, as in {_EXAMPLE}")
        if self._next.kind == "quoted" or self._tokens[1].text not in ("", "<", "("):
            kind = pa.struct(list(self._fields("", 0)))
        else:
            kind = self._type("", 0)
        if self._next.kind != _END:
            raise self._unexpected("", "a comma", f"columns are written as in {_EXAMPLE}")
        return kind

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _skip(self, text: str) -> bool:
        """Pass over the next token if it is this sign or word; return True if it was."""
        is_this = self._next.kind in ("sign", "name") and self._next.text.lower() == text
        self._index += is_this
        return is_this

    def _expect(self, sign: str, path: str, hint: str = "") -> None:
        if not self._skip(sign):
            raise self._unexpected(path, repr(sign), hint)

    def _unexpected(self, path: str, wanted: str, hint: str = "") -> SchemaError:
        """Return an error that says what is wanted in the place of the next token."""
        found = self._next
        shown = "the DDL ends" if found.kind == _END else f"there is {found.text!r}"
        line_start = self._text.rfind("\n", 0, found.position) + 1
        line = self._text.count("\n", 0, line_start) + 1
        place = f"{f'line {line}, ' if line > 1 else ''}character {found.position - line_start + 1}"
        return SchemaError(path, f"{wanted} is missing at {place}, where {shown}{hint and '; '}{hint}")  # fmt: skip

    def _fields(self, path: str, depth: int) -> Iterator[pa.Field]:
        """Yield fields with commas between them."""
        while True:
            name = self._name(path)
            self._skip(":")
            below = f"{path}.{name}"
            yield pa.field(name, self._type(below, depth + 1))
            if self._next.text.lower() == "not":
                raise self._unexpected(below, "a comma", "leave NOT NULL out: a value that cannot be read is null")  # fmt: skip
            if self._skip("comment"):
                if self._next.kind != "text":
                    raise self._unexpected(below, "the text of the comment")
                self._index += 1
            if not self._skip(","):
                return

    def _name(self, path: str) -> str:
        found = self._next
        if found.kind not in ("name", "quoted"):
            raise self._unexpected(path, "a name", _BACKTICKS)
        self._index += 1
        if self._next.kind == "sign" and self._next.text not in ":,<>()":
            raise self._unexpected(path, f"the type of {found.text!r}", _BACKTICKS)
        return found.text.replace("``", "`")

    def _type(self, path: str, depth: int) -> pa.DataType:
        if depth > NESTING_MAX:
            raise SchemaError(path, f"types are nested deeper than {NESTING_MAX}")
        word = " ".join(self._next.text.lower().split()) if self._next.kind == "name" else ""
        if word not in (*_SCALARS, *_DECIMALS, *_TEXTS, "array", "map", "struct"):
            raise self._unexpected(path, "a type", _ACCEPTED)
        self._index += 1
        if word in _SCALARS:
            return _SCALARS[word]
        if word in _DECIMALS:
            return self._decimal(path)
        if word in _TEXTS:
            self._numbers(path)
            return pa.string()
        self._expect("<", path, _ACCEPTED)
        kind = self._nested(word, path, depth)
        self._expect(">", path)
        return kind

    def _nested(self, word: str, path: str, depth: int) -> pa.DataType:
        if word == "array":
            return array_of(self._type(f"{path}[]", depth + 1))
        if word == "struct":
            is_empty = self._next.text == ">"
            return pa.struct([] if is_empty else list(self._fields(path, depth)))
        if self._next.text.lower() != "string":
            raise self._unexpected(
                path, "string", "the keys of a map are the names in a JSON object"
            )
        self._index += 1
        self._expect(",", path)
        return map_of(self._type(f"{path}{{}}", depth + 1))

    def _decimal(self, path: str) -> pa.DataType:
        given = self._numbers(path) if self._next.text == "(" else _DECIMAL_DEFAULT
        precision, scale = (*given, 0)[:2]
        if not max(scale, 1) <= precision <= DECIMAL_DIGITS_MAX or len(given) > 2:
            raise SchemaError(
                path,
                f"decimal({', '.join(map(str, given))}): it has 1 to {DECIMAL_DIGITS_MAX} digits, and none to "
                "all of them after the point",
            )
        return pa.decimal128(precision, scale)

    def _numbers(self, path: str) -> tuple[int, ...]:
        """Take numbers in brackets."""
        self._expect("(", path)
        found: list[int] = []
        while not found or self._skip(","):
            if not self._next.text.isdecimal():
                raise self._unexpected(path, "a number")
            found.append(int(self._next.text))
            self._index += 1
        self._expect(")", path)
        return tuple(found)


def _tokens(text: str) -> Iterator[_Token]:
    for one in _TOKEN.finditer(text):
        kind = one.lastgroup or ""
        if kind != "space":
            yield _Token(kind, one[kind], one.start())


def array_of(element: pa.DataType) -> pa.DataType:
    """Return the type of arrays."""
    return pa.list_(pa.field("element", element))


def map_of(value: pa.DataType) -> pa.DataType:
    """Return the type of maps, whose keys are strings."""
    return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))


def ddl_of(kind: pa.DataType) -> str:
    """Return the DDL of a type, `struct<id: bigint>`, which `parse_ddl` takes."""
    types = pa.types
    if types.is_struct(kind):
        return (
            f"struct<{', '.join(f'{quoted_name(one.name)}: {ddl_of(one.type)}' for one in kind)}>"
        )
    if types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<string, {ddl_of(kind.item_type)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _WORDS.get(kind) or str(kind)


def quoted_name(name: str) -> str:
    """Return a name as a DDL has it: in backticks if need be."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def ensure_columns_of_json(kind: pa.DataType) -> None:
    """Check that JSON can be read as a type.

    Raises:
        SchemaError: a type in it has no form in JSON, or the whole is too large; names the path.
    """
    for count, (path, field, depth) in enumerate(_fields_of(pa.field("", kind), "", 0)):
        if count >= COLUMNS_MAX:
            raise SchemaError(path, f"there are more than {COLUMNS_MAX} columns: name the fields that are wanted")  # fmt: skip
        if depth > NESTING_MAX:
            raise SchemaError(path, f"columns are nested deeper than {NESTING_MAX}")
        why = (field.metadata or {}).get(REFUSED)
        if why is not None:
            raise SchemaError(
                path, f"{why.decode()}; or leave it out of the fields that are wanted"
            )
        one = field.type
        if pa.types.is_struct(one):
            ensure_distinct([child.name for child in one], path, "the struct")
        elif not _is_of_json(one):
            raise SchemaError(path, f"JSON has no form for {one}; {_ACCEPTED}")


def _is_of_json(kind: pa.DataType) -> bool:
    """Return True for a type, other than a struct, that JSON can be read as; its children aside."""
    if pa.types.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision)
    if pa.types.is_map(kind):
        return bool(kind.key_type == pa.string())
    return pa.types.is_list(kind) or kind in _WORDS


def _fields_of(field: pa.Field, path: str, depth: int) -> Iterator[tuple[str, pa.Field, int]]:
    """Yield a field and all that are in its type: its path, itself, and how deep it lies."""
    yield path, field, depth
    kind = field.type
    if pa.types.is_struct(kind):
        below = [(f"{path}.{one.name}", one) for one in kind]
    elif pa.types.is_list(kind):
        below = [(f"{path}[]", kind.value_field)]
    elif pa.types.is_map(kind):
        below = [(f"{path}{{}}", kind.item_field)]
    else:
        return
    for inner, one in below:
        yield from _fields_of(one, inner, depth + 1)


def project_type(kind: pa.DataType, wanted: Wanted, *, renames: bool = False) -> pa.DataType:
    """Return a type with the wanted fields only, through arrays and maps.

    Args:
        kind: to take them from.
        wanted: the fields, in their new order, as `layout.wanted_fields` makes them.
        renames: whether the column of a field that is found by a name of other case has that name. It
            keeps its own in JSON, in its metadata.

    Raises:
        SchemaError: a field that a struct does not have, or fields of what is no struct; names the path.
    """
    return _projected(kind, wanted, "", renames=renames)


def _projected(kind: pa.DataType, wanted: Wanted, path: str, *, renames: bool) -> pa.DataType:
    if not wanted:
        return kind
    if pa.types.is_list(kind):
        return array_of(_projected(kind.value_type, wanted, f"{path}[]", renames=renames))
    if pa.types.is_map(kind):
        return map_of(_projected(kind.item_type, wanted, f"{path}{{}}", renames=renames))
    if not pa.types.is_struct(kind):
        raise SchemaError(path, f"{ddl_of(kind)} has no field {next(iter(wanted))!r}")
    fields: list[pa.Field] = []
    for name, found, below in found_fields(list(kind), wanted, path, "the struct"):
        inner = _projected(found.type, below, f"{path}.{found.name}", renames=renames)
        one = found.with_type(inner)
        if renames and name != found.name:
            one = one.with_metadata({JSON_NAME: json_name(found)}).with_name(name)
        fields.append(one)
    return pa.struct(fields)


def json_name(field: pa.Field) -> str:
    """Return what the field of a struct is called in JSON."""
    name = (field.metadata or {}).get(JSON_NAME, field.name.encode())
    return str(name, "utf-8")
