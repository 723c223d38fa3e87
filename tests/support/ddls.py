"""DDLs in Spark's syntax: of a type, and drawn by seed with the Arrow type each stands for; and damage to them."""

from __future__ import annotations

import random
import re

import pyarrow as pa

WORDS = {
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
    "decimal": pa.decimal128(10, 0),
    "dec(5)": pa.decimal128(5, 0),
    "numeric ( 38 , 38 )": pa.decimal128(38, 38),
    "decimal(18, 04)": pa.decimal128(18, 4),
    "string": pa.string(),
    "char(3)": pa.string(),
    "character( 12 )": pa.string(),
    "varchar (2000)": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp with  local time zone": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp without time zone": pa.timestamp("us"),
}
_WORD_OF = {WORDS[word]: word for word in reversed(WORDS)}
# Names that are words of the grammar, that need backticks, or that look like numbers.
_NAMES = [
    "id", "customer_id", "Price2", "_", "_x", "1a", "9_lives", "int", "array", "struct", "map", "comment",
    "string", "not", "null", "end", "name", "timestamp", "decimal", "select", "from", "r", "time", "zone",
    "a b", "a-b", "a.b", "a`b", "`", "", "größe", "日本", "x[]", "a,b", "a:b", "<", "'", '"', "--", "/* */", "12", "1e5", "5L",
]  # fmt: skip
_IS_PLAIN = re.compile(r"(?![0-9]+$|[0-9]+e[0-9]+$|[0-9]+[LSYFD]$)[A-Za-z0-9_]+")
_COMMENTS = [" comment 'x'", ' COMMENT "it is, \'so\'"', " comment 'it''s'", " comment 'it\\'s int, b'", " Comment ''"]  # fmt: skip
_PIECE = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+|\s+|.", re.DOTALL)


def ddl_of(kind: pa.DataType) -> str:
    """Return the DDL of a type."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(one.name)} {ddl_of(one.type)}' for one in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {ddl_of(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _WORD_OF[kind]


def _quoted(name: str) -> str:
    is_plain = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
    return name if is_plain else f"`{name.replace('`', '``')}`"


class Ddls:
    """DDLs that are drawn by one generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def whole(self) -> tuple[str, pa.DataType]:
        """Return columns or, now and then, a single type."""
        if self._rng.random() < 0.2:
            text, kind = self._type(3)
            return self._space() + text + self._space(), kind
        text, kind = self._fields(3, least=1)
        return self._space() + text, kind

    def damaged(self) -> str:
        """Return a DDL with a piece or two left out, doubled, moved or of another text."""
        pieces: list[str] = _PIECE.findall(self.whole()[0])
        for _ in range(self._rng.randint(1, 2)):
            at = self._rng.randrange(len(pieces))
            other = self._rng.choice(
                [*pieces, ",", "<", ">", "(", ")", ":", ";", "-", "int", " not null", "array", "`", "'", "5", " interval ", "é"]
            )  # fmt: skip
            pieces[at : at + 1] = self._rng.choice([[], [pieces[at]] * 2, [other], [pieces[at], other]])  # fmt: skip
            pieces = pieces or [" "]
        return "".join(pieces)

    def _space(self, *, least: str = "") -> str:
        return self._rng.choice([least] * 6 + [" ", "\n", "\t ", " -- a, b\n", "/* > */ "])

    def _cased(self, word: str) -> str:
        return self._rng.choice([word, word, word.upper(), word.title()])

    def _type(self, depth: int) -> tuple[str, pa.DataType]:
        form = self._rng.choice(["scalar"] * 4 + ["array", "map", "struct"])
        if form == "scalar" or depth == 0:
            word = self._rng.choice(list(WORDS))
            return self._cased(word), WORDS[word]
        before, after = f"{self._cased(form)}{self._space()}<{self._space()}", f"{self._space()}>"
        if form == "struct":
            text, kind = self._fields(depth - 1, least=0)
            return f"{before}{text}{after}", kind
        text, inner = self._type(depth - 1)
        if form == "array":
            return f"{before}{text}{after}", pa.list_(pa.field("element", inner))
        key = pa.field("key", pa.string(), nullable=False)
        text = f"{self._cased('string')}{self._space()},{self._space()}{text}"
        return f"{before}{text}{after}", pa.map_(key, pa.field("value", inner))

    def _fields(self, depth: int, *, least: int) -> tuple[str, pa.DataType]:
        texts, fields, seen = list[str](), list[pa.Field](), set[str]()
        for name in self._rng.sample(_NAMES, self._rng.randint(least, 4)):
            text, kind = self._type(depth)
            if name.lower() not in seen:
                seen.add(name.lower())
                colon = self._rng.choice([self._space(least=" ") or " "] * 2 + [":", " : "])
                comment = self._rng.choice(["", "", "", self._rng.choice(_COMMENTS)])
                texts.append(f"{self._named(name)}{colon}{text}{comment}")
                fields.append(pa.field(name, kind))
        return f"{self._space()},{self._space()}".join(texts), pa.struct(fields)

    def _named(self, name: str) -> str:
        is_plain = _IS_PLAIN.fullmatch(name) and self._rng.random() < 0.7
        return name if is_plain else f"`{name.replace('`', '``')}`"
