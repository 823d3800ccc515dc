"""Whether a baseline still holds: its figures beside those of the same episode measured again, and its workload beside
today's. It measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tunetui.core.baseline import Baseline
from tunetui.core.episode import Measurement
from tunetui.core.slo import Metric, Verdict

TOLERANCE = 0.15  # of a figure: two episodes of a few hundred requests differ by as much where nothing has changed


class Holding(StrEnum):
    """What is said of a baseline; the words are shown."""

    HOLDS = "HOLDS"
    DRIFTED = "DRIFTED"
    CHANGED = "WORKLOAD CHANGED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Drift:
    """One figure then and now. `worse`: by more than the tolerance."""

    name: str
    unit: str
    was: float
    now: float
    worse: bool

    @property
    def sentence(self) -> str:
        """`P95 TTFT 412 -> 655 ms (+59 %)`."""
        return f"{self.name} {self.was:,.4g} -> {self.now:,.4g} {self.unit} ({self.now / self.was - 1:+.0%})"


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer: the word, every figure that both have, and the workload's features that moved, a sentence each.
    `lost`: the SLO was met and is not."""

    holding: Holding
    verdict: Verdict
    figures: tuple[Drift, ...]
    moved: tuple[str, ...] = ()
    lost: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it does not hold, a sentence each."""
        drifted = tuple(drift.sentence for drift in self.figures if drift.worse)
        missed = ("the SLO is not met any more",) if self.lost else ()
        return (*self.moved, *missed, *drifted)


def checked(
    baseline: Baseline, seen: Measurement, tolerance: float = TOLERANCE, moved: tuple[str, ...] = ()
) -> Checked:
    """What `seen`, the baseline's episode measured again, says of it. `moved`: features of today's workload that are
    out of the baseline's range: what was measured is not its episode then, and figures are only shown."""
    figures = tuple(_drifts(baseline, seen, tolerance))
    lost = seen.verdict is Verdict.FAIL and baseline.result["verdict"] != Verdict.FAIL.value
    if moved:
        holding = Holding.CHANGED
    elif lost or any(drift.worse for drift in figures):
        holding = Holding.DRIFTED
    elif seen.verdict is Verdict.UNDECIDED and baseline.goal.objectives:
        holding = Holding.UNDECIDED
    else:
        holding = Holding.HOLDS
    return Checked(holding, seen.verdict, figures, moved, lost)


def _drifts(baseline: Baseline, seen: Measurement, tolerance: float) -> list[Drift]:
    percentile = baseline.slo["percentile"]
    latencies = ((Metric.TTFT, seen.ttft_s), (Metric.TPOT, seen.tpot_s), (Metric.E2EL, seen.e2el_s))
    found = []
    for metric, value_s in latencies:
        was = baseline.result.get(f"{metric.value}_ms")
        if was and value_s is not None:
            worse = value_s * 1000 > was * (1 + tolerance)
            found.append(Drift(f"P{percentile} {metric.label}", "ms", was, value_s * 1000, worse))
    rates = (("goodput", "req/s", "goodput_rps", seen.goodput_rps),
             ("throughput", "tok/s", "output_tokens_per_s", seen.output_tokens_per_s))  # fmt: skip
    for name, unit, key, now in rates:
        was = baseline.result.get(key)
        if was:
            found.append(Drift(name, unit, was, now, now < was * (1 - tolerance)))
    return found
