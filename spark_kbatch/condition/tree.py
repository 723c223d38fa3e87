"""A condition as a tree, as its text has it.

BETWEEN is two comparisons. A test that is turned round, `5 < offset`, is the same as `offset > 5`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple, TypeAlias


class Name(NamedTuple):
    """An operand: a column of rows, or a field of one, or the value of a header or an entry of a map."""

    parts: tuple[str, ...]
    keys: tuple[bool, ...]  # whether each part is a key, in brackets
    position: int  # in the text, from 0

    def __str__(self) -> str:
        shown = [
            f"['{part}']" if is_key else f".{part}"
            for part, is_key in zip(self.parts, self.keys, strict=True)
        ]
        return "".join(shown).removeprefix(".")


class Literal(NamedTuple):
    """A literal of a condition.

    Its kind is "text" (str), "bytes" (bytes), "number" (Decimal), "double" (Decimal), "boolean", "null", "date"
    (days since 1970), "timestamp" or "timestamp_ntz" (both in us since 1970), or "pattern", of LIKE, which is a
    regular expression in RE2's syntax.
    """

    kind: str
    value: str | bytes | Decimal | bool | int | None
    shown: str  # as in the text
    position: int


class Test(NamedTuple):
    """A test of one operand: =, !=, <, <=, >, >=, IN, LIKE, IS NULL, or TRUE for a boolean alone."""

    __test__ = False  # is no test of ours

    operator: str
    name: Name
    literals: tuple[Literal, ...] = ()


class Not(NamedTuple):
    """What is true where a condition is false."""

    condition: Node


class AllOf(NamedTuple):
    """Conditions joined by AND."""

    conditions: tuple[Node, ...]


class AnyOf(NamedTuple):
    """Conditions joined by OR."""

    conditions: tuple[Node, ...]


Node: TypeAlias = Test | Not | AllOf | AnyOf
