"""The sweep at a load that the operator gave: the point that meets the SLO there with the largest margin, as a plan.

It searches for no rate (`sweep` does) and measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from tunetui.core.candidates import Around, Stage, candidates
from tunetui.core.edge import Length, Seen
from tunetui.core.episode import Measurement
from tunetui.core.knobs import How, MemoryFlag, Point, plan_step
from tunetui.core.load import Load
from tunetui.core.slo import Metric, Slo, Verdict
from tunetui.core.tasks import Ask, Forecast, Goal, Outcome, Plan, Task, Told, confirm

GAIN = 0.02  # of the limit: a margin must be larger by this to take the best one's place
LOSSES = 2
MEMORY_STEP, MEMORY_STEPS = 0.05, 3


@dataclass(frozen=True, slots=True)
class Held:
    """A point and what was seen of it under the load."""

    point: Point
    seen: Seen
    length: Length

    def rank(self, slo: Slo) -> tuple[bool, float]:
        """Meets the SLO, then the larger margin."""
        measurement = self.seen.measurement
        return measurement.verdict is Verdict.PASS, margin_of(measurement, slo)


def margin_of(measurement: Measurement, slo: Slo) -> float:
    """What is left of the tightest objective, as a share of its limit; below 0 where it is missed."""
    values = {Metric.TTFT: measurement.ttft_s, Metric.TPOT: measurement.tpot_s}
    shares = [1 - value / o.limit_s for o in slo.objectives if (value := values.get(o.metric)) is not None]
    return min(shares, default=0.0)


def sweep_at(goal: Goal, load: Load) -> Plan:
    """Find the point that meets the SLO under `load` with the largest margin, then with the least memory."""
    yield Told(Stage.BASELINE)
    best = yield from _held(goal.start, load, goal.length, "a first look")
    for stage in (Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE):
        spent_s: float = yield Told(stage, "", best.point)
        if spent_s > goal.budget_s - goal.confirm_s:
            yield Told(stage, "left out: the budget is used up", best.point)
            break
        best = yield from _race(goal, best, load, stage)
    if best.seen.measurement.verdict is not Verdict.PASS:
        return Outcome(best.point, load, reason="no point that was tried meets the SLO at this load: lower it")
    best = yield from _with_less_memory(goal, best, load)
    return (yield from confirm(goal, best.point, load, best.length))


def _held(point: Point, load: Load, length: Length, why: str) -> Generator[Task, Any, Held]:
    seen: Seen = yield length.trial(point, load, why, whole=True)
    return Held(point, seen, length.after(seen))


def _race(goal: Goal, best: Held, load: Load, stage: Stage) -> Generator[Task, Any, Held]:
    """The candidates of the stage under the load; those whose predicted margin is no larger are left out."""
    found = candidates(stage, Around(best.point, goal.features), goal.facts, goal.knobs)
    if not found:
        return best
    answer: tuple[Forecast, ...] = yield Ask((best.point, *found), load)
    own, *forecasts = answer
    trusted = own.margin is not None and all(f.trusted and f.margin is not None for f in answer)
    losses = 0
    for forecast in sorted(forecasts, key=lambda f: -(f.margin or 0.0)) if trusted else forecasts:
        if trusted and (forecast.margin or 0.0) < (own.margin or 0.0) + GAIN:
            yield Told(stage, "left out: no larger margin predicted", forecast.point)
            continue
        if losses >= LOSSES:
            yield Told(stage, "left out: behind the knee", forecast.point)
            continue
        tried = yield from _held(forecast.point, load, best.length, "its margin")
        meets, margin = best.rank(goal.slo)
        if tried.rank(goal.slo) > (meets, margin + GAIN):
            best, own, losses = tried, forecast, 0
        else:
            losses += 1
    return best


def _with_less_memory(goal: Goal, best: Held, load: Load) -> Generator[Task, Any, Held]:
    """As little memory as leaves the margin what it is."""
    if goal.facts.memory_flag is not MemoryFlag.UTILIZATION:
        return best
    _, margin = best.rank(goal.slo)
    for _ in range(MEMORY_STEPS):
        point = replace(best.point, memory=round(best.point.memory - MEMORY_STEP, 4))
        if plan_step(best.point, point, goal.facts).how is not How.LIVE:
            break
        tried = yield from _held(point, load, best.length, "with less memory")
        if tried.rank(goal.slo) < (True, margin - GAIN):
            break
        best = tried
    return best
