"""A condition as a tree.

Its text has more spellings than the tree: `a > 5` is NOT `a <= 5`, `5 < a` the same, `a = 5` is `a IN (5)`, BETWEEN is
two comparisons, and a boolean alone is `IN (TRUE)`. NOT is moved into the tests, where it only turns the outcome: with
three values that is the same, and a NaN is greater than every number since it is not less or equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class Name(NamedTuple):
    """An operand: a column of rows, or a field of one, or the value of a header or an entry of a map."""

    parts: tuple[tuple[str, bool], ...]  # each with whether it is a key, in brackets
    position: int  # in the text, from 0

    @property
    def shown(self) -> str:
        """The operand as a text has it, without backticks."""
        shown = [f"['{part}']" if is_key else f".{part}" for part, is_key in self.parts]
        return "".join(shown).removeprefix(".")


class Token(NamedTuple):
    """A word, a sign or a literal of a text.

    Its kind is a word in capitals, a sign, "name", "quoted", or "the end"; or that of a literal: "text" (str), "bytes"
    (bytes), "number" (Decimal), "double" (float), "TRUE", "FALSE", "NULL", "date" (days since 1970), "timestamp" or
    "timestamp_ntz" (both in us since 1970), "pattern", of LIKE, which is a regular expression in RE2's syntax, or
    "alone", the TRUE of an operand that stands alone. Others are not taken.
    """

    kind: str
    shown: str  # as in the text
    position: int  # in the text, from 0
    value: Any = None  # of a literal


class Predicate(NamedTuple):
    """A test of one operand."""

    operator: str  # IN, <, <=, LIKE or "IS NULL"
    name: Name
    literals: tuple[Token, ...]
    is_negated: bool


class AllOf(NamedTuple):
    """Conditions joined by AND."""

    parts: tuple[Any, ...]  # as parsed, or as bound


class AnyOf(NamedTuple):
    """Conditions joined by OR."""

    parts: tuple[Any, ...]  # as parsed, or as bound


Node: TypeAlias = Predicate | AllOf | AnyOf
