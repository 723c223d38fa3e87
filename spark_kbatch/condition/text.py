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

import re
from binascii import unhexlify
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

from spark_kbatch.condition.tree import AllOf, AnyOf, Name, Node, Predicate, Token
from spark_kbatch.errors import ConfigError

BYTES_MAX = 64 << 10  # of a text
LEVELS_MAX = 100  # of parentheses within each other
LITERALS_MAX = 10_000
DIGITS_MAX = 38  # of a number without exponent: more are no number in Spark

_SPACE = r"[ \t\r\n]"
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"
# Each group is a kind of token, but for words and signs, which are kinds of their own.
_TOKEN = re.compile(
    rf"""{_SPACE}+
    | (?P<date>(?i:DATE){_SPACE}*'[^']*')
    | (?P<timestamp>(?i:TIMESTAMP){_SPACE}*'[^']*')
    | (?P<timestamp_ntz>(?i:TIMESTAMP_NTZ){_SPACE}*'[^']*')
    | (?P<bytes>[xX]'[^']*')
    | (?P<texts>{_TEXT}(?:{_SPACE}+{_TEXT})+)
    | (?P<text>{_TEXT})
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<unclosed>['`].*)
    | (?P<double>{_NUMBER}[eE][+-]?[0-9]+(?![A-Za-z0-9_]))
    | (?P<suffixed>{_NUMBER}[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>{_NUMBER})
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign><=>|==|<>|!=|<=|>=|--|/\*|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_SIGNS = {
    "=": ("IN", False),
    "==": ("IN", False),
    "<>": ("IN", True),
    "!=": ("IN", True),
    "<": ("<", False),
    "<=": ("<=", False),
    ">": ("<=", True),
    ">=": ("<", True),
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WILD = {"%": ".*", "_": "."}
_SHOWN_MAX = 40

# What is not taken, by the kind of its token, and what to write in its place.
_INSTEAD = {
    '"': "a text in double quotes is a name or a text, as a setting of Spark decides; write '...' for a text, `...` for a name",
    "texts": "two texts in a row are not taken; write them as one, with '' for a quote",
    "unclosed": "the quote is not closed; write it once more at the end, and doubled within",
    "suffixed": "suffixes are not taken; write the digits alone",
    "--": "comments are not taken; leave it out",
    "/*": "comments are not taken; leave it out",
    "::": "casts are not taken; write a literal of the column's type",
    "CAST": "casts are not taken; write a literal of the column's type",
    "<=>": "<=> is not taken; write = , or IS NULL",
    "!": "! is not taken; write NOT",
    ";": "one condition is taken, without ; at its end",
    "NULL": "NULL is compared with nothing; write IS NULL or IS NOT NULL",
    "RLIKE": "regular expressions are not taken; write LIKE, and filter further after the read",
    "REGEXP": "regular expressions are not taken; write LIKE, and filter further after the read",
    "ILIKE": "ILIKE is not taken; write LIKE with each spelling, joined by OR",
}
_WORDS = {*"AND OR NOT IN BETWEEN IS LIKE ESCAPE TRUE FALSE".split(), *_INSTEAD}

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))|''", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}  # fmt: skip
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))"  # at most 18 hours, as in Java
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Parenthesis(NamedTuple):
    """Tests within one pair of parentheses: lists that are joined by OR, each of tests joined by AND."""

    is_negated: bool
    alternatives: list[list[Node]]

    def joined(self) -> Node:
        both: type[AllOf | AnyOf] = AnyOf if self.is_negated else AllOf
        either: type[AllOf | AnyOf] = AllOf if self.is_negated else AnyOf
        parts = [one[0] if len(one) == 1 else both(tuple(one)) for one in self.alternatives]
        return parts[0] if len(parts) == 1 else either(tuple(parts))


def parse(text: object, name: str = "where") -> Node:
    """Parse the text of a condition.

    Args:
        text: of the condition.
        name: of the option or argument, for errors.

    Raises:
        ConfigError: a text that is not taken; says where, and what to write in its place.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{name} is {text!r}; accepted: a condition, such as \"key = 'a'\"")
    size = len(text.encode(errors="surrogatepass"))
    if size > BYTES_MAX:
        raise ConfigError(
            f"{name} has {size} bytes, more than {BYTES_MAX}; join with a table of values after the read"
        )
    return _ConditionParser(text, name).condition()


def refuse(name: str, place: Token | Name, why: str) -> NoReturn:
    """Raise the error of a place in a condition's text.

    Args:
        name: of the option or argument.
        place: what stands there.
        why: it is refused, and what to write in its place.
    """
    shown = place.shown or "the end"
    shown = shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "..."
    raise ConfigError(f"{name}: at character {place.position + 1}, {shown}: {why}")


class _ConditionParser:
    """Parser of one text. Parentheses are a list of levels: nothing here calls itself."""

    def __init__(self, text: str, name: str) -> None:
        self._name, self._at, self._literals = name, 0, 0
        self._tokens = _tokens(text)

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self, *kinds: str) -> Token | None:
        """Return the next token, and go on, if it is of one of these kinds."""
        if self._next.kind not in kinds:
            return None
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, taken: str, *kinds: str) -> Token:
        """Return the next token; raises if it is of none of these kinds, with what is taken in its place."""
        token = self._take(*kinds)
        if token is None:
            self._refuse(_INSTEAD.get(self._next.kind, f"expected {taken}"))
        return token

    def _refuse(self, why: str, place: Token | None = None) -> NoReturn:
        refuse(self._name, place or self._next, why)

    def condition(self) -> Node:
        """Return the condition that is all of the text."""
        levels = [_Parenthesis(False, [[]])]
        while True:
            is_negated = levels[-1].is_negated
            while self._take("NOT"):
                is_negated = not is_negated
            if self._next.kind == "(":
                if len(levels) > LEVELS_MAX:
                    self._refuse(f"more than {LEVELS_MAX} levels of parentheses; write it flatter")
                self._take("(")
                levels.append(_Parenthesis(is_negated, [[]]))
                continue
            levels[-1].alternatives[-1].append(self._test(is_negated=is_negated))
            while len(levels) > 1 and self._take(")"):
                found = levels.pop().joined()
                levels[-1].alternatives[-1].append(found)
            if self._take("OR"):
                levels[-1].alternatives.append([])
            elif not self._take("AND"):
                end = ")" if len(levels) > 1 else "the end"  # a ) that is there was taken above
                self._expect(f"AND, OR or {end}", end)
                return levels[0].joined()

    def _test(self, *, is_negated: bool) -> Node:
        if self._next.kind in _LITERALS:
            literals = (self._literal(),)
            sign = self._expect("a comparison, such as = , after a literal", *_SIGNS).kind
            return _compared(_TURNED.get(sign, sign), self._operand(), literals, is_negated)
        name = self._operand()
        if self._take("NOT"):
            is_negated = not is_negated
            word = self._expect("IN, BETWEEN or LIKE", "IN", "BETWEEN", "LIKE").kind
        else:
            taken = self._take("IN", "BETWEEN", "LIKE", "IS", *_SIGNS)
            word = taken.kind if taken else ""
        match word:
            case "IN":
                return Predicate("IN", name, self._listed(), is_negated)
            case "BETWEEN":
                low = Predicate("<", name, (self._literal(),), not is_negated)
                self._expect("AND, and the upper literal of BETWEEN", "AND")
                high = Predicate("<=", name, (self._literal(),), is_negated)
                return _Parenthesis(is_negated, [[low, high]]).joined()
            case "LIKE":
                return Predicate("LIKE", name, (self._pattern(),), is_negated)
            case "IS":
                is_negated = is_negated is not bool(self._take("NOT"))
                self._expect("NULL or NOT NULL; write = TRUE or = FALSE for others", "NULL")
                return Predicate("IS NULL", name, (), is_negated)
            case "":
                if self._next.kind not in ("AND", "OR", ")", "the end"):
                    self._expect("a comparison, IN, BETWEEN, LIKE or IS")
                alone = Token("alone", name.shown, name.position, True)
                return Predicate("IN", name, (alone,), is_negated)
        return _compared(word, name, (self._literal(),), is_negated)

    def _operand(self) -> Name:
        first = self._next
        parts = [(self._part("a column"), False)]
        while sign := self._take(".", "["):
            if sign.kind == ".":
                parts.append((self._part("a field"), False))
            else:
                key = self._literal("a text in single quotes", ["text"])
                parts.append((str(key.value), True))
                self._expect("]", "]")
        if self._next.kind == "(":
            self._refuse("functions are not taken; compare a column with a literal", first)
        return Name(tuple(parts), first.position)

    def _part(self, taken: str) -> str:
        token = self._expect(
            f"{taken}; a name with other characters is in backticks", "name", "quoted"
        )
        return token.shown if token.kind == "name" else token.shown[1:-1].replace("``", "`")

    def _listed(self) -> tuple[Token, ...]:
        self._expect("( and literals", "(")
        found = list[Token]()
        while not found or self._take(","):
            found.append(self._literal(kinds=[*_LITERALS, "NULL"]))
        self._expect(", or )", ")")
        return tuple(found)

    def _literal(
        self,
        taken: str = "a literal, such as 'text', 5, TRUE or DATE '2024-01-31'; filter by two columns after the read",
        kinds: Iterable[str] = (),
    ) -> Token:
        token = self._expect(taken, *(kinds or _LITERALS))
        self._literals += 1
        if self._literals > LITERALS_MAX:
            self._refuse(
                f"more than {LITERALS_MAX} literals; join with a table of values after the read",
                token,
            )
        value_of, why = _LITERALS.get(token.kind, (lambda _: None, ""))
        try:
            value = value_of(token.shown)
        except (ValueError, OverflowError):
            self._refuse(why, token)
        return token._replace(value=value)

    def _pattern(self) -> Token:
        """Return the pattern of LIKE as a regular expression."""
        pattern = self._literal("the pattern of LIKE, a text in single quotes", ["text"])
        escape = "\\"
        if self._take("ESCAPE"):
            given = self._literal("one character in single quotes", ["text"])
            escape = str(given.value)
            if len(escape) != 1 or escape > "\uffff":
                self._refuse("ESCAPE takes one character", given)
        found = list[str]()
        pieces = re.compile(f"{re.escape(escape)}(?P<escaped>.?)|.", re.DOTALL)
        for piece in pieces.finditer(str(pattern.value)):
            one = piece["escaped"]
            if one is None:
                found.append(_WILD.get(piece[0]) or re.escape(piece[0]))
            elif one in ("%", "_", escape):
                found.append(re.escape(one))
            else:
                where = f"stands before {one!r}" if one else "is at the end"
                self._refuse(
                    f"the escape character {escape!r} {where}; it goes before %, _ and itself",
                    pattern,
                )
        return pattern._replace(kind="pattern", value="".join(found))


def _compared(sign: str, name: Name, literals: tuple[Token, ...], is_negated: bool) -> Predicate:
    operator, is_turned = _SIGNS[sign]
    return Predicate(operator, name, literals, is_negated is not is_turned)


def _tokens(text: str) -> list[Token]:
    """Return all tokens of a text, and one for its end; any other character is a sign, which no rule takes."""
    found = list[Token]()
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "sign":
            kind = match[0]
        elif kind == "word":
            is_field = found and found[-1].kind == "."
            word = match[0].upper()
            kind = word if word in _WORDS and not is_field else "name"
        if kind is not None:  # no space
            found.append(Token(kind, match[0], match.start()))
    return [*found, Token("the end", "", len(text))]


def _unescaped(shown: str) -> str:
    """Return the text of a literal; raises ValueError for an escape that is no character."""

    def character(found: re.Match[str]) -> str:
        four, eight, octal, other = found.groups("")
        if four or eight or octal:
            return chr(int(octal, 8) if octal else int(four or eight, 16))
        return _ESCAPES.get(other, other or "'")

    text = _ESCAPE.sub(character, shown[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # a pair is one character


def _number(shown: str) -> Decimal:
    value = Decimal(shown)
    _, digits, exponent = value.as_tuple()
    if max(len(digits), -int(exponent)) > DIGITS_MAX:
        raise ValueError(shown)
    return value


def _double(shown: str) -> float:
    value = float(shown)
    if abs(value) == float("inf"):
        raise ValueError(shown)
    return value


def _since_1970(form: str, unit: timedelta) -> Callable[[str], int]:
    """Return what reads a literal of this form as a number of units since 1970."""

    def value(shown: str) -> int:
        found = re.fullmatch(f"[^']*'({form})'", shown)
        if found is None:
            raise ValueError(shown)
        time = datetime.fromisoformat(found[1])
        return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // unit

    return value


# By kind of a literal: what makes a value of it, or raises ValueError, and what is said then.
_LITERALS: dict[str, tuple[Callable[[str], Any], str]] = {
    "text": (
        _unescaped,
        "half of a pair of surrogates is no text, and U+10FFFF the last character; write X'...' for bytes",
    ),
    "bytes": (
        lambda shown: unhexlify(shown[2:-1]),
        "X'...' takes two hexadecimal digits for each byte",
    ),
    "number": (
        _number,
        f"a number of more than {DIGITS_MAX} digits is none in Spark; write it with an exponent",
    ),
    "double": (_double, "no double is as large; write a smaller number"),
    "TRUE": (lambda _: True, ""),
    "FALSE": (lambda _: False, ""),
    "date": (
        _since_1970(_DATE, timedelta(days=1)),
        "DATE takes a day of the calendar such as '2024-01-31'",
    ),
    "timestamp": (
        _since_1970(_DATE + _CLOCK + _ZONE, timedelta(microseconds=1)),
        "TIMESTAMP takes a time of the calendar such as '2024-01-31 23:59:59Z', with Z or an offset such as +01:00, "
        "since without one it goes by Spark's session",
    ),
    "timestamp_ntz": (
        _since_1970(_DATE + _CLOCK, timedelta(microseconds=1)),
        "TIMESTAMP_NTZ takes a time of the calendar such as '2024-01-31 23:59:59'",
    ),
}
