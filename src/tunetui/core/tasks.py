"""What a sweep's plan asks for and is answered with: trials, predictions, a fresh server; and how it ends.

A plan is a generator: whoever carries it out sends each task's answer back in, when he likes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunetui.core.candidates import Stage
from tunetui.core.edge import Length, Seen, Trial
from tunetui.core.episode import Measurement
from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.load import Load
from tunetui.core.slo import Slo, Verdict

BACK_OFF = 0.95
CONFIRMATIONS, MOST_CONFIRMATIONS = 3, 12  # episodes of other seeds that must meet the SLO together; the most in all


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is predicted of a point: its capacity over a long run, or its margin (`margin_of`) under a load; None where
    it is not known. `trusted`: predictions in this session were near to what was measured."""

    point: Point
    capacity_rps: float | None = None
    margin: float | None = None
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A task: predict these points, their margins under `load`, or their capacities where that is None."""

    points: tuple[Point, ...]
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Confirm:
    """A task: a fresh server with exactly the flags of `point`; what follows is measured there."""

    point: Point


@dataclass(frozen=True, slots=True)
class Told:
    """A task that is answered with the seconds since the sweep began: what it does or leaves out, for the log."""

    stage: Stage
    text: str = ""
    point: Point | None = None
    capacity_rps: float = 0.0


Task = Trial | Ask | Confirm | Told
Plan = Generator[Task, Any, "Outcome"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a sweep is asked for. `guess_rps` is where the search for the first edge begins. `knobs` may be moved.
    `budget_s` is for all of it: as much of it as a confirmation may take, `confirm_s`, is kept for that."""

    slo: Slo
    start: Point
    facts: EngineFacts
    guess_rps: float
    length: Length
    features: Mapping[str, float | int | str] = field(default_factory=dict)
    knobs: frozenset[Knob] = frozenset(Knob)
    budget_s: float = math.inf
    confirm_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended: the point and the load that it was accepted for; `reason` says why it was not, or is empty."""

    point: Point | None
    load: Load | None = None
    capacity_rps: float = 0.0
    confirmed: tuple[Measurement, ...] = ()
    reason: str = ""


def confirm(goal: Goal, point: Point, load: Load, length: Length, capacity_rps: float = 0.0) -> Plan:
    """A fresh server, and episodes of other seeds. Where `capacity_rps` is given each must meet the SLO, and the
    rate is lowered until they do; else `load` is as it is, and they must meet it together."""
    yield Told(Stage.CONFIRM, "", point, capacity_rps)
    yield Confirm(point)
    seen: list[Measurement] = []
    for seed in range(1, MOST_CONFIRMATIONS + 1):
        trial = length.trial(point, load, "on a fresh server", seed, whole=True)
        answer: Seen = yield trial
        seen.append(answer.measurement)
        failed = bool(capacity_rps) and answer.measurement.verdict is Verdict.FAIL
        if failed or answer.measurement.overload or _miss(seen, goal.slo, CONFIRMATIONS):
            if not capacity_rps:
                break
            capacity_rps = (load.rate_rps or 0.0) * BACK_OFF  # what was predicted did not hold: this is what may
            load, seen = replace(load, rate_rps=capacity_rps), []
        elif len(seen) == CONFIRMATIONS:
            return Outcome(point, load, capacity_rps, tuple(seen))
    return Outcome(point, load, capacity_rps, (), "it did not hold on a fresh server")


def _miss(seen: list[Measurement], slo: Slo, episodes: int) -> bool:
    """Whether these episodes cannot meet an objective together any more, of `episodes` like them in all."""
    for results in zip(*(m.objectives for m in seen), strict=True):
        requests = sum(r.applies_to for r in results) * episodes / len(seen)
        if sum(r.missed for r in results) > (1 - slo.share) * requests + 1e-9:
            return True
    return False
