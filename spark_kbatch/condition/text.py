r"""The text of a condition -> its tree; all that is not taken is an error with its place in the text.

    condition   conjunction {OR conjunction}
    conjunction negation {AND negation}
    negation    {NOT} test
    test        "(" condition ")" | operand | operand operator literal | literal operator operand
                | operand [NOT] IN "(" literal {, literal} ")"
                | operand [NOT] BETWEEN literal AND literal
                | operand IS [NOT] NULL
                | operand [NOT] LIKE text [ESCAPE text]
    operator    = == <> != < <= > >=
    operand     name {"." name | "[" text "]"}
    literal     text | X'hex' | [+-]digits[.digits] | one with an exponent | TRUE | FALSE
                | NULL, in IN alone | DATE '...' | TIMESTAMP '...' | TIMESTAMP_NTZ '...'

Spark's spelling with its default settings: text is in single quotes, `''` is a quote, and backslashes are as in
Spark's literals (`\%` and `\_` stay as they are, for LIKE). A name that is one of the words above, or has other
characters than letters, digits and `_`, is in backticks, a backtick doubled; after a dot every word is a name.

Source: Spark sql/api/.../SqlBaseLexer.g4, SqlBaseParser.g4, SparkParserUtils.scala unescapeSQLString;
sql/catalyst/.../util/StringUtils.scala escapeLikeRegex.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple, NoReturn

from spark_kbatch.condition.tree import AllOf, AnyOf, Literal, Name, Node, Not, Test
from spark_kbatch.errors import ConfigError

BYTES_MAX = 64 << 10  # of a text
LEVELS_MAX = 100  # of parentheses and NOT, within each other
LITERALS_MAX = 10_000
DIGITS_MAX = 38  # of a number without exponent: more are no number in Spark

_TOKEN = re.compile(
    r"""(?P<bytes>[xX]'[^']*') | (?P<text>'(?:[^'\\]|\\.|'')*') | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<number>[+-]?[0-9]+(?:\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<symbol><=>|==|<>|!=|<=|>=|--|/\*|::|[=<>().,\[\]])""",
    re.VERBOSE | re.DOTALL,
)
_SPACE = re.compile(r"[ \t\r\n]*")
_WORDS = frozenset("AND OR NOT IN BETWEEN IS NULL LIKE ESCAPE TRUE FALSE".split())
_TURNED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATORS = {one: one for one in _TURNED} | {"==": "=", "<>": "!="}
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))|''", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}  # fmt: skip
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  of times with and without a zone
_US = datetime.timedelta(microseconds=1)
_ZONE_MAX = datetime.timedelta(hours=18)  # from UTC, in Java
_SHOWN_MAX = 40

# What stands where something else is expected, and what to write in its place.
_INSTEAD = {
    '"': "a text in double quotes is a name or a text, as a setting of Spark decides; write '...' for a text, `...` for a name",
    "--": "comments are not taken; leave it out",
    "/*": "comments are not taken; leave it out",
    "::": "casts are not taken; write a literal of the column's type",
    "<=>": "<=> is not taken; write = , or IS NULL",
    "!": "! is not taken; write NOT",
    ";": "one condition is taken, without ; at its end",
    "NULL": "NULL is compared with nothing; write IS NULL or IS NOT NULL",
    "RLIKE": "regular expressions are not taken; write LIKE, and filter further after the read",
    "REGEXP": "regular expressions are not taken; write LIKE, and filter further after the read",
    "ILIKE": "ILIKE is not taken; write LIKE with each spelling, joined by OR",
    "CAST": "casts are not taken; write a literal of the column's type",
}


class _Token(NamedTuple):
    kind: str  # a group of `_TOKEN`, "word" for a keyword too, or "end"
    text: str
    position: int
    is_double: bool = False  # of a number: has an exponent

    @property
    def word(self) -> str:
        """The word in capitals, or the symbol; empty for all else."""
        return self.text.upper() if self.kind in ("word", "symbol") else ""


def parse(text: str, name: str = "where") -> Node:
    """Parse the text of a condition.

    Args:
        text: of the condition.
        name: of the option or argument, for errors.

    Raises:
        ConfigError: a text that is not taken; says where, and what to write in its place.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{name} is {text!r}; accepted: a condition, such as \"key = 'a'\"")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} has no Unicode character at {error.start + 1}") from None
    if size > BYTES_MAX:
        raise ConfigError(
            f"{name} has {size} bytes, more than {BYTES_MAX}; join with a table of values after the read"
        )
    return _Parser(text, name).condition_alone()


def refuse(name: str, position: int, shown: str, why: str) -> NoReturn:
    """Raise the error of a place in a condition's text.

    Args:
        name: of the option or argument.
        position: in the text, from 0.
        shown: what stands there.
        why: it is refused, and what to write in its place.
    """
    shown = shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "..."
    raise ConfigError(f"{name}: at character {position + 1}, {shown or 'the end'}: {why}")


class _Parser:
    """Parser of one text, by descent; `LEVELS_MAX` bounds how deep."""

    def __init__(self, text: str, name: str) -> None:
        self._name, self._levels, self._literals = name, 0, 0
        self._tokens = self._read(text)
        self._at = 0

    def _read(self, text: str) -> list[_Token]:
        found = list[_Token]()
        end = _space_after(text, 0)
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                why = _INSTEAD.get(text[end], "it has no meaning here")
                if text[end] in "'`":
                    why = f"{text[end]} is not closed"
                refuse(self._name, end, text[end : end + 10], why)
            kind = str(match.lastgroup)
            if found and kind == "word" and found[-1].kind == "number":
                before = found[-1]
                if before.position + len(before.text) == end:
                    shown = before.text + match[0]
                    refuse(
                        self._name,
                        before.position,
                        shown,
                        "suffixes are not taken; write the digits alone",
                    )
            if match[0] in ("--", "/*", "::", "<=>"):
                refuse(self._name, end, match[0], _INSTEAD[match[0]])
            found.append(_Token(kind, match[0], end, match["exponent"] is not None))
            end = _space_after(text, match.end())
        return [*found, _Token("end", "", len(text))]

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _takes(self, *words: str) -> bool:
        """Return True, and go on, if the next tokens are these words."""
        if [one.word for one in self._tokens[self._at : self._at + len(words)]] != [*words]:
            return False
        self._at += len(words)
        return True

    def _refuse(self, taken: str, token: _Token | None = None) -> NoReturn:
        """Raise an error for a token, with what is taken in its place."""
        token = token or self._next
        why = _INSTEAD.get(token.word) or f"expected {taken}"
        refuse(self._name, token.position, token.text, why)

    def condition_alone(self) -> Node:
        """Return the condition that is all of the text."""
        found = self._condition()
        if self._next.kind != "end":
            self._refuse("AND, OR or the end")
        return found

    def _condition(self) -> Node:
        return self._joined("OR", AnyOf, lambda: self._joined("AND", AllOf, self._negation))

    def _joined(self, word: str, kind: type[AllOf | AnyOf], part: Callable[[], Node]) -> Node:
        found = [part()]
        while self._takes(word):
            found.append(part())
        return found[0] if len(found) == 1 else kind(tuple(found))

    def _negation(self) -> Node:
        count = 0
        while self._next.word == "NOT":
            self._go_down()
            count += 1
        found = self._test()
        self._levels -= count
        return Not(found) if count % 2 else found

    def _go_down(self) -> None:
        self._levels += 1
        if self._levels > LEVELS_MAX:
            self._refuse_here(f"more than {LEVELS_MAX} levels of ( and NOT; write it flatter")
        self._take()

    def _refuse_here(self, why: str) -> NoReturn:
        refuse(self._name, self._next.position, self._next.text, why)

    def _test(self) -> Node:
        if self._next.word == "(":
            self._go_down()
            found = self._condition()
            if not self._takes(")"):
                self._refuse("AND, OR or )")
            self._levels -= 1
            return found
        literal = self._maybe_literal()
        if literal is not None:
            operator = self._operator("a comparison, such as = , after a literal")
            return Test(_TURNED[operator], self._operand(), (literal,))
        return self._test_of(self._operand())

    def _test_of(self, name: Name) -> Node:
        """Return the test whose operand was taken."""
        if self._takes("IS"):
            is_not = self._takes("NOT")
            if self._next.word != "NULL":
                self._refuse_here(
                    "IS goes with NULL or NOT NULL alone; write = TRUE or = FALSE for others"
                )
            self._take()
            found: Node = Test("IS NULL", name)
            return Not(found) if is_not else found
        start, is_not = self._at, self._takes("NOT")
        if self._takes("IN"):
            found = Test("IN", name, self._listed())
        elif self._takes("BETWEEN"):
            low = self._literal()
            if not self._takes("AND"):
                self._refuse("AND, and the upper literal of BETWEEN")
            found = AllOf((Test(">=", name, (low,)), Test("<=", name, (self._literal(),))))
        elif self._takes("LIKE"):
            found = Test("LIKE", name, (self._pattern(),))
        elif is_not:
            self._refuse("IN, BETWEEN or LIKE")
        elif self._next.word in ("AND", "OR", ")") or self._next.kind == "end":
            return Test("TRUE", name)
        else:
            self._at = start
            return Test(
                self._operator("a comparison, IN, BETWEEN, LIKE or IS"), name, (self._literal(),)
            )
        return Not(found) if is_not else found

    def _operator(self, taken: str) -> str:
        operator = _OPERATORS.get(self._next.word)
        if operator is None:
            self._refuse(taken)
        self._take()
        return operator

    def _listed(self) -> tuple[Literal, ...]:
        if not self._takes("("):
            self._refuse("( and literals")
        found = [self._literal(or_null=True)]
        while self._takes(","):
            found.append(self._literal(or_null=True))
        if not self._takes(")"):
            self._refuse(", or )")
        return tuple(found)

    def _operand(self) -> Name:
        first = self._next
        parts, keys = [self._part("a column")], [False]
        while self._next.word in (".", "["):
            is_key = self._take().text == "["
            parts.append(
                self._text("a text in single quotes")
                if is_key
                else self._part("a field", after_dot=True)
            )
            keys.append(is_key)
            if is_key and not self._takes("]"):
                self._refuse("]")
        if self._next.word == "(":
            refuse(
                self._name,
                first.position,
                first.text,
                "functions are not taken; compare a column with a literal",
            )
        return Name(tuple(parts), tuple(keys), first.position)

    def _part(self, taken: str, *, after_dot: bool = False) -> str:
        token = self._next
        if token.kind == "quoted":
            self._take()
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word" or (token.word in _WORDS and not after_dot):
            self._refuse(f"{taken}; a name with other characters is in backticks")
        if token.word == "CAST" and self._tokens[self._at + 1].word == "(":
            self._refuse(taken)
        self._take()
        return token.text

    def _literal(self, *, or_null: bool = False) -> Literal:
        start = self._next
        if or_null and self._takes("NULL"):
            return Literal("null", None, start.text, start.position)
        found = self._maybe_literal()
        if found is None:
            if (
                start.kind in ("word", "quoted")
                and start.word not in _WORDS
                and start.word not in _INSTEAD
            ):
                self._refuse_here(
                    "a column is compared with a literal alone; filter by two columns after the read"
                )
            self._refuse("a literal, such as 'text', 5, TRUE or DATE '2024-01-31'")
        return found

    def _maybe_literal(self) -> Literal | None:
        """Return the literal that comes next, None if something else does."""
        token, after = self._next, self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        value: str | bytes | Decimal | bool | int
        kind, shown = token.kind, token.text
        if kind == "word" and token.word in _TIMES and after.kind == "text":
            self._take()
            kind, shown = token.text.lower(), f"{token.text} {after.text}"
            value = self._time(kind, self._text("a text"), shown, token.position)
        elif kind == "text":
            value = self._text("a text")
        elif kind == "number":
            kind, value = "double" if token.is_double else "number", self._number(token)
            self._take()
        elif kind == "bytes":
            try:
                value = bytes.fromhex("".join(token.text[2:-1]))
            except ValueError:
                value = b""  # which has another length
            if 2 * len(value) != len(token.text) - 3:
                self._refuse_here("X'...' takes two hexadecimal digits for each byte")
            self._take()
        elif token.word in ("TRUE", "FALSE"):
            kind, value = "boolean", token.word == "TRUE"
            self._take()
        else:
            return None
        self._literals += 1
        if self._literals > LITERALS_MAX:
            refuse(
                self._name,
                token.position,
                shown,
                f"more than {LITERALS_MAX} literals; join with a table of values after the read",
            )
        return Literal(kind, value, shown, token.position)

    def _text(self, taken: str) -> str:
        token = self._next
        if token.kind != "text":
            self._refuse(taken)
        self._take()
        if self._next.kind in ("text", "bytes"):
            self._refuse_here(
                "two texts in a row are not taken; write them as one, with '' for a quote"
            )
        found = _ESCAPE.sub(_unescaped, token.text[1:-1])
        try:  # a pair of surrogates is one character
            return found.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            refuse(
                self._name,
                token.position,
                token.text,
                "half of a pair of surrogates is no text; write X'...' for bytes",
            )

    def _number(self, token: _Token) -> Decimal:
        value = Decimal(token.text)
        _, digits, exponent = value.as_tuple()
        if not token.is_double and max(len(digits), -int(exponent)) > DIGITS_MAX:
            self._refuse_here(
                f"a number of more than {DIGITS_MAX} digits is none in Spark; write it with an exponent"
            )
        return value

    def _time(self, kind: str, text: str, shown: str, position: int) -> int:
        """Return days or us since 1970."""
        moment = _MOMENT.fullmatch(text)
        taken, zone = "'2024-01-31'", None
        if kind != "date":
            zone = "Z" if kind == "timestamp" else None
            taken = f"'2024-01-31 23:59:59{zone or ''}'"
            if zone:
                taken += ", with Z or an offset such as +01:00, since without one it goes by Spark's session"
        try:
            if kind == "date" and _DATE.fullmatch(text):
                return (datetime.datetime.fromisoformat(text) - _EPOCH).days
            if kind != "date" and moment and bool(moment[3]) == bool(zone):
                local = datetime.datetime.fromisoformat(f"{moment[1]} {moment[2]}")
                ahead = datetime.timedelta()
                if moment[3] and moment[3] != "Z":
                    hours, minutes = int(moment[3][1:3]), int(moment[3][4:])
                    ahead = datetime.timedelta(hours=hours, minutes=minutes)
                    if ahead > _ZONE_MAX or minutes > 59:
                        raise ValueError(text)
                    ahead = -ahead if moment[3][0] == "-" else ahead
                return (local - _EPOCH - ahead) // _US
        except ValueError:
            pass
        refuse(
            self._name,
            position,
            shown,
            f"{kind.upper()} takes a time of the calendar such as {taken}",
        )

    def _pattern(self) -> Literal:
        """Return the pattern of LIKE as a regular expression."""
        token = self._next
        text = self._text("the pattern of LIKE, a text in single quotes")
        escape, place = "\\", self._next
        if self._takes("ESCAPE"):
            place = self._next
            escape = self._text("one character in single quotes")
            if len(escape) != 1 or escape > "\uffff":
                refuse(self._name, place.position, place.text, "ESCAPE takes one character")
        found, characters = list[str](), iter(text)
        for one in characters:
            if one == escape:
                one = next(characters, "")
                if one not in ("%", "_", escape):
                    what = f"stands before {one!r}" if one else "is at the end"
                    refuse(
                        self._name,
                        token.position,
                        token.text,
                        f"the escape character {escape!r} {what}; it goes before %, _ and itself",
                    )
                found.append(_quoted(one))
            else:
                found.append({"%": ".*", "_": "."}.get(one) or _quoted(one))
        self._literals += 1
        return Literal("pattern", "".join(found), token.text, token.position)


def _space_after(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _unescaped(found: re.Match[str]) -> str:
    four, eight, octal, other = found.groups()
    if four or eight:
        number = int(four or eight, 16)
        return chr(number) if number < 0x110000 else "\ud800"  # which is refused
    if octal:
        return chr(int(octal, 8))
    return _ESCAPES.get(other, other) if other else "'"


def _quoted(one: str) -> str:
    return one if one.isalnum() or one > "\x7f" else rf"\x{{{ord(one):x}}}"
