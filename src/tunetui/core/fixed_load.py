"""The sweep at a load that the operator gave: the point that meets the SLO there with the largest margin, as a plan.

It searches for no rate (`sweep` does) and measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from tunetui.core.candidates import Around, Stage, candidates, sides
from tunetui.core.edge import Length, Seen
from tunetui.core.episode import Measurement
from tunetui.core.knobs import How, Knob, MemoryFlag, Point, plan_step
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
    values = {Metric.TTFT: measurement.ttft_s, Metric.TPOT: measurement.tpot_s, Metric.E2EL: measurement.e2el_s}
    shares = [1 - value / o.limit_s for o in slo.objectives if (value := values[o.metric]) is not None]
    return min(shares, default=0.0)


def sweep_at(goal: Goal, load: Load) -> Plan:
    """Find the point that meets the SLO under `load` with the largest margin, then with the least memory."""
    yield Told(Stage.BASELINE)
    best = yield from _held(goal.start, load, goal.length, "a first look")
    used_up = False
    for stage in (Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE):
        spent_s: float = yield Told(stage, "", best.point)
        if spent_s > goal.budget_s - goal.confirm_s:
            yield Told(stage, "left out: the budget is used up", best.point)
            used_up = True
            break
        best = yield from _race(goal, best, load, stage)
    if best.seen.measurement.verdict is not Verdict.PASS:
        return Outcome(best.point, load, reason="no point that was tried meets the SLO at this load: lower it")
    if not used_up:
        best = yield from _with_less_memory(goal, best, load)
    return (yield from confirm(goal, best.point, load, best.length))


def _held(point: Point, load: Load, length: Length, why: str) -> Generator[Task, Any, Held]:
    seen: Seen = yield length.trial(point, load, why, whole=True)
    return Held(point, seen, length.after(seen))


def _race(goal: Goal, best: Held, load: Load, stage: Stage) -> Generator[Task, Any, Held]:
    """The candidates of the stage under the load; those whose predicted margin is no larger are left out."""
    around = Around(best.point, goal.features, best.seen.kv_used, best.seen.preemptions)
    found = candidates(stage, around, goal.facts, goal.knobs)
    if not found:
        return best
    answer: tuple[Forecast, ...] = yield Ask((best.point, *found), load)
    own, *forecasts = answer
    if own.margin is None or any(not f.trusted or f.margin is None for f in answer):
        return (yield from _measured(goal, best, load, found, stage))
    for forecast in sorted(forecasts, key=lambda f: -(f.margin or 0.0)):
        if (forecast.margin or 0.0) < (own.margin or 0.0) + GAIN:
            yield Told(stage, "left out: no larger margin predicted", forecast.point)
            continue
        tried = yield from _held(forecast.point, load, best.length, "its margin")
        if _better(tried, best, goal.slo):
            best, own = tried, forecast
    return best


def _measured(goal: Goal, best: Held, load: Load, found: list[Point], stage: Stage) -> Generator[Task, Any, Held]:
    """Each candidate, as long as they win now and then on their side."""
    for side in sides(best.point, found):
        losses = 0
        for point in side:
            if losses >= LOSSES:
                yield Told(stage, "left out: behind the knee", point)
                continue
            tried = yield from _held(point, load, best.length, "its margin")
            won = _better(tried, best, goal.slo)
            best, losses = (tried, 0) if won else (best, losses + 1)
    return best


def _better(tried: Held, best: Held, slo: Slo) -> bool:
    meets, margin = best.rank(slo)
    return tried.rank(slo) > (meets, margin + GAIN)


def _with_less_memory(goal: Goal, best: Held, load: Load) -> Generator[Task, Any, Held]:
    """As little memory as leaves the margin what it is."""
    if goal.facts.memory_flag is not MemoryFlag.UTILIZATION or Knob.MEMORY not in goal.knobs:
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
