"""A condition as a tree.

Its text has more spellings than the tree: `a > 5` is NOT `a <= 5`, `5 < a` the same, `a = 5` is `a IN (5)`, BETWEEN is
two comparisons, and a boolean alone is `IN (TRUE)`. NOT is moved into the tests, where it only turns the outcome: with
three values that is the same, and a NaN is greater than every number since it is not less or equal.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Part = TypeVar("Part")


class Name(NamedTuple):
    """An operand: a column of rows, or a field of one, or the value of a header or an entry of a map."""

    parts: tuple[tuple[str, bool], ...]  # each with whether it is a key, in brackets
    position: int  # in the text, from 0

    def __str__(self) -> str:
        shown = [f"['{part}']" if is_key else f".{part}" for part, is_key in self.parts]
        return "".join(shown).removeprefix(".")


class Literal(NamedTuple):
    """A literal of a condition.

    Its kind is "text" (str), "bytes" (bytes), "number" (Decimal), "double" (float), "boolean", "NULL", "date"
    (days since 1970), "timestamp" or "timestamp_ntz" (both in us since 1970); or "pattern", of LIKE, which is a
    regular expression in RE2's syntax; or "alone", the TRUE of an operand that stands alone.
    """

    kind: str
    value: str | bytes | Decimal | float | bool | int | None
    shown: str  # as in the text
    position: int


class Test(NamedTuple):
    """A test of one operand."""

    __test__ = False  # is no test of ours

    operator: str  # IN, <, <=, LIKE or "IS NULL"
    name: Name
    literals: tuple[Literal, ...]
    is_negated: bool


class AllOf(NamedTuple, Generic[Part]):
    """Conditions joined by AND."""

    parts: tuple[Part, ...]


class AnyOf(NamedTuple, Generic[Part]):
    """Conditions joined by OR."""

    parts: tuple[Part, ...]


Node: TypeAlias = "Test | AllOf[Node] | AnyOf[Node]"
