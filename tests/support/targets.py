"""What a benchmark found, beside what it should find: printed, and kept as JSON.

Other people's machines differ, so a benchmark that misses a target ends well, unless KBATCH_BENCH_CHECK
is set, as `make bench-check` sets it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.interleaved import Rates


@dataclass
class Target:
    """One figure, with the range of its rounds, and the limit that it should keep."""

    what: str
    found: float
    limit: float
    unit: str = ""
    at_least: bool = True
    lowest: float | None = None
    highest: float | None = None
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        self.holds = self.found >= self.limit if self.at_least else self.found <= self.limit

    def __str__(self) -> str:
        spread = "" if self.lowest is None else f" ({self.lowest:.3g} to {self.highest:.3g})"
        limit = f"{'at least' if self.at_least else 'at most'} {self.limit:.3g}{self.unit}"
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.what}: {self.found:.3g}{self.unit}{spread}, {limit}: {verdict}"


class Targets:
    """The targets and tables of one benchmark."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(width=130)
        self._targets: list[Target] = []
        self._rates: dict[str, object] = {}

    def at_least(self, what: str, found: float, limit: float, unit: str = "") -> None:
        self._add(Target(what, found, limit, unit))

    def at_most(self, what: str, found: float, limit: float, unit: str = "") -> None:
        self._add(Target(what, found, limit, unit, at_least=False))

    def rates(
        self,
        rates: Rates,
        title: str,
        unit: str,
        at_least: Mapping[tuple[str, str], float],
    ) -> None:
        """Print rates as a table, then for each pair of names the ratio of the first to the second."""
        table = Table(title=title, title_justify="left")
        for heading in ("", f"median {unit}", "slowest", "fastest"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, found in rates.rates.items():
            numbers = (rates.median(name), min(found), max(found))
            table.add_row(name, *(f"{number:,.3g}" for number in numbers))
        self.table(table)
        self._rates[title] = {"unit": unit, "rates": rates.rates}
        for (name, other), limit in at_least.items():
            ratios = rates.ratios(name, other)
            self._add(
                Target(
                    f"{name} / {other}",
                    rates.ratio(name, other),
                    limit,
                    lowest=min(ratios),
                    highest=max(ratios),
                )
            )

    def ratio(self, rates: Rates, name: str, other: str) -> None:
        """Print the ratio of two rates that has no target."""
        self.say(f"{name} / {other}: {rates.ratio(name, other):.3g}")

    def table(self, table: Table) -> None:
        self._console.print()
        self._console.print(table)

    def say(self, line: str) -> None:
        self._console.print(line)

    def finish(self, folder: Path) -> None:
        """Write what was found to `folder`, and fail if a target was missed and that matters.

        Raises:
            AssertionError: a target was missed, and KBATCH_BENCH_CHECK is set.
        """
        folder.mkdir(parents=True, exist_ok=True)
        found = {"targets": [asdict(one) for one in self._targets], "rates": self._rates}
        (folder / f"{self._name}.json").write_text(json.dumps(found, indent=1) + "\n")
        missed = [str(one) for one in self._targets if not one.holds]
        if os.environ.get("KBATCH_BENCH_CHECK"):
            assert not missed, "\n".join(missed)

    def _add(self, target: Target) -> None:
        self._targets.append(target)
        self._console.print(str(target), highlight=False)
