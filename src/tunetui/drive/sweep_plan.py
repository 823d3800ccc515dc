"""Puts a sweep together: what is asked for and what is known of the server become a goal, a plan and a forecaster.

It carries nothing out (`sweeping` does).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tunetui.core.edge import Length
from tunetui.core.fixed_load import sweep_at
from tunetui.core.knobs import EngineFacts, Knob, Point
from tunetui.core.load import Load
from tunetui.core.progress import Progress
from tunetui.core.sweep import seek, sweep
from tunetui.core.tasks import CONFIRMATIONS, Goal
from tunetui.core.workload import features, plan_episode
from tunetui.drive.forecaster import Forecaster
from tunetui.drive.settings import Settings
from tunetui.drive.sweeping import Rig, Sweeping

FEATURES_OF = 1000  # requests
WARM_STREAMS = 16
TRIALS_S = 60.0  # of a confirmation, a guess for the budget


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sweep is asked for beyond its session. `fixed_load`: rank points at the session's load, not by capacity.
    `edge_only`: find the capacity of the start point, and step nothing.
    `rate_rps`: where to look first; None: the rate that some streams make by themselves."""

    requests: int
    fixed_load: bool = False
    edge_only: bool = False
    knobs: frozenset[Knob] = frozenset(Knob)
    budget_s: float = math.inf
    rate_rps: float | None = None


def sweeping(
    asked: Asked,
    settings: Settings,
    facts: EngineFacts,
    start: Point,
    mean_e2el_s: float,
    rig: Rig,
    show: Callable[[Progress], None],
    forecaster: Forecaster | None = None,
) -> Sweeping:
    """A sweep from `start` on `rig`, not yet run. `mean_e2el_s` is what a warm-up lets expect; `forecaster` what is
    known of this engine already."""
    load = settings.load if settings.load.open_loop else Load(1.0)
    guess_rps = asked.rate_rps or min(WARM_STREAMS, start.max_num_seqs) / max(mean_e2el_s, 1e-3)
    goal = Goal(
        slo=settings.slo,
        start=start,
        facts=facts,
        guess_rps=guess_rps,
        length=Length(asked.requests, mean_e2el_s),
        features=features(plan_episode(settings.workload, load, 0, FEATURES_OF)),
        knobs=asked.knobs,
        budget_s=asked.budget_s,
        confirm_s=rig.start_s + CONFIRMATIONS * TRIALS_S,
    )
    plan = seek(goal) if asked.edge_only else sweep_at(goal, settings.load) if asked.fixed_load else sweep(goal)
    known = forecaster or Forecaster(facts, settings.workload, load, settings.slo)
    return Sweeping(plan, rig, known, show)
