"""Histograms of TTFT and TPOT as text: bars, the SLO, the bars of the percentiles, and what two modes may mean.

It counts nothing: bars, modes and shares are the core's. Where a percentile lies is shown as its bar, not as a figure.
"""

from __future__ import annotations

import math
from itertools import accumulate, zip_longest

from rich.text import Text

from tunetui.core.modes import LEAST_VALUES
from tunetui.core.point_statistics import Distribution
from tunetui.core.session import Session
from tunetui.core.slo import Metric, Objective
from tunetui.ui import format as fmt
from tunetui.ui.fit import fitted, part
from tunetui.ui.panels import nothing_yet
from tunetui.ui.styles import BAD, DIM, WARN, WITHIN

EIGHTHS = " ▁▂▃▄▅▆▇█"
AXIS = 8  # cells left of the first bar
TWO_WIDE = 110  # cells from which both charts stand side by side
LEAST_BARS, MOST_BARS = 3, 20  # rows
AROUND = 6  # rows around the bars: title, SLO, axis, labels, and two of words
OFTEN = {
    Metric.TTFT: "Often: some requests start at once, and others wait for a slot or behind long prefills.",
    Metric.TPOT: "Often: prefill and decode share steps, so some requests' tokens wait for others' prefills.",
}


def histograms(state: Session, width: int, height: int) -> Text:
    """Both charts in `width` cells: side by side where there is room, else one above the other."""
    view = state.point_view
    if view is None:
        return Text(nothing_yet(state), DIM)
    wide = width >= TWO_WIDE
    each = (width - 2) // 2 if wide else width
    rows = min(max((height if wide else height // 2) - AROUND, LEAST_BARS), MOST_BARS)
    ttft, tpot = (histogram(state, one, each, rows) for one in (view.ttft, view.tpot))
    return Text("\n").join(_beside(ttft, tpot, each) if wide else [*ttft, *tpot])


def _beside(left: list[Text], right: list[Text], width: int) -> list[Text]:
    lines = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        lines.append(Text.assemble(one, " " * (width + 2 - one.cell_len), other))
    return lines


def histogram(state: Session, seen: Distribution, width: int, rows: int) -> list[Text]:
    """One chart: title, `rows` rows of bars under the SLO's label, axis, labels, and a sentence on its modes."""
    title = _title(state, seen, width)
    if not seen.total:
        return [title, Text("no request that has one has ended yet", DIM), Text()]
    chart = _Chart(seen, state.slo.objective(seen.metric), width, rows)
    shares = tuple({0.5: "P50", state.slo.share: f"P{state.slo.percentile}"}.items())
    return [title, *chart.lines(shares), *_words(seen, width)]


def _title(state: Session, seen: Distribution, width: int) -> Text:
    parts = [part(9, seen.metric.label, "bold")]
    if seen.total:
        parts.append(part(1, f"newest {seen.total:,}", DIM))
    results = state.measurement.objectives if state.measurement is not None else ()
    result = next((one for one in results if one.metric is seen.metric), None)
    if state.slo.objective(seen.metric) is None:
        parts.append(part(2, "no objective", DIM))
    elif result is not None and result.share is not None:
        missed = f"SLO missed by {(1 - result.share) * 100:.1f} % of this episode"
        parts.append(part(8, missed, BAD if result.share < state.slo.share else ""))
    return fitted(parts, Text(), width, gap="  ")


def _words(seen: Distribution, width: int) -> list[Text]:
    """Two lines at least, so that nothing moves when a second mode appears."""
    if seen.modes is not None:
        words, style = f"{seen.modes.words}. {OFTEN[seen.metric]}", WARN
    elif seen.total < LEAST_VALUES:
        words, style = f"too few to tell one mode from two: that takes {LEAST_VALUES}", DIM
    else:
        words, style = "no second mode is seen", DIM
    lines = [Text(line, style) for line in fmt.wrapped(words, width)]
    return lines + [Text()] * (2 - len(lines))


class _Chart:
    """Cells of one histogram: where a latency lies on its logarithmic axis, and the rows around it."""

    def __init__(self, seen: Distribution, objective: Objective | None, width: int, rows: int) -> None:
        self._seen, self._rows = seen, rows
        self._limit_s = objective.limit_s if objective else None
        self._bar = max((width - AXIS) // len(seen.counts), 1)  # cells a bar
        self._cells = self._bar * len(seen.counts)
        self._width = width - AXIS
        self._first, self._last = math.log(seen.edges_s[0]), math.log(seen.edges_s[-1])
        self._at_limit = self._cell(self._limit_s) if self._limit_s else None

    def _cell(self, latency_s: float) -> int | None:
        """The cell that a latency falls in; None off the axis."""
        share = (math.log(latency_s) - self._first) / (self._last - self._first)
        return min(int(share * self._cells), self._cells - 1) if 0 <= share <= 1 else None

    def lines(self, shares: tuple[tuple[float, str], ...]) -> list[Text]:
        """All rows. `shares`: what of the requests lies up to a mark, and the mark's name."""
        marks: dict[int, str] = {}
        for share, name in shares:
            cell = self._bar_of(share) * self._bar + self._bar // 2
            marks[cell] = f"{marks[cell]} {name}" if cell in marks else name
        return [self._limit_label(), *(self._row(row) for row in range(self._rows, 0, -1)), *self._axis(marks)]

    def _bar_of(self, share: float) -> int:
        """The bar with which `share` of the requests is reached."""
        wanted = share * self._seen.total
        return next(n for n, held in enumerate(accumulate(self._seen.counts)) if held >= wanted - 1e-9)

    def _limit_label(self) -> Text:
        if self._limit_s is None:
            return Text()
        label = f"SLO {self._limit_s * 1000:g}"
        if self._at_limit is not None:
            at = min(max(self._at_limit - len(label) // 2, 0), self._width - len(label))
            return Text(" " * (AXIS + at) + label, BAD)
        if self._limit_s > self._seen.edges_s[-1]:
            label += " ▸"
            return Text(" " * (AXIS + self._cells - len(label)) + label, BAD)
        return Text(" " * AXIS + "◂ " + label, BAD)

    def _row(self, row: int) -> Text:
        """Row `row` of the bars, counted from the axis. What is counted at all is seen: heights are rounded up."""
        tallest = max(self._seen.counts)
        gutter = f"{tallest:>{AXIS - 2},} ┤" if row == self._rows else " " * (AXIS - 1) + "│"
        line = Text().append(gutter, DIM)
        for number, (count, low_s) in enumerate(zip(self._seen.counts, self._seen.edges_s, strict=False)):
            eighths = math.ceil(count * self._rows * 8 / tallest) - (row - 1) * 8
            piece = EIGHTHS[min(max(eighths, 0), 8)] * self._bar
            within = self._limit_s is None or low_s < self._limit_s
            first = number * self._bar
            if piece.isspace() and self._at_limit is not None and 0 <= self._at_limit - first < self._bar:
                at = self._at_limit - first
                line.append(piece[:at]).append("┊", BAD).append(piece[at + 1 :])
            else:
                line.append(piece, WITHIN if within else BAD)
        return line

    def _axis(self, marks: dict[int, str]) -> list[Text]:
        """The axis with a sign at each label, and the labels: percentiles first, then round latencies where free."""
        axis, labels = ["─"] * self._cells, list(f" ms{' ' * (self._cells + AXIS - 3)}")
        if self._at_limit is not None:
            axis[self._at_limit] = "┊"
        for cell, name in marks.items():
            axis[cell] = "▲"
            _place(labels, name, AXIS + cell, bold=True)
        for latency_s in _labelled(self._seen.edges_s[0], self._seen.edges_s[-1]):
            at = self._cell(latency_s)
            if at is not None and axis[at] == "─" and _place(labels, f"{latency_s * 1000:.4g}", AXIS + at):
                axis[at] = "┴"
        line = Text("".join(labels).rstrip(), DIM)
        for name in marks.values():
            line.highlight_words([name], "not dim bold")
        return [Text(f"{0:>{AXIS - 2}} └" + "".join(axis), DIM), line]


def _place(labels: list[str], text: str, centre: int, bold: bool = False) -> bool:
    """Put `text` around `centre` where nothing is near; a percentile's name moves aside, a latency is left out."""
    for shift in (0, 1, -1, 2, -2, 3, -3) if bold else (0,):
        start = min(max(centre - len(text) // 2 + shift, 0), len(labels) - len(text))
        if "".join(labels[max(start - 1, 0) : start + len(text) + 1]).isspace():
            labels[start : start + len(text)] = text
            return True
    return False


def _labelled(low_s: float, high_s: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two latencies, the powers first; on a short axis round steps."""
    if high_s / low_s > 5:
        powers = range(math.floor(math.log10(low_s)), math.ceil(math.log10(high_s)) + 1)
        found = [step * 10.0**power for step in (1, 5, 2) for power in powers]
        return [latency_s for latency_s in found if low_s <= latency_s <= high_s]
    power = 10.0 ** math.floor(math.log10((high_s - low_s) / 3))
    step = max(m * power for m in (1, 2, 5) if m * power <= (high_s - low_s) / 3)
    return [n * step for n in range(math.ceil(low_s / step), math.floor(high_s / step) + 1)]
