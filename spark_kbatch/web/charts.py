"""Charts: values in, and what the macro in `charts.html` draws as an SVG, above or beside its table.

The SVG has shapes alone and is stretched to the width that there is; labels are text of the page, so that they have
the same size at any width. All shapes are in a square of 1000 by 1000, y from the top down. An axis of values
begins at 0 and ends at a round number; the other one has round times of UTC, or numbers. A value that is not known
is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.terminal import iso_time
from spark_kbatch.web.site import number_shown, size_shown

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
_NUMBER_STEPS = [n * 10**power for power in range(19) for n in (1, 2, 5)]
_STEPS = {
    1000: [*(n / 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)), *_NUMBER_STEPS],
    1024: [2**power for power in range(64)],
}  # of values, by unit
_BAR = 0.8  # part of a number's share of the axis that its bar fills
_MOMENT = 6  # width of a bar that stands at a time


class Chart(NamedTuple):
    """A chart as the template draws it."""

    name: str  # part of ids in the page
    title: str
    summary: str  # for those who do not see it
    places: Sequence[float]  # where the values are, from 0 to SIDE
    labels: Sequence[str]  # of the values at each place
    lines: Mapping[str, Sequence[float]]  # values by what they are of; NaN where not known
    shown: Callable[[float], str]  # the text of a value
    end: float  # of the axis of values
    steps: Sequence[str]  # its labels, evenly spaced, from 0 up
    ticks: Sequence[tuple[float, str]]  # labels of the other axis, by their percent of it
    bar: float  # width of the bars, by which the one line is drawn; 0 for none


def chart(
    name: str,
    title: str,
    at: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    *,
    unit: int = 1000,
    bars: Sequence[str] = (),
    of_times: bool = True,
) -> Chart | None:
    """Return a chart of values; None if nothing is known.

    Args:
        name: of the chart, by which its page knows it.
        title: of the chart.
        at: where the values are, in ascending order: times in ms, or numbers.
        lines: values there, by what they are of; NaN where not known.
        unit: by which values are counted: 1000, or 1024 for bytes.
        bars: what is at each place, to have a bar there, for a page that has a table; none to have lines.
        of_times: false if places are numbers.
    """
    known = [value for values in lines.values() for value in values if not math.isnan(value)]
    if not known:
        return None
    margin = 0.5 if not of_times else 500 if at[-1] - at[0] < _S else 0
    left, width = at[0] - margin, at[-1] - at[0] + 2 * margin
    step = _step(max(known) or _STEPS_MAX, _STEPS[unit])
    count = max(1, math.ceil(max(known) / step))
    shown = size_shown if unit == 1024 else number_shown
    labels = bars or [*map(_time, at)]
    span = f"From {labels[0]} to {labels[-1]}" + ("" if bars else " (UTC)")
    return Chart(
        name,
        title,
        f"{span}: from {shown(min(known))} to {shown(max(known))}.",
        [SIDE * (one - left) / width for one in at],
        labels,
        lines,
        shown,
        count * step,
        [shown(step * number) for number in range(count + 1)],
        _ticks(left, left + width, of_times=of_times),
        0 if not bars else _MOMENT if of_times else _BAR * SIDE / width,
    )


def _step(length: float, steps: Sequence[float]) -> float:
    """Return the least step of which at most four cover a length; the length itself if it is too long for all."""
    return next((one for one in steps if length / one <= _STEPS_MAX), length)


def _ticks(left: float, right: float, *, of_times: bool) -> list[tuple[float, str]]:
    """Return round times, or whole numbers, between two, by their percent of what is between them, with labels."""
    length = right - left
    step = int(_step(length, _TIME_STEPS if of_times else _NUMBER_STEPS))
    # Of an ISO time: its date from the month on, hours and minutes, or seconds too.
    part = slice(5, 10) if step >= _D else slice(11, 16 if step >= _MIN else 19)
    return [
        (100 * (at - left) / length, (iso_time(at) or "")[part] if of_times else str(at))
        for at in range(math.ceil(left / step) * step, math.floor(right) + 1, step)
    ]


def _time(at: int) -> str:
    """Return a time to the second."""
    return (iso_time(at) or "")[:19].replace("T", " ")
