"""Charts: values in, the geometry of an SVG out, which the macro in `charts.html` draws above or beside its table.

The SVG has shapes alone and is stretched to the width that there is; labels are text of the page, so that they have
the same size at any width. All shapes are in a square of 1000 by 1000, y from the top down. An axis of values
begins at 0 and ends at a round number; one of times has round times of UTC. A value that is not known is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.terminal import iso_time, visible

SIDE = 1000
LINES_MAX = 4  # that one chart can tell apart, by dashes as well as by colour

_STEPS_MAX = 4  # of an axis
_S, _MIN, _H, _D = 1000, 60_000, 3_600_000, 86_400_000
_TIME_STEPS = (
    *(n * _S for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MIN for n in (1, 2, 5, 10, 15, 30)),
    *(n * _H for n in (1, 2, 3, 6, 12)),
    *(n * _D for n in (1, 2, 7, 14, 28, 91, 182)),
)
_EDGE = 0.1  # part of an axis next to its ends, where labels are not centred
_BAR = 0.8  # part of a bar's share of the axis that it fills
_MOMENT = 6  # width of a bar that stands at a time

Shown = Callable[[float], str]


class Tick(NamedTuple):
    """A label on an axis."""

    percent: float
    label: str
    anchor: str  # what of the label is there


class Bar(NamedTuple):
    """A bar of a chart, and what it stands for."""

    label: str
    x: float
    width: float
    height: float


class Chart(NamedTuple):
    """A chart as the template draws it."""

    name: str  # part of ids in the page
    title: str
    summary: str  # for those who do not see it
    values: Sequence[str]  # labels of the axis of values, evenly spaced, from 0 up
    places: Sequence[Tick]  # labels of the other axis
    lines: Mapping[str, str] = {}  # the data of their paths, by label
    bars: Sequence[Bar] = ()
    rows: Sequence[
        Sequence[str]
    ] = ()  # of its table, first the headings; empty if the page has one


def line_chart(
    name: str,
    title: str,
    times_ms: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    shown: Shown,
    unit: int = 1000,
) -> Chart | None:
    """Return a chart of values over time, with its table; None if nothing is known.

    Args:
        name: of the chart, by which its page knows it.
        title: of the chart.
        times_ms: when, in ascending order.
        lines: values at these times, by what they are of; NaN where not known.
        shown: the text of a value.
        unit: by which values are counted: 1000, or 1024.
    """
    known = [value for values in lines.values() for value in values if not math.isnan(value)]
    if not known:
        return None
    end, labels = _axis(max(known), unit, shown)
    places = [_x(at, times_ms) for at in times_ms]
    rows = [
        [_time(at), *("not known" if math.isnan(value) else shown(value) for value in values)]
        for at, *values in zip(times_ms, *lines.values(), strict=True)
    ]
    last = f", at last {shown(known[-1])}" if len(lines) == 1 else ""
    return Chart(
        name,
        title,
        f"{_span(times_ms)}; at most {shown(max(known))}{last}.",
        labels,
        _times(times_ms[0], times_ms[-1]),
        lines={label: _path(places, values, end) for label, values in lines.items()},
        rows=[["Time (UTC)", *map(visible, lines)], *rows],
    )


def bars(
    name: str,
    title: str,
    what: str,
    values: Mapping[str, float],
    shown: Shown,
    *,
    unit: int = 1000,
    times_ms: Sequence[int] = (),
) -> Chart | None:
    """Return a chart of values side by side, or over time, for a page that has them as a table; None without values.

    Args:
        name, title, shown, unit: as of `line_chart`.
        what: one of them, such as "Partition".
        values: by its label.
        times_ms: when each was, in ascending order; none to have them side by side.
    """
    if not values:
        return None
    end, labels = _axis(max(values.values()), unit, shown)
    share = SIDE / len(values)
    width = _MOMENT if times_ms else _BAR * share
    lefts = [_x(at, times_ms) * (SIDE - width) / SIDE for at in times_ms] or [
        number * share + (share - width) / 2 for number in range(len(values))
    ]
    every = -(-len(values) // (_STEPS_MAX + 1))
    return Chart(
        name,
        title,
        f"{_span(times_ms) if times_ms else title}: from {shown(min(values.values()))} to "
        f"{shown(max(values.values()))}; the table has all of them.",
        labels,
        _times(times_ms[0], times_ms[-1])
        if times_ms
        else [
            _tick((n + 0.5) / len(values), one) for n, one in enumerate(values) if n % every == 0
        ],
        bars=[
            Bar(f"{what} {label}: {shown(value)}", left, width, SIDE * value / end)
            for left, (label, value) in zip(lefts, values.items(), strict=True)
        ],
    )


def _axis(largest: float, unit: int, shown: Shown) -> tuple[float, list[str]]:
    """Return the end of an axis from 0 to at least a value, and the labels of its round steps, at most four."""
    scale = float(unit ** int(math.log(largest, unit))) if largest >= 1 else 1.0
    rough = largest / scale / _STEPS_MAX or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = scale * next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    count = max(1, math.ceil(largest / step - 1e-9))
    return count * step, [shown(step * number) for number in range(count + 1)]


def _path(places: Sequence[float], values: Sequence[float], end: float) -> str:
    """Return the path through values, with a gap at those that are not known, and a dot for one alone."""
    path, before = "", math.nan
    for x, value in zip(places, values, strict=True):
        if not math.isnan(value):
            # "h0" draws nothing but the round end of a line, which a single point is seen by.
            start, dot = ("M", "h0") if math.isnan(before) else ("L", "")
            path += f"{start}{x:.1f} {SIDE * (1 - value / end):.1f}{dot}"
        before = value
    return path


def _x(at: int, times_ms: Sequence[int]) -> float:
    left, right = times_ms[0], times_ms[-1]
    return SIDE * (at - left) / (right - left) if right > left else SIDE / 2


def _times(left: int, right: int) -> list[Tick]:
    """Return round times between two, both inclusive; the time itself if they are one."""
    if left == right:
        return [_tick(0.5, _time(left))]
    step = next((one for one in _TIME_STEPS if (right - left) / one <= _STEPS_MAX), right - left)
    # Of an ISO time: its date from the month on, hours and minutes, or seconds too.
    part = slice(5, 10) if step >= _D else slice(11, 16 if step >= _MIN else 19)
    return [
        _tick((at - left) / (right - left), (iso_time(at) or "")[part])
        for at in range(-(-left // step) * step, right + 1, step)
    ]


def _tick(part: float, label: str) -> Tick:
    anchor = "start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle"
    return Tick(round(100 * part, 2), label, anchor)


def _span(times_ms: Sequence[int]) -> str:
    return f"From {_time(times_ms[0])} to {_time(times_ms[-1])} (UTC)"


def _time(at: int) -> str:
    """Return a time to the second."""
    return (iso_time(at) or "")[:19].replace("T", " ")
