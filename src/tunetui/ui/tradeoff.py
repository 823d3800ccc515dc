"""The page of points against each other: capacity or throughput against P95 TTFT and P95 TPOT, the SLO, the knee.

It judges nothing: the front and the knee are the core's.
"""

from __future__ import annotations

from rich.text import Text

from tunetui.core.session import Row, Session
from tunetui.core.slo import Metric, Verdict
from tunetui.core.tradeoff import Traded, front, knee
from tunetui.ui import format as fmt
from tunetui.ui.plot import Scatter, build_scatter
from tunetui.ui.styles import DIM

BESIDE_WIDTH = 100  # cells from which both latencies stand beside each other
LEAST_ROWS, MOST_ROWS = 8, 24


def tradeoff(state: Session, width: int, height: int) -> Text:
    """Both charts in `width` cells and about `height` rows, and what they show in a sentence."""
    rows = [row for row in state.rows if row.measurement.judged]
    ranked = [row for row in rows if row.capacity_rps is not None]
    by_capacity = len(ranked) > 1
    rows = ranked if by_capacity else rows
    if not rows:
        return Text("no point has been measured yet", DIM)
    unit = "capacity in req/s" if by_capacity else "output tok/s"
    percent = state.slo.percentile
    head = f"{unit} against P{percent} in ms; bold: the knee, red: SLO missed"
    beside = width >= BESIDE_WIDTH
    each = width // 2 - 1 if beside else width
    tall = min(max((height - 6) // (1 if beside else 2), LEAST_ROWS), MOST_ROWS)
    charts = [_chart(state, rows, metric, by_capacity, each, tall) for metric in (Metric.TTFT, Metric.TPOT)]
    lines = [*(Text(line, DIM) for line in fmt.wrapped(head, width)), Text()]
    if beside:
        lines += [Text("  ").join(pair) for pair in zip(*charts, strict=True)]
    else:
        lines += [line for chart in charts for line in chart]
    words = [Text(line, DIM) for line in fmt.wrapped(_words(rows, by_capacity), width)]
    return Text("\n").join([*lines, Text(), *words])


def _traded(row: Row, metric: Metric, by_capacity: bool) -> Traded | None:
    latency_s = row.measurement.ttft_s if metric is Metric.TTFT else row.measurement.tpot_s
    gain = row.capacity_rps if by_capacity else row.measurement.output_tokens_per_s
    if latency_s is None or gain is None:
        return None
    return Traded(row.number, latency_s, gain, row.measurement.verdict is not Verdict.FAIL)


def _all(rows: list[Row], metric: Metric, by_capacity: bool) -> list[Traded]:
    return [traded for row in rows if (traded := _traded(row, metric, by_capacity)) is not None]


def _chart(state: Session, rows: list[Row], metric: Metric, by_capacity: bool, width: int, height: int) -> list[Text]:
    """The title and the chart, `height` lines of `width` cells."""
    points = _all(rows, metric, by_capacity)
    objective = state.slo.objective(metric)
    turning = knee(points)
    scatter = Scatter(
        numbers=tuple(p.number for p in points),
        x=tuple(p.latency_s * 1000 for p in points),
        y=tuple(p.gain for p in points),
        met=tuple(p.met for p in points),
        marked=turning.number if turning is not None else None,
        front=tuple((p.latency_s * 1000, p.gain) for p in front(points)),
        limit=objective.limit_s * 1000 if objective is not None else None,
    )
    title = Text(f"P{state.slo.percentile} {metric.label}".ljust(width)[:width], "bold")
    drawn = Text.from_ansi(build_scatter(scatter, width, height - 1)).split("\n")[: height - 1]
    for line in drawn:
        line.pad_right(max(width - line.cell_len, 0))
    return [title, *drawn]


def _words(rows: list[Row], by_capacity: bool) -> str:
    points = _all(rows, Metric.TTFT, by_capacity)
    met = [point for point in points if point.met]
    best = max(met, key=lambda p: p.gain, default=None)
    words = "no point meets the SLO yet" if best is None else f"most inside the SLO: #{best.number}"
    turning = knee(points)
    if turning is not None:
        words += f"; the knee of TTFT is #{turning.number}: beyond it throughput costs more latency than before it"
    return words
