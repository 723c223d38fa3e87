"""The size of each room of the package and of each folder of tests, beside what it may have.

Sizes are numbers of statements, as Python's `ast` counts them, so that neither layout nor docstrings count.
`tests/sizes.txt` has the numbers that hold. `python -m tests.support.sizes` prints both.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TABLE = REPOSITORY / "tests" / "sizes.txt"
COMMAND = "KBATCH_REWRITE_GOLDEN=1 pytest tests/test_layout.py"
_FOLDERS = ("spark_kbatch", "tests")
_HEAD = f"""\
# How many statements, as Python's `ast` counts them, each room of the package and each folder of tests may have.
# If one needs more, raise its number in the same commit, with the reason on the same line.
# {COMMAND} lowers the numbers to what is there and some room; it raises none.
"""


class Allowed(NamedTuple):
    """What a room may have."""

    statements: int
    reason: str = ""  # why it was raised


def margin_of(statements: int) -> int:
    """Return how many statements a room of this size may get before its number has to be raised."""
    return max(statements // 100, 40)


def counted() -> dict[str, int]:
    """Return the number of statements of each room and folder, by name."""
    found: Counter[str] = Counter()
    for folder in _FOLDERS:
        for path in (REPOSITORY / folder).rglob("*.py"):
            inside = path.relative_to(REPOSITORY / folder).parts
            room = inside[0] if len(inside) > 1 else "*.py"
            found[f"{folder}/{room}"] += _statements(ast.parse(path.read_text(encoding="utf-8")))
    return dict(sorted(found.items()))


def _statements(node: ast.AST) -> int:
    """Return the number of statements in a node; expressions have none, and are not entered."""
    return sum(isinstance(one, ast.stmt) + _statements(one) for one in _blocks(node))


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements directly below a node, and the handlers and cases, which have some."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        inside = getattr(node, name, ())
        if isinstance(inside, list):
            yield from inside


def allowed() -> dict[str, Allowed]:
    """Return what the table allows, by name."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            room, number, *reason = line.split(maxsplit=2)
            found[room] = Allowed(int(number.replace(",", "")), "".join(reason))
    return found


def faults(there: Mapping[str, int], table: Mapping[str, Allowed]) -> list[str]:
    """Return a sentence for each room that has outgrown its number, or whose number holds nothing."""
    found = []
    for room in sorted(there.keys() ^ table.keys()):
        found.append(f"{room} is not in the {'table' if room in there else 'tree'}: {COMMAND}")
    for room in sorted(there.keys() & table.keys()):
        statements, most = there[room], table[room].statements
        margin = margin_of(statements)
        if statements > most:
            found.append(
                f"{room} has {statements:,} statements, {statements - most:,} more than it may have: "
                "say once what it says twice, or raise its number in tests/sizes.txt to at most "
                f"{statements + margin:,}, with the reason on the same line"
            )
        elif most - statements > 2 * margin:
            found.append(
                f"{room} has {statements:,} statements and may have {most:,}, so what it has lost "
                f"could grow back unseen: {COMMAND}"
            )
    return found


def lowered(there: Mapping[str, int], table: Mapping[str, Allowed]) -> dict[str, Allowed]:
    """Return a table for what is there: numbers of `table` fall or stay, and new rooms get one."""
    found = {}
    for room, statements in there.items():
        most = statements + margin_of(statements)
        before = table.get(room, Allowed(most))
        found[room] = Allowed(min(most, before.statements), before.reason)
    return found


def rewrite() -> None:
    """Lower the numbers of the table to what is there."""
    lines = (
        f"{room:24}{one.statements:>8,}  {one.reason}".rstrip()
        for room, one in lowered(counted(), allowed()).items()
    )
    TABLE.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def report() -> str:
    """Return a table of what is there and what may be, with the sums."""
    there, table = counted(), allowed()
    lines = [f"{'statements':24}{'there':>8}{'at most':>9}"]
    for room, statements in there.items():
        most = f"{table[room].statements:,}" if room in table else "?"
        lines.append(f"{room:24}{statements:>8,}{most:>9}")
    for folder in _FOLDERS:
        total = sum(count for room, count in there.items() if room.startswith(f"{folder}/"))
        lines.append(f"{folder + ' in all':24}{total:>8,}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
