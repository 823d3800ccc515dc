"""What an advice promises, whether it was kept, and what the session learns of it. It gives no advice.

A promise is a figure and the way it moves; objectives that were met must still be met, or it was not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tunetui.core.episode import Measurement
from tunetui.core.slo import Metric, Verdict
from tunetui.core.step_figures import StepFigures

MOST_FAILURES = 2  # of one advice in one region: then it is not repeated in the session
DIGITS = 3
LOSS = 0.03  # of a figure that must not fall: less is noise of the window's ends


class Figure(StrEnum):
    """A figure of a measurement that an advice moves."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    THROUGHPUT = "throughput"
    GOODPUT = "goodput"
    PREEMPTIONS = "preemptions"


@dataclass(frozen=True, slots=True)
class Expectation:
    """`figure` goes up or down by `least` of itself, or more; objectives in `keeps` that were met are still met, and
    `without_loss` is a figure that must not fall."""

    figure: Figure
    up: bool
    least: float = 0.02
    keeps: tuple[Metric, ...] = (Metric.TTFT, Metric.TPOT, Metric.E2EL)
    without_loss: Figure | None = None

    @property
    def words(self) -> str:
        return f"{self.figure.value} {'up' if self.up else 'down'}"


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one point: its measurement, and how often the engine preempted for every 100 requests."""

    measurement: Measurement
    preemptions: float = 0.0

    def value(self, figure: Figure) -> float | None:
        """The figure in its own unit: seconds, tokens or requests a second, a count."""
        match figure:
            case Figure.TTFT:
                return self.measurement.ttft_s
            case Figure.TPOT:
                return self.measurement.tpot_s
            case Figure.THROUGHPUT:
                return self.measurement.output_tokens_per_s
            case Figure.GOODPUT:
                return self.measurement.goodput_rps
            case Figure.PREEMPTIONS:
                return self.preemptions

    def text(self, figure: Figure) -> str:
        value = self.value(figure)
        if value is None:
            return "-"
        match figure:
            case Figure.TTFT:
                return f"{value * 1000:.0f}"
            case Figure.TPOT:
                return f"{value * 1000:.1f}"
            case Figure.GOODPUT:
                return f"{value:.{DIGITS}g}"
            case _:
                return f"{value:,.0f}"


UNITS = {
    Figure.TTFT: " ms",
    Figure.TPOT: " ms",
    Figure.THROUGHPUT: " tok/s",
    Figure.GOODPUT: " req/s",
    Figure.PREEMPTIONS: " per 100 requests",
}


def observed(measurement: Measurement, figures: StepFigures) -> Observed:
    """What was seen of the point of `measurement`, whose steps gave `figures`."""
    requests = measurement.requests_per_s * figures.span_s
    return Observed(measurement, 100 * figures.preemptions / requests if requests >= 1 else float(figures.preemptions))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a promise was kept, and one sentence of the figures before and after."""

    kept: bool
    sentence: str


def judge(expectation: Expectation, before: Observed, after: Observed) -> Outcome:
    """Whether `after` is what `expectation` promised of `before`; a point that came to PASS has kept any promise."""
    figure = expectation.figure
    was, now = before.value(figure), after.value(figure)
    text = f"{figure.value} {before.text(figure)} -> {after.text(figure)}{UNITS.get(figure, '')}"
    passes = after.measurement.verdict is Verdict.PASS and before.measurement.verdict is Verdict.FAIL
    if passes:
        return Outcome(True, f"{text}, and the SLO is met, as expected")
    if lost := _lost(expectation, before.measurement, after.measurement):
        return Outcome(False, f"{text}, but {lost} is over")
    if was is None or now is None:
        return Outcome(False, f"{text}: nothing to compare")
    if (spared := expectation.without_loss) is not None:
        had, has = before.value(spared) or 0.0, after.value(spared) or 0.0
        if has < (1 - LOSS) * had:
            unit = UNITS.get(spared, "")
            return Outcome(False, f"{text}, but {spared.value} {before.text(spared)} -> {after.text(spared)}{unit}")
    moved = (now - was if expectation.up else was - now) >= max(expectation.least * abs(was), 1e-12)
    return Outcome(moved, text + (", as expected" if moved else ", not as expected"))


def _lost(expectation: Expectation, before: Measurement, after: Measurement) -> str:
    """An objective that was met before and is not after, or an empty string."""
    verdicts = {o.metric: o.verdict for o in before.objectives}
    for objective in after.objectives:
        kept = objective.metric in expectation.keeps and verdicts.get(objective.metric) is Verdict.PASS
        if kept and objective.verdict is Verdict.FAIL:
            return objective.metric.label
    return ""


@dataclass(frozen=True, slots=True)
class Learned:
    """What advice has failed in this session: a key is its rule, direction and region, see `Advice.key`."""

    failures: tuple[tuple[str, int], ...] = ()

    def after(self, key: str, kept: bool) -> Learned:
        """With one more outcome. One that was kept takes nothing back: it is the failures that are counted."""
        if kept:
            return self
        counts = dict(self.failures)
        counts[key] = counts.get(key, 0) + 1
        return Learned(tuple(counts.items()))

    def silences(self, key: str) -> bool:
        return dict(self.failures).get(key, 0) >= MOST_FAILURES
