"""The one plot module: a chart of a latency over time, as a widget that re-sends only the rows that changed.

Only this file imports plotext. plotext keeps its figure in module state, so charts are built one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotext
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 60.0, 180.0
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
        lines[-1].append((time_s, value))
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


def build(series: Series, width: int, height: int) -> str:
    """The chart as `height` lines of `width` cells with ANSI colours; plain axes where there is no data."""
    figure = plotext
    figure.clf()
    figure.limit_size(False, False)
    figure.plotsize(width, height)
    figure.theme("clear")
    lines = unbroken(series)
    tallest = max([v for line in lines for _, v in line] + [series.limit_ms or 0.0])
    top = nice_ceiling(tallest * 1.05)
    figure.xlim(-series.window_s, 0)
    figure.ylim(0, top)
    ticks = [-series.window_s * share for share in (1.0, 2 / 3, 1 / 3, 0.0)]
    figure.xticks(ticks, [f"{t:.0f} s" if t else "now" for t in ticks])
    figure.yticks([0, top / 2, top], ["0", f"{top / 2:g}", f"{top:g}"])
    figure.frame(False)
    for mark in series.marks_s:
        if -series.window_s <= mark <= 0:
            figure.plot([mark, mark], [0, top], marker="┊", color="blue+")
    if series.limit_ms is not None:
        figure.plot([-series.window_s, 0], [series.limit_ms] * 2, marker="╌", color="red+")
    for line in lines:
        figure.plot([t for t, _ in line], [v for _, v in line], marker="braille", color="cyan+")
    return str(figure.build())


class Chart(Widget):
    """A chart of one Series."""

    DEFAULT_CSS = "Chart { height: 1fr; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002  (Textual's own name)
        super().__init__(id=id)
        self._series: Series | None = None
        self._strips: list[Strip] = []

    def show(self, series: Series) -> None:
        """Draw `series`; nothing is sent for rows that stay as they were."""
        self._series = series
        self._rebuild()

    def on_resize(self) -> None:
        self._rebuild()

    def _rebuild(self) -> None:
        width, height = self.size
        if self._series is None or width < 20 or height < 3:
            return
        strips = strips_of(build(self._series, width, height), width, height)
        old, self._strips = self._strips, strips
        if len(old) != len(strips):
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, strip in enumerate(strips) if strip != old[y]]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y].apply_style(self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)


def strips_of(ansi: str, width: int, height: int) -> list[Strip]:
    """The lines of an ANSI drawing as exactly `height` strips of `width` cells."""
    strips: list[Strip] = []
    for line in ansi.split("\n")[:height]:
        text = Text.from_ansi(line)
        segments = [Segment(s.text, s.style or Style.null()) for s in text.render(_CONSOLE) if s.text != "\n"]
        strips.append(Strip(segments).adjust_cell_length(width))
    while len(strips) < height:
        strips.append(Strip.blank(width))
    return strips


def _make_console() -> Console:
    return Console(color_system="truecolor", force_terminal=True, width=1000)


_CONSOLE = _make_console()


def latest(values: Sequence[float | None]) -> float | None:
    """The newest value that is there."""
    return next((v for v in reversed(values) if v is not None), None)
