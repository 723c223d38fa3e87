"""The picture of README: what `make demo` prints, in a terminal that is narrow enough for a telephone.

    COLUMNS=52 make demo | python -m tests.support.demo_picture

stores what the picture shows of a run in docs/demo.txt, and `make docs` draws docs/demo.svg from that. How long each
step took is left out, as it depends on what else the machine does: docs/performance.md has what was measured.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
STORED, PICTURE = DOCS / "demo.txt", DOCS / "demo.svg"
COLUMNS = (
    52  # of which each is 6.5 pixels wide in a picture of 358 pixels, what a telephone has for it
)

_STEPS = ("Writing 336,776", "Reading every", "Computing", "Comparing")
_DURATION = re.compile(r" \.\.\. \d+\.\d s$")
_LOG = re.compile(r"^The log +$\n.*?^└.*?$\n", re.MULTILINE | re.DOTALL)
_RATES = re.compile(r"^│ written at.*?(?=^└)", re.MULTILINE | re.DOTALL)
_SAME = re.compile(r"^The same, .*?\.$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<!\w)\d[\d,.]*")

# Of the picture, in its own units.
_CELL, _LINE, _FONT = 12, 26, 20
_LEFT, _TOP, _BOTTOM = 20, 66, 22
_STYLE = """
    text { font: 20px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3; white-space: pre }
    .paper { fill: #0d1117; stroke: #3d444d }
    .command { font-weight: 600 }
    .number { fill: #79c0ff }
    .quiet { fill: #6e7681 }
"""


def shown_of(printed: str) -> str:
    """Return what the picture shows of all that the demo printed in COLUMNS columns."""
    steps = [
        _DURATION.sub("", line)
        for line in printed.splitlines()
        if line.startswith(_STEPS) and _DURATION.search(line)
    ]
    log, same = _LOG.search(printed), _SAME.search(printed)
    assert log is not None
    assert same is not None
    table = [line.rstrip() for line in _RATES.sub("", log[0]).splitlines()]
    return "\n".join([*steps, *table, *(line.rstrip() for line in same[0].splitlines()), ""])


def drawn(shown: str | None = None) -> str:
    """Return the picture as SVG, with light letters on a dark terminal."""
    lines = ["$ make demo"]
    for line in (shown or STORED.read_text(encoding="utf-8")).splitlines():
        lines += (
            textwrap.wrap(line, COLUMNS, drop_whitespace=False) if len(line) > COLUMNS else [line]
        )
    width = 2 * _LEFT + COLUMNS * _CELL
    height = _TOP + len(lines) * _LINE + _BOTTOM - _FONT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
            "<title>What `make demo` prints in a terminal</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
            *(f'<circle class="quiet" cx="{x}" cy="22" r="6"/>' for x in (26, 46, 66)),
            *(_drawn_line(line, _TOP + at * _LINE) for at, line in enumerate(lines)),
            "</svg>\n",
        ]
    )  # fmt: skip


def _drawn_line(line: str, y: int) -> str:
    """Return a line, as long as its letters are in any font."""
    quiet = re.sub(
        "[─│┌┬┐└┴┘]+", lambda found: f'<tspan class="quiet">{found[0]}</tspan>', escape(line)
    )
    marked = _NUMBER.sub(lambda found: f'<tspan class="number">{found[0]}</tspan>', quiet)
    kind = ' class="command"' if line.startswith("$ ") else ""
    return f'<text{kind} x="{_LEFT}" y="{y}" textLength="{len(line) * _CELL}" xml:space="preserve">{marked}</text>'


if __name__ == "__main__":
    STORED.write_text(shown_of(sys.stdin.read()), encoding="utf-8")
