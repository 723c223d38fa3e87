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

A DDL is a list of columns, `id bigint, tags array<string>`, which makes a struct, or a single
type, `array<bigint>`. Two words are a column, as in Spark: `int int`. A decimal without digits
has ten and none after the point. How long the texts of a varchar(n) are is not checked. Names are
case-sensitive, and stand in backticks if they have other characters than letters of ASCII, digits
and underscores. COMMENT 'text' and SQL's own comments are passed over.

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
from collections.abc import Iterator, Mapping

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

JSON_NAME = b"json"  # in a field's metadata: what it is called in JSON, if its column is not
# In the metadata of a field that has no type, and is null: the path and the reason of an error, with
# a zero byte between. It is raised only if the field is wanted.
REFUSED = b"refused"
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
# In capitals, as no word in lower case is.
_KINDS = {"END": "a comma", "QUOTED": "a name", "TEXT": "the text of the comment"}
_TOKEN = re.compile(
    r"""(?P<SPACE>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<NUMBER>[0-9]+(?:e[0-9]+|[lsyfd]|bd)?(?![A-Za-z0-9_]))
    |(?P<DECIMAL>(?:decimal|dec|numeric)\s*
        \(\s*(?P<digits>[0-9]+)\s*(?:,\s*(?P<scale>[0-9]+)\s*)?\))
    |(?P<VARCHAR>(?:char|character|varchar)\s*\(\s*[0-9]+\s*\))
    |(?P<NAME>timestamp\s+(?:without|with\s+local)\s+time\s+zone\b|[A-Za-z0-9_]+)
    |(?P<QUOTED>`(?:[^`]|``)*`)
    |(?P<TEXT>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<END>\Z)
    |(?P<SIGN>.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_ddl(text: str) -> pa.DataType:
    """Return the Arrow type of a DDL in Spark's syntax: a struct of columns, or a single type.

    Raises:
        SchemaError: it is none, or has a type that JSON has no form for; says where in the text,
            and what to write.
    """
    kind = _Parser(text).whole()
    ensure_columns_of_json(kind)
    return kind


class _Parser:
    """One call of `parse_ddl`: the tokens, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [one for one in _TOKEN.finditer(text) if one.lastgroup != "SPACE"]
        self._index = 0

    def whole(self) -> pa.DataType:
        """Return the type of the whole text."""
        is_column = [one[0] for one in self._tokens[1:2]] not in ([], [""], ["<"], ["("])
        kind = pa.struct(list(self._fields("", 0))) if is_column else self._type("", 0)
        self._expect("END", "", "columns are written as in 'id bigint, tags array<string>'")
        return kind

    @property
    def _next(self) -> re.Match[str]:
        return self._tokens[self._index]

    def _skip(self, what: str) -> bool:
        """Pass over the next token if it is a word, a sign or of a kind; return True if it was."""
        is_this = what in (self._next.lastgroup, self._next[0].lower())
        self._index += is_this
        return is_this

    def _expect(self, what: str, path: str, hint: str = "") -> None:
        if not self._skip(what):
            raise self._missing(_KINDS.get(what, repr(what)), path, hint)

    def _missing(self, what: str, path: str, hint: str) -> SchemaError:
        """Return an error that says what is missing in the place of the next token."""
        found, position = self._next[0], self._next.start()
        line_start = self._text.rfind("\n", 0, position) + 1
        line = self._text.count("\n", 0, line_start) + 1
        place = f"{f'line {line}, ' * (line > 1)}character {position - line_start + 1}"
        there = f"there is {found!r}" if found else "the DDL ends"
        hint = _NULLS if found.lower() == "not" else hint
        where = f"at {place}, where {there}"
        return SchemaError(path, f"{what} is missing {where}{hint and '; '}{hint}")

    def _fields(self, path: str, depth: int) -> Iterator[pa.Field]:
        """Yield fields with commas between them."""
        while True:
            name = self._next[0]
            if not self._skip("NAME"):
                self._expect("QUOTED", path, _BACKTICKS)
                name = name[1:-1].replace("``", "`")
            elif self._next.lastgroup == "SIGN" and self._next[0] not in ":,<>()":
                raise self._missing(f"the type of {name!r}", path, _BACKTICKS)
            self._skip(":")
            yield pa.field(name, self._type(f"{path}.{name}", depth + 1))
            if self._skip("comment"):
                self._expect("TEXT", f"{path}.{name}")
            if not self._skip(","):
                return

    def _type(self, path: str, depth: int) -> pa.DataType:
        if depth > NESTING_MAX:
            raise SchemaError(path, f"types are nested deeper than {NESTING_MAX}")
        found = self._next
        word = " ".join(found[0].lower().split())
        if found.lastgroup == "DECIMAL":
            kind = _decimal(found, path)
        elif word in _SCALARS or found.lastgroup == "VARCHAR":
            kind = _SCALARS.get(word, pa.string())
        elif word in ("array", "map", "struct"):
            return self._nested(word, path, depth)
        else:
            raise self._missing("a type", path, _ACCEPTED)
        self._index += 1
        return kind

    def _nested(self, word: str, path: str, depth: int) -> pa.DataType:
        self._index += 1
        self._expect("<", path, _ACCEPTED)
        if word == "array":
            kind = array_of(self._type(f"{path}[]", depth + 1))
        elif word == "map":
            self._expect("string", path, "keys of a map are names in JSON, which are strings")
            self._expect(",", path)
            kind = map_of(self._type(f"{path}{{}}", depth + 1))
        else:
            kind = pa.struct([] if self._next[0] == ">" else list(self._fields(path, depth)))
        self._expect(">", path)
        return kind


def _decimal(found: re.Match[str], path: str) -> pa.DataType:
    digits, scale = int(found["digits"]), int(found["scale"] or 0)
    if not max(scale, 1) <= digits <= DECIMAL_DIGITS_MAX:
        raise SchemaError(
            path,
            f"{found[0]}: a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, of which up to all are "
            "after the point",
        )
    return pa.decimal128(digits, scale)


def array_of(element: pa.DataType) -> pa.DataType:
    """Return the type of arrays of a type."""
    return pa.list_(pa.field("element", element))


def map_of(value: pa.DataType) -> pa.DataType:
    """Return the type of maps from strings to a type."""
    return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))


def columns_ddl(kind: pa.DataType) -> str:
    """Return the DDL of a struct's fields, `id bigint, tags array<string>`."""
    return ", ".join(f"{_quoted(one.name)} {ddl_of(one.type)}" for one in kind)


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def ddl_of(kind: pa.DataType) -> str:
    """Return the DDL of a type, as `parse_ddl` takes it."""
    if pa.types.is_struct(kind):
        return f"struct<{columns_ddl(kind)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {ddl_of(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _DDL_OF.get(kind) or str(kind)


def ensure_columns_of_json(kind: pa.DataType) -> None:
    """Check that JSON can be read as a type.

    Raises:
        SchemaError: a type in it has no form in JSON, or the whole is too large; names the path.
    """
    found = [("", pa.field("", kind), 0)]
    for count, (path, field, depth) in enumerate(found):  # which grows meanwhile
        if count >= COLUMNS_MAX:
            raise SchemaError(
                path, f"there are more than {COLUMNS_MAX} columns: name the fields that are wanted"
            )
        if depth > NESTING_MAX:
            raise SchemaError(path, f"columns are nested deeper than {NESTING_MAX}")
        if field.metadata and REFUSED in field.metadata:
            raise SchemaError(*str(field.metadata[REFUSED], "utf-8").split("\0"))
        below = _fields_below(field.type, path)
        if below is None:
            raise SchemaError(path, f"JSON has no form for {field.type}; {_ACCEPTED}")
        if pa.types.is_struct(field.type):
            ensure_distinct([one.name for one in field.type], path, "the struct")
        found += [(inner, one, depth + 1) for inner, one in below]


def _fields_below(kind: pa.DataType, path: str) -> list[tuple[str, pa.Field]] | None:
    """Return the fields of a struct, or what is in an array or a map, with their paths.

    None for a type that JSON has no form for.
    """
    if pa.types.is_struct(kind):
        return [(f"{path}.{one.name}", one) for one in kind]
    if pa.types.is_list(kind):
        return [(f"{path}[]", kind.value_field)]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return [(f"{path}{{}}", kind.item_field)]
    is_decimal = pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision
    return [] if is_decimal or kind in _DDL_OF else None


def project_type(
    kind: pa.DataType, wanted: Wanted, *, renames: bool = False, path: str = ""
) -> pa.DataType:
    """Return a type with the wanted fields only, through arrays and maps.

    Args:
        kind: to take them from.
        wanted: the fields, in their new order, as `layout.wanted_fields` makes them.
        renames: whether the column of a field that is found by a name of other case has that name.
            It keeps its own in JSON, in its metadata.
        path: of the type, for errors.

    Raises:
        SchemaError: a field that a struct does not have, or fields of what is no struct; names
            the path.
    """
    if not wanted:
        return kind
    if pa.types.is_list(kind):
        return array_of(project_type(kind.value_type, wanted, renames=renames, path=f"{path}[]"))
    if pa.types.is_map(kind):
        return map_of(project_type(kind.item_type, wanted, renames=renames, path=f"{path}{{}}"))
    if not pa.types.is_struct(kind):
        raise SchemaError(path, f"{ddl_of(kind)} has no field {next(iter(wanted))!r}")
    fields: list[pa.Field] = []
    for name, found, below in found_fields(list(kind), wanted, path, "the struct"):
        inner = project_type(found.type, below, renames=renames, path=f"{path}.{found.name}")
        metadata = {**(found.metadata or {}), JSON_NAME: json_name(found).encode()}
        is_renamed = renames and name != found.name
        fields.append(
            pa.field(name, inner, metadata=metadata) if is_renamed else found.with_type(inner)
        )
    return pa.struct(fields)


def json_name(field: pa.Field) -> str:
    """Return what the field of a struct is called in JSON."""
    return str((field.metadata or {}).get(JSON_NAME, field.name.encode()), "utf-8")
