"""The one plot module: charts of a latency over time, in a widget, and of an interval that closes, as lines of text.

Only this file imports plotext, and it computes nothing that is drawn. plotext keeps its figure in module state, so
charts are built one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text
from textual.strip import Strip

from tunetui.ui.rows import Rows, strips_of

SMALLEST = (20, 3)
# Among the 256 colours, and light enough for the greys of NO_COLOR.
LINE, LIMIT, MARK = (95, 255, 255), (255, 135, 135), (135, 175, 255)
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 60.0, 180.0
MOST_MS = 1e9  # plotext walks every cell of a line, those off the chart too
GAP_S = 3.5  # between two points; ticks come once a second


@dataclass(frozen=True, slots=True)
class Series:
    """One chart: values in milliseconds against seconds before now (at most 0), the limit and the step marks.

    A value that is not finite stands for nothing seen.
    """

    times_s: tuple[float, ...]
    values_ms: tuple[float, ...]
    limit_ms: float | None
    marks_s: tuple[float, ...]
    window_s: float = LONGEST_WINDOW_S


def unbroken(series: Series) -> list[list[tuple[float, float]]]:
    """The stretches to draw as lines: a value that is not finite, or a gap in time, breaks one."""
    lines: list[list[tuple[float, float]]] = []
    before_s: float | None = None
    for time_s, value in zip(series.times_s, series.values_ms, strict=True):
        if not math.isfinite(value):
            before_s = None
            continue
        if before_s is None or time_s - before_s > GAP_S:
            lines.append([])
        lines[-1].append((time_s, min(max(value, 0.0), MOST_MS)))
        before_s = time_s
    return lines


def window_for(age_s: float) -> float:
    """How far back a chart reaches that is `age_s` old: it grows from one minute to three."""
    return next((w for w in (SHORTEST_WINDOW_S, 90.0, 120.0) if age_s <= w), LONGEST_WINDOW_S)


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is at least `value`."""
    if not (value > 0 and math.isfinite(value)):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if m * power >= value * (1 - 1e-9)), 10 * power)


def ticks_for(top: float, limit: float | None, height: int) -> list[float]:
    """Where the axis is labelled: the limit, whatever else there is; 0 and the top where they are not in its row; the
    middle where all of them leave room for a label."""
    row = top / max(height - 2, 1)
    ticks = [limit] if limit is not None and 0 <= limit <= top else []
    ticks += [end for end in (0.0, top) if all(round(end / row) != round(tick / row) for tick in ticks)]
    if all(abs(top / 2 - tick) >= row for tick in ticks):
        ticks.append(top / 2)
    return sorted(ticks)


def build(series: Series, width: int, height: int) -> str:
    """The chart as `height` lines of `width` cells with ANSI colours; plain axes where there is no data."""
    import plotext as figure  # not at the top: it takes 0.1 s, and the first screen has no chart

    figure.clf()
    figure.limit_size(False, False)
    figure.plotsize(width, height)
    figure.theme("clear")
    lines = unbroken(series)
    tallest = max([v for line in lines for _, v in line] + [series.limit_ms or 0.0])
    top = nice_ceiling(min(tallest, MOST_MS) * 1.05)
    figure.xlim(-series.window_s, 0)
    figure.ylim(0, top)
    ticks = [-series.window_s * share for share in ((1.0, 2 / 3, 1 / 3, 0.0) if width >= 40 else (1.0, 0.0))]
    figure.xticks(ticks, [f"{t:.0f} s" if t else "now" for t in ticks])
    heights = ticks_for(top, series.limit_ms, height)
    # One width in every chart, so that charts above each other share their time axis.
    figure.yticks(heights, [f"{v:>6g}" for v in heights])
    figure.frame(False)
    for mark in series.marks_s:
        if -series.window_s <= mark <= 0:
            figure.plot([mark, mark], [0, top], marker="┊", color=MARK)
    if series.limit_ms is not None and series.limit_ms <= top:
        figure.plot([-series.window_s, 0], [series.limit_ms] * 2, marker="╌", color=LIMIT)
    for line in lines:
        figure.plot([t for t, _ in line], [v for _, v in line], marker="braille", color=LINE)
    return str(figure.build())


@dataclass(frozen=True, slots=True)
class Band:
    """An interval in percent after so many requests, at rising counts, and the target that it is held against."""

    requests: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    target: float


def floor_for(low: float) -> float:
    """Where the axis of a share begins, in percent: the highest of these that leaves `low` some room."""
    return next((floor for floor in (98.0, 95.0, 90.0, 80.0, 70.0, 50.0) if low - floor >= (100 - low) / 4), 0.0)


def build_band(band: Band, width: int, height: int) -> str:
    """The interval's two ends against requests as `height` lines of `width` cells with ANSI colours.

    The axis is the present interval's: what was wider in the beginning comes into the chart where it fits.
    """
    import plotext as figure

    figure.clf()
    figure.limit_size(False, False)
    figure.plotsize(width, height)
    figure.theme("clear")
    last, bottom = max(band.requests, default=1), floor_for(min((*band.low[-1:], band.target)))
    figure.xlim(0, last)
    figure.ylim(bottom, 100)
    counts = [0, last // 2, last] if width >= 40 else [0, last]
    figure.xticks(counts, [f"{count:,}" for count in counts])
    heights = [bottom + above for above in ticks_for(100 - bottom, band.target - bottom, height)]
    figure.yticks(heights, [f"{v:>6g}" for v in heights])
    figure.frame(False)
    figure.plot([0, last], [band.target] * 2, marker="╌", color=LIMIT)
    for ends in (band.high, band.low):
        inside = [(count, end) for count, end in zip(band.requests, ends, strict=True) if end >= bottom]
        figure.plot([count for count, _ in inside], [end for _, end in inside], marker="braille", color=LINE)
    return str(figure.build())


@dataclass(frozen=True, slots=True)
class Scatter:
    """Numbered points: `x` a latency in milliseconds, `y` what they give. `met`: the SLO is; `marked`: the number of
    the one that stands out; `front` is drawn as a line; `limit` is of x."""

    numbers: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    met: tuple[bool, ...]
    marked: int | None
    front: tuple[tuple[float, float], ...]
    limit: float | None


def build_scatter(scatter: Scatter, width: int, height: int) -> str:
    """The points as their numbers, in `height` lines of `width` cells with ANSI colours; plain axes for none."""
    import plotext as figure

    figure.clf()
    figure.limit_size(False, False)
    figure.plotsize(width, height)
    figure.theme("clear")
    known = [i for i, (x, y) in enumerate(zip(scatter.x, scatter.y, strict=True)) if math.isfinite(x + y)]
    right = nice_ceiling(min(max([scatter.x[i] for i in known] + [scatter.limit or 0.0]), MOST_MS) * 1.05)
    top = nice_ceiling(min(max((scatter.y[i] for i in known), default=0.0), MOST_MS) * 1.05)
    bottom = top / 2 if known and min(scatter.y[i] for i in known) > top / 2 else 0.0
    figure.xlim(0, right)
    figure.ylim(bottom, top)
    ticks = ticks_for(right, scatter.limit, max(width // 12, 4))
    figure.xticks(ticks, [f"{t:g}" for t in ticks])
    heights = [bottom + above for above in ticks_for(top - bottom, None, height)]
    figure.yticks(heights, [f"{v:>6g}" for v in heights])
    figure.frame(False)
    if scatter.limit is not None and scatter.limit <= right:
        figure.plot([scatter.limit] * 2, [bottom, top], marker="\u254e", color=LIMIT)
    front = [(min(x, right), min(y, top)) for x, y in scatter.front if math.isfinite(x + y)]
    if len(front) > 1:
        figure.plot([x for x, _ in front], [y for _, y in front], marker="braille", color=MARK)
    for i in known:
        style = "bold" if scatter.numbers[i] == scatter.marked else None
        colour = LINE if scatter.met[i] else LIMIT
        figure.text(
            str(scatter.numbers[i]), min(scatter.x[i], right), min(scatter.y[i], top), color=colour, style=style
        )
    return str(figure.build())


class Chart(Rows):
    """A chart of one Series."""

    DEFAULT_CSS = "Chart { height: 1fr; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002  (Textual's own name)
        super().__init__(id=id)
        self._series: Series | None = None

    def plot(self, series: Series) -> None:
        """Draw `series`; nothing is sent for rows that stay as they were."""
        if series != self._series:
            self._series = series
            self._rebuild()

    def make_strips(self, width: int, height: int) -> list[Strip]:
        if self._series is None or width < SMALLEST[0] or height < SMALLEST[1]:
            return [Strip.blank(width)] * height
        return strips_of(Text.from_ansi(build(self._series, width, height)), width, height)
