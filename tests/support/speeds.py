"""The picture of speeds in README and docs/performance.md, and the stored figures that it is drawn from.

With KBATCH_BENCH_STORE=1, `make bench`, `make bench-bucket` and `make bench-kafka` add their ratios to
docs/speeds.json, with the machine, the day and the command. `make docs` then draws docs/speeds.svg. The picture shows
the lowest and the highest median of all runs in the file: delete a run there that should no longer count. It has
those comparisons alone in which a longer bar means that kbatch is faster; the table has the ceilings too.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import pyspark

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
STORED, PICTURE = DOCS / "speeds.json", DOCS / "speeds.svg"
WITH_FOLDER, WITH_BROKER, WITH_BUCKET = "make bench", "make bench-kafka", "make bench-bucket"


class Comparison(NamedTuple):
    """Something that kbatch is compared with."""

    key: str  # in the stored figures
    does: str
    other: str
    command: str  # which measures it
    bar: str = ""  # beside it in the picture; without one it is in the table alone


COMPARISONS = (
    Comparison("read/kafka", "Read", "Spark's Kafka connector", WITH_BROKER, "Read a topic"),
    Comparison("read named/kafka", "Read", "the same, with columns named", WITH_BROKER, "Read key and value alone"),
    Comparison("one key/kafka", "Read", "one key: the same, and a filter", WITH_BROKER, "Read one key of 100,000"),
    Comparison("read/parquet", "Read", "Parquet", WITH_FOLDER),
    Comparison("read/bridge", "Read", "ready-made rows (ceiling)", WITH_FOLDER),
    Comparison("write/kafka", "Write", "Spark's Kafka connector", WITH_BROKER, "Write a topic"),
    Comparison("write/parquet", "Write", "Parquet", WITH_FOLDER),
    Comparison("write/bridge", "Write", "dropping the rows (ceiling)", WITH_FOLDER),
    Comparison("queue/delta", "Queue in a bucket", "Delta Lake, 16 writers", WITH_BUCKET, "A queue: 16 writers, a reader"),
)  # fmt: skip


class Span(NamedTuple):
    """The lowest and the highest median of several runs."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = (f"{one:.2f}" if one < 1 else f"{one:.1f}" for one in self)
        return low if low == high else f"{low} to {high}"


# Figures.


def store_speeds(command: str, times: Mapping[str, float], path: Path = STORED) -> None:
    """Add the ratios of a run to the stored figures, if KBATCH_BENCH_STORE is set."""
    if not os.environ.get("KBATCH_BENCH_STORE"):
        return
    runs = json.loads(path.read_text(encoding="utf-8"))
    run = {"machine": this_machine(), "day": f"{datetime.now(UTC):%Y-%m-%d}", "command": command}
    for known in runs:
        if known.items() >= run.items():
            break
    else:
        known = {**run, "times": {}}
        runs.append(known)
    for key, found in times.items():
        low, high = known["times"].get(key, (found, found))
        known["times"][key] = [round(min(low, found), 3), round(max(high, found), 3)]
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def this_machine() -> str:
    """Return what stands beside figures: processor, cores, Python and Spark."""
    processor = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = (
            line for line in cpu_info.read_text().splitlines() if line.startswith("model name")
        )
        processor = next(names, processor).partition(": ")[2] or processor
    versions = f"Python {platform.python_version()}, Spark {pyspark.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {versions}"


def stored_runs(path: Path = STORED) -> list[dict[str, Any]]:
    """Return the stored runs."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return runs


def spans(path: Path = STORED) -> dict[str, Span]:
    """Return the lowest and highest ratio of each comparison, over all stored runs."""
    found: dict[str, Span] = {}
    for run in stored_runs(path):
        for key, (low, high) in run["times"].items():
            before = found.get(key, Span(low, high))
            found[key] = Span(min(before.low, low), max(before.high, high))
    return found


def speeds_markdown() -> str:
    """Return what the picture shows as a Markdown table, and where it was measured."""
    found = spans()
    lines = ["| | | times as fast | measured by |", "|---|---|---|---|"]
    for one in _measured(found):
        lines.append(f"| {one.does.lower()} | {one.other} | {found[one.key]} | `{one.command}` |")
    lines += ["", "Measured:", ""]
    lines += [f"- {run['day']}, `{run['command']}`: {run['machine']}" for run in stored_runs()]
    return "\n".join(lines)


def _measured(found: Mapping[str, Span]) -> list[Comparison]:
    """Return the comparisons that have been measured."""
    return [one for one in COMPARISONS if one.key in found]


# The picture.

# As wide as a telephone shows without making its letters smaller than 11 pixels.
_WIDTH, _LEFT, _RIGHT = 440, 18, 74  # of the picture; beside the bars
_TOP, _ROW, _BAR, _HEAD = 84, 46, 16, 30
_STYLE = """
    text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .head { font-weight: 600 }
    .quiet { fill: #59636e }
    .found { font-weight: 600 }
    .paper { fill: #ffffff; stroke: #d1d9e0 }
    .one { stroke: #59636e; stroke-width: 1.5 }
    .bar { fill: #0969da }
    .range { fill: #0969da; fill-opacity: 0.4 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .quiet { fill: #9198a1 }
      .paper { fill: #0d1117; stroke: #3d444d }
      .one { stroke: #9198a1 }
      .bar { fill: #4493f8 }
      .range { fill: #4493f8 }
    }
"""
_PEERS = {
    "kafka": 'Beside format("kafka"), on one broker',
    "delta": "Beside Delta Lake, in one bucket",
}


def drawn(found: Mapping[str, Span] | None = None) -> str:
    """Return the picture as SVG: a bar for each comparison, and a line at the peer's own speed."""
    found = found or spans()
    with_bars = [one for one in _measured(found) if one.bar]
    unit = (_WIDTH - _LEFT - _RIGHT) / max(found[one.key].high for one in with_bars)
    marks: list[str] = []
    y, peer = _TOP, ""
    for one in with_bars:
        if one.key.partition("/")[2] != peer:
            peer = one.key.partition("/")[2]
            marks.append(_text(_LEFT, y, _PEERS[peer], "head"))
            y += _HEAD
        low, high = found[one.key]
        marks.append(_text(_LEFT, y - 3, one.bar, ""))
        marks.append(_bar(_LEFT, y + 4, low * unit, "bar"))
        if high > low:
            marks.append(_bar(_LEFT + low * unit, y + 4, (high - low) * unit, "range"))
        marks.append(_text(_LEFT + high * unit + 8, y + 4 + _BAR - 3, str(found[one.key]), "found"))
        x = _LEFT + unit
        marks.append(
            f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1}" y2="{y + 7 + _BAR}"/>'
        )
        y += _ROW
    height = y
    told = "; ".join(f"{one.bar}, beside {one.other}: {found[one.key]}" for one in with_bars)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
            f"<title>How many times as fast as others kbatch is</title><desc>{escape(told)}</desc>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
            _text(_LEFT, 30, "How many times as many rows a second", "title"),
            _text(_LEFT, 52, "Longer is faster; the line is the other's own speed", "quiet"),
            *marks,
            "</svg>\n",
        ]
    )  # fmt: skip


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}"/>'
