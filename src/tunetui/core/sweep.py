"""The sweep for capacity: the tuning guide's procedure, as a plan that ends with a point and the rate it holds at.

It measures nothing itself (`tasks` says what it asks for), and knows no clock but the one that answers bring.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from tunetui.core.candidates import Around, Stage, candidates, sides
from tunetui.core.edge import Edge, Length, Seen, Trial, find_edge
from tunetui.core.knobs import Point
from tunetui.core.load import Load
from tunetui.core.tasks import Ask, Forecast, Goal, Outcome, Plan, Task, Told, confirm

GAIN = 1.01  # a point must be predicted to be better by this to take the best one's place
MEASURED_GAIN = 1.04  # ... or be measured to be, in a race of equal episodes: one that is shorter tells no less apart
VERIFY = 0.95  # of a predicted capacity: the rate at which a point must pass to be believed
LOSSES = 2  # points in a row that lose where no prediction can be trusted: the knee is behind them
SAFETY, SAFETY_MEASURED = 0.93, 0.90  # of a predicted, or only measured, capacity: what a point is accepted for
ROUND = (Stage.SEQS, Stage.PREFILL, Stage.MEMORY, Stage.FINE)
AGAIN = (Stage.SEQS, Stage.FINE)


@dataclass(frozen=True, slots=True)
class Best:
    """The best point so far. `capacity_rps` is what ranks it: predicted where `predicted`, else the highest rate that
    passed. `length` is of the episodes there."""

    point: Point
    capacity_rps: float
    predicted: bool
    length: Length
    seen: Seen | None = None


def sweep(goal: Goal) -> Plan:
    """Find the point with the highest capacity inside the SLO, and the rate that it can be accepted for."""
    yield Told(Stage.BASELINE)
    best = yield from _baseline(goal)
    if not best.capacity_rps:
        return Outcome(None, reason="the SLO is not met at any rate: loosen it, or take a faster machine")
    ladder = best.point
    for number, stage in enumerate((*ROUND, *AGAIN)):
        if number == len(ROUND) and best.point == ladder:
            break  # nothing was refined since that could move the knee
        spent_s: float = yield Told(stage, "", best.point, best.capacity_rps)
        if spent_s > goal.budget_s - goal.confirm_s:
            yield Told(stage, "left out: the budget is used up", best.point, best.capacity_rps)
            return (yield from _confirmed(goal, best))
        best = yield from _race(goal, best, stage)
        ladder = best.point if stage is Stage.SEQS else ladder
    if not best.predicted:
        yield Told(Stage.EDGE, "", best.point, best.capacity_rps)
        best = yield from _measured_edge(best.point, best.capacity_rps, 1.05, best.length, best.seen)
    return (yield from _confirmed(goal, best))


def seek(goal: Goal) -> Plan:
    """Only the edge of the start point: the highest rate at which it meets the SLO, by trials. No fresh server."""
    yield Told(Stage.EDGE, "", goal.start)
    (forecast,) = yield from _ask((goal.start,))
    guess_rps, factor = goal.guess_rps, 1.5
    if forecast.trusted and forecast.capacity_rps:
        guess_rps, factor = VERIFY * forecast.capacity_rps, 1.05
    best = yield from _measured_edge(goal.start, guess_rps, factor, goal.length, None)
    if not best.capacity_rps:
        return Outcome(goal.start, reason="the SLO is met at no rate here")
    return Outcome(goal.start, Load(best.capacity_rps), best.capacity_rps)


def _baseline(goal: Goal) -> Generator[Task, Any, Best]:
    """A first look at the start point, from which its capacity is predicted and verified, or else searched for."""
    point, length = goal.start, goal.length
    look: Seen = yield length.trial(point, Load(goal.guess_rps), "a first look")
    for _ in range(2):  # the second time with what the engine did near its edge
        length = length.after(look)
        (forecast,) = yield from _ask((point,))
        if not (forecast.trusted and forecast.capacity_rps):
            return (yield from _measured_edge(point, look.trial.rate_rps, 1.5, length, look))
        if look.passed and look.trial.rate_rps >= VERIFY * VERIFY * forecast.capacity_rps:
            break
        look = yield _verification(forecast, length)
    length = length.after(look)
    (forecast,) = yield from _ask((point,))
    if not (look.passed and forecast.trusted and forecast.capacity_rps):
        return (yield from _measured_edge(point, look.trial.rate_rps, 1.5, length, look))
    return Best(point, forecast.capacity_rps, True, length, look)


def _verification(forecast: Forecast, length: Length, seed: int = 0) -> Trial:
    capacity_rps = forecast.capacity_rps or 0.0
    load = Load(VERIFY * capacity_rps)
    return length.trial(forecast.point, load, f"predicted to hold {capacity_rps:.2f} req/s", seed)


def _measured_edge(
    point: Point, guess_rps: float, factor: float, length: Length, seen: Seen | None
) -> Generator[Task, Any, Best]:
    known = Edge(point).after(seen) if seen is not None and seen.trial.point == point else None
    edge = yield from find_edge(point, guess_rps, length, factor, known)
    return Best(point, edge.low_rps, False, length.after(edge.best) if edge.best else length, edge.best)


def _ask(points: tuple[Point, ...]) -> Generator[Task, Any, tuple[Forecast, ...]]:
    answer: tuple[Forecast, ...] = yield Ask(points)
    return answer


def _race(goal: Goal, best: Best, stage: Stage) -> Generator[Task, Any, Best]:
    """The candidates of the stage against the best point so far."""
    kv_used, preemptions = (best.seen.kv_used, best.seen.preemptions) if best.seen is not None else (None, 0)
    around = Around(best.point, goal.features, kv_used, preemptions)
    found = candidates(stage, around, goal.facts, goal.knobs)
    if not found:
        return best
    own, *forecasts = yield from _ask((best.point, *found))
    if own.trusted and own.capacity_rps and all(f.trusted for f in forecasts):
        return (yield from _predicted_race(replace(best, capacity_rps=own.capacity_rps), forecasts, stage))
    return (yield from _measured_race(replace(best, predicted=False), found, stage))


def _predicted_race(best: Best, forecasts: list[Forecast], stage: Stage) -> Generator[Task, Any, Best]:
    """The candidate with the highest predicted capacity takes the best one's place, if it passes near to it."""
    for forecast in sorted(forecasts, key=_order):
        capacity_rps = forecast.capacity_rps or 0.0
        plainer = _plainness(forecast.point) < _plainness(best.point)
        if capacity_rps < best.capacity_rps * (1 if plainer else GAIN):
            yield Told(stage, "left out: predicted", forecast.point, capacity_rps)
            continue
        for seed in range(2):  # the episode of one seed can be a hard one
            seen: Seen = yield _verification(forecast, best.length, seed)
            if seen.passed:
                best = Best(forecast.point, capacity_rps, True, best.length.after(seen), seen)
                break
    return best


def _order(forecast: Forecast) -> tuple[int, int]:
    """The highest capacity first; of those that cannot be told apart the plainest point."""
    capacity_rps = forecast.capacity_rps or 0.0
    return -math.floor(math.log(capacity_rps, GAIN)) if capacity_rps else 1, _plainness(forecast.point)


def _plainness(point: Point) -> int:
    """How far a point is from how vLLM runs by default: with chunked prefill, and no limit to a long prefill."""
    return 2 * (not point.chunked_prefill) + (point.long_prefill_token_threshold > 0)


def _measured_race(best: Best, found: list[Point], stage: Stage) -> Generator[Task, Any, Best]:
    """Each candidate at a rate that the best one does not reach, as long as they win now and then on their side."""
    for side in sides(best.point, found):
        losses = 0
        for point in side:
            if losses >= LOSSES:
                yield Told(stage, "left out: behind the knee", point)
                continue
            rate_rps = best.capacity_rps * MEASURED_GAIN
            seen: Seen = yield best.length.trial(point, Load(rate_rps), f"against {best.capacity_rps:.2f} req/s")
            losses = 0 if seen.passed else losses + 1
            if seen.passed:  # how far it goes must be known, or a lesser one could beat it
                best = yield from _measured_edge(point, rate_rps, MEASURED_GAIN, best.length.after(seen), seen)
    return best


def _confirmed(goal: Goal, best: Best) -> Plan:
    load = Load(best.capacity_rps * (SAFETY if best.predicted else SAFETY_MEASURED))
    return (yield from confirm(goal, best.point, load, best.length, best.capacity_rps))
