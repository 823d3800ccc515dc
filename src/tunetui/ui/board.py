"""The session's panels on the screen, and how they share it at every size. It shows a state and takes no keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from tunetui.core.knobs import Knob
from tunetui.core.session import Session
from tunetui.core.slo import Metric
from tunetui.ui import commands, panels
from tunetui.ui.plot import Chart, Series, window_for
from tunetui.ui.points import points
from tunetui.ui.rows import Rows
from tunetui.ui.startup import is_starting, startup

SMALLEST = (60, 15)
SHORT = 20  # rows below which the table of points gives way to the charts
CHARTS = ((Metric.TTFT, "ttft"), (Metric.TPOT, "tpot"))
KNOBS_WIDE, KNOBS_NARROW = 44, 34


@dataclass(frozen=True, slots=True)
class Shown:
    """What is to be seen at one moment: the state, the operator's hand on it, the clock, the log's last lines."""

    state: Session
    now_s: float
    chosen: Knob
    typed: str = ""
    log_tail: Sequence[str] = ()


def points_height(height: int) -> int:
    """Rows of the table of points: a quarter of the screen, none on a short one."""
    return 0 if height < SHORT else 4 if height < 30 else height // 4


def series_of(state: Session, metric: Metric) -> Series | None:
    """One chart's series, in milliseconds against the newest tick; None before the first."""
    if not state.chart:
        return None
    end_s = state.chart[-1].time_s
    window_s = window_for(end_s - state.chart[0].time_s)
    kept = [p for p in state.chart if p.time_s > end_s - window_s]
    values = [p.ttft_s if metric is Metric.TTFT else p.tpot_s for p in kept]
    objective = state.slo.objective(metric)
    return Series(
        times_s=tuple(p.time_s - end_s for p in kept),
        values_ms=tuple(nan if v is None else v * 1000 for v in values),
        limit_ms=objective.limit_s * 1000 if objective else None,
        marks_s=tuple(min(m - end_s, 0.0) for m in state.marks if m > end_s - window_s),
        window_s=window_s,
    )


class Board(Container):
    """Every panel of the session. `show` it what is to be seen; only rows that differ are sent."""

    def __init__(self) -> None:
        super().__init__(id="board")
        self._charted: tuple[object, ...] = ()
        self._points_rows = 0
        self._message_rows = 1

    def compose(self) -> ComposeResult:
        yield Rows(id="header")
        with Horizontal(id="body"):
            yield Rows(id="knobs")
            with Vertical(id="charts"):
                for _, name in CHARTS:
                    yield Rows(id=f"{name}-title")
                    yield Chart(id=name)
            yield Rows(id="startup", wrap=True)
        for name in ("episode", "engine", "coach", "message", "points", "footer", "small"):
            yield Rows(id=name)

    def show(self, shown: Shown) -> None:
        """Paint `shown` at the present size of the screen."""
        width, height = self.app.size
        state, now_s = shown.state, shown.now_s
        starting, small = is_starting(state), width < SMALLEST[0] or height < SMALLEST[1]
        with self.app.batch_update():
            self.set_class(small, "small")
            self.set_class(width < panels.WIDE, "narrow")
            self.set_class(height < SHORT, "short")
            self.set_class(starting, "starting")
            if small:
                self._write("small", panels.small(state, width, height, SMALLEST))
                return
            rows = points_height(height)
            if rows and rows != self._points_rows:
                self._points_rows = rows
                self._panel("points").styles.height = rows
            knob_width = KNOBS_NARROW if width < panels.WIDE else KNOBS_WIDE
            self._write("header", panels.header(state, now_s, width))
            self._write("knobs", panels.knobs(state, shown.chosen, shown.typed, knob_width))
            self._write("episode", panels.episode(state, width))
            self._write("engine", panels.engine(state, width))
            self._write("coach", panels.coach(state, width))
            message = panels.message(state, now_s, width)
            self.set_class(bool(message), "told")
            self.set_class(not message, "quiet")
            self._show_message(message)
            self._write("points", points(state, width, rows))
            self._write("footer", Text(commands.footer(width, starting)))
            if starting:
                room = (width - knob_width - 5, height - rows - 5 - self._message_rows)  # the other lines, and margins
                self._write("startup", startup(state, now_s, shown.log_tail, *room))
            else:
                self._show_charts(state, width - knob_width - 2)

    def _panel(self, name: str) -> Rows:
        return self.query_one(f"#{name}", Rows)

    def _write(self, name: str, text: Text) -> None:
        self._panel(name).show(text)

    def _show_message(self, text: Text) -> None:
        rows = 1 + text.plain.count("\n")
        if rows != self._message_rows:
            self._message_rows = rows
            self._panel("message").styles.height = rows
        self._write("message", text)

    def _show_charts(self, state: Session, width: int) -> None:
        for metric, name in CHARTS:
            self._write(f"{name}-title", panels.chart_title(state, metric, width))
        charted = (state.chart[-1:], state.marks)
        if charted == self._charted:
            return
        self._charted = charted
        for metric, name in CHARTS:
            series = series_of(state, metric)
            if series is not None:
                self.query_one(f"#{name}", Chart).plot(series)
